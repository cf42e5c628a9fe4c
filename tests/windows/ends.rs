//! Ranks that die in an epoch.

use std::time::Duration;

use ripstop::{Comm, ErrorKind, Window, sim::Simulation};

/// Three ranks on the simulator; the last dies after two milliseconds.
fn with_a_death<F: Future<Output = ()> + 'static>(rank: impl Fn(Comm) -> F) {
    let run = Simulation::new(3)
        .seed(2)
        .fabric("hdr")
        .faults("kill=2@2ms");
    run.run(rank).unwrap();
}

fn is_dead(error: &ripstop::Error) -> bool {
    matches!(error.kind, ErrorKind::PeerFailed { rank: 2 })
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
            let _held = window.lock(0, true).await.unwrap();
            return world.sleep(Duration::from_secs(9)).await;
        }
        world.sleep(Duration::from_millis(1)).await;
        let lock = window.lock(0, true).await.unwrap();
        lock.fetch_add(0, 0, 1).await.unwrap();
        lock.unlock().await;
        let error = window.lock(2, false).await.unwrap_err();
        assert!(is_dead(&error), "{error}");
        world.sleep(Duration::from_millis(20)).await; // the other one wants the lock here
    });
}
