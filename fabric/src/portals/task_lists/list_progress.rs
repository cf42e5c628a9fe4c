//! Progress of task lists: events, tasks for the host, and withdrawn lists.

use super::{
    super::{
        calls::{AddressRange, Ct, PortalsCallError},
        completion::PortalsCompletion,
        event::{PortalsEventKind, PortalsOutcome, RailEvent},
        match_bits,
        multirail::LaneAvailability,
        onesided::{self, PortalsCommands, PortalsRmaOp},
        peer::PortalsPeerState,
        transport::PortalsTransport,
    },
    NotificationCode, PolledWait, PortalsTaskLists, RetiredTrigger, TaskCounterWait,
    lower::disown,
    trigger_slots::{NOBODY, SlotTask, TaskFallback, local_span},
};
use crate::{
    driver::{CommandFailure, CommandToken},
    memory::MemoryRegion,
    offload::{PutLanding, RemoteCounter, TaskAction},
};

impl PortalsTaskLists {
    /// Handles an event of the queue of task lists.
    pub(in super::super) fn handle_list_event(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
        RailEvent { event, dropped, .. }: RailEvent,
    ) {
        if dropped {
            transport.resources.counters.lost.add(1);
            self.recover_lost_events(commands, transport, || {
                let why = "a put of a task list failed, and the event that says why was lost";
                CommandFailure::Transport(std::io::Error::other(why))
            });
        }
        match event.kind {
            PortalsEventKind::Put
                if event.match_bits == match_bits::WAKE
                    && event.initiator == transport.address.process =>
            {
                transport.resources.counters.all.list_words.add(1);
                match NotificationCode::unpack(event.header) {
                    Some(NotificationCode::List(id)) => self.list_begun(transport, id),
                    Some(NotificationCode::Watch(id)) => self.reached(transport, id),
                    Some(NotificationCode::Task(id)) => self.task_due(commands, transport, id),
                    None => {}
                }
            }
            // Notifications of this rank use its first rail, so their failure means that no further one will arrive.
            PortalsEventKind::Ack | PortalsEventKind::Send | PortalsEventKind::Error
                if event.end != PortalsOutcome::Success && event.user == NOBODY =>
            {
                self.recover_lost_events(commands, transport, onesided::lists_lost);
            }
            PortalsEventKind::Ack | PortalsEventKind::Send | PortalsEventKind::Error
                if event.end != PortalsOutcome::Success =>
            {
                self.task_failed(transport, event.user, event.end);
            }
            _ => {}
        }
    }

    /// Makes progress that events do not signal.
    pub(in super::super) fn progress_lists(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
    ) {
        self.name_again(transport);
        if !self.have_ending_lists() && !self.need_retry() {
            return;
        }
        // Watches that wait for failures to be reported are kept for a later turn, because the caller may withdraw them when it
        // learns of the failures.
        for polled in std::mem::take(&mut self.polled) {
            self.look_again(commands, transport, polled);
        }
        if transport.room.backoff.is_retry_turn() {
            for id in std::mem::take(&mut self.again) {
                self.count_again(transport, id);
            }
            self.arm_unarmed(commands, transport);
        }
        for id in std::mem::take(&mut self.due) {
            self.task_due(commands, transport, id);
        }
        self.resolve_doubts(transport);
        let ending: Vec<u64> = self.ending.keys().copied().collect();
        ending
            .into_iter()
            .for_each(|token| self.settle_list(transport, CommandToken(token)));
        self.held = true;
        self.bury(transport);
    }

