//! The environment variables of a process as a value, and the variables that launchers set.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::{BootError, pals};

/// Environment variables by name. A value, so that tests need no separate process.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Returns the variables of this process, without those that are not UTF-8.
    #[must_use]
    pub fn of_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    /// Returns the value of `name`. An empty value counts as unset.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Returns the value of `name` as a number in `least..=most`.
    pub(super) fn number(
        &self,
        name: &'static str,
        least: u32,
        most: u32,
    ) -> Result<Option<u32>, BootError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = value
            .parse()
            .ok()
            .filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| {
            BootError::variable(name, value, &format!("a number from {least} to {most}"))
        })
    }

    /// Returns the time limit for every answer of the launcher.
    pub(super) fn answer_limit(&self) -> Result<Duration, BootError> {
        let seconds = self
            .number("RIPSTOP_BOOT_TIMEOUT", 1, 86_400)?
            .unwrap_or(ANSWER_LIMIT_S);
        Ok(Duration::from_secs(u64::from(seconds)))
    }

    /// Returns an error if a launcher's variables say that the job has more than one rank.
    pub(super) fn check_alone(&self) -> Result<(), BootError> {
        self.check(|_| true, "")
    }

    /// Returns an error if the job found by `found` has one rank, and another launcher's variables say that there are
    /// more.
    pub(super) fn check_job_of_one(&self, found: &str) -> Result<(), BootError> {
        self.check(
            LauncherHint::is_of_ranks,
            &format!(", whereas {found} reports one rank"),
        )
    }

    fn check(&self, counts: fn(&LauncherHint) -> bool, beside: &str) -> Result<(), BootError> {
        let mut hints = HINTS.iter().filter(|hint| counts(hint));
        let found = hints.find_map(|hint| self.contradiction(hint, beside));
        found.map_or(Ok(()), Err)
    }

    fn contradiction(&self, hint: &LauncherHint, beside: &str) -> Option<BootError> {
        let value = self.get(hint.variable)?;
        let ranks = match hint.kind {
            HintKind::Count => value.parse().ok()?,
            HintKind::Rank => value.parse::<u64>().ok()?.checked_add(1)?,
            HintKind::PalsFile => u64::from(pals::ranks(Path::new(value))?),
        };
        (ranks > 1).then(|| BootError::WrongLauncher {
            evidence: format!(
                "{}={value} says that {} started a job of several ranks{beside}",
                hint.variable, hint.launcher
            ),
            advice: advice(ranks, hint),
        })
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(variables: T) -> Self {
        Self(
            variables
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

/// A variable with which a launcher announces the number of ranks, or that this is not rank 0.
struct LauncherHint {
    variable: &'static str,
    launcher: &'static str,
    kind: HintKind,
}

/// Meaning of a variable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HintKind {
    /// The number of ranks.
    Count,
    /// The number of this rank.
    Rank,
    /// A file that says the number of ranks, as [`pals`] reads it.
    PalsFile,
}

impl LauncherHint {
    /// Returns true if only ranks have this variable. Other variables describe an allocation, or are set for the
    /// launchers' own processes on its nodes.
    fn is_of_ranks(&self) -> bool {
        ["OMPI_", "PMI_", "MV2_", "PMIX_"]
            .iter()
            .any(|family| self.variable.starts_with(family))
    }
}

fn advice(ranks: u64, hint: &LauncherHint) -> String {
    let n = if hint.kind == HintKind::Rank {
        "N".to_owned()
    } else {
        ranks.to_string()
    };
    let program = std::env::args_os().next().map_or_else(
        || "PROGRAM".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    let job = format!("-n {n} {program}");
    let on_one_node = format!(", or on one node with `ripstop run {job}`");
    let (first, last) = match hint.variable.split('_').next() {
        Some("SLURM") => (format!("`srun --mpi=pmi2 {job}`"), on_one_node),
        Some("FLUX") => (format!("`flux run -o pmi=simple {job}`"), on_one_node),
        Some("PALS") => (format!("`mpiexec --pmi=pmix {job}`"), on_one_node),
        _ => (
            format!("`ripstop run {job}`"),
            ", under Slurm `srun --mpi=pmi2` or `--mpi=pmix`".to_owned(),
        ),
    };
    format!(
        "start it with {first} or `mpiexec.hydra {job}`{last}; RIPSTOP_BOOT=singleton runs one rank on purpose"
    )
}

const fn count(variable: &'static str, launcher: &'static str) -> LauncherHint {
    LauncherHint {
        variable,
        launcher,
        kind: HintKind::Count,
    }
}

const fn rank(variable: &'static str, launcher: &'static str) -> LauncherHint {
    LauncherHint {
        variable,
        launcher,
        kind: HintKind::Rank,
    }
}

/// Counts come before ranks, because the advice can then name the number. `SLURM_NTASKS` is last, because the others
/// are set by programs that `srun` started.
const HINTS: &[LauncherHint] = &[
    count("OMPI_COMM_WORLD_SIZE", "Open MPI's launcher"),
    count(
        "PMI_SIZE",
        "a PMI launcher, without passing its connection on (PMI_FD is not set, or closed),",
    ),
    count("MV2_COMM_WORLD_SIZE", "MVAPICH's launcher"),
    count("FLUX_JOB_SIZE", "Flux"),
    count("JSM_NAMESPACE_SIZE", "jsrun"),
    LauncherHint {
        variable: "PALS_APINFO",
        launcher: "PALS",
        kind: HintKind::PalsFile,
    },
    count("SLURM_NTASKS", "Slurm"),
    rank("PMIX_RANK", "a PMIx launcher"),
    rank("PALS_RANKID", "PALS"),
    rank("PMI_RANK", "a PMI launcher"),
    rank("SLURM_PROCID", "Slurm"),
];

/// Default time limit in seconds. Long enough for a program that hundreds of nodes load from one file server, and short
/// enough for a waiting user.
const ANSWER_LIMIT_S: u32 = 60;
