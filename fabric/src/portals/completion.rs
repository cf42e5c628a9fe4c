//! What the driver tells the sink, in order.

use crate::driver::{self, CommandFailure, CommandToken, DownCause, Sink};

/// A notification for the sink.
#[derive(Debug)]
pub(super) enum PortalsCompletion {
    Complete(CommandToken),
    Fetched(CommandToken, u64),
    Failed(CommandToken, CommandFailure),
    Reached(CommandToken),
    Triggered(CommandToken),
    Returned(CommandToken),
    Down(u32, DownCause),
}

impl PortalsCompletion {
    pub(super) fn deliver_to(self, sink: &mut dyn Sink) {
        match self {
            Self::Complete(token) => sink.complete(token),
            Self::Fetched(token, old) => sink.fetched(token, old),
            Self::Failed(token, why) => sink.failed(token, why),
            Self::Reached(token) => sink.reached(token),
            Self::Triggered(token) => sink.triggered(token),
            Self::Returned(token) => sink.returned(token),
            Self::Down(rank, how) => sink.peer_down(driver::WorldRank(rank), how),
        }
    }
}
