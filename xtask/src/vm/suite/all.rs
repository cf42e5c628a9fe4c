//! `cargo xtask vm-test --all`: runs the whole matrix, by hand.

use std::{
    env,
    io::{self, Write},
    path::Path,
    time::Duration,
};

use super::{
    GuestSize, PROFILE, SuiteGuest,
    matrix::{SuiteFilter, SuiteRun, names, select_runs},
    report::{SuiteRow, head},
};

const HELP: &str = "\
cargo xtask vm-test [--itself | --all [OPTION..]]

Without --all: the tests that need InfiniBand devices as the gate runs them, which takes minutes. With it: every suite, with
all ranks on one device and with each on its own across the wire, with io_uring and with epoll, in one virtual machine with
eight devices. That takes hours where the machine is emulated, so it may be split. With --itself: what `cargo xtask vm` promises
(status, output, time limit, nothing left), which the gate looks at, too.

  --only SUITE,..     some suites; SUITE::FILTER runs those tests of it that have FILTER in their names
  --devices WHICH     one, across; `own` marks suites that choose their devices themselves
  --reactor WHICH     uring, epoll; `-` marks drivers, which sleep without a reactor
  --timeout S         seconds that all of it may take (default 36000); runs in progress are then ended and not counted
  --program S         seconds that one program may take (default 3600)
  --profile NAME      cargo's: dev (default), or release, which is built in minutes and runs faster
  --list              says what would run, and runs nothing
  --json              the table as lines of JSON on the output, and what programs print on the error output

CASES, CYCLES, GUARD_S, KILLS, ROUNDS, SEED and SLEEPS are passed on to the tests that use them.

Exit status: 0 when all that was asked for ran and passed.";

/// Runs what the arguments after `vm-test` name.
///
/// # Errors
/// A sentence saying what to do: an unknown argument, a guest that did not start, runs that did not pass.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<(), String> {
    let Some(asked) = SuiteArgs::parse(args)? else {
        println!("{HELP}\n\nSuites: {}", names());
        return Ok(());
    };
    let mut cells = select_runs(&asked.wish)?;
    cells.iter_mut().try_for_each(override_by_environment)?;
    if asked.list {
        for SuiteRun {
            name,
            devices,
            reactor,
            suite,
        } in cells
        {
            println!("{name} {devices} {reactor}: {} {}", suite.env, suite.args);
        }
        return Ok(());
    }
    let suites: Vec<_> = cells.iter().map(|cell| cell.suite.clone()).collect();
    let Some(bed) = SuiteGuest::make(root, &suites, &asked.profile)? else {
        return Err("there is no guest".to_owned());
    };
    let show: Box<dyn Write + Send> = if asked.json {
        Box::new(io::stderr())
    } else {
        Box::new(io::stdout())
    };
    let size = GuestSize {
        devices: DEVICES,
        all: asked.all,
        program: asked.program,
    };
    let (status, output) = bed.output(&size, show);
    let rows: Vec<SuiteRow> = cells
        .into_iter()
        .map(|cell| {
            let title = cell.suite.title();
            SuiteRow::read(cell, &title, &output)
        })
        .collect();
    print(&rows, asked.json);
    judge(status, &rows, &output)
}

/// Returns a variable: one that was set for the command overrides the table's.
///
/// # Errors
/// Names a variable whose value is no number, because it goes into a script.
fn override_by_environment(cell: &mut SuiteRun) -> Result<(), String> {
    for name in ALONG {
        let Ok(value) = env::var(name) else {
            continue;
        };
        if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(format!("{name}={value}: give a number"));
        }
        let env = &mut cell.suite.env;
        *env = format!("{env} {name}={value}")
            .trim_start()
            .to_owned()
            .into();
    }
    Ok(())
}

fn print(rows: &[SuiteRow], json: bool) {
    if json {
        rows.iter().for_each(|row| println!("{}", row.json()));
        return;
    }
    println!("\n{}", head());
    rows.iter().for_each(|row| println!("{row}"));
}

