//! The end of a runtime: sends complete, nothing is received any more.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
};

use ripstop_fabric::driver::{Armed, Driver};

use super::{
    Core, Engine,
    gone::Gone,
    message::{Offered, Parcel},
};
use crate::{
    error::ErrorKind,
    ops::{Held, Life},
    proto::wire::{self, Kind},
};

impl Engine {
    /// From now on nothing is received; what waits to be received is turned away.
    ///
    /// Programs under way are carried to their ends first: peers wait for what this rank does in them. So are those that have
    /// their places and are still to begin.
    pub(crate) fn begin_close(&mut self) {
        let core = &mut self.core;
        core.leaving = core.programs.any() || core.promised > 0;
        if core.leaving {
            core.unhost_all();
            return self.flush();
        }
        core.closing = true;
        core.end_recovery();
        for op in core.matching.drain_posted(|_| true) {
            core.land(op, Err(ErrorKind::Closed));
        }
        for index in core.matching.drain_unexpected(|_, _| true) {
            let mut message = core.messages.take(index);
            core.discharge(&mut message);
            let bytes = message.body.parcel().bytes();
            core.note_unreceived(message.envelope, message.sig, bytes);
            core.turn_away(message.envelope.source, &message.body.parcel());
        }
        core.refuse_held();
        core.unpark_any();
        self.flush();
    }

    /// Whether every send has been received or refused, and every answer has left.
    pub(crate) fn is_closed(&mut self) -> bool {
        if self.core.leaving {
            self.begin_close();
        }
        let busy = |life: &Life| {
            life.is_sending()
                || matches!(
                    life,
                    Life::Landing(_) | Life::Recalled(_) | Life::Remote { .. }
                )
        };
        !self.core.leaving
            && self.core.has_said_all()
            && self.core.wanted.is_empty()
            && self.core.ops.which(|slot| busy(&slot.life)).is_empty()
            // A driver may hold messages back: then it is not ready to sleep.
            && self.driver.arm() == Armed::Ready
    }
}

/// The driver of a runtime that is closed.
pub(super) struct Kept {
    driver: Option<Box<dyn Driver>>,
    /// The runtime went in a panic, and peers are to hear so.
    failed: bool,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let driver = self.driver.take();
        if self.failed && !thread::panicking() {
            // A driver knows by the panic that unwinds when it is dropped. No hook is called for this one.
            let _unwound = catch_unwind(AssertUnwindSafe(move || {
                let _dropped = driver;
                resume_unwind(Box::new(()));
            }));
        }
    }
}

impl Engine {
    /// Nothing of ours stores to memory of others any more: then the driver of a runtime that is closed goes.
    pub(super) fn let_kept_go(&mut self) {
        if self.kept.is_some() && !self.core.may_store() {
            let kept = self.kept.take();
            self.core.garbage.extend(kept.map(Held::of));
        }
    }

    /// Lets go of the driver: peers see that this rank has left. What is still called afterwards ends in `Closed`.
    pub(crate) fn shut(&mut self) {
        if self.core.ended {
            return; // closed in a panic that then drops the runtime
        }
        self.core.closing = true;
        self.turn_invitations_down();
        self.core.ended = true;
        let gone = Gone(self.driver.caps().clone());
        let driver = std::mem::replace(&mut self.driver, Box::new(gone));
        self.core.windows.end_ledgers();
        // Peers that see it go take memory back that epochs of ours may still store to.
        if self.core.may_store() {
            self.kept = Some(Box::new(Kept {
                driver: Some(driver),
                failed: thread::panicking(),
            }));
        } else {
            drop(driver);
        }
        let keeps = self.kept.is_some();
        let failed = keeps && thread::panicking();
        let Self { core, .. } = self;
        for op in core.ops.which(|slot| !slot.life.is_done()) {
            let slot = core.ops.live(op);
            // Nobody asks for it any more, and only the driver's end is as good as its word.
            if slot.lent && keeps {
                core.wakers.extend(slot.leak());
                continue;
            }
            slot.lent = false;
            match slot.life {
                // In a panic we do not wait for the peer, which may still write to this buffer: nobody gets it back.
                Life::Landing(landing)
                    if (landing.invited || landing.shared) && !landing.fragments =>
                {
                    core.wakers.extend(slot.leak());
                }
                // Peers who can still get it do not know that this rank has failed.
                life if failed && life.is_offered() => core.wakers.extend(slot.leak()),
                Life::Running => {} // ended below, unless somebody may still write to its memory
                Life::Posted(posted) => {
                    core.matching.unpost(posted);
                    core.land(op, Err(ErrorKind::Closed));
                }
                Life::Remote { .. } => core.remote_over(op, Err(ErrorKind::Closed)),
                _ => core.land(op, Err(ErrorKind::Closed)),
            }
        }
        core.end_programs();
        core.end_windows();
        core.end_recovery();
    }
}

impl Core {
    /// Returns true if all messages to peers have left, and were received where a driver may lose them.
    pub(crate) fn has_said_all(&self) -> bool {
        !self.peers.any_marked() && self.peers.unacked().next().is_none()
    }

    /// A collective has its place, and begins later. Whether close waits for it: not where it is under way.
    pub(crate) fn promise(&mut self) -> bool {
        let may = !(self.closing || self.leaving);
        self.promised += usize::from(may);
        may
    }

    /// Offers that are in a probe's hands: their senders may be whom we wait for to go.
    fn refuse_held(&mut self) {
        for index in self.messages.offers(|_| true) {
            let message = self.messages.get(index);
            let source = message.envelope.source;
            if let Parcel::Offered(Offered { sender, .. }) = message.body.parcel() {
                self.tell(source, Kind::Taken, sender, wire::REFUSED);
            }
        }
    }

    /// A message that nobody will receive: its sender is told, or gets its credits back.
    pub(super) fn turn_away(&mut self, source: u32, parcel: &Parcel<'_>) {
        if let Some(bytes) = parcel.uninvited() {
            self.pay_back(source, bytes);
        }
        if let Parcel::Offered(offered) = parcel {
            self.leave(source);
            self.tell(source, Kind::Taken, offered.sender, wire::REFUSED);
        }
    }
}
