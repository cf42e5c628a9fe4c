//! Datagrams that wait for earlier arrivals by connections. Pure.

use std::collections::VecDeque;

use super::super::connect_wire::LaneEnds;
use crate::{connect::ConnectMessage, driver::WorldRank};

/// Datagrams with their senders. One that finds no room is lost like any other, and sent again.
#[derive(Debug, Default)]
pub(in super::super) struct DeferredDatagrams(VecDeque<(WorldRank, DeferredDatagram)>);

/// A datagram that waits for its turn.
#[derive(Debug)]
pub(in super::super) enum DeferredDatagram {
    /// A connection message, with the peer's ends if it names them.
    Connect(ConnectMessage, Option<LaneEnds>),
    Message(Vec<u8>),
}

impl DeferredDatagrams {
    pub(in super::super) fn push(&mut self, from: WorldRank, late: DeferredDatagram) {
        if self.0.len() < UNHEARD_MAX {
            self.0.push_back((from, late));
        }
    }

    pub(in super::super) fn pop(&mut self) -> Option<(WorldRank, DeferredDatagram)> {
        self.0.pop_front()
    }

    pub(in super::super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Datagrams that may wait, a MiB of the longest. Each waits for a turn or two, unless its sender never stops sending by a
/// connection, too.
const UNHEARD_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::{DeferredDatagram, DeferredDatagrams, UNHEARD_MAX};
    use crate::driver::WorldRank;

    #[test]
    fn datagrams_that_come_faster_than_they_can_be_heard_are_lost() {
        let mut unheard = DeferredDatagrams::default();
        for nth in (0..).take(UNHEARD_MAX + 1) {
            unheard.push(WorldRank(nth), DeferredDatagram::Message(Vec::new()));
        }
        let heard: Vec<u32> = std::iter::from_fn(|| Some(unheard.pop()?.0.0)).collect();
        assert!(heard.into_iter().eq((0..).take(UNHEARD_MAX)));
        assert!(unheard.is_empty());
    }
}
