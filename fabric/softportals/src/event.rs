//! Full events and the queues that hold them.

use std::collections::VecDeque;

use crate::{
    atomic::{AtomicDatatype, AtomicOperator},
    error::SoftError,
};

/// An event of an operation or of a list entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FullEvent {
    /// Kind of the event.
    pub kind: EventKind,
    /// Outcome of the operation.
    pub fail: NiFail,
    /// List that the message was delivered to (also in an ACK or a REPLY), or that the entry was on.
    pub list: EntryList,
    /// Address of the data.
    pub start: u64,
    /// Pointer that the caller gave with the operation or the list entry.
    pub user_ptr: u64,
    /// Out-of-band data from the initiator.
    pub hdr_data: u64,
    /// Match bits of the message.
    pub match_bits: u64,
    /// Requested length in bytes.
    pub rlength: u64,
    /// Moved length in bytes.
    pub mlength: u64,
    /// Offset that the initiator asked for; in an ACK or a REPLY, the offset that was used.
    pub remote_offset: u64,
    /// Sender of the message.
    pub initiator: SoftPeer,
    /// User id of the sender.
    pub uid: u32,
    /// The portal table entry.
    pub pt_index: u32,
    /// Operator of an atomic.
    pub operator: Option<AtomicOperator>,
    /// Element type of an atomic.
    pub datatype: Option<AtomicDatatype>,
}

impl FullEvent {
    /// Returns an event with only these fields set.
    pub(crate) const fn new(kind: EventKind, fail: NiFail, user_ptr: u64) -> Self {
        Self {
            kind,
            fail,
            list: EntryList::Priority,
            start: 0,
            user_ptr,
            hdr_data: 0,
            match_bits: 0,
            rlength: 0,
            mlength: 0,
            remote_offset: 0,
            initiator: SoftPeer::Rank(0),
            uid: 0,
            pt_index: 0,
            operator: None,
            datatype: None,
        }
    }
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// Target: memory was read.
    Get,
    /// Target: a get that arrived before its entry.
    GetOverflow,
    /// Target: memory was written.
    Put,
    /// Target: a put that arrived before its entry.
    PutOverflow,
    /// Target: an atomic was applied.
    Atomic,
    /// Target: an atomic that arrived before its entry.
    AtomicOverflow,
    /// Target: an atomic was applied and answered with the previous value.
    FetchAtomic,
    /// Target: such an atomic that arrived before its entry.
    FetchAtomicOverflow,
    /// Initiator: the requested data has arrived.
    Reply,
    /// Initiator: the data has left; its memory may be overwritten.
    Send,
    /// Initiator: the target has received the data.
    Ack,
    /// Target: a resource was exhausted, and the portal table entry was disabled.
    PtDisabled,
    /// Target: a list entry was linked.
    Link,
    /// Target: a list entry was unlinked automatically.
    AutoUnlink,
    /// Target: the memory of an unlinked entry of the overflow list is no longer used.
    AutoFree,
    /// Target: result of a search.
    Search,
}

impl EventKind {
    /// Returns the event for a message that arrived before its entry.
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

/// Outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NiFail {
    /// Success.
    Ok,
    /// The target cannot be reached.
    Undeliverable,
    /// No entry matched, or a resource was exhausted.
    Dropped,
    /// The portal table entry is disabled.
    PtDisabled,
    /// The matching entry does not admit this user.
    PermViolation,
    /// The matching entry does not admit this operation.
    OpViolation,
    /// A search found nothing.
    NoMatch,
    /// The memory does not exist.
    Segv,
}

/// The two lists of a portal table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryList {
    /// Searched first.
    Priority,
    /// Takes messages that match no entry of the priority list.
    Overflow,
}

/// A process, named as the interface names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SoftPeer {
    /// Logical name: an index into the map.
    Rank(u32),
    /// Physical name.
    At(PhysicalId),
}

/// A process, by node and process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    clippy::exhaustive_structs,
    reason = "an address consists of these two numbers"
)]
pub struct PhysicalId {
    /// The node.
    pub nid: u32,
    /// Portals process id on the node, which is not the operating system's process id.
    pub pid: u32,
}

/// Queue of events in the order in which they happened.
///
/// A full queue drops new events, and the next event taken from it reports the loss. Portal table entries with flow control
/// reserve places: one each for `PT_DISABLED`, and one for each event of an admitted message.
#[derive(Debug)]
pub(crate) struct EventQueue {
    events: VecDeque<FullEvent>,
    capacity: usize,
    /// Places of `capacity` reserved for admitted messages.
    reserved: usize,
    /// Places for `PT_DISABLED` events beyond `capacity`.
    disabled_places: usize,
    /// `PT_DISABLED` events that occupy such places.
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

    /// Reserves a place for a `PT_DISABLED` event.
    pub(crate) const fn serve_flow_control(&mut self) {
        self.disabled_places += 1;
    }

    pub(crate) const fn leave_flow_control(&mut self) {
        self.disabled_places = self.disabled_places.saturating_sub(1);
    }

    /// Reserves `count` places. Returns false if there are not enough.
    pub(crate) fn reserve(&mut self, count: usize) -> bool {
        let fits = self.taken() + count <= self.capacity;
        self.reserved += if fits { count } else { 0 };
        fits
    }

    pub(crate) const fn unreserve(&mut self, count: usize) {
        self.reserved = self.reserved.saturating_sub(count);
    }

    pub(crate) fn push(&mut self, event: FullEvent) {
        if event.kind == EventKind::PtDisabled && self.disabled < self.disabled_places {
            self.disabled += 1;
        } else if self.taken() >= self.capacity {
            self.dropped = true;
            return;
        }
        self.events.push_back(event);
    }

    /// Returns the used places of `capacity`.
    fn taken(&self) -> usize {
        self.events.len() - self.disabled + self.reserved
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(crate) fn take(&mut self) -> Result<DequeuedEvent, SoftError> {
        let event = self.events.pop_front().ok_or(SoftError::EqEmpty)?;
        if event.kind == EventKind::PtDisabled {
            // A `PT_DISABLED` event outside the reserved places looks the same as one inside. Mistaking one leaves a place
            // unused, but loses no event.
            self.disabled = self.disabled.saturating_sub(1);
        }
        let dropped = std::mem::take(&mut self.dropped);
        Ok(DequeuedEvent { event, dropped })
    }
}

/// An event taken from its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DequeuedEvent {
    /// The event.
    pub event: FullEvent,
    /// True if events were dropped since the last one was taken, because the queue was full.
    pub dropped: bool,
}

#[cfg(test)]
mod tests {
    use super::{EventKind, EventQueue, FullEvent, NiFail};

    fn event(user_ptr: u64) -> FullEvent {
        FullEvent::new(EventKind::Put, NiFail::Ok, user_ptr)
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
        queue.push(FullEvent::new(EventKind::PtDisabled, NiFail::PtDisabled, 2));
        queue.unreserve(1);
        queue.push(event(3));
        let order: Vec<u64> = std::iter::from_fn(|| queue.take().ok())
            .map(|taken| taken.event.user_ptr)
            .collect();
        assert_eq!(order, [2, 3]);
    }
}
