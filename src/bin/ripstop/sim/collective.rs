//! Collectives among many ranks, beside the time that the chooser's model predicts for the chosen algorithm.

use ripstop::{
    Collectives, Comm, Result, Tuning,
    collectives::{
        choose::{Algorithm, Shape, cheapest},
        machine_of,
        plan::{AllReduce, AllToAll, Barrier},
        set_for,
    },
    sim,
};
use ripstop_rt::internal::CommInternals;

use super::scenario::{RankFigures, ScenarioWork, each_us, rank0_figure};

/// The algorithms of [`all_to_all`]: the cheapest one, and those whose costs grow differently.
pub(super) const ALL_TO_ALL: &[&str] = &["auto", "pairwise", "bruck"];

pub(super) async fn barrier(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let start = sim::now(&world);
    for _ in 0..work.iters {
        world.barrier().await?;
    }
    let each = each_us(sim::now(&world) - start, work.iters);
    let model = model_us(&world, None::<Barrier>, 0);
    Ok(figures(&world, each, model))
}

/// Reduces a vector of `work.size` bytes, as 8-byte numbers.
pub(super) async fn all_reduce(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let numbers = work.size.div_ceil(size_of::<u64>());
    let mut sums = vec![1_u64; numbers];
    let start = sim::now(&world);
    for _ in 0..work.iters {
        sums.fill(1);
        sums = world.all_reduce(sums, ripstop::Sum).await?;
    }
    let each = each_us(sim::now(&world) - start, work.iters);
    let size = world.size() as u64;
    assert!(sums.iter().all(|&sum| sum == size), "sums over all ranks");
    let model = model_us(&world, None::<AllReduce>, numbers * size_of::<u64>());
    Ok(figures(&world, each, model))
}

/// Exchanges blocks of `work.size` bytes.
pub(super) async fn all_to_all(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let named = AllToAll::ALL
        .iter()
        .copied()
        .find(|algorithm| algorithm.name() == work.way);
    let tuning = named.map_or(Tuning::AUTO, |named| Tuning::AUTO.all_to_all(named));
    let tuned = world.tuned(tuning);
    let (mut send, mut recv) = blocks(&world, work.size);
    let start = sim::now(&world);
    for _ in 0..work.iters {
        (send, recv) = tuned.all_to_all_into(send, recv).await?;
    }
    let each = each_us(sim::now(&world) - start, work.iters);
    check_blocks(&world, &recv, work.size);
    let model = model_us(&world, named, work.size);
    Ok(figures(&world, each, model))
}

/// Returns the buffers of an all-to-all: block j is filled with a byte of the sender's number and j.
pub(super) fn blocks(world: &Comm, block: usize) -> (Vec<u8>, Vec<u8>) {
    let to = 0..world.size();
    let send = to.flat_map(|to| vec![mark(world.rank(), to); block]);
    (send.collect(), vec![0; block * world.size()])
}

/// Checks that each rank's block is in its place.
pub(super) fn check_blocks(world: &Comm, recv: &[u8], block: usize) {
    if block == 0 {
        return;
    }
    for (from, got) in recv.chunks(block).enumerate() {
        let expected = mark(from, world.rank());
        assert!(
            got.iter().all(|&byte| byte == expected),
            "the block of rank {from}"
        );
    }
}

fn mark(from: usize, to: usize) -> u8 {
    (from.wrapping_mul(31) ^ to).to_le_bytes()[0]
}

/// Returns the time that the model predicts for `bytes` bytes: of the named algorithm, of the one in the settings, or of the
/// cheapest.
fn model_us<A: Algorithm>(world: &Comm, named: Option<A>, bytes: usize) -> f64 {
    let machine = machine_of(world.choices(), world.per_node());
    let shape = Shape {
        bytes,
        ..Shape::of(world.size())
    };
    let algorithm = named
        .or_else(|| set_for(world.settings(), &shape, &machine))
        .unwrap_or_else(|| cheapest(&shape, &machine));
    algorithm.cost_ns(&shape, &machine) / 1000.0
}

fn figures(world: &Comm, each_us: f64, model_us: f64) -> RankFigures {
    let mut figures = rank0_figure(world.rank(), "each_us", "µs", each_us);
    figures.extend(rank0_figure(world.rank(), "model_us", "model µs", model_us));
    figures
}
