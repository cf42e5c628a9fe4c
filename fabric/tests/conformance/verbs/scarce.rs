//! More peers than a rank may be connected to.

use std::sync::{Arc, Mutex, PoisonError};

use ripstop_fabric::{
    counters::DriverStats,
    driver::{AtomicOp, CommandToken, Driver, DriverCommand},
    memory::RemoteRegion,
    random::SeededRandom,
    verbs::{DevicePort, VerbsConfig},
};

use super::{datagrams::by_datagrams, lanes::devices_by_two, world};
use crate::world::{Make, in_threads, peer};

/// Ranks that can be connected to two peers at a time.
pub(crate) fn world_with_few_connections(ranks: u32) -> Vec<Box<dyn Driver>> {
    let first = DevicePort::all().unwrap().remove(0).to_string();
    with_few_connections(ranks, |config| config.device = Some(first.clone()))
}

fn with_few_connections(ranks: u32, change: impl Fn(&mut VerbsConfig)) -> Vec<Box<dyn Driver>> {
    let mut counters = counters();
    counters.clear();
    let each = (0..ranks).map(|_| Arc::new(DriverStats::default()));
    counters.extend(each);
    world(ranks, |config| {
        change(config);
        config.connections_max = Some(CONNECTIONS);
        config.counters = Arc::clone(&counters[config.rank.0 as usize]);
    })
}

fn world_with_few_connections_and_datagrams(ranks: u32) -> Vec<Box<dyn Driver>> {
    let first = DevicePort::all().unwrap().remove(0).to_string();
    with_few_connections(ranks, |config| by_datagrams(config, &first))
}

fn world_with_few_connections_by_two_lanes(ranks: u32) -> Vec<Box<dyn Driver>> {
    with_few_connections(ranks, |config| {
        config.device = Some(devices_by_two(config.rank.0));
    })
}

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn connections_that_were_silent_longest_give_way_and_nothing_is_lost() {
    nothing_is_lost(world_with_few_connections);
}

/// A pair without a connection continues with datagram messages, after everything that used the connection.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn evicted_connections_continue_as_datagrams_and_lose_nothing() {
    nothing_is_lost(world_with_few_connections_and_datagrams);
}

/// Messages that arrived by one device are delivered before what another device delivers about the connection.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn connections_by_two_lanes_give_way_and_nothing_is_lost() {
    nothing_is_lost(world_with_few_connections_by_two_lanes);
}

/// Sends messages and adds to sums at all peers, in random order. Nothing may be lost or overtake, although connections are
/// evicted and made again.
fn nothing_is_lost(make: Make) {
    in_threads(make, RANKS, |rank| {
        let me = rank.me.0 as usize;
        let mut random = SeededRandom::new(SEED + me as u64);
        let (sum, key) = rank.memory(8);
        let others = || (0..RANKS).filter(|other| *other != me);
        for other in others() {
            rank.send(other, bytemuck::bytes_of(&key), b"key");
        }
        let keys = |heard: &crate::world::Heard| -> Vec<(usize, RemoteRegion)> {
            let of_keys = heard.messages.iter().filter(|one| one.body == b"key");
            let key = |bytes: &[u8]| bytemuck::pod_read_unaligned(bytes);
            of_keys
                .map(|one| (one.from.0 as usize, key(&one.header)))
                .collect()
        };
        rank.until("all keys", |heard| keys(heard).len() == RANKS - 1);
        let keys = keys(&rank.heard);
        let mut left: Vec<usize> = others().flat_map(|other| [other; EACH]).collect();
        let mut numbers = [0_u32; RANKS];
        let mut added = 0;
        while !left.is_empty() {
            let at = usize::try_from(random.within(0..left.len() as u64)).unwrap();
            let other = left.swap_remove(at);
            let &(_, at) = keys.iter().find(|(from, _)| *from == other).unwrap();
            rank.post(DriverCommand::Atomic {
                to: peer(other),
                at: at.slice(0, 8).unwrap(),
                op: AtomicOp::Add(1),
                token: CommandToken(added),
            });
            added += 1;
            rank.send(other, &numbers[other].to_le_bytes(), b"number");
            numbers[other] += 1;
        }
        rank.until("all messages and all ends", |heard| {
            let numbers = heard.messages.iter().filter(|one| one.body == b"number");
            assert!(heard.failed.is_empty(), "{:?}", heard.failed);
            heard.fetched.len() as u64 == added && numbers.count() == (RANKS - 1) * EACH
        });
        for other in others() {
            let numbers = rank.heard.from(other).filter(|one| one.body == b"number");
            let numbers: Vec<Vec<u8>> = numbers.map(|one| one.header.clone()).collect();
            let in_order = (0..EACH as u32).map(|number| number.to_le_bytes().to_vec());
            assert!(numbers == in_order.collect::<Vec<_>>(), "from {other}");
        }
        // A sum is complete when all ranks that add to it have said so.
        for other in others() {
            rank.send(other, b"", b"done");
        }
        rank.until("all to be done", |heard| {
            let done = heard.messages.iter().filter(|one| one.body == b"done");
            done.count() == RANKS - 1
        });
        let sum = sum.atomic_u64(0).load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(sum, ((RANKS - 1) * EACH) as u64);
    });
    let evictions = counters()
        .iter()
        .map(|one| one.evictions.get())
        .sum::<u64>();
    assert!(evictions > RANKS as u64, "{evictions}");
}

fn counters() -> std::sync::MutexGuard<'static, Vec<Arc<DriverStats>>> {
    static COUNTERS: Mutex<Vec<Arc<DriverStats>>> = Mutex::new(Vec::new());
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

const CONNECTIONS: u32 = 2;
const RANKS: usize = 6;
const EACH: usize = 40;
const SEED: u64 = 7;
