//! An opened device, and a protection domain on it.
#![expect(unsafe_code, reason = "calls libibverbs")]

#[cfg(test)]
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::{
    ffi::CStr,
    io,
    os::fd::{BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::Arc,
};

use super::{RawHandle, check, named};
use crate::{
    counters::DriverStats,
    verbs::{
        abi,
        async_events::{DeviceEvent, EventSubject, EventSubjectKind, subject_kind},
        library::VerbsLibrary,
    },
};

/// An opened device.
#[derive(Debug)]
pub(in crate::verbs) struct VerbsContext {
    pub(super) library: VerbsLibrary,
    raw: RawHandle<abi::IbvContext>,
    counters: Arc<DriverStats>,
    #[cfg(test)]
    keeps: AtomicI32,
    #[cfg(test)]
    gone: AtomicBool,
}

/// Limits of a device.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct DeviceLimits {
    pub(in crate::verbs) srq_wr_max: u32,
    pub(in crate::verbs) qp_wr_max: u32,
    pub(in crate::verbs) qp_max: u32,
    pub(in crate::verbs) cqe_max: u32,
    /// Reads and atomics of one queue pair that may be in flight to a peer, and those that peers may have in flight to here.
    pub(in crate::verbs) reads_out: u8,
    pub(in crate::verbs) reads_in: u8,
    pub(in crate::verbs) atomics: bool,
    /// True for soft-RoCE, the device that the kernel makes of any network interface.
    pub(in crate::verbs) soft_roce: bool,
}

/// State of a port.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct PortState {
    pub(in crate::verbs) active: bool,
    /// MTU as verbs encodes it: 1 to 5 for 256 to 4096 bytes.
    pub(in crate::verbs) mtu: u8,
    pub(in crate::verbs) lid: u16,
    pub(in crate::verbs) message_max: u32,
}

impl VerbsContext {
    /// Opens the device of this name.
    ///
    /// # Errors
    /// There is none of this name, or this user may not open it.
    pub(in crate::verbs) fn open(name: &str, counters: &Arc<DriverStats>) -> io::Result<Arc<Self>> {
        let library = VerbsLibrary::open()?;
        let list = DeviceList::new(&library)?;
        let device = list.find(name)?;
        // SAFETY: the device is in the list, which lives until the end of this function.
        let context = unsafe { (library.open_device)(device.as_ptr()) };
        let opened = RawHandle::new(context, "opening").map_err(|why| cannot_open(name, &why));
        drop(list);
        let raw = opened?;
        let context = Arc::new(Self {
            library,
            raw,
            counters: Arc::clone(counters),
            #[cfg(test)]
            keeps: AtomicI32::new(0),
            #[cfg(test)]
            gone: AtomicBool::new(false),
        });
        rustix::io::ioctl_fionbio(context.async_fd(), true)?;
        Ok(context)
    }

    /// Returns the limits of the device.
    pub(in crate::verbs) fn limits(&self) -> io::Result<DeviceLimits> {
        // SAFETY: the structure holds only numbers, for which all zeroes are values.
        let mut attributes: abi::IbvDeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open, and the library fills in this structure.
        let done = unsafe { (self.library.query_device)(self.raw(), &raw mut attributes) };
        check(done, "asking for the device's limits")?;
        let number = |n: i32| u32::try_from(n).unwrap_or(0);
        let reads = |most: i32| u8::try_from(most.clamp(1, READS_MAX)).unwrap_or(1);
        Ok(DeviceLimits {
            srq_wr_max: number(attributes.max_srq_wr),
            qp_wr_max: number(attributes.max_qp_wr),
            qp_max: number(attributes.max_qp),
            cqe_max: number(attributes.max_cqe),
            reads_out: reads(attributes.max_qp_init_rd_atom),
            reads_in: reads(attributes.max_qp_rd_atom),
            atomics: attributes.atomic_cap != abi::ATOMIC_NONE,
            soft_roce: attributes.vendor_id == abi::VENDOR_SOFT_ROCE,
        })
    }

    /// Returns the state of a port.
    pub(in crate::verbs) fn port(&self, port: u8) -> io::Result<PortState> {
        // SAFETY: the structure holds only numbers, for which all zeroes are values.
        let mut attributes: abi::IbvPortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open, and the library fills in the first part of this structure.
        let done = unsafe { (self.library.query_port)(self.raw(), port, &raw mut attributes) };
        check(done, "asking for the port's state")?;
        Ok(PortState {
            active: attributes.state == abi::PORT_ACTIVE,
            mtu: u8::try_from(attributes.active_mtu.clamp(1, 5)).unwrap_or(1),
            lid: attributes.lid,
            message_max: attributes.max_msg_sz,
        })
    }

