//! Network interfaces, and calls about the library as a whole.
#![expect(
    unsafe_code,
    reason = "C callers give pointers to arguments and to places for results"
)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the promise of all of them is at the head of the parent module"
)]

use std::{
    ffi::{CStr, c_char},
    os::fd::AsRawFd,
};

use super::{
    super::{
        CPollFd, FamilyAbi, PtlNiLimits, PtlProcess,
        convert::{self, PtlHandleKind, interface_of},
        library::{self, NiInitArgs},
        settings::SoftRailSettings,
    },
    answer, give, handle, interface, wanted,
};
use crate::{
    error::SoftError, event::SoftPeer, interface::LibraryFamily, process::ProcessMemory,
    slab::GenerationalId,
};

/// `PtlInit`.
pub fn init() -> i32 {
    library::init();
    0
}

/// `PtlFini`.
pub fn fini() {
    library::fini();
}

/// `PtlAbort`.
pub fn abort() {
    library::abort();
}

/// `PtlNIInit`.
pub unsafe fn ni_init<P: FamilyAbi>(
    iface: u32,
    options: u32,
    pid: u32,
    desired: *const PtlNiLimits,
    actual: *mut PtlNiLimits,
    ni: *mut P::Handle,
) -> i32 {
    let numbers = P::NUMBERS;
    let opened = || {
        if !library::is_initialised() {
            return Err(SoftError::NoInit);
        }
        wanted(ni, "ni_handle")?;
        let [matching, unmatched, logical, physical] = numbers.ni;
        let known = matching | unmatched | logical | physical;
        let one = |a: u32, b: u32| (options & a != 0) != (options & b != 0);
        if options & !known != 0 || !one(matching, unmatched) || !one(logical, physical) {
            return Err(SoftError::ArgInvalid("options"));
        }
        // SAFETY: the pointer is null or points to the caller's limits.
        let limits = unsafe { desired.as_ref() };
        let wanted = NiInitArgs {
            rail: if iface == numbers.iface_default {
                0
            } else {
                iface
            },
            matching: options & matching != 0,
            logical: options & logical != 0,
            pid: (pid != numbers.pid_any).then_some(pid),
            pid_max: numbers.pid_max,
            limits: limits.map(convert::from_limits),
            family: P::FAMILY,
        };
        // SAFETY: a C program gives memory to descriptors and entries as the specification asks: for as long as they exist.
        library::open(wanted, || unsafe { ProcessMemory::new() })
    };
    answer::<P>(opened().map(|(number, limits)| {
        let habits =
            library::nic(number).map(|nic| nic.call(|interface| interface.config().habits));
        let features = match habits {
            Ok(habits) if habits.incoherent => numbers.features & !COHERENT_ATOMICS,
            _ => numbers.features,
        };
        let id = GenerationalId {
            slot: 0,
            generation: 0,
        };
        // SAFETY: the pointer is null or points to a place for limits.
        unsafe { give(actual, convert::to_limits(&limits, features)) };
        // SAFETY: the pointer is not null, as checked.
        unsafe { give(ni, handle::<P>(PtlHandleKind::Ni, number, id)) };
    }))
}

/// `PtlNIFini`.
pub fn ni_fini<P: FamilyAbi>(ni: P::Handle) -> i32 {
    answer::<P>(interface::<P>(ni).and_then(|(number, nic)| {
        drop(nic);
        library::close(number)
    }))
}

/// `PtlNIStatus`.
pub unsafe fn ni_status<P: FamilyAbi>(ni: P::Handle, index: u32, value: *mut i32) -> i32 {
    let status = || {
        let (_, nic) = interface::<P>(ni)?;
        let value = wanted(value, "status")?;
        let status = nic.call(|interface| interface.status());
        let count = match index {
            0 => status.drops,
            1 => status.permission_violations,
            2 => status.operation_violations,
            _ => return Err(SoftError::ArgInvalid("status_register")),
        };
        // SAFETY: the pointer is not null, as checked.
        unsafe { give(value, i32::try_from(count).unwrap_or(i32::MAX)) };
        Ok(())
    };
    answer::<P>(status())
}

