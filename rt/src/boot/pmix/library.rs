//! The PMIx C library, opened at run time: seven functions, and the structures that they take.
#![expect(
    unsafe_code,
    reason = "opens a C library, looks its functions up and calls them"
)]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    io, ptr,
    sync::{Arc, Condvar, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use ripstop_fabric::c_library::CLibrary;

/// An error returned by a function of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PmixStatus(pub(super) c_int);

/// No rank has put such a key.
pub(super) const NOT_FOUND: PmixStatus = PmixStatus(-46);

/// The time limit has passed; the same value that `PMIx_Fence` returns.
pub(super) const TIMEOUT: PmixStatus = PmixStatus(-24);

/// The operation has already completed, and the callback will not be called.
const SUCCEEDED_AT_ONCE: c_int = -157;

/// A rank of a job, or all its ranks.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct PmixProc {
    job: [c_char; JOB_ROOM],
    rank: u32,
}

/// Rank number that stands for the whole job.
const ALL: u32 = u32::MAX - 1;

/// Length of the names of jobs and keys, including the terminating zero.
const JOB_ROOM: usize = 256;
const KEY_ROOM: usize = 512;

#[derive(Clone, Copy)]
#[repr(C)]
struct PmixValue {
    kind: u16,
    /// Data of the kind, starting at the lowest address.
    data: PmixValueData,
}

#[derive(Clone, Copy)]
#[repr(C)]
union PmixValueData {
    flag: bool,
    number: u32,
    text: *mut c_char,
    /// Reserves the size of the longest kind.
    room: [u64; 3],
}

const BOOL: u16 = 1;
const TEXT: u16 = 3;
const NUMBER: u16 = 14;

/// An option of a request.
#[derive(Clone, Copy)]
#[repr(C)]
struct PmixInfo {
    key: [c_char; KEY_ROOM],
    flags: u32,
    value: PmixValue,
}

const _: () = assert!(size_of::<PmixProc>() == 260);
const _: () = assert!(size_of::<PmixValue>() == 32);
const _: () = assert!(size_of::<PmixInfo>() == 552);

impl PmixProc {
    /// Returns another rank of the same job.
    pub(super) const fn of_rank(self, rank: u32) -> Self {
        Self { rank, ..self }
    }

    pub(super) const fn all(self) -> Self {
        self.of_rank(ALL)
    }

    pub(super) const fn rank(&self) -> u32 {
        self.rank
    }
}

impl PmixInfo {
    fn switched_on(name: &CStr) -> Self {
        let mut key = [0; KEY_ROOM];
        for (into, from) in key.iter_mut().zip(name.to_bytes()) {
            *into = c_char::from_ne_bytes([*from]);
        }
        let mut data = PmixValueData { room: [0; 3] };
        data.flag = true;
        let value = PmixValue { kind: BOOL, data };
        Self {
            key,
            flags: 0,
            value,
        }
    }
}

