//! Messages that wait at their sender, in order, because the receiver has no room for their headers.

use std::collections::{BTreeSet, VecDeque};

/// The queue of messages for one peer. The front message leaves next; fetched messages leave out of order.
///
/// Each call takes constant time until a message is fetched. Then an index is made, and every call takes O(log n).
#[derive(Debug)]
pub(crate) struct BlockedQueue<T> {
    /// Places in queue order. The first place is never `Gone`.
    places: VecDeque<BlockedMessage<T>>,
    /// Position of the first place.
    first: u64,
    index: Option<Box<BlockedIndex>>,
    /// True once a fetch found no waiting message, so that the peer must be notified of new messages.
    curious: bool,
    /// True if the peer was notified that this queue waits, since the queue was last empty.
    known: bool,
}

#[derive(Clone, Copy, Debug)]
struct BlockedMessage<T> {
    item: T,
    ctx: u32,
    tag: u32,
    state: BlockedState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockedState {
    Waiting,
    /// Offered out of order, and not known to be matched.
    Out,
    Gone,
}

/// Positions of the messages that are not `Gone`.
#[derive(Debug, Default)]
struct BlockedIndex {
    by_tag: BTreeSet<(u32, u32, u64)>,
    by_ctx: BTreeSet<(u32, u64)>,
}

/// The state of the front message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueFront<T> {
    Nothing,
    Waiting(T),
    /// The front message is out of order. Everything behind it waits until it is matched or comes back.
    Out(T),
}

/// Answer of a queue to a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchResult<T> {
    /// The queue has no matching message that may leave.
    Nothing,
    /// This message leaves out of order. `first` is true if no message of its communicator is in front of it.
    Found { item: T, first: bool },
    /// This message matches and has already left out of order. By now it is the first of its communicator.
    Out(T),
}

/// Envelope of a message that the peer may not know to be in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FetchCandidate {
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// True if no message of its communicator is in front of it, as in [`FetchResult::Found`].
    pub(crate) first: bool,
}

impl<T: Copy + PartialEq> BlockedQueue<T> {
    pub(crate) fn new() -> Self {
        Self {
            places: VecDeque::new(),
            first: 0,
            index: None,
            curious: false,
            known: false,
        }
    }

