//! One network interface: calls of the library, with structures of its family's layout.
//!
//! What is given to the library as memory comes as a [`LocalRange`], whose maker has promised that it stays until the command is
//! over, or as an entry, whose owner unlinks it before the memory goes.
#![expect(
    unsafe_code,
    reason = "calls C functions, and reads and writes the descriptors that they name"
)]

use std::{
    ffi::{c_int, c_void},
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    event::{Event, Got, Process},
    layout::Bytes,
    library::Library,
    profile::{Operators, Profile},
};
use crate::driver::{AtomicOp, LocalRange};

/// A physical interface with matching. All methods may be called from any thread: one at a time gets through, because a command
/// queue of real hardware takes commands from one thread.
#[derive(Debug)]
pub(super) struct Ni {
    pub(super) library: Library,
    pub(super) ni: u64,
    /// The user whose processes may touch memory here.
    uid: u64,
    /// Whether it is open.
    open: Mutex<bool>,
    pub(super) limits: Limits,
}

/// What the interface has room for, as far as this driver asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_entries: u32,
    pub(super) max_mds: u32,
    pub(super) max_cts: u32,
    pub(super) max_eqs: u32,
    pub(super) max_pt_index: u32,
    pub(super) max_triggered_ops: u32,
    pub(super) max_msg_size: u64,
    pub(super) max_fetch_atomic_size: u64,
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
    /// A counter of the adapter's.
    Ct
}

/// A list entry to append.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// `None` for all memory of this process.
    pub(super) memory: Option<LocalRange>,
    pub(super) kind: EntryKind,
    pub(super) match_bits: u64,
    pub(super) ignore_bits: u64,
}

/// The same in the words of the library.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawEntry {
    /// Where it begins, and its length in bytes.
    pub(super) memory: (u64, u64),
    pub(super) options: u32,
    pub(super) match_bits: u64,
    pub(super) ignore_bits: u64,
    pub(super) min_free: u64,
    /// What counts for it.
    pub(super) ct: Option<Ct>,
    /// Whose messages it takes: everybody's, or one process's.
    pub(super) from: Option<Process>,
    /// On the list for what nothing else takes.
    pub(super) overflow: bool,
}

/// What an entry is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum EntryKind {
    /// Messages one after the other, until less than `min_free` bytes are left. Their events, and no others.
    Slab { min_free: u64 },
    /// One message of that process; then it is gone.
    Once { from: Process },
    /// Puts, whose events are told.
    Board,
    /// Puts, gets and atomics, of which nothing is told.
    Exposed,
    /// The same, of which nothing is done.
    Beside,
}

/// The local end of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near {
    pub(super) md: Md,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Comes back in the event.
    pub(super) user: u64,
}

/// The other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Far {
    pub(super) process: Process,
    pub(super) pt: u32,
    pub(super) match_bits: u64,
    pub(super) offset: u64,
}

/// Why a call did not do what it should.
#[derive(Debug)]
pub(super) enum Refused {
    /// Something still uses it.
    InUse,
    /// What the library said.
    Code(String),
}

pub(super) type Result<T> = std::result::Result<T, Refused>;

