//! Neighborhoods: the blocks that each rank gets.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use ripstop::{Error, ErrorKind, prelude::*};

use crate::{failing, forms::row, ranks};

/// Sources and destinations of a rank, in the order in which ranks name them, by the number of ranks.
type Graph = fn(usize) -> Vec<(usize, usize)>;

const GRAPHS: &[(&str, Graph)] = &[
    ("no rank", |_| Vec::new()),
    ("to the next, and to oneself between", |size| {
        let ends = |rank| [rank + 1, rank, rank + 1].map(|to| (rank, to % size));
        (0..size).flat_map(ends).collect()
    }),
    ("from one to all", |size| {
        (0..size).map(|to| (size / 2, to)).collect()
    }),
    ("from all to one", |size| {
        (1..size).map(|from| (from, 0)).collect()
    }),
    ("to the later ones, the last first", |size| {
        let ends = |from: usize| (from + 1..size).rev().map(move |to| (from, to));
        (0..size).flat_map(ends).collect()
    }),
    ("all ranks, from the greatest distance on", |size| {
        let ends = |way: usize| (0..size).map(move |from| (from, (from + way) % size));
        (0..size).rev().flat_map(ends).collect()
    }),
];

/// Every form on every graph, and on grids.
pub(crate) async fn all(world: &Comm, len: usize) {
    let (me, size) = (world.rank(), world.size());
    for (name, graph) in GRAPHS {
        let edges = graph(size);
        let numbered = (0..).zip(&edges).map(|(at, &(from, to))| {
            let before = edges[..at].iter().filter(|edge| edge.0 == from);
            (from, to, before.count())
        });
        let sources: Vec<_> = numbered.filter(|edge| edge.1 == me).collect();
        let from: Vec<usize> = sources.iter().map(|edge| edge.0).collect();
        let to = edges.iter().filter(|edge| edge.0 == me).map(|edge| edge.1);
        let graph = world.graph(&from, &to.collect::<Vec<_>>()).await.unwrap();
        let incoming = sources.iter().map(|&(from, _, nth)| Some((from, nth)));
        forms(&graph, &incoming.collect::<Vec<_>>(), len, name).await;
    }
    let grids = [
        ([1, size], [true, false]),
        ([size, 1], [true, false]),
        ([2, size / 2], [true, true]),
    ];
    for (dims, wraps) in grids {
        if dims[0] * dims[1] != size {
            continue;
        }
        let grid = world.cart(&dims, &wraps).await.unwrap();
        let pairs = [0, 1].map(|dim| <[_; 2]>::from(grid.shift(dim, 1)));
        // A block sent down arrives from above.
        let ends = pairs.iter().flatten().zip(0_usize..);
        let ends = ends.map(|(rank, way)| rank.map(|rank| (rank, way ^ 1)));
        forms(&grid, &ends.collect::<Vec<_>>(), len, "grid").await;
    }
}

