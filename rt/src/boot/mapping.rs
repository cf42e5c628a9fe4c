//! Parses `PMI_process_mapping`, in which a process manager describes which rank is on which node.
//!
//! `(vector,(0,1,3),(1,1,1))` is a list of blocks (first node, number of nodes, ranks on each): 3 ranks on node 0, then
//! 1 on node 1. The list repeats until all ranks are placed, so `(vector,(0,2,1))` places ranks on two nodes
//! alternately.

use std::collections::BTreeMap;

use super::Node;

/// Returns the node of `rank` in a job of `size` ranks. The error says what is wrong with `mapping`.
pub(super) fn node_of(rank: u32, size: u32, mapping: &str) -> Result<Node, String> {
    let blocks = parse(mapping)?;
    let mine = places(&blocks, size)
        .find(|place| place.contains(rank))
        .map(|place| place.node);
    let ranks: Vec<u32> = places(&blocks, size)
        .filter(|place| Some(place.node) == mine)
        .flat_map(|place| place.first..place.end)
        .collect();
    let each = if ranks.len() == size as usize {
        Some(size)
    } else {
        Some(in_a_row(&blocks, size).unwrap_or(1))
    };
    let most = most_on_a_node(&blocks, size);
    Ok(Node { ranks, each, most })
}

fn most_on_a_node(blocks: &[MappingBlock], size: u32) -> u32 {
    let mut nodes = BTreeMap::new();
    for place in places(blocks, size) {
        *nodes.entry(place.node).or_insert(0) += place.end - place.first;
    }
    nodes.into_values().max().unwrap_or(0)
}

