//! The MPC baseline: Ripstop's driver with MPC's blocks, for which it is fatal to run out of them.

use std::sync::Arc;

use ripstop_fabric::{
    driver::{Caps, DownCause, Driver, DriverAbilities, Sink, TurnProgress, WorldRank},
    passes_abilities, passes_methods,
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

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        let turn = self.driver.progress(budget, sink);
        self.check_blocks();
        turn
    }

    passes_methods! { driver: post, arm, wait_on, allocate, expose, expect, give_up }
}

impl DriverAbilities for MpcDriver {
    passes_abilities! {
        driver: event_counters, task_lists, tag_matching, named_slots, peer_turns, mapped_memory, node_memory,
        peer_paths, connect_ahead, failure_watch, guarded_memory,
    }
}
