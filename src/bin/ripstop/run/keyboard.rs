//! The keyboard of a terminal as the input of a rank 0 on this machine. One on another host gets it through
//! [`InputRelay`](super::hosts).
//!
//! Every rank is in a process group of its own, and a terminal stops a process of a background group that reads from it. So this
//! process reads the terminal, while it is in the foreground itself, and writes lines to rank 0's pipe.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ChildStdin;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::job::{LaunchedJob, now};
use super::poller::{JobPoller, PollToken, is_ready};
use super::rank_input::RankInput;

#[derive(Debug)]
pub(super) struct KeyboardRelay {
    terminal: OwnedFd,
    /// True while the terminal is watched.
    watched: bool,
    input: RankInput,
    /// Time at which a process in the background looks whether it has come to the foreground.
    look_again: Option<Instant>,
}

impl KeyboardRelay {
    fn new(terminal: OwnedFd, pipe: ChildStdin) -> std::io::Result<Self> {
        Ok(Self {
            terminal,
            watched: false,
            input: RankInput::new(pipe)?,
            look_again: None,
        })
    }

    /// Passes on what was typed. Returns false if no more can be passed on.
    fn relay(&mut self, poller: &JobPoller) -> bool {
        self.look_again = None;
        if self.input.held() == 0 && is_ready(&self.terminal, PollFlags::IN, Duration::ZERO) {
            if is_in_foreground() {
                self.read_line();
            } else {
                self.look_again = Some(now() + LOOK_AGAIN);
            }
        }
        let fed = self.input.feed(poller);
        self.watch(
            poller,
            !fed.is_over && self.input.held() == 0 && self.look_again.is_none(),
        );
        !fed.is_over
    }

    /// Reads a line, which is all that a terminal gives at once.
    fn read_line(&mut self) {
        let mut line = [0; LINE_MAX];
        match rustix::io::read(&self.terminal, &mut line) {
            Ok(0) => self.input.end(), // Ctrl-D was typed, or the terminal is gone.
            Ok(count) => self.input.push(&line[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.look_again = Some(now() + LOOK_AGAIN),
        }
    }

    /// Watches the terminal, or no longer.
    fn watch(&mut self, poller: &JobPoller, wanted: bool) {
        if wanted && !self.watched {
            self.watched = poller.watch(&self.terminal, PollToken::Input).is_ok();
        } else if !wanted && self.watched {
            poller.forget(self.terminal.as_fd());
            self.watched = false;
        }
    }
}

impl LaunchedJob {
    /// Begins to pass the keyboard's lines on to this pipe of rank 0. If this process may not open the terminal, the rank reads
    /// the end of its input.
    pub(super) fn open_keyboard(&mut self, pipe: ChildStdin) -> std::io::Result<()> {
        let Ok(terminal) = open_terminal() else {
            return Ok(()); // This closes the pipe.
        };
        self.keyboard = Some(KeyboardRelay::new(terminal, pipe)?);
        self.relay_keyboard();
        Ok(())
    }

    pub(super) fn relay_keyboard(&mut self) {
        if let Some(keyboard) = &mut self.keyboard
            && !keyboard.relay(&self.poller)
        {
            self.keyboard = None; // This closes the pipe: the rank reads its end.
        }
    }

    /// Looks at the keyboard if it is time for that.
    pub(super) fn handle_keyboard_time(&mut self, now: Instant) {
        if self.next_keyboard_look().is_some_and(|look| look <= now) {
            self.relay_keyboard();
            self.relay_input(false);
        }
    }

    pub(super) fn next_keyboard_look(&self) -> Option<Instant> {
        let here = self.keyboard.as_ref().and_then(|it| it.look_again);
        here.or_else(|| self.next_input_look())
    }
}

/// Opens the terminal of the standard input anew, so that a read never waits: another process may take what was typed. A flag of
/// the standard input itself would hold for the shell, too.
///
/// # Errors
/// The terminal is another user's, as after `su`, or is not in this container. A job runs without a keyboard then.
pub(super) fn open_terminal() -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/proc/self/fd/0", flags, Mode::empty())?)
}

/// Returns true if the terminal does not stop this process when it reads.
pub(super) fn is_in_foreground() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    groups(&stat).is_none_or(|[own, foreground]| own == foreground || foreground < 0)
}

/// Returns this process' group and the terminal's foreground group, from the line in `/proc/self/stat`. The latter is negative if
/// the process has no controlling terminal.
fn groups(stat: &str) -> Option<[i32; 2]> {
    // The name of the program, in parentheses, may contain anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(2);
    let own = fields.next()?.parse().ok()?;
    let foreground = fields.nth(2)?.parse().ok()?;
    Some([own, foreground])
}

/// Time between two looks whether this process has come to the foreground, while a line waits.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Longest line that a terminal gives at once, in bytes.
const LINE_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn groups_are_found_behind_any_name_of_a_program() {
        let line = "12 (a ) b 1 2) S 3 44 5 1025 66 4194304 1 2";
        assert_eq!(groups(line), Some([44, 66]));
        assert_eq!(groups("12 (a) S 3 44 5 0 -1 4194304"), Some([44, -1]));
        assert_eq!(groups("nonsense"), None);
        assert!(groups(&std::fs::read_to_string("/proc/self/stat").unwrap()).is_some());
    }
}
