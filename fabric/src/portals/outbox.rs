//! Messages to one peer, from posting until the peer's adapter has accepted them. Pure: the owner makes the puts.
//!
//! Messages leave in order. The memory of a message is kept until it and all earlier ones are accepted. When the peer refuses a
//! message, because it lacks memory or room for events, it may still accept later ones, but drops them as out of order. So
//! nothing leaves until all puts in flight have completed. Then the peer is notified, and when it reports room, everything is
//! resent from the refused message on, first one message alone and then increasingly many at a time.

use std::collections::VecDeque;

use super::send_pool::PortalsSendSlot;

/// Messages to one peer.
#[derive(Debug)]
pub(super) struct PortalsOutbox {
    messages: VecDeque<PortalsOutMessage>,
    /// The number of the first message.
    first: u32,
    /// Number of the first messages that were put since the last rewind.
    begun: usize,
    /// Puts in flight.
    flying: u32,
    window: u32,
    most: u32,
    state: PortalsOutboxState,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortalsOutMessage {
    /// Location of the message's bytes; `None` for an empty message.
    pub(super) slot: Option<PortalsSendSlot>,
    pub(super) len: u32,
    /// Label that tells the peer what the message is.
    pub(super) label: u32,
    /// Match bits, if they differ from those of ordinary messages.
    pub(super) bits: Option<u64>,
    accepted: bool,
    /// True once the put has completed, with or without success.
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PortalsOutboxState {
    Open,
    /// The message of this number was refused, and other puts are still in flight.
    Refused(u32),
    /// The peer has been notified of the refusal.
    Paused,
    /// The peer is dead.
    Dead,
}

/// Next action after the completion of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum PortalsOutboxAction {
    Nothing,
    /// More messages may leave.
    Send,
    /// Notify the peer that it refused a message.
    Pause,
}

impl PortalsOutMessage {
    pub(super) const fn new(slot: Option<PortalsSendSlot>, len: u32, label: u32) -> Self {
        Self {
            slot,
            len,
            label,
            bits: None,
            accepted: false,
            ended: false,
        }
    }

    /// Sets match bits for this message.
    pub(super) const fn with_bits(self, bits: Option<u64>) -> Self {
        Self { bits, ..self }
    }
}

impl PortalsOutbox {
    /// Returns an empty outbox with at most `most` puts in flight.
    pub(super) const fn new(most: u32) -> Self {
        Self {
            messages: VecDeque::new(),
            first: 0,
            begun: 0,
            flying: 0,
            window: most,
            most,
            state: PortalsOutboxState::Open,
        }
    }

