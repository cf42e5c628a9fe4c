//! The MPC baseline: Ripstop's driver with MPC's blocks, for which it is fatal to run out of them.

use std::{io, sync::Arc};

use ripstop_fabric::{
    driver::{
        ArmResult, Caps, DownCause, Driver, DriverAbilities, DriverCommand, LocalRange, PostResult,
        Sink, TurnProgress, WakeSource, WorldRank,
    },
    memory::{MemoryRegion, RemoteRegion},
    passes_abilities,
    portals::{Portals, PortalsCounters},
};

/// One rank in the layout of MPC.
#[derive(Debug)]
pub struct MpcDriver {
    driver: Portals,
    caps: Caps,
    counters: Arc<PortalsCounters>,
    me: usize,
    ranks: usize,
    /// True once this rank has run out of blocks.
    failed: bool,
}

impl MpcDriver {
    pub(crate) const fn new(
        driver: Portals,
        caps: Caps,
        counters: Arc<PortalsCounters>,
        me: usize,
        ranks: usize,
    ) -> Self {
        Self {
            driver,
            caps,
            counters,
            me,
            ranks,
            failed: false,
        }
    }

    /// Loses all peers if this rank has run out of blocks, after which the driver has admitted messages again.
    fn check_blocks(&mut self) {
        if self.failed || self.counters.enabled.get() == 0 {
            return;
        }
        self.failed = true;
        for rank in (0..self.ranks).filter(|rank| *rank != self.me) {
            let rank = WorldRank(u32::try_from(rank).unwrap_or(u32::MAX));
            self.driver.give_up(rank, Some(DownCause::Failed));
        }
    }
}

impl Driver for MpcDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        self.driver.post(command)
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        let turn = self.driver.progress(budget, sink);
        self.check_blocks();
        turn
    }

    fn arm(&mut self) -> ArmResult {
        self.driver.arm()
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        self.driver.wait_on()
    }

    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.driver.allocate(len)
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        self.driver.expose(range)
    }

    fn expect(&mut self, awaited: &mut dyn FnMut() -> Vec<WorldRank>) {
        self.driver.expect(awaited);
    }

    fn give_up(&mut self, peer: WorldRank, how: Option<DownCause>) -> DownCause {
        self.driver.give_up(peer, how)
    }
}

impl DriverAbilities for MpcDriver {
    passes_abilities! {
        driver: event_counters, task_lists, tag_matching, named_slots, mapped_memory, peer_paths, connect_ahead, failure_watch,
        guarded_memory,
    }
}
