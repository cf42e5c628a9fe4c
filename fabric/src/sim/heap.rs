//! Planned events, ordered by time and then by the order in which they were planned.

use std::collections::VecDeque;

use super::slab::index;

/// Virtual time in picoseconds.
pub(super) type SimTime = u64;

/// A time that never comes.
pub(super) const NEVER: SimTime = SimTime::MAX;

/// An event. Packets and operations are named by their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimEvent {
    /// A packet is at the head of its adapter's queue.
    Depart(u32),
    /// A packet's last byte is at its destination.
    Arrive(u32),
    /// A rail is free for the next chunk of an operation.
    Stream { op: OpKey, rail: u8 },
    /// An adapter does something at its own rank.
    Local { rank: u32, slot: u32 },
    /// A host checks for work, unless another check was scheduled since.
    HostCheck { rank: u32, ticket: u32 },
    /// An application has finished its computation.
    Resume(u32),
    /// A sender that was refused has room again.
    Room { rank: u32, peer: u32 },
    /// All ranks are notified that a rank failed.
    FailureNotice(u32),
    /// A frame is at the other end of its flow.
    Frame(u32),
    /// The timer of a flow has expired.
    FlowTimeout(u32),
    /// A rank's request for a message may have been lost.
    SlotCall(u32),
    /// The timer of an end of a connection has expired.
    ConnectionTimeout(u32),
    /// A fault happens to a host.
    HostFault(u32),
    /// A lost segment comes again, unless another time was planned since.
    SegmentRepeat { from: u32, to: u32 },
}

/// Names an operation: its slot, and a serial number that distinguishes successive uses of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpKey {
    pub(super) slot: u32,
    pub(super) serial: u32,
}

/// Events by time, and events of the same time in the order of planning. A radix heap.
///
/// No event is planned for the past, so events need not be sorted before their time comes near. There is a bucket for each digit
/// of a time: it holds the events whose time first differs from the present in that digit. When the nearest bucket's time comes,
/// its events are distributed to nearer buckets. Each event moves a few times, sequentially in memory, and is never compared with
/// another.
#[derive(Debug)]
pub(super) struct EventHeap {
    /// Events of the time `now`.
    due: VecDeque<SimEvent>,
    now: SimTime,
    /// Buckets by level and digit.
    buckets: Vec<Vec<TimedEvent>>,
    /// Bits of the digits of each level whose buckets have events, and bits of the levels with such buckets.
    full: [u16; LEVELS],
    levels: u16,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct TimedEvent {
    at: SimTime,
    what: SimEvent,
}

const _: () = assert!(
    size_of::<TimedEvent>() == 24,
    "eight events fill three cache lines"
);

/// Bits of a digit.
const BITS: usize = 4;
const DIGITS: usize = 1 << BITS;
const DIGIT: SimTime = (1 << BITS) - 1;
const LEVELS: usize = 64 / BITS;

impl Default for EventHeap {
    fn default() -> Self {
        Self {
            due: VecDeque::new(),
            now: 0,
            buckets: vec![Vec::new(); LEVELS * DIGITS],
            full: [0; LEVELS],
            levels: 0,
            len: 0,
        }
    }
}

impl EventHeap {
    /// Plans an event. An event for the past is planned for now.
    pub(super) fn push(&mut self, at: SimTime, what: SimEvent) {
        self.len += 1;
        self.put(TimedEvent { at, what });
    }

    pub(super) fn pop(&mut self) -> Option<(SimTime, SimEvent)> {
        if self.due.is_empty() {
            self.deal_out();
        }
        let what = self.due.pop_front()?;
        self.len -= 1;
        Some((self.now, what))
    }

    /// Returns the time of the last event.
    pub(super) const fn now(&self) -> SimTime {
        self.now
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many bytes the heap takes.
    pub(super) fn footprint(&self) -> usize {
        let events: usize = self.buckets.iter().map(Vec::capacity).sum();
        let buckets = self.buckets.capacity() * size_of::<Vec<TimedEvent>>();
        events * size_of::<TimedEvent>() + self.due.capacity() * size_of::<SimEvent>() + buckets
    }

    fn put(&mut self, event: TimedEvent) {
        if event.at <= self.now {
            return self.due.push_back(event.what);
        }
        let differs = event.at ^ self.now;
        let level = index(differs.ilog2()) / BITS;
        let digit = event.at >> (level * BITS) & DIGIT;
        let digit = usize::try_from(digit).unwrap_or(0);
        self.buckets[level * DIGITS + digit].push(event);
        self.full[level] |= 1 << digit;
        self.levels |= 1 << level;
    }

    /// Moves on to the next time for which an event is planned.
    fn deal_out(&mut self) {
        if self.levels == 0 {
            return;
        }
        let level = index(self.levels.trailing_zeros());
        let digit = index(self.full[level].trailing_zeros());
        self.full[level] &= self.full[level] - 1;
        if self.full[level] == 0 {
            self.levels &= self.levels - 1;
        }
        let bucket = level * DIGITS + digit;
        let mut events = std::mem::take(&mut self.buckets[bucket]);
        self.now = events.iter().map(|event| event.at).min().unwrap_or(NEVER);
        for event in events.drain(..) {
            self.put(event);
        }
        // Do not keep the room that was needed in a moment when all ranks acted at once.
        if events.capacity() <= KEPT {
            self.buckets[bucket] = events;
        }
        if self.due.capacity() > KEPT && self.due.len() < self.due.capacity() / SPARE_PARTS {
            self.due.shrink_to(KEPT);
        }
    }
}

/// Room is released when less than one part in this many is used.
const SPARE_PARTS: usize = 8;
/// Capacity in events that a bucket may keep (6 KiB).
const KEPT: usize = 256;

#[cfg(test)]
mod tests {
    use super::{EventHeap, SimEvent};
    use crate::random::SeededRandom;

    #[test]
    fn what_is_planned_for_the_same_time_happens_in_the_order_of_planning() {
        let mut heap = EventHeap::default();
        for (at, rank) in [(7, 0), (3, 1), (7, 2), (0, 3), (3, 4)] {
            heap.push(at, SimEvent::Resume(rank));
        }
        let order: Vec<_> = std::iter::from_fn(|| heap.pop()).collect();
        let expected = [(0, 3), (3, 1), (3, 4), (7, 0), (7, 2)];
        assert!(
            order
                .into_iter()
                .eq(expected.map(|(at, rank)| (at, SimEvent::Resume(rank))))
        );
    }

    #[test]
    fn events_come_in_the_order_of_their_times_whatever_is_planned_meanwhile() {
        let mut random = SeededRandom::new(5);
        let mut heap = EventHeap::default();
        let mut planned = Vec::new();
        let (mut now, mut number) = (0, 0);
        for _ in 0..2000 {
            for _ in 0..random.within(0..20) {
                let bits = random.within(0..40);
                let at = now + random.within(0..1 << bits) / 2;
                heap.push(at, SimEvent::Resume(number));
                planned.push((at, number));
                number += 1;
            }
            for _ in 0..random.within(0..20) {
                let first = planned.iter().min().copied();
                let popped = heap.pop();
                assert_eq!(popped, first.map(|(at, rank)| (at, SimEvent::Resume(rank))));
                let Some(first) = first else { break };
                planned.retain(|other| *other != first);
                now = first.0;
            }
            assert_eq!(heap.is_empty(), planned.is_empty());
        }
    }
}
