//! The lines of a step's output that say what failed. The gate repeats them at its end, because the output of other steps comes
//! between, and a log may be cut off at its head.

/// Lines that say what failed, each with some of the lines behind it.
#[derive(Debug, Default)]
pub(super) struct FailureLines {
    lines: Vec<String>,
    /// The number of lines to take even if they say nothing of a failure.
    following: usize,
}

impl FailureLines {
    /// Returns what failed in the output of a whole step.
    pub(super) fn of(output: &str) -> Self {
        let mut failures = Self::default();
        output.lines().for_each(|line| failures.look_at(line));
        failures
    }

    /// Takes a line of the output if it says what failed, or follows such a line.
    pub(super) fn look_at(&mut self, line: &str) {
        if MARKS.iter().any(|mark| line.contains(mark)) {
            self.following = FOLLOWING;
        } else if self.following > 0 {
            self.following -= 1;
        } else {
            return;
        }
        if self.lines.len() < LINES {
            self.lines.push(line.to_owned());
        }
    }

    /// Adds the lines to the reason why a step failed.
    pub(super) fn under(&self, why: &str) -> String {
        let lines = self.lines.iter().map(|line| format!("\n    {line}"));
        [why.to_owned()].into_iter().chain(lines).collect()
    }
}

/// What a line that tells of a failure contains: a test's name or result, or where a test panicked.
const MARKS: [&str; 2] = ["FAILED", "panicked at"];

/// The number of lines behind a failure that tell more of it, such as what was expected.
const FOLLOWING: usize = 8;

/// The number of lines that are kept, so that a step that fails as a whole does not bury the others.
const LINES: usize = 80;

#[cfg(test)]
mod tests {
    use super::{FOLLOWING, FailureLines, LINES};

    #[test]
    fn failures_are_kept_with_the_lines_behind_them() {
        let output = "ok  one\nFAILED  two\nexpected 3\nok  three\n";
        let said = FailureLines::of(output).under("exit status: 1");
        assert_eq!(
            said,
            "exit status: 1\n    FAILED  two\n    expected 3\n    ok  three"
        );
        let far = format!("FAILED\n{}too far", "line\n".repeat(FOLLOWING));
        assert!(!FailureLines::of(&far).under("").contains("too far"));
        assert_eq!(FailureLines::of("ok  one\n").under("why"), "why");
    }

    #[test]
    fn a_flood_of_failures_is_cut_off() {
        let flood = "test a ... FAILED\n".repeat(2 * LINES);
        assert_eq!(
            FailureLines::of(&flood).under("").lines().count(),
            LINES + 1
        );
    }
}
