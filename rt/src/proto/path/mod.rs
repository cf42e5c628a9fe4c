//! Protocol selection by message length. Decided once for each driver, from the costs and limits that the driver
//! reports.
//!
//! Each path has a fixed cost and a cost per byte. The table is the lower envelope of these lines, within the limits of
//! the driver and of the settings.

mod cost_envelope;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use ripstop_fabric::driver::{Caps, DriverCost};

use self::cost_envelope::{CostLine, PathRange, envelope};
use super::wire::EagerHeader;
use crate::{
    group::WorldRank,
    settings::{Rendezvous, Settings},
};

/// A path from the sender's buffer to the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessagePath {
    /// Eager, in a message that is short enough to need no buffer.
    Inline,
    /// Eager: the whole message is sent at once.
    Eager,
    /// Rendezvous: the sender offers the message, and the receiver reads the sender's memory.
    RendezvousGet,
    /// Rendezvous: the sender offers the message, and writes to the receiver's memory.
    RendezvousPut,
    /// Rendezvous: the sender offers the message, and sends it in fragments.
    Fragments,
}

/// The selection tables of one driver. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct PathTables {
    /// Table for buffers anywhere in memory.
    anywhere: Arc<[PathRange]>,
    /// Table for buffers that the driver allocated, at both ends.
    regions: Arc<[PathRange]>,
    eager_max: usize,
    /// Tables for ranks that the driver reaches by another path than all others.
    nearer: Option<Arc<IntraNodePaths>>,
}

#[derive(Debug)]
struct IntraNodePaths {
    /// Ranks in ascending order.
    ranks: Vec<WorldRank>,
    paths: PathTables,
}

impl PathTables {
    pub(crate) fn new(caps: &Caps, settings: &Settings) -> Self {
        let rules = PathRules {
            eager_max: settings.eager_max,
            rendezvous: match settings.rendezvous {
                Rendezvous::Auto => None,
                Rendezvous::Get => Some(MessagePath::RendezvousGet),
                Rendezvous::Put => Some(MessagePath::RendezvousPut),
                Rendezvous::Fragments => Some(MessagePath::Fragments),
            },
        };
        Self::with(caps, rules)
    }

    /// Returns these tables, extended by other tables for `ranks`, which are in ascending order.
    pub(crate) fn with_intra_node(mut self, ranks: Vec<WorldRank>, paths: Self) -> Self {
        self.nearer = Some(Arc::new(IntraNodePaths { ranks, paths }));
        self
    }

    /// Returns the tables for messages from and to a rank.
    #[inline]
    pub(crate) fn to(&self, rank: WorldRank) -> &Self {
        let nearer = self.nearer.as_ref();
        let nearer = nearer.filter(|nearer| nearer.ranks.binary_search(&rank).is_ok());
        nearer.map_or(self, |nearer| &nearer.paths)
    }

    fn with(caps: &Caps, rules: PathRules) -> Self {
        let anywhere = rules.table(caps, BufferLocation::Anywhere);
        let whole = anywhere.iter().filter(|row| row.line.path.is_whole());
        Self {
            eager_max: whole.map(|row| row.up_to).max().unwrap_or(0),
            regions: rules.table(caps, BufferLocation::Regions).into(),
            anywhere: anywhere.into(),
            nearer: None,
        }
    }

    /// Returns the path for a message of `len` bytes. `regions` is true if both buffers are in the driver's memory.
    pub(crate) fn choose(&self, len: usize, regions: bool) -> MessagePath {
        let rows = if regions {
            &self.regions
        } else {
            &self.anywhere
        };
        let passed = rows.iter().filter(|row| row.up_to < len).count();
        rows[passed].line.path
    }

    /// Returns the length of the longest eager message from any memory, in bytes.
    #[inline]
    pub(crate) fn eager_max(&self) -> usize {
        self.eager_max
    }

    /// Returns the length of the longest message that is eager to every rank, in bytes.
    pub(crate) fn eager_max_of_all(&self) -> usize {
        let nearer = self.nearer.as_ref();
        nearer.map_or(self.eager_max, |nearer| {
            self.eager_max.min(nearer.paths.eager_max)
        })
    }
}

impl MessagePath {
    /// Returns true for the eager paths.
    pub(crate) const fn is_whole(self) -> bool {
        matches!(self, Self::Inline | Self::Eager)
    }

    const ALL: [Self; 5] = [
        Self::Inline,
        Self::Eager,
        Self::RendezvousGet,
        Self::RendezvousPut,
        Self::Fragments,
    ];
}

/// Settings of paths.
#[derive(Clone, Copy, Debug, Default)]
struct PathRules {
    /// Length of the longest eager message, in bytes; `None` decides by cost.
    eager_max: Option<usize>,
    /// Path for longer messages on drivers that can take it; if `None`, the cost decides.
    rendezvous: Option<MessagePath>,
}

/// Location of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BufferLocation {
    Anywhere,
    Regions,
}

