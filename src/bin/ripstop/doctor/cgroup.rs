//! The limits of the control group of this process, in both versions of the interface.

use crate::system_files::{SystemFiles, number};

/// Limits; the narrowest of the group and those around it counts. `None` means that there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CgroupLimits {
    /// Bytes of memory.
    pub(super) memory_max: Option<u64>,
    /// Bytes of memory in use in the group with that limit.
    pub(super) memory_used: Option<u64>,
    /// Processors, as time in each period over the period.
    pub(super) cpu_quota: Option<f64>,
    /// Processes and threads.
    pub(super) tasks_max: Option<u64>,
}

impl CgroupLimits {
    pub(super) fn observe(files: &dyn SystemFiles) -> Self {
        let groups = files.text("/proc/self/cgroup").unwrap_or_default();
        let mut limits = Self::default();
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
                continue;
            };
            if controllers.is_empty() {
                for folder in ancestors("/sys/fs/cgroup", path) {
                    limits.narrow(Self::of_second_version(files, &folder));
                }
            }
            for controller in controllers.split(',') {
                let top = format!("/sys/fs/cgroup/{controller}");
                for folder in ancestors(&top, path) {
                    limits.narrow(Self::of_first_version(files, controller, &folder));
                }
            }
        }
        limits
    }

    fn of_second_version(files: &dyn SystemFiles, folder: &str) -> Self {
        let quota = files.text(&format!("{folder}/cpu.max"));
        Self {
            memory_max: number(files, &format!("{folder}/memory.max")),
            memory_used: number(files, &format!("{folder}/memory.current")),
            cpu_quota: quota.and_then(|quota| {
                let (time, period) = quota.split_once(' ')?;
                Some(time.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
            }),
            tasks_max: number(files, &format!("{folder}/pids.max")),
        }
    }

    fn of_first_version(files: &dyn SystemFiles, controller: &str, folder: &str) -> Self {
        let found = |name: &str| number::<u64>(files, &format!("{folder}/{name}"));
        match controller {
            "memory" => Self {
                memory_max: found("memory.limit_in_bytes").filter(|max| *max < UNLIMITED),
                memory_used: found("memory.usage_in_bytes"),
                ..Self::default()
            },
            "cpu" => Self {
                cpu_quota: number::<f64>(files, &format!("{folder}/cpu.cfs_quota_us"))
                    .filter(|time| *time > 0.0)
                    .zip(number::<f64>(files, &format!("{folder}/cpu.cfs_period_us")))
                    .map(|(time, period)| time / period),
                ..Self::default()
            },
            "pids" => Self {
                tasks_max: found("pids.max"),
                ..Self::default()
            },
            _ => Self::default(),
        }
    }

    fn narrow(&mut self, other: Self) {
        if let Some(max) = other.memory_max
            && self.memory_max.is_none_or(|own| max < own)
        {
            self.memory_max = Some(max);
            self.memory_used = other.memory_used;
        }
        if let Some(quota) = other.cpu_quota
            && self.cpu_quota.is_none_or(|own| quota < own)
        {
            self.cpu_quota = Some(quota);
        }
        if let Some(max) = other.tasks_max
            && self.tasks_max.is_none_or(|own| max < own)
        {
            self.tasks_max = Some(max);
        }
    }
}

/// Returns the folders of a group and of all groups around it.
fn ancestors(top: &str, path: &str) -> Vec<String> {
    let mut folders = vec![top.to_owned()];
    let mut folder = top.to_owned();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        folder = format!("{folder}/{part}");
        folders.push(folder.clone());
    }
    folders
}

/// The first version writes the largest number of pages for "no limit".
const UNLIMITED: u64 = 1 << 62;

#[cfg(test)]
mod tests {
    use super::CgroupLimits;
    use crate::system_files::made_up::MadeUpFiles;

    #[test]
    fn the_narrowest_limit_of_all_groups_around_the_process_counts() {
        let files = MadeUpFiles::new(&[
            ("/proc/self/cgroup", "0::/slurm/job7/step0"),
            ("/sys/fs/cgroup/slurm/memory.max", "max"),
            ("/sys/fs/cgroup/slurm/job7/memory.max", "4096"),
            ("/sys/fs/cgroup/slurm/job7/memory.current", "1024"),
            ("/sys/fs/cgroup/slurm/job7/step0/memory.max", "8192"),
            ("/sys/fs/cgroup/slurm/job7/cpu.max", "50000 100000"),
            ("/sys/fs/cgroup/slurm/pids.max", "77"),
        ]);
        let expected = CgroupLimits {
            memory_max: Some(4096),
            memory_used: Some(1024),
            cpu_quota: Some(0.5),
            tasks_max: Some(77),
        };
        assert_eq!(CgroupLimits::observe(&files), expected);
    }

    #[test]
    fn the_first_version_has_a_folder_for_each_controller() {
        let files = MadeUpFiles::new(&[
            (
                "/proc/self/cgroup",
                "3:cpu,cpuacct:/a\n2:memory:/b\n1:pids:/\n0::/",
            ),
            (
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712",
            ),
            ("/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "4096"),
            ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
            ("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "150000"),
            ("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000"),
            ("/sys/fs/cgroup/pids/pids.max", "max"),
        ]);
        let expected = CgroupLimits {
            memory_max: Some(4096),
            cpu_quota: Some(1.5),
            ..CgroupLimits::default()
        };
        assert_eq!(CgroupLimits::observe(&files), expected);
        assert_eq!(
            CgroupLimits::observe(&MadeUpFiles::default()),
            CgroupLimits::default()
        );
    }
}
