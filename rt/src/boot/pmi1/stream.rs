//! Lines over the launcher's socket, each within a time limit and with a maximum length.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::fd;
use crate::boot::wire::REPLY_MAX;
use crate::boot::{BootError, error};

#[derive(Debug)]
pub(super) struct Pmi1Stream {
    socket: OwnedFd,
    /// Bytes that arrived after the last line.
    read: Vec<u8>,
    limit: Duration,
}

impl Pmi1Stream {
    pub(super) fn new(socket: OwnedFd, limit: Duration) -> Self {
        Self {
            socket,
            read: Vec::new(),
            limit,
        }
    }

    /// Sends a line and waits for the next line from the other side, which is returned with its newline.
    pub(super) fn request(&mut self, request: &str) -> Result<Vec<u8>, BootError> {
        self.send(request, now().saturating_add(self.limit))?;
        self.read_reply(request)
    }

    /// Waits for the next line, which answers `request`.
    pub(super) fn read_reply(&mut self, request: &str) -> Result<Vec<u8>, BootError> {
        let deadline = now().saturating_add(self.limit);
        loop {
            if let Some(end) = self.read.iter().position(|&byte| byte == b'\n') {
                return Ok(self.read.drain(..=end).collect());
            }
            self.check_length(request)?;
            self.receive(request, deadline)?;
        }
    }

    /// Sends lines without waiting for answers. Ignores failures.
    pub(super) fn send_lines(&self, request: &str) {
        let deadline = now().saturating_add(self.limit);
        let _ = self.send(request, deadline); // if this fails, the launcher has ended, which ends the job as well
    }

    /// Returns another descriptor of the same connection.
    pub(super) fn duplicate(&self) -> std::io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Makes this process end when the launcher ends, until [`outlive_launcher`](Self::outlive_launcher) is called.
    pub(super) fn die_with_launcher(&self) -> Result<(), BootError> {
        if let Err(error) = fd::kill_on_close(&self.socket, true) {
            tracing::debug!(target: "ripstop::boot", %error, "this process cannot be made to end with its launcher");
        }
        let mut socket = [PollFd::new(&self.socket, PollFlags::empty())];
        // If the launcher has already ended, no further event happens on the connection.
        match poll(&mut socket, Some(&Timespec::default())) {
            Ok(1..) => Err(BootError::LauncherGone {
                request: "end of start".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn outlive_launcher(&self) {
        let _ = fd::kill_on_close(&self.socket, false); // if this fails, ending with the launcher was not set either
    }

    /// Ends the connection for every process that holds it, so that the launcher need not wait for them.
    pub(super) fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both); // if it is no longer connected, it is already closed
    }

    fn send(&self, request: &str, deadline: Duration) -> Result<(), BootError> {
        let mut rest = request.as_bytes();
        while !rest.is_empty() {
            match send(
                &self.socket,
                rest,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, request, deadline)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed(request, error)),
            }
        }
        Ok(())
    }

    fn receive(&mut self, request: &str, deadline: Duration) -> Result<(), BootError> {
        self.wait(PollFlags::IN, request, deadline)?;
        let mut bytes = [0; REPLY_MAX];
        match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                return Err(BootError::LauncherGone {
                    request: asked(request),
                });
            }
            Ok((count, _)) => self.read.extend_from_slice(&bytes[..count]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(failed(request, error)),
        }
        Ok(())
    }

    fn wait(&self, what: PollFlags, request: &str, deadline: Duration) -> Result<(), BootError> {
        let silent = || BootError::Silent {
            request: asked(request),
            seconds: self.limit.as_secs(),
        };
        let left = deadline.checked_sub(now()).ok_or_else(silent)?;
        let left = Timespec::try_from(left).map_err(|_| silent())?;
        match poll(&mut [PollFd::new(&self.socket, what)], Some(&left)) {
            Ok(0) => Err(silent()),
            Ok(_) | Err(Errno::INTR) => Ok(()), // an interrupted wait finds no data, and the caller waits again
            Err(error) => Err(failed(request, error)),
        }
    }

    fn check_length(&self, request: &str) -> Result<(), BootError> {
        if self.read.len() < REPLY_MAX {
            return Ok(());
        }
        let answer = error::printable(&String::from_utf8_lossy(&self.read));
        Err(BootError::Garbled {
            request: asked(request),
            answer,
            why: format!("no end of line in {REPLY_MAX} bytes"),
        })
    }
}

fn failed(request: &str, errno: Errno) -> BootError {
    match errno {
        Errno::PIPE | Errno::CONNRESET => BootError::LauncherGone {
            request: asked(request),
        },
        _ => BootError::io(
            &format!("talking to the launcher (PMI_FD) at `{}`", asked(request)),
            errno,
        ),
    }
}

fn asked(request: &str) -> String {
    error::printable(request.trim_end())
}

/// Returns the machine's time, not the runtime's: a launcher is a process, and never simulated.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}
