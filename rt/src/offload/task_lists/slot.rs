//! State that consecutive programs share at a driver: the landing slots between their ranks, and counters.

use std::io;

use ripstop_fabric::{
    driver::Driver,
    memory::{MemoryRegion, RemoteRegion},
    offload::{LocalCounters, PairKey, PutLanding},
};

use super::PostedProgram;
use crate::{
    group::{CommRank, RankGroup, WorldRank},
    offload::lower::{LandingCounts, LandingSlot},
};

/// State that the programs of one slot of a communicator share: the landing slots between its ranks, under names known to all
/// ranks.
#[derive(Debug)]
pub(crate) struct OffloadSlot {
    group: RankGroup,
    /// World rank of this process. `me` is its rank in the group.
    pub(super) world: WorldRank,
    me: CommRank,
    pub(super) name: u64,
    pub(crate) lanes: LandingCounts,
    pub(super) counters: LocalCounters,
    /// A landing for each landing slot to this rank.
    pub(super) places: MemoryRegion,
    /// Counters of the last program.
    kept: Option<ProgramCounters>,
}

/// Counters of one program. If the program ended well, the next program of the slot reuses them with their present
/// values, because peers already know where they are.
#[derive(Debug)]
pub(super) struct ProgramCounters {
    pub(super) counters: LocalCounters,
    /// Values of the counters when the program began.
    pub(super) before: Vec<u64>,
}

/// Maximum number of counters that a slot keeps for its next program. Adapters have few counters, and a program with
/// many takes long compared with making new ones.
const KEPT_MAX: usize = 256;

/// Returns the number of landing slots from each rank of a group to each other rank.
///
/// With one landing slot, a message is allowed only when the previous one has landed, which delays only long sequences of
/// messages to one peer. Large groups need the memory more.
const fn lanes_of(size: usize) -> u64 {
    if size <= 512 { 4 } else { 1 }
}

impl OffloadSlot {
    /// Makes the slot of a communicator with this group. `name` is even, and the same on all its ranks. Reserves 120 bytes for
    /// each rank and landing slot, of which only used ones take memory.
    ///
    /// # Errors
    /// The driver's error if there is no memory.
    pub(crate) fn new(
        driver: &mut dyn Driver,
        group: RankGroup,
        world: WorldRank,
        name: u64,
    ) -> io::Result<Self> {
        let lanes = LandingCounts::new(lanes_of(group.len()));
        let all = group.len() * usize::try_from(lanes.count()).unwrap_or(usize::MAX);
        let counters = LocalCounters::for_tasks(driver, all)?;
        let places = driver.allocate(all * LANDING_LEN)?;
        if let Some(lists) = driver.task_lists() {
            lists.give_name(name, counters.region());
            lists.give_name(name | 1, &places);
        }
        Ok(Self {
            me: group.local_of(world).unwrap_or(CommRank(0)),
            group,
            world,
            name,
            lanes,
            counters,
            places,
            kept: None,
        })
    }

    /// Keeps the counters of a program that has ended well, so everything that it counts was counted.
    pub(crate) fn keep_counters(&mut self, posted: PostedProgram) {
        let PostedProgram {
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

    /// Returns the number of ranks of its communicator.
    pub(crate) fn size(&self) -> usize {
        self.group.len()
    }

    /// Returns the names that the slot has registered.
    pub(crate) const fn names(&self) -> [u64; 2] {
        [self.name, self.name | 1]
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let lanes = usize::try_from(self.lanes.count()).unwrap_or_default();
        let cell = self.counters.region().len() / self.counters.len().max(1);
        self.lanes.targets() * lanes * (LANDING_LEN + cell)
    }

    /// Returns the world ranks that have allowed a message which no program of this rank sends. O(ranks).
    pub(crate) fn waiting(&self) -> Vec<WorldRank> {
        let lanes = |peer| (0..self.lanes.count()).map(move |nth| LandingSlot { peer, nth });
        let waits = |lane: LandingSlot| self.allowed(lane) > self.lanes.used(lane);
        let peers = self.group.ranks().filter(|&peer| lanes(peer).any(waits));
        peers.map(|peer| self.world_of(peer)).collect()
    }

    /// Returns the number of messages that a peer has allowed in a landing slot so far.
    pub(super) fn allowed(&self, lane: LandingSlot) -> u64 {
        self.counters.at(self.index_from(lane)).value()
    }

    pub(super) fn world_of(&self, rank: CommRank) -> WorldRank {
        self.group.world_of(rank).unwrap_or(WorldRank(0))
    }

    /// Returns the index of a landing slot to a peer in the peer's table.
    pub(super) fn index_to(&self, lane: LandingSlot) -> u64 {
        self.me.0 as u64 * self.lanes.count() + lane.nth
    }

    /// Returns the index of a landing slot from a peer in this rank's table.
    pub(super) fn index_from(&self, lane: LandingSlot) -> usize {
        usize::try_from(lane.peer.0 as u64 * self.lanes.count() + lane.nth).unwrap_or(usize::MAX)
    }

    /// Returns the id of a message of a landing slot, which is the same at both ends, because contexts, slots and landing slots
    /// have the same numbers there.
    pub(super) fn message_id(&self, lane: LandingSlot, nth: u64) -> PairKey {
        let (ctx, slot) = (self.name >> 32, (self.name & 0xffff_ffff) >> 1);
        let lane = ctx << 4 | slot << 2 | lane.nth;
        PairKey {
            sequence: lane,
            nth,
        }
    }

    /// Returns a key to zero bytes.
    pub(super) const fn empty_key(&self) -> RemoteRegion {
        RemoteRegion::named(self.world.0, self.name | 1, 0, 0)
    }
}

impl ProgramCounters {
    /// Returns the kept counters, if there are enough of them.
    pub(super) fn of(
        driver: &mut dyn Driver,
        slot: &mut OffloadSlot,
        count: usize,
    ) -> io::Result<Self> {
        if let Some(kept) = slot.kept.take_if(|kept| kept.counters.len() >= count) {
            return Ok(kept);
        }
        Ok(Self {
            counters: LocalCounters::for_tasks(driver, count)?,
            before: vec![0; count],
        })
    }
}

pub(super) const LANDING_LEN: usize = size_of::<PutLanding>();
