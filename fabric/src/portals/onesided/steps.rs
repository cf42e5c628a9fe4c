//! Steps of a command: their kinds, their order, and the meaning of failures. Pure.

use super::super::{
    calls::PortalsCallError,
    event::PortalsOutcome,
    exports::{self, KeyOwner},
    match_bits,
};
use crate::{
    driver::{AtomicOp, CommandFailure, CommandToken, LocalRange},
    memory::RemoteRegion,
    offload::COUNTER_LEN,
};

/// A command in flight.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct PortalsRmaCommand {
    pub(in super::super) to: u32,
    /// Token of the command; `None` once its completion was reported.
    pub(super) token: Option<CommandToken>,
    pub(in super::super) op: PortalsRmaOp,
    pub(super) step: PortalsRmaStep,
}

#[derive(Clone, Copy, Debug)]
pub(in super::super) enum PortalsRmaOp {
    Put(LocalRange, RemoteRegion, Option<RemoteRegion>),
    Get(LocalRange, RemoteRegion),
    Atomic(AtomicOp, RemoteRegion),
    Count(u64, RemoteRegion),
}

/// Current step of a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum PortalsRmaStep {
    /// Check that a counter exists.
    Probe,
    /// Move the bytes from this offset on.
    Move(usize),
    /// Do the command's atomic.
    Combine,
    /// Add to a counter.
    Add,
    /// Check whether the owner of the counter waits for the new value.
    CheckWaiter,
    /// Count at a task counter, this many times.
    CountTask(u64),
}

impl PortalsRmaCommand {
    /// Returns true if nothing was done because the name belongs to other memory.
    pub(super) fn falls_beside(&self, moved: u64) -> bool {
        let named = match (self.step, self.op) {
            (
                PortalsRmaStep::Move(from),
                PortalsRmaOp::Put(local, key, _) | PortalsRmaOp::Get(local, key),
            ) => key.name().is_some() && from < local.len(),
            (PortalsRmaStep::Combine, PortalsRmaOp::Atomic(_, key)) => key.name().is_some(),
            _ => false,
        };
        named && moved == 0
    }

    /// Returns true if the step must use the first rail, which has the task lists and names.
    pub(super) fn is_of_lists(&self) -> bool {
        let key = match self.op {
            PortalsRmaOp::Put(_, key, _)
            | PortalsRmaOp::Get(_, key)
            | PortalsRmaOp::Atomic(_, key) => key,
            PortalsRmaOp::Count(_, cell) => cell,
        };
        match self.step {
            PortalsRmaStep::CountTask(_) => true,
            PortalsRmaStep::Move(_) | PortalsRmaStep::Combine => key.name().is_some(),
            PortalsRmaStep::Probe | PortalsRmaStep::Add | PortalsRmaStep::CheckWaiter => false,
        }
    }

    /// Returns true if the step may be repeated when it is unknown whether it was done.
    pub(super) const fn is_repeatable(&self) -> bool {
        matches!(
            self.step,
            PortalsRmaStep::Probe | PortalsRmaStep::CheckWaiter
        )
    }

    /// Returns true if the peer may have an entry for the step later.
    pub(super) fn waits_for_entry(&self) -> bool {
        match (self.step, self.op) {
            (PortalsRmaStep::CountTask(_), _) => true,
            (PortalsRmaStep::Move(_), PortalsRmaOp::Put(_, key, _) | PortalsRmaOp::Get(_, key)) => {
                key.name().is_some()
            }
            (PortalsRmaStep::Combine, PortalsRmaOp::Atomic(_, key)) => key.name().is_some(),
            _ => false,
        }
    }
}

