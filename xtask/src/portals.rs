//! `cargo xtask bench portals`: this repository's layout over Portals against those of others, on the software library.
//!
//! Both sides are modes of one driver over one library, so they pay the same for a byte. Jobs run one after the other, a whole
//! round of all before the next round, and ratios are of jobs of one round: what disturbs the machine disturbs both.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// One kind of job: how it is started, and the figures that its lines give.
struct Kind {
    name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    args: &'static [&'static str],
    /// A field of each line.
    figure: &'static str,
}

/// A quotient of two kinds, line by line, and what it should be.
struct Ratio {
    group: &'static str,
    what: &'static str,
    of: &'static str,
    to: &'static str,
    asked: Asked,
}

#[derive(Clone, Copy)]
enum Asked {
    AtMost(f64),
    AtLeast(f64),
    /// It is there to be read.
    Nothing,
}

const PSCOM: (&str, &str) = ("RIPSTOP_PORTALS_COMPAT", "pscom");
const MPC: (&str, &str) = ("RIPSTOP_PORTALS_COMPAT", "mpc");
const COPY: (&str, &str) = ("RIPSTOP_EAGER_MAX", "8192");
const NO_COPY: (&str, &str) = ("RIPSTOP_EAGER_MAX", "0");
const GET: (&str, &str) = ("RIPSTOP_RENDEZVOUS", "get");
/// Bytes per second of each rail: what processors copy for four of them must not be the limit.
const RATE: (&str, &str) = ("RIPSTOP_PORTALS_RATE", "150000000");
const TWO_RAILS: (&str, &str) = ("RIPSTOP_PORTALS_IFACES", "0,1");
const THREE_RAILS: (&str, &str) = ("RIPSTOP_PORTALS_IFACES", "0,1,2");
const FOUR_RAILS: (&str, &str) = ("RIPSTOP_PORTALS_IFACES", "0,1,2,3");
/// From one byte on, to see from which length on it gains.
const TAGS: (&str, &str) = ("RIPSTOP_PORTALS_TAGS", "1");
const NO_TAGS: (&str, &str) = ("RIPSTOP_PORTALS_TAGS", "off");
const GENERIC: (&str, &str) = ("RIPSTOP_PORTALS_MODE", "generic");

const LATENCY: &[&str] = &["latency", "--size", "8,64,512,4096", "--iters", "2000"];
const BANDWIDTH: &[&str] = &[
    "bandwidth",
    "--size",
    "1K,2K,4K,7K,16K,32K",
    "--iters",
    "60",
];
const PLACED: &[&str] = &[
    "bandwidth",
    "--size",
    "512,1K,2K,4K,8K,16K,32K",
    "--iters",
    "60",
];
const PLACED_LATE: &[&str] = &[
    "latency",
    "--size",
    "512,1K,2K,4K,8K,16K,32K",
    "--iters",
    "2000",
];
const SHORT: &[&str] = &["latency", "--size", "8,4096", "--iters", "2000"];
const EIGHT_K: &[&str] = &["latency", "--size", "7K", "--iters", "1500"];
const SINGLE: &[&str] = &[
    "--how", "single", "--min", "8", "--max", "8", "--around", "0",
];
const STREAM: &[&str] = &[
    "--how", "stream", "--min", "4K", "--max", "64K", "--around", "0",
];
const LONG: &[&str] = &[
    "netpipe", "--what", "put", "--how", "single", "--min", "16M", "--max", "256M", "--around",
    "0", "--iters", "1",
];
const CROWD: &[&str] = &[
    "matching",
    "--depth",
    "0,16,256,4096",
    "--kind",
    "posted",
    "--iters",
    "300",
];

macro_rules! kinds {
    ($($name:literal: [$($setting:expr),*] $args:expr, $figure:literal;)+) => {
        &[$(Kind { name: $name, settings: &[$($setting),*], args: $args, figure: $figure },)+]
    };
}

