//! Checks whether there is memory for a large region.
//!
//! The kernel makes a memfd's pages until none are left, and then kills a process of its choice. A region that is plainly too
//! large is therefore refused before its first page is made.

use std::{fs, io};

/// Regions up to this many bytes are not checked, because a check costs as much as making their pages.
const SMALL: u64 = 64 << 20;

/// Refuses a region that the machine or the control group has no room for.
pub(super) fn check(len: u64) -> io::Result<()> {
    if len <= SMALL {
        return Ok(());
    }
    match room() {
        Some(room) if len > room => {
            let why = format!(
                "a region of {len} bytes does not fit, because {room} bytes of memory are available: use less, or more \
                 ranks on more nodes"
            );
            Err(io::Error::new(io::ErrorKind::OutOfMemory, why))
        }
        _ => Ok(()),
    }
}

/// Returns how many bytes of memory are available, as far as the system reports that.
pub(crate) fn room() -> Option<u64> {
    [machine(), group()].into_iter().flatten().min()
}

fn machine() -> Option<u64> {
    available_in(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// Returns how many bytes the control group of this process has left, if it has a limit (version 2).
fn group() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let number = |file: &str| {
        let text = fs::read_to_string(format!("/sys/fs/cgroup{path}/{file}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        let table = "MemTotal:  100 kB\nMemAvailable:     2000 kB\nBuffers: 3 kB\n";
        assert_eq!(available_in(table), Some(2_048_000));
        assert_eq!(available_in("MemTotal: 1 kB"), None);
        assert_eq!(available_in("MemAvailable: 99999999999999999999 kB"), None);
    }

    #[test]
    fn what_no_machine_has_is_refused_with_both_numbers() {
        let error = check(1 << 60).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert!(error.to_string().contains("1152921504606846976"), "{error}");
        assert!(check(4096).is_ok());
    }
}
