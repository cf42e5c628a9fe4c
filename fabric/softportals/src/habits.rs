//! Ways of other libraries, and of adapters, that this library has only when it is asked to: what is written for those is tried
//! here. The specification allows all of them but the first.
#![forbid(unsafe_code)]

/// Which of them an interface has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each of them is there or not, by itself"
)]
pub struct Habits {
    /// An operation to a process that has died never ends: no event of it comes, and no count.
    pub ends_never: bool,
    /// Atomics land where only the interface looks, until the host [synchronizes](crate::Memory::publish): its coherence is not
    /// announced.
    pub incoherent: bool,
    /// `PtlPollEvents` believes the array that it is given: what `poll` has not found readable is not looked at, and stays so.
    pub polled_only: bool,
    /// A message that fails on its way says that it has no bytes, whatever place it has used up.
    pub short_failures: bool,
    /// What cannot leave is told by a SEND event alone, even where those are disabled.
    pub send_alone: bool,
}

impl Habits {
    /// `ends-never`, `incoherent`, `polled-only`, `short-failures`, `send-alone`, or several with commas between. `None` when one
    /// has no meaning.
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
    use super::Habits;

    #[test]
    fn habits_are_read_by_name() {
        assert_eq!(Habits::parse(""), Some(Habits::default()));
        let habits = Habits::parse(" ends-never,").expect("right");
        assert!(habits.ends_never && !habits.incoherent);
        let all = Habits::parse("ends-never,incoherent,polled-only,short-failures,send-alone");
        let each = Habits {
            ends_never: true,
            incoherent: true,
            polled_only: true,
            short_failures: true,
            send_alone: true,
        };
        assert_eq!(all, Some(each));
        for wrong in ["ends", "ends-never=1", "ends-never;"] {
            assert_eq!(Habits::parse(wrong), None, "{wrong}");
        }
    }
}
