//! Post, start, complete, wait.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use ripstop::{
    Collectives, Comm, ErrorKind, Window,
    sim::{Simulation, now},
};

use crate::worlds::{Rank, everywhere};

/// Returns the data that `from` puts in epoch `n`.
fn value(from: usize, n: usize) -> u64 {
    (from * 1_000 + n) as u64
}

#[test]
fn neighbors_in_a_ring_see_what_was_put_in_every_epoch() {
    fn ring(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, size) = (world.rank(), world.size());
            let (left, right) = ((me + size - 1) % size, (me + 1) % size);
            let mut window = Window::<u64>::allocate(&world, 4).await.unwrap();
            for n in 0..20 {
                let exposure = window.post(&[left, right]).unwrap();
                let access = exposure.start(&[left, right]).await.unwrap();
                let block = vec![value(me, n); 2];
                let block = access.put(left, 2, block).await.unwrap();
                access.put(right, 0, block).await.unwrap();
                access.complete().await.unwrap();
                let mine = exposure.wait().await.unwrap();
                let [l, r] = [value(left, n), value(right, n)];
                assert_eq!(mine, [l, l, r, r]);
                mine.fill(0);
            }
            window.free().await.unwrap();
        })
    }
    everywhere(3, ring);
}

#[test]
fn either_side_may_come_first_and_an_epoch_may_be_empty() {
    fn turns(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<f64>::allocate(&world, 1).await.unwrap();
            let mut expected = 0.0;
            for n in 0..12_u32 {
                let late = u32::try_from(world.rank()).unwrap() == n % 2;
                if late {
                    world.sleep(Duration::from_micros(300)).await;
                }
                if world.rank() == 0 {
                    let access = window.start(&[1]).await.unwrap();
                    if n % 3 != 0 {
                        access.put(1, 0, [f64::from(n)]).await.unwrap();
                    }
                    access.complete().await.unwrap();
                } else {
                    if n % 3 != 0 {
                        expected = f64::from(n);
                    }
                    assert_eq!(window.post(&[0]).unwrap().wait().await.unwrap(), [expected]);
                }
            }
            window.free().await.unwrap();
        })
    }
    everywhere(2, turns);
}

#[test]
fn a_rank_puts_to_itself_and_gets_from_itself() {
    fn alone(world: Comm) -> Rank {
        Box::pin(async move {
            let me = world.rank();
            let mut window = Window::<u8>::allocate(&world, 5).await.unwrap();
            let exposure = window.post(&[me]).unwrap();
            let access = exposure.start(&[me]).await.unwrap();
            access.put(me, 1, vec![7, 8, 9]).await.unwrap();
            access.complete().await.unwrap();
            assert_eq!(exposure.wait().await.unwrap(), [0, 7, 8, 9, 0]);
            let exposure = window.post(&[me]).unwrap();
            let access = exposure.start(&[me]).await.unwrap();
            let got = access.get(me, 2, Vec::with_capacity(3)).await.unwrap();
            assert_eq!(got, [8, 9, 0]);
            access.complete().await.unwrap();
            exposure.wait().await.unwrap();
        })
    }
    everywhere(1, alone);
}

#[test]
fn windows_and_epochs_overlap_and_long_puts_need_not_be_awaited() {
    const LEN: usize = 300_000;
    fn many(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, size) = (world.rank(), world.size());
            let mut windows = Vec::new();
            for n in 0..3 {
                windows.push(Window::<u32>::allocate(&world, LEN + n).await.unwrap());
            }
            let (to, from) = ((me + 1) % size, (me + size - 1) % size);
            let exposures: Vec<_> = windows
                .iter_mut()
                .map(|window| window.post(&[from]).unwrap())
                .collect();
            let mark = |rank: usize, n: usize| u32::try_from(rank * 16 + n).unwrap();
            for (n, exposure) in exposures.iter().enumerate() {
                let access = exposure.start(&[to]).await.unwrap();
                access.put(to, n, vec![mark(me, n); LEN]).detach();
            }
            for (n, exposure) in exposures.into_iter().enumerate() {
                let mine = exposure.wait().await.unwrap();
                assert!(mine[n..].iter().all(|&elem| elem == mark(from, n)));
            }
        })
    }
    everywhere(3, many);
}

