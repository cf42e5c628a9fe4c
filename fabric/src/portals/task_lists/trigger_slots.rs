//! Trigger slots: the adapter resources of a task, and how they are triggered.

use super::{
    super::{
        calls::{AddressRange, Ct, Md, PortalsCallError},
        event_queues::EventQueueKind,
        match_bits,
        onesided::PortalsCommands,
        rma_calls::{MdSpan, RemoteTarget},
        transport::PortalsTransport,
        triggers::CtValue,
    },
    NotificationCode, PolledWait, PortalsTaskLists, TaskCounterWait,
    lower::TriggeredPlan,
};
use crate::{
    driver::CommandToken,
    memory::MemoryRegion,
    offload::{CounterCondition, TaskAction, TriggeredTask},
};

/// Resources of one task, reused by later tasks.
#[derive(Debug)]
pub(super) struct TriggerSlot {
    pub(super) pair: TriggerPair,
    pub(super) task: Option<SlotTask>,
}

/// A counter, and a descriptor for all memory that counts its acknowledgments there.
#[derive(Clone, Copy, Debug)]
pub(super) struct TriggerPair {
    pub(super) go: Ct,
    pub(super) md: Md,
}

/// Task of a trigger slot.
#[derive(Debug)]
pub(super) struct SlotTask {
    pub(super) token: CommandToken,
    /// Value of the counter when the task is complete.
    pub(super) full: u64,
    pub(super) waits: Vec<TaskCounterWait>,
    pub(super) fallback: TaskFallback,
}

/// Data for a task that fails, or that the host must do.
#[derive(Debug)]
pub(super) enum TaskFallback {
    Nothing,
    /// A put to this rank, possibly for a published landing that is assumed to exist.
    Put(u32, Option<(MemoryRegion, usize)>),
    Count(u32, RemoteTarget),
    /// The action, which the host does when the task is due.
    Task(TaskAction),
    /// An action in progress at the host, with the memory that it puts from.
    Doing {
        _keeps: Option<MemoryRegion>,
    },
}

impl SlotTask {
    /// Returns true if the task reads memory of its list.
    pub(super) const fn puts(&self) -> bool {
        matches!(
            self.fallback,
            TaskFallback::Put(..) | TaskFallback::Doing { .. }
        )
    }

    /// Returns true if the counter has reached its final value. A count that was refused for lack of room is not complete,
    /// because it is resent.
    pub(super) fn is_over(&self, count: CtValue) -> bool {
        let refused = matches!(self.fallback, TaskFallback::Count(..))
            && count.success <= self.waits.len() as u64;
        count.sum() >= self.full && !refused
    }
}

impl TriggerPair {
    fn new(transport: &PortalsTransport) -> Result<Self, PortalsCallError> {
        let go = transport.resources.ni.ct_alloc()?;
        let md = transport
            .resources
            .ni
            .md_bind_counting(go, transport.resources.lists);
        let md = md.inspect_err(|_| transport.resources.ni.ct_free(go))?;
        Ok(Self { go, md })
    }

    /// Sets up what happens when a trigger slot's counter reaches `at`, and after that.
    fn engage(
        self,
        transport: &PortalsTransport,
        id: u32,
        plan: &TriggeredPlan,
        at: u64,
        begun: Ct,
    ) -> Result<(), PortalsCallError> {
        let ni = &transport.resources.ni;
        let (go, over) = ((self.go, at), (self.go, at + plan.completion_count()));
        let empty = local_span(self.md, AddressRange::EMPTY, id.into());
        // This comes first. A task that may begin immediately can be complete before the next call, and the notification of the
        // list must precede that of the completion.
        ni.inc_when(begun, 1, go)?;
        match plan {
            TriggeredPlan::Put { from, remote, .. } => {
                ni.put_when(local_span(self.md, *from, id.into()), *remote, 0, go)?;
            }
            TriggeredPlan::Combine { pieces, how, .. } => {
                for (from, remote) in pieces {
                    ni.combine_when(local_span(self.md, *from, id.into()), *remote, *how, go)?;
                }
            }
            TriggeredPlan::Count(remote) => ni.put_when(empty, *remote, 0, go)?,
            TriggeredPlan::Add(ct, by) => ni.inc_when(*ct, *by, go)?,
            TriggeredPlan::Task { .. } => {
                self.notify_when(transport, NotificationCode::Task(id), go)?
            }
        }
        if let TriggeredPlan::Put {
            count: Some(remote),
            ..
        } = plan
        {
            ni.put_when(empty, *remote, 0, over)?;
        }
        if let TriggeredPlan::Put {
            done: Some(done), ..
        }
        | TriggeredPlan::Combine {
            done: Some(done), ..
        }
        | TriggeredPlan::Task { done: Some(done) } = plan
        {
            ni.inc_when(*done, 1, over)?;
        }
        Ok(())
    }

    /// Has the adapter notify this rank when a counter reaches a value.
    pub(super) fn notify_when(
        self,
        transport: &PortalsTransport,
        code: NotificationCode,
        when: (Ct, u64),
    ) -> Result<(), PortalsCallError> {
        let remote = RemoteTarget {
            process: transport.address.process,
            pt: transport.address.tables.wakes,
            match_bits: match_bits::WAKE,
            offset: 0,
        };
        let span = local_span(self.md, AddressRange::EMPTY, NOBODY);
        transport
            .resources
            .ni
            .put_when(span, remote, code.pack(), when)
    }
}

