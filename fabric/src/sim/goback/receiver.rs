//! The receiving half: the next number, and nothing else.

use super::{Answer, Data, Limits, Pool, Said};

/// From one adapter.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::sim) struct Receiver {
    expected: u64,
    /// Taken since the last answer.
    owed: u32,
    /// No NACK before this; and the number that the last one was about.
    quiet: u64,
    nacked: u64,
}

/// What becomes of a packet, and what is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(in crate::sim) struct Verdict {
    /// It is the next one, and has its slot. If not, it is forgotten.
    pub(in crate::sim) taken: bool,
    pub(in crate::sim) answer: Option<Answer>,
}

impl Receiver {
    /// A packet came from adapter `source`. It needs a slot of `pool`, if there is a pool.
    pub(in crate::sim) fn handle_data(
        &mut self,
        data: Data,
        source: u32,
        pool: Option<&mut Pool>,
        (now, limits): (u64, &Limits),
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

    /// The number of the next packet.
    pub(in crate::sim) const fn expected(&self) -> u64 {
        self.expected
    }

    /// The source is called: it may send one.
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

    /// Once for a number, and again when a while has passed.
    fn nack(&mut self, what: Said, now: u64, limits: &Limits) -> Option<Answer> {
        if now < self.quiet && self.nacked == self.expected {
            return None;
        }
        self.quiet = now.saturating_add(limits.hold);
        self.nacked = self.expected;
        Some(self.say(what))
    }
}

/// Whether a packet got a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    No,
    Yes,
    /// Yes, and its source waits to be called for the next one.
    AndWaits,
}

/// Packets that one answer is for; whoever stops sending asks for one earlier.
const ACK_EVERY: u32 = 8;
