//! Detects that a thread that is about to sleep would wait for this rank itself forever (see rt/src/engine/self_deadlock.rs).
//!
//! The engine does not know application threads without an operation in flight. Such a thread could still send, for
//! example when a timer of another library wakes it. So the wait ends only if the application has a single thread,
//! after some time without any event.

use std::time::Duration;

use super::RuntimeShared;
use crate::{clock::ClockTime, engine::Engine, threads};

/// The thread that is about to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SleeperKind {
    /// An application thread in `block_on`.
    Application,
    /// A task on tokio that drives the runtime. Other threads await the operations.
    #[cfg(feature = "tokio")]
    Tokio,
    /// The agent. The application computes, or waits for something else, and may send afterwards.
    Agent,
}

/// Action for operations that only this rank could complete.
pub(super) enum OwnWaits {
    /// No action: the rank does not wait for itself.
    None,
    /// Check again at this time.
    Until(ClockTime),
    /// Operations were failed.
    Ended,
}

/// Time that a message from this rank to itself may take through an adapter.
const GRACE: Duration = Duration::from_secs(1);

/// Same for tests whose ranks are threads of one process, because it is not known which threads belong to which rank.
const GRACE_OF_THREADS: Duration = Duration::from_secs(3);

/// Time until the next check, if the application has other threads that may end.
const GRACE_BESIDE_THREADS: Duration = Duration::from_secs(10);

impl RuntimeShared {
    /// Fails operations that this rank waits for without hope, or returns when to check again.
    #[inline]
    pub(super) fn check_self_deadlock(
        &self,
        engine: &mut Engine,
        sleeper: SleeperKind,
    ) -> OwnWaits {
        if sleeper != SleeperKind::Agent && engine.core.waits_for_itself() {
            self.wait_for_itself(engine, sleeper)
        } else {
            OwnWaits::None
        }
    }

    #[cold]
    fn wait_for_itself(&self, engine: &mut Engine, sleeper: SleeperKind) -> OwnWaits {
        let now = self.clock.now();
        let in_threads = self.choices.boot == "threads" && sleeper == SleeperKind::Application;
        let grace = if in_threads { GRACE_OF_THREADS } else { GRACE };
        let wait = engine.core.self_deadlock(now);
        if now < wait.since + grace {
            return OwnWaits::Until(wait.since + grace);
        }
        let is_alone = in_threads || sleeper == SleeperKind::Application && threads::is_alone();
        if !is_alone {
            wait.since = now;
            return OwnWaits::Until(now + GRACE_BESIDE_THREADS);
        }
        engine.fail_self_deadlock();
        OwnWaits::Ended
    }
}
