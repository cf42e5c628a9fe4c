//! Optional behavior of other libraries and adapters, enabled on request, so that code written for them can be tested here.
//!
//! The specification allows all of it except the first.
#![forbid(unsafe_code)]

/// Optional behaviors of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each of them is there or not, by itself"
)]
pub struct LibraryHabits {
    /// An operation to a dead process never completes: it produces no event and no count.
    pub ends_never: bool,
    /// Atomics are visible only to the interface until the host [synchronizes](crate::AppMemory::publish), and the interface does
    /// not announce its coherence.
    pub incoherent: bool,
    /// `PtlPollEvents` trusts its array of poll results: a descriptor that `poll` did not find readable is not looked at, and
    /// stays readable.
    pub polled_only: bool,
    /// A message that fails in transit reports zero bytes, whatever space it used.
    pub short_failures: bool,
    /// A message that cannot be sent is reported by a SEND event alone, even if SEND events are disabled.
    pub send_alone: bool,
}

impl LibraryHabits {
    /// Parses a comma-separated list of `ends-never`, `incoherent`, `polled-only`, `short-failures` and `send-alone`. Returns
    /// `None` if a name is unknown.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut habits = Self::default();
        for name in text.split(',').map(str::trim) {
            match name {
                "" => {}
                "ends-never" => habits.ends_never = true,
                "incoherent" => habits.incoherent = true,
                "polled-only" => habits.polled_only = true,
                "short-failures" => habits.short_failures = true,
                "send-alone" => habits.send_alone = true,
                _ => return None,
            }
        }
        Some(habits)
    }
}

#[cfg(test)]
mod tests {
    use super::LibraryHabits;

    #[test]
    fn habits_are_read_by_name() {
        assert_eq!(LibraryHabits::parse(""), Some(LibraryHabits::default()));
        let habits = LibraryHabits::parse(" ends-never,").expect("right");
        assert!(habits.ends_never && !habits.incoherent);
        let all =
            LibraryHabits::parse("ends-never,incoherent,polled-only,short-failures,send-alone");
        let each = LibraryHabits {
            ends_never: true,
            incoherent: true,
            polled_only: true,
            short_failures: true,
            send_alone: true,
        };
        assert_eq!(all, Some(each));
        for wrong in ["ends", "ends-never=1", "ends-never;"] {
            assert_eq!(LibraryHabits::parse(wrong), None, "{wrong}");
        }
    }
}
