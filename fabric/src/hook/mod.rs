//! Wraps any other driver to trace, count, and deliberately break its traffic.
//!
//! Protocols that must tolerate loss are tested through it, either with random [`Faults`] from a seed, or with a script that, for
//! example, drops the third message to rank 2. Faults happen when a command is posted; arrivals are only counted.
//!
//! ```
//! use ripstop_fabric::{driver::Driver, hook::{Faults, Hook}, loopback};
//!
//! let lossy = Faults { drop: 0.3, duplicate: 0.1, reorder: 8, delay: 0..4, full: 0.05, seed: 7 };
//! let world = loopback::world(2).into_iter().map(|rank| Hook::new(Box::new(rank), lossy.clone()));
//! assert!(world.into_iter().all(|rank| !rank.caps().ordered && !rank.caps().reliable));
//! ```

mod hold_queue;
mod plan;
mod tap;

use std::{collections::BTreeMap, io};

pub use plan::{Action, Faults, Outgoing, Plan};
pub use tap::{Counts, Passed, Tap, What};

use self::hold_queue::{Held, Letter};
use crate::{
    driver::{
        Armed, Caps, Command, Down, Driver, DriverAbilities, Failure, LocalRange, Payload, Peer,
        Post, Progress, Sink, Token, WaitOn,
    },
    lacks_abilities,
    memory::{Region, RemoteRegion},
    passes_abilities,
    random::Random,
};

/// Wraps a driver, and applies a [`Plan`] to its traffic.
#[derive(Debug)]
pub struct Hook {
    driver: Box<dyn Driver>,
    caps: Caps,
    plan: Plan,
    random: Random,
    held: Held,
    /// Messages taken so far, per peer.
    sent: BTreeMap<Peer, u64>,
    turn: u64,
    /// True if a fault returned `Full`. No wake-up will come for that, so the caller must not sleep.
    refused: bool,
}

impl Hook {
    /// Puts a hook around `driver`. [`Faults`] can be used as a plan.
    #[must_use]
    pub fn new(driver: Box<dyn Driver>, plan: impl Into<Plan>) -> Self {
        let plan = plan.into();
        let below = driver.caps();
        let caps = Caps {
            ordered: below.ordered && !plan.reorders(),
            reliable: below.reliable && !plan.loses(),
            ..below.clone()
        };
        let (random, held) = (
            Random::new(plan.faults.seed),
            Held::new(plan.faults.reorder),
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
    pub fn tap(&self) -> Tap {
        self.plan.tap.clone()
    }

    fn send<'a>(&mut self, to: Peer, header: &'a [u8], body: &'a [u8]) -> Post<'a> {
        let command = Command::Message { to, header, body };
        if self.held.count() >= HELD_MAX {
            return self.refuse(command);
        }
        let nth = self.sent.get(&to).copied().unwrap_or(0);
        let action = self.plan.judge(
            &Outgoing {
                to,
                nth,
                header,
                body,
            },
            &mut self.random,
        );
        if action == Action::Full {
            return self.refuse(command);
        }
        let mut turns = self.plan.faults.turns(&mut self.random);
        if let Action::Delay(more) = action {
            turns += more;
        }
        let straight = turns == 0 && !self.held.holds_for(to) && matches!(action, Action::Pass);
        if straight && let Post::Full(command) = self.driver.post(command) {
            self.pass(Some(to), |counts| counts.fulls += 1, || What::Full);
            return Post::Full(command);
        }
        self.count_sent(to, header, body);
        match action {
            _ if straight => {}
            Action::Drop => self.pass(Some(to), |counts| counts.dropped += 1, || What::Dropped),
            Action::Duplicate => {
                self.pass(
                    Some(to),
                    |counts| counts.duplicated += 1,
                    || What::Duplicated,
                );
                self.hold(to, header, body, turns);
                let again = self.plan.faults.turns(&mut self.random);
                self.hold(to, header, body, again);
            }
            Action::Pass | Action::Delay(_) | Action::Full => self.hold(to, header, body, turns),
        }
        Post::Posted
    }

    fn one_sided<'a>(&mut self, command: Command<'a>, to: Peer, what: What) -> Post<'a> {
        if self.random.chance(self.plan.faults.full) {
            return self.refuse(command);
        }
        match self.driver.post(command) {
            Post::Posted => {
                self.pass(Some(to), |counts| counts.count(&what), || what.clone());
                Post::Posted
            }
            Post::Full(command) => {
                self.pass(Some(to), |counts| counts.fulls += 1, || What::Full);
                Post::Full(command)
            }
        }
    }