macro_rules! library {
    ($($field:ident $symbol:ident($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of libpmix that are called here.
        #[derive(Debug)]
        pub(super) struct PmixLibrary {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl PmixLibrary {
            fn look_up(library: CLibrary) -> io::Result<Self> {
                Ok(Self {
                    $($field: {
                        let name = stringify!($symbol);
                        let found = library.symbol(name).ok_or_else(|| lacks(name))?;
                        // SAFETY: the function of this name has had this type since version 2 of the library.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >(found.as_ptr())
                        }
                    },)*
                })
            }
        }
    };
}

library! {
    init PMIx_Init(*mut PmixProc, *const PmixInfo, usize) -> c_int;
    put PMIx_Put(u8, *const c_char, *const PmixValue) -> c_int;
    commit PMIx_Commit() -> c_int;
    fence_nb PMIx_Fence_nb(*const PmixProc, usize, *const PmixInfo, usize, FenceCallback, *mut c_void) -> c_int;
    get PMIx_Get(*const PmixProc, *const c_char, *const PmixInfo, usize, *mut *mut PmixValue) -> c_int;
    abort PMIx_Abort(c_int, *const c_char, *const PmixProc, usize) -> c_int;
    finalize PMIx_Finalize(*const PmixInfo, usize) -> c_int;
    error_string PMIx_Error_string(c_int) -> *const c_char;
}

type FenceCallback = extern "C" fn(c_int, *mut c_void);

/// Scope: visible to ranks on all nodes.
const GLOBAL: u8 = 3;

/// Value found under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PmixEntry {
    Number(u32),
    Text(String),
    /// A kind that is never requested here.
    Other,
}

impl PmixEntry {
    /// Converts a C string whose ownership is passed to this function, and frees it.
    fn text(given: *mut c_char) -> Self {
        if given.is_null() {
            return Self::Other;
        }
        // SAFETY: the string ends in a zero.
        let text = unsafe { CStr::from_ptr(given) };
        let text = text.to_string_lossy().into_owned();
        // SAFETY: the library documents that malloc made the memory, which is not used any more.
        unsafe { libc::free(given.cast()) };
        Self::Text(text)
    }
}

impl PmixLibrary {
    /// Opens the library, or returns the opened one. It stays loaded, together with the thread that it starts.
    ///
    /// # Errors
    /// Says what to install if the library is missing or too old.
    pub(super) fn open() -> io::Result<&'static Self> {
        static OPENED: OnceLock<PmixLibrary> = OnceLock::new();
        if let Some(library) = OPENED.get() {
            return Ok(library);
        }
        let library = Self::open_as(NAME)?;
        Ok(OPENED.get_or_init(|| library))
    }

    fn open_as(name: &CStr) -> io::Result<Self> {
        // SAFETY: the library's own start-up code is as trusted as the library.
        let library = unsafe { CLibrary::open(name) };
        Self::look_up(library.map_err(|why| io::Error::new(io::ErrorKind::NotFound, why))?)
    }

    /// Joins the job of the server that started this process. Call once.
    pub(super) fn init(&self) -> Result<PmixProc, PmixStatus> {
        let mut me = PmixProc {
            job: [0; JOB_ROOM],
            rank: 0,
        };
        // SAFETY: the function fills in `me`, and no options are given.
        check(unsafe { (self.init)(&raw mut me, ptr::null(), 0) })?;
        Ok(me)
    }

    /// Stores a value for the other ranks, which see it after the next [`publish`](Self::publish) and
    /// [`fence`](Self::fence).
    pub(super) fn put(&self, key: &CStr, text: &CStr) -> Result<(), PmixStatus> {
        let mut data = PmixValueData { room: [0; 3] };
        data.text = text.as_ptr().cast_mut();
        let value = PmixValue { kind: TEXT, data };
        // SAFETY: the library copies key and value, and changes neither.
        check(unsafe { (self.put)(GLOBAL, key.as_ptr(), &raw const value) })
    }

    /// Sends the stored values to the server.
    pub(super) fn publish(&self) -> Result<(), PmixStatus> {
        // SAFETY: the function has no arguments.
        check(unsafe { (self.commit)() })
    }

    /// Waits until all ranks of the job have called it, or until `limit` has passed. Then the published values are on
    /// every node.
    pub(super) fn fence(&self, all: PmixProc, limit: Duration) -> Result<(), PmixStatus> {
        let fence = Arc::new(PmixFence {
            all,
            options: PmixInfo::switched_on(c"pmix.collect"),
            ended: Mutex::new(None),
            told: Condvar::new(),
        });
        let theirs = Arc::into_raw(Arc::clone(&fence));
        let (all, options) = (&raw const fence.all, &raw const fence.options);
        // SAFETY: the memory behind the pointers stays until the callback has been called with the last of them, once.
        let begun =
            unsafe { (self.fence_nb)(all, 1, options, 1, fence_ended, theirs.cast_mut().cast()) };
        if begun != 0 {
            // SAFETY: the callback will not be called, so this is the reference that was given away.
            drop(unsafe { Arc::from_raw(theirs) });
        }
        match begun {
            0 => fence.wait(limit),
            SUCCEEDED_AT_ONCE => Ok(()),
            error => Err(PmixStatus(error)),
        }
    }

    /// Returns the value of `of` under this key, if it is known now.
    pub(super) fn get(&self, of: PmixProc, key: &CStr) -> Result<PmixEntry, PmixStatus> {
        let mut value: *mut PmixValue = ptr::null_mut();
        // Do not wait for a rank that has not put the value.
        let option = PmixInfo::switched_on(c"pmix.immediate");
        // SAFETY: all pointers are to memory that lives through the call. The function passes ownership of a value if
        // it succeeds.
        check(unsafe {
            (self.get)(
                &raw const of,
                key.as_ptr(),
                &raw const option,
                1,
                &raw mut value,
            )
        })?;
        if value.is_null() {
            return Err(NOT_FOUND);
        }
        // SAFETY: the library passed ownership of the value, and no other code has it.
        let PmixValue { kind, data } = unsafe { value.read() };
        let found = match kind {
            // SAFETY: the kind says which field is valid.
            NUMBER => PmixEntry::Number(unsafe { data.number }),
            // SAFETY: the kind says which field is valid.
            TEXT => PmixEntry::text(unsafe { data.text }),
            _ => PmixEntry::Other,
        };
        // SAFETY: the library documents that malloc made the memory, which is not used any more.
        unsafe { libc::free(value.cast()) };
        Ok(found)
    }

    /// Makes the server end the job.
    pub(super) fn abort(&self, all: PmixProc, code: i32, why: &str) {
        let why = CString::new(why.replace('\0', " ")).unwrap_or_default();
        // SAFETY: both pointers are to memory that lives through the call.
        let _ended = unsafe { (self.abort)(code, why.as_ptr(), &raw const all, 1) };
    }

    /// Leaves the job.
    pub(super) fn finalize(&self) -> Result<(), PmixStatus> {
        // SAFETY: no options are given.
        check(unsafe { (self.finalize)(ptr::null(), 0) })
    }

    pub(super) fn error_text(&self, status: PmixStatus) -> String {
        // SAFETY: the function takes any number and returns a static string or null.
        let words = unsafe { (self.error_string)(status.0) };
        // SAFETY: the pointer is not null, as checked in the same line.
        let words = (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) });
        let words = words.map(|words| words.to_string_lossy().into_owned());
        words.unwrap_or_else(|| format!("error {}", status.0))
    }
}

