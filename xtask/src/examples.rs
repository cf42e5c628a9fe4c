//! `cargo xtask examples`: the examples as a user runs them, on 1, 2 and 4 ranks.

use crate::step::{Gate, Task};

/// Names, and arguments that make the run short.
const EXAMPLES: [(&str, &[&str]); 5] = [
    ("hello", &[]),
    ("ring", &["--seconds", "0.2"]),
    ("halo", &["--n", "16", "--steps", "20"]),
    (
        "awp",
        &["--n", "16", "--steps", "20", "--mode", "all", "--check"],
    ),
    ("p3dfft", &["--n", "24", "--vars", "2", "--iters", "3"]),
];

const RANKS: [&str; 3] = ["1", "2", "4"];

pub(crate) fn run(gate: &mut Gate) -> Result<(), String> {
    for (name, args) in EXAMPLES {
        for ranks in RANKS {
            gate.run(
                &format!("example {name}, {ranks} ranks"),
                &example(name, args, ranks),
            )?;
        }
    }
    Ok(())
}

fn example(name: &str, args: &[&str], ranks: &str) -> Task {
    let launch = [
        "run",
        "--release",
        "--quiet",
        "--",
        "run",
        "-n",
        ranks,
        "--timeout",
        "120",
        "--example",
        name,
    ];
    let mut words = launch.to_vec();
    if !args.is_empty() {
        words.push("--");
        words.extend(args);
    }
    Task::cargo(&words)
}