    fn refuse<'a>(&mut self, command: Command<'a>) -> Post<'a> {
        self.refused = true;
        self.pass(None, |counts| counts.fulls += 1, || What::Full);
        Post::Full(command)
    }

    fn hold(&mut self, to: Peer, header: &[u8], body: &[u8], turns: u64) {
        if turns > 0 {
            self.pass(
                Some(to),
                |counts| counts.delayed += 1,
                || What::Delayed(turns),
            );
        }
        self.held
            .push(to, Letter::new(header, body, self.turn + turns));
    }

    /// Sends the messages that are due by `turn`. Returns how many it sent.
    fn release(&mut self, turn: u64) -> u32 {
        let (mut released, mut full) = (0, Vec::new());
        while let Some((to, at, letter)) = self.held.pop_due(turn, &mut self.random, &full) {
            let command = Command::Message {
                to,
                header: &letter.header,
                body: &letter.body,
            };
            match self.driver.post(command) {
                Post::Posted => released += 1,
                Post::Full(_) => {
                    self.held.put_back(to, at, letter);
                    full.push(to);
                }
            }
        }
        released
    }

    fn count_sent(&mut self, to: Peer, header: &[u8], body: &[u8]) {
        *self.sent.entry(to).or_insert(0) += 1;
        let count = |counts: &mut Counts| {
            counts.sent += 1;
            counts.sent_bytes += length(header.len() + body.len());
        };
        self.pass(Some(to), count, || What::Sent {
            header: header.into(),
            body: body.len(),
        });
    }

    fn pass(
        &self,
        peer: Option<Peer>,
        count: impl FnOnce(&mut Counts),
        what: impl FnOnce() -> What,
    ) {
        self.plan.tap.pass(self.turn, peer, count, what);
    }
}

impl Driver for Hook {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: Command<'a>) -> Post<'a> {
        match command {
            Command::Message { to, header, body } => self.send(to, header, body),
            Command::Put { to, from, .. } => self.one_sided(command, to, What::Put(from.len())),
            Command::Get { to, into, .. } => self.one_sided(command, to, What::Get(into.len())),
            Command::Atomic { to, .. } => self.one_sided(command, to, What::Atomic),
            Command::Count { to, .. } => self.one_sided(command, to, What::Count),
            // These commands are between a rank and its own driver, so there is nothing to trace or to break.
            Command::Watch { .. } | Command::Unwatch { .. } | Command::Withdraw { .. } => {
                self.driver.post(command)
            }
        }
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> Progress {
        self.turn += 1;
        self.refused = false;
        let released = self.release(self.turn);
        let mut watched = Watched {
            sink,
            tap: &self.plan.tap,
            turn: self.turn,
        };
        let below = self.driver.progress(budget, &mut watched);
        Progress {
            events: below.events + released,
        }
    }

    fn arm(&mut self) -> Armed {
        // Time passes by turns only, so held messages need another turn.
        if self.refused || self.held.count() > 0 {
            Armed::Busy
        } else {
            self.driver.arm()
        }
    }

    fn wait_on(&self) -> Vec<WaitOn> {
        self.driver.wait_on()
    }

    fn allocate(&mut self, len: usize) -> io::Result<Region> {
        self.driver.allocate(len)
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        self.driver.expose(range)
    }

    fn expect(&mut self, awaited: &mut dyn FnMut() -> Vec<Peer>) {
        self.driver.expect(awaited);
    }

    fn give_up(&mut self, peer: Peer, how: Option<Down>) -> Down {
        self.driver.give_up(peer, how)
    }
}

/// Passes on what moves no bytes that the hook must see, and what an adapter does by itself.
impl DriverAbilities for Hook {
    passes_abilities! { driver: event_counters, task_lists, peer_paths, connect_ahead, failure_watch, guarded_memory }

    // Not passed on:
    // - Tag matching: held or duplicated messages are posted like all others, so the tags are lost.
    // - Named slots: a message in a slot would pass the hook unseen. Without slots, the caller sends it as a message.
    // - Mapped memory: loads and stores would pass the hook unseen. Without them, the caller posts commands.
    lacks_abilities! { tag_matching, named_slots, mapped_memory }
}

/// Sends all held messages, as far as there is room, so that a proper close loses only messages that a fault has dropped.
impl Drop for Hook {
    fn drop(&mut self) {
        self.release(u64::MAX);
    }
}

/// Counts everything that goes to a sink.
struct Watched<'a> {
    sink: &'a mut dyn Sink,
    tap: &'a Tap,
    turn: u64,
}

impl Sink for Watched<'_> {
    fn message(&mut self, from: Peer, header: &[u8], body: Payload<'_>) {
        let count = |counts: &mut Counts| {
            counts.received += 1;
            counts.received_bytes += length(header.len() + body.len());
        };
        self.tap
            .pass(self.turn, Some(from), count, || What::Received {
                header: header.into(),
                body: body.len(),
            });
        self.sink.message(from, header, body);
    }

    fn complete(&mut self, token: Token) {
        self.tap.pass(self.turn, None, |_| {}, || What::Completed);
        self.sink.complete(token);
    }

    fn fetched(&mut self, token: Token, old: u64) {
        self.tap.pass(self.turn, None, |_| {}, || What::Completed);
        self.sink.fetched(token, old);
    }

    fn failed(&mut self, token: Token, why: Failure) {
        self.tap.pass(self.turn, None, |_| {}, || What::Failed);
        self.sink.failed(token, why);
    }

    fn reached(&mut self, token: Token) {
        self.tap.pass(self.turn, None, |_| {}, || What::Reached);
        self.sink.reached(token);
    }

    fn triggered(&mut self, token: Token) {
        self.tap.pass(self.turn, None, |_| {}, || What::Triggered);
        self.sink.triggered(token);
    }

    fn peer_down(&mut self, peer: Peer, why: Down) {
        self.tap
            .pass(self.turn, Some(peer), |_| {}, || What::Down(why));
        self.sink.peer_down(peer, why);
    }
}

fn length(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Most messages on hold before `post` returns `Full`.
const HELD_MAX: usize = 1024;
