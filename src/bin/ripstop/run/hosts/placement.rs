//! Decides which rank runs on which host, and describes it as `PMI_process_mapping`.
//!
//! Ranks fill the hosts in the order of the list. Only if oversubscribing is allowed, and all places are taken, filling
//! starts over at the first host.

use std::fmt::Write;

use super::RANKS_MAX;
use super::list::ListedHost;
use super::rankfile::RankFile;

/// The ranks of each host of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HostPlacement {
    /// Number of ranks of the job.
    pub(super) size: u32,
    /// The ranks on each host that has some, by the host's index in the list, in the list's order.
    pub(super) hosts: Vec<(usize, Vec<u32>)>,
    /// The value of `PMI_process_mapping`. Node n is the n-th of `hosts`.
    pub(super) mapping: String,
}

/// What the user asks of a placement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlacementWish {
    /// Number of ranks; by default, as many as there are places.
    pub(super) ranks: Option<u32>,
    /// Number of ranks on each host, instead of the places in the list.
    pub(super) per_host: Option<u32>,
    /// True if a host may get more ranks than it has places for.
    pub(super) oversubscribe: bool,
}

/// Places the ranks. The error says both numbers if there are too few places.
pub(super) fn place(list: &[ListedHost], wish: PlacementWish) -> Result<HostPlacement, String> {
    let places: Vec<u32> = list
        .iter()
        .map(|host| {
            let places = wish.per_host.unwrap_or(host.places);
            places.min(host.places_max.unwrap_or(places))
        })
        .collect();
    let all: u64 = places.iter().map(|&places| u64::from(places)).sum();
    let size = match wish.ranks {
        Some(ranks) => ranks,
        None => u32::try_from(all).unwrap_or(u32::MAX),
    };
    if !(1..=RANKS_MAX).contains(&size) {
        return Err(format!(
            "the hosts have places for {all} ranks, and a job has 1 to {RANKS_MAX}: say with -n how many"
        ));
    }
    if u64::from(size) > all && !wish.oversubscribe {
        return Err(format!(
            "{size} ranks on hosts with places for {all}: use a smaller -n, name more hosts or more places (HOST:PLACES), or \
             allow it with --oversubscribe"
        ));
    }
    let turns = fill(list, &places, size)?;
    let hosts = ranks_of(&turns, list.len());
    let mapping = mapping(&turns, &hosts)?;
    Ok(HostPlacement {
        size,
        hosts,
        mapping,
    })
}

/// Places the ranks as a file says.
pub(super) fn place_as(file: &RankFile) -> Result<HostPlacement, String> {
    let mut turns: Vec<(usize, u32)> = Vec::new();
    for &host in &file.host_of {
        match turns.last_mut() {
            Some((last, ranks)) if *last == host => *ranks += 1,
            _ => turns.push((host, 1)),
        }
    }
    let hosts = ranks_of(&turns, file.hosts.len());
    let mapping = mapping(&turns, &hosts)?;
    Ok(HostPlacement {
        size: u32::try_from(file.host_of.len()).unwrap_or(u32::MAX),
        hosts,
        mapping,
    })
}

/// Returns hosts and numbers of ranks, in the order in which ranks are placed.
fn fill(list: &[ListedHost], places: &[u32], size: u32) -> Result<Vec<(usize, u32)>, String> {
    let mut taken = vec![0; list.len()];
    let mut turns = Vec::new();
    let mut left = size;
    while left > 0 {
        let before = left;
        for (host, taken) in taken.iter_mut().enumerate() {
            let most = list[host].places_max.unwrap_or(u32::MAX);
            let ranks = places[host].min(most - *taken).min(left);
            if ranks > 0 {
                *taken += ranks;
                left -= ranks;
                turns.push((host, ranks));
            }
        }
        if left == before {
            return Err(format!(
                "{size} ranks are more than the max_slots of all hosts together: {}",
                size - left
            ));
        }
    }
    Ok(turns)
}

fn ranks_of(turns: &[(usize, u32)], hosts: usize) -> Vec<(usize, Vec<u32>)> {
    let mut ranks: Vec<Vec<u32>> = vec![Vec::new(); hosts];
    let mut next = 0;
    for &(host, count) in turns {
        ranks[host].extend(next..next + count);
        next += count;
    }
    let all = ranks.into_iter().enumerate();
    all.filter(|(_, ranks)| !ranks.is_empty()).collect()
}

