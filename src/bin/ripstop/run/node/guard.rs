//! The guard of a helper: a process that kills what the ranks have started, if the helper itself is killed.
//!
//! The system ends the ranks of a killed helper, but not the processes that these ranks have started. A pipe tells the guard the
//! process group of each rank. Its end means that the helper was killed, because any other helper dismisses its guard first.

use std::io::{self, Read, Write, stdin};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::run::hosts::RANKS_MAX;

/// A guard that runs, as its helper sees it.
#[derive(Debug)]
pub(super) struct NodeGuard {
    process: Child,
    groups: Option<ChildStdin>,
}

impl NodeGuard {
    /// Starts a guard in a process group of its own, so that a signal to the group of the helper does not end it. The channel
    /// to the launcher stays with the helper alone, because its end shows that the helper is gone.
    pub(super) fn start() -> io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command.args(["node", GUARD]).process_group(0);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let groups = process.stdin.take();
        Ok(Self { process, groups })
    }

    /// Tells the guard the process group of a rank that was started. The rank stays unreaped until the guard is dismissed, so the
    /// number means nothing else.
    pub(super) fn watch(&mut self, group: u32) {
        if let Some(groups) = &mut self.groups {
            let _ = groups.write_all(&group.to_le_bytes()); // Without a guard the job goes on.
        }
    }

    /// Ends the guard. It kills nothing then.
    pub(super) fn dismiss(mut self) {
        let _ = self.process.kill(); // Fails only if it has ended.
        let _ = self.process.wait();
    }
}

/// Waits until the helper is gone, and kills the process groups of its ranks.
pub(super) fn live() -> ExitCode {
    let mut groups = Vec::new();
    let most = u64::from(RANKS_MAX) * NUMBER as u64;
    let _ = stdin().lock().take(most).read_to_end(&mut groups); // An error is an end of the pipe, too.
    let (groups, _) = groups.as_chunks::<NUMBER>();
    for group in groups {
        let group = i32::try_from(u32::from_le_bytes(*group)).unwrap_or(0);
        // 1 would mean all processes of this user.
        if let Some(group) = Pid::from_raw(group).filter(|_| group > 1) {
            let _ = kill_process_group(group, Signal::KILL); // No process of the rank is left.
        }
    }
    ExitCode::SUCCESS
}

/// What stands for the protocol on the command line of a guard.
pub(super) const GUARD: &str = "guard";

/// Bytes of a number in the pipe.
const NUMBER: usize = 4;
