//! Queue pairs, and the requests that are posted to them.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::{io, ptr, sync::Arc};

use super::{
    LocalSge, RawHandle, RemoteAddress, VerbsCq, VerbsPd, VerbsSrq, check, queues::receive_request,
};
use crate::verbs::abi;

/// A queue pair.
#[derive(Debug)]
pub(in crate::verbs) struct VerbsQp {
    pd: Arc<VerbsPd>,
    raw: RawHandle<abi::IbvQp>,
    /// True once the queue pair was destroyed, or could not be destroyed.
    over: bool,
    inline_max: usize,
    _queues: (Arc<VerbsCq>, Arc<VerbsCq>, Option<Arc<VerbsSrq>>),
}

/// The route to a peer's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct PortRoute {
    pub(in crate::verbs) gid: [u8; 16],
    pub(in crate::verbs) lid: u16,
    /// True if the route goes by GID rather than by LID, as always on Ethernet.
    pub(in crate::verbs) global: bool,
    /// Port of this rank.
    pub(in crate::verbs) port: u8,
    pub(in crate::verbs) gid_index: u8,
}

/// A request for a queue pair.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct WorkRequest<'a> {
    /// Number that comes back in the completion.
    pub(in crate::verbs) id: u64,
    pub(in crate::verbs) op: WorkOp<'a>,
    /// True if the request reports a completion when it succeeds. A request that fails always does.
    pub(in crate::verbs) signaled: bool,
    /// True if the request wakes the receiver.
    pub(in crate::verbs) solicited: bool,
}

/// Operation of a request.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) enum WorkOp<'a> {
    /// Sends bytes that are copied right now.
    Inline(&'a [u8]),
    Send(LocalSge),
    /// Writes to the peer's memory; `None` is no bytes at all.
    Write {
        from: Option<LocalSge>,
        into: RemoteAddress,
    },
    /// Like `Write`, and the receiver gets a completion with this word, for which it must have a buffer.
    WriteImm {
        from: Option<LocalSge>,
        into: RemoteAddress,
        word: u32,
    },
    Read {
        from: RemoteAddress,
        into: LocalSge,
    },
    FetchAdd {
        at: RemoteAddress,
        by: u64,
        old: LocalSge,
    },
    CompareSwap {
        at: RemoteAddress,
        expected: u64,
        new: u64,
        old: LocalSge,
    },
    /// Sends a datagram, which only a queue pair for datagrams can.
    Datagram {
        bytes: DatagramBytes<'a>,
        way: &'a VerbsAh,
        qpn: u32,
        qkey: u32,
    },
}

/// Bytes of a datagram.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) enum DatagramBytes<'a> {
    /// Copied right now.
    Inline(&'a [u8]),
    From(LocalSge),
}

/// Kind and size of a queue pair to make.
#[derive(Clone, Copy, Debug)]
struct QpShape {
    kind: i32,
    sends: u32,
    receives: u32,
}

impl VerbsQp {
    /// Makes an end of a reliable connection, not connected yet, with room for `sends` requests.
    pub(in crate::verbs) fn connected(
        pd: &Arc<VerbsPd>,
        queues: [&Arc<VerbsCq>; 2],
        srq: &Arc<VerbsSrq>,
        sends: u32,
    ) -> io::Result<Self> {
        let shape = QpShape {
            kind: abi::QPT_RC,
            sends,
            receives: 0,
        };
        Self::new(pd, queues, Some(srq), shape)
    }

    /// Makes a queue pair for datagrams.
    pub(in crate::verbs) fn datagrams(
        pd: &Arc<VerbsPd>,
        queues: [&Arc<VerbsCq>; 2],
        sends: u32,
        receives: u32,
    ) -> io::Result<Self> {
        let shape = QpShape {
            kind: abi::QPT_UD,
            sends,
            receives,
        };
        Self::new(pd, queues, None, shape)
    }

