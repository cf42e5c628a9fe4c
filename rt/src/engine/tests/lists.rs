//! Programs by task lists, with a scripted adapter.

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    panic::Location,
    sync::{Arc, Mutex, PoisonError},
};

use bytemuck::{Zeroable, bytes_of};
use ripstop_fabric::{
    driver::{
        Caps, CommandFailure, CommandToken, Driver, DriverAbilities, DriverCommand, EventCounters,
        ListLimits, LocalRange, PayloadView, PostResult, Sink, TaskLists, TurnProgress,
    },
    lacks_abilities,
    loopback::{self, LoopbackDriver},
    memory::{MemoryRegion, RemoteRegion},
    offload::{LocalCounter, PutLanding, PutTarget, TaskAction as Deed, TriggeredTask},
    passes_methods,
};

use super::world::{CTX, DETECT, Net, TICK, World};
use crate::{
    clock::ClockTime,
    engine::{
        Engine, EngineSetup, ExecutionRequest, RunCall, RunTicket, commons::lone_rank::lone_setup,
    },
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    offload::{CommRank, Plan, ProgramBuffer, StepAction},
    ops::{OpState, ProgramBuffers},
    proto::wire::{self, AbortHeader, HeaderBase, WireKind},
};

/// An adapter that accepts lists. Puts find no place at the peer, and all other tasks wait forever.
#[derive(Debug)]
struct Adapter {
    me: u32,
    inner: LoopbackDriver,
    caps: Caps,
    broken: Broken,
    lists: Vec<CommandToken>,
    told: VecDeque<(CommandToken, CommandFailure)>,
    /// Regions for which it still has memory.
    regions: usize,
    /// Counts of keys.
    open: Open,
    /// True if it gives no keys to blocks.
    keyless: bool,
    script: Script,
}

/// Script of an adapter, and a record of the calls that it got.
type Script = Arc<Mutex<Lines>>;

#[derive(Debug, Default)]
struct Lines {
    /// Counters with thresholds that were watched, in order.
    watched: Vec<LocalCounter>,
    /// Regions that were allocated, in order.
    regions: Vec<MemoryRegion>,
    /// True if the lists begin.
    begin: bool,
    /// True if a task that should have ended is still in progress.
    moves: bool,
    /// True if puts find no place before a peer has said where.
    homeless: bool,
}

/// Ranks whose first rail is cut off.
type Broken = Arc<Mutex<BTreeSet<u32>>>;

/// Numbers of keys to blocks that were given out, and of keys that were withdrawn.
type Open = Arc<Mutex<[usize; 2]>>;

impl Adapter {
    fn new(me: u32, inner: LoopbackDriver, broken: &Broken) -> Self {
        Self {
            caps: Caps {
                any_memory: Ok(()),
                ..inner.caps().clone()
            },
            me,
            inner,
            broken: Arc::clone(broken),
            lists: Vec::new(),
            told: VecDeque::new(),
            regions: usize::MAX,
            open: Open::default(),
            keyless: false,
            script: Script::default(),
        }
    }

    /// Refuses a put, as an adapter does that has begun it when the peer's entry is gone.
    fn refuse(&mut self, task: &TriggeredTask, token: CommandToken) {
        let Deed::Put {
            target: PutTarget::FromLanding { region, offset, .. },
            ..
        } = &task.action
        else {
            return;
        };
        if self.script.lock().unwrap().homeless {
            return self.told.push_back((token, CommandFailure::BadRange));
        }
        for when in task.conditions() {
            let missing = when.threshold.saturating_sub(when.counter.value());
            let _wake = when.counter.add(missing);
        }
        let nothing: PutLanding = Zeroable::zeroed();
        region.write(*offset, bytes_of(&nothing));
        self.told.push_back((token, CommandFailure::Unmatched));
    }
}

