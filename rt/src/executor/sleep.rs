//! A future that completes at a point in time.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{drives, poll_proceed};
use crate::{engine::Sleeper, shared::Shared};

/// Returns a future that completes after `duration`.
pub(crate) fn sleep(shared: &Arc<Shared>, duration: Duration) -> Sleep {
    let deadline = shared.clock.now() + duration;
    let sleeper = shared.with(|engine| engine.core.fall_asleep(deadline));
    shared.nudge();
    Sleep {
        shared: Arc::clone(shared),
        sleeper,
    }
}

/// Future made by [`sleep`].
pub(crate) struct Sleep {
    shared: Arc<Shared>,
    sleeper: Sleeper,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        ready!(poll_proceed(cx));
        let shared = &self.shared;
        let polled = shared.with(|engine| engine.core.poll_sleeper(self.sleeper, cx.waker()));
        if polled.is_pending() && !drives(shared) {
            shared.wait_elsewhere();
        }
        polled
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.shared
            .with(|engine| engine.core.wake_sleeper(self.sleeper));
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sleep")
    }
}
