//! Progress of task lists: events, tasks for the host, and withdrawn lists.

use super::{
    super::{
        calls::{AddressRange, Ct, Refused},
        event::{End, Got, Kind},
        onesided::{self, Deed},
        peer::Life,
        multirail::Bound,
        driver_state::{Portals, Told},
    },
    Code, Polled, Waits, Zombie, match_bits,
    trigger_slots::{NOBODY, Then, Work, near},
    lower::disown,
};
use crate::{
    driver::{Failure, Token},
    memory::Region,
    offload::{Action, Landing, RemoteCounter},
};

impl Portals {
    /// Handles an event of the queue of task lists.
    pub(in super::super) fn handle_list_event(&mut self, Got { event, dropped, .. }: Got) {
        if dropped {
            self.ground.counters.lost.add(1);
            self.look_for_lost(|| {
                let why = "a put of a task list failed, and the event that says why was lost";
                Failure::Transport(std::io::Error::other(why))
            });
        }
        match event.kind {
            Kind::Put
                if event.match_bits == match_bits::WAKE && event.initiator == self.address.process =>
            {
                self.ground.counters.all.list_words.add(1);
                match Code::unpack(event.header) {
                    Some(Code::List(id)) => self.list_begun(id),
                    Some(Code::Watch(id)) => self.reached(id),
                    Some(Code::Task(id)) => self.task_due(id),
                    None => {}
                }
            }
            // Notifications of this rank use its first rail, so their failure means that no further one will arrive.
            Kind::Ack | Kind::Send | Kind::Error
                if event.end != End::Well && event.user == NOBODY =>
            {
                self.look_for_lost(onesided::lists_lost);
            }
            Kind::Ack | Kind::Send | Kind::Error if event.end != End::Well => {
                self.task_failed(event.user, event.end);
            }
            _ => {}
        }
    }

    /// Makes progress that events do not signal.
    pub(in super::super) fn tend_lists(&mut self) {
        self.name_again();
        if !self.lists.are_to_end() && !self.lists.wait() {
            return;
        }
        // Watches that wait for failures to be reported are kept for a later turn, because the caller may withdraw them when it
        // learns of the failures.
        for polled in std::mem::take(&mut self.lists.polled) {
            self.look_again(polled);
        }
        if self.naps.asks() {
            for id in std::mem::take(&mut self.lists.again) {
                self.count_again(id);
            }
            self.arm_late();
        }
        for id in std::mem::take(&mut self.lists.due) {
            self.task_due(id);
        }
        self.resolve_doubts();
        let ending: Vec<u64> = self.lists.ending.keys().copied().collect();
        ending
            .into_iter()
            .for_each(|token| self.settle_list(Token(token)));
        self.lists.held = true;
        self.bury();
    }

    fn look_again(&mut self, polled: Polled) {
        match polled {
            Polled::Watch(id) => match self.lists.watches.get(&id).copied() {
                Some(watch) if self.cell(watch.spot).is_ok() && self.is_met(watch.waits()) => {
                    // Failures that counted for this watch are in the queue by now, and must be reported first.
                    if self.hear_of_lists() {
                        self.reached(id);
                    } else {
                        self.lists.polled.push(polled);
                    }
                }
                Some(watch) if !self.naps.asks() || self.ask_for(id, watch).is_err() => {
                    self.lists.polled.push(polled);
                }
                Some(_) | None => {}
            },
            Polled::Gear(id, waits) => {
                let Some(gear) = self.lists.gears.get(&id) else {
                    return;
                };
                let token = gear.work.as_ref().map(|work| work.token);
                if token.is_some_and(|token| self.lists.are_ending(token)) {
                    return;
                }
                let go = gear.wheel.go;
                let goes_on = if self.is_met(waits) {
                    self.ground.ni.ct_inc(go, 1).is_ok()
                } else {
                    self.naps.asks() && self.go_when(go, waits).is_ok()
                };
                if !goes_on {
                    self.lists.polled.push(polled);
                }
            }
        }
    }

    /// Retries the triggered increment of a gear's counter.
    fn go_when(&mut self, go: Ct, waits: Waits) -> Result<(), Refused> {
        let ct = self.cell(waits.spot)?;
        self.ground.ni.inc_when(go, 1, (ct, waits.threshold))
    }

