//! Calls of agreements on one communicator, in their order.
//!
//! An agreement takes one round. Creating a communicator takes two, and two more each time its number is in use on some rank.
//!
//! All ranks call in the same order, so rounds have the same numbers everywhere. Calls made while a communicator is being created
//! wait until it is complete. No call needs its future to be polled in order to advance.

use std::{
    collections::VecDeque,
    mem,
    panic::Location,
    sync::Arc,
    task::{Poll, Waker},
};

use super::remember;
use crate::{
    contexts::Contexts,
    proto::agree::{Agree, Ranks, Value},
};

/// Calls that are not decided, or whose futures have not returned yet.
#[derive(Default)]
pub(super) struct Calls {
    all: VecDeque<Call>,
    /// Number of the next call; wraps around.
    number: u32,
    /// Communicators that were created although no future waits for them here.
    unwanted: Vec<Value>,
}

struct Call {
    number: u32,
    at: &'static Location<'static>,
    stage: Stage,
    /// State of the creation, if the call creates a communicator.
    making: Option<Making>,
    waker: Option<Waker>,
    /// True once the future was dropped.
    left: bool,
}

enum Stage {
    /// Waits until it may begin with this value.
    Waits(Value),
    /// In progress in this round.
    UnderWay(u32),
    Decided(Value),
}

/// Creation of a communicator of the surviving ranks.
pub(crate) struct Making {
    contexts: Arc<Contexts>,
    proposed: u32,
    /// Greatest proposed number, while the ranks check that it is new to all of them.
    agreed: Option<u32>,
}

impl Calls {
    /// Adds a call and returns its number.
    pub(super) fn begin(
        &mut self,
        machine: &mut Agree,
        value: Value,
        making: Option<Making>,
        at: &'static Location<'static>,
    ) -> u32 {
        let number = self.take_number();
        self.all.push_back(Call {
            number,
            at,
            stage: Stage::Waits(value),
            making,
            waker: None,
            left: false,
        });
        self.go_on(machine);
        number
    }

    /// Returns the number of a new call, without adding a call.
    pub(super) fn take_number(&mut self) -> u32 {
        let number = self.number;
        self.number = number.wrapping_add(1);
        number
    }

    /// Begins the calls that may begin.
    fn go_on(&mut self, machine: &mut Agree) {
        for call in &mut self.all {
            if let Stage::Waits(value) = &call.stage {
                call.stage = Stage::UnderWay(machine.begin(value.clone()));
            }
            if call.making.is_some() && !call.is_decided() {
                return; // later calls cannot begin: the number of rounds that this one takes is not known
            }
        }
    }

    /// Handles the decision of a round. Returns the waker of the call that it completes.
    pub(super) fn decided(
        &mut self,
        machine: &mut Agree,
        round: u32,
        value: Value,
    ) -> Option<Waker> {
        let is_it = |call: &Call| matches!(call.stage, Stage::UnderWay(of) if of == round);
        let at = self.all.iter().position(is_it)?;
        let call = &mut self.all[at];
        if let Some(next) = call.making.as_mut().and_then(|making| making.next(&value)) {
            call.stage = Stage::UnderWay(machine.begin(next));
            return None;
        }
        call.stage = Stage::Decided(value);
        let waker = call.waker.take();
        if call.left {
            self.give_up(at);
        }
        self.go_on(machine);
        waker
    }

    /// Returns the decision, and the waker of another future that this one replaces. Returns `None` if there is no such call.
    pub(super) fn poll(
        &mut self,
        number: u32,
        waker: &Waker,
    ) -> Option<(Poll<Value>, Option<Waker>)> {
        let at = self.place(number)?;
        if let Stage::Decided(value) = &self.all[at].stage {
            let value = value.clone();
            self.all.remove(at);
            return Some((Poll::Ready(value), None));
        }
        Some((Poll::Pending, remember(&mut self.all[at].waker, waker)))
    }

    /// Drops the future of a call. The call continues.
    pub(super) fn leave(&mut self, number: u32) -> Option<Waker> {
        let at = self.place(number)?;
        let call = &mut self.all[at];
        call.left = true;
        let waker = call.waker.take();
        if call.is_decided() {
            self.give_up(at);
        }
        waker
    }

    fn give_up(&mut self, at: usize) {
        let call = self.all.remove(at);
        if let Some(Call {
            stage: Stage::Decided(value),
            making: Some(_),
            ..
        }) = call
            && value.flag
        {
            self.unwanted.push(value);
        }
    }

    /// Removes the communicators that this rank is in although it has no handle for them.
    pub(super) fn take_unwanted(&mut self) -> Vec<Value> {
        mem::take(&mut self.unwanted)
    }

    pub(super) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.all.iter_mut().filter_map(|call| call.waker.take())
    }

    /// Returns the source locations of the calls for which futures wait.
    pub(super) fn open(&self) -> impl Iterator<Item = &'static Location<'static>> {
        let open = |call: &&Call| !(call.left || call.is_decided());
        self.all.iter().filter(open).map(|call| call.at)
    }

    fn place(&self, number: u32) -> Option<usize> {
        self.all.iter().position(|call| call.number == number)
    }
}

impl Call {
    const fn is_decided(&self) -> bool {
        matches!(self.stage, Stage::Decided(_))
    }
}

impl Making {
    /// Begins a creation, and returns it with this rank's first value.
    pub(super) fn new(contexts: &Arc<Contexts>) -> (Self, Value) {
        let proposed = contexts.propose(2);
        let making = Self {
            contexts: Arc::clone(contexts),
            proposed,
            agreed: None,
        };
        (making, say(true, proposed))
    }

    /// Returns the value for the next round, or `None` if the last one was final: the number is new to all ranks, or no number is
    /// left.
    fn next(&mut self, decided: &Value) -> Option<Value> {
        let Some(agreed) = self.agreed.take() else {
            let agreed = decided.number;
            self.agreed = Some(agreed);
            let is_new = self.contexts.accept(agreed, self.proposed);
            return Some(say(is_new, agreed));
        };
        let from = Contexts::after(agreed).filter(|_| !decided.flag)?;
        self.proposed = self.contexts.propose(from);
        Some(say(true, self.proposed))
    }
}

fn say(flag: bool, number: u32) -> Value {
    Value {
        flag,
        number,
        down: Ranks::default(),
    }
}
