//! Gears: the adapter resources of a task, and how they are triggered.

use super::{
    super::{
        calls::{AddressRange, Ct, Md, Refused},
        rma_calls::{Far, Near},
        event_queues::Which,
        driver_state::Portals,
        triggers::Count,
    },
    Code, Polled, Waits, match_bits,
    lower::Plan,
};
use crate::{
    driver::Token,
    memory::Region,
    offload::{Action, Task, When},
};

/// Resources of one task, reused by later tasks.
#[derive(Debug)]
pub(super) struct Gear {
    pub(super) wheel: Wheel,
    pub(super) work: Option<Work>,
}

/// A counter, and a descriptor for all memory that counts its acknowledgements there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wheel {
    pub(super) go: Ct,
    pub(super) md: Md,
}

/// Task of a gear.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) token: Token,
    /// Value of the counter when the task is complete.
    pub(super) full: u64,
    pub(super) waits: Vec<Waits>,
    pub(super) then: Then,
}

/// Data for a task that fails, or that the host must do.
#[derive(Debug)]
pub(super) enum Then {
    Nothing,
    /// A put to this rank, possibly for an offer that is assumed to exist.
    Put(u32, Option<(Region, usize)>),
    Count(u32, Far),
    /// The action, which the host does when the task is due.
    Task(Action),
    /// An action in progress at the host, with the memory that it puts from.
    Doing {
        _keeps: Option<Region>,
    },
}

impl Work {
    /// Returns true if the task reads memory of its list.
    pub(super) const fn puts(&self) -> bool {
        matches!(self.then, Then::Put(..) | Then::Doing { .. })
    }

    /// Returns true if the counter has reached its final value. A count that was refused for lack of room is not complete,
    /// because it is resent.
    pub(super) fn is_over(&self, count: Count) -> bool {
        let refused =
            matches!(self.then, Then::Count(..)) && count.success <= self.waits.len() as u64;
        count.sum() >= self.full && !refused
    }
}

impl Portals {
    /// Passes a task to the adapter.
    pub(super) fn arm(&mut self, task: &Task, token: Token, begun: Ct) -> Result<(), Refused> {
        let late = task.whens().filter(|when| when.threshold > 0);
        let waits: Vec<(Ct, Waits)> = late
            .map(|when| self.waits_for(when))
            .collect::<Result<_, _>>()?;
        let id = self.take_gear()?;
        if self.lists.are_ending(token) {
            self.lists.idle.push(id);
            return Ok(());
        }
        let landings = self.lists.landings.len();
        let planned = self.plan(&task.then, token);
        let (plan, then) = planned.inspect_err(|_| self.lists.idle.push(id))?;
        let at = waits.len() as u64;
        let Some(gear) = self.lists.gears.get_mut(&id) else {
            return Ok(());
        };
        let wheel = gear.wheel;
        gear.work = Some(Work {
            token,
            full: at + plan.ends(),
            waits: waits.iter().map(|(_, waits)| *waits).collect(),
            then,
        });
        if let Err(why) = self.engage(id, wheel, &plan, at, begun) {
            return Err(self.disengage(id, landings, why));
        }
        // Conditions come last: until they hold nothing begins, so a refused task can be taken back before.
        for (ct, waits) in waits {
            let wait = self.ground.ni.inc_when(wheel.go, 1, (ct, waits.threshold));
            if wait.is_err() {
                self.lists.polled.push(Polled::Gear(id, waits));
            }
        }
        Ok(())
    }

    /// Takes back the parts of a task that the library has accepted, including the landings after the first `landings`.
    ///
    /// The task may be retried later, unless it has begun or cannot be taken back.
    fn disengage(&mut self, id: u32, landings: usize, why: Refused) -> Refused {
        let ni = &self.ground.ni;
        let gear = self.lists.gears.get_mut(&id);
        let waits = |gear: &&mut Gear| {
            gear.work
                .as_ref()
                .is_some_and(|work| !work.waits.is_empty())
        };
        let Some(gear) = gear.filter(waits) else {
            return Refused::Code(why.to_string());
        };
        ni.ct_cancel(gear.wheel.go);
        let mut landed = self.lists.landings[landings..].iter();
        if landed.any(|landing| ni.unlink(landing.entry).is_err()) {
            return Refused::Code(why.to_string());
        }
        gear.work = None;
        self.lists.idle.push(id);
        for landing in self.lists.landings.split_off(landings) {
            self.spare_bytes(landing.bytes);
        }
        why
    }

    fn waits_for(&mut self, when: &When) -> Result<(Ct, Waits), Refused> {
        let spot = self.ground.exports.spot(&when.counter);
        let spot = spot.ok_or_else(|| {
            Refused::Code(
                "a task waits for a counter that is not of `Counters::for_tasks`".to_owned(),
            )
        })?;
        let threshold = when.threshold;
        Ok((self.cell(spot)?, Waits { spot, threshold }))
    }