const KINDS: &[Kind] = kinds! {
    "latency": [] LATENCY, "median_us";
    "latency-pscom": [PSCOM] LATENCY, "median_us";
    "latency-mpc": [MPC] LATENCY, "median_us";
    "latency-generic": [GENERIC] LATENCY, "median_us";
    "bandwidth": [] BANDWIDTH, "mb_per_s";
    "bandwidth-pscom": [PSCOM] BANDWIDTH, "mb_per_s";
    "bandwidth-mpc": [MPC] BANDWIDTH, "mb_per_s";
    "tags": [TAGS] PLACED, "mb_per_s";
    "no-tags": [NO_TAGS] PLACED, "mb_per_s";
    "tags-late": [TAGS] PLACED_LATE, "median_us";
    "no-tags-late": [NO_TAGS] PLACED_LATE, "median_us";
    "slab-copy": [COPY] EIGHT_K, "median_us";
    "slab-zero": [NO_COPY, GET] EIGHT_K, "median_us";
    "entry-copy": [PSCOM, COPY] EIGHT_K, "median_us";
    "entry-zero": [PSCOM, NO_COPY, GET] EIGHT_K, "median_us";
    "single-tag": [] &["netpipe", "--what", "tag"], "median_us";
    "single-put": [] &["netpipe", "--what", "put"], "median_us";
    "single-get": [] &["netpipe", "--what", "get"], "median_us";
    "stream-put": [] &["netpipe", "--what", "put"], "mb_per_s";
    "stream-get": [] &["netpipe", "--what", "get"], "mb_per_s";
    "matching": [] CROWD, "median_us";
    "one-rail": [RATE] LONG, "mb_per_s";
    "two-rails": [RATE, TWO_RAILS] LONG, "mb_per_s";
    "three-rails": [RATE, THREE_RAILS] LONG, "mb_per_s";
    "four-rails": [RATE, FOUR_RAILS] LONG, "mb_per_s";
    "short": [] SHORT, "median_us";
    "short-rails": [FOUR_RAILS] SHORT, "median_us";
};

macro_rules! ratios {
    ($($group:literal: $what:literal = $of:literal / $to:literal, $asked:expr;)+) => {
        &[$(Ratio { group: $group, what: $what, of: $of, to: $to, asked: $asked },)+]
    };
}

const RATIOS: &[Ratio] = ratios! {
    "latency": "latency against pscom" = "latency" / "latency-pscom", Asked::AtMost(0.7);
    "latency": "latency against MPC" = "latency" / "latency-mpc", Asked::Nothing;
    "latency": "matched by the host against by the adapter" = "latency-generic" / "latency", Asked::Nothing;
    "bandwidth": "bandwidth against pscom" = "bandwidth" / "bandwidth-pscom", Asked::AtLeast(1.3);
    "bandwidth": "bandwidth against MPC" = "bandwidth" / "bandwidth-mpc", Asked::Nothing;
    "tags": "bandwidth with tags matched by the adapter" = "tags" / "no-tags", Asked::Nothing;
    "tags": "latency with tags matched by the adapter" = "tags-late" / "no-tags-late", Asked::Nothing;
    "causes": "slab against an entry each, copied" = "slab-copy" / "entry-copy", Asked::Nothing;
    "causes": "slab against an entry each, not copied" = "slab-zero" / "entry-zero", Asked::Nothing;
    "causes": "not copied against copied, slab" = "slab-zero" / "slab-copy", Asked::Nothing;
    "causes": "not copied against copied, an entry each" = "entry-zero" / "entry-copy", Asked::Nothing;
    // A put is timed with its flush, there and back, as a get is, and a message one way: no bound for a put one way fits these.
    "netpipe": "get against put" = "single-get" / "single-put", Asked::Nothing;
    "netpipe": "message against put" = "single-tag" / "single-put", Asked::Nothing;
    "netpipe": "gets against puts, streaming" = "stream-get" / "stream-put", Asked::AtLeast(0.9);
    "rails": "two rails against one" = "two-rails" / "one-rail", Asked::AtLeast(1.9);
    "rails": "three rails against two" = "three-rails" / "two-rails", Asked::AtLeast(1.45);
    "rails": "four rails against one" = "four-rails" / "one-rail", Asked::AtLeast(3.8);
    "rails": "short messages with four rails against one" = "short-rails" / "short", Asked::AtMost(1.02);
    "matching": "message behind others against a put" = "matching" / "single-put", Asked::Nothing;
};

const HELP: &str = "\
cargo xtask bench portals GROUP [--rounds N] [--from DIR]

GROUP is latency, bandwidth, tags, causes, netpipe, rails or matching. DIR has the command `ripstop` and libportals_sandia42.so
[default: target/release, built at first]. Prints, for each line of the jobs, both medians and the ratio, with its least and
greatest of all rounds, and the processor time of both ranks with all threads of theirs.";

