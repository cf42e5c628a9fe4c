//! Commands for a peer that wait for the connection or for room, in the order in which they began to wait. Pure.
//!
//! Commands that wait for the peer's credits all wait for the same, so if one of them finds none the others are not tried. The
//! rest wait for different things, which trying tells apart.

use std::collections::BTreeMap;

/// Resource that a waiting command lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BacklogReason {
    /// The connection, requests of the queue pair, or a resource of this rank.
    Room,
    Credits,
}

/// Commands that wait, each at most once.
#[derive(Debug, Default)]
pub(super) struct CommandBacklog {
    room: BTreeMap<u64, u32>,
    credits: BTreeMap<u64, u32>,
    /// Queue and place of each command.
    places: BTreeMap<u32, (BacklogReason, u64)>,
    next: u64,
    #[cfg(test)]
    pub(super) popped: usize,
}

impl CommandBacklog {
    /// Queues a command behind the others, unless it waits already.
    pub(super) fn push(&mut self, op: u32, want: BacklogReason) {
        let place = (want, self.next);
        if *self.places.entry(op).or_insert(place) == place {
            self.next += 1;
            self.of(want).insert(place.1, op);
        }
    }

    /// Removes and returns the first command.
    pub(super) fn pop(&mut self, want: BacklogReason) -> Option<u32> {
        let (_, op) = self.of(want).pop_first()?;
        self.places.remove(&op);
        #[cfg(test)]
        {
            self.popped += 1;
        }
        Some(op)
    }

    /// Removes a command that has ended.
    pub(super) fn forget(&mut self, op: u32) {
        if let Some((want, at)) = self.places.remove(&op) {
            self.of(want).remove(&at);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn count(&self, want: BacklogReason) -> usize {
        match want {
            BacklogReason::Room => self.room.len(),
            BacklogReason::Credits => self.credits.len(),
        }
    }

    /// Removes and returns all commands.
    pub(super) fn take(&mut self) -> Vec<u32> {
        self.places.clear();
        let mut all = std::mem::take(&mut self.room);
        all.append(&mut self.credits);
        all.into_values().collect()
    }

    const fn of(&mut self, want: BacklogReason) -> &mut BTreeMap<u64, u32> {
        match want {
            BacklogReason::Room => &mut self.room,
            BacklogReason::Credits => &mut self.credits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BacklogReason, CommandBacklog};

    #[test]
    fn waiting_commands_leave_in_their_order_and_are_queued_once() {
        let mut parked = CommandBacklog::default();
        for (op, want) in [
            (5, BacklogReason::Room),
            (3, BacklogReason::Room),
            (5, BacklogReason::Room),
            (9, BacklogReason::Credits),
            (4, BacklogReason::Room),
            (9, BacklogReason::Room),
        ] {
            parked.push(op, want);
        }
        assert_eq!(
            [BacklogReason::Room, BacklogReason::Credits].map(|want| parked.count(want)),
            [3, 1]
        );
        parked.forget(3); // it has ended, and its number is another's next
        parked.forget(3);
        assert_eq!(parked.pop(BacklogReason::Room), Some(5));
        parked.push(3, BacklogReason::Room);
        parked.push(5, BacklogReason::Credits);
        assert_eq!(parked.pop(BacklogReason::Credits), Some(9));
        assert_eq!(parked.take(), [4, 3, 5]);
        assert!(parked.is_empty() && parked.pop(BacklogReason::Room).is_none());
        assert_eq!(parked.count(BacklogReason::Credits), 0);
    }
}
