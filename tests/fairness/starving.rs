//! Loops of operations that are ready whenever they are polled.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use ripstop::{Collectives, Comm, Sum, Window};

/// An operation that is repeated again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Starving {
    Messages,
    Copies,
    Stream,
    Probes,
    Sleeps,
    Tasks,
    Barriers,
    Reductions,
    Plans,
    Ragged,
    Communicators,
    Agreements,
    GetsAndFlushes,
    Puts,
    Atomics,
    Locks,
    LocksOfAll,
    Fences,
    Epochs,
}

impl Starving {
    pub(crate) const ALL: &[Self] = &[
        Self::Messages,
        Self::Copies,
        Self::Stream,
        Self::Probes,
        Self::Sleeps,
        Self::Tasks,
        Self::Barriers,
        Self::Reductions,
        Self::Plans,
        Self::Ragged,
        Self::Communicators,
        Self::Agreements,
        Self::GetsAndFlushes,
        Self::Puts,
        Self::Atomics,
        Self::Locks,
        Self::LocksOfAll,
        Self::Fences,
        Self::Epochs,
    ];

    /// `alone` is a communicator of this rank only.
    pub(crate) async fn until(self, end: &AtomicBool, world: &Comm, alone: &Comm) {
        let goes_on = || !end.load(Ordering::Relaxed);
        match self {
            Self::Messages => {
                while goes_on() {
                    to_itself(world).await;
                }
            }
            Self::Copies => {
                while goes_on() {
                    let inbox = alone.recv_into(0, 0, [0_u8; 1]);
                    alone.send_copy(0, 0, &[1_u8]).await.unwrap();
                    inbox.await.unwrap();
                }
            }
            Self::Stream => {
                let mut messages = alone.messages::<u8>(0, 0);
                while goes_on() {
                    alone.send(0, 0, [1_u8]).detach();
                    messages.recv().await.unwrap();
                }
            }
            Self::Probes => probe(goes_on, alone).await,
            Self::Sleeps => {
                while goes_on() {
                    alone.sleep(Duration::ZERO).await;
                }
            }
            Self::Tasks => {
                while goes_on() {
                    alone.spawn(async {}).await;
                }
            }
            Self::Barriers => {
                while goes_on() {
                    alone.barrier().await.unwrap();
                }
            }
            Self::Reductions => {
                while goes_on() {
                    alone.all_reduce([1_u64], Sum).await.unwrap();
                    alone.bcast(0, [1_u8]).await.unwrap();
                }
            }
            Self::Plans => {
                let mut plan = alone.barrier_plan().await.unwrap();
                while goes_on() {
                    plan.run().await.unwrap();
                }
            }
            Self::Ragged => {
                while goes_on() {
                    alone.all_to_all_ragged(vec![vec![1_u8]]).await.unwrap();
                }
            }
            Self::Communicators => {
                while goes_on() {
                    drop(alone.dup().await.unwrap());
                }
            }
            Self::Agreements => {
                while goes_on() {
                    alone.agree(true).await.unwrap();
                }
            }
            _ => self.of_windows(goes_on, alone).await,
        }
    }

    async fn of_windows(self, goes_on: impl Fn() -> bool, alone: &Comm) {
        let mut window = Window::<u64>::allocate(alone, 4).await.unwrap();
        match self {
            Self::Fences => {
                while goes_on() {
                    window.fence().await.unwrap().end().await.unwrap();
                }
                return;
            }
            Self::Epochs => {
                while goes_on() {
                    let exposure = window.post(&[0]).unwrap();
                    let access = exposure.start(&[0]).await.unwrap();
                    access.complete().await.unwrap();
                    exposure.wait().await.unwrap();
                }
                return;
            }
            _ => {}
        }
        let window = window.into_passive().await.unwrap();
        match self {
            Self::Locks => {
                while goes_on() {
                    drop(window.lock_exclusive(0).await.unwrap());
                }
                return;
            }
            Self::LocksOfAll => {
                while goes_on() {
                    drop(window.lock_all().await.unwrap());
                }
                return;
            }
            _ => {}
        }
        let lock = window.lock_shared(0).await.unwrap();
        while goes_on() {
            match self {
                Self::GetsAndFlushes => {
                    assert_eq!(lock.get(0, 0, [7_u64]).await.unwrap(), [0]);
                    lock.flush(0).await.unwrap();
                }
                Self::Puts => drop(lock.put(0, 1, [7_u64]).await.unwrap()),
                _ => {
                    lock.fetch_op(0, 2, 1, Sum).await.unwrap();
                    lock.compare_exchange(0, 3, 0, 0).await.unwrap();
                }
            }
        }
    }
}

/// Sends a message of a rank to itself.
pub(crate) async fn to_itself(world: &Comm) {
    let (me, tag) = (world.rank(), 9);
    let inbox = world.recv_into(me, tag, [0_u8; 1]);
    world.send(me, tag, [7_u8; 1]).await.unwrap();
    assert_eq!(inbox.await.unwrap().0, [7]);
}

/// Probes a message to itself again and again.
async fn probe(goes_on: impl Fn() -> bool, alone: &Comm) {
    alone.send(0, 0, [1_u8]).detach();
    while goes_on() {
        drop(alone.probe(0, 0).await.unwrap());
    }
    alone.recv::<u8>(0, 0).await.unwrap();
}
