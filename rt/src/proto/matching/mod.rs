//! Which receive gets which message.
//!
//! A receive names its source and tag or leaves them open, so it is of one of four classes. There is one list for each
//! class and the fields it asks for, found by a hash. A posted receive waits in the one list of its class; a message that
//! nobody asked for yet waits in the lists of all classes that it fits. So a receive looks at one list, a message at four,
//! however much waits in them, and the numbers that both kinds are given on their way in decide among the heads.
//!
//! Most programs rarely use wildcards. An arrival looks only at classes with a receive posted, and a message enters its
//! three wildcard lists when the next wildcard receive or probe comes by: once, so the cost stays constant per message.
//!
//! Budget: no allocation once the queues have been as long before; every call in constant time, except
//! [`restore`](Matching::restore), which may pass the messages that came before, and the drains.

mod entry;
mod list;
mod sought;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use entry::{Envelope, Want};

use entry::{ARRIVED, Message, Receive};
use list::{Ends, Handle, Link, NIL, Slab};
use table::{Class, Holds, Table};

/// Receives that wait for messages, and messages that wait for receives, of all communicators of a runtime.
///
/// `R` names a receive, `M` a message; neither is looked into. The order is MPI's: of the receives that fit a message, the
/// one posted first gets it; of the messages that fit a receive, it gets the one that came first.
#[derive(Debug)]
pub(crate) struct Matching<R, M> {
    lists: Table,
    receives: Slab<Receive<R>>,
    messages: Slab<Message<M>>,
    /// Every waiting message, by arrival.
    arrived: Ends,
    /// How many receives are posted, by [`Class`].
    posted: [usize; 4],
    /// The first of `arrived` that is not in its wildcard lists; those before it are, those after it are not.
    unlinked: u32,
    next_posting: u64,
    next_arrival: Arrival,
}

/// A message's place in the order of arrival; with it a message can be put back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival(u64);

/// A receive that waits. Stale ones do no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posted(Handle);

/// A message that waits. Stale ones do no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unexpected(Handle);

/// A message that has left the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken<M> {
    pub(crate) message: M,
    pub(crate) envelope: Envelope,
    pub(crate) arrival: Arrival,
}

/// A message that a probe found; it still waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found<M> {
    pub(crate) message: M,
    pub(crate) envelope: Envelope,
    pub(crate) at: Unexpected,
}

/// The answer to a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Received<M> {
    /// This message was there first.
    Taken(Taken<M>),
    /// The receive waits.
    Waits(Posted),
}

/// The answer to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Arrived<R> {
    /// This receive was posted first.
    Matched { recv: R, arrival: Arrival },
    /// The message waits.
    Waits(Unexpected),
}

impl<R: Copy, M: Copy> Matching<R, M> {
    /// Bytes of a message that waits.
    pub(crate) const MESSAGE_BYTES: usize = Slab::<Message<M>>::PLACE_BYTES;

    pub(crate) fn new() -> Self {
        Self {
            lists: Table::new(),
            receives: Slab::new(),
            messages: Slab::new(),
            arrived: Ends::EMPTY,
            posted: [0; 4],
            unlinked: NIL,
            next_posting: 0,
            next_arrival: Arrival(0),
        }
    }

    /// A receive is posted: the earliest message that fits it is taken out, or it waits.
    #[inline]
    pub(crate) fn post(&mut self, want: Want, recv: R) -> Received<M> {
        self.link_for(want);
        self.lists.reserve(1);
        let place = self.lists.probe(want.key());
        if self.lists[place].holds == Holds::Messages {
            let first = self.lists[place].ends.head;
            Received::Taken(self.take_message(first))
        } else {
            Received::Waits(self.add_receive(place, want, recv))
        }
    }

    /// A message arrives: the earliest receive that fits it is taken out, or it waits.
    #[inline(always)]
    pub(crate) fn arrive(&mut self, envelope: Envelope, message: M) -> Arrived<R> {
        let arrival = self.next_arrival;
        self.next_arrival = Arrival(arrival.0 + 1);
        match self.take_earliest(envelope) {
            Some(recv) => Arrived::Matched { recv, arrival },
            None => Arrived::Waits(self.add_message(envelope, arrival, message)),
        }
    }

