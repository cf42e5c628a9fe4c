//! Hand-written collectives.

use ripstop::{Comm, Wire, fabric::random::SeededRandom};
use ripstop_rt::internal::{
    CommInternals,
    offload::{
        BufferSpan, CollectiveProgram, CollectiveSignature, CollectiveSpec, CommRank,
        ErasedReducer, OperandSide, Plan, ProgramBuffer, ProgramOp, ProgramStepId, StepAction,
    },
};

/// Returns `len` bytes that no other `key` has.
pub(crate) fn content(key: u64, len: usize) -> Vec<u8> {
    let mut random = SeededRandom::new(key ^ (len as u64) << 32);
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

fn collective(name: &'static str, program: CollectiveProgram) -> CollectiveSpec {
    CollectiveSpec {
        name,
        signature: CollectiveSignature::of(name),
        program: program.into(),
        reducer: None,
        with_block_events: false,
    }
}

fn program<T: Wire>(plan: &Plan, input: usize, output: usize) -> CollectiveProgram {
    plan.program::<T>(input, output)
        .unwrap_or_else(|misfit| panic!("{misfit}"))
}

/// Sends every rank's block to every rank, from neighbor to neighbor.
pub(crate) fn ring(rank: usize, size: usize, block: usize) -> CollectiveProgram {
    let mut plan = Plan::new(rank, size);
    let place = |of: usize| ProgramBuffer::Output.span(of % size * block, block);
    let copy = StepAction::Copy {
        from: ProgramBuffer::Input.span(0, block),
        into: place(rank),
    };
    let mut here = plan.push(copy, &[]);
    for round in 0..size - 1 {
        let send = StepAction::Send {
            to: CommRank((rank + 1) % size),
            from: place(rank + size - round),
        };
        let recv = StepAction::Recv {
            from: CommRank((rank + size - 1) % size),
            into: place(rank + size - round - 1),
        };
        plan.push(send, &[here]);
        here = plan.push(recv, &[]);
    }
    program::<u8>(&plan, block, size * block).lookahead(4)
}

/// Exchanges a block between every two ranks; the blocks of a rank lie at a distance, and in reverse order.
pub(crate) fn pairwise(rank: usize, size: usize, block: usize) -> CollectiveProgram {
    let mut plan = Plan::new(rank, size);
    // Half of each block goes from one end, half from the other.
    let half = block / 2;
    let halves = |buffer: ProgramBuffer, of: usize| {
        let stride = isize::try_from((2 * size - 1 - 2 * of) * half).expect("short");
        buffer.span(of * half, 2 * half).in_runs(half, stride)
    };
    let copy = StepAction::Copy {
        from: halves(ProgramBuffer::Input, rank),
        into: halves(ProgramBuffer::Output, rank),
    };
    plan.push(copy, &[]);
    for distance in 1..size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        let recv = StepAction::Recv {
            from: CommRank(from),
            into: halves(ProgramBuffer::Output, from),
        };
        plan.push(recv, &[]);
        let send = StepAction::Send {
            to: CommRank(to),
            from: halves(ProgramBuffer::Input, to),
        };
        plan.push(send, &[]);
    }
    program::<u8>(&plan, size * block, size * block)
}

/// Makes each rank wait for all others.
pub(crate) fn dissemination(rank: usize, size: usize) -> CollectiveProgram {
    let mut plan = Plan::new(rank, size);
    let (mut distance, mut last) = (1, None);
    while distance < size {
        let send = StepAction::Send {
            to: CommRank((rank + distance) % size),
            from: BufferSpan::EMPTY,
        };
        let recv = StepAction::Recv {
            from: CommRank((rank + size - distance) % size),
            into: BufferSpan::EMPTY,
        };
        let after: Vec<ProgramStepId> = last.into_iter().collect();
        let ends = [plan.push(send, &after), plan.push(recv, &after)];
        last = Some(plan.push(StepAction::Join, &ends));
        distance *= 2;
    }
    program::<u8>(&plan, 0, 0)
}

/// Combines the outputs of all ranks in rank order, for a power of two of them.
pub(crate) fn doubling(rank: usize, size: usize, count: usize) -> CollectiveProgram {
    let mut plan = Plan::new(rank, size);
    let mine = ProgramBuffer::Output.span(0, count);
    let mut last = None;
    for round in 0..size.ilog2() {
        let partner = rank ^ (1 << round);
        let theirs = plan.add_scratch(count);
        let after: Vec<ProgramStepId> = last.into_iter().collect();
        let send = StepAction::Send {
            to: CommRank(partner),
            from: mine,
        };
        let recv = StepAction::Recv {
            from: CommRank(partner),
            into: theirs,
        };
        let ends = [plan.push(send, &after), plan.push(recv, &[])];
        let reduce = StepAction::Reduce {
            from: theirs,
            into: mine,
            side: if partner < rank {
                OperandSide::Left
            } else {
                OperandSide::Right
            },
        };
        last = Some(plan.push(reduce, &ends));
    }
    program::<Map>(&plan, 0, count)
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
    let collective = CollectiveSpec {
        reducer: Some(ErasedReducer::new::<Map>(op)),
        with_block_events: false,
        ..collective("all_reduce", program)
    };
    comm.run_program(collective, [], maps)
}
