//! The slot of one operation, with access to its memory.
#![expect(
    unsafe_code,
    reason = "follows the area of the held buffer, which it keeps alive"
)]

use std::{io, mem::MaybeUninit, ops::Range, panic::Location, sync::Arc, task::Waker};

use ripstop_fabric::driver::{LocalRange, PayloadView};

use super::{
    channel_info::{ChannelInfo, ChannelNumber},
    erased_buffer::{BufferArea, ErasedBuffer, ROOM_LEN},
    op_state::{MessageStatus, OpFailure, OpInfo, OpState},
};
use crate::{
    buffer::{self, RecvBuf, TypeSig},
    error::ErrorKind,
    group::WorldRank,
    proto::matching::MessageEnvelope,
    reactor::TimerId,
};

/// Marks a message of a program. It has no buffer and no future of its own, and its program is notified when it is complete.
pub(super) const IN_PROGRAM: u8 = 1;

/// Marks an operation whose beginning is in the rank's trace, which also records the end.
pub(crate) const TRACED: u8 = 2;

/// Marks a receive that takes a message in a packing block without its bytes, as a probe does.
pub(super) const READS_IN_PLACE: u8 = 4;

/// Marks a send whose elements are being packed, so that its bytes must not be read yet.
pub(super) const BEING_PACKED: u8 = 8;

/// Marks a send whose elements are in a packing block, also while they are being packed.
pub(super) const IN_BLOCK: u8 = 16;

/// The slot of one operation.
pub(crate) struct OpSlot {
    generation: u32,
    held: ErasedBuffer,
    pub(crate) area: BufferArea,
    pub(crate) state: OpState,
    /// Reason of the failure, or of the withdrawal.
    why: Option<Box<ErrorKind>>,
    /// True if the future was dropped, so that the rest of the operation belongs to the engine.
    pub(crate) orphan: bool,
    /// Zero for most operations. [`IN_PROGRAM`] or [`TRACED`] if another part is notified when the operation is complete. A trace
    /// has the messages of programs, too, and learns of their ends when they are released. [`READS_IN_PLACE`] if the receive may
    /// complete without the bytes, [`BEING_PACKED`] while a send must not be read, [`IN_BLOCK`] if its receiver may read it
    /// without this rank.
    pub(crate) marks: u8,
    /// True while the buffer is lent to the driver for a message that may arrive. The driver may write to it at any
    /// moment, so no other code uses it meanwhile.
    pub(crate) lent: bool,
    pub(crate) waker: Option<Waker>,
    /// Timer of the time limit.
    pub(crate) timer: Option<TimerId>,
    pub(crate) info: OpInfo,
    /// The channel of a receive in place that nothing else knew of before its message came. In a free slot, the channel for
    /// whose receives the slot is prepared: `info` describes them, and `held` has the place.
    channel: ChannelNumber,
    /// Rank of the channel's peer in its communicator.
    channel_peer: usize,
}

impl OpSlot {
    pub(super) fn free(generation: u32) -> Self {
        let info = OpInfo {
            ctx: 0,
            peer: None,
            tag: None,
            sig: 0,
            elem: 1,
            synchronous: false,
            probe: false,
            at: Location::caller(),
        };
        Self {
            generation,
            held: ErasedBuffer::empty(),
            area: BufferArea::NONE,
            state: OpState::Free,
            why: None,
            orphan: false,
            marks: 0,
            lent: false,
            waker: None,
            timer: None,
            info,
            channel: ChannelNumber::NONE,
            channel_peer: 0,
        }
    }

    /// Begins an operation in this slot. Returns the slot's generation.
    #[inline(always)]
    pub(super) fn begin(
        &mut self,
        info: OpInfo,
        life: OpState,
        hold: impl FnOnce(&mut ErasedBuffer) -> BufferArea,
    ) -> u32 {
        self.state = life; // first, so that a panic of the buffer's own code leaves a slot that is never used again
        self.info = info; // before the buffer's own code, so that it is copied once
        self.area = hold(&mut self.held);
        self.orphan = false;
        self.marks = 0;
        debug_assert!(!self.lent, "a free slot has no buffer");
        self.generation
    }

