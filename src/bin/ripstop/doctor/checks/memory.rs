//! Memory and other limits of a process: locked memory, descriptors, processes, and the memory of its cgroup.

use crate::{
    doctor::{cgroup::CgroupLimits, finding::CheckFinding},
    system_files::SystemFiles,
    units::binary_size,
};

/// What is known about limits of memory and of processes.
#[derive(Debug)]
pub(in crate::doctor) struct MemoryFacts {
    /// Limits of this process, as `/proc` lists them.
    limits: String,
    cgroup: CgroupLimits,
    /// The answer of the shared-memory driver: it works, or a reason.
    shared: Result<(), String>,
    /// The kernel's setting of huge pages for shared memory, such as `always [advise] never`.
    shmem_huge: Option<String>,
    /// The number of adapters that register memory.
    adapters: usize,
    /// The number of processors that ranks may use here.
    processors: usize,
}

impl MemoryFacts {
    pub(in crate::doctor) fn observe(
        files: &dyn SystemFiles,
        shared: Result<(), String>,
        processors: usize,
    ) -> Self {
        Self {
            limits: files.text("/proc/self/limits").unwrap_or_default(),
            cgroup: CgroupLimits::observe(files),
            shared,
            shmem_huge: files.text("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
            adapters: files.names("/sys/class/infiniband").len(),
            processors,
        }
    }

    pub(in crate::doctor) fn findings(&self) -> Vec<CheckFinding> {
        vec![
            self.shared_memory(),
            self.locked(),
            self.descriptors(),
            self.processes(),
            self.cgroup_memory(),
            self.huge_pages(),
        ]
    }

    fn shared_memory(&self) -> CheckFinding {
        match &self.shared {
            Ok(()) => CheckFinding::ok(
                "memory.shared",
                "ranks share memory by memfd_create, whatever the size of /dev/shm",
            ),
            Err(why) => CheckFinding::fail(
                "memory.shared",
                why,
                "ranks of one node share memory by memfd_create, and the fabric `shm` does not start without it",
                "allow memfd_create in the container's seccomp profile, and give the container memory",
            ),
        }
    }

    fn locked(&self) -> CheckFinding {
        const CHECK: &str = "memory.locked";
        let Some(limit) = self.limit("Max locked memory") else {
            return CheckFinding::skip(CHECK, UNREADABLE);
        };
        let seen = format!("the limit of locked memory is {}", limit.bytes());
        match (self.adapters, limit.soft) {
            (0, _) => CheckFinding::ok(CHECK, format!("{seen}, and no adapter here needs more")),
            (_, None) => CheckFinding::ok(CHECK, seen),
            (_, Some(_)) => CheckFinding::warn(
                CHECK,
                seen,
                "an InfiniBand or RoCE adapter locks the memory of all buffers that it reads and writes, so a rank with larger \
                 ones ends with an error",
                "ulimit -l unlimited: `memlock` in /etc/security/limits.conf, LimitMEMLOCK=infinity for the service that \
                 starts jobs, and under Slurm PropagateResourceLimitsExcept=MEMLOCK",
            ),
        }
    }

    fn descriptors(&self) -> CheckFinding {
        const CHECK: &str = "memory.descriptors";
        let Some(limit) = self.limit("Max open files") else {
            return CheckFinding::skip(CHECK, UNREADABLE);
        };
        let seen = format!("a process may open {} files", limit.numbers());
        if limit.hard.is_none_or(|hard| hard >= DESCRIPTORS_ENOUGH) {
            return CheckFinding::ok(CHECK, seen);
        }
        CheckFinding::warn(
            CHECK,
            seen,
            "over TCP a rank has one descriptor for each peer that it talks to, and `ripstop run` has two for each rank, or four \
             with --label; the hard limit counts, because Ripstop raises the soft one",
            "raise the hard limit: `nofile` in /etc/security/limits.conf, or LimitNOFILE= for the service that starts jobs",
        )
    }

    fn processes(&self) -> CheckFinding {
        const CHECK: &str = "memory.processes";
        let Some(limit) = self.limit("Max processes") else {
            return CheckFinding::skip(CHECK, UNREADABLE);
        };
        let most = [limit.soft, self.cgroup.tasks_max]
            .into_iter()
            .flatten()
            .min();
        let threads = THREADS_PER_RANK * self.processors as u64;
        match most {
            Some(most) if most < threads + TASKS_BESIDE => CheckFinding::warn(
                CHECK,
                format!("at most {most} processes and threads may run"),
                "a rank has up to four threads beside the application's, and `ripstop run` starts a process for each rank",
                "raise `ulimit -u`, and `pids.max` of the container (`--pids-limit` of docker and podman)",
            ),
            Some(most) => CheckFinding::ok(CHECK, format!("{most} processes and threads may run")),
            None => CheckFinding::ok(CHECK, "the number of processes is not limited"),
        }
    }

    fn cgroup_memory(&self) -> CheckFinding {
        const CHECK: &str = "memory.limit";
        let Some(max) = self.cgroup.memory_max else {
            return CheckFinding::ok(CHECK, "the cgroup does not limit memory");
        };
        let used = self.cgroup.memory_used.unwrap_or(0);
        let needed = MEMORY_PER_RANK * self.processors as u64;
        let (all, left) = (binary_size(max), binary_size(max.saturating_sub(used)));
        if max.saturating_sub(used) >= needed {
            return CheckFinding::ok(CHECK, format!("the cgroup allows {all}"));
        }
        CheckFinding::warn(
            CHECK,
            format!("the cgroup allows {all}, of which {left} are left"),
            "the kernel kills ranks that take more, and memory that ranks share counts too",
            "start the job or the container with more memory (`--mem` of Slurm, `--memory` of docker and podman)",
        )
        .varying()
    }

    /// Huge pages only save time in large buffers that ranks share, so their absence is no fault.
    fn huge_pages(&self) -> CheckFinding {
        const CHECK: &str = "memory.huge_pages";
        let chosen = self.shmem_huge.as_deref().and_then(|list| {
            let (_, rest) = list.split_once('[')?;
            Some(rest.split_once(']')?.0)
        });
        match chosen {
            Some(chosen) => CheckFinding::ok(
                CHECK,
                format!("huge pages of shared memory: {chosen}; Ripstop needs none"),
            ),
            None => CheckFinding::skip(
                CHECK,
                "this kernel has no transparent huge pages; Ripstop needs none",
            ),
        }
    }

    fn limit(&self, name: &str) -> Option<ProcessLimit> {
        let line = self
            .limits
            .lines()
            .find_map(|line| line.strip_prefix(name))?;
        let mut words = line.split_whitespace();
        Some(ProcessLimit {
            soft: limit_of(words.next()?)?,
            hard: limit_of(words.next()?)?,
        })
    }
}

/// A limit of this process; `None` means that there is none.
#[derive(Clone, Copy, Debug)]
struct ProcessLimit {
    soft: Option<u64>,
    hard: Option<u64>,
}

impl ProcessLimit {
    fn bytes(self) -> String {
        self.soft
            .map_or_else(|| "unlimited".to_owned(), binary_size)
    }

