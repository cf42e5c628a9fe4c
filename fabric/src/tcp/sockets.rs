//! All sockets of a rank, and what is known of each: registered once with epoll, which reports changes only.
//!
//! One socket at a time may be left out of epoll for a while, because the rank reads it in each turn anyway. For a registered
//! socket, the kernel notes each change, and reports the changes again that such reads have found. Between two plain programs
//! (two cores of a virtual machine, Linux 6.18, loopback) that made 8 bytes take 3.93 instead of 3.73 µs.
//!
//! io_uring was tried in place of epoll, and was not ahead. Any thread may make a turn, while io_uring delivers in the thread
//! that has submitted. So the fastest kind of ring (`DEFER_TASKRUN`) is out of the question, because it belongs to one thread.
//! Between two ranks on two cores of a virtual machine (Linux 6.18, loopback), multishot polls made 8 bytes take 1.15 times as
//! long in a ring with `COOP_TASKRUN`, and 2.7 times as long in a plain ring, which interrupts the thread that spins. 64 KiB and
//! 1 MiB took 1.02 and 1.07 times as long. With `COOP_TASKRUN`, a thread that takes over must also submit the polls of all peers
//! again, or changes wait while the other thread computes. Sends in a ring were no faster than plain ones either.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::event::{
    Timespec,
    epoll::{self, CreateFlags, EventData, EventFlags},
};

/// Names a socket. A name is never used again, so a late event of a socket that was closed finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketName {
    slot: u32,
    serial: u32,
}

/// What a socket is for.
#[derive(Debug)]
pub(super) enum SocketRole {
    /// Accepts connections.
    Listener,
    /// Rings when it is time for a retry.
    Timer,
    /// Has connected to this rank, and has not proved yet that it is a peer.
    Arrival(Box<super::admission::TcpArrival>),
    /// An attempt to connect to a peer.
    Attempt(Box<super::reach::DialAttempt>),
    /// The connection of this peer.
    Peer(u32),
    /// Tells a peer that this rank has given it up.
    GiveUp(Box<super::given_up::GiveUpNotice>),
}

/// A socket, and its readiness as of the last event or call.
#[derive(Debug)]
pub(super) struct SocketEntry {
    serial: u32,
    /// `None` for the timer, whose descriptor is elsewhere.
    pub(super) fd: Option<OwnedFd>,
    pub(super) role: SocketRole,
    /// True unless a call has found nothing to read since the last event.
    pub(super) readable: bool,
    /// True unless a call has found no room since the last event.
    pub(super) writable: bool,
    /// True if the peer has closed its side, or the connection has broken. It can still have bytes to read.
    pub(super) ended: bool,
    /// The error of a call that sent. Nothing is sent after it.
    pub(super) broken: Option<io::Error>,
    queued: bool,
}

/// Sockets by their names, and those that need a look.
#[derive(Debug)]
pub(super) struct SocketTable {
    epoll: Arc<OwnedFd>,
    entries: Vec<Option<SocketEntry>>,
    free: Vec<u32>,
    serial: u32,
    ready: VecDeque<SocketName>,
    /// Sockets that keep their places before those in `ready`, in order.
    postponed: Vec<SocketName>,
    /// The socket that epoll does not report, because each turn reads it.
    pub(super) unreported: Option<SocketName>,
}

