//! Datagrams that wait for what came by connections before them. Pure.

use std::collections::VecDeque;

use super::greeting::Ends;
use crate::connect::Message;

/// Datagrams by whom they are from. One that finds no room is lost like any other: it is said again.
#[derive(Debug, Default)]
pub(super) struct Unheard(VecDeque<(u32, Late)>);

/// What waits for its turn to be heard.
#[derive(Debug)]
pub(super) enum Late {
    /// A word about a connection, with the peer's ends where it says them.
    Word(Message, Option<Ends>),
    Parcel(Vec<u8>),
}

impl Unheard {
    pub(super) fn push(&mut self, from: u32, late: Late) {
        if self.0.len() < UNHEARD_MAX {
            self.0.push_back((from, late));
        }
    }

    pub(super) fn pop(&mut self) -> Option<(u32, Late)> {
        self.0.pop_front()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A MiB of the longest. Each waits for a turn or two, unless its sender never stops sending by a connection, too.
const UNHEARD_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::{Late, UNHEARD_MAX, Unheard};

    #[test]
    fn datagrams_that_come_faster_than_they_can_be_heard_are_lost() {
        let mut unheard = Unheard::default();
        for nth in (0..).take(UNHEARD_MAX + 1) {
            unheard.push(nth, Late::Parcel(Vec::new()));
        }
        let heard: Vec<u32> = std::iter::from_fn(|| Some(unheard.pop()?.0)).collect();
        assert!(heard.into_iter().eq((0..).take(UNHEARD_MAX)));
        assert!(unheard.is_empty());
    }
}
