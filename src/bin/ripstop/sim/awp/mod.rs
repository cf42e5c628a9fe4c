//! Time steps of a seismic wave code on thousands of ranks: the schedule of `examples/awp`, with each computation as its time
//! and each exchange as its bytes.

mod ghosts;
mod halo;

use std::time::Duration;

use ripstop::{Cart, Collectives, Comm, Result, sim};

use self::{
    ghosts::{FULL, NEEDED, RankGrid},
    halo::HaloExchange,
};
use super::{
    app_workload::TimeSpent,
    scenario::{RankFigures, ScenarioWork},
};

/// The ways to exchange ghosts: by messages or by puts; and all cells before the exchange, or first the cells that a neighbor
/// needs, quantity by quantity. The last way exchanges only the layers that are read.
pub(super) const WAYS: &[&str] = &[
    "two-sided",
    "two-sided-split",
    "pscw",
    "pscw-split",
    "pscw-needed",
];

/// Runs `work.iters` steps, after one that is not counted.
pub(super) async fn steps(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let mut halves = halves(&world, work).await?;
    let mut spent = TimeSpent::default();
    let mut start = sim::now(&world);
    for half in &mut halves {
        half.halo.open(&world)?;
    }
    for step in 0..=work.iters {
        if step == 1 {
            world.barrier().await?;
            (spent, start) = (TimeSpent::default(), sim::now(&world));
        }
        for half in &mut halves {
            half.advance(&world, &mut spent).await?;
        }
    }
    let whole = sim::now(&world) - start;
    spent.figures(&world, whole, work.iters).await
}

/// The velocities or the stresses: computed, then exchanged.
struct AwpHalfStep {
    /// The parts of the computation, each with the quantity that is sent after it.
    parts: Vec<(Duration, Option<usize>)>,
    /// Time to pack the layers of one quantity, and to unpack all that came.
    pack: Duration,
    unpack: Duration,
    halo: HaloExchange,
}

/// Makes the velocities and the stresses.
async fn halves(world: &Comm, work: ScenarioWork) -> Result<[AwpHalfStep; 2]> {
    let dims = Cart::dims_for(world.size(), 3);
    let grid = RankGrid([dims[0], dims[1], dims[2]]);
    let needed_only = work.way == "pscw-needed";
    let [velocities, stresses] = if needed_only { NEEDED } else { FULL };
    let costs = work.load.costs.unwrap_or(COSTS);
    let edge = work.load.edge.unwrap_or(EDGE);
    let half = async |ghosts: &[_], cell_ns: f64, tag: u32| -> Result<AwpHalfStep> {
        let lanes = grid.lanes(world.rank(), ghosts, edge * edge);
        let quantities = ghosts.len();
        // The sender packs and the receiver unpacks the same number of values, except at a side of the box.
        let pack_ns = costs[2] / 2.0 * lanes.len() as f64;
        Ok(AwpHalfStep {
            parts: parts(work, grid.split(world.rank(), edge), quantities, cell_ns),
            pack: work.load.time(pack_ns / quantities as f64),
            unpack: work.load.time(pack_ns),
            halo: HaloExchange::new(world, lanes, work.way.starts_with("pscw"), tag).await?,
        })
    };
    Ok([
        half(velocities, costs[0], 0).await?,
        half(stresses, costs[1], TAGS).await?,
    ])
}

/// Returns the parts of a step, in order. The cost of a cell is divided evenly among the quantities.
fn parts(
    work: ScenarioWork,
    [outer, inner]: [usize; 2],
    quantities: usize,
    cell_ns: f64,
) -> Vec<(Duration, Option<usize>)> {
    let time = |cells: usize, share: usize| work.load.time(cells as f64 * cell_ns / share as f64);
    let splits = !matches!(work.way, "two-sided" | "pscw");
    let sends = (0..quantities).map(Some);
    if splits {
        let outer = sends.map(|quantity| (time(outer, quantities), quantity));
        outer.chain([(time(inner, 1), None)]).collect()
    } else {
        let all = [(time(outer + inner, 1), None)].into_iter();
        all.chain(sends.map(|quantity| (Duration::ZERO, quantity)))
            .collect()
    }
}

impl AwpHalfStep {
    /// Computes, exchanges, and opens the exchange for the next step.
    async fn advance(&mut self, world: &Comm, spent: &mut TimeSpent) -> Result<()> {
        let mut outgoing = self.halo.start(world, spent).await?;
        for &(time, then) in &self.parts {
            spent.computing(world, time).await;
            if let Some(quantity) = then {
                spent.packing(world, self.pack).await;
                outgoing.send(quantity);
            }
        }
        outgoing.complete(world, spent).await?;
        self.halo.finish(world, spent).await?;
        spent.packing(world, self.unpack).await;
        self.halo.open(world)
    }
}

/// Time of a velocity cell, of a stress cell, and to pack and unpack a ghost, in ns: `examples/awp` on one core of the machine
/// on which this was written (book, A simulated cluster).
const COSTS: [f64; 3] = [2.6, 3.2, 2.3];
/// Cells of a rank in each dimension.
const EDGE: usize = 128;
/// Tags of the velocities' faces.
const TAGS: u32 = 64;
