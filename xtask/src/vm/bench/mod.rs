//! `cargo xtask bench verbs`: Ripstop over verbs beside perftest, and beside itself in other settings, in turns in one guest.
//!
//! Times of an emulated machine mean nothing by themselves, and its devices are run by its processors. So only ratios count:
//! ratios of two consecutive runs, and their median. If both contestants poll, the guest's processors must run at the same time
//! (`--parallel`), because perftest does not pause while it spins. The other cases use a guest that other work does not
//! disturb.

mod ratio_case;
mod settings_case;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::step::{self, MEASURED_PROFILE};

use super::{guest::VmGuest, image::VmImage, options::VmOptions, packages};

const HELP: &str = "\
cargo xtask bench verbs [--only CASE,CASE] [--repeats N] [--json]

  --only     beside perftest: events, messages, buffers, puts, ev-apart, me-apart, polling, pairs;
             beside itself: netpipe (puts, messages and gets by length), first (the first all_to_all by how ranks
             are connected), window (bandwidth by messages in flight, with 2 ms of delay and 1 to 4 lanes),
             lanes (short messages of ranks with 1 to 4 devices) (default: all)
  --repeats  how often each contestant runs, in turns (default 5)
  --json     the tables as lines of JSON
";

/// Runs the cases that the arguments after `bench verbs` name, and prints the ratios.
///
/// # Errors
/// A sentence saying what to do: an unknown argument, a package that is missing, a program that does not build, a guest that
/// did not start. A missed target is no error.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<(), String> {
    let Some(BenchArgs {
        cases,
        repeats,
        json,
    }) = parse(args)?
    else {
        println!("{HELP}");
        return Ok(());
    };
    packages::require(&packages::FOR_TESTS)?;
    let image = VmImage::at(root)?;
    let programs = BenchPrograms::build(root)?;
    for bed in BEDS {
        let cases: Vec<BenchCase> = cases
            .iter()
            .filter(|case| case.bed() == bed)
            .copied()
            .collect();
        if cases.is_empty() {
            continue;
        }
        let options = VmOptions {
            devices: bed.devices,
            parallel: bed.parallel,
            timeout: LIMIT,
            command: ["sh", "-c", &script(&cases, repeats, &programs)]
                .map(str::to_owned)
                .to_vec(),
            ..VmOptions::default()
        };
        let output = CaptureWriter::default();
        VmGuest::start(&image, &options, output.clone())?.status()?;
        let output = output.text();
        let mut head = "";
        for case in cases {
            if !json && case.head() != head {
                head = case.head();
                println!("{head}");
            }
            case.rows(&output, repeats, json)
                .iter()
                .for_each(|row| println!("{row}"));
        }
    }
    Ok(())
}

/// A case: beside another program, or in several settings beside each other.
#[derive(Clone, Copy)]
enum BenchCase {
    Ratio(&'static ratio_case::RatioCase),
    Settings(&'static settings_case::SettingsCase),
}

/// The guest that a case needs.
#[derive(Clone, Copy, PartialEq, Eq)]
struct BenchGuest {
    devices: u32,
    parallel: bool,
}

impl BenchCase {
    fn all() -> impl Iterator<Item = Self> {
        let beside = ratio_case::CASES.iter().map(Self::Ratio);
        beside.chain(settings_case::CASES.iter().map(Self::Settings))
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Ratio(case) => case.name,
            Self::Settings(case) => case.name,
        }
    }

    const fn bed(self) -> BenchGuest {
        match self {
            Self::Ratio(case) => BenchGuest {
                devices: 2,
                parallel: case.parallel,
            },
            Self::Settings(_) => BenchGuest {
                devices: 8,
                parallel: false,
            },
        }
    }

    const fn head(self) -> &'static str {
        match self {
            Self::Ratio(_) => ratio_case::HEAD,
            Self::Settings(_) => settings_case::HEAD,
        }
    }

    /// Returns the contestants, and the command of each in the script.
    fn turns(self) -> Vec<(&'static str, &'static str)> {
        match self {
            Self::Ratio(case) => case.turns(),
            Self::Settings(case) => case.runs.to_vec(),
        }
    }

    fn rows(self, output: &str, repeats: usize, json: bool) -> Vec<String> {
        match self {
            Self::Ratio(case) => vec![case.row(output, repeats, json)],
            Self::Settings(case) => case.rows(output, repeats, json),
        }
    }
}

/// Returns the script: every contestant once for each repeat, and each repeat begins with another contestant.
fn script(cases: &[BenchCase], repeats: usize, programs: &BenchPrograms) -> String {
    let BenchPrograms { ripstop, pairs } = programs;
    let mut script = format!(
        "ripstop='{}'\npairs='{}'\n{}",
        ripstop.display(),
        pairs.display(),
        include_str!("../guest/bench.sh")
    );
    for nth in 0..repeats {
        for case in cases {
            let mut turns = case.turns();
            let first = nth % turns.len();
            turns.rotate_left(first);
            for (who, command) in turns {
                let title = title(case.name(), who, nth);
                script.push_str(&format!("echo '== {title}'\n{command} 2>&1\n"));
            }
        }
    }
    script
}