/// A fence in flight, shared by the library and the waiting rank.
struct PmixFence {
    all: PmixProc,
    options: PmixInfo,
    ended: Mutex<Option<c_int>>,
    told: Condvar,
}

// SAFETY: its only pointer is in an option that holds a flag.
unsafe impl Send for PmixFence {}
// SAFETY: as above; what changes is behind a lock.
unsafe impl Sync for PmixFence {}

impl PmixFence {
    fn wait(&self, limit: Duration) -> Result<(), PmixStatus> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .told
            .wait_timeout_while(ended, limit, |ended| ended.is_none());
        let (ended, _) = waited.unwrap_or_else(PoisonError::into_inner);
        check((*ended).unwrap_or(TIMEOUT.0))
    }
}

extern "C" fn fence_ended(status: c_int, fence: *mut c_void) {
    // SAFETY: this is the pointer that was given to the library with this callback, which the library calls once.
    let fence = unsafe { Arc::from_raw(fence.cast_const().cast::<PmixFence>()) };
    *fence.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    fence.told.notify_all();
}

const fn check(status: c_int) -> Result<(), PmixStatus> {
    match status {
        0 => Ok(()),
        other => Err(PmixStatus(other)),
    }
}

fn lacks(name: &str) -> io::Error {
    let why = format!("{NAME:?} has no {name}: install a newer one");
    io::Error::new(io::ErrorKind::Unsupported, why)
}

const NAME: &CStr = c"libpmix.so.2";

#[cfg(test)]
mod tests {
    use super::PmixLibrary;

    #[test]
    fn a_missing_or_wrong_library_is_named_in_the_error() {
        let missing = PmixLibrary::open_as(c"libripstop-has-no-such.so.2").unwrap_err();
        assert!(missing.to_string().contains("libripstop-has-no-such.so.2"));
        let other = PmixLibrary::open_as(c"libc.so.6").unwrap_err().to_string();
        assert!(other.contains("has no PMIx_Init"), "{other}");
    }
}
