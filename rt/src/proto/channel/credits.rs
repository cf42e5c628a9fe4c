//! Credits: flow control that limits how much a rank may send eagerly to a peer, so that memory at the receiver is
//! bounded.

/// Credits of both directions between two ranks.
///
/// Each rank may fill a share of the other's store for unexpected messages. The share is counted in units of 64 bytes,
/// with at least one unit for each message. Both ranks compute the same share from the same numbers, so nothing is
/// negotiated. A unit is returned when the message has left the store, not when it arrived, so a slow receiver slows
/// its senders down.
///
/// Returned units are sent as a running sum on a circle of 65 535 numbers, where 0 means "no information". So a message
/// that is lost, repeated or late does no harm, and credits need no order.
#[derive(Debug)]
pub(crate) struct Credits {
    window: u16,
    /// Units that the peer still stores for this rank.
    spent: u16,
    /// Latest sum received from the peer.
    heard: u16,
    /// Sum of units that have left this rank's store.
    freed: u16,
    /// Latest sum sent to the peer.
    told: u16,
    /// Units of the peer's messages in this rank's store.
    stored: u16,
}

impl Credits {
    /// Creates the credits for one of `peers` peers, which share a store of `store` bytes.
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

    /// Pays for a message with `len` bytes of content. Returns false if there are not enough credits now.
    ///
    /// Long messages leave an eighth of the window for messages of less than 128 bytes. A message that cannot pay is
    /// offered by rendezvous, which costs no credit because its bytes stay with the sender.
    #[inline(always)]
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

    /// Undoes a [`spend`](Self::spend), because the driver had no room for the message.
    pub(crate) fn unspend(&mut self, len: usize) {
        self.spent = self.spent.saturating_sub(units(len).unwrap_or(0));
    }

    /// Handles the peer's sum of freed units. A sum of more units than were spent must be an old one, and is ignored.
    pub(crate) fn refund(&mut self, sum: u16) {
        let units = distance(self.heard, sum);
        if sum != 0 && units <= self.spent {
            self.spent -= units;
            self.heard = sum;
        }
    }

    /// Frees the units of so many messages of a peer, each of `len` bytes, that have left the store. Returns true once when the
    /// peer should be notified.
    #[inline(always)]
    pub(crate) fn owe(&mut self, messages: u32, len: usize) -> bool {
        let before = self.owed();
        let units = u32::from(units(len).unwrap_or(0)).saturating_mul(messages);
        // Units outside the window cannot be owed: a peer that overdraws its window gets nothing back for it.
        let room = self.window - before;
        let units = u16::try_from(units).map_or(room, |units| units.min(room));
        self.freed = step(self.freed, units);
        let half = self.window / 2;
        before < half && before + units >= half
    }

    /// Reserves store room for a peer's message. Returns false if the peer has sent more than it may.
    pub(crate) fn store(&mut self, len: usize) -> bool {
        let room = self.window - self.stored;
        let units = units(len).filter(|&units| units <= room);
        self.stored += units.unwrap_or(0);
        units.is_some()
    }

    /// Releases the store room of a message.
    pub(crate) fn unstore(&mut self, len: usize) {
        self.stored -= units(len).unwrap_or(0);
    }

    /// Returns the sum to put into every message; never 0.
    pub(crate) fn due(&self) -> u16 {
        self.freed
    }

    /// Records that the driver took a message with the sum `due`, which will arrive eventually.
    pub(crate) fn returned(&mut self, due: u16) {
        self.told = due;
    }

    /// Returns the freed units that the peer has not been notified of.
    ///
    /// A thread that is about to sleep notifies the peer even of few units, because the peer may wait for exactly
    /// these.
    pub(crate) fn owed(&self) -> u16 {
        distance(self.told, self.freed)
    }
}

/// Returns the cost of a message in units: at least 1, because the receiver keeps its envelope. Returns `None` if it is
/// more than any window.
#[inline]
fn units(len: usize) -> Option<u16> {
    u16::try_from(len / UNIT)
        .ok()
        .filter(|&units| units < WINDOW_MAX)
        .map(|units| units.max(1))
}

/// Returns the sum that is `units` further on the circle 1, 2, … 65 535.
#[inline]
fn step(sum: u16, units: u16) -> u16 {
    let (next, past) = sum.overflowing_add(units);
    if past { next + 1 } else { next }
}

/// Returns the distance from one sum to a later one.
#[inline]
fn distance(from: u16, to: u16) -> u16 {
    if to >= from {
        to - from
    } else {
        CIRCLE - from + to
    }
}

/// Bytes of one unit.
const UNIT: usize = 64;

/// Maximum window: less than half of the circle, so that old sums are recognized. This is 2 MiB, or 32 767 short
/// messages.
const WINDOW_MAX: u16 = CIRCLE / 2;

/// Minimum window: four of the longest eager messages (8 KiB), which is 32 KiB.
const WINDOW_MIN: u16 = 512;

const CIRCLE: u16 = u16::MAX;

const START: u16 = 1;

#[cfg(test)]
impl Credits {
    pub(crate) fn spent(&self) -> u16 {
        self.spent
    }
}