pub(crate) fn run(root: &Path, args: &[String]) -> Result<(), String> {
    let Some(options) = Options::parse(args)? else {
        println!("{HELP}");
        return Ok(());
    };
    let dir = match options.from {
        Some(dir) => dir,
        None => build(root)?,
    };
    compare(&dir, &options.group, options.rounds)
}

struct Options {
    group: String,
    rounds: usize,
    from: Option<PathBuf>,
}

impl Options {
    /// `None` when help was asked for.
    fn parse(args: &[String]) -> Result<Option<Self>, String> {
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        if words.iter().any(|word| ["--help", "-h"].contains(word)) {
            return Ok(None);
        }
        let (group, rest) = match words.split_first() {
            Some((group, rest)) if RATIOS.iter().any(|ratio| ratio.group == *group) => {
                (*group, rest)
            }
            _ => return Err(HELP.to_owned()),
        };
        let mut options = Self {
            group: group.to_owned(),
            rounds: 5,
            from: None,
        };
        for pair in rest.chunks(2) {
            match pair {
                ["--rounds", number] => options.rounds = rounds(number)?,
                ["--from", dir] => options.from = Some(PathBuf::from(dir)),
                _ => return Err(HELP.to_owned()),
            }
        }
        Ok(Some(options))
    }
}

fn rounds(number: &str) -> Result<usize, String> {
    let rounds = number.parse().ok().filter(|rounds| *rounds > 0);
    rounds.ok_or_else(|| format!("--rounds {number}: expected 1 or more\n\n{HELP}"))
}

fn build(root: &Path) -> Result<PathBuf, String> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args([
        "build",
        "--release",
        "-p",
        "ripstop",
        "-p",
        "ripstop-portals-sandia42",
    ]);
    let built = cargo.status().map_err(|why| format!("cargo: {why}"))?;
    if !built.success() {
        return Err("the build failed".to_owned());
    }
    Ok(std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), PathBuf::from)
        .join("release"))
}

fn compare(dir: &Path, group: &str, rounds: usize) -> Result<(), String> {
    let ratios: Vec<_> = RATIOS.iter().filter(|ratio| ratio.group == group).collect();
    let wanted = |kind: &&Kind| {
        ratios
            .iter()
            .any(|ratio| ratio.of == kind.name || ratio.to == kind.name)
    };
    let kinds: Vec<_> = KINDS.iter().filter(wanted).collect();
    // Of each round, of each kind: its lines.
    let mut all = Vec::new();
    for _ in 0..rounds {
        let round: Result<Vec<_>, _> = kinds.iter().map(|kind| kind.run(dir)).collect();
        all.push(round?);
    }
    for ratio in ratios {
        let at = |name| kinds.iter().position(|kind| kind.name == name);
        if let (Some(of), Some(to)) = (at(ratio.of), at(ratio.to)) {
            let pairs: Vec<_> = all.iter().map(|round| (&round[of], &round[to])).collect();
            ratio.print(&pairs);
        }
    }
    Ok(())
}

/// What one job printed, and the processor time that it took.
struct Ran {
    /// A label and a figure of each line.
    lines: Vec<(String, f64)>,
    cpu_seconds: f64,
}

impl Kind {
    fn run(&self, dir: &Path) -> Result<Ran, String> {
        let before = children_seconds();
        let mut job = Command::new(dir.join("ripstop"));
        job.args(["run", "-n", "2", "--bind", "core", "--"])
            .arg(dir.join("ripstop"))
            .arg("perf");
        job.args(self.args).arg("--json");
        if self.name.starts_with("single") {
            job.args(SINGLE);
        } else if self.name.starts_with("stream") {
            job.args(STREAM);
        }
        job.env("RIPSTOP_FABRIC", "portals");
        job.env(
            "RIPSTOP_PORTALS_LIBRARY",
            dir.join("libportals_sandia42.so"),
        );
        job.envs(self.settings.iter().copied());
        let ended = job
            .output()
            .map_err(|why| format!("{}: {why}", self.name))?;
        if !ended.status.success() {
            return Err(format!(
                "{}: {}",
                self.name,
                String::from_utf8_lossy(&ended.stderr)
            ));
        }
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        let lines = text.lines().filter_map(|line| {
            let line: Value = serde_json::from_str(line).ok()?;
            let label = line.get("depth").map_or_else(
                || size_of_line(&line),
                |depth| Some(format!("depth {depth}")),
            )?;
            Some((label, line.get(self.figure)?.as_f64()?))
        });
        Ok(Ran {
            lines: lines.collect(),
            cpu_seconds: children_seconds() - before,
        })
    }
}

