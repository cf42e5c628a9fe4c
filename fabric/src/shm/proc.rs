//! Reads from `/proc`: other processes' descriptors, and when processes started.

use std::{io, os::fd::OwnedFd};

use rustix::fs::{Mode, OFlags};

/// Opens what process `pid` has open as descriptor `fd`: a new open file description of the same memfd or pipe.
///
/// The caller must check what it got, because both numbers can have been reused.
pub(super) fn open_fd_of(pid: u32, fd: u32, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/{pid}/fd/{fd}");
    rustix::fs::open(&path, flags | OFlags::CLOEXEC, Mode::empty())
        .map_err(|why| io::Error::new(io::Error::from(why).kind(), format!("{path}: {why}")))
}

/// Opens a descriptor like [`open_fd_of`], but only if it belongs to the process that had this pid and started at `since`.
pub(super) fn open_fd_of_process(
    pid: u32,
    since: u64,
    fd: u32,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let opened = open_fd_of(pid, fd, flags)?;
    // Check after opening: if the process has the pid now, it had it when the file was opened.
    if is_same_start(started(pid)?, since) {
        Ok(opened)
    } else {
        let why = format!("process {pid} has ended, and another process has its pid");
        Err(io::Error::new(io::ErrorKind::NotFound, why))
    }
}

/// Returns when process `pid` started, in clock ticks since boot. Together with the pid, this names a process uniquely.
///
/// The system counts from the boot time in the reader's time namespace. This function corrects for that: its result is the same
/// for all readers, to within one tick.
pub(super) fn started(pid: u32) -> io::Result<u64> {
    started_at(&format!("/proc/{pid}/stat"))
}

/// Returns when this process started, even if `/proc` numbers processes differently than this process does. Returns 0 without
/// `/proc`.
pub(super) fn started_self() -> u64 {
    started_at("/proc/self/stat").unwrap_or_default()
}

/// Returns true if two start times, read perhaps in different time namespaces, belong to the same process.
pub(super) const fn is_same_start(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= 1
}

/// Returns true if there is a `/proc` that numbers processes as this process does. There may be none, or one of another
/// namespace.
pub(super) fn is_ours() -> bool {
    let own = std::fs::read_link("/proc/self").ok();
    own.is_some_and(|own| own.as_os_str() == &*std::process::id().to_string())
}

fn started_at(path: &str) -> io::Result<u64> {
    let stat = std::fs::read_to_string(path)?;
    // The second field is the program's name in parentheses, which may hold anything.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let field = after_name
        .split_ascii_whitespace()
        .nth(STARTED_AFTER_NAME)
        .and_then(|text| text.parse::<u64>().ok());
    let field = field.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{path} has no start time"),
        )
    })?;
    Ok(field.wrapping_sub_signed(boot_shift()))
}

/// Returns by how many ticks the boot time in this process's time namespace is earlier than the system's.
fn boot_shift() -> i64 {
    let space = |name| std::fs::read_link(format!("/proc/self/ns/{name}")).ok();
    // The offsets are those of the namespace that children will be in.
    if space("time") != space("time_for_children") {
        return 0;
    }
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    shift_in(&offsets, rustix::param::clock_ticks_per_second())
}

fn shift_in(offsets: &str, ticks: u64) -> i64 {
    let mut lines = offsets.lines().map(str::split_ascii_whitespace);
    let boot = lines.find_map(|mut words| (words.next() == Some("boottime")).then_some(words));
    let mut numbers = boot.into_iter().flatten().map(|word| word.parse().ok());
    let mut next = || numbers.next().flatten().unwrap_or(0_i64);
    let (seconds, nanoseconds) = (next(), next());
    let ticks = i64::try_from(ticks).unwrap_or(100).max(1);
    seconds
        .saturating_mul(ticks)
        .saturating_add(nanoseconds / (1_000_000_000 / ticks).max(1))
}

/// Index after the name of field 22, since the first field after the name is field 3.
const STARTED_AFTER_NAME: usize = 22 - 3;

#[cfg(test)]
mod tests {
    use std::{io::ErrorKind, os::fd::AsRawFd};

    use super::{OFlags, is_ours, open_fd_of_process, shift_in, started, started_self};

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
        assert!(open_fd_of_process(me, since, fd, OFlags::RDONLY).is_ok());
        let of_stranger = open_fd_of_process(me, since + 2, fd, OFlags::RDONLY);
        assert_eq!(of_stranger.unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_process_knows_its_own_start() {
        assert!(is_ours() && started_self() == started(std::process::id()).unwrap());
    }

    #[test]
    fn the_offset_of_a_time_namespace_is_in_ticks() {
        let offsets = "monotonic         5         0\nboottime       1000  20000000\n";
        assert_eq!(shift_in(offsets, 100), 100_002);
        assert_eq!(shift_in("boottime -3 990000000\n", 100), -201);
        assert_eq!(shift_in("", 100), 0, "no time namespaces");
        assert_eq!(shift_in("boottime x", 100), 0);
    }
}
