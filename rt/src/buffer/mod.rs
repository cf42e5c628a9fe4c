//! Buffers that an operation owns while it runs, and that it returns with its result.
//!
//! [`SendBuf`] is a buffer to send from, [`RecvBuf`] one to receive into, and [`Wire`] the trait of their elements.
//! [`BufExt`] makes owned parts of a buffer: a [`Part`] is a range, and a [`Strided`] is a regular pattern that the
//! library packs. A [`RegBuf`] lies in memory that the network can reach without a copy.
#![expect(unsafe_code, reason = "lends room that may be uninitialised")]

use std::{mem::MaybeUninit, ops::RangeBounds, slice, sync::Arc};

mod alloc;
mod nested;
mod part;
mod reg;
pub(crate) mod room;
mod strided;
mod wire;

pub(crate) use alloc::{LINE, range_of, word_of};
pub use nested::NestedLayout;
pub use part::Part;
pub use reg::{RegBuf, Registered};
pub(crate) use room::{fill, overwrite, receive, room, zeros};
pub use strided::{Layout, Strided};
pub use wire::{TypeSig, Wire};

/// A buffer that an operation may own and send from.
///
/// An operation moves the buffer to its final place, then asks for its [`elems`](Self::elems). It calls no other method
/// until the bytes have left. So arrays by value work, and an implementation needs no stable address.
///
/// An operation may call `elems` more than once, and while it holds a lock. An implementation must return the same
/// elements each time, must not panic, and must not call this library.
#[diagnostic::on_unimplemented(
    message = "an operation cannot own `{Self}` and send from it",
    label = "not a buffer to send from",
    note = "hand over an owned buffer (`Vec<T>`, `Box<[T]>`, `Arc<[T]>`, `[T; N]`, `Bytes`, `RegBuf<T>`, a number) of \
            `Wire` elements, or copy borrowed data with `send_copy`",
    note = "arrays of `ndarray` and `nalgebra` need the cargo features of `ripstop` with these names"
)]
pub trait SendBuf: Send + 'static {
    /// Element type of the buffer.
    type Elem: Wire;

    /// Returns the elements to send.
    fn elems(&self) -> &[Self::Elem];

    /// Returns why nothing can be sent from this buffer or received into it, and what to do, as a clause. Most types have no
    /// such buffers. The operation then fails with this clause, and asks for no elements.
    #[inline]
    fn fault(&self) -> Option<&'static str> {
        None
    }

    /// Returns the registered memory that contains the elements, if they lie in such memory.
    fn registered(&self) -> Option<Registered<'_>> {
        None
    }
}

/// Elements with static lifetime, to send from without a copy: `Static(&TABLE)`.
///
/// A plain slice is not a buffer: most slices are borrowed for a limited time, which an operation must not rely on.
#[derive(Debug)]
pub struct Static<T: 'static>(pub &'static [T]);

impl<T> Clone for Static<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Static<T> {}

/// A buffer that an operation may own and receive into.
///
/// The room is one element for a number, and the full length for an array, a boxed slice, a [`RegBuf`], a [`Part`] or a
/// [`Strided`]. A shorter message leaves the rest unchanged, and `Status::len` has the received length.
///
/// The room of a `Vec` is its length, or its capacity if it is empty, and the vector gets the length of the message. To
/// receive into the same vector again, `clear` it first: then its room is its whole capacity, however short the last
/// message was.
#[diagnostic::on_unimplemented(
    message = "an operation cannot receive into `{Self}`",
    label = "not a buffer to receive into",
    note = "receive into something owned and not shared: `Vec<T>`, `Box<[T]>`, `[T; N]`, `RegBuf<T>` of `Wire` \
            elements, or a number",
    note = "arrays of `ndarray` and `nalgebra` need the cargo features of `ripstop` with these names"
)]
///
/// # Safety
/// [`spare`](Self::spare) returns the same memory each time it is called, until [`set_filled`](Self::set_filled) is
/// called or the buffer is moved. An operation may read again, and send, what it has written there.
pub unsafe trait RecvBuf: SendBuf {
    /// Returns the room to receive into. An operation writes it from its start.
    ///
    /// # Safety
    /// The caller writes only initialized elements: an element that had a value still has one afterwards.
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<Self::Elem>];

    /// Declares that the first `n` elements of [`spare`](Self::spare) were written.
    ///
    /// # Safety
    /// The first `n` elements were written, and `n` is at most the length of the room.
    unsafe fn set_filled(&mut self, n: usize);
}

