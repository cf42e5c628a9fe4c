//! Operations in flight. Each owns its buffer until the operation no longer needs it.
//!
//! A buffer stays in place from `hold` to `take`, even if its slot moves, because each slot keeps it in an allocation of its own.
//! A future names its operation by slot and generation, so a forgotten future leaks a slot and nothing else.
#![expect(
    unsafe_code,
    reason = "follows the areas of held buffers, which it keeps alive"
)]

mod channel_info;
mod erased_buffer;
mod last_op;
#[cfg(all(test, loom))]
mod loom_models;
mod memory;
mod op_state;
mod slot;
#[cfg(all(test, not(loom)))]
mod tests;

use std::{cmp::Reverse, iter, marker::PhantomData, panic::Location, task::Waker};

use self::last_op::LastOp;
pub use self::memory::ErasedReducer;
use self::slot::{BEING_PACKED, IN_BLOCK, IN_PROGRAM, READS_IN_PLACE};
pub(crate) use self::{
    channel_info::{ChannelInfo, ChannelNumber},
    erased_buffer::{BufferArea, ErasedBuffer, PlacedBytes, ProgramBuffers},
    last_op::EndedOp,
    memory::{PanicPayload, RunMemory, StepWork},
    op_state::{
        InboundTransfer, MessageStatus, OpFailure, OpInfo, OpOutcome, OpState, PlacedMessage,
        ReservedMessage,
    },
    slot::{OpSlot, TRACED},
};
use crate::{
    buffer::{self, RecvBuf, SendBuf, Wire},
    group::WorldRank,
    proto::wire::OpId,
    reactor::Timers,
};

/// Number of slots allocated together.
const BLOCK: usize = 64;

/// Index of the slot of the expected receive. The slot with this index in the first block is never used.
pub(crate) const EXPECTED_SLOT: u32 = 0;

/// Length in bytes of the place of a slot: the longest message that a receive with a buffer of its own elsewhere can get.
pub(crate) const PLACE_LEN: usize = erased_buffer::ROOM_LEN;

/// All operations of one runtime.
pub(crate) struct OpTable {
    /// The slot of one receive at a time that only its slot knows of. It is in no block, so a short message finds it without a
    /// look-up.
    expected: OpSlot,
    blocks: Vec<Box<[OpSlot; BLOCK]>>,
    free: Vec<u32>,
    /// Generation of new slots, chosen such that an id of a released slot never becomes valid again.
    first_generation: u32,
    /// The operation of the application that ended last.
    last: LastOp,
}

/// The right to take the buffer of type `B` out of an operation. Each operation has one, held by its future.
pub(crate) struct OpTicket<B> {
    pub(crate) op: OpId,
    buf: PhantomData<fn() -> B>,
}

impl<B> OpTicket<B> {
    fn new(op: OpId) -> Self {
        Self {
            op,
            buf: PhantomData,
        }
    }
}

impl OpTable {
    /// Memory of one block of slots with their rooms, in bytes.
    pub(crate) const BLOCK_BYTES: usize = BLOCK * (size_of::<OpSlot>() + erased_buffer::ROOM_LEN);

    pub(crate) fn new() -> Self {
        Self {
            expected: OpSlot::free(0),
            blocks: Vec::new(),
            free: Vec::new(),
            first_generation: 0,
            last: LastOp::default(),
        }
    }

    /// Records that a message to this rank has left at its call, without an operation.
    #[inline(always)]
    pub(crate) fn note_sent(&mut self, to: WorldRank) {
        self.last = LastOp::sent(to);
    }

    /// Records that a collective without an operation has ended.
    pub(crate) fn note_collective(&mut self) {
        self.last = LastOp::default();
    }

