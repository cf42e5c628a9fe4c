//! Access to the memory of other processes by `process_vm_readv` and `process_vm_writev`: one copy, made by the kernel.
#![expect(unsafe_code, reason = "the two system calls read and write raw ranges")]

use std::io;

use crate::driver::LocalRange;

/// Reads the peer's memory at `address` into `into`. Returns the number of bytes read, which is at least 1 and may be fewer than
/// asked.
pub(super) fn read(pid: u32, address: u64, into: LocalRange) -> io::Result<usize> {
    let (local, remote) = vectors(address, into)?;
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: the local vector is the command's own range, which its maker lets this call write until the command is complete.
    // The remote one is only interpreted by the kernel, which refuses addresses that are not mapped there.
    answer(unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) })
}

/// Writes `from` to the peer's memory at `address`. Returns the number of bytes written, which is at least 1 and may be fewer
/// than asked.
pub(super) fn write(pid: u32, address: u64, from: LocalRange) -> io::Result<usize> {
    let (local, remote) = vectors(address, from)?;
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: the local vector is the command's own range, readable until the command is complete. The peer exposed the remote
    // one, and the kernel refuses addresses that are not mapped there.
    answer(unsafe { libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0) })
}

/// Checks that this process may use these calls. The error is a sentence that says why not.
pub(super) fn probe() -> Result<(), String> {
    // Under Yama, lets peers in that are not ancestors of this process. Without Yama there is nothing to set.
    let _unrestricted = rustix::process::set_ptracer(rustix::process::PTracer::Any);
    let (source, mut target) = (0x5a_u8, 0_u8);
    // SAFETY: `target` is a local variable and outlives the call.
    let into = unsafe { LocalRange::new(std::ptr::NonNull::from(&mut target), 1) };
    let address = (&raw const source).addr() as u64;
    read(std::process::id(), address, into).map_err(|why| {
        format!("process_vm_readv fails ({why}): a seccomp filter, as containers have, or a kernel without CROSS_MEMORY_ATTACH")
    })?;
    yama()
}

fn yama() -> Result<(), String> {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "2" if !may_trace() => Err(
            "kernel.yama.ptrace_scope is 2, so only CAP_SYS_PTRACE may use process_vm_readv"
                .to_owned(),
        ),
        "3" => {
            Err("kernel.yama.ptrace_scope is 3, so no process may use process_vm_readv".to_owned())
        }
        _ => Ok(()),
    }
}

fn may_trace() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|bits| bits & CAP_SYS_PTRACE != 0)
}

const CAP_SYS_PTRACE: u64 = 1 << 19;

fn vectors(address: u64, range: LocalRange) -> io::Result<(libc::iovec, libc::iovec)> {
    let address = usize::try_from(address).map_err(io::Error::other)?;
    let local = libc::iovec {
        iov_base: range.start().as_ptr().cast(),
        iov_len: range.len(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: range.len(),
    };
    Ok((local, remote))
}

fn answer(bytes: libc::ssize_t) -> io::Result<usize> {
    match usize::try_from(bytes) {
        Ok(0) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
