//! How much may be sent to a peer uninvited: flow control with bounded memory at the receiver (spec P7.1 and P7.2).

/// Both directions of a pair of ranks.
///
/// Each side may fill a share of the other's store for unexpected messages, counted in units of 64 bytes and at least one for
/// each message. Both work out the same share from the same numbers, so nothing is negotiated. A unit comes back when the
/// message has left the store, not when it arrived: a slow receiver slows its senders down.
///
/// What comes back is said as the sum so far, on a circle of 65 535 numbers; 0 says nothing. So a message that is lost, repeated
/// or late says nothing wrong, and the credits need no order.
#[derive(Debug)]
pub(crate) struct Credits {
    window: u16,
    /// Units that the peer still stores for us.
    spent: u16,
    /// The peer's sum, as far as we heard.
    heard: u16,
    /// Units that have left our store, as a sum.
    freed: u16,
    /// The sum that the peer was told.
    told: u16,
    /// Units of the peer's messages that are in our store.
    stored: u16,
}

impl Credits {
    /// `store` is in bytes, for `peers` peers together.
    pub(crate) fn new(store: usize, peers: usize) -> Self {
        let share = store / peers.max(1) / UNIT;
        let window = u16::try_from(share).unwrap_or(WINDOW_MAX);
        Self {
            window: window.clamp(WINDOW_MIN, WINDOW_MAX),
            spent: 0,
            heard: START,
            freed: START,
            told: START,
            stored: 0,
        }
    }

    /// Pays for a message with `len` bytes of content. `false`: not now.
    ///
    /// Long messages leave an eighth for those of less than 64 bytes. A message that cannot pay is offered, which costs nothing:
    /// its bytes stay with the sender.
    pub(crate) fn spend(&mut self, len: usize) -> bool {
        let Some(units) = units(len) else {
            return false;
        };
        let limit = if units == 1 {
            self.window
        } else {
            self.window - self.window / 8
        };
        let enough = limit
            .checked_sub(self.spent)
            .is_some_and(|left| left >= units);
        if enough {
            self.spent += units;
        }
        enough
    }

    /// Takes a [`spend`](Self::spend) back: the driver had no room for the message.
    pub(crate) fn unspend(&mut self, len: usize) {
        self.spent = self.spent.saturating_sub(units(len).unwrap_or(0));
    }

    /// The peer says how much it has freed so far. More than was spent is not possible, so it is an old number.
    pub(crate) fn refund(&mut self, sum: u16) {
        let units = distance(self.heard, sum);
        if sum != 0 && units <= self.spent {
            self.spent -= units;
            self.heard = sum;
        }
    }

    /// A message of the peer with `len` bytes has left the store. Says, once, that it is time to tell the peer.
    #[inline(always)]
    pub(crate) fn owe(&mut self, len: usize) -> bool {
        let before = self.owed();
        // What was not in the window cannot be owed; a peer that overdraws its window gets nothing back for that.
        let units = units(len).unwrap_or(0).min(self.window - before);
        self.freed = step(self.freed, units);
        let half = self.window / 2;
        before < half && self.owed() >= half
    }

    /// A message of the peer is to be stored. `false`: the peer has sent more than it may.
    pub(crate) fn store(&mut self, len: usize) -> bool {
        let room = self.window - self.stored;
        let units = units(len).filter(|&units| units <= room);
        self.stored += units.unwrap_or(0);
        units.is_some()
    }

    /// A message is taken out of the store.
    pub(crate) fn unstore(&mut self, len: usize) {
        self.stored -= units(len).unwrap_or(0);
    }

    /// What to say in every message; never 0.
    pub(crate) fn due(&self) -> u16 {
        self.freed
    }

    /// The driver took a message that said what was [`due`](Self::due), and that will arrive sooner or later.
    pub(crate) fn returned(&mut self, due: u16) {
        self.told = due;
    }

    /// Units that the peer has not been told of.
    ///
    /// Who is about to sleep tells them, however few: the peer may wait for just these.
    pub(crate) fn owed(&self) -> u16 {
        distance(self.told, self.freed)
    }
}

/// What a message costs: never nothing, for the receiver keeps its envelope. `None`: more than there can be.
fn units(len: usize) -> Option<u16> {
    u16::try_from(len / UNIT)
        .ok()
        .filter(|&units| units < WINDOW_MAX)
        .map(|units| units.max(1))
}

/// `units` further on the circle 1, 2, … 65 535.
fn step(sum: u16, units: u16) -> u16 {
    let (next, past) = sum.overflowing_add(units);
    if past { next + 1 } else { next }
}

/// How far it is from one sum to a later one.
fn distance(from: u16, to: u16) -> u16 {
    if to >= from {
        to - from
    } else {
        CIRCLE - from + to
    }
}

/// Bytes.
const UNIT: usize = 64;

/// Less than half of the circle, so that old numbers are known: 2 MiB, or 32 767 short messages.
const WINDOW_MAX: u16 = CIRCLE / 2;

/// Four of the longest messages that are sent uninvited (8 KiB): 32 KiB.
const WINDOW_MIN: u16 = 512;

const CIRCLE: u16 = u16::MAX;

const START: u16 = 1;

#[cfg(test)]
impl Credits {
    pub(super) fn spent(&self) -> u16 {
        self.spent
    }
}