#[test]
fn what_is_wrong_is_refused_with_a_sentence_and_buffers_come_back() {
    fn wrong(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, other) = (world.rank(), 1 - world.rank());
            let mut window = Window::<u16>::allocate(&world, 3 + me).await.unwrap();
            let twice = window.post(&[other, other]).unwrap_err().to_string();
            assert!(
                twice.contains("names rank") && twice.contains("twice"),
                "{twice}"
            );
            let beyond = window.start(&[7]).await.unwrap_err().to_string();
            assert!(beyond.contains("`targets` is rank 7"), "{beyond}");
            let exposure = window.post(&[other]).unwrap();
            let access = exposure.start(&[other]).await.unwrap();
            let again = exposure.start(&[other]).await.unwrap_err();
            assert!(matches!(again.kind, ErrorKind::Epoch(_)), "{again}");
            for (at, len) in [(0, 9), (9, 0), (usize::MAX, 2), (3 + other, 1)] {
                let failed = access.put(other, at, vec![1; len]).await.unwrap_err();
                assert_eq!(failed.buf.len(), len);
                let sentence = failed.to_string();
                assert!(sentence.contains(&format!("`at` is {at}")), "{sentence}");
                assert!(access.get(other, at, vec![1; len]).await.is_err());
            }
            let stranger = access.put(me, 0, vec![1]).await.unwrap_err().to_string();
            assert!(stranger.contains("accesses ranks"), "{stranger}");
            access.complete().await.unwrap();
            exposure.wait().await.unwrap();
        })
    }
    everywhere(2, wrong);
}

#[test]
fn a_start_that_gives_up_names_window_rank_and_line_and_has_not_happened() {
    fn late(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<u8>::allocate(&world, 1).await.unwrap();
            if world.rank() == 0 {
                let limit = Duration::from_millis(2);
                let error = window.start(&[1]).timeout(limit).await.unwrap_err();
                let sentence = error.to_string();
                assert!(
                    sentence.contains("rank 1") && sentence.contains("window 0"),
                    "{sentence}"
                );
                assert!(sentence.contains("pscw.rs:"), "{sentence}");
            }
            world.barrier().await.unwrap();
            if world.rank() == 0 {
                let access = window.start(&[1]).await.unwrap();
                access.put(1, 0, [3]).await.unwrap();
            } else {
                assert_eq!(window.post(&[0]).unwrap().wait().await.unwrap(), [3]);
            }
        })
    }
    everywhere(2, late);
}

#[test]
fn a_wait_that_gives_up_names_window_rank_and_line_and_the_memory_stays_exposed() {
    fn late(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<u8>::allocate(&world, 1).await.unwrap();
            if world.rank() == 0 {
                let limit = Duration::from_millis(2);
                let exposure = window.post(&[1]).unwrap();
                let error = exposure.wait().timeout(limit).await.unwrap_err();
                let sentence = error.to_string();
                assert!(
                    sentence.contains("rank 1") && sentence.contains("window 0"),
                    "{sentence}"
                );
                assert!(sentence.contains("pscw.rs:"), "{sentence}");
                assert!(window.try_local_mut().is_err());
            }
            world.barrier().await.unwrap();
            if world.rank() == 0 {
                let limit = Duration::from_secs(600);
                let exposure = window.resume().unwrap();
                assert_eq!(exposure.wait().timeout(limit).await.unwrap(), [3]);
            } else {
                let access = window.start(&[0]).await.unwrap();
                access.put(0, 0, [3]).await.unwrap();
            }
        })
    }
    everywhere(2, late);
}

#[test]
fn memory_of_a_leaked_exposure_is_out_of_reach_until_it_is_over() {
    fn leak(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<i32>::allocate(&world, 1).await.unwrap();
            if world.rank() == 0 {
                let _forgotten = window.post(&[1]).unwrap();
                let error = window.try_local_mut().unwrap_err();
                assert!(matches!(error.kind, ErrorKind::Epoch(_)), "{error}");
                assert!(window.post(&[1]).is_err());
                world.barrier().await.unwrap();
                let exposure = window.resume().unwrap();
                assert_eq!(exposure.wait().await.unwrap(), [-4]);
                assert_eq!(window.local_mut(), [-4]);
                assert!(window.resume().is_none());
            } else {
                let access = window.start(&[0]).await.unwrap();
                access.put(0, 0, [-4]).await.unwrap();
                drop(access);
                world.barrier().await.unwrap();
            }
        })
    }
    everywhere(2, leak);
}

#[test]
fn types_of_the_ends_are_compared_and_freed_ends_are_told() {
    fn ends(world: Comm) -> Rank {
        Box::pin(async move {
            if world.rank() == 0 {
                let window = Window::<u32>::allocate(&world, 1).await.unwrap();
                let error = window.start(&[1]).await.unwrap_err();
                assert!(
                    matches!(error.kind, ErrorKind::TypeMismatch { .. }),
                    "{error}"
                );
                let gone = Window::<u32>::allocate(&world, 1).await.unwrap();
                world.barrier().await.unwrap();
                let error = gone.start(&[1]).await.unwrap_err();
                assert!(matches!(error.kind, ErrorKind::NoWindow { .. }), "{error}");
                world.barrier().await.unwrap();
            } else {
                let mut window = Window::<f32>::allocate(&world, 1).await.unwrap();
                let exposure = window.post(&[0]).unwrap();
                drop(Window::<u32>::allocate(&world, 1).await.unwrap());
                world.barrier().await.unwrap();
                world.barrier().await.unwrap();
                let error = exposure.wait().await.unwrap_err();
                assert!(matches!(error.kind, ErrorKind::NoWindow { .. }), "{error}");
            }
        })
    }
    everywhere(2, ends);
}

