//! Benchmark of small collectives as programs: each runs in a loop between two barriers, and the time per call is
//! printed.
//!
//! ```text
//! cargo bench -p ripstop-rt --bench programs --no-run
//! ripstop run -n 2 --bind core target/release/deps/programs-… -- [barrier|bcast|all_reduce|all_to_all] [BYTES …]
//! ```
//!
//! Prints one JSON line for each operation and length, on rank 0. The programs and their buffers are made once and
//! reused, like in a persistent collective.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench measures real time and prints it, and ends where something fails"
)]

use std::{env, sync::Arc, time::Instant};

use ripstop_rt::{
    Comm, Runtime, Sum,
    internal::{
        CommInternals,
        offload::{
            BufferSpan, CollectiveProgram, CollectiveSignature, CollectiveSpec, CommRank,
            ErasedReducer, OperandSide, Plan, ProgramBuffer, ProgramStepId, StepAction,
        },
    },
};

fn main() {
    let runtime = Runtime::init().unwrap();
    let world = runtime.world();
    let words: Vec<String> = env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let numbers: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let lens = if numbers.is_empty() {
        vec![8, 1 << 10, 64 << 10, 1 << 20]
    } else {
        numbers
    };
    let wants = |name: &str| {
        let names: Vec<_> = words
            .iter()
            .filter(|word| word.parse::<usize>().is_err())
            .collect();
        names.is_empty() || names.iter().any(|word| *word == name)
    };
    // A single rank has nothing to measure: `cargo test --benches` runs this program, too.
    if world.size() > 1 {
        runtime.block_on(async {
            if wants("barrier") {
                measure(&world, &barrier(&world), 0).await;
            }
            for &len in &lens {
                for (name, make) in OPERATIONS {
                    if wants(name) {
                        measure(&world, &make(&world, len / size_of::<f64>()), len).await;
                    }
                }
            }
        });
    }
    drop(world);
    runtime.close().unwrap();
}

type Make = fn(&Comm, usize) -> Operation;
const OPERATIONS: [(&str, Make); 3] = [
    ("bcast", bcast),
    ("all_reduce", all_reduce),
    ("all_to_all", all_to_all),
];

/// A collective that is called repeatedly.
struct Operation {
    name: &'static str,
    signature: CollectiveSignature,
    program: Arc<CollectiveProgram>,
    sums: bool,
}

async fn measure(world: &Comm, operation: &Operation, bytes: usize) {
    let crowd = if world.size() > 2 { 10 } else { 1 };
    let calls = ((2 << 30) / (bytes + 8_192) / 4).clamp(100, 50_000) / crowd;
    let lens = operation.program.lens();
    let mut input = vec![1.0_f64; lens.input / 8];
    let mut output = vec![1.0_f64; lens.output / 8];
    let together = barrier(world);
    let mut best = f64::MAX;
    let mut all = Vec::new();
    for _ in 0..5 {
        call(world, &together, Vec::new(), Vec::new()).await;
        let start = Instant::now();
        for _ in 0..calls {
            (input, output) = call(world, operation, input, output).await;
        }
        call(world, &together, Vec::new(), Vec::new()).await;
        #[expect(clippy::cast_precision_loss, reason = "few calls")]
        let micros = start.elapsed().as_secs_f64() * 1e6 / calls as f64;
        best = best.min(micros);
        all.push(micros);
    }
    all.sort_by(f64::total_cmp);
    if world.rank() == 0 {
        let (name, ranks, median) = (operation.name, world.size(), all[all.len() / 2]);
        println!(
            r#"{{"bench":"{name}","ranks":{ranks},"bytes":{bytes},"median_us":{median:.3},"min_us":{best:.3}}}"#
        );
    }
}

async fn call(
    world: &Comm,
    operation: &Operation,
    input: Vec<f64>,
    output: Vec<f64>,
) -> (Vec<f64>, Vec<f64>) {
    let collective = CollectiveSpec {
        name: operation.name,
        signature: operation.signature,
        program: Arc::clone(&operation.program),
        reducer: operation.sums.then(|| ErasedReducer::new::<f64>(Sum)),
        with_block_events: false,
    };
    world.run_program(collective, input, output).await.unwrap()
}

/// A plan under construction, and the lengths of its buffers in elements.
struct Making {
    plan: Plan,
    input: usize,
    output: usize,
}

impl Making {
    fn new(world: &Comm, input: usize, output: usize, scratch: usize) -> Self {
        let mut plan = Plan::new(world.rank(), world.size());
        plan.add_scratch(scratch);
        Self {
            plan,
            input,
            output,
        }
    }

    fn send(&mut self, to: usize, from: BufferSpan, after: &[ProgramStepId]) -> ProgramStepId {
        let to = CommRank(to);
        self.plan.push(StepAction::Send { to, from }, after)
    }

    fn recv(&mut self, from: usize, into: BufferSpan, after: &[ProgramStepId]) -> ProgramStepId {
        let from = CommRank(from);
        self.plan.push(StepAction::Recv { from, into }, after)
    }

    fn copy(&mut self, from: BufferSpan, into: BufferSpan) -> ProgramStepId {
        self.plan.push(StepAction::Copy { from, into }, &[])
    }

