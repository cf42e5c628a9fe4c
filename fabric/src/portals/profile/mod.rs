//! Differences between the libraries in use: offsets of fields, and the meaning of numbers.
//!
//! There is one interface with five binary interfaces, two of them under the same name, so no single header describes them all. A
//! profile is data, which [`calls`](super::calls) and its neighbors read.

mod bull;
mod sandia;

/// A family of libraries.
#[derive(Clone, Copy, Debug)]
pub(super) struct LibraryProfile {
    /// Name of the family in `RIPSTOP_PORTALS_ABI`.
    pub(super) name: &'static str,
    /// True if bytes move without calls to the library.
    pub(super) async_progress: bool,
    /// True if operations to a killed process are assumed to complete.
    pub(super) ends_to_dead: bool,
    /// Unused process id, to which an operation is sent when an interface is opened to test `ends_to_dead`.
    pub(super) unused_pid: Option<u32>,
    /// True if the first operation to a process blocks until that process answers, possibly forever.
    pub(super) first_op_blocks: bool,
    pub(super) wire: WireLimits,
    /// Bytes of a handle: 4 or 8.
    pub(super) handle_len: usize,
    pub(super) eq_none: u64,
    pub(super) ct_none: u64,
    pub(super) layout: StructLayout,
    pub(super) codes: ReturnCodes,
    pub(super) fails: FailNumbers,
    pub(super) any: WildcardNumbers,
    pub(super) options: OptionBits,
    pub(super) operators: OperatorNumbers,
}

/// Limits on what arrives undamaged, if lower than the library's own limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct WireLimits {
    /// Bytes of the longest operation.
    pub(super) op_max: u64,
    /// Operations that may be in flight.
    pub(super) in_flight_max: u32,
    /// Bytes of the longest get. Longer ones return data from the start of the entry, regardless of their offset.
    pub(super) get_max: u64,
    /// Range of lengths of operations that arrive damaged.
    pub(super) damaged_lens: Option<(usize, usize)>,
}

impl WireLimits {
    /// No limits beyond those of the library.
    pub(super) const WHOLE: Self = Self {
        op_max: u64::MAX,
        in_flight_max: u32::MAX,
        get_max: u64::MAX,
        damaged_lens: None,
    };
    /// Limits over UDP. Packets are lost when the socket of a busy receiver is full, and with less than 256 KiB a few long ones
    /// fill it.
    const UDP: Self = Self {
        op_max: 32 << 10,
        ..Self::WHOLE
    };

    /// Returns how many of `len` bytes one operation can move undamaged.
    pub(super) fn piece(self, len: usize) -> usize {
        self.flaw_of(len).map_or(len, |(from, _)| from - 1)
    }

    /// Returns the number of extra bytes to send with `len` bytes, to avoid damage.
    pub(super) fn padding(self, len: usize) -> usize {
        self.flaw_of(len).map_or(0, |(_, to)| to + 1 - len)
    }

    fn flaw_of(self, len: usize) -> Option<(usize, usize)> {
        self.damaged_lens
            .filter(|&(from, to)| (from..=to).contains(&len))
    }
}

/// Offsets in structures, if they differ between families.
#[derive(Clone, Copy, Debug)]
pub(super) struct StructLayout {
    pub(super) md_eq: usize,
    pub(super) md_ct: usize,
    pub(super) me_uid: usize,
    pub(super) me_options: usize,
    pub(super) me_match_id: usize,
    pub(super) event: EventLayout,
    /// Bytes of a process id inside a process.
    pub(super) pid_len: usize,
}

/// Offsets in a full event.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventLayout {
    pub(super) match_bits: usize,
    pub(super) mlength: usize,
    pub(super) initiator: usize,
    pub(super) pt_index: usize,
    pub(super) kind: usize,
    pub(super) fail: usize,
    /// Bytes of an enumeration.
    pub(super) enum_len: usize,
}

/// Return codes. Success is 0 in all families.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReturnCodes {
    pub(super) eq_dropped: i32,
    pub(super) in_use: i32,
    /// All known codes, with their names.
    pub(super) names: &'static [(i32, &'static str)],
}

/// Outcomes of operations. Success is 0 in all families.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailNumbers {
    pub(super) undeliverable: u32,
    pub(super) dropped: u32,
    pub(super) pt_disabled: u32,
    pub(super) perm_violation: u32,
    pub(super) op_violation: u32,
    pub(super) no_match: u32,
    pub(super) segv: u32,
}

/// Wildcards.
#[derive(Clone, Copy, Debug)]
pub(super) struct WildcardNumbers {
    pub(super) iface: u32,
    pub(super) nid: u32,
    pub(super) pid: u32,
    pub(super) pt: u32,
    /// Longest range of memory in bytes.
    pub(super) size: u64,
}

