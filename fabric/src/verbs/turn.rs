//! A turn, which is one pass of progress: delivers arrivals, processes completions, and retries commands that waited for room.

use std::{collections::BTreeSet, io};

use super::{
    abi::{Completion, WC_SUCCESS},
    core::{Core, index},
    inbox::{BODY_MAX, HEADER_MAX, len_of},
    objects::Qp,
    outbox::{Cargo, Flight, quiet_peer},
    rail::Wakes,
    lane::{FIRST, To},
    wire::{Arrival, HEAD, Word, parse},
};
use crate::{
    connect::Event,
    driver::{Armed, Peer, Sink},
};

impl Core {
    /// Makes a turn. Returns the number of events.
    pub(super) fn turn(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        self.wake_up();
        self.talk();
        let mut events = self.tell(budget, sink);
        events += self.take_counts();
        events += self.receive(budget.saturating_sub(events).max(1), sink);
        events += self.hear_late(sink);
        events += self.reap();
        events += self.begin_tasks();
        self.speak_up();
        self.redial();
        self.talk_again();
        self.evict_late();
        self.forget_dropped();
        for peer in std::mem::take(&mut self.stirred) {
            self.stirred.insert(peer); // `flush` takes it out when nothing is left
            self.flush(peer);
        }
        self.break_off();
        self.let_go_late();
        self.bury_late();
        events += self.begin_tasks();
        events + self.tell(budget.saturating_sub(events), sink)
    }

    /// Asks for a wake-up, and checks once more.
    pub(super) fn arm(&mut self) -> Armed {
        if self.take_counts() > 0
            || self.has_news()
            || self
                .next_retry()
                .is_some_and(|at| at <= self.sleep.timer.now())
        {
            return Armed::Busy;
        }
        // Datagrams that the application has sent by now carry acknowledgments. The others are sent here.
        self.talk();
        // The event of a queue that was armed, and has got something since, may be in the channel and would end the sleep.
        let mut came = std::mem::take(&mut self.outbox.came);
        for rail in &mut self.rails {
            came |= std::mem::take(&mut rail.inbox.came);
        }
        while came && self.take_events() {}
        let set = self.notify();
        debug_assert!(set.is_ok(), "an alarm can be set");
        // Arming may have found that a device has failed, and marked peers as failed.
        if set.is_err() || self.has_news() || self.has_arrivals() | self.outbox.look() {
            return Armed::Busy;
        }
        self.sleep.slept = true;
        Armed::Ready
    }

    /// Arms the queues and the alarm. A device whose queues cannot be armed has failed: it would wake no sleeping thread.
    fn notify(&mut self) -> io::Result<()> {
        let wakes = self.wakes();
        let datagrams = !self.unsaid.is_empty() || self.has_parcels();
        for lane in 0..self.rails.len() {
            // Requests that fail complete even if they asked for no completion, so listen while any are in flight.
            let listens = !self.outbox.is_idle(lane) || lane == FIRST && datagrams;
            let sends = listens.then_some(&*self.outbox.lanes[lane].cq);
            if self.rails[lane].notify(wakes, sends).is_err() {
                self.break_all(lane, "the device failed: its queues cannot be armed");
            }
        }
        let next = self.next_retry();
        self.sleep.timer.set(next)
    }

