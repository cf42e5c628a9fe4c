//! The event queues, and sleeping until something is in one of them.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};

use rustix::event::{EventfdFlags, eventfd};

use super::{
    calls::{Eq, Ni},
    event::Got,
    rails::Rail,
};
use crate::driver::WaitOn;

/// Which queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Messages from peers. Flow control holds it: when it is full, peers are refused.
    Arrivals,
    /// Ends of own operations, by all rails: never more than were started.
    Ends,
    /// Hints that a word on the board has changed: the word counts, so one that is lost does no harm.
    Board,
    /// What task lists have come to.
    Lists,
}

/// The queues.
#[derive(Debug)]
pub(super) struct Queues {
    /// The first one, and those of rails.
    nis: Vec<Arc<Ni>>,
    /// Of each kind, and then the ends of each rail.
    queues: Vec<Eq>,
    /// Something is under way by rails beside the first one.
    striping: bool,
    /// Their descriptors may be readable.
    rails_armed: bool,
    /// Turns until rails are looked at although nothing is under way there.
    patience: u32,
    /// An event that was taken to see whether there is one.
    held: Option<(Got, Which)>,
    rest: Rest,
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
    found: Option<(Got, Which)>,
    stop: bool,
}

impl Queues {
    /// `helper` even where the library has descriptors.
    ///
    /// # Errors
    /// When the system has no descriptors or threads left.
    pub(super) fn new(
        ni: &Arc<Ni>,
        queues: [Eq; 4],
        rails: &[Rail],
        helper: bool,
    ) -> io::Result<Self> {
        let others = rails.iter().map(|rail| Arc::clone(&rail.ni));
        let nis: Vec<_> = std::iter::once(Arc::clone(ni)).chain(others).collect();
        let ends = rails.iter().map(|rail| rail.ends);
        let queues: Vec<_> = queues.into_iter().chain(ends).collect();
        let mut fds = Vec::new();
        for ni in nis.iter().filter(|_| !helper) {
            fds.extend(ni.wake_fds()?);
        }
        let rest = if fds.is_empty() {
            Rest::Helper(Helper::start(ni, &queues)?)
        } else {
            Rest::Fds(fds.into_iter().map(Arc::new).collect())
        };
        Ok(Self {
            nis,
            queues,
            striping: false,
            rails_armed: false,
            patience: 0,
            held: None,
            rest,
        })
    }

    pub(super) fn wait_on(&self) -> Vec<WaitOn> {
        match &self.rest {
            Rest::Fds(fds) => fds.iter().map(|fd| WaitOn::Fd(Arc::clone(fd))).collect(),
            Rest::Helper(helper) => vec![WaitOn::Fd(Arc::clone(&helper.shared.bell))],
        }
    }

    /// Whether something is under way by rails beside the first one. While nothing is, a turn does not look there.
    pub(super) const fn set_striping(&mut self, striping: bool) {
        self.striping = striping;
    }

    /// The next event of a queue.
    pub(super) fn next(&mut self, which: Which) -> Option<Got> {
        if let Rest::Helper(helper) = &self.rest {
            let mut state = helper.shared.lock();
            if state.waits {
                return None;
            }
            if self.held.is_none() {
                self.held = state.found.take();
            }
        }
        match self.held {
            Some((got, held)) if held == which => {
                self.held = None;
                Some(got)
            }
            _ => self.take(which),
        }
    }

    fn take(&mut self, which: Which) -> Option<Got> {
        let got = self.nis[0].eq_get(self.queues[which as usize]);
        if got.is_some() || which != Which::Ends || self.nis.len() == 1 {
            return got;
        }
        self.patience = self.patience.wrapping_add(1) % PATIENCE;
        if !self.striping && self.patience > 0 {
            return None;
        }
        // A queue belongs to the library, whichever interface looks.
        let mut rails = self.queues[ALL.len()..].iter();
        rails.find_map(|eq| self.nis[0].eq_get(*eq))
    }

    /// Ends what `arm` began.
    pub(super) fn disarm(&self) {
        if let Rest::Helper(helper) = &self.rest {
            helper.drain();
        }
    }

    /// Whether an event will end the sleep; if not, one is there.
    pub(super) fn arm(&mut self) -> bool {
        match &self.rest {
            // What was taken since the last look must not end the sleep.
            Rest::Fds(_) => self.awake().iter().for_each(|ni| ni.disarm_fds()),
            Rest::Helper(helper) if helper.shared.lock().waits => return true,
            Rest::Helper(_) => {}
        }
        for which in ALL {
            if self.held.is_none() {
                self.held = self.next(which).map(|got| (got, which));
            }
        }
        if self.held.is_some() {
            return false;
        }
        match &self.rest {
            Rest::Fds(_) => {
                self.rails_armed = self.striping;
                self.awake().iter().for_each(|ni| _ = ni.arm_fds());
            }
            Rest::Helper(helper) => helper.send_in(),
        }
        true
    }

    /// The interfaces whose descriptors count.
    fn awake(&self) -> &[Arc<Ni>] {
        if self.striping || self.rails_armed {
            &self.nis
        } else {
            &self.nis[..1]
        }
    }

    /// Waits for an event, for so many milliseconds. Whether there is one.
    pub(super) fn wait(&mut self, millis: u32) -> bool {
        if self.held.is_none() {
            let polled = self.nis[0].eq_poll(&self.queues, millis);
            self.held = polled.map(|(got, at)| (got, which(at)));
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
    fn start(ni: &Arc<Ni>, queues: &[Eq]) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            bell: Arc::new(bell),
        });
        let (ni, for_thread) = (Arc::clone(ni), Arc::clone(&shared));
        let queues = queues.to_vec();
        let thread = std::thread::Builder::new().name("portals-waiter".to_owned());
        let thread = thread.spawn(move || for_thread.run(&ni, &queues))?;
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
    fn run(&self, ni: &Ni, queues: &[Eq]) {
        loop {
            let idle = |state: &mut State| !state.waits && !state.stop;
            let state = self.changed.wait_while(self.lock(), idle);
            let stop = state.unwrap_or_else(PoisonError::into_inner).stop;
            if stop {
                return;
            }
            // A finite time, because a wait cannot be broken off in every library.
            let polled = ni.eq_poll(queues, TURN_MILLIS);
            let found = polled.map(|(got, at)| (got, which(at)));
            if found.is_some() {
                let mut state = self.lock();
                state.found = found;
                state.waits = false;
                drop(state);
                // A bell that has rung too often to count rings already.
                let _rung = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kind of a queue: those of rails come behind the others.
fn which(at: usize) -> Which {
    ALL.get(at).copied().unwrap_or(Which::Ends)
}

const ALL: [Which; 4] = [Which::Arrivals, Which::Ends, Which::Board, Which::Lists];
/// A library may make progress only while somebody looks at its queues.
const PATIENCE: u32 = 64;
/// How long the end of the driver may have to wait for its thread.
const TURN_MILLIS: u32 = 50;
