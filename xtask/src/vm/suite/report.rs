//! The outcome of each run of the matrix, as a table or as lines of JSON.

use std::fmt;

use serde_json::json;

use super::{BAD_END, matrix::SuiteRun, part, table::SuiteKind};
use crate::step::TestTally;

/// A run and its outcome.
#[derive(Clone, Debug)]
pub(super) struct SuiteRow {
    cell: SuiteRun,
    end: SuiteEnd,
    tally: TestTally,
    /// Tests of the program that a filter left out.
    left_out: u64,
    seconds: Option<u64>,
    failures: Vec<String>,
}

/// The end of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SuiteEnd {
    Passed,
    /// Tests failed, or the program died.
    Failed,
    /// The program was ended at its time limit.
    TooLong,
    /// The program was running when the guest reached its time limit.
    Unfinished,
    /// The guest's time ended before its turn.
    NotRun,
    /// The filter matches no test.
    Empty,
}

impl SuiteRow {
    /// Parses the guest's output of this run. The tests of a program count only if it ended by itself and reported how.
    /// Skipped, ignored and unfinished tests do not count as passed.
    pub(super) fn read(cell: SuiteRun, title: &str, output: &str) -> Self {
        let mut row = Self {
            cell,
            end: SuiteEnd::NotRun,
            tally: TestTally::default(),
            left_out: 0,
            seconds: None,
            failures: Vec::new(),
        };
        let Some(printed) = part(output, title) else {
            return row;
        };
        // The status stands right before, possibly after the name of a test that was running.
        let mut last = printed
            .lines()
            .rev()
            .skip_while(|line| seconds(line).is_none());
        row.seconds = last.next().and_then(seconds);
        let status = last
            .next()
            .and_then(|line| line.rsplit_once(BAD_END)?.1.trim().parse::<u8>().ok());
        // Ranks that are processes run the same program, and end before it.
        let result = printed
            .lines()
            .rfind(|line| line.starts_with("test result"));
        row.end = match (row.seconds, status) {
            (None, _) => SuiteEnd::Unfinished,
            (_, Some(TIME_IS_UP)) => SuiteEnd::TooLong,
            (_, Some(_)) => SuiteEnd::Failed,
            (_, None) => SuiteEnd::Passed,
        };
        match (row.cell.suite.kind, &row.end, status) {
            (SuiteKind::Example(_), SuiteEnd::Passed, _) => row.tally.passed = 1,
            (SuiteKind::Example(_), SuiteEnd::Failed, _) => row.tally.failed = 1,
            (SuiteKind::Example(_), ..) => {}
            (_, SuiteEnd::Passed, _) | (_, SuiteEnd::Failed, Some(TESTS_FAILED)) => {
                let line = result.unwrap_or("");
                row.tally.add(line);
                row.left_out = left_out(line);
                row.failures = failures(printed);
            }
            _ => {}
        }
        if row.end == SuiteEnd::Passed && row.tally.passed == 0 {
            row.end = SuiteEnd::Empty;
        }
        row
    }

    /// Returns true if every test ran and passed.
    pub(super) fn all_passed(&self) -> bool {
        self.end == SuiteEnd::Passed
    }

    pub(super) fn json(&self) -> String {
        let SuiteRun {
            name,
            devices,
            reactor,
            suite,
        } = &self.cell;
        json!({
            "suite": name, "devices": devices, "reactor": reactor, "env": suite.env, "args": suite.args,
            "end": self.end.to_string(), "passed": self.tally.passed, "failed": self.tally.failed,
            "ignored": self.tally.ignored, "left_out": self.left_out, "seconds": self.seconds,
            "failures": self.failures,
        })
        .to_string()
    }
}

impl fmt::Display for SuiteRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TestTally {
            passed,
            failed,
            ignored,
        } = self.tally;
        let seconds = self
            .seconds
            .map_or_else(|| "-".to_owned(), |seconds| seconds.to_string());
        let SuiteRun {
            name,
            devices,
            reactor,
            ..
        } = &self.cell;
        write!(
            f,
            "{name:<34} {devices:<7} {reactor:<7}{passed:>7}{failed:>7}{ignored:>8}{:>9}{seconds:>8}  {}",
            self.left_out, self.end
        )?;
        self.failures
            .iter()
            .try_for_each(|name| write!(f, "\n    FAILED {name}"))
    }
}

impl fmt::Display for SuiteEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::TooLong => "TOOK TOO LONG",
            Self::Unfinished => "UNFINISHED",
            Self::NotRun => "NOT RUN",
            Self::Empty => "NO TEST",
        })
    }
}

/// The head of the table.
pub(super) fn head() -> String {
    format!(
        "{:<34} {:<7} {:<7}{:>7}{:>7}{:>8}{:>9}{:>8}  end",
        "suite", "devices", "reactor", "passed", "failed", "ignored", "left out", "seconds"
    )
}

