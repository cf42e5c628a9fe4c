//! Where operations, protocols and drivers meet; nothing else knows all three.
//!
//! Budget of a small message, from `send` to `post` and from arrival to wake: no allocation, no system call, one uncontended
//! lock each. `ripstop perf` counts them for each message.
//!
//! The driver hands arrivals to [`Core`], which may not call the driver back: what it wants done goes to [`Core::wanted`], to a
//! peer's queues, and is done by [`Engine::flush`] right after. Wakers and buffers of forgotten operations are collected, and
//! woken and dropped by the caller when it holds no lock.

mod arrive;
mod close;
mod down;
mod exposed;
mod fallen;
mod flush;
mod footprint;
mod gone;
mod groups;
mod itself;
mod liveness;
mod meeting;
mod message;
mod peer;
mod placed;
mod program;
mod recovery;
mod recv;
mod room;
mod seek;
mod send;
mod share;
mod shrink;
mod sleeper;
mod sparse;
#[cfg(test)]
mod tests;
mod unreceived;
mod waiting;
mod window;

use ripstop_fabric::{
    driver::{Armed, Driver},
    memory::RemoteRegion,
    offload::RemoteCounter,
};
use std::{collections::BTreeSet, sync::Arc, task::Waker};

use self::{close::Kept, message::Messages, peer::Peers};
pub use self::{
    footprint::{Footprint, Pool},
    window::Combine,
};
pub(crate) use self::{
    peer::Store,
    program::{Job, Look, QuickRun, RunCall, RunTicket, Taken},
    recovery::{Following, living},
    send::Started,
    sleeper::Sleeper,
    waiting::Waiting,
    window::{
        Deed, Extent, Far, Gates, Heard, Ledger, Listening, Looked, Memory as WindowMemory, Number,
        Passed, Ranges, Said, Want, WindowId, begin_all,
    },
};
use crate::{
    buffer::RecvBuf,
    clock::Time,
    error::ErrorKind,
    evidence::KnownFailures,
    ops::{About, Held, Landed, Ops, Outcome, Ticket},
    proto::{headers::Seeker, matching::Matching, path::Paths, wire::OpId},
    reactor::{TimerId, Timers, Watch},
};

/// Arrivals and completions taken in one turn; more would keep the lock too long from those who submit.
const ARRIVALS_MAX: u32 = 64;

/// The engine of one runtime; used by one thread at a time.
pub(crate) struct Engine {
    driver: Box<dyn Driver>,
    /// The driver of a runtime that is closed, for as long as epochs may store to memory of others.
    kept: Option<Box<Kept>>,
    pub(crate) core: Core,
    pub(crate) watch: Watch,
}

/// Everything but the driver.
pub(crate) struct Core {
    pub(crate) ops: Ops,
    matching: Matching<OpId, u32>,
    messages: Messages,
    peers: Peers,
    paths: Paths,
    /// Buffers of so many bytes and more are lent to the driver, whose adapter matches tags.
    lends: Option<usize>,
    /// One-sided commands that wait to be posted.
    wanted: Vec<Wanted>,
    shares: share::Shares,
    meeting: Option<meeting::Meeting>,
    exposed: exposed::Exposed,
    /// Long messages are moved by both ends, when they go one way only.
    shares_long: bool,
    /// Our own offers that are out: while there are any, both ends have enough to do.
    offers: usize,
    groups: groups::Groups,
    /// Whom to ask for messages that have not come.
    seeker: Seeker,
    /// A sought message that no receive waited for, but a probe.
    parked: Option<Box<seek::Parked>>,
    timers: Timers,
    sleepers: sleeper::Sleepers,
    /// The driver does not say who has died, so those that are waited for are watched.
    watches: bool,
    /// The driver has cells.
    cells: bool,
    liveness: Option<Box<liveness::Liveness>>,
    /// How it is known of the ranks that have failed.
    pub(crate) evidence: Arc<KnownFailures>,
    /// Something began to wait since the last turn.
    waits: bool,
    /// Failed members of which no receive from anybody has heard, by communicator.
    untold: BTreeSet<(u32, u32)>,
    own_wait: Option<Box<itself::OwnWait>>,
    unreceived: Option<Box<unreceived::Unreceived>>,
    /// Since when tables are larger than they need to be.
    bloated_since: Option<Time>,
    shrinks_after: Time,
    programs: program::Programs,
    recovery: recovery::Recovery,
    /// Some communicator was revoked: sends have to ask which.
    revokes: bool,
    windows: window::Windows,
    /// Receives no more as soon as the programs under way and promised are over, and begins no others then.
    leaving: bool,
    /// Collectives that have their places and were not begun yet.
    pub(crate) promised: usize,
    /// This rank receives no more.
    closing: bool,
    /// There is no driver any more.
    ended: bool,
    /// Messages that made no sense.
    pub(crate) refused: u64,
    pub(crate) wakers: Vec<Waker>,
    pub(crate) garbage: Vec<Held>,
    /// To be done with no lock held, and then to be [reported](Engine::done).
    pub(crate) jobs: Vec<Job>,
    now: Time,
    /// One-sided commands at the driver.
    moving: usize,
    /// Called with each peer that failed.
    pub(crate) on_failure: Option<OnFailure>,
}

