//! Ranks on RDMA devices, all on the first device or spread over all, and what holds only for them.

mod cables;
mod chains;
mod counters;
mod cycles;
mod datagrams;
mod differing;
mod eviction;
mod lanes;
mod limits;
mod mesh;
mod opening;
mod own_counts;
mod peer_counts;
mod scarce;
mod sleeping;
mod torn_lists;
mod waking_lists;

pub(crate) use self::{
    datagrams::world_with_datagrams,
    lanes::{world_by_four_lanes, world_by_two_lanes},
    mesh::world_at_once,
    scarce::world_with_few_connections,
};
use std::time::Duration;

use ripstop_fabric::{
    driver::{CommandToken, Driver, DriverCommand, LocalRange, WorldRank},
    memory::RemoteRegion,
    verbs::{DevicePort, PreparedVerbs, Verbs, VerbsConfig},
};

use crate::world::peer;

pub(crate) fn world_on_one_device(ranks: u32) -> Vec<Box<dyn Driver>> {
    let first = DevicePort::all().unwrap().remove(0).to_string();
    world(ranks, |config| config.device = Some(first.clone()))
}

pub(crate) fn world_across_devices(ranks: u32) -> Vec<Box<dyn Driver>> {
    assert!(DevicePort::all().unwrap().len() > 1, "needs two devices");
    world(ranks, |_| ())
}

fn world(ranks: u32, change: impl Fn(&mut VerbsConfig)) -> Vec<Box<dyn Driver>> {
    let prepare = |rank| {
        let mut config = VerbsConfig::new(WorldRank(rank), ranks);
        // A rank that waits for an answer from a rank on its own thread leaves the wait to the closing thread.
        config.linger = Duration::from_millis(50);
        change(&mut config);
        Verbs::prepare(config).unwrap()
    };
    let prepared: Vec<PreparedVerbs> = (0..ranks).map(prepare).collect();
    let addresses: Vec<_> = prepared.iter().map(PreparedVerbs::address).collect();
    let connect = |rank: PreparedVerbs| Box::new(rank.connect(addresses.clone()).unwrap());
    prepared
        .into_iter()
        .map(|rank| connect(rank) as Box<dyn Driver>)
        .collect()
}

fn put(
    to: usize,
    from: LocalRange,
    into: RemoteRegion,
    token: CommandToken,
) -> DriverCommand<'static> {
    DriverCommand::Put {
        to: peer(to),
        from,
        into,
        count: None,
        token,
    }
}
