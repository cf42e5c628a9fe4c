//! Task lists on drivers that run none: whoever makes turns begins what may begin.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
};

use super::{Action, Counter, Landing, Task};
use crate::{
    driver::{
        Armed, Caps, Command, Down, Driver, Failure, LocalRange, Payload, Peer, Post, Progress,
        Sink, Token, WaitOn,
    },
    memory::{Region, RemoteRegion},
};

/// Wraps a driver with counters, and runs task lists on it.
///
/// A task begins in a turn of [`progress`](Driver::progress), so it needs somebody who makes turns; the sleep of who does is
/// ended when a counter comes to where a task waits for it. A turn costs a load for each counter of each waiting task. Tokens
/// from 2⁶³ on are the runner's own: do not post them.
#[derive(Debug)]
pub struct Runner {
    driver: Box<dyn Driver>,
    caps: Caps,
    /// In the order of posting.
    waiting: Vec<Waiting>,
    /// Begun, and refused by the driver.
    refused: VecDeque<Begun>,
    /// At the driver, by their tokens there.
    flying: BTreeMap<u64, Begun>,
    /// Commands of tasks that are over, and how.
    over: Vec<(u64, Result<(), Failure>)>,
    runs: BTreeMap<u64, Run>,
    told: VecDeque<Told>,
    serial: u64,
    /// Something was counted here that a watch may be about.
    counted: bool,
    /// A list found no room.
    full: bool,
}

#[derive(Debug)]
struct Waiting {
    task: Task,
    token: Token,
    /// Which list of its token.
    list: u64,
    /// The watches that end a sleep for it.
    watches: [Option<Token>; 2],
}

#[derive(Debug)]
struct Begun {
    then: Action,
    token: Token,
    /// What an offer is put from.
    landing: Option<Region>,
}

#[derive(Debug, Default)]
struct Run {
    /// Tasks of each list that have not begun.
    left: BTreeMap<u64, usize>,
    flying: usize,
    broken: Option<Failure>,
}

#[derive(Debug)]
enum Told {
    Triggered(Token),
    Failed(Token, Failure),
}

impl Runner {
    /// Puts a runner on `driver`.
    #[must_use]
    pub fn new(driver: Box<dyn Driver>) -> Self {
        let below = driver.caps();
        let works = below.counters && below.one_sided;
        let caps = Caps {
            triggered_max: if works { TASKS_MAX } else { 0 },
            ..below.clone()
        };
        Self {
            driver,
            caps,
            waiting: Vec::new(),
            refused: VecDeque::new(),
            flying: BTreeMap::new(),
            over: Vec::new(),
            runs: BTreeMap::new(),
            told: VecDeque::new(),
            serial: OWN,
            counted: false,
            full: false,
        }
    }