    /// A message that was taken out comes back to its place, or goes to the earliest receive that fits it now.
    pub(crate) fn restore(
        &mut self,
        envelope: Envelope,
        arrival: Arrival,
        message: M,
    ) -> Arrived<R> {
        match self.take_earliest(envelope) {
            Some(recv) => Arrived::Matched { recv, arrival },
            None => Arrived::Waits(self.add_message(envelope, arrival, message)),
        }
    }

    /// A receive is given up. `None` if it is no longer posted.
    pub(crate) fn unpost(&mut self, posted: Posted) -> Option<R> {
        let at = self.receives.find(posted.0)?;
        Some(self.remove_receive(at))
    }

    /// A message is called back by its sender. `None` if it no longer waits.
    pub(crate) fn withdraw(&mut self, at: Unexpected) -> Option<M> {
        self.take(at).map(|taken| taken.message)
    }

    /// The earliest waiting message that fits, left where it is.
    pub(crate) fn peek(&mut self, want: Want) -> Option<Found<M>> {
        self.link_for(want);
        let list = &self.lists[self.lists.probe(want.key())];
        (list.holds == Holds::Messages).then(|| {
            let Message {
                envelope, message, ..
            } = self.messages[list.ends.head];
            Found {
                message,
                envelope,
                at: Unexpected(self.messages.handle(list.ends.head)),
            }
        })
    }

    /// Takes out a message that a probe found. `None` if it no longer waits.
    pub(crate) fn take(&mut self, at: Unexpected) -> Option<Taken<M>> {
        let at = self.messages.find(at.0)?;
        Some(self.take_message(at))
    }

    /// Whether a receive waits.
    pub(crate) fn is_receiving(&self) -> bool {
        self.posted != [0; 4]
    }

    /// Places of receives and messages, and how many are in use.
    pub(crate) const fn room(&self) -> (usize, usize) {
        let (receives, messages) = (self.receives.room(), self.messages.room());
        let lists = self.lists.room();
        (
            receives.0 + messages.0 + lists.0,
            receives.1 + messages.1 + lists.1,
        )
    }

    /// Gives back the places that nothing is in. O(places).
    #[cold]
    pub(crate) fn shrink(&mut self) {
        self.receives.shrink();
        self.messages.shrink();
        self.lists.shrink();
    }

    /// Receives posted and messages arrived so far.
    pub(crate) const fn counted(&self) -> (u64, u64) {
        (self.next_posting, self.next_arrival.0)
    }

    /// Whether a receive from anybody or with any tag waits.
    pub(crate) fn is_wild(&self) -> bool {
        let [_, wild @ ..] = self.posted;
        wild != [0; 3]
    }

    /// Receives that wait.
    #[cfg(test)]
    pub(crate) const fn posted_len(&self) -> usize {
        self.receives.len()
    }

    /// Messages that wait.
    #[cfg(test)]
    pub(crate) const fn unexpected_len(&self) -> usize {
        self.messages.len()
    }

    /// Takes out every posted receive that `filter` picks, in the order they were posted.
    pub(crate) fn drain_posted(&mut self, mut filter: impl FnMut(&Want) -> bool) -> Vec<R> {
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

    /// What posted receives want, in no order.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = &Want> {
        self.receives.iter().map(|(_, receive)| &receive.want)
    }