/// Describes the turns as blocks (first node, number of nodes, ranks on each). The reader repeats the list of blocks
/// until all ranks are placed, so turns that repeat themselves are described once.
fn mapping(turns: &[(usize, u32)], hosts: &[(usize, Vec<u32>)]) -> Result<String, String> {
    let node = |host: usize| hosts.partition_point(|&(other, _)| other < host);
    let round = &turns[..turns.len().min(hosts.len())];
    let shown = if repeats(turns, round) { round } else { turns };
    let mut blocks: Vec<(usize, usize, u32)> = Vec::new();
    for &(host, ranks) in shown {
        match blocks.last_mut() {
            Some((first, nodes, each)) if *each == ranks && *first + *nodes == node(host) => {
                *nodes += 1;
            }
            _ => blocks.push((node(host), 1, ranks)),
        }
    }
    let mut text = "(vector".to_owned();
    for (first, nodes, each) in blocks {
        let _ = write!(text, ",({first},{nodes},{each})"); // Writing to a string does not fail.
    }
    text.push(')');
    if text.len() > MAPPING_MAX {
        return Err(
            "the ranks alternate between hosts in too irregular an order to be told to them: sort the list by places, \
             or let ranks of a host follow one another"
                .to_owned(),
        );
    }
    Ok(text)
}

/// Returns true if `turns` is `round` again and again; the very last turn may be short.
fn repeats(turns: &[(usize, u32)], round: &[(usize, u32)]) -> bool {
    let expected = round.iter().cycle();
    let pairs = turns.iter().zip(expected).enumerate();
    let (last, mut pairs) = (turns.len() - 1, pairs);
    pairs.all(|(nth, (turn, first))| {
        turn.0 == first.0 && (turn.1 == first.1 || nth == last && turn.1 < first.1)
    })
}