    /// Begins a receive of a channel, whose message comes to the place of this slot. Returns the slot's generation, or
    /// `None` if the channel is to no rank.
    #[inline(always)]
    pub(super) fn begin_place(
        &mut self,
        channel: &ChannelInfo,
        at: &'static Location<'static>,
        len: usize,
    ) -> Option<u32> {
        assert!(len <= ROOM_LEN, "a place of {len} bytes");
        if self.channel != channel.number && !self.prepare_place(channel) {
            return None;
        }
        self.info.at = at;
        self.state = OpState::Expected;
        self.area.len = len;
        Some(self.generation)
    }

    /// Prepares a free slot for receives of this channel in its place. Does nothing, and returns false, for a channel to no rank.
    #[inline(never)]
    fn prepare_place(&mut self, channel: &ChannelInfo) -> bool {
        if channel.op.peer.is_none() {
            return false;
        }
        debug_assert!(!self.lent, "a free slot has no buffer");
        self.forget_channel();
        (self.orphan, self.marks) = (false, 0);
        self.info = channel.op;
        self.area = self.held.hold_place();
        (self.channel, self.channel_peer) = (channel.number, channel.peer);
        true
    }

    /// Returns the rank of the channel's peer in its communicator.
    #[inline(always)]
    pub(super) fn channel_peer(&self) -> usize {
        self.channel_peer
    }

    /// Makes room for an operation that is no receive in place. Must be called before [`begin`](Self::begin) on a slot that can
    /// have receives in place.
    #[inline(always)]
    pub(super) fn forget_channel(&mut self) {
        if self.has_channel() {
            self.held.leave_place();
            self.leave_channel();
        }
    }

    /// Makes a receive in place one like any other: its end looks at everything that may have happened to it.
    #[inline]
    pub(super) fn leave_channel(&mut self) {
        self.channel = ChannelNumber::NONE;
    }

    /// Returns true if this slot is prepared for receives of a channel. Then nothing else knew of its receive until the message
    /// came.
    #[inline(always)]
    pub(super) fn has_channel(&self) -> bool {
        self.channel != ChannelNumber::NONE
    }

    /// Returns true if this slot has a place for a message of this channel and length.
    #[inline(always)]
    pub(crate) fn is_place_for(&self, channel: ChannelNumber, bytes: usize) -> bool {
        self.channel == channel && bytes <= self.area.len
    }

    /// Frees the slot. From now on, ids of the operation are stale.
    #[inline]
    pub(super) fn vacate(&mut self) {
        self.end_generation();
        self.leave_channel();
        if self.why.is_some() || self.waker.is_some() {
            (self.why, self.waker) = (None, None);
        }
    }

    /// Copies the message of a complete receive from the place of its slot to the receive's own buffer, and frees the slot, which
    /// stays prepared for the next receive of the channel. Returns the number of elements.
    #[inline(always)]
    pub(super) fn leave_place<B: RecvBuf>(&mut self, bytes: usize, buf: &mut B) -> usize {
        debug_assert!(
            self.why.is_none() && self.waker.is_none() && self.timer.is_none(),
            "only a receive that is known to others gets these"
        );
        debug_assert!(self.marks == 0 && !self.orphan && !self.lent);
        let len = buffer::receive(buf, self.content(bytes)); // first, so that a panic of the buffer's own code loses no message
        self.end_generation();
        len
    }

    #[inline(always)]
    fn end_generation(&mut self) {
        self.state = OpState::Free;
        self.generation = self.generation.wrapping_add(1);
    }

    /// Moves the buffer out, if it was not taken.
    pub(super) fn take_erased(&mut self) -> Option<ErasedBuffer> {
        assert!(
            !self.lent,
            "a buffer that the driver may write to stays with its operation"
        );
        self.area = BufferArea::NONE;
        self.held.take_erased()
    }

