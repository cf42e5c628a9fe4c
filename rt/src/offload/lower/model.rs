//! Model of ranks whose adapters run lowered programs, with random delays of messages and of host wake-ups.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    sync::Arc,
};

use ripstop_fabric::{
    offload::{CombineOperator, IntegerType, TypedOperator},
    random::SeededRandom,
};

use super::{
    AdapterMeans, AdapterReductions, CounterThreshold, LandingCounts, LandingSlot, LoweredAction,
    LoweredCounter, LoweredItem, ProgramLowering,
};
use crate::offload::{BufferSpan, CollectiveProgram, CommRank, ProgramBuffer, StepAction};

/// Programs that all ranks run, one after the other.
pub(super) struct Job {
    /// Programs, by number and rank.
    pub(super) programs: Vec<Vec<Arc<CollectiveProgram>>>,
    /// Inputs, by number and rank.
    pub(super) inputs: Vec<Vec<Vec<u8>>>,
    /// Maximum tasks of a list.
    pub(super) list_max: usize,
    /// Landing slots from each rank to each other rank.
    pub(super) lanes: u64,
    /// Maximum programs that a rank may have in flight.
    pub(super) slots: usize,
    /// Counters for receives that are reported separately.
    pub(super) told_max: usize,
}

/// A deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    None,
    /// Landing slots are reset when a program begins, and thresholds count from there.
    ResetLanes,
    /// The host does not wake up for the end of a list.
    NoWake,
    /// Puts do not wait until they are allowed.
    NoInvitation,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The outputs, by number and rank.
    Done(Vec<Vec<Vec<u8>>>),
    Deadlock,
    /// A put began before its destination was known, or a landing slot was used that was in use.
    Early,
}

/// Maximum number of waiting tasks on a rank, and the number of host wake-ups for a list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) waiting_max: usize,
    pub(super) wakes: usize,
}

pub(super) struct Model<'a> {
    job: &'a Job,
    mutant: Mutant,
    random: SeededRandom,
    /// True for delays that are mostly short and sometimes long.
    rough: bool,
    now: u64,
    planned: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    ranks: Vec<Rank>,
    early: bool,
    pub(super) tally: Tally,
}

struct Rank {
    runs: Vec<Run>,
    slots: Vec<Slot>,
}

struct Slot {
    lanes: LandingCounts,
    counts: BTreeMap<LandingSlot, u64>,
    /// Destination of each peer's message, and the counter that the message adds to.
    places: BTreeMap<LandingSlot, (usize, BufferSpan, u32)>,
}

impl Slot {
    const fn new(lanes: u64) -> Self {
        Self {
            lanes: LandingCounts::new(lanes),
            counts: BTreeMap::new(),
            places: BTreeMap::new(),
        }
    }
}

struct Run {
    lowering: ProgramLowering,
    memory: [Vec<u8>; 3],
    own: Vec<u64>,
    waiting: Vec<(LoweredItem, usize)>,
    /// By list: tasks that have not begun.
    lists: Vec<usize>,
    over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The host of a rank begins a program.
    Start {
        rank: usize,
        number: usize,
    },
    /// The host posts another list.
    Post {
        rank: usize,
        number: usize,
    },
    Invited {
        rank: usize,
        slot: usize,
        lane: LandingSlot,
        place: Key,
    },
    Landed {
        rank: usize,
        place: Key,
        origin: (usize, usize),
        from: Key,
        end: u32,
    },
    Counted {
        rank: usize,
        number: usize,
        counter: u32,
    },
    Moved {
        rank: usize,
        number: usize,
        step: Key,
        into: Key,
        reduce: bool,
    },
    Over {
        rank: usize,
        number: usize,
    },
}

/// A span as numbers that can be ordered: the program, the buffer, and the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    number: usize,
    buffer: ProgramBuffer,
    start: usize,
    len: usize,
    run: usize,
    stride: isize,
    end: u32,
}

impl Key {
    fn new(number: usize, span: BufferSpan, end: u32) -> Self {
        let BufferSpan {
            buffer,
            start,
            len,
            run,
            stride,
        } = span;
        Self {
            number,
            buffer,
            start,
            len,
            run,
            stride,
            end,
        }
    }

