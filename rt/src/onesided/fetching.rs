//! The future of an update that returns the old value.

use std::{
    fmt,
    panic::Location,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{Element, RemoteOp};
use crate::{
    error::{Error, Result},
    executor::poll_proceed,
};

/// A fetching update in flight. It has already been started; dropping it detaches it.
#[must_use = "await it, or drop it to let it continue in the background"]
pub struct Fetching<T: Element> {
    state: FetchingState<T>,
}

enum FetchingState<T: Element> {
    /// The old value, until it is returned.
    Done(Option<T>),
    /// The error, until it is returned. Boxed, because it is rare and would make the others longer.
    Failed(Option<Box<Error>>),
    One(RemoteOp<[T; 1]>),
    Two(RemoteOp<[T; 2]>),
}

impl<T: Element> Fetching<T> {
    /// Creates a completed one.
    #[inline]
    pub(super) fn done(old: T) -> Self {
        Self {
            state: FetchingState::Done(Some(old)),
        }
    }

    /// Creates an operation that failed before it started.
    #[cold]
    #[track_caller]
    pub(crate) fn failed(error: Error) -> Self {
        let error = error.called_at(Location::caller());
        Self {
            state: FetchingState::Failed(Some(Box::new(error))),
        }
    }

    pub(super) fn one(op: RemoteOp<[T; 1]>) -> Self {
        Self {
            state: FetchingState::One(op),
        }
    }

    pub(super) fn two(op: RemoteOp<[T; 2]>) -> Self {
        Self {
            state: FetchingState::Two(op),
        }
    }
}

impl<T: Element> Future for Fetching<T> {
    type Output = Result<T>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let FetchingState::Done(old) = &mut self.state else {
            return self.poll_engine(cx);
        };
        ready!(poll_proceed(cx));
        match old.take() {
            Some(old) => Poll::Ready(Ok(old)),
            None => polled_after_end(),
        }
    }
}

impl<T: Element> Fetching<T> {
    /// Polls an update that did not complete at its call.
    #[inline(never)]
    fn poll_engine(&mut self, cx: &mut Context<'_>) -> Poll<Result<T>> {
        Poll::Ready(match &mut self.state {
            FetchingState::Done(_) => polled_after_end(),
            FetchingState::Failed(error) => {
                ready!(poll_proceed(cx));
                match error.take() {
                    Some(error) => Err(*error),
                    None => polled_after_end(),
                }
            }
            FetchingState::One(op) => ready!(Pin::new(op).poll(cx))
                .map(|[old]| old)
                .map_err(|error| error.error),
            FetchingState::Two(op) => ready!(Pin::new(op).poll(cx))
                .map(|[old, _]| old)
                .map_err(|error| error.error),
        })
    }
}

#[cold]
fn polled_after_end() -> ! {
    panic!("a fetch was polled after it had completed")
}

// The number is moved, never pinned.
impl<T: Element> Unpin for Fetching<T> {}

impl<T: Element> fmt::Debug for Fetching<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fetching")
    }
}
