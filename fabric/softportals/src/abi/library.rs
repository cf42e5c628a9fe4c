//! The interfaces of this process, behind the handles that C programs hold.

use std::{
    env,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::io::Errno;

use crate::{
    error::Error,
    event::Address,
    interface::Config,
    limits::Limits,
    process::{Mode, Nic, ProcessMemory, Setup},
    transport::{Place, Reservation},
};

/// Between the first `PtlInit` and the last `PtlFini`.
#[derive(Debug)]
struct Library {
    inits: u32,
    /// By rail and kind.
    interfaces: [Option<Open>; RAILS as usize * KINDS as usize],
    pids: [Option<Pid>; RAILS as usize],
}

#[derive(Debug)]
struct Open {
    nic: Arc<Nic<ProcessMemory>>,
    users: u32,
}

/// A process id that the interfaces of one rail share.
#[derive(Debug)]
struct Pid {
    pid: u32,
    users: u32,
    _reservation: Reservation,
}

/// What `PtlNIInit` asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) rail: u32,
    pub(super) matching: bool,
    pub(super) logical: bool,
    /// One of these, or any up to the greatest.
    pub(super) pid: Option<u32>,
    pub(super) pid_max: u32,
    pub(super) limits: Option<Limits>,
}

static LIBRARY: Mutex<Option<Library>> = Mutex::new(None);

fn library() -> MutexGuard<'static, Option<Library>> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn init() {
    let mut library = library();
    let library = library.get_or_insert_with(|| Library {
        inits: 0,
        interfaces: [const { None }; _],
        pids: [const { None }; _],
    });
    library.inits += 1;
}

/// The last one closes what is open.
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
            open.nic.interrupt();
        }
    }
}

/// Wakes everybody who waits, for ever.
pub(super) fn abort() {
    let guard = library();
    let interfaces = guard
        .iter()
        .flat_map(|library| library.interfaces.iter().flatten());
    interfaces.for_each(|open| open.nic.abort());
}

pub(super) fn is_initialised() -> bool {
    library().is_some()
}

/// The interface with this number.
pub(super) fn nic(ni: u32) -> Result<Arc<Nic<ProcessMemory>>, Error> {
    let guard = library();
    let library = guard.as_ref().ok_or(Error::NoInit)?;
    let open = library.interfaces.get(ni as usize).and_then(Option::as_ref);
    open.map(|open| Arc::clone(&open.nic))
        .ok_or(Error::ArgInvalid("ni_handle"))
}

/// Opens an interface, or counts another user of one that is open.
pub(super) fn open(
    wanted: Wanted,
    memory: impl FnOnce() -> ProcessMemory,
) -> Result<(u32, Limits), Error> {
    if wanted.rail >= RAILS {
        return Err(Error::ArgInvalid("iface"));
    }
    let mut guard = library();
    let library = guard.as_mut().ok_or(Error::NoInit)?;
    let kind = u32::from(wanted.matching) << 1 | u32::from(wanted.logical);
    let ni = wanted.rail * KINDS + kind;
    if let Some(open) = &mut library.interfaces[ni as usize] {
        open.users += 1;
        return Ok((ni, open.nic.call(|interface| interface.config().limits)));
    }
    let most = ceiling()?;
    let limits = wanted.limits.unwrap_or(most).within(&most);
    let place = Place {
        network: network(),
        rail: wanted.rail,
        kind,
    };
    let mode = mode()?;
    let pid = library.reserve(&place, &wanted)?;
    let config = Config {
        matching: wanted.matching,
        logical: wanted.logical,
        address: Address { nid: nid()?, pid },
        uid: rustix::process::geteuid().as_raw(),
        limits,
        packet_max: PACKET_MAX,
        inline_max: mode.inline_max(),
    };
    match Nic::open(
        Setup {
            config,
            place,
            mode,
        },
        memory(),
    ) {
        Ok(nic) => {
            let nic = Arc::new(nic);
            library.interfaces[ni as usize] = Some(Open { nic, users: 1 });
            Ok((ni, limits))
        }
        Err(why) => {
            library.release(wanted.rail);
            Err(if why == Errno::ADDRINUSE {
                Error::PidInUse
            } else {
                Error::Fail
            })
        }
    }
}

/// The last user closes an interface, and wakes who waits for it.
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
    // Its agent ends after the lock is free, and after the last of those who wait has left.
    drop(guard);
    if let Some(open) = ended {
        open.nic.interrupt();
    }
    // Not before the port is closed: who gets the process id next opens one of the same name.
    if let Some(library) = self::library().as_mut() {
        library.release(ni / KINDS);
    }
    Ok(())
}

impl Library {
    fn reserve(&mut self, place: &Place, wanted: &Wanted) -> Result<u32, Error> {
        let slot = &mut self.pids[place.rail as usize];
        if let Some(held) = slot {
            if wanted.pid.is_some_and(|pid| pid != held.pid) {
                return Err(Error::PidInUse);
            }
            held.users += 1;
            return Ok(held.pid);
        }
        let (pid, reservation) = match wanted.pid {
            Some(pid) => (pid, Reservation::take(place, pid).map_err(refused)?),
            None => any_pid(place, wanted.pid_max)?,
        };
        *slot = Some(Pid {
            pid,
            users: 1,
            _reservation: reservation,
        });
        Ok(pid)
    }

    fn release(&mut self, rail: u32) {
        let slot = &mut self.pids[rail as usize];
        if let Some(held) = slot {
            held.users -= 1;
            if held.users == 0 {
                *slot = None;
            }
        }
    }
}

/// The first free one from one on that other processes are not likely to start with.
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

/// `RIPSTOP_PORTALS_NETWORK`: jobs with different ones do not see each other.
fn network() -> String {
    env::var("RIPSTOP_PORTALS_NETWORK").unwrap_or_else(|_| "default".to_owned())
}

/// `RIPSTOP_PORTALS_MODE`: `offload` or `generic`.
fn mode() -> Result<Mode, Error> {
    match env::var("RIPSTOP_PORTALS_MODE").as_deref() {
        Ok("generic") => Ok(Mode::Generic),
        Ok("offload") | Err(_) => Ok(Mode::Offload),
        Ok(_) => Err(Error::ArgInvalid(
            "RIPSTOP_PORTALS_MODE: offload or generic",
        )),
    }
}

/// `RIPSTOP_PORTALS_NID`: what this machine is called.
fn nid() -> Result<u32, Error> {
    match env::var("RIPSTOP_PORTALS_NID") {
        Ok(nid) => nid
            .parse()
            .map_err(|_| Error::ArgInvalid("RIPSTOP_PORTALS_NID")),
        Err(_) => Ok(1),
    }
}

/// `RIPSTOP_PORTALS_LIMITS`: what an interface has at most, as `name=number,name=number`.
fn ceiling() -> Result<Limits, Error> {
    match env::var("RIPSTOP_PORTALS_LIMITS") {
        Ok(text) => Limits::MOST
            .lowered(&text)
            .ok_or(Error::ArgInvalid("RIPSTOP_PORTALS_LIMITS")),
        Err(_) => Ok(Limits::MOST),
    }
}

const RAILS: u32 = 4;
const KINDS: u32 = 4;
/// Payload of a datagram: longer ones gave no bandwidth, and the kernel has to find memory for one at once.
const PACKET_MAX: usize = 32 << 10;
