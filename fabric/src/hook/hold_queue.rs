//! Messages that wait in a [`HookDriver`](super::HookDriver), and the order in which they leave.

use std::collections::{BTreeMap, VecDeque};

use crate::{driver::WorldRank, random::SeededRandom};

/// Messages on hold, per peer in the order of posting.
#[derive(Debug)]
pub(super) struct HoldQueue {
    /// Most later messages that may leave before an earlier one.
    window: u32,
    queues: BTreeMap<WorldRank, VecDeque<HeldMessage>>,
    count: usize,
}

/// A message on hold.
#[derive(Clone, Debug)]
pub(super) struct HeldMessage {
    pub(super) header: Box<[u8]>,
    pub(super) body: Box<[u8]>,
    /// Turn at which the message may leave.
    due: u64,
    overtaken: u32,
}

impl HeldMessage {
    pub(super) fn new(header: &[u8], body: &[u8], due: u64) -> Self {
        Self {
            header: header.into(),
            body: body.into(),
            due,
            overtaken: 0,
        }
    }
}

impl HoldQueue {
    pub(super) const fn new(window: u32) -> Self {
        Self {
            window,
            queues: BTreeMap::new(),
            count: 0,
        }
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    pub(super) fn has_messages_for(&self, to: WorldRank) -> bool {
        self.queues.contains_key(&to)
    }

    pub(super) fn push(&mut self, to: WorldRank, mut message: HeldMessage) {
        let queue = self.queues.entry(to).or_default();
        if self.window == 0 {
            message.due = message.due.max(queue.back().map_or(0, |last| last.due));
        }
        queue.push_back(message);
        self.count += 1;
    }

    /// Takes a message that leaves in this turn. If there is no room for it, the caller returns it with
    /// [`put_back`](Self::put_back). Ignores the peers in `skipped`.
    pub(super) fn pop_due(
        &mut self,
        turn: u64,
        random: &mut SeededRandom,
        skipped: &[WorldRank],
    ) -> Option<(WorldRank, usize, HeldMessage)> {
        let window = self.window;
        let mut queues = self
            .queues
            .iter_mut()
            .filter(|(to, _)| !skipped.contains(to));
        let (to, queue, at) = queues.find_map(|(to, queue)| {
            choose(queue, turn, window, random).map(|at| (*to, queue, at))
        })?;
        let message = queue.remove(at)?;
        queue
            .iter_mut()
            .take(at)
            .for_each(|passed| passed.overtaken += 1);
        if queue.is_empty() {
            self.queues.remove(&to);
        }
        self.count -= 1;
        Some((to, at, message))
    }

    pub(super) fn put_back(&mut self, to: WorldRank, at: usize, message: HeldMessage) {
        let queue = self.queues.entry(to).or_default();
        queue
            .iter_mut()
            .take(at)
            .for_each(|passed| passed.overtaken -= 1);
        queue.insert(at, message);
        self.count += 1;
    }
}

/// Chooses the message of a queue that leaves: any of those due, unless an earlier one was overtaken as often as allowed.
fn choose(
    queue: &VecDeque<HeldMessage>,
    turn: u64,
    window: u32,
    random: &mut SeededRandom,
) -> Option<usize> {
    let due: Vec<usize> = (0..queue.len())
        .filter(|at| queue[*at].due <= turn)
        .collect();
    let width = u64::try_from(due.len()).unwrap_or(u64::MAX);
    let picked = *due.get(usize::try_from(random.within(0..width)).unwrap_or(0))?;
    let patient = queue
        .iter()
        .take(picked)
        .position(|earlier| earlier.overtaken >= window);
    Some(patient.unwrap_or(picked))
}
