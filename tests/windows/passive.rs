//! Locks.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
};

use ripstop::{Collectives, Comm, ErrorKind, Window};

use crate::worlds::{Rank, everywhere};

#[test]
fn the_holder_of_an_exclusive_lock_sees_the_writes_of_previous_holders() {
    const TIMES: usize = 20;
    fn count(world: Comm) -> Rank {
        Box::pin(async move {
            let window = Window::<u64>::allocate(&world, 2).await.unwrap();
            let window = window.into_passive().await.unwrap();
            for _ in 0..TIMES {
                let lock = window.lock_exclusive(0).await.unwrap();
                let [sum, product] = lock.get(0, 0, [0; 2]).await.unwrap();
                assert_eq!(2 * sum, product);
                lock.put(0, 0, [sum + 1]).detach();
                lock.put(0, 1, [2 * (sum + 1)]).await.unwrap();
                lock.unlock().await;
            }
            world.barrier().await.unwrap();
            if world.rank() == 0 {
                let total = (TIMES * world.size()) as u64;
                assert_eq!(window.shared().get(0), total);
                assert_eq!(window.shared().get(1), 2 * total);
            }
            window.free().await.unwrap();
        })
    }
    everywhere(3, count);
}

#[test]
fn a_rank_that_only_waits_is_accessed_by_all_others_at_once() {
    fn all(world: Comm) -> Rank {
        Box::pin(async move {
            let me = world.rank();
            let window = Window::<u32>::allocate(&world, world.size()).await.unwrap();
            let mut window = window.into_passive().await.unwrap();
            let locks = window.lock_all().await.unwrap();
            for rank in 0..world.size() {
                locks.put(rank, me, [1]).await.unwrap();
                locks.flush(rank).await.unwrap();
                locks.fetch_add(rank, me, 5).await.unwrap();
            }
            locks.flush_all().await;
            let wrong = locks.flush(world.size()).await.unwrap_err();
            assert!(wrong.to_string().contains("`rank` is rank 3"), "{wrong}");
            drop(locks);
            world.barrier().await.unwrap();
            let mut own = window.lock_self().await.unwrap();
            assert!(own.mem().iter().all(|&elem| elem == 6));
            own.mem()[0] = 9;
            drop(own);
            window.shared().set(1, 3);
            assert_eq!((window.shared().get(0), window.shared().get(1)), (9, 3));
            world.barrier().await.unwrap();
        })
    }
    everywhere(3, all);
}

#[test]
fn a_flush_that_is_dropped_while_it_waits_leaves_the_next_one_to_wait() {
    fn flush(world: Comm) -> Rank {
        Box::pin(async move {
            let next = (world.rank() + 1) % world.size();
            let window = Window::<u64>::allocate(&world, 1).await.unwrap();
            let window = window.into_passive().await.unwrap();
            let locks = window.lock_all().await.unwrap();
            for value in 1..=3 {
                locks.put(next, 0, [value]).detach();
                poll_once(locks.flush(next));
                locks.flush(next).await.unwrap();
                assert_eq!(locks.get(next, 0, [0]).await.unwrap(), [value]);
            }
            locks.unlock().await;
            world.barrier().await.unwrap();
            assert_eq!(window.shared().get(0), 3);
            window.free().await.unwrap();
        })
    }
    everywhere(3, flush);
}

/// Polls a future once and drops it.
fn poll_once(future: impl Future) {
    let mut cx = Context::from_waker(Waker::noop());
    let _may_wait = pin!(future).poll(&mut cx).is_pending();
}

#[test]
fn a_second_lock_of_the_same_rank_and_a_rank_that_is_not_locked_are_refused() {
    fn wrong(world: Comm) -> Rank {
        Box::pin(async move {
            let window = Window::<u32>::allocate(&world, 1).await.unwrap();
            let window = window.into_passive().await.unwrap();
            let lock = window.lock_shared(0).await.unwrap();
            let again = window.lock_shared(0).await.unwrap_err();
            assert!(matches!(again.kind, ErrorKind::Epoch(_)), "{again}");
            let other = lock.put(1, 0, [1]).await.unwrap_err().to_string();
            assert!(other.contains("has not locked"), "{other}");
            assert!(window.lock_exclusive(9).await.is_err());
            let all = window.lock_all().await.unwrap_err();
            assert!(matches!(all.kind, ErrorKind::Epoch(_)), "{all}");
            lock.unlock().await;
            drop(window.lock_all().await.unwrap());
            window.lock_exclusive(0).await.unwrap().unlock().await;
            world.barrier().await.unwrap();
        })
    }
    everywhere(2, wrong);
}

