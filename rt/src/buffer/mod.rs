//! Buffers that an operation owns while it runs, and that come home with its result.
//!
//! [`SendBuf`] is what can be sent from, [`RecvBuf`] what can be received into; [`Wire`] is what their elements must be.
//! [`BufExt`] makes owned parts of a buffer: a [`Part`] is a range, a [`Strided`] is a regular pattern that is packed for
//! you. A [`RegBuf`] lies in memory that the fabric can reach without a copy.
#![expect(unsafe_code, reason = "lends room that may be uninitialised")]

use std::{mem::MaybeUninit, ops::RangeBounds, slice, sync::Arc};

use ripstop_fabric::driver::Payload;

mod alloc;
mod part;
mod reg;
mod strided;
mod wire;

pub(crate) use alloc::{range_of, word_of};
pub use part::Part;
pub use reg::{RegBuf, Registered};
pub use strided::{Layout, Strided};
pub use wire::{TypeSig, Wire};

/// Something an operation may own and send from.
///
/// An operation moves the buffer to where it stays, then asks for its [`elems`](Self::elems), and calls nothing else of it
/// until the bytes are out: that is why arrays by value work, and why an implementation needs no stable address.
///
/// It may ask more than once, and while it holds its lock: an implementation shows the same elements each time, does not panic
/// and calls nothing of this library.
#[diagnostic::on_unimplemented(
    message = "an operation cannot own `{Self}` and send from it",
    label = "not a buffer to send from",
    note = "hand over an owned buffer (`Vec<T>`, `Box<[T]>`, `Arc<[T]>`, `[T; N]`, `Bytes`, `RegBuf<T>`, a number) of \
            `Wire` elements, or copy borrowed data with `send_copy`"
)]
pub trait SendBuf: Send + 'static {
    /// What it is a sequence of.
    type Elem: Wire;

    /// The elements to send.
    fn elems(&self) -> &[Self::Elem];

    /// The registered memory that the elements lie in, if they do.
    fn registered(&self) -> Option<Registered<'_>> {
        None
    }
}

/// Elements that live as long as the program, to send from without a copy: `Static(&TABLE)`.
///
/// A plain slice is no buffer: most slices are borrowed for a while only, which an operation must not rely on.
#[derive(Debug)]
pub struct Static<T: 'static>(pub &'static [T]);

impl<T> Clone for Static<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Static<T> {}

/// Something an operation may own and receive into.
///
/// How much there is room for: one for a number, the full length of an array, a boxed slice, a [`RegBuf`], a [`Part`] or a
/// [`Strided`]. A shorter message leaves the rest as it was, and `Status::len` says how much came. For a `Vec` it is the
/// length, or the capacity when the vector is empty, and the vector ends as long as the message. To receive into the same
/// vector again, `clear` it first: then its room is its whole capacity, however short the last message was.
#[diagnostic::on_unimplemented(
    message = "an operation cannot receive into `{Self}`",
    label = "not a buffer to receive into",
    note = "receive into something owned and not shared: `Vec<T>`, `Box<[T]>`, `[T; N]`, `RegBuf<T>` of `Wire` \
            elements, or a number"
)]
///
/// # Safety
/// [`spare`](Self::spare) shows the same memory each time it is called, until [`set_filled`](Self::set_filled) is called or the
/// buffer is moved: what an operation has written there it may read again, and send.
pub unsafe trait RecvBuf: SendBuf {
    /// The room to receive into; an operation writes it from its start.
    ///
    /// # Safety
    /// The caller writes initialised elements only: where there was a value, there is one afterwards.
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<Self::Elem>];

    /// Says that the first `n` elements of [`spare`](Self::spare) were written.
    ///
    /// # Safety
    /// They were, and `n` is at most the length of the room.
    unsafe fn set_filled(&mut self, n: usize);
}

/// Owned parts of a buffer.
pub trait BufExt: SendBuf + Sized {
    /// A range of the elements; [`Part::into_inner`] gives the whole buffer back.
    ///
    /// # Panics
    /// When the range is not inside the elements.
    fn part(self, range: impl RangeBounds<usize>) -> Part<Self> {
        Part::new(self, range)
    }

    /// Blocks of elements at a regular distance, packed for the way; [`Strided::into_inner`] gives the whole buffer back.
    ///
    /// # Panics
    /// When the layout leaves the elements, or its blocks overlap.
    fn strided(self, layout: Layout) -> Strided<Self> {
        Strided::new(self, layout, Vec::new())
    }

    /// As [`strided`](Self::strided), packed into `scratch`, which is cleared first: with the vector of
    /// [`Strided::into_parts`] nothing is allocated.
    ///
    /// # Panics
    /// When the layout leaves the elements, or its blocks overlap.
    fn strided_in(self, layout: Layout, scratch: Vec<Self::Elem>) -> Strided<Self> {
        Strided::new(self, layout, scratch)
    }
}

impl<B: SendBuf> BufExt for B {}

