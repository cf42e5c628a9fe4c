//! Ranks that die in an epoch.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use ripstop::{
    Comm, ErrorKind, Runtime, Window,
    settings::Settings,
    sim::{Simulation, now},
};

use crate::ranks;

/// Runs three ranks on the simulator; the last one dies after two milliseconds.
fn with_a_death<F: Future<Output = ()> + 'static>(rank: impl Fn(Comm) -> F) {
    let run = Simulation::new(3)
        .seed(2)
        .fabric("hdr")
        .faults("kill=2@2ms");
    run.run(rank).unwrap();
}

fn is_dead(error: &ripstop::Error) -> bool {
    matches!(error.kind, ErrorKind::PeerFailed { rank: 2, .. })
}

#[test]
fn an_exposure_ends_with_an_error_when_the_others_have_completed_and_the_memory_is_back() {
    with_a_death(async |world| {
        let mut window = Window::<u32>::allocate(&world, 1).await.unwrap();
        match world.rank() {
            0 => {
                let error = window.post(&[1, 2]).unwrap().wait().await.unwrap_err();
                assert!(is_dead(&error), "{error}");
                assert_eq!(window.local_mut(), [5]);
                window.post(&[1]).unwrap().wait().await.unwrap();
            }
            1 => {
                world.sleep(Duration::from_millis(20)).await;
                for _ in 0..2 {
                    let access = window.start(&[0]).await.unwrap();
                    access.put(0, 0, [5]).await.unwrap();
                    access.complete().await.unwrap();
                }
            }
            _ => world.sleep(Duration::from_secs(9)).await,
        }
    });
}

#[test]
fn a_start_and_a_fence_towards_the_dead_end_with_an_error() {
    with_a_death(async |world| {
        let mut window = Window::<u32>::allocate(&world, 1).await.unwrap();
        if world.rank() == 2 {
            return world.sleep(Duration::from_secs(9)).await;
        }
        let error = window.start(&[2]).await.unwrap_err();
        assert!(is_dead(&error), "{error}");
        let error = window.fence().await.unwrap_err();
        assert!(is_dead(&error), "{error}");
    });
}

#[test]
fn a_lock_that_dies_with_its_holder_goes_to_the_next() {
    with_a_death(async |world| {
        let window = Window::<u32>::allocate(&world, 1).await.unwrap();
        let window = window.into_passive().await.unwrap();
        if world.rank() == 2 {
            let _held = window.lock_exclusive(0).await.unwrap();
            return world.sleep(Duration::from_secs(9)).await;
        }
        world.sleep(Duration::from_millis(1)).await;
        let lock = window.lock_exclusive(0).await.unwrap();
        lock.fetch_add(0, 0, 1).await.unwrap();
        lock.unlock().await;
        let error = window.lock_shared(2).await.unwrap_err();
        assert!(is_dead(&error), "{error}");
        world.sleep(Duration::from_millis(20)).await; // the other rank waits for the lock here
    });
}

#[test]
fn what_is_put_and_flushed_to_the_dead_ends_with_an_error() {
    with_a_death(async |world| {
        let window = Window::<u32>::allocate(&world, 1).await.unwrap();
        let window = window.into_passive().await.unwrap();
        if world.rank() > 0 {
            return world.sleep(Duration::from_secs(9)).await;
        }
        let lock = window.lock_shared(2).await.unwrap();
        lock.put(2, 0, [1]).await.unwrap();
        lock.flush(2).await.unwrap();
        while lock.put(2, 0, [1]).await.is_ok() {}
        let error = lock.flush(2).await.unwrap_err();
        assert!(is_dead(&error), "{error}");
        let error = lock.put(2, 0, [1]).await.unwrap_err().error;
        assert!(is_dead(&error), "{error}");
    });
}

/// Peers take memory back when they see that a rank has left.
#[test]
fn a_rank_leaves_when_it_can_store_to_the_memory_of_others_no_more() {
    leaves_when_it_stores_no_more(|runtime| runtime.close().unwrap());
}

#[test]
fn a_rank_that_panics_has_failed_when_it_can_store_to_the_memory_of_others_no_more() {
    leaves_when_it_stores_no_more(|runtime| {
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _dropped = runtime;
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
    });
}

/// An epoch is in flight when the runtime ends.
fn leaves_when_it_stores_no_more(end: fn(Runtime)) {
    ranks::run(2, &[], move |runtime: Runtime| {
        let world = runtime.world();
        let window = Window::<u64>::allocate(&world, 1);
        let mut window = runtime.block_on(window).unwrap();
        if world.rank() == 0 {
            let _ended = runtime.block_on(window.post(&[1]).unwrap().wait());
            // Accesses without mapped memory go through the runtime, which was closed before the second one.
            let by_runtime = !Settings::from_environment()
                .unwrap()
                .fabric
                .is_shared_memory();
            assert_eq!(window.local(), [if by_runtime { 6 } else { 7 }]);
            return;
        }
        let access = runtime.block_on(window.start(&[0])).unwrap();
        access.put(0, 0, [6]).detach();
        end(runtime);
        #[expect(
            clippy::disallowed_methods,
            reason = "gives other ranks time to take it for failed; the runtime's own sleep is closed"
        )]
        std::thread::sleep(Duration::from_millis(50));
        access.put(0, 0, [7]).detach();
    });
}