/// Returns the number of consecutive ranks on each node, if all nodes have the same number; the last node may have
/// fewer.
fn in_a_row(blocks: &[MappingBlock], size: u32) -> Option<u32> {
    let mut all = places(blocks, size).peekable();
    let each = all.peek().map(|place| place.end - place.first)?;
    let mut next = None;
    for place in all {
        let follows = next.is_none_or(|node| place.node == node);
        let ranks = place.end - place.first;
        let full = ranks == each || ranks < each && place.end == size;
        if !follows || !full {
            return None;
        }
        next = place.node.checked_add(1);
    }
    Some(each)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MappingBlock {
    node: u32,
    nodes: u32,
    ranks_each: u32,
}

/// The ranks `first..end`, which are on `node`.
struct MappedRanks {
    node: u32,
    first: u32,
    end: u32,
}

impl MappedRanks {
    fn contains(&self, rank: u32) -> bool {
        (self.first..self.end).contains(&rank)
    }
}

fn parse(mapping: &str) -> Result<Vec<MappingBlock>, String> {
    let mut rest = mapping
        .trim()
        .strip_prefix("(vector")
        .ok_or("it does not begin with \"(vector\"")?;
    let mut blocks = Vec::new();
    while let Some(block) = rest.strip_prefix(",(") {
        let (numbers, behind) = block.split_once(')').ok_or("a block is not closed")?;
        blocks.extend(parse_block(numbers)?);
        rest = behind;
    }
    match rest {
        ")" if !blocks.is_empty() => Ok(blocks),
        ")" => Err("it places no rank".to_owned()),
        _ => Err("its list of blocks is not closed".to_owned()),
    }
}

/// Parses a block. A block without ranks places nothing and is dropped, so that iterating over the others always makes
/// progress.
fn parse_block(text: &str) -> Result<Option<MappingBlock>, String> {
    let numbers: Vec<u32> = text
        .split(',')
        .map(|number| {
            number
                .trim()
                .parse()
                .map_err(|_| format!("{:?} is not a number", super::error::printable(number)))
        })
        .collect::<Result<_, _>>()?;
    let &[node, nodes, ranks_each] = numbers.as_slice() else {
        return Err(format!(
            "the block ({}) does not have three numbers, as in (first node,nodes,ranks on each)",
            super::error::printable(text)
        ));
    };
    node.checked_add(nodes)
        .ok_or("a node number is too large")?;
    Ok((nodes > 0 && ranks_each > 0).then_some(MappingBlock {
        node,
        nodes,
        ranks_each,
    }))
}

/// Iterates over the nodes in the order in which they receive ranks, until all `size` ranks are placed.
fn places(blocks: &[MappingBlock], size: u32) -> impl Iterator<Item = MappedRanks> + '_ {
    let turns = blocks.iter().flat_map(|block| {
        (block.node..block.node + block.nodes).map(|node| (node, block.ranks_each))
    });
    turns.cycle().scan(0, move |next: &mut u32, (node, ranks)| {
        let first = *next;
        *next = first.saturating_add(ranks).min(size);
        (first < size).then_some(MappedRanks {
            node,
            first,
            end: *next,
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::*;

    fn beside(rank: u32, size: u32, mapping: &str) -> Vec<u32> {
        node_of(rank, size, mapping).unwrap().ranks
    }

    #[test]
    fn one_block_of_one_node_takes_all_ranks() {
        assert_eq!(
            beside(2, 4, "(vector,(0,1,1))"),
            [0, 1, 2, 3],
            "Hydra on one node"
        );
        assert_eq!(beside(0, 3, "(vector,(0,1,3))"), [0, 1, 2]);
    }

    #[test]
    fn blocks_give_neighboring_ranks_to_a_node() {
        assert_eq!(beside(1, 4, "(vector,(0,1,3),(1,1,1))"), [0, 1, 2]);
        assert_eq!(beside(3, 4, "(vector,(0,1,3),(1,1,1))"), [3]);
        assert_eq!(beside(5, 8, "(vector,(0,4,2))"), [4, 5]);
    }

    #[test]
    fn a_list_that_ends_early_starts_over() {
        assert_eq!(beside(3, 6, "(vector,(0,2,1))"), [1, 3, 5], "cyclic");
        assert_eq!(beside(0, 6, "(vector,(0,1,2),(1,1,1))"), [0, 1, 3, 4]);
    }

    #[test]
    fn nodes_with_as_many_ranks_in_a_row_are_known_as_such() {
        let each = |size, mapping| node_of(0, size, mapping).unwrap().each;
        assert_eq!(each(8, "(vector,(0,4,2))"), Some(2));
        assert_eq!(each(7, "(vector,(3,4,2))"), Some(2), "the last has fewer");
        assert_eq!(each(6, "(vector,(0,2,2),(2,1,2))"), Some(2));
        assert_eq!(each(4, "(vector,(0,1,1))"), Some(4), "one node");
        assert_eq!(each(4, "(vector,(0,1,3),(1,1,1))"), Some(3));
        assert_eq!(each(4, "(vector,(0,1,1),(1,1,3))"), Some(1));
        assert_eq!(each(6, "(vector,(0,2,1))"), Some(1), "in turns");
        let each = each(4, "(vector,(1,1,2),(0,1,2))");
        assert_eq!(each, Some(1), "not in order");
    }

    #[test]
    fn all_ranks_know_the_most_ranks_of_a_node() {
        let most = |rank, size, mapping| node_of(rank, size, mapping).unwrap().most;
        // The last of 17 nodes has 16 ranks.
        assert_eq!(
            [0, 1039].map(|rank| most(rank, 1040, "(vector,(0,17,64))")),
            [64; 2]
        );
        assert_eq!(
            [0, 3].map(|rank| most(rank, 4, "(vector,(0,1,1),(1,1,3))")),
            [3; 2]
        );
        assert_eq!(most(1, 5, "(vector,(0,2,1))"), 3, "in turns");
        assert_eq!(most(2, 4, "(vector,(0,1,1))"), 4, "one node");
    }

    #[test]
    fn empty_blocks_place_nothing() {
        assert_eq!(beside(1, 2, "(vector,(7,4000000000,0),(0,1,2))"), [0, 1]);
        assert!(node_of(0, 2, "(vector,(0,0,3))").is_err());
        assert!(node_of(0, 2, "(vector)").is_err());
    }

    #[test]
    fn nonsense_is_an_error() {
        for mapping in [
            "",
            "(",
            "vector",
            "(vector,(0,1",
            "(vector,(0,1))",
            "(vector,(0,1,x))",
            "(vector,(0,1,1)",
            "(vector,(-1,1,1))",
        ] {
            assert!(node_of(0, 2, mapping).is_err(), "{mapping:?}");
        }
        assert!(node_of(0, 2, "(vector,(4294967295,4294967295,1))").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(mapping in "\\(?(vector)?[(),0-9 x]{0,40}", rank in 0_u32..9, more in 1_u32..9) {
            if let Ok(Node { ranks, each, most }) = node_of(rank, rank + more, &mapping) {
                prop_assert!(ranks.contains(&rank));
                prop_assert!(ranks.len() <= most as usize);
                prop_assert!(ranks.is_sorted());
                let regular = |each: u32| (0..rank + more).filter(|other| other / each == rank / each).collect::<Vec<_>>();
                prop_assert!(each == Some(1) || each.is_some_and(|each| regular(each) == ranks), "{each:?} and {ranks:?}");
            }
        }

        #[test]
        fn every_rank_is_on_exactly_one_node(nodes in 1_u32..5, each in 1_u32..4, size in 1_u32..30, first in any::<u8>()) {
            let mapping = format!("(vector,({first},{nodes},{each}))");
            for rank in 0..size {
                let node = node_of(rank, size, &mapping).unwrap();
                prop_assert!(node.ranks.iter().all(|&other| node_of(other, size, &mapping).unwrap() == node));
                prop_assert!(node.ranks.len() <= node.most as usize);
            }
        }
    }
}
