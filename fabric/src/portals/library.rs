//! A Portals library, found at run time, and its functions.
#![expect(
    unsafe_code,
    reason = "loads a C library and takes addresses of its functions"
)]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    io,
    path::{Path, PathBuf},
    ptr::NonNull,
};

use super::profile::{self, LibraryProfile};
use crate::c_library::CLibrary;

/// A library with all functions that this driver calls, and the family whose numbers it uses.
///
/// The library stays loaded until the process ends, because libraries with threads of their own cannot be unloaded safely.
#[derive(Clone, Debug)]
pub(super) struct PortalsLibrary {
    pub(super) profile: &'static LibraryProfile,
    pub(super) symbols: PtlSymbols,
    /// Functions for sleeping on descriptors, if the library has them.
    pub(super) waking: Option<WakeSymbols>,
    /// Returns how often the host was interrupted, if the library counts that; the largest number if it is never interrupted.
    pub(super) interrupts: Option<InterruptsFn>,
    /// Selects optional behaviors, if the library has any. The software library does.
    habits: Option<AdoptHabitsFn>,
    /// Tells whether operations to dead processes complete, if the library can say. The software library can.
    pub(super) ends: Option<EndsToDeadFn>,
    /// Functions for triggered operations, if the library has them.
    pub(super) triggers: Option<TriggerSymbols>,
    /// Function for triggered atomics, if the library has it.
    pub(super) combining: Option<AtomicSymbols>,
}

/// Takes the handle of an interface.
type InterruptsFn = unsafe extern "C" fn(HandleArg) -> u64;
type AdoptHabitsFn = unsafe extern "C" fn(*const c_char) -> c_int;
type EndsToDeadFn = unsafe extern "C" fn(HandleArg) -> c_int;

#[derive(Clone, Copy)]
struct LoadedPortals(CLibrary);

macro_rules! symbols {
    ($(#[$doc:meta])* $table:ident: $($field:ident = $name:literal ($($arg:ty),*);)+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $table {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> c_int,)+
        }

        impl $table {
            /// Returns all functions, or the names of the missing ones.
            fn find(library: LoadedPortals) -> Result<Self, Vec<&'static str>> {
                let names = [$($name),+];
                let missing: Vec<_> = names.into_iter().filter(|name| library.symbol(name).is_none()).collect();
                $(let Some($field) = library.symbol($name) else { return Err(missing) };)+
                Ok(Self {
                    $(
                        // SAFETY: the address of the function of this name, which takes these arguments in all families: what
                        // is narrower there lies in the low part of the same register or stack slot.
                        $field: unsafe {
                            std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($arg),*) -> c_int>($field)
                        },
                    )+
                })
            }
        }
    };
}

/// Type of handles, processes and sizes: passed as 64 bits. Numbers are passed as 32 bits.
type HandleArg = u64;
type ProcessArg = u64;
/// Addresses of structures and result places. Pointers that the library only stores are passed as numbers.
type InPtr = *const c_void;
type OutPtr = *mut c_void;

symbols! {
    /// Functions of the specification that this driver calls.
    PtlSymbols:
    init = "PtlInit"();
    atomic_sync = "PtlAtomicSync"();
    ni_init = "PtlNIInit"(u32, u32, u32, InPtr, OutPtr, OutPtr);
    ni_fini = "PtlNIFini"(HandleArg);
    get_phys_id = "PtlGetPhysId"(HandleArg, OutPtr);
    get_uid = "PtlGetUid"(HandleArg, OutPtr);
    pt_alloc = "PtlPTAlloc"(HandleArg, u32, HandleArg, u32, OutPtr);
    pt_enable = "PtlPTEnable"(HandleArg, u32);
    md_bind = "PtlMDBind"(HandleArg, InPtr, OutPtr);
    me_append = "PtlMEAppend"(HandleArg, u32, InPtr, u32, u64, OutPtr);
    me_unlink = "PtlMEUnlink"(HandleArg);
    eq_alloc = "PtlEQAlloc"(HandleArg, u64, OutPtr);
    eq_get = "PtlEQGet"(HandleArg, OutPtr);
    eq_poll = "PtlEQPoll"(InPtr, u32, u64, OutPtr, OutPtr);
    put = "PtlPut"(HandleArg, u64, u64, u32, ProcessArg, u32, u64, u64, u64, u64);
    get = "PtlGet"(HandleArg, u64, u64, ProcessArg, u32, u64, u64, u64);
    fetch_atomic = "PtlFetchAtomic"(HandleArg, u64, HandleArg, u64, u64, ProcessArg, u32, u64, u64, u64, u64, u32, u32);
    swap = "PtlSwap"(HandleArg, u64, HandleArg, u64, u64, ProcessArg, u32, u64, u64, u64, u64, InPtr, u32, u32);
}