    /// Sets up what happens when a gear's counter reaches `at`, and after that.
    fn engage(
        &self,
        id: u32,
        wheel: Wheel,
        plan: &Plan,
        at: u64,
        begun: Ct,
    ) -> Result<(), Refused> {
        let ni = &self.ground.ni;
        let (go, over) = ((wheel.go, at), (wheel.go, at + plan.over()));
        let empty = near(wheel.md, AddressRange::EMPTY, id.into());
        // This comes first. A task that may begin immediately can be complete before the next call, and the notification of the
        // list must precede that of the completion.
        ni.inc_when(begun, 1, go)?;
        match plan {
            Plan::Put { from, far, .. } => {
                ni.put_when(near(wheel.md, *from, id.into()), *far, 0, go)?;
            }
            Plan::Combine { pieces, how, .. } => {
                for (from, far) in pieces {
                    ni.combine_when(near(wheel.md, *from, id.into()), *far, *how, go)?;
                }
            }
            Plan::Count(far) => ni.put_when(empty, *far, 0, go)?,
            Plan::Add(ct, by) => ni.inc_when(*ct, *by, go)?,
            Plan::Task { .. } => self.ring_when(wheel, Code::Task(id), go)?,
        }
        if let Plan::Put {
            count: Some(far), ..
        } = plan
        {
            ni.put_when(empty, *far, 0, over)?;
        }
        if let Plan::Put {
            done: Some(done), ..
        }
        | Plan::Combine {
            done: Some(done), ..
        }
        | Plan::Task { done: Some(done) } = plan
        {
            ni.inc_when(*done, 1, over)?;
        }
        Ok(())
    }

    /// Has the adapter notify this rank when a counter reaches a value.
    pub(super) fn ring_when(
        &self,
        wheel: Wheel,
        code: Code,
        when: (Ct, u64),
    ) -> Result<(), Refused> {
        let far = Far {
            process: self.address.process,
            pt: self.address.tables.wakes,
            match_bits: match_bits::WAKE,
            offset: 0,
        };
        let near = near(wheel.md, AddressRange::EMPTY, NOBODY);
        self.ground.ni.put_when(near, far, code.pack(), when)
    }

    /// Returns the resources for notifications of lists and watches.
    pub(super) fn bell(&mut self) -> Result<Wheel, Refused> {
        if let Some(bell) = self.lists.bell {
            return Ok(bell);
        }
        let bell = self.new_wheel()?;
        self.lists.bell = Some(bell);
        self.ground.queues.expect_lists();
        Ok(bell)
    }

    fn new_wheel(&self) -> Result<Wheel, Refused> {
        let go = self.ground.ni.ct_alloc()?;
        let md = self.ground.ni.md_bind_counting(go, self.ground.lists);
        let md = md.inspect_err(|_| self.ground.ni.ct_free(go))?;
        Ok(Wheel { go, md })
    }

    fn take_gear(&mut self) -> Result<u32, Refused> {
        if self.lists.idle.is_empty() {
            self.reclaim();
        }
        if let Some(id) = self.lists.idle.pop() {
            return Ok(id);
        }
        let (wheel, id) = (self.new_wheel()?, self.lists.next());
        self.lists.gears.insert(id, Gear { wheel, work: None });
        Ok(id)
    }

    /// Makes the gears of complete tasks idle.
    fn reclaim(&mut self) {
        let ni = &self.ground.ni;
        let over = |(id, gear): (&u32, &Gear)| {
            let count = ni.ct_get(gear.wheel.go);
            let is_over = gear.work.as_ref()?.is_over(count);
            is_over.then_some((*id, count.failure > 0))
        };
        let over: Vec<_> = self.lists.gears.iter().filter_map(over).collect();
        // Events of failed tasks are in the queue by now.
        let is_all = self.hear_of_lists();
        for (id, _) in over.into_iter().filter(|(_, failed)| is_all || !failed) {
            let Some(gear) = self.lists.gears.get_mut(&id) else {
                continue;
            };
            let token = gear.work.as_ref().map(|work| work.token.0);
            let is_ending = token.is_some_and(|token| self.lists.ending.contains_key(&token));
            if !is_ending {
                gear.work = None;
                self.ground.ni.ct_reset(gear.wheel.go);
                self.lists.idle.push(id);
            }
        }
    }

    /// Handles all events in the queue. Returns false if the helper thread may hold some.
    pub(in super::super) fn hear_of_lists(&mut self) -> bool {
        let is_all = self.ground.queues.recall();
        while let Some(got) = self.next(Which::Lists) {
            self.handle_list_event(got);
        }
        is_all
    }
}

pub(super) const fn near(md: Md, range: AddressRange, user: u64) -> Near {
    Near {
        md,
        offset: range.start,
        len: range.len,
        user,
    }
}

/// User pointer that belongs to no gear.
pub(super) const NOBODY: u64 = u64::MAX;
