//! Received messages as a stream.

use std::{
    future::poll_fn,
    panic::Location,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;

use super::{Comm, RecvOp, Source, Status, Tag};
use crate::{buffer::Wire, error::Result, ops::OpInfo};

/// Stream of all matching messages, in queue order. Made by [`Comm::messages`].
#[derive(Debug)]
#[must_use = "a stream does nothing until it is polled"]
pub struct Messages<T: Wire> {
    comm: Comm,
    from: Source,
    tag: Tag,
    at: &'static Location<'static>,
    next: RecvOp<Vec<T>>,
}

impl<T: Wire> Messages<T> {
    #[track_caller]
    pub(super) fn new(comm: &Comm, from: Source, tag: Tag) -> Self {
        let at = Location::caller();
        Self {
            comm: comm.clone(),
            from,
            tag,
            at,
            next: receive(comm, from, tag, at),
        }
    }

    /// Waits for the next message. As a `Stream`, this is the same without an end: the next item is never `None`.
    ///
    /// Output: `Result<(Vec<T>, Status)>`.
    ///
    /// ```
    /// # use ripstop_rt::{Runtime, Source};
    /// # let runtime = Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let mut jobs = world.messages::<u32>(Source::Any, 7);
    /// for job in 1_u32..=3 {
    ///     world.send(0, 7, [job]).await?;
    /// }
    /// let mut sum = 0;
    /// while sum < 6 {
    ///     let (job, _status) = jobs.recv().await?;
    ///     sum += job[0];
    /// }
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// The call fails as [`Comm::recv`] does. A message of another type stays at the head of the queue, so the next call
    /// fails in the same way.
    pub async fn recv(&mut self) -> Result<(Vec<T>, Status)> {
        let message = poll_fn(|cx| Pin::new(&mut self.next).poll(cx)).await;
        self.next = receive(&self.comm, self.from, self.tag, self.at);
        Ok(message?)
    }
}

impl<T: Wire> Stream for Messages<T> {
    type Item = Result<(Vec<T>, Status)>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let message = ready!(Pin::new(&mut self.next).poll(cx));
        self.next = receive(&self.comm, self.from, self.tag, self.at);
        Poll::Ready(Some(message.map_err(Into::into)))
    }
}

fn receive<T: Wire>(
    comm: &Comm,
    from: Source,
    tag: Tag,
    at: &'static Location<'static>,
) -> RecvOp<Vec<T>> {
    let info = comm.recv_info::<T>(comm.id(), from, tag);
    let info = info.map(|info| OpInfo { at, ..info });
    comm.start_growing(info.map_err(|error| error.called_at(at)))
}
