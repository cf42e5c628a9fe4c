//! Failure detector for drivers that do not report failures: watches the peers for which this rank waits.
//!
//! Pings, answers and reports of failures are sent out of order. They overtake queued messages, but may wait for room themselves.

use std::{collections::BTreeSet, time::Duration};

use ripstop_fabric::driver::{DownCause, DownEvidence, Driver, DriverCommand, PostResult};

use super::{Engine, EngineCore, LibraryEvent, OneSidedCommand};
use crate::evidence::FailureEvidence;
use crate::{
    clock::ClockTime,
    group::WorldRank,
    ops::OpState,
    proto::{
        failure_detector::FailureDetector,
        wire::{BareHeader, DeathHeader, WireKind, read},
    },
};

/// Largest communicator of which a wildcard receive watches all members. In a larger one, it watches the members in contact.
const MEMBERS_MAX: usize = 64;

/// State of the detector. Unused if the driver reports failures.
pub(super) struct LivenessMonitor {
    /// True once the driver knows where its peers are.
    knows_peers: bool,
    alive: FailureDetector,
    /// This rank, which is not watched.
    me: WorldRank,
    /// Messages to be sent out of order.
    pub(super) asides: Vec<LivenessMessage>,
    /// Messages that found no room. The driver wakes this rank when there is some.
    stuck: Vec<LivenessMessage>,
    /// Peers that this detector has found failed, or that have given this rank up.
    given_up: Vec<WorldRank>,
}

/// A message sent out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LivenessMessage {
    to: WorldRank,
    content: LivenessContent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LivenessContent {
    Plain(WireKind),
    /// Reports that the process of this rank was seen to end.
    Death(WorldRank),
}

impl LivenessMessage {
    fn plain(to: WorldRank, kind: WireKind) -> Self {
        let word = LivenessContent::Plain(kind);
        Self { to, content: word }
    }

    /// Posts the message. Returns false if there was no room.
    fn post(self, driver: &mut dyn Driver) -> bool {
        let to = self.to;
        let (plain, death);
        let header = match self.content {
            LivenessContent::Plain(kind) => {
                plain = BareHeader::new(kind);
                bytemuck::bytes_of(&plain)
            }
            LivenessContent::Death(rank) => {
                death = DeathHeader::new(rank.0);
                bytemuck::bytes_of(&death)
            }
        };
        let body = &[];
        matches!(
            driver.post(DriverCommand::Message { to, header, body }),
            PostResult::Posted
        )
    }
}

impl LivenessMonitor {
    /// Creates the detector; `interval` is in nanoseconds.
    pub(super) fn new(interval: u64, me: WorldRank) -> Self {
        Self {
            alive: FailureDetector::new(interval),
            me,
            knows_peers: false,
            asides: Vec::new(),
            stuck: Vec::new(),
            given_up: Vec::new(),
        }
    }

    /// Returns true if the driver knows where its peers are. It is not asked again after it does.
    fn knows_peers_of(&mut self, driver: &mut dyn Driver) -> bool {
        if !self.knows_peers {
            let watch = driver.failure_watch();
            self.knows_peers = watch.is_none_or(|watch| watch.knows_peers());
        }
        self.knows_peers
    }
}

impl Engine {
    /// Checks the peers for which this rank waits, if that is due. `all` is true if this turn took everything that has come.
    pub(super) fn check_liveness(&mut self, now: ClockTime, all: bool) {
        if self.core.p2p.common.ended {
            return;
        }
        let now = now.nanos();
        let Some(liveness) = &mut self.core.liveness else {
            return;
        };
        if !liveness.knows_peers_of(&mut *self.driver) {
            return;
        }
        if std::mem::take(&mut self.core.p2p.common.awaited_peers_changed) {
            liveness.alive.expect_wait(now);
        }
        if liveness.alive.is_due(now, all) {
            let mut watch = self.driver.failure_watch();
            let answers = |rank| watch.as_mut().map_or(0, |watch| watch.answers(rank));
            self.core.look(now, answers);
        }
        self.say_asides();
    }

