//! Calls that must fail: an error on every rank, which names two of them, and no rank hangs.

use std::future::Future;

use ripstop::{Error, ErrorKind, Runtime, prelude::*};

use crate::{neighbors, ranks};

/// The call of one rank that differs from that of the others.
type Stray = fn(&Comm, usize, bool) -> std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A call on the odd rank or on the others, without its result.
macro_rules! stray {
    (|$comm:ident, $odd:ident| $call:expr) => {
        |$comm, _, $odd| {
            let op = $call;
            Box::pin(async move { op.await.map(drop).map_err(Error::from) })
        }
    };
    (|$comm:ident, $size:ident, $odd:ident| $call:expr) => {
        |$comm, $size, $odd| {
            let op = $call;
            Box::pin(async move { op.await.map(drop).map_err(Error::from) })
        }
    };
}

/// Like [`stray`], for calls that start when they are polled.
macro_rules! making {
    (|$comm:ident, $size:tt, $odd:ident| $made:expr) => {
        |comm, _size, $odd| {
            let $comm = comm.clone();
            making!(@size $size = _size);
            Box::pin(async move { $made })
        }
    };
    (@size _ = $given:ident) => {};
    (@size $size:ident = $given:ident) => {
        let $size = $given;
    };
}

/// Calls in which one rank disagrees with the others, each with a name.
const STRAYS: &[(&str, Stray)] = &[
    (
        "root of bcast",
        stray!(|comm, odd| comm.bcast(usize::from(odd), [1_u8; 9])),
    ),
    (
        "length of bcast",
        stray!(|comm, odd| comm.bcast(0, vec![1_u8; if odd { 8 } else { 9 }])),
    ),
    (
        "nothing to bcast",
        stray!(|comm, odd| comm.bcast(0, vec![1_u8; if odd { 0 } else { 9 }])),
    ),
    (
        "block of gather",
        stray!(|comm, odd| comm.gather(0, vec![1_u8; if odd { 0 } else { 9 }])),
    ),
    (
        "block of scatter",
        stray!(|comm, size, odd| {
            let block = if odd { 0 } else { 9 };
            comm.scatter(0, vec![1_u8; 9 * size], block)
        }),
    ),
    (
        "block of all_gather",
        stray!(|comm, odd| comm.all_gather(vec![1_u8; if odd { 0 } else { 9 }])),
    ),
    (
        "block of all_to_all",
        stray!(|comm, size, odd| {
            comm.all_to_all(vec![1_u8; if odd { 2 * size } else { 3 * size }])
        }),
    ),
    (
        "length of all_reduce",
        stray!(|comm, odd| {
            comm.all_reduce(vec![1_u32; if odd { 70_000 } else { 70_001 }], Sum)
        }),
    ),
    (
        "the root of gather, which each takes itself for",
        stray!(|comm, _odd| comm.gather(comm.rank(), [1_u8; 9])),
    ),
    (
        "the root of reduce, which each takes itself for",
        stray!(|comm, _odd| comm.reduce(comm.rank(), vec![1_u8; 9], Sum)),
    ),
    (
        "root of scatter",
        stray!(|comm, size, odd| {
            let root = usize::from(odd);
            let all = if comm.rank() == root { 9 * size } else { 0 };
            comm.scatter(root, vec![1_u8; all], 9)
        }),
    ),
    (
        "operator of all_reduce",
        making!(|comm, _, odd| match odd {
            true => comm
                .all_reduce([1_u64], Sum)
                .await
                .map(drop)
                .map_err(Error::from),
            false => comm
                .all_reduce([1_u64], Max)
                .await
                .map(drop)
                .map_err(Error::from),
        }),
    ),
    (
        "elements of all_gather, which are as long",
        making!(|comm, _, odd| match odd {
            true => comm
                .all_gather([1_u64])
                .await
                .map(drop)
                .map_err(Error::from),
            false => comm
                .all_gather([1_f64])
                .await
                .map(drop)
                .map_err(Error::from),
        }),
    ),
    (
        "the root of gather_ragged, which each takes itself for",
        stray!(|comm, _odd| comm.gather_ragged(comm.rank(), vec![1_u8; 9])),
    ),
    (
        "root of bcast_ragged",
        stray!(|comm, _size, odd| comm.bcast_ragged(usize::from(odd), vec![1_u8; 9])),
    ),
    (
        "the length of bcast_ragged alone",
        making!(|comm, _, odd| match odd {
            true => comm.bcast(0, [1_u64]).await.map(drop).map_err(Error::from),
            false => {
                let vector = comm.bcast_ragged(0, vec![1_u64]).await;
                vector.map(drop).map_err(Error::from)
            }
        }),
    ),
    (
        "root of scatter_ragged",
        stray!(|comm, size, odd| {
            let root = usize::from(odd);
            comm.scatter_ragged(root, vec![vec![1_u8; 9]; size])
        }),
    ),
    (
        "the lengths of all_gather_ragged alone",
        making!(|comm, _, odd| match odd {
            true => comm
                .all_gather([9_u64])
                .await
                .map(drop)
                .map_err(Error::from),
            false => {
                let rows = comm.all_gather_ragged(vec![1_u8; 9]).await;
                rows.map(drop).map_err(Error::from)
            }
        }),
    ),
    (
        "counts of all_gather_v",
        stray!(|comm, size, odd| {
            let mut counts = vec![0; size];
            counts[usize::from(odd)] = 5;
            comm.all_gather_v(vec![1_u8; 5], &counts)
        }),
    ),
    (
        "counts of gather_v",
        stray!(|comm, size, odd| {
            let mut counts = vec![0; size];
            counts[usize::from(odd)] = 5;
            comm.gather_v(0, vec![1_u8; 5], &counts)
        }),
    ),
    (
        "counts of scatter_v",
        stray!(|comm, size, odd| {
            let mut counts = vec![0; size];
            counts[usize::from(odd)] = 5;
            comm.scatter_v(0, vec![1_u8; 5], &counts)
        }),
    ),
    (
        "a block that one does not expect",
        stray!(|comm, size, odd| {
            comm.all_to_all_v(vec![1_u8; size], &vec![1; size], &{
                let mut recvs = vec![1; size];
                recvs[if comm.rank() == 0 { 1 } else { 0 }] = usize::from(!odd);
                recvs
            })
        }),
    ),
    (
        "a block that does not come",
        stray!(|comm, size, odd| {
            comm.all_to_all_v(vec![1_u8; 9 * size], &vec![0; size], &{
                let mut recvs = vec![0; size];
                recvs[if comm.rank() == 0 { 1 } else { 0 }] = usize::from(odd);
                recvs
            })
        }),
    ),
    (
        "length of scan",
        stray!(|comm, odd| comm.scan(vec![1_u8; if odd { 8 } else { 9 }], Sum)),
    ),
    (
        "nothing to scan",
        stray!(|comm, odd| comm.scan(vec![1_u8; if odd { 0 } else { 9 }], Sum)),
    ),
    (
        "operator of scan",
        making!(|comm, _, odd| match odd {
            true => comm.scan([1_u64], Sum).await.map(drop).map_err(Error::from),
            false => comm.scan([1_u64], Max).await.map(drop).map_err(Error::from),
        }),
    ),
    (
        "a scan among those that leave out their own",
        making!(|comm, _, odd| match odd {
            true => comm.scan([1_u64], Sum).await.map(drop).map_err(Error::from),
            false => comm
                .exscan([1_u64], Sum)
                .await
                .map(drop)
                .map_err(Error::from),
        }),
    ),
    (
        "length of exscan",
        stray!(|comm, odd| comm.exscan(vec![1_u8; if odd { 8 } else { 9 }], Sum)),
    ),
    (
        "operator of exscan",
        making!(|comm, _, odd| match odd {
            true => comm
                .exscan([1_u64], Sum)
                .await
                .map(drop)
                .map_err(Error::from),
            false => comm
                .exscan([1_u64], Min)
                .await
                .map(drop)
                .map_err(Error::from),
        }),
    ),
    (
        "block of reduce_scatter_block",
        stray!(|comm, size, odd| {
            comm.reduce_scatter_block(vec![1_u8; size * if odd { 8 } else { 9 }], Sum)
        }),
    ),
    (
        "counts of reduce_scatter",
        stray!(|comm, size, odd| {
            let mut counts = vec![0; size];
            counts[usize::from(odd)] = 5;
            comm.reduce_scatter(vec![1_u8; 5], &counts, Sum)
        }),
    ),
    (
        "operator of reduce_scatter",
        making!(|comm, size, odd| {
            let (send, counts) = (vec![1_u64; size], vec![1; size]);
            match odd {
                true => comm.reduce_scatter(send, &counts, Sum).await,
                false => comm.reduce_scatter(send, &counts, Max).await,
            }
            .map(drop)
            .map_err(Error::from)
        }),
    ),
    (
        "a scan among parts of a sum",
        making!(|comm, size, odd| match odd {
            true => comm
                .scan(vec![1_u64; size], Sum)
                .await
                .map(drop)
                .map_err(Error::from),
            false => {
                let parts = comm.reduce_scatter_block(vec![1_u64; size], Sum).await;
                parts.map(drop).map_err(Error::from)
            }
        }),
    ),
    (
        "a barrier among scans",
        making!(|comm, _, odd| match odd {
            true => comm.barrier().await,
            false => comm.scan([1_u64], Sum).await.map(drop).map_err(Error::from),
        }),
    ),
];