/// Option bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct OptionBits {
    pub(super) ni_matching: u32,
    pub(super) ni_physical: u32,
    /// Feature: entries over memory that does not exist.
    pub(super) bind_inaccessible: u32,
    /// Feature: processors see changes by atomics immediately. Zero in a family without that feature, whose atomics are done by
    /// processors.
    pub(super) coherent_atomics: u32,
    pub(super) pt_flowctrl: u32,
    pub(super) md_event_success_disable: u32,
    pub(super) md_event_send_disable: u32,
    pub(super) md_event_ct_ack: u32,
    pub(super) me_op_put: u32,
    pub(super) me_op_get: u32,
    pub(super) me_use_once: u32,
    pub(super) me_iovec: u32,
    pub(super) me_unexpected_hdr_disable: u32,
    pub(super) me_manage_local: u32,
    pub(super) me_no_truncate: u32,
    pub(super) me_event_link_disable: u32,
    pub(super) me_event_comm_disable: u32,
    pub(super) me_event_over_disable: u32,
    pub(super) me_event_unlink_disable: u32,
    pub(super) me_event_ct_comm: u32,
    pub(super) me_event_ct_overflow: u32,
    pub(super) me_event_ct_bytes: u32,
    pub(super) ack_req: u32,
}

/// Numbers of atomic operators and datatypes.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperatorNumbers {
    pub(super) min: u32,
    pub(super) max: u32,
    pub(super) sum: u32,
    pub(super) bor: u32,
    pub(super) band: u32,
    pub(super) bxor: u32,
    pub(super) swap: u32,
    pub(super) cswap: u32,
    /// Datatypes in the order of [`IntegerType::ALL`](crate::offload::IntegerType::ALL).
    pub(super) integers: [u32; 8],
}

/// All families.
pub(super) static ALL: [&LibraryProfile; 5] = [
    &sandia::SANDIA42,
    &sandia::SANDIA43,
    &bull::PORTAILS4,
    &bull::BXI2,
    &bull::BXI3,
];

/// Returns the family of this name.
pub(super) fn by_name(name: &str) -> Option<&'static LibraryProfile> {
    ALL.into_iter().find(|profile| profile.name == name)
}

/// Returns the family of a library by its symbols. Used for libraries that do not report their family.
pub(super) fn by_symbols(has: impl Fn(&str) -> bool) -> &'static LibraryProfile {
    if has("PtlMsgPut") {
        &bull::BXI3
    } else if has("PtlNFDs") {
        &bull::BXI2
    } else if has("PtlEvToStr") {
        &bull::PORTAILS4
    } else if has("PtlAbort") && !has("PtlToStr") {
        &sandia::SANDIA43
    } else {
        &sandia::SANDIA42
    }
}

impl ReturnCodes {
    /// Returns true if a code means that there is no room now, but may be after other operations have completed.
    pub(super) fn is_for_later(&self, code: i32) -> bool {
        matches!(self.name(code), Some("PTL_NO_SPACE" | "PTL_TRY_AGAIN"))
    }

    /// Returns true if a code means that a wait ended normally without an event.
    pub(super) fn is_nothing(&self, code: i32) -> bool {
        matches!(
            self.name(code),
            Some("PTL_EQ_EMPTY" | "PTL_INTERRUPTED" | "PTL_ABORTED")
        )
    }

    fn name(&self, code: i32) -> Option<&'static str> {
        let mut names = self.names.iter();
        names.find_map(|(number, name)| (*number == code).then_some(*name))
    }

    /// Returns a code's name. An unknown code suggests that the library is of another family.
    pub(super) fn describe(&self, code: i32) -> String {
        let unknown = || {
            format!(
                "code {code}, which its family does not have: check that RIPSTOP_PORTALS_ABI names the right family"
            )
        };
        self.name(code).map_or_else(unknown, str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::{ALL, by_name, by_symbols};

    #[test]
    fn families_are_known_by_their_symbols() {
        let cases: [(&[&str], &str); 5] = [
            (&[], "sandia42"),
            (&["PtlAbort"], "sandia43"),
            (&["PtlAbort", "PtlToStr", "PtlEvToStr"], "portails4"),
            (&["PtlNFDs", "PtlToStr", "PtlEvToStr"], "bxi2"),
            (&["PtlMsgPut", "PtlNFDs"], "bxi3"),
        ];
        for (symbols, name) in cases {
            assert_eq!(by_symbols(|symbol| symbols.contains(&symbol)).name, name);
            assert!(by_name(name).is_some());
        }
        assert!(by_name("sandia").is_none());
    }

    #[test]
    fn no_operation_has_a_length_that_arrives_damaged() {
        for wire in ALL.map(|profile| profile.wire) {
            for len in (0..5000).chain([32_768, 32_769, 65_664, 1 << 20]) {
                let mut left = len;
                while left > 0 {
                    let piece = wire.piece(left);
                    assert!(piece > 0 && wire.padding(piece) == 0, "{piece} of {left}");
                    left -= piece;
                }
                assert_eq!(wire.padding(len + wire.padding(len)), 0, "{len}");
            }
        }
    }

    #[test]
    fn option_bits_of_a_family_are_distinct() {
        for profile in ALL {
            let options = &profile.options;
            let entry = [
                options.me_op_put,
                options.me_op_get,
                options.me_use_once,
                options.me_iovec,
                options.me_unexpected_hdr_disable,
                options.me_manage_local,
                options.me_no_truncate,
                options.me_event_link_disable,
                options.me_event_comm_disable,
                options.me_event_over_disable,
                options.me_event_unlink_disable,
                options.me_event_ct_comm,
                options.me_event_ct_overflow,
                options.me_event_ct_bytes,
            ];
            let all = entry.iter().fold(0, |all, bit| all | bit);
            assert_eq!(all.count_ones(), 14, "{}", profile.name);
        }
    }
}
