//! Traffic that passed through a [`Hook`](super::Hook), for tests to inspect.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::driver::{Down, Peer};

/// Access to the traffic of a [`Hook`](super::Hook), even after the hook was moved into a `Box<dyn Driver>`. Clones share their
/// state.
#[derive(Clone, Debug, Default)]
pub struct Tap {
    shared: Arc<Mutex<Shared>>,
}

/// Counts of the traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Messages that the caller posted, including those lost by a fault.
    pub sent: u64,
    /// Bytes of posted messages, headers and bodies.
    pub sent_bytes: u64,
    /// Messages that arrived.
    pub received: u64,
    /// Bytes of messages that arrived, headers and bodies.
    pub received_bytes: u64,
    /// Puts posted.
    pub puts: u64,
    /// Gets posted.
    pub gets: u64,
    /// Atomics posted.
    pub atomics: u64,
    /// Counts posted, without those of puts.
    pub counts: u64,
    /// Commands returned as `Full`, by the wrapped driver or by a fault.
    pub fulls: u64,
    /// Messages lost by a fault.
    pub dropped: u64,
    /// Messages duplicated by a fault.
    pub duplicated: u64,
    /// Messages held for a while.
    pub delayed: u64,
}

impl Counts {
    /// Counts a one-sided command.
    pub(super) fn count(&mut self, what: &What) {
        match what {
            What::Put(_) => self.puts += 1,
            What::Get(_) => self.gets += 1,
            What::Atomic => self.atomics += 1,
            What::Count => self.counts += 1,
            _ => {}
        }
    }
}

/// A command or an event that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Passed {
    /// Turns of `progress` before it.
    pub turn: u64,
    /// Receiver or sender; `None` for a completion, which names no peer.
    pub peer: Option<Peer>,
    /// Kind of command or event.
    pub what: What,
}

/// Kinds of commands and events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// A message was posted.
    Sent {
        /// Header of the message.
        header: Vec<u8>,
        /// Length of the body in bytes.
        body: usize,
    },
    /// A message arrived.
    Received {
        /// Header of the message.
        header: Vec<u8>,
        /// Length of the body in bytes.
        body: usize,
    },
    /// The message just sent was lost by a fault.
    Dropped,
    /// The message just sent was duplicated by a fault.
    Duplicated,
    /// The message just sent is held for this many turns.
    Delayed(u64),
    /// A command was returned as `Full`.
    Full,
    /// A put of this many bytes was posted.
    Put(usize),
    /// A get of this many bytes was posted.
    Get(usize),
    /// An atomic was posted.
    Atomic,
    /// A count was posted.
    Count,
    /// A watched counter reached its threshold.
    Reached,
    /// All tasks of a list have begun.
    Triggered,
    /// A one-sided command is complete.
    Completed,
    /// A one-sided command failed.
    Failed,
    /// The peer is down.
    Down(Down),
}

/// Called with all traffic.
pub(super) type Observer = Box<dyn FnMut(&Passed) + Send>;

impl Tap {
    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Takes the traffic recorded since the last call. Empty without [`Plan::record`](super::Plan::record).
    #[must_use]
    pub fn take_record(&self) -> Vec<Passed> {
        self.lock()
            .record
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    pub(super) fn record_all(&self) {
        self.lock().record = Some(Vec::new());
    }

    pub(super) fn observe(&self, observer: Observer) {
        self.lock().observer = Some(observer);
    }

    /// Counts a command or an event. `what` is only built if there is an observer or a record.
    pub(super) fn pass(
        &self,
        turn: u64,
        peer: Option<Peer>,
        count: impl FnOnce(&mut Counts),
        what: impl FnOnce() -> What,
    ) {
        let mut shared = self.lock();
        count(&mut shared.counts);
        if shared.observer.is_none() && shared.record.is_none() {
            return;
        }
        let passed = Passed {
            turn,
            peer,
            what: what(),
        };
        if let Some(observer) = &mut shared.observer {
            observer(&passed);
        }
        if let Some(record) = &mut shared.record {
            record.push(passed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct Shared {
    counts: Counts,
    record: Option<Vec<Passed>>,
    observer: Option<Observer>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}
