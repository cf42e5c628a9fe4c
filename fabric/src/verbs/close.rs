//! Closing the driver: posted commands still arrive, and connected peers are notified.

use std::{hint, time::Duration};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    backlog::BacklogReason,
    core::{VerbsCore, VerbsSleep},
    lane::PeerLane,
    link::VerbsLink,
    rail::VerbsRail,
    wire::VerbsControlWord,
};
use crate::{
    driver::{
        ArmResult, CommandFailure, CommandToken, DownCause, PayloadView, Sink, WakeSource,
        WorldRank,
    },
    timer::picoseconds,
};

impl VerbsCore {
    /// Begins the end: connected peers will be sent a goodbye, now or when their connection is complete.
    pub(super) fn begin_close(&mut self, how: DownCause) {
        self.closing = Some(how);
        self.datagrams.begin_close();
        self.drop_lists();
        for peer in self.links.ranks() {
            let Some(link) = self.links.get_mut(peer) else {
                continue;
            };
            let parked = link.backlog.take();
            let naming: Vec<u32> = link.naming.iter().collect();
            for op in parked {
                // Keep counts: a peer may wait for one, and a count touches no memory of this rank.
                if self.commands.is_count(op) {
                    self.links
                        .get_or_new(peer)
                        .backlog
                        .push(op, BacklogReason::Room);
                } else {
                    self.commands().fail_command(op, CommandFailure::Cancelled);
                }
            }
            for op in naming {
                let counts = self.commands.is_count(op);
                // Keep counts here as well, except for this rank itself, which will give no more names.
                if peer == self.me || !counts {
                    self.commands().fail_command(op, CommandFailure::Cancelled);
                }
            }
        }
        if how != DownCause::Finished {
            self.commands().cancel_name_waits();
        }
    }

    /// Makes turns until everything has left or `limit` has passed. Returns true if everything has left.
    pub(super) fn finish(&mut self, limit: Duration) -> bool {
        let end = self.sleep.timer.now().saturating_add(picoseconds(limit));
        loop {
            let events = self.turn(BUDGET, &mut DiscardSink);
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
                    ArmResult::Ready => self.sleep.sleep_briefly(&self.rails),
                    ArmResult::Busy => hint::spin_loop(),
                }
            }
        }
    }

    /// Sends the goodbye to each peer for which nothing else is queued.
    fn say_bye(&mut self) {
        let Some(how) = self.closing else { return };
        let me = self.me;
        for peer in self.links.ranks().filter(|peer| *peer != me) {
            let stuck = self.tasks.has_stalled_for(peer);
            let Some(link) = self.links.get_mut(peer) else {
                continue;
            };
            // The goodbye must not overtake counts, since the peer may wait for them. That includes counts by a name that the
            // peer has not resolved yet.
            let waits = !link.asking.is_empty() || !link.naming.is_empty();
            let more = stuck
                || waits
                || !link.backlog.is_empty()
                || !link.message_queue.is_empty()
                || link.is_busy_off_home();
            if link.owes_goodbye() && !more {
                let (open, wide) = (link.open, link.is_wide());
                // Control words still in the queue may be counts, which the goodbye must not overtake.
                let first = link.control_queue.is_empty();
                if !open && first && self.datagrams().accepts(peer) {
                    let said = self.datagrams().send_goodbye(peer, how);
                    self.links.get_or_new(peer).sent_goodbye = said;
                    continue;
                }
                if open
                    && wide
                    && (self.commands.touches_memory(peer)
                        || !self.sends().send_lane_goodbye(peer, how))
                {
                    continue;
                }
                self.links.get_or_new(peer).sent_goodbye = true;
                self.links
                    .queue_control(peer, VerbsControlWord::Goodbye(how));
                if open {
                    self.flush(peer);
                } else {
                    self.request_connection(peer);
                }
            }
        }
    }

    /// Drops the connections to peers that have received the goodbye, if connections are scarce. Such a peer may have exited, and
    /// would not answer a request to drain the connection.
    fn leave_told(&mut self) {
        if self.connection_cache.is_none() {
            return;
        }
        let told = |link: &VerbsLink| link.sent_goodbye && link.used() == 0 && link.is_done();
        let ends = self.links.iter().filter(|(_, link)| told(link));
        let all: Vec<WorldRank> = ends.map(|(peer, _)| peer).collect();
        all.into_iter()
            .for_each(|peer| self.report_peer_down(peer, DownCause::Finished));
    }

    /// Returns true if nothing is left that a peer should receive.
    fn is_finished(&self) -> bool {
        if !self.datagrams.are_acknowledged()
            || !self.datagrams.have_left(&self.rails)
            || self.tasks.has_stalled()
        {
            return false;
        }
        self.links.iter().all(|(_, link)| {
            let silent = !link.has_queued() && link.datagram_messages.is_acknowledged();
            let idle = !link.is_made() && silent && !link.owes_goodbye();
            let said = link.is_done() && (link.sent_goodbye || link.open);
            link.down.is_some() || link.naming.is_empty() && (idle || said)
        }) && !self
            .links
            .ranks()
            .any(|peer| self.commands.touches_memory(peer))
    }

    /// Ends everything that touches memory of the application, which is free once the driver is dropped. Returns false if a
    /// device may still touch some; then the devices must be closed first.
    pub(super) fn release_memory(&mut self) -> bool {
        for peer in self.links.ranks() {
            if self.commands.touches_memory(peer) {
                self.report_peer_down(peer, DownCause::Failed);
                for lane in 0..self.rails.len() {
                    self.destroy_qp(PeerLane { peer, lane });
                }
                self.sends().clear_replay(peer);
            }
        }
        self.commands().cancel_unbegun();
        !self
            .links
            .ranks()
            .any(|peer| self.commands.touches_memory(peer))
    }
}

impl VerbsSleep {
    /// Sleeps for at most `NAP_NS`. Any event on the descriptors ends the sleep sooner.
    pub(super) fn sleep_briefly(&self, rails: &[VerbsRail]) {
        let timer = self.timer.wait_on();
        let waits = rails.iter().flat_map(VerbsRail::wait_on);
        let waits: Vec<_> = waits.chain([WakeSource::Fd(timer)]).collect();
        let mut fds: Vec<_> = waits
            .iter()
            .filter_map(|wait| match wait {
                WakeSource::Fd(fd) => Some(PollFd::new(fd, PollFlags::IN)),
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
struct DiscardSink;

impl Sink for DiscardSink {
    fn message(&mut self, _: WorldRank, _: &[u8], _: PayloadView<'_>) {}
    fn complete(&mut self, _: CommandToken) {}
    fn fetched(&mut self, _: CommandToken, _: u64) {}
    fn failed(&mut self, _: CommandToken, _: CommandFailure) {}
    fn reached(&mut self, _: CommandToken) {}
    fn triggered(&mut self, _: CommandToken) {}
    fn peer_down(&mut self, _: WorldRank, _: DownCause) {}
}

const BUDGET: u32 = 64;
const NAP_NS: i64 = 5_000_000;