impl Driver for Adapter {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        match command {
            DriverCommand::Withdraw { .. } => self.open.lock().unwrap()[1] += 1,
            DriverCommand::Watch { counter, .. } => {
                self.script.lock().unwrap().watched.push(counter.clone());
                return self.inner.post(command);
            }
            other => return self.inner.post(other),
        }
        PostResult::Posted
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        if broken.contains(&self.me) {
            let cut = |token| {
                (
                    token,
                    CommandFailure::Transport(io::Error::other("cut off")),
                )
            };
            self.told.extend(self.lists.drain(..).map(cut));
        }
        drop(broken);
        if self.script.lock().unwrap().begin {
            let begun = self.lists.drain(..);
            begun.for_each(|token| sink.triggered(token));
        }
        for (token, why) in self.told.drain(..) {
            sink.failed(token, why);
        }
        self.inner.progress(budget, sink)
    }

    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        let no_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
        self.regions = self.regions.checked_sub(1).ok_or_else(no_memory)?;
        let region = self.inner.allocate(len)?;
        self.script.lock().unwrap().regions.push(region.clone());
        Ok(region)
    }

    /// Returns a key that is never used.
    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        if self.keyless && range.len() == BLOCK {
            return None;
        }
        // Keys to counters and landing slots are not counted, because they stay.
        self.open.lock().unwrap()[0] += usize::from(range.len() == BLOCK);
        Some(RemoteRegion::named(self.me, 1, 0, range.len() as u64))
    }

    passes_methods! { inner: arm, wait_on, expect, give_up }
}

impl DriverAbilities for Adapter {
    fn event_counters(&mut self) -> Option<&mut dyn EventCounters> {
        Some(self)
    }

    fn task_lists(&mut self) -> Option<&mut dyn TaskLists> {
        Some(self)
    }

    lacks_abilities! {
        tag_matching, named_slots, peer_turns, mapped_memory, node_memory, peer_paths, connect_ahead, failure_watch,
        guarded_memory,
    }
}

impl EventCounters for Adapter {
    fn allocate_counters(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.allocate(len)
    }
}

impl TaskLists for Adapter {
    fn list_limits(&self) -> ListLimits {
        ListLimits {
            triggered_max: 64,
            combine_max: 0,
        }
    }

    fn post_list(&mut self, tasks: &[TriggeredTask], token: CommandToken) -> bool {
        self.lists.push(token);
        tasks.iter().for_each(|task| self.refuse(task, token));
        true
    }

    fn cancel_lists(&mut self, token: CommandToken) {
        self.told.push_back((token, CommandFailure::Cancelled));
    }

    fn forget_lists(&mut self, _token: CommandToken) -> bool {
        !self.script.lock().unwrap().moves
    }

    fn give_name(&mut self, _name: u64, _region: &MemoryRegion) {}

    fn take_back_name(&mut self, _name: u64) {}
}

/// Two ranks, of which the first should send a block to the second.
struct Two {
    world: World,
    broken: Broken,
    scripts: [Script; 2],
    tickets: [RunTicket<Vec<u64>, Vec<u64>>; 2],
}

impl Two {
    fn new() -> Self {
        Self::over(true)
    }

    /// Creates two ranks whose adapters report failures of peers, or do not.
    fn over(detects_death: bool) -> Self {
        Self::after(detects_death, Lines::default())
    }

    /// Creates two ranks; the adapter of the first one follows this script.
    fn after(detects_death: bool, lines: Lines) -> Self {
        let broken = Broken::default();
        let scripts = [lines, Lines::default()].map(|lines| Arc::new(Mutex::new(lines)));
        let adapters = loopback::world(2).into_iter().zip(0..);
        let adapters = adapters.map(|(inner, me)| {
            let mut adapter = Adapter::new(me, inner, &broken);
            adapter.caps.detects_death = detects_death;
            adapter.script = Arc::clone(&scripts[me as usize]);
            adapter
        });
        let mut world = World {
            engines: adapters.map(over).collect(),
            net: Arc::new(Net::default()),
            now: 0,
            paused: BTreeSet::new(),
        };
        let tickets = [0, 1].map(|rank| world.engines[rank].run(call(rank), buffers(rank), None));
        world.run_for(100 * TICK);
        Self {
            world,
            broken,
            scripts,
            tickets,
        }
    }

    /// Returns the counter of completed tasks of the program that waits for a block. Its final value is 1.
    fn ends(&self) -> LocalCounter {
        self.scripts[1].lock().unwrap().watched[0].clone()
    }

    /// Returns true if the program that waits for a block ends within ten turns.
    fn is_over(&mut self) -> bool {
        self.world.run_for(10 * TICK);
        let op = self.tickets[1].buffers.op;
        self.world.engines[1].core.p2p.common.is_done(op)
    }