/// `PtlNIHandle`.
pub unsafe fn ni_handle<P: FamilyAbi>(any: P::Handle, ni: *mut P::Handle) -> i32 {
    let found = || {
        if !library::is_initialised() {
            return Err(SoftError::NoInit);
        }
        let unknown = SoftError::ArgInvalid("handle");
        let none = P::NONE.contains(&any);
        let number = interface_of(P::bits(any))
            .filter(|_| !none)
            .ok_or(unknown)?;
        library::nic(number).map_err(|_| unknown)?;
        let id = GenerationalId {
            slot: 0,
            generation: 0,
        };
        // SAFETY: the pointer is not null, as checked.
        unsafe {
            give(
                wanted(ni, "ni_handle")?,
                handle::<P>(PtlHandleKind::Ni, number, id),
            )
        };
        Ok(())
    };
    answer::<P>(found())
}

/// `PtlSetMap`.
pub unsafe fn set_map<P: FamilyAbi>(ni: P::Handle, size: u64, map: *const PtlProcess) -> i32 {
    let set = || {
        let (_, nic) = interface::<P>(ni)?;
        let size = usize::try_from(size).map_err(|_| SoftError::ArgInvalid("map_size"))?;
        if map.is_null() || size == 0 {
            return Err(SoftError::ArgInvalid("mapping"));
        }
        // SAFETY: the caller promises an array of this length, and it is not null.
        let map = unsafe { std::slice::from_raw_parts(map, size) };
        let map: Vec<_> = map
            .iter()
            .map(|process| convert::address(*process))
            .collect();
        nic.call(|interface| interface.set_map(&map))
    };
    answer::<P>(set())
}

/// `PtlGetMap`.
pub unsafe fn get_map<P: FamilyAbi>(
    ni: P::Handle,
    size: u64,
    map: *mut PtlProcess,
    actual: *mut u64,
) -> i32 {
    let get = || {
        let (_, nic) = interface::<P>(ni)?;
        let (logical, known) =
            nic.call(|interface| (interface.config().logical, interface.map().to_vec()));
        if !logical || (map.is_null() && size > 0) {
            return Err(SoftError::ArgInvalid("mapping"));
        }
        if known.is_empty() {
            return Err(match P::FAMILY {
                LibraryFamily::Sandia => SoftError::NoSpace,
                LibraryFamily::Bull => SoftError::Fail,
            });
        }
        let room = usize::try_from(size).unwrap_or(usize::MAX);
        for (at, address) in known.iter().take(room).enumerate() {
            // SAFETY: the place is inside the caller's array.
            let place = unsafe { map.add(at) };
            // SAFETY: as above.
            unsafe { place.write(convert::at(*address)) };
        }
        // SAFETY: the pointer is null or points to a place for a size.
        unsafe { give(actual, known.len() as u64) };
        Ok(())
    };
    answer::<P>(get())
}

/// `PtlGetUid`.
pub unsafe fn get_uid<P: FamilyAbi>(ni: P::Handle, uid: *mut u32) -> i32 {
    let get = || {
        let (_, nic) = interface::<P>(ni)?;
        let own = nic.call(|interface| interface.config().uid);
        // SAFETY: the pointer is not null, as checked.
        unsafe { give(wanted(uid, "uid")?, own) };
        Ok(())
    };
    answer::<P>(get())
}

/// `PtlGetId`, or `PtlGetPhysId` if `physical`. Before the map is set, Sandia's library returns the address as a rank, and Bull's
/// fails.
pub unsafe fn get_id<P: FamilyAbi>(ni: P::Handle, physical: bool, id: *mut PtlProcess) -> i32 {
    let get = || {
        let (_, nic) = interface::<P>(ni)?;
        let own = nic.call(|interface| {
            let config = interface.config();
            match interface.id() {
                _ if physical => Ok(convert::at(config.address)),
                SoftPeer::At(_) if config.logical && P::FAMILY == LibraryFamily::Bull => {
                    Err(SoftError::Fail)
                }
                id => Ok(convert::process(id)),
            }
        })?;
        // SAFETY: the pointer is not null, as checked.
        unsafe { give(wanted(id, "id")?, own) };
        Ok(())
    };
    answer::<P>(get())
}