    /// Resends a count that found no room at its peer.
    fn count_again(&mut self, id: u32) {
        let Some(gear) = self.lists.gears.get_mut(&id) else {
            return;
        };
        if let Some(Work {
            token,
            full,
            then: Then::Count(_, far),
            ..
        }) = &mut gear.work
            && !self.lists.ending.contains_key(&token.0)
        {
            let (token, near) = (*token, near(gear.wheel.md, AddressRange::EMPTY, id.into()));
            match self.ground.ni.put(near, *far, 0, true) {
                Ok(()) => *full += 1,
                Err(refused) if self.is_for_later(&refused) => self.lists.again.push_back(id),
                Err(refused) => self.break_off(token, Failure::Transport(refused.into())),
            }
        }
    }

    fn task_failed(&mut self, user: u64, end: End) {
        let gear = u32::try_from(user)
            .ok()
            .and_then(|id| Some((id, self.lists.gears.get(&id)?)));
        let Some((id, Some(work))) = gear.map(|(id, gear)| (id, gear.work.as_ref())) else {
            return;
        };
        let token = work.token;
        let known = self.lists.ending.contains_key(&token.0);
        if known || self.lists.doubted.contains_key(&token.0) {
            return;
        }
        let (to, why) = match &work.then {
            Then::Count(_, _) if end == End::Dropped => return self.lists.again.push_back(id),
            Then::Put(to, Some((region, offset))) if end == End::Dropped => {
                disown(region, *offset, Landing::read(region, *offset).word);
                (*to, Failure::Unmatched)
            }
            // This rank stopped using the path to itself before the put began.
            Then::Put(to, _) if *to == self.me && end == End::Dropped => {
                (*to, onesided::lists_lost())
            }
            Then::Put(to, _) | Then::Count(to, _) => (*to, onesided::failure(end)),
            Then::Nothing | Then::Task(_) | Then::Doing { .. } => return,
        };
        if end == End::Undeliverable && self.fail_lane(to, 0) {
            self.lists.doubted.insert(token.0, to);
            self.lists.held = false;
            return;
        }
        self.show_counts();
        self.break_off(token, why);
    }

    /// Starts a task that the host must do.
    pub(super) fn task_due(&mut self, id: u32) {
        let Some(work) = self
            .lists
            .gears
            .get_mut(&id)
            .and_then(|gear| gear.work.as_mut())
        else {
            return;
        };
        let token = work.token;
        if self.lists.ending.contains_key(&token.0) {
            return;
        }
        match std::mem::replace(&mut work.then, Then::Doing { _keeps: None }) {
            Then::Task(action) => match self.carry_out(id, &action) {
                Ok(true) => self.ground.counters.aided.add(1),
                Ok(false) => {
                    self.leave(id, Then::Task(action));
                    self.lists.due.push_back(id);
                }
                Err(why) => {
                    self.leave(id, Then::Nothing);
                    self.break_off(token, why);
                }
            },
            other => self.leave(id, other),
        }
    }

    fn leave(&mut self, id: u32, then: Then) {
        if let Some(work) = self
            .lists
            .gears
            .get_mut(&id)
            .and_then(|gear| gear.work.as_mut())
        {
            work.then = then;
        }
    }

    /// Does an action that the adapter cannot. Returns true if there was room.
    fn carry_out(&mut self, id: u32, action: &Action) -> Result<bool, Failure> {
        let token = Token(OWN | u64::from(id));
        let (to, from, into, count) = match action {
            Action::Put {
                to, from, target, ..
            } => {
                let (into, count) = target.read().ok_or(Failure::Unmatched)?;
                (*to, *from, into, count)
            }
            Action::Offer {
                to,
                landing,
                place,
                count,
                ..
            } => {
                let bytes = bytemuck::bytes_of(landing);
                let region = Region::anonymous(bytes.len()).map_err(Failure::Transport)?;
                region.write(0, bytes);
                let from = region.range().slice(0, bytes.len());
                self.leave(
                    id,
                    Then::Doing {
                        _keeps: Some(region),
                    },
                );
                (*to, from, *place, Some(*count))
            }
            Action::Count { to, counter, by } => {
                let posted = self.count(to.0, *counter, *by);
                if posted {
                    self.aided(id, Ok(()));
                }
                return Ok(posted);
            }
            Action::Copy { from, into, .. } => {
                from.copy_to(*into);
                self.aided(id, Ok(()));
                return Ok(true);
            }
            Action::Combine {
                from, into, how, ..
            } => {
                how.apply(*from, *into);
                self.aided(id, Ok(()));
                return Ok(true);
            }
        };
        let cell = count.map(RemoteCounter::cell);
        let deed = match cell {
            Some(None) => None,
            cell => Some(Deed::Put(from, into, cell.flatten())),
        };
        Ok(self.command(to.0, deed, token))
    }

