//! Message matching: decides which receive gets which message.
//!
//! The engine calls [`Matching`] for every posted receive and every message that arrives.
//!
//! A receive specifies its source and tag or leaves them open, so it belongs to one of four classes. There is one list
//! for each combination of a class and the fields that it specifies, found by a hash. A posted receive waits in the one
//! list of its class. An unexpected message waits in the lists of all classes that it matches. So a receive looks at
//! one list and a message at four, however long they are. Receives and messages are numbered in order, and these
//! numbers decide among the heads of the lists.
//!
//! Most programs rarely use wildcards. So an arriving message looks only at classes with a posted receive, and enters
//! its three wildcard lists only when the next wildcard receive or probe is posted. That happens once per message, so
//! the cost per message stays constant.
//!
//! Budget: no allocation once the queues have been as long before. Every call takes constant time, except
//! [`restore`](Matching::restore), which may pass the messages that arrived before, and the drains.

mod entry;
mod exact;
mod fetched;
mod list;
mod table;
#[cfg(test)]
mod tests;
mod waiting_messages;

use std::mem;

pub(crate) use entry::{MessageEnvelope, RecvPattern};

use entry::{ARRIVED, PostedReceive, WaitingMessage};
use list::{EntryHandle, ListEnds, ListLink, MatchingSlab, NIL};
use table::{ListContent, MatchingKey, MatchingTable, ReceiveClass};

/// Posted receives and unexpected messages, of all communicators of a runtime.
///
/// `R` is the caller's name of a receive, and `M` that of a message; both are opaque here. The order is MPI's: of the
/// receives that match a message, the one posted first gets it, and a receive gets the first arrived of the messages
/// that match.
#[derive(Debug)]
pub(crate) struct Matching<R, M> {
    lists: MatchingTable,
    receives: MatchingSlab<PostedReceive<R>>,
    messages: MatchingSlab<WaitingMessage<M>>,
    /// List of all waiting messages, by arrival.
    arrived: ListEnds,
    /// Number of posted receives for each [`ReceiveClass`].
    posted: [u32; 4],
    /// First message of `arrived` that is not in its wildcard lists. All messages before it are, and all after it are
    /// not.
    unlinked: u32,
    /// The only posted receive, if no message waited when it was posted. It is in no list, so the most frequent case needs no
    /// hash.
    lone: u32,
    /// Place of the list to which a receive was added last. Receives of a window are added to one list.
    last_posted: usize,
    next_posting: u64,
    next_arrival: ArrivalNumber,
}

/// Where the earliest posted receive that matches a message is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EarliestReceive {
    /// The index of the lone receive.
    Lone(u32),
    /// The place of the list whose head it is.
    Listed(usize),
}

/// A message's position in the order of arrival. A message can be put back with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ArrivalNumber(u64);

impl ArrivalNumber {
    /// Returns the number, which grows with each message that arrives.
    pub(crate) const fn number(self) -> u64 {
        self.0
    }
}

/// Handle of a waiting receive. A stale handle does no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveHandle(EntryHandle);

/// Handle of a waiting message. A stale handle does no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnexpectedHandle(EntryHandle);

/// A message that was taken out of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DequeuedMessage<M> {
    pub(crate) message: M,
    pub(crate) envelope: MessageEnvelope,
    pub(crate) arrival: ArrivalNumber,
}

/// A message found by a probe, which still waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProbedMessage<M> {
    pub(crate) message: M,
    pub(crate) envelope: MessageEnvelope,
    pub(crate) at: UnexpectedHandle,
}

/// Result of posting a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum PostOutcome<M> {
    /// The receive matched this message, which had arrived before.
    Taken(DequeuedMessage<M>),
    /// No message matches, and the receive waits.
    Waits(ReceiveHandle),
}

/// Result of a message's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum ArrivalOutcome<R> {
    /// The message matched this receive, which had been posted before.
    Matched { recv: R, arrival: ArrivalNumber },
    /// No receive matches, and the message waits.
    Waits(UnexpectedHandle),
}

impl<R: Copy, M: Copy> Matching<R, M> {
    /// Size of a waiting message, in bytes.
    pub(crate) const MESSAGE_BYTES: usize = MatchingSlab::<WaitingMessage<M>>::PLACE_BYTES;

