//! What will happen, by time and then by the order in which it was planned.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Time, in picoseconds.
pub(super) type Time = u64;

/// A time that never comes.
pub(super) const NEVER: Time = Time::MAX;

/// Something that will happen. Packets and operations are named by their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A packet is at the head of its adapter's queue.
    Depart(u32),
    /// A packet's last byte is at its destination.
    Arrive(u32),
    /// A rail is free for the next chunk of an operation.
    Stream { op: OpKey, rail: u8 },
    /// An adapter has done something within its own rank's memory.
    Local { rank: u32, slot: u32 },
    /// A host looks what there is, unless it has another appointment since.
    Look { rank: u32, ticket: u32 },
    /// An application has computed.
    Resume(u32),
    /// A sender that was refused has room again.
    Room { rank: u32, peer: u32 },
    /// All are told that a rank failed.
    Gone(u32),
    /// A frame is at the other end of its lane.
    Frame(u32),
    /// A lane has waited long enough.
    Lane(u32),
    /// A rank's call for a message may have been lost.
    Call(u32),
    /// An end of a connection has waited long enough for a word.
    Redial(u32),
    /// A fault happens to a host.
    Strike(u32),
}

/// An operation: its slot, and which of those that were ever in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpKey {
    pub(super) slot: u32,
    pub(super) serial: u32,
}

#[derive(Debug, Default)]
pub(super) struct Heap {
    events: BinaryHeap<Reverse<Event>>,
    planned: u64,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    at: Time,
    number: u64,
    what: What,
}

const _: () = assert!(size_of::<Event>() == 32, "two events fill a cache line");

impl Heap {
    pub(super) fn push(&mut self, at: Time, what: What) {
        let number = self.planned;
        self.planned += 1;
        self.events.push(Reverse(Event { at, number, what }));
    }

    pub(super) fn pop(&mut self) -> Option<(Time, What)> {
        let Reverse(event) = self.events.pop()?;
        // What a moment needed in which all ranks did something is not kept for ever.
        let (len, room) = (self.events.len(), self.events.capacity());
        if room > KEPT && len < room / SPARE_PARTS {
            self.events.shrink_to((2 * len).max(KEPT));
        }
        Some((event.at, event.what))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Bytes that it takes.
    pub(super) fn footprint(&self) -> usize {
        self.events.capacity() * size_of::<Event>()
    }
}

/// Room is given back when no more than this part of it is used.
const SPARE_PARTS: usize = 8;
/// Events that there is always room for: 32 KiB.
const KEPT: usize = 1024;

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl Eq for Event {}

#[cfg(test)]
mod tests {
    use super::{Heap, What};

    #[test]
    fn what_is_planned_for_the_same_time_happens_in_the_order_of_planning() {
        let mut heap = Heap::default();
        for (at, rank) in [(7, 0), (3, 1), (7, 2), (0, 3), (3, 4)] {
            heap.push(at, What::Resume(rank));
        }
        let order: Vec<_> = std::iter::from_fn(|| heap.pop()).collect();
        let expected = [(0, 3), (3, 1), (3, 4), (7, 0), (7, 2)];
        assert!(
            order
                .into_iter()
                .eq(expected.map(|(at, rank)| (at, What::Resume(rank))))
        );
    }
}
