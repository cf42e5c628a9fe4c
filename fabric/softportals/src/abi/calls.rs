//! What the functions do, for every family.
//!
//! All return a code of their family. Pointers are the caller's promise, as in C: what is read is readable, what is written
//! writable, and arrays are as long as said. Null is refused where the specification says so.
#![expect(
    unsafe_code,
    reason = "C callers give pointers to arguments and to places for results"
)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the promise of all of them is at the head of the module"
)]

use std::{ffi::c_void, os::fd::AsRawFd, sync::Arc, time::Duration};

use super::{
    CtEvent, Limits, Md, Me, Numbers, PollFd, Process, Profile,
    convert::{self, Kind, interface_of, pack, unpack},
    library::{self, Wanted},
};
use crate::{
    counter::Count,
    error::Error,
    event::{List, Peer, Taken},
    interface::{
        Command, CtId, EntryId, EqId, Interface, Local, MdId, Remote, SearchMode, Trigger,
    },
    packet::Operand,
    process::{Nic, ProcessMemory},
    slab::Id,
};

type Port = Arc<Nic<ProcessMemory>>;
type Face = Interface<ProcessMemory>;

/// What a function answers: nothing, or why not.
fn answer<P: Profile>(result: Result<(), Error>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(error) => P::NUMBERS.code(error),
    }
}

/// Writes a result, if the caller wants it.
unsafe fn give<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not null, and so a place for a `T`.
        unsafe { place.write(value) };
    }
}

unsafe fn take<'a, T>(place: *const T, name: &'static str) -> Result<&'a T, Error> {
    // SAFETY: null, or a `T` of the caller.
    unsafe { place.as_ref() }.ok_or(Error::ArgInvalid(name))
}

fn wanted<T>(place: *mut T, name: &'static str) -> Result<*mut T, Error> {
    if place.is_null() {
        return Err(Error::ArgInvalid(name));
    }
    Ok(place)
}

/// The interface of an object, and the object.
fn object<P: Profile>(
    kind: Kind,
    handle: P::Handle,
    name: &'static str,
) -> Result<(u32, Port, Id), Error> {
    if !library::is_initialised() {
        return Err(Error::NoInit);
    }
    let (ni, id) = unpack(kind, P::bits(handle)).ok_or(Error::ArgInvalid(name))?;
    let nic = library::nic(ni).map_err(|error| match error {
        Error::NoInit => error,
        _ => Error::ArgInvalid(name),
    })?;
    Ok((ni, nic, id))
}

fn interface<P: Profile>(handle: P::Handle) -> Result<(u32, Port), Error> {
    object::<P>(Kind::Ni, handle, "ni_handle").map(|(ni, nic, _)| (ni, nic))
}

fn handle<P: Profile>(kind: Kind, ni: u32, id: Id) -> P::Handle {
    P::handle(pack(kind, ni, id))
}

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
pub unsafe fn ni_init<P: Profile>(
    iface: u32,
    options: u32,
    pid: u32,
    desired: *const Limits,
    actual: *mut Limits,
    ni: *mut P::Handle,
) -> i32 {
    let numbers = P::NUMBERS;
    let opened = || {
        if !library::is_initialised() {
            return Err(Error::NoInit);
        }
        wanted(ni, "ni_handle")?;
        let [matching, unmatched, logical, physical] = numbers.ni;
        let known = matching | unmatched | logical | physical;
        let one = |a: u32, b: u32| (options & a != 0) != (options & b != 0);
        if options & !known != 0 || !one(matching, unmatched) || !one(logical, physical) {
            return Err(Error::ArgInvalid("options"));
        }
        // SAFETY: null, or the caller's limits.
        let limits = unsafe { desired.as_ref() };
        let wanted = Wanted {
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
        };
        // SAFETY: a C program gives memory to descriptors and entries as the specification asks: for as long as they exist.
        library::open(wanted, || unsafe { ProcessMemory::new() })
    };
    answer::<P>(opened().map(|(number, limits)| {
        let id = Id {
            slot: 0,
            generation: 0,
        };
        // SAFETY: null, or a place for limits.
        unsafe { give(actual, convert::to_limits(&limits)) };
        // SAFETY: not null, as checked.
        unsafe { give(ni, handle::<P>(Kind::Ni, number, id)) };
    }))
}

