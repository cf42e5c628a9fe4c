//! Worlds in which ranks of a node share memory, next to a network between all ranks.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use ripstop_fabric::{
    driver::{CommandToken, DownCause, Driver, DriverCommand, WorldRank},
    hierarchical::{HierarchicalConfig, HierarchicalDriver},
    hook::{HookDriver, HookPlan, HookTap},
    loopback::{self, LoopbackDriver},
    memory::RemoteRegion,
    registry::FabricSelection,
    shm::{Board, BoardRanks, Shm, ShmConfig, WakeMethod},
};

use crate::{
    loopback_world, portals,
    world::{Rank, World, all_of, contents, local, noise, peer},
};

/// Returns ranks that are all on one node.
pub(crate) fn one_node_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    joined(loopback_world(ranks), None, Some(false))
}

/// Returns two ranks on each node, whose adapters copy long messages.
pub(crate) fn nodes_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    joined(loopback_world(ranks), Some(2), Some(true))
}

pub(crate) fn one_node_on_portals(ranks: u32) -> Vec<Box<dyn Driver>> {
    joined(portals::sandia42_world(ranks), None, None)
}

pub(crate) fn nodes_on_portals(ranks: u32) -> Vec<Box<dyn Driver>> {
    joined(portals::portails4_world(ranks), Some(2), None)
}

/// Joins each of these drivers with a shared-memory driver on one board.
fn joined(
    inter: Vec<Box<dyn Driver>>,
    together: Option<u32>,
    loopback: Option<bool>,
) -> Vec<Box<dyn Driver>> {
    let size = inter.len() as u32;
    let board = Board::create(size).unwrap();
    let network = inter.first().map_or("", |one| one.caps().name);
    let name = FabricSelection::combined().find(|name| name.ends_with(network));
    let join = |(rank, inter)| {
        let config = HierarchicalConfig {
            name: name.unwrap_or("shm+network"),
            together,
            loopback,
            ..config(&board, rank)
        };
        Box::new(HierarchicalDriver::open(config, inter).unwrap()) as Box<dyn Driver>
    };
    (0..).zip(inter).map(join).collect()
}

fn config(board: &Board, rank: u32) -> HierarchicalConfig {
    HierarchicalConfig {
        name: "shm+network",
        rank: WorldRank(rank),
        size: board.size(),
        node: BoardRanks {
            board: board.clone(),
            ranks: (0..board.size()).map(WorldRank).collect(),
        },
        together: None,
        wake: if rank.is_multiple_of(2) {
            WakeMethod::Futex
        } else {
            WakeMethod::Fd
        },
        single_copy: true,
        loopback: None,
        patience: std::time::Duration::from_secs(60),
        counters: Arc::default(),
    }
}

/// Returns four ranks on two nodes, and taps of their networks.
fn tapped(loopback: bool) -> (World, Vec<HookTap>) {
    let hooks: Vec<HookDriver> = loopback::world(4)
        .into_iter()
        .map(|rank| HookDriver::new(Box::new(rank), HookPlan::new()))
        .collect();
    let taps = hooks.iter().map(HookDriver::tap).collect();
    let inter = hooks
        .into_iter()
        .map(|hook| Box::new(hook) as Box<dyn Driver>);
    let drivers = joined(inter.collect(), Some(2), Some(loopback));
    (World::from_drivers(drivers), taps)
}

#[test]
fn messages_within_a_node_do_not_cross_the_network() {
    let (mut world, taps) = tapped(false);
    world.meet();
    for (rank, tap) in taps.iter().enumerate() {
        let counts = tap.counts();
        assert_eq!([counts.sent, counts.received], [2, 2], "rank {rank}");
    }
}

#[test]
fn memory_within_a_node_is_copied_by_the_processor_or_by_the_adapter() {
    for loopback in [false, true] {
        let (mut world, taps) = tapped(loopback);
        world.meet();
        let (there, _) = world[1].memory(20_000);
        there.write(0, &noise(5, there.len()));
        for (to, gets) in [(0, u64::from(loopback)), (2, 1)] {
            let here = world[to].driver.allocate(there.len()).unwrap();
            let from = world[1].driver.expose_to(peer(to), all_of(&there));
            let get = DriverCommand::Get {
                to: WorldRank(1),
                from: from.unwrap(),
                into: all_of(&here),
                token: CommandToken(3),
            };
            world.one_sided(to, get).unwrap();
            assert!(contents(&here) == noise(5, there.len()));
            assert_eq!(taps[to].counts().gets, gets, "rank {to}, {loopback}");
        }
    }
}

