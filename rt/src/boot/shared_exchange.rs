//! An exchange that several owners use, one after the other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{BootError, Exchange, FailureReporter};

#[derive(Clone, Debug)]
pub(super) struct SharedExchange(pub(super) Arc<Mutex<Box<dyn Exchange>>>);

impl SharedExchange {
    /// Locks the exchange. A panic of another user leaves it in the same state as an error, so poisoning is ignored.
    fn exchange(&self) -> MutexGuard<'_, Box<dyn Exchange>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exchange for SharedExchange {
    fn put(&mut self, key: &str, value: &str) -> Result<(), BootError> {
        self.exchange().put(key, value)
    }

    fn fence(&mut self) -> Result<(), BootError> {
        self.exchange().fence()
    }

    fn get(&mut self, from: u32, key: &str) -> Result<Option<String>, BootError> {
        self.exchange().get(from, key)
    }

    fn settle(&mut self) -> Result<(), BootError> {
        self.exchange().settle()
    }

    fn job_name(&self) -> Option<String> {
        self.exchange().job_name()
    }

    fn reporter(&self) -> Option<FailureReporter> {
        self.exchange().reporter()
    }

    fn abort(&mut self, code: i32, why: &str) {
        self.exchange().abort(code, why);
    }

    fn finalize(&mut self) -> Result<(), BootError> {
        self.exchange().finalize()
    }
}
