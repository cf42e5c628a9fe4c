//! Settings of the driver, and its resulting capabilities.

use std::{io, path::PathBuf, sync::Arc};

use super::{
    calls::PortalsNi,
    send_pool::{BODY_MAX, HEADER_MAX, SHORT},
    stats::PortalsCounters,
    task_lists,
};
use crate::{
    driver::{AbilitySummary, Caps, DriverCost, ExitRecord, ListLimits},
    lanes::RAILS_MAX,
};

/// Settings of a [`Portals`](super::Portals) driver.
#[derive(Clone, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "written out by the code that opens a driver"
)]
pub struct PortalsConfig {
    /// Path of the library. With `None`, the value of `RIPSTOP_PORTALS_LIBRARY` applies, otherwise the loader searches for
    /// `libportals.so.4` and `libportals.so`.
    pub library: Option<PathBuf>,
    /// Family of the library: `sandia42`, `sandia43`, `portails4`, `bxi2` or `bxi3`. With `None`, the value of
    /// `RIPSTOP_PORTALS_ABI` applies, otherwise the library is asked, or recognized by its symbols.
    pub family: Option<String>,
    /// Network interfaces, at most four. If empty, the library's default interface is used.
    ///
    /// The second interface of a rank reaches the second one of another rank, and so on. Messages of two ranks use one interface,
    /// and other pairs use others. Long puts and gets are split over all of them. Task lists use the first one.
    pub interfaces: Vec<Interface>,
    /// Events that a queue holds, at least 8. Bounds the operations in flight, and the arrived messages that are not handled yet.
    pub events: u32,
    /// Slabs that hold messages of all peers, at least 2.
    pub slabs: usize,
    /// Bytes of a slab, at least two of the longest messages with their headers (131 328 with the default `body_max`).
    pub slab_len: usize,
    /// Bytes of the longest body of a message, 128 to 65 536; longer messages use other paths. The same on all ranks. For
    /// benchmarks.
    pub body_max: usize,
    /// Triggered operations that may wait for a counter. The library may grant fewer. With fewer than 8, the runtime
    /// gives the driver no task lists.
    pub triggered: u32,
    /// True to handle the library of this repository as carefully as the published library whose numbers it uses. For tests.
    pub published: bool,
    /// Optional behaviors for the library of this repository, with the names of `RIPSTOP_PORTALS_HABITS`, and instead of its
    /// value. For tests.
    pub habits: Option<String>,
    /// True to use a helper thread that waits for events even if the library has descriptors to sleep on.
    pub helper: bool,
    /// Minimum bytes of a body that may be put directly into the memory of its receive, if the adapter moves bytes by itself and
    /// the rank has one interface. With `None`, all messages go to slabs.
    pub tags: Option<usize>,
    /// Record of how ranks ended. It tells finished ranks from failed ones even if this rank never communicated with them.
    pub ends: Option<Arc<dyn ExitRecord>>,
    /// Counters of the driver.
    pub counters: Arc<PortalsCounters>,
}

/// A network interface of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a number and its weight")]
pub struct Interface {
    /// Number of the interface in the library.
    pub number: u32,
    /// Speed relative to the other interfaces, from 1 to [`WEIGHT_MAX`](Self::WEIGHT_MAX).
    ///
    /// An interface of weight 2 starts with pieces twice as long as one of weight 1. Interfaces below a quarter of the greatest
    /// weight are used only after the others have failed.
    pub weight: u32,
}

impl Interface {
    /// The greatest weight.
    pub const WEIGHT_MAX: u32 = 1000;
}

impl From<u32> for Interface {
    /// Returns an interface as fast as the others.
    fn from(number: u32) -> Self {
        Self { number, weight: 1 }
    }
}

impl Default for PortalsConfig {
    /// 4 096 events, 4 slabs of 1 MiB.
    fn default() -> Self {
        Self {
            library: None,
            family: None,
            interfaces: Vec::new(),
            events: 4096,
            slabs: 4,
            slab_len: 1 << 20,
            body_max: BODY_MAX,
            triggered: u32::MAX >> 1,
            published: false,
            habits: None,
            helper: false,
            tags: None,
            ends: None,
            counters: Arc::default(),
        }
    }
}

impl PortalsConfig {
    /// Recommended value of [`tags`](Self::tags).
    ///
    /// The value is estimated for adapters and not measured: appending an entry takes about 0.6 µs, and a processor copies 8 KiB
    /// in 0.8 µs.
    pub const TAGS_LEAST: usize = 8 << 10;

    /// Returns the longest body of a message.
    pub(super) fn body_max(&self, limit: u64) -> usize {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.body_max.min(limit.saturating_sub(HEADER_MAX))
    }