/// Hears the rank of each peer that failed, before the application can.
pub(crate) type OnFailure = Box<dyn Fn(u32) + Send>;

/// A one-sided command for the operation that owns the local memory.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// `at` is where the bytes begin in the operation's buffer.
    Get {
        op: OpId,
        key: RemoteRegion,
        at: usize,
    },
    Put {
        op: OpId,
        key: RemoteRegion,
        at: usize,
    },
    Claim {
        op: OpId,
        claim: RemoteRegion,
        receiver: OpId,
    },
    /// Not a command: half of the bytes, and the other half for the sender.
    Share { op: OpId, key: RemoteRegion },
    /// Not a command: a key for the sender to put to, if the driver can make one.
    Invite { op: OpId },
    /// Not a command: an offer out of turn.
    Answer { op: OpId, first: bool },
    /// Not a command: the buffer of a receive, which is lent.
    Recall { op: OpId },
    /// Not a command: a window's first word to a neighbour.
    Greet { id: WindowId, rank: u32 },
    /// A name is given to no region any more.
    Unname { name: u64 },
    /// No operation waits for it.
    Count {
        rank: u32,
        counter: RemoteCounter,
        by: u64,
    },
}

impl Wanted {
    /// The rank that it goes to, where no operation of ours says so.
    fn peer(&self) -> Option<u32> {
        match self {
            Self::Greet { rank, .. } | Self::Count { rank, .. } => Some(*rank),
            _ => None,
        }
    }
}

/// How an engine is set up.
pub(crate) struct EngineSetup {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) paths: Paths,
    /// What one runtime may hold of unexpected messages, all peers together.
    pub(crate) store: Store,
    /// Both ends of a message may work on it at the same time: each rank has a processor.
    pub(crate) shares_long: bool,
    /// Decides what is left to chance; another one for each rank.
    pub(crate) seed: u64,
    /// Nanoseconds of silence after which a peer is pinged, where the driver does not say who has died.
    pub(crate) detect: u64,
}

impl Engine {
    pub(crate) fn new(mut driver: Box<dyn Driver>, setup: EngineSetup) -> Self {
        let connects = driver.connect_many(&[]);
        let caps = driver.caps();
        let watches = !caps.detects_death;
        let peers = Peers::new(
            setup.size,
            setup.store,
            caps.reliable && caps.ordered,
            setup.seed,
        );
        let core = Core {
            ops: Ops::new(),
            matching: Matching::new(),
            messages: Messages::new(),
            peers,
            paths: setup.paths,
            lends: caps.tag_matching,
            wanted: Vec::new(),
            shares: share::Shares::default(),
            exposed: exposed::Exposed::new(driver.pins_exposed()),
            meeting: connects.then(meeting::Meeting::default),
            shares_long: setup.shares_long,
            offers: 0,
            groups: groups::Groups::default(),
            seeker: Seeker::default(),
            parked: None,
            timers: Timers::default(),
            sleepers: sleeper::Sleepers::default(),
            watches,
            cells: caps.reliable && caps.ordered && caps.detects_death && driver.has_cells(),
            liveness: watches.then(|| Box::new(liveness::Liveness::new(setup.detect, setup.rank))),
            evidence: Arc::new(KnownFailures::new(!watches)),
            waits: false,
            untold: BTreeSet::new(),
            own_wait: None,
            unreceived: None,
            bloated_since: None,
            shrinks_after: Time::default(),
            programs: program::Programs::new(setup.rank, program::list_max(caps) > 0),
            recovery: recovery::Recovery::default(),
            revokes: false,
            windows: window::Windows::new(setup.rank),
            leaving: false,
            promised: 0,
            closing: false,
            ended: false,
            refused: 0,
            wakers: Vec::new(),
            garbage: Vec::new(),
            jobs: Vec::new(),
            now: Time::default(),
            moving: 0,
            on_failure: None,
        };
        Self {
            driver,
            kept: None,
            core,
            watch: Watch::default(),
        }
    }

