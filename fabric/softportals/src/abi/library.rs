//! The open interfaces of this process, behind the handles that C programs hold.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::io::Errno;

use super::settings::Settings;
use crate::{
    error::Error,
    event::Address,
    interface::{Config, Family},
    limits::Limits,
    memory::Memory as _,
    process::{Nic, ProcessMemory, Setup},
    transport::{Place, Reservation},
};

/// State between the first `PtlInit` and the last `PtlFini`.
#[derive(Debug)]
struct Library {
    inits: u32,
    /// True if all waits end immediately, including those on interfaces opened later.
    aborted: bool,
    interfaces: Vec<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    nic: Arc<Nic<ProcessMemory>>,
    users: u32,
    rail: u32,
    kind: u32,
    /// True if changes by atomics stay hidden until [`publish`].
    hides: bool,
    pid: Arc<Pid>,
}

/// A process id, shared by interfaces.
#[derive(Debug)]
struct Pid {
    pid: u32,
    _reservation: Reservation,
}

/// Arguments of `PtlNIInit`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) rail: u32,
    pub(super) matching: bool,
    pub(super) logical: bool,
    /// The requested process id, or `None` for any up to `pid_max`.
    pub(super) pid: Option<u32>,
    pub(super) pid_max: u32,
    pub(super) limits: Option<Limits>,
    pub(super) family: Family,
}

static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);

fn library() -> MutexGuard<'static, Option<Library>> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn init() {
    let mut library = library();
    let library = library.get_or_insert_with(|| Library {
        inits: 0,
        aborted: false,
        interfaces: Vec::new(),
    });
    library.inits += 1;
}

/// Closes all interfaces on the last call.
pub(super) fn fini() {
    let mut guard = library();
    let Some(library) = guard.as_mut() else {
        return;
    };
    library.inits -= 1;
    if library.inits == 0 {
        let ended = guard.take();
        drop(guard);
        for open in ended
            .iter()
            .flat_map(|library| library.interfaces.iter().flatten())
        {
            open.end();
        }
    }
}

/// Ends every wait, current and future.
pub(super) fn abort() {
    let mut guard = library();
    let Some(library) = guard.as_mut() else {
        return;
    };
    library.aborted = true;
    let interfaces = library.interfaces.iter().flatten();
    interfaces.for_each(|open| open.nic.abort());
}

pub(super) fn is_aborted() -> bool {
    library().as_ref().is_some_and(|library| library.aborted)
}

pub(super) fn is_initialised() -> bool {
    library().is_some()
}

/// Makes hidden changes by atomics visible to the host.
pub(super) fn publish() {
    let guard = library();
    let interfaces = guard.iter().flat_map(|library| &library.interfaces);
    for open in interfaces.flatten().filter(|open| open.hides) {
        open.nic.call(|interface| interface.memory().publish());
    }
}

/// Returns the interface with this number.
pub(super) fn nic(ni: u32) -> Result<Arc<Nic<ProcessMemory>>, Error> {
    let guard = library();
    let library = guard.as_ref().ok_or(Error::NoInit)?;
    let open = library.interfaces.get(ni as usize).and_then(Option::as_ref);
    open.map(|open| Arc::clone(&open.nic))
        .ok_or(Error::ArgInvalid("ni_handle"))
}

/// Opens an interface, or adds a user to one that is open.
pub(super) fn open(
    wanted: Wanted,
    memory: impl Fn() -> ProcessMemory,
) -> Result<(u32, Limits), Error> {
    if wanted.rail >= RAILS {
        return Err(Error::ArgInvalid("iface"));
    }
    let mut guard = library();
    let library = guard.as_mut().ok_or(Error::NoInit)?;
    let settings = Settings::read(wanted.rail)?;
    if let (Some(ni), true) = (library.find(&wanted), settings.reuse) {
        return library.open_again(ni);
    }
    let place = Place {
        network: settings.network.clone(),
        rail: wanted.rail,
        kind: wanted.kind(),
    };
    let limits = wanted.limits.unwrap_or(settings.ceiling);
    let limits = limits.within(&settings.ceiling);
    let setup = |pid| Setup {
        config: Config {
            matching: wanted.matching,
            logical: wanted.logical,
            address: Address {
                nid: settings.nid,
                pid,
            },
            uid: rustix::process::geteuid().as_raw(),
            limits,
            packet_max: settings.wires.packet_max(),
            inline_max: settings.mode.inline_max(),
            counts_events: settings.counts_events,
            family: wanted.family,
            habits: settings.habits,
        },
        place: place.clone(),
        mode: settings.mode,
        wires: settings.wires.clone(),
        core: settings.core,
    };
    let mut passed_over = Vec::new();
    let (nic, pid) = loop {
        let pid = library.pid(&place, &wanted, &settings)?;
        let memory = match settings.habits.incoherent {
            true => memory().hiding_atomics(),
            false => memory(),
        };
        match Nic::open(setup(pid.pid), memory) {
            // The previous owner of this id has not ended yet, or another program uses its ports. Try another id unless one was
            // requested.
            Err(Errno::ADDRINUSE) if wanted.pid.is_none() && Arc::strong_count(&pid) == 1 => {
                passed_over.push(pid);
            }
            opened => break (opened.map_err(refused)?, pid),
        }
    };
    if library.aborted {
        nic.abort();
    }
    let open = Open {
        nic: Arc::new(nic),
        users: 1,
        rail: wanted.rail,
        kind: wanted.kind(),
        hides: settings.habits.incoherent,
        pid,
    };
    Ok((library.insert(open)?, limits))
}

