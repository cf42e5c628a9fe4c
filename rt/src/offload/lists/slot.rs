//! What programs that run one after the other share at a driver: the lanes between their ranks, and counters.

use std::io;

use ripstop_fabric::{
    driver::{Command, Driver},
    memory::{Region, RemoteRegion},
    offload::{Counters, Landing, Pair},
};

use super::{Posted, take};
use crate::{
    group::Group,
    offload::lower::{Lane, Lanes},
};

/// What the programs of one slot of a communicator share: the lanes between its ranks, by names that all of them know.
#[derive(Debug)]
pub(crate) struct Slot {
    group: Group,
    /// This rank of the world, and of the group.
    pub(super) world: u32,
    me: usize,
    pub(super) name: u64,
    pub(crate) lanes: Lanes,
    pub(super) counters: Counters,
    /// A landing for each lane to us.
    pub(super) places: Region,
    /// What the last program counted with.
    kept: Option<Own>,
}

/// A program's own counters. Those of one that went well serve the next of its slot, from what they came to on: peers have found
/// them already.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) counters: Counters,
    /// What they were when the program began.
    pub(super) before: Vec<u64>,
}

/// Counters that a slot keeps for its next program, at the most: adapters have few, and to make many is little beside what counts
/// with them.
const KEPT_MAX: usize = 256;

/// Lanes from each rank of a group to each other one. With one of them a message is allowed when the one before has landed,
/// which only long rows of messages to one peer wait for; large groups have better use for the memory.
const fn lanes_of(size: usize) -> u64 {
    if size <= 512 { 4 } else { 1 }
}

impl Slot {
    /// For a communicator of this group; `name` is even, and the same on all its ranks. 120 bytes for each rank and lane, of
    /// which only those exist that are used.
    ///
    /// # Errors
    /// What the driver said when there was no memory.
    pub(crate) fn new(
        driver: &mut dyn Driver,
        (group, world): (Group, u32),
        name: u64,
    ) -> io::Result<Self> {
        let lanes = Lanes::new(lanes_of(group.len()));
        let all = group.len() * usize::try_from(lanes.count()).unwrap_or(usize::MAX);
        let counters = Counters::for_tasks(driver, all)?;
        let places = driver.allocate(all * LANDING_LEN)?;
        for (name, region) in [(name, counters.region()), (name | 1, &places)] {
            take(driver, Command::Name { name, region });
        }
        Ok(Self {
            me: group.local_of(world).unwrap_or_default(),
            group,
            world,
            name,
            lanes,
            counters,
            places,
            kept: None,
        })
    }

    /// A program has come to its end: everything was counted that it counts.
    pub(crate) fn keep(&mut self, posted: Posted) {
        let Posted {
            mut own, lowering, ..
        } = posted;
        if own.counters.len() > KEPT_MAX {
            return;
        }
        for (before, total) in own.before.iter_mut().zip(lowering.totals()) {
            *before += total;
        }
        self.kept = Some(own);
    }

    /// Ranks of its communicator.
    pub(crate) fn size(&self) -> usize {
        self.group.len()
    }

    /// The names that it has given.
    pub(crate) const fn names(&self) -> [u64; 2] {
        [self.name, self.name | 1]
    }

    /// Bytes that are used of it.
    pub(crate) fn bytes(&self) -> usize {
        let lanes = usize::try_from(self.lanes.count()).unwrap_or_default();
        let cell = self.counters.region().len() / self.counters.len().max(1);
        self.lanes.targets() * lanes * (LANDING_LEN + cell)
    }

    /// Ranks of the world that have allowed a message which no program of this rank sends. O(ranks).
    pub(crate) fn waiting(&self) -> Vec<u32> {
        let lanes = |peer| (0..self.lanes.count()).map(move |nth| Lane { peer, nth });
        let waits = |lane: Lane| self.allowed(lane) > self.lanes.used(lane);
        let peers = (0..self.group.len()).filter(|&peer| lanes(peer).any(waits));
        peers.map(|peer| self.world_of(peer)).collect()
    }

    /// Messages that a peer has allowed in a lane so far.
    pub(super) fn allowed(&self, lane: Lane) -> u64 {
        self.counters.at(self.theirs(lane)).value()
    }

    pub(super) fn world_of(&self, rank: usize) -> u32 {
        self.group.world_of(rank).unwrap_or_default()
    }

    /// A lane to a peer, among the peer's.
    pub(super) fn mine(&self, lane: Lane) -> u64 {
        self.me as u64 * self.lanes.count() + lane.nth
    }

    /// A lane from a peer, among ours.
    pub(super) fn theirs(&self, lane: Lane) -> usize {
        usize::try_from(lane.peer as u64 * self.lanes.count() + lane.nth).unwrap_or(usize::MAX)
    }

    /// What a message of a lane is to both its ends: contexts, slots and lanes have numbers that are the same there.
    pub(super) fn pair(&self, lane: Lane, nth: u64) -> Pair {
        let (ctx, slot) = (self.name >> 32, (self.name & 0xffff_ffff) >> 1);
        let lane = ctx << 4 | slot << 2 | lane.nth;
        Pair { lane, nth }
    }

    /// To no bytes.
    pub(super) const fn nothing(&self) -> RemoteRegion {
        RemoteRegion::named(self.world, self.name | 1, 0, 0)
    }
}

impl Own {
    /// Those that are kept, if they are enough.
    pub(super) fn of(driver: &mut dyn Driver, slot: &mut Slot, count: usize) -> io::Result<Self> {
        if let Some(kept) = slot.kept.take_if(|kept| kept.counters.len() >= count) {
            return Ok(kept);
        }
        Ok(Self {
            counters: Counters::for_tasks(driver, count)?,
            before: vec![0; count],
        })
    }
}

pub(super) const LANDING_LEN: usize = size_of::<Landing>();
