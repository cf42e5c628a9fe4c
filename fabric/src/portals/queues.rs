//! The event queues, and sleeping until something is in one of them.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use rustix::event::{EventfdFlags, eventfd};

use super::{
    calls::{Eq, Ni},
    event::Got,
    rails::Rail,
    stats::PortalsCounters,
};
use crate::{driver::WaitOn, lanes::LaneSet};

/// Which queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Messages from peers. Flow control holds it: when it is full, peers are refused. Where it does not, all peers are given up.
    Arrivals,
    /// Ends of own operations, by all rails: never more than were started.
    Ends,
    /// Hints that a word on the board has changed: the word counts, so one that is lost does no harm.
    Board,
    /// What task lists have come to, on the first rail.
    Lists,
}

/// The queues.
#[derive(Debug)]
pub(super) struct Queues {
    /// By rail.
    nis: Vec<Arc<Ni>>,
    sources: Vec<Source>,
    /// Rails that are looked at now.
    looked_at: LaneSet,
    /// Rails by which something went or came lately: a turn looks at the others once in a while. None: all are looked at.
    busy: LaneSet,
    /// Of them, since that was last asked.
    heard: LaneSet,
    turns: u32,
    /// There were task lists: the first rail is asked about them in each turn.
    lists: bool,
    /// An event that was taken to see whether there is one.
    held: Option<(Got, Which)>,
    waiter: Waiter,
    rest: Rest,
}

/// Waits for an event of any queue.
#[derive(Clone, Debug)]
struct Waiter {
    /// By rail, as one call of the library waits for the queues of one interface.
    rails: Vec<(Arc<Ni>, Vec<Source>)>,
    counters: Arc<PortalsCounters>,
}

/// A queue of the library.
#[derive(Clone, Copy, Debug)]
struct Source {
    which: Which,
    rail: u32,
    eq: Eq,
}

/// How this rank sleeps.
#[derive(Debug)]
enum Rest {
    /// On descriptors of the library.
    Fds(Vec<Arc<OwnedFd>>),
    /// While a thread waits in the library.
    Helper(Helper),
}

/// A thread that waits for an event when it is asked to.
#[derive(Debug)]
struct Helper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    bell: Arc<OwnedFd>,
}

#[derive(Debug, Default)]
struct State {
    /// The thread is in the library, or goes there. Nobody else takes events then, so that they stay in order.
    waits: bool,
    /// It is to come back at the end of its turn, with an event or without.
    recalled: bool,
    found: Option<(Got, Which)>,
    stop: bool,
}

impl Queues {
    /// Of these rails, and that of task lists, of the first one. With a `helper` even where the library has descriptors.
    ///
    /// # Errors
    /// When the system has no descriptors or threads left.
    pub(super) fn new(
        rails: &[Rail],
        lists: Eq,
        (helper, counters): (bool, &Arc<PortalsCounters>),
    ) -> io::Result<Self> {
        let nis: Vec<_> = rails.iter().map(|rail| Arc::clone(&rail.ni)).collect();
        let of_rail = |(rail, one): (u32, &Rail)| {
            [
                (Which::Arrivals, one.arrivals),
                (Which::Ends, one.ends),
                (Which::Board, one.hints),
            ]
            .map(|(which, eq)| Source { which, rail, eq })
        };
        let lists = Source {
            which: Which::Lists,
            rail: 0,
            eq: lists,
        };
        let sources: Vec<_> = (0..).zip(rails).flat_map(of_rail).chain([lists]).collect();
        let mut fds = Vec::new();
        for ni in nis.iter().filter(|_| !helper) {
            fds.extend(ni.wake_fds()?);
        }
        let of_rail = |(rail, ni)| {
            let ours = sources.iter().filter(|source| source.rail == rail);
            (Arc::clone(ni), ours.copied().collect())
        };
        let waiter = Waiter {
            rails: (0..).zip(&nis).map(of_rail).collect(),
            counters: Arc::clone(counters),
        };
        let rest = if fds.is_empty() {
            Rest::Helper(Helper::start(waiter.clone())?)
        } else {
            Rest::Fds(fds.into_iter().map(Arc::new).collect())
        };
        Ok(Self {
            looked_at: all(&nis),
            busy: LaneSet::EMPTY,
            heard: LaneSet::EMPTY,
            turns: 0,
            lists: false,
            nis,
            sources,
            held: None,
            waiter,
            rest,
        })
    }

