//! A turn, which is one pass of progress: delivers arrivals, processes completions, and retries commands that waited for room.

use std::{collections::BTreeSet, io};

use super::{
    abi::{IbvWc, WC_SUCCESS},
    core::VerbsCore,
    diagnose::unconnected,
    inbox::{BODY_MAX, HEADER_MAX, len_of},
    lane::{FIRST, PeerLane, VerbsLane},
    objects::VerbsQp,
    outbox::{FlightContent, QpFlight, quiet_peer},
    rail::{VerbsRail, WakeFilter},
    wire::{HEAD, VerbsArrival, VerbsControlWord, parse},
};
use crate::{
    connect::{ConnectEvent, ConnectFailure},
    driver::{ArmResult, Sink, WorldRank},
};

impl VerbsCore {
    /// Makes a turn. Returns the number of events.
    pub(super) fn turn(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        self.wake_up();
        self.datagrams().flush();
        let mut events = self.drain_completions(budget, sink);
        events += self.take_counts();
        events += self.receive(budget.saturating_sub(events).max(1), sink);
        events += self.deliver_deferred(sink);
        events += self.poll_send_cq();
        events += self.begin_tasks();
        self.datagrams().flush_connect_messages();
        self.retry_connects();
        for peer in self.datagrams().retry_messages() {
            self.fail(peer, unconnected(ConnectFailure::Unreachable));
        }
        self.evict_idle();
        self.release_regions();
        for peer in self.links.take_dirty() {
            self.links.mark_dirty(peer); // `flush` takes the mark when nothing is left
            self.flush(peer);
        }
        self.fail_lost_peers();
        self.leave_broken_lanes();
        self.release_drained_qps();
        self.destroy_drained_qps();
        events += self.begin_tasks();
        events + self.drain_completions(budget.saturating_sub(events), sink)
    }

    /// Asks for a wake-up, and checks once more.
    pub(super) fn arm(&mut self) -> ArmResult {
        if self.take_counts() > 0
            || self.has_pending_work()
            || self
                .next_retry()
                .is_some_and(|at| at <= self.sleep.timer.now())
        {
            return ArmResult::Busy;
        }
        // Datagrams that the application has sent by now carry acknowledgments. The others are sent here.
        self.datagrams().flush();
        // The event of a queue that was armed, and has got something since, may be in the channel and would end the sleep.
        let mut got_completion = std::mem::take(&mut self.outbox.got_completion);
        for rail in &mut self.rails {
            got_completion |= std::mem::take(&mut rail.inbox.got_completion);
        }
        while got_completion && take_events(&mut self.rails) {}
        let set = self.notify();
        debug_assert!(set.is_ok(), "an alarm can be set");
        // Arming may have found that a device has failed, and marked peers as failed.
        if set.is_err()
            || self.has_pending_work()
            || has_arrivals(&mut self.rails) | self.outbox.poll_completions()
        {
            return ArmResult::Busy;
        }
        self.sleep.slept = true;
        ArmResult::Ready
    }

    /// Arms the queues and the alarm. A device whose queues cannot be armed has failed: it would wake no sleeping thread.
    fn notify(&mut self) -> io::Result<()> {
        let wakes = self.tasks.own.wakes(&self.watches);
        let datagrams = self.datagrams.has_to_send(&self.links);
        for lane in 0..self.rails.len() {
            // Requests that fail complete even if they asked for no completion, so listen while any are in flight.
            let listens = !self.outbox.is_idle(lane) || lane == FIRST && datagrams;
            let sends = listens.then_some(&*self.outbox.lanes[lane].cq);
            if self.rails[lane].notify(wakes, sends).is_err() {
                self.fail_device(lane, "the device failed: its queues cannot be armed");
            }
        }
        let next = self.next_retry();
        self.sleep.timer.set(next)
    }

    /// Arms the queues for completions of requests that were posted while a thread sleeps, as if they had been in flight before.
    /// A completion may have a consequence, such as a peer to wake, or a task to begin.
    pub(super) fn arm_for_sends(&mut self) {
        if !self.sleep.slept {
            return;
        }
        let mut failed = false;
        for (rail, lane) in self.rails.iter_mut().zip(0..) {
            if !self.outbox.is_idle(lane) {
                let sends = &*self.outbox.lanes[lane].cq;
                failed |= rail.notify(WakeFilter::None, Some(sends)).is_err();
            }
        }
        // A command may have failed at once, and its peer with it.
        if failed
            || !self.completions.is_empty()
            || self.links.has_lost()
            || self.outbox.poll_completions()
        {
            self.sleep.wake();
        }
    }

