//! Lists what a rank waits for, in order to diagnose a job that hangs.

use std::panic::Location;

use super::Core;
use crate::{
    group::WorldRank,
    ops::{Life, Slot},
};

/// An operation that is not complete.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
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

impl Core {
    /// Returns true if nothing will happen here without a peer: no time limit runs, and no bytes are in flight.
    pub(crate) fn is_passive(&self) -> bool {
        let moves = |life: &Life| {
            matches!(
                life,
                Life::Putting { .. }
                    | Life::Claiming { .. }
                    | Life::Sharing { .. }
                    | Life::Fragmenting { .. }
                    | Life::Landing(_)
                    | Life::Recalled(_)
                    | Life::Remote { .. }
            )
        };
        self.timers.next().is_none() && self.ops.which(|slot| moves(&slot.life)).is_empty()
    }

    /// Returns the operations in flight, in no order. O(operations).
    pub(crate) fn waiting(&mut self) -> Vec<Waiting> {
        self.post_all_waits(); // turns direct receives into operations, which can be listed
        // A program is listed once, as one of the messages for which it waits.
        let messages = |slot: &Slot| name(&slot.life).is_some() && !slot.part;
        let mut pending = self.ops.which(messages);
        pending.extend(self.representatives());
        let waiting = |op| {
            let slot = self.ops.live(op);
            let about = slot.about;
            let what = name(&slot.life)?;
            Some(Waiting {
                what: if about.probe { "probe" } else { what },
                ctx: about.ctx,
                peer: about.peer,
                tag: about.tag,
                at: about.at,
            })
        };
        let mut all: Vec<_> = pending.into_iter().filter_map(waiting).collect();
        // Only the adapter knows the messages of these.
        all.extend(self.listed_calls().map(|(ctx, at)| Waiting {
            what: "collective (in the adapter's lists)",
            ctx,
            peer: None,
            tag: None,
            at,
        }));
        all.extend(self.waiting_agreed());
        all
    }
}

fn name(life: &Life) -> Option<&'static str> {
    match life {
        Life::Free | Life::Running | Life::Done(_) | Life::Failed | Life::Lost => None,
        Life::Queued => Some("send (waits for room)"),
        Life::Offered | Life::Withdrawing => Some("send (waits for its receive)"),
        Life::Putting { .. }
        | Life::Claiming { .. }
        | Life::Sharing { .. }
        | Life::Fragmenting { .. } => Some("send (bytes on their way)"),
        Life::Remote { .. } => Some("put or get"),
        Life::Posted(_) => Some("recv"),
        Life::Landing(_) | Life::Recalled(_) | Life::Following { .. } => {
            Some("recv (bytes on their way)")
        }
    }
}
