//! Faces of a block of cells: exchanged with `Halo` and by a program's own loops, sent packed, and packed alone.

use std::{mem::take, ops::Range};

use ripstop::{
    Collectives, Comm, Halo, Result,
    buffer::{Layout, NestedLayout},
};

use super::{
    PerfError, PerfRankPair,
    clock::now,
    options::CommonOptions,
    report::{ResultReport, ResultRow},
    samples::TimeSamples,
};

/// Time to exchange both faces of a cube of f64 with `Halo` and by a program's own loops, and to pack a face
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  ripstop run -n 2 --bind core -- ripstop perf faces --n 64,128")]
pub(super) struct FacesArgs {
    /// Own cells along each edge of the cube, separated by commas, 2 to 512; one layer of ghosts is around them
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(2..=512),
        default_value = "64,128",
    )]
    n: Vec<u16>,

    #[command(flatten)]
    pub(super) common: CommonOptions,
}

impl FacesArgs {
    pub(super) fn lines(&self) -> usize {
        self.n.len() * AXES.len()
    }
}

pub(super) async fn run(
    pair: &PerfRankPair<'_>,
    args: &FacesArgs,
    report: &mut ResultReport,
) -> Result<(), PerfError> {
    for &n in &args.n {
        for (dim, axis) in AXES.into_iter().enumerate() {
            report.announce(format!("{axis} faces of {n}³ cells"));
            let mut bench = FaceBench::new(pair, n.into(), dim).await?;
            let size = bench.sides[0].layers.len() * size_of::<f64>();
            let iters = args.common.iters(size);
            for _ in 0..args.common.warmup(iters, 1) {
                bench.sample(&mut FaceTimes::new()).await?;
            }
            let mut times = FaceTimes::new();
            for _ in 0..iters {
                bench.sample(&mut times).await?;
            }
            let row = ResultRow::new("faces").label("n", n).label("axis", axis);
            report.print(pair.signed(times.row(row.size(size))))?;
        }
    }
    Ok(())
}

/// Times of the same faces, taken in turn.
struct FaceTimes {
    halo: TimeSamples,
    by_hand: TimeSamples,
    sent: TimeSamples,
    packed: TimeSamples,
    copied: TimeSamples,
}

impl FaceTimes {
    fn new() -> Self {
        let [halo, by_hand, packed, copied] = [(); 4].map(|()| TimeSamples::new(1.0));
        let sent = TimeSamples::new(2.0);
        Self {
            halo,
            by_hand,
            sent,
            packed,
            copied,
        }
    }

    fn row(&self, row: ResultRow) -> ResultRow {
        let median = |samples: &TimeSamples| samples.micros_at(0.5);
        let (halo, by_hand) = (median(&self.halo), median(&self.by_hand));
        let (packed, copied) = (median(&self.packed), median(&self.copied));
        row.figure("halo_us", "Halo µs", halo)
            .figure("by_hand_us", "by hand µs", by_hand)
            .figure("halo_ratio", "Halo / by hand", halo / by_hand)
            .figure("send_packed_us", "send_packed µs", median(&self.sent))
            .figure("pack_us", "pack µs", packed)
            .figure("memcpy_us", "memcpy µs", copied)
            .figure("pack_speed", "pack / memcpy speed", copied / packed)
            .field("iters", self.halo.len())
    }
}

/// A cube on each of two ranks, which are neighbors on both sides along one axis.
struct FaceBench<'a> {
    world: &'a Comm,
    other: usize,
    halo: Halo<f64>,
    /// Edge of the cube with its ghosts.
    edge: usize,
    field: Vec<f64>,
    sides: [FaceSide; 2],
    /// The elements of a face, next to each other, and room for a copy.
    face: [Vec<f64>; 2],
}

/// One of the two faces, and the ghosts that the other rank's same face fills.
struct FaceSide {
    layers: NestedLayout,
    ghosts: NestedLayout,
    /// Cells of the layers and of the ghosts along each axis.
    cells: [[Range<usize>; 3]; 2],
    outgoing: Vec<f64>,
    incoming: Vec<f64>,
}