/// The longest value that a client of PMI-1 must accept.
const MAPPING_MAX: usize = 1023;

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::run::hosts::{list, rankfile};

    fn placed(hosts: &str, wish: PlacementWish) -> Result<String, String> {
        let list = list::parse(hosts).unwrap();
        let HostPlacement { hosts, mapping, .. } = place(&list, wish)?;
        let hosts = hosts
            .iter()
            .map(|(host, ranks)| format!("{}{ranks:?}", list[*host].name));
        Ok(format!("{} {mapping}", hosts.collect::<Vec<_>>().join(" ")))
    }

    fn ranks(ranks: u32) -> PlacementWish {
        PlacementWish {
            ranks: Some(ranks),
            ..PlacementWish::default()
        }
    }

    #[test]
    fn ranks_fill_hosts_in_the_order_of_the_list() {
        let all = PlacementWish::default();
        assert_eq!(
            placed("a:2,b", all).unwrap(),
            "a[0, 1] b[2] (vector,(0,1,2),(1,1,1))"
        );
        assert_eq!(
            placed("n[0-2]:2", all).unwrap(),
            "n0[0, 1] n1[2, 3] n2[4, 5] (vector,(0,3,2))"
        );
        assert_eq!(
            placed("a:2,b:2", ranks(3)).unwrap(),
            "a[0, 1] b[2] (vector,(0,1,2),(1,1,1))"
        );
        assert_eq!(
            placed("a:2,b:2", ranks(2)).unwrap(),
            "a[0, 1] (vector,(0,1,2))"
        );
        let each = PlacementWish {
            per_host: Some(2),
            ..all
        };
        assert_eq!(
            placed("a:9,b", each).unwrap(),
            "a[0, 1] b[2, 3] (vector,(0,2,2))"
        );
    }

    #[test]
    fn too_many_ranks_start_over_only_where_that_is_allowed() {
        let refused = placed("a:2,b", ranks(5)).unwrap_err();
        assert!(
            refused.contains("5 ranks on hosts with places for 3"),
            "{refused}"
        );
        let over = PlacementWish {
            oversubscribe: true,
            ..ranks(7)
        };
        assert_eq!(
            placed("a:2,b", over).unwrap(),
            "a[0, 1, 3, 4, 6] b[2, 5] (vector,(0,1,2),(1,1,1))"
        );
        let list = list::parse_file(b"a slots=1 max_slots=2\nb slots=1").unwrap();
        let placement = place(
            &list,
            PlacementWish {
                oversubscribe: true,
                ..ranks(5)
            },
        )
        .unwrap();
        assert_eq!(placement.hosts, [(0, vec![0, 2]), (1, vec![1, 3, 4])]);
        let list = list::parse_file(b"a slots=1 max_slots=2").unwrap();
        let refused = place(
            &list,
            PlacementWish {
                oversubscribe: true,
                ..ranks(5)
            },
        )
        .unwrap_err();
        assert!(refused.contains("max_slots"), "{refused}");
        assert!(placed("a:5000,b:5000", PlacementWish::default()).is_err());
    }

    /// The node of each rank, as a reader of the mapping understands it.
    fn nodes(mapping: &str, size: usize) -> Vec<usize> {
        let blocks = mapping
            .strip_prefix("(vector,(")
            .unwrap()
            .strip_suffix("))")
            .unwrap();
        let blocks = blocks.split("),(").map(|block| {
            let numbers: Vec<usize> = block.split(',').map(|n| n.parse().unwrap()).collect();
            (numbers[0], numbers[1], numbers[2])
        });
        let turns: Vec<usize> = blocks
            .flat_map(|(first, nodes, each)| {
                (first..first + nodes).flat_map(move |node| std::iter::repeat_n(node, each))
            })
            .collect();
        turns.into_iter().cycle().take(size).collect()
    }

    #[test]
    fn ranks_are_placed_as_a_file_says() {
        for (file, hosts, mapping) in [
            (
                "rank 0-1=a\nrank 2=b",
                "[(0, [0, 1]), (1, [2])]",
                "(vector,(0,1,2),(1,1,1))",
            ),
            (
                "rank 0=a\nrank 1=b\nrank 2=a",
                "[(0, [0, 2]), (1, [1])]",
                "(vector,(0,2,1))",
            ),
            (
                "rank 2=a\nrank 0-1=b",
                "[(0, [2]), (1, [0, 1])]",
                "(vector,(1,1,2),(0,1,1))",
            ),
        ] {
            let file = rankfile::parse(file.as_bytes()).unwrap();
            let placed = place_as(&file).unwrap();
            assert_eq!(
                (
                    format!("{:?}", placed.hosts).as_str(),
                    placed.mapping.as_str()
                ),
                (hosts, mapping)
            );
        }
    }

    proptest! {
        #[test]
        fn the_mapping_tells_what_a_file_says(host_of in proptest::collection::vec(0_usize..4, 1..30)) {
            let lines = host_of.iter().enumerate();
            let lines: String = lines.map(|(rank, host)| format!("rank {rank}=n{host}\n")).collect();
            let placed = place_as(&rankfile::parse(lines.as_bytes()).unwrap()).unwrap();
            let mut told = vec![usize::MAX; host_of.len()];
            for (node, (_, ranks)) in placed.hosts.iter().enumerate() {
                ranks.iter().for_each(|&rank| told[rank as usize] = node);
            }
            prop_assert_eq!(nodes(&placed.mapping, host_of.len()), told);
        }

        #[test]
        fn the_mapping_tells_what_was_placed(
            places in proptest::collection::vec((1_u32..4, proptest::option::of(1_u32..6)), 1..6),
            size in 1_u32..40,
            oversubscribe in any::<bool>(),
        ) {
            let hosts: Vec<ListedHost> = places
                .iter()
                .enumerate()
                .map(|(at, &(places, most))| ListedHost {
                    places_max: most,
                    ..ListedHost::new(&format!("n{at}"), places).unwrap()
                })
                .collect();
            let wish = PlacementWish { oversubscribe, ..ranks(size) };
            if let Ok(placement) = place(&hosts, wish) {
                let mut told = vec![usize::MAX; size as usize];
                for (node, (host, ranks)) in placement.hosts.iter().enumerate() {
                    ranks.iter().for_each(|&rank| told[rank as usize] = node);
                    let most = hosts[*host].places_max.unwrap_or(u32::MAX);
                    prop_assert!(ranks.len() <= most as usize);
                }
                prop_assert_eq!(nodes(&placement.mapping, size as usize), told);
            } else {
                let most = |&(places, most): &(u32, Option<u32>)| places.min(most.unwrap_or(places));
                let limited = oversubscribe && places.iter().all(|(_, most)| most.is_some());
                prop_assert!(limited || size > places.iter().map(most).sum());
            }
        }
    }
}
