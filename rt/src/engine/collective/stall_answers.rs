//! Questions and answers of the [stall probe](crate::engine::stall_probe) about collectives.

use std::collections::BTreeSet;

use super::CollectivePart;
use super::{DeferredPeerEvent, creation::NO_PROGRAM, run::StepExecutor};
use crate::{
    engine::{
        commons::collective_registry::CollectiveFailure, point_to_point::message::StoredBody,
    },
    group::WorldRank,
    ops::OpState,
    proto::collective_id::CollectiveId,
    proto::{
        matching::RecvPattern,
        wire::{ProgramHeader, WireKind},
    },
};

impl CollectivePart<'_> {
    /// Asks the peers for which creations and programs wait. If `once`, asks only on behalf of those for which it has not asked
    /// before. Returns true if any peer was asked, or a program has failed because of the answers.
    pub(in crate::engine) fn ask_programs(&mut self, once: bool) -> bool {
        let mut asked = self.probe_creators(once);
        for index in self.programs.indices() {
            let id = self.programs.get(index).map(|run| run.id());
            if id.is_some_and(|id| self.agrees_before(id)) {
                continue;
            }
            let peers = self.awaited_by(index);
            let Some(run) = self.programs.get(index).filter(|run| run.failed.is_none()) else {
                continue;
            };
            let header = ProgramHeader::new(WireKind::StallProbe, run.id(), run.sig());
            if std::mem::replace(&mut run.asked, true) {
                if let Some(stranger) = self.futile_peer(index) {
                    self.fail_mismatched(index, stranger);
                    asked = true;
                    continue;
                }
                asked |= self.accept_completions(index);
                if once {
                    continue;
                }
            }
            asked |= !peers.is_empty();
            for rank in peers {
                if self.p2p.common.peers.down(rank).is_none() {
                    self.p2p.common.peers.control(rank, &header);
                }
            }
        }
        asked
    }

    /// Asks a peer that has no place for this rank's puts what it runs instead. Returns true if it can answer; a peer that has
    /// failed the collective says why. If it does not answer for long, it counts as a rank that called another collective.
    pub(super) fn probe_refusing_peer(
        &mut self,
        peer: WorldRank,
        id: CollectiveId,
        sig: u64,
    ) -> bool {
        let may_ask = self.p2p.hears_in_order() && self.p2p.common.peers.down(peer).is_none();
        if may_ask && !self.agrees_before(id) {
            self.p2p
                .common
                .peers
                .control(peer, &ProgramHeader::new(WireKind::StallProbe, id, sig));
        }
        may_ask
    }

    /// Returns the peers from which the program still lacks a message, or which have not begun to receive what it sends.
    fn awaited_by(&mut self, index: u32) -> BTreeSet<WorldRank> {
        let run = self.programs.runs[index as usize].as_deref();
        if let Some(run) = run.filter(|run| run.execution.task_lists().is_some()) {
            return self.doubted_by(run).into_iter().collect();
        }
        let flights = self.programs.get(index).map(|run| run.flights());
        let awaited = |by| match by {
            StepExecutor::Wait(peer) => Some(peer),
            StepExecutor::Op(op) => {
                let slot = self.p2p.common.ops.live(op);
                let waits = matches!(slot.state, OpState::Posted(_) | OpState::Offered);
                slot.info.peer.filter(|_| waits)
            }
            StepExecutor::Job => None,
        };
        flights.into_iter().flatten().filter_map(awaited).collect()
    }

    /// Answers the question of a peer that waits for this rank in a collective.
    pub(in crate::engine) fn answer_stall_probe(
        &mut self,
        rank: WorldRank,
        header: &ProgramHeader,
    ) {
        let id = header.collective_id();
        let calls = &self.p2p.common.calls;
        if calls.revocations.kind(id).is_some() {
            return self.p2p.common.tell_revoked(rank, id.context);
        }
        if header.sig == NO_PROGRAM && calls.is_creating(id) {
            return; // this rank waits in the same agreement
        }
        match (calls.running(id), calls.sig_of_over(id)) {
            (Some(running), _) if running.sig == header.sig => {} // this rank waits in the same collective, for another one
            (Some(running), _) if self.is_member(running.run, rank) => {
                self.fail_mismatched(running.run, rank);
            }
            (Some(_), _) => {}
            (None, Some(sig)) => {
                self.p2p
                    .common
                    .peers
                    .control(rank, &ProgramHeader::new(WireKind::ProgramDone, id, sig));
            }
            (None, None) => match self.agrees_in_vain(id, rank) {
                Some(first) if header.sig != NO_PROGRAM => {
                    let me = self.p2p.common.me;
                    let why = CollectiveFailure::mismatch(rank, me);
                    self.revoke(
                        CollectiveId {
                            sequence: first,
                            ..id
                        },
                        why,
                    );
                }
                // This rank does not know any more whether it was the same collective. A peer that waits for a message does
                // not need to know.
                _ if self.never_begins(id, rank) => {
                    self.p2p.common.peers.control(
                        rank,
                        &ProgramHeader::new(WireKind::ProgramDone, id, header.sig),
                    );
                }
                _ => self.p2p.common.calls.was_asked(id, rank, header.sig),
            },
        }
    }

    /// Returns true if this rank is past a collective that is not in progress, or begins none on its communicator any more.
    ///
    /// A peer that asked too early asks again. A rank that drops a communicator because it fails will be reported as failed. A
    /// rank that has finished will be reported, too, unless it cannot exit before its own sends are received.
    fn never_begins(&mut self, id: CollectiveId, rank: WorldRank) -> bool {
        let stays = self.p2p.common.leaving || self.p2p.common.is_kept_by_sends();
        let is_past = stays || self.p2p.common.calls.is_long_over(id) && !self.is_offered(id, rank);
        self.p2p.common.has_left(id.context & !1) || self.p2p.common.promised == 0 && is_past
    }

    /// Returns true if this peer has offered a message for a collective that only its future knows of.
    fn is_offered(&mut self, id: CollectiveId, rank: WorldRank) -> bool {
        let want = RecvPattern {
            ctx: id.context,
            source: Some(rank),
            tag: Some(id.sequence),
        };
        let found = self.p2p.stored_for(want);
        found.is_some_and(|body| matches!(body, StoredBody::Offered(_)))
    }

    /// Handles a peer's answer that it has completed a collective, this one or another one. It has sent all its messages then, so
    /// those that it left in collective slots are looked for first.
    pub(in crate::engine) fn note_program_done(&mut self, rank: WorldRank, header: &ProgramHeader) {
        if self.programs.has_slot_waiters() {
            self.programs
                .deferred_events
                .push(DeferredPeerEvent::Over(rank, *header));
        } else {
            self.is_through(rank, header);
        }
    }

    pub(in crate::engine) fn is_through(&mut self, rank: WorldRank, header: &ProgramHeader) {
        let Some(running) = self.p2p.common.calls.running(header.collective_id()) else {
            return self.handle_creator_answer(rank, header);
        };
        if running.sig != header.sig {
            if self.is_member(running.run, rank) {
                self.fail_mismatched(running.run, rank);
            }
        } else if let Some(offloaded) = self.programs.offloaded(running.run) {
            offloaded.said_through.insert(rank);
        } else if self.awaited_by(running.run).contains(&rank) {
            self.fail_mismatched(running.run, rank);
        }
    }

    fn is_member(&mut self, run: u32, rank: WorldRank) -> bool {
        let run = self.programs.get(run);
        run.is_some_and(|run| run.group().contains(rank))
    }
}