/// Panics with the reason if no operation can use the buffer. Its elements are then not there either.
#[track_caller]
fn expect_usable(buf: &impl SendBuf) {
    if let Some(fault) = buf.fault() {
        panic!("{fault}");
    }
}

/// Methods that make owned parts of a buffer.
pub trait BufExt: SendBuf + Sized {
    /// Returns a range of the elements as a buffer. [`Part::into_inner`] returns the whole buffer.
    ///
    /// ```
    /// # use ripstop_rt::{buffer::BufExt, sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let inbox = world.recv_into(other, 0, vec![0; 6].part(2..4)); // into the middle of a vector
    /// let mine = world.send(other, 0, vec![1, 2, 3, 4].part(1..3)).await?.into_inner();
    /// let theirs = inbox.await?.0.into_inner();
    /// assert_eq!((mine, theirs), (vec![1, 2, 3, 4], vec![0, 0, 2, 3, 0, 0]));
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Panics
    /// Panics if the range is not inside the elements, or if no operation can use the buffer.
    #[track_caller]
    fn part(self, range: impl RangeBounds<usize>) -> Part<Self> {
        Part::new(self, range)
    }

    /// Returns blocks of elements at a regular distance as a buffer, packed for sending. [`Strided::into_inner`]
    /// returns the whole buffer.
    ///
    /// The buffer travels with the operation. [`Comm::send_packed`](crate::Comm::send_packed) leaves an array where it is.
    ///
    /// ```
    /// # use ripstop_rt::{buffer::{BufExt, Layout}, sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let matrix: Vec<u32> = (0..12).collect(); // 3 rows of 4
    /// let column = Layout { offset: 1, block: 1, stride: 4, count: 3 };
    /// let matrix = world.send(other, 0, matrix.strided(column)).await?.into_inner();
    /// assert_eq!(world.recv::<u32>(other, 0).await?.0, [1, 5, 9]);
    /// # assert_eq!(matrix.len(), 12);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Panics
    /// Panics if the layout leaves the elements, if its blocks overlap, or if no operation can use the buffer.
    #[track_caller]
    fn strided(self, layout: impl Into<NestedLayout>) -> Strided<Self> {
        Strided::new(self, layout.into(), Vec::new())
    }

    /// Like [`strided`](Self::strided), but packs into `scratch`, which is cleared first. With the vector of
    /// [`Strided::into_parts`] this allocates nothing.
    ///
    /// # Panics
    /// Panics if the layout leaves the elements, if its blocks overlap, or if no operation can use the buffer.
    #[track_caller]
    fn strided_in(
        self,
        layout: impl Into<NestedLayout>,
        scratch: Vec<Self::Elem>,
    ) -> Strided<Self> {
        Strided::new(self, layout.into(), scratch)
    }
}

impl<B: SendBuf> BufExt for B {}

impl<T: Wire> SendBuf for Vec<T> {
    type Elem = T;

    fn elems(&self) -> &[T] {
        self
    }
}

// SAFETY: the vector's own memory, which stays the same while the vector is not changed.
unsafe impl<T: Wire> RecvBuf for Vec<T> {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        let room = if self.is_empty() {
            self.capacity()
        } else {
            self.len()
        };
        // SAFETY: `room` is at most the allocated capacity, and the slice borrows `self`.
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

// SAFETY: `spare` always returns the same memory.
unsafe impl<T: Wire> RecvBuf for Box<[T]> {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        // SAFETY: the caller leaves every element initialized.
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

// SAFETY: `spare` always returns the whole array.
unsafe impl<T: Wire, const N: usize> RecvBuf for [T; N] {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        // SAFETY: the caller leaves every element initialized.
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

        // SAFETY: `spare` always returns the whole number.
        unsafe impl RecvBuf for $T {
            unsafe fn spare(&mut self) -> &mut [MaybeUninit<Self>] {
                // SAFETY: the caller leaves every element initialized.
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

/// Returns initialized elements as room to write to.
///
/// # Safety
/// The caller writes no uninitialized element to it.
pub(crate) unsafe fn as_spare<T: Wire>(elems: &mut [T]) -> &mut [MaybeUninit<T>] {
    let (start, len) = (elems.as_mut_ptr(), elems.len());
    // SAFETY: `MaybeUninit<T>` is laid out as `T`, and the borrow is passed on.
    unsafe { slice::from_raw_parts_mut(start.cast(), len) }
}

#[cfg(test)]
mod tests;
