//! The sender's side of packed messages: copies that a receiver on the same node can read in place.

use std::{fmt, ops::Deref, sync::Arc};

use super::{Comm, SendOp, in_place::IN_PLACE_MIN, op::SendOpState};
use crate::{
    buffer::{NestedLayout, RegBuf, Registered, SendBuf, Wire},
    engine::{Engine, PAGE, PackingBlock, SendStart},
    error::OpError,
    group::CommRank,
};

/// Bytes that a sender packs before it publishes them. Fewer cost both ranks more cache lines of words, and more let the receiver
/// begin later.
const PUBLISHED_TOGETHER: usize = 8 << 10;

/// The elements of a message that [`Comm::send_packed`] has packed.
///
/// It dereferences to a slice of them. A long message to a rank of the same node is packed into shared memory, of which a rank
/// has 16 blocks. A `PackedCopy` keeps its block, and so does a [`SendOp`] that is not awaited. Drop both before the next
/// exchange: without a free block, later messages are copied on their way.
pub struct PackedCopy<T: Wire>(PackedMemory<T>);

enum PackedMemory<T: Wire> {
    Own(Vec<T>),
    Block(RegBuf<T>),
}

impl Comm {
    /// Sends elements of an array to a rank, if there is one. The layout fits the array.
    #[track_caller]
    pub(super) fn send_from_array<T: Wire>(
        &self,
        to: Option<usize>,
        tag: u32,
        array: &[T],
        layout: &NestedLayout,
    ) -> SendOp<PackedCopy<T>> {
        if let Some(to) = to
            && let Some(world) = self.group().world_of(CommRank(to))
            && let bytes = layout.len() * size_of::<T>() // no overflow: the array is as long
            && bytes >= IN_PLACE_MIN
            && align_of::<T>() <= PAGE
        {
            let take = |engine: &mut Engine| engine.take_packing_block(world, bytes);
            if let Some(block) = self.shared().with(take) {
                return self.send_in_block(to, tag, array, layout, &block);
            }
        }
        let mut packed = Vec::new();
        layout.pack(array, &mut packed);
        self.send(to, tag, PackedCopy(PackedMemory::Own(packed)))
    }

    #[track_caller]
    fn send_in_block<T: Wire>(
        &self,
        to: usize,
        tag: u32,
        array: &[T],
        layout: &NestedLayout,
        block: &Arc<PackingBlock>,
    ) -> SendOp<PackedCopy<T>> {
        let [copy, buf] = [(); 2].map(|()| {
            let buf = RegBuf::in_block(Arc::clone(block), layout.len());
            PackedCopy(PackedMemory::Block(buf))
        });
        // The offer comes first, so that the receiver unpacks one piece while the next one is packed.
        let started = self.send_info::<T>(self.id(), to, tag, false).map(|info| {
            let offer = |engine: &mut Engine| engine.offer_while_packing(info, buf);
            (info, self.shared().with(offer))
        });
        // This does not panic, as the caller has checked that the layout fits the array. Otherwise the operation would never end.
        pack_into_block(layout, array, block);
        match started {
            Ok((_, SendStart::InFlight(ticket))) => {
                self.shared()
                    .with(|engine| engine.note_packed(ticket.op, block));
                SendOp::sent(copy)
            }
            Ok((info, started)) => SendOp::of(SendOpState::new(self, info, started)),
            Err(error) => SendOp::failed(OpError { error, buf: copy }),
        }
    }
}

/// Packs the elements of a layout into a block, and publishes them piece by piece.
fn pack_into_block<T: Wire>(layout: &NestedLayout, array: &[T], block: &PackingBlock) {
    let together = PUBLISHED_TOGETHER.div_ceil(size_of::<T>());
    let (mut packed, mut published) = (0, 0);
    // A long row comes at once, so it is cut.
    layout.visit_packed(array, |elems| {
        for piece in elems.chunks(together) {
            block.region().write(packed, bytemuck::cast_slice(piece));
            packed += size_of_val(piece);
            if packed - published >= PUBLISHED_TOGETHER {
                block.publish(packed);
                published = packed;
            }
        }
    });
    block.publish(packed);
}

impl<T: Wire> Deref for PackedCopy<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            PackedMemory::Own(elems) => elems,
            PackedMemory::Block(elems) => elems,
        }
    }
}

impl<T: Wire> SendBuf for PackedCopy<T> {
    type Elem = T;

    fn elems(&self) -> &[T] {
        self
    }

    fn registered(&self) -> Option<Registered<'_>> {
        match &self.0 {
            PackedMemory::Own(_) => None,
            PackedMemory::Block(elems) => elems.registered(),
        }
    }
}

impl<T: Wire> fmt::Debug for PackedCopy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedCopy({} elements)", self.len())
    }
}