    fn span(self) -> BufferSpan {
        self.buffer
            .span(self.start, self.len)
            .in_runs(self.run, self.stride)
    }
}

impl<'a> Model<'a> {
    pub(super) fn new(job: &'a Job, seed: u64, rough: bool, mutant: Mutant) -> Self {
        let ranks = job.programs[0].len();
        let rank = || Rank {
            runs: Vec::new(),
            slots: (0..job.slots).map(|_| Slot::new(job.lanes)).collect(),
        };
        Self {
            job,
            mutant,
            random: SeededRandom::new(seed),
            rough,
            now: 0,
            planned: 0,
            events: BinaryHeap::new(),
            ranks: (0..ranks).map(|_| rank()).collect(),
            early: false,
            tally: Tally::default(),
        }
    }

    pub(super) fn run(&mut self) -> Outcome {
        let size = self.ranks.len();
        for rank in 0..size {
            self.call_next(rank);
        }
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            self.now = at;
            self.happen(event);
            if self.early {
                return Outcome::Early;
            }
        }
        let through = |rank: &Rank| {
            rank.runs.len() == self.job.programs.len() && rank.runs.iter().all(|run| run.over)
        };
        if !self.ranks.iter().all(through) {
            return Outcome::Deadlock;
        }
        for run in self.ranks.iter().flat_map(|rank| &rank.runs) {
            assert_eq!(run.own, run.lowering.totals(), "counts are still in flight");
        }
        let output = |number: usize| move |rank: &Rank| rank.runs[number].memory[1].clone();
        let outputs = |number| self.ranks.iter().map(output(number)).collect();
        Outcome::Done((0..self.job.programs.len()).map(outputs).collect())
    }

    fn plan(&mut self, event: Event) {
        let long = self.rough && self.random.within(0..8) == 0;
        let delay = self.random.within(if long { 500..5000 } else { 1..100 });
        self.planned += 1;
        self.events
            .push(Reverse((self.now + delay, self.planned, event)));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start { rank, number } => self.start(rank, number),
            Event::Post { rank, number } => {
                self.tally.wakes += 1;
                self.post(rank, number);
            }
            Event::Invited {
                rank,
                slot,
                lane,
                place,
            } => {
                let slot = &mut self.ranks[rank].slots[slot];
                self.early |= slot
                    .places
                    .insert(lane, (place.number, place.span(), place.end))
                    .is_some();
                *slot.counts.entry(lane).or_default() += 1;
                self.begin_all(rank);
            }
            Event::Landed {
                rank,
                place,
                origin,
                from,
                end,
            } => {
                let (source, number) = origin;
                let bytes = self.ranks[source].runs[number].read(&from.span());
                self.ranks[rank].runs[place.number].write(&place.span(), &bytes);
                self.count(rank, place.number, place.end);
                self.plan(Event::Counted {
                    rank: source,
                    number,
                    counter: end,
                });
            }
            Event::Counted {
                rank,
                number,
                counter,
            } => self.count(rank, number, counter),
            Event::Moved {
                rank,
                number,
                step,
                into,
                reduce,
            } => {
                let run = &mut self.ranks[rank].runs[number];
                let mut bytes = run.read(&step.span());
                if reduce {
                    let old = run.read(&into.span());
                    bytes
                        .iter_mut()
                        .zip(old)
                        .for_each(|(new, old)| *new = new.wrapping_mul(3).wrapping_add(old));
                }
                run.write(&into.span(), &bytes);
                self.count(rank, number, step.end);
            }
            Event::Over { rank, number } => {
                self.ranks[rank].runs[number].over = true;
                self.call_next(rank);
            }
        }
    }

    /// Makes the host call the next program, if the previous one in its slot has ended.
    fn call_next(&mut self, rank: usize) {
        let runs = &self.ranks[rank].runs;
        let number = runs.len();
        let before = number
            .checked_sub(self.job.slots)
            .map(|before| runs[before].over);
        if number < self.job.programs.len() && before != Some(false) {
            self.plan(Event::Start { rank, number });
        }
    }

    fn start(&mut self, rank: usize, number: usize) {
        if self.ranks[rank].runs.len() != number {
            return; // called twice
        }
        let program = Arc::clone(&self.job.programs[number][rank]);
        let lens = program.lens();
        let slot = &mut self.ranks[rank].slots[number % self.job.slots];
        if self.mutant == Mutant::ResetLanes {
            (slot.lanes, slot.counts) = (LandingCounts::new(self.job.lanes), BTreeMap::new());
        }
        // Some adapters combine, and others leave that to their hosts.
        let combining = AdapterReductions {
            how: (rank % 2 == 1).then_some(HOW),
            max: usize::MAX,
        };
        let means = AdapterMeans {
            combining,
            list_max: self.job.list_max,
            recv_groups_max: self.job.told_max,
        };
        let lowering = ProgramLowering::new(program, means, &mut slot.lanes);
        self.ranks[rank].runs.push(Run {
            own: vec![0; lowering.counters()],
            lowering,
            memory: [
                self.job.inputs[number][rank].clone(),
                vec![0; lens.output],
                vec![0; lens.scratch],
            ],
            waiting: Vec::new(),
            lists: Vec::new(),
            over: false,
        });
        self.post(rank, number);
        self.post(rank, number);
        self.look_whether_over(rank, number);
        self.call_next(rank);
    }

    fn post(&mut self, rank: usize, number: usize) {
        let run = &mut self.ranks[rank].runs[number];
        let mut items = Vec::new();
        run.lowering.next_list(&mut items);
        let is_task = |item: &&LoweredItem| !is_for_host(&item.action);
        let tasks = items.iter().filter(is_task).count();
        assert!(tasks <= 2 * self.job.list_max, "a list of {tasks} tasks");
        let list = run.lists.len();
        run.lists.push(tasks);
        let none = items.is_empty();
        run.waiting
            .extend(items.into_iter().map(|item| (item, list)));
        if tasks == 0 && !none {
            self.plan(Event::Post { rank, number }); // reductions only, so there is room for another list
        }
        self.begin_all(rank);
        let waiting: usize = self.ranks[rank]
            .runs
            .iter()
            .flat_map(|run| &run.lists)
            .sum();
        self.tally.waiting_max = self.tally.waiting_max.max(waiting);
    }

    /// Begins all tasks that may begin.
    fn begin_all(&mut self, rank: usize) {
        for number in 0..self.ranks[rank].runs.len() {
            let mut at = 0;
            while let Some(&(item, list)) = self.ranks[rank].runs[number].waiting.get(at) {
                let allowed = item.and.filter(|_| self.mutant != Mutant::NoInvitation);
                let met = [Some(item.when), allowed]
                    .into_iter()
                    .flatten()
                    .all(|least| self.is_met(rank, number, least));
                if !met {
                    at += 1;
                    continue;
                }
                self.ranks[rank].runs[number].waiting.remove(at);
                self.begin(rank, number, item.action);
                if !is_for_host(&item.action) {
                    self.begun(rank, number, list);
                }
            }
        }
    }

    fn is_met(&self, rank: usize, number: usize, least: CounterThreshold) -> bool {
        let rank = &self.ranks[rank];
        let value = match least.counter {
            LoweredCounter::Own(counter) => rank.runs[number].own[counter as usize],
            LoweredCounter::Landing(lane) => {
                let counts = &rank.slots[number % self.job.slots].counts;
                counts.get(&lane).copied().unwrap_or(0)
            }
        };
        value >= least.value
    }

    fn begin(&mut self, rank: usize, number: usize, action: LoweredAction) {
        let slot = number % self.job.slots;
        let event = match action {
            LoweredAction::PublishLanding {
                lane, into, end, ..
            } => Event::Invited {
                rank: lane.peer.0,
                slot,
                lane: LandingSlot {
                    peer: CommRank(rank),
                    ..lane
                },
                place: Key::new(number, into, end),
            },
            LoweredAction::Put {
                lane, from, end, ..
            } => {
                let places = &mut self.ranks[rank].slots[slot].places;
                let Some((theirs, into, counts)) = places.remove(&lane) else {
                    self.early = true;
                    return;
                };
                assert_eq!(into.len, from.len, "two programs of one collective");
                Event::Landed {
                    rank: lane.peer.0,
                    place: Key::new(theirs, into, counts),
                    origin: (rank, number),
                    from: Key::new(number, from, end),
                    end,
                }
            }
            LoweredAction::Spread { step } => {
                let waiting: Vec<u32> = self.ranks[rank].runs[number]
                    .lowering
                    .waiting(step)
                    .collect();
                for counter in waiting {
                    self.plan(Event::Counted {
                        rank,
                        number,
                        counter,
                    });
                }
                return;
            }
            LoweredAction::Pass { to } => Event::Counted {
                rank,
                number,
                counter: to,
            },
            LoweredAction::Copy { from, into, end } => moved(rank, number, from, into, end, false),
            LoweredAction::Combine {
                from,
                into,
                how,
                end,
            } => {
                assert_eq!(how, HOW);
                moved(rank, number, from, into, end, true)
            }
            LoweredAction::Host { step, end } => {
                let program = &self.job.programs[number][rank];
                let (from, into, reduce) = match program.step(step).action {
                    StepAction::Reduce { from, into, .. } => (from, into, true),
                    StepAction::Copy { from, into } => (from, into, false),
                    other => panic!("{other:?} is not the host's"),
                };
                moved(rank, number, from, into, end, reduce)
            }
        };
        self.plan(event);
    }

    fn begun(&mut self, rank: usize, number: usize, list: usize) {
        let left = &mut self.ranks[rank].runs[number].lists[list];
        *left -= 1;
        if *left == 0 && self.mutant != Mutant::NoWake {
            self.plan(Event::Post { rank, number });
        }
    }

    fn count(&mut self, rank: usize, number: usize, counter: u32) {
        self.ranks[rank].runs[number].own[counter as usize] += 1;
        self.look_whether_over(rank, number);
        self.begin_all(rank);
    }

    fn look_whether_over(&mut self, rank: usize, number: usize) {
        let run = &self.ranks[rank].runs[number];
        let (value, ends) = (run.own[0], run.lowering.ends());
        assert!(value <= ends && !run.over, "counted after the end");
        if value == ends {
            self.plan(Event::Over { rank, number });
        }
    }
}