/// `PtlNFDs` of BXI: returns the number of descriptors that [`poll_fds`] fills in, or 0 if the interface does not exist.
pub fn n_fds<P: FamilyAbi>(ni: P::Handle) -> i32 {
    i32::from(interface::<P>(ni).is_ok())
}

/// `PtlPollFDs` of BXI: fills in the descriptors to `poll`, and returns their number.
///
/// A queued event makes the descriptor readable immediately, so no event is missed between the last look and the sleep.
pub unsafe fn poll_fds<P: FamilyAbi>(ni: P::Handle, fds: *mut CPollFd, events: i32) -> i32 {
    let Ok((_, nic)) = interface::<P>(ni) else {
        return 0;
    };
    if fds.is_null() {
        return 0;
    }
    let entry = CPollFd {
        fd: nic.arm().as_raw_fd(),
        events: i16::try_from(events).unwrap_or(0) | READABLE,
        revents: 0,
    };
    // SAFETY: the pointer is not null, so it points to a place for a result.
    unsafe { give(fds, entry) };
    1
}

/// `PtlPollEvents` of BXI: after `poll`, returns `POLLIN` if there is news.
pub unsafe fn poll_events<P: FamilyAbi>(ni: P::Handle, fds: *const CPollFd) -> i32 {
    let Ok((_, nic)) = interface::<P>(ni) else {
        return 0;
    };
    // SAFETY: the pointer is null or points to one entry of the caller's.
    let is_ready = unsafe { fds.as_ref() }.is_some_and(|entry| entry.revents & READABLE != 0);
    let believes = nic.call(|interface| interface.config().habits.polled_only);
    if believes && !is_ready {
        return 0;
    }
    i32::from(if nic.disarm() { READABLE } else { 0 })
}

/// Returns the interrupts of the host, or [`u64::MAX`] if the interface does not exist or never interrupts.
pub fn interrupts<P: FamilyAbi>(ni: P::Handle) -> u64 {
    let interrupts = interface::<P>(ni).map(|(_, nic)| nic.interrupts());
    interrupts.ok().flatten().unwrap_or(u64::MAX)
}

/// Sets optional behaviors for all interfaces opened later, like `RIPSTOP_PORTALS_HABITS`. Used by tests with several libraries
/// in one process.
pub unsafe fn adopt<P: FamilyAbi>(habits: *const c_char) -> i32 {
    let known = |habits: *const c_char| {
        // SAFETY: the text ends with a zero, as the caller says.
        let habits = unsafe { CStr::from_ptr(habits) };
        habits.to_str().is_ok_and(SoftRailSettings::adopt)
    };
    let adopted = !habits.is_null() && known(habits);
    answer::<P>(adopted.then_some(()).ok_or(SoftError::ArgInvalid("habits")))
}

/// Returns 1 if operations to a dead process complete, 0 if not, or -1 if the interface does not exist.
pub fn ends_to_dead<P: FamilyAbi>(ni: P::Handle) -> i32 {
    interface::<P>(ni).map_or(-1, |(_, nic)| {
        let habits = nic.call(|interface| interface.config().habits);
        i32::from(!habits.ends_never)
    })
}

/// `PtlStartBundle` and `PtlEndBundle`: hints without effect, because operations leave as soon as they start.
pub fn bundle<P: FamilyAbi>(ni: P::Handle) -> i32 {
    answer::<P>(interface::<P>(ni).map(drop))
}

/// `PtlAtomicSync`: makes changes by atomics visible to the host. Changes that are not hidden on purpose are visible as soon
/// as the event of their atomic is.
pub fn atomic_sync<P: FamilyAbi>() -> i32 {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    answer::<P>(if library::is_initialised() {
        library::publish();
        Ok(())
    } else {
        Err(SoftError::NoInit)
    })
}

/// `PtlHandleIsEqual`.
pub fn handle_is_equal<P: FamilyAbi>(a: P::Handle, b: P::Handle) -> i32 {
    i32::from(a == b)
}

/// `PTL_COHERENT_ATOMICS` of the family that names it.
const COHERENT_ATOMICS: u32 = 4;
/// `POLLIN`.
const READABLE: i16 = 1;
