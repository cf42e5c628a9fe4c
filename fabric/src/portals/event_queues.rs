//! The event queues, and sleeping until one of them has an event.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

use rustix::event::{EventfdFlags, eventfd};

use super::{
    calls::{Eq, PortalsNi},
    event::RailEvent,
    multirail::PortalsRail,
    stats::PortalsCounters,
};
use crate::{driver::WakeSource, lanes::LaneSet};

/// Kinds of event queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventQueueKind {
    /// Messages from peers, bounded by flow control: when the queue is full, peers are refused. If events are lost nevertheless,
    /// all peers are given up.
    Arrivals,
    /// Completions of own operations on all rails, never more than were started.
    Completions,
    /// Hints that a word on the board has changed. The word itself counts, so a lost hint is harmless.
    Board,
    /// Events of task lists, on the first rail.
    Lists,
    /// Events of a guest, on the first rail. The driver takes none of them.
    Guest,
}

/// All event queues of a rank.
#[derive(Debug)]
pub(super) struct PortalsQueues {
    /// Interfaces by rail.
    nis: Vec<Arc<PortalsNi>>,
    sources: Vec<RailQueue>,
    /// Rails polled in this turn.
    looked_at: LaneSet,
    /// Rails with recent traffic, polled in each turn. The others are polled once in a while. If empty, all rails are polled.
    busy: LaneSet,
    /// Rails with traffic since `busy` was last determined.
    heard: LaneSet,
    turns: u32,
    /// True once there were task lists: the first rail is then polled for them in each turn.
    lists: bool,
    /// Event taken while checking whether there is one.
    held: Option<(RailEvent, EventQueueKind)>,
    waiter: PortalsWaiter,
    rest: SleepMethod,
}

/// Waits for an event of any queue.
#[derive(Clone, Debug)]
struct PortalsWaiter {
    /// By rail.
    rails: Vec<RailQueues>,
    counters: Arc<PortalsCounters>,
}

/// An interface and its queues. One call of the library can wait only for queues of one interface.
#[derive(Clone, Debug)]
struct RailQueues {
    ni: Arc<PortalsNi>,
    sources: Vec<RailQueue>,
}

/// An event queue of the library.
#[derive(Clone, Copy, Debug)]
struct RailQueue {
    which: EventQueueKind,
    rail: u32,
    eq: Eq,
}

/// Ways to sleep.
#[derive(Debug)]
enum SleepMethod {
    /// Sleep on descriptors of the library.
    Fds(Vec<Arc<OwnedFd>>),
    /// Sleep while a helper thread waits in the library.
    Helper(HelperThread),
}

