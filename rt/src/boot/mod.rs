//! Bootstrap: finds out which rank this is and which ranks share its node, and exchanges addresses between ranks.
//!
//! [`discover`] finds out from the environment how this process was started. [`threads()`] makes the ranks of one
//! process. Both return a [`Boot`] with an [`Exchange`], a small table of strings: a value that any rank
//! [put](Exchange::put) before a [`fence`](Exchange::fence) can be [read](Exchange::get) by all ranks after it. No
//! other service of a launcher is used, so one binary starts under `ripstop run`, `mpiexec.hydra`, `srun --mpi=pmi2` or
//! `--mpi=pmix`, Open MPI's `mpirun`, or alone.

mod addresses;
mod arrival;
mod environment;
mod error;
mod host_names;
pub(crate) mod inquest;
mod mapping;
mod meeting;
mod pals;
mod pmi1;
mod pmix;
pub(crate) mod report;
mod shared_exchange;
mod singleton;
mod threads;
pub mod wire;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
};

pub(crate) use addresses::collect_addresses;
pub use addresses::exchange;
pub(crate) use arrival::{ArrivalGuard, arrive};
pub use environment::Environment;
pub use error::BootError;
pub(crate) use host_names::{HostName, JobHosts};
pub use meeting::meet;
pub(crate) use pmi1::own_stream;
use report::FailureReporter;
use shared_exchange::SharedExchange;
pub use threads::threads;

/// A rank that knows its place in its job.
#[derive(Debug)]
pub struct Boot {
    /// Number of this rank, in `0..size`.
    pub rank: u32,
    /// Number of ranks in the job; at least 1.
    pub size: u32,
    /// Ranks on the same node.
    pub node: Node,
    /// Table shared by all ranks of the job.
    pub exchange: Box<dyn Exchange>,
    /// Method by which the job was found: `"pmi-1"`, `"pmix"`, `"threads"` or `"singleton"`, or a word of the program that
    /// has made this itself.
    pub found: &'static str,
}

impl Boot {
    /// Splits the boot handle in two that share one exchange; calls are serialized.
    pub(crate) fn share_exchange(self) -> (Self, Self) {
        let turns = SharedExchange(Arc::new(Mutex::new(self.exchange)));
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

    /// Keeps only these ranks on this rank's node, because the others share no memory with it.
    ///
    /// All ranks of a job that was said to have one node learn that it has several. Ranks of other nodes do not learn it, so
    /// the other fields, which must be the same on all ranks, stay what the launcher has said.
    fn split_node(&mut self, ranks: Vec<u32>) {
        if self.node.ranks.len() == self.size as usize {
            self.node.each = None;
            self.node.most = self.size - 1;
        }
        self.node.ranks = ranks;
    }

    /// Returns the index of this rank among the ranks of its node, in `0..node.ranks.len()`.
    pub(crate) fn on_node(&self) -> u32 {
        let lower = self.node.ranks.iter().filter(|&&rank| rank < self.rank);
        u32::try_from(lower.count()).unwrap_or(u32::MAX)
    }
}

/// The ranks that share a node, so that they can share memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// World ranks on this node, in ascending order, including this rank.
    pub ranks: Vec<u32>,
    /// Number of consecutive ranks on each node of the job; the last node may have fewer. 1 if nodes have different
    /// numbers of ranks, or if ranks of a node are not consecutive; `None` if that is not known.
    pub each: Option<u32>,
    /// Maximum number of ranks on any node of the job, which is the same on all ranks.
    pub most: u32,
}

impl Node {
    /// Returns the only node of a job.
    #[must_use]
    pub fn only(size: u32) -> Self {
        Self {
            ranks: (0..size).collect(),
            each: Some(size),
            most: size,
        }
    }

    /// Returns the node of a rank. `hosts` names the host of each rank of the job; equal names are one host. O(ranks).
    ///
    /// ```
    /// # use ripstop_rt::boot::Node;
    /// let hosts = ["a", "b", "a"].map(str::to_owned);
    /// let node = Node::of_hosts(2, &hosts);
    /// assert_eq!((node.ranks, node.most), (vec![0, 2], 2));
    /// ```
    #[must_use]
    pub fn of_hosts(rank: u32, hosts: &[String]) -> Self {
        let mut nodes: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (rank, host) in (0..).zip(hosts) {
            nodes.entry(host).or_default().push(rank);
        }
        let most = nodes.values().map(Vec::len).max().unwrap_or(1);
        let mine = nodes.into_values().find(|ranks| ranks.contains(&rank));
        Self {
            ranks: mine.unwrap_or_else(|| vec![rank]),
            each: None,
            most: u32::try_from(most).unwrap_or(u32::MAX),
        }
    }

    /// Returns the rank that acts for the node, which is the lowest one.
    ///
    /// # Panics
    /// Panics if `ranks` was emptied by hand.
    #[must_use]
    pub fn leader(&self) -> u32 {
        self.ranks[0]
    }
}

