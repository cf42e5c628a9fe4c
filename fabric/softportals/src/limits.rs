//! Limits of an interface.

/// The limits of an interface, as asked for or as given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "the specification's list is complete"
)]
pub struct NiLimits {
    /// List entries of all portal table entries together.
    pub max_entries: u32,
    /// Remembered headers of unexpected messages.
    pub max_unexpected_headers: u32,
    /// Memory descriptors.
    pub max_mds: u32,
    /// Event queues.
    pub max_eqs: u32,
    /// Counters.
    pub max_cts: u32,
    /// Last index of the portal table.
    pub max_pt_index: u32,
    /// Segments of one descriptor or list entry.
    pub max_iovecs: u32,
    /// Entries of one list.
    pub max_list_size: u32,
    /// Triggered operations that wait for one counter.
    pub max_triggered_ops: u32,
    /// Bytes of a put or get.
    pub max_msg_size: u64,
    /// Bytes of an atomic.
    pub max_atomic_size: u64,
    /// Bytes of an atomic that returns the previous value.
    pub max_fetch_atomic_size: u64,
    /// Bytes up to which writes land in order.
    pub max_waw_ordered_size: u64,
    /// Bytes up to which a read does not see a write that follows it.
    pub max_war_ordered_size: u64,
    /// Bytes of a put from a volatile descriptor.
    pub max_volatile_size: u64,
    /// Events of one queue. The specification has no such limit, but memory is finite.
    pub max_eq_size: u64,
}

impl NiLimits {
    /// Maximum that this library grants.
    ///
    /// Counts cover what the largest programs in the field request and get elsewhere. The message size is the largest signed
    /// offset.
    pub const MOST: Self = Self {
        max_entries: 1 << 15,
        max_unexpected_headers: 1 << 15,
        max_mds: 1 << 15,
        max_eqs: 1 << 10,
        max_cts: 1 << 15,
        max_pt_index: 255,
        max_iovecs: 1 << 15,
        max_list_size: 1 << 15,
        max_triggered_ops: 1 << 15,
        max_msg_size: i64::MAX as u64,
        max_atomic_size: ATOMIC_MAX,
        max_fetch_atomic_size: ATOMIC_MAX,
        max_waw_ordered_size: ATOMIC_MAX,
        max_war_ordered_size: ATOMIC_MAX,
        max_volatile_size: ATOMIC_MAX,
        max_eq_size: 1 << 20,
    };

    /// Returns these limits with some of them lowered, for example by `max_entries=8,max_eq_size=2`. Returns `None` if a name or
    /// a number is wrong.
    #[must_use]
    pub fn lowered(mut self, text: &str) -> Option<Self> {
        for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
            let (name, number) = pair.split_once('=')?;
            let number: u64 = number.trim().parse().ok()?;
            self.lower(name.trim(), number)?;
        }
        Some(self)
    }

    fn lower(&mut self, name: &str, number: u64) -> Option<()> {
        let count = match name {
            "max_entries" => &mut self.max_entries,
            "max_unexpected_headers" => &mut self.max_unexpected_headers,
            "max_mds" => &mut self.max_mds,
            "max_eqs" => &mut self.max_eqs,
            "max_cts" => &mut self.max_cts,
            "max_pt_index" => &mut self.max_pt_index,
            "max_iovecs" => &mut self.max_iovecs,
            "max_list_size" => &mut self.max_list_size,
            "max_triggered_ops" => &mut self.max_triggered_ops,
            _ => return self.lower_size(name, number),
        };
        *count = u32::try_from(number).unwrap_or(u32::MAX).min(*count);
        Some(())
    }

    fn lower_size(&mut self, name: &str, number: u64) -> Option<()> {
        let size = match name {
            "max_msg_size" => &mut self.max_msg_size,
            "max_atomic_size" => &mut self.max_atomic_size,
            "max_fetch_atomic_size" => &mut self.max_fetch_atomic_size,
            "max_waw_ordered_size" => &mut self.max_waw_ordered_size,
            "max_war_ordered_size" => &mut self.max_war_ordered_size,
            "max_volatile_size" => &mut self.max_volatile_size,
            "max_eq_size" => &mut self.max_eq_size,
            _ => return None,
        };
        *size = number.min(*size);
        Some(())
    }

    /// Limits for a program that requests zero: it fills in the fields it knows and uses the others anyway. These are the
    /// defaults of the reference library.
    const UNASKED: Self = Self {
        max_entries: 1024,
        max_unexpected_headers: 1024,
        max_mds: 1024,
        max_eqs: 1024,
        max_cts: 1024,
        max_pt_index: 63,
        max_iovecs: 1024,
        max_list_size: 1024,
        max_triggered_ops: 1024,
        max_msg_size: 1 << 32,
        max_atomic_size: 512,
        max_fetch_atomic_size: 512,
        max_waw_ordered_size: 64,
        max_war_ordered_size: 8,
        max_volatile_size: 64,
        max_eq_size: 1 << 20,
    };

    /// Minimum that every interface grants.
    ///
    /// The specification guarantees the last table index, one element of each datatype for fetching atomics, and the ordered
    /// sizes. Every other limit may be as low as the program requests.
    const LEAST: Self = Self {
        max_entries: 1,
        max_unexpected_headers: 1,
        max_mds: 1,
        max_eqs: 1,
        max_cts: 1,
        max_pt_index: 63,
        max_iovecs: 1,
        max_list_size: 1,
        max_triggered_ops: 1,
        max_msg_size: 1,
        max_atomic_size: 1,
        max_fetch_atomic_size: 32,
        max_waw_ordered_size: 64,
        max_war_ordered_size: 8,
        max_volatile_size: 1,
        max_eq_size: 1,
    };

    /// Returns the granted limits: as requested, within `most` and a minimum that every interface has. A request of zero counts
    /// as unspecified.
    #[must_use]
    pub fn within(self, most: &Self) -> Self {
        macro_rules! each {
            ($($name:ident)+) => {
                Self {
                    $($name: {
                        let asked = if self.$name == 0 { Self::UNASKED.$name } else { self.$name };
                        asked.max(Self::LEAST.$name).min(most.$name)
                    },)+
                }
            };
        }
        let given = each! {
            max_entries max_unexpected_headers max_mds max_eqs max_cts max_pt_index max_iovecs max_list_size max_triggered_ops
            max_msg_size max_atomic_size max_fetch_atomic_size max_waw_ordered_size max_war_ordered_size max_volatile_size
            max_eq_size
        };
        // An interface without these objects is useless, so grant one of each even if `most` says zero.
        Self {
            max_entries: given.max_entries.max(1),
            max_mds: given.max_mds.max(1),
            max_eqs: given.max_eqs.max(1),
            max_list_size: given.max_list_size.max(1),
            max_eq_size: given.max_eq_size.max(1),
            ..given
        }
    }
}

