//! Calls of ranks that disagree: how they are [found](super::compare) before a rank leaves, and
//! [described](super::call_descriptions) in the errors of all ranks.

use super::{CollectivePart, LazyProgramTable};
use crate::{
    engine::commons::{EngineCommons, collective_registry::CollectiveFailure},
    group::RankGroup,
    proto::collective_id::CollectiveId,
};

/// What is known of disagreeing calls, with the programs that say what this rank has called. It can touch no message.
pub(crate) struct CallDisagreements<'a> {
    pub(super) programs: &'a mut LazyProgramTable,
    pub(super) common: &'a mut EngineCommons,
}

impl CollectivePart<'_> {
    /// Returns the calls that disagree.
    pub(crate) fn disagreements(&mut self) -> CallDisagreements<'_> {
        CallDisagreements {
            programs: &mut *self.programs,
            common: &mut self.p2p.common,
        }
    }
}

impl CallDisagreements<'_> {
    /// Notifies the neighbors that a collective has failed.
    pub(super) fn announce_failure(&mut self, id: CollectiveId, why: CollectiveFailure) {
        let Some(group) = self.group_of(id.context) else {
            return; // this rank does not know the communicator, so no member relies on its news
        };
        let header = why.header(id);
        for rank in super::fail::neighbors(&group, self.common.me) {
            if self.common.peers.down(rank).is_none() {
                self.common.peers.control(rank, &header);
            }
        }
    }

    /// Returns the members of a communicator on which collectives were called, also if this rank has dropped it.
    pub(super) fn group_of(&self, ctx: u32) -> Option<RankGroup> {
        let left = || self.programs.compared.group(ctx);
        if let Some(group) = self.common.members(ctx).or_else(left) {
            return Some(group.clone());
        }
        let runs = self.programs.runs.iter().flatten();
        let run = runs.into_iter().find(|run| run.id().context == ctx);
        let group = run.map(|run| run.group().clone());
        let is_world = ctx == super::compare::WORLD;
        group.or_else(|| is_world.then(|| RankGroup::First(self.common.peers.size())))
    }
}
