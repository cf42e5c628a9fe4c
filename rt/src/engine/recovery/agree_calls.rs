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
    contexts::ContextIds,
    proto::agree::{AgreeProtocol, AgreeValue, RankSet},
};

/// Calls that are not decided, or whose futures have not returned yet.
#[derive(Default)]
pub(super) struct AgreeCalls {
    all: VecDeque<AgreeCall>,
    /// Number of the next call; wraps around.
    number: u32,
    /// Communicators that were created although no future waits for them here.
    unwanted: Vec<AgreeValue>,
}

struct AgreeCall {
    number: u32,
    at: &'static Location<'static>,
    stage: AgreeStage,
    /// State of the creation, if the call creates a communicator.
    making: Option<CommCreation>,
    waker: Option<Waker>,
    /// True once the future was dropped.
    left: bool,
}

enum AgreeStage {
    /// Waits until it may begin with this value.
    Waits(AgreeValue),
    /// In progress in this round.
    InFlight(u32),
    Decided(AgreeValue),
}

/// Creation of a communicator of the surviving ranks.
pub(crate) struct CommCreation {
    contexts: Arc<ContextIds>,
    proposed: u32,
    /// Greatest proposed number, while the ranks check that it is new to all of them.
    agreed: Option<u32>,
}

impl AgreeCalls {
    /// Adds a call and returns its number.
    pub(super) fn begin(
        &mut self,
        machine: &mut AgreeProtocol,
        value: AgreeValue,
        making: Option<CommCreation>,
        at: &'static Location<'static>,
    ) -> u32 {
        let number = self.take_number();
        self.all.push_back(AgreeCall {
            number,
            at,
            stage: AgreeStage::Waits(value),
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
    fn go_on(&mut self, machine: &mut AgreeProtocol) {
        for call in &mut self.all {
            if let AgreeStage::Waits(value) = &call.stage {
                call.stage = AgreeStage::InFlight(machine.begin(value.clone()));
            }
            if call.making.is_some() && !call.is_decided() {
                return; // later calls cannot begin: the number of rounds that this one takes is not known
            }
        }
    }

    /// Handles the decision of a round. Returns the waker of the call that it completes.
    pub(super) fn decided(
        &mut self,
        machine: &mut AgreeProtocol,
        round: u32,
        value: AgreeValue,
    ) -> Option<Waker> {
        let is_it =
            |call: &AgreeCall| matches!(call.stage, AgreeStage::InFlight(of) if of == round);
        let at = self.all.iter().position(is_it)?;
        let call = &mut self.all[at];
        if let Some(next) = call.making.as_mut().and_then(|making| making.next(&value)) {
            call.stage = AgreeStage::InFlight(machine.begin(next));
            return None;
        }
        call.stage = AgreeStage::Decided(value);
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
    ) -> Option<(Poll<AgreeValue>, Option<Waker>)> {
        let at = self.place(number)?;
        if let AgreeStage::Decided(value) = &self.all[at].stage {
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
        if let Some(AgreeCall {
            stage: AgreeStage::Decided(value),
            making: Some(_),
            ..
        }) = call
            && value.flag
        {
            self.unwanted.push(value);
        }
    }

    /// Removes the communicators that this rank is in although it has no handle for them.
    pub(super) fn take_unwanted(&mut self) -> Vec<AgreeValue> {
        mem::take(&mut self.unwanted)
    }

    pub(super) fn take_wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.all.iter_mut().filter_map(|call| call.waker.take())
    }

    /// Returns the numbers and the source locations of the calls for which futures wait.
    pub(super) fn open(&self) -> impl Iterator<Item = (u32, &'static Location<'static>)> {
        let open = |call: &&AgreeCall| !(call.left || call.is_decided());
        let open = self.all.iter().filter(open);
        open.map(|call| (call.number, call.at))
    }

    fn place(&self, number: u32) -> Option<usize> {
        self.all.iter().position(|call| call.number == number)
    }
}

impl AgreeCall {
    const fn is_decided(&self) -> bool {
        matches!(self.stage, AgreeStage::Decided(_))
    }
}

impl CommCreation {
    /// Begins a creation, and returns it with this rank's first value.
    pub(super) fn new(contexts: &Arc<ContextIds>) -> (Self, AgreeValue) {
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
    fn next(&mut self, decided: &AgreeValue) -> Option<AgreeValue> {
        let Some(agreed) = self.agreed.take() else {
            let agreed = decided.number;
            self.agreed = Some(agreed);
            let is_new = self.contexts.accept(agreed, self.proposed);
            return Some(say(is_new, agreed));
        };
        let from = ContextIds::after(agreed).filter(|_| !decided.flag)?;
        self.proposed = self.contexts.propose(from);
        Some(say(true, self.proposed))
    }
}

fn say(flag: bool, number: u32) -> AgreeValue {
    AgreeValue {
        flag,
        number,
        down: RankSet::default(),
    }
}