    /// Waits until the program has failed on both ranks, and returns the errors.
    fn kinds(mut self) -> [ErrorKind; 2] {
        let tickets = &self.tickets;
        self.world.run_until(|engines| {
            let mut both = engines.iter_mut().zip(tickets);
            both.all(|(engine, tickets)| engine.core.p2p.common.is_done(tickets.buffers.op))
        });
        [0, 1].map(|rank| {
            let taken = self.world.engines[rank]
                .core
                .collectives()
                .take_run(&self.tickets[rank]);
            taken
                .expect("it is over")
                .0
                .expect_err("nothing was put")
                .kind
        })
    }
}

fn over(adapter: Adapter) -> Engine {
    let setup = EngineSetup {
        seed: 0,
        detect: DETECT,
        ..lone_setup(&adapter, adapter.me, 2)
    };
    let mut engine = Engine::new(Box::new(adapter), setup);
    engine.core.join_group(CTX, &RankGroup::First(2));
    engine
}

fn call(rank: usize) -> RunCall {
    let (input, output) = [(COUNT, 0), (0, COUNT)][rank];
    let step = match rank {
        0 => StepAction::Send {
            to: CommRank(1),
            from: ProgramBuffer::Input.span(0, COUNT),
        },
        _ => StepAction::Recv {
            from: CommRank(0),
            into: ProgramBuffer::Output.span(0, COUNT),
        },
    };
    let mut plan = Plan::new(rank, 2);
    plan.push(step, &[]);
    let program = plan.program::<u64>(input, output).expect("it fits");
    RunCall {
        ctx: CTX + 1,
        tag: 0,
        sig: 5,
        at: Location::caller(),
        group: RankGroup::First(2),
        program: Arc::new(program),
        reducer: None,
        refused: None,
        request: ExecutionRequest::TaskLists,
        with_block_events: false,
    }
}

fn buffers(rank: usize) -> ProgramBuffers<Vec<u64>, Vec<u64>> {
    let (input, output) = [(COUNT, 0), (0, COUNT)][rank];
    ProgramBuffers::new(vec![1; input], vec![0; output], &call(rank).program, true)
}

#[test]
fn a_run_that_waits_for_the_put_of_a_dead_rank_fails_without_an_adapter_event() {
    let mut two = Two::over(false);
    two.world.run_for(3 * DETECT);
    let op = two.tickets[1].buffers.op;
    assert!(
        !two.world.engines[1].core.p2p.common.is_done(op),
        "nothing was put"
    );
    two.world.paused.insert(0);
    two.world
        .run_until(|engines| engines[1].core.p2p.common.is_done(op));
    let taken = two.world.engines[1]
        .core
        .collectives()
        .take_run(&two.tickets[1]);
    let failure = taken.unwrap().0.unwrap_err();
    assert!(
        matches!(failure.kind, ErrorKind::PeerFailed { rank: 0, .. }),
        "{:?}",
        failure.kind
    );
}

#[test]
fn a_rank_without_a_landing_at_a_peer_whose_list_has_failed_learns_why() {
    let mut two = Two::new();
    let op = two.tickets[0].buffers.op;
    assert!(
        !two.world.engines[0].core.p2p.common.is_done(op),
        "no rank knows why"
    );
    two.broken.lock().unwrap().insert(1);
    let kinds = two.kinds();
    assert!(
        matches!(
            kinds,
            [ErrorKind::Aborted { rank: 1 }, ErrorKind::Transport(_)]
        ),
        "{kinds:?}"
    );
}

#[test]
fn a_rank_without_a_landing_at_a_silent_peer_reports_a_mismatch() {
    let mut two = Two::new();
    assert!(two.world.engines[0].core.ask_in_vain(false));
    two.world.run_for(10 * TICK);
    let op = two.tickets[0].buffers.op;
    assert!(
        !two.world.engines[0].core.p2p.common.is_done(op),
        "it was asked again"
    );
    assert!(two.world.engines[0].core.ask_in_vain(false));
    let kinds = two.kinds();
    let named = |kind: &ErrorKind| {
        matches!(
            kind,
            ErrorKind::Mismatch {
                rank: 0,
                other: 1,
                ..
            }
        )
    };
    assert!(kinds.iter().all(named), "{kinds:?}");
}

#[test]
fn a_rank_without_a_landing_or_a_reason_reports_that_in_the_end() {
    let homeless = Lines {
        homeless: true,
        ..Lines::default()
    };
    let mut two = Two::after(true, homeless);
    let op = two.tickets[0].buffers.op;
    for asked in [false, true] {
        assert!(!two.world.engines[0].core.p2p.common.is_done(op), "{asked}");
        assert!(two.world.engines[0].core.ask_in_vain(false));
        two.world.run_for(10 * TICK);
    }
    let kinds = two.kinds();
    let [ErrorKind::Transport(why), ErrorKind::Aborted { rank: 0 }] = &kinds else {
        panic!("{kinds:?}");
    };
    assert!(why.to_string().contains("no memory for the data"), "{why}");
}

