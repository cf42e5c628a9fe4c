//! What tests of one part of the engine alone share: how a rank begins, and how it posts what waits for its driver.

use std::{mem, panic::Location};

use ripstop_fabric::driver::Driver;

use super::{EngineCommons, transmit::FlushResult};
use crate::{
    engine::{EngineSetup, OneSidedCommand},
    error::ErrorKind,
    group::WorldRank,
    ops::{OpInfo, OpOutcome},
    proto::path::PathTables,
    settings::Settings,
};

/// Context of a communicator of all ranks.
pub(in crate::engine) const CTX: u32 = 0;

/// Arrivals and completions handled in one turn.
pub(in crate::engine) const ARRIVALS_MAX: u32 = 64;

/// Returns the setup of a rank that watches no peer.
pub(in crate::engine) fn lone_setup(driver: &dyn Driver, me: u32, size: u32) -> EngineSetup {
    EngineSetup {
        rank: WorldRank(me),
        size,
        paths: PathTables::new(driver.caps(), &Settings::new()),
        store: Settings::new().store(),
        may_split_long: false,
        seed: u64::from(me),
        detect: 0,
    }
}

pub(in crate::engine) fn op_info(peer: Option<u32>, tag: Option<u32>) -> OpInfo {
    OpInfo {
        ctx: CTX,
        peer: peer.map(WorldRank),
        tag,
        sig: 7,
        elem: 1,
        synchronous: false,
        probe: false,
        at: Location::caller(),
    }
}

/// Returns the rank that an outcome names as failed.
pub(in crate::engine) fn failed_rank(outcome: &OpOutcome) -> Option<usize> {
    match outcome {
        Err(failure) => match failure.kind {
            ErrorKind::PeerFailed { rank, .. } => Some(rank),
            _ => None,
        },
        Ok(_) => None,
    }
}

/// Makes rounds of turns until nothing happens any more. `step` makes a round, and returns true if anything happened.
pub(in crate::engine) fn settle(mut step: impl FnMut() -> bool) {
    // What a rank had queued for a rank before it in the round arrives in the round after.
    let mut quiet_rounds = 0;
    while quiet_rounds < 2 {
        quiet_rounds = if step() { 0 } else { quiet_rounds + 1 };
    }
}

/// A rank that has one part of the engine, and posts what that has queued.
pub(in crate::engine) trait LoneFlush {
    fn driver_and_commons(&mut self) -> (&mut dyn Driver, &mut EngineCommons);

    /// Posts a command. Returns true if it is posted or no longer needed.
    fn post_command(&mut self, command: OneSidedCommand) -> bool;

    /// Sends what the part has queued for a peer, besides headers without a body.
    fn flush_queues(&mut self, rank: WorldRank) -> FlushResult;

    /// Posts what waits for room at the driver.
    fn flush(&mut self) {
        let mut full = Vec::new();
        loop {
            let commands = mem::take(&mut self.driver_and_commons().1.commands);
            if commands.is_empty() {
                break;
            }
            for command in commands {
                if !self.post_command(command) {
                    full.push(command);
                }
            }
        }
        let common = self.driver_and_commons().1;
        common.commands = full;
        let mut marked = common.peers.take_to_flush();
        marked.retain(|&rank| {
            let is_stuck = self.flush_peer(rank) == FlushResult::Stuck;
            if !is_stuck {
                let common = self.driver_and_commons().1;
                common.peers.unmark_to_flush(rank);
            }
            is_stuck
        });
        let (driver, common) = self.driver_and_commons();
        common.peers.requeue(marked);
        common.exposed.withdraw_all(driver);
    }

    fn flush_peer(&mut self, rank: WorldRank) -> FlushResult {
        let (driver, common) = self.driver_and_commons();
        if common.flush_control(driver, rank) == FlushResult::Stuck {
            return FlushResult::Stuck;
        }
        self.flush_queues(rank)
    }
}