    /// Sets the alarm earlier, if a command posted while a thread sleeps must be repeated before the thread would wake.
    pub(super) fn keep_alarm(&mut self) {
        if self.sleep.slept
            && let Some(next) = self.next_retry()
        {
            let set = self.sleep.timer.set_if_earlier(next);
            debug_assert!(set.is_ok(), "an alarm can be set");
        }
    }

    pub(super) fn has_pending_work(&mut self) -> bool {
        self.lists.has_pending_work()
            || self.tasks.has_finished()
            || !self.completions.is_empty()
            || self.links.has_broken()
            || self.links.has_lost()
            || !self.to_destroy.is_empty()
            || !self.datagrams.deferred.is_empty()
            || self.watches.is_reached()
            || self.exports.has_dropped()
    }

    /// Takes the events that ended a sleep, in the first turn after it.
    fn wake_up(&mut self) {
        let slept = std::mem::take(&mut self.sleep.slept);
        // Each check is a system call, so there is one for each device. Further events end the next sleep.
        let looks = slept && !take_events(&mut self.rails);
        self.sleep.turns_since_events_read += 1;
        // A rank may never sleep, or always be woken by something else, so events are also read after some turns.
        let turns_max = if self.draining_receives.is_empty() {
            TURNS_WITHOUT_EVENTS_MAX
        } else {
            TURNS_WITHOUT_EVENTS_MAX_DRAINING
        };
        if looks || self.sleep.turns_since_events_read >= turns_max {
            self.sleep.turns_since_events_read = 0;
            self.handle_device_events();
        }
    }

    fn receive(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        let mut events = 0;
        // A device that always has arrivals must not delay those of the others.
        let lanes = self.rails.len();
        let first = self.first_rail;
        self.first_rail = (first + 1) % lanes;
        for lane in (first..lanes).chain(0..first) {
            while events < budget
                && let Some(completion) = self.rails[lane].inbox.next()
            {
                events += 1;
                self.counters.events.add(1);
                if self.datagrams.qp_of(lane, &completion).is_some() {
                    self.datagrams().handle_datagram(lane, &completion);
                } else {
                    self.handle_arrival(lane, &completion, sink);
                }
            }
        }
        events
    }

    fn handle_arrival(&mut self, lane: usize, completion: &IbvWc, sink: &mut dyn Sink) {
        let alive = self.sender(lane, completion);
        let mut owes = false;
        if let Some(peer) = alive {
            self.touch(peer);
            let to = PeerLane { peer, lane };
            let taken = match completion.status {
                WC_SUCCESS => self.handle_message(to, completion, sink),
                status => Err(io::Error::other(
                    self.rails[lane].device.context.status(status),
                )),
            };
            owes = taken.as_ref().is_ok_and(|costs| *costs);
            if let Err(why) = taken {
                self.links.note_broken(to, why);
            }
        }
        self.give_back(lane, completion, alive.filter(|_| owes));
    }

    /// Returns the peer that an arrival is from, if it is still up.
    pub(super) fn sender(&mut self, lane: usize, completion: &IbvWc) -> Option<WorldRank> {
        let from = self.rails[lane].by_qpn.get(&completion.qp_num).copied();
        from.filter(|from| {
            self.links
                .get_mut(*from)
                .is_some_and(|link| link.down.is_none())
        })
    }

    /// Posts the buffer of an arrival again, and owes the peer in `owed` a credit. If the device refuses the buffer there are
    /// fewer than credits, so the lane that the arrival came by is left.
    pub(super) fn give_back(&mut self, lane: usize, completion: &IbvWc, owed: Option<WorldRank>) {
        if let Err(why) = self.rails[lane].inbox.give(completion.wr_id) {
            if let Some(peer) = self.sender(lane, completion) {
                self.links.note_broken(PeerLane { peer, lane }, why);
            }
            return;
        }
        if let Some(from) = owed
            && let Some(link) = self.links.get_mut(from)
        {
            link.owed += 1;
            if link.owes_much() {
                self.links.queue_control(from, VerbsControlWord::Credit);
            }
        }
    }