#[test]
fn a_peer_that_has_finished_ends_what_it_did_not_come_to_and_nothing_earlier() {
    for (tag, ends) in [(4, false), (0, true)] {
        let mut two = Two::new();
        let finished = AbortHeader {
            base: HeaderBase::new(WireKind::Abort),
            ctx: CTX + 1,
            tag,
            why: wire::WHY_FINISHED,
            rank: 0,
            other: 0,
            zero: 0,
        };
        let core = &mut two.world.engines[1].core;
        core.handle_abort(WorldRank(0), &finished);
        two.world.run_for(10 * TICK);
        let op = two.tickets[1].buffers.op;
        assert_eq!(
            two.world.engines[1].core.p2p.common.is_done(op),
            ends,
            "from {tag} on"
        );
    }
}

#[test]
fn a_program_whose_end_is_counted_while_its_list_waits_is_not_over() {
    let mut two = Two::new();
    let _wake = two.ends().add(1);
    assert!(!two.is_over(), "its list may still begin");
    two.scripts[1].lock().unwrap().begin = true;
    assert!(two.is_over());
    let taken = two.world.engines[1]
        .core
        .collectives()
        .take_run(&two.tickets[1]);
    assert!(taken.unwrap().0.is_ok());
}

#[test]
fn a_program_is_asked_for_whose_adapter_has_not_shown_what_the_one_before_counted() {
    let mut two = Two::new();
    two.scripts[1].lock().unwrap().begin = true;
    let _wake = two.ends().add(1);
    assert!(two.is_over());
    // Region 2 comes after the counters and the landings of the landing slots. It has the counters of the program,
    // which the next one reuses.
    let counters = two.scripts[1].lock().unwrap().regions[2].clone();
    counters.write(0, &[0; 8]);
    let tag = 4; // uses the same slot
    let ticket = two.world.engines[1].run(RunCall { tag, ..call(1) }, buffers(1), None);
    assert_eq!(two.scripts[1].lock().unwrap().regions.len(), 3);
    assert!(two.world.engines[1].core.ask_in_vain(false));
    assert!(
        !two.world.engines[1]
            .core
            .p2p
            .common
            .is_done(ticket.buffers.op)
    );
}

#[test]
fn a_peer_that_counts_too_much_fails_a_program_which_is_taken_back_first() {
    for waits in [true, false] {
        let two = Two::new();
        two.scripts[1].lock().unwrap().begin = !waits;
        let _wake = two.ends().add(1 << 40);
        is_overcounted(two);
    }
}

#[test]
fn a_peer_that_counts_for_a_task_that_is_in_flight_fails_its_program() {
    let two = Two::new();
    *two.scripts[1].lock().unwrap() = Lines {
        watched: vec![two.ends()],
        begin: true,
        moves: true,
        ..Lines::default()
    };
    let _wake = two.ends().add(1);
    is_overcounted(two);
}

#[test]
fn a_program_whose_end_is_counted_before_the_rest_is_not_over() {
    let mut world = loopback::world(2); // keeps the other rank alive
    let adapter = Adapter::new(1, world.swap_remove(1), &Broken::default());
    let script = Arc::clone(&adapter.script);
    script.lock().unwrap().begin = true;
    let mut engine = over(adapter);
    let call = chain();
    let buffers = ProgramBuffers::new(Vec::new(), vec![0; COUNT], &call.program, true);
    let ticket: RunTicket<Vec<u64>, Vec<u64>> = engine.run(call, buffers, None);
    for over in [false, true] {
        // The counter of completed tasks first, then the one for which the copy waits.
        let last = script.lock().unwrap().watched.last().cloned();
        let _wake = last.unwrap().add(1);
        for turn in 0..10 {
            engine.turn(ClockTime::from_nanos(turn * TICK));
        }
        assert_eq!(engine.core.p2p.common.is_done(ticket.buffers.op), over);
    }
    assert_eq!(script.lock().unwrap().watched.len(), 2);
    let taken = engine
        .core
        .collectives()
        .take_run(&ticket)
        .expect("it is over");
    assert!(taken.0.is_ok());
}