    /// Completes an action that the host has done for a task.
    fn aided(&mut self, id: u32, how: Result<(), Failure>) {
        self.leave(id, Then::Nothing);
        let Some(gear) = self.lists.gears.get(&id) else {
            return;
        };
        let Some(token) = gear.work.as_ref().map(|work| work.token) else {
            return;
        };
        match how {
            // A refusal means that the interface is closed.
            Ok(()) => _ = self.ground.ni.ct_inc(gear.wheel.go, 1),
            Err(why) => self.break_off(token, why),
        }
    }

    /// Removes notifications for the driver itself from those for the sink.
    pub(in super::super) fn keep_own(&mut self, told: Told) -> Option<Told> {
        let id = |token: Token| {
            u32::try_from(token.0 & !OWN)
                .ok()
                .filter(|_| token.0 & OWN != 0)
        };
        match told {
            Told::Complete(token) if let Some(id) = id(token) => self.aided(id, Ok(())),
            Told::Failed(token, why) => match id(token) {
                Some(id) => self.aided(id, Err(why)),
                None => return Some(Told::Failed(token, why)),
            },
            told => return Some(told),
        }
        None
    }

    /// Withdraws the lists of a token.
    pub(in super::super) fn cancel(&mut self, token: Token) {
        self.lists.failed.remove(&token.0);
        self.break_off(token, Failure::Cancelled);
    }

    /// Stops all further tasks of a token.
    pub(super) fn break_off(&mut self, token: Token, why: Failure) {
        if self.lists.are_ending(token) {
            return;
        }
        self.lists.doubted.remove(&token.0);
        if !matches!(why, Failure::Cancelled) {
            self.lists.failed.insert(token.0);
        }
        self.lists.ending.insert(token.0, why);
        self.lists.held = false;
        let ni = &self.ground.ni;
        let mut gone = Vec::new();
        for (id, gear) in &self.lists.gears {
            if gear.work.as_ref().is_some_and(|work| work.token == token) {
                ni.ct_cancel(gear.wheel.go);
                gone.push(*id);
            }
        }
        self.lists.late.retain(|late| late.token != token);
        self.lists.due.retain(|id| !gone.contains(id));
        self.lists.again.retain(|id| !gone.contains(id));
        self.lists
            .polled
            .retain(|polled| !matches!(polled, Polled::Gear(id, _) if gone.contains(id)));
        let mut spare = Vec::new();
        self.lists.lists.retain(|_, list| {
            if list.token == token {
                ni.ct_cancel(list.begun);
                ni.ct_reset(list.begun);
                spare.push(list.begun);
            }
            list.token != token
        });
        self.lists.spare.append(&mut spare);
    }

    /// Reports a withdrawn list once nothing accesses its memory any more.
    fn settle_list(&mut self, token: Token) {
        let ni = std::sync::Arc::clone(&self.ground.ni);
        let mut left = false;
        let mut zombies = Vec::new();
        self.lists.gears.retain(|_, gear| {
            let Some(work) = gear.work.as_ref().filter(|work| work.token == token) else {
                return true;
            };
            let flies = matches!(work.then, Then::Doing { .. })
                || matches!(ni.md_release(gear.wheel.md), Err(Refused::InUse));
            left |= flies;
            if !flies {
                ni.ct_cancel(gear.wheel.go);
                let waits = work.waits.clone();
                zombies.push(Zombie {
                    go: gear.wheel.go,
                    waits,
                });
            }
            flies
        });
        self.lists.zombies.append(&mut zombies);
        left |= !self.close_landings(token);
        if !left && let Some(why) = self.lists.ending.remove(&token.0) {
            self.told.push_back(Told::Failed(token, why));
        }
    }

    /// Fails lists that failed because a rank did not answer on the first rail, once it is known whether that rank has died.
    ///
    /// A list must not fail earlier: the peers should learn that reason, and not see that their puts find no entry.
    fn resolve_doubts(&mut self) {
        for (token, rank) in std::mem::take(&mut self.lists.doubted) {
            let down = self.peer(rank).life == Life::Down;
            if down {
                self.break_off(Token(token), Failure::PeerDown);
            } else if self.lane_of_lists(rank) == Bound::Later {
                self.lists.doubted.insert(token, rank);
            } else {
                self.break_off(Token(token), onesided::lists_lost());
            }
        }
    }

    /// Frees counters that nothing adds to any more.
    fn bury(&mut self) {
        let zombies = std::mem::take(&mut self.lists.zombies);
        for zombie in zombies {
            if zombie.waits.iter().all(|waits| self.is_met(*waits)) {
                self.ground.ni.ct_free(zombie.go);
            } else {
                self.lists.zombies.push(zombie);
            }
        }
    }
}

/// Flag of the driver's own tokens. Tokens of the runtime are smaller.
const OWN: u64 = 1 << 63;
