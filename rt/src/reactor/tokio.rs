//! The reactor as a task on tokio, which sleeps on an `AsyncFd`.

use std::{
    future::poll_fn, io, mem, os::fd::OwnedFd, pin::pin, sync::Arc, task::Poll, thread,
    time::Duration,
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    task, time,
};

use super::{Cooldown, CooldownAction};
use crate::{
    executor,
    shared::{PreparedSleep, RuntimeShared},
};

/// Makes turns and runs spawned tasks until the runtime is closed, and sleeps in between.
///
/// Polls of futures make turns too, for a moment. So do threads in `block_on` and the progress agent, for as long as
/// they wait. While any of them is active, this task only checks now and then whether that is still so, because two
/// of them that make turns would disturb each other.
///
/// # Errors
/// The system returns an error about the descriptor.
pub(crate) async fn drive(shared: Arc<RuntimeShared>) -> io::Result<()> {
    let fd = watch(shared.readable_fd())?;
    let _driving = shared.drivers.task();
    let _called = SeatWaiterGuard(&shared);
    let mut cooldown = Cooldown::new(shared.wake_cost());
    while !shared.agent.is_stopped() {
        let waits = shared.drivers.wait_count();
        let events = turns(&shared);
        executor::run_tasks(&shared);
        let seen = shared.turns();
        if events || shared.has_tasks() {
            shared.end_wait(&mut cooldown);
            task::yield_now().await;
        } else {
            match cooldown.after_empty(shared.is_crowded(), || shared.clock.now()) {
                CooldownAction::Spin => task::yield_now().await,
                CooldownAction::Yield => {
                    thread::yield_now();
                    task::yield_now().await;
                }
                CooldownAction::Park => rest(&shared, &fd).await?,
            }
        }
        if shared.turns() != seen && leave_it(&shared, seen, waits).await {
            shared.end_wait(&mut cooldown);
        }
    }
    Ok(())
}

/// Makes a few turns, until one finds events. Returns true if one does.
fn turns(shared: &RuntimeShared) -> bool {
    (0..TURNS).any(|_| shared.turn().is_some_and(|events| events > 0))
}

/// Sleeps until something happens.
async fn rest(shared: &RuntimeShared, fd: &AsyncFd<Arc<OwnedFd>>) -> io::Result<()> {
    let prepared = poll_fn(|cx| Poll::Ready(shared.prepare_sleep(cx.waker())));
    match prepared.await? {
        PreparedSleep::Busy => task::yield_now().await,
        PreparedSleep::Taken => poll_fn(|cx| shared.poll_seat_waiter(cx.waker())).await,
        PreparedSleep::Until(limit, nth) => {
            let _asleep = AsleepGuard(shared, nth);
            sleep(shared, fd, limit).await?;
        }
    }
    Ok(())
}

/// Leaves the turns to other threads, until they make none for a tick, or one of them waits. Returns true if one of
/// them waits.
async fn leave_it(shared: &RuntimeShared, mut seen: u64, waits: u32) -> bool {
    loop {
        let turns = shared.turns();
        if turns == seen || shared.agent.is_stopped() {
            return false;
        }
        seen = turns;
        let mut tick = pin!(time::sleep(TICK));
        let mut is_new = true;
        let called = poll_fn(|cx| {
            if mem::take(&mut is_new) {
                shared.register_seat_waiter(cx.waker());
                // A thread or task may have begun to wait before this task registered its waker.
                if shared.drivers.wait_count() != waits || shared.has_tasks() {
                    return Poll::Ready(true);
                }
            } else if shared.poll_seat_waiter(cx.waker()).is_ready() {
                return Poll::Ready(true);
            }
            tick.as_mut().poll(cx).map(|()| false)
        });
        if called.await {
            return true;
        }
    }
}

/// Time for which this task leaves the turns to other threads; the same as the agent's tick.
const TICK: Duration = Duration::from_millis(1);

/// Turns before other tasks of tokio run. A scheduling round of tokio costs as much as several turns.
const TURNS: u32 = 16;

/// Guard: turns are left to this sleeper until the guard is dropped, by waking up or together with the whole task.
struct AsleepGuard<'a>(&'a RuntimeShared, u64);

impl Drop for AsleepGuard<'_> {
    fn drop(&mut self) {
        self.0.end_sleep(self.1);
    }
}

/// Guard: a thread that leaves the seat wakes this task until the guard is dropped.
struct SeatWaiterGuard<'a>(&'a RuntimeShared);

impl Drop for SeatWaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.unregister_seat_waiter();
        self.0.allow_spinning();
    }
}

async fn sleep(
    shared: &RuntimeShared,
    fd: &AsyncFd<Arc<OwnedFd>>,
    limit: Option<Duration>,
) -> io::Result<()> {
    // No limit means one day: waking once a day costs nothing, and the code has one path.
    let limit = limit.unwrap_or(Duration::from_secs(24 * 3600));
    let mut late = pin!(time::sleep(limit));
    poll_fn(|cx| {
        if let Poll::Ready(ready) = fd.poll_read_ready(cx) {
            ready?.clear_ready();
            return Poll::Ready(Ok(()));
        }
        match shared.poll_seat_waiter(cx.waker()) {
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
