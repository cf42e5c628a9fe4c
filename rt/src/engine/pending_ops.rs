//! Lists what a rank waits for, in order to diagnose a job that hangs.

use std::panic::Location;

use super::EngineCore;
use crate::{
    group::WorldRank,
    ops::{OpSlot, OpState},
};

/// An operation that is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingOpReport {
    /// Kind of the operation, for example `recv`, `send` or `probe`, and its state.
    pub(crate) what: &'static str,
    pub(crate) ctx: u32,
    /// World rank of the peer; `None` for a wildcard.
    pub(crate) peer: Option<WorldRank>,
    /// Tag; `None` for any tag.
    pub(crate) tag: Option<u32>,
    /// Call site in the application.
    pub(crate) at: &'static Location<'static>,
}

impl EngineCore {
    /// Returns true if nothing will happen here without a peer: no time limit runs, and no bytes are in flight.
    pub(crate) fn is_passive(&self) -> bool {
        self.p2p.common.timers.next().is_none() && self.is_without_transfers()
    }

    /// Returns true if no bytes are in flight.
    pub(super) fn is_without_transfers(&self) -> bool {
        let moves = |life: &OpState| {
            matches!(
                life,
                OpState::Putting { .. }
                    | OpState::Claiming { .. }
                    | OpState::PuttingRear { .. }
                    | OpState::Fragmenting { .. }
                    | OpState::Landing(_)
                    | OpState::Recalled(_)
                    | OpState::Remote { .. }
            )
        };
        let moving = self.p2p.common.ops.select(|slot| moves(&slot.state));
        moving.is_empty()
    }

    /// Returns the operations in flight, in no order. O(operations).
    pub(crate) fn pending_ops(&mut self) -> Vec<PendingOpReport> {
        self.collectives().post_all_waits(); // turns direct receives into operations, which can be listed
        // A program is listed once, as one of the messages for which it waits.
        let messages = |slot: &OpSlot| name(&slot.state).is_some() && !slot.is_in_program();
        let mut pending = self.p2p.common.ops.select(messages);
        pending.extend(self.programs.representatives());
        let waiting = |op| {
            let slot = self.p2p.common.ops.live(op);
            let info = slot.info;
            let what = name(&slot.state)?;
            Some(PendingOpReport {
                what: if info.probe { "probe" } else { what },
                ctx: info.ctx,
                peer: info.peer,
                tag: info.tag,
                at: info.at,
            })
        };
        let mut all: Vec<_> = pending.into_iter().filter_map(waiting).collect();
        // Only the adapter knows the messages of these.
        all.extend(
            self.programs
                .listed_calls()
                .map(|(ctx, at)| PendingOpReport {
                    what: "collective (in the adapter's lists)",
                    ctx,
                    peer: None,
                    tag: None,
                    at,
                }),
        );
        let agreements = self.recovery.waiting_agreed();
        all.extend(agreements.map(|(_, report)| report));
        all
    }
}

fn name(life: &OpState) -> Option<&'static str> {
    match life {
        OpState::Free | OpState::Running | OpState::Done(_) | OpState::Failed | OpState::Lost => {
            None
        }
        OpState::Queued => Some("send (waits for room)"),
        OpState::Offered | OpState::Withdrawing => Some("send (waits for its receive)"),
        OpState::Putting { .. }
        | OpState::Claiming { .. }
        | OpState::PuttingRear { .. }
        | OpState::Fragmenting { .. } => Some("send (bytes on their way)"),
        OpState::Remote { .. } => Some("put or get"),
        OpState::Posted(_) | OpState::Expected => Some("recv"),
        OpState::Landing(_) | OpState::Recalled(_) | OpState::Following { .. } => {
            Some("recv (bytes on their way)")
        }
        OpState::AwaitsPacking(_) => Some("recv (waits for its sender to pack)"),
    }
}
