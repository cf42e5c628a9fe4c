//! Full events, and the queues that they wait in.

use std::collections::VecDeque;

use crate::{
    atomic::{Datatype, Operator},
    error::Error,
};

/// Something that happened to an operation or to a list entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Whether it went well.
    pub fail: Fail,
    /// The list that the message was delivered to, also of an ACK and a REPLY, or the entry was on.
    pub list: List,
    /// Where the data is.
    pub start: u64,
    /// What the caller gave with the operation or the list entry.
    pub user_ptr: u64,
    /// What the initiator sent along.
    pub hdr_data: u64,
    /// The message's.
    pub match_bits: u64,
    /// Bytes that were asked for.
    pub rlength: u64,
    /// Bytes that were moved.
    pub mlength: u64,
    /// The initiator's offset; in an ACK or a REPLY, the one that was used.
    pub remote_offset: u64,
    /// Who sent the message.
    pub initiator: Peer,
    /// The user who sent the message.
    pub uid: u32,
    /// The portal table entry.
    pub pt_index: u32,
    /// Of an atomic.
    pub operator: Option<Operator>,
    /// Of an atomic.
    pub datatype: Option<Datatype>,
}

impl Event {
    /// An event that says nothing but this.
    pub(crate) const fn new(kind: EventKind, fail: Fail, user_ptr: u64) -> Self {
        Self {
            kind,
            fail,
            list: List::Priority,
            start: 0,
            user_ptr,
            hdr_data: 0,
            match_bits: 0,
            rlength: 0,
            mlength: 0,
            remote_offset: 0,
            initiator: Peer::Rank(0),
            uid: 0,
            pt_index: 0,
            operator: None,
            datatype: None,
        }
    }
}

/// What an event tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// Target: memory was read.
    Get,
    /// Target: a get that had come before its entry.
    GetOverflow,
    /// Target: memory was written.
    Put,
    /// Target: a put that had come before its entry.
    PutOverflow,
    /// Target: an atomic was done.
    Atomic,
    /// Target: an atomic that had come before its entry.
    AtomicOverflow,
    /// Target: an atomic was done and answered.
    FetchAtomic,
    /// Target: such an atomic that had come before its entry.
    FetchAtomicOverflow,
    /// Initiator: what was asked for is here.
    Reply,
    /// Initiator: the data left; its memory may be written again.
    Send,
    /// Initiator: the target has it.
    Ack,
    /// Target: something was exhausted, and the portal table entry takes nothing more.
    PtDisabled,
    /// Target: a list entry is on its list.
    Link,
    /// Target: a list entry is off its list, by its own rules.
    AutoUnlink,
    /// Target: nothing uses the memory of an unlinked entry of the overflow list any more.
    AutoFree,
    /// Target: what a search found.
    Search,
}

impl EventKind {
    /// The event for a message that had come before its entry.
    pub(crate) const fn overflow(self) -> Self {
        match self {
            Self::Get => Self::GetOverflow,
            Self::Put => Self::PutOverflow,
            Self::Atomic => Self::AtomicOverflow,
            Self::FetchAtomic => Self::FetchAtomicOverflow,
            other => other,
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fail {
    /// Well.
    Ok,
    /// The target cannot be reached.
    Undeliverable,
    /// No entry matched, or something was exhausted.
    Dropped,
    /// The portal table entry is disabled.
    PtDisabled,
    /// The matching entry is not for this user.
    PermViolation,
    /// The matching entry does not take this operation.
    OpViolation,
    /// A search found nothing.
    NoMatch,
    /// Memory that is not there.
    Segv,
}

/// The two lists of a portal table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum List {
    /// Searched first.
    Priority,
    /// Takes what nothing on the priority list matches.
    Overflow,
}

/// A process, by the way in which the interface names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// Logical: an index into the map.
    Rank(u32),
    /// Physical.
    At(Address),
}

/// A process, by node and process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "an address is these two")]
pub struct Address {
    /// The node.
    pub nid: u32,
    /// The process on it, which is not the system's process id.
    pub pid: u32,
}

/// Events in the order in which they happened.
///
/// When it is full, an event is lost, and the next one that is taken says so. Entries with flow control have places of their
/// own: one each for `PT_DISABLED`, and one for each event of a message that was let in.
#[derive(Debug)]
pub(crate) struct EventQueue {
    events: VecDeque<Event>,
    capacity: usize,
    /// Of `capacity`, what messages that were let in will need.
    reserved: usize,
    /// Beyond `capacity`: places for `PT_DISABLED` events, and how many are taken.
    disabled_places: usize,
    disabled: usize,
    dropped: bool,
}

impl EventQueue {
    pub(crate) const fn new(capacity: usize) -> Self {
        Self {
            events: VecDeque::new(),
            capacity,
            reserved: 0,
            disabled_places: 0,
            disabled: 0,
            dropped: false,
        }
    }

