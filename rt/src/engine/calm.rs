//! The short way of short messages while nothing unusual is known.
//!
//! Every call must ask whether a rank is down, a communicator is revoked, a command waits for room, a thread sleeps, and more.
//! The answer changes only while something else uses the engine. So it is kept as one state, which every use of the engine ends
//! that is not the short way itself ([`Engine::disturb`]).
//!
//! While the state lasts, one receive can be *expected*: it is posted, but only its slot knows of it. Nothing can come between
//! it and a message that this rank sends to itself, because whatever looks at posted receives first posts it like any other: by
//! ending the calm, or, for another receive that is posted, by [`post_calmly`](PointToPoint::post_calmly). It is the only one,
//! so it is the earliest.
//!
//! The receive of a channel for a short message keeps its buffer in its future, and its message comes to a *place*: the room of
//! its slot. So the call and the end of such a receive move no buffer, and everything else treats it like any other receive.
//!
//! A poll of the expected receive looks for its message alone, where the driver can do so, and makes turns in between without
//! ending the calm. A short message of another rank is then copied straight into the receive, by the driver if it can recognize
//! the message by its header (rt/src/engine/point_to_point/expected_recv.rs). So are messages with one header into receives that
//! were posted for exactly these (message_runs.rs), while no receive is expected. Everything else that a turn finds ends the calm
//! first.

use std::panic::Location;

use ripstop_fabric::driver::{AwaitedLook, AwaitedMessage};

use super::{
    Engine, PointToPoint,
    commons::CalmState,
    point_to_point::{awaited_header, complete_awaited},
};
use crate::{
    buffer::{RecvBuf, Wire},
    ops::{ChannelInfo, ChannelNumber, EXPECTED_SLOT, OpInfo, OpTicket, PLACE_LEN, PlacedBytes},
    proto::{matching::MessageEnvelope, wire::OpId},
};

/// Length in bytes from which on a message takes the ordinary way: copying it takes longer than all checks.
const SHORT: usize = 1024;

/// Looks for the message of the expected receive between two turns. Over shared memory they last for about half a microsecond,
/// so that an answer to a short message hardly comes in the middle of a turn. Messages of other ranks wait for so long.
const LOOKS: u32 = 64;

/// Messages found by such looks after which a turn is due, because others wait for turns.
const TURN_EVERY: u32 = 32;

impl Engine {
    /// Records that the engine may change, so that the next call looks again.
    #[inline]
    pub(crate) fn disturb(&mut self) {
        self.core.p2p.disturb();
    }

    /// Returns true if this is the expected receive. Then its message has not come.
    #[inline]
    pub(crate) fn is_expected(&self, op: OpId) -> bool {
        self.core.p2p.common.calm == CalmState::Expecting && op.slot == EXPECTED_SLOT
    }

    /// Looks repeatedly for the message of the expected receive, and for nothing else, if the driver can do so. Returns true if
    /// it has come. Otherwise a turn is due.
    ///
    /// A message that the first look finds may have come long ago, and so may others. A turn is due then, too, unless the caller
    /// `has_turned` just before.
    #[inline]
    pub(crate) fn look_for_expected(&mut self, has_turned: bool) -> bool {
        let vain = if self.looks < TURN_EVERY {
            self.find_expected()
        } else {
            None
        };
        let is_enough = vain.is_some_and(|vain| vain > 0 || has_turned);
        self.looks = if is_enough { self.looks + 1 } else { 0 };
        is_enough
    }

    /// Returns after how many looks in vain the message of the expected receive has come.
    #[inline(always)]
    fn find_expected(&mut self) -> Option<u32> {
        if self.core.p2p.common.calm != CalmState::Expecting {
            return None;
        }
        debug_assert!(!self.watch.is_guarded(), "a sleeping thread ends the calm");
        let from = self.core.p2p.common.ops.expected().info.peer?;
        let driver = self.driver.peer_turns()?;
        let header = awaited_header(&mut self.core.p2p, from);
        for vain in 0..LOOKS {
            if let Some(header) = header {
                let slot = self.core.p2p.common.ops.expected();
                let body = slot.range(slot.area.len);
                match driver.take_awaited(from, AwaitedMessage { header, body }) {
                    AwaitedLook::Nothing => continue,
                    AwaitedLook::Copied(base) => {
                        complete_awaited(&mut self.core.p2p, from, base);
                        return self.note_found(vain);
                    }
                    AwaitedLook::Other => {}
                }
            }
            if driver.progress_from(from, &mut self.core)? > 0 {
                return self.note_found(vain);
            }
        }
        None
    }

