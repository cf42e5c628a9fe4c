//! What the calls answer when they do not do what they were asked.

use std::fmt;

/// Why a call did nothing. The C interfaces give each its own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The caller: this argument is wrong.
    ArgInvalid(&'static str),
    /// Something still uses it: wait for the operations under way and call again.
    InUse,
    /// The list has as many entries as [`Limits::max_list_size`](crate::Limits::max_list_size) allows.
    ListTooLong,
    /// As many as the interface's limits allow are there.
    NoSpace,
    /// Another interface of this machine has the process id that was asked for.
    PidInUse,
    /// Every portal table entry is taken.
    PtFull,
    /// Flow control reports through an event queue: give one.
    PtEqNeeded,
    /// The portal table entry that was asked for is taken, or its lists are not empty.
    PtInUse,
    /// No event is there.
    EqEmpty,
    /// No counter has reached its threshold.
    CtNoneReached,
    /// The map is set already, or this interface has none.
    Ignored,
    /// What was waited for was freed meanwhile.
    Interrupted,
    /// All waiting was ended, now and later.
    Aborted,
    /// The library is not initialised, or no longer.
    NoInit,
    /// The machine: a system call failed.
    Fail,
}

impl Error {
    /// What is wrong with what was right before a wait was taken away meanwhile.
    pub(crate) const fn while_waiting(self) -> Self {
        match self {
            Self::ArgInvalid(_) => Self::Interrupted,
            other => other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::ArgInvalid(argument) => return write!(f, "invalid argument: {argument}"),
            Self::InUse => "still in use: wait for the operations under way",
            Self::ListTooLong => "the list is as long as max_list_size allows",
            Self::NoSpace => "as many as the interface's limits allow are there",
            Self::PidInUse => "another interface has this process id",
            Self::PtFull => "every portal table entry is taken",
            Self::PtEqNeeded => "flow control needs an event queue",
            Self::PtInUse => "the portal table entry is taken, or has list entries",
            Self::EqEmpty => "no event is there",
            Self::CtNoneReached => "no counter has reached its threshold",
            Self::Ignored => "the map is set already, or the interface has none",
            Self::Interrupted => "what was waited for was freed",
            Self::Aborted => "waiting was aborted",
            Self::NoInit => "the library is not initialised",
            Self::Fail => "a system call failed",
        };
        f.write_str(what)
    }
}

impl std::error::Error for Error {}
