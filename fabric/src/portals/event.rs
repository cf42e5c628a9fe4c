//! Events of the library.

use super::{
    profile::{FailNumbers, LibraryProfile, StructLayout},
    struct_buffer::StructBuffer,
};

/// A node and a process on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PortalsProcess {
    pub(super) nid: u32,
    pub(super) pid: u32,
}

/// An event taken from its queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct RailEvent {
    pub(super) event: PortalsEvent,
    /// Rail of the queue.
    pub(super) rail: u32,
    /// True if events were lost before this one.
    pub(super) dropped: bool,
}

/// The fields of a full event that this driver uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortalsEvent {
    pub(super) kind: PortalsEventKind,
    pub(super) end: PortalsOutcome,
    pub(super) start: u64,
    pub(super) user: u64,
    pub(super) header: u64,
    pub(super) match_bits: u64,
    pub(super) mlength: u64,
    /// Length in bytes that the sender requested.
    pub(super) rlength: u64,
    pub(super) initiator: PortalsProcess,
    pub(super) pt: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortalsEventKind {
    Put,
    Reply,
    Ack,
    /// The data of an operation has left, or never will.
    Send,
    /// An operation has failed and posts no other event (third BXI only).
    Error,
    PtDisabled,
    Other(u32),
}

/// Outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortalsOutcome {
    Success,
    /// The target cannot be reached.
    Undeliverable,
    /// No entry at the target takes the operation now.
    Dropped,
    /// The target takes no operations on this table entry now.
    PtDisabled,
    /// The entry does not permit the operation.
    Forbidden,
    /// The memory has moved to another table entry.
    Moved,
    Other(u32),
}

impl PortalsEvent {
    pub(super) fn read(bytes: &StructBuffer, profile: &LibraryProfile) -> Self {
        let layout = &profile.layout.event;
        let small = |at| u32::try_from(bytes.get(at, layout.enum_len)).unwrap_or(u32::MAX);
        Self {
            kind: PortalsEventKind::of(small(layout.kind)),
            end: profile.fails.meaning(small(layout.fail)),
            start: bytes.get(0, 8),
            user: bytes.get(8, 8),
            header: bytes.get(16, 8),
            match_bits: bytes.get(layout.match_bits, 8),
            mlength: bytes.get(layout.mlength, 8),
            // All families place it just before the other length.
            rlength: bytes.get(layout.mlength - 8, 8),
            initiator: PortalsProcess::read(bytes, layout.initiator, &profile.layout),
            pt: u32::try_from(bytes.get(layout.pt_index, 4)).unwrap_or(u32::MAX),
        }
    }
}

impl PortalsEventKind {
    /// Returns the kind of an event number. The first twelve numbers agree in all families, and 0x10 exists in one of them only.
    const fn of(number: u32) -> Self {
        match number {
            2 => Self::Put,
            8 => Self::Reply,
            9 => Self::Send,
            0x10 => Self::Error,
            0xa => Self::Ack,
            0xb => Self::PtDisabled,
            other => Self::Other(other),
        }
    }
}

impl FailNumbers {
    const fn meaning(&self, number: u32) -> PortalsOutcome {
        if number == 0 {
            PortalsOutcome::Success
        } else if number == self.undeliverable {
            PortalsOutcome::Undeliverable
        } else if number == self.dropped || number == self.no_match {
            PortalsOutcome::Dropped
        } else if number == self.pt_disabled {
            PortalsOutcome::PtDisabled
        } else if number == self.op_violation {
            // All other entries admit every operation that matches them, so only the redirecting entry causes this failure.
            PortalsOutcome::Moved
        } else if number == self.perm_violation || number == self.segv {
            PortalsOutcome::Forbidden
        } else {
            PortalsOutcome::Other(number)
        }
    }
}

impl PortalsProcess {
    pub(super) fn read(bytes: &StructBuffer, at: usize, layout: &StructLayout) -> Self {
        let number = |at, len| u32::try_from(bytes.get(at, len)).unwrap_or(u32::MAX);
        Self {
            nid: number(at, 4),
            pid: number(at + 4, layout.pid_len),
        }
    }

    pub(super) fn write(self, bytes: &mut StructBuffer, at: usize, layout: &StructLayout) {
        bytes.put(at, 4, self.nid.into());
        bytes.put(at + 4, layout.pid_len, self.pid.into());
    }

    /// Returns the process in the form in which it is passed to functions.
    pub(super) const fn bits(self) -> u64 {
        (self.nid as u64) | (self.pid as u64) << 32
    }
}
