//! The receiving half of go-back-n: takes the next packet, and keeps no others.

use super::{Answer, Data, Limits, Pool, Said};

/// Receiver of the packets of one adapter.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::sim) struct Receiver {
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
pub(in crate::sim) struct Verdict {
    /// True if it is the next packet and has its slot. Otherwise it is dropped.
    pub(in crate::sim) taken: bool,
    pub(in crate::sim) answer: Option<Answer>,
}

impl Receiver {
    /// Handles a packet from adapter `source`. The packet needs a slot of `pool`, if there is a pool.
    pub(in crate::sim) fn handle_data(
        &mut self,
        data: Data,
        source: u32,
        pool: Option<&mut Pool>,
        now: u64,
        limits: &Limits,
    ) -> Verdict {
        if data.seq != self.expected {
            let answer = if data.seq < self.expected {
                Some(self.say(Said::Ack))
            } else {
                self.nack(Said::Gap, now, limits)
            };
            return Verdict {
                taken: false,
                answer,
            };
        }
        let admitted = pool.map(|pool| pool.admit(source, data.more, now));
        if admitted == Some(Admitted::No) {
            let answer = self.nack(Said::NoSlot(limits.hold), now, limits);
            return Verdict {
                taken: false,
                answer,
            };
        }
        self.expected += 1;
        self.owed += 1;
        let said = match admitted {
            Some(Admitted::AndWaits) => Some(Said::Pause),
            _ => (data.ask || self.owed >= ACK_EVERY).then_some(Said::Ack),
        };
        Verdict {
            taken: true,
            answer: said.map(|said| self.say(said)),
        }
    }

    /// Returns the number of the next packet.
    pub(in crate::sim) const fn expected(&self) -> u64 {
        self.expected
    }

    /// Returns the call to the source, which may then send one packet.
    pub(in crate::sim) fn grant(&mut self) -> Answer {
        self.say(Said::Grant)
    }

    fn say(&mut self, what: Said) -> Answer {
        self.owed = 0;
        Answer {
            expected: self.expected,
            what,
        }
    }

    /// Returns a NACK: one per expected number, and another one after a while.
    fn nack(&mut self, what: Said, now: u64, limits: &Limits) -> Option<Answer> {
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
pub(super) enum Admitted {
    No,
    Yes,
    /// The packet got a slot, and its source now waits to be called for the next one.
    AndWaits,
}

/// Packets per acknowledgement. A sender that pauses asks for one earlier.
const ACK_EVERY: u32 = 8;
