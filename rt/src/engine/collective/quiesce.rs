//! Returns the memory of a failed collective to the application only when no peer puts to it any more.
//!
//! In programs that run by task lists, peers put with keys that they were given before. When such a program is canceled its
//! keys are withdrawn, and a put that comes later would be refused. That would break the connection of two living ranks. So
//! each rank first tells the peers from which it expects puts that the collective has failed, and asks them to answer when they
//! put no more. A peer answers as soon as its own commands have ended, so every request is answered. A rank that is down has no
//! connection left.

use std::collections::BTreeSet;

use super::{CollectivePart, ProgramTable};
use super::{offloaded::OffloadedRun, run::ProgramRun};
use crate::{
    engine::commons::collective_registry::CollectiveFailure,
    group::WorldRank,
    offload::StepAction,
    proto::collective_id::CollectiveId,
    proto::wire::{ProgramHeader, WireKind},
};

/// State of the exchange between the ranks of a failed program before its memory is released.
#[derive(Debug, Default)]
pub(super) struct QuiesceState {
    /// Peers that may still put here; `None` before they were asked.
    awaited: Option<BTreeSet<WorldRank>>,
    /// Peers that want to be notified when this rank puts no more.
    askers: BTreeSet<WorldRank>,
}

impl QuiesceState {
    /// Returns true if no peer puts here any more.
    pub(super) fn is_there(&self) -> bool {
        self.awaited.as_ref().is_some_and(BTreeSet::is_empty)
    }

    /// Records that a peer puts no more. Returns true if that was waited for.
    fn end(&mut self, rank: WorldRank) -> bool {
        self.awaited
            .as_mut()
            .is_some_and(|awaited| awaited.remove(&rank))
    }
}

impl ProgramTable {
    /// Returns the world ranks for which failed programs wait.
    pub(in crate::engine) fn awaited_still(&self) -> impl Iterator<Item = WorldRank> {
        let runs = self.runs.iter().flatten();
        let stills = runs.filter_map(|run| run.execution.task_lists()?.quiesce.awaited.as_ref());
        stills.flatten().copied()
    }
}

impl CollectivePart<'_> {
    /// Asks each peer that may put to a failed program, once, to answer when it puts no more. The program's task lists are
    /// canceled already.
    pub(super) fn request_quiesce(&mut self, run: &mut ProgramRun) {
        let asks = |offloaded: &OffloadedRun| offloaded.quiesce.awaited.is_none();
        if !run.execution.task_lists().is_some_and(asks) {
            return;
        }
        let (id, sig, me) = (run.id(), run.sig(), self.p2p.common.me);
        let from = |action: &StepAction| match *action {
            // A program that was refused may name ranks that do not exist.
            StepAction::Recv { from, .. } => run.group().world_of(from),
            _ => None,
        };
        let peers = run.program.actions().filter_map(from);
        let may_put = |rank: &WorldRank| *rank != me && self.p2p.common.peers.down(*rank).is_none();
        let peers: BTreeSet<WorldRank> = peers.filter(may_put).collect();
        let (Some(offloaded), Some(kind)) = (run.execution.task_lists_mut(), &run.failed) else {
            return;
        };
        let revoked = self.p2p.common.calls.revocations.first(id.context);
        let (first, why) =
            revoked.unwrap_or_else(|| (id.sequence, CollectiveFailure::of(kind, me)));
        for &rank in &peers {
            // The failure is sent first, so that the peer stops putting before it handles the request to quiesce.
            if self.p2p.common.is_void(id.context) {
                self.p2p.common.tell_revoked(rank, id.context);
            } else {
                self.p2p.common.peers.control(
                    rank,
                    &why.header(CollectiveId {
                        sequence: first,
                        ..id
                    }),
                );
            }
            self.p2p
                .common
                .peers
                .control(rank, &ProgramHeader::new(WireKind::Quiesce, id, sig));
        }
        self.p2p.common.awaited_peers_changed |= !peers.is_empty();
        offloaded.quiesce.awaited = Some(peers);
    }

    /// Handles the request of a peer whose collective has failed, and which waits until this rank puts no more.
    pub(in crate::engine) fn handle_quiesce(&mut self, rank: WorldRank, header: &ProgramHeader) {
        let id = header.collective_id();
        let running = self.p2p.common.calls.running(id);
        let run = running.and_then(|running| self.programs.get(running.run));
        let run = run.filter(|run| run.group().contains(rank));
        if let Some(run) = run
            && let Some(offloaded) = run.execution.task_lists_mut()
            && !(run.failed.is_some() && offloaded.puts_no_more())
        {
            offloaded.quiesce.askers.insert(rank);
            return;
        }
        self.p2p.common.peers.control(
            rank,
            &ProgramHeader::new(WireKind::Quiesced, id, header.sig),
        );
    }

    /// Handles the answer of a peer that puts no more for a collective.
    pub(in crate::engine) fn handle_quiesced(&mut self, rank: WorldRank, header: &ProgramHeader) {
        let Some(running) = self.p2p.common.calls.running(header.collective_id()) else {
            return;
        };
        self.note_still(running.run, rank);
    }

    /// Stops waiting for a rank that is down, because its puts come no more.
    pub(super) fn quiesce_without(&mut self, rank: WorldRank) {
        for index in self.programs.indices() {
            self.note_still(index, rank);
        }
    }

    fn note_still(&mut self, index: u32, rank: WorldRank) {
        let run = self.programs.get(index);
        let offloaded = run.and_then(|run| run.execution.task_lists_mut());
        if offloaded.is_some_and(|offloaded| offloaded.quiesce.end(rank)) {
            self.p2p.common.mark_dirty(index);
        }
    }

    /// Notifies the peers that have asked, because this rank puts no more for the program.
    pub(super) fn report_quiesced(
        &mut self,
        id: CollectiveId,
        sig: u64,
        offloaded: &mut OffloadedRun,
    ) {
        let mut askers = std::mem::take(&mut offloaded.quiesce.askers);
        askers.retain(|rank| self.p2p.common.peers.down(*rank).is_none());
        for rank in askers {
            self.p2p
                .common
                .peers
                .control(rank, &ProgramHeader::new(WireKind::Quiesced, id, sig));
        }
    }
}
