//! A library that refuses what it is asked, for tests.

use std::{
    ffi::c_int,
    sync::{Mutex, PoisonError},
};

use super::calls::Ni;

/// What calls say instead of being made.
#[derive(Debug, Default)]
pub(super) struct Trouble(Mutex<Vec<Refusal>>);

#[derive(Debug)]
struct Refusal {
    call: &'static str,
    code: c_int,
    /// Of so many calls the last one is made.
    made: u32,
    asked: u32,
}

impl Ni {
    /// From now on a call says this. Of every `made` the last one is made; for `None` none is.
    pub(super) fn refuse(&self, call: &'static str, code: &str, made: Option<u32>) {
        let names = self.profile().codes.names;
        let code = names.iter().find(|(_, name)| *name == code);
        let refusal = Refusal {
            call,
            code: code.expect("a code of the family").0,
            made: made.unwrap_or(u32::MAX),
            asked: 0,
        };
        self.trouble.0.lock().expect("no panic").push(refusal);
    }

    /// It does again what it is asked. How often it did not.
    pub(super) fn obey(&self) -> u32 {
        let refusals = std::mem::take(&mut *self.trouble.0.lock().expect("no panic"));
        let times = refusals
            .iter()
            .map(|refusal| refusal.asked - refusal.asked / refusal.made);
        times.sum()
    }
}

impl Trouble {
    /// What a call says instead of being made.
    pub(super) fn of(&self, call: &str) -> Option<c_int> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refusal = all.iter_mut().find(|refusal| refusal.call == call)?;
        refusal.asked += 1;
        let made = refusal.asked.is_multiple_of(refusal.made);
        (!made).then_some(refusal.code)
    }
}
