//! Reductions of integers, which some adapters do by themselves: the results match the definitions in any case.

use ripstop::{
    BitAnd, BitOr, BitXor, Located, LogicalAnd, LogicalOr, LogicalXor, MaxLoc, MinLoc, ReduceOp,
    Runtime, buffer::Wire, prelude::*,
};

use crate::ranks;

#[test]
fn integers_are_reduced_by_the_operator_under_every_executor() {
    for (ranks, executor) in [(5, "lists"), (8, "lists"), (3, "messages")] {
        let settings = [("RIPSTOP_COLLECTIVES", executor)];
        ranks::run(ranks, &settings, |runtime: Runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                for len in [1, 300] {
                    integers(&world, len).await;
                }
            });
        });
    }
}

/// Like [`Located`], but not packed.
#[derive(Clone, Copy, PartialEq, ripstop::Wire)]
#[repr(C)]
struct Peak {
    value: f64,
    at: u64,
}

#[test]
fn elements_that_differ_in_their_alignment_alone_have_programs_of_their_own() {
    for len in [1, 300] {
        ranks::run(2, &[], move |runtime: Runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                let located = Located::new;
                let first = |a, _| a;
                let packed = world.all_reduce(vec![located(1.0, 2); len], first);
                assert!(packed.await.unwrap() == vec![located(1.0, 2); len]);
                let (value, at) = (3.0, 4);
                let aligned = world.all_reduce(vec![Peak { value, at }; len], |_, b| b);
                assert!(aligned.await.unwrap() == vec![Peak { value, at }; len]);
            });
        });
    }
}

/// Every operator for integers, and one that no adapter has.
pub(crate) async fn integers(comm: &impl Collectives, len: usize) {
    macro_rules! reduce {
        ($($number:ty)*) => {$(
            let elem = |rank, at| {
                <$number>::from_le_bytes(*bytes(rank, at).first_chunk().unwrap())
            };
            reduces(comm, len, Sum, elem, <$number>::wrapping_add).await;
            reduces(comm, len, Min, elem, <$number>::min).await;
            reduces(comm, len, Max, elem, <$number>::max).await;
            reduces(comm, len, BitAnd, elem, |a, b| a & b).await;
            reduces(comm, len, BitOr, elem, |a, b| a | b).await;
            reduces(comm, len, BitXor, elem, |a, b| a ^ b).await;
            reduces(comm, len, Product, elem, <$number>::wrapping_mul).await;
        )*};
    }
    reduce!(u8 i16 u32 i64 usize i128);
}

/// Reductions that no adapter does: the location of a value, logical operations, and the greatest of floating-point numbers.
pub(crate) async fn others(comm: &impl Collectives, len: usize) {
    let located = |rank, at| Located::new(f64::from(bytes(rank, at)[0] % 4), rank as u64);
    let nearer = |a: Located<f64>, b: Located<f64>| if b.value() < a.value() { b } else { a };
    let farther = |a: Located<f64>, b: Located<f64>| if b.value() > a.value() { b } else { a };
    reduces(comm, len, MinLoc, located, nearer).await;
    reduces(comm, len, MaxLoc, located, farther).await;
    let truth = |rank, at| bytes(rank, at)[1] % 3;
    reduces(comm, len, LogicalAnd, truth, |a, b| {
        u8::from(a != 0 && b != 0)
    })
    .await;
    reduces(comm, len, LogicalOr, truth, |a, b| {
        u8::from(a != 0 || b != 0)
    })
    .await;
    reduces(comm, len, LogicalXor, truth, |a, b| {
        u8::from((a != 0) != (b != 0))
    })
    .await;
    let real = |rank, at| f32::from(bytes(rank, at)[2]) - 100.0;
    reduces(comm, len, Max, real, f32::max).await;
}

async fn reduces<T, O>(
    comm: &impl Collectives,
    len: usize,
    op: O,
    elem: fn(usize, usize) -> T,
    combine: fn(T, T) -> T,
) where
    T: Wire + PartialEq,
    O: ReduceOp<T> + Copy,
{
    let (me, size) = (comm.communicator().rank(), comm.communicator().size());
    let mine: Vec<T> = (0..len).map(|at| elem(me, at)).collect();
    let one = |at| (0..size).map(|rank| elem(rank, at)).reduce(combine);
    let all: Vec<T> = (0..len).filter_map(one).collect();
    let got = comm.all_reduce(mine.clone(), op).await.unwrap();
    assert!(got == all, "{} of {len} elements", O::NAME);
    let root = len % size;
    let got = comm.reduce(root, mine, op).await.unwrap();
    assert!(got == (me == root).then_some(all), "{} to {root}", O::NAME);
}

/// Returns bits that depend only on the arguments.
fn bytes(rank: usize, at: usize) -> [u8; 16] {
    let mixed = (rank as u64 * 65_537 + at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let both = [mixed ^ mixed >> 29, mixed.rotate_left(17)];
    bytemuck::cast(both)
}
