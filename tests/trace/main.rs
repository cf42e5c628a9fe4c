//! `RIPSTOP_TRACE`, `ripstop trace` and `ripstop profile` with real processes.
//!
//! A rank is this very program: [`roles::a_rank_of_a_job`] takes its role from the environment.

#![expect(
    clippy::unwrap_used,
    reason = "the helpers are part of the tests: what fails in them fails the test"
)]

#[path = "../support/role.rs"]
mod role;

mod browser;
mod events;
mod files;
mod known_programs;
mod outputs;
mod roles;
mod running;
mod spans;

use std::{
    fs::{self, File},
    io::BufReader,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use ripstop_rt::internal::trace::format::TraceContent;
use role::AS_RANK;
use serde_json::Value;

const RIPSTOP: &str = env!("CARGO_BIN_EXE_ripstop");

/// A folder for the files of one test, removed when this is dropped.
struct TraceFolder(PathBuf);

impl TraceFolder {
    fn new(test: &str) -> Self {
        let name = format!("ripstop-trace-{}-{test}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Runs `ranks` ranks with this role, which write traces that begin with `run`.
    fn run(&self, ranks: u32, role: &str) -> Output {
        let trace = self.path("run");
        self.run_with(ranks, role, &[("RIPSTOP_TRACE", trace.to_str().unwrap())])
    }

    fn run_with(&self, ranks: u32, role: &str, variables: &[(&str, &str)]) -> Output {
        self.command(ranks, role, variables).output().unwrap()
    }

    fn command(&self, ranks: u32, role: &str, variables: &[(&str, &str)]) -> Command {
        let mut command = Command::new(RIPSTOP);
        command.args(["run", "-n", &ranks.to_string(), "--timeout", "120", "--"]);
        // A write behind the limit of a file's length fails, instead of killing the rank.
        command.args(["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"]);
        command.arg(std::env::current_exe().unwrap());
        command.args(AS_RANK);
        command
            .env(roles::ROLE, role)
            .envs(variables.iter().copied());
        // What a job that is killed leaves behind is in this folder too.
        command.current_dir(&self.0).env("TMPDIR", &self.0);
        command
    }

    /// Runs the ranks, and fails the test if they fail.
    #[track_caller]
    fn trace(&self, ranks: u32, role: &str) -> PathBuf {
        let output = self.run(ranks, role);
        assert!(output.status.success(), "{}", text_of(&output));
        self.path("run")
    }

    fn content(&self, rank: u32) -> TraceContent {
        let file = File::open(self.path(&format!("run.{rank}"))).unwrap();
        TraceContent::read(BufReader::new(file)).unwrap()
    }
}

impl Drop for TraceFolder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Runs the command `ripstop` with these words.
fn ripstop(words: &[&str], file: &Path) -> Output {
    let mut command = Command::new(RIPSTOP);
    command.args(words).arg(file).output().unwrap()
}

/// Runs the command, and returns the JSON that it prints.
#[track_caller]
fn ripstop_json(words: &[&str], file: &Path) -> Value {
    let output = ripstop(words, file);
    assert!(output.status.success(), "{}", text_of(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns the place of the line of roles.rs with this comment.
fn place(comment: &str) -> String {
    let marked = format!("// {comment}");
    let mut lines = include_str!("roles.rs").lines().zip(1..);
    let (_, number) = lines.find(|(line, _)| line.ends_with(&marked)).unwrap();
    format!("tests/trace/roles.rs:{number}")
}