    /// Arms the queues for completions of requests that were posted while a thread sleeps, as if they had been in flight before.
    /// A completion may have a consequence, such as a peer to wake, or a task to begin.
    pub(super) fn listen_to_sends(&mut self) {
        if !self.sleep.slept {
            return;
        }
        let mut deaf = false;
        for (rail, lane) in self.rails.iter_mut().zip(0..) {
            if !self.outbox.is_idle(lane) {
                let sends = &*self.outbox.lanes[lane].cq;
                deaf |= rail.notify(Wakes::None, Some(sends)).is_err();
            }
        }
        if deaf || self.outbox.look() {
            self.ring();
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

    pub(super) fn has_news(&mut self) -> bool {
        self.lists.has_news()
            || self.tasks.are_over()
            || !self.news.is_empty()
            || !self.broken.is_empty()
            || !self.dying.is_empty()
            || !self.unheard.is_empty()
            || self.watches.is_reached()
            || self.exports.has_dropped()
    }

    /// Takes the events that ended a sleep, in the first turn after it.
    fn wake_up(&mut self) {
        let slept = std::mem::take(&mut self.sleep.slept);
        // Each check is a system call, so there is one for each device. Further events end the next sleep.
        let looks = slept && !self.take_events();
        self.sleep.deaf += 1;
        // A rank may never sleep, or always be woken by something else, so events are also read after some turns.
        let deaf_max = if self.holding.is_empty() {
            DEAF_MAX
        } else {
            DEAF_MAX_HOLDING
        };
        if looks || self.sleep.deaf >= deaf_max {
            self.sleep.deaf = 0;
            self.hear_devices();
        }
    }

    /// Takes an event from each device. Returns true if there was any.
    fn take_events(&mut self) -> bool {
        let mut took = false;
        for rail in &mut self.rails {
            took |= rail.take_event();
        }
        took
    }

    fn has_arrivals(&mut self) -> bool {
        let mut any = false;
        for rail in &mut self.rails {
            any |= rail.inbox.look();
        }
        any
    }

    fn receive(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        let mut events = 0;
        // A device that always has arrivals must not delay those of the others.
        let lanes = self.rails.len();
        let first = self.first_heard;
        self.first_heard = (first + 1) % lanes;
        for lane in (first..lanes).chain(0..first) {
            while events < budget
                && let Some(came) = self.rails[lane].inbox.next()
            {
                events += 1;
                self.counters.events.add(1);
                if self.words_of(lane, &came).is_some() {
                    self.handle_datagram(lane, &came);
                } else {
                    self.handle_arrival(lane, &came, sink);
                }
            }
        }
        events
    }

    fn handle_arrival(&mut self, lane: usize, came: &Completion, sink: &mut dyn Sink) {
        let alive = self.sender(lane, came);
        let mut owes = false;
        if let Some(peer) = alive {
            self.touch(peer);
            let to = To { peer, lane };
            let taken = match came.status {
                WC_SUCCESS => self.handle_message(to, came, sink),
                status => Err(io::Error::other(
                    self.rails[lane].own.context.status(status),
                )),
            };
            owes = taken.as_ref().is_ok_and(|costs| *costs);
            if let Err(why) = taken {
                self.note_broken(to, why);
            }
        }
        self.give_back(lane, came, alive.filter(|_| owes));
    }

    /// Returns the peer that an arrival is from, if it is still up.
    pub(super) fn sender(&mut self, lane: usize, came: &Completion) -> Option<u32> {
        let from = self.rails[lane].by_qpn.get(&came.qp_num).copied();
        from.filter(|from| self.link(*from).is_some_and(|link| link.gone.is_none()))
    }

    /// Posts the buffer of an arrival again, and owes the peer in `owed` a credit. If the device refuses the buffer there are
    /// fewer than credits, so the lane that the arrival came by is left.
    pub(super) fn give_back(&mut self, lane: usize, came: &Completion, owed: Option<u32>) {
        if let Err(why) = self.rails[lane].inbox.give(came.wr_id) {
            if let Some(peer) = self.sender(lane, came) {
                self.note_broken(To { peer, lane }, why);
            }
            return;
        }
        if let Some(from) = owed
            && let Some(link) = self.link(from)
        {
            link.owed += 1;
            if link.owes_much() {
                self.say(from, Word::Credit);
            }
        }
    }

    /// Handles an arrived message or control word. Returns true if it took one of the peer's credits.
    fn handle_message(
        &mut self,
        To { peer, lane }: To,
        came: &Completion,
        sink: &mut dyn Sink,
    ) -> io::Result<bool> {
        let malformed = || io::Error::other(format!("rank {peer} sent what is no message"));
        let first = self.rails[lane].inbox.first(came);
        let len = len_of(came);
        let (arrival, credits) = parse(&first, len).map_err(|_| malformed())?;
        let data = match arrival {
            Arrival::Word(Word::Hello) => Event::Greeted,
            _ => Event::Data,
        };
        self.hear_data(peer, data);
        match arrival {
            Arrival::Word(Word::Lanes(said)) => {
                self.handle_lanes(peer, said);
                return Ok(false);
            }
            Arrival::Word(Word::End { how, sent }) => {
                self.handle_end(peer, how, sent);
                return Ok(false);
            }
            Arrival::Word(Word::Hello) => return Ok(true),
            _ => {}
        }
        let link = self.link_or_new(peer);
        link.add_credits(credits);
        link.trail.heard += 1;
        link.heard_by = lane;
        match arrival {
            Arrival::Word(word) => self.handle_word(peer, word)?,
            Arrival::Message { header }
                if header > HEADER_MAX || len - HEAD - header > BODY_MAX =>
            {
                return Err(malformed());
            }
            Arrival::Message { header } => {
                self.counters.messages_received.add(1);
                let mut room = [0; HEADER_MAX];
                let header = &mut room[..header];
                let body = self.rails[lane].inbox.message(came, header);
                sink.message(Peer(peer), header, body);
            }
        }
        Ok(true)
    }

    /// Handles a control word.
    ///
    /// # Errors
    /// No peer in good faith sends it.
    fn handle_word(&mut self, from: u32, word: Word) -> io::Result<()> {
        match word {
            Word::Credit | Word::Wake | Word::Hello | Word::Lanes(_) | Word::End { .. } => {}
            Word::Forget(name) => {
                let under_way = self.touching(from);
                if !self.link_or_new(from).handle_forget(name, under_way) {
                    let why = format!("rank {from} took back a region twice");
                    return Err(io::Error::other(why));
                }
                self.say_forgot(from);
            }
            Word::Forgot(name) => self.exports.forgot(name, from),
            Word::Ask(name) => {
                if !self.handle_ask(from, name) {
                    let why = format!("rank {from} asks for too many names");
                    return Err(io::Error::other(why));
                }
            }
            Word::Named(named) => self.handle_named(from, named),
            Word::Unnamed(name) => self.handle_unnamed(from, name),
            Word::Count { tally, by } => self.handle_count(tally, by),
            Word::Bye(how) => self.part(from, how),
        }
        Ok(())
    }

    /// Processes completions. Returns 1 if a caller that was refused for lack of room should try again, otherwise 0.
    fn reap(&mut self) -> u32 {
        let mut room = false;
        while let Some((lane, over)) = self.outbox.next() {
            self.counters.events.add(1);
            self.handle_over(lane, &over);
            room = true;
        }
        u32::from(room && std::mem::take(&mut self.refused))
    }

    fn handle_over(&mut self, lane: usize, over: &Completion) {
        if let Some(words) = self.words_of(lane, over) {
            return words.handle_sent(over);
        }
        let failed = (over.status != WC_SUCCESS).then_some(over.status);
        if let Some(peer) = quiet_peer(over.wr_id) {
            return self.note_status(To { peer, lane }, failed);
        }
        if let Some(to) = self.end_flights(over.wr_id, over.status) {
            let way = &mut self.link_or_new(to.peer).ways[to.lane];
            way.stranded.retain(|id| *id != over.wr_id);
            self.bury(to);
        }
    }

    /// Ends a flight, and those posted before it in the same chain. Returns its lane.
    pub(super) fn end_flights(&mut self, id: u64, status: i32) -> Option<To> {
        let mut flight = self.outbox.flight(id)?;
        for before in std::mem::take(&mut flight.before) {
            self.end_flight(&before, status);
        }
        self.end_flight(&flight, status);
        Some(flight.to)
    }

    fn end_flight(&mut self, flight: &Flight, status: i32) {
        let failed = (status != WC_SUCCESS).then_some(status);
        let to = flight.to;
        self.outbox.subtract(to.lane, flight.requests);
        if let Some(link) = self.link(to.peer) {
            link.ways[to.lane].used -= flight.requests;
            if failed.is_none() {
                link.answers += u64::from(flight.requests);
            }
        }
        self.note_status(to, failed);
        if failed.is_none() {
            self.hear_answer(to.peer);
            if flight.sent > 0 {
                self.forget_kept(to.peer, flight.sent);
            }
        }
        match flight.what {
            Cargo::Message { chunk } => chunk
                .into_iter()
                .for_each(|chunk| self.outbox.free_chunk(chunk)),
            Cargo::LookUp { slot } => {
                self.handle_entry(to.peer, slot, flight.answer, failed.is_none());
            }
            Cargo::Step { op, step } => self.handle_step(op, step, to.lane, flight.answer, status),
        }
    }

    fn note_status(&mut self, to: To, failed: Option<i32>) {
        if let Some(why) = failed.and_then(|status| self.why_of(to.lane, status)) {
            self.note_broken(to, why);
        }
    }

    /// Asks connected peers to release the regions that have no holder any more.
    fn forget_dropped(&mut self) {
        if !self.exports.has_dropped() {
            return;
        }
        let ends = (0..)
            .zip(&self.links)
            .filter_map(|(peer, link)| Some((peer, link.as_deref()?)));
        let connected = ends.filter(|(_, link)| link.is_made() && link.gone.is_none());
        let connected: BTreeSet<u32> = connected.map(|(peer, _)| peer).collect();
        for name in self.exports.take_dropped(&connected) {
            connected
                .iter()
                .for_each(|peer| self.say(*peer, Word::Forget(name)));
        }
    }

    /// Leaves broken lanes, once everything that came by them before was delivered.
    fn break_off(&mut self) {
        for to in std::mem::take(&mut self.broken) {
            if self.has_arrivals_by(to) {
                self.broken.insert(to);
            } else {
                self.leave_lane(to);
            }
        }
    }

    /// Returns true if something that came from a peer by a lane is not delivered yet.
    pub(super) fn has_arrivals_by(&mut self, to: To) -> bool {
        let Self { links, rails, .. } = self;
        let way = links[index(to.peer)].as_ref().map(|link| &link.ways);
        let qp = way
            .and_then(|ways| ways.get(to.lane)?.qp.as_ref())
            .map(Qp::number);
        qp.is_some_and(|qpn| rails[to.lane].inbox.has_from(qpn))
    }
}

/// Turns after which events are read anyway. A device may have failed, whose completions would be waited for in vain.
const DEAF_MAX: u32 = 4096;
/// Turns after which events are read while a device is expected to report about receives (`held`).
const DEAF_MAX_HOLDING: u32 = 64;