/// `PtlNIFini`.
pub fn ni_fini<P: Profile>(ni: P::Handle) -> i32 {
    answer::<P>(interface::<P>(ni).and_then(|(number, nic)| {
        drop(nic);
        library::close(number)
    }))
}

/// `PtlNIStatus`.
pub unsafe fn ni_status<P: Profile>(ni: P::Handle, index: u32, value: *mut i32) -> i32 {
    let status = || {
        let (_, nic) = interface::<P>(ni)?;
        let value = wanted(value, "status")?;
        let status = nic.call(|interface| interface.status());
        let count = match index {
            0 => status.drops,
            1 => status.permission_violations,
            2 => status.operation_violations,
            _ => return Err(Error::ArgInvalid("status_register")),
        };
        // SAFETY: not null, as checked.
        unsafe { give(value, i32::try_from(count).unwrap_or(i32::MAX)) };
        Ok(())
    };
    answer::<P>(status())
}

/// `PtlNIHandle`.
pub unsafe fn ni_handle<P: Profile>(any: P::Handle, ni: *mut P::Handle) -> i32 {
    let found = || {
        if !library::is_initialised() {
            return Err(Error::NoInit);
        }
        let unknown = Error::ArgInvalid("handle");
        let none = P::is_none(any);
        let number = interface_of(P::bits(any))
            .filter(|_| !none)
            .ok_or(unknown)?;
        library::nic(number).map_err(|_| unknown)?;
        let id = Id {
            slot: 0,
            generation: 0,
        };
        // SAFETY: not null, as checked.
        unsafe { give(wanted(ni, "ni_handle")?, handle::<P>(Kind::Ni, number, id)) };
        Ok(())
    };
    answer::<P>(found())
}