    /// One turn: what came, what it asks for, what is late. Returns how many events there were.
    #[inline]
    pub(crate) fn turn(&mut self, now: Time) -> u32 {
        self.core.now = now;
        let mut events = self.driver.progress(ARRIVALS_MAX, &mut self.core).events;
        if self.core.programs.are_looking() {
            events += self.look_in_cells();
        }
        self.core.expire(now);
        if self.core.watches {
            self.tend_alive(now, events < ARRIVALS_MAX);
        }
        if self.core.peers.reliable {
            self.flush();
        } else {
            self.core.peers.mark_due(now);
            self.flush();
            self.core.peers.set_clocks(now);
        }
        events
    }

    /// Whether it is safe to sleep.
    pub(crate) fn arm(&mut self) -> Armed {
        if self.core.has_work() {
            return Armed::Busy;
        }
        self.expect();
        if self.driver.arm() == Armed::Busy {
            return Armed::Busy;
        }
        // Cells do not make a driver busy, but whoever fills one from here on rings.
        if self.has_cells_to_take() {
            Armed::Busy
        } else {
            self.core.peers.was_asked();
            Armed::Ready
        }
    }

    /// When to wake up at the latest.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let Core { timers, peers, .. } = &self.core;
        [timers.next(), peers.deadline(), self.next_look()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Makes a receive and posts it.
    #[inline]
    pub(crate) fn recv<B: RecvBuf>(&mut self, about: &About, buf: B) -> Ticket<B> {
        let ticket = self.core.ops.hold_recv(*about, buf);
        self.post(ticket.op);
        ticket
    }

    /// Posts a receive that owns its buffer already.
    #[inline]
    pub(crate) fn post(&mut self, op: OpId) {
        self.core.recv(op);
        if let Some(least) = self.core.lends {
            self.lend(op, least);
        }
        self.flush();
    }

    /// Receives a message that was probed.
    pub(crate) fn recv_probed(&mut self, op: OpId, landed: &Landed) {
        if let Some(stored) = landed.stored {
            self.core.recv_probed(op, stored, landed.arrival);
            self.flush();
        }
    }

    /// Puts a probed message that nobody wants back in its place.
    pub(crate) fn return_probed(&mut self, landed: &Landed) {
        if let Some(stored) = landed.stored {
            self.core.return_probed(stored, landed.arrival);
            self.flush();
        }
    }

    /// Whether something moves, or has begun to wait, that a sleeper does not know of.
    #[inline]
    pub(crate) fn is_restless(&mut self, now: impl FnOnce() -> Time) -> bool {
        let core = &self.core;
        // What found no room is tried again by who sleeps, when it has told the driver that it waits for some.
        core.moving > 0
            || core.leaving
            || !core.wanted.is_empty()
            || core.peers.any_unasked()
            || self.watch.is_asleep() && self.oversleeps(now)
    }

    /// Whether something is due before whoever sleeps wakes up.
    #[cold]
    fn oversleeps(&mut self, now: impl FnOnce() -> Time) -> bool {
        self.core.begin_doubt(true, now);
        self.expect();
        self.core.peers.fresh() || self.watch.oversleeps(self.deadline())
    }

    pub(crate) fn driver(&mut self) -> &mut dyn Driver {
        &mut *self.driver
    }
}

impl Core {
    /// Whether a receive is posted.
    pub(crate) fn is_receiving(&self) -> bool {
        self.matching.is_receiving()
    }

    /// Whether somebody looks at the clock.
    pub(crate) fn needs_time(&self) -> bool {
        self.timers.next().is_some() || !self.peers.reliable || self.watches
    }

