//! Runs a program under callgrind, and reads how many instructions its first thread has executed in which function.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Instructions of a thread, or of one call: all of them, and those of each function without its callees.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct InstructionCounts {
    pub(super) total: f64,
    pub(super) functions: BTreeMap<String, f64>,
}

impl InstructionCounts {
    /// Returns what each of `calls` calls took that this run had and the other one did not.
    pub(super) fn per_call(&self, shorter: &Self, calls: u32) -> Self {
        let each = |longer: f64, shorter: f64| (longer - shorter) / f64::from(calls);
        let functions = self.functions.iter().map(|(name, count)| {
            let before = shorter.functions.get(name).copied().unwrap_or_default();
            (name.clone(), each(*count, before))
        });
        Self {
            total: each(self.total, shorter.total),
            // What a start does differently each time, such as a hash with another seed, is far below this.
            functions: functions.filter(|(_, count)| *count >= 0.5).collect(),
        }
    }
}

/// Runs a command under callgrind, and returns what its first thread has executed.
///
/// # Errors
/// The command fails, or callgrind writes something else.
pub(super) fn count(command: &Command, out: &Path) -> Result<InstructionCounts, String> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(OPTIONS);
    valgrind.arg(format!("--callgrind-out-file={}", out.display()));
    valgrind.arg(command.get_program()).args(command.get_args());
    // The counts depend on the environment: settings, and the variant of a copy that the C library chooses.
    valgrind.env_clear().stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            valgrind.env(name, value);
        }
    }
    let output = valgrind
        .output()
        .map_err(|why| format!("`valgrind` does not start: {why}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{valgrind:?}: {}\n{said}", output.status));
    }
    // Each thread has a file of its own, with its number behind the name.
    let file = PathBuf::from(format!("{}-01", out.display()));
    let text = fs::read_to_string(&file).map_err(|why| format!("{}: {why}", file.display()))?;
    parse(&text).ok_or_else(|| format!("{}: callgrind wrote a line of a new kind", file.display()))
}

const OPTIONS: [&str; 8] = [
    "--tool=callgrind",
    "--quiet",
    "--separate-threads=yes",
    // Otherwise a thread that wakes up may run many times before the first one goes on.
    "--fair-sched=yes",
    // Ranks that connect wait for each other, and how long depends on the system.
    "--toggle-collect=*::pair::connect*",
    "--collect-atstart=yes",
    "--dump-line=no",
    "--compress-strings=no",
];

/// Reads a dump. Its lines name a function, say what that executed itself, and after `calls=` what a callee took.
fn parse(dump: &str) -> Option<InstructionCounts> {
    let mut counts = InstructionCounts::default();
    let (mut function, mut callee, mut is_call) = (String::new(), "", false);
    for line in dump.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            function = tidied(name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            callee = name;
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let count = line
                .split(' ')
                .nth(1)
                .map_or(Some(0.0), |count| count.parse().ok())?;
            if !is_call {
                counts.total += count;
                *counts.functions.entry(function.clone()).or_default() += count;
            } else if is_uncounted(callee) {
                counts.total -= count;
            }
            is_call = false;
        }
    }
    Some(counts)
}

/// Returns true for functions of the program that are no part of a row.
fn is_uncounted(function: &str) -> bool {
    function.contains("RankTurns::give") || function.contains("RankTurns::take")
}

/// Returns a function's name without what changes with each build: the hash of its crate, and the number of a recursion.
fn tidied(name: &str) -> String {
    let name = name.split('\'').next().unwrap_or(name);
    let hash = name.rsplit_once("::h");
    let is_hash = |(_, hash): &(&str, &str)| {
        hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    hash.filter(is_hash)
        .map_or(name, |(name, _)| name)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::{InstructionCounts, parse, tidied};

    const DUMP: &str = "\
version: 1
events: Ir
summary: 1000

fn=program::main
0 100
cfn=library::send
calls=2 0
0 40
cfn=program::pair::RankTurns::give
calls=2 0
0 30

fn=library::send
+0 40

fn=program::pair::RankTurns::give
0 30
";

    #[test]
    fn a_function_has_its_own_instructions_and_handing_over_is_left_out() {
        let counts = parse(DUMP).unwrap();
        assert!((counts.total - 140.0).abs() < 1e-9, "{counts:?}");
        assert!((counts.functions["program::main"] - 100.0).abs() < 1e-9);
        assert!((counts.functions["library::send"] - 40.0).abs() < 1e-9);
        assert_eq!(parse("fn=f\n0 many\n"), None);
    }

    #[test]
    fn a_call_is_the_difference_of_two_lengths() {
        let shorter = parse(DUMP).unwrap();
        let longer = parse(&DUMP.replace("+0 40", "+0 60")).unwrap();
        let call = longer.per_call(&shorter, 10);
        assert!((call.total - 2.0).abs() < 1e-9, "{call:?}");
        assert_eq!(call.functions.len(), 1, "the others did not grow");
        let same = shorter.per_call(&shorter, 10);
        assert_eq!(same, InstructionCounts::default());
    }

    #[test]
    fn names_are_the_same_after_the_next_build() {
        assert_eq!(tidied("a::b::h0123456789abcdef"), "a::b");
        assert_eq!(tidied("a::b'2"), "a::b");
        assert_eq!(tidied("a::hash"), "a::hash");
    }
}