    /// Returns the address at an index of a port's table.
    pub(in crate::verbs) fn gid(&self, port: u8, index: u8) -> io::Result<[u8; 16]> {
        let mut gid = abi::IbvGid::default();
        // SAFETY: the device is open, and the library fills in the 16 bytes.
        let done =
            unsafe { (self.library.query_gid)(self.raw(), port, i32::from(index), &raw mut gid) };
        check(done, "asking for the port's address")?;
        Ok(gid.0)
    }

    /// Takes and acknowledges the next event about the device, a port or a queue, if there is one.
    pub(in crate::verbs) fn next_event(&self) -> Option<DeviceEvent> {
        let mut event = abi::IbvAsyncEvent {
            element: 0,
            event_type: 0,
        };
        // SAFETY: the descriptor does not block, and the library fills in the event.
        let got = unsafe { (self.library.get_async_event)(self.raw(), &raw mut event) };
        if got != 0 {
            return None;
        }
        let kind = event.event_type;
        let subject = match subject_kind(kind) {
            EventSubjectKind::Pair if event.element != 0 => {
                let address = usize::try_from(event.element).unwrap_or(0);
                let qp = ptr::with_exposed_provenance::<abi::IbvQp>(address);
                // SAFETY: such an event carries its queue pair, whose destruction waits until the event is acknowledged, below.
                EventSubject::Pair(unsafe { (*qp).qp_num })
            }
            // The number is the first half of the union.
            EventSubjectKind::Port => {
                EventSubject::Port(bytemuck::cast::<u64, [u32; 2]>(event.element)[0])
            }
            EventSubjectKind::Pair | EventSubjectKind::Other => EventSubject::Other,
        };
        // SAFETY: the event that was just got, once.
        unsafe { (self.library.ack_async_event)(&raw mut event) };
        Some(DeviceEvent { kind, subject })
    }

    /// Returns a descriptor that is readable when there is an event.
    pub(in crate::verbs) fn events(&self) -> io::Result<OwnedFd> {
        self.async_fd().try_clone_to_owned()
    }

    /// Returns the text for a completion's status.
    pub(in crate::verbs) fn status(&self, status: i32) -> String {
        self.library.status(status)
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the device is open, and so are its two descriptors.
        let context = unsafe { &*self.raw() };
        // SAFETY: as above; borrowed from `self`.
        unsafe { BorrowedFd::borrow_raw(context.async_fd) }
    }

    /// Releases an object by a function of the library. An object that the device keeps is counted: the library has freed nothing
    /// of it then, and nothing that the device may touch is freed here, until closing the device makes the kernel end all its
    /// uses.
    ///
    /// # Errors
    /// The device's error. A device that is gone is no error, because the kernel has ended all uses then.
    pub(super) fn give_back(&self, what: &str, end: impl FnOnce() -> i32) -> io::Result<()> {
        #[cfg(test)]
        let end = || match self.keeps() {
            0 => end(),
            number => number,
        };
        let done = end();
        let number = if done < 0 {
            io::Error::last_os_error().raw_os_error()
        } else {
            Some(done)
        };
        if number == Some(libc::EIO) && self.is_gone() {
            return Ok(());
        }
        check(done, what).inspect_err(|_| self.counters.stuck.add(1))
    }

    /// Returns true if the kernel has taken the device away. It refuses every call then, with an error (`ibv_open_device(3)`)
    /// that a device which is there may return, too, and go on. So this makes a call that involves no device.
    fn is_gone(&self) -> bool {
        #[cfg(test)]
        if self.gone.load(Relaxed) {
            return true;
        }
        // SAFETY: the device is open.
        let channel = unsafe { (self.library.create_comp_channel)(self.raw()) };
        if channel.is_null() {
            return io::Error::last_os_error().raw_os_error() == Some(libc::EIO);
        }
        // SAFETY: the descriptor was just made, and nothing uses it, so it can be closed.
        unsafe { (self.library.destroy_comp_channel)(channel) };
        false
    }

    /// Like [`give_back`](Self::give_back), for an object that can be kept only if objects made from it were.
    pub(super) fn give_back_empty(&self, what: &str, end: impl FnOnce() -> i32) {
        let kept_before = self.counters.stuck.get();
        let ended = self.give_back(what, end);
        debug_assert!(ended.is_ok() || kept_before > 0, "{ended:?}");
    }

    /// Pretends from now on that the device keeps every object, with this error, or stops that with 0.
    #[cfg(test)]
    pub(in crate::verbs) fn keep_all(&self, error: i32) {
        self.keeps.store(error, Relaxed);
    }

    /// Pretends from now on that the kernel has taken the device away.
    #[cfg(test)]
    pub(in crate::verbs) fn lose(&self) {
        self.gone.store(true, Relaxed);
        self.keep_all(libc::EIO);
    }

    #[cfg(test)]
    pub(super) fn keeps(&self) -> i32 {
        self.keeps.load(Relaxed)
    }

