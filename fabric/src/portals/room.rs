//! Room that the library has for operations, and whether to retry where it has none. Pure.

use super::{backoff::BackoffTimer, calls::PortalsCallError};

/// Room for operations of a rank.
#[derive(Debug)]
pub(super) struct LibraryRoom {
    /// Events that the completion queue still has room for. Each started operation takes one.
    credits: u32,
    most: u32,
    /// Refusals by the library since it last accepted or completed anything.
    refusals: u32,
    pub(super) backoff: BackoffTimer,
}

impl LibraryRoom {
    /// Returns the room of a completion queue for `credits` events.
    pub(super) fn new(credits: u32) -> Self {
        Self {
            credits,
            most: credits,
            refusals: 0,
            backoff: BackoffTimer::default(),
        }
    }

    /// Returns true if a message or a step of a command may be started. The last credits are for control words.
    pub(super) const fn is_left(&self) -> bool {
        self.credits > RESERVED
    }

    /// Returns true if control words may be written.
    pub(super) const fn is_left_for_words(&self) -> bool {
        self.credits > 0
    }

    /// Takes a credit for an operation that the library has accepted.
    pub(super) const fn spend(&mut self) {
        self.credits -= 1;
        self.refusals = 0;
    }

    /// Notes that the library has completed an operation.
    pub(super) const fn note_completion(&mut self) {
        self.refusals = 0;
    }

    /// Returns credits of operations that have completed or were given up.
    pub(super) fn give_back(&mut self, credits: u32) {
        self.credits = (self.credits + credits).min(self.most);
    }

    /// Returns true if a refused call should be retried in the next turn, because a completion may make room.
    pub(super) fn is_for_later(&mut self, refused: &PortalsCallError) -> bool {
        self.refusals = self.refusals.saturating_add(self.backoff.weight_once());
        matches!(refused, PortalsCallError::Transient(_)) && self.refusals < REFUSALS_MAX
    }

    /// Returns the number of refusals since the library last accepted or completed anything.
    pub(super) const fn refusals(&self) -> u32 {
        self.refusals
    }

    #[cfg(test)]
    pub(super) const fn credits(&self) -> u32 {
        self.credits
    }
}

/// Turns without an acceptance or a completion after which a refusal counts as permanent: more than a second.
pub(super) const REFUSALS_MAX: u32 = 1 << 20;
/// Credits reserved for control words.
const RESERVED: u32 = 2;

#[cfg(test)]
mod tests {
    use super::{LibraryRoom, PortalsCallError, REFUSALS_MAX, RESERVED};

    #[test]
    fn the_last_credits_are_for_words_and_no_more_come_back_than_there_were() {
        let mut room = LibraryRoom::new(RESERVED + 1);
        room.spend();
        assert!(!room.is_left() && room.is_left_for_words());
        (0..RESERVED).for_each(|_| room.spend());
        assert!(!room.is_left_for_words());
        room.give_back(RESERVED + 2);
        assert_eq!(room.credits(), RESERVED + 1);
    }

    #[test]
    fn a_refusal_is_permanent_after_many_without_success() {
        let mut room = LibraryRoom::new(8);
        let full = PortalsCallError::Transient(String::new());
        assert!(!room.is_for_later(&PortalsCallError::Permanent(String::new())));
        room.note_completion();
        assert!((1..REFUSALS_MAX).all(|_| room.is_for_later(&full)));
        assert!(!room.is_for_later(&full));
        room.spend();
        assert!(room.is_for_later(&full), "something was accepted since");
    }
}
