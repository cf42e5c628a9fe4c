//! A Portals library, found at run time, and the functions in it.
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

use super::profile::{self, Profile};
use crate::c_library::CLibrary;

/// A library that has all functions that this driver calls, and the family whose numbers it speaks.
///
/// It stays loaded until the process ends, because a library can rarely be unloaded: some have threads of their own.
#[derive(Clone, Debug)]
pub(super) struct Library {
    pub(super) profile: &'static Profile,
    pub(super) symbols: Symbols,
    /// Those for sleeping on descriptors, where the library has them.
    pub(super) waking: Option<Waking>,
    /// How often the host was interrupted, where the library counts that; the greatest number where it never is.
    pub(super) interrupts: Option<Interrupts>,
    /// Has it behave as others do, where it can: the software one does.
    habits: Option<Adopt>,
    /// Whether operations end that are under way to the dead, where the library says that: the software one does.
    pub(super) ends: Option<EndsToDead>,
    /// Those for work that the adapter does by itself.
    pub(super) triggers: Option<Triggers>,
    /// Atomics among that.
    pub(super) combining: Option<Combining>,
}

/// Takes a handle of an interface.
type Interrupts = unsafe extern "C" fn(H) -> u64;
type Adopt = unsafe extern "C" fn(*const c_char) -> c_int;
type EndsToDead = unsafe extern "C" fn(H) -> c_int;

#[derive(Clone, Copy)]
struct Loaded(CLibrary);

