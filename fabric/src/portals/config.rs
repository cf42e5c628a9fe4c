//! How the driver is opened, and what it can then do.

use std::{io, path::PathBuf, sync::Arc};

use super::{
    calls::Ni,
    compat::{self, Compat},
    lists,
    pool::{BODY_MAX, HEADER_MAX, SHORT},
    stats::PortalsCounters,
};
use crate::{
    driver::{Caps, Cost, Ends},
    lanes::RAILS_MAX,
};

/// How to open a [`Portals`](super::Portals).
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "written out by who opens one")]
pub struct PortalsConfig {
    /// The library. `None`: what `RIPSTOP_PORTALS_LIBRARY` names, else `libportals.so.4` or `libportals.so` where the loader
    /// finds them.
    pub library: Option<PathBuf>,
    /// Its family: `sandia42`, `sandia43`, `portails4`, `bxi2` or `bxi3`. `None`: what `RIPSTOP_PORTALS_ABI` names, else what the
    /// library says or its symbols tell.
    pub family: Option<String>,
    /// The network interfaces, four at most. None: the library's default. The second of a rank reaches the second of another, and
    /// so on. Messages of two ranks go by one of them, those of other pairs by others, pieces of long puts and gets by all, and
    /// task lists by the first one.
    pub interfaces: Vec<Interface>,
    /// Events that a queue holds, at least 8. It bounds operations on their way, and messages that have come and not been looked
    /// at.
    pub events: u32,
    /// Slabs that messages of all peers come into, at least 2.
    pub slabs: usize,
    /// Bytes of a slab, at least twice the longest message (131 328).
    pub slab_len: usize,
    /// Triggered operations that may wait for a counter: the library may give less. With less than 8, collectives do without.
    pub triggered: u32,
    /// Whether the library of this repository is used as carefully as the published one whose numbers it has: for tests.
    pub published: bool,
    /// Ways of others that the library of this repository is to have, by the names of `RIPSTOP_PORTALS_HABITS` and instead of
    /// what that says: for tests.
    pub habits: Option<String>,
    /// Whether a thread waits for events even where the library has descriptors to sleep on.
    pub helper: bool,
    /// Bodies of so many bytes and more may be put into the memory that is to receive them, where the adapter moves bytes by
    /// itself and a rank has one interface. None: all messages come into slabs.
    pub tags: Option<usize>,
    /// To tell who has finished from who has failed even if it was never met.
    pub ends: Option<Arc<dyn Ends>>,
    /// The layout of somebody else, to be compared with: the same at all ranks. `slabs`, `slab_len` and, for pscom, `events` are
    /// its own then.
    pub compat: Option<Compat>,
    /// Where the driver counts.
    pub counters: Arc<PortalsCounters>,
}

/// A network interface of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "a number and what it is worth")]
pub struct Interface {
    /// As the library counts them.
    pub number: u32,
    /// How fast it is beside the others, from 1 to [`WEIGHT_MAX`](Self::WEIGHT_MAX): one of weight 2 begins with pieces twice as
    /// long as one of weight 1. One of less than a quarter of the greatest weight is left aside until the others have failed.
    pub weight: u32,
}

impl Interface {
    /// The greatest weight.
    pub const WEIGHT_MAX: u32 = 1000;
}

impl From<u32> for Interface {
    /// As fast as the others.
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
            triggered: u32::MAX >> 1,
            published: false,
            habits: None,
            helper: false,
            tags: None,
            ends: None,
            compat: None,
            counters: Arc::default(),
        }
    }
}

impl PortalsConfig {
    /// A reckoning for adapters, nothing measured: to lend memory takes an entry, which takes some 0.6 µs, and a processor copies
    /// 8 KiB in 0.8 µs.
    pub const TAGS_LEAST: usize = 8 << 10;

    /// As it is with the layout of somebody else.
    pub(super) fn laid_out(mut self) -> Self {
        match &self.compat {
            None => {}
            Some(Compat::Mpc) => {
                (self.slabs, self.slab_len) = (compat::MPC_BLOCKS, compat::MPC_BLOCK_LEN);
            }
            Some(Compat::Pscom(pscom)) => {
                (self.slabs, self.events) = (0, pscom.eq_size);
            }
        }
        self
    }