fn size_of_line(line: &Value) -> Option<String> {
    line.get("size").map(|size| format!("{size} B"))
}

impl Ratio {
    fn print(&self, rounds: &[(&Ran, &Ran)]) {
        let cpu = |pick: fn(&(&Ran, &Ran)) -> f64| middle(rounds.iter().map(pick).collect());
        println!(
            "{}: {} / {}, processor time of a job {:.2} s / {:.2} s",
            self.what,
            self.of,
            self.to,
            cpu(|(of, _)| of.cpu_seconds),
            cpu(|(_, to)| to.cpu_seconds),
        );
        let lines = rounds.first().map_or(0, |(of, _)| of.lines.len());
        for nth in 0..lines {
            // A kind with one line is what all lines of the other are compared with.
            let line = |ran: &Ran| ran.lines.get(nth).or_else(|| ran.lines.first()).cloned();
            let pairs: Vec<_> = rounds
                .iter()
                .filter_map(|(of, to)| Some((line(of)?, line(to)?)))
                .collect();
            let quotients: Vec<_> = pairs.iter().map(|((_, of), (_, to))| of / to).collect();
            let of = middle(pairs.iter().map(|((_, of), _)| *of).collect());
            let to = middle(pairs.iter().map(|(_, (_, to))| *to).collect());
            let least = quotients.iter().copied().fold(f64::INFINITY, f64::min);
            let most = quotients.iter().copied().fold(0.0, f64::max);
            let label = pairs.first().map_or("", |((label, _), _)| label);
            println!(
                "  {label:>12}  {of:>10.3} / {to:>10.3} = {:.3} ({least:.3} to {most:.3}){}",
                middle(quotients.clone()),
                self.asked.verdict(middle(quotients)),
            );
        }
    }
}

impl Asked {
    fn verdict(self, ratio: f64) -> String {
        let (sign, bound, held) = match self {
            Self::AtMost(bound) => ("≤", bound, ratio <= bound),
            Self::AtLeast(bound) => ("≥", bound, ratio >= bound),
            Self::Nothing => return String::new(),
        };
        format!("  {sign} {bound}: {}", if held { "yes" } else { "NO" })
    }
}

/// The median: of an even number, halfway between the two in the middle.
fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = |nth: usize| values.get(nth).copied().unwrap_or(f64::NAN);
    f64::midpoint(at(values.len().saturating_sub(1) / 2), at(values.len() / 2))
}

/// Seconds that processors have worked for the children of this process that have ended, and for theirs.
fn children_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields = after_name.split_whitespace().skip(13).take(2);
    let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / TICKS_PER_SECOND
}

/// What Linux counts in `/proc`, on all machines.
const TICKS_PER_SECOND: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::{KINDS, Options, RATIOS, middle};

    fn options(words: &[&str]) -> Result<Option<Options>, String> {
        Options::parse(
            &words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn a_comparison_has_a_round_and_help_is_no_mistake() {
        assert!(matches!(
            options(&["netpipe", "--rounds", "1"]),
            Ok(Some(_))
        ));
        for number in ["0", "-1", "x"] {
            let why = options(&["netpipe", "--rounds", number]).err().unwrap();
            assert!(why.contains(&format!("--rounds {number}")), "{why}");
        }
        assert!(matches!(options(&["--help"]), Ok(None)));
        assert!(matches!(options(&["netpipe", "-h"]), Ok(None)));
        assert!(options(&[]).is_err());
    }

    #[test]
    fn every_ratio_is_of_kinds_that_there_are() {
        for ratio in RATIOS {
            for name in [ratio.of, ratio.to] {
                assert!(KINDS.iter().any(|kind| kind.name == name), "{name}");
            }
        }
    }

    #[test]
    fn the_middle_is_one_of_them_or_between_two() {
        assert!((middle(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((middle(vec![4.0, 1.0, 2.0, 9.0]) - 3.0).abs() < 1e-9);
        assert!((middle(vec![4.0]) - 4.0).abs() < 1e-9);
        assert!(middle(Vec::new()).is_nan());
    }
}
