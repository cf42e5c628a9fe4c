//! Messages as a stream.

use std::{
    future::poll_fn,
    panic::Location,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;

use super::{Comm, RecvOp, Source, Status, Tag};
use crate::{buffer::Wire, error::Result, ops::About};

/// Every message that matches, in the order of the queue. Made by [`Comm::messages`].
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

    /// The next message: what `StreamExt::next` of any crate gives, without the crate. Never `None`.
    ///
    /// # Errors
    /// As [`Comm::recv`]. A message of another type stays at the head of the queue, and is the next error too.
    pub async fn next(&mut self) -> Option<Result<(Vec<T>, Status)>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
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
    let about = comm.about_recv::<T>(comm.id(), from, tag);
    let about = about.map(|about| About { at, ..about });
    comm.start_growing(about.map_err(|error| error.called_at(at)))
}
