//! The target's side of post, start, complete, wait.

use std::{future::poll_fn, panic::Location};

use ripstop_rt::{Result, buffer::Wire, onesided::Port};

use crate::Start;

/// Our memory is open to the origins that were named.
///
/// Holding one proves that nobody else in this process can touch the memory as a slice. It does not prove that anybody has
/// come.
///
/// Dropping it leaves the epoch open: the memory is out of reach until [`Window::resume`](crate::Window::resume) gives it
/// back and it was waited for.
#[derive(Debug)]
#[must_use = "the memory is out of reach until `wait`"]
pub struct Exposure<'w, T: Wire> {
    port: &'w mut Port<T>,
}

impl<'w, T: Wire> Exposure<'w, T> {
    pub(crate) fn new(port: &'w mut Port<T>) -> Self {
        Self { port }
    }

    /// Waits until every origin has completed its access, and gives the memory back, with what they put there.
    ///
    /// # Errors
    /// An origin failed, finished or freed its window before that. All the others have completed then, the epoch is over and
    /// the memory is the window's again.
    pub async fn wait(self) -> Result<&'w mut [T]> {
        let port = self.port;
        poll_fn(|cx| port.poll_closed(cx)).await?;
        port.local_mut()
    }

    /// Whether [`wait`](Self::wait) would not wait.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.port.is_over()
    }

    /// As [`Window::start`](crate::Window::start), while the own memory is exposed.
    ///
    /// # Errors
    /// As [`Window::start`](crate::Window::start).
    #[track_caller]
    pub fn start(&self, targets: &[usize]) -> Start<'_, T> {
        Start::new(self.port, targets, Location::caller())
    }
}
