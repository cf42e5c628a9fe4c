//! The namespaces of a process, and what in them keeps others from its descriptors.
//!
//! Numbers of processes mean something within one PID namespace only, and the system shows a process's descriptors under `/proc`
//! to those of its user, in its user namespace, if it is dumpable.

use std::os::unix::fs::MetadataExt;

use rustix::process::{DumpableBehavior, dumpable_behavior};

use super::proc;

/// Which namespaces a process is in. A number is 0 where the process cannot tell it, for want of a `/proc` of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spaces {
    pub(super) user: u32,
    pub(super) pid: u32,
}

impl Spaces {
    /// Those of this process.
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

    /// Whether a number names the same process here and there.
    pub(super) const fn number_alike(self, other: Self) -> bool {
        self.pid != 0 && self.pid == other.pid
    }

    /// Whether processes of both, of one user and dumpable, find each other's descriptors.
    pub(super) const fn are_open_to(self, other: Self) -> bool {
        self.number_alike(other) && self.user != 0 && self.user == other.user
    }

    /// Whether the process is in the namespaces that the system starts with: then others may be in some of their own.
    pub(super) const fn are_first(self) -> bool {
        self.user == FIRST_USER && self.pid == FIRST_PID
    }

    /// Why this process does not find the descriptors of `peer`, which is in `theirs`: the end of a sentence, with what to do.
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

/// Whether this process shows its descriptors to others of its user.
pub(super) fn is_dumpable() -> bool {
    matches!(dumpable_behavior(), Ok(DumpableBehavior::Dumpable))
}

/// What `linux/proc_ns.h` says.
const FIRST_USER: u32 = 0xEFFF_FFFD;
const FIRST_PID: u32 = 0xEFFF_FFFC;

#[cfg(test)]
mod tests {
    use super::Spaces;

    const HERE: Spaces = Spaces { user: 3, pid: 4 };

    #[test]
    fn the_namespace_that_differs_is_named() {
        let to = |user, pid| HERE.obstacle(Spaces { user, pid }, "rank 1");
        for (user, pid, named) in [
            (9, 9, "PID namespace"),
            (9, 4, "user namespace"),
            (3, 4, "capabilities"),
            (3, 0, "no /proc"),
        ] {
            let why = to(user, pid);
            assert!(why.contains(named) && why.contains("rank 1"), "{why}");
        }
        let blind = Spaces { user: 0, pid: 0 };
        let why = blind.obstacle(HERE, "rank 1");
        assert!(why.contains("this process has no /proc"), "{why}");
        assert!(!blind.number_alike(blind) && !blind.are_open_to(blind));
    }

    #[test]
    fn a_process_is_open_to_itself() {
        assert!(Spaces::own().are_open_to(Spaces::own()));
    }
}