symbols! {
    /// BXI's functions for sleeping on descriptors.
    WakeSymbols:
    n_fds = "PtlNFDs"(HandleArg);
    poll_fds = "PtlPollFDs"(HandleArg, OutPtr, c_int);
    poll_events = "PtlPollEvents"(HandleArg, OutPtr);
}

symbols! {
    /// Counters, and operations triggered by them.
    TriggerSymbols:
    ct_alloc = "PtlCTAlloc"(HandleArg, OutPtr);
    ct_free = "PtlCTFree"(HandleArg);
    ct_cancel = "PtlCTCancelTriggered"(HandleArg);
    ct_get = "PtlCTGet"(HandleArg, OutPtr);
    ct_set = "PtlCTSet"(HandleArg, u64, u64);
    ct_inc = "PtlCTInc"(HandleArg, u64, u64);
    md_release = "PtlMDRelease"(HandleArg);
    triggered_put = "PtlTriggeredPut"(HandleArg, u64, u64, u32, ProcessArg, u32, u64, u64, u64, u64, HandleArg, u64);
    triggered_inc = "PtlTriggeredCTInc"(HandleArg, u64, u64, HandleArg, u64);
}

symbols! {
    /// Atomics triggered by counters.
    AtomicSymbols:
    triggered_atomic = "PtlTriggeredAtomic"(
        HandleArg, u64, u64, u32, ProcessArg, u32, u64, u64, u64, u64, u32, u32, HandleArg, u64
    );
}

impl PortalsLibrary {
    /// Loads the library at this path, or the one that the loader finds, and initializes it.
    ///
    /// # Errors
    /// `NotFound` if there is no library; `Unsupported` if it lacks functions or its family is unknown.
    pub(super) fn open(path: Option<&Path>, family: Option<&str>) -> io::Result<Self> {
        let loaded = find(path)?;
        let profile = recognise(loaded, family)?;
        let symbols = PtlSymbols::find(loaded).map_err(|missing| lacks(&missing))?;
        // SAFETY: the function takes no arguments.
        let code = unsafe { (symbols.init)() };
        if code != 0 {
            let why = format!("PtlInit failed with {}", profile.codes.describe(code));
            return Err(io::Error::other(why));
        }
        let waking = WakeSymbols::find(loaded).ok();
        let triggers = TriggerSymbols::find(loaded).ok();
        let combining = AtomicSymbols::find(loaded).ok();
        Ok(Self {
            profile,
            symbols,
            waking,
            interrupts: loaded.interrupts(),
            ends: loaded.ends_to_dead(),
            habits: loaded.habits(),
            triggers,
            combining,
        })
    }

    /// Selects optional behaviors for all interfaces opened later.
    ///
    /// # Errors
    /// `InvalidInput` if the library does not have them.
    pub(super) fn adopt(&self, habits: &str) -> io::Result<()> {
        let text = CString::new(habits).unwrap_or_default();
        // SAFETY: the text ends with a zero.
        let adopted = self
            .habits
            .is_some_and(|adopt| unsafe { adopt(text.as_ptr()) } == 0);
        if adopted {
            return Ok(());
        }
        let why = format!(
            "PortalsConfig::habits is `{habits}`, which this Portals library does not have: leave it out"
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, why))
    }
}

fn find(path: Option<&Path>) -> io::Result<LoadedPortals> {
    let named = path.map(PathBuf::from).or_else(|| {
        let named = std::env::var_os(LIBRARY)?;
        (!named.is_empty()).then(|| named.into())
    });
    if let Some(path) = named {
        return LoadedPortals::open(&path).map_err(|why| {
            let why = format!(
                "{} was named as the Portals library, but cannot be loaded: {why}",
                path.display()
            );
            io::Error::new(io::ErrorKind::NotFound, why)
        });
    }
    let mut tried = Vec::new();
    for name in NAMES {
        match LoadedPortals::open(Path::new(name)) {
            Ok(loaded) => return Ok(loaded),
            Err(why) => tried.push(format!("{name} ({why})")),
        }
    }
    let why = format!(
        "no Portals library was found: searched for {} where the loader searches (LD_LIBRARY_PATH, /etc/ld.so.conf); \
         install BXI's or Sandia's Portals 4, or build the software one (cargo build -p ripstop-portals-sandia42) and set \
         {LIBRARY} to its path",
        tried.join(", ")
    );
    Err(io::Error::new(io::ErrorKind::NotFound, why))
}