    /// Takes out every waiting message that `filter` picks, in the order they came.
    pub(crate) fn drain_unexpected(
        &mut self,
        mut filter: impl FnMut(&Envelope, M) -> bool,
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

/// Receives.
impl<R: Copy, M: Copy> Matching<R, M> {
    #[inline]
    fn add_receive(&mut self, place: usize, want: Want, recv: R) -> Posted {
        let key = want.key();
        if self.lists[place].holds == Holds::Nothing {
            self.lists.open(place, key, Holds::Receives);
        }
        let posting = self.next_posting;
        self.next_posting += 1;
        let at = self.receives.insert(Receive {
            posting,
            want,
            recv,
            link: Link::LOOSE,
        });
        self.receives.append(&mut self.lists[place].ends, 0, at);
        self.posted[key.class()] += 1;
        Posted(self.receives.handle(at))
    }

    #[inline(always)]
    fn take_earliest(&mut self, envelope: Envelope) -> Option<R> {
        let [_, wild @ ..] = self.posted;
        let place = if wild == [0; 3] {
            let place = self.lists.probe(envelope.key(Class::Exact));
            (self.lists[place].holds == Holds::Receives).then_some(place)
        } else {
            self.earliest_receive(envelope)
        }?;
        Some(self.take_first(place))
    }

    /// The list whose head is the receive that was posted first of those that fit.
    fn earliest_receive(&self, envelope: Envelope) -> Option<usize> {
        let mut earliest = None;
        for class in Class::ALL
            .into_iter()
            .filter(|class| self.posted[*class as usize] > 0)
        {
            let place = self.lists.probe(envelope.key(class));
            let list = &self.lists[place];
            if list.holds == Holds::Receives {
                let posting = self.receives[list.ends.head].posting;
                if earliest.is_none_or(|(first, _)| posting < first) {
                    earliest = Some((posting, place));
                }
            }
        }
        earliest.map(|(_, place)| place)
    }

    /// Takes out the first receive of a list.
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

    fn remove_receive(&mut self, at: u32) -> R {
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

/// Messages.
impl<R: Copy, M: Copy> Matching<R, M> {
    fn add_message(&mut self, envelope: Envelope, arrival: Arrival, message: M) -> Unexpected {
        let entry = Message {
            arrival,
            envelope,
            message,
            linked: false,
            links: [Link::LOOSE; 5],
        };
        let at = self.messages.insert(entry);
        self.messages.link(&mut self.arrived, ARRIVED, at);
        self.link_message(at, Class::Exact);
        self.link_if_passed(at);
        Unexpected(self.messages.handle(at))
    }

    fn take_message(&mut self, at: u32) -> Taken<M> {
        self.unlink_message(at, Class::Exact);
        if self.messages[at].linked {
            Class::WILD
                .into_iter()
                .for_each(|class| self.unlink_message(at, class));
        } else if self.unlinked == at {
            self.unlinked = self.messages.next(ARRIVED, at);
        }
        self.messages.unlink(&mut self.arrived, ARRIVED, at);
        let Message {
            message,
            envelope,
            arrival,
            ..
        } = self.messages.remove(at);
        Taken {
            message,
            envelope,
            arrival,
        }
    }

    /// Before a wildcard looks at its list: the messages that wait must be in it.
    #[inline]
    fn link_for(&mut self, want: Want) {
        let wild = want.source.is_none() || want.tag.is_none();
        if wild {
            self.link_all();
        }
    }

    fn link_all(&mut self) {
        while self.unlinked != NIL {
            let at = self.unlinked;
            self.link_wild(at);
            self.unlinked = self.messages.next(ARRIVED, at);
        }
    }

    /// A message that comes back among linked ones is linked at once; a later one makes the unlinked rest longer.
    fn link_if_passed(&mut self, at: u32) {
        let next = self.messages.next(ARRIVED, at);
        if next != NIL && self.messages[next].linked {
            self.link_wild(at);
        } else if next == self.unlinked {
            self.unlinked = at;
        }
    }

    fn link_wild(&mut self, at: u32) {
        Class::WILD
            .into_iter()
            .for_each(|class| self.link_message(at, class));
        self.messages[at].linked = true;
    }

    fn link_message(&mut self, at: u32, class: Class) {
        let key = self.messages[at].envelope.key(class);
        self.lists.reserve(1);
        let place = self.lists.probe(key);
        if self.lists[place].holds == Holds::Nothing {
            self.lists.open(place, key, Holds::Messages);
        }
        debug_assert_eq!(
            self.lists[place].holds,
            Holds::Messages,
            "a receive and a message that fit met"
        );
        self.messages
            .link(&mut self.lists[place].ends, class as usize, at);
    }

    fn unlink_message(&mut self, at: u32, class: Class) {
        let place = self.lists.probe(self.messages[at].envelope.key(class));
        let list = &mut self.lists[place];
        self.messages.unlink(&mut list.ends, class as usize, at);
        if list.ends.is_empty() {
            self.lists.close(place);
        }
    }
}