/// `PtlSetMap`.
pub unsafe fn set_map<P: Profile>(ni: P::Handle, size: u64, map: *const Process) -> i32 {
    let set = || {
        let (_, nic) = interface::<P>(ni)?;
        let size = usize::try_from(size).map_err(|_| Error::ArgInvalid("map_size"))?;
        if map.is_null() || size == 0 {
            return Err(Error::ArgInvalid("mapping"));
        }
        // SAFETY: as many as said, and not null.
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
pub unsafe fn get_map<P: Profile>(
    ni: P::Handle,
    size: u64,
    map: *mut Process,
    actual: *mut u64,
) -> i32 {
    let get = || {
        let (_, nic) = interface::<P>(ni)?;
        let (logical, known) =
            nic.call(|interface| (interface.config().logical, interface.map().to_vec()));
        if !logical || (map.is_null() && size > 0) {
            return Err(Error::ArgInvalid("mapping"));
        }
        if known.is_empty() {
            return Err(Error::NoSpace);
        }
        let room = usize::try_from(size).unwrap_or(usize::MAX);
        for (at, address) in known.iter().take(room).enumerate() {
            // SAFETY: inside the caller's array.
            let place = unsafe { map.add(at) };
            // SAFETY: as above.
            unsafe { place.write(convert::at(*address)) };
        }
        // SAFETY: null, or a place for a size.
        unsafe { give(actual, known.len() as u64) };
        Ok(())
    };
    answer::<P>(get())
}

/// `PtlPTAlloc`.
pub unsafe fn pt_alloc<P: Profile>(
    ni: P::Handle,
    options: u32,
    eq: P::Handle,
    index: u32,
    place: *mut u32,
) -> i32 {
    let alloc = || {
        let (number, nic) = interface::<P>(ni)?;
        let place = wanted(place, "pt_index")?;
        let options = P::NUMBERS.parse_table_options(options)?;
        let eq = convert::eq::<P>(eq, number)?;
        let index = (index != PT_ANY).then_some(index);
        let index = nic.call(|interface| interface.pt_alloc(options, eq, index))?;
        // SAFETY: not null, as checked.
        unsafe { give(place, index) };
        Ok(())
    };
    answer::<P>(alloc())
}

/// `PtlPTFree`.
pub fn pt_free<P: Profile>(ni: P::Handle, index: u32) -> i32 {
    on_interface::<P>(ni, |interface| interface.pt_free(index))
}

/// `PtlPTDisable`: returns when no message is being delivered any more.
pub fn pt_disable<P: Profile>(ni: P::Handle, index: u32) -> i32 {
    answer::<P>(interface::<P>(ni).and_then(|(_, nic)| nic.disable_pt(index)))
}

/// `PtlPTEnable`.
pub fn pt_enable<P: Profile>(ni: P::Handle, index: u32) -> i32 {
    on_interface::<P>(ni, |interface| interface.pt_enable(index))
}

fn on_interface<P: Profile>(
    ni: P::Handle,
    call: impl FnOnce(&mut Face) -> Result<(), Error>,
) -> i32 {
    answer::<P>(interface::<P>(ni).and_then(|(_, nic)| nic.call(call)))
}

/// `PtlGetUid`.
pub unsafe fn get_uid<P: Profile>(ni: P::Handle, uid: *mut u32) -> i32 {
    let get = || {
        let (_, nic) = interface::<P>(ni)?;
        let own = nic.call(|interface| interface.config().uid);
        // SAFETY: not null, as checked.
        unsafe { give(wanted(uid, "uid")?, own) };
        Ok(())
    };
    answer::<P>(get())
}

/// `PtlGetId`, and `PtlGetPhysId` if it is to be `physical`.
pub unsafe fn get_id<P: Profile>(ni: P::Handle, physical: bool, id: *mut Process) -> i32 {
    let get = || {
        let (_, nic) = interface::<P>(ni)?;
        let own = nic.call(|interface| {
            let address = convert::at(interface.config().address);
            if physical {
                address
            } else {
                convert::process(interface.id())
            }
        });
        // SAFETY: not null, as checked.
        unsafe { give(wanted(id, "id")?, own) };
        Ok(())
    };
    answer::<P>(get())
}

/// `PtlMDBind`.
pub unsafe fn md_bind<P: Profile>(
    ni: P::Handle,
    md: *const Md<P::Handle>,
    place: *mut P::Handle,
) -> i32 {
    let bind = || {
        let (number, nic) = interface::<P>(ni)?;
        let place = wanted(place, "md_handle")?;
        // SAFETY: null, or the caller's descriptor.
        let md = unsafe { take(md, "md") }?;
        // SAFETY: a list of segments is as long as it says.
        let md = unsafe { convert::md::<P>(md, number) }?;
        let MdId(id) = nic.call(|interface| interface.md_bind(md))?;
        // SAFETY: not null, as checked.
        unsafe { give(place, handle::<P>(Kind::Md, number, id)) };
        Ok(())
    };
    answer::<P>(bind())
}

/// `PtlMDRelease`.
pub fn md_release<P: Profile>(md: P::Handle) -> i32 {
    let found = object::<P>(Kind::Md, md, "md_handle");
    answer::<P>(found.and_then(|(_, nic, id)| nic.call(|interface| interface.md_release(MdId(id)))))
}

/// `PtlMEAppend`.
pub unsafe fn me_append<P: Profile>(
    ni: P::Handle,
    index: u32,
    me: *const Me<P::Handle>,
    list: P::Small,
    user_ptr: *mut c_void,
    place: *mut P::Handle,
) -> i32 {
    // SAFETY: null, or the caller's entry.
    let me = unsafe { me.as_ref() };
    // SAFETY: the caller's promises.
    answer::<P>(unsafe { append::<P>(ni, index, me, true, list.into(), user_ptr, place) })
}

/// `PtlLEAppend`.
pub unsafe fn le_append<P: Profile>(
    ni: P::Handle,
    index: u32,
    le: *const P::Le,
    list: P::Small,
    user_ptr: *mut c_void,
    place: *mut P::Handle,
) -> i32 {
    // SAFETY: null, or the caller's entry.
    let me = unsafe { le.as_ref() }.map(P::me);
    // SAFETY: the caller's promises.
    answer::<P>(unsafe { append::<P>(ni, index, me.as_ref(), false, list.into(), user_ptr, place) })
}

unsafe fn append<P: Profile>(
    ni: P::Handle,
    index: u32,
    me: Option<&Me<P::Handle>>,
    matching: bool,
    list: u32,
    user_ptr: *mut c_void,
    place: *mut P::Handle,
) -> Result<(), Error> {
    let (number, nic) = interface::<P>(ni)?;
    let place = wanted(place, "me_handle")?;
    let list = match list {
        0 => List::Priority,
        1 => List::Overflow,
        _ => return Err(Error::ArgInvalid("ptl_list")),
    };
    // SAFETY: the caller's promise.
    let entry = unsafe { entry_for::<P>(number, &nic, me, matching) }?;
    let user_ptr = user_ptr.expose_provenance() as u64;
    let EntryId(id) = nic.call(|interface| interface.append(index, entry, list, user_ptr))?;
    // SAFETY: not null, as checked.
    unsafe { give(place, handle::<P>(Kind::Entry, number, id)) };
    Ok(())
}

/// An entry for an interface of the right kind.
unsafe fn entry_for<P: Profile>(
    number: u32,
    nic: &Port,
    me: Option<&Me<P::Handle>>,
    matching: bool,
) -> Result<crate::interface::Entry, Error> {
    let me = me.ok_or(Error::ArgInvalid("me"))?;
    let config = nic.call(|interface| *interface.config());
    if config.matching != matching {
        return Err(Error::ArgInvalid(
            "ni_handle: match list entries and matching interfaces belong together",
        ));
    }
    // SAFETY: the caller's promise: a list of segments is as long as it says.
    unsafe { convert::entry::<P>(me, number, &config) }
}

/// `PtlMEUnlink` and `PtlLEUnlink`.
pub fn unlink<P: Profile>(entry: P::Handle) -> i32 {
    let found = object::<P>(Kind::Entry, entry, "me_handle");
    answer::<P>(found.and_then(|(_, nic, id)| nic.call(|interface| interface.unlink(EntryId(id)))))
}

/// `PtlMESearch`.
pub unsafe fn me_search<P: Profile>(
    ni: P::Handle,
    index: u32,
    me: *const Me<P::Handle>,
    mode: P::Small,
    user_ptr: *mut c_void,
) -> i32 {
    // SAFETY: null, or the caller's entry.
    let me = unsafe { me.as_ref() };
    // SAFETY: the caller's promises.
    answer::<P>(unsafe { search::<P>(ni, index, me, true, mode.into(), user_ptr) })
}

/// `PtlLESearch`.
pub unsafe fn le_search<P: Profile>(
    ni: P::Handle,
    index: u32,
    le: *const P::Le,
    mode: P::Small,
    user_ptr: *mut c_void,
) -> i32 {
    // SAFETY: null, or the caller's entry.
    let me = unsafe { le.as_ref() }.map(P::me);
    // SAFETY: the caller's promises.
    answer::<P>(unsafe { search::<P>(ni, index, me.as_ref(), false, mode.into(), user_ptr) })
}

unsafe fn search<P: Profile>(
    ni: P::Handle,
    index: u32,
    me: Option<&Me<P::Handle>>,
    matching: bool,
    mode: u32,
    user_ptr: *mut c_void,
) -> Result<(), Error> {
    let (number, nic) = interface::<P>(ni)?;
    let mode = match mode {
        0 => SearchMode::Only,
        1 => SearchMode::Delete,
        _ => return Err(Error::ArgInvalid("ptl_search_op")),
    };
    // SAFETY: the caller's promise.
    let entry = unsafe { entry_for::<P>(number, &nic, me, matching) }?;
    let user_ptr = user_ptr.expose_provenance() as u64;
    nic.call(|interface| interface.search(index, entry, mode, user_ptr))
}

/// `PtlEQAlloc`.
pub unsafe fn eq_alloc<P: Profile>(ni: P::Handle, count: u64, place: *mut P::Handle) -> i32 {
    let alloc = || {
        let (number, nic) = interface::<P>(ni)?;
        let place = wanted(place, "eq_handle")?;
        let EqId(id) = nic.call(|interface| interface.eq_alloc(count))?;
        // SAFETY: not null, as checked.
        unsafe { give(place, handle::<P>(Kind::Eq, number, id)) };
        Ok(())
    };
    answer::<P>(alloc())
}

/// `PtlEQFree`.
pub fn eq_free<P: Profile>(eq: P::Handle) -> i32 {
    let found = object::<P>(Kind::Eq, eq, "eq_handle");
    answer::<P>(found.and_then(|(_, nic, id)| nic.call(|interface| interface.eq_free(EqId(id)))))
}

/// `PtlEQGet`, and `PtlEQWait` with a timeout of `None`.
pub unsafe fn eq_take<P: Profile>(
    eq: P::Handle,
    event: *mut P::Event,
    timeout: Option<Duration>,
) -> i32 {
    let taken = || {
        let (_, nic, id) = object::<P>(Kind::Eq, eq, "eq_handle")?;
        wanted(event, "event")?;
        nic.wait_event(&[EqId(id)], timeout)
    };
    // SAFETY: not null, as checked.
    unsafe { give_event::<P>(taken(), event, std::ptr::null_mut()) }
}

/// `PtlEQPoll`.
pub unsafe fn eq_poll<P: Profile>(
    queues: *const P::Handle,
    count: u32,
    timeout: P::Time,
    event: *mut P::Event,
    which: *mut u32,
) -> i32 {
    let taken = || {
        wanted(event, "event")?;
        wanted(which, "which")?;
        // SAFETY: as many as said.
        let (nic, ids) = unsafe { objects::<P>(Kind::Eq, queues, count, "eq_handles") }?;
        let ids: Vec<EqId> = ids.into_iter().map(EqId).collect();
        nic.wait_event(&ids, time::<P>(timeout))
    };
    // SAFETY: not null, as checked.
    unsafe { give_event::<P>(taken(), event, which) }
}

unsafe fn give_event<P: Profile>(
    taken: Result<(Taken, usize), Error>,
    event: *mut P::Event,
    which: *mut u32,
) -> i32 {
    let Numbers { codes, .. } = P::NUMBERS;
    match taken {
        Err(error) => P::NUMBERS.code(error),
        Ok((taken, index)) => {
            // SAFETY: the caller's promise.
            unsafe { give(event, P::event(&taken.event)) };
            // SAFETY: the caller's promise.
            unsafe { give(which, u32::try_from(index).unwrap_or(u32::MAX)) };
            if taken.dropped { codes.eq_dropped } else { 0 }
        }
    }
}

/// Objects of one interface.
unsafe fn objects<P: Profile>(
    kind: Kind,
    handles: *const P::Handle,
    count: u32,
    name: &'static str,
) -> Result<(Port, Vec<Id>), Error> {
    if !library::is_initialised() {
        return Err(Error::NoInit);
    }
    if handles.is_null() || count == 0 {
        return Err(Error::ArgInvalid(name));
    }
    // SAFETY: as many as said, and not null.
    let handles = unsafe { std::slice::from_raw_parts(handles, count as usize) };
    let (first, nic, _) = object::<P>(kind, handles[0], name)?;
    let ids = handles
        .iter()
        .map(|handle| match unpack(kind, P::bits(*handle)) {
            Some((ni, id)) if ni == first => Ok(id),
            _ => Err(Error::ArgInvalid(name)),
        });
    Ok((nic, ids.collect::<Result<_, _>>()?))
}

/// All ones, in however many bits, is for ever.
fn time<P: Profile>(time: P::Time) -> Option<Duration> {
    let millis: u64 = time.into();
    let forever = if size_of::<P::Time>() == 4 {
        u64::from(u32::MAX)
    } else {
        u64::MAX
    };
    (millis != forever).then(|| Duration::from_millis(millis))
}

/// `PtlCTAlloc`.
pub unsafe fn ct_alloc<P: Profile>(ni: P::Handle, place: *mut P::Handle) -> i32 {
    let alloc = || {
        let (number, nic) = interface::<P>(ni)?;
        let place = wanted(place, "ct_handle")?;
        let CtId(id) = nic.call(Interface::ct_alloc)?;
        // SAFETY: not null, as checked.
        unsafe { give(place, handle::<P>(Kind::Ct, number, id)) };
        Ok(())
    };
    answer::<P>(alloc())
}

fn on_counter<P: Profile>(
    ct: P::Handle,
    call: impl FnOnce(&mut Face, CtId) -> Result<(), Error>,
) -> i32 {
    let found = object::<P>(Kind::Ct, ct, "ct_handle");
    answer::<P>(found.and_then(|(_, nic, id)| nic.call(|interface| call(interface, CtId(id)))))
}

/// `PtlCTFree`.
pub fn ct_free<P: Profile>(ct: P::Handle) -> i32 {
    on_counter::<P>(ct, |interface, ct| interface.ct_free(ct))
}

/// `PtlCTCancelTriggered`.
pub fn ct_cancel<P: Profile>(ct: P::Handle) -> i32 {
    on_counter::<P>(ct, |interface, ct| interface.ct_cancel_triggered(ct))
}

/// `PtlCTSet`.
pub fn ct_set<P: Profile>(ct: P::Handle, value: CtEvent) -> i32 {
    on_counter::<P>(ct, |interface, ct| interface.ct_set(ct, count_of(value)))
}

/// `PtlCTInc`.
pub fn ct_inc<P: Profile>(ct: P::Handle, by: CtEvent) -> i32 {
    on_counter::<P>(ct, |interface, ct| interface.ct_inc(ct, count_of(by)))
}

/// `PtlCTGet`, and `PtlCTWait` with a threshold above 0.
pub unsafe fn ct_wait<P: Profile>(ct: P::Handle, threshold: u64, event: *mut CtEvent) -> i32 {
    let waited = || {
        let (_, nic, id) = object::<P>(Kind::Ct, ct, "ct_handle")?;
        let event = wanted(event, "event")?;
        let (count, _) = nic.wait_count(&[(CtId(id), threshold)], None)?;
        // SAFETY: not null, as checked.
        unsafe { give(event, event_of(count)) };
        Ok(())
    };
    answer::<P>(waited())
}

/// `PtlCTPoll`.
pub unsafe fn ct_poll<P: Profile>(
    counters: *const P::Handle,
    thresholds: *const u64,
    count: u32,
    timeout: P::Time,
    event: *mut CtEvent,
    which: *mut u32,
) -> i32 {
    let polled = || {
        let (event, which) = (wanted(event, "event")?, wanted(which, "which")?);
        // SAFETY: as many as said.
        let (nic, ids) = unsafe { objects::<P>(Kind::Ct, counters, count, "ct_handles") }?;
        if thresholds.is_null() {
            return Err(Error::ArgInvalid("tests"));
        }
        // SAFETY: as many as said, and not null.
        let thresholds = unsafe { std::slice::from_raw_parts(thresholds, count as usize) };
        let awaited: Vec<_> = ids
            .into_iter()
            .map(CtId)
            .zip(thresholds.iter().copied())
            .collect();
        let (reached, index) = nic.wait_count(&awaited, time::<P>(timeout))?;
        // SAFETY: not null, as checked.
        unsafe { give(event, event_of(reached)) };
        // SAFETY: not null, as checked.
        unsafe { give(which, u32::try_from(index).unwrap_or(u32::MAX)) };
        Ok(())
    };
    answer::<P>(polled())
}

const fn count_of(event: CtEvent) -> Count {
    Count {
        success: event.success,
        failure: event.failure,
    }
}

const fn event_of(count: Count) -> CtEvent {
    CtEvent {
        success: count.success,
        failure: count.failure,
    }
}

/// A part of a descriptor.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, clippy::exhaustive_structs, reason = "C's arguments")]
pub struct From<H> {
    pub md: H,
    pub offset: u64,
}

/// What an operation is about at its target.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, clippy::exhaustive_structs, reason = "C's arguments")]
pub struct To {
    pub process: Process,
    pub pt_index: u32,
    pub match_bits: u64,
    pub offset: u64,
    pub length: u64,
    pub user_ptr: *mut c_void,
    pub hdr_data: u64,
}

/// An operation, as C says it.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, clippy::exhaustive_enums, reason = "C's arguments")]
pub enum Operation<H, S> {
    Put(From<H>, To, S),
    Get(From<H>, To),
    Atomic(From<H>, To, S, [S; 2]),
    FetchAtomic(From<H>, From<H>, To, [S; 2]),
    Swap(From<H>, From<H>, To, *const c_void, [S; 2]),
    CtInc(H, CtEvent),
    CtSet(H, CtEvent),
}

/// Starts an operation now, or when a counter reaches a threshold.
pub unsafe fn start<P: Profile>(
    operation: Operation<P::Handle, P::Small>,
    when: Option<(P::Handle, u64)>,
) -> i32 {
    let started = || {
        // SAFETY: the caller's promise.
        let (ni, nic, command) = unsafe { command::<P>(operation) }?;
        let Some((ct, threshold)) = when else {
            return nic.call(|interface| interface.start(command));
        };
        match object::<P>(Kind::Ct, ct, "trig_ct_handle")? {
            (of, _, id) if of == ni => {
                let trigger = Trigger {
                    ct: CtId(id),
                    threshold,
                };
                nic.call(|interface| interface.start_when(trigger, command))
            }
            _ => Err(Error::ArgInvalid("trig_ct_handle")),
        }
    };
    answer::<P>(started())
}

unsafe fn command<P: Profile>(
    operation: Operation<P::Handle, P::Small>,
) -> Result<(u32, Port, Command), Error> {
    let numbers = P::NUMBERS;
    let atom = |[operator, datatype]: [P::Small; 2]| {
        let operator = numbers.parse_operator(operator.into())?;
        Ok((operator, numbers.parse_datatype(datatype.into())?))
    };
    let first = match operation {
        Operation::Put(from, ..) | Operation::Get(from, _) | Operation::Atomic(from, ..) => {
            object::<P>(Kind::Md, from.md, "md_handle")?
        }
        Operation::FetchAtomic(get, ..) | Operation::Swap(get, ..) => {
            object::<P>(Kind::Md, get.md, "get_md_handle")?
        }
        Operation::CtInc(ct, _) | Operation::CtSet(ct, _) => {
            object::<P>(Kind::Ct, ct, "ct_handle")?
        }
    };
    let (ni, nic, _) = &first;
    let local = |from: From<P::Handle>| local::<P>(from, *ni);
    let remote = |to: To| remote(&to, nic);
    let command = match operation {
        Operation::Put(from, to, ack) => {
            Command::Put(local(from)?, remote(to), numbers.parse_ack(ack.into())?)
        }
        Operation::Get(from, to) => Command::Get(local(from)?, remote(to)),
        Operation::Atomic(from, to, ack, kind) => {
            let ack = numbers.parse_ack(ack.into())?;
            let (operator, datatype) = atom(kind)?;
            Command::Atomic(local(from)?, remote(to), ack, operator, datatype)
        }
        Operation::FetchAtomic(get, put, to, kind) => {
            let (operator, datatype) = atom(kind)?;
            Command::FetchAtomic(local(get)?, local(put)?, remote(to), operator, datatype)
        }
        Operation::Swap(get, put, to, operand, kind) => {
            let (operator, datatype) = atom(kind)?;
            let len = if operator.takes_operand() {
                datatype.size()
            } else {
                0
            };
            // SAFETY: the caller's operand is as long as the datatype.
            let operand = unsafe { operand_of(operand.cast(), len) }?;
            Command::Swap(
                local(get)?,
                local(put)?,
                remote(to),
                operator,
                datatype,
                operand,
            )
        }
        Operation::CtInc(_, by) => Command::CtInc(CtId(first.2), count_of(by)),
        Operation::CtSet(_, to) => Command::CtSet(CtId(first.2), count_of(to)),
    };
    Ok((first.0, first.1, command))
}

fn local<P: Profile>(from: From<P::Handle>, ni: u32) -> Result<Local, Error> {
    match unpack(Kind::Md, P::bits(from.md)) {
        Some((of, id)) if of == ni => Ok(Local {
            md: MdId(id),
            offset: from.offset,
        }),
        _ => Err(Error::ArgInvalid("md_handle")),
    }
}

fn remote(to: &To, nic: &Port) -> Remote {
    let peer = if nic.call(|interface| interface.config().logical) {
        Peer::Rank(to.process.rank_or_nid)
    } else {
        Peer::At(convert::address(to.process))
    };
    Remote {
        peer,
        pt_index: to.pt_index,
        match_bits: to.match_bits,
        offset: to.offset,
        length: to.length,
        user_ptr: to.user_ptr.expose_provenance() as u64,
        hdr_data: to.hdr_data,
    }
}

unsafe fn operand_of(operand: *const u8, len: usize) -> Result<Operand, Error> {
    let mut bytes = Operand::default();
    if len > 0 && operand.is_null() {
        return Err(Error::ArgInvalid("operand"));
    }
    for (at, byte) in bytes.iter_mut().take(len).enumerate() {
        // SAFETY: inside the caller's operand.
        let place = unsafe { operand.add(at) };
        // SAFETY: as above.
        *byte = unsafe { place.read() };
    }
    Ok(bytes)
}

/// `PtlNFDs`, of BXI: how many descriptors [`poll_fds`] fills in, or 0 when there is no such interface.
pub fn n_fds<P: Profile>(ni: P::Handle) -> i32 {
    i32::from(interface::<P>(ni).is_ok())
}

/// `PtlPollFDs`, of BXI: fills in what `poll` has to wait for, and says how many those are. Events that are there already make
/// it readable at once, so none is missed between the last look and the sleep.
pub unsafe fn poll_fds<P: Profile>(ni: P::Handle, fds: *mut PollFd, events: i32) -> i32 {
    let Ok((_, nic)) = interface::<P>(ni) else {
        return 0;
    };
    if fds.is_null() {
        return 0;
    }
    let entry = PollFd {
        fd: nic.arm().as_raw_fd(),
        events: i16::try_from(events).unwrap_or(0) | READABLE,
        revents: 0,
    };
    // SAFETY: not null, and so a place for one.
    unsafe { give(fds, entry) };
    1
}

/// `PtlPollEvents`, of BXI: after `poll`, whether there is news, as `POLLIN`.
pub unsafe fn poll_events<P: Profile>(ni: P::Handle, _fds: *const PollFd) -> i32 {
    match interface::<P>(ni) {
        Ok((_, nic)) if nic.look() => i32::from(READABLE),
        _ => 0,
    }
}

/// `PtlStartBundle`, `PtlEndBundle`: a hint; operations leave as they are started.
pub fn bundle<P: Profile>(ni: P::Handle) -> i32 {
    answer::<P>(interface::<P>(ni).map(drop))
}

/// `PtlAtomicSync`: what the agent has written is seen by all threads when the event that tells of it is.
pub fn atomic_sync<P: Profile>() -> i32 {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    answer::<P>(if library::is_initialised() {
        Ok(())
    } else {
        Err(Error::NoInit)
    })
}

/// `PtlHandleIsEqual`.
pub fn handle_is_equal<P: Profile>(a: P::Handle, b: P::Handle) -> i32 {
    let none = P::is_none(a) && P::is_none(b);
    i32::from(P::bits(a) == P::bits(b) && (none || P::is_none(a) == P::is_none(b)))
}

const PT_ANY: u32 = u32::MAX;
/// `POLLIN`.
const READABLE: i16 = 1;
