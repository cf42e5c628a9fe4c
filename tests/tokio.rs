//! The runtime driven by a task on tokio.
#![expect(clippy::unwrap_used, reason = "a failure is the test's")]

#[path = "support/ranks.rs"]
mod ranks;

use std::{process::ExitCode, sync::mpsc, thread, time::Duration};

use ripstop::{Collectives, Comm, ErrorKind, Runtime, Window};

#[test]
fn operations_are_awaited_in_tokio_tasks_and_select_loses_nothing() {
    on_tokio(async |world| {
        let peer = 1 - world.rank();
        for round in 0..1000_u32 {
            let len = round as usize * 11;
            let sent = world.send(peer, round, vec![u64::from(round); len]);
            // The receive is dropped again and again before it completes; the message stays in the queue.
            let got = loop {
                tokio::select! {
                    biased;
                    () = tokio::task::yield_now() => {}
                    got = world.recv::<u64>(peer, round) => break got.unwrap().0,
                }
                tokio::time::sleep(Duration::from_micros(1)).await;
                let got = world
                    .recv::<u64>(peer, round)
                    .timeout(Duration::from_millis(500))
                    .await;
                if let Ok((got, _)) = got {
                    break got;
                }
            };
            assert_eq!(got, vec![u64::from(round); len]);
            sent.await.unwrap();
        }
        // Spawned tasks run too: one of the world's own, and the rest of a collective of two parts that was dropped.
        let theirs = [vec![1_u64], vec![2; 9]];
        assert_eq!(world.spawn(async { 5 }).await, 5);
        let rows = world.all_to_all_ragged(theirs.to_vec());
        match peer {
            0 => drop(rows),
            _ => assert_eq!(rows.await.unwrap(), [[1], [1]]),
        }
        world.barrier().await.unwrap();
    });
}

/// Both ranks' drivers are asleep when this begins.
fn on_tokio(rank: impl AsyncFn(&Comm) + Copy + Send + Sync + 'static) {
    ranks::run(
        2,
        &[("RIPSTOP_PROGRESS", "tokio")],
        move |runtime: Runtime| {
            let executor = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let world = runtime.world();
            executor.block_on(async {
                let driver = tokio::spawn(runtime.drive_on_tokio());
                tokio::time::sleep(Duration::from_millis(20)).await;
                rank(&world).await;
                driver.abort();
            });
            drop(world);
            runtime.close().unwrap();
        },
    );
}

#[test]
fn a_message_that_finds_no_room_leaves_when_there_is_some_though_the_driver_sleeps() {
    on_tokio(async |world| match world.rank() {
        // There is none until the peer has heard of this rank.
        0 => drop(world.send(1, 0, vec![7_u8; 4096]).await.unwrap()),
        _ => assert_eq!(world.recv::<u8>(0, 0).await.unwrap().0, [7; 4096]),
    });
}

#[test]
fn ranks_that_call_different_collectives_hear_of_it_though_the_driver_sleeps() {
    on_tokio(async |world| {
        // Each rank waits for the other, and neither sends.
        let error = world.bcast(1 - world.rank(), [0_u8; 8]).await.unwrap_err();
        assert!(matches!(error.error.kind, ErrorKind::Mismatch { .. }));
    });
}

/// A thread in `block_on` sleeps where the task on tokio would.
#[test]
fn a_thread_and_tokio_drive_one_runtime_together() {
    for progress in ["tokio", "thread"] {
        ranks::run(2, &[("RIPSTOP_PROGRESS", progress)], |runtime: Runtime| {
            let world = runtime.world();
            let (driver, tasks) = (runtime.drive_on_tokio(), echo(world.clone(), 1));
            let (over, is_over) = mpsc::channel();
            let on_tokio = thread::spawn(move || {
                let executor = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                executor.block_on(async {
                    let driver = tokio::spawn(driver);
                    tasks.await;
                    over.send(()).unwrap();
                    driver.await.unwrap().unwrap();
                });
            });
            runtime.block_on(echo(world, 2));
            is_over.recv().unwrap();
            runtime.close().unwrap();
            on_tokio.join().unwrap();
        });
    }
}

/// One rank sends after a while, again and again, and the other sends the message back.
async fn echo(world: Comm, tag: u32) {
    let peer = 1 - world.rank();
    for round in 0..500_u32 {
        if world.rank() == 0 {
            world
                .sleep(Duration::from_micros(u64::from(tag * round % 300)))
                .await;
            world.send(peer, tag, [round]).await.unwrap();
        }
        let (got, _) = world.recv::<u32>(peer, tag).await.unwrap();
        assert_eq!(got, [round]);
        if world.rank() == 1 {
            world.send(peer, tag, got).await.unwrap();
        }
    }
}

