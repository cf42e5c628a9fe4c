//! `cargo xtask bench portals`: compares this repository's layout over Portals with those of other libraries, on the software
//! library.
//!
//! The others are baselines (`benches/baselines`), which wrap this repository's driver over the same library, so a byte costs
//! both sides the same. One round runs all jobs one after the other, and ratios are of jobs of one round, so a disturbance of
//! the machine affects both.

mod jobs;
mod measure;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use self::jobs::{KINDS, PortalsJobKind, RATIOS};
use crate::step::MEASURED_PROFILE;

const HELP: &str = "\
cargo xtask bench portals GROUP [--rounds N] [--from DIR] [--json]

GROUP is latency, bandwidth, tags, causes, netpipe, rails, matching, lengths, half, long, flood, overlap or queue. DIR has the
commands `ripstop` and `ripstop-baselines`, and libportals_sandia42.so [default: target/release-lto, built at first]. For each
line that the jobs print, the command prints both medians and their ratio, or the figure, each with the least and the greatest
value of all rounds. It also prints the processor time that all threads of all ranks have used. With --json, it prints a line of
JSON for each. `overlap` and `queue` need two processors and `taskset`.";

pub(crate) fn run(root: &Path, args: &[String]) -> Result<(), String> {
    let Some(options) = PortalsBenchOptions::parse(args)? else {
        println!("{HELP}");
        return Ok(());
    };
    let dir = match &options.from {
        Some(dir) => dir.clone(),
        None => build(root)?,
    };
    compare(&dir, &options)
}

struct PortalsBenchOptions {
    group: String,
    rounds: usize,
    from: Option<PathBuf>,
    json: bool,
}

impl PortalsBenchOptions {
    /// Parses the arguments. Returns `None` if they ask for help.
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
            // A message of 4 GiB takes seconds, and touching its memory takes as long.
            rounds: if *group == *"long" { 3 } else { 5 },
            from: None,
            json: false,
        };
        let mut rest = rest.iter();
        while let Some(word) = rest.next() {
            match (*word, rest.as_slice().first()) {
                ("--json", _) => {
                    options.json = true;
                    continue;
                }
                ("--rounds", Some(number)) => options.rounds = rounds(number)?,
                ("--from", Some(dir)) => options.from = Some(PathBuf::from(dir)),
                _ => return Err(HELP.to_owned()),
            }
            rest.next();
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
        "--profile",
        MEASURED_PROFILE,
        "-p",
        "ripstop",
        "--features",
        "ripstop/cli",
        "-p",
        "ripstop-portals-baselines",
        "-p",
        "ripstop-portals-sandia42",
    ]);
    let built = cargo.status().map_err(|why| format!("cargo: {why}"))?;
    if !built.success() {
        return Err("the build failed".to_owned());
    }
    Ok(std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), PathBuf::from)
        .join(MEASURED_PROFILE))
}

fn compare(dir: &Path, options: &PortalsBenchOptions) -> Result<(), String> {
    let ratios: Vec<_> = RATIOS
        .iter()
        .filter(|ratio| ratio.group == options.group)
        .collect();
    let wanted = |kind: &&PortalsJobKind| {
        ratios
            .iter()
            .any(|ratio| ratio.of == kind.name || ratio.to == Some(kind.name))
    };
    let kinds: Vec<_> = KINDS.iter().filter(wanted).collect();
    // The lines of each kind, for each round.
    let mut all = Vec::new();
    for _ in 0..options.rounds {
        let round: Result<Vec<_>, _> = kinds.iter().map(|kind| kind.run(dir)).collect();
        all.push(round?);
    }
    for ratio in ratios {
        let at = |name| kinds.iter().position(|kind| kind.name == name);
        if let Some(of) = at(ratio.of) {
            let to = ratio.to.and_then(at);
            let pairs = all
                .iter()
                .map(|round| (&round[of], to.map(|to| &round[to])));
            ratio.print(&pairs.collect::<Vec<_>>(), options.json);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{HELP, KINDS, PortalsBenchOptions, RATIOS};

    fn options(words: &[&str]) -> Result<Option<PortalsBenchOptions>, String> {
        PortalsBenchOptions::parse(
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
    fn options_come_in_any_order_and_every_group_is_in_the_help() {
        let options = options(&["flood", "--json", "--rounds", "3", "--from", "here"]);
        let options = options.unwrap().unwrap();
        assert!(options.json && options.rounds == 3 && options.from.is_some());
        for words in [&["flood", "--rounds"][..], &["flood", "--from"], &["flods"]] {
            assert!(super::tests::options(words).is_err(), "{words:?}");
        }
        for ratio in RATIOS {
            assert!(HELP.contains(ratio.group), "{}", ratio.group);
        }
    }

    #[test]
    fn every_ratio_is_of_kinds_that_there_are() {
        for ratio in RATIOS {
            for name in [Some(ratio.of), ratio.to].into_iter().flatten() {
                assert!(KINDS.iter().any(|kind| kind.name == name), "{name}");
            }
        }
    }
}