/// One rank makes a communicator; the others make another one, or none.
const STRAY_MAKERS: &[(&str, Stray)] = &[
    (
        "a twin among parts",
        making!(|comm, _, odd| match odd {
            true => comm.dup().await.map(drop),
            false => comm.split_some(Some(1), 0).await.map(drop),
        }),
    ),
    (
        "dimensions of a grid",
        making!(|comm, size, odd| {
            let dims = if odd { [1, size] } else { [size, 1] };
            comm.cart(&dims, &[true; 2]).await.map(drop)
        }),
    ),
    (
        "a grid that wraps around",
        making!(|comm, size, odd| comm.cart(&[size], &[odd]).await.map(drop)),
    ),
    (
        "a twin among barriers",
        making!(|comm, _, odd| match odd {
            true => comm.dup().await.map(drop),
            false => comm.barrier().await,
        }),
    ),
    (
        "parts among broadcasts of rank 1",
        making!(|comm, _, odd| match odd {
            true => comm.split_some(Some(1), 0).await.map(drop),
            false => comm
                .bcast(1, [7_u8; 9])
                .await
                .map(drop)
                .map_err(Error::from),
        }),
    ),
    (
        "a grid among long reductions",
        making!(|comm, size, odd| match odd {
            true => comm.cart(&[size], &[true]).await.map(drop),
            false => {
                let sums = comm.all_reduce(vec![1_u32; 70_000], Sum);
                sums.await.map(drop).map_err(Error::from)
            }
        }),
    ),
];