    /// Keeps a place for a `PT_DISABLED` event.
    pub(crate) const fn serve_flow_control(&mut self) {
        self.disabled_places += 1;
    }

    pub(crate) const fn leave_flow_control(&mut self) {
        self.disabled_places = self.disabled_places.saturating_sub(1);
    }

    /// Keeps `count` places, if there are so many.
    pub(crate) fn reserve(&mut self, count: usize) -> bool {
        let fits = self.taken() + count <= self.capacity;
        self.reserved += if fits { count } else { 0 };
        fits
    }

    pub(crate) const fn unreserve(&mut self, count: usize) {
        self.reserved = self.reserved.saturating_sub(count);
    }

    pub(crate) fn push(&mut self, event: Event) {
        if event.kind == EventKind::PtDisabled && self.disabled < self.disabled_places {
            self.disabled += 1;
        } else if self.taken() >= self.capacity {
            self.dropped = true;
            return;
        }
        self.events.push_back(event);
    }

    /// Of `capacity`.
    fn taken(&self) -> usize {
        self.events.len() - self.disabled + self.reserved
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(crate) fn take(&mut self) -> Result<Taken, Error> {
        let event = self.events.pop_front().ok_or(Error::EqEmpty)?;
        if event.kind == EventKind::PtDisabled {
            // One that had found no place of its own is not known from the others: then a place stays unused, none is lost.
            self.disabled = self.disabled.saturating_sub(1);
        }
        let dropped = std::mem::take(&mut self.dropped);
        Ok(Taken { event, dropped })
    }
}

/// An event out of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Taken {
    /// The event.
    pub event: Event,
    /// Others were lost since the last one was taken, because the queue was full.
    pub dropped: bool,
}

#[cfg(test)]
mod tests {
    use super::{Event, EventKind, EventQueue, Fail};

    fn event(user_ptr: u64) -> Event {
        Event::new(EventKind::Put, Fail::Ok, user_ptr)
    }

    #[test]
    fn a_full_queue_loses_the_newest_and_says_so_once() {
        let mut queue = EventQueue::new(1);
        queue.push(event(1));
        queue.push(event(2));
        let taken = queue.take().expect("the first");
        assert_eq!((taken.event.user_ptr, taken.dropped), (1, true));
        queue.push(event(3));
        assert!(!queue.take().expect("the third").dropped);
        assert!(queue.take().is_err() && queue.is_empty());
    }

    #[test]
    fn reserved_places_and_those_of_flow_control_stay_free() {
        let mut queue = EventQueue::new(2);
        queue.serve_flow_control();
        assert!(queue.reserve(2) && !queue.reserve(1));
        queue.push(event(1));
        queue.push(Event::new(EventKind::PtDisabled, Fail::PtDisabled, 2));
        queue.unreserve(1);
        queue.push(event(3));
        let order: Vec<u64> = std::iter::from_fn(|| queue.take().ok())
            .map(|taken| taken.event.user_ptr)
            .collect();
        assert_eq!(order, [2, 3]);
    }
}
