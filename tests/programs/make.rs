//! Hand-written collectives.

use ripstop::{Comm, fabric::random::Random};
use ripstop_rt::internal::{
    CommInternals,
    offload::{
        Action, Buffer, Builder, Collective, Lens, Program, ProgramOp, Reducer, Side, Signature,
        Span, StepId,
    },
};

/// Returns `len` bytes that no other `key` has.
pub(crate) fn content(key: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(key ^ (len as u64) << 32);
    let words = (0..len.div_ceil(8)).flat_map(|_| random.bits().to_ne_bytes());
    words.take(len).collect()
}

/// The composition of two maps `x → a·x + b`: associative, but not commutative.
pub(crate) type Map = [u64; 2];

pub(crate) fn compose(left: Map, right: Map) -> Map {
    [
        left[0].wrapping_mul(right[0]),
        left[0].wrapping_mul(right[1]).wrapping_add(left[1]),
    ]
}

fn collective(name: &'static str, program: Program) -> Collective {
    Collective {
        name,
        signature: Signature::of(name),
        program: program.into(),
        reducer: None,
        by_blocks: false,
    }
}

fn push(builder: &mut Builder, action: Action, after: &[StepId]) -> StepId {
    builder
        .push(action, after)
        .unwrap_or_else(|misfit| panic!("{misfit}"))
}

/// Sends every rank's block to every rank, from neighbor to neighbor.
pub(crate) fn ring(rank: usize, size: usize, block: usize) -> Program {
    let lens = Lens {
        input: block,
        output: size * block,
        scratch: 0,
    };
    let mut builder = Builder::new::<u8>(size, lens).lookahead(4);
    let place = |of: usize| Buffer::Output.span(of % size * block, block);
    let copy = Action::Copy {
        from: Buffer::Input.span(0, block),
        into: place(rank),
    };
    let mut here = push(&mut builder, copy, &[]);
    for round in 0..size - 1 {
        let send = Action::Send {
            to: (rank + 1) % size,
            from: place(rank + size - round),
        };
        let recv = Action::Recv {
            from: (rank + size - 1) % size,
            into: place(rank + size - round - 1),
        };
        push(&mut builder, send, &[here]);
        here = push(&mut builder, recv, &[]);
    }
    builder.finish()
}

/// Exchanges a block between every two ranks; the blocks of a rank lie at a distance, and in reverse order.
pub(crate) fn pairwise(rank: usize, size: usize, block: usize) -> Program {
    let lens = Lens {
        input: size * block,
        output: size * block,
        scratch: 0,
    };
    let mut builder = Builder::new::<u8>(size, lens);
    // Half of each block goes from one end, half from the other.
    let half = block / 2;
    let halves = |buffer: Buffer, of: usize| {
        let far = isize::try_from((2 * size - 1 - 2 * of) * half).expect("short");
        buffer.span(of * half, 2 * half).in_runs(half, far)
    };
    let copy = Action::Copy {
        from: halves(Buffer::Input, rank),
        into: halves(Buffer::Output, rank),
    };
    push(&mut builder, copy, &[]);
    for distance in 1..size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        let recv = Action::Recv {
            from,
            into: halves(Buffer::Output, from),
        };
        push(&mut builder, recv, &[]);
        let send = Action::Send {
            to,
            from: halves(Buffer::Input, to),
        };
        push(&mut builder, send, &[]);
    }
    builder.finish()
}

/// Makes each rank wait for all others.
pub(crate) fn dissemination(rank: usize, size: usize) -> Program {
    let mut builder = Builder::new::<u8>(size, Lens::default());
    let (mut distance, mut last) = (1, None);
    while distance < size {
        let send = Action::Send {
            to: (rank + distance) % size,
            from: Span::EMPTY,
        };
        let recv = Action::Recv {
            from: (rank + size - distance) % size,
            into: Span::EMPTY,
        };
        let after: Vec<StepId> = last.into_iter().collect();
        let ends = [
            push(&mut builder, send, &after),
            push(&mut builder, recv, &after),
        ];
        last = Some(push(&mut builder, Action::Join, &ends));
        distance *= 2;
    }
    builder.finish()
}

/// Combines the outputs of all ranks in rank order, for a power of two of them.
pub(crate) fn doubling(rank: usize, size: usize, count: usize) -> Program {
    let bytes = count * size_of::<Map>();
    let rounds = size.ilog2() as usize;
    let lens = Lens {
        input: 0,
        output: bytes,
        scratch: rounds * bytes,
    };
    let mut builder = Builder::new::<Map>(size, lens);
    let mine = Buffer::Output.span(0, bytes);
    let mut last = None;
    for round in 0..rounds {
        let partner = rank ^ (1 << round);
        let theirs = Buffer::Scratch.span(round * bytes, bytes);
        let after: Vec<StepId> = last.into_iter().collect();
        let send = Action::Send {
            to: partner,
            from: mine,
        };
        let recv = Action::Recv {
            from: partner,
            into: theirs,
        };
        let ends = [
            push(&mut builder, send, &after),
            push(&mut builder, recv, &[]),
        ];
        let reduce = Action::Reduce {
            from: theirs,
            into: mine,
            side: if partner < rank {
                Side::Left
            } else {
                Side::Right
            },
        };
        last = Some(push(&mut builder, reduce, &ends));
    }
    builder.finish()
}

#[track_caller]
pub(crate) fn all_gather(comm: &Comm, block: Vec<u8>) -> ProgramOp<Vec<u8>, Vec<u8>> {
    let (rank, size) = (comm.rank(), comm.size());
    let room = vec![0; size * block.len()];
    let program = ring(rank, size, block.len());
    comm.run_program(collective("all_gather", program), block, room)
}

#[track_caller]
pub(crate) fn all_to_all(comm: &Comm, blocks: Vec<u8>) -> ProgramOp<Vec<u8>, Vec<u8>> {
    let (rank, size) = (comm.rank(), comm.size());
    let program = pairwise(rank, size, blocks.len() / size);
    let room = Vec::with_capacity(blocks.len());
    comm.run_program(collective("all_to_all", program), blocks, room)
}

#[track_caller]
pub(crate) fn barrier(comm: &Comm) -> ProgramOp<[u8; 0], [u8; 0]> {
    let program = dissemination(comm.rank(), comm.size());
    comm.run_program(collective("barrier", program), [], [])
}

#[track_caller]
pub(crate) fn all_reduce(
    comm: &Comm,
    maps: Vec<Map>,
    op: impl Fn(Map, Map) -> Map + Send + 'static,
) -> ProgramOp<[u8; 0], Vec<Map>> {
    let program = doubling(comm.rank(), comm.size(), maps.len());
    let collective = Collective {
        reducer: Some(Reducer::new::<Map>(op)),
        by_blocks: false,
        ..collective("all_reduce", program)
    };
    comm.run_program(collective, [], maps)
}
