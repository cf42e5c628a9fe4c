//! Conversion between C structures and this crate's types.
#![expect(
    unsafe_code,
    reason = "a list of segments is an array of the caller's, given by pointer and length"
)]

use super::{
    FamilyAbi,
    layout::{PtlIovec, PtlMd, PtlMe, PtlNiLimits, PtlProcess},
};
use crate::{
    error::SoftError,
    event::{PhysicalId, SoftPeer},
    interface::{self, CtId, EqId, InitiatorFilter, NiConfig, SoftListEntry},
    limits,
    memory::{IovecSegment, SoftRegion},
    slab::GenerationalId,
};

/// Kind of an object, in the high bits of its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PtlHandleKind {
    Ni = 0,
    Eq = 1,
    Ct = 2,
    Md = 3,
    Entry = 4,
}

/// Packs an object into 32 bits: kind 3, interface 6, generation 8, slot 15.
pub(super) const fn pack(kind: PtlHandleKind, ni: u32, id: GenerationalId) -> u32 {
    (kind as u32) << 29
        | ni << 23
        | (id.generation & interface::GENERATIONS) << 15
        | id.slot & SLOTS
}

/// Returns the interface and the object, if the object is of this kind.
pub(super) fn unpack(kind: PtlHandleKind, bits: u32) -> Option<(u32, GenerationalId)> {
    let id = GenerationalId {
        slot: bits & SLOTS,
        generation: bits >> 15 & interface::GENERATIONS,
    };
    (bits >> 29 == kind as u32).then_some((bits >> 23 & INTERFACES, id))
}

/// Returns the interface of an object of any kind.
pub(super) const fn interface_of(bits: u32) -> Option<u32> {
    if bits >> 29 <= PtlHandleKind::Entry as u32 {
        Some(bits >> 23 & INTERFACES)
    } else {
        None
    }
}

/// Converts the handle of an optional queue. A queue of another interface is an error.
pub(super) fn eq<P: FamilyAbi>(handle: P::Handle, ni: u32) -> Result<Option<EqId>, SoftError> {
    let [none, _] = P::NONE;
    optional::<P>(PtlHandleKind::Eq, none, handle, ni, "eq_handle").map(|id| id.map(EqId))
}

/// Converts the handle of an optional counter. A counter of another interface is an error.
pub(super) fn ct<P: FamilyAbi>(handle: P::Handle, ni: u32) -> Result<Option<CtId>, SoftError> {
    let [_, none] = P::NONE;
    optional::<P>(PtlHandleKind::Ct, none, handle, ni, "ct_handle").map(|id| id.map(CtId))
}

fn optional<P: FamilyAbi>(
    kind: PtlHandleKind,
    none: P::Handle,
    handle: P::Handle,
    ni: u32,
    name: &'static str,
) -> Result<Option<GenerationalId>, SoftError> {
    if handle == none {
        return Ok(None);
    }
    match unpack(kind, P::bits(handle)) {
        Some((of, id)) if of == ni => Ok(Some(id)),
        _ => Err(SoftError::ArgInvalid(name)),
    }
}

/// # Safety
/// With `PTL_IOVEC`, `md.start` points to `md.length` segments.
pub(super) unsafe fn md<P: FamilyAbi>(
    md: &PtlMd<P::Handle>,
    ni: u32,
) -> Result<interface::MemoryDescriptor, SoftError> {
    // SAFETY: the caller's promise.
    let region = unsafe { region::<P>(md.start.cast(), md.length, md.options) }?;
    Ok(interface::MemoryDescriptor {
        region,
        options: P::NUMBERS.parse_md_options(md.options)?,
        eq: eq::<P>(md.eq_handle, ni)?,
        ct: ct::<P>(md.ct_handle, ni)?,
    })
}

/// # Safety
/// With `PTL_IOVEC`, `me.start` points to `me.length` segments.
pub(super) unsafe fn entry<P: FamilyAbi>(
    me: &PtlMe<P::Handle>,
    ni: u32,
    config: &NiConfig,
) -> Result<SoftListEntry, SoftError> {
    // SAFETY: the caller's promise.
    let region = unsafe { region::<P>(me.start.cast(), me.length, me.options) }?;
    Ok(SoftListEntry {
        region,
        ct: ct::<P>(me.ct_handle, ni)?,
        uid: (me.uid != UID_ANY).then_some(me.uid),
        options: P::NUMBERS.parse_entry_options(me.options)?,
        source: source::<P>(me.match_id, config),
        match_bits: me.match_bits,
        ignore_bits: me.ignore_bits,
        min_free: me.min_free,
    })
}