/// Lists the time of each program, and how much of it the guest's processors were idle; the slowest come first.
pub(super) fn slowest(output: &str) -> String {
    let parts = output.split("\n== ").skip(1);
    let mut rows: Vec<_> = parts
        .filter_map(|printed| {
            let (title, said) = printed.split_once('\n')?;
            let seconds = said.lines().rev().find_map(seconds)?;
            let idle = said
                .lines()
                .rev()
                .find_map(|line| line.strip_prefix("idle "));
            Some((seconds, idle.unwrap_or("?"), title))
        })
        .collect();
    rows.sort_by_key(|(seconds, ..)| std::cmp::Reverse(*seconds));
    let lines = rows.iter().map(|(seconds, idle, title)| {
        let title: String = title.chars().take(TITLE_MAX).collect();
        format!("\n{seconds:>8} s  idle {idle:>5}  {title}")
    });
    lines.collect()
}

/// Parses a line like `took 12 s`.
fn seconds(line: &str) -> Option<u64> {
    let figure = line.strip_prefix("took ")?.strip_suffix(" s")?;
    figure.parse().ok()
}

/// Parses a line like `test result: ok. 3 passed; .. 7 filtered out; finished in 0.10s`.
fn left_out(line: &str) -> u64 {
    let mut parts = line.split(';');
    let count = parts.find_map(|part| part.trim().strip_suffix(" filtered out")?.parse().ok());
    count.unwrap_or(0)
}

/// Returns the names that a test program lists at its end.
fn failures(printed: &str) -> Vec<String> {
    let Some((_, list)) = printed.rsplit_once("\nfailures:\n") else {
        return Vec::new();
    };
    let names = list.lines().map_while(|line| line.strip_prefix("    "));
    names.map(str::to_owned).collect()
}

/// Columns of a program's name and arguments in a list.
const TITLE_MAX: usize = 100;

/// Exit code of `timeout` at the limit.
const TIME_IS_UP: u8 = 124;

/// Exit code of a test program that lists which tests failed.
const TESTS_FAILED: u8 = 101;

#[cfg(test)]
mod tests {
    use super::{
        super::matrix::{SuiteFilter, select_runs},
        SuiteEnd, SuiteRow, slowest,
    };

    fn row(printed: &str) -> SuiteRow {
        row_of("scope", printed)
    }

    fn row_of(suite: &str, printed: &str) -> SuiteRow {
        let wish = SuiteFilter {
            only: vec![suite.to_owned()],
            ..SuiteFilter::default()
        };
        let cell = select_runs(&wish).unwrap().remove(0);
        SuiteRow::read(
            cell,
            "one",
            &format!("== zero\nx\n== one\n{printed}== two\n"),
        )
    }

    const GOOD: &str = "\
        test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.1s\n\
        test result: ok. 4 passed; 0 failed; 2 ignored; 0 measured; 3 filtered out; finished in 0.1s\n\
        took 12 s\n";

    #[test]
    fn what_a_program_says_last_is_counted_and_the_rest_is_not_passed() {
        let row = row(GOOD);
        assert!(row.all_passed());
        let counts = (
            row.tally.passed,
            row.tally.ignored,
            row.left_out,
            row.seconds,
        );
        assert_eq!(counts, (4, 2, 3, Some(12)));
        assert!(row.to_string().ends_with("passed"), "{row}");
        assert!(row.json().contains("\"passed\":4"), "{}", row.json());
    }

    #[test]
    fn failed_tests_are_named() {
        let row = row(
            "failures:\n\n---- a stdout ----\nfailures:\n    a\n    b::c\n\n\
            test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n\
            ended with status 101\ntook 3 s\n",
        );
        assert_eq!((row.end.clone(), row.tally.failed), (SuiteEnd::Failed, 2));
        assert_eq!(row.failures, ["a", "b::c"]);
    }

    #[test]
    fn a_program_that_did_not_end_by_itself_has_passed_nothing() {
        for (said, end) in [
            ("ended with status 124\ntook 600 s\n", SuiteEnd::TooLong),
            ("ended with status 139\ntook 6 s\n", SuiteEnd::Failed),
            (
                "test a ... ended with status 124\ntook 6 s\n",
                SuiteEnd::TooLong,
            ),
            ("", SuiteEnd::Unfinished),
        ] {
            let row = row(&GOOD.replace("took 12 s\n", said));
            assert_eq!((row.end.clone(), row.tally.passed), (end, 0), "{said}");
            assert!(!row.all_passed());
        }
        let none = row(
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\ntook 1 s\n",
        );
        assert_eq!(none.end, SuiteEnd::Empty);
    }

    #[test]
    fn the_slowest_program_is_named_first() {
        let lines = slowest(
            "\n== the guest itself\nwell\n== quick\ntook 2 s\nidle 50 %\n== slow\ntook 1 s\ntook 12 s\nidle 7 %\n\
             == cut off\ntest a ... ",
        );
        let rows: Vec<Vec<&str>> = lines
            .trim()
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows,
            [
                ["12", "s", "idle", "7", "%", "slow"],
                ["2", "s", "idle", "50", "%", "quick"]
            ]
        );
    }

    #[test]
    fn an_example_is_one_test() {
        assert_eq!(row_of("example-halo", "warm\ntook 1 s\n").tally.passed, 1);
        let bad = row_of("example-halo", "ended with status 1\ntook 1 s\n");
        assert_eq!((bad.tally.passed, bad.tally.failed), (0, 1));
    }
}
