//! Communicators, grids, and the most common collectives.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::unwrap_used,
    reason = "ranks in tests are small, and a failure is the test's"
)]

mod grids;
mod members;
#[path = "../support/ranks.rs"]
mod ranks;

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use ripstop::{Collectives, Comm, ErrorKind, Max, Min, Product, Result, Source, Sum, Tag, Window};

#[ripstop::test(ranks = 6)]
async fn a_split_orders_by_key_and_then_by_old_rank(world: Comm) -> Result<()> {
    let me = world.rank();
    // Colors 0 and 1; ranks 4 and 5 get none. The keys reverse the order of color 0.
    let color = (me < 4).then_some(me as u32 % 2);
    let key = if me.is_multiple_of(2) {
        -(me as i32)
    } else {
        7
    };
    let part = world.split_some(color, key).await?;
    assert_eq!(part.is_some(), me < 4);
    let Some(part) = part else { return Ok(()) };
    assert_eq!(part.size(), 2);
    let expected = [1, 0, 0, 1][me];
    assert_eq!(part.rank(), expected, "old rank {me}");
    // Messages use the new ranks.
    let peer = 1 - part.rank();
    let inbox = part.recv::<u64>(peer, 1);
    part.send(peer, 1, [me as u64]).await?;
    let (got, status) = inbox.await?;
    assert_eq!((got, status.source), (vec![(me as u64 + 2) % 4], peer));
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn messages_of_one_communicator_are_never_received_on_another(world: Comm) -> Result<()> {
    let twin = world.dup().await?;
    assert_eq!((twin.rank(), twin.size()), (world.rank(), world.size()));
    assert_ne!(twin.id(), world.id());
    let next = (world.rank() + 1) % 3;
    world.send(next, 1, [1_u8]).await?;
    twin.send(next, 1, [2_u8]).await?;
    assert_eq!(twin.recv::<u8>(Source::Any, Tag::Any).await?.0, [2]);
    assert_eq!(world.recv::<u8>(Source::Any, Tag::Any).await?.0, [1]);
    twin.barrier().await
}

#[ripstop::test(ranks = 2)]
async fn a_message_to_a_dropped_communicator_never_turns_up_on_a_new_one(
    world: Comm,
) -> Result<()> {
    for round in 0..20_u8 {
        let old = world.dup().await?;
        if world.rank() == 0 {
            old.send(1, 1, [round]).await?;
            old.send(1, 1, vec![round; 500]).await?;
        }
        drop(old);
        let new = world.dup().await?;
        if world.rank() == 0 {
            new.send(1, 1, [100 + round]).await?;
        } else {
            assert_eq!(new.recv::<u8>(0, 1).await?.0, [100 + round]);
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 5)]
async fn nested_splits_and_splits_of_one_node(world: Comm) -> Result<()> {
    let node = world.split_node().await?;
    assert_eq!((node.rank(), node.size()), (world.rank(), 5));
    let half = node.split(node.rank() >= 2, 0).await?;
    let single = half.split(half.rank(), 0).await?;
    assert_eq!((single.rank(), single.size()), (0, 1));
    assert_eq!(
        half.all_reduce([1_u32], Sum).await?,
        [if world.rank() < 2 { 2 } else { 3 }]
    );
    assert_eq!(
        single.all_reduce([world.rank()], Sum).await?,
        [world.rank()]
    );
    single.barrier().await
}

#[ripstop::test(ranks = 4)]
async fn overlapping_communicators_may_be_split_at_the_same_time(world: Comm) -> Result<()> {
    let me = world.rank();
    // Rows and columns of a 2 x 2 grid overlap in one rank.
    for round in 0..10 {
        let row = world.split(me / 2, 0).await?;
        let column = world.split(me % 2, 0).await?;
        let (a, b) = tokio::join!(row.dup(), column.dup());
        let (b2, a2) = tokio::join!(column.split(0, 0), row.split(0, 0));
        let mut ids = vec![row.id(), column.id(), a?.id(), b?.id(), a2?.id(), b2?.id()];
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 6, "round {round}");
    }
    Ok(())
}

/// The modes in which a rank's threads, and other ranks, move messages in flight.
const MODES: [&str; 2] = ["inline", "thread"];

#[test]
fn communicators_are_made_whatever_each_rank_awaits_first() {
    for mode in MODES {
        ranks::run(3, &[("RIPSTOP_PROGRESS", mode)], |runtime| {
            let world = runtime.world();
            let made = runtime.block_on(made_in_any_order(&world));
            made.unwrap_or_else(|error| panic!("{error}"));
            drop(world);
            runtime.close().unwrap_or_else(|error| panic!("{error}"));
        });
    }
}

#[ripstop::test(ranks = 3)]
async fn communicators_are_made_whatever_each_rank_of_a_job_awaits_first(
    world: Comm,
) -> Result<()> {
    made_in_any_order(&world).await
}

async fn made_in_any_order(world: &Comm) -> Result<()> {
    let me = world.rank();
    for _ in 0..20 {
        let (first, second) = (world.dup(), world.dup());
        let part = world.split_some(Some(me == 2), 0);
        let grid = world.cart(&[3], &[true]);
        let (first, second, part, grid) = if me == 1 {
            let (grid, part) = (grid.await?, part.await?);
            let (second, first) = (second.await?, first.await?);
            (first, second, part, grid)
        } else {
            (first.await?, second.await?, part.await?, grid.await?)
        };
        let part = part.expect("a color");
        assert_eq!(
            (part.size(), grid.coords()),
            (if me == 2 { 1 } else { 2 }, &[me][..])
        );
        // Each communicator has messages of its own, on all ranks.
        let [one, two] = [(&first, 1_u8), (&second, 2)].map(|(comm, word)| {
            (
                comm.send((me + 1) % 3, 0, [word]),
                comm.recv::<u8>((me + 2) % 3, 0),
            )
        });
        assert_eq!((one.1.await?.0, two.1.await?.0), (vec![1], vec![2]));
        one.0.await?;
        two.0.await?;
    }
    Ok(())
}

#[ripstop::test(ranks = 4)]
async fn fifty_communicators_are_made_at_a_time(world: Comm) -> Result<()> {
    for _ in 0..3 {
        let mut making: Vec<_> = (0..50).map(|_| world.dup()).collect();
        if world.rank().is_multiple_of(2) {
            making.reverse();
        }
        let mut ids = Vec::new();
        let mut made = Vec::new();
        for dup in making {
            let comm = dup.await?;
            ids.push(comm.id());
            made.push(comm);
        }
        if world.rank().is_multiple_of(2) {
            ids.reverse();
        }
        let first = world.bcast(0, ids.clone()).await?;
        assert_eq!(first, ids, "the same call has the same number on all ranks");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 50);
    }
    Ok(())
}