macro_rules! symbols {
    ($(#[$doc:meta])* $table:ident: $($field:ident = $name:literal ($($arg:ty),*);)+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $table {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> c_int,)+
        }

        impl $table {
            /// All of them, or the names of those that are missing.
            fn find(library: Loaded) -> Result<Self, Vec<&'static str>> {
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

/// Handles, processes and sizes are passed as 64 bits, numbers as 32.
type H = u64;
type P = u64;
/// Addresses of structures and places; those that are only kept by the library are numbers.
type In = *const c_void;
type Out = *mut c_void;

symbols! {
    /// The functions of the specification that the driver calls.
    Symbols:
    init = "PtlInit"();
    atomic_sync = "PtlAtomicSync"();
    ni_init = "PtlNIInit"(u32, u32, u32, In, Out, Out);
    ni_fini = "PtlNIFini"(H);
    get_phys_id = "PtlGetPhysId"(H, Out);
    get_uid = "PtlGetUid"(H, Out);
    pt_alloc = "PtlPTAlloc"(H, u32, H, u32, Out);
    pt_enable = "PtlPTEnable"(H, u32);
    md_bind = "PtlMDBind"(H, In, Out);
    me_append = "PtlMEAppend"(H, u32, In, u32, u64, Out);
    me_unlink = "PtlMEUnlink"(H);
    eq_alloc = "PtlEQAlloc"(H, u64, Out);
    eq_get = "PtlEQGet"(H, Out);
    eq_poll = "PtlEQPoll"(In, u32, u64, Out, Out);
    put = "PtlPut"(H, u64, u64, u32, P, u32, u64, u64, u64, u64);
    get = "PtlGet"(H, u64, u64, P, u32, u64, u64, u64);
    fetch_atomic = "PtlFetchAtomic"(H, u64, H, u64, u64, P, u32, u64, u64, u64, u64, u32, u32);
    swap = "PtlSwap"(H, u64, H, u64, u64, P, u32, u64, u64, u64, u64, In, u32, u32);
}

symbols! {
    /// BXI's descriptors to sleep on.
    Waking:
    n_fds = "PtlNFDs"(H);
    poll_fds = "PtlPollFDs"(H, Out, c_int);
    poll_events = "PtlPollEvents"(H, Out);
}

symbols! {
    /// Counters, and operations that wait for them.
    Triggers:
    ct_alloc = "PtlCTAlloc"(H, Out);
    ct_free = "PtlCTFree"(H);
    ct_cancel = "PtlCTCancelTriggered"(H);
    ct_get = "PtlCTGet"(H, Out);
    ct_set = "PtlCTSet"(H, u64, u64);
    ct_inc = "PtlCTInc"(H, u64, u64);
    md_release = "PtlMDRelease"(H);
    triggered_put = "PtlTriggeredPut"(H, u64, u64, u32, P, u32, u64, u64, u64, u64, H, u64);
    triggered_inc = "PtlTriggeredCTInc"(H, u64, u64, H, u64);
}

symbols! {
    /// Atomics that wait for counters.
    Combining:
    triggered_atomic = "PtlTriggeredAtomic"(H, u64, u64, u32, P, u32, u64, u64, u64, u64, u32, u32, H, u64);
}

impl Library {
    /// Loads the library of this path, or the one that the loader finds, and initialises it.
    ///
    /// # Errors
    /// `NotFound` when there is none, `Unsupported` when it lacks functions or is of no known family.
    pub(super) fn open(path: Option<&Path>, family: Option<&str>) -> io::Result<Self> {
        let loaded = find(path)?;
        let profile = recognise(loaded, family)?;
        let symbols = Symbols::find(loaded).map_err(|missing| lacks(&missing))?;
        // SAFETY: takes no arguments.
        let code = unsafe { (symbols.init)() };
        if code != 0 {
            let why = format!("PtlInit failed with {}", profile.codes.say(code));
            return Err(io::Error::other(why));
        }
        let waking = Waking::find(loaded).ok();
        let triggers = Triggers::find(loaded).ok();
        let combining = Combining::find(loaded).ok();
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

    /// Has interfaces that are opened from now on behave as others do.
    ///
    /// # Errors
    /// `InvalidInput` when the library cannot.
    pub(super) fn adopt(&self, habits: &str) -> io::Result<()> {
        let text = CString::new(habits).unwrap_or_default();
        // SAFETY: a text that ends with a zero.
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

fn find(path: Option<&Path>) -> io::Result<Loaded> {
    let named = path.map(PathBuf::from).or_else(|| {
        let named = std::env::var_os(LIBRARY)?;
        (!named.is_empty()).then(|| named.into())
    });
    if let Some(path) = named {
        return Loaded::open(&path).map_err(|why| {
            let why = format!(
                "{} was named as the Portals library, and cannot be loaded: {why}",
                path.display()
            );
            io::Error::new(io::ErrorKind::NotFound, why)
        });
    }
    let mut tried = Vec::new();
    for name in NAMES {
        match Loaded::open(Path::new(name)) {
            Ok(loaded) => return Ok(loaded),
            Err(why) => tried.push(format!("{name} ({why})")),
        }
    }
    let why = format!(
        "no Portals library: looked for {} where the loader looks (LD_LIBRARY_PATH, /etc/ld.so.conf); install BXI's or Sandia's \
         Portals 4, or build the software one (cargo build -p ripstop-portals-sandia42) and set {LIBRARY} to its path",
        tried.join(", ")
    );
    Err(io::Error::new(io::ErrorKind::NotFound, why))
}

/// The family that was named, that the library says, or that its symbols tell.
fn recognise(loaded: Loaded, family: Option<&str>) -> io::Result<&'static Profile> {
    let said = loaded.said_family();
    let named = family.map(str::to_owned).or_else(|| {
        let named = std::env::var(ABI).ok()?;
        (!named.is_empty()).then_some(named)
    });
    let Some(name) = named.or(said) else {
        return Ok(profile::by_symbols(|name| loaded.symbol(name).is_some()));
    };
    profile::by_name(&name).ok_or_else(|| {
        let known: Vec<_> = profile::ALL.iter().map(|profile| profile.name).collect();
        let why = format!(
            "`{name}` is no family of Portals libraries: set {ABI} to one of {}",
            known.join(", ")
        );
        io::Error::new(io::ErrorKind::Unsupported, why)
    })
}

fn lacks(missing: &[&str]) -> io::Error {
    let why = format!(
        "the Portals library lacks {}: it is not a whole Portals 4 library, or an older one; install another or name it with \
         {LIBRARY}",
        missing.join(", ")
    );
    io::Error::new(io::ErrorKind::Unsupported, why)
}

impl Loaded {
    fn open(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| "a path with a zero in it".to_owned())?;
        // SAFETY: the initialisers of a library are trusted as the linker's would be.
        unsafe { CLibrary::open(&name) }.map(Self)
    }

    fn symbol(self, name: &str) -> Option<NonNull<c_void>> {
        self.0.symbol(name)
    }

    /// The software library counts interrupts of its host.
    fn interrupts(self) -> Option<Interrupts> {
        let address = self.symbol("RipstopPortalsInterrupts")?;
        // SAFETY: the function of this name takes a handle, which lies in the low part of its register, and returns a number.
        Some(unsafe { std::mem::transmute::<NonNull<c_void>, Interrupts>(address) })
    }

    /// The software library says whether operations end that are under way to the dead.
    fn ends_to_dead(self) -> Option<EndsToDead> {
        let address = self.symbol("RipstopPortalsEndsToDead")?;
        // SAFETY: the function of this name takes a handle, which lies in the low part of its register, and returns a number.
        Some(unsafe { std::mem::transmute::<NonNull<c_void>, EndsToDead>(address) })
    }

    /// The software library has habits of others when it is asked to.
    fn habits(self) -> Option<Adopt> {
        let address = self.symbol("RipstopPortalsHabits")?;
        // SAFETY: the function of this name takes a text and returns a number.
        Some(unsafe { std::mem::transmute::<NonNull<c_void>, Adopt>(address) })
    }

    /// The software library says which family it is.
    fn said_family(self) -> Option<String> {
        let address = self.symbol("RipstopPortalsAbi")?;
        // SAFETY: the function of this name takes nothing and returns a text that stays.
        let say = unsafe {
            std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn() -> *const i8>(address)
        };
        // SAFETY: as above.
        let text = NonNull::new(unsafe { say() }.cast_mut())?;
        // SAFETY: a text that ends with a zero and stays.
        let text = unsafe { CStr::from_ptr(text.as_ptr().cast_const().cast()) };
        text.to_str().ok().map(str::to_owned)
    }
}

/// Names the library, before what the loader finds.
const LIBRARY: &str = "RIPSTOP_PORTALS_LIBRARY";
/// Names its family, before what it looks like.
const ABI: &str = "RIPSTOP_PORTALS_ABI";
/// Sandia's and ours, and Bull's.
const NAMES: [&str; 2] = ["libportals.so.4", "libportals.so"];

#[cfg(test)]
mod tests {
    use super::{Library, Path};

    #[test]
    fn a_library_that_is_not_there_or_is_another_is_said_so() {
        let gone = Library::open(Some(Path::new("/nowhere/libportals.so.4")), None);
        let why = gone.expect_err("there is none").to_string();
        assert!(why.contains("/nowhere/libportals.so.4"), "{why}");
        let other = Library::open(Some(Path::new("libc.so.6")), None);
        let why = other.expect_err("that is another one").to_string();
        assert!(why.contains("PtlInit") && why.contains("PtlSwap"), "{why}");
        let family = Library::open(Some(Path::new("libc.so.6")), Some("sandia"));
        let why = family.expect_err("no such family").to_string();
        assert!(
            why.contains("`sandia`") && why.contains("sandia42, sandia43"),
            "{why}"
        );
    }
}