    /// The longest body of a message.
    pub(super) fn body_max(&self, limit: u64) -> usize {
        match &self.compat {
            None => {
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                BODY_MAX.min(limit.saturating_sub(HEADER_MAX))
            }
            Some(Compat::Mpc) => compat::MPC_BODY_MAX,
            Some(Compat::Pscom(pscom)) => {
                let sends = pscom.sendq_size * pscom.buffer_size - HEADER_MAX;
                let whole = usize::try_from(pscom.rendezvous).unwrap_or(usize::MAX);
                // Control messages of the runtime have bodies too.
                whole.clamp(BODY_LEAST, BODY_MAX).min(sends)
            }
        }
    }

    /// # Errors
    /// `InvalidInput`, with the field and its range.
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
        if self.compat.is_some() && interfaces.len() > 1 {
            return wrong(format!(
                "PortalsConfig::interfaces are {interfaces:?}, and the layouts of others have one: name one"
            ));
        }
        if self.compat.is_some() {
            return Ok(()); // checked when its variables were read
        }
        let checks = [
            ("events", u64::from(self.events), u64::from(EVENTS_MIN)),
            ("slabs", self.slabs as u64, 2),
            ("slab_len", self.slab_len as u64, 2 * MESSAGE_MAX as u64),
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

/// What every rank can do.
pub(super) fn caps(ni: &Ni, (body_max, tags): (usize, Option<usize>), rails: usize) -> Caps {
    let triggered_max = lists::room(ni);
    let gets_little = ni.wire.get_most < ni.limits.max_msg_size;
    Caps {
        name: "portals",
        inline_max: inline_max(ni),
        header_max: HEADER_MAX,
        body_max,
        ordered: true,
        reliable: true,
        detects_death: false,
        one_sided: true,
        atomics: true,
        by_processor: false,
        counters: true,
        names: triggered_max > 0,
        any_memory: if !ni.moves_alone {
            // What it still sends to a peer that has died is read again and again, and a list entry says when that is over.
            Err("this Portals library may read memory after its owner took it back".to_owned())
        } else if !ni.ends_to_dead {
            let why = "this Portals library does not end operations to a process that has died, and may use memory for them \
                       after its owner took it back";
            Err(why.to_owned())
        } else if gets_little {
            // Messages take fewer packets than gets.
            Err("this Portals library answers short gets only".to_owned())
        } else {
            Ok(())
        },
        tag_matching: tags,
        triggered_max,
        combine_max: lists::combine_max(ni),
        lanes: u32::try_from(rails).unwrap_or(1),
        cost: if ni.is_software() { SOFTWARE } else { ADAPTER },
    }
}

/// The longest message that the library takes along with the command, as it says itself.
///
/// That is told to others, and changes nothing here: a message is put in one way, whatever its length. A volatile descriptor,
/// for which the library says it, would save no slot, as what is refused goes again and is kept until it is taken; so it would
/// only be copied once more.
fn inline_max(ni: &Ni) -> usize {
    let most = usize::try_from(ni.limits.max_volatile_size).unwrap_or(usize::MAX);
    most.min(SHORT)
}

/// An adapter that moves bytes by itself: what is published of BXI.
const ADAPTER: Cost = Cost {
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
/// The software library, measured: its bytes are copied by processors whichever way they go, so what a rendezvous saves in copies
/// it loses in turns of both ends.
const SOFTWARE: Cost = Cost {
    get_ns: 13_000.0,
    get_ns_per_kib: 250.0,
    put_ns: 13_000.0,
    put_ns_per_kib: 250.0,
    ..ADAPTER
};
/// The longest header and the longest body.
pub(super) const MESSAGE_MAX: usize = HEADER_MAX + BODY_MAX;
/// What a message must be able to carry.
const BODY_LEAST: usize = 128;
/// Some for pauses, some for data.
const EVENTS_MIN: u32 = 8;
