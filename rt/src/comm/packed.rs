//! Messages of elements that lie apart in an array: packed when they are sent, unpacked when the receiver asks for it.
//!
//! The array itself is only borrowed for a call, so the program computes on it while its faces are in flight.

use std::{
    fmt, mem,
    panic::Location,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{
    Comm, RecvOp, SendOp, Source, Status, Tag,
    in_place::{IN_PLACE_MIN, InPlaceMessage},
    packed_copy::PackedCopy,
};
use crate::{
    buffer::{NestedLayout, Wire},
    clock::ClockTime,
    error::OpError,
};

/// A posted receive of elements that lie apart in an array. Made by [`Comm::recv_packed`].
///
/// Output: `Result<`[`PackedMessage`]`<T>, OpError<Vec<T>>>`. Dropping it cancels the receive, as with [`RecvOp`].
#[must_use = "await it; dropping it takes the receive back"]
pub struct RecvPackedOp<T: Wire> {
    recv: RecvOp<Vec<T>>,
    /// The message, once it has arrived in memory that this rank reads in place.
    found: Option<InPlaceMessage<T>>,
    layout: NestedLayout,
    /// Time at which the receive gives up.
    deadline: Option<ClockTime>,
    at: &'static Location<'static>,
}

/// A packed message, or `None` if it is read in place.
type FoundOutcome<T> = Result<Option<(Vec<T>, Status)>, OpError<Vec<T>>>;

/// A receive of elements straight to their places in an array. Made by [`RecvPackedOp::unpack_into`].
///
/// Output: `Result<`[`Status`]`, OpError<Vec<T>>>`. Dropping it cancels the receive, as with [`RecvOp`].
#[must_use = "await it; dropping it takes the receive back"]
pub struct UnpackOp<'a, T: Wire> {
    recv: RecvPackedOp<T>,
    array: &'a mut [T],
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
    /// Sends the elements of `layout` in `array` to rank `to`. Output: the packed copy, as a
    /// `Result<PackedCopy<T>, OpError<PackedCopy<T>>>`.
    ///
    /// The elements are packed before this call returns, and the operation owns the copy. So `array` is free at once, and
    /// several parts of it can be in flight. The receiver need not use a layout: the message is an ordinary one.
    ///
    /// Ranks of one node share memory for packed copies. A long message of at most 4 MiB completes at once if there is room for
    /// it. Otherwise the send completes as one by [`send`](Self::send): a short message at once, a long one when its receiver
    /// takes it. So a program must not count on a send that completes before its receive is posted. A send that has completed
    /// does not report that its receiver fails later.
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
    /// column.unpack_into(&mut matrix).await?;
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
    ) -> SendOp<PackedCopy<T>> {
        let layout = layout.into();
        layout.check("send_packed", "array", array.len());
        self.send_from_array(to.into(), tag, array, &layout)
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
        let (from, tag) = (from.into(), tag.into());
        let bytes = layout.len().saturating_mul(size_of::<T>());
        let recv = if bytes < IN_PLACE_MIN || from == Source::NoRank {
            self.recv_into(from, tag, scratch)
        } else {
            self.recv_in_place(from, tag, scratch)
        };
        let at = Location::caller();
        RecvPackedOp {
            recv,
            found: None,
            layout,
            deadline: None,
            at,
        }
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
    /// Returns true if a message has arrived, or the receive has failed or is from no rank. Awaiting may still wait until the
    /// sender has packed the message. If this rank cannot read it in place, that returns false again until the bytes are here.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.found.is_some() || self.recv.is_done()
    }

    /// Gives up after `limit`, as [`RecvOp::timeout`] does, also if the sender has not packed the message by then. The message
    /// stays queued then.
    pub fn timeout(mut self, limit: Duration) -> Self {
        if let Some(found) = &mut self.found {
            found.give_up_after(limit);
        } else {
            self.deadline = self.recv.deadline_after(limit);
            self.limit_recv();
        }
        self
    }

    fn limit_recv(&self) {
        if let Some(deadline) = self.deadline {
            self.recv.give_up_at(deadline);
        }
    }

    /// Receives the elements to their places in `array`, without a packed copy where that is possible. Output: the status of the
    /// message, as a `Result<Status, OpError<Vec<T>>>`.
    ///
    /// A long message of a rank on the same node is unpacked while its sender packs it, so this takes less time than awaiting the
    /// message and [unpacking](PackedMessage::unpack_into) it then. If the future fails or is dropped, some elements may be in
    /// their places already.
    ///
    /// ```
    /// # use ripstop_rt::{buffer::Layout, sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let mut matrix = [0_u8; 6]; // 2 rows of 3
    /// let column = world.recv_packed(other, 7, Layout::subarray(&[2, 3], &[0..2, 1..2]));
    /// world.send(other, 7, [4_u8, 5]).await?;
    /// assert_eq!(column.unpack_into(&mut matrix).await?.len, 2);
    /// assert_eq!(matrix, [0, 4, 0, 0, 5, 0]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// The future fails as that of [`Comm::recv_packed`] does.
    ///
    /// # Panics
    /// Panics if the layout leaves `array`.
    #[track_caller]
    pub fn unpack_into(self, array: &mut [T]) -> UnpackOp<'_, T> {
        self.layout.check("unpack_into", "array", array.len());
        UnpackOp { recv: self, array }
    }

    /// Polls for a message. Returns its elements, or `None` if they are read in place.
    fn poll_found(&mut self, cx: &mut Context<'_>) -> Poll<FoundOutcome<T>> {
        while self.found.is_none() {
            let (mut scratch, status, stored) = ready!(self.recv.poll_in_place(cx))?;
            let Some(stored) = stored else {
                scratch.truncate(status.len); // a receive from no rank leaves its buffer as it was
                return Poll::Ready(Ok(Some((scratch, status))));
            };
            match InPlaceMessage::of(stored, status, scratch, self.deadline, self.at) {
                Ok(found) => self.found = Some(found),
                Err(recv) => {
                    self.recv = recv;
                    self.limit_recv();
                }
            }
        }
        Poll::Ready(Ok(None))
    }
}

// The elements are moved, never pinned.
impl<T: Wire> Unpin for RecvPackedOp<T> {}

impl<T: Wire> Future for RecvPackedOp<T> {
    type Output = Result<PackedMessage<T>, OpError<Vec<T>>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (packed, status) = match ready!(self.poll_found(cx))? {
            Some(received) => received,
            None => ready!(InPlaceMessage::poll_copy(&mut self.found, cx))?,
        };
        let layout = mem::replace(&mut self.layout, NestedLayout::nothing());
        Poll::Ready(Ok(PackedMessage {
            packed,
            layout,
            status,
        }))
    }
}

impl<T: Wire> UnpackOp<'_, T> {
    /// Gives up after `limit`, as [`RecvPackedOp::timeout`] does.
    pub fn timeout(self, limit: Duration) -> Self {
        Self {
            recv: self.recv.timeout(limit),
            ..self
        }
    }
}

impl<T: Wire> Future for UnpackOp<'_, T> {
    type Output = Result<Status, OpError<Vec<T>>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { recv, array } = &mut *self;
        if let Some((packed, status)) = ready!(recv.poll_found(cx))? {
            recv.layout.unpack(&packed, array);
            return Poll::Ready(Ok(status));
        }
        InPlaceMessage::poll_unpacked(&mut recv.found, cx, &recv.layout, array)
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

impl<T: Wire> fmt::Debug for UnpackOp<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnpackOp")
            .field("recv", &self.recv)
            .finish_non_exhaustive()
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
