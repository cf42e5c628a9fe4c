//! One network interface: calls of the library, with structures in the layout of its family.
//!
//! Calls about list entries, data movement, sleeping and triggers are in `match_entries`, `rma_calls`, `wakeups` and `triggers`.
//! Memory is passed to the library as a [`LocalRange`], which stays valid until the command completes, or as an entry, whose
//! owner unlinks it before it frees the memory.
#![expect(
    unsafe_code,
    reason = "calls C functions, and reads and writes the descriptors that they name"
)]

use std::{
    ffi::c_int,
    fmt, io,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use super::{
    event::{PortalsEvent, PortalsProcess, RailEvent},
    exports::TABLE_MAX,
    library::PortalsLibrary,
    profile::{LibraryProfile, WireLimits},
    rma_calls::{MdSpan, RemoteTarget},
    send_pool::{BODY_MAX, HEADER_MAX},
    struct_buffer::StructBuffer,
};
use crate::driver::LocalRange;

/// A physical interface with matching.
///
/// All methods may be called from any thread. A lock serializes them, because a hardware command queue takes commands from one
/// thread.
#[derive(Debug)]
pub(super) struct PortalsNi {
    pub(super) library: PortalsLibrary,
    pub(super) ni: u64,
    /// User whose processes may access memory here.
    pub(super) uid: u64,
    /// True while the interface is open.
    open: Mutex<bool>,
    pub(super) limits: PortalsLimits,
    pub(super) wire: WireLimits,
    /// True if bytes move without calls to the library.
    pub(super) async_progress: bool,
    /// True if operations to a killed process complete.
    pub(super) ends_to_dead: bool,
    /// True if the library may still access memory of operations that were given up.
    pub(super) goes_on: bool,
    /// True if the first operation to a process blocks until that process answers.
    pub(super) waits_to_meet: bool,
    /// True if results of atomics are visible only after a call of `PtlAtomicSync`.
    hides_atomics: bool,
    #[cfg(test)]
    pub(super) trouble: super::injected_refusals::RefusalInjector,
}

/// Limits of the interface that this driver uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortalsLimits {
    pub(super) max_entries: u32,
    pub(super) max_mds: u32,
    pub(super) max_cts: u32,
    pub(super) max_eqs: u32,
    pub(super) max_pt_index: u32,
    pub(super) max_iovecs: u32,
    pub(super) max_list_size: u32,
    pub(super) max_triggered_ops: u32,
    pub(super) max_msg_size: u64,
    pub(super) max_atomic_size: u64,
    pub(super) max_fetch_atomic_size: u64,
    pub(super) max_volatile_size: u64,
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident)+) => {
        $($(#[$doc])* #[derive(Clone, Copy, Debug, PartialEq, Eq)] pub(super) struct $name(pub(super) u64);)+
    };
}

handles! {
    /// An event queue.
    Eq
    /// A memory descriptor.
    Md
    /// A match list entry.
    Me
    /// A counter of the adapter.
    Ct
}

/// Reason why a call failed.
#[derive(Debug)]
pub(super) enum PortalsCallError {
    /// The object is still in use.
    InUse,
    /// Message of the library for a failure that may pass.
    Transient(String),
    /// Message of the library for a permanent failure.
    Permanent(String),
}

pub(super) type PortalsResult<T> = Result<T, PortalsCallError>;

impl PortalsNi {
    /// Opens an interface.
    ///
    /// # Errors
    /// The error of the library.
    pub(super) fn open(
        library: PortalsLibrary,
        interface: Option<u32>,
        triggered: u32,
        published: bool,
    ) -> io::Result<Self> {
        if LEFT.load(Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, LEFT_SO));
        }
        let profile = library.profile;
        let (options, any) = (&profile.options, &profile.any);
        let mut desired = StructBuffer::default();
        (0..9).for_each(|at| desired.put(4 * at, 4, WANTED.into()));
        desired.put(TABLES_AT, 4, TABLES_WANTED.into());
        desired.put(TRIGGERED_AT, 4, triggered.min(WANTED).into());
        (0..6).for_each(|at| desired.put(40 + 8 * at, 8, any.size.min(SIZE_WANTED)));
        let features = options.bind_inaccessible | options.coherent_atomics;
        desired.put(FEATURES_AT, 4, features.into());
        let (mut actual, mut ni) = (StructBuffer::default(), StructBuffer::marked());
        // SAFETY: the structures are at least as long as the library's, and the places as well.
        let code = unsafe {
            (library.symbols.ni_init)(
                interface.unwrap_or(any.iface),
                options.ni_matching | options.ni_physical,
                any.pid,
                desired.read(),
                actual.write(),
                ni.write(),
            )
        };
        if code != 0 {
            let why = format!(
                "PtlNIInit failed with {}: check that interface {} exists and is free. The library is assumed to be of \
                 the family {}; RIPSTOP_PORTALS_ABI names another family",
                profile.codes.describe(code),
                interface.map_or_else(|| "(default)".to_owned(), |number| number.to_string()),
                profile.name
            );
            return Err(io::Error::other(why));
        }
        check_handle(&ni, profile)?;
        let mut interface = Self {
            ni: ni.get(0, profile.handle_len),
            uid: 0,
            limits: PortalsLimits::read(&actual).with_triggered(triggered),
            open: Mutex::new(true),
            wire: WireLimits::WHOLE,
            async_progress: true,
            ends_to_dead: true,
            goes_on: false,
            waits_to_meet: false,
            hides_atomics: options.coherent_atomics != 0
                && actual.get(FEATURES_AT, 4) & u64::from(options.coherent_atomics) == 0,
            #[cfg(test)]
            trouble: super::injected_refusals::RefusalInjector::default(),
            library,
        };
        if published || !interface.is_software() {
            interface.wire = profile.wire;
            interface.async_progress = profile.async_progress;
            interface.ends_to_dead = profile.ends_to_dead;
            interface.waits_to_meet = profile.first_op_blocks;
            let most = &mut interface.limits.max_msg_size;
            *most = profile.wire.op_max.min(*most);
        }
        interface.learn_of_ends();
        interface.uid = interface.own_uid()?;
        Ok(interface)
    }

    /// Finds out whether operations to dead processes complete, and what that means for memory.
    fn learn_of_ends(&mut self) {
        let profile = self.profile();
        if let Some(unused_pid) = profile.unused_pid {
            self.ends_to_dead = self.ends_without(unused_pid);
        } else if let Some(ends) = self.library.ends {
            // SAFETY: the function takes a handle.
            self.ends_to_dead &= unsafe { ends(self.ni) } != 0;
        }
        let repeats = !self.ends_to_dead && profile.unused_pid.is_some();
        self.goes_on = !self.async_progress || repeats;
        if repeats {
            // Data is then copied through buffers of this size, in pieces.
            let most = &mut self.limits.max_msg_size;
            *most = MESSAGE_MAX.min(*most);
        }
    }

    /// Tests whether an operation to a process that does not exist completes. The same holds for operations to a process that has
    /// died.
    fn ends_without(&self, unused_pid: u32) -> bool {
        let put = || {
            let own = self.id()?;
            let pid = unused_pid - u32::from(own.pid == unused_pid);
            let eq = self.eq_alloc(PROBE_EVENTS)?;
            let span = MdSpan {
                md: self.md_bind(None, eq)?,
                offset: 0,
                len: 0,
                user: 0,
            };
            let remote = RemoteTarget {
                process: PortalsProcess { pid, ..own },
                pt: 0,
                match_bits: 0,
                offset: 0,
            };
            self.put(span, remote, 0, true)?;
            Ok::<_, PortalsCallError>(eq)
        };
        // A refused put is not in flight.
        put().map_or(true, |eq| {
            (0..PROBE_TURNS).any(|_| matches!(self.eq_poll(&[eq], PROBE_MILLIS), Ok(Some(_))))
        })
    }

    /// Closes the interface, after which the library no longer accesses memory for it.
    ///
    /// An interface of a library that moves bytes only in calls is left open and never called again: closing it would wait for
    /// data in flight to peers that may be dead.
    pub(super) fn close(&self) {
        let mut open = self.lock();
        if !std::mem::replace(&mut *open, false) {
            return;
        }
        if self.async_progress || self.is_software() {
            // SAFETY: the interface is open, and no call comes after this one.
            let _code = unsafe { (self.library.symbols.ni_fini)(self.ni) };
        } else {
            LEFT.store(true, Relaxed);
        }
    }

    /// Makes the results of all earlier atomics visible.
    pub(super) fn sync_atomics(&self) {
        if self.hides_atomics {
            // SAFETY: the function takes no arguments. It fails only where there is no library.
            let _code = unsafe { (self.library.symbols.atomic_sync)() };
        }
    }

    pub(super) const fn profile(&self) -> &'static LibraryProfile {
        self.library.profile
    }

    pub(super) fn id(&self) -> PortalsResult<PortalsProcess> {
        let mut id = StructBuffer::default();
        // SAFETY: the place is long enough.
        self.call("PtlGetPhysId", || unsafe {
            (self.library.symbols.get_phys_id)(self.ni, id.write())
        })?;
        Ok(PortalsProcess::read(&id, 0, &self.profile().layout))
    }

    fn own_uid(&self) -> PortalsResult<u64> {
        let mut uid = StructBuffer::default();
        // SAFETY: the place is long enough.
        self.call("PtlGetUid", || unsafe {
            (self.library.symbols.get_uid)(self.ni, uid.write())
        })?;
        Ok(uid.get(0, 4))
    }

    pub(super) fn eq_alloc(&self, events: u64) -> PortalsResult<Eq> {
        let mut eq = StructBuffer::default();
        // SAFETY: the place is long enough.
        self.call("PtlEQAlloc", || unsafe {
            (self.library.symbols.eq_alloc)(self.ni, events, eq.write())
        })?;
        Ok(Eq(eq.get(0, self.profile().handle_len)))
    }

    /// Allocates a portal table entry, the wanted one or any, and returns its index. With a queue and `controlled` it has flow
    /// control.
    pub(super) fn pt_alloc(
        &self,
        wanted: Option<u32>,
        eq: Option<Eq>,
        controlled: bool,
    ) -> PortalsResult<u32> {
        let profile = self.profile();
        let options = if controlled {
            profile.options.pt_flowctrl
        } else {
            0
        };
        let eq = eq.map_or(profile.eq_none, |Eq(eq)| eq);
        let wanted = wanted.unwrap_or(profile.any.pt);
        let mut index = StructBuffer::default();
        // SAFETY: the place is long enough.
        self.call("PtlPTAlloc", || unsafe {
            (self.library.symbols.pt_alloc)(self.ni, options, eq, wanted, index.write())
        })?;
        Ok(narrow(index.get(0, 4)))
    }

    /// Admits messages again.
    pub(super) fn pt_enable(&self, pt: u32) -> PortalsResult<()> {
        // SAFETY: the function takes numbers only.
        self.call("PtlPTEnable", || unsafe {
            (self.library.symbols.pt_enable)(self.ni, pt)
        })
    }

    /// Binds a descriptor for a range, or for all memory. Each of its operations posts one completion event to `eq`.
    pub(super) fn md_bind(&self, memory: Option<LocalRange>, eq: Eq) -> PortalsResult<Md> {
        let profile = self.profile();
        let AddressRange { start, len } = span(memory, profile);
        let mut md = StructBuffer::default();
        md.put(0, 8, start);
        md.put(8, 8, len);
        md.put(16, 4, profile.options.md_event_send_disable.into());
        md.put(profile.layout.md_eq, profile.handle_len, eq.0);
        md.put(profile.layout.md_ct, profile.handle_len, profile.ct_none);
        let mut place = StructBuffer::default();
        // SAFETY: the structure is as the family lays it out, and the place is long enough.
        self.call("PtlMDBind", || unsafe {
            (self.library.symbols.md_bind)(self.ni, md.read(), place.write())
        })?;
        Ok(Md(place.get(0, profile.handle_len)))
    }

    /// Takes the next event, if there is one.
    pub(super) fn eq_get(&self, eq: Eq) -> Option<RailEvent> {
        let mut event = StructBuffer::default();
        // SAFETY: the place is longer than the longest event. Queues may be read while other threads give commands.
        let code = unsafe { (self.library.symbols.eq_get)(eq.0, event.write()) };
        self.got(code, &event)
    }

    /// Takes the next event of any of the queues, with its queue's index. Waits up to `millis` milliseconds. All queues must
    /// belong to this interface.
    pub(super) fn eq_poll(
        &self,
        queues: &[Eq],
        millis: u32,
    ) -> PortalsResult<Option<(RailEvent, usize)>> {
        let mut handles = StructBuffer::default();
        let len = self.profile().handle_len;
        for (at, eq) in queues.iter().enumerate() {
            handles.put(at * len, len, eq.0);
        }
        let count = u32::try_from(queues.len()).unwrap_or(u32::MAX);
        let (mut event, mut which) = (StructBuffer::default(), StructBuffer::default());
        // SAFETY: `count` handles, and places that are long enough.
        let code = unsafe {
            (self.library.symbols.eq_poll)(
                handles.read(),
                count,
                millis.into(),
                event.write(),
                which.write(),
            )
        };
        let which = usize::try_from(which.get(0, 4)).unwrap_or(usize::MAX);
        let codes = &self.profile().codes;
        match self.got(code, &event) {
            None if !codes.is_nothing(code) => {
                let why = format!("PtlEQPoll failed with {}", codes.describe(code));
                Err(PortalsCallError::Permanent(why))
            }
            got => Ok(got.map(|got| (got, which))),
        }
    }

    /// Returns true for the software library of this repository, which alone counts interrupts.
    pub(super) const fn is_software(&self) -> bool {
        self.library.interrupts.is_some()
    }

    /// Returns how often the adapter interrupted the host, if the library counts that. The software library counts interrupts in
    /// the mode that makes them.
    pub(super) fn interrupts(&self) -> Option<u64> {
        let count = self.library.interrupts?;
        // SAFETY: the function takes a handle.
        Some(unsafe { count(self.ni) }).filter(|count| *count != u64::MAX)
    }

    fn got(&self, code: c_int, event: &StructBuffer) -> Option<RailEvent> {
        let profile = self.profile();
        let dropped = code == profile.codes.eq_dropped;
        (code == 0 || dropped).then(|| RailEvent {
            event: PortalsEvent::read(event, profile),
            rail: 0,
            dropped,
        })
    }

    pub(super) fn call(&self, name: &str, call: impl FnOnce() -> c_int) -> PortalsResult<()> {
        let open = self.lock();
        if !*open {
            return Err(PortalsCallError::Permanent(format!(
                "{name} on a closed interface"
            )));
        }
        #[cfg(test)]
        let call = || self.trouble.of(name).unwrap_or_else(call);
        let codes = &self.profile().codes;
        match call() {
            0 => Ok(()),
            code if code == codes.in_use => Err(PortalsCallError::InUse),
            code => {
                let why = format!("{name} failed with {}", codes.describe(code));
                Err(if codes.is_for_later(code) {
                    PortalsCallError::Transient(why)
                } else {
                    PortalsCallError::Permanent(why)
                })
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PortalsNi {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Display for PortalsCallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InUse => "the Portals library says PTL_IN_USE",
            Self::Transient(why) | Self::Permanent(why) => why,
        })
    }
}

