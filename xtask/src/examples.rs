//! `cargo xtask examples`: runs the examples on 1, 2 and 4 ranks, as a user would.

use std::{fs, path::Path};

use crate::step::{CommandLine, StepRunner, target_dir};

/// Names of the examples, and arguments that make the run short.
const EXAMPLES: [(&str, &[&str]); 27] = [
    ("hello", &[]),
    ("ring", &["--seconds", "0.2"]),
    ("halo", &["--n", "16", "--steps", "20"]),
    (
        "awp",
        &["--n", "16", "--steps", "20", "--mode", "all", "--check"],
    ),
    ("p3dfft", &["--n", "24", "--vars", "2", "--iters", "3"]),
    ("any_source_server", &[]),
    ("as_they_come", &[]),
    ("checkpoint", &[CHECKPOINT]),
    ("complex_transpose", &[]),
    ("gather_ragged", &[]),
    ("heat_line", &[]),
    ("master_worker", &[]),
    ("node_table", &[]),
    ("persistent", &[]),
    ("pingpong", &[]),
    ("probe_length", &[]),
    ("progress", &[]),
    ("pscw_ring", &[]),
    ("rayon_threads", &[]),
    ("reduce_struct", &[]),
    ("select_timeout", &[]),
    ("task_tree", &[]),
    ("tokio_task", &[]),
    ("user_spans", &[]),
    ("values", &[]),
    ("work_counter", &[]),
    ("write_one_file", &["numbers.bin"]),
];

/// The file from which the run with each number of ranks continues after the run before it.
const CHECKPOINT: &str = "checkpoint.bin";

const RANKS: [&str; 3] = ["1", "2", "4"];

/// Runs the command of the README, and all examples.
pub(crate) fn run(gate: &mut StepRunner) -> Result<(), String> {
    run_of_readme(gate)?;
    run_all(gate)
}

/// Runs the command of the README, word for word, as a user would: the example is built as in an empty folder, without
/// optimizations. A folder of its own also keeps this long build from holding up the steps beside it, which take turns with
/// builds in their folder.
pub(crate) fn run_of_readme(gate: &mut StepRunner) -> Result<(), String> {
    let readme = "ripstop run -n 4 --example halo -- --n 32 --steps 200";
    let words: Vec<&str> = readme.split(' ').collect();
    let folder = target_dir(&gate.root).join("first-run");
    let command = CommandLine::cargo(&words)
        .with("CARGO_TARGET_DIR", folder.display().to_string())
        .with("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    gate.run("the example of the README", &command)
}

/// Builds all examples like tests, quickly and with all checks, and runs them.
pub(crate) fn run_all(gate: &mut StepRunner) -> Result<(), String> {
    let words = "build -p ripstop --all-features --bin ripstop --examples";
    let words: Vec<&str> = words.split(' ').collect();
    gate.run("building the examples", &CommandLine::cargo(&words))?;
    let built = target_dir(&gate.root).join("debug");
    // The first number of ranks begins without a checkpoint.
    let _ = fs::remove_file(built.join("examples").join(CHECKPOINT));
    for (name, args) in EXAMPLES {
        let args: Vec<String> = args.iter().map(|arg| in_folder(&built, arg)).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        for ranks in RANKS {
            let name_of_step = format!("example {name}, {ranks} ranks");
            gate.run(&name_of_step, &example(&built, name, &args, ranks))?;
        }
    }
    draw(gate, &built)
}

/// Runs an example with the outputs that people do not read as text, JSON lines and a picture, and checks the picture.
fn draw(gate: &mut StepRunner, built: &Path) -> Result<(), String> {
    let picture = built.join("examples/p3dfft.png");
    let path = picture.display().to_string();
    // A picture of an earlier run does not count.
    let _ = fs::remove_file(&picture);
    let args = ["--n", "24", "--iters", "1", "--json", "--png", &path];
    let name = "example p3dfft, a picture";
    gate.run(name, &example(built, "p3dfft", &args, "2"))?;
    gate.run_check("the picture", "cargo xtask examples", |_| {
        let bytes = fs::read(&picture).map_err(|why| format!("{path}: {why}"))?;
        let is_png = bytes.starts_with(b"\x89PNG") && bytes.ends_with(b"IEND\xae\x42\x60\x82");
        is_png
            .then_some(())
            .ok_or_else(|| format!("{path}: no picture"))
    })
}

/// Returns the argument; if it is the name of a file that an example writes, with the folder of the examples.
fn in_folder(built: &Path, arg: &str) -> String {
    if arg.ends_with(".bin") {
        return built.join("examples").join(arg).display().to_string();
    }
    arg.to_owned()
}

fn example(built: &Path, name: &str, args: &[&str], ranks: &str) -> CommandLine {
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
    CommandLine::new(&built.join("ripstop").display().to_string(), &words)
}