/// Returns the family that was named, that the library reports, or that its symbols indicate.
fn recognise(loaded: LoadedPortals, family: Option<&str>) -> io::Result<&'static LibraryProfile> {
    let said = loaded.said_family();
    let named = family.map(str::to_owned).or_else(|| {
        let named = std::env::var(ABI).ok()?;
        (!named.is_empty() && named != "auto").then_some(named)
    });
    let Some(name) = named.or(said) else {
        return Ok(profile::by_symbols(|name| loaded.symbol(name).is_some()));
    };
    profile::by_name(&name).ok_or_else(|| {
        let known: Vec<_> = profile::ALL.iter().map(|profile| profile.name).collect();
        let why = format!(
            "`{name}` is not a family of Portals libraries: set {ABI} to one of {}",
            known.join(", ")
        );
        io::Error::new(io::ErrorKind::Unsupported, why)
    })
}

fn lacks(missing: &[&str]) -> io::Error {
    let why = format!(
        "the Portals library lacks {}, so it is incomplete or too old: install another one, or name another one with \
         {LIBRARY}",
        missing.join(", ")
    );
    io::Error::new(io::ErrorKind::Unsupported, why)
}

impl LoadedPortals {
    fn open(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| "a path with a zero in it".to_owned())?;
        // SAFETY: the initializers of the library are trusted like those of a linked one.
        unsafe { CLibrary::open(&name) }.map(Self)
    }

    fn symbol(self, name: &str) -> Option<NonNull<c_void>> {
        self.0.symbol(name)
    }

    /// Returns the function that counts interrupts; only the software library has it.
    fn interrupts(self) -> Option<InterruptsFn> {
        let address = self.symbol("RipstopPortalsInterrupts")?;
        // SAFETY: the function of this name takes a handle, which lies in the low part of its register, and returns a number.
        Some(unsafe { std::mem::transmute::<NonNull<c_void>, InterruptsFn>(address) })
    }

    /// Returns the function that tells whether operations to the dead complete; only the software library has it.
    fn ends_to_dead(self) -> Option<EndsToDeadFn> {
        let address = self.symbol("RipstopPortalsEndsToDead")?;
        // SAFETY: the function of this name takes a handle, which lies in the low part of its register, and returns a number.
        Some(unsafe { std::mem::transmute::<NonNull<c_void>, EndsToDeadFn>(address) })
    }

    /// Returns the function that selects optional behaviors; only the software library has it.
    fn habits(self) -> Option<AdoptHabitsFn> {
        let address = self.symbol("RipstopPortalsHabits")?;
        // SAFETY: the function of this name takes a text and returns a number.
        Some(unsafe { std::mem::transmute::<NonNull<c_void>, AdoptHabitsFn>(address) })
    }

    /// Returns the family that the library reports; only the software library does.
    fn said_family(self) -> Option<String> {
        let address = self.symbol("RipstopPortalsAbi")?;
        // SAFETY: the function of this name takes nothing and returns a text that stays.
        let say = unsafe {
            std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn() -> *const i8>(address)
        };
        // SAFETY: as above.
        let text = NonNull::new(unsafe { say() }.cast_mut())?;
        // SAFETY: the text ends with a zero and stays.
        let text = unsafe { CStr::from_ptr(text.as_ptr().cast_const().cast()) };
        text.to_str().ok().map(str::to_owned)
    }
}

/// Environment variable with the path of the library, tried before the loader's search.
const LIBRARY: &str = "RIPSTOP_PORTALS_LIBRARY";
/// Environment variable with the family, used instead of detection.
const ABI: &str = "RIPSTOP_PORTALS_ABI";
/// Names of Sandia's library, which `softportals` has too, and of Bull's.
const NAMES: [&str; 2] = ["libportals.so.4", "libportals.so"];

#[cfg(test)]
mod tests {
    use super::{Path, PortalsLibrary};

    #[test]
    fn a_library_that_is_not_there_or_is_another_is_said_so() {
        let gone = PortalsLibrary::open(Some(Path::new("/nowhere/libportals.so.4")), None);
        let why = gone.expect_err("there is none").to_string();
        assert!(why.contains("/nowhere/libportals.so.4"), "{why}");
        let other = PortalsLibrary::open(Some(Path::new("libc.so.6")), None);
        let why = other.expect_err("that is another one").to_string();
        assert!(why.contains("PtlInit") && why.contains("PtlSwap"), "{why}");
        let family = PortalsLibrary::open(Some(Path::new("libc.so.6")), Some("sandia"));
        let why = family.expect_err("no such family").to_string();
        assert!(
            why.contains("`sandia`") && why.contains("sandia42, sandia43"),
            "{why}"
        );
    }
}
