//! `cargo xtask bench verbs`: Ripstop over verbs beside perftest, in turns on the same device of one guest.
//!
//! An emulated machine's times mean nothing by themselves, and its devices are its processors: only ratios are shown, each of two
//! runs that followed each other, and their median. Who polls against who polls needs a guest whose processors run at the same
//! time (`--parallel`), because perftest does not pause while it spins; the others have one that is not disturbed by other work.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde_json::Value;

use crate::step;

use super::{guest::Guest, image::Image, options::Options, packages};

const HELP: &str = "\
cargo xtask bench verbs [--only CASE,CASE] [--repeats N]

  --only     events, messages, buffers, puts, ev-apart, me-apart, polling, pairs (default: all)
  --repeats  how often each contestant runs, in turns (default 5)
";

/// Runs the cases that the arguments after `bench verbs` name, and prints the ratios.
///
/// # Errors
/// A sentence saying what to do: an unknown argument, a package that is missing, a program that does not build, a guest that
/// did not start. A missed target is no error.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<(), String> {
    let Some((cases, repeats)) = parse(args)? else {
        println!("{HELP}");
        return Ok(());
    };
    packages::require(&packages::FOR_TESTS)?;
    let image = Image::at(root)?;
    let programs = Programs::build(root)?;
    println!("{HEAD}");
    for parallel in [false, true] {
        let cases: Vec<&Case> = cases
            .iter()
            .filter(|case| case.parallel == parallel)
            .copied()
            .collect();
        if cases.is_empty() {
            continue;
        }
        let options = Options {
            devices: 2,
            parallel,
            timeout: LIMIT,
            command: ["sh", "-c", &script(&cases, repeats, &programs)]
                .map(str::to_owned)
                .to_vec(),
            ..Options::default()
        };
        let output = Kept::default();
        Guest::start(&image, &options, output.clone())?.status()?;
        let output = output.text();
        for case in cases {
            println!("{}", case.row(&output, repeats));
        }
    }
    Ok(())
}

