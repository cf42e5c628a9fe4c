//! `cargo xtask bench instructions`: the instructions of one call, counted under callgrind.
//!
//! A count is the same on every machine of a kind and in every run, so it can be a gate where a time cannot. That of two ranks
//! varies by some percent with which of them runs when, so what seems to be over its budget is counted again. A row is run
//! twice, the second time with twice as many calls, and the difference is what the calls took: without start and end. The
//! program is `benches/instructions`; it is built as cargo builds a program of a user by default. Only its first thread counts.

use std::{
    env, fs,
    io::{self, IsTerminal, Write},
    path::Path,
    process::Command,
};

use self::budgets::{FILE, InstructionBudgets, RowBudget};
use self::callgrind::InstructionCounts;
use self::options::InstructionOptions;
use self::report::CountedOutcome;
use self::rows::CountedRow;
use crate::{
    programs,
    step::{self, CommandLine, StepRunner},
    test::launchers::{self, MissingLauncher},
};

mod budgets;
mod callgrind;
mod options;
mod peers;
mod report;
mod rows;

/// Counts with the arguments that follow `bench instructions`, and prints the table.
///
/// # Errors
/// An argument is unknown, valgrind is missing, a program does not run, or a row is over its budget.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<(), String> {
    let Some(options) = InstructionOptions::parse(args)? else {
        print!("{}", options::HELP);
        return Ok(());
    };
    let rows = rows::chosen(&options.only)?;
    if options.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    if programs::find(VALGRIND.0).is_none() {
        return Err(format!(
            "valgrind is missing: `sudo apt-get install {}`",
            VALGRIND.1
        ));
    }
    if !options.built {
        build().status(root)?;
    }
    count(root, &rows, &options)
}

/// Counts all rows as a step of the gate.
///
/// # Errors
/// A row is over its budget; or valgrind is missing and cannot be installed, or must not be missing.
pub(crate) fn check(gate: &mut StepRunner, missing: MissingLauncher) -> Result<(), String> {
    launchers::prepare(gate, missing, &[VALGRIND])?;
    if programs::find(VALGRIND.0).is_none() {
        return match env::var_os("CI") {
            Some(_) => Err("valgrind is missing, and with CI set nothing is left out".to_owned()),
            None => Ok(()),
        };
    }
    gate.run(
        "build of the calls whose instructions are counted",
        &build(),
    )?;
    gate.run_check("instructions", "cargo xtask bench instructions", |root| {
        count(root, &rows::chosen(&[])?, &InstructionOptions::default())
    })
}

/// The program that counts, and Debian's package with it.
pub(crate) const VALGRIND: (&str, &str) = ("valgrind", "valgrind");

fn build() -> CommandLine {
    let words = "build --quiet --release -p ripstop-instructions";
    CommandLine::cargo(&words.split(' ').collect::<Vec<_>>())
}

