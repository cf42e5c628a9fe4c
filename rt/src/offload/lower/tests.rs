//! Lowered programs with random delays give the same results as the steps done in sequence, and mutants do not.

#![expect(
    clippy::cast_possible_truncation,
    reason = "numbers of a test are small"
)]

use std::sync::Arc;

use ripstop_fabric::random::SeededRandom;

use super::{
    AdapterMeans, AdapterReductions, LandingCounts, LoweredAction, LoweredItem, ProgramLowering,
    model::{Job, Model, Mutant, Outcome, is_for_host, place_of},
};
use crate::offload::{
    BufferSpan, CollectiveProgram, CommRank, OperandSide, Plan, ProgramBuffer, ProgramStepId,
    StepAction,
};

/// An all-to-all: step k sends to the rank k ahead, with at most `window` messages at a time.
fn pairwise(rank: usize, size: usize, block: usize, window: usize) -> CollectiveProgram {
    let mut plan = Plan::new(rank, size);
    let of = |buffer: ProgramBuffer, rank: usize| buffer.span(rank * block, block);
    plan.push(
        StepAction::Copy {
            from: of(ProgramBuffer::Input, rank),
            into: of(ProgramBuffer::Output, rank),
        },
        &[],
    );
    let mut sends = Vec::new();
    for k in 1..size {
        let (to, from) = ((rank + k) % size, (rank + size - k) % size);
        let before = sends.len().checked_sub(window).map(|at| sends[at]);
        let after: Vec<ProgramStepId> = before.into_iter().collect();
        sends.push(plan.push(
            StepAction::Send {
                to: CommRank(to),
                from: of(ProgramBuffer::Input, to),
            },
            &after,
        ));
        plan.push(
            StepAction::Recv {
                from: CommRank(from),
                into: of(ProgramBuffer::Output, from),
            },
            &[],
        );
    }
    plan.program::<u8>(size * block, size * block)
        .expect("it fits")
}

