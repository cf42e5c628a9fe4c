//! Messages of elements that lie apart in an array: packed when they are sent, unpacked when the receiver asks for it.
//!
//! The array itself is only borrowed for a call, so the program computes on it while its faces are in flight.

use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{Comm, RecvOp, SendOp, Source, Status, Tag};
use crate::{
    buffer::{NestedLayout, Wire},
    error::OpError,
};

/// A posted receive of elements that lie apart in an array. Made by [`Comm::recv_packed`].
///
/// Output: `Result<`[`PackedMessage`]`<T>, OpError<Vec<T>>>`. Dropping it cancels the receive, as with [`RecvOp`].
#[must_use = "await it; dropping it takes the receive back"]
pub struct RecvPackedOp<T: Wire> {
    recv: RecvOp<Vec<T>>,
    layout: NestedLayout,
}

/// A received message, still packed. [`unpack_into`](Self::unpack_into) writes it to an array.
#[derive(Clone, Debug)]
#[must_use = "the array gets the elements by `unpack_into`"]
pub struct PackedMessage<T: Wire> {
    packed: Vec<T>,
    layout: NestedLayout,
    status: Status,
}

impl Comm {
    /// Sends the elements of `layout` in `array` to rank `to`. Output: the packed copy, as a `Result<Vec<T>, OpError<Vec<T>>>`.
    ///
    /// The elements are packed before this call returns, and the operation owns the copy. So `array` is free at once, and
    /// several parts of it can be in flight. The receiver need not use a layout: the message is an ordinary one. A program
    /// that sends again and again keeps the vector: it calls [`NestedLayout::pack`] and [`send`](Self::send) instead.
    ///
    /// A send to `None` completes at once, as with [`send`](Self::send).
    ///
    /// ```
    /// # use ripstop_rt::{buffer::Layout, sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let mut matrix = vec![world.rank(); 3 * 4]; // 3 rows of 4
    /// let [first, last] = [0, 3].map(|x| Layout::subarray(&[3, 4], &[0..3, x..x + 1]));
    ///
    /// let column = world.recv_packed(other, 7, &last);
    /// let sent = world.send_packed(other, 7, &matrix, &first);
    /// matrix[5] = 9; // The matrix can be used while both messages are in flight.
    /// column.await?.unpack_into(&mut matrix);
    /// sent.await?;
    /// # let (me, it) = (world.rank(), other);
    /// # assert_eq!(matrix, [me, me, me, it, me, 9, me, it, me, me, me, it]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// The call fails as [`send`](Self::send) does.
    ///
    /// # Panics
    /// Panics if `layout` leaves `array`, or if its blocks overlap.
    #[track_caller]
    pub fn send_packed<T: Wire>(
        &self,
        to: impl Into<Option<usize>>,
        tag: u32,
        array: &[T],
        layout: impl Into<NestedLayout>,
    ) -> SendOp<Vec<T>> {
        let (layout, mut packed) = (layout.into(), Vec::new());
        layout.check("send_packed", "array", array.len());
        layout.pack(array, &mut packed);
        self.send(to, tag, packed)
    }

    /// Receives a message for the elements of `layout` in an array. Output: a [`PackedMessage`], which
    /// [`unpack_into`](PackedMessage::unpack_into) writes to the array.
    ///
    /// The operation needs the layout and not the array, which the program may read and write meanwhile. A shorter message
    /// is no error: it fills the first elements of the layout, and [`PackedMessage::status`] has its length. A receive from
    /// `None` completes at once without elements, so the array stays as it is.
    ///
    /// ```
    /// # use ripstop_rt::{buffer::Layout, sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let mut matrix = [0_u8; 6]; // 2 rows of 3
    /// let column = world.recv_packed(other, 7, Layout::subarray(&[2, 3], &[0..2, 1..2]));
    /// world.send(other, 7, [4_u8, 5]).await?; // any message of two elements
    /// let message = column.await?;
    /// assert_eq!(message.packed(), [4, 5]);
    /// assert_eq!(message.unpack_into(&mut matrix), message.status());
    /// assert_eq!(matrix, [0, 4, 0, 0, 5, 0]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// The call fails as [`recv_into`](Self::recv_into) does: a message of more elements than `layout` has stays queued
    /// (`Truncated`).
    ///
    /// # Panics
    /// Panics if the blocks of `layout` overlap, or if there is no memory for its elements.
    #[track_caller]
    pub fn recv_packed<T: Wire>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        layout: impl Into<NestedLayout>,
    ) -> RecvPackedOp<T> {
        self.recv_packed_in(from, tag, layout, Vec::new())
    }

    /// Like [`recv_packed`](Self::recv_packed), but receives into the memory of `scratch`. With the vector of an earlier
    /// message of the same length ([`PackedMessage::into_scratch`]) this allocates nothing.
    ///
    /// # Errors
    /// The call fails as [`recv_packed`](Self::recv_packed) does.
    ///
    /// # Panics
    /// The call panics as [`recv_packed`](Self::recv_packed) does.
    #[track_caller]
    pub fn recv_packed_in<T: Wire>(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        layout: impl Into<NestedLayout>,
        mut scratch: Vec<T>,
    ) -> RecvPackedOp<T> {
        let layout = layout.into();
        // How long the array is shows when the message is unpacked. Blocks that overlap fit no array.
        layout.check("recv_packed", "array", usize::MAX);
        make_unwritten_room(&mut scratch, layout.len());
        let recv = self.recv_into(from, tag, scratch);
        RecvPackedOp { recv, layout }
    }
}

