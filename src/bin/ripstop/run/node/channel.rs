//! The helper's end of the channel: frames of the launcher from standard input, frames for it to standard output.

use std::io::{self, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::run::hosts::BEAT;
use crate::run::hosts::frame::{FrameReader, HelperFrame, LauncherFrame, MARK, encode};
use crate::run::job::now;
use crate::run::output_writer::OutputWriter;
use crate::run::poller::{JobPoller, PollToken};
use crate::run::rank::StdStream;

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
        Ok(Self {
            input: stdin().as_fd().try_clone_to_owned()?,
            reader: FrameReader::default(),
            output: OutputWriter::new(stdout())?,
            bytes: Vec::new(),
            heard: now(),
            said: now(),
        })
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
        match (self.output.is_empty(), self.output.awaits_room) {
            (false, false) => {
                let token = PollToken::Room(StdStream::Out);
                self.output.awaits_room = poller.watch_for_room(&self.output, token).is_ok();
            }
            (true, true) => {
                poller.forget(self.output.as_fd());
                self.output.awaits_room = false;
            }
            _ => {}
        }
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

    pub(super) fn silence(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.heard)
    }
}

const READ_MAX: usize = 64 << 10;