    fn list<'a>(&mut self, tasks: &'a [Task], token: Token) -> Post<'a> {
        let room = self.caps.triggered_max;
        assert!(
            (1..=room).contains(&tasks.len()),
            "a list of {} tasks; 1 to {room} are possible: ask `Caps`",
            tasks.len()
        );
        let waiting = tasks.iter().filter(|task| task.unmet().next().is_some());
        if self.waiting.len() + waiting.count() > room {
            self.full = true;
            return Post::Full(Command::List { tasks, token });
        }
        let list = self.next();
        let run = self.runs.entry(token.0).or_default();
        run.left.insert(list, tasks.len());
        for task in tasks {
            let watches = [Some(&task.when), task.and.as_ref()].map(|when| {
                let when = when.filter(|when| !when.is_met())?;
                let token = Token(self.next());
                self.take(Command::Watch {
                    counter: &when.counter,
                    threshold: when.threshold,
                    token,
                });
                Some(token)
            });
            self.waiting.push(Waiting {
                task: task.clone(),
                token,
                list,
                watches,
            });
        }
        self.begin();
        Post::Posted
    }

    /// Begins what may begin. How many tasks those are.
    fn begin(&mut self) -> u32 {
        let mut begun = 0;
        let mut at = 0;
        while let Some(waiting) = self.waiting.get(at) {
            if waiting.task.unmet().next().is_some() {
                at += 1;
                continue;
            }
            let Waiting {
                task, token, list, ..
            } = self.waiting.remove(at);
            self.started(token, list);
            let then = task.then;
            self.carry_out(Begun {
                then,
                token,
                landing: None,
            });
            begun += 1;
        }
        begun
    }

    fn started(&mut self, token: Token, list: u64) {
        let run = self.runs.entry(token.0).or_default();
        run.flying += 1;
        if let Some(left) = run.left.get_mut(&list) {
            *left -= 1;
            if *left == 0 {
                run.left.remove(&list);
                self.told.push_back(Told::Triggered(token));
            }
        }
    }

    fn carry_out(&mut self, mut begun: Begun) {
        let serial = self.next();
        let token = Token(serial);
        let command = match &begun.then {
            Action::Put {
                to, from, target, ..
            } => {
                let Some((into, count)) = target.read() else {
                    return self.ended(&begun, Err(Failure::Unmatched));
                };
                let (to, from) = (*to, *from);
                Command::Put {
                    to,
                    from,
                    into,
                    count,
                    token,
                }
            }
            Action::Offer {
                to,
                landing,
                place,
                count,
            } => {
                let from = match hold(&mut *self.driver, &mut begun.landing, landing) {
                    Ok(from) => from,
                    Err(why) => return self.ended(&begun, Err(Failure::Transport(why))),
                };
                let (to, into, count) = (*to, *place, Some(*count));
                Command::Put {
                    to,
                    from,
                    into,
                    count,
                    token,
                }
            }
            Action::Count { to, counter, by } => {
                let (to, counter, by) = (*to, *counter, *by);
                Command::Count { to, counter, by }
            }
            Action::Copy { from, into, .. } => {
                from.copy_to(*into);
                return self.ended(&begun, Ok(()));
            }
        };
        let counts = matches!(command, Command::Count { .. });
        match self.driver.post(command) {
            Post::Full(_) => self.refused.push_back(begun),
            Post::Posted if counts => self.ended(&begun, Ok(())),
            Post::Posted => _ = self.flying.insert(serial, begun),
        }
    }

    fn ended(&mut self, begun: &Begun, how: Result<(), Failure>) {
        if let Some(run) = self.runs.get_mut(&begun.token.0) {
            run.flying -= 1;
        }
        match how {
            Ok(()) => {
                self.counted |= begun.then.done().is_some_and(|done| done.add(1));
                self.settle(begun.token);
            }
            Err(why) => self.break_off(begun.token, why),
        }
    }

    /// No further task of a token begins.
    fn break_off(&mut self, token: Token, why: Failure) {
        let (gone, kept) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting: &Waiting| waiting.token == token);
        self.waiting = kept;
        let watches = |waiting: &Waiting| waiting.watches;
        for token in gone.iter().flat_map(watches).flatten() {
            self.take(Command::Unwatch { token });
        }
        let refused = self.refused.len();
        self.refused.retain(|begun| begun.token != token);
        let run = self.runs.entry(token.0).or_default();
        run.flying -= refused - self.refused.len();
        run.left.clear();
        run.broken.get_or_insert(why);
        self.settle(token);
    }

    fn settle(&mut self, token: Token) {
        let is_over = |run: &Run| run.left.is_empty() && run.flying == 0;
        if self.runs.get(&token.0).is_some_and(is_over)
            && let Some(why) = self.runs.remove(&token.0).and_then(|run| run.broken)
        {
            self.told.push_back(Told::Failed(token, why));
        }
    }

    /// Commands that a driver always takes.
    fn take(&mut self, command: Command<'_>) {
        let posted = self.driver.post(command);
        debug_assert!(matches!(posted, Post::Posted), "watches need no room");
    }

    fn next(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn tell(&mut self, sink: &mut dyn Sink) -> u32 {
        let mut events = 0;
        while let Some(told) = self.told.pop_front() {
            match told {
                Told::Triggered(token) => sink.triggered(token),
                Told::Failed(token, why) => sink.failed(token, why),
            }
            events += 1;
        }
        events
    }

    /// Whether the next turn has something to do.
    fn has_news(&self) -> bool {
        let may_begin = |waiting: &Waiting| waiting.task.unmet().next().is_none();
        self.counted || !self.told.is_empty() || self.waiting.iter().any(may_begin)
    }
}