    /// Handles an arrived message or control word. Returns true if it took one of the peer's credits.
    fn handle_message(
        &mut self,
        PeerLane { peer, lane }: PeerLane,
        completion: &IbvWc,
        sink: &mut dyn Sink,
    ) -> io::Result<bool> {
        let malformed = || io::Error::other(format!("rank {peer} sent a malformed message"));
        let first = self.rails[lane].inbox.first(completion);
        let len = len_of(completion);
        let (arrival, credits) = parse(&first, len).map_err(|_| malformed())?;
        let data = match arrival {
            VerbsArrival::Control(VerbsControlWord::Hello) => ConnectEvent::GreetingArrived,
            _ => ConnectEvent::Data,
        };
        self.note_peer_data(peer, data);
        match arrival {
            VerbsArrival::Control(VerbsControlWord::LaneReport(said)) => {
                self.handle_lanes(peer, said);
                return Ok(false);
            }
            VerbsArrival::Control(VerbsControlWord::LaneGoodbye { how, sent }) => {
                self.handle_end(peer, how, sent);
                return Ok(false);
            }
            VerbsArrival::Control(VerbsControlWord::Hello) => return Ok(true),
            _ => {}
        }
        let link = self.links.get_or_new(peer);
        link.add_credits(credits);
        link.replay_log.received += 1;
        link.arrival_lane = lane;
        match arrival {
            VerbsArrival::Control(word) => self.handle_word(peer, word)?,
            VerbsArrival::Message { header }
                if header > HEADER_MAX || len - HEAD - header > BODY_MAX =>
            {
                return Err(malformed());
            }
            VerbsArrival::Message { header } => {
                self.counters.messages_received.add(1);
                let mut room = [0; HEADER_MAX];
                let header = &mut room[..header];
                let body = self.rails[lane].inbox.message(completion, header);
                sink.message(peer, header, body);
            }
        }
        Ok(true)
    }

    /// Handles a control word.
    ///
    /// # Errors
    /// No peer in good faith sends it.
    fn handle_word(&mut self, from: WorldRank, word: VerbsControlWord) -> io::Result<()> {
        match word {
            VerbsControlWord::Credit
            | VerbsControlWord::Wake
            | VerbsControlWord::Hello
            | VerbsControlWord::LaneReport(_)
            | VerbsControlWord::LaneGoodbye { .. } => {}
            VerbsControlWord::ReleaseRegion(name) => {
                let in_flight = self.commands().touching(from);
                if !self.links.get_or_new(from).handle_forget(name, in_flight) {
                    let why = format!("rank {from} released a region twice");
                    return Err(io::Error::other(why));
                }
                self.links.report_released(from);
            }
            VerbsControlWord::RegionReleased(name) => self.exports.handle_released(name, from),
            VerbsControlWord::ResolveName(name) => {
                if !self
                    .names
                    .handle_ask(from, name, &mut self.links, &self.exports)
                {
                    let why = format!("rank {from} asks for too many names");
                    return Err(io::Error::other(why));
                }
            }
            VerbsControlWord::NameResolved(named) => {
                self.commands().handle_named(from, named);
                self.fail_lost_peers();
            }
            VerbsControlWord::NameRetired(name) => self.commands().handle_unnamed(from, name),
            VerbsControlWord::Count { tally, by } => {
                self.tasks.own.handle_count(tally, by, &self.watches)
            }
            VerbsControlWord::Goodbye(how) => self.report_peer_down(from, how),
        }
        Ok(())
    }

    /// Processes completions. Returns 1 if a caller that was refused for lack of room should try again, otherwise 0.
    fn poll_send_cq(&mut self) -> u32 {
        let mut room = false;
        while let Some((lane, over)) = self.outbox.next() {
            self.counters.events.add(1);
            self.handle_over(lane, &over);
            room = true;
        }
        u32::from(room && std::mem::take(&mut self.refused))
    }

    fn handle_over(&mut self, lane: usize, over: &IbvWc) {
        if let Some(words) = self.datagrams.qp_of(lane, over) {
            return words.handle_sent(over);
        }
        let failed = (over.status != WC_SUCCESS).then_some(over.status);
        if let Some(peer) = quiet_peer(over.wr_id) {
            let to = PeerLane { peer, lane };
            // A request of a queue pair that was destroyed says nothing about the one that took its place.
            if self.links.has_queue_pair(to, over.qp_num) {
                self.note_status(to, failed);
            }
            return;
        }
        if let Some(to) = self.end_flights(over.wr_id, over.status) {
            let lane = &mut self.links.get_or_new(to.peer).lanes[to.lane];
            lane.stranded.retain(|id| *id != over.wr_id);
            self.destroy_if_drained(to);
        }
    }

