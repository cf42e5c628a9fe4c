//! All ranks are connected at the start, by queue pairs that each made before it knew the others.

use std::{sync::Arc, time::Duration};

use ripstop_fabric::{
    connect::{CommPattern, ConnectPolicy},
    counters::DriverStats,
    driver::{CommandToken, Driver, WorldRank},
    verbs::{DevicePort, PreparedVerbs, Verbs, VerbsConfig},
};

use super::{lanes::devices_by_two, put};
use crate::world::{World, contents, local, noise, peer};

/// Ranks on one device that are connected at the start.
pub(crate) fn world_at_once(ranks: u32) -> Vec<Box<dyn Driver>> {
    let prepared = prepare(ranks, |_| ());
    connect_all(prepared.0)
}

/// Prepares ranks and their counters. `change` adapts each rank's configuration.
fn prepare(
    ranks: u32,
    change: impl Fn(&mut VerbsConfig),
) -> (Vec<PreparedVerbs>, Vec<Arc<DriverStats>>) {
    let counters: Vec<_> = (0..ranks)
        .map(|_| Arc::new(DriverStats::default()))
        .collect();
    let prepared = (0..ranks).map(|rank| prepare_at_once(rank, &counters, &change));
    (prepared.collect(), counters)
}

/// Prepares one rank, of as many as there are counters.
pub(super) fn prepare_at_once(
    rank: u32,
    counters: &[Arc<DriverStats>],
    change: impl Fn(&mut VerbsConfig),
) -> PreparedVerbs {
    let mut config = VerbsConfig::new(WorldRank(rank), u32::try_from(counters.len()).unwrap());
    config.device = Some(DevicePort::all().unwrap().remove(0).to_string());
    config.scheme = Some(ConnectPolicy::AllToAll);
    config.linger = Duration::from_millis(50);
    config.counters = Arc::clone(&counters[rank as usize]);
    change(&mut config);
    Verbs::prepare(config).unwrap()
}

pub(super) fn connect_all(prepared: Vec<PreparedVerbs>) -> Vec<Box<dyn Driver>> {
    let addresses = addresses(&prepared);
    let connect = |rank: PreparedVerbs| Box::new(rank.connect(addresses.clone()).unwrap());
    prepared
        .into_iter()
        .map(|rank| connect(rank) as Box<dyn Driver>)
        .collect()
}

fn addresses(prepared: &[PreparedVerbs]) -> Vec<Vec<u8>> {
    prepared.iter().map(PreparedVerbs::address).collect()
}

fn asked(counters: &[Arc<DriverStats>]) -> Vec<u64> {
    counters.iter().map(|one| one.connecting.get()).collect()
}

/// Has every rank send a message to every other rank and to itself.
pub(super) fn all_meet(world: &mut World, ranks: usize) {
    for from in 0..ranks {
        for to in 0..ranks {
            world.send(from, to, &[u8::try_from(from).unwrap()], b"all");
        }
    }
    for to in 0..ranks {
        world.hears(to, ranks);
        let mut heard: Vec<_> = world[to].heard.messages.drain(..).collect();
        heard.sort_by_key(|one| one.from);
        for (from, one) in heard.into_iter().enumerate() {
            assert_eq!(
                (one.from, one.header),
                (peer(from), vec![u8::try_from(from).unwrap()])
            );
        }
        assert!(world[to].heard.down.is_empty());
    }
}

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn all_pairs_are_connected_at_the_start_without_requests() {
    let (prepared, counters) = prepare(8, |_| ());
    let mut world = World::from_drivers(connect_all(prepared));
    all_meet(&mut world, 8);
    assert_eq!(asked(&counters), [0; 8]);
}