fn judge(status: Result<u8, String>, rows: &[SuiteRow], output: &str) -> Result<(), String> {
    let bad = rows.iter().filter(|row| !row.all_passed()).count();
    if bad > 0 {
        return Err(format!("{bad} of {} runs did not pass", rows.len()));
    }
    match status? {
        0 => Ok(()),
        // Checks made before and after all programs.
        other => {
            let last: Vec<&str> = output.lines().rev().take(3).collect();
            Err(format!("status {other} in the guest: {last:?}"))
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SuiteArgs {
    wish: SuiteFilter,
    all: Duration,
    program: Duration,
    profile: String,
    list: bool,
    json: bool,
}

impl SuiteArgs {
    /// Parses the arguments; `None` if help was asked for.
    fn parse(args: &[String]) -> Result<Option<Self>, String> {
        let mut asked = Self {
            wish: SuiteFilter::default(),
            all: Duration::from_secs(36_000),
            program: Duration::from_secs(3600),
            profile: PROFILE.to_owned(),
            list: false,
            json: false,
        };
        let mut all = false;
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--help" | "-h" => return Ok(None),
                "--all" => all = true,
                "--list" => asked.list = true,
                "--json" => asked.json = true,
                option => {
                    let value = args
                        .next()
                        .ok_or_else(|| format!("{option} is unknown or needs a value\n\n{HELP}"))?;
                    asked.set(option, value)?;
                }
            }
        }
        if all {
            Ok(Some(asked))
        } else {
            Err(format!("options are for --all\n\n{HELP}"))
        }
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), String> {
        match option {
            "--only" => self.wish.only.extend(value.split(',').map(str::to_owned)),
            "--devices" => self.wish.devices = Some(value.to_owned()),
            "--reactor" => self.wish.reactor = Some(value.to_owned()),
            "--timeout" => self.all = seconds(option, value)?,
            "--program" => self.program = seconds(option, value)?,
            "--profile" => value.clone_into(&mut self.profile),
            _ => return Err(format!("unknown option {option}\n\n{HELP}")),
        }
        Ok(())
    }
}

fn seconds(option: &str, value: &str) -> Result<Duration, String> {
    let seconds = value.parse().ok().filter(|seconds| *seconds > 0);
    let seconds = seconds.ok_or_else(|| format!("{option} {value}: give seconds"))?;
    Ok(Duration::from_secs(seconds))
}

/// Number of devices: one for each rank of all tests but the largest.
const DEVICES: u32 = 8;

const ALONG: [&str; 7] = [
    "CASES", "CYCLES", "GUARD_S", "KILLS", "ROUNDS", "SEED", "SLEEPS",
];

#[cfg(test)]
mod tests {
    use super::{Duration, SuiteArgs};

    fn parse(line: &str) -> Result<Option<SuiteArgs>, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        SuiteArgs::parse(&words)
    }

    #[test]
    fn all_arguments_are_understood() {
        let asked = parse(
            "--all --only messages,windows::pscw --only scope --devices one --reactor epoll --timeout 500 --program 60 \
             --profile release --list --json",
        );
        let asked = asked.unwrap().unwrap();
        assert_eq!(asked.wish.only, ["messages", "windows::pscw", "scope"]);
        assert_eq!(asked.wish.devices.as_deref(), Some("one"));
        assert_eq!(asked.wish.reactor.as_deref(), Some("epoll"));
        let limits = (asked.all, asked.program);
        assert_eq!(limits, (Duration::from_secs(500), Duration::from_secs(60)));
        assert!(asked.list && asked.json && asked.profile == "release");
        assert_eq!(parse("--all --help"), Ok(None));
    }

    #[test]
    fn a_bad_argument_is_named() {
        for (line, part) in [
            ("--only messages", "--all"),
            ("--all --fast 1", "--fast"),
            ("--all --only", "--only"),
            ("--all --timeout soon", "soon"),
        ] {
            let why = parse(line).unwrap_err();
            assert!(why.contains(part), "{line}: {why}");
        }
    }
}