#[test]
fn a_rank_makes_its_part_while_it_waits_for_something_else() {
    for mode in MODES {
        ranks::run(3, &[("RIPSTOP_PROGRESS", mode)], |runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                let twin = world.dup();
                if world.rank() == 1 {
                    // The other ranks send this only when they have theirs.
                    for from in [0, 2] {
                        world.recv::<u8>(from, 0).await.unwrap();
                    }
                    twin.await.unwrap();
                } else {
                    twin.await.unwrap();
                    world.send(1, 0, [1_u8]).await.unwrap();
                }
            });
        });
    }
}

#[test]
fn a_communicator_that_no_task_takes_counts_as_dropped() {
    for mode in MODES {
        ranks::run(2, &[("RIPSTOP_PROGRESS", mode)], |runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                let twin = world.dup();
                if world.rank() == 0 {
                    drop(twin);
                } else {
                    let twin = twin.await.unwrap();
                    let failed = twin.send_synchronous(0, 0, [1_u8]).await.unwrap_err();
                    let kind = failed.error.into_kind();
                    assert!(
                        matches!(kind, ErrorKind::PeerFinished { rank: 0 }),
                        "{kind}"
                    );
                }
                world.barrier().await.unwrap();
            });
        });
    }
}

#[test]
fn what_is_still_being_made_ends_when_the_runtime_is_closed() {
    for mode in MODES {
        ranks::run(2, &[("RIPSTOP_PROGRESS", mode)], |runtime| {
            let world = runtime.world();
            if world.rank() == 0 {
                let (twin, part) = (world.dup(), world.split_some(Some(0), 0));
                let window = Window::<u8>::allocate(&world, 8);
                runtime.close().unwrap();
                let kinds = [
                    block(twin).unwrap_err().into_kind(),
                    block(part).unwrap_err().into_kind(),
                    block(window).unwrap_err().into_kind(),
                ];
                for kind in kinds {
                    assert!(matches!(kind, ErrorKind::Closed), "{kind}");
                }
            } else {
                // It begins none, and leaves when the other rank has one.
                let kind = runtime
                    .block_on(world.recv::<u8>(0, 0))
                    .unwrap_err()
                    .error
                    .into_kind();
                assert!(
                    matches!(kind, ErrorKind::PeerFinished { rank: 0 }),
                    "{kind}"
                );
            }
        });
    }
}

