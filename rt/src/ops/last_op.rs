//! Which operation of the application ended last, for reports about ranks that were killed.
//!
//! It costs one store when a result is taken, or when a short message leaves. What the operation was stays in its slot, which is
//! free then, until another operation begins there.

use super::OpInfo;
use crate::group::WorldRank;

/// The operation that ended last, in one word: a kind, and a slot or a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LastOp(u32);

/// What is known of the operation that ended last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EndedOp<'a> {
    /// No message has ended since the last collective of several ranks. A collective of one rank alone is not noted, so it leaves
    /// the operation before it as the last one.
    Collective,
    /// A receive or a probe.
    Recv(&'a OpInfo),
    /// A send that was an operation, or an access to a window.
    Send(&'a OpInfo),
    /// A send whose bytes left at its call.
    SentTo(WorldRank),
    /// An operation in whose place another one has begun, or whose place is gone.
    Unknown,
}

/// The word of an operation that is not known any more. A collective has the same kind, and the value 0.
const UNKNOWN: u32 = 1;
const VALUE: u32 = (1 << 30) - 1;
const RECEIVED: u32 = 1 << 30;
const OTHER: u32 = 2 << 30;
const SENT: u32 = 3 << 30;

impl LastOp {
    #[inline(always)]
    pub(super) fn sent(to: WorldRank) -> Self {
        Self::of(SENT, to.0)
    }

    #[inline(always)]
    pub(super) fn received(slot: u32) -> Self {
        Self::of(RECEIVED, slot)
    }

    #[inline(always)]
    pub(super) fn of_slot(slot: u32) -> Self {
        Self::of(OTHER, slot)
    }

    /// Forgets the operation if it was in this slot, which another operation has used since and leaves without a result.
    #[inline]
    pub(super) fn forget_slot(&mut self, slot: u32) {
        if self.0 == RECEIVED | slot || self.0 == OTHER | slot {
            self.0 = UNKNOWN;
        }
    }

    /// Forgets the operation if its slot was this one or a later one. These slots are gone, and another one may get the number.
    pub(super) fn forget_slots_from(&mut self, first: usize) {
        let is_in_slot = matches!(self.0 & !VALUE, RECEIVED | OTHER);
        if is_in_slot && (self.0 & VALUE) as usize >= first {
            self.0 = UNKNOWN;
        }
    }

    #[inline(always)]
    fn of(kind: u32, value: u32) -> Self {
        debug_assert!(
            value <= VALUE,
            "a job has fewer ranks, and memory fewer slots"
        );
        Self(kind | value)
    }

    /// Returns what is known. `info_of` returns what was in a slot that is free.
    pub(super) fn ended<'a>(self, info_of: impl FnOnce(u32) -> Option<&'a OpInfo>) -> EndedOp<'a> {
        let value = self.0 & VALUE;
        let of_slot =
            |make: fn(&'a OpInfo) -> EndedOp<'a>| info_of(value).map_or(EndedOp::Unknown, make);
        match self.0 & !VALUE {
            RECEIVED => of_slot(EndedOp::Recv),
            OTHER => of_slot(EndedOp::Send),
            SENT => EndedOp::SentTo(WorldRank(value)),
            _ if value == UNKNOWN => EndedOp::Unknown,
            _ => EndedOp::Collective,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_ended_last_is_known_until_another_operation_is_in_its_place() {
        let info = OpInfo {
            ctx: 0,
            peer: Some(WorldRank(5)),
            tag: Some(7),
            sig: 0,
            elem: 1,
            synchronous: false,
            probe: false,
            at: std::panic::Location::caller(),
        };
        let there = |slot| (slot == 9).then_some(&info);
        let recv = LastOp::received(9).ended(there);
        assert!(matches!(recv, EndedOp::Recv(info) if info.tag == Some(7)));
        assert!(matches!(LastOp::of_slot(9).ended(there), EndedOp::Send(_)));
        assert!(matches!(LastOp::received(8).ended(there), EndedOp::Unknown));
        let sent = LastOp::sent(WorldRank(3)).ended(there);
        assert!(matches!(sent, EndedOp::SentTo(WorldRank(3))));
        assert!(matches!(
            LastOp::default().ended(there),
            EndedOp::Collective
        ));
    }

    #[test]
    fn only_an_operation_of_the_slots_in_question_is_forgotten() {
        let is_forgotten = |last: LastOp| last == LastOp(UNKNOWN);
        for mut last in [LastOp::received(9), LastOp::of_slot(9)] {
            last.forget_slot(8);
            last.forget_slots_from(10);
            assert!(!is_forgotten(last));
            let mut other = last;
            last.forget_slot(9);
            other.forget_slots_from(9);
            assert!(is_forgotten(last) && is_forgotten(other));
            assert!(matches!(last.ended(|_| None), EndedOp::Unknown));
        }
        for mut last in [LastOp::sent(WorldRank(9)), LastOp::default()] {
            last.forget_slot(9);
            last.forget_slots_from(0);
            assert!(!is_forgotten(last));
        }
    }
}