/// `incoming`: for each received block, its sender and its index there.
async fn forms(
    on: &impl Neighborhood,
    incoming: &[Option<(usize, usize)>],
    len: usize,
    what: &str,
) {
    let me = on.communicator().rank();
    let outgoing = on.edges().destinations.len();
    let gathered = |count: &dyn Fn(usize) -> usize| -> (Vec<usize>, Vec<u64>) {
        let block = |end: &Option<(usize, usize)>| match *end {
            Some((from, _)) => row(from, 99, count(from)),
            None => vec![0; len],
        };
        let blocks: Vec<_> = incoming.iter().map(block).collect();
        (blocks.iter().map(Vec::len).collect(), blocks.concat())
    };
    let exchanged = |count: &dyn Fn(usize, usize) -> usize| {
        let block = |end: &Option<(usize, usize)>| match *end {
            Some((from, nth)) => row(from, nth, count(from, nth)),
            None => vec![0; len],
        };
        let sends: Vec<_> = (0..outgoing)
            .map(|nth| row(me, nth, count(me, nth)))
            .collect();
        let recvs: Vec<_> = incoming.iter().map(block).collect();
        let counts = [&sends, &recvs].map(|blocks| blocks.iter().map(Vec::len).collect());
        let [sends, recvs] = [sends, recvs].map(|blocks| blocks.concat());
        (counts, sends, recvs)
    };

    let (_, wanted) = gathered(&|_| len);
    let got = on.neighbor_all_gather(row(me, 99, len)).await.unwrap();
    assert_eq!(got, wanted, "{what}");
    let room = vec![0; wanted.len() + 3];
    let op = on.neighbor_all_gather_into(row(me, 99, len), room);
    assert_eq!(op.await.unwrap(), (row(me, 99, len), wanted), "{what}");
    let count = |from: usize| len + from % 3;
    let (counts, wanted) = gathered(&count);
    let mine = row(me, 99, count(me));
    let op = on.neighbor_all_gather_v(mine.clone(), &counts);
    assert_eq!(op.await.unwrap(), wanted, "{what}");
    let room = vec![0; wanted.len() + 3];
    let op = on.neighbor_all_gather_v_into(mine.clone(), room, &counts);
    assert_eq!(op.await.unwrap(), (mine.clone(), wanted.clone()), "{what}");
    let plan = on.neighbor_all_gather_v_plan(mine.len(), &counts).await;
    let mut plan = plan.unwrap();
    plan.send_mut().copy_from_slice(&mine);
    for _ in 0..2 {
        assert_eq!(plan.run().await.unwrap(), wanted, "{what}");
    }

    let (_, send, wanted): ([Vec<usize>; 2], _, _) = exchanged(&|_, _| len);
    if outgoing > 0 || incoming.is_empty() {
        let got = on.neighbor_all_to_all(send.clone()).await.unwrap();
        assert_eq!(got, wanted, "{what}");
    } else {
        // A rank without destinations passes no length of blocks, but takes part with the ranks that do.
        let op = on.neighbor_all_to_all_v(send.clone(), &[], &vec![len; incoming.len()]);
        assert_eq!(op.await.unwrap(), wanted, "{what}");
    }
    let op = on.neighbor_all_to_all_into(send.clone(), vec![0; wanted.len()]);
    assert_eq!(op.await.unwrap(), (send, wanted), "{what}");
    let count = |from: usize, nth: usize| (from + 2 * nth) % 3 * len;
    let ([sends, recvs], send, wanted) = exchanged(&count);
    let op = on.neighbor_all_to_all_v(send.clone(), &sends, &recvs);
    assert_eq!(op.await.unwrap(), wanted, "{what}");
    let op = on.neighbor_all_to_all_v_into(send.clone(), &sends, vec![0; wanted.len()], &recvs);
    assert_eq!(op.await.unwrap(), (send, wanted), "{what}");
}

#[test]
fn neighbors_get_what_is_for_them_in_every_form() {
    for executor in ["lists", "messages", "host"] {
        for size in [1, 2, 3, 6] {
            ranks::run(size, &[("RIPSTOP_COLLECTIVES", executor)], |runtime| {
                let world = runtime.world();
                runtime.block_on(async {
                    for len in [0, 1, 700] {
                        all(&world, len).await;
                    }
                });
            });
        }
    }
}

/// Exchanges every rank's block with every rank, also in long messages.
pub(crate) async fn among_all(world: Comm) {
    let (me, size) = (world.rank(), world.size());
    // Each rank begins with another neighbor.
    let ranks: Vec<usize> = (0..size).map(|at| (at + 3 * me) % size).collect();
    let graph = world.graph(&ranks, &ranks).await.unwrap();
    for len in [1, 500] {
        let got = graph.neighbor_all_gather(vec![me as u64; len]).await;
        let wanted = ranks.iter().flat_map(|rank| vec![*rank as u64; len]);
        assert_eq!(got.unwrap(), wanted.collect::<Vec<_>>());
    }
}

/// A wrong argument on one rank is an error that names it there, and no rank hangs.
fn refused(error: impl Into<Error>, sentence: &str) {
    match error.into().into_kind() {
        ErrorKind::InvalidArgument(text) => assert!(text.contains(sentence), "{text}"),
        ErrorKind::Aborted { .. } => {}
        kind => panic!("{kind}"),
    }
}

