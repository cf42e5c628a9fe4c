//! Faces of a block of cells: exchanged with `Halo` and by a program's own loops, sent packed, and packed alone.
//!
//! The two kinds of exchanges take turns at being first, because each leaves the faces in the caches of the next one.

use std::{hint::black_box, mem::take, ops::Range};

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

/// Time to exchange both faces of a cube of f64 with `Halo` and by a program's own loops, to send one, and to pack one
///
/// `send_packed µs` is one way, and half of a round trip. `pack / memcpy speed` compares packing a face with copying as many
/// contiguous elements, both into memory that was used before. Both ranks check all that they receive before and after a line is
/// measured, and two elements of each message of a round trip.
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
            let size = size_of_val(&bench.face[0][..]);
            let iters = args.common.iters(size);
            bench.check(0).await?;
            let warmup = args.common.warmup(iters, 1);
            bench.take_times(warmup, &mut FaceTimes::new()).await?;
            let mut times = FaceTimes::new();
            bench.take_times(iters, &mut times).await?;
            bench.check(1).await?;
            let row = ResultRow::new("faces").label("n", n).label("axis", axis);
            report.print(pair.signed(times.row(row.size(size))))?;
        }
    }
    Ok(())
}

/// How faces get to the other rank.
#[derive(Clone, Copy, Debug)]
enum FaceExchange {
    /// Both faces, with `Halo`.
    Halo,
    /// Both faces, as a program exchanges them that has neither `Halo` nor layouts.
    ByHand,
    /// One face there, and the other rank's back, with `send_packed` and `recv_packed`.
    SendPacked,
}

impl FaceExchange {
    const ALL: [Self; 3] = [Self::Halo, Self::ByHand, Self::SendPacked];
}

/// Times of the same faces.
struct FaceTimes {
    /// In the order of [`FaceExchange::ALL`].
    exchanges: [TimeSamples; 3],
    packed: TimeSamples,
    copied: TimeSamples,
}

impl FaceTimes {
    fn new() -> Self {
        Self {
            exchanges: [1.0, 1.0, 2.0].map(TimeSamples::new),
            packed: TimeSamples::new(PACKS.into()),
            copied: TimeSamples::new(PACKS.into()),
        }
    }

    fn row(&self, row: ResultRow) -> ResultRow {
        let median = |samples: &TimeSamples| samples.micros_at(0.5);
        let [halo, by_hand, sent] = self.exchanges.each_ref().map(median);
        let (packed, copied) = (median(&self.packed), median(&self.copied));
        row.figure("halo_us", "Halo µs", halo)
            .figure("by_hand_us", "by hand µs", by_hand)
            .figure("halo_ratio", "Halo / by hand", halo / by_hand)
            .figure("send_packed_us", "send_packed µs", sent)
            .figure("pack_us", "pack µs", packed)
            .figure("memcpy_us", "memcpy µs", copied)
            .figure("pack_speed", "pack / memcpy speed", copied / packed)
            .field("iters", self.packed.len())
    }
}

/// A cube on each of two ranks, which are neighbors on both sides along one axis.
struct FaceBench<'a> {
    world: &'a Comm,
    me: usize,
    other: usize,
    halo: Halo<f64>,
    field: Vec<f64>,
    sides: [FaceSide; 2],
    /// The elements of a face, next to each other, and room for a copy.
    face: [Vec<f64>; 2],
    /// Messages of all round trips.
    messages: u32,
}

/// One of the two faces, and the ghosts that the other rank's same face fills.
struct FaceSide {
    layers: FaceCells,
    ghosts: FaceCells,
    outgoing: Vec<f64>,
    incoming: Vec<f64>,
}

/// A layer of cells, as a layout and as a program's own loops take it: lines of `len` cells, `stride` elements apart.
struct FaceCells {
    layout: NestedLayout,
    starts: Vec<usize>,
    stride: usize,
    len: usize,
}

impl<'a> FaceBench<'a> {
    async fn new(pair: &PerfRankPair<'a>, n: usize, dim: usize) -> Result<Self> {
        let (mut dims, mut periodic) = ([1; 3], [false; 3]);
        (dims[dim], periodic[dim]) = (2, true);
        let cart = pair.world.cart(&dims, &periodic).await?;
        let shape = [n + 2; 3];
        let halo = Halo::new(&cart, &shape, 1).await?;
        let sides = [FaceSide::new(n, dim, 1, n + 1), FaceSide::new(n, dim, n, 0)];
        let face = vec![0.0; n * n];
        Ok(Self {
            world: pair.world,
            me: pair.me,
            other: pair.other,
            halo,
            field: vec![0.0; shape.iter().product()],
            sides,
            face: [face.clone(), face],
            messages: 0,
        })
    }