/// Returns a call that receives a block and copies it.
fn chain() -> RunCall {
    let mut plan = Plan::new(1, 2);
    let scratch = plan.add_scratch(COUNT);
    let recv = StepAction::Recv {
        from: CommRank(0),
        into: scratch,
    };
    let copy = StepAction::Copy {
        from: scratch,
        into: ProgramBuffer::Output.span(0, COUNT),
    };
    let came = plan.push(recv, &[]);
    plan.push(copy, &[came]);
    let program = plan.program::<u64>(0, COUNT).expect("it fits");
    RunCall {
        program: Arc::new(program),
        ..call(1)
    }
}

fn is_overcounted(two: Two) {
    let kinds = two.kinds();
    let [ErrorKind::Aborted { rank: 1 }, ErrorKind::Transport(why)] = &kinds else {
        panic!("{kinds:?}");
    };
    assert!(
        why.to_string()
            .contains("larger than its ranks can make it"),
        "{why}"
    );
}

#[test]
fn keys_are_withdrawn_of_a_program_that_there_is_no_memory_to_count_for() {
    let inner = loopback::world(2).swap_remove(1);
    let mut adapter = Adapter::new(1, inner, &Broken::default());
    // Memory for the counters and the landing slots of its slot, but none for the program.
    adapter.regions = 2;
    let open = Arc::clone(&adapter.open);
    let kind = failing(adapter);
    assert!(matches!(kind, ErrorKind::Transport(_)), "{kind}");
    assert_eq!(*open.lock().unwrap(), [1, 1], "out, and withdrawn");
}

#[test]
fn a_program_for_whose_memory_there_is_no_key_says_what_to_do() {
    let inner = loopback::world(2).swap_remove(1);
    let mut adapter = Adapter::new(1, inner, &Broken::default());
    adapter.keyless = true;
    let kind = failing(adapter);
    let words = kind.to_string();
    assert!(
        words.contains("64 bytes") && words.contains("RIPSTOP_COLLECTIVES=messages"),
        "{words}"
    );
}

#[test]
fn a_put_that_is_only_claimed_leaves_the_output_with_values() {
    let mut world = loopback::world(2); // keeps the other rank alive
    let inner = world.swap_remove(1);
    let mut engine = over(Adapter::new(1, inner, &Broken::default()));
    let call = RunCall {
        request: ExecutionRequest::Messages,
        ..call(1)
    };
    let mut output = vec![3_u64; COUNT];
    output.clear(); // the program must not use the old values
    let buffers = ProgramBuffers::new(Vec::<u64>::new(), output, &call.program, false);
    let ticket = engine.run(call, buffers, None);
    let mut offer = wire::RtsHeader::zeroed();
    offer.base = HeaderBase::new(WireKind::Rts);
    (offer.ctx, offer.sig) = (CTX + 1, 5);
    (offer.total, offer.modes) = (BLOCK as u64, wire::MODE_PUT);
    let nothing = PayloadView::from_slice(&[]);
    engine.core.message(WorldRank(0), bytes_of(&offer), nothing);
    engine.turn(ClockTime::default());
    let is_invited =
        |life: &OpState| matches!(life, OpState::Landing(landing) if landing.sender_moves_rest);
    let invited = engine
        .core
        .p2p
        .common
        .ops
        .select(|slot| is_invited(&slot.state));
    let claim = wire::OpHeader::new(WireKind::Atp, invited[0], wire::OK);
    engine.core.message(WorldRank(0), bytes_of(&claim), nothing);
    engine.turn(ClockTime::default());
    let (outcome, _, output, _) = engine
        .core
        .collectives()
        .take_run(&ticket)
        .expect("it is over");
    assert!(outcome.is_ok() && output == vec![0; COUNT]);
}

/// Returns the error with which a program fails on the second rank.
fn failing(adapter: Adapter) -> ErrorKind {
    let mut engine = over(adapter);
    let ticket = engine.run(call(1), buffers(1), None);
    for turn in 0..100 {
        engine.turn(ClockTime::from_nanos(turn * TICK));
    }
    let failed = engine
        .core
        .collectives()
        .take_run(&ticket)
        .expect("it is over")
        .0;
    failed.expect_err("it cannot be").kind
}

/// Length of a block in elements.
const COUNT: usize = 8;

/// Length of a block in bytes.
const BLOCK: usize = 8 * COUNT;
