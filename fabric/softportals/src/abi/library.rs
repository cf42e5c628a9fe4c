//! The open interfaces of this process, behind the handles that C programs hold.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::io::Errno;

use super::settings::SoftRailSettings;
use crate::{
    error::SoftError,
    event::PhysicalId,
    interface::{LibraryFamily, NiConfig},
    limits::NiLimits,
    memory::AppMemory as _,
    process::{ProcessMemory, SoftNic, SoftNicSetup},
    transport::{InterfaceLocation, PidReservation},
};

/// State between the first `PtlInit` and the last `PtlFini`.
#[derive(Debug)]
struct SoftLibrary {
    inits: u32,
    /// True if all waits end immediately, including those on interfaces opened later.
    aborted: bool,
    interfaces: Vec<Option<OpenInterface>>,
}

#[derive(Debug)]
struct OpenInterface {
    nic: Arc<SoftNic<ProcessMemory>>,
    users: u32,
    rail: u32,
    kind: u32,
    /// True if changes by atomics stay hidden until [`publish`].
    hides: bool,
    pid: Arc<SharedPid>,
}

/// A process id, shared by interfaces.
#[derive(Debug)]
struct SharedPid {
    pid: u32,
    _reservation: PidReservation,
}

/// Arguments of `PtlNIInit`.
#[derive(Clone, Copy, Debug)]
pub(super) struct NiInitArgs {
    pub(super) rail: u32,
    pub(super) matching: bool,
    pub(super) logical: bool,
    /// The requested process id, or `None` for any up to `pid_max`.
    pub(super) pid: Option<u32>,
    pub(super) pid_max: u32,
    pub(super) limits: Option<NiLimits>,
    pub(super) family: LibraryFamily,
}

static LIBRARY: Mutex<Option<SoftLibrary>> = Mutex::new(None);