    /// Releases memory for more than `messages` messages.
    pub(crate) fn shrink_to(&mut self, messages: usize) {
        self.places.shrink_to(messages);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the number of places: waiting messages, and some that left out of order.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Records that the peer is notified that this queue waits. Returns true if the peer has been notified of every new
    /// envelope since the first notification, so that it need not repeat a fetch that failed.
    pub(crate) fn block(&mut self) -> bool {
        let known = std::mem::replace(&mut self.known, true);
        known && self.curious
    }

    /// Adds a message at the end. Returns the envelope if the peer must be notified of it.
    pub(crate) fn push(&mut self, item: T, ctx: u32, tag: u32) -> Option<FetchCandidate> {
        let at = self.first + self.places.len() as u64;
        self.places.push_back(BlockedMessage {
            item,
            ctx,
            tag,
            state: BlockedState::Waiting,
        });
        let index = self.index.as_mut()?;
        let known = index.first_of(ctx, Some(tag)).is_some();
        index.insert(ctx, tag, at);
        (self.curious && !known).then(|| self.held(at))
    }

    pub(crate) fn front(&self) -> QueueFront<T> {
        match self.places.front() {
            None => QueueFront::Nothing,
            Some(place) if place.state == BlockedState::Out => QueueFront::Out(place.item),
            Some(place) => QueueFront::Waiting(place.item),
        }
    }

    /// Removes the front message, which has left.
    pub(crate) fn pop(&mut self) {
        self.forget(self.first);
    }

    /// Removes a waiting message. Returns the envelopes behind it of which the peer must be notified. O(distance from
    /// the front).
    pub(crate) fn remove(&mut self, item: T) -> Vec<FetchCandidate> {
        let is_it =
            |place: &BlockedMessage<T>| place.state == BlockedState::Waiting && place.item == item;
        let Some(found) = self.places.iter().position(is_it) else {
            return Vec::new();
        };
        let at = self.first + found as u64;
        let BlockedMessage { ctx, tag, .. } = *self.place(at);
        self.forget(at);
        self.uncovered(ctx, tag)
    }

    /// Returns the first matching message, which the caller then sends out of order. A tag of `None` matches any.
    pub(crate) fn fetch(&mut self, ctx: u32, tag: Option<u32>) -> FetchResult<T> {
        if self.places.is_empty() {
            return FetchResult::Nothing;
        }
        self.make_index();
        let Some(at) = self.first_of(ctx, tag) else {
            self.curious = true;
            return FetchResult::Nothing;
        };
        let first = self.held(at).first;
        let place = self.place_mut(at);
        let item = place.item;
        match std::mem::replace(&mut place.state, BlockedState::Out) {
            BlockedState::Waiting => FetchResult::Found { item, first },
            // A later message with this envelope must not overtake this one.
            _ => {
                self.curious = true;
                if first {
                    FetchResult::Out(item)
                } else {
                    FetchResult::Nothing
                }
            }
        }
    }

    /// Removes a message that was out of order, because it was matched or no longer exists. Returns the envelopes
    /// behind it of which the peer must be notified.
    pub(crate) fn remove_fetched(&mut self, item: T, ctx: u32, tag: u32) -> Vec<FetchCandidate> {
        let Some(at) = self.out(item, ctx, tag) else {
            return Vec::new();
        };
        self.forget(at);
        self.uncovered(ctx, tag)
    }

    pub(crate) fn is_fetched(&self, item: T, ctx: u32, tag: u32) -> bool {
        self.out(item, ctx, tag).is_some()
    }

    /// Puts a message that was out of order back in its place. Returns the envelopes of which the peer must be
    /// notified, or `None` if the message was not out.
    pub(crate) fn put_back(&mut self, item: T, ctx: u32, tag: u32) -> Option<Vec<FetchCandidate>> {
        let at = self.out(item, ctx, tag)?;
        self.place_mut(at).state = BlockedState::Waiting;
        Some(self.uncovered(ctx, tag))
    }

    pub(crate) fn clear(&mut self) {
        *self = Self {
            first: self.first,
            ..Self::new()
        };
    }

    /// Returns the envelopes that the peer may have asked for while a message with this envelope was out.
    fn uncovered(&self, ctx: u32, tag: u32) -> Vec<FetchCandidate> {
        if !self.curious {
            return Vec::new();
        }
        let same = self.first_of(ctx, Some(tag));
        let any = self.first_of(ctx, None).filter(|any| same != Some(*any));
        let waiting = |at: &u64| self.place(*at).state == BlockedState::Waiting;
        let all = same.into_iter().chain(any).filter(waiting);
        all.map(|at| self.held(at)).collect()
    }

    fn held(&self, at: u64) -> FetchCandidate {
        let BlockedMessage { ctx, tag, .. } = *self.place(at);
        let first = self.first_of(ctx, None) == Some(at);
        FetchCandidate { ctx, tag, first }
    }

    fn first_of(&self, ctx: u32, tag: Option<u32>) -> Option<u64> {
        self.index.as_ref()?.first_of(ctx, tag)
    }

    /// Returns the position of a message that left out of order. Only the first message with its envelope can do that.
    fn out(&self, item: T, ctx: u32, tag: u32) -> Option<u64> {
        let at = self.first_of(ctx, Some(tag))?;
        let place = self.place(at);
        (place.state == BlockedState::Out && place.item == item).then_some(at)
    }

    fn forget(&mut self, at: u64) {
        let place = self.place_mut(at);
        place.state = BlockedState::Gone;
        let (ctx, tag) = (place.ctx, place.tag);
        if let Some(index) = &mut self.index {
            index.remove(ctx, tag, at);
        }
        while self
            .places
            .front()
            .is_some_and(|place| place.state == BlockedState::Gone)
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
        let mut index = Box::<BlockedIndex>::default();
        for (place, at) in self.places.iter().zip(self.first..) {
            if place.state != BlockedState::Gone {
                index.insert(place.ctx, place.tag, at);
            }
        }
        self.index = Some(index);
    }

    fn place(&self, at: u64) -> &BlockedMessage<T> {
        &self.places[index_of(at - self.first)]
    }

    fn place_mut(&mut self, at: u64) -> &mut BlockedMessage<T> {
        &mut self.places[index_of(at - self.first)]
    }
}

impl BlockedIndex {
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
