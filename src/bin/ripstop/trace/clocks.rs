//! One clock for all nodes, from the messages themselves.
//!
//! Ranks of one machine share its monotonic clock. Between machines, no message arrives before it was sent, and no rank ends a
//! collective that all must enter before the last one has begun it. Messages in both directions bound the difference of two
//! clocks from both sides. The middle of the bounds is used, and the error is half of their distance.

use std::collections::BTreeMap;

/// That one event, at node `from`, cannot have been later than another one, at node `to`. `margin` is the time of the later one
/// minus that of the earlier one, each on the clock of its own node, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockBound {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) margin: i64,
}

/// The clock of a node, compared with that of the first node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeClock {
    /// What is added to a time of this node, in nanoseconds.
    pub(crate) offset: i64,
    /// How wrong the offset may be, in nanoseconds; `None` if no messages bound it.
    pub(crate) error: Option<u64>,
}

/// Returns the clocks of all nodes; `None` for a node whose clock nothing bounds from both sides.
///
/// # Errors
/// No constant difference fits: the clocks run at different speeds.
pub(super) fn fit(nodes: usize, bounds: &[ClockBound]) -> Result<Vec<Option<NodeClock>>, String> {
    let mut least: BTreeMap<(usize, usize), i64> = BTreeMap::new();
    for bound in bounds.iter().filter(|bound| bound.from != bound.to) {
        let margin = least.entry((bound.from, bound.to)).or_insert(bound.margin);
        *margin = bound.margin.min(*margin);
    }
    // offset(from) - offset(to) <= margin. So the shortest paths from the first node, and to it, bound each offset.
    let above = distances(
        nodes,
        least
            .iter()
            .map(|((from, to), margin)| (*to, *from, *margin)),
    )?;
    let below = distances(
        nodes,
        least
            .iter()
            .map(|((from, to), margin)| (*from, *to, *margin)),
    )?;
    let clock = |node: usize| {
        let (high, low) = (above[node]?, below[node]?.checked_neg()?);
        let width = high.checked_sub(low)?;
        let error = Some(width.unsigned_abs().div_ceil(2));
        let offset = low.checked_add(width / 2)?;
        (width >= 0).then_some(NodeClock { offset, error })
    };
    Ok((0..nodes).map(clock).collect())
}

/// Returns the lengths of the shortest paths from node 0 along these edges. O(nodes · edges).
fn distances(
    nodes: usize,
    edges: impl Iterator<Item = (usize, usize, i64)> + Clone,
) -> Result<Vec<Option<i64>>, String> {
    let mut distances = vec![None; nodes];
    distances[0] = Some(0);
    for _ in 0..nodes {
        let mut is_final = true;
        for (from, to, margin) in edges.clone() {
            let Some(way) = distances[from] else {
                continue;
            };
            let Some(way) = i64::checked_add(way, margin) else {
                return Err(CONTRADICTION.to_owned());
            };
            if distances[to].is_none_or(|known| way < known) {
                distances[to] = Some(way);
                is_final = false;
            }
        }
        if is_final {
            return Ok(distances);
        }
    }
    Err(CONTRADICTION.to_owned())
}

const CONTRADICTION: &str = "the clocks of the nodes ran at different speeds, so that no constant difference fits: trace a \
                             shorter run, or say --unaligned";

#[cfg(test)]
mod tests {
    use super::{ClockBound, NodeClock, fit};

    const fn bound(from: usize, to: usize, margin: i64) -> ClockBound {
        ClockBound { from, to, margin }
    }

    #[test]
    fn messages_in_both_directions_bound_the_clock_of_a_node() {
        // The clock of node 1 is 1000 behind. Messages took 40 there, and 60 back.
        let bounds = [
            bound(0, 1, 40 - 1000),
            bound(1, 0, 60 + 1000),
            bound(0, 1, 90 - 1000),
        ];
        let clocks = fit(2, &bounds).unwrap();
        assert_eq!(
            clocks[0],
            Some(NodeClock {
                offset: 0,
                error: Some(0)
            })
        );
        let clock = clocks[1].unwrap();
        assert!((clock.offset - 1000).unsigned_abs() <= clock.error.unwrap());
        assert_eq!(clock.error, Some(50));
    }

    #[test]
    fn bounds_reach_a_node_by_way_of_another_one() {
        let there = [bound(0, 1, 5), bound(1, 2, 7 - 500)];
        let back = [bound(1, 0, 5), bound(2, 1, 7 + 500)];
        let clocks = fit(3, &[there, back].concat()).unwrap();
        let expected = NodeClock {
            offset: 500,
            error: Some(12),
        };
        assert_eq!(clocks[2], Some(expected));
        assert_eq!(fit(3, &there).unwrap()[1..], [None, None]);
    }

    #[test]
    fn bounds_that_contradict_each_other_are_an_error() {
        assert!(fit(2, &[bound(0, 1, -10), bound(1, 0, 9)]).is_err());
        assert!(fit(2, &[bound(0, 1, i64::MIN), bound(1, 0, i64::MIN)]).is_err());
    }
}
