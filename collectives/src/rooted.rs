//! Collectives whose counts only the root knows. It broadcasts them first.

use ripstop_rt::{Comm, OpError, buffer::SendBuf};

use crate::{
    Collectives, Tuning,
    call::DeferredCall,
    call_spec::{CallSpec, CollectiveKind},
    op::{InPlace, InPlaceOp, NewVec, OptionalVec},
    ragged::{self, RaggedOp, boxed_finish},
};

/// Gathers the blocks of all ranks at `root`, whose counts they must have.
#[track_caller]
pub(crate) fn gather<S: SendBuf>(
    on: &(impl Collectives + ?Sized),
    root: usize,
    send: S,
    counts: &[usize],
) -> RaggedOp<Option<Vec<S::Elem>>, OpError<S>> {
    let (comm, tuning) = ragged::of(on);
    let first = spread_counts(&comm, &tuning, RootedCall { name: GATHER, root }, counts);
    let second = DeferredCall::new(&comm);
    RaggedOp::new(async move {
        let counts = match first.await {
            Ok(counts) => ragged::counts(&counts),
            Err(OpError { error, .. }) => return Err(OpError { error, buf: send }),
        };
        let rank = second.comm.rank();
        let (has, wanted) = (send.elems().len(), counts[rank]);
        let mut spec = CallSpec::of(CollectiveKind::Gather, GATHER).root(root);
        if has != wanted {
            let sentence = format!(
                "`send` has {has} elements, and `counts[{rank}]` of the root, rank {root}, is {wanted}: they must be equal"
            );
            spec = spec.with_fault(sentence);
        }
        let spec = spec.counts(&counts);
        let done = second.begin(&tuning, &spec, send, OptionalVec(rank == root));
        let all = done.await?;
        Ok(boxed_finish(move || all))
    })
}

/// Gives every rank its block of `root`'s elements.
#[track_caller]
pub(crate) fn scatter<S: SendBuf>(
    on: &(impl Collectives + ?Sized),
    root: usize,
    send: S,
    counts: &[usize],
) -> RaggedOp<Vec<S::Elem>, OpError<S>> {
    let (comm, tuning) = ragged::of(on);
    let first = spread_counts(
        &comm,
        &tuning,
        RootedCall {
            name: SCATTER,
            root,
        },
        counts,
    );
    let second = DeferredCall::new(&comm);
    RaggedOp::new(async move {
        let counts = match first.await {
            Ok(counts) => ragged::counts(&counts),
            Err(OpError { error, .. }) => return Err(OpError { error, buf: send }),
        };
        let spec = CallSpec::of(CollectiveKind::Scatter, SCATTER).root(root);
        let done = second.begin(&tuning, &spec.counts(&counts), send, NewVec);
        let row = done.await?;
        Ok(boxed_finish(move || row))
    })
}

/// A collective whose root has the counts.
struct RootedCall {
    name: &'static str,
    root: usize,
}

/// Begins to give every rank the counts of the root. Those of the other ranks are not read.
#[track_caller]
fn spread_counts(
    comm: &Comm,
    tuning: &Tuning,
    RootedCall { name, root }: RootedCall,
    counts: &[usize],
) -> InPlaceOp<Vec<u64>> {
    let size = comm.size();
    let mut spec = CallSpec::of(CollectiveKind::Bcast, name)
        .root(root)
        .len(size);
    let mut known = vec![0; size];
    if comm.rank() == root {
        if counts.len() == size {
            known = counts.iter().map(|&count| count as u64).collect();
        } else {
            let has = counts.len();
            let sentence = format!("`counts` has {has} entries, and there are {size} ranks");
            spec = spec.with_fault(sentence);
        }
    }
    ragged::lengths(comm, tuning, &spec).begin(None, [], known, InPlace)
}

const GATHER: &str = "gather_v_rooted";
const SCATTER: &str = "scatter_v_rooted";