fn count(
    root: &Path,
    rows: &[&'static CountedRow],
    options: &InstructionOptions,
) -> Result<(), String> {
    let folder = step::target_dir(root).join("callgrind");
    fs::create_dir_all(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let mut budgets = InstructionBudgets::read(root)?;
    let tools = tools();
    let peers = if options.peers {
        peers::build(root, &folder)?
    } else {
        Vec::new()
    };
    let mut outcomes = Vec::new();
    for row in rows {
        note(&format!("{} ..", row.name));
        let budget = budgets.rows.get(row.name).cloned();
        let limit = budget.as_ref().filter(|_| !options.set_budgets);
        let ours = least_within(limit, || {
            per_call(&folder, |calls| our_command(root, row.name, calls))
        })?;
        let theirs = peers::count(&peers, row, &folder)?;
        outcomes.push(CountedOutcome::new(row, ours, theirs, budget));
    }
    note("");
    if options.set_budgets {
        for outcome in &mut outcomes {
            let budget = RowBudget::of(&outcome.counts);
            budgets
                .rows
                .insert(outcome.row.name.to_owned(), budget.clone());
            outcome.budget = Some(budget);
        }
        budgets.tools.clone_from(&tools);
        budgets.write(root)?;
    }
    print!("{}", report::table(&outcomes));
    if let Some(file) = &options.json {
        fs::write(file, report::json_lines(&outcomes))
            .map_err(|why| format!("{}: {why}", file.display()))?;
    }
    judge(&outcomes, &budgets.tools, &tools)
}

/// Counts a row, and again while it is over its budget. Returns the least of the counts: what two ranks take depends a little on
/// which of them runs when, and what a change costs shows in each count.
fn least_within(
    limit: Option<&RowBudget>,
    count: impl Fn() -> Result<InstructionCounts, String>,
) -> Result<InstructionCounts, String> {
    let mut least = count()?;
    for _ in 1..COUNTS_MAX {
        if limit.is_none_or(|budget| !report::is_over(budget, &least)) {
            break;
        }
        let again = count()?;
        if again.total < least.total {
            least = again;
        }
    }
    Ok(least)
}

/// Returns an error if a row is over its budget, and prints what else there is to say of budgets.
fn judge(outcomes: &[CountedOutcome], set_with: &str, tools: &str) -> Result<(), String> {
    let says: Vec<String> = outcomes.iter().filter_map(CountedOutcome::slack).collect();
    says.iter().for_each(|sentence| println!("{sentence}"));
    let over: Vec<String> = outcomes
        .iter()
        .filter_map(CountedOutcome::overrun)
        .collect();
    if over.is_empty() {
        return Ok(());
    }
    let other = if set_with == tools {
        String::new()
    } else {
        format!("\nThe budgets were set with other tools: {set_with}; these are {tools}")
    };
    Err(format!(
        "{}{other}\nIf this is what the change is worth, `cargo xtask bench instructions --set-budgets` writes {FILE} anew",
        over.join("\n")
    ))
}

/// Runs a command with two numbers of calls, and returns what a call took.
fn per_call(folder: &Path, command: impl Fn(u32) -> Command) -> Result<InstructionCounts, String> {
    let run = |calls| callgrind::count(&command(calls), &folder.join(format!("out.{calls}")));
    let shorter = run(CALLS)?;
    Ok(run(2 * CALLS)?.per_call(&shorter, CALLS))
}

/// Calls in the shorter run: so many that what happens once in hundreds of calls counts as it should.
const CALLS: u32 = 2000;

fn our_command(root: &Path, row: &str, calls: u32) -> Command {
    let program = step::target_dir(root).join("release/ripstop-instructions");
    let mut command = Command::new(program);
    command.args([row, &calls.to_string()]);
    command.envs(SETTINGS).envs(PLAIN_COPIES);
    command
}

/// Settings without which the counts could depend on the machine.
const SETTINGS: [(&str, &str); 4] = [
    // When an agent looks whether this rank sleeps depends on the load of the machine.
    ("RIPSTOP_PROGRESS", "inline"),
    ("RIPSTOP_FABRIC", "shm"),
    ("RIPSTOP_REACTOR", "epoll"),
    ("RIPSTOP_BOOT", "singleton"),
];

/// Times that a row is counted if it is over its budget.
const COUNTS_MAX: u32 = 3;

/// Keeps the C library from choosing how to copy by the processor's model.
const PLAIN_COPIES: [(&str, &str); 1] = [(
    "GLIBC_TUNABLES",
    "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX_Fast_Unaligned_Load,-AVX512F,-AVX512VL,-ERMS,-FSRM,-SSSE3,-SSE4_1,-SSE4_2",
)];

/// Names what the counts depend on besides the sources.
fn tools() -> String {
    let says = |program: &str, word: &str| {
        let output = Command::new(program).arg(word).output().ok();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let line = text.as_deref().and_then(|text| text.lines().next());
        line.unwrap_or("unknown").to_owned()
    };
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    [
        env::consts::ARCH.to_owned(),
        says(&rustc, "--version"),
        says("getconf", "GNU_LIBC_VERSION"),
    ]
    .join(", ")
}

/// Tells a waiting user what is going on, in one line that is written over and over; nothing in a pipe.
fn note(text: &str) {
    let mut out = io::stderr();
    if out.is_terminal() {
        let _ = write!(out, "\r\x1b[K{text}").and_then(|()| out.flush());
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{InstructionCounts, RowBudget, least_within};

    fn counts(total: f64) -> InstructionCounts {
        InstructionCounts {
            total,
            functions: [("engine::turn".to_owned(), total)].into(),
        }
    }

    #[test]
    fn a_row_over_its_budget_is_counted_thrice_and_the_least_count_is_taken() {
        let budget = RowBudget::of(&counts(1000.0));
        for (limit, totals, least, times) in [
            (None, [1040.0, 0.0, 0.0], 1040.0, 1),
            (Some(&budget), [1029.0, 0.0, 0.0], 1029.0, 1),
            (Some(&budget), [1040.0, 1020.0, 0.0], 1020.0, 2),
            (Some(&budget), [1050.0, 1040.0, 1045.0], 1040.0, 3),
        ] {
            let done = Cell::new(0);
            let count = || {
                let total = totals[done.replace(done.get() + 1)];
                Ok(counts(total))
            };
            let taken = least_within(limit, count).unwrap();
            assert_eq!((taken.total, done.get()), (least, times));
        }
    }
}
