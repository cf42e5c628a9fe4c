//! Peers that a collective will speak to are connected to all at once when it begins, where a driver connects when it is first
//! used: so the first one waits for one handshake, and not for as many as it has rounds.

use std::collections::BTreeSet;

use ripstop_fabric::driver::Peer;

use super::Engine;
use crate::{
    group::Group,
    offload::{Action, Program},
};

/// The peers that the driver was told of.
#[derive(Debug, Default)]
pub(super) struct Meeting {
    known: BTreeSet<u32>,
}

impl Meeting {
    /// Those that a program sends to for the first time.
    fn strangers(&mut self, group: &Group, program: &Program) -> Vec<Peer> {
        let sends = (0..program.len()).filter_map(|at| match program.step(at).action {
            Action::Send { to, .. } => group.world_of(to),
            _ => None,
        });
        sends
            .filter(|peer| self.known.insert(*peer))
            .map(Peer)
            .collect()
    }
}

impl Engine {
    pub(super) fn meet(&mut self, group: &Group, program: &Program) {
        let Some(meeting) = &mut self.core.meeting else {
            return;
        };
        let strangers = meeting.strangers(group, program);
        if !strangers.is_empty() {
            self.driver.connect_many(&strangers);
        }
    }
}
