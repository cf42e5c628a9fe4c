//! A few ranks in one process, and what they received.

use std::{
    ops::{Index, IndexMut},
    ptr::NonNull,
    time::{Duration, Instant},
};

use ripstop_fabric::{
    driver::{
        CommandFailure, CommandToken, DownCause, DownEvidence, Driver, DriverCommand, LocalRange,
        PayloadView, PostResult, Sink, TaskLists, WorldRank,
    },
    memory::{MemoryRegion, RemoteRegion},
    offload::TriggeredTask,
    random::SeededRandom,
};

use crate::sleeper;

/// Makes the drivers of a world with this many ranks.
pub(crate) type Make = fn(u32) -> Vec<Box<dyn Driver>>;

/// Ranks that one thread drives in turn.
pub(crate) struct World {
    ranks: Vec<Option<Rank>>,
    guard: Guard,
}

/// A rank, and what it received.
pub(crate) struct Rank {
    pub(crate) me: WorldRank,
    pub(crate) driver: Box<dyn Driver>,
    pub(crate) heard: Heard,
}

/// All calls to a sink, in order.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) messages: Vec<Message>,
    /// Token and message index of each message that was placed in lent memory.
    pub(crate) placed: Vec<(CommandToken, usize)>,
    pub(crate) returned: Vec<CommandToken>,
    pub(crate) completed: Vec<CommandToken>,
    pub(crate) fetched: Vec<(CommandToken, u64)>,
    pub(crate) failed: Vec<(CommandToken, CommandFailure)>,
    pub(crate) reached: Vec<CommandToken>,
    pub(crate) triggered: Vec<CommandToken>,
    pub(crate) down: Vec<(WorldRank, DownCause)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) from: WorldRank,
    pub(crate) header: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

/// Ends a test that hangs.
#[derive(Clone, Copy)]
pub(crate) struct Guard {
    end: Instant,
}

impl World {
    pub(crate) fn new(make: Make, ranks: u32) -> Self {
        Self::from_drivers(make(ranks))
    }

    pub(crate) fn from_drivers(drivers: Vec<Box<dyn Driver>>) -> Self {
        let ranks = (0..)
            .map(WorldRank)
            .zip(drivers)
            .map(|(me, driver)| Some(Rank::new(me, driver)));
        Self {
            ranks: ranks.collect(),
            guard: Guard::new(),
        }
    }

    /// Makes one turn of progress on all ranks. Returns the number of events.
    pub(crate) fn turn(&mut self) -> u32 {
        let events = self.ranks.iter_mut().flatten().map(Rank::progress).sum();
        if events == 0 {
            std::thread::yield_now();
        }
        events
    }

    /// Makes one turn of progress on all ranks except `rank`.
    pub(crate) fn turn_others(&mut self, rank: usize) {
        let others = self
            .ranks
            .iter_mut()
            .flatten()
            .filter(|other| other.me != peer(rank));
        others.for_each(|other| _ = other.progress());
        self.guard.check("something to happen");
    }