/// Returns rank 0, and the two drivers of rank 1, which can be closed separately.
fn apart() -> (World, LoopbackDriver, Shm) {
    let board = Board::create(2).unwrap();
    let mut inter = loopback::world(2).into_iter();
    let first = Box::new(inter.next().unwrap());
    let first = HierarchicalDriver::open(config(&board, 0), first).unwrap();
    let intra = Shm::open(&board, ShmConfig::new(1)).unwrap();
    let world = World::from_drivers(vec![Box::new(first)]);
    (world, inter.next().unwrap(), intra)
}

#[test]
fn the_networks_word_alone_ends_no_neighbor() {
    let (mut world, inter, intra) = apart();
    drop(inter);
    world.settle();
    assert!(world[0].heard.down.is_empty());
    drop(intra);
    world.until("the end of rank 1", |world| !world[0].heard.down.is_empty());
    world.settle();
    assert_eq!(world[0].heard.down, [(WorldRank(1), DownCause::Finished)]);
}

#[test]
fn a_neighbor_that_the_network_has_lost_has_failed_and_says_nothing_more() {
    let (mut world, inter, intra) = apart();
    let mut neighbor = Rank::new(WorldRank(1), Box::new(intra));
    neighbor.send(0, b"before", b"");
    world.hears(0, 1);
    let failed = catch_unwind(AssertUnwindSafe(|| {
        let _closes_as_failed = inter;
        panic!("so that its end is not a good one");
    }));
    assert!(failed.is_err());
    world.until("the end of rank 1", |world| !world[0].heard.down.is_empty());
    neighbor.send(0, b"after", b"");
    world.settle();
    drop(neighbor);
    world.settle();
    assert_eq!(world[0].heard.down, [(WorldRank(1), DownCause::Failed)]);
    assert_eq!(world[0].heard.messages.len(), 1);
}

#[test]
fn a_neighbor_that_the_caller_gives_up_hears_of_it_and_is_not_heard_any_more() {
    let (mut world, _far, intra) = apart();
    let mut neighbor = Rank::new(WorldRank(1), Box::new(intra));
    neighbor.send(0, b"before", b"");
    world.hears(0, 1);
    let how = world[0].driver.give_up(peer(1), Some(DownCause::Failed));
    assert_eq!(how, DownCause::Failed);
    neighbor.send(0, b"after", b"");
    world.settle();
    neighbor.until("the word of it", |heard| {
        heard.down == [(WorldRank(0), DownCause::Failed)]
    });
    world.settle();
    assert_eq!(world[0].heard.messages.len(), 1);
    assert!(world[0].heard.down.is_empty(), "the caller knows");
}

#[test]
fn a_neighbor_that_the_network_has_lost_writes_nothing_more() {
    let (mut world, inter, intra) = apart();
    let mut neighbor = Rank::new(WorldRank(1), Box::new(intra));
    let (mut memory, mut bytes) = (vec![0; 4096], vec![1; 4096]);
    let Some(key) = world[0].driver.expose_to(peer(1), local(&mut memory)) else {
        return; // the system does not let a neighbor reach the memory
    };
    let into = RemoteRegion {
        kind: key.kind & 0xff, // the kind that shared memory itself uses
        ..key
    };
    let mut put = |neighbor: &mut Rank| {
        neighbor.post(DriverCommand::Put {
            to: peer(0),
            from: local(&mut bytes),
            into,
            count: None,
            token: CommandToken(1),
        });
    };
    put(&mut neighbor);
    neighbor.until("the put", |heard| !heard.completed.is_empty());
    assert!(memory == [1; 4096]);
    let failed = catch_unwind(AssertUnwindSafe(|| {
        let _closes_as_failed = inter;
        panic!("so that its end is not a good one");
    }));
    assert!(failed.is_err());
    world.until("the end of rank 1", |world| !world[0].heard.down.is_empty());
    memory.fill(0);
    put(&mut neighbor);
    neighbor.until("its end", |heard| {
        heard.completed.len() + heard.failed.len() == 2
    });
    assert!(memory == [0; 4096], "it is ours again");
    neighbor.until("the word of it", |heard| {
        heard.down == [(WorldRank(0), DownCause::Failed)]
    });
}

#[test]
fn a_rank_of_another_node_is_refused_by_name() {
    let board = Board::create(2).unwrap();
    let mut config = config(&board, 0);
    config.node.ranks = vec![WorldRank(4), WorldRank(5)];
    let inter = Box::new(loopback::world(1).remove(0));
    let why = HierarchicalDriver::open(config, inter)
        .unwrap_err()
        .to_string();
    assert!(why.contains("rank 0") && why.contains("[4, 5]"), "{why}");
}
