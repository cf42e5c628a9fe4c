//! Letting others go first.

use std::{future::poll_fn, task::Poll};

/// Pending once, and woken at once: the runtime makes a turn in between.
pub(crate) async fn turn() {
    let mut first = true;
    poll_fn(|cx| {
        if std::mem::take(&mut first) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

/// Makes turns until it is so. The test's own time limit ends it if it never is.
pub(crate) async fn until(mut it_is_so: impl FnMut() -> bool) {
    while !it_is_so() {
        turn().await;
    }
}
