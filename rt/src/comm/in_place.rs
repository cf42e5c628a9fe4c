//! The receiver's side of packed messages that are read in the memory of their sender.

use std::{
    hint, mem,
    panic::Location,
    task::{Context, Poll, ready},
    thread,
    time::Duration,
};

use super::{Matched, RecvOp, Status, op::StoredArrival};
use crate::{
    buffer::{self, NestedLayout, Wire},
    clock::ClockTime,
    engine::BlockReader,
    error::OpError,
    reactor,
};

/// Least length in bytes of a message that is packed into a block. What the driver sends eagerly is never packed into one.
pub(super) const IN_PLACE_MIN: usize = 4096;

/// How often a receiver looks for further packed elements before it gives way to other tasks.
const LOOKS: u32 = 200;

/// A message in a packing block. Dropping it puts the message back in the queue, where it can be read in place again.
pub(super) struct InPlaceMessage<T: Wire> {
    reader: BlockReader,
    matched: Matched,
    /// The receive that waits until the message is packed, after this rank has spun. It has the message and the vector.
    waiting: Option<RecvOp<Vec<T>>>,
    status: Status,
    /// The vector of the receive, which has room for the elements.
    scratch: Vec<T>,
    /// Elements that are in their places.
    done: usize,
    /// Bytes that were packed at the last look, and since when no more are.
    seen: (usize, Option<ClockTime>),
    /// Time at which the receive gives up.
    deadline: Option<ClockTime>,
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
        deadline: Option<ClockTime>,
        at: &'static Location<'static>,
    ) -> Result<Self, RecvOp<Vec<T>>> {
        let matched = Matched::of(stored);
        match matched.read_in_place() {
            Some(reader) => Ok(Self {
                reader,
                matched,
                waiting: None,
                status,
                scratch,
                done: 0,
                seen: (0, None),
                deadline,
                at,
            }),
            None => Err(matched.recv_into_at(at, scratch)),
        }
    }

    /// Gives up after `limit` if the message is not packed by then.
    pub(super) fn give_up_after(&mut self, limit: Duration) {
        self.deadline = Some(self.matched.shared().clock.now() + limit);
        self.limit_waiting();
    }

    fn limit_waiting(&self) {
        if let (Some(waiting), Some(deadline)) = (&self.waiting, self.deadline) {
            waiting.give_up_at(deadline);
        }
    }

    /// Polls for a copy of the whole message. Takes the message then, and also if it fails.
    pub(super) fn poll_copy(
        found: &mut Option<Self>,
        cx: &mut Context<'_>,
    ) -> Poll<CopyOutcome<T>> {
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
        cx: &mut Context<'_>,
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
    ///
    /// This spins as long as other waits do, because the sender packs at this moment. Then it waits by an operation.
    fn poll_packed(
        found: &mut Option<Self>,
        cx: &mut Context<'_>,
        further: usize,
    ) -> Poll<Result<usize, OpError<Vec<T>>>> {
        loop {
            let message = found.as_mut().expect("a message that is read in place");
            if let Err(failed) = ready!(message.poll_waiting(cx)) {
                *found = None;
                return Poll::Ready(Err(failed));
            }
            let wanted =
                message.done.saturating_add(further).min(message.status.len) * size_of::<T>();
            for _ in 0..LOOKS {
                let packed = message.reader.packed();
                if packed >= wanted {
                    message.seen = (packed, None);
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
            if message.may_spin() {
                // The sender may wait for this processor.
                thread::yield_now();
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            message.wait();
        }
    }

    /// Returns true if this rank looks again without an operation: not for long after the last element that was packed.
    fn may_spin(&mut self) -> bool {
        let shared = self.matched.shared();
        let (now, packed) = (shared.clock.now(), self.reader.packed());
        let (before, since) = self.seen;
        let since = since.filter(|_| packed == before).unwrap_or(now);
        self.seen = (packed, Some(since));
        now.since(since) < reactor::longest_spin(shared.wake_cost())
            && self.deadline.is_none_or(|deadline| now < deadline)
    }

    /// Begins to wait by an operation, which the sender completes.
    fn wait(&mut self) {
        let scratch = mem::take(&mut self.scratch);
        let waiting = self.matched.await_packing(self.at, &self.reader, scratch);
        self.waiting = Some(waiting);
        self.limit_waiting();
    }

    /// Polls the operation by which this rank waits, if it does. Takes the message back from it.
    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), OpError<Vec<T>>>> {
        let Some(waiting) = &mut self.waiting else {
            return Poll::Ready(Ok(()));
        };
        let (scratch, _, stored) = ready!(waiting.poll_in_place(cx))?;
        self.waiting = None;
        self.scratch = scratch;
        self.matched = Matched::of(stored.expect("it completes without the bytes"));
        self.seen.1 = None;
        Poll::Ready(Ok(()))
    }
}
