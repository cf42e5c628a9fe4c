//! Results, compared with the definition of each collective.

use std::ops::Range;

use ripstop::{Runtime, prelude::*};

use crate::ranks;

/// Returns a number that encodes its sender, its receiver and its place in the block.
fn mark(from: usize, to: usize, at: usize) -> u64 {
    (from * 1_000 + to) as u64 * 1_000_000 + at as u64
}

fn block(from: usize, to: usize, len: usize) -> impl Iterator<Item = u64> {
    (0..len).map(move |at| mark(from, to, at))
}

/// Composition of `x → a·x + b`: associative, but not commutative.
fn compose([a, b]: [u64; 2], [c, d]: [u64; 2]) -> [u64; 2] {
    [a.wrapping_mul(c), b.wrapping_mul(c).wrapping_add(d)]
}

fn map(rank: usize, at: usize) -> [u64; 2] {
    [2 * at as u64 + 3 + rank as u64, (rank * 7 + at) as u64]
}

fn maps(rank: usize, len: usize) -> Vec<[u64; 2]> {
    (0..len).map(|at| map(rank, at)).collect()
}

/// Returns the maps of all these ranks, composed in order.
fn composed(ranks: Range<usize>, len: usize) -> Vec<[u64; 2]> {
    composed_at(ranks, 0..len)
}

/// Returns the composed maps at these positions of the vector.
fn composed_at(ranks: Range<usize>, places: Range<usize>) -> Vec<[u64; 2]> {
    let of = |at: usize| ranks.clone().map(|rank| map(rank, at)).reduce(compose);
    places.map(|at| of(at).unwrap()).collect()
}

/// Block lengths that differ, some of them zero.
fn ragged(from: usize, to: usize, len: usize) -> usize {
    match (3 * from + 5 * to) % 4 {
        0 => 0,
        part => len * part / 4 + part,
    }
}

async fn rooted(comm: &impl Collectives, len: usize) {
    let (me, size) = (comm.communicator().rank(), comm.communicator().size());
    for root in [0, size / 2, size - 1] {
        let is_root = me == root;
        let got = comm.bcast(root, block(me, 0, len).collect::<Vec<_>>());
        assert!(got.await.unwrap().into_iter().eq(block(root, 0, len)));

        let all: Vec<u64> = (0..size).flat_map(|from| block(from, 0, len)).collect();
        let mine: Vec<u64> = block(me, 0, len).collect();
        let got = comm.gather(root, mine.clone()).await.unwrap();
        assert_eq!(got, is_root.then(|| all.clone()));
        let room = vec![7_u64; if is_root { size * len } else { 0 }];
        let (back, got) = comm.gather_into(root, mine.clone(), room).await.unwrap();
        assert!(back == mine && got == if is_root { all.clone() } else { vec![] });
        let given = if is_root { all } else { vec![] };
        assert_eq!(comm.scatter(root, given, len).await.unwrap(), mine);

        let counts: Vec<usize> = (0..size).map(|rank| ragged(rank, 1, len)).collect();
        let mine: Vec<u64> = block(me, 1, counts[me]).collect();
        let all = (0..size).flat_map(|from| block(from, 1, counts[from]));
        let all: Vec<u64> = all.collect();
        let got = comm.gather_v(root, mine.clone(), &counts).await.unwrap();
        assert_eq!(got, is_root.then(|| all.clone()));
        let given = if is_root { all } else { vec![] };
        let got = comm.scatter_v(root, given, &counts).await.unwrap();
        assert_eq!(got, mine);

        let got = comm.reduce(root, maps(me, len), compose).await.unwrap();
        assert_eq!(got, is_root.then(|| composed(0..size, len)));
    }
}

async fn exchanges(comm: &impl Collectives, len: usize) {
    let (me, size) = (comm.communicator().rank(), comm.communicator().size());
    let mine: Vec<u64> = block(me, 0, len).collect();
    let all: Vec<u64> = (0..size).flat_map(|from| block(from, 0, len)).collect();
    assert_eq!(comm.all_gather(mine.clone()).await.unwrap(), all);
    let room = Vec::with_capacity(size * len);
    let (back, got) = comm.all_gather_into(mine.clone(), room).await.unwrap();
    assert!(back == mine && got == all);

    let counts: Vec<usize> = (0..size).map(|rank| ragged(rank, 2, len)).collect();
    let mine: Vec<u64> = block(me, 2, counts[me]).collect();
    let all: Vec<u64> = (0..size)
        .flat_map(|from| block(from, 2, counts[from]))
        .collect();
    assert_eq!(comm.all_gather_v(mine, &counts).await.unwrap(), all);

    let send: Vec<u64> = (0..size).flat_map(|to| block(me, to, len)).collect();
    let wanted: Vec<u64> = (0..size).flat_map(|from| block(from, me, len)).collect();
    assert_eq!(comm.all_to_all(send.clone()).await.unwrap(), wanted);
    let room = vec![0; size * len + 3];
    let (back, got) = comm.all_to_all_into(send.clone(), room).await.unwrap();
    assert!(back == send && got == wanted);

    let sends: Vec<usize> = (0..size).map(|to| ragged(me, to, len)).collect();
    let recvs: Vec<usize> = (0..size).map(|from| ragged(from, me, len)).collect();
    let send: Vec<u64> = (0..size).flat_map(|to| block(me, to, sends[to])).collect();
    let wanted: Vec<u64> = (0..size)
        .flat_map(|from| block(from, me, recvs[from]))
        .collect();
    let got = comm
        .all_to_all_v(send.clone(), &sends, &recvs)
        .await
        .unwrap();
    assert_eq!(got, wanted);
    let room = Vec::with_capacity(wanted.len());
    let (_, got) = comm
        .all_to_all_v_into(send, &sends, room, &recvs)
        .await
        .unwrap();
    assert_eq!(got, wanted);
}