/// Removes a user of an interface. The last one closes it and wakes the threads that wait for it.
pub(super) fn close(ni: u32) -> Result<(), Error> {
    let mut guard = library();
    let library = guard.as_mut().ok_or(Error::NoInit)?;
    let slot = library.interfaces.get_mut(ni as usize);
    let slot = slot
        .filter(|slot| slot.is_some())
        .ok_or(Error::ArgInvalid("ni_handle"))?;
    if let Some(open) = slot.as_mut().filter(|open| open.users > 1) {
        open.users -= 1;
        return Ok(());
    }
    let ended = slot.take();
    // The agent ends when the last waiting thread has dropped its reference, which must happen without the lock.
    drop(guard);
    if let Some(open) = ended {
        open.end();
    }
    Ok(())
}

impl Open {
    /// Wakes waiting threads, and lingers until peers have received everything.
    fn end(&self) {
        self.nic.interrupt();
        self.nic.linger(LINGER_MAX);
    }
}

impl Library {
    fn find(&self, wanted: &Wanted) -> Option<usize> {
        let same = |open: &Open| open.rail == wanted.rail && open.kind == wanted.kind();
        self.interfaces
            .iter()
            .position(|open| open.as_ref().is_some_and(same))
    }

    fn open_again(&mut self, ni: usize) -> Result<(u32, Limits), Error> {
        let open = self.interfaces[ni].as_mut().ok_or(Error::Fail)?;
        open.users += 1;
        let limits = open.nic.call(|interface| interface.config().limits);
        Ok((u32::try_from(ni).map_err(|_| Error::Fail)?, limits))
    }

    fn insert(&mut self, open: Open) -> Result<u32, Error> {
        let free = self.interfaces.iter().position(Option::is_none);
        let ni = match free {
            Some(ni) => ni,
            None if self.interfaces.len() < INTERFACES_MAX => {
                self.interfaces.push(None);
                self.interfaces.len() - 1
            }
            None => return Err(Error::NoSpace),
        };
        self.interfaces[ni] = Some(open);
        u32::try_from(ni).map_err(|_| Error::NoSpace)
    }

    /// Returns the process id for an interface: shared with others of its rail if they may be reused, otherwise its own.
    fn pid(&self, place: &Place, wanted: &Wanted, settings: &Settings) -> Result<Arc<Pid>, Error> {
        let mut of_rail = self
            .interfaces
            .iter()
            .flatten()
            .filter(|open| open.rail == place.rail)
            .map(|open| &open.pid);
        let held = match wanted.pid {
            None if settings.reuse => of_rail.next(),
            None => None,
            Some(pid) => match of_rail.find(|held| settings.reuse || held.pid == pid) {
                Some(held) if held.pid != pid => return Err(Error::PidInUse),
                held => held,
            },
        };
        if let Some(held) = held {
            return Ok(Arc::clone(held));
        }
        let most = wanted.pid_max.min(settings.pid_max);
        // Sandia's process ids are UDP ports, so ids above its `PTL_PID_MAX` are valid.
        let named_most = match wanted.family {
            Family::Sandia => settings.pid_max,
            Family::Bull => most,
        };
        let (pid, reservation) = match wanted.pid {
            Some(pid) if pid > named_most => return Err(Error::ArgInvalid("pid")),
            Some(pid) => (pid, Reservation::take(place, pid).map_err(refused)?),
            None => any_pid(place, most)?,
        };
        Ok(Arc::new(Pid {
            pid,
            _reservation: reservation,
        }))
    }
}

impl Wanted {
    fn kind(&self) -> u32 {
        u32::from(self.matching) << 1 | u32::from(self.logical)
    }
}

/// Reserves the first free id, starting from one that depends on the system's process id to avoid collisions.
fn any_pid(place: &Place, most: u32) -> Result<(u32, Reservation), Error> {
    let start = std::process::id() % most;
    for step in 0..most {
        let pid = 1 + (start + step) % most;
        match Reservation::take(place, pid) {
            Ok(reservation) => return Ok((pid, reservation)),
            Err(Errno::ADDRINUSE) => {}
            Err(_) => return Err(Error::Fail),
        }
    }
    Err(Error::PidInUse)
}

fn refused(why: Errno) -> Error {
    if why == Errno::ADDRINUSE {
        Error::PidInUse
    } else {
        Error::Fail
    }
}

/// Limit on lingering. A frame to a living peer has been resent eight times by then, and a dead peer delays us no longer.
const LINGER_MAX: Duration = Duration::from_secs(1);
const RAILS: u32 = 4;
/// Number of interfaces that handles can name. The last number is left out, because a handle of all ones is invalid.
const INTERFACES_MAX: usize = 63;