fn title(case: &str, who: &str, nth: usize) -> String {
    format!("{case} {who} {nth}")
}

/// Returns the output between the head with this title and the next head.
fn part<'a>(output: &'a str, title: &str) -> Option<&'a str> {
    let (_, rest) = output.split_once(&format!("== {title}\n"))?;
    Some(rest.split_once("\n== ").map_or(rest, |(part, _)| part))
}

/// The parsed arguments.
struct BenchArgs {
    cases: Vec<BenchCase>,
    repeats: usize,
    json: bool,
}

/// Parses the arguments; `None` if help was asked for.
fn parse(args: &[String]) -> Result<Option<BenchArgs>, String> {
    let mut asked = BenchArgs {
        cases: BenchCase::all().collect(),
        repeats: 5,
        json: false,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--help" | "-h" => return Ok(None),
            "--json" => {
                asked.json = true;
                continue;
            }
            _ => {}
        }
        let value = args
            .next()
            .ok_or_else(|| format!("{arg} is unknown or needs a value\n\n{HELP}"))?;
        match arg.as_str() {
            "--only" => {
                let named = |name| {
                    let case = BenchCase::all().find(|case| case.name() == name);
                    case.ok_or_else(|| format!("--only {name}: no case has this name\n\n{HELP}"))
                };
                asked.cases = value.split(',').map(named).collect::<Result<_, _>>()?;
            }
            "--repeats" => {
                let number = value.parse().ok().filter(|number| *number > 0);
                asked.repeats = number.ok_or_else(|| {
                    format!("--repeats {value}: give a whole number of at least 1")
                })?;
            }
            _ => return Err(format!("unknown argument {arg}\n\n{HELP}")),
        }
    }
    Ok(Some(asked))
}

/// The programs that run in the guest, besides perftest.
struct BenchPrograms {
    ripstop: PathBuf,
    pairs: PathBuf,
}

impl BenchPrograms {
    fn build(root: &Path) -> Result<Self, String> {
        let target = step::target_dir(root);
        let target = std::path::absolute(&target).unwrap_or(target);
        let folder = target.join("compare");
        std::fs::create_dir_all(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
        let programs = Self {
            ripstop: target.join(MEASURED_PROFILE).join("ripstop"),
            pairs: folder.join("qp_create"),
        };
        let mut cargo = Command::new("cargo");
        cargo.args([
            "build",
            "--quiet",
            "--profile",
            MEASURED_PROFILE,
            "--package",
            "ripstop",
            "--features",
            "cli",
            "--bins",
        ]);
        succeed(cargo.current_dir(root))?;
        let mut compiler = Command::new("cc");
        compiler
            .args(["-std=c11", "-D_GNU_SOURCE", "-O3", "-Wall", "-Wextra"])
            .arg(root.join("benches/compare/qp_create.c"))
            .arg("-o")
            .arg(&programs.pairs)
            .args(["-libverbs", "-lpthread"]);
        succeed(&mut compiler)?;
        Ok(programs)
    }
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{name}` fails: {status}")),
        Err(why) => Err(format!("`{name}` does not start: {why}")),
    }
}

/// A writer that keeps what is written to it.
#[derive(Clone, Default)]
struct CaptureWriter(Arc<Mutex<Vec<u8>>>);

impl CaptureWriter {
    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for CaptureWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The guests of all cases. A guest with exactly as many devices as a case needs is faster.
const BEDS: [BenchGuest; 3] = [
    BenchGuest {
        devices: 2,
        parallel: false,
    },
    BenchGuest {
        devices: 2,
        parallel: true,
    },
    BenchGuest {
        devices: 8,
        parallel: false,
    },
];

/// Time limit of each guest.
const LIMIT: Duration = Duration::from_secs(1800);

#[cfg(test)]
mod tests {
    use super::{BenchCase, BenchPrograms, parse, ratio_case, script};

    #[test]
    fn contestants_alternate_and_so_does_the_first_one() {
        let programs = BenchPrograms {
            ripstop: "/r".into(),
            pairs: "/p".into(),
        };
        let script = script(&[BenchCase::Ratio(&ratio_case::CASES[0])], 2, &programs);
        let heads: Vec<&str> = script
            .lines()
            .filter(|line| line.starts_with("echo"))
            .collect();
        let order = ["theirs 0", "ours 0", "ours 1", "theirs 1"];
        assert_eq!(heads, order.map(|name| format!("echo '== events {name}'")));
    }

    #[test]
    fn a_bad_argument_is_named() {
        let words =
            |line: &str| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
        for line in ["--only speed", "--repeats 0", "--fast 1", "--only"] {
            let why = parse(&words(line)).err().unwrap();
            assert!(
                why.contains(line.split(' ').next().unwrap()),
                "{line}: {why}"
            );
        }
        let asked = parse(&words("--only puts,lanes --repeats 3 --json"))
            .unwrap()
            .unwrap();
        let names = asked.cases.iter().map(|case| case.name());
        assert_eq!(names.collect::<Vec<_>>(), ["puts", "lanes"]);
        assert!(asked.repeats == 3 && asked.json);
    }
}