    /// Records how the driver detected failures, for errors. Notifies the other ranks of a process that was seen to end.
    #[cold]
    pub(super) fn note_losses(&mut self) {
        for rank in self.core.evidence.take_reports() {
            // A driver without a watch has no more to say than that.
            let Some(watch) = self.driver.failure_watch() else {
                continue;
            };
            let how = watch.evidence(rank);
            if let DownEvidence::Reported(why) = &how {
                let lost = LibraryEvent::PeerLost {
                    rank: self.core.p2p.common.me,
                    peer: rank,
                    host: self.core.evidence.host_of(rank),
                    why: why.clone(),
                };
                self.core.p2p.common.report(lost);
            }
            let is_seen = matches!(how, DownEvidence::Ended);
            if self.core.evidence.note(rank, how.into()) && is_seen {
                self.core.tell_of_death(rank);
            }
        }
    }

    /// If the driver detects failures itself, tells it for which peers this rank waits. A peer that never connects would
    /// otherwise never be reported.
    pub(super) fn report_awaited_peers(&mut self) {
        let core = &mut self.core;
        if !core.p2p.common.watches && std::mem::take(&mut core.p2p.common.awaited_peers_changed) {
            self.driver
                .expect(&mut || core.waited_for(usize::MAX).into_iter().collect());
        }
    }

    /// Sends the messages that are out of order, and drops the peers that were given up.
    fn say_asides(&mut self) {
        let Some(liveness) = &mut self.core.liveness else {
            return;
        };
        if !(liveness.asides.is_empty() && liveness.stuck.is_empty()) {
            for aside in std::mem::take(&mut liveness.asides) {
                if !liveness.stuck.contains(&aside) {
                    liveness.stuck.push(aside);
                }
            }
            let driver = &mut *self.driver;
            liveness.stuck.retain(|aside| !aside.post(driver));
        }
        for rank in std::mem::take(&mut liveness.given_up) {
            let how = self.driver.give_up(rank, None);
            self.core.handle_peer_down(rank, how);
        }
    }

    /// Returns the time of the next check. For waits that began since the last turn, the time counts from that turn.
    pub(super) fn next_liveness_check(&mut self) -> Option<ClockTime> {
        let liveness = self.core.liveness.as_mut()?;
        if !liveness.knows_peers_of(&mut *self.driver) {
            return None; // the driver wakes this rank when it knows them
        }
        let next = liveness.alive.next_check();
        let next = next.or_else(|| {
            self.core
                .p2p
                .common
                .awaited_peers_changed
                .then_some(self.core.p2p.common.now.nanos())
        });
        next.map(ClockTime::from_nanos)
    }
}

impl EngineCore {
    /// Handles a sign of life of a peer. Returns true if the message must be handled as usual.
    pub(super) fn handle_liveness(
        &mut self,
        rank: WorldRank,
        kind: WireKind,
        header: &[u8],
    ) -> bool {
        let Some(liveness) = self.liveness.as_deref_mut() else {
            return true;
        };
        if self.p2p.common.peers.down(rank) == Some(DownCause::Failed) {
            // This rank has given the peer up and failed what waited for it, so the peer cannot come back. Tell it that.
            if kind != WireKind::DeclaredDown {
                liveness
                    .asides
                    .push(LivenessMessage::plain(rank, WireKind::DeclaredDown));
            }
            return false;
        }
        liveness
            .alive
            .handle_heard(rank, self.p2p.common.now.nanos());
        match kind {
            WireKind::Ping => liveness
                .asides
                .push(LivenessMessage::plain(rank, WireKind::Pong)),
            WireKind::Pong => {}
            WireKind::DeclaredDown => {
                liveness.given_up.push(rank);
                self.evidence.note(rank, FailureEvidence::GaveUp);
            }
            WireKind::Death => match read(header) {
                Some(DeathHeader { rank: dead, .. }) if dead < self.p2p.common.peers.size() => {
                    liveness
                        .alive
                        .suspect(WorldRank(dead), self.p2p.common.now.nanos());
                }
                _ => self.p2p.common.refused += 1,
            },
            _ => return true,
        }
        false
    }

