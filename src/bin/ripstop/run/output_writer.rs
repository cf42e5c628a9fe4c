//! Output of this process, buffered. A slow reader delays the ranks, but not the launcher.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::job::now;
use super::poller::{JobPoller, PollToken, is_ready};

/// Standard output or standard error.
#[derive(Debug)]
pub(super) struct OutputWriter {
    fd: OwnedFd,
    /// Output that did not fit into the pipe yet, behind what did.
    held: Vec<u8>,
    /// Bytes at the front of `held` that are written.
    done: usize,
    /// True once a write has failed; later output is dropped.
    shut: bool,
    /// True while the descriptor is watched for room.
    awaits_room: bool,
    /// True while the output of ranks is not read, because too much is held.
    pub(super) paused: bool,
}

impl OutputWriter {
    pub(super) fn new(fd: impl AsFd) -> io::Result<Self> {
        Ok(Self {
            fd: duplicate(fd.as_fd())?,
            held: Vec::new(),
            done: 0,
            shut: false,
            awaits_room: false,
            paused: false,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unwritten().is_empty()
    }

    /// Returns true if no more output may be read for it.
    pub(super) fn is_full(&self) -> bool {
        self.unwritten().len() >= HELD_MAX
    }

    /// Writes what fits, and keeps the rest.
    pub(super) fn write_or_hold(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.shut {
            return Ok(());
        }
        self.held.extend_from_slice(bytes);
        self.write_held()
    }

    /// Writes the kept output, as far as it fits.
    pub(super) fn write_held(&mut self) -> io::Result<()> {
        let outcome = loop {
            let left = self.unwritten();
            if left.is_empty() || !self.has_room() {
                break Ok(());
            }
            match rustix::io::write(&self.fd, piece(left)) {
                Ok(written) => self.done += written,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break Ok(()),
                Err(why) => break Err(io::Error::from(why)),
            }
        };
        if outcome.is_err() {
            self.shut = true;
            self.done = self.held.len();
        }
        if 2 * self.done >= self.held.len() {
            // Rarely, and never more bytes than were written since: the rest may be long.
            self.held.drain(..self.done);
            self.done = 0;
        }
        outcome
    }

    /// Has the descriptor watched for room as long as something is unwritten.
    pub(super) fn watch_for_room(&mut self, poller: &JobPoller, token: PollToken) {
        match (self.is_empty(), self.awaits_room) {
            (false, false) => self.awaits_room = poller.watch_for_room(&*self, token).is_ok(),
            (true, true) => {
                poller.forget(self.as_fd());
                self.awaits_room = false;
            }
            _ => {}
        }
    }

    fn unwritten(&self) -> &[u8] {
        &self.held[self.done..]
    }

    /// Waits until there is room, or `end` has come. Returns true if there is room.
    pub(super) fn wait_for_room(&self, end: Instant) -> bool {
        let left = end.saturating_duration_since(now());
        is_ready(&self.fd, PollFlags::OUT, left)
    }

    /// Returns true if writing a [`piece`] will not block, or will fail.
    fn has_room(&self) -> bool {
        is_ready(&self.fd, PollFlags::OUT, Duration::ZERO)
    }
}

impl AsFd for OutputWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Accepts all bytes, like [`OutputWriter::write_or_hold`].
impl io::Write for OutputWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_or_hold(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a descriptor of the same output. A terminal is opened once more, because a write to it waits while its user has
/// stopped the output, even if there was room for some bytes before. The original descriptor belongs to other processes, too, so
/// it stays as it is.
fn duplicate(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    if fd.is_terminal() {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        if let Ok(own) = open(path, flags, Mode::empty()) {
            return Ok(own);
        }
    }
    fd.try_clone_to_owned()
}

/// Returns the first bytes, as many as fit into any pipe that has room at all. They end with a whole line if possible, so that
/// lines of two streams do not mix.
fn piece(bytes: &[u8]) -> &[u8] {
    let most = &bytes[..bytes.len().min(PIECE_MAX)];
    let whole = most.iter().rposition(|&byte| byte == b'\n');
    whole.map_or(most, |end| &most[..=end])
}

/// `PIPE_BUF`.
const PIECE_MAX: usize = 4096;

/// Output held at most before ranks are paused, in bytes. The pipe of each rank holds as much again.
const HELD_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use rustix::fs::fcntl_setfl;
    use rustix::pipe::pipe;

    use super::*;

    #[test]
    fn what_finds_no_room_is_kept_and_goes_on_in_order() {
        let (reader, writer) = pipe().unwrap();
        let mut mouth = OutputWriter::new(writer).unwrap();
        let all: Vec<u8> = (0..40_000)
            .flat_map(|nth: u32| format!("line {nth}\n").into_bytes())
            .collect();
        mouth.write_or_hold(&all).unwrap();
        assert!(!mouth.is_empty() && mouth.is_full());
        let mut heard = Vec::new();
        let mut bytes = [0; 1000];
        while heard.len() < all.len() {
            let count = rustix::io::read(&reader, &mut bytes).unwrap();
            heard.extend_from_slice(&bytes[..count]);
            mouth.write_held().unwrap();
            assert!(mouth.done <= mouth.unwritten().len(), "it keeps too much");
        }
        assert!(heard == all && mouth.is_empty());
    }

    #[test]
    fn a_terminal_that_is_not_read_does_not_stop_the_writer() {
        use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let screen = openpt(flags).unwrap();
        unlockpt(&screen).unwrap();
        let terminal = ioctl_tiocgptpeer(&screen, flags).unwrap();
        let all: Vec<u8> = (0..40_000)
            .flat_map(|nth: u32| format!("line {nth}\n").into_bytes())
            .collect();
        let (say, done) = std::sync::mpsc::channel();
        let written = all.clone();
        std::thread::spawn(move || {
            let mut mouth = OutputWriter::new(terminal).unwrap();
            mouth.write_or_hold(&written).unwrap();
            say.send(mouth).unwrap();
        });
        let mut mouth = done.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(!mouth.is_empty());
        let mut shown: Vec<u8> = Vec::new();
        let mut bytes = [0; 1000];
        // The system may make room a little later than it hands over what was there.
        fcntl_setfl(&screen, OFlags::NONBLOCK).unwrap();
        let guard = now() + Duration::from_secs(60);
        while shown.len() < all.len() {
            assert!(now() < guard, "{} bytes", shown.len());
            let count = rustix::io::read(&screen, &mut bytes).unwrap_or(0);
            shown.extend(bytes[..count].iter().filter(|&&byte| byte != b'\r'));
            mouth.write_held().unwrap();
        }
        assert!(shown == all && mouth.is_empty());
    }

    #[test]
    fn what_cannot_be_written_is_an_error_once() {
        let (reader, writer) = pipe().unwrap();
        let mut mouth = OutputWriter::new(writer).unwrap();
        drop(reader);
        let why = mouth.write_or_hold(b"anybody?\n").unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::BrokenPipe);
        assert!(mouth.write_or_hold(b"nobody\n").is_ok() && mouth.is_empty());
    }

    #[test]
    fn lines_are_not_torn_where_they_are_short_enough() {
        assert_eq!(piece(b"one\ntwo\nthr"), b"one\ntwo\n");
        assert_eq!(piece(b"thr"), b"thr");
        let long = vec![b'x'; 2 * PIECE_MAX];
        assert_eq!(piece(&long).len(), PIECE_MAX);
    }
}
