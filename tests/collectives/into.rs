//! The forms that receive into a buffer give the same results as the forms without one.

use std::pin::Pin;

use ripstop::{Runtime, prelude::*};

use crate::ranks;

type Got = (Vec<u64>, Vec<u64>);

/// Makes a call with this many elements and this kind of buffer. Returns the two returned buffers, what was sent, and the
/// result of the form without a buffer; `None` if there is nothing to compare with.
type Case = fn(
    Comm,
    usize,
    Room,
) -> Pin<Box<dyn Future<Output = (Got, Vec<u64>, Option<Vec<u64>>)> + Send>>;

/// Returns a buffer with room for this many elements.
type Room = fn(usize) -> Vec<u64>;

macro_rules! case {
    (|$comm:ident, $len:ident| $send:expr, $room:expr, |$given:ident, $recv:ident| $into:expr, $fresh:expr) => {
        |$comm, $len, room: Room| {
            Box::pin(async move {
                let sent: Vec<u64> = $send;
                let ($given, $recv) = (sent.clone(), room($room));
                let got = $into.await.unwrap();
                let $given = sent.clone();
                (got, sent, $fresh)
            })
        }
    };
}

fn mine(comm: &Comm, len: usize) -> Vec<u64> {
    (0..len as u64)
        .map(|at| 1_000 * (comm.rank() as u64 + 1) + at)
        .collect()
}

/// Returns block lengths, the first of them zero if there are several.
fn counts(comm: &Comm, len: usize) -> Vec<usize> {
    (0..comm.size()).map(|rank| rank * len).collect()
}

fn root(comm: &Comm) -> usize {
    comm.size() / 2
}

/// Returns a length at the root, and `None` elsewhere.
fn at_root(comm: &Comm, len: usize) -> usize {
    if comm.rank() == root(comm) { len } else { 0 }
}

fn all_of(comm: &Comm, len: usize) -> usize {
    counts(comm, len).iter().sum()
}

const CASES: &[(&str, Case)] = &[
    (
        "gather",
        case!(
            |comm, len| mine(&comm, len),
            at_root(&comm, len * comm.size()),
            |send, recv| comm.gather_into(root(&comm), send, recv),
            Some(
                comm.gather(root(&comm), send)
                    .await
                    .unwrap()
                    .unwrap_or_default()
            )
        ),
    ),
    (
        "gather_v",
        case!(
            |comm, len| mine(&comm, comm.rank() * len),
            at_root(&comm, all_of(&comm, len)),
            |send, recv| comm.gather_v_into(root(&comm), send, recv, &counts(&comm, len)),
            Some(
                comm.gather_v(root(&comm), send, &counts(&comm, len))
                    .await
                    .unwrap()
                    .unwrap_or_default()
            )
        ),
    ),
    (
        "scatter",
        case!(
            |comm, len| mine(&comm, at_root(&comm, len * comm.size())),
            len,
            |send, recv| comm.scatter_into(root(&comm), send, recv, len),
            Some(comm.scatter(root(&comm), send, len).await.unwrap())
        ),
    ),
    (
        "scatter_v",
        case!(
            |comm, len| mine(&comm, at_root(&comm, all_of(&comm, len))),
            comm.rank() * len,
            |send, recv| comm.scatter_v_into(root(&comm), send, recv, &counts(&comm, len)),
            Some(
                comm.scatter_v(root(&comm), send, &counts(&comm, len))
                    .await
                    .unwrap()
            )
        ),
    ),
    (
        "all_gather",
        case!(
            |comm, len| mine(&comm, len),
            len * comm.size(),
            |send, recv| comm.all_gather_into(send, recv),
            Some(comm.all_gather(send).await.unwrap())
        ),
    ),
    (
        "all_gather_v",
        case!(
            |comm, len| mine(&comm, comm.rank() * len),
            all_of(&comm, len),
            |send, recv| comm.all_gather_v_into(send, recv, &counts(&comm, len)),
            Some(comm.all_gather_v(send, &counts(&comm, len)).await.unwrap())
        ),
    ),
    (
        "all_to_all",
        case!(
            |comm, len| mine(&comm, len * comm.size()),
            len * comm.size(),
            |send, recv| comm.all_to_all_into(send, recv),
            Some(comm.all_to_all(send).await.unwrap())
        ),
    ),
    (
        "all_to_all_v",
        case!(
            |comm, len| mine(&comm, all_of(&comm, len)),
            comm.size() * comm.rank() * len,
            |send, recv| {
                let from_each = vec![comm.rank() * len; comm.size()];
                comm.all_to_all_v_into(send, &counts(&comm, len), recv, &from_each)
            },
            {
                let from_each = vec![comm.rank() * len; comm.size()];
                Some(
                    comm.all_to_all_v(send, &counts(&comm, len), &from_each)
                        .await
                        .unwrap(),
                )
            }
        ),
    ),
    (
        "reduce",
        case!(
            |comm, len| mine(&comm, len),
            at_root(&comm, len),
            |send, recv| comm.reduce_into(root(&comm), send, recv, Sum),
            Some(
                comm.reduce(root(&comm), send, Sum)
                    .await
                    .unwrap()
                    .unwrap_or_default()
            )
        ),
    ),
    (
        "reduce_scatter",
        case!(
            |comm, len| mine(&comm, all_of(&comm, len)),
            comm.rank() * len,
            |send, recv| comm.reduce_scatter_into(send, recv, &counts(&comm, len), Sum),
            Some(
                comm.reduce_scatter(send, &counts(&comm, len), Sum)
                    .await
                    .unwrap()
            )
        ),
    ),
    (
        "reduce_scatter_block",
        case!(
            |comm, len| mine(&comm, len * comm.size()),
            len,
            |send, recv| comm.reduce_scatter_block_into(send, recv, Max),
            Some(comm.reduce_scatter_block(send, Max).await.unwrap())
        ),
    ),
    (
        "exscan",
        case!(
            |comm, len| mine(&comm, len),
            len,
            |send, recv| comm.exscan_into(send, recv, Sum),
            comm.exscan(send, Sum).await.unwrap()
        ),
    ),
];

/// Just enough, more than that, and memory that was never written.
const ROOMS: [(&str, Room); 3] = [
    ("as long", |len| vec![7; len]),
    ("longer", |len| vec![7; len + 3]),
    ("empty", Vec::with_capacity),
];

#[test]
fn a_buffer_has_what_a_new_vector_would_have() {
    for size in [1, 2, 5] {
        ranks::run(size, &[], |runtime: Runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                for (name, case) in CASES {
                    for (kind, room) in ROOMS {
                        for len in [0, 1, 700] {
                            let ((back, got), sent, wanted) = case(world.clone(), len, room).await;
                            let what = format!("{name}, {len} elements, a buffer that is {kind}");
                            assert_eq!(back, sent, "{what}");
                            if let Some(wanted) = wanted {
                                assert_eq!(got, wanted, "{what}");
                            }
                        }
                    }
                }
            });
            runtime.close().unwrap();
        });
    }
}
