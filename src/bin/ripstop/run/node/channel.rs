//! The helper's end of the channel: frames of the launcher from standard input, frames for it to standard output.

use std::io::{self, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::run::hosts::BEAT;
use crate::run::hosts::frame::{FrameReader, HelperFrame, LauncherFrame, MARK, encode};
use crate::run::job::now;
use crate::run::output_writer::OutputWriter;
use crate::run::poller::{JobPoller, PollToken, is_ready};

#[derive(Debug)]
pub(super) struct NodeChannel {
    input: OwnedFd,
    reader: FrameReader,
    output: OutputWriter,
    /// Frames that are not given to `output` yet.
    bytes: Vec<u8>,
    /// Time of the last sign of the launcher.
    heard: Instant,
    /// Time of the last frame to the launcher.
    said: Instant,
}

impl NodeChannel {
    pub(super) fn new() -> io::Result<Self> {
        let input = stdin().as_fd().try_clone_to_owned()?;
        Ok(Self::over(input, OutputWriter::new(stdout())?))
    }

    fn over(input: OwnedFd, output: OutputWriter) -> Self {
        Self {
            input,
            reader: FrameReader::default(),
            output,
            bytes: Vec::new(),
            heard: now(),
            said: now(),
        }
    }

    pub(super) fn input(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }

    /// Sends the first bytes, by which the launcher knows that this is a helper.
    pub(super) fn greet(&mut self, hello: &HelperFrame) {
        self.bytes.extend_from_slice(MARK);
        self.send(hello);
    }

    pub(super) fn send(&mut self, frame: &HelperFrame) {
        encode(frame, &mut self.bytes);
    }

    /// Reads once, which does not block after a wait. Returns false at the end of the channel.
    pub(super) fn read(&mut self) -> bool {
        let mut bytes = [0; READ_MAX];
        match rustix::io::read(&self.input, &mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.reader.push(&bytes[..count]);
                self.heard = now();
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            Err(_) => false,
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<LauncherFrame>, String> {
        self.reader.next()
    }

    /// Returns true if all frames are written.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.output.is_empty()
    }

    /// Writes what fits. Returns false if the launcher does not read any more.
    pub(super) fn flush(&mut self, poller: &JobPoller) -> bool {
        if !self.bytes.is_empty() {
            self.said = now();
        }
        let written = self.output.write_or_hold(&self.bytes).is_ok();
        self.bytes.clear();
        self.output.watch_for_room(poller, PollToken::FrameRoom);
        written
    }

    /// Sends a sign of life if it is time for one. While the launcher does not read, no more signs pile up.
    pub(super) fn beat(&mut self, now: Instant) {
        if now >= self.next_beat() {
            self.said = now;
            if self.is_empty() {
                self.send(&HelperFrame::Beat);
            }
        }
    }

    pub(super) fn next_beat(&self) -> Instant {
        self.said + BEAT
    }

    /// Returns true if the launcher gave no sign for longer than `patience`. A sign that waits to be read counts, because this
    /// process may have been too busy to read it.
    pub(super) fn is_silent(&self, now: Instant, patience: Duration) -> bool {
        now.saturating_duration_since(self.heard) > patience && !self.has_input()
    }

    fn has_input(&self) -> bool {
        is_ready(&self.input, PollFlags::IN, Duration::ZERO)
    }
}

const READ_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use rustix::pipe::pipe;

    use super::*;

    #[test]
    fn a_sign_that_was_not_read_yet_is_no_silence() {
        let (input, launcher) = pipe().unwrap();
        let (_reader, output) = pipe().unwrap();
        let channel = NodeChannel::over(input, OutputWriter::new(output).unwrap());
        let patience = Duration::from_secs(10);
        let late = channel.heard + 2 * patience;
        assert!(!channel.is_silent(channel.heard + patience, patience));
        assert!(channel.is_silent(late, patience));
        rustix::io::write(&launcher, b"!").unwrap();
        assert!(!channel.is_silent(late, patience));
    }
}