impl SocketTable {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Arc::new(epoll::create(CreateFlags::CLOEXEC)?),
            entries: Vec::new(),
            free: Vec::new(),
            serial: 0,
            ready: VecDeque::new(),
            postponed: Vec::new(),
            unreported: None,
        })
    }

    /// Returns the descriptor to sleep on.
    pub(super) fn wait_on(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.epoll)
    }

    /// Adds a socket.
    ///
    /// # Errors
    /// The system's error. The socket is closed then.
    pub(super) fn add(&mut self, fd: OwnedFd, role: SocketRole) -> io::Result<SocketName> {
        let name = self.place(role);
        let registered = self.register(&fd, name);
        if let Some(entry) = self.get_mut(name) {
            entry.fd = Some(fd);
        }
        if let Err(why) = registered {
            self.close(name);
            return Err(why);
        }
        Ok(name)
    }

    /// Adds the timer, whose descriptor stays with its owner.
    pub(super) fn add_timer(&mut self, fd: &OwnedFd) -> io::Result<SocketName> {
        let name = self.place(SocketRole::Timer);
        self.register(fd, name)?;
        Ok(name)
    }

    fn place(&mut self, role: SocketRole) -> SocketName {
        self.serial = self.serial.wrapping_add(1);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        let name = SocketName {
            slot,
            serial: self.serial,
        };
        self.entries[slot as usize] = Some(SocketEntry {
            serial: name.serial,
            fd: None,
            role,
            readable: false,
            writable: false,
            ended: false,
            broken: None,
            queued: false,
        });
        name
    }

    fn register(&self, fd: impl AsFd, SocketName { slot, serial }: SocketName) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let data = EventData::new_u64(u64::from(serial) << 32 | u64::from(slot));
        Ok(epoll::add(&*self.epoll, fd, data, flags)?)
    }

    /// Has epoll report a socket no more. Until [`report_all`](Self::report_all), each turn must read it.
    pub(super) fn stop_reports(&mut self, name: SocketName) {
        if self.unreported == Some(name) {
            return;
        }
        self.report_all();
        if self.unreported.is_some() {
            return; // The kernel has no memory to report the other one again, and only one may be left out.
        }
        let socket = self.get(name).and_then(|entry| entry.fd.as_ref());
        if socket.is_some_and(|socket| epoll::delete(&*self.epoll, socket).is_ok()) {
            self.unreported = Some(name);
        }
    }

    /// Has epoll report all sockets again, also what has come meanwhile.
    pub(super) fn report_all(&mut self) {
        let Some(name) = self.unreported.take() else {
            return;
        };
        let socket = self.get(name).and_then(|entry| entry.fd.as_ref());
        if socket.is_some_and(|socket| self.register(socket, name).is_err()) {
            // The kernel has no memory for that now. The rank does not sleep while a socket needs a look, and tries again. The
            // next turn reads the socket, because no event says what has come.
            self.unreported = Some(name);
            if let Some(entry) = self.get_mut(name) {
                entry.readable = true;
            }
            self.look_at(name);
        }
    }

    pub(super) fn get(&self, name: SocketName) -> Option<&SocketEntry> {
        let entry = self.entries.get(name.slot as usize)?.as_ref()?;
        (entry.serial == name.serial).then_some(entry)
    }

    pub(super) fn get_mut(&mut self, name: SocketName) -> Option<&mut SocketEntry> {
        let entry = self.entries.get_mut(name.slot as usize)?.as_mut()?;
        (entry.serial == name.serial).then_some(entry)
    }

    /// Returns the sockets that accept connections.
    pub(super) fn listeners(&self) -> impl Iterator<Item = &OwnedFd> {
        let listens = |entry: &&SocketEntry| matches!(entry.role, SocketRole::Listener);
        let entries = self.entries.iter().flatten().filter(listens);
        entries.filter_map(|entry| entry.fd.as_ref())
    }

    /// Closes a socket, and forgets it.
    pub(super) fn close(&mut self, name: SocketName) -> Option<SocketEntry> {
        self.get(name)?;
        self.free.push(name.slot);
        self.entries[name.slot as usize].take()
    }

    /// Forgets a socket, and returns its descriptor.
    pub(super) fn take(&mut self, name: SocketName) -> Option<OwnedFd> {
        let socket = self.close(name)?.fd?;
        // An error means that epoll does not report this socket now, so there is nothing to remove.
        let _ = epoll::delete(&*self.epoll, &socket);
        Some(socket)
    }

    /// Asks to look at a socket in this or the next turn.
    pub(super) fn look_at(&mut self, name: SocketName) {
        if let Some(entry) = self.get_mut(name)
            && !std::mem::replace(&mut entry.queued, true)
        {
            self.ready.push_back(name);
        }
    }

    /// Returns the next socket to look at.
    pub(super) fn next_ready(&mut self) -> Option<SocketName> {
        while let Some(name) = self.ready.pop_front() {
            if let Some(entry) = self.get_mut(name) {
                entry.queued = false;
                return Some(name);
            }
        }
        None
    }

    /// Asks to look at a socket in the next turn, before all that are ready by then.
    pub(super) fn postpone(&mut self, name: SocketName) {
        if let Some(entry) = self.get_mut(name)
            && !std::mem::replace(&mut entry.queued, true)
        {
            self.postponed.push(name);
        }
    }

    /// Ends a turn: sockets that were postponed are the first of the next turn.
    pub(super) fn end_turn(&mut self) {
        while let Some(name) = self.postponed.pop() {
            self.ready.push_front(name);
        }
    }

    /// Returns true if there are sockets to look at.
    pub(super) fn has_ready(&self) -> bool {
        self.ready.iter().any(|name| self.get(*name).is_some())
    }

    /// Takes all changes that the kernel has noted.
    pub(super) fn poll(&mut self) -> io::Result<()> {
        loop {
            let none = epoll::Event {
                flags: EventFlags::empty(),
                data: EventData::new_u64(0),
            };
            let mut events = [none; EVENTS];
            let at_once = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let count = match epoll::wait(&*self.epoll, &mut events[..], Some(&at_once)) {
                Err(rustix::io::Errno::INTR) => continue,
                polled => polled?,
            };
            for event in &events[..count] {
                self.note(event.data.u64(), event.flags);
            }
            if count < EVENTS {
                return Ok(());
            }
        }
    }

    fn note(&mut self, data: u64, flags: EventFlags) {
        let [slot, serial] = [data & u64::from(u32::MAX), data >> 32]
            .map(|half| u32::try_from(half).unwrap_or(u32::MAX));
        let name = SocketName { slot, serial };
        let Some(entry) = self.get_mut(name) else {
            return;
        };
        let ended = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        let sends = !entry.writable && entry.broken.is_none();
        let room = flags.contains(EventFlags::OUT) && sends;
        entry.ended |= ended;
        entry.readable |= ended || flags.contains(EventFlags::IN);
        entry.writable |= room;
        if room || entry.readable {
            self.look_at(name);
        }
    }
}

impl SocketEntry {
    /// Notes that a call that sends has failed. What has arrived is read before the error is believed.
    pub(super) fn break_off(&mut self, why: io::Error) {
        (self.readable, self.ended, self.writable) = (true, true, false);
        self.broken = Some(why);
    }

    /// Returns the descriptor, which every socket but the timer has.
    pub(super) fn socket(&self) -> io::Result<&OwnedFd> {
        let none = || io::Error::from(io::ErrorKind::NotConnected);
        self.fd.as_ref().ok_or_else(none)
    }
}

/// Changes taken by one call.
const EVENTS: usize = 32;
