//! Chooses the algorithm of a collective: the cheapest one that fits, by closed forms, on a described machine.
//!
//! ```
//! use ripstop_collectives::{choose::{Shape, Table}, cost::{LogGP, Machine}, plan::AllToAll};
//!
//! let link = LogGP { latency_ns: 900.0, overhead_ns: 150.0, gap_ns: 100.0, ns_per_kib: 80.0 };
//! let (processors, slot_bytes, slot_moved_bytes) = (1, 0, 0);
//! let (copy_ns_per_kib, reduce_ns_per_kib) = (30.0, 60.0);
//! let (inside, across, per_node) = (link, link, 1);
//! let machine = Machine {
//!     inside, across, per_node, processors, slot_bytes, slot_moved_bytes, copy_ns_per_kib, reduce_ns_per_kib,
//! };
//! let table = Table::<AllToAll>::new(Shape::of(256), &machine);
//! assert_eq!(table.choose(8), AllToAll::Bruck);
//! assert_eq!(table.choose(1 << 20).name(), "pairwise");
//! ```

use std::{
    fmt::{self, Debug, Display},
    str::FromStr,
};

use crate::{
    cost::Machine,
    plan::{OperandOrder, UnknownAlgorithm},
};

mod closed_forms;
mod costs;
mod group_traffic;
#[cfg(test)]
mod tests;

#[doc(hidden)]
pub use self::group_traffic::{GroupTraffic, TotalTraffic};

/// The algorithms of a collective, as the chooser sees them. Only the enums of [`plan`](crate::plan) implement it.
pub trait Algorithm:
    Copy + Debug + Display + PartialEq + FromStr<Err = UnknownAlgorithm> + TotalTraffic
{
    /// The name of the collective.
    const COLLECTIVE: &'static str;

    /// Returns all algorithms, with the parameters that are worth trying for this shape.
    fn variants(shape: &Shape, machine: &Machine) -> Vec<Self>;

    /// Returns true if `plan` accepts this shape.
    fn fits(self, shape: &Shape, machine: &Machine) -> bool;

    /// Returns about how long the algorithm takes, in nanoseconds, if each rank has a processor of its own.
    fn cost_ns(self, shape: &Shape, machine: &Machine) -> f64;
}

/// Shape of the collective for which an algorithm is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Ranks in the group.
    pub size: usize,
    /// Bytes of the whole buffer for bcast, reduce, all_reduce and reduce_scatter (there, of the input). Bytes of one block, or
    /// of an average block, for the others.
    pub bytes: usize,
    /// The order of operands that a reduction needs.
    pub order: OperandOrder,
    /// True if blocks have different lengths.
    pub ragged: bool,
    /// True if ranks know which ranks share a node, and the ranks of each node are consecutive.
    pub mapped: bool,
}

impl Shape {
    /// Returns the shape of an empty message among `size` ranks, with a commutative operation, even blocks and known nodes.
    #[must_use]
    pub const fn of(size: usize) -> Self {
        Self {
            size,
            bytes: 0,
            order: OperandOrder::Any,
            ragged: false,
            mapped: true,
        }
    }

    fn model<'a>(&self, machine: &'a Machine) -> closed_forms::GroupModel<'a> {
        closed_forms::GroupModel {
            machine,
            size: self.size,
        }
    }

    /// Returns true if algorithms make sense in which one rank of each node communicates for the others.
    const fn has_leaders(&self, machine: &Machine) -> bool {
        self.mapped && 1 < machine.per_node && machine.per_node < self.size
    }
}

/// Returns the cheapest algorithm that fits.
///
/// # Panics
/// Panics if the group is empty or the machine has no ranks on a node.
#[must_use]
pub fn cheapest<A: Algorithm>(shape: &Shape, machine: &Machine) -> A {
    cheapest_but_for(None, shape, machine)
}

