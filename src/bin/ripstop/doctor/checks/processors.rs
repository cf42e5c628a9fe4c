//! The processors that ranks may use, and how they are shared and clocked.

use crate::{
    doctor::{cgroup::CgroupLimits, finding::CheckFinding},
    system_files::{SystemFiles, allowed_processors, listed_numbers, number_list},
};

/// What is known about processors.
#[derive(Debug)]
pub(in crate::doctor) struct ProcessorFacts {
    model: Option<String>,
    /// Processors that this process may use, in ascending order.
    allowed: Vec<u32>,
    /// Processors that are switched on.
    online: usize,
    /// Processors that share a core with a smaller one, among the allowed ones.
    siblings: usize,
    cgroup: CgroupLimits,
    /// Frequency governors of the allowed processors, each once.
    governors: Vec<String>,
    /// The driver of frequencies, such as `intel_pstate`.
    frequency_driver: Option<String>,
    /// Threads of the system that can run now.
    running: Option<usize>,
}

impl ProcessorFacts {
    pub(in crate::doctor) fn observe(files: &dyn SystemFiles) -> Self {
        let allowed = allowed_processors(files);
        let online = files
            .text("/sys/devices/system/cpu/online")
            .map_or(allowed.len(), |list| listed_numbers(&list).len());
        let of_cpu =
            |cpu: &u32, what: &str| files.text(&format!("/sys/devices/system/cpu/cpu{cpu}/{what}"));
        let mut governors: Vec<String> = allowed
            .iter()
            .filter_map(|cpu| of_cpu(cpu, "cpufreq/scaling_governor"))
            .collect();
        governors.sort();
        governors.dedup();
        let is_sibling = |cpu: &&u32| {
            let together = of_cpu(cpu, "topology/thread_siblings_list");
            let together = together.map_or_else(Vec::new, |list| listed_numbers(&list));
            let mut others = together.iter().filter(|other| allowed.contains(other));
            others.next().is_some_and(|first| first < *cpu)
        };
        Self {
            model: model(files),
            online,
            siblings: allowed.iter().filter(is_sibling).count(),
            cgroup: CgroupLimits::observe(files),
            governors,
            frequency_driver: allowed
                .first()
                .and_then(|cpu| of_cpu(cpu, "cpufreq/scaling_driver")),
            running: running(files),
            allowed,
        }
    }

    pub(in crate::doctor) const fn allowed(&self) -> usize {
        self.allowed.len()
    }

    pub(in crate::doctor) fn findings(&self) -> Vec<CheckFinding> {
        vec![
            self.model_finding(),
            self.allowed_finding(),
            self.quota(),
            self.governor(),
            self.load(),
        ]
    }

    fn model_finding(&self) -> CheckFinding {
        let model = self
            .model
            .as_deref()
            .unwrap_or("of a model that /proc does not tell");
        let threads = match self.siblings {
            0 => "one thread a core".to_owned(),
            some => format!("{some} of them second threads of cores"),
        };
        CheckFinding::ok(
            "processors.model",
            format!("{} {model}, {threads}", self.online),
        )
    }

    fn allowed_finding(&self) -> CheckFinding {
        const CHECK: &str = "processors.allowed";
        let list = number_list(&self.allowed);
        match self.allowed.len() {
            0 => CheckFinding::skip(
                CHECK,
                "/proc/self/status does not tell the allowed processors",
            ),
            1 => CheckFinding::warn(
                CHECK,
                format!(
                    "this process may use 1 of {} processors: {list}",
                    self.online
                ),
                "a rank's progress agent then shares the processor with the application, and two ranks here would take turns",
                "start one rank here, or allow more processors (`--cpus-per-task` of Slurm, `--bind` of `ripstop run`, \
                 `--cpuset-cpus` of docker and podman)",
            ),
            all if all == self.online => CheckFinding::ok(CHECK, "all of them may be used"),
            some => CheckFinding::ok(
                CHECK,
                format!("{some} of {} may be used: {list}", self.online),
            ),
        }
    }

    fn quota(&self) -> CheckFinding {
        const CHECK: &str = "processors.quota";
        let Some(quota) = self.cgroup.cpu_quota else {
            return CheckFinding::ok(CHECK, "the cgroup has no quota of processor time");
        };
        let seen = format!(
            "the cgroup has a quota of {quota:.1} processors, and {} may be used",
            self.allowed.len()
        );
        let allowed = u32::try_from(self.allowed.len()).unwrap_or(u32::MAX);
        if quota >= f64::from(allowed) {
            return CheckFinding::ok(CHECK, seen);
        }
        CheckFinding::warn(
            CHECK,
            seen,
            "ranks spin for short waits, and when the quota is used up the kernel stops all of them for up to 100 ms",
            "give the container as many whole processors as it has ranks (a set of processors instead of a quota), or set \
             RIPSTOP_SPIN_US_MAX=0",
        )
    }

    fn governor(&self) -> CheckFinding {
        const CHECK: &str = "processors.governor";
        if self.governors.is_empty() {
            return CheckFinding::skip(
                CHECK,
                "the kernel does not govern frequencies here, as in virtual machines",
            );
        }
        let governors = self.governors.join(", ");
        let driver = self.frequency_driver.as_deref().unwrap_or("unknown");
        let seen = format!("governor {governors}, by the driver {driver}");
        // The governor `powersave` of drivers with the suffix `pstate` lets the processor choose, and follows load quickly.
        let slow = |governor: &String| {
            governor == "ondemand"
                || governor == "conservative"
                || (governor == "powersave" && !driver.contains("pstate"))
        };
        if self.governors.iter().any(slow) {
            return CheckFinding::warn(
                CHECK,
                seen,
                "a processor then starts slowly after each sleep, so short messages take longer and measurements vary",
                "cpupower frequency-set -g performance, by an administrator or the job's prolog",
            );
        }
        CheckFinding::ok(CHECK, seen)
    }