    /// Makes the device take receives by this function, or refuse them. Returns the function of before.
    #[cfg(test)]
    pub(in crate::verbs) fn take_receives_by(
        &self,
        post: Option<abi::IbvPostRecv<abi::IbvSrq>>,
    ) -> Option<abi::IbvPostRecv<abi::IbvSrq>> {
        // SAFETY: the device is open, and only this thread uses it.
        let ops = unsafe { &mut (*self.raw()).ops };
        std::mem::replace(&mut ops.post_srq_recv, post)
    }

    /// Makes the queues of the device refuse to be armed, as if it had failed.
    #[cfg(test)]
    pub(in crate::verbs) fn refuse_arming(&self) {
        // SAFETY: the device is open, and only this thread uses it.
        unsafe { (*self.raw()).ops.req_notify_cq = None };
    }

    pub(super) const fn raw(&self) -> *mut abi::IbvContext {
        self.raw.get()
    }

    pub(super) fn ops(&self) -> &abi::IbvContextOps {
        // SAFETY: the device is open; the table does not change.
        unsafe { &(*self.raw()).ops }
    }
}

impl Drop for VerbsContext {
    fn drop(&mut self) {
        // SAFETY: everything that was made on the device kept it open, so nothing of it is used any more.
        let closed = unsafe { (self.library.close_device)(self.raw()) };
        debug_assert_eq!(closed, 0, "a device is closed");
    }
}

/// A protection domain. Objects made in one may be used together.
#[derive(Debug)]
pub(in crate::verbs) struct VerbsPd {
    pub(super) context: Arc<VerbsContext>,
    raw: RawHandle<abi::IbvPd>,
}

impl VerbsPd {
    pub(in crate::verbs) fn new(context: &Arc<VerbsContext>) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open.
        let pd = unsafe { (context.library.alloc_pd)(context.raw()) };
        let raw = RawHandle::new(pd, "a protection domain")?;
        let context = Arc::clone(context);
        Ok(Arc::new(Self { context, raw }))
    }

    pub(super) const fn raw(&self) -> *mut abi::IbvPd {
        self.raw.get()
    }
}

impl Drop for VerbsPd {
    fn drop(&mut self) {
        let context = &self.context;
        // SAFETY: every object that was made in the domain kept it alive, so none is left.
        let end = || unsafe { (context.library.dealloc_pd)(self.raw()) };
        context.give_back_empty("freeing a protection domain", end);
    }
}

/// The devices of this machine.
struct DeviceList<'a> {
    library: &'a VerbsLibrary,
    first: NonNull<*mut abi::IbvDevice>,
    len: usize,
}

impl<'a> DeviceList<'a> {
    fn new(library: &'a VerbsLibrary) -> io::Result<Self> {
        let mut len = 0;
        // SAFETY: the library fills in the number.
        let first = unsafe { (library.get_device_list)(&raw mut len) };
        let first = NonNull::new(first).ok_or_else(|| {
            named(
                io::Error::last_os_error(),
                "listing devices (is ib_uverbs loaded?)",
            )
        })?;
        let len = usize::try_from(len).unwrap_or(0);
        Ok(Self {
            library,
            first,
            len,
        })
    }

    fn find(&self, name: &str) -> io::Result<NonNull<abi::IbvDevice>> {
        // SAFETY: the list has this many entries and lives until `self` is dropped.
        let devices = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) };
        let found = devices
            .iter()
            .copied()
            .filter_map(NonNull::new)
            .find(|device| {
                // SAFETY: the device is in the list.
                let its = unsafe { (self.library.get_device_name)(device.as_ptr()) };
                // SAFETY: the device contains this C string.
                !its.is_null() && unsafe { CStr::from_ptr(its) }.to_bytes() == name.as_bytes()
            });
        found.ok_or_else(|| {
            let why = format!(
                "InfiniBand verbs: the library does not show device {name}, which the kernel has: install its provider \
                 (Debian: ibverbs-providers), and check that /dev/infiniband/uverbs* exists"
            );
            io::Error::new(io::ErrorKind::NotFound, why)
        })
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: came from the library; devices that were opened stay.
        unsafe { (self.library.free_device_list)(self.first.as_ptr()) };
    }
}

fn cannot_open(name: &str, why: &io::Error) -> io::Error {
    let advice = match why.kind() {
        // If a file may not be opened, the library looks for another one, and does not find it.
        io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => {
            ": /dev/infiniband/uverbs* must be readable and writable for you; \
             join its group (often `rdma`), or pass the device into the container"
        }
        _ => "",
    };
    io::Error::new(why.kind(), format!("device {name}: {why}{advice}"))
}

/// Most reads and atomics in flight on one queue pair. No device profits from more.
const READS_MAX: i32 = 16;