/// Returns the cheapest algorithm, or `incumbent` if it is about as cheap.
fn cheapest_but_for<A: Algorithm>(incumbent: Option<A>, shape: &Shape, machine: &Machine) -> A {
    assert!(
        shape.size > 0 && machine.per_node > 0,
        "a group on a machine"
    );
    let fitting = A::variants(shape, machine)
        .into_iter()
        .filter(|algorithm| algorithm.fits(shape, machine));
    let costs = fitting.map(|algorithm| {
        let bias = if incumbent == Some(algorithm) {
            INCUMBENT_BIAS
        } else {
            1.0
        };
        (algorithm, time_ns(algorithm, shape, machine) * bias)
    });
    let best = costs.min_by(|(_, a), (_, b)| a.total_cmp(b));
    best.expect("of every collective some algorithm always fits")
        .0
}

/// Returns about how long the algorithm takes, in nanoseconds. If the ranks of one node share its processors, only their
/// waiting overlaps, so the time is that of the work of all of them together.
pub(crate) fn time_ns<A: Algorithm>(algorithm: A, shape: &Shape, machine: &Machine) -> f64 {
    let is_crowded = shape.size >= machine.processors.saturating_mul(2);
    if !is_crowded || shape.size > machine.per_node {
        return algorithm.cost_ns(shape, machine);
    }
    let waits_ns = algorithm.cost_ns(&Shape { bytes: 0, ..*shape }, machine);
    waits_ns + algorithm.total(shape).time_ns(machine)
}

/// The choice for every length, made once for a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Table<A> {
    /// The longest message, in bytes, of each algorithm, in ascending order; the last algorithm serves all longer messages.
    rows: Vec<(usize, A)>,
}

impl<A: Algorithm> Table<A> {
    /// Chooses the cheapest algorithm for each length, except where an algorithm that costs a few percent more saves a row.
    /// `shape.bytes` is ignored.
    ///
    /// # Panics
    /// Panics if the group is empty or the machine has no ranks on a node.
    #[must_use]
    pub fn new(shape: Shape, machine: &Machine) -> Self {
        let next =
            |incumbent, bytes| cheapest_but_for(incumbent, &Shape { bytes, ..shape }, machine);
        let mut rows: Vec<(usize, A)> = Vec::new();
        let (mut low, mut current) = (1, next(None, 1));
        for high in (1..=LENGTH_LOG2_MAX).map(|bits| 1 << bits) {
            while next(Some(current), high) != current {
                let up_to = last_like(low, high, |bytes| next(Some(current), bytes) == current);
                rows.push((up_to, current));
                (low, current) = (up_to + 1, next(Some(current), up_to + 1));
            }
            low = high;
        }
        rows.push((usize::MAX, current));
        Self { rows }
    }

    /// Makes the table of the algorithm that the user named, whatever it costs.
    ///
    /// # Errors
    /// [`UnknownAlgorithm`], which lists the names, if no algorithm has this one.
    pub fn named(name: &str) -> Result<Self, UnknownAlgorithm> {
        let rows = vec![(usize::MAX, name.parse()?)];
        Ok(Self { rows })
    }

    /// Returns the algorithm for this length.
    #[must_use]
    pub fn choose(&self, bytes: usize) -> A {
        let row = self.rows.partition_point(|(up_to, _)| *up_to < bytes);
        self.rows[row].1
    }

    /// Returns the longest message, in bytes, of each algorithm, in ascending order.
    #[must_use]
    pub fn rows(&self) -> &[(usize, A)] {
        &self.rows
    }
}

impl<A: Algorithm> Display for Table<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", A::COLLECTIVE)?;
        self.rows
            .iter()
            .try_for_each(|(up_to, algorithm)| match *up_to {
                usize::MAX => writeln!(f, "{:>14}  {algorithm}", "any longer"),
                bytes => writeln!(f, "{bytes:>12} B  {algorithm}"),
            })
    }
}

/// Returns the last length in `low..high` for which `holds` is true. It is true for `low` and false for `high`.
fn last_like(mut low: usize, mut high: usize, holds: impl Fn(usize) -> bool) -> usize {
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle
        } else {
            high = middle
        }
    }
    low
}

/// Factor on the cost of the current algorithm. Closed forms are not exact enough to change the algorithm for a smaller gain.
const INCUMBENT_BIAS: f64 = 0.95;

/// The longest length of the table, in bytes. Nothing changes beyond 1 GiB that is worth a row.
const LENGTH_LOG2_MAX: u32 = 30;
