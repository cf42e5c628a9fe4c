//! Short receives of programs that need no operation: an arriving message is copied to its place in the program, and that is all.
//!
//! A receive that *waits directly* is known only to its program. This is used if the driver keeps messages in order and reports
//! failures, and if all messages of the program are short. It ends when anything unusual happens: a peer goes down, a message is
//! offered, or one has another length or signature. Then the program's receives are posted like all others, and the usual code
//! decides what to do. A program never has receives of both kinds at the same time, which keeps them in order.

use ripstop_fabric::driver::PayloadView;

use super::CollectivePart;
use super::run::{ProgramRun, StepExecutor};
use crate::{
    engine::point_to_point::StoredMatch,
    group::{CommRank, WorldRank},
    proto::{
        matching::{MessageEnvelope, RecvPattern},
        wire::OpId,
    },
};

impl CollectivePart<'_> {
    /// Returns true if receives of new programs may wait directly.
    pub(super) fn may_wait_directly(&self) -> bool {
        !self.p2p.common.watches && self.p2p.hears_in_order() && self.p2p.common.peers.downs() == 0
    }

    /// Begins a receive of a program: takes a stored message, or waits.
    pub(super) fn begin_recv(
        &mut self,
        index: u32,
        run: &mut ProgramRun,
        at: usize,
        from: CommRank,
    ) {
        if run.waits_directly {
            let peer = run.world_of(from);
            if !self.p2p.common.calls.early.may_have(run.id()) {
                return run.flies(at, StepExecutor::Wait(peer));
            }
            match self.take_stored(run, at, peer) {
                StoredMatch::Taken => return run.over(at),
                StoredMatch::Nothing => return run.flies(at, StepExecutor::Wait(peer)),
                StoredMatch::Unfit => {}
            }
        }
        let info = run.info_for_rank(from);
        let op = self.lend(index, run, at, info);
        self.p2p.recv(op);
    }

    /// Takes the earliest message stored for a receive, if the receive can take it as it is.
    fn take_stored(&mut self, run: &ProgramRun, at: usize, peer: WorldRank) -> StoredMatch {
        let id = run.id();
        let want = RecvPattern {
            ctx: id.context,
            source: Some(peer),
            tag: Some(id.sequence),
        };
        self.p2p
            .take_stored_if(want, |sig, body| sig == run.sig() && run.fill(at, &[body]))
    }

    /// Gives a message of a collective to the receive that waits for it directly. Returns false if there is none, or if the
    /// receive has been posted because the message does not fit.
    pub(in crate::engine) fn take_directly(
        &mut self,
        envelope: MessageEnvelope,
        sig: u64,
        body: PayloadView<'_>,
    ) -> bool {
        let Some(running) = self.p2p.common.calls.running(envelope.collective_id()) else {
            return false;
        };
        let Some(run) = self.programs.get(running.run) else {
            return false;
        };
        let Some(at) = run.waits_for_peer(envelope.source) else {
            return false;
        };
        if sig != running.sig || !run.fill(at, &[body]) {
            self.post_waits(running.run);
            return false;
        }
        run.landed(at);
        run.over(at);
        if run.is_watched() {
            self.report_block_event(running.run, at);
        }
        self.p2p.common.mark_dirty(running.run);
        self.p2p.pay_back(envelope.source, body.len());
        true
    }

    /// Posts the direct receives of a collective for which a message was offered, because an offer needs an operation.
    pub(in crate::engine) fn post_waits_for(&mut self, envelope: MessageEnvelope) {
        if let Some(running) = self.p2p.common.calls.running(envelope.collective_id()) {
            self.post_waits(running.run);
        }
    }

    /// Posts all direct receives, because something unusual has happened.
    pub(in crate::engine) fn post_all_waits(&mut self) {
        if self.programs.any() {
            for index in self.programs.indices() {
                self.post_waits(index);
            }
        }
    }

    fn post_waits(&mut self, index: u32) {
        let place = self.programs.runs.get_mut(index as usize);
        let Some(mut run) = place.and_then(Option::take) else {
            return;
        };
        run.waits_directly = false;
        let posted: Vec<OpId> = run
            .take_waits()
            .into_iter()
            .map(|(at, from)| {
                let info = run.info_for_peer(from);
                self.lend(index, &mut run, at, info)
            })
            .collect();
        self.programs.runs[index as usize] = Some(run);
        posted.into_iter().for_each(|op| self.p2p.recv(op));
    }
}
