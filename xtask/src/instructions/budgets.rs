//! The file of budgets: what each row may take, and which functions took it when the budget was set.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use super::callgrind::InstructionCounts;

/// Where the budgets are, from the root of the workspace.
pub(super) const FILE: &str = "benches/instructions/budgets.txt";

/// Budgets of all rows, and the tools that made the counted program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InstructionBudgets {
    /// What the counts depend on: processor, compiler and C library.
    pub(super) tools: String,
    pub(super) rows: BTreeMap<String, RowBudget>,
}

/// The budget of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowBudget {
    pub(super) total: u64,
    /// Instructions of each function that has its share of them, without its callees.
    pub(super) functions: BTreeMap<String, u64>,
}

impl InstructionBudgets {
    /// Reads the file of this workspace; none are set if it is not there.
    ///
    /// # Errors
    /// The file cannot be read, or has a line of another form.
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let file = root.join(FILE);
        if !file.exists() {
            return Ok(Self::default());
        }
        let text = fs::read_to_string(&file).map_err(|why| format!("{FILE}: {why}"))?;
        Self::parse(&text)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&self, root: &Path) -> Result<(), String> {
        fs::write(root.join(FILE), self.text()).map_err(|why| format!("{FILE}: {why}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut budgets = Self::default();
        let mut row = None;
        for (line, at) in text.lines().zip(1..) {
            let strange = || format!("{FILE}:{at}: expected a number and a name ({line})");
            if let Some(tools) = line.strip_prefix("tools: ") {
                tools.clone_into(&mut budgets.tools);
            } else if !line.is_empty() && !line.starts_with('#') {
                let (count, name) = line.trim().split_once(' ').ok_or_else(strange)?;
                let count = count.parse().map_err(|_| strange())?;
                if line.starts_with(' ') {
                    let open = row.and_then(|row: &str| budgets.rows.get_mut(row));
                    let functions = &mut open.ok_or_else(strange)?.functions;
                    functions.insert(name.to_owned(), count);
                } else {
                    budgets.rows.entry(name.to_owned()).or_default().total = count;
                    row = Some(name);
                }
            }
        }
        Ok(budgets)
    }

    fn text(&self) -> String {
        let mut text = format!("{HEAD}tools: {}\n", self.tools);
        for (name, row) in &self.rows {
            let _ = write!(text, "\n{} {name}\n", row.total);
            let mut functions: Vec<_> = row.functions.iter().collect();
            functions.sort_by_key(|(name, count)| (u64::MAX - **count, *name));
            for (function, count) in functions {
                let _ = writeln!(text, "{count:>8} {function}");
            }
        }
        text
    }
}

const HEAD: &str = "\
# Instructions of one call of each row, and of the functions in it: `cargo xtask bench instructions --set-budgets` writes this.
";

impl RowBudget {
    /// Makes a budget of what was counted.
    pub(super) fn of(counts: &InstructionCounts) -> Self {
        let functions = counts.functions.iter();
        let large = functions.filter(|(_, count)| **count >= counts.total * SHARE_MIN);
        Self {
            total: rounded(counts.total),
            functions: large
                .map(|(name, count)| (name.clone(), rounded(*count)))
                .collect(),
        }
    }

    /// Returns how far a count is above this budget, as a share of it.
    pub(super) fn excess(&self, total: f64) -> f64 {
        let budget = self.as_float().max(1.0);
        total / budget - 1.0
    }

    /// Returns the functions that have grown, with what they take and took, the one that grew most first.
    pub(super) fn grown(&self, counts: &InstructionCounts) -> Vec<(String, u64, Option<u64>)> {
        let now = Self::of(counts).functions;
        let mut grown: Vec<_> = now
            .into_iter()
            .map(|(name, count)| {
                let before = self.functions.get(&name).copied();
                (name, count, before)
            })
            .filter(|(_, count, before)| before.is_none_or(|before| *count > before))
            .collect();
        grown.sort_by_key(|(_, count, before)| u64::MAX - (count - before.unwrap_or_default()));
        grown.truncate(10);
        grown
    }

    fn as_float(&self) -> f64 {
        u32::try_from(self.total).map_or(f64::MAX, f64::from)
    }
}

/// Share of a row's instructions below which a function is not listed.
const SHARE_MIN: f64 = 0.01;

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of instructions of one call, which is not negative"
)]
fn rounded(count: f64) -> u64 {
    count.round() as u64
}

#[cfg(test)]
mod tests {
    use super::{InstructionBudgets, InstructionCounts, RowBudget};

    fn counts(total: f64, functions: &[(&str, f64)]) -> InstructionCounts {
        let functions = functions
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count));
        InstructionCounts {
            total,
            functions: functions.collect(),
        }
    }

    #[test]
    fn a_file_of_budgets_is_read_as_it_was_written() {
        let put = RowBudget::of(&counts(
            300.4,
            &[("a::b<c, d>", 200.0), ("e", 99.6), ("tiny", 2.0)],
        ));
        assert_eq!(
            put.functions.len(),
            2,
            "what is below one percent is left out"
        );
        let mut budgets = InstructionBudgets {
            tools: "a compiler".to_owned(),
            ..InstructionBudgets::default()
        };
        budgets.rows.insert("put".to_owned(), put);
        budgets.rows.insert("pscw".to_owned(), RowBudget::default());
        assert_eq!(InstructionBudgets::parse(&budgets.text()), Ok(budgets));
    }

    #[test]
    fn a_strange_line_is_named() {
        for (text, line) in [("12\n", ":1:"), ("\n  3 f\n", ":2:"), ("x put\n", ":1:")] {
            let why = InstructionBudgets::parse(text).unwrap_err();
            assert!(why.contains(line), "{why}");
        }
    }

    #[test]
    fn growth_is_that_of_functions_and_the_greatest_comes_first() {
        let budget = RowBudget::of(&counts(
            100.0,
            &[("same", 50.0), ("less", 30.0), ("more", 20.0)],
        ));
        let now = counts(
            130.0,
            &[
                ("same", 50.0),
                ("less", 20.0),
                ("more", 25.0),
                ("new", 35.0),
            ],
        );
        assert!((budget.excess(now.total) - 0.3).abs() < 1e-9);
        let grown = budget.grown(&now);
        assert_eq!(
            grown,
            [
                ("new".to_owned(), 35, None),
                ("more".to_owned(), 25, Some(20))
            ]
        );
    }
}