    /// Returns true if another message would leave immediately.
    pub(super) fn has_room(&self) -> bool {
        self.state == PortalsOutboxState::Open
            && self.begun == self.messages.len()
            && self.messages.len() < self.window as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Returns the number of messages with slots of a class.
    pub(super) fn count(&self, class: u8) -> usize {
        let of_class =
            |message: &&PortalsOutMessage| message.slot.is_some_and(|slot| slot.class == class);
        self.messages.iter().filter(of_class).count()
    }

    pub(super) fn push(&mut self, message: PortalsOutMessage) {
        self.messages.push_back(message);
    }

    /// Returns the next message that may leave, and its number.
    pub(super) fn next(&self) -> Option<(u32, PortalsOutMessage)> {
        let may = self.state == PortalsOutboxState::Open && self.flying < self.window;
        let message = self.messages.get(self.begun).filter(|_| may)?;
        Some((self.number(self.begun), *message))
    }

    /// Notes that the message returned by `next` has been put.
    pub(super) const fn started(&mut self) {
        self.begun += 1;
        self.flying += 1;
    }

    /// Handles the completion of a put. Passes the slots that become free to `free`.
    pub(super) fn ended(
        &mut self,
        number: u32,
        taken: bool,
        free: impl FnMut(PortalsSendSlot),
    ) -> PortalsOutboxAction {
        let at = number.wrapping_sub(self.first) as usize;
        if at >= self.begun || self.flying == 0 {
            return PortalsOutboxAction::Nothing;
        }
        self.flying -= 1;
        self.messages[at].ended = true;
        match (self.state, taken) {
            (PortalsOutboxState::Dead, _) => {}
            (_, true) => self.messages[at].accepted = true,
            (PortalsOutboxState::Refused(other), false) if self.is_before(other, number) => {}
            (_, false) => self.state = PortalsOutboxState::Refused(number),
        }
        self.settle(free)
    }

    /// Returns true if a put of this number is in flight.
    pub(super) fn awaits(&self, number: u32) -> bool {
        let at = number.wrapping_sub(self.first) as usize;
        let message = self.messages.get(at).filter(|_| at < self.begun);
        message.is_some_and(|message| !message.ended)
    }

    /// Redirects all later messages to another lane, after everything in flight has completed and the peer has handled it.
    pub(super) fn move_away(&mut self, free: impl FnMut(PortalsSendSlot)) -> PortalsOutboxAction {
        if self.state == PortalsOutboxState::Open {
            self.state = PortalsOutboxState::Refused(self.number(self.begun));
        }
        self.settle(free)
    }

    /// Resumes after a pause, because the peer has room again.
    pub(super) fn resume(&mut self) {
        if self.state == PortalsOutboxState::Paused {
            self.state = PortalsOutboxState::Open;
            self.window = 1;
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.state == PortalsOutboxState::Paused
    }

    /// Gives up a dead peer. Puts in flight complete by themselves, and nothing else leaves.
    pub(super) fn abandon(&mut self, free: impl FnMut(PortalsSendSlot)) {
        self.state = PortalsOutboxState::Dead;
        let _nothing = self.settle(free);
    }

    /// Gives up a dead peer whose puts in flight will never complete, and forgets them. Returns their slots, each with true if
    /// the library may still read it.
    pub(super) fn abandon_in_flight(&mut self) -> Vec<(PortalsSendSlot, bool)> {
        self.state = PortalsOutboxState::Dead;
        self.flying = 0;
        let begun = std::mem::take(&mut self.begun);
        let messages = self.messages.drain(..).enumerate();
        let slots = messages
            .filter_map(|(at, message)| Some((message.slot?, at < begun && !message.accepted)));
        slots.collect()
    }

    fn settle(&mut self, mut free: impl FnMut(PortalsSendSlot)) -> PortalsOutboxAction {
        match self.state {
            PortalsOutboxState::Open => {
                let before = self.messages.len();
                self.release(usize::MAX, free);
                if self.messages.len() == before {
                    return PortalsOutboxAction::Nothing;
                }
                self.window = (2 * self.window).min(self.most);
                PortalsOutboxAction::Send
            }
            PortalsOutboxState::Refused(number) if self.flying == 0 => {
                let good = number.wrapping_sub(self.first) as usize;
                self.release(good, free);
                self.begun = 0;
                for message in &mut self.messages {
                    message.accepted = false;
                    message.ended = false;
                }
                self.state = PortalsOutboxState::Paused;
                PortalsOutboxAction::Pause
            }
            PortalsOutboxState::Dead if self.flying == 0 => {
                let slots = self.messages.drain(..).filter_map(|message| message.slot);
                slots.for_each(&mut free);
                self.begun = 0;
                PortalsOutboxAction::Nothing
            }
            PortalsOutboxState::Refused(_)
            | PortalsOutboxState::Paused
            | PortalsOutboxState::Dead => PortalsOutboxAction::Nothing,
        }
    }

    /// Forgets accepted messages at the front, at most `most`.
    fn release(&mut self, most: usize, mut free: impl FnMut(PortalsSendSlot)) {
        for _ in 0..most {
            let Some(message) = self.messages.pop_front_if(|message| message.accepted) else {
                return;
            };
            if let Some(slot) = message.slot {
                free(slot);
            }
            self.first = self.first.wrapping_add(1);
            self.begun -= 1;
        }
    }

    fn is_before(&self, one: u32, other: u32) -> bool {
        one.wrapping_sub(self.first) <= other.wrapping_sub(self.first)
    }

    fn number(&self, at: usize) -> u32 {
        let at = u32::try_from(at).unwrap_or(u32::MAX);
        self.first.wrapping_add(at)
    }
}

#[cfg(test)]
mod tests {
    use super::{PortalsOutMessage, PortalsOutbox, PortalsOutboxAction};

    fn filled(messages: u32) -> PortalsOutbox {
        let mut outbox = PortalsOutbox::new(64);
        (0..messages).for_each(|label| outbox.push(PortalsOutMessage::new(None, 0, label)));
        outbox
    }

    fn leave(outbox: &mut PortalsOutbox) -> Vec<u32> {
        std::iter::from_fn(|| {
            let (number, message) = outbox.next()?;
            assert_eq!(number, message.label, "out of order");
            outbox.started();
            Some(number)
        })
        .collect()
    }

    fn end(outbox: &mut PortalsOutbox, number: u32, taken: bool) -> PortalsOutboxAction {
        outbox.ended(number, taken, |_| {})
    }

    #[test]
    fn what_is_taken_is_forgotten_in_order() {
        let mut outbox = filled(3);
        assert_eq!(leave(&mut outbox), [0, 1, 2]);
        assert_eq!(end(&mut outbox, 1, true), PortalsOutboxAction::Nothing);
        assert_eq!(outbox.messages.len(), 3, "the first is still on its way");
        assert_eq!(end(&mut outbox, 0, true), PortalsOutboxAction::Send);
        assert_eq!(outbox.messages.len(), 1);
        assert_eq!(end(&mut outbox, 2, true), PortalsOutboxAction::Send);
        assert!(outbox.is_empty());
    }

    #[test]
    fn everything_leaves_again_from_the_refused_one_on() {
        let mut outbox = filled(5);
        leave(&mut outbox);
        for (number, taken) in [(0, true), (2, false), (1, false), (3, true)] {
            assert_ne!(end(&mut outbox, number, taken), PortalsOutboxAction::Pause);
            assert!(outbox.next().is_none() || number == 0);
        }
        assert_eq!(end(&mut outbox, 4, true), PortalsOutboxAction::Pause);
        assert_eq!(
            outbox.messages.len(),
            4,
            "3 and 4 were taken out of their order"
        );
        assert!(outbox.next().is_none(), "the peer has no room");
        outbox.resume();
        assert_eq!(leave(&mut outbox), [1], "one alone at first");
        assert_eq!(end(&mut outbox, 1, true), PortalsOutboxAction::Send);
        assert_eq!(leave(&mut outbox), [2, 3]);
        for number in [2, 3] {
            assert_eq!(end(&mut outbox, number, true), PortalsOutboxAction::Send);
        }
        assert_eq!(leave(&mut outbox), [4]);
    }

    #[test]
    fn there_is_room_for_a_window_and_for_nothing_more_while_something_is_refused() {
        let mut outbox = filled(63);
        leave(&mut outbox);
        assert!(outbox.has_room());
        outbox.push(PortalsOutMessage::new(None, 0, 63));
        assert!(!outbox.has_room(), "it would not leave at once");
        leave(&mut outbox);
        assert!(!outbox.has_room(), "a window is on its way");
        assert_eq!(end(&mut outbox, 0, true), PortalsOutboxAction::Send);
        assert!(outbox.has_room());
        assert_eq!(end(&mut outbox, 1, false), PortalsOutboxAction::Nothing);
        assert!(!outbox.has_room(), "one was refused");
        for number in 2..64 {
            let then = [PortalsOutboxAction::Nothing, PortalsOutboxAction::Pause]
                [usize::from(number == 63)];
            assert_eq!(end(&mut outbox, number, true), then);
        }
        assert!(!outbox.has_room(), "the peer has no room");
        outbox.resume();
        assert_eq!(leave(&mut outbox), [1]);
        assert!(!outbox.has_room(), "others leave first");
        for number in 1..64 {
            assert_eq!(end(&mut outbox, number, true), PortalsOutboxAction::Send);
            leave(&mut outbox);
        }
        assert!(outbox.is_empty() && outbox.has_room());
    }

    #[test]
    fn an_outbox_that_moves_away_waits_for_messages_in_flight_and_for_the_peer() {
        let mut outbox = filled(4);
        assert_eq!(
            outbox.move_away(|_| {}),
            PortalsOutboxAction::Pause,
            "nothing is in flight"
        );
        outbox.resume();
        assert_eq!(leave(&mut outbox), [0]);
        assert_eq!(end(&mut outbox, 0, true), PortalsOutboxAction::Send);
        assert_eq!(leave(&mut outbox), [1, 2]);
        assert_eq!(outbox.move_away(|_| {}), PortalsOutboxAction::Nothing);
        assert!(outbox.next().is_none(), "it would overtake");
        assert_eq!(end(&mut outbox, 2, true), PortalsOutboxAction::Nothing);
        assert_eq!(end(&mut outbox, 1, false), PortalsOutboxAction::Pause);
        outbox.resume();
        assert_eq!(leave(&mut outbox), [1], "the one that was not answered");
    }

    #[test]
    fn numbers_may_wrap_and_wrong_ones_are_ignored() {
        let mut outbox = filled(0);
        outbox.first = u32::MAX;
        (0..2).for_each(|_| outbox.push(PortalsOutMessage::new(None, 0, 0)));
        while outbox.next().is_some() {
            outbox.started();
        }
        assert_eq!(end(&mut outbox, 7, true), PortalsOutboxAction::Nothing);
        assert_eq!(end(&mut outbox, 0, true), PortalsOutboxAction::Nothing);
        assert_eq!(end(&mut outbox, u32::MAX, true), PortalsOutboxAction::Send);
        assert!(outbox.is_empty());
        assert_eq!(end(&mut outbox, 0, true), PortalsOutboxAction::Nothing);
    }

    #[test]
    fn letters_to_the_dead_stay_while_they_are_on_their_way() {
        let mut outbox = filled(3);
        leave(&mut outbox);
        outbox.abandon(|_| {});
        assert_eq!(outbox.messages.len(), 3);
        (0..3).for_each(|number| {
            assert_eq!(
                end(&mut outbox, number, false),
                PortalsOutboxAction::Nothing
            )
        });
        assert!(outbox.is_empty() && outbox.next().is_none());
    }
}
