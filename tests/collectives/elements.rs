//! Elements of any alignment and length, in reductions and in all other collectives.

use ripstop::{
    Commutative, Runtime, Sum, Tuning, Window, Wire, buffer::BufExt, collectives::plan, prelude::*,
};

use crate::ranks;

/// An element of a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Wire)]
#[repr(C, align(64))]
struct Line {
    words: [u64; 8],
}

/// An element of a page.
#[derive(Clone, Copy, Debug, PartialEq, Wire)]
#[repr(C, align(4096))]
struct Page {
    words: [[u64; 16]; 32],
}

/// An element longer than a chunk.
#[derive(Clone, Copy, PartialEq, Wire)]
#[repr(C)]
struct Large {
    words: [[u64; 50]; 50],
}

trait Numbered: Wire + Copy + PartialEq {
    fn number(number: u64) -> Self;

    /// Checks that the address is valid for such elements.
    fn value(&self) -> u64;
}

macro_rules! numbered {
    ($($element:ty = |$number:ident| $made:expr, |$one:ident| $first:expr;)*) => {$(
        impl Numbered for $element {
            fn number($number: u64) -> Self {
                $made
            }

            fn value(&self) -> u64 {
                let here = std::ptr::from_ref(self).addr();
                assert!(here.is_multiple_of(align_of::<Self>()), "{here:#x}");
                let $one = self;
                assert!(*$one == Self::number($first), "elements that are torn");
                $first
            }
        }
    )*};
}

numbered! {
    Line = |number| Self { words: [number; 8] }, |it| it.words[0];
    Page = |number| Self { words: [[number; 16]; 32] }, |it| it.words[0][0];
    Large = |number| Self { words: [[number; 50]; 50] }, |it| it.words[0][0];
}

fn values<T: Numbered>(elems: &[T]) -> Vec<u64> {
    elems.iter().map(T::value).collect()
}

/// A non-commutative operation: appends the digits of a number.
fn append<T: Numbered>(left: T, right: T) -> T {
    let shift = 10_u64.pow(right.value().ilog10() + 1);
    T::number(left.value() * shift + right.value())
}

fn add<T: Numbered>(left: T, right: T) -> T {
    T::number(left.value() + right.value())
}

async fn reduced<T: Numbered>(world: &Comm, lens: &[usize]) {
    let (me, size) = (world.rank(), world.size());
    let digits = |upto: usize| (1..=upto as u64).fold(0, |all, digit| all * 10 + digit);
    let sum: u64 = (1..=size as u64).sum();
    let mine = T::number(me as u64 + 1);
    for &len in lens {
        let all = world
            .all_reduce(vec![mine; len], append::<T>)
            .await
            .unwrap();
        assert_eq!(values(&all), vec![digits(size); len]);
        let all = world
            .all_reduce(vec![mine; len], Commutative(add::<T>))
            .await
            .unwrap();
        assert_eq!(values(&all), vec![sum; len]);
        let first = world
            .reduce(size - 1, vec![mine; len], append::<T>)
            .await
            .unwrap();
        assert_eq!(
            first.map(|all| values(&all)),
            (me == size - 1).then(|| vec![digits(size); len])
        );
        let scanned = world.scan(vec![mine; len], append::<T>).await.unwrap();
        assert_eq!(values(&scanned), vec![digits(me + 1); len]);
        let part = world
            .reduce_scatter_block(vec![mine; len * size], append::<T>)
            .await
            .unwrap();
        assert_eq!(values(&part), vec![digits(size); len]);
        let gathered = world.all_gather(vec![mine; len]).await.unwrap();
        let theirs = (1..=size as u64).flat_map(|number| vec![number; len]);
        assert_eq!(values(&gathered), theirs.collect::<Vec<_>>());
    }
    let named = [
        plan::AllReduce::Rabenseifner,
        plan::AllReduce::RecursiveDoubling,
        plan::AllReduce::ReduceBcast,
    ];
    for algorithm in named {
        let world = world.tuned(Tuning::AUTO.all_reduce(algorithm));
        let all = world
            .all_reduce(vec![mine; 5], Commutative(add::<T>))
            .await
            .unwrap();
        assert_eq!(values(&all), [sum; 5]);
    }
}

async fn carried<T: Numbered>(world: &Comm) {
    let (me, size) = (world.rank(), world.size());
    let (to, from) = ((me + 1) % size, (me + size - 1) % size);
    let inbox = world.recv::<T>(from, 0);
    let sent = world.send(to, 0, vec![T::number(me as u64); 3]);
    assert_eq!(values(&inbox.await.unwrap().0), [from as u64; 3]);
    sent.await.unwrap();
    let mut own = world.alloc::<T>(4).unwrap();
    own.fill(T::number(7));
    let (first, mut rest) = own.split_at(1);
    assert_eq!((values(&first), values(&rest)), (vec![7], vec![7; 3]));
    rest.fill(T::number(8));
    let sent = world.send(to, 1, rest.part(1..2));
    assert_eq!(values(&world.recv::<T>(from, 1).await.unwrap().0), [8]);
    sent.await.unwrap();
    let mut window = Window::<T>::allocate(world, 3).await.unwrap();
    let fence = window.fence().await.unwrap();
    fence.put(to, 1, vec![T::number(me as u64)]).await.unwrap();
    let put = fence.end().await.unwrap();
    assert_eq!(values(put), [0, from as u64, 0]);
    window.free().await.unwrap();
    let counts = Window::<u64>::allocate(world, 1)
        .await
        .unwrap()
        .into_passive()
        .await
        .unwrap();
    let lock = counts.lock_shared(0).await.unwrap();
    lock.accumulate(0, 0, [1], Sum).await.unwrap();
    lock.unlock().await;
    counts.free().await.unwrap();
}

#[test]
fn elements_of_any_alignment_and_length_are_reduced_and_carried() {
    for (size, hows) in [
        (1, &["offload"][..]),
        (3, &["offload", "host"]),
        (4, &["messages"]),
    ] {
        for how in hows {
            ranks::run(size, &[("RIPSTOP_COLLECTIVES", how)], |runtime: Runtime| {
                let world = runtime.world();
                runtime.block_on(async {
                    reduced::<Line>(&world, &[0, 1, 100]).await;
                    reduced::<Page>(&world, &[2]).await;
                    Box::pin(reduced::<Large>(&world, &[1])).await;
                    carried::<Line>(&world).await;
                    carried::<Page>(&world).await;
                    Box::pin(carried::<Large>(&world)).await;
                    world.barrier().await.unwrap();
                });
            });
        }
    }
}

#[test]
fn elements_of_any_alignment_are_reduced_on_a_simulated_adapter_too() {
    for how in ["lists", "messages"] {
        let simulation = ripstop::sim::Simulation::new(5).fabric("bxi");
        let simulation = simulation.set("RIPSTOP_COLLECTIVES", how);
        let run = simulation.run(async |world: Comm| {
            reduced::<Line>(&world, &[1, 40]).await;
            reduced::<Page>(&world, &[2]).await;
        });
        run.unwrap();
    }
}
