//! Windows whose making and freeing proceeds without being polled.

use ripstop::{
    Collectives, Comm, Error, ErrorKind, Halo, Result, Runtime, Sum, Window, rma::PassiveWindow,
};

use crate::ranks;

/// The modes in which a rank's threads, and other ranks, move messages in flight.
const MODES: [&str; 2] = ["inline", "thread"];

fn in_both_modes(
    ranks: u32,
    rank: impl AsyncFn(&Comm) -> Result<()> + Copy + Send + Sync + 'static,
) {
    for mode in MODES {
        ranks::run(
            ranks,
            &[("RIPSTOP_PROGRESS", mode)],
            move |runtime: Runtime| {
                let world = runtime.world();
                runtime.block_on(rank(&world)).unwrap();
                drop(world);
                runtime.close().unwrap();
            },
        );
    }
}

#[test]
fn windows_are_made_and_freed_whatever_each_rank_awaits_first() {
    in_both_modes(3, async |world| {
        let me = world.rank();
        for _ in 0..10 {
            let (one, two) = (
                Window::<u64>::allocate(world, 4),
                Window::over(world, world.alloc::<u64>(me + 1)?),
            );
            let (three, four) = (
                Window::<u64>::dynamic(world),
                Window::from_vec(world, vec![me as u64]),
            );
            let (one, two, three, four) = if me == 1 {
                let (four, three) = (four.await?, three.await?);
                let (two, one) = (two.await?, one.await?);
                (one, two, three, four)
            } else {
                (one.await?, two.await?, three.await?, four.await?)
            };
            assert_eq!([one.len(), two.len(), three.len()], [4, me + 1, 0]);
            assert_eq!(four.local(), [me as u64]);
            let (one, two) = (one.into_passive(), two.into_passive());
            let (one, two): (PassiveWindow<_>, PassiveWindow<_>) = if me == 0 {
                let two = two.await?;
                (one.await?, two)
            } else {
                (one.await?, two.await?)
            };
            let ends = (one.free(), two.into_buffer(), three.free(), four.into_vec());
            if me == 2 {
                assert_eq!(ends.3.await?, [2]);
                ends.2.await?;
                assert_eq!(ends.1.await?.len(), 3);
                ends.0.await?;
            } else {
                ends.0.await?;
                assert_eq!(ends.1.await?.len(), me + 1);
                ends.2.await?;
                assert_eq!(ends.3.await?, [me as u64]);
            }
        }
        Ok(())
    });
}

#[test]
fn a_window_whose_free_no_task_awaits_stays_until_all_have_freed_theirs() {
    in_both_modes(2, async |world| {
        let window = Window::<u64>::allocate(world, 1)
            .await?
            .into_passive()
            .await?;
        if world.rank() == 0 {
            drop(window.free());
            world.recv::<u8>(1, 0).await?;
        } else {
            let lock = window.lock_shared(0).await?;
            assert_eq!(lock.fetch_add(0, 0, 1).await?, 0);
            lock.unlock().await;
            window.free().await?;
            world.send(0, 0, [1_u8]).await?;
        }
        Ok(())
    });
}

#[test]
fn a_window_that_no_task_takes_counts_as_freed() {
    in_both_modes(2, async |world| {
        let made = Window::<u64>::allocate(world, 1);
        if world.rank() == 0 {
            drop(made);
            world.recv::<u8>(1, 0).await?;
        } else {
            let window = made.await?;
            let kind = window.start(&[0]).await.unwrap_err().into_kind();
            assert!(matches!(kind, ErrorKind::NoWindow { .. }), "{kind}");
            world.send(0, 0, [1_u8]).await?;
        }
        Ok(())
    });
}