impl PathRules {
    fn table(self, caps: &Caps, memory: BufferLocation) -> Vec<PathRange> {
        let reachable =
            caps.one_sided && (memory == BufferLocation::Regions || caps.any_memory.is_ok());
        let lines = MessagePath::ALL.into_iter().filter_map(|path| {
            let limit = self.limit(path, caps, reachable)?;
            Some(path.line(caps, memory, limit))
        });
        let lines: Vec<CostLine> = lines.collect();
        match self.eager_max {
            // A threshold from the settings is kept, whatever the costs say.
            Some(_) => {
                let (whole, offered): (Vec<_>, _) =
                    lines.into_iter().partition(|line| line.path.is_whole());
                let mut rows = envelope(&whole, 0);
                rows.extend(envelope(
                    &offered,
                    rows.last().map_or(0, |row| row.up_to + 1),
                ));
                rows
            }
            None => envelope(&lines, 0),
        }
    }

    /// Returns the length of the longest message that may take this path, in bytes; `None` if the path does not work.
    fn limit(self, path: MessagePath, caps: &Caps, reachable: bool) -> Option<usize> {
        let whole_max = self.eager_max.unwrap_or(usize::MAX).min(caps.body_max);
        match path {
            MessagePath::Inline => {
                let room = caps.inline_max.checked_sub(size_of::<EagerHeader>())?;
                Some(room.min(whole_max))
            }
            MessagePath::Eager => Some(whole_max),
            MessagePath::RendezvousGet | MessagePath::RendezvousPut => {
                let wanted = self.rendezvous.is_none_or(|only| only == path);
                (reachable && wanted).then_some(usize::MAX)
            }
            MessagePath::Fragments => {
                let other = self.rendezvous.is_some_and(|only| only != path);
                (!other || !reachable).then_some(usize::MAX)
            }
        }
    }
}

impl MessagePath {
    /// Returns the predicted cost of this path, in nanoseconds, from the send until the bytes are in the receiver's
    /// buffer.
    fn line(self, caps: &Caps, memory: BufferLocation, limit: usize) -> CostLine {
        let cost = &caps.cost;
        let message = message(cost);
        let expose = match memory {
            BufferLocation::Anywhere => cost.expose_ns,
            BufferLocation::Regions => 0.0,
        };
        let (fixed, per_kib) = match self {
            Self::Inline => (message, cost.message_ns_per_kib),
            Self::Eager => {
                let copies = cost.copy_ns_per_kib * (1.0 + UNEXPECTED);
                (message, cost.message_ns_per_kib + copies)
            }
            // The last term of the fixed cost is the acknowledgment, which leaves before the receive is complete.
            Self::RendezvousGet => (
                message + expose + cost.get_ns + cost.send_ns,
                cost.get_ns_per_kib,
            ),
            // Three messages: the offer, the answer, and the notification that all bytes have arrived.
            Self::RendezvousPut => (3.0 * message + expose + cost.put_ns, cost.put_ns_per_kib),
            Self::Fragments => fragments(caps),
        };
        CostLine {
            path: self,
            limit,
            fixed,
            per_byte: per_kib / KIB,
        }
    }
}

/// Returns the time of one message: o_s + L + o_r in the LogGP model.
fn message(cost: &DriverCost) -> f64 {
    cost.send_ns + cost.latency_ns + cost.recv_ns
}

/// Returns the cost of fragments: offer and answer, then a pipeline in which one fragment is copied while the next is
/// in flight.
fn fragments(caps: &Caps) -> (f64, f64) {
    let cost = &caps.cost;
    let pieces_per_kib = KIB / float(caps.body_max.max(1));
    let slowest = cost.copy_ns_per_kib.max(cost.message_ns_per_kib);
    let each = cost.send_ns.max(cost.recv_ns);
    (3.0 * message(cost), slowest + pieces_per_kib * each)
}

#[expect(clippy::cast_precision_loss, reason = "a length for an estimate")]
fn float(len: usize) -> f64 {
    len as f64
}

impl fmt::Display for MessagePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Inline => "inline",
            Self::Eager => "eager",
            Self::RendezvousGet => "rendezvous by get",
            Self::RendezvousPut => "rendezvous by put",
            Self::Fragments => "fragments",
        })
    }
}

/// Prints the tables, with the predicted time at both ends of each range.
impl fmt::Display for PathTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(nearer) = &self.nearer {
            writeln!(f, "within the node:\n{}\nbetween nodes:", nearer.paths)?;
        }
        writeln!(f, "buffers anywhere")?;
        write_rows(f, &self.anywhere)?;
        writeln!(f, "buffers in the driver's memory, at both ends")?;
        write_rows(f, &self.regions)
    }
}

fn write_rows(f: &mut fmt::Formatter<'_>, rows: &[PathRange]) -> fmt::Result {
    for PathRange { from, up_to, line } in rows {
        let micros = |len| line.at(len) / 1e3;
        let (range, shown) = match *up_to {
            usize::MAX => ("and more".to_owned(), SHOWN.max(*from)),
            up_to => (format!("to {up_to:>8}"), up_to),
        };
        write!(f, "  {from:>8} {range:<11} B  {:<17}", line.path)?;
        writeln!(
            f,
            " {:>6.2} to {:.2} µs at {shown} B",
            micros(*from),
            micros(shown)
        )?;
    }
    Ok(())
}

const KIB: f64 = 1024.0;

/// Estimated share of messages that find no posted receive and are copied once more. A guess that favors programs that
/// post early.
const UNEXPECTED: f64 = 0.25;

/// Length of the message whose time is shown for the last range, in bytes; that range has no end.
const SHOWN: usize = 1 << 20;
