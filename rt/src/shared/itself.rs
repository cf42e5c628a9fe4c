//! Whether a thread that goes to sleep would wait for this rank itself, for ever (see rt/src/engine/itself.rs).
//!
//! The engine knows of no thread of the application that has no operation in flight, and such a thread could still send. So the
//! wait ends only after a time in which nothing happened: a short one where the application has a single thread, a longer one
//! where the others slept all the time. While another thread runs it does not end.

use std::time::Duration;

use super::Shared;
use crate::{clock::Time, engine::Engine, threads::Others};

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

/// Other threads of the application have not run for so long.
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
        let wait = engine
            .core
            .own_wait(now, || (!in_threads).then(Others::now));
        let is_single = |others: &Others| sleeper == Sleeper::Application && others.are_none();
        let grace = match &wait.others {
            None => GRACE_OF_THREADS,
            Some(others) if is_single(others) => GRACE,
            Some(_) => GRACE_BESIDE_THREADS,
        };
        if now < wait.since + grace {
            return OwnWaits::Until(wait.since + grace);
        }
        if let Some(before) = &wait.others {
            let others = Others::now();
            if !others.slept_since(before) {
                (wait.since, wait.others) = (now, Some(others));
                return OwnWaits::Until(now + grace);
            }
        }
        engine.end_own_waits();
        OwnWaits::Ended
    }
}
