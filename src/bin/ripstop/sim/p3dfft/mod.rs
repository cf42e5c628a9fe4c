//! A parallel 3-D Fourier transform of real numbers: the schedule of `examples/p3dfft`, with each stage as its time and each
//! transpose as its bytes.

mod transpose_slot;

use std::{mem, ops::Range, time::Duration};

use ripstop::{
    Cart, Collectives, Comm, Max, Result, Tuned, Tuning, collectives::plan::AllToAll, sim,
};

use self::transpose_slot::{TransposeDirection, TransposeSlot};
use super::{
    app_workload::{AppWorkload, TimeSpent},
    scenario::{RankFigures, ScenarioWork, rank0_figures},
};

/// The ways to transpose. `blocking` waits for the collective where it starts. The next ways progress only when the computing
/// rank polls, several times in every stage, with one message at a time or with all. The last way progresses by itself.
pub(super) const WAYS: &[&str] = &[
    "blocking",
    "rounds-0",
    "rounds-8",
    "rounds-64",
    "host-0",
    "host-8",
    "host-64",
    "offload",
];

/// Transforms `work.iters` times there and back. Before that, once without overlap, to find the upper bound of the gain.
pub(super) async fn transforms(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let mut transform = FftTransform::new(&world, work).await?;
    let lag = mem::replace(&mut transform.lag, 0);
    transform.there_and_back(&world).await?; // connects the ranks
    let (whole, spent) = transform.timed(&world, 1).await?;
    let times = [whole, spent.compute, transform.columns].map(|time| time.as_secs_f64());
    let [whole, busy, columns] = world.all_reduce(times, Max).await?;
    transform.lag = lag;
    let (time, spent) = transform.timed(&world, work.iters).await?;
    let mut figures = spent.figures(&world, time, work.iters).await?;
    let pieces = transform.pieces() as f64;
    figures.extend(rank0_figures(
        &world,
        [
            // The bound if everything overlaps, and if only columns overlap; the last one in each direction cannot.
            ("bound", "bound %", 100.0 * (1.0 - busy / whole)),
            (
                "bound_of_columns",
                "of columns %",
                100.0 * columns / whole * (1.0 - 1.0 / pieces),
            ),
        ],
    ));
    Ok(figures)
}

/// # Errors
/// There are more ranks than data for them.
pub(super) fn check(load: AppWorkload, ranks: u32) -> std::result::Result<(), String> {
    let edge = load.edge.unwrap_or(EDGE);
    let [m1, m2] = grid_of(ranks as usize);
    if edge / 2 + 1 >= m1 && edge >= m2 {
        return Ok(());
    }
    Err(format!(
        "--edge {edge}: --ranks {ranks} is a grid of {m1}x{m2}, in which some ranks have none of the {} coefficients in \
         x, or of the {edge} points in y and z; take a longer edge, or fewer ranks",
        edge / 2 + 1
    ))
}

/// A rank's part of the transform.
struct FftTransform {
    /// Times of X and Y for each chunk, and of Z for all chunks of a variable.
    times: Vec<[Duration; 3]>,
    /// The transposes, by [`TransposeAxis`].
    axes: [FftTranspose; 2],
    vars: usize,
    chunks: usize,
    /// Number of steps between the start of a piece and its next stage.
    lag: usize,
    /// Polls in a stage.
    looks: u32,
    spent: TimeSpent,
    /// The part of the waiting time that is for columns.
    columns: Duration,
}

/// The ranks that take part in a transpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransposeAxis {
    Row,
    Column,
}

struct FftTranspose {
    comm: Tuned,
    slots: Vec<TransposeSlot>,
}

impl FftTransform {
    async fn new(world: &Comm, work: ScenarioWork) -> Result<Self> {
        let layout = PencilLayout::new(world, work);
        let (how, looks) = work.way.split_once('-').unwrap_or((work.way, "0"));
        let (vars, chunks) = (work.load.pieces[0], layout.chunks);
        let lag = usize::from(work.way != "blocking");
        let sets = (1 + lag).min(vars);
        let [i, j] = layout.at;
        let transpose = async |color: usize, key: usize, axis: TransposeAxis| -> Result<_> {
            let comm = world.split(color, key);
            let tuning = match how {
                "rounds" => Tuning::AUTO.all_to_all(AllToAll::Pairwise { window: 1 }),
                _ => Tuning::AUTO,
            };
            let comm = comm.await?.tuned(tuning);
            let chunks = (0..sets).flat_map(|_| 0..chunks);
            let slots = chunks.map(|chunk| TransposeSlot::new(&comm, &layout.counts(axis, chunk)));
            let slots = slots.collect::<Result<_>>()?;
            Ok(FftTranspose { comm, slots })
        };
        Ok(Self {
            times: layout.times(work),
            axes: [
                transpose(j, i, TransposeAxis::Row).await?,
                transpose(i, j, TransposeAxis::Column).await?,
            ],
            vars,
            chunks,
            lag,
            looks: looks.parse().unwrap_or(0),
            spent: TimeSpent::default(),
            columns: Duration::ZERO,
        })
    }

