//! What `/proc` tells and gives: other processes' descriptors, and when they started.

use std::{io, os::fd::OwnedFd};

use rustix::fs::{Mode, OFlags};

/// Opens what process `pid` has open as descriptor `fd`: a new description of the same memfd or pipe.
///
/// The caller checks that it got what it wanted: both numbers can have been reused.
pub(super) fn open_fd_of(pid: u32, fd: u32, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/{pid}/fd/{fd}");
    rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty())
        .map_err(|why| io::Error::new(io::Error::from(why).kind(), format!("{path}: {why}")))
}

/// As [`open_fd_of`], of the process that had this pid and started then: not of another one that has got the pid since.
pub(super) fn open_fd_of_process(
    (pid, since): (u32, u64),
    fd: u32,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let opened = open_fd_of(pid, fd, flags)?;
    // Afterwards: if it has the pid now, it had it when we opened.
    if started(pid)? == since {
        Ok(opened)
    } else {
        let why = format!("process {pid} has ended, and another one has its pid");
        Err(io::Error::new(io::ErrorKind::NotFound, why))
    }
}

/// When process `pid` started, in clock ticks since boot: with the pid, it names a process for ever.
pub(super) fn started(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses, which may hold anything.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let field = after_name
        .split_ascii_whitespace()
        .nth(STARTED_AFTER_NAME)
        .and_then(|text| text.parse().ok());
    field.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("/proc/{pid}/stat has no start time"),
        )
    })
}

/// Field 22 of the line, when the first after the name is field 3.
const STARTED_AFTER_NAME: usize = 22 - 3;

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, os::fd::AsRawFd};

    use super::{OFlags, open_fd_of_process, started};

    #[test]
    fn a_process_started_after_the_first_one() {
        assert!(started(std::process::id()).unwrap() >= started(1).unwrap());
        assert!(started(u32::MAX).is_err());
    }

    #[test]
    fn nothing_is_opened_of_a_process_that_has_the_pid_of_another() {
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let (me, fd) = (std::process::id(), u32::try_from(file.as_raw_fd()).unwrap());
        let since = started(me).unwrap();
        assert!(open_fd_of_process((me, since), fd, OFlags::RDONLY).is_ok());
        let of_stranger = open_fd_of_process((me, since + 1), fd, OFlags::RDONLY);
        assert_eq!(of_stranger.unwrap_err().kind(), ErrorKind::NotFound);
    }
}
