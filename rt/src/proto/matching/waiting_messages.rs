//! Waiting messages: how they enter and leave the lists of the classes that they match.

use super::{
    ArrivalNumber, DequeuedMessage, Matching, MessageEnvelope, RecvPattern, UnexpectedHandle,
    entry::{ARRIVED, WaitingMessage},
    list::{ListLink, NIL},
    table::{ListContent, ReceiveClass},
};

impl<R: Copy, M: Copy> Matching<R, M> {
    pub(super) fn add_message(
        &mut self,
        envelope: MessageEnvelope,
        arrival: ArrivalNumber,
        message: M,
    ) -> UnexpectedHandle {
        let entry = WaitingMessage {
            arrival,
            envelope,
            message,
            linked: false,
            links: [ListLink::LOOSE; 5],
        };
        let inserted = self.messages.insert(entry);
        let at = inserted.at;
        self.messages.link(&mut self.arrived, ARRIVED, at);
        self.link_message(at, ReceiveClass::Exact);
        self.link_if_passed(at);
        UnexpectedHandle(inserted)
    }

    pub(super) fn take_message(&mut self, at: u32) -> DequeuedMessage<M> {
        self.unlink_message(at, ReceiveClass::Exact);
        if self.messages[at].linked {
            ReceiveClass::WILD
                .into_iter()
                .for_each(|class| self.unlink_message(at, class));
        } else if self.unlinked == at {
            self.unlinked = self.messages.next(ARRIVED, at);
        }
        self.messages.unlink(&mut self.arrived, ARRIVED, at);
        let WaitingMessage {
            message,
            envelope,
            arrival,
            ..
        } = self.messages.remove(at);
        DequeuedMessage {
            message,
            envelope,
            arrival,
        }
    }

    /// Adds all waiting messages to their wildcard lists, if the receive has a wildcard.
    #[inline]
    pub(super) fn link_for(&mut self, want: RecvPattern) {
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

    /// Adds a message that comes back to its wildcard lists if its successor is in them. Otherwise the message belongs
    /// to the rest that is not yet linked.
    fn link_if_passed(&mut self, at: u32) {
        let next = self.messages.next(ARRIVED, at);
        if next != NIL && self.messages[next].linked {
            self.link_wild(at);
        } else if next == self.unlinked {
            self.unlinked = at;
        }
    }

    fn link_wild(&mut self, at: u32) {
        ReceiveClass::WILD
            .into_iter()
            .for_each(|class| self.link_message(at, class));
        self.messages[at].linked = true;
    }

    fn link_message(&mut self, at: u32, class: ReceiveClass) {
        let key = self.messages[at].envelope.key(class);
        self.lists.reserve(1);
        let place = self.lists.probe(key);
        if self.lists[place].holds == ListContent::Nothing {
            self.lists.open(place, key, ListContent::Messages);
        }
        debug_assert_eq!(
            self.lists[place].holds,
            ListContent::Messages,
            "a receive and a message that fit met"
        );
        self.messages
            .link(&mut self.lists[place].ends, class as usize, at);
    }

    fn unlink_message(&mut self, at: u32, class: ReceiveClass) {
        let place = self.lists.probe(self.messages[at].envelope.key(class));
        let list = &mut self.lists[place];
        self.messages.unlink(&mut list.ends, class as usize, at);
        if list.ends.is_empty() {
            self.lists.close(place);
        }
    }
}