impl<T: Wire> SendBuf for Vec<T> {
    type Elem = T;

    fn elems(&self) -> &[T] {
        self
    }
}

// SAFETY: its own memory, which it does not change by itself.
unsafe impl<T: Wire> RecvBuf for Vec<T> {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        let room = if self.is_empty() {
            self.capacity()
        } else {
            self.len()
        };
        // SAFETY: at most the capacity is allocated, and it is lent for as long as `self` is.
        unsafe { slice::from_raw_parts_mut(self.as_mut_ptr().cast(), room) }
    }

    unsafe fn set_filled(&mut self, n: usize) {
        // SAFETY: the caller says that `n` elements were written, within the capacity.
        unsafe { self.set_len(n) };
    }
}

impl<T: Wire> SendBuf for Box<[T]> {
    type Elem = T;

    fn elems(&self) -> &[T] {
        self
    }
}

// SAFETY: always the same memory.
unsafe impl<T: Wire> RecvBuf for Box<[T]> {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        // SAFETY: the caller leaves no element without a value.
        unsafe { as_spare(self) }
    }

    unsafe fn set_filled(&mut self, _: usize) {}
}

impl<T: Wire, const N: usize> SendBuf for [T; N] {
    type Elem = T;

    fn elems(&self) -> &[T] {
        self
    }
}

// SAFETY: always all of itself.
unsafe impl<T: Wire, const N: usize> RecvBuf for [T; N] {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        // SAFETY: the caller leaves no element without a value.
        unsafe { as_spare(self) }
    }

    unsafe fn set_filled(&mut self, _: usize) {}
}

impl<T: Wire> SendBuf for Arc<[T]> {
    type Elem = T;

    fn elems(&self) -> &[T] {
        self
    }
}

impl<T: Wire> SendBuf for Static<T> {
    type Elem = T;

    fn elems(&self) -> &[T] {
        self.0
    }
}

macro_rules! numbers {
    ($($T:ty)*) => {$(
        impl SendBuf for $T {
            type Elem = Self;

            fn elems(&self) -> &[Self] {
                slice::from_ref(self)
            }
        }

        // SAFETY: always all of itself.
        unsafe impl RecvBuf for $T {
            unsafe fn spare(&mut self) -> &mut [MaybeUninit<Self>] {
                // SAFETY: the caller leaves no element without a value.
                unsafe { as_spare(slice::from_mut(self)) }
            }

            unsafe fn set_filled(&mut self, _: usize) {}
        }
    )*};
}

numbers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

impl SendBuf for bytes::Bytes {
    type Elem = u8;

    fn elems(&self) -> &[u8] {
        self
    }
}

/// Initialised elements as room.
///
/// # Safety
/// Nothing uninitialised is written to it.
unsafe fn as_spare<T: Wire>(elems: &mut [T]) -> &mut [MaybeUninit<T>] {
    let (start, len) = (elems.as_mut_ptr(), elems.len());
    // SAFETY: `MaybeUninit<T>` is laid out as `T`, and the borrow is passed on.
    unsafe { slice::from_raw_parts_mut(start.cast(), len) }
}

#[cfg(test)]
mod tests;

/// For how many elements a buffer has room.
#[doc(hidden)]
pub fn room<B: RecvBuf>(buf: &mut B) -> usize {
    // SAFETY: nothing is written to it.
    unsafe { buf.spare() }.len()
}

/// Zeros, which cost nothing until they are touched; `None` without memory for them.
#[doc(hidden)]
#[must_use]
pub fn zeros<T: Wire>(len: usize) -> Option<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(len).ok()
}

/// Fills a buffer with the bytes of `payload`.
///
/// # Panics
/// When they are not exactly as many as there is room for.
pub(crate) fn fill<B: RecvBuf>(buf: &mut B, payload: Payload<'_>) {
    // SAFETY: only initialised elements are written below: any bytes are some.
    let room = unsafe { buf.spare() };
    let (len, bytes) = (room.len(), size_of_val(room));
    assert_eq!(payload.len(), bytes, "a get that fills its buffer");
    // SAFETY: the same memory as bytes, borrowed as long.
    payload.copy_to(unsafe { slice::from_raw_parts_mut(room.as_mut_ptr().cast(), bytes) });
    // SAFETY: just written.
    unsafe { buf.set_filled(len) };
}

/// Writes `elems` to the start of a buffer's room, as a receive would.
///
/// # Panics
/// When there is less room.
#[doc(hidden)]
pub fn overwrite<B: RecvBuf>(buf: &mut B, elems: &[B::Elem]) {
    // SAFETY: only initialised elements are written below.
    let room = unsafe { buf.spare() };
    assert!(
        elems.len() <= room.len(),
        "{} elements for a buffer with room for {}",
        elems.len(),
        room.len()
    );
    for (place, elem) in room.iter_mut().zip(elems) {
        place.write(*elem);
    }
    // SAFETY: just written, and within the room.
    unsafe { buf.set_filled(elems.len()) };
}