    pub(super) fn wait_on(&self) -> Vec<WaitOn> {
        match &self.rest {
            Rest::Fds(fds) => fds.iter().map(|fd| WaitOn::Fd(Arc::clone(fd))).collect(),
            Rest::Helper(helper) => vec![WaitOn::Fd(Arc::clone(&helper.shared.bell))],
        }
    }

    /// Something goes by a rail, or came by it.
    pub(super) fn expect(&mut self, rail: u32) {
        let rail = LaneSet::EMPTY.with(rail);
        self.heard = self.heard.or(rail);
        self.busy = self.busy.or(rail);
        self.looked_at = self.looked_at.or(rail);
    }

    /// From now on there are task lists.
    pub(super) const fn expect_lists(&mut self) {
        self.lists = true;
    }

    /// From now on, and to the end of the turn, all rails are looked at. Whether that is new.
    pub(super) fn look_everywhere(&mut self) -> bool {
        let all = all(&self.nis);
        std::mem::replace(&mut self.looked_at, all) != all
    }

    fn choose_rails(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(QUIET_TURNS) {
            self.busy = std::mem::take(&mut self.heard);
        }
        let everywhere = self.busy.is_empty() || self.turns.is_multiple_of(PATIENCE);
        self.looked_at = if everywhere {
            all(&self.nis)
        } else {
            self.busy
        };
    }

    /// The next event of a queue.
    pub(super) fn next(&mut self, which: Which) -> Option<Got> {
        if self.is_helped() {
            return None;
        }
        match self.held {
            Some((got, held)) if held == which => {
                self.held = None;
                Some(got)
            }
            _ => self.take(which),
        }
    }

    /// Whether the thread waits for an event; if not, what it has found is held.
    fn is_helped(&mut self) -> bool {
        let Rest::Helper(helper) = &self.rest else {
            return false;
        };
        let mut state = helper.shared.lock();
        if self.held.is_none() {
            self.held = state.found.take();
        }
        state.waits
    }

    /// Whether queues are looked at here, so that what [`next`](Self::next) does not find is not there. If not, the thread comes
    /// back at the end of its turn, and rings then.
    pub(super) fn recall(&mut self) -> bool {
        let away = self.is_helped();
        if let Rest::Helper(helper) = &self.rest {
            helper.shared.lock().recalled |= away;
        }
        !away
    }

    /// Whether the thread was asked to come back, and has not.
    pub(super) fn is_recalled(&self) -> bool {
        match &self.rest {
            Rest::Helper(helper) => {
                let state = helper.shared.lock();
                state.waits && state.recalled
            }
            Rest::Fds(_) => false,
        }
    }

    fn take(&mut self, which: Which) -> Option<Got> {
        let always = which == Which::Lists && self.lists;
        let looks = |rail| always || self.looked_at.has(rail);
        let wanted = |source: &&Source| source.which == which && looks(source.rail);
        let mut sources = self.sources.iter().filter(wanted);
        // A queue belongs to the library, whichever interface looks.
        let got = sources.find_map(|source| {
            let got = self.nis[0].eq_get(source.eq)?;
            Some(source.name(got))
        });
        if let Some(got) = got {
            self.expect(got.rail);
        }
        got
    }

    /// Begins a turn, and ends what `arm` began.
    pub(super) fn disarm(&mut self) {
        self.choose_rails();
        if let Rest::Helper(helper) = &self.rest {
            helper.drain();
        }
    }

    /// Whether an event will end the sleep; if not, one is there.
    pub(super) fn arm(&mut self) -> bool {
        if self.is_helped() {
            return true;
        }
        if let Rest::Fds(_) = &self.rest {
            // What was taken since the last look must not end the sleep.
            self.nis.iter().for_each(|ni| ni.disarm_fds());
        }
        self.look_everywhere();
        for which in ALL {
            if self.held.is_none() {
                self.held = self.take(which).map(|got| (got, which));
            }
        }
        if self.held.is_some() {
            return false;
        }
        match &self.rest {
            Rest::Fds(_) => self.nis.iter().for_each(|ni| _ = ni.arm_fds()),
            Rest::Helper(helper) => helper.send_in(),
        }
        true
    }

    /// Waits for an event, for so many milliseconds. Whether there is one.
    pub(super) fn wait(&mut self, millis: u32) -> bool {
        if self.held.is_none() {
            self.held = self.waiter.wait(millis);
        }
        self.held.is_some()
    }

    /// Has no thread of its own from now on.
    pub(super) fn stop_helper(&mut self) {
        if let Rest::Helper(helper) = &mut self.rest {
            let found = helper.stop();
            self.held = self.held.or(found);
        }
    }
}

