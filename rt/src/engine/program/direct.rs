//! Short receives of programs without operations: what comes is copied to where the program wants it, and that is all.
//!
//! A receive that *waits directly* is known to its program only. So it is for drivers that keep messages in order and say who has
//! died, for programs all of whose messages are short, and for as long as nothing is unusual: a peer that goes, an offer, a
//! message of another length or signature. Then the program's receives are posted like all others, and what is to be done is
//! decided where it always is. The receives of a program are never of both kinds, which keeps them in order.

use ripstop_fabric::driver::Payload;

use super::run::{By, Run};
use crate::{
    engine::{Core, message::Parcel},
    proto::{
        matching::{Envelope, Want},
        wire::OpId,
    },
};

impl Core {
    /// Whether receives of new programs may wait directly.
    pub(super) fn may_wait_directly(&self) -> bool {
        !self.watches && self.hears_in_order() && self.peers.downs() == 0
    }

    /// Whether all that a peer says comes in its order.
    pub(super) fn hears_in_order(&self) -> bool {
        self.peers.reliable && !self.seeker.is_active()
    }

    /// A receive of a program begins: it takes what is there, or waits.
    pub(super) fn begin_recv(&mut self, index: u32, run: &mut Run, at: usize, from: usize) {
        if run.waits_directly {
            let peer = run.world_of(from);
            if !self.programs.calls.may_be_early(run.key()) {
                return run.flies(at, By::Wait(peer));
            }
            match self.take_stored(run, at, peer) {
                Stored::Taken => return run.over(at),
                Stored::Nothing => return run.flies(at, By::Wait(peer)),
                Stored::Unfit => {}
            }
        }
        let about = run.about(from);
        let op = self.lend(index, run, at, about);
        self.recv(op);
    }

    /// The earliest message that is stored for a receive, if the receive can take it as it is.
    fn take_stored(&mut self, run: &Run, at: usize, peer: u32) -> Stored {
        let (ctx, tag) = run.key();
        let want = Want {
            ctx,
            source: Some(peer),
            tag: Some(tag),
        };
        let Some(found) = self.matching.peek(want) else {
            return Stored::Nothing;
        };
        let message = self.messages.get(found.message);
        let bytes = match message.body.parcel() {
            Parcel::Bytes(body) if message.sig == run.sig() && run.fill(at, &[body]) => body.len(),
            _ => return Stored::Unfit,
        };
        self.matching.withdraw(found.at);
        self.was_early(found.envelope);
        let mut message = self.messages.take(found.message);
        self.discharge(&mut message);
        self.messages.recycle(message.body);
        self.pay_back(peer, bytes);
        Stored::Taken
    }

    /// A message of a collective goes to the receive that waits for it directly. `false`: there is none, from now on at least.
    pub(in crate::engine) fn take_directly(
        &mut self,
        envelope: Envelope,
        sig: u64,
        body: Payload<'_>,
    ) -> bool {
        let Some(running) = self.programs.calls.running((envelope.ctx, envelope.tag)) else {
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
            self.show_landed(running.run, at);
        }
        self.programs.stir(running.run);
        self.pay_back(envelope.source, body.len());
        true
    }

    /// An offer for a collective, which needs an operation.
    pub(in crate::engine) fn post_waits_for(&mut self, envelope: Envelope) {
        if let Some(running) = self.programs.calls.running((envelope.ctx, envelope.tag)) {
            self.post_waits(running.run);
        }
    }

    /// Something unusual comes: no receive waits directly any more.
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
                let about = run.about_peer(from);
                self.lend(index, &mut run, at, about)
            })
            .collect();
        self.programs.runs[index as usize] = Some(run);
        posted.into_iter().for_each(|op| self.recv(op));
    }
}

/// What there is for a receive that begins.
enum Stored {
    Taken,
    Nothing,
    /// Something else than what it can take.
    Unfit,
}
