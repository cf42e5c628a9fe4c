//! Collectives that are not programs: creating a communicator or a window, in which ranks agree by plain messages.
//!
//! For a rank that runs a program in the same place, they are another program that does not match.

use std::collections::BTreeSet;

use super::{CollectivePart, CollectiveProgress};
use crate::{
    engine::commons::collective_registry::{CollectiveFailure, CreationCall, is_before},
    error::ErrorKind,
    group::WorldRank,
    proto::collective_id::CollectiveId,
    proto::{
        matching::RecvPattern,
        wire::{ProgramHeader, WireKind},
    },
};

impl CollectiveProgress<'_> {
    /// Ends a creation. Returns an error if a member called another collective before, so that the creation does not count.
    pub(crate) fn end_creation(&mut self, id: CollectiveId) -> Option<ErrorKind> {
        let group = self.part.p2p.common.members(id.context)?.clone();
        self.check_for_strays(id, &group)
    }
}

impl CollectivePart<'_> {
    /// Fails a creation: notifies all members, and allows no later collective on the communicator.
    pub(in crate::engine) fn abort_creation(&mut self, id: CollectiveId, kind: &ErrorKind) {
        let why = CollectiveFailure::of(kind, self.p2p.common.me);
        self.revoke(id, why);
        self.p2p.common.calls.revocations.was_told(id); // by the error it returns
    }

    /// Returns the error of a creation on a communicator with no more collectives, as for any other call.
    pub(crate) fn why_revoked(&mut self, id: CollectiveId) -> Option<ErrorKind> {
        let kind = self.p2p.common.calls.revocations.kind(id)?;
        Some(self.p2p.common.calls.revocations.report(id, kind))
    }

    /// Checks a creation that is about to begin. Returns an error if there are no more collectives, or if another rank has asked
    /// for a program in this place.
    pub(crate) fn check_creation(&mut self, id: CollectiveId) -> Option<ErrorKind> {
        if let Some(kind) = self.p2p.common.calls.revocations.kind(id) {
            return Some(kind);
        }
        if !self.p2p.common.calls.any_asked() {
            return None;
        }
        let stranger = self.p2p.common.calls.mismatched_asker(id, NO_PROGRAM)?;
        self.p2p.common.calls.forget_asked(id);
        let is_member = self
            .p2p
            .common
            .members(id.context)
            .is_some_and(|group| group.contains(stranger));
        is_member.then(|| self.mismatch_with(stranger))
    }

    /// Records that this rank begins a creation.
    pub(crate) fn record_creation(&mut self, call: CreationCall) {
        self.p2p.common.calls.begin_creation(call);
    }

    /// Forgets a creation that has ended.
    pub(in crate::engine) fn end_creating(&mut self, id: CollectiveId) {
        let agreeing = &mut self.p2p.common.calls.agreeing;
        if let Some(at) = agreeing.iter().position(|its| its.id == id) {
            agreeing.swap_remove(at);
            self.p2p
                .common
                .calls
                .makers_asked
                .retain(|(_, its)| *its != id);
        }
    }

    /// Returns true if this rank is creating a communicator or a window.
    pub(super) fn is_making(&self) -> bool {
        !self.p2p.common.calls.agreeing.is_empty()
    }

    /// Asks the peers whose messages this rank needs in order to create a communicator or a window. If `once`, skips peers that
    /// were asked before. Returns true if any peer was asked.
    pub(super) fn probe_creators(&mut self, once: bool) -> bool {
        if !self.is_making() {
            return false;
        }
        let calls = &self.p2p.common.calls;
        let awaited = self.p2p.tables().posted_patterns().filter_map(|want| {
            let id = CollectiveId::new(want.ctx, want.tag?);
            calls.is_creating(id).then_some((want.source?, id))
        });
        let awaited: BTreeSet<(WorldRank, CollectiveId)> = awaited.collect();
        let mut asked = false;
        for (rank, id) in awaited {
            let before = &mut self.p2p.common.calls.makers_asked;
            let is_new = !before.contains(&(rank, id));
            if is_new {
                before.push((rank, id));
            }
            if (is_new || !once) && self.p2p.common.peers.down(rank).is_none() {
                self.p2p.common.peers.control(
                    rank,
                    &ProgramHeader::new(WireKind::StallProbe, id, NO_PROGRAM),
                );
                asked = true;
            }
        }
        asked
    }

    /// Handles the answer of a peer that has completed, or will never begin, a collective in which this rank creates a
    /// communicator or a window. All its messages have come, so the receives that still wait for it fail.
    pub(super) fn handle_creator_answer(&mut self, rank: WorldRank, header: &ProgramHeader) {
        let id = header.collective_id();
        if !self.p2p.common.calls.is_creating(id) {
            return;
        }
        let never_comes = |want: &RecvPattern| {
            want.ctx == id.context && want.tag == Some(id.sequence) && want.source == Some(rank)
        };
        let kind = match header.sig {
            NO_PROGRAM => ErrorKind::PeerFinished {
                rank: rank.0 as usize,
            },
            _ => self.mismatch_with(rank),
        };
        self.p2p.fail_posted(never_comes, |_| kind.clone());
    }

    /// Returns true if this rank is still in a creation in an earlier place. Then it must not ask about later places, because
    /// peers there would conclude that it had passed the earlier one.
    pub(crate) fn agrees_before(&self, id: CollectiveId) -> bool {
        let agreeing = &self.p2p.common.calls.agreeing;
        agreeing
            .iter()
            .map(|its| its.id)
            .any(|its| its.context == id.context && is_before(its.sequence, id.sequence))
    }

    /// Returns the first place in which this rank agrees in vain, after a peer was found to wait for it in the program `id`. It
    /// is the same place, or an earlier one where this rank waits for that peer, whose messages come in order.
    pub(super) fn agrees_in_vain(&self, id: CollectiveId, rank: WorldRank) -> Option<u32> {
        self.p2p
            .common
            .members(id.context)
            .filter(|group| group.contains(rank))?;
        let of_ctx = self
            .p2p
            .tables()
            .posted_patterns()
            .filter(|want| want.ctx == id.context);
        let in_vain = of_ctx.filter_map(|want| {
            // A receive of a program may well wait: the peer may be in both programs, and have nothing to send in the earlier
            // one.
            let its = want.tag.filter(|tag| {
                self.p2p
                    .common
                    .calls
                    .running(CollectiveId {
                        sequence: *tag,
                        ..id
                    })
                    .is_none()
            })?;
            let earlier = is_before(its, id.sequence) && want.source == Some(rank);
            (its == id.sequence || earlier).then_some(its)
        });
        in_vain.reduce(|first, its| if is_before(its, first) { its } else { first })
    }
}

/// Signature of a collective that is not a program.
pub(super) const NO_PROGRAM: u64 = 0;
