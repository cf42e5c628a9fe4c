//! Receives that take the messages of one envelope in turn, found once for all of them.

use super::{ArrivalNumber, EarliestReceive, Matching, MessageEnvelope};

/// The posted receives that match messages of one envelope, where no wildcard receive is posted. The value is valid until a
/// receive is posted, or taken out in another way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExactReceives {
    place: usize,
}

impl<R: Copy, M: Copy> Matching<R, M> {
    /// Returns the posted receives that match messages of this envelope, if there are any. Returns `None` if a wildcard
    /// receive is posted, or only one receive.
    #[inline(always)]
    pub(crate) fn exact_receives(&self, envelope: MessageEnvelope) -> Option<ExactReceives> {
        if self.has_wildcard() {
            return None;
        }
        match self.find_earliest(envelope)? {
            EarliestReceive::Lone(_) => None,
            EarliestReceive::Listed(place) => Some(ExactReceives { place }),
        }
    }

    /// Returns the earliest of these receives.
    #[inline(always)]
    pub(crate) fn first_of(&self, receives: ExactReceives) -> R {
        let first = self.lists[receives.place].ends.head;
        self.receives[first].recv
    }

    /// Takes out the earliest of these receives for a message that has arrived. Returns the number of the message, and the other
    /// receives, if there are any.
    #[inline(always)]
    pub(crate) fn give_first(
        &mut self,
        receives: ExactReceives,
    ) -> (ArrivalNumber, Option<ExactReceives>) {
        let list = &self.lists[receives.place];
        let is_last = list.ends.head == list.ends.tail;
        self.take_first(receives.place);
        (self.number_arrival(), (!is_last).then_some(receives))
    }
}
