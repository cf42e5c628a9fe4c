//! Time steps of a seismic wave code on thousands of ranks: the schedule of `examples/awp`, in which a computation is the time
//! that it takes and an exchange the bytes that it moves.

mod halo;
mod lanes;

use std::time::Duration;

use ripstop::{Cart, Collectives, Comm, Result, sim};

use self::{
    halo::Halo,
    lanes::{FULL, Grid, NEEDED},
};
use super::{
    load::Spent,
    scenario::{Figures, Work},
};

/// How ghosts are exchanged: by messages or by puts; and in which order: all cells before the exchange, or those first that a
/// neighbour needs, quantity by quantity. The last exchanges only the layers that are read.
pub(super) const WAYS: &[&str] = &[
    "two-sided",
    "two-sided-split",
    "pscw",
    "pscw-split",
    "pscw-needed",
];

/// `work.iters` steps, after one that is not counted.
pub(super) async fn steps(world: Comm, work: Work) -> Result<Figures> {
    let mut halves = halves(&world, work).await?;
    let mut spent = Spent::default();
    let mut start = sim::now(&world);
    for half in &mut halves {
        half.halo.open(&world)?;
    }
    for step in 0..=work.iters {
        if step == 1 {
            world.barrier().await?;
            (spent, start) = (Spent::default(), sim::now(&world));
        }
        for half in &mut halves {
            half.advance(&world, &mut spent).await?;
        }
    }
    let whole = sim::now(&world) - start;
    spent.figures(&world, whole, work.iters).await
}

/// The velocities or the stresses: computed, then exchanged.
struct Half {
    /// What is computed, and which quantity is sent then.
    parts: Vec<(Duration, Option<usize>)>,
    /// To lay the layers of one quantity together, and to lay apart all that came.
    pack: Duration,
    unpack: Duration,
    halo: Halo,
}

/// The velocities, and the stresses.
async fn halves(world: &Comm, work: Work) -> Result<[Half; 2]> {
    let dims = Cart::dims_for(world.size(), 3);
    let grid = Grid([dims[0], dims[1], dims[2]]);
    let needed_only = work.way == "pscw-needed";
    let [velocities, stresses] = if needed_only { NEEDED } else { FULL };
    let costs = work.load.costs.unwrap_or(COSTS);
    let edge = work.load.edge.unwrap_or(EDGE);
    let half = async |ghosts: &[_], cell_ns: f64, tag: u32| -> Result<Half> {
        let lanes = grid.lanes(world.rank(), ghosts, edge * edge);
        let quantities = ghosts.len();
        // Who sends lays together, and who receives lays apart: as many values, but at a side of the box.
        let pack_ns = costs[2] / 2.0 * lanes.len() as f64;
        Ok(Half {
            parts: parts(work, grid.split(world.rank(), edge), quantities, cell_ns),
            pack: work.load.time(pack_ns / quantities as f64),
            unpack: work.load.time(pack_ns),
            halo: Halo::new(world, lanes, work.way.starts_with("pscw"), tag).await?,
        })
    };
    Ok([
        half(velocities, costs[0], 0).await?,
        half(stresses, costs[1], TAGS).await?,
    ])
}

/// The order of a step. A quantity has its share of what a cell costs.
fn parts(
    work: Work,
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

impl Half {
    /// Computes, exchanges, and is open to the neighbours for the next time.
    async fn advance(&mut self, world: &Comm, spent: &mut Spent) -> Result<()> {
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

/// A velocity cell, a stress cell, a ghost packed and unpacked, in ns: `examples/awp` on one core of the machine that this was
/// written on (book, A simulated cluster).
const COSTS: [f64; 3] = [2.6, 3.2, 2.3];
/// Cells of a rank in each dimension.
const EDGE: usize = 128;
/// Tags of the velocities' lanes.
const TAGS: u32 = 64;