    fn look_again(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
        polled: PolledWait,
    ) {
        match polled {
            PolledWait::Watch(id) => match self.watches.get(&id).copied() {
                Some(watch)
                    if self.task_counter(transport, watch.counter).is_ok()
                        && self.is_met(transport, watch.waits()) =>
                {
                    // Failures that counted for this watch are in the queue by now, and must be reported first.
                    if self.drain_list_events(commands, transport) {
                        self.reached(transport, id);
                    } else {
                        self.polled.push(polled);
                    }
                }
                Some(watch)
                    if !transport.room.backoff.is_retry_turn()
                        || self.arm_watch(transport, id, watch).is_err() =>
                {
                    self.polled.push(polled);
                }
                Some(_) | None => {}
            },
            PolledWait::Gear(id, waits) => {
                let Some(slot) = self.trigger_slots.get(&id) else {
                    return;
                };
                let token = slot.task.as_ref().map(|work| work.token);
                if token.is_some_and(|token| self.are_ending(token)) {
                    return;
                }
                let go = slot.pair.go;
                let goes_on = if self.is_met(transport, waits) {
                    transport.resources.ni.ct_inc(go, 1).is_ok()
                } else {
                    transport.room.backoff.is_retry_turn()
                        && self.go_when(transport, go, waits).is_ok()
                };
                if !goes_on {
                    self.polled.push(polled);
                }
            }
        }
    }

    /// Retries the triggered increment of a trigger slot's counter.
    fn go_when(
        &mut self,
        transport: &PortalsTransport,
        go: Ct,
        waits: TaskCounterWait,
    ) -> Result<(), PortalsCallError> {
        let ct = self.task_counter(transport, waits.counter)?;
        transport
            .resources
            .ni
            .inc_when(go, 1, (ct, waits.threshold))
    }

    /// Resends a count that found no room at its peer.
    fn count_again(&mut self, transport: &mut PortalsTransport, id: u32) {
        let Some(slot) = self.trigger_slots.get_mut(&id) else {
            return;
        };
        if let Some(SlotTask {
            token,
            full,
            fallback: TaskFallback::Count(_, remote),
            ..
        }) = &mut slot.task
            && !self.ending.contains_key(&token.0)
        {
            let (token, span) = (
                *token,
                local_span(slot.pair.md, AddressRange::EMPTY, id.into()),
            );
            match transport.resources.ni.put(span, *remote, 0, true) {
                Ok(()) => *full += 1,
                Err(refused) if transport.room.is_for_later(&refused) => self.again.push_back(id),
                Err(refused) => {
                    self.break_off(transport, token, CommandFailure::Transport(refused.into()))
                }
            }
        }
    }

    fn task_failed(&mut self, transport: &mut PortalsTransport, user: u64, end: PortalsOutcome) {
        let slot = u32::try_from(user)
            .ok()
            .and_then(|id| Some((id, self.trigger_slots.get(&id)?)));
        let Some((id, Some(work))) = slot.map(|(id, slot)| (id, slot.task.as_ref())) else {
            return;
        };
        let token = work.token;
        let known = self.ending.contains_key(&token.0);
        if known || self.doubted.contains_key(&token.0) {
            return;
        }
        let (to, why) = match &work.fallback {
            TaskFallback::Count(_, _) if end == PortalsOutcome::Dropped => {
                return self.again.push_back(id);
            }
            TaskFallback::Put(to, Some((region, offset))) if end == PortalsOutcome::Dropped => {
                disown(region, *offset, PutLanding::read(region, *offset).word);
                (*to, CommandFailure::Unmatched)
            }
            // This rank stopped using the path to itself before the put began.
            TaskFallback::Put(to, _) if *to == transport.me && end == PortalsOutcome::Dropped => {
                (*to, onesided::lists_lost())
            }
            TaskFallback::Put(to, _) | TaskFallback::Count(to, _) => (*to, onesided::failure(end)),
            TaskFallback::Nothing | TaskFallback::Task(_) | TaskFallback::Doing { .. } => return,
        };
        if end == PortalsOutcome::Undeliverable && transport.fail_lane(to, 0) {
            self.doubted.insert(token.0, to);
            self.held = false;
            return;
        }
        self.show_counts(transport);
        self.break_off(transport, token, why);
    }

    /// Starts a task that the host must do.
    pub(super) fn task_due(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
        id: u32,
    ) {
        let Some(work) = self
            .trigger_slots
            .get_mut(&id)
            .and_then(|slot| slot.task.as_mut())
        else {
            return;
        };
        let token = work.token;
        if self.ending.contains_key(&token.0) {
            return;
        }
        match std::mem::replace(&mut work.fallback, TaskFallback::Doing { _keeps: None }) {
            TaskFallback::Task(action) => match self.carry_out(commands, transport, id, &action) {
                Ok(true) => transport.resources.counters.aided.add(1),
                Ok(false) => {
                    self.leave(id, TaskFallback::Task(action));
                    self.due.push_back(id);
                }
                Err(why) => {
                    self.leave(id, TaskFallback::Nothing);
                    self.break_off(transport, token, why);
                }
            },
            other => self.leave(id, other),
        }
    }