fn library() -> MutexGuard<'static, Option<SoftLibrary>> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn init() {
    let mut library = library();
    let library = library.get_or_insert_with(|| SoftLibrary {
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
pub(super) fn nic(ni: u32) -> Result<Arc<SoftNic<ProcessMemory>>, SoftError> {
    let guard = library();
    let library = guard.as_ref().ok_or(SoftError::NoInit)?;
    let open = library.interfaces.get(ni as usize).and_then(Option::as_ref);
    open.map(|open| Arc::clone(&open.nic))
        .ok_or(SoftError::ArgInvalid("ni_handle"))
}

/// Opens an interface, or adds a user to one that is open.
pub(super) fn open(
    wanted: NiInitArgs,
    memory: impl Fn() -> ProcessMemory,
) -> Result<(u32, NiLimits), SoftError> {
    if wanted.rail >= RAILS {
        return Err(SoftError::ArgInvalid("iface"));
    }
    let mut guard = library();
    let library = guard.as_mut().ok_or(SoftError::NoInit)?;
    let settings = SoftRailSettings::read(wanted.rail)?;
    if let (Some(ni), true) = (library.find(&wanted), settings.reuse) {
        return library.open_again(ni);
    }
    let place = InterfaceLocation {
        network: settings.network.clone(),
        rail: wanted.rail,
        kind: wanted.kind(),
    };
    let limits = wanted.limits.unwrap_or(settings.ceiling);
    let limits = limits.within(&settings.ceiling);
    let setup = |pid| SoftNicSetup {
        config: NiConfig {
            matching: wanted.matching,
            logical: wanted.logical,
            address: PhysicalId {
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
        match SoftNic::open(setup(pid.pid), memory) {
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
    let open = OpenInterface {
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
pub(super) fn close(ni: u32) -> Result<(), SoftError> {
    let mut guard = library();
    let library = guard.as_mut().ok_or(SoftError::NoInit)?;
    let slot = library.interfaces.get_mut(ni as usize);
    let slot = slot
        .filter(|slot| slot.is_some())
        .ok_or(SoftError::ArgInvalid("ni_handle"))?;
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

impl OpenInterface {
    /// Wakes waiting threads, and lingers until peers have received everything.
    fn end(&self) {
        self.nic.interrupt();
        self.nic.linger(LINGER_MAX);
    }
}

impl SoftLibrary {
    fn find(&self, wanted: &NiInitArgs) -> Option<usize> {
        let same = |open: &OpenInterface| open.rail == wanted.rail && open.kind == wanted.kind();
        self.interfaces
            .iter()
            .position(|open| open.as_ref().is_some_and(same))
    }

    fn open_again(&mut self, ni: usize) -> Result<(u32, NiLimits), SoftError> {
        let open = self.interfaces[ni].as_mut().ok_or(SoftError::Fail)?;
        open.users += 1;
        let limits = open.nic.call(|interface| interface.config().limits);
        Ok((u32::try_from(ni).map_err(|_| SoftError::Fail)?, limits))
    }

    fn insert(&mut self, open: OpenInterface) -> Result<u32, SoftError> {
        let free = self.interfaces.iter().position(Option::is_none);
        let ni = match free {
            Some(ni) => ni,
            None if self.interfaces.len() < INTERFACES_MAX => {
                self.interfaces.push(None);
                self.interfaces.len() - 1
            }
            None => return Err(SoftError::NoSpace),
        };
        self.interfaces[ni] = Some(open);
        u32::try_from(ni).map_err(|_| SoftError::NoSpace)
    }

    /// Returns the process id for an interface: shared with others of its rail if they may be reused, otherwise its own.
    fn pid(
        &self,
        place: &InterfaceLocation,
        wanted: &NiInitArgs,
        settings: &SoftRailSettings,
    ) -> Result<Arc<SharedPid>, SoftError> {
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
                Some(held) if held.pid != pid => return Err(SoftError::PidInUse),
                held => held,
            },
        };
        if let Some(held) = held {
            return Ok(Arc::clone(held));
        }
        let most = wanted.pid_max.min(settings.pid_max);
        // Sandia's process ids are UDP ports, so ids above its `PTL_PID_MAX` are valid.
        let named_most = match wanted.family {
            LibraryFamily::Sandia => settings.pid_max,
            LibraryFamily::Bull => most,
        };
        let (pid, reservation) = match wanted.pid {
            Some(pid) if pid > named_most => return Err(SoftError::ArgInvalid("pid")),
            Some(pid) => (pid, PidReservation::take(place, pid).map_err(refused)?),
            None => any_pid(place, most)?,
        };
        Ok(Arc::new(SharedPid {
            pid,
            _reservation: reservation,
        }))
    }
}

impl NiInitArgs {
    fn kind(&self) -> u32 {
        u32::from(self.matching) << 1 | u32::from(self.logical)
    }
}

/// Reserves the first free id, starting from one that depends on the system's process id to avoid collisions.
fn any_pid(place: &InterfaceLocation, most: u32) -> Result<(u32, PidReservation), SoftError> {
    let start = std::process::id() % most;
    for step in 0..most {
        let pid = 1 + (start + step) % most;
        match PidReservation::take(place, pid) {
            Ok(reservation) => return Ok((pid, reservation)),
            Err(Errno::ADDRINUSE) => {}
            Err(_) => return Err(SoftError::Fail),
        }
    }
    Err(SoftError::PidInUse)
}

fn refused(why: Errno) -> SoftError {
    if why == Errno::ADDRINUSE {
        SoftError::PidInUse
    } else {
        SoftError::Fail
    }
}

/// Limit on lingering. A frame to a living peer has been resent eight times by then, and a dead peer delays the exit no longer.
const LINGER_MAX: Duration = Duration::from_secs(1);
const RAILS: u32 = 4;
/// Number of interfaces that handles can name. The last number is left out, because a handle of all ones is invalid.
const INTERFACES_MAX: usize = 63;