#[test]
fn creation_with_a_rank_that_has_dropped_the_communicator_fails_while_that_rank_lives() {
    for mode in MODES {
        ranks::run(3, &[("RIPSTOP_PROGRESS", mode)], |runtime| {
            let world = runtime.world();
            runtime.block_on(with_one_that_left(&world));
        });
    }
    let simulation = ripstop::sim::Simulation::new(3).fabric("bxi");
    simulation
        .run(async |world: Comm| with_one_that_left(&world).await)
        .unwrap();
}

/// Waits for all of them at the same time.
async fn all<T>(mut waiting: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
    let mut done = Vec::new();
    poll_fn(|cx| {
        waiting.retain_mut(|future| match future.as_mut().poll(cx) {
            Poll::Ready(output) => {
                done.push(output);
                false
            }
            Poll::Pending => true,
        });
        if waiting.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    done
}

async fn with_one_that_left(world: &Comm) {
    for odd in 0..3 {
        let (first, second) = (world.dup().await.unwrap(), world.dup().await.unwrap());
        let third = world.dup().await.unwrap();
        if world.rank() == odd {
            drop((first, second, third));
            for other in (0..3).filter(|other| *other != odd) {
                world.recv::<u8>(other, 0).await.unwrap();
            }
            continue;
        }
        // A rank asks after a second of silence: the three wait at the same time.
        let errors = all(vec![
            Box::pin(async { first.dup().await.map(drop).unwrap_err() }),
            Box::pin(async { second.split_some(Some(0), 0).await.map(drop).unwrap_err() }),
            Box::pin(async {
                Window::<u8>::allocate(&third, 1)
                    .await
                    .map(drop)
                    .unwrap_err()
            }),
        ]);
        for error in errors.await {
            let expected = match error.kind {
                ErrorKind::PeerFinished { rank } => rank == odd,
                ErrorKind::Aborted { .. } => true,
                _ => false,
            };
            assert!(expected, "{error}");
        }
        world.send(odd, 0, [1_u8]).await.unwrap();
    }
}

#[test]
fn ranks_that_make_different_things_or_another_call_are_told_both() {
    for mode in MODES {
        ranks::run(3, &[("RIPSTOP_PROGRESS", mode)], |runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                let comm = world.dup().await.unwrap();
                let failed = match world.rank() {
                    0 => comm.dup().await.map(drop),
                    1 => Window::<u8>::dynamic(&comm).await.map(drop),
                    _ => comm.barrier().await,
                };
                let kind = failed.unwrap_err().into_kind();
                let told = matches!(
                    kind,
                    ErrorKind::Mismatch { .. } | ErrorKind::Aborted { .. } | ErrorKind::Revoked
                );
                assert!(told, "{kind}");
                world.barrier().await.unwrap();
            });
        });
    }
}

/// Polls a future that must be ready already.
fn block<T>(future: impl Future<Output = T>) -> T {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match pin!(future).poll(&mut cx) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

#[ripstop::test(ranks = 3)]
async fn collectives_may_be_awaited_in_another_order_than_they_were_begun(
    world: Comm,
) -> Result<()> {
    for _ in 0..20 {
        let sum = world.all_reduce([world.rank() as u64], Sum);
        let text = world.bcast(1, [world.rank() as u8; 3]);
        let barrier = world.barrier();
        let max = world.all_reduce([world.rank() as f32], Max);
        if world.rank() == 1 {
            let (sum, text, barrier, max) = tokio::join!(sum, text, barrier, max);
            barrier?;
            assert_eq!((sum?, text?, max?), ([3], [1; 3], [2.0]));
        } else {
            let (max, barrier, text, sum) = tokio::join!(max, barrier, text, sum);
            barrier?;
            assert_eq!((sum?, text?, max?), ([3], [1; 3], [2.0]));
        }
    }
    Ok(())
}

#[test]
fn colors_are_integers_of_any_type_and_a_color_gives_a_communicator() {
    for size in [1, 2, 4] {
        ranks::run(size, &[], |runtime| {
            runtime.block_on(colored(&runtime.world())).unwrap();
        });
    }
}

async fn colored(world: &Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let whole = world.split(-1_i8, usize::MAX - me).await?;
    assert_eq!((whole.size(), whole.rank()), (size, size - 1 - me));
    let even = world.split(me.is_multiple_of(2), u64::MAX).await?;
    assert_eq!(even.rank(), me / 2);
    // The same bits with another sign are another color.
    let color = if me == 0 { i128::from(u64::MAX) } else { -1 };
    assert_eq!(
        world.split(color, 0).await?.size(),
        if me == 0 { 1 } else { size - 1 }
    );
    // One rank wants none, and says so by the other call.
    if me == 0 {
        assert!(world.split_some(None::<u8>, 0).await?.is_none());
    } else {
        assert_eq!(world.split(7_u8, 0).await?.size(), size - 1);
    }
    // One rank passes what is no color: the others go on without it.
    if me == 0 {
        let error = world.split(u128::MAX, 0).await.expect_err("128 bits");
        assert!(
            error.to_string().contains("`color` has more than 64 bits"),
            "{error}"
        );
    } else {
        assert_eq!(world.split(0, 0).await?.size(), size - 1);
    }
    world.barrier().await
}

/// The order of operands shows which operator was applied: composition of `x -> a x + b` is associative, but not commutative.
fn compose([a, b]: [u64; 2], [c, d]: [u64; 2]) -> [u64; 2] {
    [a.wrapping_mul(c), b.wrapping_mul(c).wrapping_add(d)]
}

#[test]
fn collectives_are_right_at_every_size() {
    for size in 1..=9 {
        ranks::run(size, &[], |runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                collectives(&world)
                    .await
                    .unwrap_or_else(|error| panic!("{error}"))
            });
            runtime.close().expect("a good end");
        });
    }
}

