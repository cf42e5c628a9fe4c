//! Bootstrap: which rank am I, who is on my node, and how do I tell the others my address.
//!
//! [`discover`] finds out from the environment how this process was started; [`threads()`] makes the ranks of one process.
//! Both end in a [`Boot`], whose [`Exchange`] is a small table of strings: what was [`put`](Exchange::put) by anyone before a
//! [`fence`](Exchange::fence) can be [read](Exchange::get) by everyone after it. Nothing else of a launcher is used, so that
//! one binary starts under `ripstop run`, `mpiexec.hydra`, `srun --mpi=pmi2` or `--mpi=pmix`, Open MPI's `mpirun`, or alone.

mod addresses;
mod arrival;
mod environment;
mod error;
#[doc(hidden)]
pub mod inquest;
mod mapping;
mod pmi1;
mod pmix;
#[doc(hidden)]
pub mod report;
mod singleton;
mod threads;
mod turns;
pub mod wire;

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
};

pub(crate) use addresses::hear;
pub use addresses::{exchange, meet};
pub(crate) use arrival::Arrival;
pub use environment::Environment;
pub use error::BootError;
pub(crate) use pmi1::own_stream;
use report::Reporter;
pub use threads::threads;
use turns::Turns;

/// A rank that knows its place in its job.
#[derive(Debug)]
pub struct Boot {
    /// This rank, in `0..size`.
    pub rank: u32,
    /// How many ranks the job has; at least 1.
    pub size: u32,
    /// The ranks on the same node.
    pub node: Node,
    /// The table shared by all ranks of the job.
    pub exchange: Box<dyn Exchange>,
    /// What was found: `"pmi-1"`, `"pmix"`, `"threads"` or `"singleton"`.
    pub found: &'static str,
}

impl Boot {
    /// Twice the same rank, for those who use its exchange one after the other.
    pub(crate) fn twice(self) -> (Self, Self) {
        let turns = Turns(Arc::new(Mutex::new(self.exchange)));
        let (rank, size, node, found) = (self.rank, self.size, self.node.clone(), self.found);
        let other = Self {
            rank,
            size,
            node,
            exchange: Box::new(turns.clone()),
            found,
        };
        let exchange = Box::new(turns);
        (Self { exchange, ..self }, other)
    }

    /// Which of its node's ranks this is, in `0..node.ranks.len()`.
    pub(crate) fn on_node(&self) -> u32 {
        let lower = self.node.ranks.iter().filter(|&&rank| rank < self.rank);
        u32::try_from(lower.count()).unwrap_or(u32::MAX)
    }
}

/// The ranks that share a node, so that they can share memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// World ranks on this node, ascending; this rank is one of them.
    pub ranks: Vec<u32>,
    /// How many ranks in a row each node of the job has, or the last one fewer; 1 if they have different numbers, or these do not
    /// follow each other; nothing if that is not known.
    pub each: Option<u32>,
    /// The most ranks that any node of the job has: the same on all ranks.
    pub most: u32,
}

impl Node {
    /// The only one of a job.
    #[must_use]
    pub fn only(size: u32) -> Self {
        Self {
            ranks: (0..size).collect(),
            each: Some(size),
            most: size,
        }
    }

    /// The rank that speaks for the node: the lowest.
    ///
    /// # Panics
    /// When `ranks` was emptied by hand.
    #[must_use]
    pub fn leader(&self) -> u32 {
        self.ranks[0]
    }
}

/// A table of strings shared by all ranks of a job.
///
/// A value can be read once the fence after its put has been passed, by nobody earlier: not even by its own rank.
pub trait Exchange: Send + Debug {
    /// Stores `value` under `key`, for everybody, from the next fence on. A later put of the same key replaces it.
    ///
    /// A key has 1 to 48 characters, a value at most 1 MiB; both of printable ASCII without spaces, and keys without `=`.
    /// Long values are split for a server that takes only short ones.
    ///
    /// # Errors
    /// A key or value outside these limits, or a launcher that fails.
    fn put(&mut self, key: &str, value: &str) -> Result<(), BootError>;

    /// Waits until every rank has called it, and publishes what they have put.
    ///
    /// # Errors
    /// A rank has left the job, or the launcher fails.
    fn fence(&mut self) -> Result<(), BootError>;

    /// The value that the rank `from` had put under `key` before the last fence, if any.
    ///
    /// # Errors
    /// A key outside the limits of [`put`](Self::put), a value that was not written by this crate, or a launcher that fails.
    fn get(&mut self, from: u32, key: &str) -> Result<Option<String>, BootError>;