    fn pieces(&self) -> usize {
        self.vars * self.chunks
    }

    /// Returns the time of `iters` transforms on this rank, and how it was spent.
    async fn timed(&mut self, world: &Comm, iters: u64) -> Result<(Duration, TimeSpent)> {
        world.barrier().await?;
        (self.spent, self.columns) = (TimeSpent::default(), Duration::ZERO);
        let start = sim::now(world);
        for _ in 0..iters {
            self.there_and_back(world).await?;
        }
        Ok((sim::now(world) - start, self.spent))
    }

    async fn there_and_back(&mut self, world: &Comm) -> Result<()> {
        self.one_way(world, TransposeDirection::There).await?;
        self.one_way(world, TransposeDirection::Back).await
    }

    /// Runs X, Y, Z on all pieces, or Z, Y, X.
    async fn one_way(&mut self, world: &Comm, direction: TransposeDirection) -> Result<()> {
        for step in 0..self.pieces() + 2 * self.lag {
            for stage in 0..3 {
                let piece = step.checked_sub(stage * self.lag);
                if let Some(piece) = piece.filter(|&piece| piece < self.pieces()) {
                    self.stage(world, direction, stage, piece).await?;
                }
            }
        }
        Ok(())
    }

    /// Waits for the transpose before a stage, computes, and starts the transpose after it.
    async fn stage(
        &mut self,
        world: &Comm,
        direction: TransposeDirection,
        stage: usize,
        piece: usize,
    ) -> Result<()> {
        if let Some(before) = stage.checked_sub(1) {
            let axis = TransposeAxis::behind(direction, before);
            let before = self.spent.wait;
            let slot = self.axes[axis as usize].slot(piece);
            self.spent.waiting(world, slot.finish()).await?;
            if axis == TransposeAxis::Column {
                self.columns += self.spent.wait - before;
            }
        }
        // Z needs all chunks of a variable.
        let chunk = piece % self.chunks;
        let (dim, is_due) = match direction {
            TransposeDirection::There => (stage, stage < 2 || chunk + 1 == self.chunks),
            TransposeDirection::Back => (2 - stage, stage > 0 || chunk == 0),
        };
        for _ in (0..=self.looks).filter(|_| is_due) {
            let time = self.times[chunk][dim] / (self.looks + 1);
            self.spent.computing(world, time).await;
        }
        if stage < 2 {
            let FftTranspose { comm, slots } =
                &mut self.axes[TransposeAxis::behind(direction, stage) as usize];
            let index = piece % slots.len();
            slots[index].start(comm, direction);
        }
        Ok(())
    }
}

impl TransposeAxis {
    /// Returns the transpose after a stage.
    fn behind(direction: TransposeDirection, stage: usize) -> Self {
        match (direction, stage) {
            (TransposeDirection::There, 0) | (TransposeDirection::Back, 1) => Self::Row,
            _ => Self::Column,
        }
    }
}

impl FftTranspose {
    fn slot(&mut self, piece: usize) -> &mut TransposeSlot {
        let index = piece % self.slots.len();
        &mut self.slots[index]
    }
}

/// The distribution of the data: ranks of a row exchange parts of x and y, those of a column parts of y and z.
struct PencilLayout {
    edge: usize,
    chunks: usize,
    /// Number of ranks in a row, and in a column.
    ranks: [usize; 2],
    /// This rank's place in its row, and in its column.
    at: [usize; 2],
}

impl PencilLayout {
    fn new(world: &Comm, work: ScenarioWork) -> Self {
        let ranks = grid_of(world.size());
        let edge = work.load.edge.unwrap_or(EDGE);
        // As in the example: a rank that waits at once has nothing to compute meanwhile, and no chunk of any rank is empty.
        let chunks = match work.way {
            "blocking" => 1,
            _ => work.load.pieces[1].clamp(1, edge / ranks[1]),
        };
        Self {
            edge,
            chunks,
            ranks,
            at: [world.rank() % ranks[0], world.rank() / ranks[0]],
        }
    }

    fn x(&self, i: usize) -> usize {
        part(self.edge / 2 + 1, self.ranks[0], i).len()
    }

    /// Returns the part of y, in a row or in a column.
    fn y(&self, axis: TransposeAxis, at: usize) -> usize {
        part(self.edge, self.ranks[axis as usize], at).len()
    }

    /// Returns the number of planes of a chunk.
    fn z(&self, j: usize, chunk: usize) -> usize {
        let planes = part(self.edge, self.ranks[1], j).len();
        part(planes, self.chunks, chunk).len()
    }