    /// Adds as many times of each kind.
    async fn take_times(&mut self, iters: u64, times: &mut FaceTimes) -> Result<(), PerfError> {
        let mut in_turns = [FaceExchange::Halo, FaceExchange::ByHand];
        for _ in 0..iters {
            for how in in_turns {
                self.take_time(how, times).await?;
            }
            in_turns.reverse();
        }
        // Alone, as the peers measure it: what other exchanges leave in the caches would count.
        for _ in 0..iters {
            self.take_time(FaceExchange::SendPacked, times).await?;
        }
        for _ in 0..iters {
            times.packed.record(time_of_packs(|| self.pack()));
            times.copied.record(time_of_packs(|| self.copy()));
        }
        Ok(())
    }

    async fn take_time(
        &mut self,
        how: FaceExchange,
        times: &mut FaceTimes,
    ) -> Result<(), PerfError> {
        self.world.barrier().await?;
        let start = now();
        self.exchange(how).await?;
        times.exchanges[how as usize].record(now() - start);
        Ok(())
    }

    async fn exchange(&mut self, how: FaceExchange) -> Result<(), PerfError> {
        match how {
            FaceExchange::Halo => {
                let in_flight = self.halo.start(&self.field);
                in_flight.finish(&mut self.field).await?;
            }
            FaceExchange::ByHand => self.exchange_by_hand().await?,
            FaceExchange::SendPacked => self.send_there_and_back().await?,
        }
        Ok(())
    }

    async fn exchange_by_hand(&mut self) -> Result<()> {
        let [low, high] = &mut self.sides;
        let inboxes = [
            self.world.recv_into(self.other, 0, take(&mut low.incoming)),
            self.world
                .recv_into(self.other, 1, take(&mut high.incoming)),
        ];
        let mut sends = Vec::with_capacity(2);
        for (tag, side) in (0..).zip([&mut *low, &mut *high]) {
            let mut packed = take(&mut side.outgoing);
            side.layers.pack_by_hand(&self.field, &mut packed);
            sends.push(self.world.send(self.other, tag, packed));
        }
        for (inbox, side) in inboxes.into_iter().zip([&mut *low, &mut *high]) {
            (side.incoming, _) = inbox.await?;
            side.ghosts.unpack_by_hand(&side.incoming, &mut self.field);
        }
        for (sent, side) in sends.into_iter().zip([low, high]) {
            side.outgoing = sent.await?;
        }
        Ok(())
    }

    async fn send_there_and_back(&mut self) -> Result<(), PerfError> {
        let begins = self.me == 0;
        for is_sending in [begins, !begins] {
            if is_sending {
                self.send_face().await?;
            } else {
                self.recv_face().await?;
            }
            self.messages += 1;
        }
        Ok(())
    }

    /// Sends a face whose first and last elements are the number of the message.
    async fn send_face(&mut self) -> Result<()> {
        let layers = &self.sides[0].layers;
        for cell in layers.ends() {
            self.field[cell] = self.messages.into();
        }
        let sent = self
            .world
            .send_packed(self.other, 2, &self.field, &layers.layout);
        sent.await?;
        Ok(())
    }

    async fn recv_face(&mut self) -> Result<(), PerfError> {
        let ghosts = &self.sides[0].ghosts;
        let inbox = self.world.recv_packed(self.other, 2, &ghosts.layout);
        inbox.unpack_into(&mut self.field).await?;
        for cell in ghosts.ends() {
            expect_value(
                self.field[cell],
                self.messages.into(),
                FaceExchange::SendPacked,
            )?;
        }
        Ok(())
    }

    /// Packs a face into a vector that is there, as `Halo` does.
    fn pack(&mut self) {
        let [face, _] = &mut self.face;
        let layout = &self.sides[0].layers.layout;
        layout.pack_into(black_box(&self.field), face);
        black_box(face);
    }

    /// Copies a packed face.
    fn copy(&mut self) {
        let [face, copy] = &mut self.face;
        copy.copy_from_slice(black_box(face));
        black_box(copy);
    }