#[test]
fn what_a_rank_keeps_has_one_length() {
    for size in [1, 2] {
        ranks::run(size, &[], |runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                // Both neighbors in the first dimension are the rank itself.
                let dims = [1, world.size()];
                let grid = world.cart(&dims, &[true, false]).await.unwrap();
                let counts = [[1, 2, 0, 0], [2, 1, 0, 0]];
                let send = vec![7, 8, 9];
                let got = grid.neighbor_all_to_all_v(send.clone(), &counts[0], &counts[1]);
                assert_eq!(got.await.unwrap(), [8, 9, 7]);
                let got = grid.neighbor_all_to_all_v(send, &counts[0], &counts[0]);
                let wrong = "`send_counts[0]` is 1 but `recv_counts[1]` is 2";
                refused(got.await.unwrap_err(), wrong);

                let me = world.rank();
                let graph = world.graph(&[me], &[me]).await.unwrap();
                let got = graph.neighbor_all_gather_v([1_u8; 3], &[4]).await;
                let wrong = "`send` has 3 elements but `recv_counts[0]` is 4";
                refused(got.unwrap_err(), wrong);
            });
        });
    }
}

#[test]
fn ranks_may_call_different_forms_of_one_collective() {
    ranks::run(3, &[], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let (me, size) = (world.rank() as u64, world.size() as u64);
            let ring = world.cart(&[world.size()], &[true]).await.unwrap();
            let [down, up] = [size - 1, 1].map(|way| (me + way) % size);
            let (send, room) = ([me, me + 10], vec![0; 2]);
            let (block, swapped) = ([down, up], [down + 10, up]);
            if me == 1 {
                let (_, got) = ring
                    .neighbor_all_gather_into([me], room.clone())
                    .await
                    .unwrap();
                assert_eq!(got, block);
                let (_, got) = ring
                    .neighbor_all_to_all_into(send, room.clone())
                    .await
                    .unwrap();
                assert_eq!(got, swapped);
                let got = ring.neighbor_all_to_all_v(send, &[1, 1], &[1, 1]);
                assert_eq!(got.await.unwrap(), swapped);
            } else {
                assert_eq!(ring.neighbor_all_gather([me]).await.unwrap(), block);
                assert_eq!(ring.neighbor_all_to_all(send).await.unwrap(), swapped);
                assert_eq!(ring.neighbor_all_to_all(send).await.unwrap(), swapped);
            }
        });
    });
}

/// Ranks that only receive, behind one that only sends.
pub(crate) async fn behind_one(world: Comm) {
    let (me, size) = (world.rank(), world.size());
    let all: Vec<usize> = (1..size).collect();
    for (len, wrong) in [(0, false), (5, false), (700, false), (700, true)] {
        let edges: [&[usize]; 2] = if me == 0 { [&[], &all] } else { [&[0], &[]] };
        let graph = world.graph(edges[0], edges[1]).await.unwrap();
        let send: Vec<u64> = all.iter().flat_map(|to| vec![*to as u64; len]).collect();
        let mine = vec![me as u64; len];
        if me == 0 {
            for _ in 0..2 {
                let got = graph.neighbor_all_to_all(send.clone()).await.unwrap();
                assert!(got.is_empty());
            }
            let lost = graph.neighbor_all_to_all(send).await;
            let end = graph.barrier().await;
            assert!(!wrong || lost.is_err() || end.is_err());
            continue;
        }
        let room = vec![0; len];
        let got = graph.neighbor_all_to_all_into([], room).await.unwrap();
        assert_eq!(got.1, mine);
        let got = graph
            .neighbor_all_to_all_v([0_u64; 0], &[], &[len])
            .await
            .unwrap();
        assert_eq!(got, mine);
        let room = vec![0; len - usize::from(wrong)];
        let last = graph.neighbor_all_to_all_into([], room).await;
        let end = graph.barrier().await;
        match last {
            Err(failed) => failing::named("block", &failed.error),
            Ok((_, got)) => assert!(!wrong && got == mine),
        }
        assert_eq!(end.is_err(), wrong);
    }
    // No rank can tell the length of blocks here.
    let graph = match me {
        0 => world.graph(&[], &all).await,
        _ => world.graph(&[0], &[]).await,
    };
    let got = graph
        .unwrap()
        .neighbor_all_to_all(vec![0_u8; if me == 0 { size - 1 } else { 0 }]);
    match got.await {
        Err(failed) => refused(failed, "does not give the length of a block"),
        Ok(_) => assert_eq!(me, 0),
    }
}

