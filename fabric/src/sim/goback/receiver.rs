//! The receiving half of go-back-n: takes the next packet, and keeps no others.

use super::{GoBackAnswer, GoBackAnswerKind, GoBackHeader, GoBackLimits, ReceiveSlotPool};

/// Receiver of the packets of one adapter.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::sim) struct GoBackReceiver {
    expected: u64,
    /// Packets taken since the last answer.
    owed: u32,
    /// No NACK is sent before this time.
    quiet: u64,
    /// Number that the last NACK was about.
    nacked: u64,
}

/// Decision about a packet, and the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(in crate::sim) struct ReceiveVerdict {
    /// True if the packet is the next one and has a slot. Otherwise the packet is dropped.
    pub(in crate::sim) taken: bool,
    pub(in crate::sim) answer: Option<GoBackAnswer>,
}

impl GoBackReceiver {
    /// Handles a packet from adapter `source`. The packet needs a slot of `pool`, if there is a pool.
    pub(in crate::sim) fn handle_data(
        &mut self,
        data: GoBackHeader,
        source: u32,
        pool: Option<&mut ReceiveSlotPool>,
        now: u64,
        limits: &GoBackLimits,
    ) -> ReceiveVerdict {
        if data.seq != self.expected {
            let answer = if data.seq < self.expected {
                Some(self.say(GoBackAnswerKind::Ack))
            } else {
                self.nack(GoBackAnswerKind::Gap, now, limits)
            };
            return ReceiveVerdict {
                taken: false,
                answer,
            };
        }
        let admitted = pool.map(|pool| pool.admit(source, data.more, now));
        if admitted == Some(SlotAdmission::No) {
            let answer = self.nack(GoBackAnswerKind::NoSlot(limits.hold), now, limits);
            return ReceiveVerdict {
                taken: false,
                answer,
            };
        }
        self.expected += 1;
        self.owed += 1;
        let said = match admitted {
            Some(SlotAdmission::AndWaits) => Some(GoBackAnswerKind::Pause),
            _ => (data.ask || self.owed >= ACK_EVERY).then_some(GoBackAnswerKind::Ack),
        };
        ReceiveVerdict {
            taken: true,
            answer: said.map(|said| self.say(said)),
        }
    }

    /// Returns the number of the next packet.
    pub(in crate::sim) const fn expected(&self) -> u64 {
        self.expected
    }

    /// Returns the call to the source, which may then send one packet.
    pub(in crate::sim) fn grant(&mut self) -> GoBackAnswer {
        self.say(GoBackAnswerKind::Grant)
    }

    fn say(&mut self, what: GoBackAnswerKind) -> GoBackAnswer {
        self.owed = 0;
        GoBackAnswer {
            expected: self.expected,
            kind: what,
        }
    }

    /// Returns a NACK: one per expected number, and another one after a while.
    fn nack(
        &mut self,
        what: GoBackAnswerKind,
        now: u64,
        limits: &GoBackLimits,
    ) -> Option<GoBackAnswer> {
        if now < self.quiet && self.nacked == self.expected {
            return None;
        }
        self.quiet = now.saturating_add(limits.hold);
        self.nacked = self.expected;
        Some(self.say(what))
    }
}

/// Result of asking for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotAdmission {
    No,
    Yes,
    /// The packet got a slot, and its source now waits to be called for the next one.
    AndWaits,
}

/// Packets per acknowledgment. A sender that pauses asks for one earlier.
const ACK_EVERY: u32 = 8;