#[test]
fn a_lock_that_is_given_back_before_it_is_granted_does_first_what_was_begun() {
    fn hurry(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, size) = (world.rank(), world.size());
            let (next, before) = ((me + 1) % size, (me + size - 1) % size);
            for knows in [false, true] {
                let window = Window::<usize>::allocate(&world, 1).await.unwrap();
                let mut window = window.into_passive().await.unwrap();
                if knows {
                    let locks = window.lock_all().await.unwrap();
                    locks.put(next, 0, [99]).await.unwrap();
                    locks.unlock().await;
                    world.barrier().await.unwrap();
                }
                let locks = window.lock_all().await.unwrap();
                locks.put(next, 0, [10 + me]).detach();
                drop(locks);
                // It gets the lock sooner or later, and releases it again.
                while window.lock_self().await.unwrap().mem() != [10 + before] {}
                world.barrier().await.unwrap();
            }
        })
    }
    everywhere(3, hurry);
}

#[test]
fn an_operation_ends_when_its_window_and_its_communicator_are_gone() {
    fn forget(world: Comm) -> Rank {
        Box::pin(async move {
            let next = (world.rank() + 1) % world.size();
            for begun in 0..3 {
                let twin = world.dup().await.unwrap();
                let mut window = Window::<u8>::allocate(&twin, 1).await.unwrap();
                match begun {
                    0 => window.fence().await.unwrap().put(next, 0, [1]).detach(),
                    _ => {
                        let window = window.into_passive().await.unwrap();
                        let locks = window.lock_all().await.unwrap();
                        locks.put(next, 0, [begun]).detach();
                    }
                }
            }
            // A runtime that still had them in flight would not close.
        })
    }
    everywhere(3, forget);
}

/// A length that no other test uses.
const FREED: usize = 4096 * 83;

/// Returns the mappings of this process with this length.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_len = |line: &&str| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
        end - start == FREED
    };
    maps.lines().filter(of_len).count()
}

#[test]
fn a_buffer_comes_back_from_a_passive_window_and_memory_of_one_that_was_freed_goes() {
    fn lend(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, other) = (world.rank(), 1 - world.rank());
            let over = async || {
                let lent = world.alloc::<u64>(FREED / 8).unwrap();
                let window = Window::over(&world, lent).await.unwrap();
                window.into_passive().await.unwrap()
            };
            let window = over().await;
            let lock = window.lock_shared(other).await.unwrap();
            lock.put(other, me, [7]).detach();
            lock.unlock().await;
            let lent = window.into_buffer().await.unwrap();
            assert_eq!((lent.len(), lent[other]), (FREED / 8, 7));
            drop(lent);
            let mut before = 0;
            for round in 0..8 {
                over().await.free().await.unwrap();
                world.barrier().await.unwrap();
                if round == 1 {
                    before = mapped();
                }
            }
            let after = mapped();
            assert!(after < before + 5, "{before} mappings became {after}");
        })
    }
    everywhere(2, lend);
}

#[test]
fn futures_that_are_dropped_leave_no_wakers_behind() {
    struct Quiet;
    impl Wake for Quiet {
        fn wake(self: Arc<Self>) {}
    }
    fn waits<F: Future>(future: F, waker: &Waker) {
        let mut cx = Context::from_waker(waker);
        assert!(pin!(future).poll(&mut cx).is_pending());
    }
    fn dropped(world: Comm) -> Rank {
        Box::pin(async move {
            let other = 1 - world.rank();
            let token = Arc::new(Quiet);
            let waker = Waker::from(Arc::clone(&token));
            let window = Window::<u64>::allocate(&world, 1).await.unwrap();
            waits(window.start(&[other]), &waker);
            let mut window = window.into_passive().await.unwrap();
            if world.rank() == 0 {
                let mine = window.lock_self().await.unwrap();
                world.barrier().await.unwrap();
                world.barrier().await.unwrap();
                drop(mine);
            } else {
                world.barrier().await.unwrap();
                waits(window.lock_exclusive(other), &waker);
                world.barrier().await.unwrap();
            }
            // One for the test, and one for its waker.
            assert_eq!(Arc::strong_count(&token), 2);
            window.free().await.unwrap();
        })
    }
    everywhere(2, dropped);
}
