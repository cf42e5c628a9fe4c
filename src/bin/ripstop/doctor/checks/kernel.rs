//! The kernel: its version, and whether it lets programs use io_uring.

use crate::{doctor::finding::CheckFinding, system_files::SystemFiles};

/// What is known about the kernel.
#[derive(Debug)]
pub(in crate::doctor) struct KernelFacts {
    /// The kernel's release, such as `6.12.30-amd64`; empty if `/proc` does not tell.
    release: String,
    /// What io_uring can do, or why it does not work.
    uring: Result<String, String>,
}

impl KernelFacts {
    /// Reads the facts. Creates one ring of io_uring for a moment.
    pub(in crate::doctor) fn observe(files: &dyn SystemFiles) -> Self {
        Self {
            release: files.text("/proc/sys/kernel/osrelease").unwrap_or_default(),
            uring: ripstop_rt::io_uring(),
        }
    }

    pub(in crate::doctor) fn findings(&self) -> Vec<CheckFinding> {
        vec![self.version(), self.io_uring()]
    }

    fn version(&self) -> CheckFinding {
        let seen = format!("Linux {}", self.release);
        match version_of(&self.release) {
            Some(version) if version >= FUTEX_WAITS => CheckFinding::ok(VERSION, seen),
            Some(version) if version >= PROCESS_HANDLES => CheckFinding::note(
                VERSION,
                seen,
                "before Linux 6.7, io_uring cannot wait on memory, so a rank that sleeps is woken through a descriptor, which \
                 takes a system call more",
                "nothing, or a newer kernel where short waits matter",
            ),
            Some(_) => CheckFinding::warn(
                VERSION,
                seen,
                "before Linux 5.3, the kernel has no handles of processes (pidfd_open), by which ranks notice that others died",
                "use a newer kernel",
            ),
            None => CheckFinding::skip(VERSION, "the kernel's version is not readable under /proc"),
        }
    }

    fn io_uring(&self) -> CheckFinding {
        match &self.uring {
            Ok(what) => CheckFinding::ok(URING, format!("io_uring {what}")),
            Err(why) => CheckFinding::warn(
                URING,
                why,
                "ranks then sleep in epoll, and waking a rank that sleeps takes 1 to 2 microseconds more",
                "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile, or set \
                 kernel.io_uring_disabled to 0; nothing is lost where ranks do not sleep",
            ),
        }
    }
}

/// Returns the first two numbers of a release.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

/// The version that brought waits on futex words to io_uring.
const FUTEX_WAITS: (u32, u32) = (6, 7);

/// The version that brought handles of processes.
const PROCESS_HANDLES: (u32, u32) = (5, 3);

const VERSION: &str = "kernel.version";
const URING: &str = "kernel.io_uring";

#[cfg(test)]
mod tests {
    use super::KernelFacts;
    use crate::doctor::finding::CheckState::{Note, Ok as Fine, Skip, Warn};

    #[test]
    fn old_kernels_and_a_forbidden_io_uring_are_told_apart() {
        let works = || Ok("works, with waiting on futex words".to_owned());
        let refused = || Err("io_uring is forbidden here (seccomp)".to_owned());
        for (release, uring, states) in [
            ("6.18.4-fc", works(), [Fine, Fine]),
            ("6.7.0", works(), [Fine, Fine]),
            ("6.6.80-lts", refused(), [Note, Warn]),
            ("5.14.0-570.el9.x86_64", refused(), [Note, Warn]),
            ("4.18.0-553.el8", refused(), [Warn, Warn]),
            ("", works(), [Skip, Fine]),
            ("next", works(), [Skip, Fine]),
        ] {
            let release = release.to_owned();
            let findings = KernelFacts { release, uring }.findings();
            let found: Vec<_> = findings.iter().map(|finding| finding.state).collect();
            assert_eq!(found, states, "{findings:?}");
        }
    }
}
