//! Asks the launcher of a job over hosts for its report, because this machine has only some of the ranks.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use ripstop_rt::internal::view::ProcessStat;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;

use super::pause;
use crate::run::{
    report_request::{ANSWER_NAME, WANTS_ALL},
    signals,
};

/// Longest wait for the launcher: it looks at its ranks after a second, and waits at most 2 s for hosts that do not answer.
const LOOKS_MAX: u32 = 300;

/// Time between two looks at the answer.
const BETWEEN: Duration = Duration::from_millis(50);

/// Returns the document of the launcher, or `null` if it has no report.
///
/// # Errors
/// The launcher has ended, does not answer, or is in another PID namespace, where this process has no number to answer to.
pub(super) fn ask(launcher: u32, wants_all: bool) -> io::Result<Value> {
    if !shares_numbers(launcher) {
        return Err(io::Error::other(
            "it is in another PID namespace, as in a container, and cannot answer from there: call this command inside of that",
        ));
    }
    let answer = File::from(memfd_create(ANSWER_NAME, MemfdFlags::CLOEXEC)?);
    let all = if wants_all { WANTS_ALL } else { 0 };
    signals::ask_by_quit(launcher, answer.as_raw_fd() | all)?;
    for _ in 0..LOOKS_MAX {
        pause(BETWEEN);
        let mut text = vec![0; usize::try_from(answer.metadata()?.len()).unwrap_or(0)];
        answer.read_exact_at(&mut text, 0)?;
        // The launcher writes one line.
        if text.ends_with(b"\n") {
            return serde_json::from_slice(&text).map_err(io::Error::from);
        }
        if ProcessStat::of(launcher).is_none_or(|stat| stat.state == b'Z') {
            return Err(io::Error::other("it has ended"));
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Returns true for a process that runs `ripstop run` of this very program, and answers requests. SIGQUIT would end others.
pub(super) fn is_launcher(pid: u32) -> bool {
    let own = file_of("self", "exe");
    own.is_some()
        && file_of(&pid.to_string(), "exe") == own
        && runs_jobs(pid)
        && holds_quit_back(pid)
}

/// Returns true if a process is in the PID namespace of this one. A kernel without such namespaces has no such files.
fn shares_numbers(pid: u32) -> bool {
    file_of(&pid.to_string(), "ns/pid") == file_of("self", "ns/pid")
}

/// Returns the device and the number of the file that a link in the folder of a process leads to.
fn file_of(process: &str, link: &str) -> Option<(u64, u64)> {
    let found = fs::metadata(format!("/proc/{process}/{link}")).ok()?;
    Some((found.dev(), found.ino()))
}

fn runs_jobs(pid: u32) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).nth(1) == Some(b"run")
}

fn holds_quit_back(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let blocked = lines.find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = blocked.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    blocked.is_some_and(|mask| mask & (1 << (libc::SIGQUIT - 1)) != 0)
}
