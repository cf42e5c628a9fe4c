//! Matching of messages that arrive out of order because a receive fetched them (see `proto::header_quota`).

use super::{ArrivalNumber, EarliestReceive, Matching, MessageEnvelope, ReceiveClass, RecvPattern};
use crate::group::WorldRank;

impl<R: Copy, M: Copy> Matching<R, M> {
    /// Returns the next arrival number, for a message that may never be stored.
    #[inline]
    pub(crate) fn number_arrival(&mut self) -> ArrivalNumber {
        let arrival = self.next_arrival;
        self.next_arrival = ArrivalNumber(arrival.0 + 1);
        arrival
    }

    /// Takes out the earliest receive that may get a message that is here out of order.
    ///
    /// If the message is not the `first` of its communicator at its sender, it is only for a receive that specifies its
    /// tag, and only while no earlier receive of any tag waits. That earlier receive must get a message from the front
    /// of the line, and perhaps this very message.
    pub(crate) fn take_for_fetched(&mut self, envelope: MessageEnvelope, first: bool) -> Option<R> {
        let earliest = self.earliest_for_sought(envelope, first)?;
        Some(self.take_found(earliest))
    }

    /// Returns true if there is such a receive.
    pub(crate) fn has_receive_for(&self, envelope: MessageEnvelope, first: bool) -> bool {
        self.earliest_for_sought(envelope, first).is_some()
    }

    /// Returns what receives numbered `from` or later ask for, if they may get a message from `source`. O(posted).
    pub(crate) fn patterns_from(
        &self,
        from: u64,
        source: WorldRank,
    ) -> impl Iterator<Item = RecvPattern> {
        let all = self.receives.iter().map(|(_, receive)| receive);
        all.filter(move |receive| receive.posting >= from)
            .map(|receive| receive.want)
            .filter(move |want| want.source.is_none_or(|of| of == source))
    }

    /// Returns the number of the next receive.
    pub(crate) fn next_posting(&self) -> u64 {
        self.next_posting
    }

    fn earliest_for_sought(
        &self,
        envelope: MessageEnvelope,
        first: bool,
    ) -> Option<EarliestReceive> {
        let earliest = self.find_earliest(envelope)?;
        let class = match earliest {
            EarliestReceive::Lone(at) => self.receives[at].want.class() as usize,
            EarliestReceive::Listed(place) => self.lists[place].key.class(),
        };
        let names_tag =
            class == ReceiveClass::Exact as usize || class == ReceiveClass::AnySource as usize;
        (first || names_tag).then_some(earliest)
    }
}
