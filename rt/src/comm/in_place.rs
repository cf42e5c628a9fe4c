//! The receiver's side of packed messages that are read in the memory of their sender.

use std::{
    hint, mem,
    panic::Location,
    task::{Context, Poll, ready},
    thread,
};

use super::{Matched, RecvOp, Status, op::StoredArrival};
use crate::{
    buffer::{self, NestedLayout, Wire},
    engine::BlockReader,
    error::OpError,
};

/// Least length in bytes of a message that is packed into a block. What the driver sends eagerly is never packed into one.
pub(super) const IN_PLACE_MIN: usize = 4096;

/// How often a receiver looks for further packed elements before it gives way to other tasks.
const LOOKS: u32 = 200;

/// A message in a packing block. Dropping it puts the message back in the queue, where it can be read in place again.
pub(super) struct InPlaceMessage<T> {
    reader: BlockReader,
    matched: Matched,
    status: Status,
    /// The vector of the receive, which has room for the elements.
    scratch: Vec<T>,
    /// Elements that are in their places.
    done: usize,
    /// Call site of the receive.
    at: &'static Location<'static>,
}

/// A packed message with its status, or the error of its receive.
type CopyOutcome<T> = Result<(Vec<T>, Status), OpError<Vec<T>>>;

impl<T: Wire> InPlaceMessage<T> {
    /// Returns a message that a receive at `at` has got without its bytes. If this rank cannot read the message in place, returns
    /// a receive of the bytes.
    pub(super) fn of(
        stored: StoredArrival,
        status: Status,
        scratch: Vec<T>,
        at: &'static Location<'static>,
    ) -> Result<Self, RecvOp<Vec<T>>> {
        let matched = Matched::of(stored);
        match matched.read_in_place() {
            Some(reader) => Ok(Self {
                reader,
                matched,
                status,
                scratch,
                done: 0,
                at,
            }),
            None => Err(matched.recv_into_at(at, scratch)),
        }
    }

    /// Polls for a copy of the whole message. Takes the message then, and also if it fails.
    pub(super) fn poll_copy(found: &mut Option<Self>, cx: &Context<'_>) -> Poll<CopyOutcome<T>> {
        ready!(Self::poll_packed(found, cx, usize::MAX))?;
        let mut message = found.take().expect("just polled");
        let bytes = message.reader.bytes(0, message.reader.len());
        let _len = buffer::receive(&mut message.scratch, bytes);
        message.matched.take_in_place();
        Poll::Ready(Ok((message.scratch, message.status)))
    }

    /// Writes elements to their places as far as they are packed, until that is the whole message. Takes the message then, and
    /// also if it fails.
    pub(super) fn poll_unpacked(
        found: &mut Option<Self>,
        cx: &Context<'_>,
        layout: &NestedLayout,
        array: &mut [T],
    ) -> Poll<Result<Status, OpError<Vec<T>>>> {
        loop {
            let packed = ready!(Self::poll_packed(found, cx, 1))? / size_of::<T>();
            let message = found.as_mut().expect("just polled");
            layout.fill(array, message.done..packed, |from, elems| {
                let (from, len) = (from * size_of::<T>(), size_of_val(elems));
                let bytes = message.reader.bytes(from, len);
                bytes.copy_into(bytemuck::cast_slice_mut(elems));
            });
            message.done = packed;
            if packed == message.status.len {
                let message = found.take().expect("just polled");
                message.matched.take_in_place();
                return Poll::Ready(Ok(message.status));
            }
        }
    }

    /// Polls until this many further elements are packed, or all of them. Returns how many bytes are packed.
    fn poll_packed(
        found: &mut Option<Self>,
        cx: &Context<'_>,
        further: usize,
    ) -> Poll<Result<usize, OpError<Vec<T>>>> {
        let message = found.as_mut().expect("a message that is read in place");
        let wanted = message.done.saturating_add(further).min(message.status.len) * size_of::<T>();
        for _ in 0..LOOKS {
            let packed = message.reader.packed();
            if packed >= wanted {
                return Poll::Ready(Ok(packed));
            }
            hint::spin_loop();
        }
        let down = message.matched.sender_error::<T>(message.at);
        if let Some(error) = down.filter(|_| message.reader.packed() < wanted) {
            let buf = mem::take(&mut message.scratch);
            *found = None;
            return Poll::Ready(Err(OpError { error, buf }));
        }
        // The sender packs at this moment, in a call that waits for nothing but perhaps for this processor.
        thread::yield_now();
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
