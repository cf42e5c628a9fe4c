//! The runs that a command line asks for.

use std::ops::RangeInclusive;

use super::{ScenarioError, SimArgs, p3dfft, scenario::ScenarioKind};

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScenarioCase {
    pub(super) way: &'static str,
    pub(super) ranks: u32,
    pub(super) seed: u64,
}

/// All runs, in order. Each is made when its turn comes, because there may be more than fit in memory.
#[derive(Debug)]
pub(super) struct ScenarioCases {
    ranks: Vec<u32>,
    seeds: RangeInclusive<u64>,
    ways: Vec<&'static str>,
}

impl ScenarioCases {
    /// Returns the number of runs, at most `usize::MAX`.
    pub(super) fn count(&self) -> usize {
        let seeds = self.seeds.end() - self.seeds.start();
        let seeds = usize::try_from(seeds).map_or(usize::MAX, |more| more.saturating_add(1));
        seeds.saturating_mul(self.ranks.len() * self.ways.len())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = ScenarioCase> {
        let seeds = |ranks: u32| self.seeds.clone().map(move |seed| (ranks, seed));
        let runs = self.ranks.iter().flat_map(move |&ranks| seeds(ranks));
        runs.flat_map(|(ranks, seed)| {
            self.ways
                .iter()
                .map(move |&way| ScenarioCase { way, ranks, seed })
        })
    }
}

/// The longest messages that are copied, in bytes.
const COPIED_MAX: usize = 1 << 30;

impl SimArgs {
    /// Returns the runs.
    ///
    /// # Errors
    /// Options that exclude each other.
    pub(super) fn cases(&self) -> Result<ScenarioCases, ScenarioError> {
        if self.size > COPIED_MAX
            && (self.hash_from.is_none() || self.scenario != ScenarioKind::Pingpong)
        {
            return Err("--size: more than 1 GiB need pingpong, and --hash-from".into());
        }
        let least = self.scenario.ranks_min();
        if self.ranks.0.iter().any(|&ranks| ranks < least) {
            let name = self.scenario.name();
            return Err(format!("--ranks: {name} needs {least} ranks at least").into());
        }
        if self.scenario == ScenarioKind::P3dfft {
            let mut ranks = self.ranks.0.iter();
            ranks.try_for_each(|&ranks| p3dfft::check(self.load(), ranks))?;
        }
        Ok(ScenarioCases {
            ranks: self.ranks.0.clone(),
            seeds: self.seeds()?,
            ways: self.ways()?,
        })
    }

    fn seeds(&self) -> Result<RangeInclusive<u64>, ScenarioError> {
        let (seed, runs) = (self.seed, self.runs);
        let last = seed.checked_add(runs - 1).ok_or_else(|| {
            format!(
                "--seed {seed} --runs {runs}: the last seed is beyond {}, the largest; begin lower, or run fewer",
                u64::MAX
            )
        })?;
        Ok(seed..=last)
    }

    fn ways(&self) -> Result<Vec<&'static str>, ScenarioError> {
        let ways = self.scenario.ways();
        let wanted = |way: &&str| self.way.is_empty() || self.way.iter().any(|name| name == way);
        let chosen: Vec<&str> = ways.iter().copied().filter(wanted).collect();
        if chosen.len() < self.way.len() || chosen.is_empty() {
            let name = self.scenario.name();
            return Err(match ways {
                [""] => format!("--way: {name} has only one"),
                _ => format!("--way: those of {name} are {}", ways.join(", ")),
            }
            .into());
        }
        Ok(chosen)
    }
}