    pub(crate) fn new() -> Self {
        Self {
            lists: MatchingTable::new(),
            receives: MatchingSlab::new(),
            messages: MatchingSlab::new(),
            arrived: ListEnds::EMPTY,
            posted: [0; 4],
            unlinked: NIL,
            lone: NIL,
            last_posted: 0,
            next_posting: 0,
            next_arrival: ArrivalNumber(0),
        }
    }

    /// Posts a receive. Takes out the earliest matching message, or the receive waits.
    #[inline]
    pub(crate) fn post(&mut self, want: RecvPattern, recv: R) -> PostOutcome<M> {
        if self.is_idle() {
            return PostOutcome::Waits(self.add_alone(want, recv));
        }
        self.list_lone();
        self.link_for(want);
        let key = want.key();
        let place = self.place_for(key);
        if self.lists[place].holds == ListContent::Messages {
            let first = self.lists[place].ends.head;
            PostOutcome::Taken(self.take_message(first))
        } else {
            PostOutcome::Waits(self.add_receive(place, key, want, recv))
        }
    }

    /// Posts a receive if no message waits. Otherwise changes nothing.
    #[inline(always)]
    pub(crate) fn post_waiting(&mut self, want: RecvPattern, recv: R) -> Option<ReceiveHandle> {
        if !self.messages.is_empty() {
            return None;
        }
        if self.receives.is_empty() {
            return Some(self.add_alone(want, recv));
        }
        self.list_lone();
        let key = want.key();
        let place = self.place_for(key);
        Some(self.add_receive(place, key, want, recv))
    }

    /// Returns true if no receive and no message waits.
    #[inline(always)]
    pub(crate) const fn is_idle(&self) -> bool {
        self.receives.is_empty() & self.messages.is_empty()
    }

    /// Handles a message that arrives. Takes out the earliest matching receive, or the message waits.
    #[inline(always)]
    pub(crate) fn arrive(&mut self, envelope: MessageEnvelope, message: M) -> ArrivalOutcome<R> {
        let arrival = self.next_arrival;
        self.next_arrival = ArrivalNumber(arrival.0 + 1);
        match self.take_earliest(envelope) {
            Some(recv) => ArrivalOutcome::Matched { recv, arrival },
            None => ArrivalOutcome::Waits(self.add_message(envelope, arrival, message)),
        }
    }

    /// Returns the earliest posted receive that matches a message which has arrived. The message then has to be given to it
    /// by [`give`](Self::give), or to [`arrive`](Self::arrive).
    #[inline(always)]
    pub(crate) fn earliest(&self, envelope: MessageEnvelope) -> Option<(EarliestReceive, R)> {
        let earliest = self.find_earliest(envelope)?;
        let at = match earliest {
            EarliestReceive::Lone(at) => at,
            EarliestReceive::Listed(place) => self.lists[place].ends.head,
        };
        Some((earliest, self.receives[at].recv))
    }

    /// Takes out the receive that [`earliest`](Self::earliest) has just returned. Returns the number of its message.
    #[inline(always)]
    pub(crate) fn give(&mut self, earliest: EarliestReceive) -> ArrivalNumber {
        self.take_found(earliest);
        self.number_arrival()
    }

    /// Returns a message to its place, or matches it with the earliest receive that matches it now.
    pub(crate) fn restore(
        &mut self,
        envelope: MessageEnvelope,
        arrival: ArrivalNumber,
        message: M,
    ) -> ArrivalOutcome<R> {
        match self.take_earliest(envelope) {
            Some(recv) => ArrivalOutcome::Matched { recv, arrival },
            None => ArrivalOutcome::Waits(self.add_message(envelope, arrival, message)),
        }
    }

    /// Cancels a receive. Returns `None` if it is no longer posted.
    pub(crate) fn unpost(&mut self, posted: ReceiveHandle) -> Option<R> {
        let at = self.receives.find(posted.0)?;
        Some(self.remove_receive(at))
    }

    /// Withdraws a message at the request of its sender. Returns `None` if it no longer waits.
    pub(crate) fn withdraw(&mut self, at: UnexpectedHandle) -> Option<M> {
        self.take(at).map(|taken| taken.message)
    }

