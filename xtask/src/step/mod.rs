//! Runs steps one after the other, each with its name and its time, until one fails; or in lanes beside each other.

use std::{
    env, fmt,
    io::{BufRead, BufReader, Read, pipe},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

mod failures;

use failures::FailureLines;

/// Runs steps in the root of the workspace and remembers how they went.
pub(crate) struct StepRunner {
    pub(crate) root: PathBuf,
    pub(crate) tally: TestTally,
    done: Vec<(String, Duration)>,
    lane: StepLane,
    output: StepOutput,
}

/// What else runs while steps run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepLane {
    /// Nothing: commands have all processors.
    Alone,
    /// A long step takes one processor: commands must make do with the others.
    Beside,
    /// Other steps, too, which go before: commands take the processors that those leave idle.
    Behind,
}

/// The place where the output of steps goes.
#[derive(Debug)]
enum StepOutput {
    Printed,
    /// Output of a lane, which is printed when the lane has ended.
    Kept(String),
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
            lane: StepLane::Alone,
            output: StepOutput::Printed,
        };
        let outcome = steps(&mut gate);
        gate.summary();
        outcome
    }

    /// Runs a step that is a command.
    pub(crate) fn run(&mut self, name: &str, task: &CommandLine) -> Result<(), String> {
        let task = &self.fitted(task);
        self.begin(name, Some(task));
        let (outcome, took) = timed(|| task.status_into(&self.root, &mut self.output));
        self.close(name, took, &task.to_string(), outcome)
    }

    /// Runs a step that is a `cargo test`, and adds up its counts.
    pub(crate) fn run_tests(&mut self, name: &str, task: &CommandLine) -> Result<(), String> {
        let task = &self.fitted(task);
        self.begin(name, Some(task));
        let (outcome, took) =
            timed(|| task.status_of_tests(&self.root, &mut self.output, &mut self.tally));
        self.close(name, took, &task.to_string(), outcome)
    }

    /// Runs a step that is code of this crate; `repeat` is the command that runs it alone.
    pub(crate) fn run_check(
        &mut self,
        name: &str,
        repeat: &str,
        check: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Result<(), String> {
        self.begin(name, None);
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
        self.begin(name, None);
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
        self.lane = StepLane::Beside;
        let (ended, outcome) = thread::scope(|scope| {
            let running = scope.spawn(|| {
                let mut tally = TestTally::default();
                let (ended, took) = timed(|| work(&mut tally));
                (ended, took, tally)
            });
            let outcome = others(self);
            (running.join(), outcome)
        });
        self.lane = StepLane::Alone;
        let Ok(((ended, printed), took, tally)) = ended else {
            return Err(format!("{name} panicked"));
        };
        println!("\n==> {name}\n{printed}");
        let ended = ended.map_err(|why| FailureLines::of(&printed).under(&why));
        self.tally.join(tally);
        let ended = self.close(name, took, repeat, ended);
        both(ended, outcome)
    }

    /// Runs the steps of `behind` on the processors that the steps of `ahead` leave idle. Both run to their ends, and the output
    /// of `behind` is printed then.
    pub(crate) fn run_behind(
        &mut self,
        behind: impl FnOnce(&mut Self) -> Result<(), String> + Send,
        ahead: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut lane = Self {
            root: self.root.clone(),
            tally: TestTally::default(),
            done: Vec::new(),
            lane: StepLane::Behind,
            output: StepOutput::Kept(String::new()),
        };
        let (ended, outcome) = thread::scope(|scope| {
            let running = scope.spawn(|| {
                let ended = behind(&mut lane);
                (lane, ended)
            });
            let outcome = ahead(self);
            (running.join(), outcome)
        });
        let Ok((lane, ended)) = ended else {
            return both(Err("steps behind others panicked".to_owned()), outcome);
        };
        if let StepOutput::Kept(printed) = lane.output {
            println!("{printed}");
        }
        self.tally.join(lane.tally);
        self.done.extend(lane.done);
        both(ended, outcome)
    }

    /// Says which step begins. A lane says it at once, because its output comes later.
    fn begin(&mut self, name: &str, task: Option<&CommandLine>) {
        let task = task.map_or_else(String::new, |task| format!(": {task}"));
        self.output.line(&format!("\n==> {name}{task}"));
        if self.lane == StepLane::Behind {
            println!("\n==> {name}: begins behind other steps, and is printed after them");
        }
    }

    fn fitted(&self, task: &CommandLine) -> CommandLine {
        let (nice, jobs, tests) = match self.lane {
            StepLane::Alone => return task.clone(),
            // Ranks wait for each other most of the time, so that a second test finds a processor.
            StepLane::Beside => ("5", "1", "2"),
            // The others end earlier, and leave two processors idle.
            StepLane::Behind => ("15", "2", "1"),
        };
        task.clone()
            .with("CARGO_BUILD_JOBS", jobs)
            .with("RUST_TEST_THREADS", tests)
            .inside(&CommandLine::new("nice", &["-n", nice]))
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

impl StepOutput {
    fn line(&mut self, line: &str) {
        match self {
            Self::Printed => println!("{line}"),
            Self::Kept(lines) => {
                lines.push_str(line);
                lines.push('\n');
            }
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

    /// Adds further words.
    pub(crate) fn with_words(mut self, words: &[&str]) -> Self {
        self.words.extend(words.iter().map(ToString::to_string));
        self
    }

    /// Sets a variable.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
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

    /// Runs the command to its end, with its output where the step's output belongs.
    fn status_into(&self, root: &Path, output: &mut StepOutput) -> Result<(), String> {
        match output {
            StepOutput::Printed => self.status(root),
            StepOutput::Kept(_) => self.status_of_tests(root, output, &mut TestTally::default()),
        }
    }

    /// Runs the command to its end.
    pub(crate) fn status(&self, root: &Path) -> Result<(), String> {
        let status = self
            .command(root)
            .status()
            .map_err(|why| self.missing(&why))?;
        judge(status)
    }

    fn status_of_tests(
        &self,
        root: &Path,
        output: &mut StepOutput,
        tally: &mut TestTally,
    ) -> Result<(), String> {
        let (reader, writer) = pipe().map_err(|why| format!("no pipe for output: {why}"))?;
        let mut command = self.command(root);
        if let StepOutput::Kept(_) = output {
            let errors = writer.try_clone();
            command.stderr(errors.map_err(|why| format!("no pipe for errors: {why}"))?);
        }
        command.stdout(writer);
        let mut child = command.spawn().map_err(|why| self.missing(&why))?;
        // The command holds the ends where its output is written, and the lines end when all such ends are closed.
        drop(command);
        let mut failures = FailureLines::default();
        let status = follow(&mut child, &lines_of(reader), |line| {
            output.line(line);
            failures.look_at(line);
            // A rank that is a process of its own runs the same test binary with all other tests filtered out. Its result is
            // already counted in that of the binary that started it.
            if self.filtered || line.contains(" 0 filtered out") {
                tally.add(line);
            }
        })?;
        judge(status).map_err(|why| failures.under(&why))
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

/// Cargo's profile for programs whose speed is measured, and the name of its folder among what cargo builds.
pub(crate) const MEASURED_PROFILE: &str = "release-lto";

/// Returns the folder where cargo builds.
pub(crate) fn target_dir(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// Passes the lines of the output on until the child ends.
fn follow(
    child: &mut Child,
    lines: &Receiver<String>,
    mut heard: impl FnMut(&str),
) -> Result<ExitStatus, String> {
    loop {
        match lines.recv_timeout(LOOK) {
            Ok(line) => heard(&line),
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

/// Returns the failures of both, or of one.
fn both(one: Result<(), String>, other: Result<(), String>) -> Result<(), String> {
    match (one, other) {
        (Err(one), Err(other)) => Err(one + "\n" + &other),
        (one, other) => one.and(other),
    }
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