    fn leave(&mut self, id: u32, then: TaskFallback) {
        if let Some(work) = self
            .trigger_slots
            .get_mut(&id)
            .and_then(|slot| slot.task.as_mut())
        {
            work.fallback = then;
        }
    }

    /// Does an action that the adapter cannot. Returns true if there was room.
    fn carry_out(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
        id: u32,
        action: &TaskAction,
    ) -> Result<bool, CommandFailure> {
        let token = CommandToken(OWN | u64::from(id));
        let (to, from, into, count) = match action {
            TaskAction::Put {
                to, from, target, ..
            } => {
                let (into, count) = target.resolve().ok_or(CommandFailure::Unmatched)?;
                (*to, *from, into, count)
            }
            TaskAction::PublishLanding {
                to,
                landing,
                place,
                count,
                ..
            } => {
                let bytes = bytemuck::bytes_of(landing);
                let region =
                    MemoryRegion::anonymous(bytes.len()).map_err(CommandFailure::Transport)?;
                region.write(0, bytes);
                let from = region.range().slice(0, bytes.len());
                self.leave(
                    id,
                    TaskFallback::Doing {
                        _keeps: Some(region),
                    },
                );
                (*to, from, *place, Some(*count))
            }
            TaskAction::Count { to, counter, by } => {
                let posted = self.count(commands, transport, to.0, *counter, *by);
                if posted {
                    self.aided(transport, id, Ok(()));
                }
                return Ok(posted);
            }
            TaskAction::Copy { from, into, .. } => {
                from.copy_to(*into);
                self.aided(transport, id, Ok(()));
                return Ok(true);
            }
            TaskAction::Combine {
                from, into, how, ..
            } => {
                how.apply(*from, *into);
                self.aided(transport, id, Ok(()));
                return Ok(true);
            }
        };
        let cell = count.map(RemoteCounter::words_key);
        let op = match cell {
            Some(None) => None,
            cell => Some(PortalsRmaOp::Put(from, into, cell.flatten())),
        };
        Ok(commands.command(transport, to.0, op, token))
    }

    /// Starts a count, or adds to a counter of this rank. Returns true if there was room.
    pub(in super::super) fn count(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
        to: u32,
        counter: RemoteCounter,
        by: u64,
    ) -> bool {
        let own = counter.words_key().filter(|_| to == transport.me);
        if let Some(ct) = own.and_then(|key| self.own_task_counter(transport, key)) {
            // A refusal means that the interface is closed.
            let _added = transport.resources.ni.ct_inc(ct, by);
            return true;
        }
        commands.count(transport, to, counter, by)
    }

    /// Completes an action that the host has done for a task.
    fn aided(&mut self, transport: &PortalsTransport, id: u32, how: Result<(), CommandFailure>) {
        self.leave(id, TaskFallback::Nothing);
        let Some(slot) = self.trigger_slots.get(&id) else {
            return;
        };
        let Some(token) = slot.task.as_ref().map(|work| work.token) else {
            return;
        };
        match how {
            // A refusal means that the interface is closed.
            Ok(()) => _ = transport.resources.ni.ct_inc(slot.pair.go, 1),
            Err(why) => self.break_off(transport, token, why),
        }
    }

    /// Removes notifications for the driver itself from those for the sink.
    pub(in super::super) fn take_own_completions(
        &mut self,
        transport: &PortalsTransport,
        told: PortalsCompletion,
    ) -> Option<PortalsCompletion> {
        let id = |token: CommandToken| {
            u32::try_from(token.0 & !OWN)
                .ok()
                .filter(|_| token.0 & OWN != 0)
        };
        match told {
            PortalsCompletion::Complete(token) if let Some(id) = id(token) => {
                self.aided(transport, id, Ok(()))
            }
            PortalsCompletion::Failed(token, why) => match id(token) {
                Some(id) => self.aided(transport, id, Err(why)),
                None => return Some(PortalsCompletion::Failed(token, why)),
            },
            told => return Some(told),
        }
        None
    }

