//! Ranks inside of tokio, which wait in `block_on` of their own runtime all the same.

use std::{future::Future, thread};

use tokio::runtime::{Builder, Runtime};

use crate::{comm::Comm, reactor::tokio::drive, settings::ProgressMode};

/// Runs a rank's function where tasks, timers and sockets of tokio work. Threads of tokio's serve those; the rank's own thread
/// is the one that calls this, and waits as it does without tokio.
///
/// When the function returns, tasks of tokio's that run still are dropped at their next `await`.
///
/// # Panics
/// When tokio cannot start its threads, and on a simulated fabric, whose time tokio does not know.
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
    let tokio =
        Tokio(Some(threads.unwrap_or_else(|error| {
            panic!("tokio could not start: {error}")
        })));
    let _inside = tokio.0.as_ref().map(Runtime::enter);
    if shared.settings.progress == ProgressMode::Tokio {
        drop(::tokio::spawn(drive(shared.clone())));
    }
    rank(world).await
}

/// Ends with what is in it.
struct Tokio(Option<Runtime>);

impl Drop for Tokio {
    /// A rank that panics waits for no peer: its peers wait for its end.
    fn drop(&mut self) {
        if let Some(tokio) = self.0.take_if(|_| thread::panicking()) {
            tokio.shutdown_background();
        }
    }
}
