//! A turn: what has come is handed out, what is over makes room, and what waited for room goes on.

use std::{collections::BTreeSet, io};

use super::{
    abi::{Completion, EVENT_DEVICE_FATAL, WC_SUCCESS},
    core::{Core, Sleep},
    inbox::{BODY_MAX, HEADER_MAX, len_of},
    outbox::{Cargo, Flight, quiet_peer},
    wire::{Arrival, HEAD, Word, parse},
};
use crate::{
    connect::Event,
    driver::{Armed, Down, Peer, Sink},
};

impl Core {
    /// How many events were handed out.
    pub(super) fn turn(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        self.wake_up();
        let mut events = self.tell(budget, sink);
        events += self.receive(budget.saturating_sub(events).max(1), sink);
        events += self.reap();
        events += self.begin_tasks();
        self.speak_up();
        self.redial();
        self.evict_late();
        self.forget_dropped();
        for peer in std::mem::take(&mut self.stirred) {
            self.stirred.insert(peer); // `flush` takes it out when nothing is left
            self.flush(peer);
        }
        self.break_off();
        events += self.begin_tasks();
        events + self.tell(budget.saturating_sub(events), sink)
    }

    /// Asks for a wake-up, and looks once more.
    pub(super) fn arm(&mut self) -> Armed {
        if self.has_news()
            || self
                .next_retry()
                .is_some_and(|at| at <= self.sleep.timer.now())
        {
            return Armed::Busy;
        }
        // A queue that was armed and has got something since may have its event in the channel, which would end the sleep.
        let came = std::mem::take(&mut self.inbox.came) | std::mem::take(&mut self.outbox.came);
        while came && self.take_event() {}
        let notified = self.notify();
        debug_assert!(notified.is_ok(), "a queue that works can be armed");
        if notified.is_err() || self.inbox.look() | self.outbox.look() {
            return Armed::Busy;
        }
        self.sleep.slept = true;
        Armed::Ready
    }

    fn notify(&mut self) -> io::Result<()> {
        if !self.sleep.arrivals_armed {
            self.inbox.cq.notify(true)?;
            self.sleep.arrivals_armed = true;
        }
        // Errors come as completions even of those who asked for none, so whoever has something under way listens.
        let listens = !self.outbox.is_idle() || !self.unsaid.is_empty();
        if !self.sleep.sends_armed && listens {
            self.outbox.cq.notify(false)?;
            self.sleep.sends_armed = true;
        }
        let next = self.next_retry();
        self.sleep.timer.set(next)
    }

    fn has_news(&mut self) -> bool {
        self.lists.has_news()
            || !self.news.is_empty()
            || !self.broken.is_empty()
            || self.watches.is_reached()
            || self.exports.has_dropped()
    }

    /// The first turn after a sleep takes what woke it.
    fn wake_up(&mut self) {
        if !std::mem::take(&mut self.sleep.slept) {
            return;
        }
        // Each look is a system call, so there is one: whatever else there may be ends the next sleep.
        if self.take_event() {
            return;
        }
        while let Some(event) = self.own.context.next_event() {
            if event == EVENT_DEVICE_FATAL {
                self.break_all();
            }
        }
    }

    /// A queue is armed until its event has been taken. Whether there was one.
    fn take_event(&mut self) -> bool {
        let Sleep {
            arrivals_armed,
            sends_armed,
            ..
        } = &mut self.sleep;
        if !*arrivals_armed && !*sends_armed {
            return false;
        }
        let Some(handle) = self.own.channel.take() else {
            return false;
        };
        if handle == self.inbox.cq.handle() {
            *arrivals_armed = false;
        } else {
            *sends_armed = false;
        }
        true
    }

    fn break_all(&mut self) {
        for peer in (0..).take(self.links.len()) {
            self.note_broken(peer, io::Error::other("the device failed"));
        }
    }

    fn receive(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        let mut events = 0;
        while events < budget
            && let Some(came) = self.inbox.next()
        {
            events += 1;
            self.counters.events.add(1);
            if came.qp_num == self.datagrams.qp.number() {
                self.handle_datagram(&came);
            } else {
                self.handle_arrival(&came, sink);
            }
        }
        events
    }

    fn handle_arrival(&mut self, came: &Completion, sink: &mut dyn Sink) {
        let from = self.by_qpn.get(&came.qp_num).copied();
        let alive = from.filter(|from| self.link(*from).is_some_and(|link| link.gone.is_none()));
        if let Some(from) = alive {
            self.touch(from);
            let taken = match came.status {
                WC_SUCCESS => self.handle_message(from, came, sink),
                status => Err(io::Error::other(self.own.context.status(status))),
            };
            if let Err(why) = taken {
                self.note_broken(from, why);
            }
        }
        let given = self.inbox.give(came.wr_id);
        debug_assert!(given.is_ok(), "a buffer that was taken can be given back");
        if let Some(from) = alive
            && let Some(link) = self.link(from)
        {
            link.owed += 1;
            if link.owes_much() {
                self.say(from, Word::Credit);
            }
        }
    }