/// Makes every stray call, each on a communicator of its own, one after the other.
pub(crate) async fn disagree(world: &Comm, odd: usize) {
    for (what, stray) in STRAYS.iter().chain(STRAY_MAKERS) {
        let twin = world.dup().await.unwrap();
        disagree_about(what, *stray, twin, odd).await;
    }
}

/// Like [`disagree`], with all calls at the same time.
async fn disagree_at_once(world: &Comm, odd: usize) {
    let mut calls = Vec::new();
    for (what, stray) in STRAYS.iter().chain(STRAY_MAKERS) {
        let twin = world.dup().await.unwrap();
        calls.push(world.spawn(disagree_about(what, *stray, twin, odd)));
    }
    for call in calls {
        call.await;
    }
}

async fn disagree_about(what: &str, stray: Stray, comm: Comm, odd: usize) {
    let (me, size) = (comm.rank(), comm.size());
    let first = stray(&comm, size, me == odd).await;
    // A rank that has completed its part learns of the failure in its next collective.
    let second = comm.barrier().await;
    match first {
        Err(error) => named(what, &error),
        Ok(()) => assert!(second.is_err(), "{what} of {size}: rank {me}"),
    }
    let second = second.unwrap_err().into_kind();
    let ended = matches!(second, ErrorKind::Revoked | ErrorKind::Mismatch { .. });
    assert!(ended, "{what} of {size}: rank {me}: {second}");
}

/// Many of these calls fail only when a rank has waited in vain for a second. In the first job, nothing but the call itself can
/// wake a rank. In the other jobs all calls are made at the same time, because they would take minutes otherwise.
#[test]
fn what_ranks_do_not_agree_on_is_an_error_on_all_that_names_two() {
    for size in [2, 3, 5] {
        for odd in [0, size - 1] {
            ranks::run(size, &[], move |runtime: Runtime| {
                let world = runtime.world();
                runtime.block_on(async move {
                    if (size, odd) == (2, 0) {
                        disagree(&world, 0).await;
                        neighbors::disagree(world).await;
                    } else {
                        disagree_at_once(&world, odd as usize).await;
                        neighbors::disagree_at_once(world).await;
                    }
                });
                runtime.close().unwrap();
            });
        }
    }
}