    /// Makes exchanges of all kinds with values of their own, and compares all ghosts with the other rank's cells.
    async fn check(&mut self, round: usize) -> Result<(), PerfError> {
        for how in FaceExchange::ALL {
            let round = FaceExchange::ALL.len() * round + how as usize;
            for (cell, value) in self.field.iter_mut().enumerate() {
                *value = cell_value(round, self.me, cell);
            }
            self.exchange(how).await?;
            // The ends of a face that was sent have the number of the message.
            let ends = self.sides[0].ghosts.ends();
            let (written, numbered): (_, &[usize]) = match how {
                FaceExchange::Halo | FaceExchange::ByHand => (&self.sides[..], &[]),
                FaceExchange::SendPacked => (&self.sides[..1], &ends),
            };
            for side in written {
                for (ghost, cell) in side.ghosts.cells().zip(side.layers.cells()) {
                    if !numbered.contains(&ghost) {
                        let sent = cell_value(round, self.other, cell);
                        expect_value(self.field[ghost], sent, how)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl FaceSide {
    fn new(n: usize, dim: usize, layer: usize, ghost: usize) -> Self {
        Self {
            layers: FaceCells::new(n, dim, layer),
            ghosts: FaceCells::new(n, dim, ghost),
            outgoing: vec![0.0; n * n],
            incoming: vec![0.0; n * n],
        }
    }
}

impl FaceCells {
    /// Returns the own cells of the layer `at` along axis `dim`.
    fn new(n: usize, dim: usize, at: usize) -> Self {
        let edge = n + 2;
        let mut ranges = [const { 0..0 }; 3].map(|_: Range<usize>| 1..n + 1);
        ranges[dim] = at..at + 1;
        let layout = Layout::subarray(&[edge; 3], &ranges);
        // The elements from a cell to the next one along each axis. The lines lie along the faster axis of the face.
        let strides = [edge * edge, edge, 1];
        let (across, along) = [(1, 2), (0, 2), (0, 1)][dim];
        let first = at * strides[dim] + strides[across] + strides[along];
        Self {
            layout,
            starts: (0..n).map(|line| first + line * strides[across]).collect(),
            stride: strides[along],
            len: n,
        }
    }

    fn pack_by_hand(&self, field: &[f64], packed: &mut [f64]) {
        for (line, &start) in packed.chunks_exact_mut(self.len).zip(&self.starts) {
            if self.stride == 1 {
                line.copy_from_slice(&field[start..start + self.len]);
            } else {
                let cells = field[start..].iter().step_by(self.stride);
                line.iter_mut()
                    .zip(cells)
                    .for_each(|(to, cell)| *to = *cell);
            }
        }
    }

    fn unpack_by_hand(&self, packed: &[f64], field: &mut [f64]) {
        for (line, &start) in packed.chunks_exact(self.len).zip(&self.starts) {
            if self.stride == 1 {
                field[start..start + self.len].copy_from_slice(line);
            } else {
                let cells = field[start..].iter_mut().step_by(self.stride);
                cells.zip(line).for_each(|(cell, value)| *cell = *value);
            }
        }
    }

    fn cells(&self) -> impl Iterator<Item = usize> {
        let line = move |start| (0..self.len).map(move |nth| start + nth * self.stride);
        self.starts.iter().flat_map(move |&start| line(start))
    }

    /// Returns the first and the last cell.
    fn ends(&self) -> [usize; 2] {
        let first = self.starts[0];
        let last = self.starts[self.len - 1] + (self.len - 1) * self.stride;
        [first, last]
    }
}

/// Returns a value that no other cell has, and that the cell has in no other round.
#[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
const fn cell_value(round: usize, rank: usize, cell: usize) -> f64 {
    (((2 * round + rank) << 32) + cell) as f64
}

fn expect_value(got: f64, expected: f64, by: FaceExchange) -> Result<(), PerfError> {
    if got.to_bits() == expected.to_bits() {
        return Ok(());
    }
    Err(format!("a ghost that {by:?} filled is {got} in place of {expected}").into())
}

/// Returns the time of [`PACKS`] calls, after one that brings the elements to the caches.
fn time_of_packs(mut pack: impl FnMut()) -> u64 {
    pack();
    let start = now();
    for _ in 0..PACKS {
        pack();
    }
    now() - start
}

/// One packing of a small face takes little longer than reading the clock.
const PACKS: u8 = 4;

/// The axes from the slowest to the fastest: a z face is one piece but for its ghosts, and an x face has single elements.
const AXES: [&str; 3] = ["z", "y", "x"];