    /// Says that the start is over: nothing follows but [`abort`](Self::abort) or [`finalize`](Self::finalize). From here to
    /// `finalize` the end of `ripstop run`, whatever ends it, is the end of a process that it started, also behind a script.
    ///
    /// # Errors
    /// The launcher has ended.
    fn settle(&mut self) -> Result<(), BootError> {
        Ok(())
    }

    /// Where this rank says which peers it lost, and that it panicked: nothing where the launcher does not listen.
    #[doc(hidden)]
    fn reporter(&self) -> Option<Reporter> {
        None
    }

    /// Asks the launcher to end the whole job with exit code `code`. Returns; the caller should then end its process.
    fn abort(&mut self, code: i32, why: &str);

    /// Leaves the job in good order. A second call does nothing.
    ///
    /// # Errors
    /// A launcher that fails.
    fn finalize(&mut self) -> Result<(), BootError>;
}

const _: Option<&dyn Exchange> = None; // stays dyn-compatible

/// Finds out how this process was started, and joins its job.
///
/// `RIPSTOP_BOOT` (`pmi1`, `pmix` or `singleton`) decides when it is set; else an inherited connection in `PMI_FD` does, else
/// `PMIX_NAMESPACE` and `PMIX_RANK`; else the process is alone. Alone, or a job of one rank, it may be by mistake: where a
/// launcher's variables say that it has company which it cannot reach, that is an error, not many jobs of one rank each.
/// `RIPSTOP_BOOT_TIMEOUT` is the time limit for every answer of the launcher, in seconds.
///
/// # Errors
/// A variable with a bad value, a launcher that was used wrongly or that does not answer. Each says what to do.
pub fn discover(environment: &Environment) -> Result<Boot, BootError> {
    match environment.get("RIPSTOP_BOOT") {
        Some("pmi1") => pmi1::join(environment),
        Some("pmix") => pmix::join(environment),
        Some("singleton") => Ok(singleton::boot()),
        Some(other) if other != "auto" => Err(BootError::variable(
            "RIPSTOP_BOOT",
            other,
            "auto, pmi1, pmix or singleton, or unset it",
        )),
        _ => find(environment),
    }
}

fn find(environment: &Environment) -> Result<Boot, BootError> {
    let boot = match Family::of(environment) {
        Family::Pmi1 => pmi1::join(environment)?,
        Family::Pmix => pmix::join(environment)?,
        Family::None => {
            environment.check_alone()?;
            return Ok(singleton::boot());
        }
    };
    if boot.size == 1 {
        environment.check_job_of_one(boot.found)?;
    }
    Ok(boot)
}

/// What the launcher that started this process speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Pmi1,
    Pmix,
    None,
}

impl Family {
    /// Below two launchers there are variables of both. A connection of PMI-1 reaches only whom its launcher has started, for a
    /// server of PMIx closes it in its ranks; so it says which of the two is the inner one.
    fn of(environment: &Environment) -> Self {
        if pmi1::is_connected(environment) {
            Self::Pmi1
        } else if pmix::is_offered(environment) {
            Self::Pmix
        } else if environment.get("PMI_FD").is_some() {
            Self::Pmi1 // Which says what is wrong with it.
        } else {
            Self::None
        }
    }
}

/// One rank of a job whose ranks share a node and have met already: there is nothing left to exchange.
pub(crate) fn one_of(rank: u32, size: u32) -> Boot {
    Boot {
        rank,
        size,
        node: Node::only(size),
        ..singleton::boot()
    }
}

/// Checks what every exchange promises to check, so that a program meets the limits on its laptop first.
fn check_key(key: &str) -> Result<(), BootError> {
    let fine = !key.is_empty()
        && key.len() <= KEY_MAX
        && key
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'=');
    if fine {
        Ok(())
    } else {
        Err(BootError::Key {
            key: error::shown(key),
        })
    }
}

fn check_value(key: &str, value: &str) -> Result<(), BootError> {
    let why = if value.len() > VALUE_MAX {
        format!("it has {} bytes, the limit is {VALUE_MAX}", value.len())
    } else if let Some(at) = value.bytes().position(|byte| !byte.is_ascii_graphic()) {
        format!(
            "the byte at {at} is not printable ASCII (or it is a space): send hexadecimal digits"
        )
    } else {
        return Ok(());
    };
    Err(BootError::Value {
        key: key.to_owned(),
        why,
    })
}

/// Hydra cuts keys at 63 bytes; the rest is for the number of a piece and to spare.
const KEY_MAX: usize = 48;
const VALUE_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests;