    /// Withdraws the lists of a token.
    pub(in super::super) fn cancel(&mut self, transport: &PortalsTransport, token: CommandToken) {
        self.failed.remove(&token.0);
        self.break_off(transport, token, CommandFailure::Cancelled);
    }

    /// Stops all further tasks of a token.
    pub(super) fn break_off(
        &mut self,
        transport: &PortalsTransport,
        token: CommandToken,
        why: CommandFailure,
    ) {
        if self.are_ending(token) {
            return;
        }
        self.doubted.remove(&token.0);
        if !matches!(why, CommandFailure::Cancelled) {
            self.failed.insert(token.0);
        }
        self.ending.insert(token.0, why);
        self.held = false;
        let ni = &transport.resources.ni;
        let mut gone = Vec::new();
        for (id, slot) in &self.trigger_slots {
            if slot.task.as_ref().is_some_and(|work| work.token == token) {
                ni.ct_cancel(slot.pair.go);
                gone.push(*id);
            }
        }
        self.unarmed.retain(|late| late.token != token);
        self.due.retain(|id| !gone.contains(id));
        self.again.retain(|id| !gone.contains(id));
        self.polled
            .retain(|polled| !matches!(polled, PolledWait::Gear(id, _) if gone.contains(id)));
        let mut spare = Vec::new();
        self.lists.retain(|_, list| {
            if list.token == token {
                ni.ct_cancel(list.begun);
                ni.ct_reset(list.begun);
                spare.push(list.begun);
            }
            list.token != token
        });
        self.spare.append(&mut spare);
    }

    /// Reports a withdrawn list once nothing accesses its memory any more.
    fn settle_list(&mut self, transport: &mut PortalsTransport, token: CommandToken) {
        let ni = std::sync::Arc::clone(&transport.resources.ni);
        let mut left = false;
        let mut zombies = Vec::new();
        self.trigger_slots.retain(|_, slot| {
            let Some(work) = slot.task.as_ref().filter(|work| work.token == token) else {
                return true;
            };
            let flies = matches!(work.fallback, TaskFallback::Doing { .. })
                || matches!(ni.md_release(slot.pair.md), Err(PortalsCallError::InUse));
            left |= flies;
            if !flies {
                ni.ct_cancel(slot.pair.go);
                let waits = work.waits.clone();
                zombies.push(RetiredTrigger {
                    go: slot.pair.go,
                    waits,
                });
            }
            flies
        });
        self.zombies.append(&mut zombies);
        left |= !self.close_landings(transport, token);
        if !left && let Some(why) = self.ending.remove(&token.0) {
            transport
                .completions
                .push_back(PortalsCompletion::Failed(token, why));
        }
    }

    /// Fails lists that failed because a rank did not answer on the first rail, once it is known whether that rank has died.
    ///
    /// A list must not fail earlier: the peers should learn that reason, and not see that their puts find no entry.
    fn resolve_doubts(&mut self, transport: &PortalsTransport) {
        for (token, rank) in std::mem::take(&mut self.doubted) {
            let down = transport.peer(rank).state == PortalsPeerState::Down;
            if down {
                self.break_off(transport, CommandToken(token), CommandFailure::PeerDown);
            } else if transport.lane_of_lists(rank) == LaneAvailability::Retry {
                self.doubted.insert(token, rank);
            } else {
                self.break_off(transport, CommandToken(token), onesided::lists_lost());
            }
        }
    }

    /// Frees counters that nothing adds to any more.
    fn bury(&mut self, transport: &PortalsTransport) {
        let zombies = std::mem::take(&mut self.zombies);
        for zombie in zombies {
            if zombie
                .waits
                .iter()
                .all(|waits| self.is_met(transport, *waits))
            {
                transport.resources.ni.ct_free(zombie.go);
            } else {
                self.zombies.push(zombie);
            }
        }
    }
}

/// Flag of the driver's own tokens. Tokens of the runtime are smaller.
const OWN: u64 = 1 << 63;