#[test]
fn a_window_over_a_part_of_a_buffer_writes_to_that_and_gives_it_back() {
    fn part(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, other) = (world.rank(), 1 - world.rank());
            let (mut head, tail) = world.alloc::<u32>(5).unwrap().split_at(2);
            head.fill(9);
            let mut window = Window::over(&world, tail).await.unwrap();
            window.local_mut()[2] = 4;
            let exposure = window.post(&[other]).unwrap();
            let access = exposure.start(&[other]).await.unwrap();
            access
                .put(other, 0, [u32::try_from(me).unwrap() + 1])
                .await
                .unwrap();
            assert_eq!(access.get(other, 2, [0]).await.unwrap(), [4]);
            assert_eq!(access.fetch_add(other, 1, 7).await.unwrap(), 0);
            assert!(access.put(other, 3, [1]).await.is_err());
            access.complete().await.unwrap();
            exposure.wait().await.unwrap();
            let tail = window.into_buffer().await.unwrap();
            let all = head.join(tail).unwrap();
            assert_eq!(*all, [9, 9, u32::try_from(other).unwrap() + 1, 7, 4]);
        })
    }
    everywhere(2, part);
}

#[test]
fn a_window_of_a_vector_has_its_elements_and_gives_them_back() {
    fn lent(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, other) = (world.rank(), 1 - world.rank());
            let elems = vec![me as u64; 3 + me];
            let mut window = Window::from_vec(&world, elems).await.unwrap();
            let exposure = window.post(&[other]).unwrap();
            let access = exposure.start(&[other]).await.unwrap();
            assert_eq!(access.get(other, 0, [9]).await.unwrap(), [other as u64]);
            access.put(other, 2, [7]).await.unwrap();
            access.complete().await.unwrap();
            exposure.wait().await.unwrap();
            let mut expected = vec![me as u64; 3 + me];
            expected[2] = 7;
            assert_eq!(window.into_vec().await.unwrap(), expected);
            let nothing = Window::<u64>::from_vec(&world, Vec::new()).await.unwrap();
            assert_eq!(nothing.into_vec().await.unwrap(), []);
        })
    }
    everywhere(2, lent);
}

#[test]
fn neighbors_that_were_met_cost_nothing_more_in_the_first_epoch() {
    fn times(meets: bool) -> [Duration; 2] {
        let first = Arc::new(Mutex::new([Duration::ZERO; 2]));
        let told = Arc::clone(&first);
        let rank = move |world: Comm| {
            let told = Arc::clone(&told);
            async move {
                let (me, size) = (world.rank(), world.size());
                let neighbors = [(me + 1) % size, (me + size - 1) % size];
                let mut window = Window::<u64>::allocate(&world, 2).await.unwrap();
                if meets {
                    window.meet(&neighbors).await.unwrap();
                }
                let mut took = [Duration::ZERO; 2];
                for epoch in &mut took {
                    world.barrier().await.unwrap();
                    let start = now(&world);
                    let exposure = window.post(&neighbors).unwrap();
                    let access = exposure.start(&neighbors).await.unwrap();
                    access.complete().await.unwrap();
                    exposure.wait().await.unwrap();
                    *epoch = now(&world) - start;
                }
                if me == 0 {
                    *told.lock().unwrap() = took;
                }
            }
        };
        let run = Simulation::new(8).seed(3).fabric("hdr").run(rank);
        assert_eq!(run.unwrap().leaked, 0);
        *first.lock().unwrap()
    }
    let [[met, later], [strange, _]] = [true, false].map(times);
    assert!(met <= later * 5 / 4, "{met:?}, later {later:?}");
    assert!(strange > later * 3 / 2, "{strange:?}, later {later:?}");
}

#[test]
fn strangers_cannot_be_met() {
    fn strangers(world: Comm) -> Rank {
        Box::pin(async move {
            let window = Window::<u64>::allocate(&world, 1).await.unwrap();
            let beyond = window.meet(&[5]).await.unwrap_err().to_string();
            assert!(beyond.contains("`neighbors` is rank 5"), "{beyond}");
            let other = 1 - world.rank();
            let twice = window.meet(&[other, other]).await.unwrap_err().to_string();
            assert!(twice.contains("twice"), "{twice}");
            window.meet(&[other]).await.unwrap();
            window.meet(&[other, world.rank()]).await.unwrap();
            window.free().await.unwrap();
        })
    }
    everywhere(2, strangers);
}
