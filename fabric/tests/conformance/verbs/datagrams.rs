//! Short messages without connections.

use std::sync::Arc;

use ripstop_fabric::{
    connect::ConnectPolicy,
    counters::DriverStats,
    driver::Driver,
    verbs::{DevicePort, VerbsConfig},
};

use super::{
    cables::{Cables, cable},
    counters::resources,
    cycles::wait_until_all_is_gone,
    world,
};
use crate::{
    onesided::put,
    world::{World, in_threads, noise},
};

/// Ranks that send short messages as datagram messages until there is much traffic.
pub(crate) fn world_with_datagrams(ranks: u32) -> Vec<Box<dyn Driver>> {
    let first = DevicePort::all().unwrap().remove(0).to_string();
    world(ranks, |config| by_datagrams(config, &first))
}

fn world_across_devices(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, |config| config.scheme = Some(ConnectPolicy::Hybrid))
}

pub(super) fn by_datagrams(config: &mut VerbsConfig, device: &str) {
    config.device = Some(device.to_owned());
    config.scheme = Some(ConnectPolicy::Hybrid);
}

fn counted_world() -> (World, Vec<Arc<DriverStats>>) {
    let first = DevicePort::all().unwrap().remove(0).to_string();
    let counters: Vec<_> = (0..2).map(|_| Arc::new(DriverStats::default())).collect();
    let drivers = world(2, |config| {
        by_datagrams(config, &first);
        config.counters = Arc::clone(&counters[config.rank.0 as usize]);
    });
    (World::from_drivers(drivers), counters)
}

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_rank_with_few_messages_needs_no_queue_pair() {
    wait_until_all_is_gone();
    let (mut world, counters) = counted_world();
    let before = resources();
    for round in 0..LITTLE {
        world.send(0, 1, &round.to_le_bytes(), &noise(round, 900));
        world.hears(1, 1);
        let message = world[1].heard.messages.remove(0);
        assert_eq!(message.header, round.to_le_bytes());
        assert!(message.body == noise(round, 900), "message {round}");
        world.send(1, 0, b"yes", b"");
        world.hears(0, 1);
        world[0].heard.messages.clear();
    }
    assert_eq!(resources(), before, "there are queue pairs");
    // One message in each direction, which carries the answer to the previous one. There are more datagrams only if a rank slept
    // before it answered.
    let sent: u64 = counters.iter().map(|one| one.datagrams.get()).sum();
    assert!(
        (2 * LITTLE..=5 * LITTLE).contains(&sent),
        "{sent} datagrams"
    );
}

/// Datagram messages, then traffic on the connection that they lead to. Between them there may be a longer message, which needs a
/// connection.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn nothing_overtakes_when_a_connection_is_made() {
    for long in [None, Some(3), Some(12)] {
        let (mut world, counters) = counted_world();
        let before = resources();
        let len = |round| if Some(round) == long { 5000 } else { 8 };
        for round in 0..MUCH {
            world.send(0, 1, &round.to_le_bytes(), &noise(round, len(round)));
            world.send(1, 0, &round.to_le_bytes(), b"");
        }
        for rank in 0..2 {
            world.hears(rank, MUCH as usize);
            let rounds = world[rank].heard.messages.iter();
            let rounds: Vec<_> = rounds.map(|one| one.header.clone()).collect();
            let in_order = (0..MUCH).map(|round| round.to_le_bytes().to_vec());
            assert!(rounds == in_order.collect::<Vec<_>>(), "rank {rank}");
        }
        for (round, message) in (0..).zip(&world[1].heard.messages) {
            assert!(message.body == noise(round, len(round)), "message {round}");
        }
        assert_ne!(resources(), before, "there are no queue pairs");
        assert!(counters[0].datagrams.get() > 0, "there were no datagrams");
    }
}

/// A put needs a connection, and later messages use it.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn peers_are_connected_for_one_sided_commands_after_datagrams() {
    let (mut world, _) = counted_world();
    world.send(0, 1, b"first", b"");
    let (region, key) = world[1].memory(4096);
    put(&mut world, 1, &mut [7; 4096], key).unwrap();
    world.send(0, 1, b"look", b"");
    world.hears(1, 2);
    let said = world[1].heard.messages.iter();
    let said: Vec<_> = said.map(|one| one.header.as_slice()).collect();
    assert_eq!(said, [&b"first"[..], b"look"]);
    assert_eq!(
        region
            .atomic_u64(4088)
            .load(std::sync::atomic::Ordering::Relaxed),
        0x0707_0707_0707_0707
    );
}

#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_loss_of_a_fifth_loses_no_datagram_message() {
    let _cables = Cables::new();
    cable("shape 0 loss 20%");
    cable("shape 1 loss 20%");
    in_threads(world_across_devices, 2, |rank| {
        let other = 1 - rank.me.0 as usize;
        for round in 0..LITTLE {
            rank.send(other, &round.to_le_bytes(), &noise(round, 500));
        }
        let all = LITTLE as usize;
        rank.until("all datagrams", |heard| heard.messages.len() >= all);
        for (round, message) in (0..).zip(rank.heard.messages.drain(..all)) {
            assert_eq!(message.header, u64::to_le_bytes(round));
            assert!(message.body == noise(round, 500), "message {round}");
        }
    });
    // Lost messages about a connection are recovered, too. Traffic on it is recovered by the device, which gives up sooner.
    cable("shape 0 loss 10%");
    cable("shape 1 loss 10%");
    in_threads(world_across_devices, 2, |rank| {
        let other = 1 - rank.me.0 as usize;
        rank.send(other, b"long", &noise(0, 3000));
        rank.until("the long message", |heard| heard.messages.len() == 1);
    });
}

/// Number of messages that are not worth a connection.
const LITTLE: u64 = 12;
const MUCH: u64 = 60;
