//! Elements at a regular distance, packed on the way out and unpacked on the way in.
#![expect(unsafe_code, reason = "lends room that may be uninitialised")]

use std::{fmt, mem::MaybeUninit, ops::Range};

use super::{RecvBuf, SendBuf, Wire};

/// `count` blocks of `block` elements each; the first starts at element `offset`, the others `stride` elements further
/// each. A column of a row-major matrix of `n` columns is `block: 1, stride: n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "four numbers, written out by the caller"
)]
pub struct Layout {
    /// The first element of the first block.
    pub offset: usize,
    /// Elements in a block.
    pub block: usize,
    /// Elements from the start of a block to the start of the next; at least `block`.
    pub stride: usize,
    /// Blocks.
    pub count: usize,
}

impl Layout {
    /// How many elements it picks.
    ///
    /// # Panics
    /// When that is more than `usize::MAX`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.block
            .checked_mul(self.count)
            .expect("fewer elements than usize::MAX")
    }

    /// Whether it picks nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block == 0 || self.count == 0
    }

    /// Appends the picked elements of `from` to `packed`, in order.
    ///
    /// # Panics
    /// When the layout leaves `from`, or its blocks overlap.
    pub fn pack<T: Copy>(&self, from: &[T], packed: &mut Vec<T>) {
        self.check(from.len());
        if self.is_empty() {
            return;
        }
        packed.reserve(self.len());
        if self.block == 1 {
            packed.extend(
                from[self.offset..]
                    .iter()
                    .step_by(self.stride.max(1))
                    .take(self.count),
            );
        } else {
            self.blocks()
                .for_each(|block| packed.extend_from_slice(&from[block]));
        }
    }

    /// Writes packed elements to where [`pack`](Self::pack) takes them from. Fewer than [`len`](Self::len) fill the first
    /// blocks and leave the others as they were; elements beyond that are ignored.
    ///
    /// # Panics
    /// When the layout leaves `into`, or its blocks overlap.
    pub fn unpack<T: Copy>(&self, packed: &[T], into: &mut [T]) {
        self.check(into.len());
        self.spread(packed, |at, elems| {
            into[at..at + elems.len()].copy_from_slice(elems)
        });
    }

    fn spread<T: Copy>(&self, packed: &[T], mut put: impl FnMut(usize, &[T])) {
        if self.is_empty() {
            return;
        }
        for (block, elems) in self.blocks().zip(packed.chunks(self.block)) {
            put(block.start, elems);
        }
    }

    /// Only after `check`, which rules out overflow.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Self {
            offset,
            block,
            stride,
            count,
        } = *self;
        (0..count).map(move |nth| {
            let start = offset + nth * stride;
            start..start + block
        })
    }

    fn check(&self, len: usize) {
        assert!(
            self.count < 2 || self.block <= self.stride,
            "{self:?}: the blocks overlap; make the stride at least the block"
        );
        let inside = self.is_empty() || self.end().is_some_and(|end| end <= len);
        assert!(inside, "{self:?} leaves a buffer of {len} elements");
    }

    fn end(&self) -> Option<usize> {
        let last = self.stride.checked_mul(self.count.checked_sub(1)?)?;
        self.offset.checked_add(last)?.checked_add(self.block)
    }
}

/// A buffer of which an operation sends or receives the elements of a [`Layout`], packed in a vector of its own. Made by
/// [`BufExt::strided`](super::BufExt::strided), which packs them; [`into_inner`](Self::into_inner) unpacks what came.
pub struct Strided<B: SendBuf> {
    buf: B,
    layout: Layout,
    packed: Vec<B::Elem>,
    /// The packed elements may have been written. Only a `RecvBuf` can be unpacked to, which a `SendBuf` method cannot know: so
    /// the way to do it is kept from where it was known.
    unpack: Option<Unpack<B>>,
}

type Unpack<B> = fn(&mut B, &Layout, &[<B as SendBuf>::Elem]);

impl<B: SendBuf> Strided<B> {
    pub(super) fn new(buf: B, layout: Layout, mut packed: Vec<B::Elem>) -> Self {
        packed.clear();
        layout.pack(buf.elems(), &mut packed);
        Self {
            buf,
            layout,
            packed,
            unpack: None,
        }
    }

    /// Which elements of the buffer they are.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The buffer, with what was received in its place.
    #[must_use]
    pub fn into_inner(self) -> B {
        self.into_parts().0
    }

    /// The buffer as from [`into_inner`](Self::into_inner), and the vector used for packing, for
    /// [`BufExt::strided_in`](super::BufExt::strided_in).
    #[must_use]
    pub fn into_parts(mut self) -> (B, Vec<B::Elem>) {
        if let Some(unpack) = self.unpack {
            unpack(&mut self.buf, &self.layout, &self.packed);
        }
        (self.buf, self.packed)
    }
}

impl<B: SendBuf> SendBuf for Strided<B> {
    type Elem = B::Elem;

    fn elems(&self) -> &[B::Elem] {
        &self.packed
    }
}

// SAFETY: always the same scratch.
unsafe impl<B: RecvBuf> RecvBuf for Strided<B> {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<B::Elem>] {
        // Not only when it is told how many: a part of this does not tell, and an earlier receive may have brought more.
        self.unpack = Some(unpack_into::<B>);
        // SAFETY: the caller leaves no element without a value.
        unsafe { super::as_spare(&mut self.packed) }
    }

    unsafe fn set_filled(&mut self, _: usize) {}
}

impl<B: SendBuf + fmt::Debug> fmt::Debug for Strided<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Strided")
            .field("buf", &self.buf)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

/// The layout was inside the elements when it was packed, and they are the start of the room in every buffer of ours; one
/// of the user's whose room is shorter panics in the indexing.
fn unpack_into<B: RecvBuf>(buf: &mut B, layout: &Layout, packed: &[B::Elem]) {
    // SAFETY: what is written below are values.
    let room = unsafe { buf.spare() };
    layout.spread(packed, |at, elems| write_at(room, at, elems));
}

fn write_at<T: Wire>(room: &mut [MaybeUninit<T>], at: usize, elems: &[T]) {
    for (slot, &elem) in room[at..at + elems.len()].iter_mut().zip(elems) {
        slot.write(elem);
    }
}