impl<'a> FaceBench<'a> {
    async fn new(pair: &PerfRankPair<'a>, n: usize, dim: usize) -> Result<Self> {
        let (mut dims, mut periodic) = ([1; 3], [false; 3]);
        (dims[dim], periodic[dim]) = (2, true);
        let cart = pair.world.cart(&dims, &periodic).await?;
        let edge = n + 2;
        let halo = Halo::new(&cart, &[edge; 3], 1).await?;
        let side = |layer: usize, ghost: usize| {
            let cells = [layer, ghost].map(|at| {
                let mut cells = [const { 0..0 }; 3].map(|_: Range<usize>| 1..n + 1);
                cells[dim] = at..at + 1;
                cells
            });
            let [layers, ghosts] = cells
                .each_ref()
                .map(|cells| Layout::subarray(&[edge; 3], cells));
            let incoming = vec![0.0; ghosts.len()];
            FaceSide {
                layers,
                ghosts,
                cells,
                outgoing: Vec::new(),
                incoming,
            }
        };
        let sides = [side(1, n + 1), side(n, 0)];
        let face = vec![pair.me as f64; sides[0].layers.len()];
        Ok(Self {
            world: pair.world,
            other: pair.other,
            halo,
            edge,
            field: vec![pair.me as f64; edge * edge * edge],
            sides,
            face: [face.clone(), face],
        })
    }

    /// Takes one time of each kind.
    async fn sample(&mut self, times: &mut FaceTimes) -> Result<()> {
        self.world.barrier().await?;
        let start = now();
        let exchange = self.halo.start(&self.field);
        exchange.finish(&mut self.field).await?;
        times.halo.record(now() - start);

        self.world.barrier().await?;
        let start = now();
        self.exchange_by_hand().await?;
        times.by_hand.record(now() - start);

        self.world.barrier().await?;
        let start = now();
        self.send_there_and_back().await?;
        times.sent.record(now() - start);

        let [face, copy] = &mut self.face;
        let start = now();
        face.clear();
        self.sides[0].layers.pack(&self.field, face);
        let packed = now();
        copy.copy_from_slice(std::hint::black_box(face));
        times.copied.record(now() - packed);
        times.packed.record(packed - start);
        Ok(())
    }

    /// Exchanges both faces as a program does that has neither `Halo` nor layouts.
    async fn exchange_by_hand(&mut self) -> Result<()> {
        let (world, other, edge) = (self.world, self.other, self.edge);
        let [low, high] = &mut self.sides;
        let inboxes = [
            world.recv_into(other, 0, take(&mut low.incoming)),
            world.recv_into(other, 1, take(&mut high.incoming)),
        ];
        let mut sends = Vec::with_capacity(2);
        for (tag, side) in (0..).zip([&mut *low, &mut *high]) {
            let mut packed = take(&mut side.outgoing);
            packed.clear();
            for row in rows(&side.cells[0], edge) {
                packed.extend_from_slice(&self.field[row]);
            }
            sends.push(world.send(other, tag, packed));
        }
        for (inbox, side) in inboxes.into_iter().zip([&mut *low, &mut *high]) {
            let (arrived, _) = inbox.await?;
            let mut rest = &arrived[..];
            for row in rows(&side.cells[1], edge) {
                let (first, after) = rest.split_at(row.len());
                self.field[row].copy_from_slice(first);
                rest = after;
            }
            side.incoming = arrived;
        }
        for (sent, side) in sends.into_iter().zip([low, high]) {
            side.outgoing = sent.await?;
        }
        Ok(())
    }

    /// Sends a face to the other rank, which sends its own back.
    async fn send_there_and_back(&mut self) -> Result<()> {
        let FaceSide { layers, ghosts, .. } = &self.sides[0];
        let begins = self.world.rank() == 0;
        if begins {
            let sent = self.world.send_packed(self.other, 2, &self.field, layers);
            sent.await?;
        }
        let inbox = self.world.recv_packed(self.other, 2, ghosts);
        let _status = inbox.await?.unpack_into(&mut self.field);
        if !begins {
            let sent = self.world.send_packed(self.other, 2, &self.field, layers);
            sent.await?;
        }
        Ok(())
    }
}

/// Returns the rows of these cells, as ranges of the elements of a cube.
fn rows(
    [planes, lines, cells]: &[Range<usize>; 3],
    edge: usize,
) -> impl Iterator<Item = Range<usize>> {
    planes.clone().flat_map(move |plane| {
        lines.clone().map(move |line| {
            let start = (plane * edge + line) * edge;
            start + cells.start..start + cells.end
        })
    })
}

/// The axes from the slowest to the fastest: a z face is one piece but for its ghosts, and an x face has single elements.
const AXES: [&str; 3] = ["z", "y", "x"];