#[test]
fn receives_from_some_peers_are_counted_where_they_end() {
    let program = Arc::new(pairwise(0, 5, 3, 4));
    let means = |told_max| AdapterMeans {
        combining: AdapterReductions { how: None, max: 0 },
        list_max: 8,
        recv_groups_max: told_max,
    };
    let lower = |told_max| {
        let mut lanes = LandingCounts::new(4);
        ProgramLowering::new(Arc::clone(&program), means(told_max), &mut lanes)
    };
    let all = |told_max, such: fn(usize) -> bool| {
        let all = lower(told_max).receives_from(|peer| such(peer.0));
        all.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(all(0, |_| false), []);
    assert_eq!(all(0, |peer| peer == 2), [(0, 1)]);
    assert_eq!(all(0, |peer| peer != 2), [(0, 3)]);
    let apart = all(64, |peer| peer != 2);
    assert_eq!(apart.len(), 3);
    assert!(
        apart
            .iter()
            .all(|(counter, count)| (*counter, *count) != (0, 1) && *count == 1)
    );
}

fn all_to_all(size: usize, rounds: usize, list_max: usize, slots: usize) -> Job {
    let block = 3;
    let program = |rank| Arc::new(pairwise(rank, size, block, 4));
    let programs: Vec<Arc<CollectiveProgram>> = (0..size).map(program).collect();
    let input = |round: usize, rank: usize| {
        (0..size * block)
            .map(|at| (round * 89 + rank * 31 + at) as u8)
            .collect()
    };
    Job {
        programs: vec![programs; rounds],
        inputs: (0..rounds)
            .map(|round| (0..size).map(|rank| input(round, rank)).collect())
            .collect(),
        list_max,
        lanes: 4,
        slots,
        told_max: 0,
    }
}

/// Returns the expected result of an all-to-all: the blocks are transposed.
fn transposed(job: &Job) -> Outcome {
    let one = |inputs: &Vec<Vec<u8>>| -> Vec<Vec<u8>> {
        let size = inputs.len();
        let block = inputs[0].len() / size;
        let blocks = |rank: usize| {
            inputs
                .iter()
                .flat_map(move |input| input[rank * block..][..block].to_vec())
        };
        (0..size).map(|rank| blocks(rank).collect()).collect()
    };
    Outcome::Done(job.inputs.iter().map(one).collect())
}

#[test]
fn an_all_to_all_in_short_lists_gives_what_it_should_whatever_is_late() {
    for seed in 0..200 {
        let mut random = SeededRandom::new(seed);
        let mut below = |range: std::ops::Range<u64>| random.within(range) as usize;
        let (size, slots, list_max) = (below(1..14), below(1..4), below(3..24));
        let mut job = all_to_all(size, 5, list_max, slots);
        job.told_max = below(0..16);
        let mut model = Model::new(&job, seed, seed % 2 == 0, Mutant::None);
        assert_eq!(
            model.run(),
            transposed(&job),
            "seed {seed}: {size} ranks, {slots} slots, lists of {list_max}"
        );
        assert!(
            model.tally.waiting_max <= 2 * slots * list_max,
            "seed {seed}: the queue is too short"
        );
        let tasks = size + job.told_max.min(size);
        let lists = tasks.div_ceil(list_max) * size * 5;
        assert!(
            model.tally.wakes <= lists,
            "seed {seed}: {} wakes",
            model.tally.wakes
        );
    }
}

/// Returns how many of many seeds end in this way.
fn count(outcome: &Outcome, mutant: Mutant) -> usize {
    let ends = |seed: &u64| {
        let job = all_to_all(11, 4, 3, 2);
        Model::new(&job, *seed, true, mutant).run() == *outcome
    };
    (0..60).filter(ends).count()
}

#[test]
fn lanes_that_are_reset_lose_what_came_early_and_nothing_goes_on() {
    assert!(count(&Outcome::Deadlock, Mutant::ResetLanes) > 0);
    assert_eq!(count(&Outcome::Deadlock, Mutant::None), 0);
}

#[test]
fn a_host_that_is_not_woken_for_a_list_stops_everybody() {
    assert_eq!(count(&Outcome::Deadlock, Mutant::NoWake), 60);
}

#[test]
fn a_put_that_is_not_allowed_yet_comes_too_early() {
    assert!(count(&Outcome::Early, Mutant::NoInvitation) > 0);
}

/// A random collective, together with the result of its steps done in sequence.
struct Chance {
    plans: Vec<Plan>,
    /// By rank: the pushed actions and their steps.
    pushed: Vec<Vec<(StepAction, ProgramStepId)>>,
    memory: Vec<[Vec<u8>; 3]>,
    random: SeededRandom,
}

const LEN: usize = 48;

impl Chance {
    fn new(size: usize, seed: u64) -> Self {
        let mut random = SeededRandom::new(seed);
        let mut input = || {
            let mut bytes = vec![0; LEN];
            random.fill(&mut bytes);
            bytes
        };
        let plan_of = |rank| {
            let mut plan = Plan::new(rank, size);
            plan.add_scratch(LEN);
            plan
        };
        Self {
            plans: (0..size).map(plan_of).collect(),
            pushed: vec![Vec::new(); size],
            memory: (0..size)
                .map(|_| [input(), vec![0; LEN], vec![0; LEN]])
                .collect(),
            random,
        }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.within(0..limit as u64) as usize
    }

    fn span(&mut self, len: usize, written: bool) -> BufferSpan {
        let buffers = [
            ProgramBuffer::Output,
            ProgramBuffer::Scratch,
            ProgramBuffer::Input,
        ];
        let buffer = buffers[self.below(if written { 2 } else { 3 })];
        if len > 1 && self.below(4) == 0 {
            // Single bytes at a distance.
            let stride = 1 + self.below((LEN - 1) / len);
            let start = self.below(LEN - (len - 1) * stride);
            return buffer.span(start, len).in_runs(1, stride.cast_signed());
        }
        let start = self.below(LEN - len + 1);
        buffer.span(start, len)
    }

    /// Pushes an action after all actions that it must wait for; sometimes through a join.
    fn push(&mut self, rank: usize, action: StepAction) {
        let known = self.pushed[rank]
            .iter()
            .filter(|(known, _)| known.conflicts_with(&action));
        let mut after: Vec<ProgramStepId> = known.map(|(_, step)| *step).collect();
        if after.len() > 1 && self.below(3) == 0 {
            after = vec![self.plans[rank].push(StepAction::Join, &after)];
        }
        let step = self.plans[rank].push(action, &after);
        self.pushed[rank].push((action, step));
    }

    fn message(&mut self) {
        let size = self.memory.len();
        let (source, target, len) = (self.below(size), self.below(size), self.below(12));
        let (from, into) = (self.span(len, false), self.span(len, true));
        if source == target && from.overlaps(&into) {
            return; // each would wait for the other
        }
        self.push(
            source,
            StepAction::Send {
                to: CommRank(target),
                from,
            },
        );
        self.push(
            target,
            StepAction::Recv {
                from: CommRank(source),
                into,
            },
        );
        let bytes = read(&self.memory[source], &from);
        write(&mut self.memory[target], &into, &bytes);
    }

    fn local(&mut self, reduce: bool) {
        let (rank, len) = (self.below(self.memory.len()), 1 + self.below(12));
        let (from, into) = (self.span(len, false), self.span(len, true));
        if from.overlaps(&into) {
            return;
        }
        let mut bytes = read(&self.memory[rank], &from);
        if reduce {
            let old = read(&self.memory[rank], &into);
            bytes
                .iter_mut()
                .zip(old)
                .for_each(|(new, old)| *new = new.wrapping_mul(3).wrapping_add(old));
            self.push(
                rank,
                StepAction::Reduce {
                    from,
                    into,
                    side: OperandSide::Left,
                },
            );
        } else {
            self.push(rank, StepAction::Copy { from, into });
        }
        write(&mut self.memory[rank], &into, &bytes);
    }

    /// Returns the programs and the expected outputs.
    fn finish(self) -> (Vec<Arc<CollectiveProgram>>, Vec<Vec<u8>>) {
        let program = |plan: &Plan| plan.program::<u8>(LEN, LEN).expect("it fits");
        let programs = self.plans.iter().map(|plan| Arc::new(program(plan)));
        (
            programs.collect(),
            self.memory
                .into_iter()
                .map(|[_, output, _]| output)
                .collect(),
        )
    }
}

fn read(memory: &[Vec<u8>; 3], span: &BufferSpan) -> Vec<u8> {
    let row = ProgramBuffer::Scratch.span(0, span.len);
    let pieces = span.pieces(row);
    pieces
        .flat_map(|(at, _, len)| memory[place_of(span.buffer)][at..at + len].to_vec())
        .collect()
}

fn write(memory: &mut [Vec<u8>; 3], span: &BufferSpan, bytes: &[u8]) {
    let row = ProgramBuffer::Scratch.span(0, span.len);
    for (at, from, len) in span.pieces(row) {
        memory[place_of(span.buffer)][at..at + len].copy_from_slice(&bytes[from..from + len]);
    }
}

#[test]
fn any_program_gives_what_its_steps_give_one_after_the_other() {
    for seed in 0..300 {
        let mut random = SeededRandom::new(seed ^ 0xc0);
        let size = 1 + random.within(0..6) as usize;
        let (mut programs, mut inputs, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..4 {
            let mut chance = Chance::new(size, seed << 3 | round);
            inputs.push(
                chance
                    .memory
                    .iter()
                    .map(|[input, ..]| input.clone())
                    .collect(),
            );
            for _ in 0..random.within(0..40) {
                match random.within(0..5) {
                    0 => chance.local(false),
                    1 => chance.local(true),
                    _ => chance.message(),
                }
            }
            let (made, output) = chance.finish();
            programs.push(made);
            outputs.push(output);
        }
        let slots = 1 + random.within(0..3) as usize;
        let (list_max, lanes) = (random.within(3..64) as usize, random.within(1..5));
        let job = Job {
            programs,
            inputs,
            list_max,
            lanes,
            slots,
            told_max: random.within(0..4) as usize,
        };
        let outcome = Model::new(&job, seed, seed % 2 == 0, Mutant::None).run();
        assert!(
            outcome == Outcome::Done(outputs),
            "seed {seed}: {size} ranks, {slots} slots, {lanes} lanes, lists of {list_max}: {outcome:?}"
        );
    }
}

fn means(list_max: usize) -> AdapterMeans {
    AdapterMeans {
        combining: AdapterReductions::default(),
        list_max,
        recv_groups_max: 0,
    }
}

#[test]
fn what_begins_at_once_takes_no_room_of_what_waits() {
    let program = Arc::new(pairwise(0, 5, 1, 4));
    let mut lanes = LandingCounts::new(4);
    let mut lowering = ProgramLowering::new(program, means(3), &mut lanes);
    // Sends and receives count at the end, and no step waits for them while the window is not full.
    assert_eq!((lowering.counters(), lowering.ends()), (1, 9));
    assert_eq!((lanes.targets(), lanes.from.len()), (4, 4));
    let mut items = Vec::new();
    for [sends, receives] in [[3, 2], [1, 2], [0, 0]] {
        items.clear();
        lowering.next_list(&mut items);
        let is_send = |item: &&LoweredItem| matches!(item.action, LoweredAction::Put { .. });
        let is_receive =
            |item: &&LoweredItem| matches!(item.action, LoweredAction::PublishLanding { .. });
        assert_eq!(items.iter().filter(is_send).count(), sends);
        assert_eq!(items.iter().filter(is_receive).count(), receives);
    }
}

#[test]
fn the_end_of_a_step_that_many_wait_for_is_passed_on_by_the_host() {
    let mut plan = Plan::new(0, 10);
    let span = |at: usize| ProgramBuffer::Output.span(at, 1);
    let first = StepAction::Recv {
        from: CommRank(1),
        into: span(0),
    };
    let first = plan.push(first, &[]);
    for to in 2..10 {
        let send = StepAction::Send {
            to: CommRank(to),
            from: span(0),
        };
        plan.push(send, &[first]);
    }
    let program = Arc::new(plan.program::<u8>(0, 9).expect("it fits"));
    for (list_max, wide) in [(3, true), (31, true), (40, false)] {
        let program = Arc::clone(&program);
        let mut lowering =
            ProgramLowering::new(program, means(list_max), &mut LandingCounts::new(1));
        let mut items = Vec::new();
        lowering.next_list(&mut items);
        let spreads = items.iter().filter(|item| is_for_host(&item.action));
        assert_eq!(spreads.count(), usize::from(wide), "{items:?}");
        assert!(lowering.waiting(0).eq(1..9));
    }
}

#[test]
fn receives_are_told_of_one_by_one_or_together_where_counters_are_few() {
    for (told_max, groups) in [
        (0, &[][..]),
        (64, &[1; 8]),
        (8, &[1; 8]),
        (3, &[3, 3, 2]),
        (1, &[8]),
    ] {
        let means = AdapterMeans {
            recv_groups_max: told_max,
            ..means(40)
        };
        let program = Arc::new(pairwise(0, 9, 1, 32));
        let lowering = ProgramLowering::new(program, means, &mut LandingCounts::new(4));
        let told: Vec<usize> = lowering
            .recv_groups()
            .map(|(_, steps)| steps.len())
            .collect();
        assert_eq!(told, groups);
        // The copy, the sends, and one count for each group of receives that are reported together.
        let apart = if told_max == 0 { 8 } else { groups.len() };
        assert_eq!(lowering.ends(), 9 + apart as u64);
        assert_eq!(lowering.counters(), 1 + groups.len());
    }
}

/// Returns all items of a lowering.
fn items_of(mut lowering: ProgramLowering) -> Vec<LoweredItem> {
    let mut items = Vec::new();
    loop {
        let before = items.len();
        lowering.next_list(&mut items);
        if items.len() == before {
            return items;
        }
    }
}

#[test]
fn a_program_that_runs_again_finds_its_form_and_goes_on_in_its_lanes() {
    let program = Arc::new(pairwise(1, 5, 3, 4));
    let again = || ProgramLowering::new(Arc::clone(&program), means(8), &mut LandingCounts::new(4));
    let form = |lowering: &ProgramLowering| Arc::as_ptr(&lowering.form);
    let first = again();
    assert_eq!(form(&first), form(&again()));
    let [mut kept, mut anew] = [LandingCounts::new(4), LandingCounts::new(4)];
    let mut runs = Vec::new();
    for _ in 0..6 {
        let lowering = ProgramLowering::new(Arc::clone(&program), means(8), &mut kept);
        let copy = ProgramLowering::new(Arc::new((*program).clone()), means(8), &mut anew);
        assert_eq!(form(&lowering), form(&first));
        assert_ne!(form(&copy), form(&first), "a copy would prove nothing");
        let items = items_of(lowering);
        assert_eq!(items, items_of(copy));
        runs.push(items);
    }
    let is_other = |pair: &[Vec<LoweredItem>]| pair[0] != pair[1];
    assert!(runs.windows(2).all(is_other), "lanes stood still");
}

#[test]
fn a_form_serves_only_the_means_that_it_was_made_for() {
    let program = Arc::new(pairwise(0, 9, 1, 32));
    let lower = |means, lanes| {
        ProgramLowering::new(Arc::clone(&program), means, &mut LandingCounts::new(lanes))
    };
    let told_max = 4;
    let told = AdapterMeans {
        recv_groups_max: told_max,
        ..means(8)
    };
    for (means, lanes, groups) in [
        (means(8), 4, 0),
        (told, 4, 4),
        (means(8), 1, 0),
        (means(5), 1, 0),
    ] {
        let lowering = lower(means, lanes);
        assert_eq!(
            (lowering.recv_groups().len(), lowering.list_max()),
            (groups, means.list_max)
        );
        assert_eq!(items_of(lowering), items_of(fresh(&program, means, lanes)));
    }
}

fn fresh(program: &CollectiveProgram, means: AdapterMeans, lanes: u64) -> ProgramLowering {
    ProgramLowering::new(
        Arc::new(program.clone()),
        means,
        &mut LandingCounts::new(lanes),
    )
}
