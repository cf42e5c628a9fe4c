//! The calls of agreements on one communicator, in their order. An agreement is one round; to make a communicator takes two,
//! and two more as long as its number is not new to all.
//!
//! Rounds have the same numbers on all ranks because all call in the same order. So what is called while a communicator is made
//! waits until that is, and nothing waits for futures to be polled.

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

/// Calls whose futures have not returned, or that are not over.
#[derive(Default)]
pub(super) struct Calls {
    all: VecDeque<Call>,
    /// Of the next one; goes round.
    number: u32,
    /// Communicators that were made and that nobody waits for here.
    unwanted: Vec<Value>,
}

struct Call {
    number: u32,
    at: &'static Location<'static>,
    stage: Stage,
    /// Where it makes a communicator.
    making: Option<Making>,
    waker: Option<Waker>,
    /// Nobody waits for it.
    left: bool,
}

enum Stage {
    /// What it brings in, as soon as it may begin.
    Waits(Value),
    /// Of this round.
    UnderWay(u32),
    Decided(Value),
}

/// A communicator of those that live.
pub(crate) struct Making {
    contexts: Arc<Contexts>,
    proposed: u32,
    /// The greatest proposal, while ranks settle whether it is new to all.
    agreed: Option<u32>,
}

impl Calls {
    /// Another one. Returns its number.
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

    /// The number of another call; of none, unless it begins.
    pub(super) fn take_number(&mut self) -> u32 {
        let number = self.number;
        self.number = number.wrapping_add(1);
        number
    }

    /// Begins what may begin.
    fn go_on(&mut self, machine: &mut Agree) {
        for call in &mut self.all {
            if let Stage::Waits(value) = &call.stage {
                call.stage = Stage::UnderWay(machine.begin(value.clone()));
            }
            if call.making.is_some() && !call.is_decided() {
                return; // nobody knows how many rounds it takes
            }
        }
    }

    /// A round is decided. Returns whom that wakes.
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

    /// What was decided, and a waker of another future. `None`: there is no such call.
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

    /// The future is gone; the call goes on.
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

    /// Communicators that this rank is in although nobody has them here.
    pub(super) fn take_unwanted(&mut self) -> Vec<Value> {
        mem::take(&mut self.unwanted)
    }

    pub(super) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.all.iter_mut().filter_map(|call| call.waker.take())
    }

    /// Where those were called that futures wait for.
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
    /// One of this rank's, and what to say first.
    pub(super) fn new(contexts: &Arc<Contexts>) -> (Self, Value) {
        let proposed = contexts.propose(2);
        let making = Self {
            contexts: Arc::clone(contexts),
            proposed,
            agreed: None,
        };
        (making, say(true, proposed))
    }

    /// What to say after this was decided, unless that is the end: a number that is new to all, or that there is none.
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