impl PortalsRmaOp {
    /// Returns the first step, if all keys are valid as far as this rank can tell.
    pub(super) fn first(self, owner: KeyOwner) -> Result<PortalsRmaStep, CommandFailure> {
        let known = |key, len| exports::target(key, owner, len).ok_or(CommandFailure::BadRange);
        match self {
            Self::Put(from, into, None) => known(into, from.len()).map(|_| PortalsRmaStep::Move(0)),
            Self::Put(from, into, Some(cell)) if match_bits::count(cell, owner).is_some() => {
                known(into, from.len()).map(|_| PortalsRmaStep::Move(0))
            }
            Self::Put(from, into, Some(cell)) => {
                known(into, from.len())?;
                known(cell, COUNTER_LEN).map(|_| PortalsRmaStep::Probe)
            }
            Self::Get(into, from) => known(from, into.len()).map(|_| PortalsRmaStep::Move(0)),
            Self::Atomic(_, at) => {
                let (_, offset) = known(at, 8)?;
                let aligned = offset.is_multiple_of(8);
                aligned
                    .then_some(PortalsRmaStep::Combine)
                    .ok_or(CommandFailure::BadRange)
            }
            Self::Count(by, cell) if match_bits::count(cell, owner).is_some() => match by {
                0..=TASK_COUNT_MAX => Ok(PortalsRmaStep::CountTask(by)),
                _ => Err(CommandFailure::BadRange),
            },
            Self::Count(_, cell) => known(cell, COUNTER_LEN).map(|_| PortalsRmaStep::Add),
        }
    }

    /// Returns the counter of the command.
    pub(super) const fn cell(self) -> Option<RemoteRegion> {
        match self {
            Self::Put(_, _, cell) => cell,
            Self::Count(_, cell) => Some(cell),
            Self::Get(..) | Self::Atomic(..) => None,
        }
    }

    pub(super) const fn by(self) -> u64 {
        match self {
            Self::Count(by, _) => by,
            _ => 1,
        }
    }
}

pub(super) const fn is_add(step: PortalsRmaStep) -> bool {
    matches!(step, PortalsRmaStep::Add)
}

pub(super) const fn operand_of(op: AtomicOp) -> u64 {
    match op {
        AtomicOp::Add(n)
        | AtomicOp::And(n)
        | AtomicOp::Or(n)
        | AtomicOp::Xor(n)
        | AtomicOp::Max(n)
        | AtomicOp::Min(n)
        | AtomicOp::Swap(n)
        | AtomicOp::CompareSwap { new: n, .. } => n,
        AtomicOp::Fetch => 0,
    }
}

pub(in super::super) fn failure(end: PortalsOutcome) -> CommandFailure {
    match end {
        PortalsOutcome::Undeliverable => CommandFailure::PeerDown,
        PortalsOutcome::Dropped | PortalsOutcome::Forbidden => CommandFailure::BadRange,
        PortalsOutcome::Success
        | PortalsOutcome::PtDisabled
        | PortalsOutcome::Moved
        | PortalsOutcome::Other(_) => {
            let why = format!("the Portals adapter ended an operation with {end:?}");
            CommandFailure::Transport(std::io::Error::other(why))
        }
    }
}

/// Returns the failure for task lists and names when the first rail, which they need, no longer reaches the peer.
pub(in super::super) fn lists_lost() -> CommandFailure {
    let why = "the first rail to this peer has failed, and task lists and names can use no other: set \
               RIPSTOP_COLLECTIVES=messages, or leave that interface out of RIPSTOP_PORTALS_IFACES";
    CommandFailure::Transport(std::io::Error::other(why))
}

/// Returns the failure for steps that no lane can do.
pub(in super::super) fn unreached() -> CommandFailure {
    let why = "no working rail reaches the memory of this peer: check the links of both ranks";
    CommandFailure::Transport(std::io::Error::other(why))
}

/// Returns the error for an impossible step. Keys were checked before the first step, and commands take only their own steps.
pub(in super::super) fn no_step() -> PortalsCallError {
    PortalsCallError::Permanent("a step that its command does not have".to_owned())
}

/// Most that one command adds to a counter of task lists, whose adapter adds one for each message. No list counts further at a
/// time, and a peer that names such a counter for something else must not keep this rank busy.
const TASK_COUNT_MAX: u64 = 1 << 16;
