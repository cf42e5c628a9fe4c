//! The namespaces of a process, and what in them hides its descriptors from others.
//!
//! A pid is meaningful within one PID namespace only. The system shows a process's descriptors under `/proc` only to processes of
//! the same user in the same user namespace, and only if the process is dumpable.

use std::os::unix::fs::MetadataExt;

use rustix::process::{DumpableBehavior, dumpable_behavior};

use super::proc;

/// The namespaces that a process is in. A number is 0 if the process cannot determine it, for lack of its own `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessNamespaces {
    pub(super) user: u32,
    pub(super) pid: u32,
}

impl ProcessNamespaces {
    /// Returns the namespaces of this process.
    pub(super) fn own() -> Self {
        let number = |name| {
            let found = std::fs::metadata(format!("/proc/self/ns/{name}")).ok();
            found.and_then(|space| u32::try_from(space.ino()).ok())
        };
        let pid = number("pid").filter(|_| proc::is_ours());
        Self {
            user: number("user").unwrap_or_default(),
            pid: pid.unwrap_or_default(),
        }
    }

    /// Returns true if a pid names the same process in both.
    pub(super) const fn number_alike(self, other: Self) -> bool {
        self.pid != 0 && self.pid == other.pid
    }

    /// Returns true if processes of both can open each other's descriptors, provided that they are dumpable and of one user.
    pub(super) const fn are_open_to(self, other: Self) -> bool {
        self.number_alike(other) && self.user != 0 && self.user == other.user
    }

    /// Returns true if these are the system's initial namespaces. Other processes may then still be in namespaces of their own.
    pub(super) const fn are_first(self) -> bool {
        self.user == FIRST_USER && self.pid == FIRST_PID
    }

    /// Returns why this process cannot open the descriptors of `peer`, which is in `theirs`: the end of a sentence, with a
    /// remedy.
    pub(super) fn obstacle(self, theirs: Self, peer: &str) -> String {
        if self.pid == 0 {
            "this process has no /proc that shows its PID namespace: mount one".to_owned()
        } else if theirs.pid == 0 {
            format!("{peer} has no /proc that shows its PID namespace: mount one there")
        } else if self.pid != theirs.pid {
            format!(
                "{peer} is in another PID namespace: start all ranks of a node in one, or in containers without one"
            )
        } else if self.user != theirs.user {
            format!(
                "{peer} is in another user namespace: start all ranks of a node in one container"
            )
        } else {
            format!(
                "{peer} runs as another user, or is not dumpable, as programs with file capabilities are: run all ranks as one \
                 user, and the program without capabilities of its own"
            )
        }
    }
}

/// Returns true if this process shows its descriptors to other processes of its user.
pub(super) fn is_dumpable() -> bool {
    matches!(dumpable_behavior(), Ok(DumpableBehavior::Dumpable))
}

/// Inode numbers of the initial namespaces, from `linux/proc_ns.h`.
const FIRST_USER: u32 = 0xEFFF_FFFD;
const FIRST_PID: u32 = 0xEFFF_FFFC;

#[cfg(test)]
mod tests {
    use super::ProcessNamespaces;

    const HERE: ProcessNamespaces = ProcessNamespaces { user: 3, pid: 4 };

    #[test]
    fn the_namespace_that_differs_is_named() {
        let to = |user, pid| HERE.obstacle(ProcessNamespaces { user, pid }, "rank 1");
        for (user, pid, named) in [
            (9, 9, "PID namespace"),
            (9, 4, "user namespace"),
            (3, 4, "capabilities"),
            (3, 0, "no /proc"),
        ] {
            let why = to(user, pid);
            assert!(why.contains(named) && why.contains("rank 1"), "{why}");
        }
        let blind = ProcessNamespaces { user: 0, pid: 0 };
        let why = blind.obstacle(HERE, "rank 1");
        assert!(why.contains("this process has no /proc"), "{why}");
        assert!(!blind.number_alike(blind) && !blind.are_open_to(blind));
    }

    #[test]
    fn a_process_is_open_to_itself() {
        assert!(ProcessNamespaces::own().are_open_to(ProcessNamespaces::own()));
    }
}