/// A table of strings shared by all ranks of a job.
///
/// A value can be read only after the fence that follows its put, even by the rank that put it.
pub trait Exchange: Send + Debug {
    /// Stores `value` under `key` for all ranks, from the next fence on. A later put of the same key replaces it.
    ///
    /// Ranks put different keys, for example keys that contain the number of the rank. PMI-1 has one table for all ranks, so
    /// of two values under one key only one is left there.
    ///
    /// A key has 1 to 48 characters, and a value at most 1 MiB. Both consist of printable ASCII without spaces, and
    /// keys have no `=`. Long values are split for servers that accept only short ones.
    ///
    /// # Errors
    /// The key or value is outside these limits, or the launcher fails.
    fn put(&mut self, key: &str, value: &str) -> Result<(), BootError>;

    /// Waits until every rank has called this, and publishes what they have put.
    ///
    /// # Errors
    /// A rank has left the job, or the launcher fails.
    fn fence(&mut self) -> Result<(), BootError>;

    /// Returns the value that rank `from` had put under `key` before the last fence, if any. PMIx asks that rank's server;
    /// other launchers have the value at hand and do not look at `from`.
    ///
    /// # Errors
    /// The key is outside the limits of [`put`](Self::put), the value was not written by this crate, or the launcher
    /// fails.
    fn get(&mut self, from: u32, key: &str) -> Result<Option<String>, BootError>;

    /// Declares that the start is complete: only [`abort`](Self::abort) or [`finalize`](Self::finalize) may follow.
    ///
    /// Until `finalize`, this process ends when its `ripstop run` ends for whatever reason, even if a script lies
    /// between the two.
    ///
    /// # Errors
    /// The launcher has ended.
    fn settle(&mut self) -> Result<(), BootError> {
        Ok(())
    }

    /// Returns the launcher's name of the job, which is the same on all ranks; `None` if it has none. For `ripstop run`, it is
    /// the process id of the launcher.
    fn job_name(&self) -> Option<String> {
        None
    }

    /// Returns the connection on which this rank reports lost peers and panics; `None` if the launcher does not accept
    /// reports.
    #[doc(hidden)]
    fn reporter(&self) -> Option<FailureReporter> {
        None
    }

    /// Asks the launcher to end the whole job with exit code `code`. Returns, and the caller should then end its
    /// process.
    fn abort(&mut self, code: i32, why: &str);

    /// Leaves the job properly. A second call does nothing.
    ///
    /// # Errors
    /// The launcher fails.
    fn finalize(&mut self) -> Result<(), BootError>;
}

const _: Option<&dyn Exchange> = None; // must stay dyn-compatible

/// Finds out how this process was started, and joins its job.
///
/// `RIPSTOP_BOOT` (`pmi1`, `pmix` or `singleton`) decides if it is set. Otherwise an inherited connection in `PMI_FD`
/// decides, otherwise `PMIX_NAMESPACE` and `PMIX_RANK`. Otherwise the process is alone.
///
/// A process that is alone, or in a job of one rank, may be so by mistake. If a launcher's variables say that there are
/// other ranks that it cannot reach, that is an error; otherwise many jobs of one rank each would run.
/// `RIPSTOP_BOOT_TIMEOUT` is the time limit for every answer of the launcher, in seconds.
///
/// # Errors
/// A variable has a bad value, or the launcher was used wrongly or does not answer. Each error says what to do.
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
    let boot = match LauncherProtocol::of(environment) {
        LauncherProtocol::Pmi1 => pmi1::join(environment)?,
        LauncherProtocol::Pmix => pmix::join(environment)?,
        LauncherProtocol::None => {
            environment.check_alone()?;
            return Ok(singleton::boot());
        }
    };
    if boot.size == 1 {
        environment.check_job_of_one(boot.found)?;
    }
    Ok(boot)
}

/// Protocol of the launcher that started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LauncherProtocol {
    Pmi1,
    Pmix,
    None,
}

impl LauncherProtocol {
    /// Returns the protocol of the inner launcher.
    ///
    /// Below two nested launchers, variables of both are set. A PMI-1 connection reaches only processes that its
    /// launcher has started, because a PMIx server closes it in its ranks. So an inherited connection shows that the
    /// PMI-1 launcher is the inner one.
    fn of(environment: &Environment) -> Self {
        if pmi1::is_connected(environment) {
            Self::Pmi1
        } else if pmix::is_offered(environment) {
            Self::Pmix
        } else if environment.get("PMI_FD").is_some() {
            Self::Pmi1 // its error says what is wrong with the variable
        } else {
            Self::None
        }
    }
}

/// Returns one rank of a job whose ranks share a node and have already met, so that nothing remains to exchange.
pub(crate) fn one_of(rank: u32, size: u32) -> Boot {
    Boot {
        rank,
        size,
        node: Node::only(size),
        ..singleton::boot()
    }
}

/// Checks the limits that every exchange promises to check, so that a program already meets them on a laptop.
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
            key: error::printable(key),
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

/// Hydra cuts keys at 63 bytes. The rest is for the number of a piece, with some reserve.
const KEY_MAX: usize = 48;
const VALUE_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests;
