//! Waiting for several interfaces at once.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use super::nic::Nic;
use crate::{counter::Count, error::Error, interface::CtId, memory::Memory, transport};

/// Signal that each interface sets when it has news.
#[derive(Debug, Default)]
pub(super) struct Signal {
    told: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    pub(super) fn tell(&self) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for the signal and clears it. Returns false on timeout.
    fn wait(&self, timeout: Option<Duration>) -> bool {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Like [`Nic::wait_count`], for counters of several interfaces.
///
/// # Errors
/// Same errors as [`Nic::wait_count`].
pub fn wait_count_among<M: Memory + Send + 'static>(
    counters: &[(Arc<Nic<M>>, CtId, u64)],
    timeout: Option<Duration>,
) -> Result<(Count, usize), Error> {
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
    wait(nics, timeout, look).unwrap_or(Err(Error::CtNoneReached))
}

fn wait<'a, M: Memory + Send + 'static, R>(
    nics: impl Iterator<Item = &'a Arc<Nic<M>>> + Clone,
    timeout: Option<Duration>,
    look: impl Fn() -> Option<Result<R, Error>>,
) -> Option<Result<R, Error>> {
    let found = look();
    if found.is_some() || timeout == Some(Duration::ZERO) {
        return found;
    }
    let signal = Arc::new(Signal::default());
    nics.clone().for_each(|nic| nic.listen(&signal));
    let start = transport::now();
    let found = loop {
        // News from before we listened is found by this look; later news sets the signal.
        if let Some(found) = look() {
            break Some(found.map_err(Error::while_waiting));
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
