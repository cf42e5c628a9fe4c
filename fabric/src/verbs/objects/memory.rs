//! Registered memory.
#![expect(unsafe_code, reason = "calls libibverbs, and pins memory")]

use std::{io, sync::Arc};

use rustix::process::Resource;

use super::{RawHandle, VerbsPd};
use crate::{driver::LocalRange, verbs::abi};

/// Memory that a device may touch. Its pages stay in place until this is dropped, even if the process unmaps them.
#[derive(Debug)]
pub(in crate::verbs) struct VerbsMr {
    pd: Arc<VerbsPd>,
    raw: RawHandle<abi::IbvMr>,
    start: u64,
}

/// Allowed access to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum MrAccess {
    /// Requests of this process read it.
    Read,
    /// Requests of this process read and write the memory.
    Write,
    /// Peers with the key read the memory.
    Shown,
    /// Peers with the key read and write the memory, and use atomics on it.
    Peers,
}

/// A piece of registered memory of this process.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct LocalSge {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) key: u32,
}

/// A place in a peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct RemoteAddress {
    pub(in crate::verbs) address: u64,
    pub(in crate::verbs) key: u32,
}

impl VerbsMr {
    /// Registers a range, whose maker promised that it stays valid as long as commands use it.
    ///
    /// # Errors
    /// The system refuses. If the limit of locked memory is the reason, the text says what is needed and how to raise it.
    pub(in crate::verbs) fn new(
        pd: &Arc<VerbsPd>,
        range: LocalRange,
        access: MrAccess,
    ) -> io::Result<Self> {
        let (start, len) = (range.start(), range.len());
        let address = start.as_ptr().cast();
        // SAFETY: the pages of the range are pinned by the kernel before this returns, so that the device touches nothing else
        // as long as the registration lasts.
        let mr = unsafe { (pd.context.library.reg_mr)(pd.raw(), address, len, access.flags()) };
        Self::hold(pd, mr, len, start.addr().get() as u64)
    }

    /// Like [`new`](Self::new), but devices count addresses in it from the offset of the first byte in its page.
    pub(in crate::verbs) fn from_zero(
        pd: &Arc<VerbsPd>,
        range: LocalRange,
        access: MrAccess,
    ) -> io::Result<Self> {
        let (start, len) = (range.start(), range.len());
        let address = start.as_ptr().cast();
        let first = offset_in_page(start.addr().get(), rustix::param::page_size());
        // SAFETY: as in `new`.
        let mr = unsafe {
            (pd.context.library.reg_mr_iova)(pd.raw(), address, len, first, access.flags())
        };
        Self::hold(pd, mr, len, first)
    }

    fn hold(pd: &Arc<VerbsPd>, mr: *mut abi::IbvMr, len: usize, start: u64) -> io::Result<Self> {
        let raw = RawHandle::new(mr, "registering").map_err(|why| cannot_register(len, &why))?;
        let pd = Arc::clone(pd);
        Ok(Self { pd, raw, start })
    }

    /// Returns a piece of the region. `len` must be at most the length of the longest message of the port.
    pub(in crate::verbs) fn piece(&self, offset: usize, len: usize) -> LocalSge {
        let address = self.start + offset as u64;
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let key = self.keys().0;
        LocalSge { address, len, key }
    }

    /// Returns the start of the region, as peers name it.
    pub(in crate::verbs) fn remote(&self) -> RemoteAddress {
        RemoteAddress {
            address: self.start,
            key: self.keys().1,
        }
    }

    fn keys(&self) -> (u32, u32) {
        // SAFETY: `self` owns the registration, which does not change.
        let mr = unsafe { &*self.raw.get() };
        (mr.lkey, mr.rkey)
    }
}

impl MrAccess {
    const fn flags(self) -> i32 {
        match self {
            Self::Read => 0,
            Self::Write => abi::ACCESS_LOCAL_WRITE,
            Self::Shown => abi::ACCESS_REMOTE_READ,
            Self::Peers => {
                abi::ACCESS_LOCAL_WRITE
                    | abi::ACCESS_REMOTE_WRITE
                    | abi::ACCESS_REMOTE_READ
                    | abi::ACCESS_REMOTE_ATOMIC
            }
        }
    }
}

impl Drop for VerbsMr {
    fn drop(&mut self) {
        let context = &self.pd.context;
        // SAFETY: this process made the object, and destroys it only here.
        let end = || unsafe { (context.library.dereg_mr)(self.raw.get()) };
        // If the device keeps the registration, it keeps the pages, too: the kernel has pinned them and gives them to no other
        // process, although they may be unmapped here. No request of this rank is in flight on it, and peers were notified to
        // stop.
        let _counted = context.give_back("deregistering memory", end);
    }
}

impl LocalSge {
    /// Returns a part of the piece.
    pub(in crate::verbs) fn part(self, offset: usize, len: usize) -> Self {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Self {
            address: self.address + offset as u64,
            len,
            ..self
        }
    }
}

impl RemoteAddress {
    /// Returns the place `offset` bytes further on.
    pub(in crate::verbs) const fn at(self, offset: u64) -> Self {
        Self {
            address: self.address.wrapping_add(offset),
            key: self.key,
        }
    }
}

/// Returns where devices begin to count addresses. The kernel wants that to be as far into one of its pages as the memory is, and
/// its pages are 64 KiB long on some machines.
const fn offset_in_page(address: usize, page: usize) -> u64 {
    (address % page) as u64
}

fn cannot_register(len: usize, why: &io::Error) -> io::Error {
    let kib = len.div_ceil(1024);
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    let limit = limit.map_or_else(
        || "unlimited".to_owned(),
        |bytes| format!("{} KiB", bytes / 1024),
    );
    let advice = match why.kind() {
        io::ErrorKind::OutOfMemory | io::ErrorKind::PermissionDenied => format!(
            "; {kib} KiB must be locked in addition to {} KiB, but the limit (`ulimit -l`) is {limit}: set `memlock` to \
             unlimited in /etc/security/limits.conf, or LimitMEMLOCK=infinity for the service that starts the job",
            pinned_kib()
        ),
        io::ErrorKind::WouldBlock => {
            ": the cgroup of this job has reached its limit for the device (`rdma.max`)".to_owned()
        }
        _ => String::new(),
    };
    io::Error::new(
        why.kind(),
        format!("InfiniBand verbs: registering {kib} KiB of memory: {why}{advice}"),
    )
}

/// Returns the KiB of memory of this process that devices have pinned already.
fn pinned_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|kib| kib.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{cannot_register, io, offset_in_page};

    #[test]
    fn devices_count_from_where_the_first_byte_is_in_a_page_of_the_kernel() {
        for (page, offset) in [(4096, 0x678), (16 << 10, 0x1678), (64 << 10, 0x5678)] {
            assert_eq!(offset_in_page(0x7f01_2234_5678, page), offset, "{page}");
        }
    }

    #[test]
    fn a_memory_lock_limit_is_reported_with_the_needed_size_and_a_remedy() {
        let why = cannot_register(1 << 20, &io::Error::from_raw_os_error(libc::ENOMEM));
        for word in [
            "1024 KiB must be",
            "in addition to 0 KiB",
            "ulimit -l",
            "memlock",
        ] {
            assert!(why.to_string().contains(word), "{why}");
        }
        let other = cannot_register(1 << 20, &io::Error::from_raw_os_error(libc::EFAULT));
        assert!(!other.to_string().contains("ulimit"), "{other}");
    }
}
