//! What small collectives cost as programs: each in a loop, time per call on the slowest rank.
//!
//! ```text
//! cargo bench -p ripstop-rt --bench programs --no-run
//! ripstop run -n 2 --bind core target/release/deps/programs-… -- [barrier|bcast|all_reduce|all_to_all] [BYTES …]
//! ```
//!
//! One JSON line for each operation and length, on rank 0. The programs and their buffers are made once and used again, as a
//! persistent collective does.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench measures real time and prints it, and ends where something fails"
)]

use std::{env, sync::Arc, time::Instant};

use ripstop_rt::{
    Comm, Max, Runtime, Sum,
    offload::{
        Action, Buffer, Builder, Collective, Lens, Program, Reducer, Side, Signature, Span, StepId,
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
    // Alone there is nothing to measure: `cargo test --benches` comes by here.
    if world.size() > 1 {
        runtime.block_on(async {
            if wants("barrier") {
                measure(&world, &barrier(&world), 0).await;
            }
            for &len in &lens {
                for (name, make) in OPERATIONS {
                    if wants(name) {
                        measure(&world, &make(&world, len), len).await;
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

/// A collective that is called again and again.
struct Operation {
    name: &'static str,
    program: Arc<Program>,
    sums: bool,
}

async fn measure(world: &Comm, operation: &Operation, bytes: usize) {
    let crowd = if world.size() > 2 { 10 } else { 1 };
    let calls = ((2 << 30) / (bytes + 8_192) / 4).clamp(100, 50_000) / crowd;
    let lens = operation.program.lens();
    let mut buffers = (
        vec![1.0_f64; lens.input / 8],
        vec![1.0_f64; lens.output / 8],
    );
    let mut best = f64::MAX;
    let mut all = Vec::new();
    for _ in 0..5 {
        world.barrier().await.unwrap();
        let start = Instant::now();
        for _ in 0..calls {
            buffers = call(world, operation, buffers).await;
        }
        #[expect(clippy::cast_precision_loss, reason = "few calls")]
        let micros = start.elapsed().as_secs_f64() * 1e6 / calls as f64;
        let [slowest] = world.all_reduce([micros], Max).await.unwrap();
        best = best.min(slowest);
        all.push(slowest);
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
    (input, output): (Vec<f64>, Vec<f64>),
) -> (Vec<f64>, Vec<f64>) {
    let collective = Collective {
        name: operation.name,
        signature: Signature::of(operation.name),
        program: Arc::clone(&operation.program),
        reducer: operation.sums.then(|| Reducer::new::<f64>(Sum)),
    };
    world.run_program(collective, input, output).await.unwrap()
}

/// Dissemination.
fn barrier(world: &Comm) -> Operation {
    let (rank, size) = (world.rank(), world.size());
    let mut builder = Builder::new::<f64>(size, Lens::default());
    let (mut distance, mut last) = (1, Vec::new());
    while distance < size {
        let to = (rank + distance) % size;
        let from = (rank + size - distance) % size;
        let send = builder
            .push(
                Action::Send {
                    to,
                    from: Span::EMPTY,
                },
                &last,
            )
            .unwrap();
        let recv = builder
            .push(
                Action::Recv {
                    from,
                    into: Span::EMPTY,
                },
                &last,
            )
            .unwrap();
        last = vec![send, recv];
        distance *= 2;
    }
    Operation {
        name: "barrier",
        program: Arc::new(builder.finish()),
        sums: false,
    }
}

/// A binomial tree from rank 0.
fn bcast(world: &Comm, bytes: usize) -> Operation {
    let (rank, size) = (world.rank(), world.size());
    let lens = Lens {
        output: bytes,
        ..Lens::default()
    };
    let mut builder = Builder::new::<f64>(size, lens);
    let all = Buffer::Output.span(0, bytes);
    let (mut bit, mut here) = (1, Vec::new());
    while bit < size && rank & bit == 0 {
        bit *= 2;
    }
    if bit < size {
        let recv = Action::Recv {
            from: rank - bit,
            into: all,
        };
        here.push(builder.push(recv, &[]).unwrap());
    }
    while bit > 1 {
        bit /= 2;
        if rank + bit < size {
            builder
                .push(
                    Action::Send {
                        to: rank + bit,
                        from: all,
                    },
                    &here,
                )
                .unwrap();
        }
    }
    Operation {
        name: "bcast",
        program: Arc::new(builder.finish()),
        sums: false,
    }
}

/// Recursive doubling, and halving then doubling for long ones; for a power of two of ranks.
fn all_reduce(world: &Comm, bytes: usize) -> Operation {
    let program = if bytes >= 256 << 10 {
        halving(world, bytes)
    } else {
        doubling(world, bytes)
    };
    Operation {
        name: "all_reduce",
        program: Arc::new(program),
        sums: true,
    }
}

fn doubling(world: &Comm, bytes: usize) -> Program {
    let (rank, size) = (world.rank(), world.size());
    let rounds = size.ilog2() as usize;
    let lens = Lens {
        input: bytes,
        output: bytes,
        scratch: rounds * bytes,
    };
    let mut builder = Builder::new::<f64>(size, lens);
    let mine = Buffer::Output.span(0, bytes);
    let copy = Action::Copy {
        from: Buffer::Input.span(0, bytes),
        into: mine,
    };
    let mut last = builder.push(copy, &[]).unwrap();
    for round in 0..rounds {
        let partner = rank ^ (1 << round);
        let theirs = Buffer::Scratch.span(round * bytes, bytes);
        // The first send does not wait for the copy.
        let (from, after) = if round == 0 {
            (Buffer::Input.span(0, bytes), vec![])
        } else {
            (mine, vec![last])
        };
        let send = builder
            .push(Action::Send { to: partner, from }, &after)
            .unwrap();
        let recv = builder
            .push(
                Action::Recv {
                    from: partner,
                    into: theirs,
                },
                &[],
            )
            .unwrap();
        let reduce = Action::Reduce {
            from: theirs,
            into: mine,
            side: side(partner, rank),
        };
        last = builder.push(reduce, &[send, recv, last]).unwrap();
    }
    builder.finish()
}

fn halving(world: &Comm, bytes: usize) -> Program {
    let (rank, size) = (world.rank(), world.size());
    let lens = Lens {
        input: bytes,
        output: bytes,
        scratch: bytes,
    };
    let mut builder = Builder::new::<f64>(size, lens);
    let (mut start, mut len, mut partners) = (0, bytes, Vec::new());
    let mut last: Vec<StepId> = Vec::new();
    let mut bit = size / 2;
    while bit > 0 {
        let partner = rank ^ bit;
        let half = len / 2;
        let (mine, theirs) = if rank & bit == 0 {
            (start, start + half)
        } else {
            (start + half, start)
        };
        let source = if partners.is_empty() {
            Buffer::Input
        } else {
            Buffer::Output
        };
        let room = Buffer::Scratch.span(mine, half);
        let send = Action::Send {
            to: partner,
            from: source.span(theirs, half),
        };
        let send = builder.push(send, &last).unwrap();
        let recv = builder
            .push(
                Action::Recv {
                    from: partner,
                    into: room,
                },
                &last,
            )
            .unwrap();
        let into = Buffer::Output.span(mine, half);
        let mut after = vec![send, recv];
        if partners.is_empty() {
            let copy = Action::Copy {
                from: Buffer::Input.span(mine, half),
                into,
            };
            after.push(builder.push(copy, &[]).unwrap());
        }
        let reduce = Action::Reduce {
            from: room,
            into,
            side: side(partner, rank),
        };
        last = vec![builder.push(reduce, &after).unwrap()];
        partners.push((partner, mine, theirs, half));
        (start, len, bit) = (mine, half, bit / 2);
    }
    for &(partner, mine, theirs, half) in partners.iter().rev() {
        let send = Action::Send {
            to: partner,
            from: Buffer::Output.span(mine, half),
        };
        let send = builder.push(send, &last).unwrap();
        let recv = Action::Recv {
            from: partner,
            into: Buffer::Output.span(theirs, half),
        };
        let recv = builder.push(recv, &last).unwrap();
        last = vec![send, recv];
    }
    assert!(start + len <= bytes, "halves of {bytes} bytes");
    builder.finish()
}

fn side(partner: usize, rank: usize) -> Side {
    if partner < rank {
        Side::Left
    } else {
        Side::Right
    }
}

/// A block of `bytes` to everybody.
fn all_to_all(world: &Comm, bytes: usize) -> Operation {
    let (rank, size) = (world.rank(), world.size());
    let lens = Lens {
        input: size * bytes,
        output: size * bytes,
        scratch: 0,
    };
    let mut builder = Builder::new::<f64>(size, lens);
    let place = |buffer: Buffer, of: usize| buffer.span(of * bytes, bytes);
    for distance in 1..size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        let send = Action::Send {
            to,
            from: place(Buffer::Input, to),
        };
        builder.push(send, &[]).unwrap();
        let recv = Action::Recv {
            from,
            into: place(Buffer::Output, from),
        };
        builder.push(recv, &[]).unwrap();
    }
    let copy = Action::Copy {
        from: place(Buffer::Input, rank),
        into: place(Buffer::Output, rank),
    };
    builder.push(copy, &[]).unwrap();
    Operation {
        name: "all_to_all",
        program: Arc::new(builder.finish()),
        sums: false,
    }
}
