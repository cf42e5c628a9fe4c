//! Yielding to others.

use std::{future::poll_fn, task::Poll};

/// Pending once, and woken immediately, so that the runtime makes a turn in between.
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

/// Makes turns until the condition holds. The test's own time limit ends it if it never does.
pub(crate) async fn until(mut it_is_so: impl FnMut() -> bool) {
    while !it_is_so() {
        turn().await;
    }
}
