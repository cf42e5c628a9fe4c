//! Runs steps one after the other, each with its name and its time, until one fails.

use std::{
    env, fmt,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

/// Runs steps in the root of the workspace and remembers how they went.
pub(crate) struct StepRunner {
    pub(crate) root: PathBuf,
    pub(crate) tally: TestTally,
    done: Vec<(String, Duration)>,
    /// True while a long step takes one processor: commands must make do with the others.
    beside: bool,
}

/// A step that takes one processor for long, and prints nothing until it ends.
pub(crate) struct LongStep<'a> {
    pub(crate) name: &'a str,
    /// The command that runs it alone.
    pub(crate) repeat: &'a str,
    pub(crate) work: Box<dyn FnOnce(&mut TestTally) -> LongStepOutcome + Send + 'a>,
}

/// The outcome of a long step, and its output.
pub(crate) type LongStepOutcome = (Result<(), String>, String);

/// Tests counted over all runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestTally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

/// A command line.
#[derive(Clone)]
pub(crate) struct CommandLine {
    words: Vec<String>,
    env: Vec<(&'static str, String)>,
    filtered: bool,
}

impl StepRunner {
    /// Runs the steps, then prints the time of each and the number of passed tests.
    pub(crate) fn run_all(steps: fn(&mut Self) -> Result<(), String>) -> Result<(), String> {
        let mut gate = Self {
            root: root(),
            tally: TestTally::default(),
            done: Vec::new(),
            beside: false,
        };
        let outcome = steps(&mut gate);
        gate.summary();
        outcome
    }

    /// Runs a step that is a command.
    pub(crate) fn run(&mut self, name: &str, task: &CommandLine) -> Result<(), String> {
        let task = &self.fitted(task);
        println!("\n==> {name}: {task}");
        let (outcome, took) = timed(|| task.status(&self.root));
        self.close(name, took, &task.to_string(), outcome)
    }

    /// Runs a step that is a `cargo test`, and adds up its counts.
    pub(crate) fn run_tests(&mut self, name: &str, task: &CommandLine) -> Result<(), String> {
        let task = &self.fitted(task);
        println!("\n==> {name}: {task}");
        let (outcome, took) = timed(|| task.status_of_tests(&self.root, &mut self.tally));
        self.close(name, took, &task.to_string(), outcome)
    }

    /// Runs a step that is code of this crate; `repeat` is the command that runs it alone.
    pub(crate) fn run_check(
        &mut self,
        name: &str,
        repeat: &str,
        check: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Result<(), String> {
        println!("\n==> {name}");
        let (outcome, took) = timed(|| check(&self.root));
        self.close(name, took, repeat, outcome)
    }

    /// Like `run_check`, for code that runs tests and counts them.
    pub(crate) fn run_counted(
        &mut self,
        name: &str,
        repeat: &str,
        check: impl FnOnce(&Path, &mut TestTally) -> Result<(), String>,
    ) -> Result<(), String> {
        println!("\n==> {name}");
        let (outcome, took) = timed(|| check(&self.root, &mut self.tally));
        self.close(name, took, repeat, outcome)
    }

    /// Runs a long step and other steps at the same time. Both run to completion, so that no process is left running.
    pub(crate) fn run_beside(
        &mut self,
        long: LongStep<'_>,
        others: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let LongStep { name, repeat, work } = long;
        println!(
            "\n==> {name}: runs beside the steps that follow, and is printed when it has ended"
        );
        self.beside = true;
        let (ended, outcome) = thread::scope(|scope| {
            let running = scope.spawn(|| {
                let mut tally = TestTally::default();
                let (ended, took) = timed(|| work(&mut tally));
                (ended, took, tally)
            });
            let outcome = others(self);
            (running.join(), outcome)
        });
        self.beside = false;
        let Ok(((ended, printed), took, tally)) = ended else {
            return Err(format!("{name} panicked"));
        };
        println!("\n==> {name}\n{printed}");
        self.tally.join(tally);
        match (self.close(name, took, repeat, ended), outcome) {
            (Err(one), Err(other)) => Err(one + "\n" + &other),
            (ended, outcome) => ended.and(outcome),
        }
    }

    fn fitted(&self, task: &CommandLine) -> CommandLine {
        if !self.beside {
            return task.clone();
        }
        let one = ["CARGO_BUILD_JOBS", "RUST_TEST_THREADS"];
        one.iter()
            .fold(task.clone(), |task, name| task.with(name, "1"))
    }

    fn close(
        &mut self,
        name: &str,
        took: Duration,
        repeat: &str,
        outcome: Result<(), String>,
    ) -> Result<(), String> {
        self.done.push((name.to_owned(), took));
        outcome.map_err(|why| {
            let seconds = took.as_secs_f64();
            format!("\nFAILED: {name}, after {seconds:.1} s: {why}\nTo repeat: {repeat}")
        })
    }

    fn summary(&self) {
        println!();
        for (name, took) in &self.done {
            println!("{:>8.1} s  {name}", took.as_secs_f64());
        }
        let TestTally {
            passed,
            failed,
            ignored,
        } = self.tally;
        if self.tally != TestTally::default() {
            println!("{passed} passed, {failed} failed, {ignored} ignored");
        }
    }
}

impl CommandLine {
    /// Returns the command `cargo` with these words.
    pub(crate) fn cargo(words: &[&str]) -> Self {
        Self::new("cargo", words)
    }