    /// Reduces the data from a partner into the present data.
    fn reduce(
        &mut self,
        from: BufferSpan,
        into: BufferSpan,
        is_before: bool,
        after: &[ProgramStepId],
    ) -> ProgramStepId {
        let side = if is_before {
            OperandSide::Left
        } else {
            OperandSide::Right
        };
        self.plan
            .push(StepAction::Reduce { from, into, side }, after)
    }

    fn finish(self, name: &'static str) -> Operation {
        let program = self.plan.program::<f64>(self.input, self.output).unwrap();
        Operation {
            name,
            signature: CollectiveSignature::of(name),
            sums: name == "all_reduce",
            program: Arc::new(program),
        }
    }
}

/// Dissemination barrier.
fn barrier(world: &Comm) -> Operation {
    let (rank, size) = (world.rank(), world.size());
    let mut making = Making::new(world, 0, 0, 0);
    let (mut distance, mut last) = (1, Vec::new());
    while distance < size {
        let send = making.send((rank + distance) % size, BufferSpan::EMPTY, &last);
        let recv = making.recv((rank + size - distance) % size, BufferSpan::EMPTY, &last);
        last = vec![send, recv];
        distance *= 2;
    }
    making.finish("barrier")
}

/// Broadcast along a binomial tree from rank 0.
fn bcast(world: &Comm, len: usize) -> Operation {
    let (rank, size) = (world.rank(), world.size());
    let mut making = Making::new(world, 0, len, 0);
    let all = ProgramBuffer::Output.span(0, len);
    let (mut bit, mut here) = (1, Vec::new());
    while bit < size && rank & bit == 0 {
        bit *= 2;
    }
    if bit < size {
        here.push(making.recv(rank - bit, all, &[]));
    }
    while bit > 1 {
        bit /= 2;
        if rank + bit < size {
            making.send(rank + bit, all, &here);
        }
    }
    making.finish("bcast")
}

/// All-reduce by recursive doubling, or for long data by halving and then doubling. Requires a power of two of ranks.
fn all_reduce(world: &Comm, len: usize) -> Operation {
    if len >= 32 << 10 {
        halving(world, len)
    } else {
        doubling(world, len)
    }
}

fn doubling(world: &Comm, len: usize) -> Operation {
    let (rank, size) = (world.rank(), world.size());
    let rounds = size.ilog2() as usize;
    let mut making = Making::new(world, len, len, rounds * len);
    let (input, mine) = (
        ProgramBuffer::Input.span(0, len),
        ProgramBuffer::Output.span(0, len),
    );
    let mut last = making.copy(input, mine);
    for round in 0..rounds {
        let partner = rank ^ (1 << round);
        let theirs = ProgramBuffer::Scratch.span(round * len, len);
        // The first send does not wait for the copy.
        let send = if round == 0 {
            making.send(partner, input, &[])
        } else {
            making.send(partner, mine, &[last])
        };
        let recv = making.recv(partner, theirs, &[]);
        last = making.reduce(theirs, mine, partner < rank, &[send, recv, last]);
    }
    making.finish("all_reduce")
}

fn halving(world: &Comm, len: usize) -> Operation {
    let (rank, size) = (world.rank(), world.size());
    let mut making = Making::new(world, len, len, len);
    let (mut start, mut half, mut bit) = (0, len / 2, size / 2);
    let (mut halves, mut last) = (Vec::new(), Vec::new());
    while bit > 0 {
        let partner = rank ^ bit;
        let ends = (start, start + half);
        let (mine, theirs) = if rank & bit == 0 {
            ends
        } else {
            (ends.1, ends.0)
        };
        let source = if halves.is_empty() {
            ProgramBuffer::Input
        } else {
            ProgramBuffer::Output
        };
        let (room, into) = (
            ProgramBuffer::Scratch.span(mine, half),
            ProgramBuffer::Output.span(mine, half),
        );
        let mut after = vec![
            making.send(partner, source.span(theirs, half), &last),
            making.recv(partner, room, &last),
        ];
        if halves.is_empty() {
            after.push(making.copy(ProgramBuffer::Input.span(mine, half), into));
        }
        last = vec![making.reduce(room, into, partner < rank, &after)];
        halves.push((partner, mine, theirs, half));
        (start, half, bit) = (mine, half / 2, bit / 2);
    }
    for (partner, mine, theirs, half) in halves.into_iter().rev() {
        let send = making.send(partner, ProgramBuffer::Output.span(mine, half), &last);
        let recv = making.recv(partner, ProgramBuffer::Output.span(theirs, half), &last);
        last = vec![send, recv];
    }
    making.finish("all_reduce")
}

/// All-to-all with a block of `len` elements for each rank.
fn all_to_all(world: &Comm, len: usize) -> Operation {
    let (rank, size) = (world.rank(), world.size());
    let mut making = Making::new(world, size * len, size * len, 0);
    let place = |buffer: ProgramBuffer, of: usize| buffer.span(of * len, len);
    for distance in 1..size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        making.send(to, place(ProgramBuffer::Input, to), &[]);
        making.recv(from, place(ProgramBuffer::Output, from), &[]);
    }
    making.copy(
        place(ProgramBuffer::Input, rank),
        place(ProgramBuffer::Output, rank),
    );
    making.finish("all_to_all")
}