    /// Ends a flight, and those posted before it in the same chain. Returns its lane.
    pub(super) fn end_flights(&mut self, id: u64, status: i32) -> Option<PeerLane> {
        let mut flight = self.outbox.flight(id)?;
        for before in std::mem::take(&mut flight.before) {
            self.end_flight(&before, status);
        }
        self.end_flight(&flight, status);
        Some(flight.to)
    }

    fn end_flight(&mut self, flight: &QpFlight, status: i32) {
        let failed = (status != WC_SUCCESS).then_some(status);
        let to = flight.to;
        self.outbox.subtract(to.lane, flight.requests);
        if let Some(link) = self.links.get_mut(to.peer) {
            link.lanes[to.lane].used -= flight.requests;
            if failed.is_none() {
                link.answers += u64::from(flight.requests);
            }
        }
        self.note_status(to, failed);
        if failed.is_none() {
            self.handle_greeting_ack(to.peer);
            if flight.sent > 0 {
                self.sends().release_replayed(to.peer, flight.sent);
            }
        }
        match flight.content {
            FlightContent::Message { chunk } => chunk
                .into_iter()
                .for_each(|chunk| self.outbox.free_chunk(chunk)),
            FlightContent::LookUp { slot } => {
                self.commands()
                    .handle_entry(to.peer, slot, flight.answer, failed.is_none());
            }
            FlightContent::Step { op, step } => {
                self.commands()
                    .handle_step(op, step, to.lane, flight.answer, status)
            }
        }
        self.fail_lost_peers();
    }

    /// Notes that a lane does not work if one of its requests has failed. That includes a request that was flushed before any
    /// other failed: a device may take a queue pair down for what the peer sent, and reports only the flushed requests.
    fn note_status(&mut self, to: PeerLane, failed: Option<i32>) {
        let Some(status) = failed else { return };
        let lanes = self.links.get(to.peer).map(|link| &link.lanes);
        let lane = lanes.and_then(|lanes| lanes.get(to.lane));
        if lane.is_some_and(VerbsLane::works) {
            let why = self.rails[to.lane].why_of(status);
            self.links.note_broken(to, why);
        }
    }

    /// Asks connected peers to release the regions that have no holder any more.
    fn release_regions(&mut self) {
        if !self.exports.has_dropped() {
            return;
        }
        let connected = self
            .links
            .iter()
            .filter(|(_, link)| link.is_made() && link.down.is_none());
        let connected: BTreeSet<WorldRank> = connected.map(|(peer, _)| peer).collect();
        for name in self.exports.take_dropped(&connected) {
            connected.iter().for_each(|peer| {
                self.links
                    .queue_control(*peer, VerbsControlWord::ReleaseRegion(name))
            });
        }
    }

    /// Leaves broken lanes, once everything that came by them before was delivered.
    fn leave_broken_lanes(&mut self) {
        for to in self.links.take_broken() {
            if self.has_arrivals_by(to) {
                self.links.leave_later(to);
            } else {
                self.leave_lane(to);
            }
        }
    }

    /// Returns true if something that came from a peer by a lane is not delivered yet.
    pub(super) fn has_arrivals_by(&mut self, to: PeerLane) -> bool {
        let Self { links, rails, .. } = self;
        let lanes = links.get(to.peer).map(|link| &link.lanes);
        let qp = lanes
            .and_then(|lanes| lanes.get(to.lane)?.qp.as_ref())
            .map(VerbsQp::number);
        qp.is_some_and(|qpn| rails[to.lane].inbox.has_from(qpn))
    }
}

/// Takes an event from each device. Returns true if there was any.
fn take_events(rails: &mut [VerbsRail]) -> bool {
    let mut took = false;
    for rail in rails {
        took |= rail.take_event();
    }
    took
}

fn has_arrivals(rails: &mut [VerbsRail]) -> bool {
    let mut any = false;
    for rail in rails {
        any |= rail.inbox.poll_arrivals();
    }
    any
}

/// Turns after which events are read anyway. A device may have failed, whose completions would be waited for in vain.
const TURNS_WITHOUT_EVENTS_MAX: u32 = 4096;
/// Turns after which events are read while a device is expected to report about receives (`srq_drain`).
const TURNS_WITHOUT_EVENTS_MAX_DRAINING: u32 = 64;
