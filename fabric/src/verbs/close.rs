//! The end: what was posted still arrives, and peers in contact are told.

use std::{hint, time::Duration};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{core::Core, link::Link, parked::Want, rail::Rail, way::To, wire::Word};
use crate::driver::{Armed, Down, Failure, Payload, Peer, Sink, Token, WaitOn};

impl Core {
    /// Says that this is the end to all who are connected, now or soon.
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
                // A peer may wait for a count, and it needs no memory of ours.
                if self.ops.get(op).is_some_and(|op| op.wish.counts() > 0) {
                    self.link_or_new(peer).parked.push(op, Want::Room);
                } else {
                    self.abandon(op, Failure::Cancelled);
                }
            }
            for op in naming {
                let counts = self.ops.get(op).is_some_and(|op| op.wish.counts() > 0);
                // Nor does this rank give a name any more.
                if peer == self.me || !counts {
                    self.abandon(op, Failure::Cancelled);
                }
            }
        }
        if how != Down::Finished {
            self.forgo_names();
        }
    }

    /// Turns until all has left, or so much time is over. Whether all has.
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

    /// Waits no more for names, of which some are never given: what was to be counted by them is not.
    pub(super) fn forgo_names(&mut self) {
        self.names.forgone = true;
        for peer in (0..).take(self.links.len()) {
            let naming = self.link(peer).map(|link| link.naming.take());
            for op in naming.into_iter().flatten() {
                self.abandon(op, Failure::Cancelled);
            }
        }
    }

    /// The last word to each peer, when nothing else waits for it.
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
            // The last word may not overtake counts, for which the peer may wait, nor those by names, whose answers may be under
            // way.
            let waits = !link.asking.is_empty() || !link.naming.is_empty();
            let more = stuck
                || waits
                || !link.parked.is_empty()
                || !link.waiting.is_empty()
                || link.is_busy_abroad();
            if link.owes_bye() && !more {
                let (open, wide) = (link.open, link.is_wide());
                // Words that are left may be counts.
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

    /// Where connections are scarce, those to peers that have heard the end are free at once: such a peer may be gone, and would
    /// not answer who wants to take its connection down in good order.
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

    /// Whether nothing is left that a peer should hear.
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

    /// Nothing under way may touch memory of the application any more: it is free when the driver is gone. Whether that is so; if
    /// not, devices have to be closed before.
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
        // What was not begun never is, though what it waits for may come: its memory is free soon. A count is on none.
        for id in self.ops.all(|op| op.flights == 0 && op.wish.counts() == 0) {
            self.abandon(id, Failure::Cancelled);
        }
        !(0..)
            .take(self.links.len())
            .any(|peer| self.touches_memory(peer))
    }

    /// Sleeps for a moment: whatever would end it sooner is in the descriptors.
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

/// Hears nothing: whoever closed it wants no more.
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
