//! Messages that wait at their sender, in order.

use std::collections::{BTreeSet, VecDeque};

/// The line of messages for one peer. In front is what leaves next; messages that were sought leave out of turn.
///
/// Costs constant time for each message, until something is sought: then an index is made, and every call costs O(log n).
#[derive(Debug)]
pub(crate) struct Line<T> {
    /// The first is not gone.
    places: VecDeque<Place<T>>,
    /// The position of the first.
    first: u64,
    index: Option<Box<Index>>,
    /// Something was sought in vain, so the peer hears of what is new.
    curious: bool,
    /// The peer was told that this line waits, since it was empty last.
    known: bool,
}

#[derive(Clone, Copy, Debug)]
struct Place<T> {
    item: T,
    ctx: u32,
    tag: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// Offered out of turn, and not known to be met.
    Out,
    Gone,
}

/// The positions of messages that are not gone.
#[derive(Debug, Default)]
struct Index {
    by_tag: BTreeSet<(u32, u32, u64)>,
    by_ctx: BTreeSet<(u32, u64)>,
}

/// What is in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front<T> {
    Nothing,
    Waiting(T),
    /// Everything behind it waits until it is met or comes back.
    Out(T),
}

/// What a line has for a seeker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sought<T> {
    /// Nothing that may leave.
    Nothing,
    /// This leaves out of turn; `first`: none of its communicator is in front of it.
    Found { item: T, first: bool },
    /// This fits, and has left out of turn already; it is the first of its communicator by now.
    Out(T),
}

/// The envelope of a message that the peer may not know to be here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// As of [`Sought::Found`].
    pub(crate) first: bool,
}

impl<T: Copy + PartialEq> Line<T> {
    pub(crate) fn new() -> Self {
        Self {
            places: VecDeque::new(),
            first: 0,
            index: None,
            curious: false,
            known: false,
        }
    }