/// Gives a vector room for exactly `len` elements, so that a receive refuses a longer message. Writes no elements if it can do
/// without: the room of an empty vector is its capacity.
#[track_caller]
fn make_unwritten_room<T: Wire>(scratch: &mut Vec<T>, len: usize) {
    if scratch.capacity() < len {
        *scratch = Vec::new();
        if let Err(why) = scratch.try_reserve_exact(len) {
            panic!("recv_packed: no room for the {len} elements of `layout`: {why}");
        }
    }
    if scratch.capacity() == len {
        scratch.clear();
    } else {
        make_room(scratch, len);
    }
}

/// Gives a vector `len` elements, so that a receive refuses a longer message.
pub(super) fn make_room<T: Wire>(scratch: &mut Vec<T>, len: usize) {
    if len == 0 {
        // The room of an empty vector is its whole capacity.
        *scratch = Vec::new();
    } else if scratch.capacity() < len {
        *scratch = bytemuck::allocation::zeroed_vec(len);
    } else {
        scratch.resize(len, T::zeroed());
    }
}

impl<T: Wire> RecvPackedOp<T> {
    /// Returns true if awaiting this would not wait.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.recv.is_done()
    }

    /// Gives up after `limit`, as [`RecvOp::timeout`] does.
    pub fn timeout(self, limit: Duration) -> Self {
        Self {
            recv: self.recv.timeout(limit),
            ..self
        }
    }
}

impl<T: Wire> Future for RecvPackedOp<T> {
    type Output = Result<PackedMessage<T>, OpError<Vec<T>>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let received = ready!(Pin::new(&mut self.recv).poll(cx));
        let layout = mem::replace(&mut self.layout, NestedLayout::nothing());
        Poll::Ready(received.map(|(mut packed, status)| {
            packed.truncate(status.len); // a receive from no rank leaves its buffer as it was
            PackedMessage {
                packed,
                layout,
                status,
            }
        }))
    }
}

impl<T: Wire> PackedMessage<T> {
    /// Writes the elements to their places in `array`, and returns the status of the message. If the message was shorter
    /// than the layout, the last elements of the layout keep their values.
    ///
    /// # Panics
    /// Panics if the layout leaves `array`.
    #[track_caller]
    pub fn unpack_into(&self, array: &mut [T]) -> Status {
        self.layout.check("unpack_into", "array", array.len());
        self.layout.unpack(&self.packed, array);
        self.status
    }

    /// Returns the status of the message.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns the elements in the order of the layout.
    #[must_use]
    pub fn packed(&self) -> &[T] {
        &self.packed
    }

    /// Returns the vector of the packed elements, for [`Comm::recv_packed_in`].
    ///
    /// ```
    /// # use ripstop_rt::{buffer::Layout, sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let column = Layout { offset: 0, block: 1, stride: 4, count: 3 };
    /// let (mut matrix, mut scratch) = (vec![world.rank() as f32; 12], Vec::new());
    /// for _step in 0..10 {
    ///     let receiving = world.recv_packed_in(other, 7, column, scratch);
    ///     world.send_packed(other, 7, &matrix, column).await?;
    ///     let message = receiving.await?;
    ///     assert_eq!(message.unpack_into(&mut matrix).len, 3);
    ///     scratch = message.into_scratch();
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[must_use]
    pub fn into_scratch(self) -> Vec<T> {
        self.packed
    }
}

impl<T: Wire> fmt::Debug for RecvPackedOp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvPackedOp")
            .field("done", &self.is_done())
            .field("layout", &self.layout)
            .finish()
    }
}