impl Ni {
    /// # Errors
    /// What the library said.
    pub(super) fn open(
        library: Library,
        interface: Option<u32>,
        triggered: u32,
    ) -> io::Result<Self> {
        let profile = library.profile;
        let (options, any) = (&profile.options, &profile.any);
        let mut desired = Bytes::default();
        (0..9).for_each(|at| desired.put(4 * at, 4, u64::from(u32::MAX >> 1)));
        desired.put(TRIGGERED_AT, 4, triggered.into());
        (0..6).for_each(|at| desired.put(40 + 8 * at, 8, any.size));
        let (mut actual, mut ni) = (Bytes::default(), Bytes::default());
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
                "PtlNIInit failed with {}: is interface {} there, and free? The library is taken for one of the family {}; \
                 RIPSTOP_PORTALS_ABI names another",
                profile.codes.say(code),
                interface.map_or_else(|| "(default)".to_owned(), |number| number.to_string()),
                profile.name
            );
            return Err(io::Error::other(why));
        }
        let mut interface = Self {
            ni: ni.get(0, profile.handle_len),
            uid: 0,
            limits: Limits::read(&actual),
            open: Mutex::new(true),
            library,
        };
        interface.uid = interface.own_uid()?;
        Ok(interface)
    }

    /// Ends the interface and all that belongs to it: nothing touches memory for it any more.
    pub(super) fn close(&self) {
        let mut open = self.lock();
        if std::mem::replace(&mut *open, false) {
            // SAFETY: the interface is open, and no call comes after this one.
            let _code = unsafe { (self.library.symbols.ni_fini)(self.ni) };
        }
    }

    pub(super) const fn profile(&self) -> &'static Profile {
        self.library.profile
    }

    pub(super) fn id(&self) -> Result<Process> {
        let mut id = Bytes::default();
        // SAFETY: the place is long enough.
        self.call("PtlGetPhysId", || unsafe {
            (self.library.symbols.get_phys_id)(self.ni, id.write())
        })?;
        Ok(Process::read(&id, 0, &self.profile().layout))
    }

    fn own_uid(&self) -> Result<u64> {
        let mut uid = Bytes::default();
        // SAFETY: the place is long enough.
        self.call("PtlGetUid", || unsafe {
            (self.library.symbols.get_uid)(self.ni, uid.write())
        })?;
        Ok(uid.get(0, 4))
    }

    pub(super) fn eq_alloc(&self, events: u64) -> Result<Eq> {
        let mut eq = Bytes::default();
        // SAFETY: the place is long enough.
        self.call("PtlEQAlloc", || unsafe {
            (self.library.symbols.eq_alloc)(self.ni, events, eq.write())
        })?;
        Ok(Eq(eq.get(0, self.profile().handle_len)))
    }

    /// A portal table entry, and its index. One with a queue has flow control if it is `controlled`.
    pub(super) fn pt_alloc(&self, eq: Option<Eq>, controlled: bool) -> Result<u32> {
        let profile = self.profile();
        let options = if controlled {
            profile.options.pt_flowctrl
        } else {
            0
        };
        let eq = eq.map_or(profile.eq_none, |Eq(eq)| eq);
        let mut index = Bytes::default();
        // SAFETY: the place is long enough.
        self.call("PtlPTAlloc", || unsafe {
            (self.library.symbols.pt_alloc)(self.ni, options, eq, profile.any.pt, index.write())
        })?;
        Ok(narrow(index.get(0, 4)))
    }

    /// Lets messages in again.
    pub(super) fn pt_enable(&self, pt: u32) -> Result<()> {
        // SAFETY: takes numbers only.
        self.call("PtlPTEnable", || unsafe {
            (self.library.symbols.pt_enable)(self.ni, pt)
        })
    }

    /// A descriptor for a range, or for all memory, whose operations tell `eq` of their ends: one event each.
    pub(super) fn md_bind(&self, memory: Option<LocalRange>, eq: Eq) -> Result<Md> {
        let profile = self.profile();
        let (start, len) = span(memory, profile);
        let mut md = Bytes::default();
        md.put(0, 8, start);
        md.put(8, 8, len);
        md.put(16, 4, profile.options.md_event_send_disable.into());
        md.put(profile.layout.md_eq, profile.handle_len, eq.0);
        md.put(profile.layout.md_ct, profile.handle_len, profile.ct_none);
        let mut place = Bytes::default();
        // SAFETY: the structure is as the family lays it out, and the place is long enough.
        self.call("PtlMDBind", || unsafe {
            (self.library.symbols.md_bind)(self.ni, md.read(), place.write())
        })?;
        Ok(Md(place.get(0, profile.handle_len)))
    }

    /// Appends to the priority list. `user` comes back in events.
    pub(super) fn append(&self, pt: u32, entry: &Entry, user: u64) -> Result<Me> {
        let profile = self.profile();
        let min_free = match entry.kind {
            EntryKind::Slab { min_free } => min_free,
            _ => 0,
        };
        let raw = RawEntry {
            memory: span(entry.memory, profile),
            options: entry.kind.options(profile),
            match_bits: entry.match_bits,
            ignore_bits: entry.ignore_bits,
            min_free,
            ct: None,
            from: match entry.kind {
                EntryKind::Once { from } => Some(from),
                _ => None,
            },
            overflow: false,
        };
        self.append_raw(pt, &raw, user)
    }

    /// Appends an entry in the words of the library.
    pub(super) fn append_raw(&self, pt: u32, entry: &RawEntry, user: u64) -> Result<Me> {
        let profile = self.profile();
        let layout = &profile.layout;
        let (start, len) = entry.memory;
        let mut me = Bytes::default();
        me.put(0, 8, start);
        me.put(8, 8, len);
        let ct = entry.ct.map_or(profile.ct_none, |Ct(ct)| ct);
        me.put(16, profile.handle_len, ct);
        me.put(layout.me_uid, 4, self.uid);
        me.put(layout.me_options, 4, entry.options.into());
        let anybody = Process {
            nid: profile.any.nid,
            pid: profile.any.pid,
        };
        let from = entry.from.unwrap_or(anybody);
        from.write(&mut me, layout.me_match_id, layout);
        me.put(40, 8, entry.match_bits);
        me.put(48, 8, entry.ignore_bits);
        me.put(56, 8, entry.min_free);
        let list = if entry.overflow {
            OVERFLOW_LIST
        } else {
            PRIORITY_LIST
        };
        let mut place = Bytes::default();
        // SAFETY: the structure is as the family lays it out, and the place is long enough.
        self.call("PtlMEAppend", || unsafe {
            (self.library.symbols.me_append)(self.ni, pt, me.read(), list, user, place.write())
        })?;
        Ok(Me(place.get(0, profile.handle_len)))
    }

    pub(super) fn unlink(&self, me: Me) -> Result<()> {
        // SAFETY: takes a handle that `append` gave.
        self.call("PtlMEUnlink", || unsafe {
            (self.library.symbols.me_unlink)(me.0)
        })
    }

    /// The next event, if there is one.
    pub(super) fn eq_get(&self, eq: Eq) -> Option<Got> {
        let mut event = Bytes::default();
        // SAFETY: the place is longer than the longest event. Queues may be read while other threads give commands.
        let code = unsafe { (self.library.symbols.eq_get)(eq.0, event.write()) };
        self.got(code, &event)
    }

    /// The next event of any of the queues, and of which; waits for it for so many milliseconds.
    pub(super) fn eq_poll(&self, queues: &[Eq], millis: u32) -> Option<(Got, usize)> {
        let mut handles = Bytes::default();
        let len = self.profile().handle_len;
        for (at, eq) in queues.iter().enumerate() {
            handles.put(at * len, len, eq.0);
        }
        let count = u32::try_from(queues.len()).unwrap_or(u32::MAX);
        let (mut event, mut which) = (Bytes::default(), Bytes::default());
        // SAFETY: as many handles as said, and places that are long enough.
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
        self.got(code, &event).map(|got| (got, which))
    }

    /// `user` comes back when it is acknowledged; nothing comes back if it is not to be.
    pub(super) fn put(&self, near: Near, far: Far, header: u64, acknowledge: bool) -> Result<()> {
        let ack = if acknowledge {
            self.profile().options.ack_req
        } else {
            0
        };
        // SAFETY: takes numbers only; memory was named to the descriptor.
        self.call("PtlPut", || unsafe {
            (self.library.symbols.put)(
                near.md.0,
                near.offset,
                near.len,
                ack,
                far.process.bits(),
                far.pt,
                far.match_bits,
                far.offset,
                near.user,
                header,
            )
        })
    }

    pub(super) fn get(&self, near: Near, far: Far) -> Result<()> {
        // SAFETY: takes numbers only; memory was named to the descriptor.
        self.call("PtlGet", || unsafe {
            (self.library.symbols.get)(
                near.md.0,
                near.offset,
                near.len,
                far.process.bits(),
                far.pt,
                far.match_bits,
                far.offset,
                near.user,
            )
        })
    }

    /// A 64-bit atomic. The operand is read from `operand` in the memory of `near`, and the old value is written to where `near`
    /// says.
    pub(super) fn atomic(&self, near: Near, operand: u64, far: Far, op: AtomicOp) -> Result<()> {
        let operators = &self.profile().operators;
        let symbols = &self.library.symbols;
        let (md, len, user) = (near.md.0, near.len, near.user);
        let (process, pt, bits) = (far.process.bits(), far.pt, far.match_bits);
        let fetching = operators.of(op);
        if let Some(operator) = fetching {
            // SAFETY: takes numbers only; memory was named to the descriptor.
            return self.call("PtlFetchAtomic", || unsafe {
                (symbols.fetch_atomic)(
                    md,
                    near.offset,
                    md,
                    operand,
                    len,
                    process,
                    pt,
                    bits,
                    far.offset,
                    user,
                    0,
                    operator,
                    operators.uint64,
                )
            });
        }
        let (operator, expected) = match op {
            AtomicOp::CompareSwap { expected, .. } => (operators.cswap, expected),
            _ => (operators.swap, 0),
        };
        let mut compared = Bytes::default();
        compared.put(0, 8, expected);
        // SAFETY: takes numbers, and an operand that is long enough.
        self.call("PtlSwap", || unsafe {
            (symbols.swap)(
                md,
                near.offset,
                md,
                operand,
                len,
                process,
                pt,
                bits,
                far.offset,
                user,
                0,
                compared.read(),
                operator,
                operators.uint64,
            )
        })
    }

    /// How often the adapter has interrupted the host, where the library counts that: the software one does.
    pub(super) fn interrupts(&self) -> Option<u64> {
        let count = self.library.interrupts?;
        // SAFETY: takes a handle.
        Some(unsafe { count(self.ni) })
    }

    /// The library's own descriptors to sleep on, duplicated, or none.
    pub(super) fn wake_fds(&self) -> io::Result<Vec<OwnedFd>> {
        let mut fds = PollFds::default();
        let count = self.poll_fds(&mut fds);
        let fds = fds.0[..count].iter().map(|poll| {
            // SAFETY: open as long as the interface is, and duplicated at once.
            let fd = unsafe { BorrowedFd::borrow_raw(poll.fd) };
            fd.try_clone_to_owned()
        });
        fds.collect()
    }

    /// Has the descriptors become readable by what comes from now on. Whether there are any.
    pub(super) fn arm_fds(&self) -> bool {
        self.poll_fds(&mut PollFds::default()) > 0
    }

    /// Has them not readable any more.
    pub(super) fn disarm_fds(&self) {
        if let Some(waking) = &self.library.waking {
            let mut fds = PollFds::default();
            // SAFETY: a place for as many as there can be.
            let _events = unsafe { (waking.poll_events)(self.ni, fds.write()) };
        }
    }

    fn poll_fds(&self, fds: &mut PollFds) -> usize {
        let Some(waking) = &self.library.waking else {
            return 0;
        };
        // SAFETY: takes a handle.
        let wanted = usize::try_from(unsafe { (waking.n_fds)(self.ni) }).unwrap_or(0);
        if wanted > FDS_MAX {
            return 0;
        }
        // SAFETY: a place for as many as it said.
        let given = unsafe { (waking.poll_fds)(self.ni, fds.write(), POLLIN) };
        usize::try_from(given).unwrap_or(0).min(wanted)
    }

    fn got(&self, code: c_int, event: &Bytes) -> Option<Got> {
        let profile = self.profile();
        let dropped = code == profile.codes.eq_dropped;
        (code == 0 || dropped).then(|| Got {
            event: Event::read(event, profile),
            dropped,
        })
    }

    pub(super) fn call(&self, name: &str, call: impl FnOnce() -> c_int) -> Result<()> {
        let open = self.lock();
        if !*open {
            return Err(Refused::Code(format!("{name} on a closed interface")));
        }
        let codes = &self.profile().codes;
        match call() {
            0 => Ok(()),
            code if code == codes.in_use => Err(Refused::InUse),
            code => Err(Refused::Code(format!(
                "{name} failed with {}",
                codes.say(code)
            ))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ni {
    fn drop(&mut self) {
        self.close();
    }
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::InUse => Self::other("the Portals library says PTL_IN_USE"),
            Refused::Code(why) => Self::other(why),
        }
    }
}

impl Limits {
    fn read(limits: &Bytes) -> Self {
        let count = |at| narrow(limits.get(at, 4));
        Self {
            max_entries: count(0),
            max_mds: count(8),
            max_cts: count(12),
            max_eqs: count(16),
            max_pt_index: count(20),
            max_triggered_ops: count(TRIGGERED_AT),
            max_msg_size: limits.get(40, 8),
            max_fetch_atomic_size: limits.get(56, 8),
        }
    }
}

impl EntryKind {
    const fn options(self, profile: &Profile) -> u32 {
        let options = &profile.options;
        let quiet = options.me_event_link_disable | options.me_event_unlink_disable;
        match self {
            Self::Slab { .. } => {
                quiet | options.me_op_put | options.me_manage_local | options.me_no_truncate
            }
            Self::Once { .. } => {
                quiet | options.me_op_put | options.me_use_once | options.me_no_truncate
            }
            Self::Board => quiet | options.me_op_put | options.me_no_truncate,
            Self::Exposed => {
                quiet
                    | options.me_op_put
                    | options.me_op_get
                    | options.me_no_truncate
                    | options.me_event_comm_disable
            }
            Self::Beside => {
                quiet | options.me_op_put | options.me_op_get | options.me_event_comm_disable
            }
        }
    }
}

impl Operators {
    /// The operator of those that always write, by one operand.
    const fn of(&self, op: AtomicOp) -> Option<u32> {
        Some(match op {
            AtomicOp::Add(_) | AtomicOp::Fetch => self.sum,
            AtomicOp::And(_) => self.band,
            AtomicOp::Or(_) => self.bor,
            AtomicOp::Xor(_) => self.bxor,
            AtomicOp::Max(_) => self.max,
            AtomicOp::Min(_) => self.min,
            AtomicOp::Swap(_) | AtomicOp::CompareSwap { .. } => return None,
        })
    }
}

fn span(memory: Option<LocalRange>, profile: &Profile) -> (u64, u64) {
    match memory {
        // The library reads and writes there, so the address is exposed to it.
        Some(range) => (
            range.start().as_ptr().expose_provenance() as u64,
            range.len() as u64,
        ),
        None => (0, profile.any.size),
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// `struct pollfd`s.
#[derive(Default)]
struct PollFds([PollFd; FDS_MAX]);

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct PollFd {
    fd: c_int,
    events: i16,
    revents: i16,
}

impl PollFds {
    const fn write(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

const FDS_MAX: usize = 8;
const POLLIN: c_int = 1;
/// Where the limit of triggered operations is among the limits.
const TRIGGERED_AT: usize = 32;
const PRIORITY_LIST: u32 = 0;
const OVERFLOW_LIST: u32 = 1;
