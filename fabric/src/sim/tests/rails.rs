//! Tests of long commands over one to four rails of a simulated machine.

#![expect(clippy::print_stdout, reason = "the figures of the checks are printed")]

use std::sync::atomic::Ordering::Relaxed;

use crate::{
    driver::{
        CommandFailure, CommandToken, DownCause, Driver, DriverCommand, PayloadView, PostResult,
        Sink, WorldRank,
    },
    memory::{MemoryRegion, RemoteRegion},
    sim::{Cluster, ClusterConfig, Faults, Model, SimDriver},
};

const MIB: usize = 1 << 20;
const MACHINES: [&str; 4] = ["bxi", "bxi-2", "bxi-3", "bxi-4"];

/// Two ranks, each with memory that the other can access.
struct Pair {
    cluster: Cluster,
    drivers: [SimDriver; 2],
    regions: [MemoryRegion; 2],
    keys: [RemoteRegion; 2],
}

impl Pair {
    fn new(machine: &str, len: usize, faults: &str) -> Self {
        let cluster = Cluster::new(ClusterConfig {
            model: Model::preset(machine).expect("a preset"),
            faults: faults.parse::<Faults>().expect("faults"),
            // The tests do not check the bytes, so none need to be copied.
            hash_from: 1,
            lengths_only: true,
            free_running: true,
            ..ClusterConfig::new(2)
        });
        let cluster = cluster.expect("a cluster");
        let mut drivers = [0, 1].map(|rank| cluster.driver(rank));
        let regions = [0, 1].map(|rank: usize| drivers[rank].allocate(len).expect("memory"));
        let keys = [0, 1].map(|rank: usize| {
            let all = regions[rank].range().slice(0, len);
            drivers[rank].expose(all).expect("a key")
        });
        let mut pair = Self {
            cluster,
            drivers,
            regions,
            keys,
        };
        pair.put(&[0, 1], 8); // make first contact
        pair
    }

    fn now(&self) -> u64 {
        self.cluster.clock().load(Relaxed)
    }

    /// Returns the nanoseconds until puts of `len` bytes, posted by these ranks at the same time, are complete.
    fn put(&mut self, from: &[usize], len: usize) -> u64 {
        let start = self.now();
        for &rank in from {
            let into = self.keys[1 - rank].slice(0, len as u64);
            let to = WorldRank(u32::try_from(1 - rank).expect("two ranks"));
            let posted = self.drivers[rank].post(DriverCommand::Put {
                to,
                from: self.regions[rank].range().slice(0, len),
                into: into.expect("inside"),
                count: None,
                token: CommandToken(1),
            });
            assert!(matches!(posted, PostResult::Posted));
        }
        let mut ended = Ended::default();
        while ended.complete < from.len() {
            for driver in &mut self.drivers {
                let _turn = driver.progress(64, &mut ended);
            }
        }
        self.now() - start
    }
}

#[derive(Default)]
struct Ended {
    complete: usize,
}

impl Sink for Ended {
    fn message(&mut self, _: WorldRank, _: &[u8], _: PayloadView<'_>) {}
    fn complete(&mut self, _: CommandToken) {
        self.complete += 1;
    }
    fn fetched(&mut self, _: CommandToken, _: u64) {}
    fn failed(&mut self, _: CommandToken, why: CommandFailure) {
        panic!("a put failed: {why:?}");
    }
    fn reached(&mut self, _: CommandToken) {}
    fn triggered(&mut self, _: CommandToken) {}
    fn peer_down(&mut self, peer: WorldRank, how: DownCause) {
        panic!("rank {} is down: {how:?}", peer.0);
    }
}

fn time(machine: &str, len: usize) -> u64 {
    Pair::new(machine, len, "").put(&[0], len)
}

#[test]
fn rails_add_up() {
    for (len, percent) in [(256 * MIB, 95), (16 * MIB, 90)] {
        let one = time("bxi", len);
        for (rails, machine) in (1..).zip(MACHINES) {
            let efficiency = 100 * one / (rails * time(machine, len));
            println!("{} MiB over {rails} rails: {efficiency} %", len / MIB);
            assert!(efficiency >= percent, "{machine}: {efficiency} %");
        }
    }
}

#[test]
fn three_rails_are_half_as_good_again_as_two() {
    let [two, three] = ["bxi-2", "bxi-3"].map(|machine| time(machine, 256 * MIB));
    println!("two rails take {two} ns, three {three} ns");
    assert!(100 * two >= 145 * three);
}

/// Rails with relative speeds of one, one half and twice one quarter, unknown to the sender: their sum is two.
#[test]
fn unequal_rails_add_up() {
    let len = 256 * MIB;
    let slower = "slow-rail=1@0us/2,slow-rail=2@0us/4,slow-rail=3@0us/4";
    let took = Pair::new("bxi-4", len, slower).put(&[0], len);
    let efficiency = 100 * time("bxi", len) / (2 * took);
    println!("rails of 4:2:1:1 carry {efficiency} % of what they could");
    assert!(efficiency >= 95, "{efficiency} %");
}

#[test]
fn four_gibibytes_are_not_slower_than_one() {
    for machine in MACHINES {
        let [one, four] = [1024 * MIB, 4096 * MIB].map(|len| time(machine, len));
        println!("{machine}: 1 GiB takes {one} ns, 4 GiB take {four} ns");
        assert!(100 * four <= 404 * one, "{machine}");
    }
}

#[test]
fn a_short_put_pays_nothing_for_rails() {
    let [one, four] = ["bxi", "bxi-4"].map(|machine| time(machine, 8));
    assert!(100 * four <= 102 * one, "{one} ns and {four} ns");
}

#[test]
fn three_rails_carry_on_when_the_fourth_is_killed() {
    let len = 256 * MIB;
    let whole = time("bxi-4", len);
    let mut pair = Pair::new("bxi-4", len, &format!("kill-rail=2@{}ns", whole / 2));
    let took = pair.put(&[0], len);
    let ideal = whole / 2 + whole / 2 * 4 / 3;
    println!("{took} ns, {ideal} ns at best");
    assert!(100 * took <= 105 * ideal, "{took} ns, {ideal} ns at best");
}

#[test]
fn both_ways_at_once_are_twice_as_much() {
    for machine in MACHINES {
        let len = 64 * MIB;
        let mut pair = Pair::new(machine, len, "");
        let (alone, both) = (pair.put(&[0], len), pair.put(&[0, 1], len));
        println!("{machine}: {alone} ns one way, {both} ns both ways");
        assert!(200 * alone >= 195 * both, "{machine}");
    }
}
