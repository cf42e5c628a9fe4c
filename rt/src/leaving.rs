//! What a rank does before it leaves its job: it compares which collectives it has called last with those of its peers.

use std::{
    future::{Future as _, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use crate::{
    error::{Error, Result},
    executor,
    shared::Shared,
};

/// The longest that a rank waits for peers that say nothing, because they compute without a progress agent.
const LIMIT: Duration = Duration::from_secs(2);

/// Pauses after which the peers are told again.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(128)];

/// Compares what this rank has called with what its peers have. `in_order`: it calls no collective any more.
///
/// # Errors
/// `Mismatch`, if two ranks have called different collectives, and no call of this rank has ended with that error.
pub(crate) fn compare_calls(shared: &Arc<Shared>, in_order: bool) -> Result<()> {
    if !shared.with(|engine| engine.begin_comparison(in_order)) {
        return Ok(());
    }
    executor::block_on(shared, async {
        wait_for_all(shared).await;
        if shared.with(|engine| engine.core.misses_a_letter().is_some()) {
            // What it has sent before it left has come by then.
            executor::sleep(shared, PAUSES[0]).await;
            shared.with(|engine| engine.core.blame_absent());
        }
    });
    let kind = shared.with(|engine| {
        engine.core.tell_members_of_mismatch();
        engine.core.take_untold_mismatch()
    });
    kind.map_or(Ok(()), |kind| Err(Error::new("close", kind)))
}

/// Before a rank ends without closing, because it heard that ranks called different collectives: tells the peers that.
pub(crate) fn pass_news_on(shared: &Arc<Shared>) {
    if !shared.with(|engine| engine.core.knows_of_mismatch()) {
        return;
    }
    shared.with(|engine| engine.core.tell_members_of_mismatch());
    executor::block_on(shared, async {
        let end = shared.clock.now() + LIMIT;
        let [mut pause, longest] = PAUSES;
        // The pauses let this rank notice peers that have ended, to which it waits in vain to send.
        while !shared.with(|engine| engine.core.has_said_all()) && shared.clock.now() < end {
            executor::sleep(shared, pause).await;
            pause = (pause * 2).min(longest);
        }
    });
}

async fn wait_for_all(shared: &Arc<Shared>) {
    let end = shared.clock.now() + LIMIT;
    let [mut pause, longest] = PAUSES;
    loop {
        let mut nap = pin!(executor::sleep(shared, pause));
        let is_done = poll_fn(|cx| {
            let compared = shared.with(|engine| engine.core.poll_compared(cx.waker()));
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