    /// Returns the command of a program with these words.
    pub(crate) fn new(program: &str, words: &[&str]) -> Self {
        let words = [program]
            .iter()
            .chain(words)
            .map(ToString::to_string)
            .collect();
        Self {
            words,
            env: Vec::new(),
            filtered: false,
        }
    }

    /// Sets a variable.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Makes a release build take a third of the time, at some cost to its speed. All commands of the gate that need a release
    /// build do this, so they share what is built.
    pub(crate) fn with_fast_release_build(self) -> Self {
        // In a folder of its own, because benchmarks may take what they find in the usual one.
        let target = target_dir(&root()).join("fast").display().to_string();
        self.with("CARGO_PROFILE_RELEASE_LTO", "off")
            .with("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .with("CARGO_TARGET_DIR", target)
    }

    /// Sets these variables, which replace those that were set before.
    pub(crate) fn with_all(self, variables: &[(&'static str, &str)]) -> Self {
        let set = |task: Self, &(name, value): &(&'static str, &str)| task.with(name, value);
        variables.iter().fold(self, set)
    }

    /// Makes this command the last words of another one, with the variables of both.
    pub(crate) fn inside(mut self, outer: &Self) -> Self {
        self.words.splice(0..0, outer.words.iter().cloned());
        self.env.splice(0..0, outer.env.iter().cloned());
        self
    }

    /// Limits the command to some of the tests, by name.
    pub(crate) fn filtered(mut self) -> Self {
        self.filtered = true;
        self
    }

    fn command(&self, root: &Path) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).current_dir(root);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    fn status(&self, root: &Path) -> Result<(), String> {
        let status = self
            .command(root)
            .status()
            .map_err(|why| self.missing(&why))?;
        judge(status)
    }

    fn status_of_tests(&self, root: &Path, tally: &mut TestTally) -> Result<(), String> {
        let mut command = self.command(root);
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|why| self.missing(&why))?;
        let lines = child
            .stdout
            .take()
            .map(lines_of)
            .ok_or("no output to read")?;
        judge(follow(&mut child, &lines, self.filtered, tally)?)
    }

    fn missing(&self, why: &std::io::Error) -> String {
        format!("`{}` does not start: {why}", self.words[0])
    }
}

/// Formats the command as it would be typed in a shell.
impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(value))?;
        }
        let words: Vec<String> = self.words.iter().map(|word| quoted(word)).collect();
        f.write_str(&words.join(" "))
    }
}

impl TestTally {
    pub(crate) fn join(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// Counts a line like `test result: ok. 3 passed; 0 failed; 1 ignored; ..`; any other line adds nothing.
    pub(crate) fn add(&mut self, line: &str) {
        let Some((_, counts)) = line.split_once("test result: ") else {
            return;
        };
        for pair in counts.split([';', '.']) {
            let mut words = pair.split_whitespace();
            let (count, what) = (
                words.next().and_then(|word| word.parse::<u64>().ok()),
                words.next(),
            );
            match (count, what) {
                (Some(count), Some("passed")) => self.passed += count,
                (Some(count), Some("failed")) => self.failed += count,
                (Some(count), Some("ignored")) => self.ignored += count,
                _ => {}
            }
        }
    }
}

/// Returns the folder where cargo builds.
pub(crate) fn target_dir(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// Prints and counts the output until the child ends.
fn follow(
    child: &mut Child,
    lines: &Receiver<String>,
    filtered: bool,
    tally: &mut TestTally,
) -> Result<ExitStatus, String> {
    loop {
        match lines.recv_timeout(LOOK) {
            Ok(line) => {
                println!("{line}");
                // A rank that is a process of its own runs the same test binary with all other tests filtered out. Its result
                // is already counted in that of the binary that started it.
                if filtered || line.contains(" 0 filtered out") {
                    tally.add(&line);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return child.wait().map_err(|why| why.to_string());
            }
            // A process that a test left behind keeps the pipe open, which must not hang the gate.
            Err(RecvTimeoutError::Timeout) => {
                if child.try_wait().map_err(|why| why.to_string())?.is_some() {
                    return Err(
                        "the tests ended, but a process they started is still there".to_owned()
                    );
                }
            }
        }
    }
}

fn lines_of(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender
                .send(String::from_utf8_lossy(&line).into_owned())
                .is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn judge(status: ExitStatus) -> Result<(), String> {
    if status.success() {
        Ok(())
    } else {
        Err(status.to_string())
    }
}

/// Returns what the work returned, and how long it took.
#[expect(clippy::disallowed_methods, reason = "says how long a step took")]
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let outcome = work();
    (outcome, start.elapsed())
}

fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:^,+".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{word}'")
    }
}

pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// Interval at which a silent child is checked for its end.
const LOOK: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
