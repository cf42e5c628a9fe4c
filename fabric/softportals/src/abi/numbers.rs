//! Constants that differ between families.

use crate::{
    atomic::{AtomicDatatype, AtomicOperator},
    error::SoftError,
    event::{EventKind, NiFail},
    interface::AckRequest,
    options::{EntryOptions, MdOptions, TableOptions},
};

/// Constants of a family. Arrays are in the order of this crate's enumerations.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a table that profiles write out")]
pub struct AbiNumbers {
    /// Return codes.
    pub codes: AbiReturnCodes,
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
    /// Failures in the order of [`NiFail`].
    pub fails: [u32; 8],
    /// Event kinds in the order of [`EventKind`].
    pub kinds: [u32; 16],
    /// Acknowledgments in the order of [`AckRequest`].
    pub acks: [u32; 4],
    /// Operators in the order of [`AtomicOperator::ALL`].
    pub operators: [u32; 18],
    /// Datatypes in the order of [`AtomicDatatype::ALL`].
    pub datatypes: [u32; 14],
}

/// Return codes; `PTL_OK` is 0 in all families.
#[derive(Clone, Copy, Debug)]
#[expect(
    unnameable_types,
    reason = "the specification's names; part of the table that profiles write out"
)]
pub struct AbiReturnCodes {
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

impl AbiNumbers {
    pub(super) const fn code(&self, error: SoftError) -> i32 {
        let codes = &self.codes;
        match error {
            SoftError::ArgInvalid(_) => codes.arg_invalid,
            SoftError::InUse => codes.in_use,
            SoftError::ListTooLong => codes.list_too_long,
            SoftError::NoSpace => codes.no_space,
            SoftError::PidInUse => codes.pid_in_use,
            SoftError::PtFull => codes.pt_full,
            SoftError::PtEqNeeded => codes.pt_eq_needed,
            SoftError::PtInUse => codes.pt_in_use,
            SoftError::EqEmpty => codes.eq_empty,
            SoftError::CtNoneReached => codes.ct_none_reached,
            SoftError::Ignored => codes.map_again,
            SoftError::Interrupted => codes.interrupted,
            SoftError::Aborted => codes.aborted,
            SoftError::NoInit => codes.no_init,
            SoftError::Fail => codes.fail,
        }
    }

    pub(super) fn kind(&self, kind: EventKind) -> u32 {
        number(&KINDS, &self.kinds, kind)
    }

    pub(super) fn fail(&self, fail: NiFail) -> u32 {
        number(&FAILS, &self.fails, fail)
    }

    pub(super) fn operator(&self, operator: AtomicOperator) -> u32 {
        number(&AtomicOperator::ALL, &self.operators, operator)
    }

    pub(super) fn datatype(&self, datatype: AtomicDatatype) -> u32 {
        number(&AtomicDatatype::ALL, &self.datatypes, datatype)
    }

    pub(super) fn parse_ack(&self, number: u32) -> Result<AckRequest, SoftError> {
        meaning(&ACKS, &self.acks, number).ok_or(SoftError::ArgInvalid("ack_req"))
    }

    pub(super) fn parse_operator(&self, number: u32) -> Result<AtomicOperator, SoftError> {
        let operator = meaning(&AtomicOperator::ALL, &self.operators, number);
        operator.ok_or(SoftError::ArgInvalid("operation"))
    }

    pub(super) fn parse_datatype(&self, number: u32) -> Result<AtomicDatatype, SoftError> {
        let datatype = meaning(&AtomicDatatype::ALL, &self.datatypes, number);
        datatype.ok_or(SoftError::ArgInvalid("datatype"))
    }

    pub(super) fn parse_entry_options(&self, bits: u32) -> Result<EntryOptions, SoftError> {
        named(self.entry, bits & !self.iovec, EntryOptions::NONE)
    }

    pub(super) fn parse_md_options(&self, bits: u32) -> Result<MdOptions, SoftError> {
        named(self.md, bits & !self.iovec, MdOptions::NONE)
    }

    pub(super) fn parse_table_options(&self, bits: u32) -> Result<TableOptions, SoftError> {
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
fn named<T>(names: &[(u32, T)], bits: u32, none: T) -> Result<T, SoftError>
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
        Err(SoftError::ArgInvalid("options"))
    }
}

pub(super) const FAILS: [NiFail; 8] = [
    NiFail::Ok,
    NiFail::Undeliverable,
    NiFail::Dropped,
    NiFail::PtDisabled,
    NiFail::PermViolation,
    NiFail::OpViolation,
    NiFail::NoMatch,
    NiFail::Segv,
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

pub(super) const ACKS: [AckRequest; 4] = [
    AckRequest::No,
    AckRequest::Full,
    AckRequest::Count,
    AckRequest::Completed,
];
