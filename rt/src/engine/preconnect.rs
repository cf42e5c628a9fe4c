//! Connects to all peers of a collective together when it begins, on drivers that connect at the first use.
//!
//! So the first collective waits for one handshake, and not for one in each of its rounds.

use std::collections::BTreeSet;

use super::Engine;
use crate::{
    group::{RankGroup, WorldRank},
    offload::{CollectiveProgram, StepAction},
};

/// Peers to which the driver was asked to connect.
#[derive(Debug, Default)]
pub(super) struct PreconnectedPeers {
    known: BTreeSet<WorldRank>,
}

impl PreconnectedPeers {
    /// Returns the peers to which a program sends for the first time.
    fn strangers(&mut self, group: &RankGroup, program: &CollectiveProgram) -> Vec<WorldRank> {
        let sends = (0..program.len()).filter_map(|at| match program.step(at).action {
            StepAction::Send { to, .. } => group.world_of(to),
            _ => None,
        });
        sends.filter(|peer| self.known.insert(*peer)).collect()
    }
}

impl Engine {
    pub(super) fn preconnect(&mut self, group: &RankGroup, program: &CollectiveProgram) {
        let Some(meeting) = &mut self.core.preconnected else {
            return;
        };
        let strangers = meeting.strangers(group, program);
        if !strangers.is_empty()
            && let Some(connections) = self.driver.connect_ahead()
        {
            connections.connect_many(&strangers);
        }
    }
}
