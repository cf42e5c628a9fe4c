//! The tests that need InfiniBand devices, all in one guest.

use std::{
    env,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;

use crate::step::{LongStep, LongStepOutcome, StepRunner, TestTally};

pub(crate) use self::all::run as all;
use self::table::{SUITES, SuiteKind, VmSuite};
use super::{guest::VmGuest, image::VmImage, options::VmOptions, packages};

mod all;
mod matrix;
mod report;
mod self_check;
mod table;

/// Runs the step alone, and shows the output of programs while they run.
pub(crate) fn run(gate: &mut StepRunner) -> Result<(), String> {
    match SuiteGuest::make(&gate.root, SUITES, PROFILE)? {
        Some(bed) => gate.run_counted(NAME, REPEAT, |_, tally| {
            let (outcome, text) = bed.run(tally, io::stdout());
            println!("{}", report::slowest(&text));
            outcome
        }),
        None => Ok(()),
    }
}

/// Tests `cargo xtask vm` itself, alone.
pub(crate) fn run_self_check(gate: &mut StepRunner) -> Result<(), String> {
    gate.run_counted(
        "`cargo xtask vm`",
        "cargo xtask vm-test --itself",
        |_, tally| self_check::check().map(|claims| tally.passed += claims),
    )
}

/// Runs the step beside others; the guest takes one processor.
pub(crate) fn run_beside(
    gate: &mut StepRunner,
    others: impl FnOnce(&mut StepRunner) -> Result<(), String>,
) -> Result<(), String> {
    let Some(bed) = SuiteGuest::make(&gate.root, SUITES, PROFILE)? else {
        return others(gate);
    };
    let long = LongStep {
        name: NAME,
        repeat: REPEAT,
        work: Box::new(move |tally| {
            let (outcome, text) = bed.run(tally, io::sink());
            let slowest = report::slowest(&text);
            (outcome, text + &slowest)
        }),
    };
    gate.run_beside(long, others)
}

/// A guest that can be started, and the programs to run in it.
struct SuiteGuest {
    image: VmImage,
    programs: Vec<SuiteProgram>,
    launcher: PathBuf,
}

impl SuiteGuest {
    /// Builds the test programs here. If no guest can be had, prints the reason and returns `None`; with `CI` set, that is a
    /// failure.
    fn make(root: &Path, suites: &[VmSuite], profile: &str) -> Result<Option<Self>, String> {
        let image = packages::require(&packages::FOR_TESTS).and_then(|()| VmImage::at(root));
        match image {
            Ok(image) => {
                let (programs, launcher) = build(root, suites, profile)?;
                Ok(Some(Self {
                    image,
                    programs,
                    launcher,
                }))
            }
            Err(why) if env::var_os("CI").is_none() => {
                println!("\n==> {NAME}: LEFT OUT: {why}");
                Ok(None)
            }
            Err(why) => Err(why),
        }
    }

    /// Checks `cargo xtask vm` itself, then starts one guest and runs all programs in it. Returns the outcome and the output,
    /// which `show` gets as it comes.
    fn run(&self, tally: &mut TestTally, show: impl Write + Send + 'static) -> LongStepOutcome {
        let itself = self_check::check().map(|claims| tally.passed += claims);
        let (status, text) = self.output(&FOR_GATE, show);
        let outcome = status.and_then(|status| {
            count(&self.programs, &text, tally)?;
            match status {
                0 => Ok(()),
                _ => Err(format!("status {status} in the guest")),
            }
        });
        let outcome = match (itself, outcome) {
            (Err(one), Err(other)) => Err(one + "\n" + &other),
            (itself, outcome) => itself.and(outcome),
        };
        (outcome, text)
    }

    /// Returns the status of all programs in one guest, and their output.
    fn output(
        &self,
        size: &GuestSize,
        show: impl Write + Send + 'static,
    ) -> (Result<u8, String>, String) {
        let printed = CapturedOutput::default();
        let script = script(&self.programs, &self.launcher, size.program);
        let kept = TeeWriter {
            printed: printed.clone(),
            to: show,
        };
        let status = in_guest(&self.image, &script, size, kept);
        (status, printed.text())
    }
}

/// The size of a guest, and the time limits of all programs and of one.
struct GuestSize {
    devices: u32,
    all: Duration,
    program: Duration,
}

/// A suite whose program was built.
#[derive(Debug)]
struct SuiteProgram {
    suite: VmSuite,
    file: PathBuf,
    /// The folder of its package, where cargo would run it.
    folder: PathBuf,
}

impl VmSuite {
    /// Returns the program, if this is cargo's message that it was built.
    fn built(&self, message: &Value) -> Option<SuiteProgram> {
        let target = &message["target"];
        let library = self.package.replace('-', "_");
        let (kind, name, test) = match self.kind {
            SuiteKind::Library => ("lib", library.as_str(), true),
            SuiteKind::Test(name) => ("test", name, true),
            SuiteKind::Example(name) => ("example", name, false),
        };
        let fits = message["profile"]["test"] == test
            && target["kind"].as_array()?.iter().any(|of| of == kind)
            && target["name"] == name;
        let manifest = Path::new(message["manifest_path"].as_str()?);
        let file = message["executable"].as_str()?;
        fits.then(|| SuiteProgram {
            suite: self.clone(),
            file: file.into(),
            folder: manifest.parent().unwrap_or(manifest).to_owned(),
        })
    }
}

/// Builds all programs, and the launcher that starts examples.
fn build(
    root: &Path,
    suites: &[VmSuite],
    profile: &str,
) -> Result<(Vec<SuiteProgram>, PathBuf), String> {
    let tests = suites.iter().flat_map(|suite| match suite.kind {
        SuiteKind::Library => vec!["-p", suite.package, "--lib"],
        SuiteKind::Test(test) => vec!["-p", suite.package, "--test", test],
        SuiteKind::Example(_) => Vec::new(),
    });
    let examples = suites.iter().flat_map(|suite| match suite.kind {
        SuiteKind::Example(name) => vec!["--example", name],
        _ => Vec::new(),
    });
    let tests = [&["test", "--no-run"][..], &tests.collect::<Vec<_>>()].concat();
    let launcher = ["build", "-p", "ripstop", "--bin", "ripstop"];
    let examples = [&launcher[..], &examples.collect::<Vec<_>>()].concat();
    let messages = [
        cargo(root, profile, &tests)?,
        cargo(root, profile, &examples)?,
    ]
    .concat();
    let program = |suite: &VmSuite| {
        let program = messages.iter().find_map(|message| suite.built(message));
        program.ok_or_else(|| format!("cargo built no {}", suite.title()))
    };
    let programs = suites.iter().map(program).collect::<Result<_, _>>()?;
    let launcher = messages.iter().find_map(built_launcher);
    Ok((programs, launcher.ok_or("cargo built no launcher")?))
}

fn built_launcher(message: &Value) -> Option<PathBuf> {
    let target = &message["target"];
    let fits = target["name"] == "ripstop"
        && target["kind"][0] == "bin"
        && message["profile"]["test"] == false;
    let file = message["executable"].as_str()?;
    fits.then(|| file.into())
}

/// Runs cargo, and returns its messages.
fn cargo(root: &Path, profile: &str, words: &[&str]) -> Result<Vec<Value>, String> {
    let output = Command::new("cargo")
        .args(words)
        .args(["--all-features", "--message-format=json"])
        .args(["--profile", profile])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|why| format!("`cargo` does not start: {why}"))?;
    if !output.status.success() {
        return Err("the programs for the guest do not build".to_owned());
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    let messages = lines.lines().map(serde_json::from_str);
    Ok(messages.filter_map(Result::ok).collect())
}

/// Returns a script that runs everything, so that one failure hides no other, and ends with the last bad status. Everything
/// takes about ten times as long as outside, so the time limits of tests are ten times longer.
fn script(programs: &[SuiteProgram], launcher: &Path, limit: Duration) -> String {
    let launcher = format!("'{}' run -n 4 --timeout 600 -- ", launcher.display());
    let runs = programs.iter().map(|program| {
        let VmSuite { kind: what, args, env, .. } = &program.suite;
        let (folder, file) = (program.folder.display(), program.file.display());
        let title = program.suite.title();
        let before = match what {
            SuiteKind::Example(_) => launcher.as_str(),
            SuiteKind::Library | SuiteKind::Test(_) => "",
        };
        format!(
            "cd '{folder}' && run '{title}' env RIPSTOP_VERBS_REQUIRED=1 RIPSTOP_TEST_LIMIT_S=600 {env} {before}'{file}' {args}\n"
        )
    });
    let begin = [
        format!("limit={}\n", limit.as_secs()),
        BEGIN.to_owned(),
        include_str!("../guest/check.sh").to_owned(),
    ];
    let end = [include_str!("../guest/after.sh").to_owned()];
    begin.into_iter().chain(runs).chain(end).collect()
}

/// Runs the script and returns its status; its output goes to `output`.
fn in_guest(
    image: &VmImage,
    script: &str,
    size: &GuestSize,
    output: impl Write + Send + 'static,
) -> Result<u8, String> {
    let options = VmOptions {
        timeout: size.all,
        devices: size.devices,
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        ..VmOptions::default()
    };
    VmGuest::start(image, &options, output)?.status()
}

/// Adds up the tests of all programs, where an example counts as one. A program that ran no test is an error, because a filter
/// that matches nothing must not pass.
fn count(programs: &[SuiteProgram], output: &str, tally: &mut TestTally) -> Result<(), String> {
    for SuiteProgram { suite, .. } in programs {
        let title = suite.title();
        let printed = part(output, &title).ok_or_else(|| format!("{title}: did not run"))?;
        let mut own = TestTally::default();
        match suite.kind {
            SuiteKind::Example(_) => own.passed += u64::from(!printed.contains(BAD_END)),
            // Ranks that are processes run the same program, and end before it.
            SuiteKind::Library | SuiteKind::Test(_) => {
                let last = printed
                    .lines()
                    .rfind(|line| line.starts_with("test result"));
                last.into_iter().for_each(|line| own.add(line));
            }
        }
        if own.passed == 0 {
            return Err(format!("{title}: no test passed"));
        }
        tally.join(own);
    }
    Ok(())
}

/// Returns the output between the head with this title and the next head.
fn part<'a>(output: &'a str, title: &str) -> Option<&'a str> {
    let (_, rest) = output.split_once(&format!("== {title}\n"))?;
    Some(rest.split_once("\n== ").map_or(rest, |(part, _)| part))
}

