//! The end of a runtime: completes all sends, receives no more, and releases the driver.
//!
//! [`Runtime::close`](crate::Runtime::close) and the drop of a runtime call it: [`Engine::begin_close`], then turns until
//! [`Engine::is_closed`], then [`Engine::release_driver`].

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
};

use ripstop_fabric::driver::{ArmResult, Driver, NullDriver};

use super::{Engine, EngineCore};
use crate::{
    error::ErrorKind,
    ops::{ErasedBuffer, OpState},
};

impl Engine {
    /// Stops receiving: posted receives fail, and unexpected messages are refused.
    ///
    /// Collectives in flight are completed first, because peers wait for this rank's part in them. So are promised collectives,
    /// which have their place in the order and have not begun yet.
    pub(crate) fn begin_close(&mut self) {
        let core = &mut self.core;
        core.p2p.common.leaving = core.programs.any() || core.p2p.common.promised > 0;
        if core.p2p.common.leaving {
            core.collectives().unhost_all();
            return self.flush();
        }
        core.p2p.common.closing = true;
        core.recovery().end_recovery();
        core.p2p.stop_receiving();
        self.flush();
    }

    /// Returns true if every send was received or refused, and every answer has left.
    pub(crate) fn is_closed(&mut self) -> bool {
        if self.core.p2p.common.leaving {
            self.begin_close();
        }
        let busy = |life: &OpState| {
            life.is_sending()
                || matches!(
                    life,
                    OpState::Landing(_) | OpState::Recalled(_) | OpState::Remote { .. }
                )
        };
        !self.core.p2p.common.leaving
            && self.core.has_sent_all()
            && self.core.p2p.common.commands.is_empty()
            && self.core.p2p.common.ops.select(|slot| busy(&slot.state)).is_empty()
            // A driver that still holds messages back is not ready to sleep.
            && self.driver.arm() == ArmResult::Ready
    }
}

/// The driver of a closed runtime, kept while this rank can still store to memory of its peers.
pub(super) struct RetiredDriver {
    driver: Option<Box<dyn Driver>>,
    /// True if the runtime was dropped in a panic, so that peers must see this rank as failed.
    failed: bool,
}

impl Drop for RetiredDriver {
    fn drop(&mut self) {
        let driver = self.driver.take();
        if self.failed && !thread::panicking() {
            // A driver reports a failure if it is dropped while a panic unwinds. `resume_unwind` starts one without calling the
            // panic hook.
            let _unwound = catch_unwind(AssertUnwindSafe(move || {
                let _dropped = driver;
                resume_unwind(Box::new(()));
            }));
        }
    }
}

impl Engine {
    /// Releases the retired driver of a closed runtime once no epoch or lock of this rank can store to memory of peers.
    pub(super) fn release_retired_driver(&mut self) {
        if self.retired_driver.is_some() && !self.core.windows().may_store() {
            let kept = self.retired_driver.take();
            self.core
                .p2p
                .common
                .garbage
                .extend(kept.map(ErasedBuffer::of));
        }
    }

    /// Drops the driver, so that peers see that this rank has left. Operations started afterwards fail with `Closed`.
    pub(crate) fn release_driver(&mut self) {
        if self.core.p2p.common.ended {
            return; // already closed, in a panic that now drops the runtime
        }
        self.core.p2p.common.closing = true;
        self.turn_invitations_down();
        self.core.p2p.common.ended = true;
        let sentence = "the runtime has been closed: allocate before that";
        let closed = io::Error::new(io::ErrorKind::NotConnected, sentence);
        let null = NullDriver::in_place_of(&mut *self.driver, &closed);
        let driver = std::mem::replace(&mut self.driver, Box::new(null));
        self.core.windows.end_counters();
        // A peer that sees the driver end takes its memory back, and open epochs of this rank may still store to that memory.
        if self.core.windows().may_store() {
            self.retired_driver = Some(Box::new(RetiredDriver {
                driver: Some(driver),
                failed: thread::panicking(),
            }));
        } else {
            drop(driver);
        }
        let keeps = self.retired_driver.is_some();
        let failed = keeps && thread::panicking();
        let Self { core, .. } = self;
        for op in core.p2p.common.ops.select(|slot| !slot.state.is_done()) {
            let slot = core.p2p.common.ops.live(op);
            // The buffer is lent to a retired driver. No turn will recall it any more, so only the end of the driver would make
            // the buffer safe to return: leak it.
            if slot.lent && keeps {
                core.p2p.common.wakers.extend(slot.leak());
                continue;
            }
            slot.lent = false;
            match slot.state {
                // In a panic this rank does not wait for the peer, which may still write to this buffer. So it is leaked.
                OpState::Landing(landing)
                    if (landing.sender_moves_rest || landing.is_split) && !landing.fragments =>
                {
                    core.p2p.common.wakers.extend(slot.leak());
                }
                // Peers do not know yet that this rank has failed, and can still get bytes from the buffer.
                life if failed && life.is_offered() => core.p2p.common.wakers.extend(slot.leak()),
                OpState::Running => {} // `end_programs` ends it, unless a peer may still write to its memory
                OpState::Posted(_) => {
                    core.p2p.unpost(op, ErrorKind::Closed);
                }
                OpState::Remote { .. } => core.windows().remote_over(op, Err(ErrorKind::Closed)),
                _ => core.p2p.common.complete_op(op, Err(ErrorKind::Closed)),
            }
        }
        core.end_collectives();
        core.windows().end_windows();
        core.recovery().end_recovery();
    }
}

impl EngineCore {
    /// Ends the programs after the driver is closed.
    pub(super) fn end_collectives(&mut self) {
        self.collectives().end_programs();
        self.stop_stall_probe();
    }

    /// Returns true if all messages to peers have left, and were received where a driver may lose them.
    pub(crate) fn has_sent_all(&self) -> bool {
        !self.p2p.common.peers.any_to_flush() && self.p2p.common.peers.unacked().next().is_none()
    }

    /// Announces a collective that has its place in the order and begins later. Returns true if the close of the runtime will
    /// wait for it, and false if the runtime is already closing.
    pub(crate) fn promise(&mut self) -> bool {
        let common = &mut self.p2p.common;
        let may = !(common.closing || common.leaving) && common.promised < u32::MAX;
        common.promised += u32::from(may);
        may
    }

    /// Ends a promise: the collective has begun, or never will.
    pub(crate) fn end_promise(&mut self) {
        self.p2p.common.promised -= 1;
    }
}