/// Two contestants, which figure of theirs counts, and what it should be.
struct Case {
    name: &'static str,
    unit: &'static str,
    /// Commands of the script, and where the figure is in what they print.
    theirs: (&'static str, Figure),
    ours: (&'static str, Figure),
    /// The ratio of ours to theirs.
    target: Target,
    parallel: bool,
}

/// Where a figure is.
#[derive(Clone, Copy)]
enum Figure {
    /// In the last line of perftest's table, in this column, times this.
    Column(usize, f64),
    /// In a JSON object.
    Field(&'static str),
}

#[derive(Clone, Copy)]
enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Case {
    fn row(&self, output: &str, repeats: usize) -> String {
        let of = |who: &str, (_, figure): (&str, Figure), nth: usize| {
            figure.read(part(output, &title(self.name, who, nth))?)
        };
        let both = |nth| Some((of(THEIRS, self.theirs, nth)?, of(OURS, self.ours, nth)?));
        let pairs: Vec<(f64, f64)> = (0..repeats).filter_map(both).collect();
        if pairs.is_empty() {
            let said =
                [THEIRS, OURS].map(|who| part(output, &title(self.name, who, 0)).unwrap_or(""));
            return format!("{:<10}no figures:\n{}", self.name, said.join("\n"));
        }
        let theirs = sorted(pairs.iter().map(|pair| pair.0));
        let ours = sorted(pairs.iter().map(|pair| pair.1));
        let ratios = sorted(pairs.iter().map(|(theirs, ours)| ours / theirs));
        let (ratio, last) = (ratios[ratios.len() / 2], ratios[ratios.len() - 1]);
        let (met, target) = match self.target {
            Target::AtMost(most) => (ratio <= most, format!("<= {most}")),
            Target::AtLeast(least) => (ratio >= least, format!(">= {least}")),
        };
        format!(
            "{:<10}{:>7}{:>12.2}{:>12.2}{ratio:>8.2}{:>8.2}{last:>8.2}{target:>9}{:>8}",
            self.name,
            self.unit,
            theirs[theirs.len() / 2],
            ours[ours.len() / 2],
            ratios[0],
            if met { "met" } else { "missed" },
        )
    }
}

impl Figure {
    fn read(self, text: &str) -> Option<f64> {
        match self {
            Self::Column(column, factor) => {
                let digit =
                    |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
                let line = text.lines().rfind(digit)?;
                let value: f64 = line.split_whitespace().nth(column)?.parse().ok()?;
                Some(value * factor)
            }
            Self::Field(name) => {
                let objects = text.lines().filter(|line| line.starts_with('{'));
                let mut objects =
                    objects.filter_map(|line| serde_json::from_str::<Value>(line).ok());
                objects.find_map(|object| object.get(name)?.as_f64())
            }
        }
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Every contestant once for each repeat; each repeat begins with the other.
fn script(cases: &[&Case], repeats: usize, programs: &Programs) -> String {
    let Programs { ripstop, pairs } = programs;
    let mut script = format!(
        "ripstop='{}'\npairs='{}'\n{BEGIN}",
        ripstop.display(),
        pairs.display()
    );
    for nth in 0..repeats {
        for case in cases {
            let mut turns = [(THEIRS, case.theirs.0), (OURS, case.ours.0)];
            turns.rotate_left(nth % 2);
            for (who, command) in turns {
                let title = title(case.name, who, nth);
                script.push_str(&format!("echo '== {title}'\n{command} 2>&1\n"));
            }
        }
    }
    script
}

fn title(case: &str, who: &str, nth: usize) -> String {
    format!("{case} {who} {nth}")
}

/// What was printed between the head of this title and the next.
fn part<'a>(output: &'a str, title: &str) -> Option<&'a str> {
    let (_, rest) = output.split_once(&format!("== {title}\n"))?;
    Some(rest.split_once("\n== ").map_or(rest, |(part, _)| part))
}

/// `None` when help was asked for.
fn parse(args: &[String]) -> Result<Option<(Vec<&'static Case>, usize)>, String> {
    let (mut cases, mut repeats) = (CASES.iter().collect(), 5);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--help" || arg == "-h" {
            return Ok(None);
        }
        let value = args
            .next()
            .ok_or_else(|| format!("{arg} needs a value\n\n{HELP}"))?;
        match arg.as_str() {
            "--only" => {
                let named = |name| {
                    let case = CASES.iter().find(|case| case.name == name);
                    case.ok_or_else(|| format!("--only {name}: there is no such case\n\n{HELP}"))
                };
                cases = value.split(',').map(named).collect::<Result<_, _>>()?;
            }
            "--repeats" => {
                let number = value.parse().ok().filter(|number| *number > 0);
                repeats = number.ok_or_else(|| {
                    format!("--repeats {value}: give a whole number of at least 1")
                })?;
            }
            _ => return Err(format!("unknown argument {arg}\n\n{HELP}")),
        }
    }
    Ok(Some((cases, repeats)))
}

/// What runs in the guest besides perftest.
struct Programs {
    ripstop: PathBuf,
    pairs: PathBuf,
}

impl Programs {
    fn build(root: &Path) -> Result<Self, String> {
        let target = step::target_dir(root);
        let target = std::path::absolute(&target).unwrap_or(target);
        let folder = target.join("compare");
        std::fs::create_dir_all(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
        let programs = Self {
            ripstop: target.join("release/ripstop"),
            pairs: folder.join("qp_create"),
        };
        let mut cargo = Command::new("cargo");
        cargo.args([
            "build",
            "--quiet",
            "--release",
            "--package",
            "ripstop",
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

/// Keeps what is written to it.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Write for Kept {
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

const THEIRS: &str = "theirs";
const OURS: &str = "ours";

const HEAD: &str = "case         unit    perftest     ripstop   ratio   least    most   target";

/// perftest's server is there when it listens; its port is 18515.
const BEGIN: &str = "\
unset RIPSTOP_VM
export RIPSTOP_FABRIC=verbs RIPSTOP_VERBS_DEVICE=rxe0 RIPSTOP_PROGRESS=inline
theirs() {
    program=$1
    shift
    timeout 60 $program -d rxe0 -x 1 \"$@\" >/dev/null 2>&1 &
    server=$!
    tries=0
    until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 || [ $tries -gt 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    timeout 60 $program -d $there -x 1 \"$@\" 10.77.0.1
    wait $server
}
ours() {
    timeout 60 \"$ripstop\" run -n 2 -- \"$ripstop\" perf \"$@\" --json
}
polling() { RIPSTOP_SPIN_US_MAX=10000 ours \"$@\"; }
sleeping() { RIPSTOP_SPIN_US_MAX=0 ours \"$@\"; }
there=rxe0
apart() {
    there=rxe1
    unset RIPSTOP_VERBS_DEVICE
    \"$@\"
    there=rxe0
    export RIPSTOP_VERBS_DEVICE=rxe0
}
";

const TYPICAL_US: Figure = Figure::Column(4, 1.0);
/// perftest counts in units of 10^9 bits when it is asked to.
const MEAN_MB_PER_S: Figure = Figure::Column(3, 125.0);

const CASES: [Case; 8] = [
    Case {
        name: "events",
        unit: "µs",
        theirs: ("theirs ib_send_lat -e -s 8 -n 1000", TYPICAL_US),
        ours: (
            "sleeping latency --size 8 --iters 1000",
            Figure::Field("median_us"),
        ),
        target: Target::AtMost(1.3),
        parallel: false,
    },
    Case {
        name: "messages",
        unit: "MB/s",
        theirs: (
            "theirs ib_write_bw -s 1048576 -n 256 --report_gbits",
            MEAN_MB_PER_S,
        ),
        ours: (
            "sleeping bandwidth --size 1MiB --iters 4 --warmup 1",
            Figure::Field("mb_per_s"),
        ),
        target: Target::AtLeast(0.9),
        parallel: false,
    },
    // Buffers that are registered once, as perftest's are.
    Case {
        name: "buffers",
        unit: "MB/s",
        theirs: (
            "theirs ib_write_bw -s 1048576 -n 256 --report_gbits",
            MEAN_MB_PER_S,
        ),
        ours: (
            "sleeping bandwidth --registered --size 1MiB --iters 4 --warmup 1",
            Figure::Field("mb_per_s"),
        ),
        target: Target::AtLeast(0.9),
        parallel: false,
    },
    Case {
        name: "puts",
        unit: "MB/s",
        theirs: (
            "theirs ib_write_bw -s 1048576 -n 256 --report_gbits",
            MEAN_MB_PER_S,
        ),
        ours: (
            "sleeping put-stream --size 1MiB --iters 4 --warmup 1",
            Figure::Field("mb_per_s"),
        ),
        target: Target::AtLeast(0.9),
        parallel: false,
    },
    // The same on two devices, with the wire between them.
    Case {
        name: "ev-apart",
        unit: "µs",
        theirs: ("apart theirs ib_send_lat -e -s 8 -n 1000", TYPICAL_US),
        ours: (
            "apart sleeping latency --size 8 --iters 1000",
            Figure::Field("median_us"),
        ),
        target: Target::AtMost(1.3),
        parallel: false,
    },
    Case {
        name: "me-apart",
        unit: "MB/s",
        theirs: (
            "apart theirs ib_write_bw -s 1048576 -n 256 --report_gbits",
            MEAN_MB_PER_S,
        ),
        ours: (
            "apart sleeping bandwidth --size 1MiB --iters 4 --warmup 1",
            Figure::Field("mb_per_s"),
        ),
        target: Target::AtLeast(0.9),
        parallel: false,
    },
    Case {
        name: "polling",
        unit: "µs",
        theirs: ("theirs ib_send_lat -s 8 -n 1000", TYPICAL_US),
        ours: (
            "polling latency --size 8 --iters 1000",
            Figure::Field("median_us"),
        ),
        target: Target::AtMost(1.3),
        parallel: true,
    },
    // Queue pairs by two threads beside one: not ours and theirs, but what can be gained.
    Case {
        name: "pairs",
        unit: "µs",
        theirs: ("$pairs rxe0 2000 1", Figure::Field("us_each")),
        ours: ("$pairs rxe0 2000 2", Figure::Field("us_each")),
        target: Target::AtMost(0.67),
        parallel: true,
    },
];

const LIMIT: Duration = Duration::from_secs(900);

#[cfg(test)]
mod tests {
    use super::{CASES, Figure, Programs, TYPICAL_US, parse, part, script, title};

    const LATENCY: &str = "== events theirs 0\n\
         #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
         8       300          99.26          956.66       107.50         127.90\n\
         ------\n\
         == events ours 0\n{\"median_us\":129.0,\"size\":8}\n";

    #[test]
    fn figures_are_found_in_tables_and_in_objects() {
        let theirs = part(LATENCY, &title("events", "theirs", 0)).unwrap();
        let ours = part(LATENCY, &title("events", "ours", 0)).unwrap();
        assert_eq!(TYPICAL_US.read(theirs), Some(107.5));
        assert_eq!(Figure::Field("median_us").read(ours), Some(129.0));
        assert_eq!(Figure::Field("median_us").read(theirs), None);
        assert_eq!(TYPICAL_US.read("failed"), None);
    }

    #[test]
    fn a_row_has_the_ratio_and_whether_it_is_as_wanted() {
        let row = CASES[0].row(LATENCY, 3);
        assert!(row.contains("1.20") && row.ends_with("met"), "{row}");
        let slow = LATENCY.replace("129.0", "150.0");
        assert!(CASES[0].row(&slow, 3).ends_with("missed"));
        assert!(CASES[1].row(LATENCY, 3).contains("no figures"));
    }

    #[test]
    fn contestants_take_turns_and_so_does_who_begins() {
        let programs = Programs {
            ripstop: "/r".into(),
            pairs: "/p".into(),
        };
        let script = script(&[&CASES[0]], 2, &programs);
        let heads: Vec<&str> = script
            .lines()
            .filter(|line| line.starts_with("echo"))
            .collect();
        let order = ["theirs 0", "ours 0", "ours 1", "theirs 1"];
        assert_eq!(heads, order.map(|turn| format!("echo '== events {turn}'")));
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
        let (cases, repeats) = parse(&words("--only puts,events --repeats 3"))
            .unwrap()
            .unwrap();
        assert_eq!((cases.len(), repeats), (2, 3));
    }
}
