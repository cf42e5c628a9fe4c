//! The reactor as a task on tokio: sleeps are an `AsyncFd`.

use std::{future::poll_fn, io, os::fd::OwnedFd, pin::pin, sync::Arc, task::Poll, time::Duration};

use tokio::{
    io::{Interest, unix::AsyncFd},
    task, time,
};

use crate::{
    executor,
    shared::{Prepared, Shared},
};

/// Makes turns and runs spawned tasks until the runtime is closed, and sleeps in between.
///
/// Threads in `block_on` and the progress agent may do the same: while one of them sleeps in the seat there is nothing to do here
/// but tasks.
///
/// # Errors
/// What the system said about the descriptor.
pub(crate) async fn drive(shared: Arc<Shared>) -> io::Result<()> {
    let fd = watch(shared.readable_fd())?;
    let _called = Called(&shared);
    while !shared.agent.is_stopped() {
        let events = shared.turn();
        executor::run_tasks(&shared);
        if events.is_some_and(|events| events > 0) {
            task::yield_now().await;
            continue;
        }
        let prepared = poll_fn(|cx| Poll::Ready(shared.prepare_sleep(cx.waker())));
        match prepared.await? {
            Prepared::Busy => task::yield_now().await,
            Prepared::Taken => poll_fn(|cx| shared.poll_called(cx.waker())).await,
            Prepared::Until(limit, nth) => {
                let _asleep = Asleep(&shared, nth);
                sleep(&shared, &fd, limit).await?;
            }
        }
    }
    Ok(())
}

/// Until this is dropped, by waking up or with the whole task, turns are left to the sleeper.
struct Asleep<'a>(&'a Shared, u64);

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.end_sleep(self.1);
    }
}

/// Until this is dropped, whoever leaves the seat tells this task.
struct Called<'a>(&'a Shared);

impl Drop for Called<'_> {
    fn drop(&mut self) {
        self.0.call_off();
    }
}

async fn sleep(
    shared: &Shared,
    fd: &AsyncFd<Arc<OwnedFd>>,
    limit: Option<Duration>,
) -> io::Result<()> {
    // No limit is a day: somebody who looks once a day costs nothing, and the code has one path.
    let limit = limit.unwrap_or(Duration::from_secs(24 * 3600));
    let mut late = pin!(time::sleep(limit));
    poll_fn(|cx| {
        if let Poll::Ready(ready) = fd.poll_read_ready(cx) {
            ready?.clear_ready();
            return Poll::Ready(Ok(()));
        }
        match shared.poll_called(cx.waker()) {
            Poll::Pending => late.as_mut().poll(cx).map(Ok),
            called => called.map(Ok),
        }
    })
    .await
}

#[expect(
    deprecated,
    reason = "what replaces it is unsafe, for descriptors that may close early; this one is held"
)]
fn watch(fd: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}