    #[inline]
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    #[inline]
    pub(super) fn is_live(&self) -> bool {
        !matches!(self.state, OpState::Free)
    }

    /// Completes the operation. The caller must wake the returned waker without a lock.
    #[must_use]
    #[inline]
    pub(crate) fn land(&mut self, landed: MessageStatus) -> Option<Waker> {
        self.state = OpState::Done(landed);
        self.waker.take()
    }

    /// Completes a receive that no future has waited for yet.
    #[inline(always)]
    pub(crate) fn land_unawaited(&mut self, landed: MessageStatus) {
        debug_assert!(
            self.waker.is_none(),
            "a poll that ends without the message posts the receive"
        );
        self.state = OpState::Done(landed);
    }

    /// Fails the operation. The caller must wake the returned waker without a lock.
    #[must_use]
    pub(crate) fn fail(&mut self, why: ErrorKind) -> Option<Waker> {
        self.state = OpState::Failed;
        self.why = Some(Box::new(why));
        self.waker.take()
    }

    /// Begins to withdraw the offer of a send. `why` is its error if the receiver agrees.
    pub(crate) fn withdraw(&mut self, why: ErrorKind) {
        self.state = OpState::Withdrawing;
        self.why = Some(Box::new(why));
    }

    /// Sets the reason why the operation will fail, unless it already has one.
    pub(crate) fn blame(&mut self, why: ErrorKind) {
        self.why.get_or_insert_with(|| Box::new(why));
    }

    /// Returns true if the operation on a window is carried out by messages to `rank`.
    pub(crate) fn is_by_message(&self, rank: WorldRank) -> bool {
        let by_message = matches!(
            self.state,
            OpState::Remote {
                by_message: true,
                ..
            }
        );
        by_message && self.info.peer == Some(rank)
    }

    /// Takes the reason given to [`withdraw`](Self::withdraw), or forgets it if the withdrawal no longer matters.
    pub(crate) fn take_why(&mut self) -> Option<ErrorKind> {
        self.why.take().map(|why| *why)
    }

    #[cold]
    pub(super) fn failure(&mut self) -> Box<OpFailure> {
        let kind = self.take_why().expect("what failed says why");
        Box::new(OpFailure {
            kind,
            info: self.info,
        })
    }

    /// Checks whether a message of this many bytes fits. Allocates the room if the message decides the size of the
    /// buffer.
    #[inline(always)]
    fn room_for(&mut self, bytes: usize) -> RoomCheck {
        if bytes <= self.area.len {
            return RoomCheck::Enough;
        }
        if !self.held.grows() {
            return RoomCheck::Short;
        }
        match self.held.grow(bytes) {
            Some(area) => {
                self.area = area;
                RoomCheck::Enough
            }
            None => RoomCheck::NoMemory,
        }
    }

    /// Checks the type and length of a message against this receive. Returns the length in bytes.
    #[inline(always)]
    pub(crate) fn admit(
        &mut self,
        envelope: &MessageEnvelope,
        sig: u64,
        bytes: u64,
    ) -> Result<usize, ErrorKind> {
        let admitted = self.length_of(sig, bytes);
        if admitted.is_err() {
            self.note_refused(envelope);
        }
        admitted
    }

    /// Makes the error name the sender and the tag of the message that this receive cannot take. The receive itself may have
    /// named neither.
    #[cold]
    fn note_refused(&mut self, envelope: &MessageEnvelope) {
        self.info.peer = Some(envelope.source);
        self.info.tag = Some(envelope.tag);
    }

    #[inline(always)]
    fn length_of(&mut self, sig: u64, bytes: u64) -> Result<usize, ErrorKind> {
        if sig != self.info.sig || !self.is_whole(bytes) {
            let expected = TypeSig(self.info.sig);
            return Err(ErrorKind::TypeMismatch {
                sent: TypeSig(sig),
                expected,
            });
        }
        let Ok(len) = usize::try_from(bytes) else {
            return Err(self.too_long(bytes));
        };
        match self.room_for(len) {
            RoomCheck::Enough => Ok(len),
            RoomCheck::Short => Err(self.too_long(bytes)),
            RoomCheck::NoMemory => Err(out_of_memory()),
        }
    }

