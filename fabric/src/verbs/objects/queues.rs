//! Completion queues, the channel that wakes for them, and the receive queue that all connections share.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    ptr,
    sync::Arc,
};

use super::{LocalSge, RawHandle, VerbsContext, VerbsPd, check, named};
use crate::verbs::abi;

/// A channel by which completion queues that are armed report arrivals.
#[derive(Debug)]
pub(in crate::verbs) struct VerbsChannel {
    context: Arc<VerbsContext>,
    raw: RawHandle<abi::IbvCompChannel>,
}

impl VerbsChannel {
    pub(in crate::verbs) fn new(context: &Arc<VerbsContext>) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open.
        let channel = unsafe { (context.library.create_comp_channel)(context.raw()) };
        let raw = RawHandle::new(channel, "a completion channel")?;
        let context = Arc::clone(context);
        let channel = Self { context, raw };
        rustix::io::ioctl_fionbio(channel.borrow(), true)?;
        Ok(Arc::new(channel))
    }

    /// Returns a descriptor that is readable when a queue that was armed has got something.
    pub(in crate::verbs) fn fd(&self) -> io::Result<OwnedFd> {
        self.borrow().try_clone_to_owned()
    }

    fn borrow(&self) -> BorrowedFd<'_> {
        // SAFETY: this process made the object, and has not destroyed it.
        let fd = unsafe { (*self.raw.get()).fd };
        // SAFETY: the descriptor is open as long as the channel, from which it is borrowed.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Takes one event, if there is one. Returns the handle of its queue.
    pub(in crate::verbs) fn take(&self) -> Option<u32> {
        let mut cq = ptr::null_mut();
        let mut queue_context = ptr::null_mut();
        // SAFETY: does not block; fills in both pointers.
        let got = unsafe {
            (self.context.library.get_cq_event)(self.raw.get(), &raw mut cq, &raw mut queue_context)
        };
        if got != 0 || cq.is_null() {
            return None;
        }
        // SAFETY: the pointer is that of the queue that the event came from, which cannot be destroyed while it has events
        // that are not acknowledged.
        unsafe { (self.context.library.ack_cq_events)(cq, 1) };
        // SAFETY: the caller owns the queues of this channel.
        Some(unsafe { (*cq).handle })
    }
}

impl Drop for VerbsChannel {
    fn drop(&mut self) {
        let context = &self.context;
        // SAFETY: the queues of the channel kept it alive, so none is left.
        let end = || unsafe { (context.library.destroy_comp_channel)(self.raw.get()) };
        context.give_back_empty("destroying a channel without queues", end);
    }
}

/// A completion queue.
#[derive(Debug)]
pub(in crate::verbs) struct VerbsCq {
    channel: Arc<VerbsChannel>,
    raw: RawHandle<abi::IbvCq>,
}

impl VerbsCq {
    /// Makes a queue for at least `room` completions. Its users count theirs, so that there are never more.
    pub(in crate::verbs) fn new(channel: &Arc<VerbsChannel>, room: u32) -> io::Result<Arc<Self>> {
        let context = &channel.context;
        let room = i32::try_from(room).unwrap_or(i32::MAX);
        // SAFETY: device and channel are open.
        let cq = unsafe {
            (context.library.create_cq)(context.raw(), room, ptr::null_mut(), channel.raw.get(), 0)
        };
        let raw = RawHandle::new(cq, &format!("a queue of {room} completions"))?;
        let channel = Arc::clone(channel);
        Ok(Arc::new(Self { channel, raw }))
    }

    /// Takes completions, as many as there are and `into` has room for. Returns how many.
    #[inline]
    pub(in crate::verbs) fn poll(&self, into: &mut [abi::IbvWc]) -> usize {
        let room = i32::try_from(into.len()).unwrap_or(i32::MAX);
        let Some(poll) = self.channel.context.ops().poll_cq else {
            return 0;
        };
        // SAFETY: the function writes at most `room` completions to the start of `into`.
        let got = unsafe { poll(self.raw.get(), room, into.as_mut_ptr()) };
        usize::try_from(got).unwrap_or(0)
    }

    /// Arms the queue for the next completion, or only for the next solicited or failed one.
    pub(in crate::verbs) fn notify(&self, solicited: bool) -> io::Result<()> {
        let Some(notify) = self.channel.context.ops().req_notify_cq else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        // SAFETY: this process made the object, and has not destroyed it.
        let done = unsafe { notify(self.raw.get(), i32::from(solicited)) };
        check(done, "arming a completion queue")
    }

    pub(in crate::verbs) fn handle(&self) -> u32 {
        // SAFETY: this process made the object, and has not destroyed it.
        unsafe { (*self.raw.get()).handle }
    }

    pub(super) const fn raw(&self) -> *mut abi::IbvCq {
        self.raw.get()
    }
}

impl Drop for VerbsCq {
    fn drop(&mut self) {
        let context = &self.channel.context;
        // SAFETY: the queue pairs of the queue kept it alive, so none is left, and each event was acknowledged when it was taken.
        let end = || unsafe { (context.library.destroy_cq)(self.raw.get()) };
        context.give_back_empty("destroying an idle completion queue", end);
    }
}

/// A receive queue that many queue pairs share.
#[derive(Debug)]
pub(in crate::verbs) struct VerbsSrq {
    pd: Arc<VerbsPd>,
    raw: RawHandle<abi::IbvSrq>,
}

impl VerbsSrq {
    pub(in crate::verbs) fn new(pd: &Arc<VerbsPd>, room: u32) -> io::Result<Arc<Self>> {
        let mut init = abi::IbvSrqInitAttr {
            srq_context: ptr::null_mut(),
            max_wr: room,
            max_sge: 1,
            srq_limit: 0,
        };
        // SAFETY: the domain is alive; the structure is read, and written with what was made.
        let srq = unsafe { (pd.context.library.create_srq)(pd.raw(), &raw mut init) };
        let raw = RawHandle::new(srq, &format!("a shared queue of {room} receives"))?;
        let pd = Arc::clone(pd);
        Ok(Arc::new(Self { pd, raw }))
    }

    /// Posts a buffer, which comes back with this number.
    pub(in crate::verbs) fn post(&self, id: u64, into: LocalSge) -> io::Result<()> {
        let mut sge = into.sge();
        let mut request = receive_request(id, &mut sge);
        let Some(post) = self.pd.context.ops().post_srq_recv else {
            return Err(named(io::ErrorKind::Unsupported.into(), GIVING));
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the request and its piece are read before this returns; the memory is registered.
        let done = unsafe { post(self.raw.get(), &raw mut request, &raw mut bad) };
        check(done, GIVING)
    }

    pub(super) const fn raw(&self) -> *mut abi::IbvSrq {
        self.raw.get()
    }
}

impl Drop for VerbsSrq {
    fn drop(&mut self) {
        let context = &self.pd.context;
        // SAFETY: the queue pairs of the queue kept it alive, so none is left.
        let end = || unsafe { (context.library.destroy_srq)(self.raw.get()) };
        context.give_back_empty("destroying a shared queue without queue pairs", end);
    }
}

const GIVING: &str = "posting a buffer to the shared receive queue";

pub(super) const fn receive_request(id: u64, sge: &mut abi::IbvSge) -> abi::IbvRecvWr {
    abi::IbvRecvWr {
        wr_id: id,
        next: ptr::null_mut(),
        sg_list: &raw mut *sge,
        num_sge: 1,
    }
}

impl LocalSge {
    pub(super) const fn sge(self) -> abi::IbvSge {
        abi::IbvSge {
            addr: self.address,
            length: self.len,
            lkey: self.key,
        }
    }
}
