//! A future that completes at a point in time.

use std::{
    fmt,
    panic::Location,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{drives, poll_proceed};
use crate::{
    clock::ClockTime,
    engine::{SleepCall, SleeperId},
    shared::RuntimeShared,
};

/// Returns a future that completes after `duration`. `at` is the line of the application that sleeps, if it does.
pub(crate) fn sleep(
    shared: &Arc<RuntimeShared>,
    duration: Duration,
    at: Option<&'static Location<'static>>,
) -> SleepFuture {
    let began = shared.clock.now();
    let call = SleepCall { duration, at };
    let sleeper = shared.with(|engine| engine.core.fall_asleep(began + duration, call));
    shared.wake_seat_sleeper();
    SleepFuture {
        shared: Arc::clone(shared),
        sleeper,
        began,
    }
}

/// Future made by [`sleep`].
pub(crate) struct SleepFuture {
    shared: Arc<RuntimeShared>,
    sleeper: SleeperId,
    began: ClockTime,
}

impl Future for SleepFuture {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        ready!(poll_proceed(cx));
        let shared = &self.shared;
        let polled = shared.with(|engine| {
            let polled = engine.core.poll_sleeper(self.sleeper, cx.waker());
            if polled.is_pending() {
                shared.publish_sleep(engine, self.began);
            }
            polled
        });
        if polled.is_pending() && !drives(shared) {
            shared.record_foreign_pending();
        }
        polled
    }
}

impl Drop for SleepFuture {
    fn drop(&mut self) {
        self.shared
            .with(|engine| engine.core.wake_sleeper(self.sleeper));
    }
}

impl fmt::Debug for SleepFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SleepFuture")
    }
}