    /// Returns the operation of the application that ended last, if it is known.
    pub(crate) fn last_ended(&self) -> EndedOp<'_> {
        self.last.ended(|index| {
            let slot = if index == EXPECTED_SLOT {
                &self.expected
            } else {
                let index = index as usize;
                &self.blocks.get(index / BLOCK)?[index % BLOCK]
            };
            // Another operation may be in the slot since.
            (!slot.is_live()).then_some(&slot.info)
        })
    }

    /// Returns the number of slots in blocks, and how many slots are in use. The expected receive takes the place of
    /// the first slot of the blocks, which is never used. Before there is a block, one of no slots may be in use.
    pub(crate) fn room(&self) -> (usize, usize) {
        let room = self.blocks.len() * BLOCK;
        let unused = self.free.len() + usize::from(room > 0);
        (room, room - unused + usize::from(self.expected.is_live()))
    }

    /// Releases the blocks behind the last operation. O(slots).
    #[cold]
    pub(crate) fn shrink(&mut self) {
        let is_free = |block: &[OpSlot; BLOCK]| block.iter().all(|slot| !slot.is_live());
        let used = self.blocks.iter().rposition(|block| !is_free(block));
        let kept = used.map_or(0, |last| last + 1);
        if kept == self.blocks.len() {
            return;
        }
        let gone = self.blocks[kept..].iter().flat_map(|block| block.iter());
        let generations = gone.map(OpSlot::generation);
        self.first_generation = generations.fold(self.first_generation, u32::max);
        self.blocks.truncate(kept);
        // The slot of the expected receive stays.
        self.last.forget_slots_from((kept * BLOCK).max(1));
        self.blocks.shrink_to_fit();
        self.free.retain(|&index| (index as usize) < kept * BLOCK);
        self.free.sort_unstable_by_key(|&index| Reverse(index)); // the first slots are reused first
        self.free.shrink_to_fit();
    }

    /// Returns the memory of all slots, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks.len() * Self::BLOCK_BYTES + self.free.capacity() * size_of::<u32>()
    }

    /// Creates a send that owns `buf`.
    pub(crate) fn hold_send<B: SendBuf>(&mut self, info: OpInfo, buf: B) -> OpTicket<B> {
        OpTicket::new(self.make(info, OpState::Queued, |held| held.hold_send(buf)))
    }

    /// Creates a send whose elements are packed into a packing block meanwhile. No byte of `buf` is read before
    /// [`OpSlot::note_packed`].
    pub(crate) fn hold_unpacked_send<B: SendBuf>(&mut self, info: OpInfo, buf: B) -> OpTicket<B> {
        let ticket = self.hold_send(info, buf);
        self.live(ticket.op).marks = BEING_PACKED | IN_BLOCK;
        ticket
    }

    /// Creates a receive that owns `buf` and fills it from its start.
    #[inline(always)]
    pub(crate) fn hold_recv<B: RecvBuf>(&mut self, info: OpInfo, buf: B) -> OpTicket<B> {
        OpTicket::new(self.make(info, OpState::Queued, |held| held.hold_recv(buf)))
    }

    /// Creates a receive that owns `buf`, and that takes a message in a packing block without its bytes.
    pub(crate) fn hold_in_place_recv<B: RecvBuf>(&mut self, info: OpInfo, buf: B) -> OpTicket<B> {
        let ticket = self.hold_recv(info, buf);
        self.live(ticket.op).marks = READS_IN_PLACE;
        ticket
    }

    /// Returns true if the slot of the expected receive is free.
    #[inline(always)]
    pub(crate) fn may_expect(&self) -> bool {
        !self.expected.is_live()
    }

    /// Creates the expected receive, as [`hold_recv`](Self::hold_recv) does another one. Its slot must be free.
    #[inline(always)]
    pub(crate) fn hold_expected<B: RecvBuf>(
        &mut self,
        info: &OpInfo,
        at: &'static Location<'static>,
        buf: B,
    ) -> OpTicket<B> {
        let slot = &mut self.expected;
        slot.forget_channel();
        let info = OpInfo { at, ..*info };
        let generation = slot.begin(info, OpState::Expected, |held| held.hold_recv(buf));
        OpTicket::new(OpId {
            slot: EXPECTED_SLOT,
            generation,
        })
    }

    /// Creates the expected receive, as [`hold_growing`](Self::hold_growing) does another one. Its slot must be free.
    #[inline(always)]
    pub(crate) fn hold_expected_growing<T: Wire>(&mut self, info: OpInfo) -> OpTicket<Vec<T>> {
        let slot = &mut self.expected;
        slot.forget_channel();
        let hold = |held: &mut ErasedBuffer| held.hold_growing(Vec::<T>::new());
        let generation = slot.begin(info, OpState::Expected, hold);
        OpTicket::new(OpId {
            slot: EXPECTED_SLOT,
            generation,
        })
    }

    /// Creates the expected receive of a channel with a place of `len` bytes for its message, instead of a buffer. Its slot must
    /// be free. Returns `None` if the channel is to no rank.
    #[inline(always)]
    pub(crate) fn hold_expected_place(
        &mut self,
        channel: &ChannelInfo,
        at: &'static Location<'static>,
        len: usize,
    ) -> Option<OpTicket<PlacedBytes>> {
        let generation = self.expected.begin_place(channel, at, len)?;
        Some(OpTicket::new(OpId {
            slot: EXPECTED_SLOT,
            generation,
        }))
    }

    /// Returns the slot of the expected receive.
    #[inline(always)]
    pub(crate) fn expected(&mut self) -> &mut OpSlot {
        &mut self.expected
    }

    /// Makes the expected receive one like any other, and returns its operation.
    pub(crate) fn give_up_expected(&mut self) -> OpId {
        self.expected.leave_channel();
        OpId {
            slot: EXPECTED_SLOT,
            generation: self.expected.generation(),
        }
    }

    /// Creates a receive whose message decides the size of the vector.
    pub(crate) fn hold_growing<T: Wire>(&mut self, info: OpInfo) -> OpTicket<Vec<T>> {
        OpTicket::new(self.make(info, OpState::Queued, |held| {
            held.hold_growing(Vec::<T>::new())
        }))
    }

    /// Stores the two buffers of a program, one to read, and one to read and fill. Also returns their areas.
    pub(crate) fn hold_pair<I: SendBuf, O: RecvBuf>(
        &mut self,
        info: OpInfo,
        pair: ProgramBuffers<I, O>,
    ) -> (OpTicket<(I, O)>, [BufferArea; 2]) {
        let mut areas = [BufferArea::NONE; 2];
        let op = self.make(info, OpState::Running, |held| {
            areas = held.hold_pair(pair);
            areas[1]
        });
        (OpTicket::new(op), areas)
    }

    /// Creates a put to a window, which owns the buffer that it reads.
    pub(crate) fn hold_put<B: SendBuf>(&mut self, info: OpInfo, buf: B) -> OpTicket<B> {
        OpTicket::new(self.make(info, OpState::REMOTE, |held| held.hold_send(buf)))
    }

    /// Creates a get from a window, or a fetching update, which owns the buffer that it fills.
    pub(crate) fn hold_get<B: RecvBuf>(&mut self, info: OpInfo, mut buf: B) -> OpTicket<B> {
        erased_buffer::blank(&mut buf);
        OpTicket::new(self.make(info, OpState::REMOTE, |held| held.hold_recv(buf)))
    }

    /// Creates a message of a program. Its memory belongs to the program, which keeps it until the message is complete
    /// and released: the scratch, or the `buffers` that the program holds.
    pub(crate) fn make_program_message(
        &mut self,
        info: OpInfo,
        area: BufferArea,
        buffers: OpId,
    ) -> OpId {
        let bare = self.live(buffers).lacks_values();
        let op = self.make(info, OpState::Queued, |held| held.borrow(area, bare));
        self.live(op).marks = IN_PROGRAM;
        op
    }

    /// Takes the outcome and the buffer of an operation, if it is complete.
    #[inline]
    pub(crate) fn take<B: Send + 'static>(
        &mut self,
        ticket: &OpTicket<B>,
        timers: &mut Timers,
    ) -> Option<(OpOutcome, B)> {
        let slot = self.live(ticket.op);
        if !slot.state.is_done() {
            assert!(
                !matches!(slot.state, OpState::Lost),
                "the runtime ended in a panic while a peer could use the buffer of this operation"
            );
            return None;
        }
        // SAFETY: the type of a ticket is the type of the buffer with which its operation was made.
        let buf = unsafe { slot.take::<B>() };
        let outcome = match slot.state {
            OpState::Done(landed) => Ok(landed),
            _ => Err(slot.failure()),
        };
        slot.vacate();
        if let Some(timer) = slot.timer.take() {
            timers.cancel(timer);
        }
        self.last = LastOp::of_slot(ticket.op.slot);
        self.free_again(ticket.op.slot);
        Some((outcome, buf))
    }

    /// Takes a receive that has its message and no time limit, with the message in its buffer.
    #[inline(always)]
    pub(crate) fn take_landed<B: RecvBuf>(
        &mut self,
        ticket: &OpTicket<B>,
    ) -> Option<(MessageStatus, B)> {
        let slot = self.slot(ticket.op.slot);
        let OpState::Done(landed) = slot.state else {
            return None;
        };
        let is_another = slot.generation() != ticket.op.generation;
        if is_another || landed.stored.is_some() || slot.timer.is_some() {
            return None;
        }
        // SAFETY: the type of a ticket is the type of the buffer with which its operation was made.
        let mut buf = unsafe { slot.take::<B>() };
        slot.vacate();
        self.last = LastOp::received(ticket.op.slot);
        self.free_again(ticket.op.slot);
        // SAFETY: the message was copied to the first `bytes` bytes of the room that the buffer had shown.
        unsafe { buf.set_filled(landed.bytes.checked_div(size_of::<B::Elem>()).unwrap_or(0)) };
        Some((landed, buf))
    }

    /// Takes a receive like [`take`](Self::take), and sets how much of its buffer was filled.
    #[inline]
    pub(crate) fn take_recv<B: RecvBuf>(
        &mut self,
        ticket: &OpTicket<B>,
        timers: &mut Timers,
    ) -> Option<(OpOutcome, B)> {
        if let Some((landed, buf)) = self.take_landed(ticket) {
            return Some((Ok(landed), buf));
        }
        let (outcome, mut buf) = self.take(ticket, timers)?;
        self.last = LastOp::received(ticket.op.slot);
        if let Ok(landed) = &outcome
            && landed.stored.is_none()
        {
            // SAFETY: the message was copied to the first `bytes` bytes of the room that the buffer had shown.
            unsafe { buf.set_filled(landed.bytes.checked_div(size_of::<B::Elem>()).unwrap_or(0)) };
        }
        Some((outcome, buf))
    }

    /// Takes a receive that has got its message while it was the expected one, from the place of its slot. Copies the message to
    /// the receive's own buffer.
    #[inline(always)]
    pub(crate) fn take_landed_place<B: RecvBuf>(
        &mut self,
        ticket: &OpTicket<PlacedBytes>,
        buf: &mut B,
    ) -> Option<PlacedMessage> {
        let slot = &mut self.expected;
        let OpState::Done(landed) = slot.state else {
            return None;
        };
        if slot.generation() != ticket.op.generation || !slot.has_channel() {
            return None;
        }
        let len = slot.leave_place(landed.bytes, buf);
        self.last = LastOp::received(EXPECTED_SLOT);
        Some(PlacedMessage {
            source: slot.channel_peer(),
            tag: landed.tag,
            len,
        })
    }

    /// Takes a receive like [`take_recv`](Self::take_recv), with the message in the place of its slot. Copies the message to the
    /// receive's own buffer.
    pub(crate) fn take_place<B: RecvBuf>(
        &mut self,
        ticket: &OpTicket<PlacedBytes>,
        buf: &mut B,
        timers: &mut Timers,
    ) -> Option<OpOutcome> {
        let slot = self.live(ticket.op);
        if let OpState::Done(landed) = slot.state {
            let _len = buffer::receive(buf, slot.content(landed.bytes));
        }
        let (outcome, _copied) = self.take(ticket, timers)?;
        self.last = LastOp::received(ticket.op.slot);
        Some(outcome)
    }

    /// Takes the two buffers of a program like [`take`](Self::take). The program has filled the second.
    #[inline]
    pub(crate) fn take_pair<I: SendBuf, O: RecvBuf>(
        &mut self,
        ticket: &OpTicket<(I, O)>,
        timers: &mut Timers,
    ) -> Option<(OpOutcome, I, O)> {
        let (outcome, (input, mut output)) = self.take(ticket, timers)?;
        self.note_collective();
        if let Ok(landed) = &outcome {
            let len = landed.bytes.checked_div(size_of::<O::Elem>()).unwrap_or(0);
            // SAFETY: all the room that the buffer had shown is initialized: it has its old values, zeros, or the
            // program's results.
            unsafe { output.set_filled(len) };
        }
        Some((outcome, input, output))
    }

    /// Sets the waker to wake when the operation is complete. Returns the previous waker, which the caller must drop
    /// without a lock: dropping the last waker of a task may drop its future, and other operations with it.
    #[must_use]
    pub(crate) fn remember(&mut self, op: OpId, waker: &Waker) -> Option<Waker> {
        match &mut self.live(op).waker {
            Some(known) if known.will_wake(waker) => None,
            place => place.replace(waker.clone()),
        }
    }

    #[inline(always)]
    fn make(
        &mut self,
        info: OpInfo,
        life: OpState,
        hold: impl FnOnce(&mut ErasedBuffer) -> BufferArea,
    ) -> OpId {
        let index = self.free_slot();
        let slot = self.slot(index);
        let generation = slot.begin(info, life, hold);
        OpId {
            slot: index,
            generation,
        }
    }

    /// Makes a slot available to other operations, except for the one that is always kept for an expected receive.
    #[inline(always)]
    fn free_again(&mut self, index: u32) {
        if index != EXPECTED_SLOT {
            self.free.push(index);
        }
    }

    #[inline]
    fn free_slot(&mut self) -> u32 {
        if let Some(index) = self.free.pop() {
            return index;
        }
        self.make_block()
    }

    #[cold]
    fn make_block(&mut self) -> u32 {
        let first =
            u32::try_from(self.blocks.len() * BLOCK).expect("fewer than 2^32 operations in flight");
        let generation = self.first_generation;
        self.blocks
            .push(Box::new([(); BLOCK].map(|()| OpSlot::free(generation))));
        self.free.extend(
            (first..)
                .take(BLOCK)
                .filter(|&index| index != EXPECTED_SLOT),
        );
        self.free.pop().expect("just filled")
    }

    #[inline]
    fn slot(&mut self, index: u32) -> &mut OpSlot {
        if index == EXPECTED_SLOT {
            return &mut self.expected;
        }
        let index = index as usize;
        &mut self.blocks[index / BLOCK][index % BLOCK]
    }

    /// Returns the operation, or `None` if the id is stale or forged.
    #[inline]
    pub(crate) fn get(&mut self, id: OpId) -> Option<&mut OpSlot> {
        let index = id.slot as usize;
        let slot = if id.slot == EXPECTED_SLOT {
            &mut self.expected
        } else {
            &mut self.blocks.get_mut(index / BLOCK)?[index % BLOCK]
        };
        (slot.generation() == id.generation && slot.is_live()).then_some(slot)
    }

    /// Returns an operation that the caller knows to be live.
    #[inline]
    pub(crate) fn live(&mut self, id: OpId) -> &mut OpSlot {
        self.get(id).expect("a live operation")
    }

    /// Returns every live operation that `of` selects.
    pub(crate) fn select(&self, mut of: impl FnMut(&OpSlot) -> bool) -> Vec<OpId> {
        let in_blocks = self
            .blocks
            .iter()
            .flat_map(|block| block.iter())
            .zip(0u32..);
        let slots = iter::once((&self.expected, EXPECTED_SLOT)).chain(in_blocks);
        let live = slots.filter(|(slot, _)| slot.is_live() && of(slot));
        live.map(|(slot, index)| OpId {
            slot: index,
            generation: slot.generation(),
        })
        .collect()
    }

    /// Releases the operation's slot. Returns the buffer if it was not taken; the caller must drop it without a lock.
    #[must_use]
    pub(crate) fn release(&mut self, id: OpId) -> Option<ErasedBuffer> {
        let slot = self.live(id);
        slot.vacate();
        let held = slot.take_erased();
        // An operation that was in the slot before this one is not there any more.
        self.last.forget_slot(id.slot);
        self.free_again(id.slot);
        held
    }
}
