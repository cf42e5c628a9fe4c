//! Standard error of a starter: shown under the name of its host, and kept for the report of a failed start.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::run::label::LabeledLines;
use crate::run::poller::JobPoller;
use crate::run::server::printable;

#[derive(Debug)]
pub(super) struct StarterErrors {
    pub(super) pipe: Option<OwnedFd>,
    lines: LabeledLines,
    /// What came before the ranks could be started: it is shown then, or is part of the report.
    held: Vec<u8>,
    shown: usize,
}

impl StarterErrors {
    pub(super) fn new(host: &str) -> Self {
        Self {
            pipe: None,
            lines: LabeledLines::new(format!("{host}: ")),
            held: Vec::new(),
            shown: 0,
        }
    }

    /// Reads once, and returns lines to show if `show` is true. A starter that writes without end is cut short.
    pub(super) fn read(&mut self, poller: &JobPoller, show: bool) -> Vec<u8> {
        let Some(pipe) = &self.pipe else {
            return Vec::new();
        };
        let mut bytes = [0; 4096];
        let is_open = match rustix::io::read(pipe, &mut bytes) {
            Ok(count) => {
                let room = HELD_MAX.saturating_sub(self.held.len());
                self.held.extend_from_slice(&bytes[..count.min(room)]);
                count > 0
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        };
        if !is_open {
            poller.forget(pipe.as_fd());
            self.pipe = None;
        }
        if !show {
            return Vec::new();
        }
        let mut lines = self.take_held();
        if !is_open {
            let _ = self.lines.end(&mut lines); // Writing to a vector does not fail.
        }
        lines
    }

    /// Returns lines to show of what came before the ranks could be started.
    pub(super) fn take_held(&mut self) -> Vec<u8> {
        let (mut lines, held) = (Vec::new(), std::mem::take(&mut self.held));
        if self.shown < SHOWN_MAX {
            self.shown += held.len();
            let _ = self.lines.write(&held, &mut lines);
        }
        lines
    }

    /// Returns the last lines, or else what was printed instead of a greeting, as the end of a sentence.
    pub(super) fn last_words(&self, chatter: &[u8]) -> String {
        let text = if self.held.trim_ascii().is_empty() {
            chatter
        } else {
            &self.held
        };
        let lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
        let lines: Vec<&[u8]> = lines.filter(|line| !line.is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
        let last: Vec<String> = last.iter().map(|line| printable(line)).collect();
        if last.is_empty() {
            String::new()
        } else {
            format!(": {}", last.join("; "))
        }
    }
}

const LINES_SHOWN: usize = 3;
const HELD_MAX: usize = 64 << 10;
const SHOWN_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_say_why() {
        let mut errors = StarterErrors::new("h1");
        assert_eq!(errors.last_words(b""), "");
        assert_eq!(errors.last_words(b"Welcome\n"), ": Welcome");
        errors.held = b"one\ntwo\n\nthree\r\nfour\x07\n".to_vec();
        assert_eq!(errors.last_words(b"Welcome\n"), ": two; three; four\\u{7}");
    }
}