impl From<PortalsCallError> for io::Error {
    fn from(refused: PortalsCallError) -> Self {
        Self::other(refused.to_string())
    }
}

impl PortalsLimits {
    fn read(limits: &StructBuffer) -> Self {
        let count = |at| narrow(limits.get(at, 4));
        Self {
            max_entries: count(0),
            max_mds: count(8),
            max_cts: count(12),
            max_eqs: count(16),
            max_pt_index: count(TABLES_AT),
            max_iovecs: count(24),
            max_list_size: count(28),
            max_triggered_ops: count(TRIGGERED_AT),
            max_msg_size: limits.get(40, 8),
            max_atomic_size: limits.get(48, 8),
            max_fetch_atomic_size: limits.get(56, 8),
            max_volatile_size: limits.get(80, 8),
        }
    }

    /// Lowers the limit of triggered operations to the requested number, which some libraries exceed.
    fn with_triggered(self, most: u32) -> Self {
        Self {
            max_triggered_ops: self.max_triggered_ops.min(most),
            ..self
        }
    }
}

/// Checks the length of the library's handles. Handles are passed by value, so longer ones would shift the following arguments.
fn check_handle(place: &StructBuffer, profile: &LibraryProfile) -> io::Result<()> {
    let (written, len) = (place.written(), profile.handle_len);
    if written == len {
        return Ok(());
    }
    let why = format!(
        "the Portals library has handles of {written} bytes, but the family {} has handles of {len}: name the right \
         family with RIPSTOP_PORTALS_ABI, or another library with RIPSTOP_PORTALS_LIBRARY",
        profile.name
    );
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// Memory of this process, as the library takes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AddressRange {
    pub(super) start: u64,
    /// Length in bytes, or the number of segments that are listed there.
    pub(super) len: u64,
}