async fn collectives(world: &Comm) -> Result<()> {
    let (me, size) = (world.rank() as u64, world.size() as u64);
    for root in 0..world.size() {
        for len in [0, 1, 1000, 50_000] {
            let mine = vec![me; len];
            assert!(
                world.bcast(root, mine).await? == vec![root as u64; len],
                "root {root}"
            );
        }
    }
    assert_eq!(
        world.all_reduce([me, 1], Sum).await?,
        [size * (size - 1) / 2, size]
    );
    assert_eq!(world.all_reduce([me], Max).await?, [size - 1]);
    assert_eq!(world.all_reduce([me as i32 - 3], Min).await?, [-3]);
    assert_eq!(world.all_reduce([2_u128], Product).await?, [1 << size]);
    let elements = [[me + 2, me * me]; 4];
    let expected = (0..size)
        .map(|rank| [rank + 2, rank * rank])
        .reduce(compose)
        .expect("a rank");
    assert_eq!(world.all_reduce(elements, compose).await?, [expected; 4]);
    let thirds = world
        .all_reduce(vec![1.0 / (3.0 + me as f64); 20_000], Sum)
        .await?;
    let bits: Vec<u64> = thirds.iter().map(|third| third.to_bits()).collect();
    let highest = world.all_reduce(bits.clone(), Max).await?;
    assert!(highest == bits, "the same bits everywhere");
    assert_eq!(world.all_reduce(Vec::<f64>::new(), Sum).await?, []);
    // No rank leaves a barrier before the last has come, so the last rank's message has arrived by then.
    for last in 0..world.size() {
        if world.rank() == last {
            for to in 0..world.size() {
                world.send(to, 5, [last as u64]).detach();
            }
        }
        world.barrier().await?;
        assert_eq!(world.recv_into(last, 5, [0_u64]).await?.0, [last as u64]);
    }
    Ok(())
}

/// Collectives begin when they are called: a rank need not await one before it calls the next.
#[test]
fn an_agreement_that_is_called_before_another_collective_and_awaited_after_it_is_in_its_place() {
    let rank = async |world: Comm| {
        let size = world.size();
        if world.rank() == 1 {
            world.recv::<u8>(0, 0).await.unwrap();
        }
        let (split, window) = (
            world.split_some(Some(0), 0),
            Window::<u64>::allocate(&world, 1),
        );
        let together = async |part: Result<Option<Comm>>, window: Result<Window<u64>>| {
            assert_eq!(part.unwrap().unwrap().size(), size);
            window.unwrap().free().await.unwrap();
        };
        if world.rank() == 0 {
            // The other rank is let into the first one only now, when this one waits for it there.
            let mut split = pin!(split);
            let begun = poll_fn(|cx| Poll::Ready(split.as_mut().poll(cx).is_pending()));
            assert!(begun.await);
            world.send(1, 0, [0_u8]).await.unwrap();
            world.sleep(Duration::from_secs(3)).await;
            assert_eq!(world.all_reduce([1_u64], Sum).await.unwrap(), [2]);
            together(split.await, window.await).await;
        } else {
            assert_eq!(world.all_reduce([1_u64], Sum).await.unwrap(), [2]);
            together(split.await, window.await).await;
        }
    };
    ranks::run(2, &[("RIPSTOP_COLLECTIVES", "messages")], move |runtime| {
        runtime.block_on(rank(runtime.world()));
    });
}