async fn reductions(comm: &impl Collectives, len: usize) {
    let (me, size) = (comm.communicator().rank(), comm.communicator().size());
    let got = comm.all_reduce(maps(me, len), compose).await.unwrap();
    assert_eq!(got, composed(0..size, len));
    let sum = comm.all_reduce(vec![me as u64; len], Sum).await.unwrap();
    assert_eq!(sum, vec![(size * (size - 1) / 2) as u64; len]);
    let got = comm.scan(maps(me, len), compose).await.unwrap();
    assert_eq!(got, composed(0..me + 1, len));
    let got = comm.exscan(maps(me, len), compose).await.unwrap();
    assert_eq!(got, (me > 0).then(|| composed(0..me, len)));

    let all = composed(0..size, size * len);
    let got = comm.reduce_scatter_block(maps(me, size * len), compose);
    assert_eq!(got.await.unwrap(), all[me * len..][..len]);
    let counts: Vec<usize> = (0..size).map(|rank| ragged(rank, 3, len)).collect();
    let starts: usize = counts[..me].iter().sum();
    let total = counts.iter().sum();
    let all = composed(0..size, total);
    let send = maps(me, total);
    let got = comm.reduce_scatter(send.clone(), &counts, compose).await;
    assert_eq!(got.unwrap(), all[starts..][..counts[me]]);
    let commuting = comm
        .reduce_scatter(vec![me as u64; total], &counts, Sum)
        .await;
    assert_eq!(commuting.unwrap(), vec![sum_of(size); counts[me]]);
}

fn sum_of(size: usize) -> u64 {
    (size * (size - 1) / 2) as u64
}

pub(crate) async fn all(comm: &impl Collectives, len: usize) {
    comm.barrier().await.unwrap();
    rooted(comm, len).await;
    exchanges(comm, len).await;
    reductions(comm, len).await;
}

/// Runs a collective with each of its algorithms.
#[derive(Clone, Copy)]
pub(crate) enum One {
    Barrier,
    Bcast,
    Gather,
    Scatter,
    AllGather,
    AllToAll,
    Reduce,
    AllReduce,
    ReduceScatter,
}

/// Runs one algorithm, once or twice.
pub(crate) async fn one(comm: &impl Collectives, one: One, len: usize) {
    let (me, size) = (comm.communicator().rank(), comm.communicator().size());
    let root = size / 2;
    let mine: Vec<u64> = block(me, 0, len).collect();
    let all = || -> Vec<u64> { (0..size).flat_map(|from| block(from, 0, len)).collect() };
    match one {
        One::Barrier => comm.barrier().await.unwrap(),
        One::Bcast => {
            let got = comm.bcast(root, mine).await.unwrap();
            assert!(got.into_iter().eq(block(root, 0, len)));
        }
        One::Gather => {
            let got = comm.gather(root, mine).await.unwrap();
            assert_eq!(got, (me == root).then(all));
        }
        One::Scatter => {
            let given = if me == root { all() } else { vec![] };
            assert_eq!(comm.scatter(root, given, len).await.unwrap(), mine);
        }
        One::AllGather => assert_eq!(comm.all_gather(mine).await.unwrap(), all()),
        One::AllToAll => {
            let send: Vec<u64> = (0..size).flat_map(|to| block(me, to, len)).collect();
            let got = comm.all_to_all(send).await.unwrap();
            assert!(
                got.into_iter()
                    .eq((0..size).flat_map(|from| block(from, me, len)))
            );
        }
        One::Reduce => {
            let got = comm.reduce(root, maps(me, len), compose).await.unwrap();
            assert_eq!(got, (me == root).then(|| composed(0..size, len)));
        }
        One::AllReduce => {
            let got = comm.all_reduce(maps(me, len), compose).await.unwrap();
            assert_eq!(got, composed(0..size, len));
            added(comm, one, len).await;
        }
        One::ReduceScatter => {
            let got = comm.reduce_scatter_block(maps(me, size * len), compose);
            let places = me * len..(me + 1) * len;
            assert_eq!(got.await.unwrap(), composed_at(0..size, places));
            added(comm, one, len).await;
        }
    }
}

/// Checks a reduction with operands that may change places.
async fn added(comm: &impl Collectives, which: One, len: usize) {
    let (me, size) = (comm.communicator().rank(), comm.communicator().size());
    let (root, mine) = (size / 2, vec![me as u64; len]);
    let wanted = vec![sum_of(size); len];
    match which {
        One::Reduce => {
            let got = comm.reduce(root, mine, Sum).await.unwrap();
            assert_eq!(got, (me == root).then_some(wanted));
        }
        One::AllReduce => assert_eq!(comm.all_reduce(mine, Sum).await.unwrap(), wanted),
        One::ReduceScatter => {
            let got = comm.reduce_scatter_block(vec![me as u64; size * len], Sum);
            assert_eq!(got.await.unwrap(), wanted);
        }
        _ => unreachable!("no reduction"),
    }
}

/// Checks a collective once, in a form that every algorithm allows.
pub(crate) async fn once(comm: &impl Collectives, which: One, len: usize) {
    match which {
        One::Reduce | One::AllReduce | One::ReduceScatter => added(comm, which, len).await,
        _ => one(comm, which, len).await,
    }
}

#[test]
fn every_collective_is_right_for_every_size_root_and_length() {
    for size in [1, 2, 3, 4, 5, 7, 8] {
        ranks::run(size, &[], |runtime: Runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                for len in [0, 1, 5, 700] {
                    all(&world, len).await;
                }
            });
            runtime.close().unwrap();
        });
    }
}