    /// Makes a queue pair. Asks for less inline room until the device agrees.
    fn new(
        pd: &Arc<VerbsPd>,
        queues: [&Arc<VerbsCq>; 2],
        srq: Option<&Arc<VerbsSrq>>,
        shape: QpShape,
    ) -> io::Result<Self> {
        let mut refused = None;
        for inline in INLINE_TRIED {
            let mut init = abi::IbvQpInitAttr {
                qp_context: ptr::null_mut(),
                send_cq: queues[0].raw(),
                recv_cq: queues[1].raw(),
                srq: srq.map_or(ptr::null_mut(), |srq| srq.raw()),
                cap: abi::IbvQpCap {
                    max_send_wr: shape.sends,
                    max_recv_wr: shape.receives,
                    max_send_sge: 1,
                    max_recv_sge: u32::from(shape.receives > 0),
                    max_inline_data: inline,
                },
                qp_type: shape.kind,
                sq_sig_all: 0,
            };
            // SAFETY: domain and queues are alive; the structure is read, and written with what was made.
            let qp = unsafe { (pd.context.library.create_qp)(pd.raw(), &raw mut init) };
            match RawHandle::new(qp, &format!("a queue pair for {} requests", shape.sends)) {
                Ok(raw) => {
                    return Ok(Self {
                        pd: Arc::clone(pd),
                        raw,
                        over: false,
                        inline_max: inline as usize,
                        _queues: (
                            Arc::clone(queues[0]),
                            Arc::clone(queues[1]),
                            srq.map(Arc::clone),
                        ),
                    });
                }
                Err(why) => refused = Some(why),
            }
        }
        Err(refused.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
    }

    /// Returns the bytes that a request can carry itself.
    pub(in crate::verbs) const fn inline_max(&self) -> usize {
        self.inline_max
    }

    pub(in crate::verbs) fn number(&self) -> u32 {
        // SAFETY: this process made the object, and has not destroyed it.
        unsafe { (*self.raw.get()).qp_num }
    }

    /// Makes the queue pair ready to be connected. Peers may write, read and count in memory that they have the key to.
    pub(in crate::verbs) fn init(&self, port: u8) -> io::Result<()> {
        let mut to = attributes(abi::QPS_INIT);
        to.port_num = port;
        let access = abi::ACCESS_REMOTE_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_ATOMIC;
        to.qp_access_flags = access.unsigned_abs();
        let fields = abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS;
        self.modify(&mut to, fields, "setting up a queue pair")
    }

    /// Connects it, so that it receives and can send.
    pub(in crate::verbs) fn connect(&self, to: &QpConnectParams) -> io::Result<()> {
        let mut ready = attributes(abi::QPS_RTR);
        ready.path_mtu = i32::from(to.mtu);
        ready.dest_qp_num = to.qpn;
        ready.rq_psn = to.their_psn;
        ready.max_dest_rd_atomic = to.reads_in;
        ready.min_rnr_timer = RNR_TIMER;
        ready.ah_attr = to.route.attributes();
        let fields = abi::QP_AV
            | abi::QP_PATH_MTU
            | abi::QP_DEST_QPN
            | abi::QP_RQ_PSN
            | abi::QP_MAX_DEST_RD_ATOMIC
            | abi::QP_MIN_RNR_TIMER;
        self.modify(&mut ready, fields, "connecting a queue pair")?;
        let mut send = attributes(abi::QPS_RTS);
        send.sq_psn = to.our_psn;
        send.timeout = to.timeout;
        send.retry_cnt = TRIES - 1;
        send.rnr_retry = RNR_RETRIES;
        send.max_rd_atomic = to.reads_out;
        let fields = abi::QP_SQ_PSN
            | abi::QP_TIMEOUT
            | abi::QP_RETRY_CNT
            | abi::QP_RNR_RETRY
            | abi::QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut send, fields, "connecting a queue pair")
    }

    /// Makes a queue pair for datagrams ready.
    pub(in crate::verbs) fn open_datagrams(&self, port: u8, qkey: u32, psn: u32) -> io::Result<()> {
        let mut init = attributes(abi::QPS_INIT);
        (init.port_num, init.qkey) = (port, qkey);
        let fields = abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_QKEY;
        self.modify(&mut init, fields, "setting up datagrams")?;
        self.modify(&mut attributes(abi::QPS_RTR), 0, "receiving datagrams")?;
        let mut send = attributes(abi::QPS_RTS);
        send.sq_psn = psn;
        self.modify(&mut send, abi::QP_SQ_PSN, "sending datagrams")
    }

    /// Ends all requests in flight: each completes as flushed.
    pub(in crate::verbs) fn abandon(&self) {
        let _broken_already = self.modify(&mut attributes(abi::QPS_ERR), 0, "abandoning");
    }

    /// Destroys it. The device has stopped by the time this returns.
    ///
    /// # Errors
    /// The device did not destroy it, and may go on with all posted requests and with requests of the peer.
    pub(in crate::verbs) fn destroy(mut self) -> io::Result<()> {
        // A queue pair that the device keeps still stops when it is reset.
        self.end().or_else(|why| self.forget_all().map_err(|_| why))
    }