#[test]
fn a_rank_without_targets_tells_the_sources_how_long_blocks_are() {
    for executor in ["lists", "messages"] {
        for size in [2, 5] {
            ranks::run(size, &[("RIPSTOP_COLLECTIVES", executor)], |runtime| {
                runtime.block_on(behind_one(runtime.world()));
            });
        }
    }
}

/// Wrong calls of the last rank of a ring, each on a ring of its own.
pub(crate) async fn disagree(world: Comm) {
    for what in DISAGREED {
        let ring = world.cart(&[world.size()], &[true]).await.unwrap();
        disagree_about(what, ring).await;
    }
}

/// Like [`disagree`], with all calls at the same time.
pub(crate) async fn disagree_at_once(world: Comm) {
    let mut calls = Vec::new();
    for what in DISAGREED {
        let ring = world.cart(&[world.size()], &[true]).await.unwrap();
        calls.push(world.spawn(disagree_about(what, ring)));
    }
    for call in calls {
        call.await;
    }
}

const DISAGREED: [&str; 5] = [
    "collective",
    "longer blocks",
    "no elements",
    "count",
    "element type",
];

async fn disagree_about(what: &str, ring: Cart) {
    let odd = ring.rank() == ring.size() - 1;
    let first = async {
        match what {
            "collective" if odd => drop(ring.neighbor_all_gather([1_u8; 700]).await?),
            "longer blocks" if odd => drop(ring.neighbor_all_to_all([1_u8; 1402]).await?),
            "no elements" if odd => drop(ring.neighbor_all_to_all(Vec::<u8>::new()).await?),
            "count" if odd => {
                let got = ring.neighbor_all_to_all_v([1_u8; 1400], &[700; 2], &[700, 699]);
                drop(got.await?);
            }
            "element type" if odd => drop(ring.neighbor_all_to_all([1_i8; 1400]).await?),
            _ => drop(ring.neighbor_all_to_all([1_u8; 1400]).await?),
        }
        Ok::<(), Error>(())
    };
    let first = first.await;
    // A rank that has completed its part learns of the failure in its next collective.
    let second = ring.barrier().await;
    match first {
        Err(error) => failing::named(what, &error),
        Ok(()) => assert!(!odd && second.is_err(), "{what}: rank {}", ring.rank()),
    }
    assert!(second.is_err(), "{what}: rank {}", ring.rank());
}

#[test]
fn an_edge_with_one_end_is_an_error_on_all_ranks() {
    ranks::run(3, &[], |runtime| {
        let world = runtime.world();
        let sources: &[usize] = if world.rank() == 1 { &[0] } else { &[] };
        let error = runtime.block_on(world.graph(sources, &[])).unwrap_err();
        match error.into_kind() {
            ErrorKind::InvalidArgument(text) => {
                assert!(
                    text.contains("rank 0 1 times") && text.contains("rank 1 0 times"),
                    "{text}"
                )
            }
            ErrorKind::Aborted { rank: 1 } => {}
            kind => panic!("{kind}"),
        }
    });
}

#[test]
fn a_graph_has_its_place_among_collectives_from_its_call() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let peer = [1 - world.rank()];
            let mut graph = pin!(world.graph(&peer, &peer));
            let mut begun = Poll::Pending;
            if world.rank() == 0 {
                begun = poll_fn(|cx| Poll::Ready(graph.as_mut().poll(cx))).await;
            }
            let meeting = world.barrier();
            let made = match begun {
                Poll::Ready(made) => made,
                Poll::Pending => graph.await,
            };
            made.unwrap();
            meeting.await.unwrap();
        });
    });
}

#[test]
fn graphs_may_be_awaited_in_any_order_on_any_rank() {
    ranks::run(3, &[], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let (me, size) = (world.rank(), world.size());
            let (next, last) = ([(me + 1) % size], [(me + size - 1) % size]);
            let (up, down) = (world.graph(&last, &next), world.graph(&next, &last));
            let (up, down) = if me == 1 {
                let down = down.await;
                (up.await, down)
            } else {
                (up.await, down.await)
            };
            let ups = up.unwrap().neighbor_all_gather(vec![me]).await;
            let downs = down.unwrap().neighbor_all_gather(vec![me]).await;
            assert_eq!(
                (ups.unwrap(), downs.unwrap()),
                (last.to_vec(), next.to_vec())
            );
        });
    });
}
