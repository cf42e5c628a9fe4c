//! Errors of the calls.

use std::fmt;

/// Reason why a call did nothing. The C interfaces map each reason to a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SoftError {
    /// An argument is wrong.
    ArgInvalid(&'static str),
    /// The object is in use: wait for the operations in flight, then retry.
    InUse,
    /// The list has as many entries as [`NiLimits::max_list_size`](crate::NiLimits::max_list_size) allows.
    ListTooLong,
    /// The interface already has as many objects of this kind as its limits allow.
    NoSpace,
    /// Another interface of this machine has the requested process id.
    PidInUse,
    /// Every portal table entry is allocated.
    PtFull,
    /// Flow control reports through an event queue, and none was given.
    PtEqNeeded,
    /// The requested portal table entry is allocated, or its lists are not empty.
    PtInUse,
    /// The queue holds no event.
    EqEmpty,
    /// No counter has reached its threshold.
    CtNoneReached,
    /// The map is set already, or this interface has none.
    Ignored,
    /// The awaited object was freed meanwhile.
    Interrupted,
    /// The application aborted all waits, current and future.
    Aborted,
    /// The library is not initialized, or was finalized.
    NoInit,
    /// A system call failed.
    Fail,
}

impl SoftError {
    /// Converts an error found during a wait: an argument that was valid at the start was freed meanwhile.
    pub(crate) const fn while_waiting(self) -> Self {
        match self {
            Self::ArgInvalid(_) => Self::Interrupted,
            other => other,
        }
    }
}

impl fmt::Display for SoftError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::ArgInvalid(argument) => return write!(f, "invalid argument: {argument}"),
            Self::InUse => "still in use: wait until the operations in flight have completed",
            Self::ListTooLong => "the list is as long as max_list_size allows",
            Self::NoSpace => {
                "the interface's limit for such objects is reached: release some of them, or raise the limit"
            }
            Self::PidInUse => "the process id is in use by another interface",
            Self::PtFull => "every portal table entry is in use",
            Self::PtEqNeeded => "flow control needs an event queue",
            Self::PtInUse => "the portal table entry is in use, or still has list entries",
            Self::EqEmpty => "the event queue is empty",
            Self::CtNoneReached => "no counter has reached its threshold",
            Self::Ignored => "the map is already set, or interfaces of this kind have no map",
            Self::Interrupted => "the object that the call waited for was freed",
            Self::Aborted => "waiting was aborted",
            Self::NoInit => "the library is not initialized",
            Self::Fail => "a system call failed",
        };
        f.write_str(what)
    }
}

impl std::error::Error for SoftError {}
