//! How ranks reach each other, according to their driver and their launcher.

use ripstop_fabric::driver::{Driver, DriverCost};

use crate::{boot::Boot, group::WorldRank, proto::path::PathTables, settings::Settings};

/// Paths between ranks, their costs, and the ranks that share memory.
pub(crate) struct JobTopology {
    pub(crate) paths: PathTables,
    /// Costs of the driver's operations. `cost_inside` are those within a node, if they are different.
    pub(crate) cost: DriverCost,
    pub(crate) cost_inside: Option<DriverCost>,
    /// Lowest rank of this node. If parts of the node stand for nodes (`RIPSTOP_SHM_RANKS`), lowest rank of this part.
    pub(crate) leader: WorldRank,
    /// Ranks whose memory processors can access although there is an adapter too, in ascending order. Includes this
    /// rank, or is empty.
    pub(crate) neighbors: Vec<WorldRank>,
    /// Number of consecutive ranks that share memory, on every node; the last may have fewer.
    pub(crate) per_node: Option<u32>,
}

impl JobTopology {
    pub(crate) fn of(driver: &mut dyn Driver, boot: &Boot, settings: &Settings) -> Self {
        let here = driver.caps_to(WorldRank(boot.rank)).clone();
        // A driver reaches all ranks alike, or those that share memory with this one by another way than the others.
        let is_same = |rank: &WorldRank| driver.caps_to(*rank).shares_memory == here.shares_memory;
        let on_node = boot.node.ranks.iter().copied().map(WorldRank);
        let same_memory: Vec<WorldRank> = on_node.filter(is_same).collect();
        let leader = same_memory.first().copied();
        let within = PathTables::new(&here, settings);
        let two = driver.caps().shares_memory != here.shares_memory;
        let neighbors = if two && here.by_processor {
            same_memory.clone()
        } else {
            Vec::new()
        };
        let mut all = (0..boot.size).map(WorldRank);
        let distant = all.find(|rank| same_memory.binary_search(rank).is_err());
        let distant = distant.filter(|_| two).map(|rank| driver.caps_to(rank));
        let (paths, cost) = match distant {
            Some(caps) => {
                let paths = PathTables::new(caps, settings).with_intra_node(same_memory, within);
                (paths, caps.cost)
            }
            None => (within, here.cost),
        };
        let fabric = settings.fabric;
        let together = settings
            .shm_ranks
            .filter(|_| fabric.is_combined() || fabric.is_auto());
        Self {
            paths,
            cost,
            cost_inside: distant.map(|_| here.cost),
            leader: leader.unwrap_or(WorldRank(boot.rank)),
            neighbors,
            per_node: boot
                .node
                .each
                .and_then(|each| in_a_row(each, boot.size, together)),
        }
    }
}

/// Returns the number of consecutive ranks that share memory, if each node has `each` ranks, and `together` of them
/// share memory if that is set. Returns 1 if the ranks of a node cannot be divided evenly.
fn in_a_row(each: u32, size: u32, together: Option<u32>) -> Option<u32> {
    match together {
        Some(some) if each == size || each.is_multiple_of(some) => Some(some.min(each)),
        Some(_) => Some(1),
        None => Some(each),
    }
}

#[cfg(test)]
mod tests {
    use super::in_a_row;

    #[test]
    fn parts_of_nodes_are_nodes_where_all_are_alike() {
        assert_eq!(in_a_row(16, 64, None), Some(16));
        assert_eq!(in_a_row(16, 64, Some(4)), Some(4));
        assert_eq!(in_a_row(16, 64, Some(5)), Some(1), "5, 5, 5, 1, 5, ..");
        assert_eq!(in_a_row(6, 6, Some(4)), Some(4), "one node: 4 and 2");
        assert_eq!(in_a_row(6, 6, Some(9)), Some(6));
    }
}
