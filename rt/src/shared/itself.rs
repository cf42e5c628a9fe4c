//! Whether a thread that goes to sleep would wait for this rank itself, for ever (see rt/src/engine/itself.rs).
//!
//! The engine knows of no thread of the application that has no operation in flight, and such a thread could still send, when a
//! timer of another library wakes it, for example. So the wait ends only where the application has a single thread, after a time
//! in which nothing happened.

use std::time::Duration;

use super::Shared;
use crate::{clock::Time, engine::Engine, threads};

/// The thread that is about to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleeper {
    /// A thread of the application, in `block_on`.
    Application,
    /// A task on tokio, which drives the runtime: the threads that await operations are others.
    #[cfg(feature = "tokio")]
    Tokio,
    /// The agent: the application computes, or waits for something else, and may send afterwards.
    Agent,
}

/// What to do about operations that only this rank could complete.
pub(super) enum OwnWaits {
    /// The rank does not wait for itself.
    None,
    /// Look again at this time.
    Until(Time),
    /// Operations have ended.
    Ended,
}

/// What this rank has sent to itself may be on its way through an adapter for so long.
const GRACE: Duration = Duration::from_secs(1);

/// Ranks of tests are threads of one process, and which threads belong to which rank is not known.
const GRACE_OF_THREADS: Duration = Duration::from_secs(3);

/// Where the application has other threads, how long until it is seen whether they have ended.
const GRACE_BESIDE_THREADS: Duration = Duration::from_secs(10);

impl Shared {
    /// Ends operations that this rank waits for in vain, or says when to look again.
    #[inline]
    pub(super) fn look_at_own_waits(&self, engine: &mut Engine, sleeper: Sleeper) -> OwnWaits {
        if sleeper != Sleeper::Agent && engine.core.waits_for_itself() {
            self.wait_for_itself(engine, sleeper)
        } else {
            OwnWaits::None
        }
    }

    #[cold]
    fn wait_for_itself(&self, engine: &mut Engine, sleeper: Sleeper) -> OwnWaits {
        let now = self.clock.now();
        let in_threads = self.choices.boot == "threads" && sleeper == Sleeper::Application;
        let grace = if in_threads { GRACE_OF_THREADS } else { GRACE };
        let wait = engine.core.own_wait(now);
        if now < wait.since + grace {
            return OwnWaits::Until(wait.since + grace);
        }
        let is_alone = in_threads || sleeper == Sleeper::Application && threads::is_alone();
        if !is_alone {
            wait.since = now;
            return OwnWaits::Until(now + GRACE_BESIDE_THREADS);
        }
        engine.end_own_waits();
        OwnWaits::Ended
    }
}
