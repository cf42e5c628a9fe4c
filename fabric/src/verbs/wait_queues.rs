//! Queues of commands that wait for something to become known, each command for one thing. The code is pure.

use std::collections::{BTreeMap, VecDeque};

/// Commands by what they wait for, in the order in which they began to wait.
#[derive(Debug)]
pub(super) struct WaitQueues<K> {
    all: BTreeMap<K, VecDeque<u32>>,
    /// Key that each command waits for.
    of: BTreeMap<u32, K>,
}

impl<K> Default for WaitQueues<K> {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            of: BTreeMap::new(),
        }
    }
}

impl<K: Copy + Ord> WaitQueues<K> {
    pub(super) fn push(&mut self, what: K, op: u32) {
        self.all.entry(what).or_default().push_back(op);
        self.of.insert(op, what);
    }

    /// Returns how many commands wait for `what`.
    pub(super) fn count(&self, what: K) -> usize {
        self.all.get(&what).map_or(0, VecDeque::len)
    }

    /// Removes and returns the first command that waits for `what`.
    pub(super) fn pop(&mut self, what: K) -> Option<u32> {
        let ops = self.all.get_mut(&what)?;
        let first = ops.pop_front();
        if ops.is_empty() {
            self.all.remove(&what);
        }
        first.inspect(|op| _ = self.of.remove(op))
    }

    /// Removes a command that has ended.
    pub(super) fn forget(&mut self, op: u32) {
        let what = self.of.remove(&op);
        if let Some((what, ops)) = what.and_then(|what| Some((what, self.all.get_mut(&what)?))) {
            ops.retain(|other| *other != op);
            if ops.is_empty() {
                self.all.remove(&what);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.all.values().flatten().copied()
    }

    /// Removes and returns all commands.
    pub(super) fn take(&mut self) -> impl Iterator<Item = u32> + use<K> {
        self.of.clear();
        std::mem::take(&mut self.all).into_values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::WaitQueues;

    #[test]
    fn commands_that_wait_for_one_resource_leave_in_their_order_and_no_others_do() {
        let mut waits = WaitQueues::default();
        for (what, op) in [(7, 1), (8, 2), (7, 3), (7, 4)] {
            waits.push(what, op);
        }
        assert_eq!((waits.count(7), waits.pop(7)), (3, Some(1)));
        waits.push(7, 1); // it must wait once more
        waits.forget(3); // it ended meanwhile, and its number is another's next
        assert_eq!((waits.pop(7), waits.pop(7)), (Some(4), Some(1)));
        assert_eq!((waits.pop(7), waits.pop(8)), (None, Some(2)));
    }

    #[test]
    fn no_queue_is_left_of_a_resource_without_waiting_commands() {
        let mut waits = WaitQueues::default();
        waits.push(7, 1);
        assert_eq!((waits.pop(7), waits.pop(7)), (Some(1), None));
        waits.push(8, 2);
        waits.forget(2);
        assert!(waits.is_empty());
        waits.push(9, 3);
        waits.push(8, 4);
        let mut rest: Vec<u32> = waits.take().collect();
        rest.sort_unstable();
        assert_eq!(rest, [3, 4]);
        assert!(waits.is_empty());
    }
}
