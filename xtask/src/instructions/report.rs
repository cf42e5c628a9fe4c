//! The table, the JSON lines, and what is said of budgets.

use std::fmt::Write as _;

use serde_json::json;

use super::budgets::RowBudget;
use super::callgrind::InstructionCounts;
use super::rows::CountedRow;

/// A row of the table.
#[derive(Debug)]
pub(super) struct CountedOutcome {
    pub(super) row: &'static CountedRow,
    pub(super) counts: InstructionCounts,
    /// What MPICH and Open MPI take: counted now, or else known from before.
    theirs: [Option<f64>; 2],
    pub(super) budget: Option<RowBudget>,
}

impl CountedOutcome {
    pub(super) fn new(
        row: &'static CountedRow,
        counts: InstructionCounts,
        counted: [Option<f64>; 2],
        budget: Option<RowBudget>,
    ) -> Self {
        let [mpich, openmpi] = row.theirs.map(|known| known.map(f64::from));
        Self {
            row,
            counts,
            theirs: [counted[0].or(mpich), counted[1].or(openmpi)],
            budget,
        }
    }

    /// Says that the row is over its budget, and which functions have grown; `None` if it is not.
    pub(super) fn overrun(&self) -> Option<String> {
        let Some(budget) = &self.budget else {
            return Some(format!("{} has no budget", self.row.name));
        };
        if !is_over(budget, &self.counts) {
            return None;
        }
        let excess = budget.excess(self.counts.total);
        let mut text = format!(
            "{} takes {:.0} instructions, {:.1} % more than its budget of {}; these functions have grown:",
            self.row.name,
            self.counts.total,
            excess * 100.0,
            budget.total
        );
        for (name, now, before) in budget.grown(&self.counts) {
            let before =
                before.map_or_else(|| "less than 1 %".to_owned(), |count| count.to_string());
            let _ = write!(text, "\n{now:>8}, was {before}: {name}");
        }
        Some(text)
    }

    /// Says that the budget can be lowered, if it can.
    pub(super) fn slack(&self) -> Option<String> {
        let budget = self.budget.as_ref()?;
        let excess = budget.excess(self.counts.total);
        (excess < -TOLERANCE).then(|| {
            format!(
                "{} takes {:.0} instructions, {:.1} % less than its budget of {}: --set-budgets lowers it",
                self.row.name,
                self.counts.total,
                -excess * 100.0,
                budget.total
            )
        })
    }
}

/// Returns true if these counts are over a budget by more than is forgiven.
pub(super) fn is_over(budget: &RowBudget, counts: &InstructionCounts) -> bool {
    budget.excess(counts.total) > TOLERANCE
}

/// Share by which a row may be over its budget.
const TOLERANCE: f64 = 0.03;

/// Formats the table.
pub(super) fn table(outcomes: &[CountedOutcome]) -> String {
    let mut text = format!(
        "{:<11} {:>8} {:>8} {:>8} {:>8} {:>8}  one call is\n",
        "row", "ours", "budget", "target", "MPICH", "Open MPI"
    );
    for outcome in outcomes {
        let CountedOutcome {
            row,
            counts,
            theirs,
            budget,
        } = outcome;
        let known = |count: Option<f64>| {
            count.map_or_else(|| "-".to_owned(), |count| format!("{count:.0}"))
        };
        let budget = budget
            .as_ref()
            .map_or_else(|| "-".to_owned(), |budget| budget.total.to_string());
        let _ = writeln!(
            text,
            "{:<11} {:>8.0} {budget:>8} {:>8} {:>8} {:>8}  {}",
            row.name,
            counts.total,
            known(row.target.map(f64::from)),
            known(theirs[0]),
            known(theirs[1]),
            row.title
        );
    }
    text
}

/// Formats a line of JSON for each row.
pub(super) fn json_lines(outcomes: &[CountedOutcome]) -> String {
    let lines = outcomes.iter().map(|outcome| {
        let budget = outcome.budget.as_ref().map(|budget| budget.total);
        let line = json!({
            "row": outcome.row.name, "title": outcome.row.title, "instructions": outcome.counts.total, "budget": budget,
            "target": outcome.row.target, "mpich": outcome.theirs[0], "openmpi": outcome.theirs[1],
            "functions": outcome.counts.functions,
        });
        format!("{line}\n")
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::{CountedOutcome, InstructionCounts, RowBudget, json_lines, table};
    use crate::instructions::rows::ROWS;

    fn outcome(total: f64) -> CountedOutcome {
        let counts = |total| InstructionCounts {
            total,
            functions: [("engine::turn".to_owned(), total)].into(),
        };
        let budget = RowBudget::of(&counts(1000.0));
        CountedOutcome::new(&ROWS[0], counts(total), [Some(7.0), None], Some(budget))
    }

    #[test]
    fn three_percent_are_forgiven_and_more_is_told_with_the_function() {
        assert_eq!(outcome(1029.0).overrun(), None);
        let why = outcome(1031.0).overrun().unwrap();
        assert!(
            why.contains("3.1 %") && why.contains("1031, was 1000: engine::turn"),
            "{why}"
        );
        let mut unknown = outcome(1.0);
        unknown.budget = None;
        assert!(unknown.overrun().unwrap().contains("no budget"));
    }

    #[test]
    fn a_budget_that_is_too_large_is_told() {
        assert_eq!(outcome(971.0).slack(), None);
        let sentence = outcome(960.0).slack().unwrap();
        assert!(
            sentence.contains("4.0 %") && sentence.contains("--set-budgets"),
            "{sentence}"
        );
    }

    #[test]
    fn a_row_has_all_figures() {
        let rows = [outcome(990.0)];
        let text = table(&rows);
        for word in ["message", " 990 ", " 1000 ", " 500 ", " 7 ", " 1207 "] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let line: serde_json::Value = serde_json::from_str(json_lines(&rows).trim()).unwrap();
        assert_eq!(line["instructions"], 990.0);
        assert_eq!(line["functions"]["engine::turn"], 990.0);
    }
}