impl AddressRange {
    pub(super) const EMPTY: Self = Self { start: 0, len: 0 };

    /// Exposes the address of a range to the library, which reads and writes there.
    pub(super) fn exposed(range: LocalRange) -> Self {
        Self {
            start: range.start().as_ptr().expose_provenance() as u64,
            len: range.len() as u64,
        }
    }
}

/// Returns the given memory, or all memory of the process.
pub(super) fn span(memory: Option<LocalRange>, profile: &LibraryProfile) -> AddressRange {
    let all = AddressRange {
        start: 0,
        len: profile.any.size,
    };
    memory.map_or(all, AddressRange::exposed)
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

const MESSAGE_MAX: u64 = (HEADER_MAX + BODY_MAX) as u64;
/// A second in total, in which adapters give up many times.
const PROBE_TURNS: u32 = 20;
const PROBE_MILLIS: u32 = 50;
const PROBE_EVENTS: u64 = 8;
/// True if an interface was left open.
static LEFT: AtomicBool = AtomicBool::new(false);
const LEFT_SO: &str = "this Portals library moves bytes only during calls, so its interface was left open when the \
                       previous job ended: run one job in each process";

/// Objects requested of each kind. Some libraries allocate all requested objects immediately, and some grant at most a thousand.
const WANTED: u32 = 1 << 15;
/// Largest size requested. The reference implementation treats limits as signed numbers, and grants the minimum for negative
/// ones: no messages at all.
const SIZE_WANTED: u64 = u64::MAX >> 1;
/// Portal table entries requested, as many as addresses can hold, because memory takes another entry each time it leaves a rail.
const TABLES_WANTED: u32 = TABLE_MAX as u32 - 1;
/// Offsets of the limits of table entries and of triggered operations.
const TABLES_AT: usize = 20;
const TRIGGERED_AT: usize = 32;
/// Offset of the features, after the limits.
const FEATURES_AT: usize = 88;

#[cfg(test)]
mod tests {
    use super::{StructBuffer, check_handle};
    use crate::portals::profile::ALL;

    #[test]
    fn handles_of_another_length_are_refused_before_any_is_passed() {
        for profile in ALL {
            for len in [4, 8, 16] {
                let mut place = StructBuffer::marked();
                (0..len / 4).for_each(|part| place.put(4 * part, 4, 0x1234_5678));
                let checked = check_handle(&place, profile);
                assert_eq!(checked.is_ok(), len == profile.handle_len);
                let why = checked.err().map(|why| why.to_string());
                let said = format!("handles of {len} bytes");
                assert!(why.is_none_or(|why| why.contains(&said)));
            }
            let untouched = check_handle(&StructBuffer::marked(), profile);
            assert!(untouched.is_err());
        }
    }
}
