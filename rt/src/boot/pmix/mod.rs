//! The PMIx client, for Slurm's `--mpi=pmix`, Open MPI's launcher and PRRTE. These pass no connection to the ranks, so
//! their own C library is opened at run time.

mod library;

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString},
    io,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use self::library::{NOT_FOUND, PmixEntry, PmixLibrary, PmixProc, PmixStatus, TIMEOUT};
use super::{Boot, BootError, Environment, Exchange, Node, check_key, check_value, mapping};

/// Returns true if a PMIx server has started this process.
pub(super) fn is_offered(environment: &Environment) -> bool {
    [NAMESPACE, "PMIX_RANK"]
        .iter()
        .all(|name| environment.get(name).is_some())
}

/// Joins the job of the server named by `PMIX_NAMESPACE` and related variables.
pub(super) fn join(environment: &Environment) -> Result<Boot, BootError> {
    let limit = environment.answer_limit()?;
    let library = PmixLibrary::open().map_err(|why| {
        let doing = "PMIX_RANK is set, so the library of PMIx is loaded (Debian: libpmix2; \
                     or start with `srun --mpi=pmi2`, or set RIPSTOP_BOOT)";
        BootError::io(doing, why)
    })?;
    // A rank can join only once: the server counts ranks that have left, and lets none come back.
    if JOINED.swap(true, Relaxed) {
        let why = "this process has already joined it, and a rank joins only once";
        return Err(BootError::io("joining the job", io::Error::other(why)));
    }
    let joined = library.init();
    let me = joined.map_err(|status| refused(library, "PMIx_Init", status))?;
    let client = PmixClient {
        library,
        me,
        namespace: environment.get(NAMESPACE).map(str::to_owned),
        limit,
        staged: BTreeMap::new(),
        over: false,
    };
    let size = client.number(me.all(), c"pmix.job.size")?;
    let rank = me.rank();
    if rank >= size {
        let why = format!("rank {rank} in a job of {size}");
        return Err(BootError::io("joining the job", io::Error::other(why)));
    }
    let node = client.node_of(rank, size)?;
    Ok(Boot {
        rank,
        size,
        node,
        exchange: Box::new(client),
        found: "pmix",
    })
}

/// Variable with the name of the job.
const NAMESPACE: &str = "PMIX_NAMESPACE";

static JOINED: AtomicBool = AtomicBool::new(false);

/// A rank that has joined.
struct PmixClient {
    library: &'static PmixLibrary,
    me: PmixProc,
    /// Name of the job, if the environment says it.
    namespace: Option<String>,
    limit: Duration,
    /// Values put since the last fence. They are staged here because the library would publish them immediately.
    staged: BTreeMap<CString, CString>,
    over: bool,
}

impl PmixClient {
    fn node_of(&self, rank: u32, size: u32) -> Result<Node, BootError> {
        if let Some(PmixEntry::Text(map)) = self.look(self.me.all(), c"pmix.anlmap")? {
            let wrong = |why: String| {
                let doing = format!("reading where ranks are (pmix.anlmap={map:?})");
                BootError::io(&doing, io::Error::other(why))
            };
            return mapping::node_of(rank, size, &map).map_err(wrong);
        }
        if self.number(self.me.all(), c"pmix.local.size")? == size {
            return Ok(Node::only(size));
        }
        let hosts = (0..size).map(|other| self.text(self.me.of_rank(other), c"pmix.hname"));
        let hosts: Vec<String> = hosts.collect::<Result<_, _>>()?;
        Ok(Node::of_hosts(rank, &hosts))
    }

    fn number(&self, of: PmixProc, key: &CStr) -> Result<u32, BootError> {
        match self.look(of, key)? {
            Some(PmixEntry::Number(number)) => Ok(number),
            found => Err(unsaid(of, key, found)),
        }
    }

    fn text(&self, of: PmixProc, key: &CStr) -> Result<String, BootError> {
        match self.look(of, key)? {
            Some(PmixEntry::Text(text)) => Ok(text),
            found => Err(unsaid(of, key, found)),
        }
    }

    fn look(&self, of: PmixProc, key: &CStr) -> Result<Option<PmixEntry>, BootError> {
        match self.library.get(of, key) {
            Ok(found) => Ok(Some(found)),
            Err(NOT_FOUND) => Ok(None),
            Err(status) => {
                let request = format!("PMIx_Get {}", key.to_string_lossy());
                Err(refused(self.library, &request, status))
            }
        }
    }

    fn ask(
        &mut self,
        request: &str,
        asked: impl FnOnce(&Self) -> Result<(), PmixStatus>,
    ) -> Result<(), BootError> {
        if self.over {
            return Err(BootError::Over);
        }
        asked(self).map_err(|status| {
            self.over = true;
            match status {
                TIMEOUT => BootError::Silent {
                    request: request.to_owned(),
                    seconds: self.limit.as_secs(),
                },
                other => refused(self.library, request, other),
            }
        })
    }
}

impl Exchange for PmixClient {
    fn put(&mut self, key: &str, value: &str) -> Result<(), BootError> {
        check_key(key)?;
        check_value(key, value)?;
        if self.over {
            return Err(BootError::Over);
        }
        self.staged.insert(c_text(key), c_text(value));
        Ok(())
    }

    fn fence(&mut self) -> Result<(), BootError> {
        let staged = std::mem::take(&mut self.staged);
        self.ask("PMIx_Put", |client| {
            let mut puts = staged.iter();
            puts.try_for_each(|(key, value)| client.library.put(key, value))
        })?;
        self.ask("PMIx_Commit", |client| client.library.publish())?;
        self.ask("PMIx_Fence", |client| {
            client.library.fence(client.me.all(), client.limit)
        })
    }

    fn get(&mut self, from: u32, key: &str) -> Result<Option<String>, BootError> {
        check_key(key)?;
        if self.over {
            return Err(BootError::Over);
        }
        let of = self.me.of_rank(from);
        match self.look(of, &c_text(key))? {
            None => Ok(None),
            Some(PmixEntry::Text(text)) => Ok(Some(text)),
            found => Err(unsaid(of, &c_text(key), found)),
        }
    }

    fn job_name(&self) -> Option<String> {
        self.namespace.clone()
    }

    fn abort(&mut self, code: i32, why: &str) {
        self.over = true;
        self.library.abort(self.me.all(), code, why);
    }

    fn finalize(&mut self) -> Result<(), BootError> {
        if self.over {
            return Ok(());
        }
        let left = self.ask("PMIx_Finalize", |client| client.library.finalize());
        self.over = true;
        left
    }
}

impl std::fmt::Debug for PmixClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PmixClient")
            .field("rank", &self.me.rank())
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

/// Converts text that was checked to be printable.
fn c_text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

fn refused(library: &PmixLibrary, request: &str, status: PmixStatus) -> BootError {
    BootError::Refused {
        request: request.to_owned(),
        answer: library.error_text(status),
    }
}

fn unsaid(of: PmixProc, key: &CStr, found: Option<PmixEntry>) -> BootError {
    BootError::Refused {
        request: format!("PMIx_Get {} of {}", key.to_string_lossy(), of.rank()),
        answer: found.map_or_else(|| "nothing".to_owned(), |found| format!("{found:?}")),
    }
}
