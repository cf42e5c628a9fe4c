//! Names of numbers, for logs.
#![expect(
    unsafe_code,
    reason = "C callers give pointers to arguments and to places for results"
)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the promise of all of them is at the head of the parent module"
)]

use std::ffi::{CStr, c_char};

use super::super::{AbiNumbers, FamilyAbi, Portails4, portails4};

/// `PtlToStr`: returns the name of `number` among return codes, events or failures.
#[must_use]
pub fn text<P: FamilyAbi>(number: i32, what: u32) -> &'static CStr {
    let numbers = P::NUMBERS;
    let unsigned = u32::try_from(number).ok();
    let found = match what {
        0 => code_name(&numbers, number),
        1 => unsigned.and_then(|number| name(&numbers.kinds, &KIND_NAMES, number)),
        2 => unsigned.and_then(|number| name(&numbers.fails, &FAIL_NAMES, number)),
        _ => None,
    };
    found.unwrap_or(c"Unknown")
}

/// `PtlFailTypeSize`.
#[must_use]
pub fn fail_names() -> i32 {
    i32::try_from(FAIL_NAMES.len()).unwrap_or(i32::MAX)
}

/// `PtlEvToStr`: writes one line with event, failure and bytes, at most `LINE_MAX` bytes and a zero.
///
/// Existing programs provide 50 bytes.
pub unsafe fn describe(
    _ni_options: u32,
    event: *const portails4::Portails4Event,
    into: *mut c_char,
) -> i32 {
    // SAFETY: the pointer is null or points to the caller's event.
    let Some(event) = (unsafe { event.as_ref() }) else {
        return Portails4::NUMBERS.codes.arg_invalid;
    };
    if into.is_null() {
        return Portails4::NUMBERS.codes.arg_invalid;
    }
    let (kind, fail, mlength) = event.outline();
    let short = |name: &'static CStr, prefix: &str| {
        let name = name.to_str().unwrap_or_default();
        name.strip_prefix(prefix).unwrap_or(name).to_owned()
    };
    let number = |number: u32| i32::try_from(number).unwrap_or(-1);
    let kind = short(text::<Portails4>(number(kind), 1), "PTL_EVENT_");
    let fail = short(text::<Portails4>(number(fail), 2), "PTL_NI_");
    let line = format!("{kind} {fail} {mlength}");
    let bytes = line.bytes().take(LINE_MAX).chain([0]);
    for (at, byte) in bytes.enumerate() {
        // SAFETY: the place is inside the caller's room for a line.
        let place = unsafe { into.add(at) };
        // C's characters have signs on some processors only.
        let character = c_char::from_ne_bytes([byte]);
        // SAFETY: as above.
        unsafe { place.write(character) };
    }
    0
}

fn name<const N: usize>(
    numbers: &[u32; N],
    names: &[&'static CStr; N],
    number: u32,
) -> Option<&'static CStr> {
    let at = numbers.iter().position(|one| *one == number)?;
    names.get(at).copied()
}

fn code_name(numbers: &AbiNumbers, number: i32) -> Option<&'static CStr> {
    let codes = &numbers.codes;
    let named = [
        (0, c"PTL_OK"),
        (codes.arg_invalid, c"PTL_ARG_INVALID"),
        (codes.ct_none_reached, c"PTL_CT_NONE_REACHED"),
        (codes.eq_dropped, c"PTL_EQ_DROPPED"),
        (codes.eq_empty, c"PTL_EQ_EMPTY"),
        (codes.fail, c"PTL_FAIL"),
        (codes.in_use, c"PTL_IN_USE"),
        (codes.list_too_long, c"PTL_LIST_TOO_LONG"),
        (codes.no_init, c"PTL_NO_INIT"),
        (codes.no_space, c"PTL_NO_SPACE"),
        (codes.pid_in_use, c"PTL_PID_IN_USE"),
        (codes.pt_full, c"PTL_PT_FULL"),
        (codes.pt_eq_needed, c"PTL_PT_EQ_NEEDED"),
        (codes.pt_in_use, c"PTL_PT_IN_USE"),
        (codes.interrupted, c"PTL_INTERRUPTED"),
        (codes.aborted, c"PTL_ABORTED"),
        (codes.map_again, c"PTL_IGNORED"),
    ];
    let found = named.iter().find(|(code, _)| *code == number);
    found.map(|(_, name)| *name)
}

/// Bytes of a line of `PtlEvToStr`, without the zero.
const LINE_MAX: usize = 255;

const KIND_NAMES: [&CStr; 16] = [
    c"PTL_EVENT_GET",
    c"PTL_EVENT_GET_OVERFLOW",
    c"PTL_EVENT_PUT",
    c"PTL_EVENT_PUT_OVERFLOW",
    c"PTL_EVENT_ATOMIC",
    c"PTL_EVENT_ATOMIC_OVERFLOW",
    c"PTL_EVENT_FETCH_ATOMIC",
    c"PTL_EVENT_FETCH_ATOMIC_OVERFLOW",
    c"PTL_EVENT_REPLY",
    c"PTL_EVENT_SEND",
    c"PTL_EVENT_ACK",
    c"PTL_EVENT_PT_DISABLED",
    c"PTL_EVENT_LINK",
    c"PTL_EVENT_AUTO_UNLINK",
    c"PTL_EVENT_AUTO_FREE",
    c"PTL_EVENT_SEARCH",
];

const FAIL_NAMES: [&CStr; 8] = [
    c"PTL_NI_OK",
    c"PTL_NI_UNDELIVERABLE",
    c"PTL_NI_DROPPED",
    c"PTL_NI_PT_DISABLED",
    c"PTL_NI_PERM_VIOLATION",
    c"PTL_NI_OP_VIOLATION",
    c"PTL_NI_NO_MATCH",
    c"PTL_NI_SEGV",
];

#[cfg(test)]
mod tests {
    use super::{Portails4, describe, text};
    use crate::abi::Sandia42;

    #[test]
    fn numbers_have_their_family_s_names() {
        assert_eq!(text::<Portails4>(0x21, 0), c"PTL_EQ_DROPPED");
        assert_eq!(text::<Portails4>(8, 0), c"PTL_IN_USE");
        assert_eq!(text::<Sandia42>(6, 0), c"PTL_IGNORED");
        assert_eq!(text::<Portails4>(0xf, 1), c"PTL_EVENT_LINK");
        assert_eq!(text::<Sandia42>(0xf, 1), c"PTL_EVENT_SEARCH");
        assert_eq!(text::<Portails4>(6, 2), c"PTL_NI_UNDELIVERABLE");
        for (number, what) in [(-1, 1), (99, 0), (0, 3)] {
            assert_eq!(text::<Portails4>(number, what), c"Unknown");
        }
    }

    #[test]
    fn nothing_is_described_without_a_place() {
        // SAFETY: null pointers are refused.
        let said = unsafe { describe(0, std::ptr::null(), std::ptr::null_mut()) };
        assert_eq!(said, 7);
    }
}