    fn load(&self) -> CheckFinding {
        const CHECK: &str = "processors.load";
        let Some(running) = self.running else {
            return CheckFinding::skip(CHECK, "/proc/loadavg is not readable");
        };
        let seen = match running {
            0 => "nothing else runs".to_owned(),
            1 => "1 other thread runs".to_owned(),
            some => format!("{some} other threads run"),
        };
        if running < self.online.max(1) {
            return CheckFinding::ok(CHECK, seen).varying();
        }
        CheckFinding::note(
            CHECK,
            format!("{seen} on {} processors", self.online),
            "ranks of other jobs take the processors away from these ranks, and times that are measured now say little",
            "look at `top`; measure on an idle machine",
        )
        .varying()
    }
}

/// Returns the name of the first processor. ARM's list has only the numbers of its implementer and part.
fn model(files: &dyn SystemFiles) -> Option<String> {
    let list = files.text("/proc/cpuinfo")?;
    let value = |name: &str| {
        let mut values = list.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = values.find(|(key, _)| key.trim() == name)?;
        Some(value.trim().to_owned())
    };
    let of_arm = || {
        let (maker, part) = (value("CPU implementer")?, value("CPU part")?);
        Some(format!("ARM implementer {maker} part {part}"))
    };
    value("model name").or_else(of_arm)
}

/// Returns the number of threads that can run now, without the one that asks.
fn running(files: &dyn SystemFiles) -> Option<usize> {
    let load = files.text("/proc/loadavg")?;
    let (running, _) = load.split_whitespace().nth(3)?.split_once('/')?;
    running
        .parse::<usize>()
        .ok()
        .map(|all| all.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::ProcessorFacts;
    use crate::{
        doctor::finding::CheckState::{self, Note, Ok as Fine, Skip, Warn},
        system_files::made_up::MadeUpFiles,
    };

    const MACHINE: [(&str, &str); 5] = [
        (
            "/proc/self/status",
            "Name:\tripstop\nCpus_allowed_list:\t0-3",
        ),
        ("/sys/devices/system/cpu/online", "0-3"),
        ("/proc/cpuinfo", "processor : 0\nmodel name\t: Example 9000"),
        ("/proc/loadavg", "0.10 0.20 0.30 1/200 4711"),
        ("/proc/self/cgroup", "0::/job"),
    ];

    fn state(files: &[(&str, &str)], check: &str) -> (CheckState, String) {
        let files = MadeUpFiles::new(&MACHINE).with(files);
        let findings = ProcessorFacts::observe(&files).findings();
        let mut found = findings
            .into_iter()
            .filter(|finding| finding.check == check);
        let found = found.next().unwrap();
        (found.state, found.seen)
    }

    /// A table of made-up files, and what a check says of them.
    type JudgedFiles<'a> = (Vec<(&'a str, &'a str)>, CheckState, &'a str);

    fn assert_judged(check: &str, table: &[JudgedFiles<'_>]) {
        for (files, expected, words) in table {
            let (state, seen) = state(files, check);
            assert_eq!(state, *expected, "{check} {files:?} {seen}");
            assert!(seen.contains(words), "{check} {files:?} {seen}");
        }
    }

    #[test]
    fn processors_are_judged_by_what_the_process_may_use() {
        let one = ("/proc/self/status", "Cpus_allowed_list:\t2");
        let two = ("/proc/self/status", "Cpus_allowed_list: 1,3");
        let nothing = ("/proc/self/status", "");
        let table = [
            (vec![], Fine, "all"),
            (vec![one], Warn, "1 of 4 processors: 2"),
            (vec![two], Fine, "2 of 4 may be used: 1,3"),
            (vec![nothing], Skip, ""),
        ];
        assert_judged("processors.allowed", &table);

        let quota = "/sys/fs/cgroup/job/cpu.max";
        let table = [
            (vec![(quota, "max 100000")], Fine, "no quota"),
            (vec![(quota, "150000 100000")], Warn, "1.5"),
            (vec![(quota, "400000 100000")], Fine, "4.0"),
        ];
        assert_judged("processors.quota", &table);
    }

    #[test]
    fn governors_are_judged_with_their_drivers() {
        let governor = "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor";
        let driver = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver";
        let (saving, fast) = ((governor, "powersave"), (governor, "performance"));
        let table = [
            (vec![], Skip, "virtual"),
            (vec![saving, (driver, "acpi-cpufreq")], Warn, "powersave"),
            (vec![saving, (driver, "intel_pstate")], Fine, "intel_pstate"),
            (vec![fast], Fine, ""),
        ];
        assert_judged("processors.governor", &table);
    }

    #[test]
    fn load_and_model_are_named() {
        let busy = ("/proc/loadavg", "9.0 9.0 9.0 7/200 1");
        let table = [
            (vec![], Fine, "nothing"),
            (vec![busy], Note, "6 other threads run on 4"),
            (vec![("/proc/loadavg", "")], Skip, ""),
        ];
        assert_judged("processors.load", &table);
        let table = [(vec![], Fine, "4 Example 9000, one thread")];
        assert_judged("processors.model", &table);
    }

    #[test]
    fn second_threads_of_cores_are_counted() {
        let siblings =
            |cpu: u32| format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let (zero, two) = (siblings(0), siblings(2));
        let files = [(&*zero, "0,2"), (&*two, "0,2")];
        let (_, seen) = state(&files, "processors.model");
        assert!(
            seen.ends_with("1 of them second threads of cores"),
            "{seen}"
        );
    }
}
