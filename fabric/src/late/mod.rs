//! A network's driver that can be used before the endpoints of the other ranks are known.
//!
//! The other ranks' addresses may take long to arrive, because each rank must have started first. A thread waits for them and
//! connects the driver, while the rank goes on. Until then messages find no room, and calls that need memory for peers wait,
//! because such memory is of no use earlier. If the addresses never arrive, the other ranks are reported as failed.

mod lost;

#[cfg(test)]
mod tests;

use std::{
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use rustix::event::{EventfdFlags, eventfd};

use self::lost::Lost;
use crate::{
    driver::{
        Armed, Caps, Command, Doorkeeper, Down, Driver, Evidence, LocalRange, Offer, Peer, Post,
        Prepared, Progress, Sink, Token, WaitOn,
    },
    memory::{Region, RemoteRegion},
    offload::{Counter, RemoteCounter},
    shm::Processes,
    tags::Tag,
};

/// A driver that is connected, or will be.
#[derive(Debug)]
pub struct Late {
    caps: Caps,
    waits: Vec<WaitOn>,
    pins_exposed: bool,
    rank: u32,
    ranks: u32,
    way: Way,
    /// Processes of this node's ranks, if the driver does not watch them itself. Dropped after the driver.
    processes: Option<Processes>,
    turns: u64,
}

#[derive(Debug)]
enum Way {
    Joining(Joining),
    Joined(Box<dyn Driver>),
    Lost(Lost),
}

/// State until a thread has made the driver, or knows why there is none.
#[derive(Debug)]
struct Joining {
    /// `None` once it was waited for.
    thread: Option<JoinHandle<io::Result<Box<dyn Driver>>>>,
    over: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
    /// Peers to connect to when the driver is there.
    wanted: Vec<Peer>,
    /// Peers to give up when the driver is there.
    gone: Vec<(Peer, Option<Down>)>,
}

/// Rings when the thread ends, even by a panic.
struct Ring {
    over: Arc<AtomicBool>,
    bell: Arc<OwnedFd>,
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // The bell has room for this.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

impl Late {
    /// Opens the driver of `rank`, one of `ranks`. `join` gets the addresses of all ranks and connects the driver.
    ///
    /// `join` is called in its own thread. It may wait for other ranks, but not forever, because this driver cannot be closed
    /// before it returns.
    ///
    /// # Errors
    /// The system's error about a thread or a descriptor.
    pub fn open(
        prepared: Box<dyn Prepared>,
        (rank, ranks): (u32, u32),
        join: impl FnOnce(Box<dyn Prepared>) -> io::Result<Box<dyn Driver>> + Send + 'static,
    ) -> io::Result<Self> {
        let (caps, pins_exposed) = (prepared.caps().clone(), prepared.pins_exposed());
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (over, bell) = (Arc::new(AtomicBool::new(false)), Arc::new(bell));
        let mut waits = prepared.wait_on();
        waits.push(WaitOn::Fd(Arc::clone(&bell)));
        let ring = Ring {
            over: Arc::clone(&over),
            bell: Arc::clone(&bell),
        };
        let thread = thread::Builder::new()
            .name("ripstop-join".to_owned())
            .spawn(move || {
                let _ring = ring;
                join(prepared)
            })?;
        Ok(Self {
            caps,
            waits,
            pins_exposed,
            rank,
            ranks,
            processes: None,
            turns: 0,
            way: Way::Joining(Joining {
                thread: Some(thread),
                over,
                bell,
                wanted: Vec::new(),
                gone: Vec::new(),
            }),
        })
    }

    /// Adds notifications of ended processes on this node, which the network may not notice.
    #[must_use]
    pub fn beside(mut self, processes: Processes) -> Self {
        self.waits.push(processes.wait_on());
        self.processes = Some(processes);
        self
    }

    /// Waits for the driver and returns it.
    fn joined(&mut self) -> Result<&mut dyn Driver, &mut Lost> {
        if let Way::Joining(joining) = &mut self.way {
            self.way = match joining.end() {
                Ok(driver) => Way::Joined(driver),
                Err(why) => Way::Lost(Lost::new(why, (self.rank, self.ranks))),
            };
            // All ranks have arrived, because this one now knows their addresses.
            self.processes.iter_mut().for_each(Processes::watch);
        }
        match &mut self.way {
            Way::Joined(driver) => Ok(&mut **driver),
            Way::Lost(lost) => Err(lost),
            Way::Joining(_) => unreachable!("ended above"),
        }
    }

    fn there(&self) -> Option<&dyn Driver> {
        match &self.way {
            Way::Joined(driver) => Some(&**driver),
            _ => None,
        }
    }

    const fn joining(&mut self) -> Option<&mut Joining> {
        match &mut self.way {
            Way::Joining(joining) => Some(joining),
            _ => None,
        }
    }
}

impl Joining {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Waits for the thread. Called once.
    fn end(&mut self) -> io::Result<Box<dyn Driver>> {
        let thread = self.thread.take();
        let ended = thread.map(JoinHandle::join);
        // The bell has rung, and will not ring again.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let panicked = || {
            Err(io::Error::other(
                "the thread that was to join the job panicked",
            ))
        };
        let mut driver = ended.and_then(Result::ok).unwrap_or_else(panicked)?;
        if !self.wanted.is_empty() {
            driver.connect_many(&self.wanted);
        }
        for (peer, how) in self.gone.drain(..) {
            let _as_we_said = driver.give_up(peer, how);
        }
        Ok(driver)
    }
}

/// Reports ranks whose processes have ended. If the driver has reported one before, or does now, it gives the same answer.
#[cold]
fn bury(driver: &mut dyn Driver, dead: Vec<Peer>, sink: &mut dyn Sink) {
    for peer in dead {
        let how = driver.give_up(peer, Some(Down::Failed));
        sink.peer_down(peer, how);
    }
}

/// Joins before closing: the other ranks wait for this one's address, and the driver notifies them of its end.
impl Drop for Late {
    fn drop(&mut self) {
        drop(self.joined());
    }
}

impl Driver for Late {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    #[inline]
    fn caps_to(&self, peer: Peer) -> &Caps {
        self.there()
            .map_or(&self.caps, |driver| driver.caps_to(peer))
    }

    #[inline]
    fn post<'a>(&mut self, command: Command<'a>) -> Post<'a> {
        match &mut self.way {
            Way::Joined(driver) => driver.post(command),
            Way::Joining(_) if matches!(command, Command::Message { .. }) => Post::Full(command),
            // The memory or counters that it concerns were waited for.
            _ => match self.joined() {
                Ok(driver) => driver.post(command),
                Err(lost) => lost.post(command),
            },
        }
    }

    fn post_tagged<'a>(&mut self, tag: Tag, message: Command<'a>) -> Post<'a> {
        match &mut self.way {
            Way::Joined(driver) => driver.post_tagged(tag, message),
            _ => self.post(message),
        }
    }

    fn offer(&mut self, from: Peer, offer: Offer) -> bool {
        match &mut self.way {
            Way::Joined(driver) => driver.offer(from, offer),
            _ => false,
        }
    }

    fn take_back(&mut self, token: Token) -> bool {
        match &mut self.way {
            Way::Joined(driver) => driver.take_back(token),
            _ => true,
        }
    }

    #[inline]
    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> Progress {
        match &mut self.way {
            Way::Joined(driver) => match &mut self.processes {
                None => driver.progress(budget, sink),
                Some(processes) => {
                    self.turns += 1;
                    let known = processes.has_news();
                    let done = driver.progress(budget, sink);
                    processes.turn();
                    // Report deaths only after everything that arrived before them was handed out.
                    if known && done.events < budget {
                        bury(&mut **driver, processes.take_news(), sink);
                    }
                    done
                }
            },
            Way::Joining(joining) if !joining.is_over() => Progress { events: 0 },
            // Messages find room from now on.
            Way::Joining(_) => {
                drop(self.joined());
                Progress { events: 1 }
            }
            Way::Lost(lost) => lost.progress(sink),
        }
    }

    fn arm(&mut self) -> Armed {
        match &mut self.way {
            Way::Joined(_) if self.processes.as_mut().is_some_and(Processes::arm) => Armed::Busy,
            Way::Joined(driver) => driver.arm(),
            Way::Joining(joining) if joining.is_over() => Armed::Busy,
            Way::Lost(lost) if lost.has_news() => Armed::Busy,
            _ => Armed::Ready,
        }
    }

    fn wait_on(&self) -> Vec<WaitOn> {
        self.waits.clone()
    }

    fn allocate(&mut self, len: usize) -> io::Result<Region> {
        match self.joined() {
            Ok(driver) => driver.allocate(len),
            Err(lost) => Err(lost.why()),
        }
    }

    fn allocate_counters(&mut self, len: usize) -> io::Result<Region> {
        match self.joined() {
            Ok(driver) => driver.allocate_counters(len),
            Err(lost) => Err(lost.why()),
        }
    }

    /// Returns `None` before the driver has joined, because there is no memory from [`allocate`](Self::allocate) yet, and no peer
    /// to send a key to.
    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        match &mut self.way {
            Way::Joined(driver) => driver.expose(range),
            _ => None,
        }
    }

    fn expose_to(&mut self, peer: Peer, range: LocalRange) -> Option<RemoteRegion> {
        match &mut self.way {
            Way::Joined(driver) => driver.expose_to(peer, range),
            _ => None,
        }
    }

    fn guard(&mut self, key: RemoteRegion, keeper: Weak<dyn Doorkeeper>) {
        if let Ok(driver) = self.joined() {
            driver.guard(key, keeper);
        }
    }

    fn knows_peers(&self) -> bool {
        !matches!(self.way, Way::Joining(_))
    }

    fn expect(&mut self, awaited: &mut dyn FnMut() -> Vec<Peer>) {
        if let Way::Joined(driver) = &mut self.way {
            driver.expect(awaited);
        }
    }

    fn connect_many(&mut self, peers: &[Peer]) -> bool {
        match &mut self.way {
            Way::Joined(driver) => driver.connect_many(peers),
            Way::Joining(joining) => {
                joining.wanted.extend(peers);
                true
            }
            Way::Lost(_) => false,
        }
    }

    fn pins_exposed(&self) -> bool {
        self.pins_exposed
    }

    fn reach(&mut self, of: Peer, key: RemoteRegion) -> Option<(Region, usize)> {
        self.joined().ok()?.reach(of, key)
    }

    fn reach_counter(&mut self, of: Peer, key: RemoteCounter) -> Option<Counter> {
        self.joined().ok()?.reach_counter(of, key)
    }

    fn answers(&self, peer: Peer) -> u64 {
        let answers = self.there().map_or(0, |driver| driver.answers(peer));
        match &self.processes {
            // A process that stands still cannot acknowledge anything, but is known to be alive.
            Some(processes) if processes.stands_still(peer) => answers.wrapping_add(self.turns),
            _ => answers,
        }
    }

    fn evidence(&self, peer: Peer) -> Evidence {
        let processes = self.processes.as_ref();
        if processes.is_some_and(|processes| processes.has_ended(peer)) {
            return Evidence::Ended;
        }
        match &self.way {
            Way::Joined(driver) => driver.evidence(peer),
            Way::Joining(_) => Evidence::Unreachable,
            Way::Lost(lost) => Evidence::Reported(lost.sentence().to_owned()),
        }
    }

    fn give_up(&mut self, peer: Peer, how: Option<Down>) -> Down {
        if let Some(joining) = self.joining() {
            joining.gone.push((peer, how));
            return how.unwrap_or(Down::Failed);
        }
        match self.joined() {
            Ok(driver) => driver.give_up(peer, how),
            Err(lost) => lost.give_up(peer, how),
        }
    }

    fn why_down(&self, peer: Peer) -> Option<String> {
        match &self.way {
            Way::Joined(driver) => driver.why_down(peer),
            Way::Joining(_) => None,
            Way::Lost(lost) => Some(lost.sentence().to_owned()),
        }
    }
}
