//! Detects a program that waits although nothing drives its runtime. Without this check it would hang silently.

use std::{
    io::Write,
    sync::{
        OnceLock, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use crate::{executor::without_turns, settings::ProgressMode, shared::RuntimeShared};

/// Checks periodically, once it is set up, whether anything drives a runtime that has no agent.
#[derive(Debug, Default)]
pub(crate) struct ProgressWatchdog {
    runtime: OnceLock<Weak<RuntimeShared>>,
    set_up: AtomicBool,
}

/// Time between two checks.
const PERIOD: Duration = Duration::from_millis(200);

/// Number of consecutive checks that find a waiting operation and no turn since the check before.
const LOOKS: u32 = 3;

impl ProgressWatchdog {
    /// Sets the runtime to check. Without this call, the watchdog is never set up.
    pub(crate) fn set_runtime(&self, runtime: Weak<RuntimeShared>) {
        let first = self.runtime.set(runtime);
        debug_assert!(first.is_ok(), "a runtime starts once");
    }

    /// Starts the checks, because an operation waits and nothing seems to drive the runtime.
    pub(crate) fn set_up(&self) {
        let Some(runtime) = self.runtime.get() else {
            return;
        };
        if self.set_up.swap(true, SeqCst) {
            return;
        }
        let runtime = runtime.clone();
        let thread = thread::Builder::new().name("ripstop-lookout".to_owned());
        if let Err(error) = thread.spawn(move || without_turns(|| look_out(&runtime))) {
            tracing::warn!(target: "ripstop::fabric", %error, "cannot start the thread that checks whether a runtime is driven");
        }
    }
}

fn look_out(runtime: &Weak<RuntimeShared>) {
    let (mut seen, mut looks) = (None, 0);
    loop {
        thread::park_timeout(PERIOD);
        let Some(shared) = runtime.upgrade() else {
            return;
        };
        if shared.agent.is_stopped() {
            return;
        }
        let turns = Some(shared.turns());
        let is_left = !shared.drivers.is_driven() && shared.has_waiters();
        looks = if is_left && seen == turns {
            looks + 1
        } else {
            0
        };
        seen = turns;
        if looks == LOOKS {
            drop(shared);
            return end_waits(runtime);
        }
    }
}

/// Fails all operations that wait for other ranks, and lets the others end. From here on, this thread drives the
/// runtime.
fn end_waits(runtime: &Weak<RuntimeShared>) {
    let mut is_told = false;
    while let Some(shared) = runtime
        .upgrade()
        .filter(|shared| !shared.agent.is_stopped())
    {
        if !is_told {
            is_told = true;
            let why = sentence(shared.settings.progress);
            let line = format!("ripstop: rank {}: {why}\n", shared.place.rank);
            // The operations report the same error, so a failed write is ignored.
            let _ = std::io::stderr().lock().write_all(line.as_bytes());
            shared.end_undriven(why);
        }
        if shared.agent_in_seat(shared.turns()).is_none() {
            thread::park_timeout(PERIOD);
        }
    }
}

fn sentence(progress: ProgressMode) -> &'static str {
    match progress {
        ProgressMode::Tokio => {
            "RIPSTOP_PROGRESS=tokio, and no task drives this runtime: spawn `runtime.drive_on_tokio()` on tokio, or wait in \
             `runtime.block_on`"
        }
        _ => {
            "RIPSTOP_PROGRESS=inline, and no thread drives this runtime: wait in `runtime.block_on`, or unset the variable, \
             so that an agent drives it"
        }
    }
}