impl Driver for Runner {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: Command<'a>) -> Post<'a> {
        match command {
            Command::List { tasks, token } => self.list(tasks, token),
            Command::Cancel { token } => {
                self.break_off(token, Failure::Cancelled);
                Post::Posted
            }
            command => self.driver.post(command),
        }
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> Progress {
        self.counted = false;
        let over = &mut self.over;
        let mut below = self.driver.progress(budget, &mut Sorted { sink, over });
        for (serial, how) in std::mem::take(&mut self.over) {
            if let Some(begun) = self.flying.remove(&serial) {
                self.ended(&begun, how);
            }
        }
        for begun in std::mem::take(&mut self.refused) {
            self.carry_out(begun);
        }
        while self.begin() > 0 {
            below.events += 1;
        }
        below.events += self.tell(sink);
        below
    }

    fn arm(&mut self) -> Armed {
        // Who was refused hears of room: when all have begun, any list has it.
        let has_room = self.full && self.waiting.is_empty();
        self.full &= !has_room;
        if has_room || self.has_news() {
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
}

/// Memory that keeps a landing until it is put.
fn hold(
    driver: &mut dyn Driver,
    kept: &mut Option<Region>,
    landing: &Landing,
) -> io::Result<LocalRange> {
    let bytes = bytemuck::bytes_of(landing);
    let region = match kept.take() {
        Some(region) => region,
        None => driver.allocate(bytes.len())?,
    };
    region.write(0, bytes);
    let range = region.range().slice(0, bytes.len());
    *kept = Some(region);
    Ok(range)
}

impl Action {
    /// What its end adds to.
    fn done(&self) -> Option<&Counter> {
        match self {
            Self::Put { done, .. } | Self::Copy { done, .. } => done.as_ref(),
            Self::Offer { .. } | Self::Count { .. } => None,
        }
    }
}

/// Keeps what is the runner's from the sink.
struct Sorted<'a> {
    sink: &'a mut dyn Sink,
    over: &'a mut Vec<(u64, Result<(), Failure>)>,
}

impl Sink for Sorted<'_> {
    fn message(&mut self, from: Peer, header: &[u8], body: Payload<'_>) {
        self.sink.message(from, header, body);
    }

    fn complete(&mut self, token: Token) {
        if token.0 > OWN {
            self.over.push((token.0, Ok(())));
        } else {
            self.sink.complete(token);
        }
    }

    fn fetched(&mut self, token: Token, old: u64) {
        self.sink.fetched(token, old);
    }

    fn failed(&mut self, token: Token, why: Failure) {
        if token.0 > OWN {
            self.over.push((token.0, Err(why)));
        } else {
            self.sink.failed(token, why);
        }
    }

    fn reached(&mut self, token: Token) {
        if token.0 <= OWN {
            self.sink.reached(token);
        }
    }

    fn triggered(&mut self, token: Token) {
        self.sink.triggered(token);
    }

    fn peer_down(&mut self, peer: Peer, why: Down) {
        self.sink.peer_down(peer, why);
    }
}

/// Tasks that may wait: a turn looks at all of them.
const TASKS_MAX: usize = 128;
/// Greater tokens are the runner's.
const OWN: u64 = 1 << 63;
