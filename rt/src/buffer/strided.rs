//! Elements at a regular distance, packed before sending and unpacked after receiving.
#![expect(unsafe_code, reason = "lends room that may be uninitialised")]

use std::{fmt, mem::MaybeUninit};

use super::{NestedLayout, RecvBuf, SendBuf};

/// `count` blocks of `block` elements each. The first block starts at element `offset`, and each further block `stride`
/// elements later. A column of a row-major matrix of `n` columns is `block: 1, stride: n`.
///
/// Layouts of more levels, such as a face of a 3-D array with ghosts, are a [`NestedLayout`]:
/// [`subarray`](Self::subarray) makes them.
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
    /// ```
    /// # use ripstop_rt::buffer::Layout;
    /// let column = Layout { offset: 1, block: 1, stride: 4, count: 3 };
    /// let mut packed = Vec::new();
    /// column.pack(&[0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23], &mut packed);
    /// assert_eq!(packed, [1, 11, 21]);
    /// ```
    ///
    /// # Panics
    /// Panics if the layout leaves `from`, or if its blocks overlap.
    #[track_caller]
    pub fn pack<T: Copy>(&self, from: &[T], packed: &mut Vec<T>) {
        NestedLayout::from(self).pack(from, packed);
    }

    /// Writes packed elements back to where [`pack`](Self::pack) takes them from; see [`NestedLayout::unpack`].
    ///
    /// ```
    /// # use ripstop_rt::buffer::Layout;
    /// let (column, mut matrix) = (Layout { offset: 1, block: 1, stride: 3, count: 2 }, [0; 6]);
    /// column.unpack(&[7, 8], &mut matrix);
    /// assert_eq!(matrix, [0, 7, 0, 0, 8, 0]);
    /// ```
    ///
    /// # Panics
    /// Panics if the layout leaves `into`, or if its blocks overlap.
    #[track_caller]
    pub fn unpack<T: Copy>(&self, packed: &[T], into: &mut [T]) {
        NestedLayout::from(self).unpack(packed, into);
    }
}

/// A buffer of which an operation sends or receives the elements of a layout. They are packed in a separate vector.
///
/// Made by [`BufExt::strided`](super::BufExt::strided), which packs them. [`into_inner`](Self::into_inner) unpacks the
/// received elements.
pub struct Strided<B: SendBuf> {
    buf: B,
    layout: NestedLayout,
    packed: Vec<B::Elem>,
    /// Set when the packed elements may have been written. Only a `RecvBuf` can be unpacked to, and the methods of a
    /// `SendBuf` cannot know whether it is one. So the function pointer is stored where the type is known.
    unpack: Option<UnpackFn<B>>,
}

type UnpackFn<B> = fn(&mut B, &NestedLayout, &[<B as SendBuf>::Elem]);

impl<B: SendBuf> Strided<B> {
    #[track_caller]
    pub(super) fn new(buf: B, layout: NestedLayout, mut packed: Vec<B::Elem>) -> Self {
        super::expect_usable(&buf);
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
    pub fn layout(&self) -> &NestedLayout {
        &self.layout
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
fn unpack_into<B: RecvBuf>(buf: &mut B, layout: &NestedLayout, packed: &[B::Elem]) {
    // SAFETY: only initialized elements are written below.
    let room = unsafe { buf.spare() };
    layout.spread(packed, room, |slots, elems| {
        slots.write_copy_of_slice(elems);
    });
}