impl Run {
    fn read(&self, span: &BufferSpan) -> Vec<u8> {
        let memory = &self.memory[place_of(span.buffer)];
        let row = ProgramBuffer::Scratch.span(0, span.len);
        let pieces = span.pieces(row);
        pieces
            .flat_map(|(at, _, len)| memory[at..at + len].to_vec())
            .collect()
    }

    fn write(&mut self, span: &BufferSpan, bytes: &[u8]) {
        let memory = &mut self.memory[place_of(span.buffer)];
        let row = ProgramBuffer::Scratch.span(0, span.len);
        for (at, from, len) in span.pieces(row) {
            memory[at..at + len].copy_from_slice(&bytes[from..from + len]);
        }
    }
}

/// Returns the event of a copy or a reduction in a rank's memory.
fn moved(
    rank: usize,
    number: usize,
    from: BufferSpan,
    into: BufferSpan,
    end: u32,
    reduce: bool,
) -> Event {
    Event::Moved {
        rank,
        number,
        step: Key::new(number, from, end),
        into: Key::new(number, into, 0),
        reduce,
    }
}

/// Combination of all reductions. What they compute in this model shows their order.
const HOW: TypedOperator = TypedOperator {
    operator: CombineOperator::Sum,
    integer: IntegerType::U8,
};

/// Returns true if this is not a task for the driver.
pub(super) const fn is_for_host(action: &LoweredAction) -> bool {
    matches!(
        action,
        LoweredAction::Host { .. } | LoweredAction::Spread { .. }
    )
}

pub(super) fn place_of(buffer: ProgramBuffer) -> usize {
    match buffer {
        ProgramBuffer::Input => 0,
        ProgramBuffer::Output => 1,
        ProgramBuffer::Scratch => 2,
    }
}
