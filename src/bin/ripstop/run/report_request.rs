//! Requests of `ripstop stuck` for a report about the ranks of all hosts, which only the launcher can make.
//!
//! The command makes a file in memory and sends SIGQUIT with the number of its descriptor, so the launcher listens at no socket.
//! A process that may not send signals to the launcher cannot ask, and the launcher writes to no other kind of file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

use ripstop_rt::internal::view::report::{ObservedJob, StuckReport};
use rustix::fs::fcntl_get_seals;
use serde_json::Value;

use crate::stuck::json;

/// Name of the file in memory.
pub(crate) const ANSWER_NAME: &str = "ripstop-report";

/// Added to the number of the descriptor if no group of ranks may be left out.
pub(crate) const WANTS_ALL: i32 = 1 << 30;

/// A command that waits for a report.
#[derive(Debug)]
pub(super) struct ReportRequest {
    file: File,
    wants_all: bool,
}

impl ReportRequest {
    /// Opens the file of a process that has sent this number. Returns `None` if that is no such file.
    ///
    /// # Errors
    /// This process may not see what the number means, or cannot open the file, so it has no way to answer.
    pub(super) fn open(pid: u32, number: i32) -> io::Result<Option<Self>> {
        let path = format!("/proc/{pid}/fd/{}", number & !WANTS_ALL);
        let link = match fs::read_link(&path) {
            Err(why) if why.kind() == io::ErrorKind::PermissionDenied => return Err(why),
            link => link.unwrap_or_default(),
        };
        if link.to_str() != Some(&format!("/memfd:{ANSWER_NAME} (deleted)")) {
            return Ok(None);
        }
        // The descriptor may be another one's by now: opening a pipe must not wait, and a terminal must not become this process'.
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)?;
        // Only files in memory have seals.
        let is_in_memory = fcntl_get_seals(&file).is_ok();
        Ok(is_in_memory.then_some(Self {
            file,
            wants_all: number & WANTS_ALL != 0,
        }))
    }

    /// Writes the report, as JSON in one line.
    pub(super) fn answer(self, job: &ObservedJob) {
        let report = StuckReport::of(job, self.wants_all);
        self.write(&json::document(vec![json::value(job, &report)]));
    }

    /// Writes that this launcher has no report.
    pub(super) fn refuse(self) {
        self.write(&Value::Null);
    }

    /// A command that has ended meanwhile does not matter.
    fn write(mut self, document: &Value) {
        let _ = self.file.write_all(format!("{document}\n").as_bytes());
    }
}
