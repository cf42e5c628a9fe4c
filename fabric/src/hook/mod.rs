//! Wraps any other driver to trace, count, and deliberately break its traffic.
//!
//! Protocols that must tolerate loss are tested through it, either with random [`HookFaults`] from a seed, or with a script that,
//! for example, drops the third message to rank 2. Faults happen when a command is posted; arrivals are only counted.
//!
//! ```
//! use ripstop_fabric::{driver::Driver, hook::{HookDriver, HookFaults}, loopback};
//!
//! let lossy = HookFaults { drop: 0.3, duplicate: 0.1, reorder: 8, delay: 0..4, full: 0.05, seed: 7 };
//! let world = loopback::world(2).into_iter().map(|rank| HookDriver::new(Box::new(rank), lossy.clone()));
//! assert!(world.into_iter().all(|rank| !rank.caps().ordered && !rank.caps().reliable));
//! ```

mod hold_queue;
mod plan;
mod tap;

use std::collections::BTreeMap;

pub use plan::{HookAction, HookFaults, HookMessage, HookPlan};
pub use tap::{HookCounts, HookTap, TrafficEvent, TrafficKind};

use self::hold_queue::{HeldMessage, HoldQueue};
use crate::{
    driver::{
        ArmResult, Caps, CommandFailure, CommandToken, DownCause, Driver, DriverAbilities,
        DriverCommand, PayloadView, PostResult, Sink, TurnProgress, WorldRank,
    },
    lacks_abilities, passes_abilities, passes_methods,
    random::SeededRandom,
};

/// Wraps a driver, and applies a [`HookPlan`] to its traffic.
#[derive(Debug)]
pub struct HookDriver {
    driver: Box<dyn Driver>,
    caps: Caps,
    plan: HookPlan,
    random: SeededRandom,
    held: HoldQueue,
    /// Messages taken so far, per peer.
    sent: BTreeMap<WorldRank, u64>,
    turn: u64,
    /// True if a fault returned `Full`. No wake-up will come for that, so the caller must not sleep.
    refused: bool,
}

impl HookDriver {
    /// Puts a hook around `driver`. [`HookFaults`] can be used as a plan.
    #[must_use]
    pub fn new(driver: Box<dyn Driver>, plan: impl Into<HookPlan>) -> Self {
        let plan = plan.into();
        let below = driver.caps();
        let caps = Caps {
            ordered: below.ordered && !plan.can_reorder(),
            reliable: below.reliable && !plan.can_lose(),
            ..below.clone()
        };
        let (random, held) = (
            SeededRandom::new(plan.faults.seed),
            HoldQueue::new(plan.faults.reorder),
        );
        Self {
            driver,
            caps,
            plan,
            random,
            held,
            sent: BTreeMap::new(),
            turn: 0,
            refused: false,
        }
    }

    /// Returns access to the counts and the record, even while the hook is in use elsewhere.
    #[must_use]
    pub fn tap(&self) -> HookTap {
        self.plan.tap.clone()
    }

    fn send<'a>(&mut self, to: WorldRank, header: &'a [u8], body: &'a [u8]) -> PostResult<'a> {
        let command = DriverCommand::Message { to, header, body };
        if self.held.count() >= HELD_MAX {
            return self.refuse(command);
        }
        let nth = self.sent.get(&to).copied().unwrap_or(0);
        let action = self.plan.choose_action(
            &HookMessage {
                to,
                nth,
                header,
                body,
            },
            &mut self.random,
        );
        if action == HookAction::Full {
            return self.refuse(command);
        }
        let mut turns = self.plan.faults.hold_turns(&mut self.random);
        if let HookAction::Delay(more) = action {
            turns += more;
        }
        let straight =
            turns == 0 && !self.held.has_messages_for(to) && matches!(action, HookAction::Pass);
        if straight && let PostResult::Full(command) = self.driver.post(command) {
            self.pass(Some(to), |counts| counts.fulls += 1, || TrafficKind::Full);
            return PostResult::Full(command);
        }
        self.count_sent(to, header, body);
        match action {
            _ if straight => {}
            HookAction::Drop => self.pass(
                Some(to),
                |counts| counts.dropped += 1,
                || TrafficKind::Dropped,
            ),
            HookAction::Duplicate => {
                self.pass(
                    Some(to),
                    |counts| counts.duplicated += 1,
                    || TrafficKind::Duplicated,
                );
                self.hold(to, header, body, turns);
                let again = self.plan.faults.hold_turns(&mut self.random);
                self.hold(to, header, body, again);
            }
            HookAction::Pass | HookAction::Delay(_) | HookAction::Full => {
                self.hold(to, header, body, turns)
            }
        }
        PostResult::Posted
    }