    fn end(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.over, true) {
            return Ok(());
        }
        let context = &self.pd.context;
        // SAFETY: this process made the object, and destroys it only here.
        let end = || unsafe { (context.library.destroy_qp)(self.raw.get()) };
        context.give_back("destroying a queue pair", end)
    }

    /// Resets it to the state in which it was made. Requests in flight never complete.
    pub(in crate::verbs) fn forget_all(&self) -> io::Result<()> {
        #[cfg(test)]
        if self.pd.context.keeps() != 0 {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.modify(&mut attributes(abi::QPS_RESET), 0, "resetting")
    }

    /// Resets it, so that nothing in flight completes and nothing more can be posted.
    #[cfg(test)]
    pub(in crate::verbs) fn reset(&self) {
        let reset = self.forget_all();
        assert!(reset.is_ok(), "{reset:?}");
    }

    fn modify(&self, to: &mut abi::IbvQpAttr, fields: i32, what: &str) -> io::Result<()> {
        let fields = fields | abi::QP_STATE;
        // SAFETY: this process made the object; the structure is read before this returns.
        let done =
            unsafe { (self.pd.context.library.modify_qp)(self.raw.get(), &raw mut *to, fields) };
        check(done, what)
    }

    /// Posts a buffer to a queue pair for datagrams.
    pub(in crate::verbs) fn receive(&self, id: u64, into: LocalSge) -> io::Result<()> {
        let mut sge = into.sge();
        let mut request = receive_request(id, &mut sge);
        let Some(post) = self.pd.context.ops().post_recv else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the request and its piece are read before this returns; the memory is registered.
        let done = unsafe { post(self.raw.get(), &raw mut request, &raw mut bad) };
        check(done, "posting a receive buffer to a queue pair")
    }

    /// Posts requests in their order, all with one call, which is a system call on some devices.
    ///
    /// # Panics
    /// There are more than [`CHAIN_MAX`].
    pub(in crate::verbs) fn post(&self, works: &[WorkRequest<'_>]) -> io::Result<()> {
        // The room for a long chain takes long to clear, and most chains are short.
        if works.len() <= STEP_MAX {
            self.post_up_to::<STEP_MAX>(works)
        } else {
            self.post_up_to::<CHAIN_MAX>(works)
        }
    }

    fn post_up_to<const MAX: usize>(&self, works: &[WorkRequest<'_>]) -> io::Result<()> {
        assert!(works.len() <= MAX, "{} requests in a chain", works.len());
        let Some(post) = self.pd.context.ops().post_send else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let mut pieces = [abi::IbvSge {
            addr: 0,
            length: 0,
            lkey: 0,
        }; MAX];
        let mut requests = [const { blank() }; MAX];
        for (at, work) in works.iter().enumerate() {
            work.write_to(&mut requests[at], &mut pieces[at]);
        }
        let first = requests.as_mut_ptr();
        for at in 1..works.len() {
            requests[at - 1].next = first.wrapping_add(at);
        }
        let mut bad = ptr::null_mut();
        // SAFETY: requests and pieces are read before this returns, and so are inline bytes; other memory is registered, which
        // keeps its pages until the device is done with them.
        let done = unsafe { post(self.raw.get(), first, &raw mut bad) };
        check(done, "posting")
    }
}

impl Drop for VerbsQp {
    fn drop(&mut self) {
        let _counted = self.end();
    }
}

/// The other end of a connection, and the values that both ends agreed on.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct QpConnectParams {
    pub(in crate::verbs) route: PortRoute,
    pub(in crate::verbs) qpn: u32,
    pub(in crate::verbs) our_psn: u32,
    pub(in crate::verbs) their_psn: u32,
    pub(in crate::verbs) mtu: u8,
    /// Reads and atomics in flight that the other end serves, and those that this end serves.
    pub(in crate::verbs) reads_out: u8,
    pub(in crate::verbs) reads_in: u8,
    /// Exponent of the time until a packet is sent again: 4.096 µs times two to the power of this.
    pub(in crate::verbs) timeout: u8,
}

/// A route for datagrams.
#[derive(Debug)]
pub(in crate::verbs) struct VerbsAh {
    pd: Arc<VerbsPd>,
    raw: RawHandle<abi::IbvAh>,
}

impl VerbsAh {
    pub(in crate::verbs) fn new(pd: &Arc<VerbsPd>, route: &PortRoute) -> io::Result<Self> {
        let mut attributes = route.attributes();
        // SAFETY: the domain is alive; the structure is read.
        let ah = unsafe { (pd.context.library.create_ah)(pd.raw(), &raw mut attributes) };
        let raw = RawHandle::new(ah, "making an address handle for a peer's port")?;
        let pd = Arc::clone(pd);
        Ok(Self { pd, raw })
    }
}

impl Drop for VerbsAh {
    fn drop(&mut self) {
        let context = &self.pd.context;
        // SAFETY: this process made the object, and destroys it only here.
        let end = || unsafe { (context.library.destroy_ah)(self.raw.get()) };
        context.give_back_empty("destroying an address handle", end);
    }
}

impl PortRoute {
    fn attributes(&self) -> abi::IbvAhAttr {
        abi::IbvAhAttr {
            grh: abi::IbvGlobalRoute {
                dgid: abi::IbvGid(self.gid),
                flow_label: 0,
                sgid_index: self.gid_index,
                hop_limit: HOPS_MAX,
                traffic_class: 0,
            },
            dlid: self.lid,
            is_global: u8::from(self.global),
            port_num: self.port,
            ..abi::IbvAhAttr::default()
        }
    }
}

impl WorkRequest<'_> {
    fn write_to(&self, request: &mut abi::IbvSendWr, piece: &mut abi::IbvSge) {
        request.wr_id = self.id;
        request.send_flags = if self.signaled { abi::SEND_SIGNALED } else { 0 }
            | if self.solicited {
                abi::SEND_SOLICITED
            } else {
                0
            };
        let (opcode, local) = match self.op {
            WorkOp::Inline(bytes) => (abi::WR_SEND, Some(inline(request, bytes))),
            WorkOp::Send(from) => (abi::WR_SEND, Some(from)),
            WorkOp::Write { from, into } => {
                (request.wr.first, request.wr.second.0[0]) = (into.address, into.key);
                (abi::WR_RDMA_WRITE, from)
            }
            WorkOp::WriteImm { from, into, word } => {
                (request.wr.first, request.wr.second.0[0]) = (into.address, into.key);
                request.imm_data = word.to_be();
                (abi::WR_RDMA_WRITE_WITH_IMM, from)
            }
            WorkOp::Read { from, into } => {
                (request.wr.first, request.wr.second.0[0]) = (from.address, from.key);
                (abi::WR_RDMA_READ, Some(into))
            }
            WorkOp::FetchAdd { at, by, old } => {
                (request.wr.first, request.wr.key) = (at.address, at.key);
                request.wr.second.0 = bytemuck::cast(by);
                (abi::WR_FETCH_ADD, Some(old))
            }
            WorkOp::CompareSwap {
                at,
                expected,
                new,
                old,
            } => {
                (request.wr.first, request.wr.key) = (at.address, at.key);
                request.wr.second.0 = bytemuck::cast(expected);
                request.wr.swap = new;
                (abi::WR_COMPARE_SWAP, Some(old))
            }
            WorkOp::Datagram {
                bytes,
                way,
                qpn,
                qkey,
            } => {
                request.wr.first = way.raw.get().addr() as u64;
                way.raw.get().expose_provenance();
                request.wr.second.0 = [qpn, qkey];
                let from = match bytes {
                    DatagramBytes::Inline(bytes) => inline(request, bytes),
                    DatagramBytes::From(local) => local,
                };
                (abi::WR_SEND, Some(from))
            }
        };
        request.opcode = opcode;
        if let Some(local) = local {
            *piece = local.sge();
            (request.sg_list, request.num_sge) = (&raw mut *piece, 1);
        }
    }
}

