//! Elements at a regular distance, packed before sending and unpacked after receiving.
#![expect(unsafe_code, reason = "lends room that may be uninitialised")]

use std::{fmt, mem::MaybeUninit, ops::Range};

use super::{RecvBuf, SendBuf, Wire};

/// `count` blocks of `block` elements each. The first block starts at element `offset`, and each further block `stride`
/// elements later. A column of a row-major matrix of `n` columns is `block: 1, stride: n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "four numbers, written out by the caller"
)]
pub struct Layout {
    /// Index of the first element of the first block.
    pub offset: usize,
    /// Elements in a block.
    pub block: usize,
    /// Elements from the start of a block to the start of the next block; at least `block`.
    pub stride: usize,
    /// Number of blocks.
    pub count: usize,
}

impl Layout {
    /// Returns the number of elements in the layout.
    ///
    /// # Panics
    /// Panics if the number is more than `usize::MAX`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.block
            .checked_mul(self.count)
            .expect("fewer elements than usize::MAX")
    }

    /// Returns true if the layout has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block == 0 || self.count == 0
    }

    /// Appends the elements of the layout in `from` to `packed`, in order.
    ///
    /// # Panics
    /// Panics if the layout leaves `from`, or if its blocks overlap.
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

    /// Writes packed elements back to where [`pack`](Self::pack) takes them from.
    ///
    /// If `packed` is shorter than [`len`](Self::len), it fills the first blocks and leaves the others unchanged.
    /// Elements beyond `len` are ignored.
    ///
    /// # Panics
    /// Panics if the layout leaves `into`, or if its blocks overlap.
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

    /// Returns the range of each block. Call `check` first, which rules out overflow.
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

/// A buffer of which an operation sends or receives the elements of a [`Layout`]. They are packed in a separate vector.
///
/// Made by [`BufExt::strided`](super::BufExt::strided), which packs them. [`into_inner`](Self::into_inner) unpacks the
/// received elements.
pub struct Strided<B: SendBuf> {
    buf: B,
    layout: Layout,
    packed: Vec<B::Elem>,
    /// Set when the packed elements may have been written. Only a `RecvBuf` can be unpacked to, and the methods of a
    /// `SendBuf` cannot know whether it is one. So the function pointer is stored where the type is known.
    unpack: Option<UnpackFn<B>>,
}

type UnpackFn<B> = fn(&mut B, &Layout, &[<B as SendBuf>::Elem]);

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

    /// Returns the layout of the packed elements.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the buffer, with received elements in their places.
    #[must_use]
    pub fn into_inner(self) -> B {
        self.into_parts().0
    }

    /// Returns the buffer as [`into_inner`](Self::into_inner) does, and the vector used for packing, for
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

// SAFETY: `spare` always returns the same packed vector.
unsafe impl<B: RecvBuf> RecvBuf for Strided<B> {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<B::Elem>] {
        // Set here and not in `set_filled`: a `Part` of this buffer does not call that, and an earlier receive may have
        // written more elements.
        self.unpack = Some(unpack_into::<B>);
        // SAFETY: the caller leaves every element initialized.
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

/// Writes packed elements to the buffer's room.
///
/// The layout was inside the elements when they were packed, and the elements are the start of the room in every buffer
/// of this crate. Indexing panics for a user's own buffer with shorter room.
fn unpack_into<B: RecvBuf>(buf: &mut B, layout: &Layout, packed: &[B::Elem]) {
    // SAFETY: only initialized elements are written below.
    let room = unsafe { buf.spare() };
    layout.spread(packed, |at, elems| write_at(room, at, elems));
}

fn write_at<T: Wire>(room: &mut [MaybeUninit<T>], at: usize, elems: &[T]) {
    for (slot, &elem) in room[at..at + elems.len()].iter_mut().zip(elems) {
        slot.write(elem);
    }
}