/// Bytes of the largest atomic. An atomic fits into one packet, so no process sees half of it.
pub(crate) const ATOMIC_MAX: u64 = 2048;

#[cfg(test)]
mod tests {
    use super::NiLimits;

    #[test]
    fn limits_are_lowered_by_name() {
        let most = NiLimits::MOST.lowered("max_entries=8, max_eq_size=2,max_msg_size=100");
        let most = most.expect("right");
        assert_eq!(
            (most.max_entries, most.max_eq_size, most.max_msg_size),
            (8, 2, 100)
        );
        let higher = NiLimits::MOST.lowered("max_mds=4000000000");
        assert_eq!(higher, Some(NiLimits::MOST));
        for wrong in [
            "max_entries",
            "max_entries=x",
            "entries=3",
            "max_entries=-1",
        ] {
            assert_eq!(NiLimits::MOST.lowered(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_limit_is_lowered_by_its_name_and_no_other() {
        let names = names();
        assert_eq!(names.len(), 16);
        for name in &names {
            let lowered = NiLimits::MOST.lowered(&format!("{name}=3")).expect(name);
            assert_eq!(NiLimits::MOST.within(&lowered), lowered, "{name}");
            let text = format!("{lowered:?}");
            assert_eq!(
                text.matches(": 3,").count() + text.matches(": 3 ").count(),
                1
            );
            assert!(text.contains(&format!("{name}: 3")), "{text}");
        }
    }

    #[test]
    fn one_gets_what_one_asks_for_within_reason() {
        let wanted = NiLimits {
            max_entries: 10,
            max_unexpected_headers: 1,
            max_triggered_ops: 8,
            max_msg_size: u64::MAX,
            ..NiLimits::MOST
        };
        let got = wanted.within(&NiLimits::MOST);
        assert_eq!((got.max_entries, got.max_unexpected_headers), (10, 1));
        assert_eq!(got.max_msg_size, NiLimits::MOST.max_msg_size);
        assert_eq!(got.max_triggered_ops, 8);
        assert_eq!(NiLimits::MOST.within(&NiLimits::MOST), NiLimits::MOST);
    }

    /// Covers programs that clear the structure and fill in what they know, and programs that request the minimum.
    #[test]
    fn requested_limits_of_zero_or_too_low_become_the_minimum_of_every_interface() {
        let zero = NiLimits::MOST.lowered(&all_of(0)).expect("right");
        let one = NiLimits::MOST.lowered(&all_of(1)).expect("right");
        for asked in [zero, one] {
            let got = asked.within(&NiLimits::MOST);
            assert!(got.max_fetch_atomic_size >= 32 && got.max_triggered_ops > 0);
            assert!(got.max_pt_index >= 63 && got.max_atomic_size > 0);
            assert!(got.max_waw_ordered_size >= 64 && got.max_war_ordered_size >= 8);
            assert!(got.max_volatile_size > 0 && got.max_msg_size > 0);
        }
        let got = zero.within(&NiLimits::MOST);
        let counts = [
            got.max_entries,
            got.max_unexpected_headers,
            got.max_mds,
            got.max_eqs,
            got.max_cts,
            got.max_iovecs,
            got.max_list_size,
            got.max_triggered_ops,
        ];
        assert_eq!(counts, [1024; 8]);
        assert!(got.max_msg_size >= 1 << 32 && got.max_atomic_size >= 512);
        // The limits of the environment always win.
        let few = NiLimits::MOST.lowered("max_cts=3,max_triggered_ops=0");
        let got = zero.within(&few.expect("right"));
        assert_eq!((got.max_cts, got.max_triggered_ops), (3, 0));
    }

    fn all_of(number: u64) -> String {
        let all = names().into_iter().map(|name| format!("{name}={number}"));
        all.collect::<Vec<_>>().join(",")
    }

    fn names() -> Vec<String> {
        format!("{:?}", NiLimits::MOST)
            .split(['{', ',', '}'])
            .filter_map(|field| Some(field.split_once(':')?.0.trim().to_owned()))
            .collect()
    }
}