    fn look(&mut self, now: u64, answers: impl FnMut(WorldRank) -> u64) {
        let mut waited = self.waited_for(MEMBERS_MAX);
        let Some(liveness) = &mut self.liveness else {
            return;
        };
        waited.remove(&liveness.me);
        let found = liveness.alive.check_peers(now, &waited, answers);
        let aside = |kind| move |rank: &WorldRank| LivenessMessage::plain(*rank, kind);
        let pings = found.to_ping.iter().map(aside(WireKind::Ping));
        let gone = found.failed.iter().map(aside(WireKind::DeclaredDown));
        liveness.asides.extend(pings.chain(gone));
        liveness.given_up.extend(&found.failed);
        let limits = [liveness.alive.limit(), liveness.alive.suspect_limit()];
        let [limit, limit_of_doubt] = limits.map(Duration::from_nanos);
        for rank in found.failed {
            let silent = LibraryEvent::PeerSilent {
                rank: self.p2p.common.me,
                peer: rank,
                host: self.evidence.host_of(rank),
            };
            self.p2p.common.report(silent);
            self.evidence.note(
                rank,
                if found.seen.contains(&rank) {
                    FailureEvidence::SeenByOther(limit_of_doubt)
                } else {
                    FailureEvidence::Silent(limit)
                },
            );
        }
    }

    /// Notifies the other ranks that a process was seen to end. Other nodes cannot see the processes of this one.
    fn tell_of_death(&mut self, dead: WorldRank) {
        let Some(liveness) = &mut self.liveness else {
            return;
        };
        let others = self
            .p2p
            .common
            .peers
            .met()
            .filter(|rank| *rank != liveness.me);
        let others = others.filter(|rank| self.p2p.common.peers.down(*rank).is_none());
        liveness.asides.extend(others.map(|to| LivenessMessage {
            to,
            content: LivenessContent::Death(dead),
        }));
    }

    /// Returns the peers whose failure would leave something waiting forever. For wildcard receives these are all members of a
    /// communicator of at most `members_max` ranks.
    fn waited_for(&self, members_max: usize) -> BTreeSet<WorldRank> {
        let mut waited: BTreeSet<WorldRank> = self.p2p.common.peers.unacked().collect();
        let mut from_any_source = BTreeSet::new();
        self.p2p.common.ops.select(|slot| {
            let info = &slot.info;
            match &slot.state {
                OpState::Posted(_) if info.peer.is_none() => {
                    from_any_source.insert(info.ctx);
                }
                OpState::Posted(_) | OpState::Recalled(_) | OpState::Remote { .. } => {
                    waited.extend(info.peer);
                }
                OpState::Landing(landing) => {
                    waited.insert(landing.landed.source);
                }
                OpState::Following { landed, .. } | OpState::AwaitsPacking(landed) => {
                    waited.insert(landed.source);
                }
                life if life.is_sending() => waited.extend(info.peer),
                _ => {}
            }
            false
        });
        from_any_source.extend(self.recovery.followed());
        for ctx in from_any_source {
            self.add_members(ctx, members_max, &mut waited);
        }
        // Commands that wait for room at the driver wait for the peer, if commands to a failed peer do not end.
        waited.extend(self.p2p.common.peers.to_flush());
        waited.extend(
            self.p2p
                .common
                .commands
                .iter()
                .filter_map(OneSidedCommand::peer),
        );
        waited.extend(self.windows.waited_for());
        waited.extend(self.programs.awaited_still());
        waited.extend(self.programs.awaited_listed());
        waited.extend(self.recovery.awaited_agreed());
        waited.retain(|&rank| self.p2p.common.peers.down(rank).is_none());
        waited
    }

    fn add_members(&self, ctx: u32, members_max: usize, waited: &mut BTreeSet<WorldRank>) {
        let Some(group) = self.p2p.common.members(ctx) else {
            return;
        };
        if group.len() <= members_max {
            waited.extend(group.members());
        } else {
            waited.extend(
                self.p2p
                    .common
                    .peers
                    .met()
                    .filter(|&rank| group.contains(rank)),
            );
        }
    }
}
