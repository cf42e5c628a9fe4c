//! Ways of other libraries, and of adapters, that this library has only when it is asked to: what is written for those is tried
//! here. The specification allows all of them but the first.
#![forbid(unsafe_code)]

/// Which of them an interface has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct Habits {
    /// An operation to a process that has died never ends: no event of it comes, and no count.
    pub ends_never: bool,
}

impl Habits {
    /// `ends-never`, or more of them with commas between. `None` when one has no meaning.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut habits = Self::default();
        for name in text.split(',').map(str::trim) {
            match name {
                "" => {}
                "ends-never" => habits.ends_never = true,
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
        assert!(habits.ends_never);
        for wrong in ["ends", "ends-never=1", "ends-never;"] {
            assert_eq!(Habits::parse(wrong), None, "{wrong}");
        }
    }
}
