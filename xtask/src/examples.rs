//! `cargo xtask examples`: the examples as a user runs them, on 1, 2 and 4 ranks.

use std::path::Path;

use crate::step::{Gate, Task, target_dir};

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

/// The command of the README, word for word, and then all examples as tests are built: quickly, and with all checks.
pub(crate) fn run(gate: &mut Gate) -> Result<(), String> {
    let readme = "run --release -- run -n 4 --example halo";
    let words: Vec<&str> = readme.split(' ').collect();
    gate.run("the example of the README", &Task::cargo(&words))?;
    let words = "build -p ripstop --all-features --bin ripstop --examples";
    let words: Vec<&str> = words.split(' ').collect();
    gate.run("building the examples", &Task::cargo(&words))?;
    let built = target_dir(&gate.root).join("debug");
    for (name, args) in EXAMPLES {
        for ranks in RANKS {
            let name_of_step = format!("example {name}, {ranks} ranks");
            gate.run(&name_of_step, &example(&built, name, args, ranks))?;
        }
    }
    Ok(())
}

fn example(built: &Path, name: &str, args: &[&str], ranks: &str) -> Task {
    let program = built.join("examples").join(name).display().to_string();
    let launch = [
        "run",
        "-n",
        ranks,
        "--timeout",
        "120",
        "--",
        program.as_str(),
    ];
    let words = [&launch, args].concat();
    Task::new(&built.join("ripstop").display().to_string(), &words)
}