impl Helper {
    fn start(waiter: Waiter) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            bell: Arc::new(bell),
        });
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("portals-waiter".to_owned());
        let thread = thread.spawn(move || for_thread.run(&waiter))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    fn send_in(&self) {
        self.shared.lock().waits = true;
        self.shared.changed.notify_one();
    }

    fn drain(&self) {
        // Nothing to read is the usual case.
        let _drained = rustix::io::read(&*self.shared.bell, &mut [0; 8]);
    }

    /// Also what the thread had found.
    fn stop(&mut self) -> Option<(Got, Which)> {
        self.shared.lock().stop = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ended = thread.join();
        }
        let mut state = self.shared.lock();
        state.waits = false;
        state.found.take()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self, waiter: &Waiter) {
        loop {
            let idle = |state: &mut State| !state.waits && !state.stop;
            let state = self.changed.wait_while(self.lock(), idle);
            let stop = state.unwrap_or_else(PoisonError::into_inner).stop;
            if stop {
                return;
            }
            // A finite time, because a wait cannot be broken off in every library.
            self.end_turn(waiter.wait(TURN_MILLIS));
        }
    }

    /// The thread comes back if it has found something, or is to.
    fn end_turn(&self, found: Option<(Got, Which)>) {
        let mut state = self.lock();
        if found.is_none() && !state.recalled {
            return;
        }
        state.found = found;
        state.waits = false;
        state.recalled = false;
        drop(state);
        // A bell that has rung too often to count rings already.
        let _rung = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source {
    const fn found(&self, got: Got) -> (Got, Which) {
        (self.name(got), self.which)
    }

    const fn name(&self, got: Got) -> Got {
        Got {
            rail: self.rail,
            ..got
        }
    }
}

impl Waiter {
    /// The next event of any queue; waits for it for so many milliseconds.
    fn wait(&self, millis: u32) -> Option<(Got, Which)> {
        if let [only] = &self.rails[..] {
            return self.wait_for(only, millis);
        }
        // In turn and briefly, with a look at all others between, so that none of them waits longer.
        let turns = self.rails.iter().cycle().take(millis as usize);
        let mut each = turns.map(|rail| self.look().or_else(|| self.wait_for(rail, 1)));
        each.find_map(|found| found)
    }

    fn wait_for(
        &self,
        (ni, sources): &(Arc<Ni>, Vec<Source>),
        millis: u32,
    ) -> Option<(Got, Which)> {
        let queues: Vec<_> = sources.iter().map(|source| source.eq).collect();
        let polled = if ni.moves_alone || ni.is_software() {
            ni.eq_poll(&queues, millis).transpose()
        } else {
            // It waits for a millisecond where no time is given, and its clocks are not for two threads at once.
            (0..millis).find_map(|_| ni.eq_poll(&queues, 0).transpose())
        };
        match polled? {
            Ok((got, at)) => sources.get(at).map(|source| source.found(got)),
            Err(_) => {
                self.counters.unwaited.add(1);
                std::thread::park_timeout(Duration::from_millis(1));
                self.look()
            }
        }
    }

    /// An event that is there.
    fn look(&self) -> Option<(Got, Which)> {
        let mut all = self.rails.iter();
        all.find_map(|(ni, sources)| {
            let mut sources = sources.iter();
            sources.find_map(|source| ni.eq_get(source.eq).map(|got| source.found(got)))
        })
    }
}

#[cfg(test)]
impl Queues {
    /// As if the thread waited, and as long as it is not said that it [comes back](Self::come_back).
    pub(super) fn send_away(&mut self) {
        let shared = Shared {
            state: Mutex::new(State {
                waits: true,
                ..State::default()
            }),
            changed: Condvar::new(),
            bell: Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor")),
        };
        let shared = Arc::new(shared);
        let thread = None;
        self.rest = Rest::Helper(Helper { shared, thread });
    }

    /// The thread has ended a turn, and found nothing.
    pub(super) fn come_back(&self) {
        if let Rest::Helper(helper) = &self.rest {
            helper.shared.end_turn(None);
        }
    }
}

fn all(nis: &[Arc<Ni>]) -> LaneSet {
    LaneSet::first(u32::try_from(nis.len()).unwrap_or(u32::MAX))
}

const ALL: [Which; 4] = [Which::Arrivals, Which::Ends, Which::Board, Which::Lists];
/// Turns between two looks at rails that nothing went by lately.
const PATIENCE: u32 = 64;
/// Turns in which a rail that nothing goes by counts as one by which something goes: longer than an answer takes.
const QUIET_TURNS: u32 = 4096;
/// How long the end of the driver may have to wait for its thread.
const TURN_MILLIS: u32 = 50;
