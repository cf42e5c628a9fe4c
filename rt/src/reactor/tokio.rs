//! The reactor as a task on tokio: sleeps are an `AsyncFd`.

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use tokio::{
    io::{Interest, unix::AsyncFd},
    task, time,
};

use crate::{
    executor,
    shared::{Prepared, Shared},
};

/// Makes turns and runs spawned tasks for ever, and sleeps in between.
///
/// # Errors
/// What the system said about the descriptor.
pub(crate) async fn drive(shared: Arc<Shared>) -> io::Result<()> {
    let fd = watch(shared.readable_fd())?;
    loop {
        let moved = shared.turn() != Some(0);
        executor::run_tasks(&shared);
        if moved {
            task::yield_now().await;
            continue;
        }
        match shared.prepare_sleep()? {
            Prepared::Busy => task::yield_now().await,
            Prepared::Until(limit) => {
                let _asleep = Asleep(&shared);
                sleep(&fd, limit).await?;
            }
        }
        if shared.agent.is_stopped() {
            return Ok(());
        }
    }
}

/// Until this is dropped, by waking up or with the whole task, turns are left to the sleeper.
struct Asleep<'a>(&'a Shared);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.end_sleep();
    }
}

async fn sleep(fd: &AsyncFd<Arc<OwnedFd>>, limit: Option<Duration>) -> io::Result<()> {
    // No limit is a day: somebody who looks once a day costs nothing, and the code has one path.
    let limit = limit.unwrap_or(Duration::from_secs(24 * 3600));
    if let Ok(ready) = time::timeout(limit, fd.readable()).await {
        ready?.clear_ready();
    }
    Ok(())
}

#[expect(
    deprecated,
    reason = "what replaces it is unsafe, for descriptors that may close early; this one is held"
)]
fn watch(fd: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}
