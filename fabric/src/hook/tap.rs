//! Traffic that passed through a [`HookDriver`](super::HookDriver), for tests to inspect.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::driver::{DownCause, WorldRank};

/// Access to the traffic of a [`HookDriver`](super::HookDriver), even after the hook was moved into a `Box<dyn Driver>`. Clones
/// share their state.
#[derive(Clone, Debug, Default)]
pub struct HookTap {
    shared: Arc<Mutex<TapState>>,
}

/// Counts of the traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HookCounts {
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

impl HookCounts {
    /// Counts a one-sided command.
    pub(super) fn count(&mut self, what: &TrafficKind) {
        match what {
            TrafficKind::Put(_) => self.puts += 1,
            TrafficKind::Get(_) => self.gets += 1,
            TrafficKind::Atomic => self.atomics += 1,
            TrafficKind::Count => self.counts += 1,
            _ => {}
        }
    }
}

/// A command or an event that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrafficEvent {
    /// Turns of `progress` before the event.
    pub turn: u64,
    /// Receiver or sender; `None` for a completion, which names no peer.
    pub peer: Option<WorldRank>,
    /// Kind of command or event.
    pub kind: TrafficKind,
}

/// Kinds of commands and events.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrafficKind {
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
    Down(DownCause),
}

/// Called with all traffic.
pub(super) type TrafficObserver = Box<dyn FnMut(&TrafficEvent) + Send>;

impl HookTap {
    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> HookCounts {
        self.lock().counts
    }

    /// Takes the traffic recorded since the last call. Empty without [`HookPlan::record`](super::HookPlan::record).
    #[must_use]
    pub fn take_record(&self) -> Vec<TrafficEvent> {
        self.lock()
            .record
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    pub(super) fn record_all(&self) {
        self.lock().record = Some(Vec::new());
    }

    pub(super) fn observe(&self, observer: TrafficObserver) {
        self.lock().observer = Some(observer);
    }

    /// Counts a command or an event. `kind` is only built if there is an observer or a record.
    pub(super) fn record_event(
        &self,
        turn: u64,
        peer: Option<WorldRank>,
        count: impl FnOnce(&mut HookCounts),
        what: impl FnOnce() -> TrafficKind,
    ) {
        let mut shared = self.lock();
        count(&mut shared.counts);
        if shared.observer.is_none() && shared.record.is_none() {
            return;
        }
        let passed = TrafficEvent {
            turn,
            peer,
            kind: what(),
        };
        if let Some(observer) = &mut shared.observer {
            observer(&passed);
        }
        if let Some(record) = &mut shared.record {
            record.push(passed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, TapState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct TapState {
    counts: HookCounts,
    record: Option<Vec<TrafficEvent>>,
    observer: Option<TrafficObserver>,
}

impl fmt::Debug for TapState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TapState")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}