#[test]
fn memory_that_others_may_still_store_to_stays_out_of_reach_of_a_rank_that_has_left() {
    const LEFT: u32 = 5;
    ranks::run(2, &[], |runtime: Runtime| {
        let world = runtime.world();
        let window = Window::<u64>::allocate(&world, 1);
        let mut window = runtime.block_on(window).unwrap();
        if world.rank() == 1 {
            let access = runtime.block_on(window.start(&[0])).unwrap();
            runtime.block_on(world.send(0, LEFT, [0_u8])).unwrap();
            // Waits until the other rank has left.
            assert!(runtime.block_on(world.recv::<u8>(0, LEFT)).is_err());
            access.put(0, 0, [6]).detach();
            return;
        }
        let _dropped = window.post(&[1]).unwrap();
        runtime.block_on(world.recv::<u8>(1, LEFT)).unwrap();
        drop(world);
        runtime.close().unwrap();
        let exposure = window.resume().unwrap();
        let waited = pin!(exposure.wait()).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(waited, Poll::Ready(Err(_))), "it is closed");
        assert!(window.try_local_mut().is_err());
    });
}

#[test]
fn a_rank_leaves_at_once_where_its_windows_have_no_epoch_open() {
    ranks::run(2, &[], |runtime: Runtime| {
        let world = runtime.world();
        let window = Window::<u64>::allocate(&world, 1);
        let mut window = runtime.block_on(window).unwrap();
        if world.rank() == 0 {
            runtime.block_on(window.post(&[1]).unwrap().wait()).unwrap();
            // The window of the other rank is freed only when this one is.
            let error = runtime.block_on(world.recv::<u8>(1, 0)).unwrap_err();
            assert!(matches!(
                error.error.kind,
                ErrorKind::PeerFinished { rank: 1 }
            ));
            let waited = runtime.block_on(window.post(&[1]).unwrap().wait());
            assert!(waited.is_err());
            return;
        }
        let access = runtime.block_on(window.start(&[0])).unwrap();
        access.put(0, 0, [6]).detach();
        runtime.block_on(access.complete()).unwrap();
        drop(world);
        runtime.close().unwrap();
        let mut start = pin!(window.start(&[0]));
        let started = start.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(started, Poll::Ready(Err(_))), "it is closed");
    });
}

/// A passive window in whose fences this rank took part blocks no rank, unless a lock is held.
#[test]
fn a_rank_leaves_at_once_where_its_windows_have_become_passive() {
    ranks::run(2, &[], |runtime: Runtime| {
        let world = runtime.world();
        let window = runtime.block_on(async {
            let mut window = Window::<u64>::allocate(&world, 1).await.unwrap();
            let mut fence = window.fence().await.unwrap();
            for value in [5, 6] {
                fence.put(1 - world.rank(), 0, [value]).await.unwrap();
                fence = fence.fence().await.unwrap();
            }
            assert_eq!(fence.end().await.unwrap(), [6]);
            window.into_passive().await.unwrap()
        });
        if world.rank() == 0 {
            let error = runtime.block_on(world.recv::<u8>(1, 0)).unwrap_err();
            let left = matches!(error.error.kind, ErrorKind::PeerFinished { rank: 1 });
            assert!(left, "{}", error.error);
            return;
        }
        drop(world);
        runtime.close().unwrap();
        // The leaked window is never freed. If it held other ranks back, they would never complete.
        std::mem::forget(window);
    });
}

#[test]
fn a_fence_ends_with_an_error_also_where_the_dead_is_no_neighbor() {
    let run = Simulation::new(8)
        .seed(2)
        .fabric("hdr")
        .faults("kill=5@2ms");
    let rank = async |world: Comm| {
        let mut window = Window::<u32>::allocate(&world, 1).await.unwrap();
        if world.rank() == 5 {
            return world.sleep(Duration::from_secs(9)).await;
        }
        let error = window.fence().await.unwrap_err();
        assert!(
            matches!(error.kind, ErrorKind::PeerFailed { rank: 5, .. }),
            "{error}"
        );
        let knows = now(&world);
        world.sleep(Duration::from_secs(5)).await; // a rank that knows must not help the others by its end
        assert!(knows < Duration::from_secs(1), "{knows:?}");
    };
    run.run(rank).unwrap();
}

#[test]
fn an_answer_to_a_lock_that_was_taken_back_is_none_to_the_next() {
    let rank = async |world: Comm| {
        let window = Window::<u32>::allocate(&world, 1).await.unwrap();
        let window = window.into_passive().await.unwrap();
        if world.rank() > 0 {
            if world.rank() == 1 {
                assert!(once(window.lock_exclusive(0)).await.is_none());
                world.sleep(Duration::from_nanos(300)).await;
            }
            let lock = window.lock_exclusive(0).await.unwrap();
            let before = lock.fetch_add(0, 0, 1).await.unwrap();
            world.sleep(Duration::from_micros(50)).await;
            let after = lock.fetch_add(0, 0, 1).await.unwrap();
            assert_eq!(after, before + 1, "two ranks are alone inside");
            lock.unlock().await;
        }
        window.free().await.unwrap();
    };
    let run = Simulation::new(3).seed(2).fabric("hdr");
    run.run(rank).unwrap();
}

/// Polls the future once.
async fn once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
