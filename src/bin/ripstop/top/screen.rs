//! The terminal as a screen that is drawn anew, and restored at any end of the command.
#![expect(
    unsafe_code,
    reason = "std has no settings of terminals, and rustix has them in a feature that this workspace does not build"
)]

use std::io::{self, Write, stdin, stdout};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::table::TableRoom;
use crate::run::signals::LauncherSignals;

/// The terminal, with another screen and without an echo of what is typed. A drop restores it.
#[derive(Debug)]
pub(super) struct LiveScreen {
    signals: LauncherSignals,
    before: TerminalSettings,
}

/// Settings of a terminal, as it had them.
#[derive(Clone, Copy)]
struct TerminalSettings(libc::termios);

/// The other screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The upper left corner; the rest of a line; the rest of the screen.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K\n";
const CLEAR_BELOW: &str = "\x1b[J";

impl LiveScreen {
    pub(super) fn open() -> io::Result<Self> {
        let before = TerminalSettings::of(&stdin())?;
        // Signals come first: from here on, none of them ends this process before the terminal is restored.
        let screen = Self {
            signals: LauncherSignals::new()?,
            before,
        };
        screen.enter()?;
        Ok(screen)
    }

    /// Draws the lines that are made for the room that there is.
    pub(super) fn draw(&self, lines: impl FnOnce(TableRoom) -> Vec<String>) -> io::Result<()> {
        let room = room_of(&stdout());
        let lines = lines(room);
        // No line end after the last line, which may be the last one of the screen.
        let text = lines
            .iter()
            .take(room.lines)
            .cloned()
            .collect::<Vec<_>>()
            .join(CLEAR_LINE);
        write_now(&format!("{HOME}{text}\x1b[K{CLEAR_BELOW}"))
    }

    /// Waits for a key, a signal, or until `time` has passed. Returns false if the command is to end.
    pub(super) fn wait(&self, time: Duration) -> io::Result<bool> {
        let input = stdin();
        let mut watched = [
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&input, PollFlags::IN),
        ];
        let time = Timespec::try_from(time).unwrap_or_default();
        match poll(&mut watched, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
        while let Some(signal) = self.signals.next() {
            match signal.number {
                libc::SIGTSTP => self.stop()?,
                libc::SIGCHLD | libc::SIGCONT => {}
                _ => return Ok(false),
            }
        }
        let has_key = !watched[1].revents().is_empty();
        Ok(!(has_key && is_end(input.as_fd())))
    }

    /// Stops this process as the terminal asks, with the terminal as it was meanwhile.
    fn stop(&self) -> io::Result<()> {
        self.leave()?;
        self.signals.stop()?;
        self.enter()
    }

    fn enter(&self) -> io::Result<()> {
        self.before.without_lines().set(&stdin())?;
        write_now(ENTER)
    }

    fn leave(&self) -> io::Result<()> {
        // Both are tried, whatever fails.
        let written = write_now(LEAVE);
        self.before.set(&stdin())?;
        written
    }
}

impl Drop for LiveScreen {
    fn drop(&mut self) {
        let _ = self.leave(); // The terminal is gone; then there is nothing to restore.
    }
}

impl TerminalSettings {
    fn of(terminal: &impl AsRawFd) -> io::Result<Self> {
        let mut settings = MaybeUninit::uninit();
        // SAFETY: the call writes no more than a `termios` at the pointer.
        let code = unsafe { libc::tcgetattr(terminal.as_raw_fd(), settings.as_mut_ptr()) };
        if code != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above has succeeded, so it has written all of it.
        Ok(Self(unsafe { settings.assume_init() }))
    }

    /// Returns the same settings, but each key is read at once and not shown. Ctrl-C stays a signal.
    const fn without_lines(mut self) -> Self {
        self.0.c_lflag &= !(libc::ICANON | libc::ECHO);
        self
    }

    fn set(&self, terminal: &impl AsRawFd) -> io::Result<()> {
        // SAFETY: the settings are initialized, and the call only reads them.
        match unsafe { libc::tcsetattr(terminal.as_raw_fd(), libc::TCSANOW, &raw const self.0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl std::fmt::Debug for TerminalSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TerminalSettings").finish_non_exhaustive()
    }
}

/// Reads what was typed. Returns true if that is a `q`, or if the terminal is gone.
fn is_end(input: impl AsFd) -> bool {
    let mut keys = [0; 64];
    match rustix::io::read(input, &mut keys) {
        Ok(0) => true,
        Ok(count) => keys[..count].iter().any(|key| matches!(key, b'q' | b'Q')),
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => false,
        Err(_) => true,
    }
}

/// Returns the room on a terminal; that of an ordinary one if it does not say.
fn room_of(terminal: &impl AsRawFd) -> TableRoom {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the call writes no more than a `winsize` at the pointer.
    let code = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    let or = |given: u16, usual| {
        if code == 0 && given > 0 {
            usize::from(given)
        } else {
            usual
        }
    };
    TableRoom {
        columns: or(size.ws_col, 80),
        lines: or(size.ws_row, 24),
    }
}

/// Writes in one piece, at once.
fn write_now(text: &str) -> io::Result<()> {
    let mut output = stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}
