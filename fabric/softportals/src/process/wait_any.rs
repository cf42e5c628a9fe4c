//! Waiting for several interfaces at once.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use super::nic::SoftNic;
use crate::{
    counter::SoftCtValue, error::SoftError, interface::CtId, memory::AppMemory, transport,
};

/// Signal that each interface sets when it has news.
#[derive(Debug, Default)]
pub(super) struct ChangeSignal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl ChangeSignal {
    pub(super) fn set(&self) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for the signal and clears it. Returns false on timeout.
    fn wait(&self, timeout: Option<Duration>) -> bool {
        let told = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |told: &mut bool| !*told;
        let mut told = match timeout {
            None => self
                .changed
                .wait_while(told, waits)
                .unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = self.changed.wait_timeout_while(told, timeout, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        std::mem::take(&mut *told)
    }
}

/// Like [`SoftNic::wait_count`], for counters of several interfaces.
///
/// # Errors
/// Same errors as [`SoftNic::wait_count`].
pub fn wait_count_among<M: AppMemory + Send + 'static>(
    counters: &[(Arc<SoftNic<M>>, CtId, u64)],
    timeout: Option<Duration>,
) -> Result<(SoftCtValue, usize), SoftError> {
    let look = || {
        let mut counters = counters.iter().enumerate();
        counters.find_map(|(which, (nic, ct, threshold))| {
            nic.look_now(|interface| match interface.ct_get(*ct) {
                Ok(count) if !count.ends_wait(*threshold) => None,
                reached => Some(reached.map(|count| (count, which))),
            })
        })
    };
    let nics = counters.iter().map(|(nic, ..)| nic);
    wait(nics, timeout, look).unwrap_or(Err(SoftError::CtNoneReached))
}

fn wait<'a, M: AppMemory + Send + 'static, R>(
    nics: impl Iterator<Item = &'a Arc<SoftNic<M>>> + Clone,
    timeout: Option<Duration>,
    look: impl Fn() -> Option<Result<R, SoftError>>,
) -> Option<Result<R, SoftError>> {
    let found = look();
    if found.is_some() || timeout == Some(Duration::ZERO) {
        return found;
    }
    let signal = Arc::new(ChangeSignal::default());
    nics.clone().for_each(|nic| nic.listen(&signal));
    let start = transport::now();
    let found = loop {
        // News from before this thread listened is found by this look; later news sets the signal.
        if let Some(found) = look() {
            break Some(found.map_err(SoftError::while_waiting));
        }
        nics.clone().for_each(|nic| nic.sleep_soon());
        let passed = Duration::from_nanos(transport::now() - start);
        let left = timeout.map(|timeout| timeout.saturating_sub(passed));
        if left == Some(Duration::ZERO) {
            break None;
        }
        signal.wait(left);
    };
    nics.for_each(|nic| nic.unlisten(&signal));
    found
}