#[ripstop::test(ranks = 2, tokio)]
async fn inside_of_tokio_its_tasks_and_timers_work_and_so_do_tasks_of_the_world(world: Comm) {
    let other = 1 - world.rank();
    let inbox = world.recv::<u64>(other, 1);
    let sender = world.clone();
    let sent = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(1)).await;
        sender.send(other, 1, vec![7_u64; 100_000]).await.unwrap();
    });
    assert_eq!(inbox.await.unwrap().0, vec![7; 100_000]);
    sent.await.unwrap();
    let nested = world.spawn(async { tokio::spawn(async { 5 }).await.unwrap() });
    assert_eq!(nested.await, 5);
    world.barrier().await.unwrap();
}

#[test]
fn a_program_inside_of_tokio_sleeps_by_its_timers_and_returns_its_error() {
    fn program() -> ExitCode {
        #[ripstop::main(tokio)]
        async fn main(world: Comm) -> Result<(), String> {
            tokio::time::sleep(Duration::from_millis(1)).await;
            world.barrier().await.map_err(|error| error.to_string())?;
            Err("it has come this far".to_owned())
        }
        main()
    }
    assert_eq!(program(), ExitCode::FAILURE);
}

#[test]
fn a_runtime_that_nothing_drives_ends_waits_with_an_error_that_says_what_to_do() {
    for (progress, remedy) in [("tokio", "drive_on_tokio"), ("inline", "block_on")] {
        ranks::run(2, &[("RIPSTOP_PROGRESS", progress)], move |runtime| {
            let (world, executor) = (runtime.world(), one_thread());
            let other = 1 - world.rank();
            let ends = executor.block_on(async {
                let sum = world.all_reduce(vec![1_u64; 100_000], ripstop::Sum);
                world.sleep(Duration::from_millis(1)).await; // this ends, too
                let received = world.recv::<u8>(other, 7).await.map(drop);
                [
                    received.map_err(|error| error.error),
                    sum.await.map(drop).map_err(|error| error.error),
                ]
            });
            for end in ends {
                let error = end.unwrap_err();
                let sentence = error.to_string();
                assert!(matches!(error.kind, ErrorKind::Setup(_)), "{sentence}");
                assert!(sentence.contains(remedy) && sentence.contains(progress));
            }
        });
    }
}

#[test]
fn a_task_that_waits_on_tokio_needs_no_driver_where_there_is_an_agent() {
    ranks::run(2, &[], |runtime| {
        let (world, executor) = (runtime.world(), one_thread());
        let other = 1 - world.rank();
        executor.block_on(async {
            for round in 0..200_u32 {
                let inbox = world.recv::<u32>(other, 7);
                world.send(other, 7, vec![round; 10_000]).await.unwrap();
                assert_eq!(inbox.await.unwrap().0, vec![round; 10_000]);
                if round % 50 == 0 {
                    world.sleep(Duration::from_millis(3)).await;
                }
            }
        });
    });
}

fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn tasks_of_the_world_run_where_only_an_agent_drives() {
    ranks::run(2, &[], |runtime| {
        let (world, executor) = (runtime.world(), one_thread());
        let other = 1 - world.rank();
        executor.block_on(async {
            let inner = world.clone();
            let task = world.spawn(async move {
                let inbox = inner.recv::<u8>(other, 7);
                inner.sleep(Duration::from_millis(5)).await;
                let nested = inner.spawn(inner.sleep(Duration::from_millis(5)));
                inner.send(other, 7, [7_u8; 1]).await.unwrap();
                nested.await;
                inbox.await.unwrap().0
            });
            let second = world.spawn(async { 5 });
            assert_eq!((task.await, second.await), (vec![7], 5));
        });
    });
}

#[test]
fn communicators_and_windows_are_made_whatever_each_rank_awaits_first() {
    on_tokio(async |world| {
        for _ in 0..20 {
            let (one, two) = (world.dup(), world.dup());
            let window = Window::<u64>::allocate(world, 4);
            if world.rank() == 0 {
                window.await.unwrap().free().await.unwrap();
                let two = two.await.unwrap();
                assert_ne!(one.await.unwrap().id(), two.id());
            } else {
                let one = one.await.unwrap();
                assert_ne!(two.await.unwrap().id(), one.id());
                window.await.unwrap().free().await.unwrap();
            }
            let copy = world.send_copy(1 - world.rank(), 0, &[7_u8; 100_000]);
            assert_eq!(
                world.recv::<u8>(1 - world.rank(), 0).await.unwrap().0,
                [7; 100_000]
            );
            copy.await.unwrap();
        }
    });
}