/// Makes the device copy these bytes while the request is posted.
fn inline(request: &mut abi::IbvSendWr, bytes: &[u8]) -> LocalSge {
    request.send_flags |= abi::SEND_INLINE;
    LocalSge {
        address: bytes.as_ptr().expose_provenance() as u64,
        len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        key: 0,
    }
}

const fn blank() -> abi::IbvSendWr {
    abi::IbvSendWr {
        wr_id: 0,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        wr: abi::IbvWrDetail {
            first: 0,
            second: abi::IbvWrSecond([0; 2]),
            swap: 0,
            key: 0,
        },
        others: [0; 7],
    }
}

fn attributes(state: i32) -> abi::IbvQpAttr {
    // SAFETY: the structure holds only numbers, for which all zeroes are values.
    let mut attributes: abi::IbvQpAttr = unsafe { std::mem::zeroed() };
    attributes.qp_state = state;
    attributes
}

/// Most requests that are posted with one call.
pub(in crate::verbs) const CHAIN_MAX: usize = 24;
/// Most requests of one step of a command.
pub(in crate::verbs) const STEP_MAX: usize = 3;

/// Inline bytes to ask for: from the most that short messages profit from down to a number that every device has.
const INLINE_TRIED: [u32; 3] = [256, 128, 96];

/// 0.64 ms until a sender that found no buffer tries again. With credits none ever does.
const RNR_TIMER: u8 = 12;
/// Number of times that a packet is sent, at most. The device is told how often it sends the packet again: one less.
pub(in crate::verbs) const TRIES: u8 = 7;
/// The number that stands for unlimited retries.
const RNR_RETRIES: u8 = 7;
const HOPS_MAX: u8 = 64;