    /// Finds the earliest waiting message that matches, and leaves it in the queue.
    pub(crate) fn peek(&mut self, want: RecvPattern) -> Option<ProbedMessage<M>> {
        self.link_for(want);
        let list = &self.lists[self.lists.probe(want.key())];
        (list.holds == ListContent::Messages).then(|| {
            let WaitingMessage {
                envelope, message, ..
            } = self.messages[list.ends.head];
            ProbedMessage {
                message,
                envelope,
                at: UnexpectedHandle(self.messages.handle(list.ends.head)),
            }
        })
    }

    /// Takes out a message found by a probe. Returns `None` if it no longer waits.
    pub(crate) fn take(&mut self, at: UnexpectedHandle) -> Option<DequeuedMessage<M>> {
        let at = self.messages.find(at.0)?;
        Some(self.take_message(at))
    }

    /// Returns true if any receive waits.
    pub(crate) fn is_receiving(&self) -> bool {
        self.posted != [0; 4]
    }

    /// Returns the number of allocated entries, and how many of them are in use.
    pub(crate) const fn room(&self) -> (usize, usize) {
        let (receives, messages) = (self.receives.room(), self.messages.room());
        let lists = self.lists.room();
        (
            receives.0 + messages.0 + lists.0,
            receives.1 + messages.1 + lists.1,
        )
    }

    /// Releases the memory of unused entries. O(entries).
    #[cold]
    pub(crate) fn shrink(&mut self) {
        self.receives.shrink();
        self.messages.shrink();
        self.lists.shrink();
    }

    /// Returns the numbers of receives posted and messages arrived so far.
    pub(crate) const fn counts(&self) -> (u64, u64) {
        (self.next_posting, self.next_arrival.0)
    }

    /// Returns true if a receive with any source or any tag waits.
    pub(crate) fn has_wildcard(&self) -> bool {
        let [_, wild @ ..] = self.posted;
        wild != [0; 3]
    }

    /// Returns the number of waiting receives.
    #[cfg(test)]
    pub(crate) const fn posted_len(&self) -> usize {
        self.receives.len()
    }

    /// Returns the number of waiting messages.
    #[cfg(test)]
    pub(crate) const fn unexpected_len(&self) -> usize {
        self.messages.len()
    }

    /// Takes out every posted receive that `filter` selects, in posting order.
    pub(crate) fn drain_posted(&mut self, mut filter: impl FnMut(&RecvPattern) -> bool) -> Vec<R> {
        let picked = self
            .receives
            .iter()
            .filter(|(_, receive)| filter(&receive.want));
        let mut picked: Vec<_> = picked.map(|(at, receive)| (receive.posting, at)).collect();
        picked.sort_unstable();
        picked
            .into_iter()
            .map(|(_, at)| self.remove_receive(at))
            .collect()
    }

    /// Returns what the posted receives ask for, in no particular order.
    pub(crate) fn posted_patterns(&self) -> impl Iterator<Item = &RecvPattern> {
        self.receives.iter().map(|(_, receive)| &receive.want)
    }

    /// Takes out every waiting message that `filter` selects, in arrival order.
    pub(crate) fn drain_unexpected(
        &mut self,
        mut filter: impl FnMut(&MessageEnvelope, M) -> bool,
    ) -> Vec<M> {
        let mut drained = Vec::new();
        let mut at = self.arrived.head;
        while at != NIL {
            let next = self.messages.next(ARRIVED, at);
            if filter(&self.messages[at].envelope, self.messages[at].message) {
                drained.push(self.take_message(at).message);
            }
            at = next;
        }
        drained
    }
}

/// Methods for receives.
impl<R: Copy, M: Copy> Matching<R, M> {
    /// Adds a receive to the list of its key, which is at this place or will be opened there.
    #[inline(always)]
    fn add_receive(
        &mut self,
        place: usize,
        key: MatchingKey,
        want: RecvPattern,
        recv: R,
    ) -> ReceiveHandle {
        let receive = self.number_receive(want, recv);
        if self.lists[place].holds == ListContent::Nothing {
            self.lists.open(place, key, ListContent::Receives);
        }
        let ends = &mut self.lists[place].ends;
        let inserted = self.receives.insert_last(ends, 0, receive);
        self.posted[key.class()] += 1;
        self.last_posted = place;
        ReceiveHandle(inserted)
    }

    /// Returns the place of the list of `key`, or a free place for it.
    #[inline(always)]
    fn place_for(&mut self, key: MatchingKey) -> usize {
        if self.lists.is_at(self.last_posted, key) {
            return self.last_posted;
        }
        self.lists.reserve(1);
        self.lists.probe(key)
    }