/// Messages of more than 64 KiB do not fit into collective slots, so the two collectives run in different ways.
#[test]
fn a_stray_message_is_noticed_in_the_next_collective_whichever_way_each_of_them_goes() {
    for lens in [
        [9, 9000],
        [9000, 9],
        [9000, 9000],
        [1000, 9],
        [9, 1000],
        [9, 9],
    ] {
        for size in [2, 3] {
            ranks::run(size, &[], move |runtime: Runtime| {
                let world = runtime.world();
                runtime.block_on(strays_then_sums(&world, lens));
            });
        }
    }
}

/// Two ranks send to all, and receive from none; the sum makes all ranks meet.
async fn strays_then_sums(world: &Comm, [stray, sum]: [usize; 2]) {
    let me = world.rank();
    for round in 0..30 {
        let twin = world.dup().await.unwrap();
        let root = usize::from(me == 1);
        let first = twin.bcast(root, vec![7_u8; stray]).await;
        let second = twin.all_reduce(vec![1_u8; sum], Max).await;
        let third = twin.dup().await.unwrap_err();
        assert!(
            matches!(third.kind, ErrorKind::Revoked),
            "rank {me}: {third}"
        );
        let what = format!("round {round}, {stray} and {sum} bytes, rank {me}");
        let named_by = match (first, second) {
            (Err(error), _) => Error::from(error),
            (Ok(_), Err(error)) => Error::from(error),
            (Ok(_), Ok(_)) => panic!("{what}: nothing was noticed"),
        };
        named(&what, &named_by);
    }
}

#[test]
fn a_stray_message_is_noticed_by_the_next_creation_of_a_communicator() {
    for stray in [9, 1000] {
        ranks::run(2, &[], move |runtime: Runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                let me = world.rank();
                for _ in 0..30 {
                    let twin = world.dup().await.unwrap();
                    let first = twin.bcast(me, vec![7_u8; stray]).await;
                    let second = twin.dup().await;
                    match (first, second) {
                        (Err(error), _) => named("bcast", &Error::from(error)),
                        (Ok(_), Err(error)) => named("dup", &error),
                        (Ok(_), Ok(_)) => panic!("{stray} bytes, rank {me}: nothing was noticed"),
                    }
                }
            });
        });
    }
}

/// A rank that knows of a revoked communicator takes the slower path through all its collectives.
#[test]
fn a_stray_message_is_noticed_also_on_the_slower_path() {
    ranks::run(2, &[], |runtime: Runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let me = world.rank();
            let alone = world.split_some(u32::try_from(me).ok(), 0).await.unwrap();
            if me == 0 {
                alone.unwrap().revoke();
            }
            for _ in 0..30 {
                let twin = world.dup().await.unwrap();
                let first = twin.bcast(me, [7_u8; 9]).await;
                let second = twin.barrier().await;
                assert!(first.is_err() || second.is_err(), "rank {me}");
            }
        });
    });
}

#[test]
fn a_grid_that_one_rank_gets_wrong_ends_on_all() {
    ranks::run(3, &[], |runtime: Runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let me = world.rank();
            let dims = if me == 1 { [2, 2] } else { [3, 1] };
            let error = world.cart(&dims, &[true; 2]).await.unwrap_err();
            match &error.kind {
                ErrorKind::InvalidArgument(text) => {
                    assert!(me == 1 && text.contains("[2, 2]"), "{text}");
                }
                ErrorKind::Mismatch { rank, other, .. } => {
                    assert!(me != 1 && [*rank, *other].contains(&1), "{error}");
                }
                _ => panic!("{error}"),
            }
            let later = world.dup().await.unwrap_err();
            assert!(matches!(later.kind, ErrorKind::Revoked), "{later}");
        });
    });
}

pub(crate) fn named(what: &str, error: &Error) {
    let ErrorKind::Mismatch { rank, other, .. } = error.kind else {
        panic!("{what}: {error}")
    };
    assert!(rank != other, "{what}: {error}");
}
