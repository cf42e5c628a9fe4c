//! Code of the application that panics when the runtime wakes or drops it: no other operation is affected.

#![expect(clippy::unwrap_used, reason = "a failure is the test's")]

use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use ripstop::{Collectives, Comm, Runtime, buffer::SendBuf};

use crate::ranks;

const LEN: usize = 100_000;

/// Panics when it is dropped.
struct Bomb<T>(T);

impl<T> Drop for Bomb<T> {
    fn drop(&mut self) {
        panic!("a drop, on purpose");
    }
}

impl SendBuf for Bomb<Vec<u64>> {
    type Elem = u64;

    fn elems(&self) -> &[u64] {
        &self.0
    }
}

impl Future for Bomb<()> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

impl Wake for Bomb<()> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        panic!("a wake-up, on purpose");
    }
}

/// Runs on two ranks, in each way to drive the runtime, and afterwards checks that the runtime still works.
fn whole_after(rank: impl Fn(&Runtime, &Comm) + Copy + Send + Sync + 'static) {
    for progress in ["thread", "inline"] {
        ranks::run(2, &[("RIPSTOP_PROGRESS", progress)], move |runtime| {
            let world = runtime.world();
            rank(&runtime, &world);
            runtime.block_on(async {
                let peer = 1 - world.rank();
                let sent = world.send(peer, 1, vec![3_u64; LEN]);
                let (got, _) = world.recv::<u64>(peer, 1).await.unwrap();
                assert_eq!(got, [3; LEN]);
                sent.await.unwrap();
                world.barrier().await.unwrap();
            });
            drop(world);
            runtime.close().unwrap();
        });
    }
}

#[test]
fn a_buffer_that_panics_when_it_is_dropped() {
    whole_after(|runtime, world| {
        let peer = 1 - world.rank();
        for _ in 0..8 {
            world.send(peer, 0, Bomb(vec![1; LEN])).detach();
        }
        let lent = [5; LEN];
        // The panics happen inside calls of others, which hold borrowed memory.
        runtime.scope(|scope| {
            let sent = scope.send(world, peer, 2, &lent);
            let got = runtime.block_on(async {
                for _ in 0..8 {
                    assert_eq!(world.recv::<u64>(peer, 0).await.unwrap().0, [1; LEN]);
                }
                world.recv::<u64>(peer, 2).await.unwrap().0
            });
            sent.wait().unwrap();
            assert_eq!(got, lent);
        });
    });
}

#[test]
fn a_waker_that_panics() {
    whole_after(|runtime, world| {
        let peer = 1 - world.rank();
        let waker = Waker::from(Arc::new(Bomb(())));
        let mut inbox = pin!(world.recv::<u64>(peer, 0));
        let polled = inbox.as_mut().poll(&mut Context::from_waker(&waker));
        std::mem::forget(waker); // only its wake-ups matter
        assert!(polled.is_pending());
        runtime.block_on(world.barrier()).unwrap();
        runtime.block_on(world.send(peer, 0, [7_u64])).unwrap();
        let (got, _) = runtime.block_on(inbox).unwrap();
        assert_eq!(got, [7]);
    });
}

#[test]
fn a_future_that_panics_when_its_task_is_over() {
    whole_after(|runtime, _| {
        runtime.block_on(runtime.spawn(Bomb(())));
    });
}

#[test]
fn a_sleep_that_begins_after_the_end_is_over_at_once() {
    ranks::run(1, &[], |runtime| {
        let world = runtime.world();
        runtime.close().unwrap();
        let mut slept = pin!(world.sleep(Duration::from_millis(1)));
        assert!(
            slept
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_ready()
        );
    });
}