/// # Safety
/// With `PTL_IOVEC`, `start` points to `length` segments.
unsafe fn region<P: FamilyAbi>(
    start: *const PtlIovec,
    length: u64,
    options: u32,
) -> Result<SoftRegion, SoftError> {
    if options & P::NUMBERS.iovec == 0 {
        return Ok(SoftRegion::flat(start.expose_provenance() as u64, length));
    }
    let too_many = SoftError::ArgInvalid("length: more segments than max_iovecs");
    let count = usize::try_from(length).map_err(|_| too_many)?;
    if count > limits::NiLimits::MOST.max_iovecs as usize {
        return Err(too_many);
    }
    if start.is_null() && count > 0 {
        return Err(SoftError::ArgInvalid("start"));
    }
    let segment = |at: usize| {
        // SAFETY: the place is inside the array of `length` segments.
        let place = unsafe { start.add(at) };
        // SAFETY: as above.
        let iovec = unsafe { place.read_unaligned() };
        IovecSegment {
            start: iovec.base.expose_provenance() as u64,
            len: iovec.len,
        }
    };
    let segments: Vec<IovecSegment> = (0..count).map(segment).collect();
    SoftRegion::vector(&segments).ok_or(SoftError::ArgInvalid("start: longer than can be counted"))
}

fn source<P: FamilyAbi>(id: PtlProcess, config: &NiConfig) -> InitiatorFilter {
    let numbers = P::NUMBERS;
    match config {
        NiConfig {
            matching: false, ..
        } => InitiatorFilter::Any,
        NiConfig { logical: true, .. } if id.rank_or_nid == numbers.rank_any => {
            InitiatorFilter::Any
        }
        NiConfig { logical: true, .. } => InitiatorFilter::Rank(id.rank_or_nid),
        _ => InitiatorFilter::At {
            nid: (id.rank_or_nid != numbers.nid_any).then_some(id.rank_or_nid),
            pid: (id.pid != numbers.pid_any).then_some(id.pid),
        },
    }
}

pub(super) const fn process(peer: SoftPeer) -> PtlProcess {
    match peer {
        SoftPeer::Rank(rank) => PtlProcess {
            rank_or_nid: rank,
            pid: 0,
        },
        SoftPeer::At(address) => at(address),
    }
}

pub(super) const fn at(address: PhysicalId) -> PtlProcess {
    PtlProcess {
        rank_or_nid: address.nid,
        pid: address.pid,
    }
}

pub(super) const fn address(process: PtlProcess) -> PhysicalId {
    PhysicalId {
        nid: process.rank_or_nid,
        pid: process.pid,
    }
}

pub(super) fn from_limits(limits: &PtlNiLimits) -> limits::NiLimits {
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    limits::NiLimits {
        max_entries: count(limits.max_entries),
        max_unexpected_headers: count(limits.max_unexpected_headers),
        max_mds: count(limits.max_mds),
        max_eqs: count(limits.max_eqs),
        max_cts: count(limits.max_cts),
        max_pt_index: count(limits.max_pt_index),
        max_iovecs: count(limits.max_iovecs),
        max_list_size: count(limits.max_list_size),
        max_triggered_ops: count(limits.max_triggered_ops),
        max_msg_size: limits.max_msg_size,
        max_atomic_size: limits.max_atomic_size,
        max_fetch_atomic_size: limits.max_fetch_atomic_size,
        max_waw_ordered_size: limits.max_waw_ordered_size,
        max_war_ordered_size: limits.max_war_ordered_size,
        max_volatile_size: limits.max_volatile_size,
        max_eq_size: u64::MAX,
    }
}

pub(super) fn to_limits(limits: &limits::NiLimits, features: u32) -> PtlNiLimits {
    let count = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    PtlNiLimits {
        max_entries: count(limits.max_entries),
        max_unexpected_headers: count(limits.max_unexpected_headers),
        max_mds: count(limits.max_mds),
        max_cts: count(limits.max_cts),
        max_eqs: count(limits.max_eqs),
        max_pt_index: count(limits.max_pt_index),
        max_iovecs: count(limits.max_iovecs),
        max_list_size: count(limits.max_list_size),
        max_triggered_ops: count(limits.max_triggered_ops),
        max_msg_size: limits.max_msg_size,
        max_atomic_size: limits.max_atomic_size,
        max_fetch_atomic_size: limits.max_fetch_atomic_size,
        max_waw_ordered_size: limits.max_waw_ordered_size,
        max_war_ordered_size: limits.max_war_ordered_size,
        max_volatile_size: limits.max_volatile_size,
        features,
    }
}

const UID_ANY: u32 = u32::MAX;
const INTERFACES: u32 = 0x3f;
/// Mask of the slot bits, at least as large as every limit.
const SLOTS: u32 = 0x7fff;
