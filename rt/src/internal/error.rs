//! Errors that Ripstop's own crates return in place of the runtime.

use std::panic::Location;

use crate::{
    Error, OpError,
    onesided::{Element, Fetching, RemoteOp},
};

/// Methods of [`Error`] for Ripstop's own crates.
pub trait ErrorInternals {
    /// Returns this error with `at` as the source line of the operation.
    #[must_use]
    fn called_at(self, at: &'static Location<'static>) -> Self;
}

impl ErrorInternals for Error {
    fn called_at(self, at: &'static Location<'static>) -> Self {
        Self::called_at(self, at)
    }
}

/// Returns an operation on a window that failed before it started.
#[cold]
#[track_caller]
pub fn failed_op<B: Send + 'static>(error: OpError<B>) -> RemoteOp<B> {
    RemoteOp::failed(error)
}

/// Returns a fetching update that failed before it started.
#[cold]
#[track_caller]
pub fn failed_fetch<T: Element>(error: Error) -> Fetching<T> {
    Fetching::failed(error)
}