    /// Makes turns until `done` returns true.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        while !done(self) {
            self.turn();
            if self.guard.left().is_zero() {
                let lost = self.ranks.iter().flatten().map(|rank| &rank.heard.down);
                let lost: Vec<_> = lost.collect();
                self.guard
                    .check(&format!("{what}; the ranks have lost {lost:?}"));
            }
        }
    }

    /// Makes turns until no rank has anything to do, and some more.
    pub(crate) fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 20 {
            quiet = if self.turn() == 0 { quiet + 1 } else { 0 };
            self.let_others_work();
            self.guard.check("settling");
        }
    }

    /// Makes turns of the sender until posted messages have arrived, if that needs its own turns.
    pub(crate) fn carry(&mut self, from: usize) {
        for _ in 0..20 {
            self[from].progress();
            self.let_others_work();
        }
    }

    /// Returns true if other threads move messages, so that they arrive some time later without a turn.
    pub(crate) fn is_carried(&self) -> bool {
        let mut ranks = self.ranks.iter().flatten();
        ranks.any(|rank| rank.driver.caps().name.ends_with("portals"))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "threads of a library cannot be waited for"
    )]
    fn let_others_work(&self) {
        if self.is_carried() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn post(&mut self, from: usize, mut command: DriverCommand<'_>) {
        while let PostResult::Full(back) = self[from].driver.post(command) {
            command = back;
            self.turn();
            self.guard.check("room for a command");
        }
    }

    pub(crate) fn post_list(&mut self, rank: usize, tasks: &[TriggeredTask], token: CommandToken) {
        while !self.lists(rank).post_list(tasks, token) {
            self.turn();
            self.guard.check("room for a list");
        }
    }

    /// Returns the task lists of a rank.
    pub(crate) fn lists(&mut self, rank: usize) -> &mut dyn TaskLists {
        self[rank].driver.task_lists().unwrap()
    }

    pub(crate) fn send(&mut self, from: usize, to: usize, header: &[u8], body: &[u8]) {
        self.post(
            from,
            DriverCommand::Message {
                to: peer(to),
                header,
                body,
            },
        );
    }

    /// Makes turns until `rank` has received `count` messages in all.
    pub(crate) fn hears(&mut self, rank: usize, count: usize) {
        self.until("messages to arrive", |world| {
            world[rank].heard.messages.len() >= count
        });
    }

    /// Has all ranks exchange a message with all others, so that they are connected.
    pub(crate) fn meet(&mut self) {
        let size = self.ranks.len();
        for from in 0..size {
            (0..size).for_each(|to| self.send(from, to, b"hello", b""));
        }
        (0..size).for_each(|rank| self.hears(rank, size));
        self.settle();
        (0..size).for_each(|rank| self[rank].heard.messages.clear());
    }

    /// Posts a one-sided command, and makes turns until it has ended.
    pub(crate) fn one_sided(&mut self, from: usize, command: DriverCommand<'_>) -> Ended {
        let token = token_of(&command);
        self.post(from, command);
        self.ended(from, token)
    }

    /// Makes turns until the command of `token` has ended.
    pub(crate) fn ended(&mut self, rank: usize, token: CommandToken) -> Ended {
        loop {
            if let Some(ended) = self[rank].heard.take_ended(token) {
                return ended;
            }
            self.turn();
            self.guard.check("a one-sided command to end");
        }
    }

    /// Closes a rank's driver.
    pub(crate) fn close(&mut self, rank: usize) {
        drop(self.ranks[rank].take());
    }

    /// Returns the ranks, to be moved to threads.
    pub(crate) fn into_ranks(self) -> Vec<Rank> {
        self.ranks.into_iter().flatten().collect()
    }
}

/// Runs every rank of a world on its own thread, and closes each as soon as it has finished.
pub(crate) fn in_threads(make: Make, ranks: usize, story: impl Fn(&mut Rank) + Sync) {
    let story = &story;
    std::thread::scope(|scope| {
        for mut rank in World::new(make, u32::try_from(ranks).unwrap()).into_ranks() {
            scope.spawn(move || story(&mut rank));
        }
    });
}

impl Index<usize> for World {
    type Output = Rank;

    fn index(&self, rank: usize) -> &Rank {
        self.ranks[rank].as_ref().expect("the rank is not closed")
    }
}

impl IndexMut<usize> for World {
    fn index_mut(&mut self, rank: usize) -> &mut Rank {
        self.ranks[rank].as_mut().expect("the rank is not closed")
    }
}

impl Rank {
    pub(crate) fn post_list(&mut self, tasks: &[TriggeredTask], token: CommandToken) {
        let lists = self.driver.task_lists().unwrap();
        assert!(lists.post_list(tasks, token), "there is room");
    }

    /// Returns the most tasks that can wait.
    pub(crate) fn list_max(&mut self) -> usize {
        let lists = self.driver.task_lists().unwrap();
        lists.list_limits().triggered_max
    }

    /// Returns what the driver reports about the failure of a peer.
    pub(crate) fn why_down(&mut self, peer: WorldRank) -> String {
        match self.driver.evidence(peer) {
            DownEvidence::Reported(why) => why,
            evidence => panic!("{evidence:?}"),
        }
    }

    pub(crate) fn new(me: WorldRank, driver: Box<dyn Driver>) -> Self {
        Self {
            me,
            driver,
            heard: Heard::default(),
        }
    }

    pub(crate) fn progress(&mut self) -> u32 {
        self.driver.progress(64, &mut self.heard).events
    }

    /// Makes turns until `done` returns true. The rank is alone on its thread, so it sleeps when it must wait.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&Heard) -> bool) {
        let guard = Guard::new();
        let waits = self.driver.wait_on();
        while !done(&self.heard) {
            if self.progress() == 0 {
                sleeper::rest(self.driver.as_mut(), &waits, guard.left());
            }
            guard.check(what);
        }
    }

    /// Posts like [`World::post`], for a rank alone on its thread.
    pub(crate) fn post(&mut self, mut command: DriverCommand<'_>) {
        let guard = Guard::new();
        let waits = self.driver.wait_on();
        let mut idle = false;
        loop {
            command = match self.driver.post(command) {
                PostResult::Posted => return,
                PostResult::Full(back) => back,
            };
            // Try again after the last turn before sleeping, so that room which came before it is not missed.
            if idle {
                sleeper::rest(self.driver.as_mut(), &waits, guard.left());
            }
            idle = self.progress() == 0;
            guard.check("room for a command");
        }
    }

    pub(crate) fn send(&mut self, to: usize, header: &[u8], body: &[u8]) {
        self.post(DriverCommand::Message {
            to: peer(to),
            header,
            body,
        });
    }

    /// Allocates a region, and returns it with a key to all of it.
    pub(crate) fn memory(&mut self, len: usize) -> (MemoryRegion, RemoteRegion) {
        let region = self.driver.allocate(len).expect("memory for a test");
        let key = self
            .driver
            .expose(all_of(&region))
            .expect("a key to allocated memory");
        (region, key)
    }
}