/// Output so far.
#[derive(Clone, Debug, Default)]
struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

impl CapturedOutput {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A writer that passes output on, and keeps it.
#[derive(Debug)]
struct TeeWriter<W> {
    printed: CapturedOutput,
    to: W,
}

impl<W: Write> Write for TeeWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.printed.bytes().extend_from_slice(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

const NAME: &str = "tests with InfiniBand devices";
/// The default profile of cargo.
const PROFILE: &str = "dev";
const REPEAT: &str = "cargo xtask vm-test";

const BEGIN: &str = "\
status=0
run() {
    echo \"== $1\"
    shift
    began=$(date +%s)
    read -r _ user nice system idle more </proc/stat
    timeout $limit \"$@\" 2>&1 || { status=$?; echo \"ended with status $status\"; }
    echo \"took $(($(date +%s) - began)) s\"
    busy=$((user + nice + system)) rested=$idle
    read -r _ user nice system idle more </proc/stat
    busy=$((user + nice + system - busy)) rested=$((idle - rested))
    echo \"idle $((100 * rested / (busy + rested + 1))) %\"
}
";

/// Starts the line that `run` prints about a program that failed.
const BAD_END: &str = "ended with status";

/// As many devices as most tests have ranks, so that each has one. In emulation, tests that compute take ten times as long as
/// here, and several times longer beside other work. These limits guard against hangs only.
const FOR_GATE: GuestSize = GuestSize {
    devices: 4,
    all: Duration::from_secs(4500),
    program: Duration::from_secs(1800),
};

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use serde_json::json;

    use super::{
        FOR_GATE, Path, SuiteKind, SuiteProgram, TestTally, VmSuite, built_launcher, count, script,
    };

    const MESSAGES: VmSuite = VmSuite {
        package: "ripstop",
        kind: SuiteKind::Test("messages"),
        args: Cow::Borrowed(""),
        env: Cow::Borrowed("RIPSTOP_FABRIC=verbs"),
    };
    const VERBS: VmSuite = VmSuite {
        package: "ripstop-fabric",
        kind: SuiteKind::Library,
        args: Cow::Borrowed("verbs::"),
        env: Cow::Borrowed(""),
    };
    const HALO: VmSuite = VmSuite {
        package: "ripstop",
        kind: SuiteKind::Example("halo"),
        args: Cow::Borrowed("--n 16"),
        env: Cow::Borrowed("RIPSTOP_FABRIC=verbs"),
    };

    fn programs() -> Vec<SuiteProgram> {
        [MESSAGES, VERBS, HALO]
            .map(|suite| SuiteProgram {
                suite,
                file: "/t/program".into(),
                folder: "/w".into(),
            })
            .into()
    }

    fn message(kind: &str, name: &str, test: bool) -> serde_json::Value {
        json!({"reason": "compiler-artifact", "executable": "/t/x", "manifest_path": "/w/Cargo.toml",
            "profile": {"test": test}, "target": {"kind": [kind], "name": name}})
    }

    #[test]
    fn a_program_is_found_among_cargos_messages() {
        let built = MESSAGES.built(&message("test", "messages", true)).unwrap();
        assert_eq!((built.file, built.folder), ("/t/x".into(), "/w".into()));
        let found = |suite: &VmSuite, kind, name, test| suite.built(&message(kind, name, test));
        assert!(found(&VERBS, "lib", "ripstop_fabric", true).is_some());
        assert!(found(&VERBS, "lib", "ripstop_fabric", false).is_none());
        assert!(found(&VERBS, "test", "messages", true).is_none());
        assert!(found(&HALO, "example", "halo", false).is_some());
        assert!(found(&HALO, "example", "halo", true).is_none());
        assert!(VERBS.built(&json!({"reason": "build-finished"})).is_none());
        assert!(built_launcher(&message("bin", "ripstop", false)).is_some());
        assert!(built_launcher(&message("bin", "ripstop", true)).is_none());
    }

    #[test]
    fn every_program_runs_with_its_environment_and_its_arguments() {
        let script = script(&programs(), Path::new("/t/ripstop"), FOR_GATE.program);
        for line in [
            "cd '/w' && run 'ripstop messages RIPSTOP_FABRIC=verbs' env RIPSTOP_VERBS_REQUIRED=1 RIPSTOP_TEST_LIMIT_S=600 ",
            "REQUIRED=1 RIPSTOP_TEST_LIMIT_S=600 RIPSTOP_FABRIC=verbs '/t/program' \n",
            "run 'ripstop-fabric library verbs::' env RIPSTOP_VERBS_REQUIRED=1 RIPSTOP_TEST_LIMIT_S=600  '/t/program' verbs::\n",
            "=verbs '/t/ripstop' run -n 4 --timeout 600 -- '/t/program' --n 16\n",
            "exit $status\n",
        ] {
            assert!(script.contains(line), "{script}");
        }
    }

    #[test]
    fn a_program_that_ran_no_test_does_not_pass() {
        let good = "== ripstop messages RIPSTOP_FABRIC=verbs\n\
            test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
            == ripstop-fabric library verbs::\n\
            test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\n\
            == ripstop example halo RIPSTOP_FABRIC=verbs --n 16\n\
            warm\n";
        let mut tally = TestTally::default();
        count(&programs(), good, &mut tally).unwrap();
        assert_eq!(tally.passed, 6, "processes of one rank do not count");
        for (from, to, title) in [
            ("2 passed", "0 passed", "ripstop-fabric"),
            ("== ripstop-fabric", "= ", "ripstop-fabric"),
            ("warm", "ended with status 1", "halo"),
        ] {
            let why = count(
                &programs(),
                &good.replace(from, to),
                &mut TestTally::default(),
            );
            let why = why.unwrap_err();
            assert!(why.contains(title), "{why}");
        }
    }
}