    /// Returns true if so many bytes are whole elements.
    #[inline(always)]
    fn is_whole(&self, bytes: u64) -> bool {
        let elem = self.info.elem as u64;
        // Avoids the division for powers of two, which are nearly all element sizes.
        if elem & elem.wrapping_sub(1) == 0 {
            bytes & elem.wrapping_sub(1) == 0
        } else {
            bytes.is_multiple_of(elem)
        }
    }

    /// Returns true if [`admit`](Self::admit) returns no error.
    #[inline(always)]
    pub(crate) fn admits(&mut self, sig: u64, bytes: usize) -> bool {
        sig == self.info.sig
            && self.is_whole(bytes as u64)
            && self.room_for(bytes) == RoomCheck::Enough
    }

    /// Returns true if this receive admits a message of this rank to itself, which is whole elements of the sender's type.
    #[inline(always)]
    pub(crate) fn admits_own(&mut self, sent: &OpInfo, bytes: usize) -> bool {
        sent.sig == self.info.sig
            && sent.elem == self.info.elem
            && self.room_for(bytes) == RoomCheck::Enough
    }

    /// Returns true if a message of this type and length may be copied to the buffer at once and is all that the operation waits
    /// for. A buffer that grows has room for it then.
    #[inline(always)]
    pub(crate) fn takes(&mut self, sig: u64, bytes: usize) -> bool {
        let marks = u8::from(self.info.probe) | u8::from(self.lent) | self.marks;
        marks == 0 && self.admits(sig, bytes)
    }

    /// Like [`takes`](Self::takes), for a caller that completes the operation as any other, so that it may be traced.
    #[inline]
    pub(crate) fn takes_later(&mut self, sig: u64, bytes: usize) -> bool {
        !(self.info.probe | self.lent | self.is_in_program()) && self.admits(sig, bytes)
    }

    /// Returns true for a receive that takes a message in a packing block without its bytes.
    #[inline]
    pub(crate) const fn reads_in_place(&self) -> bool {
        self.marks & READS_IN_PLACE != 0
    }

    /// Returns true unless this is a send whose elements are being packed.
    #[inline]
    pub(crate) const fn is_packed(&self) -> bool {
        self.marks & BEING_PACKED == 0
    }

    /// Returns true for a send whose offer keeps this rank busy, as its receiver needs this rank. A receiver that reads a packing
    /// block does not.
    #[inline]
    pub(crate) const fn is_busy_offer(&self) -> bool {
        self.marks & IN_BLOCK == 0 && self.state.is_offered()
    }

    /// Records that the elements of a send are packed.
    pub(crate) fn note_packed(&mut self) {
        self.marks &= !BEING_PACKED;
    }

    /// Returns true for a message of a program.
    #[inline]
    pub(crate) const fn is_in_program(&self) -> bool {
        self.marks & IN_PROGRAM != 0
    }

    #[cold]
    fn too_long(&self, bytes: u64) -> ErrorKind {
        let elem = self.info.elem.max(1);
        let sent = usize::try_from(bytes).unwrap_or(usize::MAX) / elem;
        ErrorKind::Truncated {
            sent,
            room: self.area.len / elem,
        }
    }

    /// Copies a whole message to the start of the buffer.
    ///
    /// # Panics
    /// Panics if the buffer is shorter.
    #[inline(always)]
    pub(crate) fn fill_start(&mut self, body: PayloadView<'_>) {
        debug_assert!(!self.lent, "only a posted receive is lent");
        assert!(body.len() <= self.area.len, "a message that is too long");
        // SAFETY: these bytes are inside the area of the buffer that this slot holds, which is not lent: the driver knows of no
        // expected receive. Any bytes may be overwritten, initialized or not.
        let into = unsafe {
            std::slice::from_raw_parts_mut(
                self.area.start.as_ptr().cast::<MaybeUninit<u8>>(),
                body.len(),
            )
        };
        body.copy_to(into);
    }