    /// What time it was at the last turn.
    pub(crate) fn time(&self) -> Time {
        self.now
    }

    #[inline]
    pub(crate) fn is_done(&mut self, op: OpId) -> bool {
        self.ops.live(op).life.is_done()
    }

    /// Whom to wake when the operation is complete.
    pub(crate) fn remember(&mut self, op: OpId, waker: &Waker) {
        let before = self.ops.remember(op, waker);
        self.let_go(before);
    }

    /// Has a waker dropped as soon as no lock is held.
    fn let_go(&mut self, waker: Option<Waker>) {
        self.garbage.extend(waker.map(Held::of));
    }

    /// The future of a send is gone: it goes on by itself.
    pub(crate) fn detach(&mut self, op: OpId) {
        let Some(slot) = self.ops.get(op) else {
            return; // it was taken, and its future panicked before it knew
        };
        slot.orphan = true;
        let waker = slot.waker.take();
        let (done, timer) = (slot.life.is_done(), slot.timer.take());
        self.let_go(waker);
        self.cancel_timer(timer); // it was the future that gave up
        if done {
            self.release(op);
        }
    }

    /// Gives up on an operation at a time, which replaces an earlier one.
    pub(crate) fn set_timer(&mut self, deadline: Time, op: OpId) {
        let timer = self.timers.insert(deadline, op.pack());
        let before = self.ops.live(op).timer.replace(timer);
        self.cancel_timer(before);
    }

    fn cancel_timer(&mut self, timer: Option<TimerId>) {
        if let Some(timer) = timer {
            self.timers.cancel(timer);
        }
    }

    /// Takes the outcome and the buffer of a send, if it is complete.
    #[inline]
    pub(crate) fn take_send<B: Send + 'static>(
        &mut self,
        ticket: &Ticket<B>,
    ) -> Option<(Outcome, B)> {
        self.ops.take(ticket, &mut self.timers)
    }

    /// Takes the outcome and the buffer of a receive, if it is complete.
    #[inline]
    pub(crate) fn take_recv<B: RecvBuf>(&mut self, ticket: &Ticket<B>) -> Option<(Outcome, B)> {
        self.ops.take_recv(ticket, &mut self.timers)
    }

    /// Operations whose time limit has passed.
    fn expire(&mut self, now: Time) {
        while let Some(key) = self.timers.pop_expired(now) {
            if key >= sleeper::KEYS {
                self.expire_sleeper(key);
                continue;
            }
            if key == program::DOUBT {
                self.ask_for_programs(now);
                continue;
            }
            let op = OpId::unpack(key);
            let Some(slot) = self.ops.get(op) else {
                continue;
            };
            if slot.life.is_sending() {
                self.withdraw(op, ErrorKind::TimedOut);
            } else {
                self.unpost(op, ErrorKind::TimedOut);
            }
        }
    }

    /// One-sided commands that wait for room count: the driver wakes us when there is some, so only new ones are work.
    fn has_work(&self) -> bool {
        self.has_spoils()
            || self.peers.fresh()
            || self
                .liveness
                .as_ref()
                .is_some_and(|liveness| !liveness.asides.is_empty())
            || self.programs.are_told()
    }

    /// Whether there is something to do as soon as no lock is held.
    #[inline]
    pub(crate) fn has_spoils(&self) -> bool {
        self.wakers.len() | self.garbage.len() | self.jobs.len() != 0
    }

    /// The operation is complete: its waker is kept for after the lock, and what nobody will take is let go.
    fn land(&mut self, id: OpId, outcome: Result<Landed, ErrorKind>) {
        self.exposed.close(id);
        let slot = self.ops.live(id);
        if slot.lent {
            return self.fail_lent(id, outcome);
        }
        self.offers -= usize::from(slot.life.is_offered());
        let waker = match outcome {
            Ok(landed) => slot.land(landed),
            Err(why) => slot.fail(why),
        };
        self.wakers.extend(waker);
        if slot.orphan {
            self.release(id);
        } else if slot.part {
            self.programs.tell(id);
        }
    }

    /// Lets an operation go, whose buffer nobody writes to.
    fn release(&mut self, id: OpId) {
        let timer = self.ops.live(id).timer.take();
        self.cancel_timer(timer);
        let held = self.ops.release(id);
        self.garbage.extend(held);
    }
}
