//! Runs a rank inside of tokio. The rank still waits in `block_on` of its own runtime.

use std::{future::Future, thread};

use tokio::runtime::{Builder, Runtime};

use crate::{comm::Comm, reactor::tokio::drive, settings::ProgressMode};

/// Runs a rank's function so that it can use tasks, timers and sockets of tokio. Threads of tokio serve those. The calling thread
/// runs the function, and waits as it does without tokio.
///
/// When the function returns, tasks of tokio that still run are dropped at their next `await`.
///
/// # Panics
/// Panics if tokio cannot start its threads, or on a simulated fabric, whose time tokio does not know.
pub async fn run_on_tokio<R, Fut>(world: Comm, rank: R) -> Fut::Output
where
    R: FnOnce(Comm) -> Fut,
    Fut: Future,
{
    let shared = world.shared();
    assert!(
        shared.host.is_none(),
        "`tokio` and a simulated fabric do not go together, as tokio waits in real time: leave one of them out"
    );
    let threads = Builder::new_multi_thread().enable_all().build();
    let tokio = TokioGuard(Some(
        threads.unwrap_or_else(|error| panic!("tokio could not start: {error}")),
    ));
    let _inside = tokio.0.as_ref().map(Runtime::enter);
    if shared.settings.progress == ProgressMode::Tokio {
        drop(::tokio::spawn(drive(shared.clone())));
    }
    rank(world).await
}

/// Tokio runtime that shuts down when it is dropped.
struct TokioGuard(Option<Runtime>);

impl Drop for TokioGuard {
    /// Does not wait for tokio's tasks if the rank panics, because its peers wait for its end.
    fn drop(&mut self) {
        if let Some(tokio) = self.0.take_if(|_| thread::panicking()) {
            tokio.shutdown_background();
        }
    }
}
