//! Limits how often futures may be ready in a row before other work gets its turn.
//!
//! A future that is ready whenever it is polled never yields its thread: a loop around it would starve the engine,
//! timers, tasks and the requests of peers. So each thread counts the polls of futures, and one in [`POLLS_MAX`] is not
//! ready, whatever it waits for: it wakes itself and lets its executor continue. An executor of this crate refills the
//! count when it begins to poll. Other executors do not know of the count and need not, because it restarts when it is
//! used up.

use std::{
    cell::Cell,
    future::poll_fn,
    task::{Context, Poll},
};

/// Number of polls between two yields. They take a few microseconds, so the executor's work at a yield costs less than
/// 1 %.
const POLLS_MAX: u32 = 128;

thread_local! {
    /// Polls left. The last one is not ready.
    static LEFT: Cell<u32> = const { Cell::new(POLLS_MAX) };
}

/// Called by every future at the beginning of its poll, even if it is about to be ready. Returns pending if other work
/// comes first, and then wakes the future to be polled again.
#[inline]
pub fn poll_proceed(cx: &Context<'_>) -> Poll<()> {
    let left = LEFT.get() - 1;
    LEFT.set(left);
    if left > 0 {
        Poll::Ready(())
    } else {
        give_way(cx)
    }
}

/// Yields if necessary. For an `async fn` that may return without waiting.
#[inline]
pub async fn proceed() {
    poll_fn(|cx| poll_proceed(cx)).await;
}

/// Refills the count when an executor begins to poll, because other work has had its turn.
#[inline]
pub(crate) fn refill() {
    LEFT.set(POLLS_MAX);
}

#[cold]
fn give_way(cx: &Context<'_>) -> Poll<()> {
    refill();
    cx.waker().wake_by_ref();
    Poll::Pending
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::{
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        task::{Wake, Waker},
    };

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn one_poll_in_many_gives_way_and_is_woken_at_once() {
        refill();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let cx = &mut Context::from_waker(&waker);
        for round in 1..=3 {
            let ready = (0..POLLS_MAX).filter(|_| poll_proceed(cx).is_ready());
            assert_eq!(ready.count(), POLLS_MAX as usize - 1);
            assert_eq!(wakes.0.load(Ordering::Relaxed), round);
        }
    }

    #[test]
    fn a_loop_that_is_always_ready_comes_back_to_its_executor() {
        refill();
        let cx = &mut Context::from_waker(Waker::noop());
        let mut endless = pin!(async {
            loop {
                proceed().await;
            }
        });
        for _ in 0..3 {
            assert!(endless.as_mut().poll(cx).is_pending());
        }
    }
}
