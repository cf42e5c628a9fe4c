//! Figures of the collectives: what each rank has before and after.

use super::{
    FigureFile,
    blocks::{self, CollectivePicture},
};

pub(super) fn all() -> Vec<FigureFile> {
    COLLECTIVES
        .iter()
        .map(|(name, collective)| FigureFile {
            name,
            picture: blocks::draw(collective),
        })
        .collect()
}

const NOTHING: &[&str] = &[" "];
const EACH_ONE: [&[&str]; 4] = [&["A"], &["B"], &["C"], &["D"]];
const NONE: &[&str] = &["None"];
const ROOT_ALL: [&[&str]; 4] = [&["A", "B", "C", "D"], NONE, NONE, NONE];
const ALL_OF_ALL: [&[&str]; 4] = [&["A", "B", "C", "D"]; 4];
const EACH_FOUR: [&[&str]; 4] = [
    &["A0", "A1", "A2", "A3"],
    &["B0", "B1", "B2", "B3"],
    &["C0", "C1", "C2", "C3"],
    &["D0", "D1", "D2", "D3"],
];

/// Name of the file, and the collective.
const COLLECTIVES: &[(&str, CollectivePicture)] = &[
    (
        "bcast",
        CollectivePicture {
            title: "Broadcast: all ranks get what the root has",
            call: "bcast(0, buffer)",
            before: [&["A"], NOTHING, NOTHING, NOTHING],
            after: [&["A"]; 4],
        },
    ),
    (
        "scatter",
        CollectivePicture {
            title: "Scatter: each rank gets its block of what the root has",
            call: "scatter(0, blocks, block)",
            before: [&["A0", "A1", "A2", "A3"], NOTHING, NOTHING, NOTHING],
            after: [&["A0"], &["A1"], &["A2"], &["A3"]],
        },
    ),
    (
        "gather",
        CollectivePicture {
            title: "Gather: the root gets a block of each rank, in the order of the ranks",
            call: "gather(0, block)",
            before: EACH_ONE,
            after: ROOT_ALL,
        },
    ),
    (
        "all_gather",
        CollectivePicture {
            title: "All-gather: all ranks get a block of each rank",
            call: "all_gather(block)",
            before: EACH_ONE,
            after: ALL_OF_ALL,
        },
    ),
    (
        "all_to_all",
        CollectivePicture {
            title: "All-to-all: block j of rank i becomes block i of rank j",
            call: "all_to_all(blocks)",
            before: EACH_FOUR,
            after: [
                &["A0", "B0", "C0", "D0"],
                &["A1", "B1", "C1", "D1"],
                &["A2", "B2", "C2", "D2"],
                &["A3", "B3", "C3", "D3"],
            ],
        },
    ),
    (
        "reduce",
        CollectivePicture {
            title: "Reduce: the root gets the sum over all ranks",
            call: "reduce(0, buffer, Sum)",
            before: EACH_ONE,
            after: [&["A+B+C+D"], NONE, NONE, NONE],
        },
    ),
    (
        "all_reduce",
        CollectivePicture {
            title: "All-reduce: all ranks get the sum over all ranks",
            call: "all_reduce(buffer, Sum)",
            before: EACH_ONE,
            after: [&["A+B+C+D"]; 4],
        },
    ),
    (
        "reduce_scatter",
        CollectivePicture {
            title: "Reduce-scatter: rank i gets the sum over all ranks of their blocks i",
            call: "reduce_scatter_block(blocks, Sum)",
            before: EACH_FOUR,
            after: [
                &["A0+B0+C0+D0"],
                &["A1+B1+C1+D1"],
                &["A2+B2+C2+D2"],
                &["A3+B3+C3+D3"],
            ],
        },
    ),
    (
        "scan",
        CollectivePicture {
            title: "Scan: each rank gets the sum over the ranks up to itself",
            call: "scan(buffer, Sum)",
            before: EACH_ONE,
            after: [&["A"], &["A+B"], &["A+B+C"], &["A+B+C+D"]],
        },
    ),
    (
        "exscan",
        CollectivePicture {
            title: "Exclusive scan: each rank gets the sum over the ranks before itself",
            call: "exscan(buffer, Sum)",
            before: EACH_ONE,
            after: [&["None"], &["A"], &["A+B"], &["A+B+C"]],
        },
    ),
    (
        "gather_ragged",
        CollectivePicture {
            title: "Ragged gather: the blocks differ in length, and only their senders know how long they are",
            call: "gather_ragged(0, block)",
            before: [&["A A A"], &["B"], &["C C"], &["D D D"]],
            after: [&["A A A", "B", "C C", "D D D"], NONE, NONE, NONE],
        },
    ),
    (
        "neighbor_all_gather",
        CollectivePicture {
            title: "All-gather among neighbors on a line of ranks: each rank gets the blocks of the ranks beside it",
            call: "neighbor_all_gather(block)",
            before: EACH_ONE,
            after: [&["0", "B"], &["A", "C"], &["B", "D"], &["C", "0"]],
        },
    ),
];
