//! Constants that differ between families.

use crate::{
    atomic::{Datatype, Operator},
    error::Error,
    event::{EventKind, Fail},
    interface::Ack,
    options::{EntryOptions, MdOptions, TableOptions},
};

/// Constants of a family. Arrays are in the order of our enumerations.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a table that profiles write out")]
pub struct Numbers {
    /// Return codes.
    pub codes: Codes,
    /// `PTL_IFACE_DEFAULT`.
    pub iface_default: u32,
    /// `PTL_PID_ANY`.
    pub pid_any: u32,
    /// `PTL_PID_MAX`.
    pub pid_max: u32,
    /// `PTL_NID_ANY`.
    pub nid_any: u32,
    /// `PTL_RANK_ANY`.
    pub rank_any: u32,
    /// `PTL_NI_MATCHING`, `PTL_NI_NO_MATCHING`, `PTL_NI_LOGICAL`, `PTL_NI_PHYSICAL`.
    pub ni: [u32; 4],
    /// `PTL_TARGET_BIND_INACCESSIBLE`, `PTL_TOTAL_DATA_ORDERING` and, if the family names it, `PTL_COHERENT_ATOMICS`.
    pub features: u32,
    /// `PTL_IOVEC`.
    pub iovec: u32,
    /// Entry options, each with its bit.
    pub entry: &'static [(u32, EntryOptions)],
    /// Descriptor options, each with its bit.
    pub md: &'static [(u32, MdOptions)],
    /// Portal table options, each with its bit.
    pub table: &'static [(u32, TableOptions)],
    /// Failures in the order of [`Fail`].
    pub fails: [u32; 8],
    /// Event kinds in the order of [`EventKind`].
    pub kinds: [u32; 16],
    /// Acknowledgements in the order of [`Ack`].
    pub acks: [u32; 4],
    /// Operators in the order of [`Operator::ALL`].
    pub operators: [u32; 18],
    /// Datatypes in the order of [`Datatype::ALL`].
    pub datatypes: [u32; 14],
}

/// Return codes; `PTL_OK` is 0 in all families.
#[derive(Clone, Copy, Debug)]
#[expect(
    unnameable_types,
    reason = "the specification's names; part of the table that profiles write out"
)]
pub struct Codes {
    pub arg_invalid: i32,
    pub ct_none_reached: i32,
    pub eq_dropped: i32,
    pub eq_empty: i32,
    pub fail: i32,
    /// Code for setting the map twice. Families differ in its meaning as well as in its number.
    pub map_again: i32,
    pub in_use: i32,
    pub list_too_long: i32,
    pub no_init: i32,
    pub no_space: i32,
    pub pid_in_use: i32,
    pub pt_full: i32,
    pub pt_eq_needed: i32,
    pub pt_in_use: i32,
    pub interrupted: i32,
    /// Code of a wait ended by `PtlAbort`. In a family without that call, the code for an awaited object that was freed.
    pub aborted: i32,
}

impl Numbers {
    pub(super) const fn code(&self, error: Error) -> i32 {
        let codes = &self.codes;
        match error {
            Error::ArgInvalid(_) => codes.arg_invalid,
            Error::InUse => codes.in_use,
            Error::ListTooLong => codes.list_too_long,
            Error::NoSpace => codes.no_space,
            Error::PidInUse => codes.pid_in_use,
            Error::PtFull => codes.pt_full,
            Error::PtEqNeeded => codes.pt_eq_needed,
            Error::PtInUse => codes.pt_in_use,
            Error::EqEmpty => codes.eq_empty,
            Error::CtNoneReached => codes.ct_none_reached,
            Error::Ignored => codes.map_again,
            Error::Interrupted => codes.interrupted,
            Error::Aborted => codes.aborted,
            Error::NoInit => codes.no_init,
            Error::Fail => codes.fail,
        }
    }

    pub(super) fn kind(&self, kind: EventKind) -> u32 {
        number(&KINDS, &self.kinds, kind)
    }

    pub(super) fn fail(&self, fail: Fail) -> u32 {
        number(&FAILS, &self.fails, fail)
    }

    pub(super) fn operator(&self, operator: Operator) -> u32 {
        number(&Operator::ALL, &self.operators, operator)
    }

    pub(super) fn datatype(&self, datatype: Datatype) -> u32 {
        number(&Datatype::ALL, &self.datatypes, datatype)
    }

    pub(super) fn parse_ack(&self, number: u32) -> Result<Ack, Error> {
        meaning(&ACKS, &self.acks, number).ok_or(Error::ArgInvalid("ack_req"))
    }

    pub(super) fn parse_operator(&self, number: u32) -> Result<Operator, Error> {
        let operator = meaning(&Operator::ALL, &self.operators, number);
        operator.ok_or(Error::ArgInvalid("operation"))
    }

    pub(super) fn parse_datatype(&self, number: u32) -> Result<Datatype, Error> {
        let datatype = meaning(&Datatype::ALL, &self.datatypes, number);
        datatype.ok_or(Error::ArgInvalid("datatype"))
    }

    pub(super) fn parse_entry_options(&self, bits: u32) -> Result<EntryOptions, Error> {
        named(self.entry, bits & !self.iovec, EntryOptions::NONE)
    }

    pub(super) fn parse_md_options(&self, bits: u32) -> Result<MdOptions, Error> {
        named(self.md, bits & !self.iovec, MdOptions::NONE)
    }

    pub(super) fn parse_table_options(&self, bits: u32) -> Result<TableOptions, Error> {
        named(self.table, bits, TableOptions::NONE)
    }
}

fn number<T: PartialEq, const N: usize>(all: &[T; N], numbers: &[u32; N], value: T) -> u32 {
    let at = all.iter().position(|one| *one == value);
    at.map_or(u32::MAX, |at| numbers[at])
}

fn meaning<T: Copy, const N: usize>(all: &[T; N], numbers: &[u32; N], number: u32) -> Option<T> {
    let at = numbers.iter().position(|one| *one == number)?;
    all.get(at).copied()
}

/// Returns the options of all bits, or an error for a bit without a name.
fn named<T>(names: &[(u32, T)], bits: u32, none: T) -> Result<T, Error>
where
    T: Copy + std::ops::BitOr<Output = T>,
{
    let set = names.iter().filter(|(bit, _)| bits & bit != 0);
    let (known, options) = set.fold((0, none), |(known, options), (bit, option)| {
        (known | bit, options | *option)
    });
    if known == bits {
        Ok(options)
    } else {
        Err(Error::ArgInvalid("options"))
    }
}

pub(super) const FAILS: [Fail; 8] = [
    Fail::Ok,
    Fail::Undeliverable,
    Fail::Dropped,
    Fail::PtDisabled,
    Fail::PermViolation,
    Fail::OpViolation,
    Fail::NoMatch,
    Fail::Segv,
];

pub(super) const KINDS: [EventKind; 16] = [
    EventKind::Get,
    EventKind::GetOverflow,
    EventKind::Put,
    EventKind::PutOverflow,
    EventKind::Atomic,
    EventKind::AtomicOverflow,
    EventKind::FetchAtomic,
    EventKind::FetchAtomicOverflow,
    EventKind::Reply,
    EventKind::Send,
    EventKind::Ack,
    EventKind::PtDisabled,
    EventKind::Link,
    EventKind::AutoUnlink,
    EventKind::AutoFree,
    EventKind::Search,
];

pub(super) const ACKS: [Ack; 4] = [Ack::No, Ack::Full, Ack::Count, Ack::Completed];