    /// Gives back room for more messages than these.
    pub(crate) fn shrink_to(&mut self, messages: usize) {
        self.places.shrink_to(messages);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Messages, and some places of messages that left out of turn.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// The peer is told that this line waits. Whether it has heard of everything new since it was told first, so that it need not
    /// seek again what it has sought in vain.
    pub(crate) fn block(&mut self) -> bool {
        let known = std::mem::replace(&mut self.known, true);
        known && self.curious
    }

    /// Puts a message at the end. What the peer must hear of it.
    pub(crate) fn push(&mut self, item: T, ctx: u32, tag: u32) -> Option<Held> {
        let at = self.first + self.places.len() as u64;
        self.places.push_back(Place {
            item,
            ctx,
            tag,
            state: State::Waiting,
        });
        let index = self.index.as_mut()?;
        let known = index.first_of(ctx, Some(tag)).is_some();
        index.insert(ctx, tag, at);
        (self.curious && !known).then(|| self.held(at))
    }

    pub(crate) fn front(&self) -> Front<T> {
        match self.places.front() {
            None => Front::Nothing,
            Some(place) if place.state == State::Out => Front::Out(place.item),
            Some(place) => Front::Waiting(place.item),
        }
    }

    /// What is in front has left.
    pub(crate) fn pop(&mut self) {
        self.forget(self.first);
    }

    /// Takes a waiting message out. What the peer must hear of those behind it. Costs its way from the front.
    pub(crate) fn remove(&mut self, item: T) -> Vec<Held> {
        let is_it = |place: &Place<T>| place.state == State::Waiting && place.item == item;
        let Some(found) = self.places.iter().position(is_it) else {
            return Vec::new();
        };
        let at = self.first + found as u64;
        let Place { ctx, tag, .. } = *self.place(at);
        self.forget(at);
        self.uncovered(ctx, tag)
    }

    /// The first message that fits leaves out of turn; a tag of `None` is any.
    pub(crate) fn seek(&mut self, ctx: u32, tag: Option<u32>) -> Sought<T> {
        if self.places.is_empty() {
            return Sought::Nothing;
        }
        self.make_index();
        let Some(at) = self.first_of(ctx, tag) else {
            self.curious = true;
            return Sought::Nothing;
        };
        let first = self.held(at).first;
        let place = self.place_mut(at);
        let item = place.item;
        match std::mem::replace(&mut place.state, State::Out) {
            State::Waiting => Sought::Found { item, first },
            // The next with this envelope must not overtake it.
            _ => {
                self.curious = true;
                if first {
                    Sought::Out(item)
                } else {
                    Sought::Nothing
                }
            }
        }
    }

    /// A message that was out of turn has been met, or does not exist any more. What the peer must hear of those behind it.
    pub(crate) fn met(&mut self, item: T, ctx: u32, tag: u32) -> Vec<Held> {
        let Some(at) = self.out(item, ctx, tag) else {
            return Vec::new();
        };
        self.forget(at);
        self.uncovered(ctx, tag)
    }

    pub(crate) fn is_out(&self, item: T, ctx: u32, tag: u32) -> bool {
        self.out(item, ctx, tag).is_some()
    }

    /// A message that was out of turn is back in its place. What the peer must hear of that; `None` if it was not out.
    pub(crate) fn back(&mut self, item: T, ctx: u32, tag: u32) -> Option<Vec<Held>> {
        let at = self.out(item, ctx, tag)?;
        self.place_mut(at).state = State::Waiting;
        Some(self.uncovered(ctx, tag))
    }

    pub(crate) fn clear(&mut self) {
        *self = Self {
            first: self.first,
            ..Self::new()
        };
    }

    /// What may have been sought while something with this envelope was out.
    fn uncovered(&self, ctx: u32, tag: u32) -> Vec<Held> {
        if !self.curious {
            return Vec::new();
        }
        let same = self.first_of(ctx, Some(tag));
        let any = self.first_of(ctx, None).filter(|any| same != Some(*any));
        let waiting = |at: &u64| self.place(*at).state == State::Waiting;
        let all = same.into_iter().chain(any).filter(waiting);
        all.map(|at| self.held(at)).collect()
    }

    fn held(&self, at: u64) -> Held {
        let Place { ctx, tag, .. } = *self.place(at);
        let first = self.first_of(ctx, None) == Some(at);
        Held { ctx, tag, first }
    }

    fn first_of(&self, ctx: u32, tag: Option<u32>) -> Option<u64> {
        self.index.as_ref()?.first_of(ctx, tag)
    }

    /// Where a message is that left out of turn: only the first with its envelope can.
    fn out(&self, item: T, ctx: u32, tag: u32) -> Option<u64> {
        let at = self.first_of(ctx, Some(tag))?;
        let place = self.place(at);
        (place.state == State::Out && place.item == item).then_some(at)
    }

    fn forget(&mut self, at: u64) {
        let place = self.place_mut(at);
        place.state = State::Gone;
        let (ctx, tag) = (place.ctx, place.tag);
        if let Some(index) = &mut self.index {
            index.remove(ctx, tag, at);
        }
        while self
            .places
            .front()
            .is_some_and(|place| place.state == State::Gone)
        {
            self.places.pop_front();
            self.first += 1;
        }
        if self.places.is_empty() {
            self.clear();
        }
    }

    fn make_index(&mut self) {
        if self.index.is_some() {
            return;
        }
        let mut index = Box::<Index>::default();
        for (place, at) in self.places.iter().zip(self.first..) {
            if place.state != State::Gone {
                index.insert(place.ctx, place.tag, at);
            }
        }
        self.index = Some(index);
    }

    fn place(&self, at: u64) -> &Place<T> {
        &self.places[index_of(at - self.first)]
    }

    fn place_mut(&mut self, at: u64) -> &mut Place<T> {
        &mut self.places[index_of(at - self.first)]
    }
}

impl Index {
    fn insert(&mut self, ctx: u32, tag: u32, at: u64) {
        self.by_tag.insert((ctx, tag, at));
        self.by_ctx.insert((ctx, at));
    }

    fn remove(&mut self, ctx: u32, tag: u32, at: u64) {
        self.by_tag.remove(&(ctx, tag, at));
        self.by_ctx.remove(&(ctx, at));
    }

    fn first_of(&self, ctx: u32, tag: Option<u32>) -> Option<u64> {
        match tag {
            Some(tag) => {
                let mut all = self.by_tag.range((ctx, tag, 0)..=(ctx, tag, u64::MAX));
                all.next().map(|&(_, _, at)| at)
            }
            None => {
                let mut all = self.by_ctx.range((ctx, 0)..=(ctx, u64::MAX));
                all.next().map(|&(_, at)| at)
            }
        }
    }
}

fn index_of(distance: u64) -> usize {
    usize::try_from(distance).expect("as long as the line")
}