    /// Copies a piece of a message into the buffer, if it is not already there. Returns false if the piece is outside
    /// the buffer.
    #[inline]
    pub(crate) fn fill(&mut self, offset: usize, body: PayloadView<'_>) -> bool {
        let inside = offset <= self.area.len && body.len() <= self.area.len - offset;
        if inside {
            // SAFETY: the place is inside the area of the buffer that this slot holds, which is not lent.
            let start = unsafe { self.area.start.add(offset) };
            if body.is_at(start) {
                return true; // an adapter has already placed it
            }
            // SAFETY: as above. Any bytes may be overwritten, initialized or not.
            let into = unsafe {
                std::slice::from_raw_parts_mut(start.as_ptr().cast::<MaybeUninit<u8>>(), body.len())
            };
            body.copy_to(into);
        }
        inside
    }

    /// Returns true if the buffer may have uninitialized room.
    pub(super) fn lacks_values(&self) -> bool {
        self.held.is_bare()
    }

    /// Zeroes uninitialized room, because a peer that puts there reports only that it has put.
    pub(crate) fn blank(&mut self, room: Range<usize>) {
        let Range { start, end } = room;
        assert!(
            start <= end && end <= self.area.len,
            "{start}..{end} of a buffer of {} bytes",
            self.area.len
        );
        if self.lacks_values() {
            // SAFETY: the place is inside the area of the buffer that this slot holds.
            let first = unsafe { self.area.start.add(start) };
            // SAFETY: as above, and not yet lent.
            unsafe { first.write_bytes(0, end - start) };
        }
    }

    /// Returns the first `len` bytes of the buffer.
    #[inline]
    pub(crate) fn content(&self, len: usize) -> PayloadView<'_> {
        assert!(
            len <= self.area.len,
            "{len} bytes of a buffer of {}",
            self.area.len
        );
        // SAFETY: the place is inside the area of the buffer that this slot holds.
        unsafe { PayloadView::from_raw(self.area.start, len) }
    }

    /// Returns a part of the bytes to send.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(
            offset <= self.area.len && len <= self.area.len - offset,
            "{offset}+{len} of {}",
            self.area.len
        );
        // SAFETY: the range is inside the elements of the send buffer that this slot holds. Elements are initialized, and no code
        // writes a send buffer.
        let start = unsafe { self.area.start.add(offset) };
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Returns the first `len` bytes for the driver. The slot must not be released before the driver has completed.
    #[inline]
    pub(crate) fn range(&self, len: usize) -> LocalRange {
        assert!(
            len <= self.area.len,
            "{len} bytes of a buffer of {}",
            self.area.len
        );
        // SAFETY: the engine keeps a slot, and so its buffer, in place until the driver's completion (see `OpState`).
        unsafe { LocalRange::new(self.area.start, len) }
    }

    /// Leaks the buffer, because a peer may still write to it. The caller must wake the returned waker without a lock.
    #[must_use]
    pub(crate) fn leak(&mut self) -> Option<Waker> {
        self.lent = false;
        std::mem::forget(self.take_erased());
        self.state = OpState::Lost;
        self.waker.take()
    }

    /// Takes the buffer of a complete operation.
    ///
    /// # Safety
    /// `B` is the type of the buffer.
    #[inline(always)]
    pub(crate) unsafe fn take<B: Send + 'static>(&mut self) -> B {
        assert!(
            self.state.is_done() && !self.lent,
            "a buffer comes home when its operation is complete"
        );
        // SAFETY: the caller's promise, and no code accesses the area of a complete operation.
        unsafe { self.held.take() }
    }
}

/// Result of [`OpSlot::room_for`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoomCheck {
    Enough,
    Short,
    NoMemory,
}

#[cold]
fn out_of_memory() -> ErrorKind {
    ErrorKind::Transport(Arc::new(io::ErrorKind::OutOfMemory.into()))
}