    /// Posts the only receive, which leaves the lists empty.
    #[inline(always)]
    fn add_alone(&mut self, want: RecvPattern, recv: R) -> ReceiveHandle {
        let receive = self.number_receive(want, recv);
        let inserted = self.receives.insert(receive);
        self.lone = inserted.at;
        self.posted[want.class() as usize] = 1;
        ReceiveHandle(inserted)
    }

    /// Moves the lone receive into its list, before another receive is posted.
    #[inline(always)]
    fn list_lone(&mut self) {
        if self.lone != NIL {
            let lone = mem::replace(&mut self.lone, NIL);
            self.list_this(lone);
        }
    }

    #[inline(never)]
    fn list_this(&mut self, lone: u32) {
        let key = self.receives[lone].want.key();
        self.lists.reserve(1);
        let place = self.lists.probe(key);
        if self.lists[place].holds == ListContent::Nothing {
            self.lists.open(place, key, ListContent::Receives);
        }
        self.receives.append(&mut self.lists[place].ends, 0, lone);
        self.last_posted = place;
    }

    #[inline(always)]
    const fn number_receive(&mut self, want: RecvPattern, recv: R) -> PostedReceive<R> {
        let posting = self.next_posting;
        self.next_posting += 1;
        PostedReceive {
            posting,
            want,
            recv,
            link: ListLink::LOOSE,
        }
    }

    #[inline(always)]
    fn take_earliest(&mut self, envelope: MessageEnvelope) -> Option<R> {
        let earliest = self.find_earliest(envelope)?;
        Some(self.take_found(earliest))
    }

    #[inline(always)]
    fn take_found(&mut self, earliest: EarliestReceive) -> R {
        match earliest {
            EarliestReceive::Lone(at) => self.take_lone(at),
            EarliestReceive::Listed(place) => self.take_first(place),
        }
    }

    /// Finds the earliest posted receive that matches.
    #[inline(always)]
    fn find_earliest(&self, envelope: MessageEnvelope) -> Option<EarliestReceive> {
        if self.lone != NIL {
            let fits = self.receives[self.lone].want.fits(&envelope);
            return fits.then_some(EarliestReceive::Lone(self.lone));
        }
        let [_, wild @ ..] = self.posted;
        let place = if wild == [0; 3] {
            let place = self.lists.probe(envelope.key(ReceiveClass::Exact));
            (self.lists[place].holds == ListContent::Receives).then_some(place)
        } else {
            self.earliest_receive(envelope)
        };
        place.map(EarliestReceive::Listed)
    }

    /// Returns the list whose head is the earliest posted receive that matches.
    fn earliest_receive(&self, envelope: MessageEnvelope) -> Option<usize> {
        let mut earliest = None;
        for class in ReceiveClass::ALL
            .into_iter()
            .filter(|class| self.posted[*class as usize] > 0)
        {
            let place = self.lists.probe(envelope.key(class));
            let list = &self.lists[place];
            if list.holds == ListContent::Receives {
                let posting = self.receives[list.ends.head].posting;
                if earliest.is_none_or(|(first, _)| posting < first) {
                    earliest = Some((posting, place));
                }
            }
        }
        earliest.map(|(_, place)| place)
    }

    /// Takes the first receive out of a list.
    #[inline(always)]
    fn take_first(&mut self, place: usize) -> R {
        let list = &mut self.lists[place];
        self.posted[list.key.class()] -= 1;
        let at = self.receives.pop_first(&mut list.ends, 0);
        if list.ends.is_empty() {
            self.lists.close(place);
        }
        self.receives.remove(at).recv
    }

    #[inline(always)]
    fn take_lone(&mut self, at: u32) -> R {
        self.lone = NIL;
        self.posted = [0; 4];
        self.receives.remove(at).recv
    }

    fn remove_receive(&mut self, at: u32) -> R {
        if self.lone != NIL {
            return self.take_lone(at);
        }
        let place = self.lists.probe(self.receives[at].want.key());
        let list = &mut self.lists[place];
        self.posted[list.key.class()] -= 1;
        self.receives.unlink(&mut list.ends, 0, at);
        if list.ends.is_empty() {
            self.lists.close(place);
        }
        self.receives.remove(at).recv
    }
}