    fn numbers(self) -> String {
        let text =
            |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
        let (soft, hard) = (text(self.soft), text(self.hard));
        if soft == hard {
            return soft;
        }
        format!("{soft}, and {hard} after raising the limit")
    }
}

#[expect(clippy::option_option, reason = "no value, no limit, or a limit")]
fn limit_of(word: &str) -> Option<Option<u64>> {
    match word {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

/// Enough for a rank with a thousand peers over TCP.
const DESCRIPTORS_ENOUGH: u64 = 4096;

/// A rank's agent, its drivers' threads, and the application's first thread.
const THREADS_PER_RANK: u64 = 5;

/// The launcher, a shell, and what else a container runs.
const TASKS_BESIDE: u64 = 32;

/// The store for unexpected messages, as it is by default, and as much for buffers.
const MEMORY_PER_RANK: u64 = 128 << 20;

const UNREADABLE: &str = "/proc/self/limits is not readable";

#[cfg(test)]
mod tests {
    use super::MemoryFacts;
    use crate::{
        doctor::finding::{
            CheckFinding,
            CheckState::{self, Fail, Ok as Fine, Skip, Warn},
        },
        system_files::made_up::MadeUpFiles,
    };

    const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max processes             96364                96364                processes
Max open files            1024                 524288               files
Max locked memory         8388608              8388608              bytes";

    fn found(files: &[(&str, &str)], shared: Result<(), String>) -> Vec<CheckFinding> {
        let files = MadeUpFiles::new(&[("/proc/self/limits", LIMITS)]).with(files);
        MemoryFacts::observe(&files, shared, 4).findings()
    }

    fn state(findings: &[CheckFinding], check: &str) -> CheckState {
        let mut all = findings.iter();
        all.find(|finding| finding.check == check).unwrap().state
    }

    #[test]
    fn a_usual_machine_without_adapters_has_no_fault() {
        let findings = found(&[], Ok(()));
        for finding in &findings {
            assert!(finding.state <= Skip, "{finding:?}");
        }
        assert_eq!(findings.len(), 6);
    }

    #[test]
    fn limits_are_judged_by_what_needs_them() {
        let adapter = ("/sys/class/infiniband/mlx5_0/node_guid", "");
        let limits = |from: &str, to: &str| LIMITS.replace(from, to);
        let unlimited = limits(
            "8388608              8388608",
            "unlimited            unlimited",
        );
        let small = limits("8388608              8388608", "65536                65536");
        let few_files = limits("524288", "1024");
        let few_processes = limits("96364                96364", "40                   40");
        let path = "/proc/self/limits";
        for (files, check, expected) in [
            (vec![(path, &*small)], "memory.locked", Fine),
            (vec![adapter], "memory.locked", Warn),
            (vec![adapter, (path, &*small)], "memory.locked", Warn),
            (vec![adapter, (path, &*unlimited)], "memory.locked", Fine),
            (vec![(path, &*few_files)], "memory.descriptors", Warn),
            (vec![(path, &*few_processes)], "memory.processes", Warn),
            (vec![(path, "")], "memory.descriptors", Skip),
            (
                vec![
                    ("/proc/self/cgroup", "0::/"),
                    ("/sys/fs/cgroup/pids.max", "20"),
                ],
                "memory.processes",
                Warn,
            ),
            (
                vec![
                    ("/proc/self/cgroup", "0::/"),
                    ("/sys/fs/cgroup/memory.max", "268435456"),
                    ("/sys/fs/cgroup/memory.current", "1048576"),
                ],
                "memory.limit",
                Warn,
            ),
        ] {
            let findings = found(&files, Ok(()));
            assert_eq!(state(&findings, check), expected, "{files:?} {findings:?}");
        }
        let findings = found(&[], Err("shared memory cannot be allocated".to_owned()));
        assert_eq!(state(&findings, "memory.shared"), Fail);
    }

    #[test]
    fn a_warning_names_the_limit_that_was_seen() {
        let small = LIMITS.replace("8388608", "65536");
        let adapter = ("/sys/class/infiniband/mlx5_0/node_guid", "");
        let findings = found(&[adapter, ("/proc/self/limits", &small)], Ok(()));
        let locked = findings
            .iter()
            .find(|finding| finding.check == "memory.locked");
        let locked = locked.unwrap();
        assert!(locked.seen.ends_with("64 KiB"), "{locked:?}");
        assert!(locked.advice.contains("ulimit -l"), "{locked:?}");
    }
}