    /// Checks the fields.
    ///
    /// # Errors
    /// `InvalidInput`, which names the field and its range.
    pub(super) fn check(&self) -> io::Result<()> {
        let wrong = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let interfaces = &self.interfaces;
        if interfaces.len() > RAILS_MAX {
            return wrong(format!(
                "PortalsConfig::interfaces are {interfaces:?}: name {RAILS_MAX} or fewer"
            ));
        }
        let number = |at: usize| interfaces[at].number;
        let twice = |at: usize| (0..at).any(|other| number(other) == number(at));
        if (0..interfaces.len()).any(twice) {
            return wrong(format!(
                "PortalsConfig::interfaces are {interfaces:?}: name each once"
            ));
        }
        let weights = 1..=Interface::WEIGHT_MAX;
        if let Some(wrongly) = interfaces.iter().find(|one| !weights.contains(&one.weight)) {
            return wrong(format!(
                "PortalsConfig::interfaces has {wrongly:?}: use a weight of {weights:?}"
            ));
        }
        let lens = BODY_LEAST..=BODY_MAX;
        if !lens.contains(&self.body_max) {
            return wrong(format!(
                "PortalsConfig::body_max is {}: use {lens:?}",
                self.body_max
            ));
        }
        let two = 2 * (HEADER_MAX + self.body_max) as u64;
        let checks = [
            ("events", u64::from(self.events), u64::from(EVENTS_MIN)),
            ("slabs", self.slabs as u64, 2),
            ("slab_len", self.slab_len as u64, two),
        ];
        for (field, value, least) in checks {
            if value < least {
                return wrong(format!(
                    "PortalsConfig::{field} is {value}: use {least} or more"
                ));
            }
        }
        Ok(())
    }
}

/// Returns the capabilities, which are the same at every rank.
pub(super) fn caps(ni: &PortalsNi, body_max: usize, rails: usize) -> Caps {
    let gets_little = ni.wire.get_max < ni.limits.max_msg_size;
    Caps {
        name: "portals",
        inline_max: inline_max(ni),
        header_max: HEADER_MAX,
        body_max,
        ordered: true,
        reliable: true,
        detects_death: false,
        shares_memory: false,
        one_sided: true,
        atomics: true,
        by_processor: false,
        any_memory: if !ni.async_progress {
            // The library keeps reading memory for operations to dead peers. Only an unlinked list entry guarantees that it has
            // stopped.
            Err("this Portals library may read memory after its owner took it back".to_owned())
        } else if !ni.ends_to_dead {
            let why = "this Portals library does not end operations to a process that has died, and may use memory for them \
                       after its owner took it back";
            Err(why.to_owned())
        } else if gets_little {
            // Messages take fewer packets than gets do.
            Err("this Portals library answers short gets only".to_owned())
        } else {
            Ok(())
        },
        pins_exposed: false,
        lanes: u32::try_from(rails).unwrap_or(1),
        cost: if ni.is_software() { SOFTWARE } else { ADAPTER },
    }
}

/// Returns the abilities of a rank. `tags` is the shortest body for which the adapter matches tags, if it does.
pub(super) fn abilities(ni: &PortalsNi, tags: Option<usize>) -> AbilitySummary {
    let limits = ListLimits {
        triggered_max: task_lists::room(ni),
        combine_max: task_lists::combine_max(ni),
    };
    AbilitySummary {
        counters: true,
        lists: (limits.triggered_max > 0).then_some(limits),
        tags,
        connects: false,
    }
}

/// Returns the longest message that the library copies along with the command.
///
/// This is for information only: messages of all lengths are put in the same way here. A volatile descriptor would only cause
/// another copy, because refused messages are resent, so each must be kept in a slot until it is accepted.
/// only be copied once more.
fn inline_max(ni: &PortalsNi) -> usize {
    let most = usize::try_from(ni.limits.max_volatile_size).unwrap_or(usize::MAX);
    most.min(SHORT)
}

/// Costs of an adapter that moves bytes by itself, from published numbers for BXI.
const ADAPTER: DriverCost = DriverCost {
    send_ns: 500.0,
    recv_ns: 500.0,
    latency_ns: 1_500.0,
    copy_ns_per_kib: 100.0,
    message_ns_per_kib: 300.0,
    get_ns: 3_500.0,
    get_ns_per_kib: 90.0,
    put_ns: 3_500.0,
    put_ns_per_kib: 90.0,
    expose_ns: 50.0,
};
/// Measured costs of the software library. Processors copy its bytes on every path, so the copies that a rendezvous saves are
/// lost again in turns at both ends.
const SOFTWARE: DriverCost = DriverCost {
    get_ns: 13_000.0,
    get_ns_per_kib: 250.0,
    put_ns: 13_000.0,
    put_ns_per_kib: 250.0,
    ..ADAPTER
};
/// Bytes of the longest header and the longest body together.
pub(super) const MESSAGE_MAX: usize = HEADER_MAX + BODY_MAX;
/// Minimum for the longest body.
const BODY_LEAST: usize = 128;
/// Minimum events of a queue: some for pauses, some for data.
const EVENTS_MIN: u32 = 8;