/// Runs a collective that rank 0 calls otherwise than all others, with two and three ranks. The error of each rank must say what
/// rank 0 has called, and what another one, at lines of this file. The same holds on a communicator of the ranks in descending
/// order.
fn differs(
    calls: [&'static str; 2],
    call: impl AsyncFn(&Comm) -> Error + Copy + Send + Sync + 'static,
) {
    for (size, is_descending) in [(2, false), (3, false), (2, true), (3, true)] {
        ranks::run(size, &[], move |runtime: Runtime| {
            let world = runtime.world();
            let me = world.rank();
            let error = runtime.block_on(async {
                let error = if is_descending {
                    let key = i64::try_from(world.size() - me).unwrap();
                    let comm = world.split(0, key).await.unwrap();
                    call(&comm).await
                } else {
                    call(&world).await
                };
                meet(&world).await;
                error
            });
            names_calls(&error, calls);
            let last = world.size() - 1;
            let note = format!(
                "; ranks 0 and 1 are ranks {last} and {} of the world",
                last - 1
            );
            let text = error.to_string();
            let ErrorKind::Mismatch { other, .. } = error.kind else {
                unreachable!("just seen")
            };
            assert_eq!(text.ends_with(&note), is_descending && other == 1, "{text}");
            assert_eq!(text.contains("of the world"), is_descending, "{text}");
        });
    }
}

/// Waits for messages of other ranks that each rank sends here. A rank that has left says nothing about its call any more.
async fn meet(world: &Comm) {
    let (me, size) = (world.rank(), world.size());
    let (next, before) = ((me + 1) % size, (me + size - 1) % size);
    world.send(next, 1, [1_u8]).await.unwrap();
    world.recv::<u8>(before, 1).await.unwrap();
}

/// Checks that an error says what rank 0 and another one have called, at lines of this file.
#[track_caller]
fn names_calls(error: &Error, calls: [&str; 2]) {
    let ErrorKind::Mismatch {
        rank: 0,
        calls: Some(said),
        ..
    } = &error.kind
    else {
        panic!("{error}");
    };
    for (said, call) in said.iter().zip(calls) {
        let place = format!(" at {}:", file!());
        assert!(said.starts_with(call) && said.contains(&place), "{error}");
    }
}

#[test]
fn a_free_after_another_rank_completed_another_collective_is_an_error_with_both_calls() {
    const CALLS: [&str; 2] = ["free (window 0)", "scatter_v"];
    ranks::run(2, &[], move |runtime: Runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let window = Window::<u64>::allocate(&world, 1).await.unwrap();
            if world.rank() == 0 {
                world.recv::<u8>(1, 2).await.unwrap();
                let error = window.free().await.unwrap_err();
                names_calls(&error, CALLS);
            } else {
                // Nothing is sent, so rank 0 learns of this call only by asking.
                world.scatter_v(1, [1_u64], &[0, 1]).await.unwrap();
                world.send(0, 2, [1_u8]).await.unwrap();
            }
            meet(&world).await;
        });
        let me = world.rank();
        drop(world);
        let closed = runtime.close();
        if me > 0 {
            names_calls(&closed.unwrap_err(), CALLS);
        }
    });
}

#[test]
fn a_window_that_one_rank_frees_while_others_call_another_collective_is_an_error_with_both_calls() {
    let calls = ["free (window 0)", "all_reduce (1 u64, Sum)"];
    differs(calls, async |world| {
        let window = Window::<u64>::allocate(world, 1).await.unwrap();
        if world.rank() == 0 {
            window.free().await.unwrap_err()
        } else {
            world.all_reduce([1_u64], Sum).await.unwrap_err().error
        }
    });
}

#[test]
fn communicators_that_ranks_make_with_other_arguments_are_an_error_with_both() {
    differs(
        ["halo (width 2, f64)", "halo (width 1, with corners, f64)"],
        async |world| {
            let line = world.cart(&[world.size()], &[true]).await.unwrap();
            if world.rank() == 0 {
                let made = Halo::<f64>::new(&line, &[8], 2).await;
                made.map(drop).unwrap_err()
            } else {
                let made = Halo::<f64>::with_corners(&line, &[8], 1).await;
                made.map(drop).unwrap_err()
            }
        },
    );
    differs(
        ["sub (keep [true, false])", "sub (keep [false, true])"],
        async |world| {
            let grid = world.cart(&[world.size(), 1], &[false; 2]).await.unwrap();
            if world.rank() == 0 {
                grid.sub(&[true, false]).await.map(drop).unwrap_err()
            } else {
                grid.sub(&[false, true]).await.map(drop).unwrap_err()
            }
        },
    );
}

#[test]
fn communicators_that_ranks_make_in_two_ways_are_an_error_with_both_calls() {
    differs(["dup", "split"], async |world| {
        if world.rank() == 0 {
            world.dup().await.map(drop).unwrap_err()
        } else {
            world.split(0, 0).await.map(drop).unwrap_err()
        }
    });
}