/// A thread that waits for an event on request.
#[derive(Debug)]
struct HelperThread {
    shared: Arc<HelperShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct HelperShared {
    state: Mutex<HelperState>,
    changed: Condvar,
    bell: Arc<OwnedFd>,
}

#[derive(Debug, Default)]
struct HelperState {
    /// True while the helper thread waits in the library or is about to. No other thread takes events then, so that they stay in
    /// order.
    waits: bool,
    /// True if the helper thread must return at the end of its turn, even without an event.
    recalled: bool,
    found: Option<(RailEvent, EventQueueKind)>,
    stop: bool,
}

impl PortalsQueues {
    /// Returns the queues of these rails, and the queue of task lists on the first one. With `helper`, a thread waits even if the
    /// library has descriptors.
    ///
    /// # Errors
    /// Fails if the system has no descriptors or threads left.
    pub(super) fn new(
        rails: &[PortalsRail],
        lists: Eq,
        helper: bool,
        counters: &Arc<PortalsCounters>,
    ) -> io::Result<Self> {
        let nis: Vec<_> = rails.iter().map(|rail| Arc::clone(&rail.ni)).collect();
        let of_rail = |(rail, one): (u32, &PortalsRail)| {
            [
                (EventQueueKind::Arrivals, one.arrivals),
                (EventQueueKind::Completions, one.completions),
                (EventQueueKind::Board, one.hints),
            ]
            .map(|(which, eq)| RailQueue { which, rail, eq })
        };
        let lists = RailQueue {
            which: EventQueueKind::Lists,
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
            RailQueues {
                ni: Arc::clone(ni),
                sources: ours.copied().collect(),
            }
        };
        let waiter = PortalsWaiter {
            rails: (0..).zip(&nis).map(of_rail).collect(),
            counters: Arc::clone(counters),
        };
        let rest = if fds.is_empty() {
            SleepMethod::Helper(HelperThread::start(waiter.clone())?)
        } else {
            SleepMethod::Fds(fds.into_iter().map(Arc::new).collect())
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

    /// Adds the queue of a guest, whose events end sleeps like those of the driver.
    ///
    /// # Errors
    /// If the system has no threads left.
    pub(super) fn add_guest(&mut self, eq: Eq) -> io::Result<()> {
        let source = RailQueue {
            which: EventQueueKind::Guest,
            rail: 0,
            eq,
        };
        self.sources.push(source);
        self.waiter.rails[0].sources.push(source);
        if let SleepMethod::Helper(helper) = &mut self.rest {
            helper.stop();
            self.rest = SleepMethod::Helper(HelperThread::start(self.waiter.clone())?);
        }
        Ok(())
    }

    /// Ignores the queue of a guest from now on. The helper thread must have been stopped.
    pub(super) fn forget_guest(&mut self) {
        let is_own = |source: &RailQueue| source.which != EventQueueKind::Guest;
        self.sources.retain(is_own);
        self.waiter.rails[0].sources.retain(is_own);
        self.held = self
            .held
            .filter(|(_, which)| *which != EventQueueKind::Guest);
    }

    pub(super) fn wait_on(&self) -> Vec<WakeSource> {
        match &self.rest {
            SleepMethod::Fds(fds) => fds
                .iter()
                .map(|fd| WakeSource::Fd(Arc::clone(fd)))
                .collect(),
            SleepMethod::Helper(helper) => vec![WakeSource::Fd(Arc::clone(&helper.shared.bell))],
        }
    }

    /// Notes traffic on a rail, which is polled in each turn from now on.
    pub(super) fn note_traffic(&mut self, rail: u32) {
        let rail = LaneSet::EMPTY.with(rail);
        self.heard = self.heard.or(rail);
        self.busy = self.busy.or(rail);
        self.looked_at = self.looked_at.or(rail);
    }

    /// Notes that there are task lists.
    pub(super) const fn note_task_lists(&mut self) {
        self.lists = true;
    }

    /// Polls all rails until the end of the turn. Returns true if they were not all polled before.
    pub(super) fn poll_all_rails(&mut self) -> bool {
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

    /// Takes the next event of a queue.
    pub(super) fn next(&mut self, which: EventQueueKind) -> Option<RailEvent> {
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

    /// Returns true while the helper thread waits for an event. When it has returned, its event is held here.
    fn is_helped(&mut self) -> bool {
        let SleepMethod::Helper(helper) = &self.rest else {
            return false;
        };
        let mut state = helper.shared.lock();
        if self.held.is_none() {
            self.held = state.found.take();
        }
        state.waits
    }

    /// Returns true if this thread may poll the queues, so that an empty result of [`next`](Self::next) is reliable.
    ///
    /// If false, the helper thread will return at the end of its turn, and wake this rank then.
    pub(super) fn recall_helper(&mut self) -> bool {
        let away = self.is_helped();
        if let SleepMethod::Helper(helper) = &self.rest {
            helper.shared.lock().recalled |= away;
        }
        !away
    }

    /// Returns true while the helper thread was asked to return and has not.
    pub(super) fn is_helper_recalled(&self) -> bool {
        match &self.rest {
            SleepMethod::Helper(helper) => {
                let state = helper.shared.lock();
                state.waits && state.recalled
            }
            SleepMethod::Fds(_) => false,
        }
    }

    fn take(&mut self, which: EventQueueKind) -> Option<RailEvent> {
        let always = which == EventQueueKind::Lists && self.lists;
        let looks = |rail| always || self.looked_at.has(rail);
        let wanted = |source: &&RailQueue| source.which == which && looks(source.rail);
        let mut sources = self.sources.iter().filter(wanted);
        // Any interface may take events of any queue, because queues belong to the library.
        let got = sources.find_map(|source| {
            let got = self.nis[0].eq_get(source.eq)?;
            Some(source.name(got))
        });
        if let Some(got) = got {
            self.note_traffic(got.rail);
        }
        got
    }

    /// Begins a turn, and ends the sleep that `arm` prepared.
    pub(super) fn disarm(&mut self) {
        self.choose_rails();
        if let SleepMethod::Helper(helper) = &self.rest {
            helper.drain();
        }
    }

    /// Prepares a sleep that an event will end. Returns false if there is an event already.
    pub(super) fn arm(&mut self) -> bool {
        if self.is_helped() {
            return true;
        }
        if let SleepMethod::Fds(_) = &self.rest {
            // Clear the readiness of events that were taken since, so that they do not end the sleep.
            self.nis.iter().for_each(|ni| ni.disarm_fds());
        }
        self.poll_all_rails();
        for which in ALL {
            if self.held.is_none() {
                self.held = self.take(which).map(|got| (got, which));
            }
        }
        if self.held.is_some() {
            return false;
        }
        match &self.rest {
            SleepMethod::Fds(_) => self.nis.iter().for_each(|ni| _ = ni.arm_fds()),
            SleepMethod::Helper(helper) => helper.send_in(),
        }
        true
    }

    /// Waits up to `millis` milliseconds for an event. Returns true if there is one.
    pub(super) fn wait(&mut self, millis: u32) -> bool {
        if self.held.is_none() {
            self.held = self.waiter.wait(millis);
        }
        self.held.is_some()
    }

    /// Stops the helper thread for good.
    pub(super) fn stop_helper(&mut self) {
        if let SleepMethod::Helper(helper) = &mut self.rest {
            let found = helper.stop();
            self.held = self.held.or(found);
        }
    }
}

impl HelperThread {
    fn start(waiter: PortalsWaiter) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(HelperShared {
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
        // A failed read is normal: there is usually nothing to read.
        let _drained = rustix::io::read(&*self.shared.bell, &mut [0; 8]);
    }

    /// Stops the thread, and returns the event that it had found.
    fn stop(&mut self) -> Option<(RailEvent, EventQueueKind)> {
        self.shared.lock().stop = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported by the panic hook.
            let _ended = thread.join();
        }
        let mut state = self.shared.lock();
        state.waits = false;
        state.found.take()
    }
}

impl Drop for HelperThread {
    fn drop(&mut self) {
        self.stop();
    }
}

impl HelperShared {
    fn run(&self, waiter: &PortalsWaiter) {
        loop {
            let idle = |state: &mut HelperState| !state.waits && !state.stop;
            let state = self.changed.wait_while(self.lock(), idle);
            let stop = state.unwrap_or_else(PoisonError::into_inner).stop;
            if stop {
                return;
            }
            // The wait has a timeout, because not every library can interrupt it.
            self.end_turn(waiter.wait(TURN_MILLIS));
        }
    }

    /// Ends the helper thread's wait if it has found an event or was recalled.
    fn end_turn(&self, found: Option<(RailEvent, EventQueueKind)>) {
        let mut state = self.lock();
        if found.is_none() && !state.recalled {
            return;
        }
        state.found = found;
        state.waits = false;
        state.recalled = false;
        drop(state);
        // A write fails only if the counter is at its maximum, and then the descriptor is readable already.
        let _rung = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, HelperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RailQueue {
    const fn found(&self, got: RailEvent) -> (RailEvent, EventQueueKind) {
        (self.name(got), self.which)
    }

    const fn name(&self, got: RailEvent) -> RailEvent {
        RailEvent {
            rail: self.rail,
            ..got
        }
    }
}

impl PortalsWaiter {
    /// Takes the next event of any queue, and waits for it up to `millis` milliseconds.
    fn wait(&self, millis: u32) -> Option<(RailEvent, EventQueueKind)> {
        if let [only] = &self.rails[..] {
            return self.wait_for(only, millis);
        }
        // Wait briefly on one rail after another, and poll all others in between, so that no rail waits much longer.
        let turns = self.rails.iter().cycle().take(millis as usize);
        let mut each = turns.map(|rail| self.look().or_else(|| self.wait_for(rail, 1)));
        each.find_map(|found| found)
    }

    fn wait_for(&self, rail: &RailQueues, millis: u32) -> Option<(RailEvent, EventQueueKind)> {
        let RailQueues { ni, sources } = rail;
        let queues: Vec<_> = sources.iter().map(|source| source.eq).collect();
        let polled = if ni.async_progress || ni.is_software() {
            ni.eq_poll(&queues, millis).transpose()
        } else {
            // Without a timeout this library waits for a millisecond, and its timed waits do not support two threads at once.
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

    /// Takes an event that is already there.
    fn look(&self) -> Option<(RailEvent, EventQueueKind)> {
        let mut all = self.rails.iter();
        all.find_map(|rail| {
            let mut sources = rail.sources.iter();
            sources.find_map(|source| rail.ni.eq_get(source.eq).map(|got| source.found(got)))
        })
    }
}

#[cfg(test)]
impl PortalsQueues {
    /// Pretends that the helper thread waits, until [`come_back`](Self::come_back) is called.
    pub(super) fn send_away(&mut self) {
        let shared = HelperShared {
            state: Mutex::new(HelperState {
                waits: true,
                ..HelperState::default()
            }),
            changed: Condvar::new(),
            bell: Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor")),
        };
        let shared = Arc::new(shared);
        let thread = None;
        self.rest = SleepMethod::Helper(HelperThread { shared, thread });
    }

    /// Ends the helper thread's turn without an event.
    pub(super) fn come_back(&self) {
        if let SleepMethod::Helper(helper) = &self.rest {
            helper.shared.end_turn(None);
        }
    }
}

fn all(nis: &[Arc<PortalsNi>]) -> LaneSet {
    LaneSet::first(u32::try_from(nis.len()).unwrap_or(u32::MAX))
}

const ALL: [EventQueueKind; 5] = [
    EventQueueKind::Arrivals,
    EventQueueKind::Completions,
    EventQueueKind::Board,
    EventQueueKind::Lists,
    EventQueueKind::Guest,
];
/// Turns between polls of rails without recent traffic.
const PATIENCE: u32 = 64;
/// Turns without traffic before a rail stops counting as busy, longer than an answer takes.
const QUIET_TURNS: u32 = 4096;
/// Milliseconds of one wait of the helper thread, and so the longest time that dropping the driver waits for the thread.
const TURN_MILLIS: u32 = 50;