    fn one_sided<'a>(
        &mut self,
        command: DriverCommand<'a>,
        to: WorldRank,
        what: TrafficKind,
    ) -> PostResult<'a> {
        if self.random.chance(self.plan.faults.full) {
            return self.refuse(command);
        }
        match self.driver.post(command) {
            PostResult::Posted => {
                self.pass(Some(to), |counts| counts.count(&what), || what.clone());
                PostResult::Posted
            }
            PostResult::Full(command) => {
                self.pass(Some(to), |counts| counts.fulls += 1, || TrafficKind::Full);
                PostResult::Full(command)
            }
        }
    }

    fn refuse<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        self.refused = true;
        self.pass(None, |counts| counts.fulls += 1, || TrafficKind::Full);
        PostResult::Full(command)
    }

    fn hold(&mut self, to: WorldRank, header: &[u8], body: &[u8], turns: u64) {
        if turns > 0 {
            self.pass(
                Some(to),
                |counts| counts.delayed += 1,
                || TrafficKind::Delayed(turns),
            );
        }
        self.held
            .push(to, HeldMessage::new(header, body, self.turn + turns));
    }

    /// Sends the messages that are due by `turn`. Returns how many it sent.
    fn release(&mut self, turn: u64) -> u32 {
        let (mut released, mut full) = (0, Vec::new());
        while let Some((to, at, message)) = self.held.pop_due(turn, &mut self.random, &full) {
            let command = DriverCommand::Message {
                to,
                header: &message.header,
                body: &message.body,
            };
            match self.driver.post(command) {
                PostResult::Posted => released += 1,
                PostResult::Full(_) => {
                    self.held.put_back(to, at, message);
                    full.push(to);
                }
            }
        }
        released
    }

    fn count_sent(&mut self, to: WorldRank, header: &[u8], body: &[u8]) {
        *self.sent.entry(to).or_insert(0) += 1;
        let count = |counts: &mut HookCounts| {
            counts.sent += 1;
            counts.sent_bytes += length(header.len() + body.len());
        };
        self.pass(Some(to), count, || TrafficKind::Sent {
            header: header.into(),
            body: body.len(),
        });
    }

    fn pass(
        &self,
        peer: Option<WorldRank>,
        count: impl FnOnce(&mut HookCounts),
        what: impl FnOnce() -> TrafficKind,
    ) {
        self.plan.tap.record_event(self.turn, peer, count, what);
    }
}

impl Driver for HookDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        match command {
            DriverCommand::Message { to, header, body } => self.send(to, header, body),
            DriverCommand::Put { to, from, .. } => {
                self.one_sided(command, to, TrafficKind::Put(from.len()))
            }
            DriverCommand::Get { to, into, .. } => {
                self.one_sided(command, to, TrafficKind::Get(into.len()))
            }
            DriverCommand::Atomic { to, .. } => self.one_sided(command, to, TrafficKind::Atomic),
            DriverCommand::Count { to, .. } => self.one_sided(command, to, TrafficKind::Count),
            // These commands are between a rank and its own driver, so there is nothing to trace or to break.
            DriverCommand::Watch { .. }
            | DriverCommand::Unwatch { .. }
            | DriverCommand::Withdraw { .. } => self.driver.post(command),
        }
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        self.turn += 1;
        self.refused = false;
        let released = self.release(self.turn);
        let mut watched = HookSink {
            sink,
            tap: &self.plan.tap,
            turn: self.turn,
        };
        let below = self.driver.progress(budget, &mut watched);
        TurnProgress {
            events: below.events + released,
        }
    }

    fn arm(&mut self) -> ArmResult {
        // Time passes by turns only, so held messages need another turn.
        if self.refused || self.held.count() > 0 {
            ArmResult::Busy
        } else {
            self.driver.arm()
        }
    }

    passes_methods! { driver: wait_on, allocate, expose, expect, give_up }
}

/// Passes on abilities that move no bytes past the hook, and those that an adapter carries out by itself.
impl DriverAbilities for HookDriver {
    passes_abilities! { driver: event_counters, task_lists, peer_paths, connect_ahead, failure_watch, guarded_memory }

    // These abilities are not passed on:
    // - Tag matching: held or duplicated messages are posted like all others, so the tags are lost.
    // - Named slots: a message in a slot would pass the hook unseen. Without slots, the caller sends it as a message.
    // - Mapped memory and node memory: loads and stores would pass the hook unseen. Without them, the caller posts commands.
    lacks_abilities! { tag_matching, named_slots, peer_turns, mapped_memory, node_memory }
}

/// Sends all held messages, as far as there is room, so that a proper close loses only messages that a fault has dropped.
impl Drop for HookDriver {
    fn drop(&mut self) {
        self.release(u64::MAX);
    }
}

/// Counts everything that goes to a sink.
struct HookSink<'a> {
    sink: &'a mut dyn Sink,
    tap: &'a HookTap,
    turn: u64,
}

impl Sink for HookSink<'_> {
    fn message(&mut self, from: WorldRank, header: &[u8], body: PayloadView<'_>) {
        let count = |counts: &mut HookCounts| {
            counts.received += 1;
            counts.received_bytes += length(header.len() + body.len());
        };
        self.tap
            .record_event(self.turn, Some(from), count, || TrafficKind::Received {
                header: header.into(),
                body: body.len(),
            });
        self.sink.message(from, header, body);
    }

    fn complete(&mut self, token: CommandToken) {
        self.tap
            .record_event(self.turn, None, |_| {}, || TrafficKind::Completed);
        self.sink.complete(token);
    }

    fn fetched(&mut self, token: CommandToken, old: u64) {
        self.tap
            .record_event(self.turn, None, |_| {}, || TrafficKind::Completed);
        self.sink.fetched(token, old);
    }

    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        self.tap
            .record_event(self.turn, None, |_| {}, || TrafficKind::Failed);
        self.sink.failed(token, why);
    }

    fn reached(&mut self, token: CommandToken) {
        self.tap
            .record_event(self.turn, None, |_| {}, || TrafficKind::Reached);
        self.sink.reached(token);
    }

    fn triggered(&mut self, token: CommandToken) {
        self.tap
            .record_event(self.turn, None, |_| {}, || TrafficKind::Triggered);
        self.sink.triggered(token);
    }

    fn peer_down(&mut self, peer: WorldRank, why: DownCause) {
        self.tap
            .record_event(self.turn, Some(peer), |_| {}, || TrafficKind::Down(why));
        self.sink.peer_down(peer, why);
    }
}

fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Most messages on hold before `post` returns `Full`.
const HELD_MAX: usize = 1024;
