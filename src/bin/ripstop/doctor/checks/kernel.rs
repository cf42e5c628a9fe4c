//! The kernel: its version, and whether it lets programs use io_uring and handles of processes.

use std::io;

use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::{doctor::finding::CheckFinding, system_files::SystemFiles};

/// What is known about the kernel.
#[derive(Debug)]
pub(in crate::doctor) struct KernelFacts {
    /// The kernel's release, such as `6.12.30-amd64`; empty if `/proc` does not tell.
    release: String,
    /// What io_uring can do, or why it does not work.
    uring: Result<String, RefusedUring>,
    /// Whether the kernel gives a handle of a process, or the error of the system call.
    handles: Result<(), io::Error>,
}

/// Why io_uring does not work.
#[derive(Debug)]
struct RefusedUring {
    words: String,
    /// The error number of the system call that failed. `None` if the kernel is too old.
    error: Option<i32>,
}

impl KernelFacts {
    /// Reads the facts. Creates one ring of io_uring, and one handle of this process, for a moment.
    pub(in crate::doctor) fn observe(files: &dyn SystemFiles) -> Self {
        Self {
            release: files.text("/proc/sys/kernel/osrelease").unwrap_or_default(),
            uring: ripstop_rt::io_uring().map_err(|why| RefusedUring {
                words: why.to_string(),
                error: why.raw_os_error(),
            }),
            handles: pidfd_open(getpid(), PidfdFlags::empty())
                .map(drop)
                .map_err(io::Error::from),
        }
    }

    pub(in crate::doctor) fn findings(&self) -> Vec<CheckFinding> {
        vec![self.version(), self.io_uring(), self.process_handles()]
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
                &why.words,
                "ranks then sleep in epoll, and waking a rank that sleeps takes 1 to 2 microseconds more",
                match why.error {
                    Some(libc::EMFILE | libc::ENFILE) => {
                        "raise the limit of open files; see memory.descriptors"
                    }
                    Some(libc::ENOMEM) => "raise the limit of locked memory; see memory.locked",
                    Some(_) => {
                        "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile, or \
                         set kernel.io_uring_disabled to 0; nothing is lost where ranks do not sleep"
                    }
                    None => "use a newer kernel; nothing is lost where ranks do not sleep",
                },
            ),
        }
    }

    fn process_handles(&self) -> CheckFinding {
        match &self.handles {
            Ok(()) => CheckFinding::ok(HANDLES, "pidfd_open gives handles of processes"),
            Err(why) => CheckFinding::warn(
                HANDLES,
                format!("pidfd_open gives no handle of a process ({why})"),
                "ranks of one node notice by such handles that others died; without them, they notice it later",
                match why.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE) => {
                        "raise the limit of open files; see memory.descriptors"
                    }
                    _ => {
                        "allow pidfd_open in the container's seccomp profile, or use Linux 5.3 or newer"
                    }
                },
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
const HANDLES: &str = "kernel.process_handles";

#[cfg(test)]
mod tests {
    use std::io;

    use super::{KernelFacts, RefusedUring};
    use crate::doctor::finding::CheckState::{Note, Ok as Fine, Skip, Warn};

    #[test]
    fn old_kernels_and_a_forbidden_io_uring_are_told_apart() {
        let works = || Ok("works, with waiting on futex words".to_owned());
        let refused = || Err(refusal(Some(libc::EPERM)));
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
            let handles = Ok(());
            let facts = KernelFacts {
                release,
                uring,
                handles,
            };
            let findings = facts.findings();
            let found: Vec<_> = findings.iter().map(|finding| finding.state).collect();
            assert_eq!(found, [states[0], states[1], Fine], "{findings:?}");
        }
    }

    fn refusal(error: Option<i32>) -> RefusedUring {
        let words = "io_uring does not work here".to_owned();
        RefusedUring { words, error }
    }

    #[test]
    fn what_to_do_fits_the_error_of_the_system_call() {
        for (error, words) in [
            (Some(libc::EPERM), ["seccomp", "seccomp"]),
            (Some(libc::ENOSYS), ["seccomp", "Linux 5.3"]),
            (Some(libc::EMFILE), ["memory.descriptors"; 2]),
            (Some(libc::ENFILE), ["memory.descriptors"; 2]),
            (Some(libc::ENOMEM), ["memory.locked", "seccomp"]),
            (None, ["newer kernel", "seccomp"]),
        ] {
            let handles = io::Error::from_raw_os_error(error.unwrap_or(libc::EPERM));
            let facts = KernelFacts {
                release: "6.12.0".to_owned(),
                uring: Err(refusal(error)),
                handles: Err(handles),
            };
            let findings = facts.findings();
            assert_eq!((findings[1].state, findings[2].state), (Warn, Warn));
            for (finding, words) in findings[1..].iter().zip(words) {
                assert!(finding.advice.contains(words), "{finding:?}");
            }
            let names_filter = findings[1].advice.contains("seccomp");
            assert_eq!(names_filter, words[0] == "seccomp", "{findings:?}");
        }
    }
}
