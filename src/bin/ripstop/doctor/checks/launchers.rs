//! The launchers that are installed here, and the one that has started this process.

use std::{collections::BTreeMap, path::Path};

use crate::doctor::finding::CheckFinding;

/// What is known about launchers.
#[derive(Debug)]
pub(in crate::doctor) struct LauncherFacts {
    /// Names of launchers in the directories of `PATH`.
    installed: Vec<&'static str>,
    variables: BTreeMap<String, String>,
}

impl LauncherFacts {
    pub(in crate::doctor) fn observe(variables: &BTreeMap<String, String>) -> Self {
        let path = variables.get("PATH").map_or("", String::as_str);
        let is_there = |name: &&str| {
            let mut folders = path.split(':').filter(|folder| !folder.is_empty());
            folders.any(|folder| Path::new(folder).join(name).is_file())
        };
        Self {
            installed: LAUNCHERS.into_iter().filter(is_there).collect(),
            variables: variables.clone(),
        }
    }

    pub(in crate::doctor) fn findings(&self) -> Vec<CheckFinding> {
        vec![self.installed_finding(), self.started_by()]
    }

    fn installed_finding(&self) -> CheckFinding {
        let others = match self.installed.as_slice() {
            [] => "no other launcher is in PATH".to_owned(),
            some => format!("PATH also has {}", some.join(", ")),
        };
        CheckFinding::ok(
            "launchers.installed",
            format!("ripstop run is this command; {others}"),
        )
    }

    /// Judges whether a rank in the place of this process would find its job.
    fn started_by(&self) -> CheckFinding {
        const CHECK: &str = "launchers.started_by";
        let is_set = |name: &str| {
            self.variables
                .get(name)
                .is_some_and(|value| !value.is_empty())
        };
        let ranks = |name: &str| {
            self.variables
                .get(name)
                .and_then(|value| value.parse::<u64>().ok())
        };
        let several = |name: &str| ranks(name).is_some_and(|ranks| ranks > 1);
        if is_set("RIPSTOP_LAUNCHER") && is_set("PMI_FD") {
            return CheckFinding::ok(CHECK, "ripstop run has started this process");
        }
        if is_set("PMI_FD") {
            return CheckFinding::ok(CHECK, "a launcher with PMI-1 has started this process");
        }
        if is_set("PMIX_NAMESPACE") && is_set("PMIX_RANK") {
            return CheckFinding::ok(
                CHECK,
                "a launcher with PMIx has started this process; ranks also need the library libpmix.so.2",
            );
        }
        let without = SIZES.into_iter().find(|(size, ..)| several(size));
        match without {
            Some((size, launcher, advice)) => CheckFinding::fail(
                CHECK,
                format!(
                    "{launcher} has started this process as one of {}, without PMI and PMIx",
                    ranks(size).unwrap_or_default()
                ),
                "ranks cannot find each other without them, and a program of Ripstop ends with an error",
                advice,
            ),
            None => CheckFinding::ok(CHECK, "no launcher has started this process"),
        }
    }
}

const LAUNCHERS: [&str; 7] = [
    "mpiexec.hydra",
    "mpiexec",
    "mpirun",
    "prterun",
    "srun",
    "flux",
    "aprun",
];

/// For each launcher, the variable with the number of ranks, its name, and what to do if it offers neither PMI nor PMIx.
const SIZES: [(&str, &str, &str); 4] = [
    (
        "SLURM_STEP_NUM_TASKS",
        "srun",
        "srun --mpi=pmi2 or --mpi=pmix; `srun --mpi=list` shows what this cluster has",
    ),
    (
        "OMPI_COMM_WORLD_SIZE",
        "mpirun of Open MPI",
        "use an Open MPI with PMIx, or `ripstop run`",
    ),
    (
        "FLUX_JOB_SIZE",
        "flux",
        "flux run -o pmi=simple, or `ripstop run` inside `flux alloc`",
    ),
    (
        "PALS_RANK_COUNT",
        "mpiexec of PALS",
        "use `ripstop run` inside the job, or a launcher with PMI-1 or PMIx",
    ),
];

#[cfg(test)]
mod tests {
    use super::LauncherFacts;
    use crate::doctor::finding::CheckState::{Fail, Ok as Fine};

    #[test]
    fn a_launcher_without_a_process_manager_interface_is_a_failure() {
        for (variables, expected, words) in [
            (vec![], Fine, "no launcher"),
            (
                vec![("PMI_FD", "5"), ("RIPSTOP_LAUNCHER", "5")],
                Fine,
                "ripstop run",
            ),
            (vec![("PMI_FD", "5"), ("PMI_RANK", "0")], Fine, "PMI-1"),
            (
                vec![
                    ("PMIX_NAMESPACE", "a"),
                    ("PMIX_RANK", "0"),
                    ("SLURM_STEP_NUM_TASKS", "2"),
                ],
                Fine,
                "PMIx",
            ),
            (
                vec![("SLURM_STEP_NUM_TASKS", "8")],
                Fail,
                "srun has started this process as one of 8",
            ),
            (vec![("SLURM_STEP_NUM_TASKS", "1")], Fine, "no launcher"),
            (vec![("OMPI_COMM_WORLD_SIZE", "2")], Fail, "Open MPI"),
        ] {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            let facts = LauncherFacts::observe(&variables.iter().map(owned).collect());
            let finding = &facts.findings()[1];
            assert_eq!(finding.state, expected, "{variables:?} {finding:?}");
            assert!(finding.seen.contains(words), "{variables:?} {finding:?}");
        }
    }
}