impl PortalsTaskLists {
    /// Passes a task to the adapter.
    pub(super) fn arm_task(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
        task: &TriggeredTask,
        token: CommandToken,
        begun: Ct,
    ) -> Result<(), PortalsCallError> {
        let late = task.conditions().filter(|when| when.threshold > 0);
        let waits: Vec<(Ct, TaskCounterWait)> = late
            .map(|when| self.waits_for(transport, when))
            .collect::<Result<_, _>>()?;
        let id = self.take_trigger_slot(commands, transport)?;
        if self.are_ending(token) {
            self.idle.push(id);
            return Ok(());
        }
        let landings = self.landings.len();
        let planned = self.plan(transport, &task.action, token);
        let (plan, then) = planned.inspect_err(|_| self.idle.push(id))?;
        let at = waits.len() as u64;
        let Some(slot) = self.trigger_slots.get_mut(&id) else {
            return Ok(());
        };
        let wheel = slot.pair;
        slot.task = Some(SlotTask {
            token,
            full: at + plan.final_count(),
            waits: waits.iter().map(|(_, waits)| *waits).collect(),
            fallback: then,
        });
        if let Err(why) = wheel.engage(transport, id, &plan, at, begun) {
            return Err(self.disengage(transport, id, landings, why));
        }
        // Conditions come last: until they hold nothing begins, so a refused task can be taken back before.
        for (ct, waits) in waits {
            let wait = transport
                .resources
                .ni
                .inc_when(wheel.go, 1, (ct, waits.threshold));
            if wait.is_err() {
                self.polled.push(PolledWait::Gear(id, waits));
            }
        }
        Ok(())
    }

    /// Takes back the parts of a task that the library has accepted, including the landings after the first `landings`.
    ///
    /// The task may be retried later, unless it has begun or cannot be taken back.
    fn disengage(
        &mut self,
        transport: &PortalsTransport,
        id: u32,
        landings: usize,
        why: PortalsCallError,
    ) -> PortalsCallError {
        let ni = &transport.resources.ni;
        let slot = self.trigger_slots.get_mut(&id);
        let waits = |slot: &&mut TriggerSlot| {
            slot.task
                .as_ref()
                .is_some_and(|work| !work.waits.is_empty())
        };
        let Some(slot) = slot.filter(waits) else {
            return PortalsCallError::Permanent(why.to_string());
        };
        ni.ct_cancel(slot.pair.go);
        let mut landed = self.landings[landings..].iter();
        if landed.any(|landing| ni.unlink(landing.entry).is_err()) {
            return PortalsCallError::Permanent(why.to_string());
        }
        slot.task = None;
        self.idle.push(id);
        for landing in self.landings.split_off(landings) {
            self.spare_bytes(transport, landing.bytes);
        }
        why
    }

    fn waits_for(
        &mut self,
        transport: &PortalsTransport,
        when: &CounterCondition,
    ) -> Result<(Ct, TaskCounterWait), PortalsCallError> {
        let spot = transport.resources.exports.counter_id(&when.counter);
        let spot = spot.ok_or_else(|| {
            PortalsCallError::Permanent(
                "a task waits for a counter that is not of `LocalCounters::for_tasks`".to_owned(),
            )
        })?;
        let threshold = when.threshold;
        Ok((
            self.task_counter(transport, spot)?,
            TaskCounterWait {
                counter: spot,
                threshold,
            },
        ))
    }

    /// Returns the resources for notifications of lists and watches.
    pub(super) fn bell(
        &mut self,
        transport: &mut PortalsTransport,
    ) -> Result<TriggerPair, PortalsCallError> {
        if let Some(bell) = self.bell {
            return Ok(bell);
        }
        let bell = TriggerPair::new(transport)?;
        self.bell = Some(bell);
        transport.resources.queues.note_task_lists();
        Ok(bell)
    }

    fn take_trigger_slot(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
    ) -> Result<u32, PortalsCallError> {
        if self.idle.is_empty() {
            self.reclaim(commands, transport);
        }
        if let Some(id) = self.idle.pop() {
            return Ok(id);
        }
        let (wheel, id) = (TriggerPair::new(transport)?, self.next());
        self.trigger_slots.insert(
            id,
            TriggerSlot {
                pair: wheel,
                task: None,
            },
        );
        Ok(id)
    }

    /// Makes the trigger slots of complete tasks idle.
    fn reclaim(&mut self, commands: &mut PortalsCommands, transport: &mut PortalsTransport) {
        let ni = &transport.resources.ni;
        let over = |(id, slot): (&u32, &TriggerSlot)| {
            let count = ni.ct_get(slot.pair.go);
            let is_over = slot.task.as_ref()?.is_over(count);
            is_over.then_some((*id, count.failure > 0))
        };
        let over: Vec<_> = self.trigger_slots.iter().filter_map(over).collect();
        // Events of failed tasks are in the queue by now.
        let is_all = self.drain_list_events(commands, transport);
        for (id, _) in over.into_iter().filter(|(_, failed)| is_all || !failed) {
            let Some(slot) = self.trigger_slots.get_mut(&id) else {
                continue;
            };
            let token = slot.task.as_ref().map(|work| work.token.0);
            let is_ending = token.is_some_and(|token| self.ending.contains_key(&token));
            if !is_ending {
                slot.task = None;
                transport.resources.ni.ct_reset(slot.pair.go);
                self.idle.push(id);
            }
        }
    }

    /// Handles all events in the queue. Returns false if the helper thread may hold some.
    pub(in super::super) fn drain_list_events(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
    ) -> bool {
        let is_all = transport.resources.queues.recall_helper();
        while let Some(got) = transport.next(EventQueueKind::Lists) {
            self.handle_list_event(commands, transport, got);
        }
        is_all
    }
}

pub(super) const fn local_span(md: Md, range: AddressRange, user: u64) -> MdSpan {
    MdSpan {
        md,
        offset: range.start,
        len: range.len,
        user,
    }
}

/// User pointer that belongs to no trigger slot.
pub(super) const NOBODY: u64 = u64::MAX;
