//! Closing the driver: posted commands still arrive, and connected peers are notified.

use std::{hint, time::Duration};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{core::Core, link::Link, backlog::Want, rail::Rail, lane::To, wire::Word};
use crate::driver::{Armed, Down, Failure, Payload, Peer, Sink, Token, WaitOn};

impl Core {
    /// Begins the end: connected peers will be sent a goodbye, now or when their connection is complete.
    pub(super) fn begin_close(&mut self, how: Down) {
        self.closing = Some(how);
        self.datagrams.ends = true;
        self.detours.iter_mut().for_each(|words| words.ends = true);
        self.drop_lists();
        for peer in (0..).take(self.links.len()) {
            let Some(link) = self.link(peer) else {
                continue;
            };
            let parked = link.parked.take();
            let naming: Vec<u32> = link.naming.iter().collect();
            for op in parked {
                // Keep counts: a peer may wait for one, and a count touches no memory of this rank.
                if self.ops.get(op).is_some_and(|op| op.wish.counts() > 0) {
                    self.link_or_new(peer).parked.push(op, Want::Room);
                } else {
                    self.abandon(op, Failure::Cancelled);
                }
            }
            for op in naming {
                let counts = self.ops.get(op).is_some_and(|op| op.wish.counts() > 0);
                // Keep counts here as well, except for this rank itself, which will give no more names.
                if peer == self.me || !counts {
                    self.abandon(op, Failure::Cancelled);
                }
            }
        }
        if how != Down::Finished {
            self.forgo_names();
        }
    }

    /// Makes turns until everything has left or `limit` has passed. Returns true if everything has left.
    pub(super) fn finish(&mut self, limit: Duration) -> bool {
        let limit = u64::try_from(limit.as_nanos())
            .unwrap_or(u64::MAX)
            .saturating_mul(1000);
        let end = self.sleep.timer.now().saturating_add(limit);
        loop {
            let events = self.turn(BUDGET, &mut Deaf);
            self.say_bye();
            self.leave_told();
            if self.is_finished() {
                return true;
            }
            if self.sleep.timer.now() >= end {
                return false;
            }
            if events == 0 {
                match self.arm() {
                    Armed::Ready => self.nap(),
                    Armed::Busy => hint::spin_loop(),
                }
            }
        }
    }

    /// Stops waiting for names, some of which are never given. Counts by such a name are canceled.
    pub(super) fn forgo_names(&mut self) {
        self.names.forgone = true;
        for peer in (0..).take(self.links.len()) {
            let naming = self.link(peer).map(|link| link.naming.take());
            for op in naming.into_iter().flatten() {
                self.abandon(op, Failure::Cancelled);
            }
        }
    }

    /// Sends the goodbye to each peer for which nothing else is queued.
    fn say_bye(&mut self) {
        let Some(how) = self.closing else { return };
        for peer in (0..)
            .take(self.links.len())
            .filter(|peer| *peer != self.me)
            .collect::<Vec<_>>()
        {
            let stuck = self.tasks.are_stuck(peer);
            let Some(link) = self.link(peer) else {
                continue;
            };
            // The goodbye must not overtake counts, since the peer may wait for them. That includes counts by a name that the
            // peer has not resolved yet.
            let waits = !link.asking.is_empty() || !link.naming.is_empty();
            let more = stuck
                || waits
                || !link.parked.is_empty()
                || !link.waiting.is_empty()
                || link.is_busy_abroad();
            if link.owes_bye() && !more {
                let (open, wide) = (link.open, link.is_wide());
                // Control words still in the queue may be counts, which the goodbye must not overtake.
                let first = link.words.is_empty();
                if !open && first && self.talks_to(peer) {
                    let said = self.send_last_parcel(peer, how);
                    self.link_or_new(peer).said_bye = said;
                    continue;
                }
                if open && wide && !self.say_end(peer, how) {
                    continue;
                }
                self.link_or_new(peer).said_bye = true;
                self.say(peer, Word::Bye(how));
                if open {
                    self.flush(peer);
                } else {
                    self.want(peer);
                }
            }
        }
    }

    /// Drops the connections to peers that have received the goodbye, if connections are scarce. Such a peer may have exited, and
    /// would not answer a request to drain the connection.
    fn leave_told(&mut self) {
        if self.scarce.is_none() {
            return;
        }
        let told = |link: &Link| link.said_bye && link.used() == 0 && link.is_done();
        let ends = (0..).zip(&self.links);
        let all: Vec<u32> = ends
            .filter(|(_, link)| link.as_deref().is_some_and(told))
            .map(|(peer, _)| peer)
            .collect();
        all.into_iter()
            .for_each(|peer| self.part(peer, Down::Finished));
    }

    /// Returns true if nothing is left that a peer should receive.
    fn is_finished(&self) -> bool {
        if !self.talks.are_over() || !self.have_words_left() || self.tasks.have_stuck() {
            return false;
        }
        self.links.iter().flatten().all(|link| {
            let silent = !link.has_something() && link.parcels.is_answered();
            let idle = !link.is_made() && silent && !link.owes_bye();
            let said = link.is_done() && (link.said_bye || link.open);
            link.gone.is_some() || link.naming.is_empty() && (idle || said)
        }) && !(0..)
            .take(self.links.len())
            .any(|peer| self.touches_memory(peer))
    }

    /// Ends everything that touches memory of the application, which is free once the driver is dropped. Returns false if a
    /// device may still touch some; then the devices must be closed first.
    pub(super) fn let_go(&mut self) -> bool {
        for peer in (0..).take(self.links.len()).collect::<Vec<_>>() {
            if self.touches_memory(peer) {
                self.part(peer, Down::Failed);
                for lane in 0..self.rails.len() {
                    self.take_down(To { peer, lane });
                }
                self.free_kept(peer);
            }
        }
        // Cancel commands that have not begun, even if they could begin later: their memory is free soon. Counts use none.
        for id in self.ops.all(|op| op.flights == 0 && op.wish.counts() == 0) {
            self.abandon(id, Failure::Cancelled);
        }
        !(0..)
            .take(self.links.len())
            .any(|peer| self.touches_memory(peer))
    }

    /// Sleeps for at most `NAP_NS`. Any event on the descriptors ends the sleep sooner.
    fn nap(&self) {
        let sleep = &self.sleep;
        let timer = sleep.timer.wait_on();
        let waits = self.rails.iter().flat_map(Rail::wait_on);
        let waits: Vec<_> = waits.chain([WaitOn::Fd(timer)]).collect();
        let mut fds: Vec<_> = waits
            .iter()
            .filter_map(|wait| match wait {
                WaitOn::Fd(fd) => Some(PollFd::new(fd, PollFlags::IN)),
                _ => None,
            })
            .collect();
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: NAP_NS,
        };
        let _woken = poll(&mut fds, Some(&moment));
    }
}

/// Ignores all events: the application has dropped the driver.
struct Deaf;

impl Sink for Deaf {
    fn message(&mut self, _: Peer, _: &[u8], _: Payload<'_>) {}
    fn complete(&mut self, _: Token) {}
    fn fetched(&mut self, _: Token, _: u64) {}
    fn failed(&mut self, _: Token, _: Failure) {}
    fn reached(&mut self, _: Token) {}
    fn triggered(&mut self, _: Token) {}
    fn peer_down(&mut self, _: Peer, _: Down) {}
}

const BUDGET: u32 = 64;
const NAP_NS: i64 = 5_000_000;
