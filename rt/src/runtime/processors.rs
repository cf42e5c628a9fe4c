//! How many processors the ranks of a node and the threads of a rank have.

use std::thread;

/// Returns true if the node has more ranks than processors. A rank that is bound to one processor sees no other, so then all
/// processors of the machine count.
pub(super) fn is_crowded(ranks: usize, mine: usize, processors: usize) -> bool {
    ranks > if mine > 1 { mine } else { processors }
}

/// Returns the number of processors on which the threads of a rank can run: those to which it is bound, or its share of all.
pub(super) fn of_threads(ranks: usize, mine: usize, processors: usize) -> u16 {
    let share = if mine < processors {
        mine
    } else {
        mine / ranks.max(1)
    };
    u16::try_from(share.max(1)).unwrap_or(u16::MAX)
}

/// Returns the number of processors on which this process may run.
pub(super) fn own() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Returns the number of processors for which collectives are chosen, and the nanoseconds until all ranks of one processor have
/// run.
///
/// Ranks of several nodes must make the same choice, but do not know how many ranks and processors other nodes have. So they
/// choose as if each rank had a processor of its own.
pub(super) fn sharing(on_node: usize, size: u32, processors: usize) -> (usize, f64) {
    /// Time to switch to the next rank and let it run, in nanoseconds.
    const SWITCH_NS: f64 = 1_500.0;
    if on_node != size as usize {
        return (usize::MAX, 0.0);
    }
    let others = on_node.div_ceil(processors) - 1;
    (processors, others as f64 * SWITCH_NS)
}

/// Returns the number of online processors of this machine, at least 1.
pub(super) fn online() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let ends = |range: &str| {
        let (first, last) = range
            .trim()
            .split_once('-')
            .unwrap_or_else(|| (range.trim(), range.trim()));
        Some(
            last.parse::<usize>()
                .ok()?
                .saturating_sub(first.parse().ok()?)
                + 1,
        )
    };
    text.split(',').filter_map(ends).sum::<usize>().max(1)
}

#[cfg(test)]
mod tests {
    use super::{of_threads, sharing};

    #[test]
    fn the_threads_of_a_rank_have_its_processors_or_its_share_of_all() {
        for (ranks, mine, processors, threads) in [
            (2, 1, 2, 1),
            (2, 2, 2, 1),
            (1, 2, 2, 2),
            (4, 4, 16, 4),
            (4, 16, 16, 4),
            (8, 2, 2, 1),
            (0, 2, 2, 2),
        ] {
            let found = of_threads(ranks, mine, processors);
            assert_eq!(found, threads, "{ranks} ranks, {mine} of {processors}");
        }
    }

    #[test]
    fn only_ranks_of_one_node_are_chosen_for_as_sharing_its_processors() {
        assert_eq!(sharing(8, 8, 2), (2, 4_500.0));
        assert_eq!(sharing(2, 2, 2), (2, 0.0));
        // Another node may have more or fewer ranks and processors, and its ranks must make the same choice.
        for (on_node, processors) in [(4, 4), (4, 2), (8, 16)] {
            assert_eq!(sharing(on_node, 12, processors), (usize::MAX, 0.0));
        }
    }
}