impl Heard {
    fn take_ended(&mut self, token: CommandToken) -> Option<Ended> {
        if let Some(at) = self.completed.iter().position(|done| *done == token) {
            self.completed.remove(at);
            return Some(Ok(None));
        }
        if let Some(at) = self.fetched.iter().position(|(done, _)| *done == token) {
            return Some(Ok(Some(self.fetched.remove(at).1)));
        }
        let at = self.failed.iter().position(|(done, _)| *done == token)?;
        Some(Err(self.failed.remove(at).1))
    }

    /// Returns true if lent memory has come back, with a message or without.
    pub(crate) fn has_ended(&self, token: CommandToken) -> bool {
        self.returned.contains(&token) || self.placed.iter().any(|(placed, _)| *placed == token)
    }

    pub(crate) fn from(&self, rank: usize) -> impl Iterator<Item = &Message> {
        self.messages
            .iter()
            .filter(move |message| message.from == peer(rank))
    }
}

/// Result of a one-sided command: the old value if it was an atomic.
pub(crate) type Ended = Result<Option<u64>, CommandFailure>;

impl Sink for Heard {
    fn message(&mut self, from: WorldRank, header: &[u8], body: PayloadView<'_>) {
        self.messages.push(Message {
            from,
            header: header.to_vec(),
            body: body.to_vec(),
        });
    }

    fn placed(
        &mut self,
        token: CommandToken,
        from: WorldRank,
        header: &[u8],
        body: PayloadView<'_>,
    ) {
        self.placed.push((token, self.messages.len()));
        self.message(from, header, body);
    }

    fn returned(&mut self, token: CommandToken) {
        self.returned.push(token);
    }

    fn complete(&mut self, token: CommandToken) {
        self.completed.push(token);
    }

    fn fetched(&mut self, token: CommandToken, old: u64) {
        self.fetched.push((token, old));
    }

    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        self.failed.push((token, why));
    }

    fn reached(&mut self, token: CommandToken) {
        self.reached.push(token);
    }

    fn triggered(&mut self, token: CommandToken) {
        self.triggered.push(token);
    }

    fn peer_down(&mut self, peer: WorldRank, why: DownCause) {
        self.down.push((peer, why));
    }
}

impl Guard {
    #[expect(
        clippy::disallowed_methods,
        reason = "a hang must end in a sentence; nothing is measured"
    )]
    pub(crate) fn new() -> Self {
        Self {
            end: Instant::now() + PATIENCE,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "as above")]
    pub(crate) fn left(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    pub(crate) fn check(self, what: &str) {
        assert!(!self.left().is_zero(), "waited {PATIENCE:?} for {what}");
    }
}

pub(crate) fn peer(rank: usize) -> WorldRank {
    WorldRank(u32::try_from(rank).unwrap())
}

/// Returns bytes determined by a seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SeededRandom::new(seed).fill(&mut bytes);
    bytes
}

/// Returns all of a region as the local end of a command.
#[expect(unsafe_code, reason = "names memory of the test")]
pub(crate) fn all_of(region: &MemoryRegion) -> LocalRange {
    // SAFETY: the tests keep the region until their commands ended.
    unsafe { LocalRange::new(region.start(), region.len()) }
}

/// Returns plain memory as the local end of a command.
#[expect(unsafe_code, reason = "names memory of the test")]
pub(crate) fn local(bytes: &mut [u8]) -> LocalRange {
    // SAFETY: the tests keep `bytes` alive and untouched until their commands ended.
    unsafe { LocalRange::new(NonNull::from(&mut *bytes).cast(), bytes.len()) }
}

fn token_of(command: &DriverCommand<'_>) -> CommandToken {
    match command {
        DriverCommand::Put { token, .. }
        | DriverCommand::Get { token, .. }
        | DriverCommand::Atomic { token, .. } => *token,
        other => panic!("{other:?} has no token"),
    }
}

/// Returns all bytes of a region.
pub(crate) fn contents(region: &MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

/// Longest time for any test, even in an emulated guest next to other load.
const PATIENCE: Duration = Duration::from_secs(120);