/// Ranks that start together take turns, so a rank's queue pair numbers have no gaps, except for queue pairs of other ranks for
/// datagrams. An address has 48 bytes, then the number of devices, then the number of ranges.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn ranks_that_begin_at_once_have_their_queue_pairs_in_few_ranges() {
    let counters: Vec<_> = (0..RANKS).map(|_| Arc::default()).collect();
    let addresses = std::thread::scope(|scope| {
        let begin = |rank| {
            let counters = &counters;
            scope.spawn(move || prepare_at_once(rank, counters, |_| ()))
        };
        // Start all before waiting for one.
        let begun: Vec<_> = (0..RANKS).map(begin).collect();
        let prepared = begun.into_iter().map(|rank| rank.join().unwrap());
        addresses(&prepared.collect::<Vec<_>>())
    });
    let ranges = addresses.iter().map(|address| {
        assert_eq!(address[48], 1, "{address:?}");
        u32::from(address[49])
    });
    let ranges: Vec<_> = ranges.collect();
    assert!(ranges.iter().sum::<u32>() <= 2 * RANKS, "{ranges:?}");
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn all_pairs_are_connected_by_two_devices_without_requests() {
    let (prepared, counters) = prepare(4, |config| {
        config.device = Some(devices_by_two(config.rank.0));
    });
    assert!(addresses(&prepared).iter().all(|address| address[48] == 2));
    let mut world = World::from_drivers(connect_all(prepared));
    all_meet(&mut world, 4);
    for (from, to) in [(0, 1), (0, 2), (3, 0)] {
        let (region, key) = world[to].memory(LONG);
        let mut bytes = noise(from as u64, LONG);
        world
            .one_sided(from, put(to, local(&mut bytes), key, CommandToken(1)))
            .unwrap();
        assert!(contents(&region) == bytes);
    }
    assert_eq!(asked(&counters), [0; 4]);
}

/// One rank has made no queue pairs. Connections with it are made on demand; the others are connected from the start.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_rank_that_has_made_no_queue_pairs_is_asked() {
    let (prepared, counters) = prepare(4, |config| {
        if config.rank.0 == 2 {
            config.scheme = Some(ConnectPolicy::OnDemand);
        }
    });
    let doors = prepared.iter().map(|rank| rank.address().len() > 48);
    assert_eq!(doors.collect::<Vec<_>>(), [true, true, false, true]);
    let mut world = World::from_drivers(connect_all(prepared));
    all_meet(&mut world, 4);
    let asked = asked(&counters);
    assert!(asked[2] > 0, "{asked:?}");
}

/// A small enough job is connected at the start, unless it declares that it needs few connections.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_job_that_speaks_with_few_is_not_connected_at_once() {
    let has_doors = |pattern| {
        let (prepared, _) = prepare(3, |config| {
            (config.scheme, config.pattern) = (None, pattern);
        });
        prepared[0].address().len() > 48
    };
    assert!(has_doors(CommPattern::Unknown) && has_doors(CommPattern::Dense));
    assert!(!has_doors(CommPattern::Sparse { peers: 1 }));
}

/// A rank that arrives after the others' devices have given up on it is not treated as dead.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_rank_that_comes_late_is_asked_and_not_given_up() {
    let (mut prepared, counters) = prepare(3, |config| {
        config.patience = Duration::from_millis(300);
    });
    let addresses = addresses(&prepared);
    assert!(addresses.iter().all(|address| address.len() > 48));
    let late = prepared.pop().unwrap();
    let mut early: Vec<Box<dyn Driver>> = prepared
        .into_iter()
        .map(|rank| Box::new(rank.connect(addresses.clone()).unwrap()) as Box<dyn Driver>)
        .collect();
    let mut world = World::from_drivers(std::mem::take(&mut early));
    world.send(0, 2, b"patience", b"");
    world.until("the others to ask", |_| {
        asked(&counters)[..2].iter().all(|asked| *asked > 0)
    });
    let mut ranks: Vec<Box<dyn Driver>> = world
        .into_ranks()
        .into_iter()
        .map(|rank| {
            assert!(rank.heard.down.is_empty());
            rank.driver
        })
        .collect();
    ranks.push(Box::new(late.connect(addresses).unwrap()));
    let mut world = World::from_drivers(ranks);
    world.hears(2, 1);
    assert_eq!(world[2].heard.messages.remove(0).header, b"patience");
    all_meet(&mut world, 3);
}

const RANKS: u32 = 16;
const LONG: usize = 1 << 20;