    /// Returns the number of looks in vain before a message came, unless that has ended the calm: it may have left something to
    /// post.
    #[inline(always)]
    fn note_found(&mut self, vain: u32) -> Option<u32> {
        self.core.p2p.common.note_events(1);
        (self.core.p2p.common.calm == CalmState::Calm).then_some(vain)
    }

    /// Returns true if a message can be sent without any check of what is rare, and without anything to do afterwards.
    #[inline(always)]
    fn is_calm(&mut self) -> bool {
        self.core.p2p.common.calm != CalmState::Disturbed || self.look_for_calm()
    }

    #[inline(never)]
    fn look_for_calm(&mut self) -> bool {
        let is_calm = self.core.p2p.is_calm() && !self.watch.is_asleep();
        #[cfg(test)]
        let is_calm = is_calm && !calm_switch::is_off();
        if is_calm {
            self.core.p2p.common.calm = CalmState::Calm;
        }
        is_calm
    }

    /// Returns true if a receive can be expected now: nothing unusual is known, it would be the only one, and no message waits.
    #[inline(always)]
    fn may_expect(&mut self) -> bool {
        // The slot of a receive that is expected already is not free, so the table of operations says no. What was posted before
        // comes first, because a receive in a window of them need not look for calm.
        let p2p = &mut self.core.p2p;
        p2p.tables().is_idle() && p2p.common.ops.may_expect() && self.is_calm()
    }

    /// Creates a receive of a channel with a place of `len` bytes for its message, if it can be expected. Its own buffer stays
    /// elsewhere.
    #[inline(always)]
    pub(crate) fn expect_in_place(
        &mut self,
        channel: &ChannelInfo,
        at: &'static Location<'static>,
        len: usize,
    ) -> Option<OpTicket<PlacedBytes>> {
        if len > PLACE_LEN || !self.may_expect() {
            return None;
        }
        let common = &mut self.core.p2p.common;
        let ticket = common.ops.hold_expected_place(channel, at, len)?;
        common.calm = CalmState::Expecting;
        Some(ticket)
    }

    /// Creates a receive and posts it, if nothing unusual is known and no message waits. Otherwise returns the receive to be
    /// posted.
    #[inline(always)]
    pub(crate) fn recv_calmly<B: RecvBuf>(
        &mut self,
        info: &OpInfo,
        at: &'static Location<'static>,
        buf: B,
    ) -> (OpTicket<B>, bool) {
        let may_expect = self.may_expect();
        let p2p = &mut self.core.p2p;
        if may_expect {
            let ticket = p2p.common.ops.hold_expected(info, at, buf);
            p2p.common.calm = CalmState::Expecting; // only now, because the buffer's own code may panic
            return (ticket, true);
        }
        let ticket = p2p.common.ops.hold_recv(OpInfo { at, ..*info }, buf);
        let is_posted = self.is_calm() && self.core.p2p.post_calmly(ticket.op);
        (ticket, is_posted)
    }

    /// Does the same as [`recv_calmly`](Self::recv_calmly) with a receive whose message decides the size of the vector.
    #[inline(always)]
    pub(crate) fn recv_growing_calmly<T: Wire>(
        &mut self,
        info: OpInfo,
    ) -> (OpTicket<Vec<T>>, bool) {
        let may_expect = self.may_expect();
        let common = &mut self.core.p2p.common;
        if may_expect {
            common.calm = CalmState::Expecting;
            return (common.ops.hold_expected_growing(info), true);
        }
        let ticket = common.ops.hold_growing(info);
        let is_posted = self.is_calm() && self.core.p2p.post_calmly(ticket.op);
        (ticket, is_posted)
    }

    /// Gives a short message of this rank to itself to the expected receive, if there is one that takes it. Otherwise changes
    /// nothing that matters, and returns false.
    #[inline(always)]
    pub(crate) fn send_expected(&mut self, info: &OpInfo, bytes: &[u8]) -> bool {
        let p2p = &mut self.core.p2p;
        let is_sent = p2p.common.calm == CalmState::Expecting
            && info.peer == Some(p2p.common.me)
            && !info.synchronous
            && bytes.len() <= SHORT
            && p2p.deliver_expected(info, bytes);
        if is_sent {
            self.note_sent(info);
        }
        is_sent
    }

