//! Simulated refusals of library calls, for tests.

use std::{
    ffi::c_int,
    sync::{Mutex, PoisonError},
};

use super::calls::PortalsNi;

/// Calls to refuse.
#[derive(Debug, Default)]
pub(super) struct RefusalInjector(Mutex<Vec<InjectedRefusal>>);

#[derive(Debug)]
struct InjectedRefusal {
    call: &'static str,
    code: c_int,
    /// One of this many calls is made, the last one.
    made: u32,
    asked: u32,
}

impl PortalsNi {
    /// Refuses a call with this code from now on. If `made` is given, the last of every `made` calls is made nevertheless.
    pub(super) fn refuse(&self, call: &'static str, code: &str, made: Option<u32>) {
        let names = self.profile().codes.names;
        let code = names.iter().find(|(_, name)| *name == code);
        let refusal = InjectedRefusal {
            call,
            code: code.expect("a code of the family").0,
            made: made.unwrap_or(u32::MAX),
            asked: 0,
        };
        self.trouble.0.lock().expect("no panic").push(refusal);
    }

    /// Stops refusing calls. Returns the number of calls refused.
    pub(super) fn obey(&self) -> u32 {
        let refusals = std::mem::take(&mut *self.trouble.0.lock().expect("no panic"));
        let times = refusals
            .iter()
            .map(|refusal| refusal.asked - refusal.asked / refusal.made);
        times.sum()
    }
}

impl RefusalInjector {
    /// Returns the code with which a call is refused, or `None` to make it.
    pub(super) fn of(&self, call: &str) -> Option<c_int> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refusal = all.iter_mut().find(|refusal| refusal.call == call)?;
        refusal.asked += 1;
        let made = refusal.asked.is_multiple_of(refusal.made);
        (!made).then_some(refusal.code)
    }
}
