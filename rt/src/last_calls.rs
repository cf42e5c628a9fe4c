//! Comparison of the last collective calls with those of the peers, before a rank leaves its job.
//!
//! The runtime calls this when it closes. It finds ranks that called different collectives although none of the calls failed.

use std::{
    future::{Future as _, poll_fn},
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use crate::{error::Result, executor, shared::RuntimeShared};

/// Maximum time that a rank waits for silent peers, which may be computing without a progress agent.
const LIMIT: Duration = Duration::from_secs(2);

/// First and longest pause between two notifications of the peers.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(1024)];

/// Compares the last collective calls of this rank with those of its peers. `in_order` is true if this rank calls no
/// collective any more.
///
/// # Errors
/// `Mismatch` if two ranks have called different collectives, and no call of this rank has failed with that error.
pub(crate) fn compare_calls(shared: &Arc<RuntimeShared>, in_order: bool) -> Result<()> {
    let begun = in_order.then(|| shared.on_world.load(Ordering::Relaxed));
    if !shared.with(|engine| engine.begin_comparison(begun)) {
        return Ok(());
    }
    executor::block_on(shared, wait_for_all(shared));
    let untold = shared.with(|engine| {
        engine
            .core
            .collectives()
            .disagreements()
            .tell_members_of_mismatch();
        engine
            .core
            .collectives()
            .disagreements()
            .take_untold_mismatch()
    });
    untold.map_or(Ok(()), Err)
}

/// Notifies the peers that ranks called different collectives, before this rank ends without closing because of that.
pub(crate) fn notify_mismatch(shared: &Arc<RuntimeShared>) {
    if !shared.with(|engine| {
        engine
            .core
            .collectives()
            .disagreements()
            .knows_of_mismatch()
    }) {
        return;
    }
    shared.with(|engine| {
        engine
            .core
            .collectives()
            .disagreements()
            .tell_members_of_mismatch()
    });
    executor::block_on(shared, async {
        let end = shared.clock.now() + LIMIT;
        let [mut pause, longest] = PAUSES;
        // The pauses let this rank detect peers that have ended, which will never take its messages.
        while !shared.with(|engine| engine.core.has_sent_all()) && shared.clock.now() < end {
            executor::sleep(shared, pause, None).await;
            pause = (pause * 2).min(longest);
        }
    });
}

async fn wait_for_all(shared: &Arc<RuntimeShared>) {
    let end = shared.clock.now() + LIMIT;
    let [mut pause, longest] = PAUSES;
    loop {
        let mut nap = pin!(executor::sleep(shared, pause, None));
        let is_done = poll_fn(|cx| {
            let compared =
                shared.with(|engine| engine.core.collectives().poll_compared(cx.waker()));
            if compared.is_ready() {
                return Poll::Ready(true);
            }
            nap.as_mut().poll(cx).map(|()| false)
        });
        if is_done.await || shared.clock.now() >= end {
            return;
        }
        shared.with(|engine| engine.compare_again());
        pause = (pause * 2).min(longest);
    }
}