    fn handle_message(
        &mut self,
        from: u32,
        came: &Completion,
        sink: &mut dyn Sink,
    ) -> io::Result<()> {
        let malformed = || io::Error::other(format!("rank {from} sent what is no message"));
        self.hear_data(from);
        let first = self.inbox.first(came);
        let len = len_of(came);
        let (arrival, credits) = parse(&first, len).map_err(|_| malformed())?;
        self.link_or_new(from).add_credits(credits);
        match arrival {
            Arrival::Word(word) => self.handle_word(from, word),
            Arrival::Message { header }
                if header > HEADER_MAX || len - HEAD - header > BODY_MAX =>
            {
                return Err(malformed());
            }
            Arrival::Message { header } => {
                self.counters.messages_received.add(1);
                let mut room = [0; HEADER_MAX];
                let header = &mut room[..header];
                let body = self.inbox.message(came, header);
                sink.message(Peer(from), header, body);
            }
        }
        Ok(())
    }

    fn handle_word(&mut self, from: u32, word: Word) {
        match word {
            Word::Credit | Word::Wake => {}
            Word::Forget(name) => {
                self.link_or_new(from).imports.forget(name);
                self.say(from, Word::Forgot(name));
            }
            Word::Forgot(name) => self.exports.forgot(name, from),
            Word::Ask(name) => self.answer_name(from, name),
            Word::Named(named) => self.handle_named(from, named),
            Word::Unnamed(name) => self.link_or_new(from).imports.unname(name),
            Word::Bye(how) => self.part(from, how),
        }
    }

    /// Takes what is over. Whether somebody who was refused should try again.
    fn reap(&mut self) -> u32 {
        let mut room = false;
        while let Some(over) = self.outbox.next() {
            self.counters.events.add(1);
            self.handle_over(&over);
            room = true;
        }
        u32::from(room && std::mem::take(&mut self.refused))
    }

    fn handle_over(&mut self, over: &Completion) {
        if over.qp_num == self.datagrams.qp.number() {
            return self.datagrams.handle_sent();
        }
        let failed = (over.status != WC_SUCCESS).then_some(over.status);
        if let Some(peer) = quiet_peer(over.wr_id) {
            return self.note_status(peer, failed);
        }
        if let Some(peer) = self.end_flights(over.wr_id, over.status) {
            let link = self.link_or_new(peer);
            link.stranded.retain(|id| *id != over.wr_id);
            self.bury(peer);
        }
    }

    /// A flight is over, with those posted before it in the same chain. Whose it was.
    pub(super) fn end_flights(&mut self, id: u64, status: i32) -> Option<u32> {
        let mut flight = self.outbox.flight(id)?;
        for before in std::mem::take(&mut flight.before) {
            self.end_flight(&before, status);
        }
        self.end_flight(&flight, status);
        Some(flight.peer)
    }

    fn end_flight(&mut self, flight: &Flight, status: i32) {
        let failed = (status != WC_SUCCESS).then_some(status);
        self.outbox.subtract(flight.requests);
        if let Some(link) = self.link(flight.peer) {
            link.used -= flight.requests;
            if failed.is_none() {
                link.answers += u64::from(flight.requests);
            }
        }
        self.note_status(flight.peer, failed);
        match flight.what {
            Cargo::Message { chunk } => chunk
                .into_iter()
                .for_each(|chunk| self.outbox.free_chunk(chunk)),
            Cargo::LookUp { slot } => {
                self.handle_entry(flight.peer, slot, flight.answer, failed.is_none());
            }
            Cargo::Step { op, step } => self.handle_step(op, step, flight.answer, status),
        }
    }

    fn note_status(&mut self, peer: u32, failed: Option<i32>) {
        if let Some(why) = failed.and_then(|status| self.why_of(status)) {
            self.note_broken(peer, why);
        }
    }

    /// Regions without holders are to be forgotten.
    fn forget_dropped(&mut self) {
        if !self.exports.has_dropped() {
            return;
        }
        let ends = (0..)
            .zip(&self.links)
            .filter_map(|(peer, link)| Some((peer, link.as_deref()?)));
        let connected = ends.filter(|(_, link)| link.qp.is_some() && link.gone.is_none());
        let connected: BTreeSet<u32> = connected.map(|(peer, _)| peer).collect();
        for name in self.exports.take_dropped(&connected) {
            connected
                .iter()
                .for_each(|peer| self.say(*peer, Word::Forget(name)));
        }
    }

    /// Connections that broke: what came through them before has been handed out by now.
    fn break_off(&mut self) {
        if self.broken.is_empty() || self.inbox.look() {
            return;
        }
        for peer in std::mem::take(&mut self.broken) {
            if peer != self.me {
                self.tell_dial(peer, Event::Broken, None);
            }
            self.part(peer, Down::Failed); // `note_broken` left the reason
        }
    }
}
