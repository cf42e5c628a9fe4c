//! Numbers and layouts of Bull's published software Portals, which are close to those of BXI.

use std::{ffi::CStr, mem::offset_of};

use super::{
    FamilyAbi,
    layout::{PtlMe, PtlProcess},
    numbers::{AbiNumbers, AbiReturnCodes},
};
use crate::{
    abi::convert,
    event::{EntryList, FullEvent},
    interface::LibraryFamily,
    options::{EntryOptions, MdOptions, TableOptions},
};

/// Bull's portails4.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "a name for types and constants")]
pub struct Portails4;

/// `ptl_event_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(unnameable_types, reason = "named by the profile")]
pub struct Portails4Event {
    start: u64,
    user_ptr: u64,
    hdr_data: u64,
    match_bits: u64,
    rlength: u64,
    mlength: u64,
    remote_offset: u64,
    uid: u32,
    initiator: PtlProcess,
    kind: u32,
    list: u32,
    pt_index: u32,
    fail: u32,
    operator: u32,
    datatype: u32,
}

const _: () =
    assert!(size_of::<Portails4Event>() == 96 && offset_of!(Portails4Event, initiator) == 60);
const _: () =
    assert!(offset_of!(Portails4Event, kind) == 68 && offset_of!(Portails4Event, datatype) == 88);

impl FamilyAbi for Portails4 {
    /// A pointer in Bull's library. Zero means no object, so the handles of this library have a bit that is always set.
    type Handle = u64;
    type Small = u32;
    type Time = u64;
    type Le = PtlMe<u64>;
    type Event = Portails4Event;

    const NAME: &CStr = c"portails4";
    const NUMBERS: AbiNumbers = NUMBERS;
    const WHICH_IS_OPTIONAL: bool = true;
    const ENTRIES_ARE_ALIKE: bool = true;
    const FAMILY: LibraryFamily = LibraryFamily::Bull;
    // The family has only one invalid handle.
    const NONE: [u64; 2] = [0; 2];

    fn handle(bits: u32) -> u64 {
        SET | u64::from(bits)
    }

    fn bits(handle: u64) -> u32 {
        u32::try_from(handle ^ SET).unwrap_or(u32::MAX)
    }

    fn me(le: &PtlMe<u64>) -> PtlMe<u64> {
        // Programs leave the remaining fields of a list entry uninitialized.
        PtlMe {
            match_id: PtlProcess {
                rank_or_nid: 0,
                pid: 0,
            },
            match_bits: 0,
            ignore_bits: 0,
            min_free: 0,
            ..*le
        }
    }

    fn event(event: &FullEvent) -> Portails4Event {
        Portails4Event {
            start: event.start,
            user_ptr: event.user_ptr,
            hdr_data: event.hdr_data,
            match_bits: event.match_bits,
            rlength: event.rlength,
            mlength: event.mlength,
            remote_offset: event.remote_offset,
            uid: event.uid,
            initiator: convert::process(event.initiator),
            kind: NUMBERS.kind(event.kind),
            list: u32::from(event.list == EntryList::Overflow),
            pt_index: event.pt_index,
            fail: NUMBERS.fail(event.fail),
            operator: event
                .operator
                .map_or(0, |operator| NUMBERS.operator(operator)),
            datatype: event
                .datatype
                .map_or(0, |datatype| NUMBERS.datatype(datatype)),
        }
    }
}

impl Portails4Event {
    /// Returns the kind, the failure and the bytes of the event.
    pub(super) const fn outline(&self) -> (u32, u32, u64) {
        (self.kind, self.fail, self.mlength)
    }
}

const SET: u64 = 1 << 32;

const NUMBERS: AbiNumbers = AbiNumbers {
    codes: AbiReturnCodes {
        fail: 6,
        arg_invalid: 7,
        in_use: 8,
        ct_none_reached: 0x20,
        eq_dropped: 0x21,
        eq_empty: 0x22,
        // The family returns IN_USE where the reference returns IGNORED.
        map_again: 8,
        interrupted: 0x25,
        list_too_long: 0x26,
        no_init: 0x27,
        no_space: 0x28,
        pid_in_use: 0x29,
        pt_full: 0x2a,
        pt_eq_needed: 0x2b,
        pt_in_use: 0x2c,
        aborted: 0x2f,
    },
    iface_default: 0,
    pid_any: 0,
    pid_max: 0xfff,
    nid_any: 0,
    rank_any: 0x7f_ffff,
    ni: [2, 8, 4, 1],
    features: 1 | 2,
    iovec: 0x80,
    entry: &[
        (0x1, EntryOptions::EVENT_COMM_DISABLE),
        (0x2, EntryOptions::EVENT_SUCCESS_DISABLE),
        (0x4, EntryOptions::EVENT_OVER_DISABLE),
        (0x8, EntryOptions::EVENT_LINK_DISABLE),
        (0x10, EntryOptions::EVENT_CT_BYTES),
        (0x20, EntryOptions::EVENT_CT_OVERFLOW),
        (0x40, EntryOptions::EVENT_CT_COMM),
        (0x100, EntryOptions::OP_PUT),
        (0x200, EntryOptions::OP_GET),
        (0x400, EntryOptions::USE_ONCE),
        (0x800, EntryOptions::ACK_DISABLE),
        (0x1000, EntryOptions::MAY_ALIGN),
        (0x2000, EntryOptions::EVENT_UNLINK_DISABLE),
        (0x4000, EntryOptions::MANAGE_LOCAL),
        (0x8000, EntryOptions::NO_TRUNCATE),
        (0x1_0000, EntryOptions::UNEXPECTED_HDR_DISABLE),
        (0x2_0000, EntryOptions::EVENT_FLOWCTRL_DISABLE),
        (0x4_0000, EntryOptions::IS_ACCESSIBLE),
        (0x10_0000, EntryOptions::LOCAL_INC_UH_RLENGTH),
        (0x20_0000, EntryOptions::LOCAL_INC_UH_MLENGTH),
    ],
    md: &[
        (0x1, MdOptions::EVENT_SUCCESS_DISABLE),
        (0x2, MdOptions::EVENT_CT_SEND),
        (0x4, MdOptions::EVENT_CT_REPLY),
        (0x8, MdOptions::EVENT_CT_ACK),
        (0x10, MdOptions::EVENT_CT_BYTES),
        (0x20, MdOptions::UNORDERED),
        (0x40, MdOptions::EVENT_SEND_DISABLE),
        (0x100, MdOptions::VOLATILE),
        (0x200, MdOptions::UNRELIABLE),
    ],
    table: &[
        (0x1, TableOptions::ONLY_USE_ONCE),
        (0x2, TableOptions::ONLY_TRUNCATE),
        (0x4, TableOptions::FLOWCTRL),
        (0x8, TableOptions::ALLOC_DISABLED),
    ],
    fails: [0, 6, 8, 7, 9, 0xa, 0xc, 0xb],
    kinds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xa, 0xb, 0xf, 0xc, 0xd, 0xe],
    acks: [0, 3, 1, 2],
    operators: [
        0, 1, 2, 3, 4, 5, 8, 9, 6, 0xa, 0xc, 0x14, 0x15, 0x13, 0x11, 0x12, 0x10, 0x18,
    ],
    datatypes: [0, 1, 2, 3, 4, 5, 0xa, 6, 7, 0xc, 0xb, 0xd, 0x14, 0x15],
};