    /// Gives a message of a channel of this rank to itself, with this envelope, to the expected receive, if that is of the same
    /// channel and takes it. Otherwise changes nothing that matters, and returns false.
    #[inline(always)]
    pub(crate) fn send_to_place(
        &mut self,
        channel: ChannelNumber,
        own: &MessageEnvelope,
        bytes: &[u8],
    ) -> bool {
        let p2p = &mut self.core.p2p;
        let is_sent =
            p2p.common.calm == CalmState::Expecting && p2p.deliver_to_place(channel, own, bytes);
        if is_sent {
            p2p.common.ops.note_sent(own.source);
        }
        is_sent
    }

    /// Sends a short message, if nothing unusual is known, the message can leave at once, and the expected receive does not
    /// [take](Self::send_expected) it. Otherwise changes nothing that matters, and returns false.
    #[inline(always)]
    pub(crate) fn send_calmly(&mut self, info: &OpInfo, bytes: &[u8]) -> bool {
        let Some(to) = info.peer else { return false };
        if info.synchronous | (bytes.len() > SHORT) {
            return false;
        }
        let is_sent = if to == self.core.p2p.common.me {
            let p2p = &mut self.core.p2p;
            match p2p.common.calm {
                CalmState::Calm => p2p.deliver_to_self(info, bytes),
                // A look for calm would be in vain: what was posted before is no expected receive.
                CalmState::Expecting | CalmState::Disturbed => false,
            }
        } else {
            self.is_calm() && self.transmitter().send_eager(info.eager(), to, bytes)
        };
        if is_sent {
            self.note_sent(info);
        }
        is_sent
    }
}

impl PointToPoint {
    /// Records that the engine may change, so that the next call looks again.
    #[inline(always)]
    pub(in crate::engine) fn disturb(&mut self) {
        if self.common.calm != CalmState::Disturbed {
            end_calm(self);
        }
    }

    fn is_calm(&self) -> bool {
        let common = &self.common;
        let is_at_work = !(common.ended | common.closing | common.leaving);
        let nothing_waits = common.commands.is_empty()
            && common.commands_in_flight == 0
            && !common.peers.any_to_flush()
            && !common.has_program_events()
            && !common.has_deferred()
            && common.exposed.is_settled();
        let none_lost = common.peers.downs() == 0 && !common.unusual && !common.any_revoked();
        is_at_work && nothing_waits && none_lost && self.is_plain()
    }

    /// Posts a receive behind those that wait, and keeps the calm. Returns false, and posts nothing, if a message waits.
    #[inline(never)]
    fn post_calmly(&mut self, op: OpId) -> bool {
        let is_alone = self.common.calm != CalmState::Expecting || post_expected(self);
        is_alone && self.wait_for_message(op)
    }
}

/// Posts the expected receive, and keeps the calm. Returns false, and leaves it expected, if a message waits. The end of the calm
/// then posts it.
#[inline(never)]
fn post_expected(p2p: &mut PointToPoint) -> bool {
    let expected = p2p.common.ops.give_up_expected();
    let is_posted = p2p.wait_for_message(expected);
    if is_posted {
        p2p.common.calm = CalmState::Calm;
    }
    is_posted
}

/// Ends the calm, and posts the expected receive.
#[inline(never)]
fn end_calm(p2p: &mut PointToPoint) {
    let is_expecting = p2p.common.calm == CalmState::Expecting;
    p2p.common.calm = CalmState::Disturbed;
    if is_expecting {
        let op = p2p.common.ops.give_up_expected();
        p2p.recv(op);
    }
}

/// Lets a test compare the short way with the ordinary one.
#[cfg(test)]
pub(crate) mod calm_switch {
    use std::cell::Cell;

    thread_local! {
        static IS_OFF: Cell<bool> = const { Cell::new(false) };
    }

    /// Turns the short way off or on, for calls of this thread.
    pub(crate) fn set_off(is_off: bool) {
        IS_OFF.set(is_off);
    }

    pub(super) fn is_off() -> bool {
        IS_OFF.get()
    }

    /// Returns the first seed of random programs: `SEED` of the environment, or one of the clock. Prints it.
    #[expect(clippy::print_stdout, reason = "a failure is repeated by its seed")]
    pub(crate) fn first_seed() -> u64 {
        let of_clock = || {
            std::time::UNIX_EPOCH
                .elapsed()
                .map_or(1, |age| age.as_secs())
        };
        let seed = std::env::var("SEED").map_or_else(
            |_| of_clock(),
            |seed| seed.parse().expect("SEED is a number"),
        );
        println!("SEED={seed}");
        seed
    }
}
