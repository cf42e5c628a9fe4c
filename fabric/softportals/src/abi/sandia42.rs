//! Numbers and layouts of the Sandia reference implementation, version 4.2.

use std::{
    ffi::{CStr, c_void},
    mem::offset_of,
};

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

/// Sandia 4.2.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "a name for types and constants")]
pub struct Sandia42;

/// `ptl_le_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(unnameable_types, reason = "named by the profile")]
pub struct PtlLe {
    start: *mut c_void,
    length: u64,
    ct_handle: u32,
    uid: u32,
    options: u32,
}

/// `ptl_event_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(unnameable_types, reason = "named by the profile")]
pub struct Sandia42Event {
    start: u64,
    user_ptr: u64,
    hdr_data: u64,
    match_bits: u64,
    rlength: u64,
    mlength: u64,
    remote_offset: u64,
    initiator: PtlProcess,
    uid: u32,
    pt_index: u32,
    kind: u8,
    list: u8,
    fail: u8,
    operator: u8,
    datatype: u8,
}

const _: () = assert!(size_of::<PtlLe>() == 32 && size_of::<Sandia42Event>() == 80);
const _: () =
    assert!(offset_of!(Sandia42Event, initiator) == 56 && offset_of!(Sandia42Event, kind) == 72);

impl FamilyAbi for Sandia42 {
    type Handle = u32;
    type Small = u8;
    type Time = u32;
    type Le = PtlLe;
    type Event = Sandia42Event;

    const NAME: &CStr = c"sandia42";
    const NUMBERS: AbiNumbers = NUMBERS;
    const WHICH_IS_OPTIONAL: bool = false;
    const ENTRIES_ARE_ALIKE: bool = false;
    const FAMILY: LibraryFamily = LibraryFamily::Sandia;
    const NONE: [u32; 2] = [EQ_NONE, CT_NONE];

    fn handle(bits: u32) -> u32 {
        bits
    }

    fn bits(handle: u32) -> u32 {
        handle
    }

    fn me(le: &PtlLe) -> PtlMe<u32> {
        PtlMe {
            start: le.start,
            length: le.length,
            ct_handle: le.ct_handle,
            uid: le.uid,
            options: le.options,
            match_id: PtlProcess {
                rank_or_nid: 0,
                pid: 0,
            },
            match_bits: 0,
            ignore_bits: 0,
            min_free: 0,
        }
    }

    fn event(event: &FullEvent) -> Sandia42Event {
        let small = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
        Sandia42Event {
            start: event.start,
            user_ptr: event.user_ptr,
            hdr_data: event.hdr_data,
            match_bits: event.match_bits,
            rlength: event.rlength,
            mlength: event.mlength,
            remote_offset: event.remote_offset,
            initiator: convert::process(event.initiator),
            uid: event.uid,
            pt_index: event.pt_index,
            kind: small(NUMBERS.kind(event.kind)),
            list: u8::from(event.list == EntryList::Overflow),
            fail: small(NUMBERS.fail(event.fail)),
            operator: small(
                event
                    .operator
                    .map_or(0, |operator| NUMBERS.operator(operator)),
            ),
            datatype: small(
                event
                    .datatype
                    .map_or(0, |datatype| NUMBERS.datatype(datatype)),
            ),
        }
    }
}

const EQ_NONE: u32 = 0x3fff_ffff;
const CT_NONE: u32 = 0x5fff_ffff;

const NUMBERS: AbiNumbers = AbiNumbers {
    codes: AbiReturnCodes {
        arg_invalid: 1,
        ct_none_reached: 2,
        eq_dropped: 3,
        eq_empty: 4,
        fail: 5,
        map_again: 6,
        in_use: 7,
        interrupted: 8,
        aborted: 8,
        list_too_long: 9,
        no_init: 0xa,
        no_space: 0xb,
        pid_in_use: 0xc,
        pt_full: 0xd,
        pt_eq_needed: 0xe,
        pt_in_use: 0xf,
    },
    iface_default: 0xffff_ffff,
    pid_any: 0xffff,
    pid_max: 0x400,
    nid_any: 0xffff,
    rank_any: 0xffff_ffff,
    ni: [1, 2, 4, 8],
    features: 1 | 2 | 4,
    iovec: 1,
    entry: &[
        (0x2, EntryOptions::OP_PUT),
        (0x4, EntryOptions::OP_GET),
        (0x8, EntryOptions::USE_ONCE),
        (0x10, EntryOptions::ACK_DISABLE),
        (0x20, EntryOptions::UNEXPECTED_HDR_DISABLE),
        (0x40, EntryOptions::IS_ACCESSIBLE),
        (0x80, EntryOptions::EVENT_LINK_DISABLE),
        (0x100, EntryOptions::EVENT_COMM_DISABLE),
        (0x200, EntryOptions::EVENT_FLOWCTRL_DISABLE),
        (0x400, EntryOptions::EVENT_SUCCESS_DISABLE),
        (0x800, EntryOptions::EVENT_OVER_DISABLE),
        (0x1000, EntryOptions::EVENT_UNLINK_DISABLE),
        (0x2000, EntryOptions::EVENT_CT_COMM),
        (0x4000, EntryOptions::EVENT_CT_OVERFLOW),
        (0x8000, EntryOptions::EVENT_CT_BYTES),
        (0x1_0000, EntryOptions::MANAGE_LOCAL),
        (0x2_0000, EntryOptions::NO_TRUNCATE),
        (0x4_0000, EntryOptions::MAY_ALIGN),
    ],
    md: &[
        (0x2, MdOptions::EVENT_CT_SEND),
        (0x4, MdOptions::EVENT_CT_REPLY),
        (0x8, MdOptions::EVENT_CT_ACK),
        (0x10, MdOptions::UNORDERED),
        (0x20, MdOptions::EVENT_SUCCESS_DISABLE),
        (0x40, MdOptions::VOLATILE),
        (0x80, MdOptions::EVENT_SEND_DISABLE),
        (0x8000, MdOptions::EVENT_CT_BYTES),
    ],
    table: &[
        (0x1, TableOptions::ONLY_USE_ONCE),
        (0x2, TableOptions::FLOWCTRL),
        (0x4, TableOptions::ONLY_TRUNCATE),
        (0x8, TableOptions::MATCH_UNORDERED),
    ],
    fails: [0, 1, 2, 3, 4, 5, 6, 7],
    kinds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    acks: [0, 1, 2, 3],
    operators: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17],
    datatypes: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
};