    /// Returns the numbers of a chunk to each rank of the row or the column, and from each.
    fn counts(&self, axis: TransposeAxis, chunk: usize) -> [Vec<usize>; 2] {
        let [i, j] = self.at;
        let here = self.z(j, chunk);
        let x_side = |to| match axis {
            TransposeAxis::Row => here * self.x(to) * self.y(axis, i),
            TransposeAxis::Column => here * self.x(i) * self.y(axis, to),
        };
        let z_side = |from| match axis {
            TransposeAxis::Row => here * self.x(i) * self.y(axis, from),
            TransposeAxis::Column => self.z(from, chunk) * self.x(i) * self.y(axis, j),
        };
        let ranks = 0..self.ranks[axis as usize];
        let complex = |count: usize| 2 * count;
        [
            ranks.clone().map(x_side).map(complex).collect(),
            ranks.map(z_side).map(complex).collect(),
        ]
    }

    /// Returns the times of each chunk.
    fn times(&self, work: ScenarioWork) -> Vec<[Duration; 3]> {
        let chunks = 0..self.chunks;
        let points = chunks.map(|chunk| self.points(chunk));
        let costs = work.load.costs.unwrap_or(COSTS);
        let times = points.map(|points| [0, 1, 2].map(|dim| points[dim] * costs[dim]));
        times.map(|ns| ns.map(|ns| work.load.time(ns))).collect()
    }

    /// Returns the points that X and Y of a chunk, and Z of all chunks, transform.
    fn points(&self, chunk: usize) -> [f64; 3] {
        let [i, j] = self.at;
        let (planes, lines) = (self.z(j, chunk), self.edge);
        let complex = 2.0 * self.x(i) as f64; // one complex number for two of the field
        [
            (planes * lines * self.y(TransposeAxis::Row, i)) as f64,
            (planes * lines) as f64 * complex,
            (lines * self.y(TransposeAxis::Column, j)) as f64 * complex,
        ]
    }
}

/// Returns the number of ranks in a row, and in a column.
fn grid_of(ranks: usize) -> [usize; 2] {
    let dims = Cart::dims_for(ranks, 2);
    [dims[1], dims[0]]
}

/// Returns the part of rank `at` if `count` is divided among `ranks`; the last ranks get one more.
fn part(count: usize, ranks: usize, at: usize) -> Range<usize> {
    let (each, more) = (count / ranks, count % ranks);
    let extra = |at: usize| at.saturating_sub(ranks - more);
    let start = |at: usize| at * each + extra(at);
    start(at)..start(at + 1)
}

/// Times of X, Y and Z for a point of the field, one way, in ns: `examples/p3dfft` on one core of the machine on which this was
/// written (book, A simulated cluster).
const COSTS: [f64; 3] = [1.5, 1.3, 1.8];
/// Points in each dimension.
const EDGE: usize = 512;

#[cfg(test)]
mod tests {
    use super::{AppWorkload, PencilLayout, TransposeAxis, check, part};

    #[test]
    fn what_a_rank_sends_in_a_transpose_its_partner_receives() {
        let (ranks, chunks) = ([3, 4], 2);
        let layout = |i, j| PencilLayout {
            edge: 22,
            chunks,
            ranks,
            at: [i, j],
        };
        for (j, chunk) in (0..ranks[1]).flat_map(|j| [(j, 0), (j, 1)]) {
            for i in 0..ranks[0] {
                let [x_side, _] = layout(i, j).counts(TransposeAxis::Row, chunk);
                for (to, &count) in x_side.iter().enumerate() {
                    assert_eq!(layout(to, j).counts(TransposeAxis::Row, chunk)[1][i], count);
                }
                let [x_side, _] = layout(i, j).counts(TransposeAxis::Column, chunk);
                for (to, &count) in x_side.iter().enumerate() {
                    assert_eq!(
                        layout(i, to).counts(TransposeAxis::Column, chunk)[1][j],
                        count
                    );
                }
            }
        }
        let parts: Vec<_> = (0..4).map(|at| part(22, 4, at)).collect();
        assert_eq!(parts, [0..5, 5..10, 10..16, 16..22]);
    }

    #[test]
    fn chunks_are_all_planes_and_no_more() {
        let layout = PencilLayout {
            edge: 20,
            chunks: 2,
            ranks: [2, 4],
            at: [1, 3],
        };
        assert_eq!([0, 1].map(|chunk| layout.z(3, chunk)), [2, 3]);
        let whole = PencilLayout {
            chunks: 1,
            ..layout
        };
        let of_x = |layout: &PencilLayout, chunk| layout.points(chunk)[0];
        assert_eq!(of_x(&layout, 0) + of_x(&layout, 1), of_x(&whole, 0));
    }

    #[test]
    fn a_box_in_which_a_rank_has_nothing_is_refused_by_name() {
        let check = |edge, ranks| {
            let edge = Some(edge);
            let load = AppWorkload {
                edge,
                ..AppWorkload::default()
            };
            check(load, ranks)
        };
        for (edge, ranks) in [(8, 64), (4, 5)] {
            let why = check(edge, ranks).unwrap_err();
            let names = [format!("--edge {edge}:"), format!("--ranks {ranks} ")];
            assert!(names.iter().all(|name| why.contains(name)), "{why}");
        }
        for (edge, ranks) in [(14, 64), (5, 5), (4, 1)] {
            assert_eq!(check(edge, ranks), Ok(()));
        }
    }
}
