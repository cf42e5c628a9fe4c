//! Buffers for messages from peers, in one receive queue that all connections share.
//!
//! A count that comes with a put takes a buffer, too, and leaves its bytes alone. Each peer has credits for some buffers of its
//! own, so the queue never runs dry. No more completions can come than there are buffers, so the completion queue never overruns.

use std::{collections::VecDeque, io, sync::Arc};

use super::{
    abi::{IbvWc, WC_RECV_RDMA_WITH_IMM, WC_SUCCESS},
    objects::{MrAccess, VerbsCq, VerbsMr, VerbsPd, VerbsSrq},
    wire::{HEAD, WORD_MAX},
};
use crate::{driver::PayloadView, memory::MemoryRegion};

/// Buffers, and arrivals in them.
#[derive(Debug)]
pub(super) struct VerbsInbox {
    pd: Arc<VerbsPd>,
    pub(super) cq: Arc<VerbsCq>,
    pub(super) srq: Arc<VerbsSrq>,
    slabs: Vec<InboxSlab>,
    slabs_max: usize,
    /// Slabs of connections, and those lost with earlier ones.
    taken: usize,
    arrived: VecDeque<IbvWc>,
    /// Arrived counts. They are in no order with messages, and are taken even while no sink takes messages.
    counts: VecDeque<IbvWc>,
    /// True if anything arrived since this was last cleared.
    pub(super) got_completion: bool,
    /// Buffers that the device refused.
    missing: Vec<u64>,
}

/// The buffers of one connection. When it ends, they serve the next one.
#[derive(Debug)]
struct InboxSlab {
    mr: VerbsMr,
    memory: MemoryRegion,
}

impl VerbsInbox {
    pub(super) fn new(pd: &Arc<VerbsPd>, cq: &Arc<VerbsCq>, room: u32) -> io::Result<Self> {
        Ok(Self {
            pd: Arc::clone(pd),
            cq: Arc::clone(cq),
            srq: VerbsSrq::new(pd, room)?,
            slabs: Vec::new(),
            slabs_max: (room / WINDOW) as usize,
            taken: 0,
            arrived: VecDeque::with_capacity(BATCH),
            counts: VecDeque::with_capacity(BATCH),
            got_completion: false,
            missing: Vec::new(),
        })
    }

    /// Provides buffers for one more peer.
    ///
    /// # Errors
    /// The device's queue has no room for them, or no more memory may be locked.
    pub(super) fn reserve(&mut self) -> io::Result<()> {
        if self.taken >= self.slabs.len() {
            if self.slabs.len() >= self.slabs_max {
                let why = format!(
                    "the shared queue has receives for {} peers, and all are in use",
                    self.taken
                );
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
            }
            let memory = MemoryRegion::anonymous(WINDOW as usize * BUFFER_LEN)?;
            let mr = VerbsMr::new(&self.pd, memory.range(), MrAccess::Write)?;
            self.slabs.push(InboxSlab { mr, memory });
            let first = (self.slabs.len() as u64 - 1) * u64::from(WINDOW);
            self.missing.extend(first..first + u64::from(WINDOW));
        }
        // A new peer has credits for all its buffers, so missing ones must be posted now.
        while let Some(id) = self.missing.pop() {
            self.give(id)?;
        }
        self.taken += 1;
        Ok(())
    }

    /// Releases the buffers of a connection that has ended.
    pub(super) fn release(&mut self) {
        self.taken -= 1;
    }

    /// Counts the buffers of one connection as lost, the most that a queue pair may have kept. No other connection gets them.
    pub(super) const fn lose(&mut self) {
        self.taken += 1;
    }

    #[cfg(test)]
    pub(super) const fn taken(&self) -> usize {
        self.taken
    }

    /// Polls the device if no arrival waits. Returns true if there are arrivals.
    pub(super) fn poll_arrivals(&mut self) -> bool {
        if self.arrived.is_empty() && self.counts.is_empty() {
            self.take();
        }
        !self.arrived.is_empty() || !self.counts.is_empty()
    }

    /// Polls one batch of arrivals. Returns true if something arrived.
    fn take(&mut self) -> bool {
        let mut batch = [IbvWc::default(); BATCH];
        let polled = self.cq.poll(&mut batch);
        for completion in &batch[..polled] {
            let told =
                completion.status == WC_SUCCESS && completion.opcode == WC_RECV_RDMA_WITH_IMM;
            let queue = if told {
                &mut self.counts
            } else {
                &mut self.arrived
            };
            queue.push_back(*completion);
        }
        self.got_completion |= polled > 0;
        polled > 0
    }

    /// Polls all arrivals.
    pub(super) fn take_all(&mut self) {
        while self.take() {}
    }

    /// Polls all arrivals, and returns true if one of them came by this queue pair.
    pub(super) fn has_from(&mut self, qpn: u32) -> bool {
        self.take_all();
        let mut all = self.counts.iter().chain(&self.arrived);
        all.any(|completion| completion.qp_num == qpn)
    }

    /// Drops messages that came by a queue pair that was destroyed. The next queue pair may get its number.
    pub(super) fn forget(&mut self, qpn: u32) {
        self.take_all();
        let mut free = Vec::new();
        self.arrived.retain(|completion| {
            let stays = completion.qp_num != qpn;
            free.extend((!stays).then_some(completion.wr_id));
            stays
        });
        for id in free {
            let _missing_if_not = self.give(id);
        }
    }

    /// Returns the next arrival that is no count.
    pub(super) fn next(&mut self) -> Option<IbvWc> {
        if self.arrived.is_empty() {
            self.take();
        }
        self.arrived.pop_front()
    }

    /// Returns the next arrived count.
    pub(super) fn next_count(&mut self) -> Option<IbvWc> {
        if self.counts.is_empty() {
            self.take();
        }
        self.counts.pop_front()
    }

    /// Returns the first bytes of an arrival.
    pub(super) fn first(&self, completion: &IbvWc) -> [u8; WORD_MAX] {
        let mut first = [0; WORD_MAX];
        let (slab, at) = self.place(completion.wr_id);
        let len = len_of(completion).min(WORD_MAX);
        slab.memory.read(at, &mut first[..len]);
        first
    }

    /// Reads the header of a message, whose length the head gave, and returns the body.
    pub(super) fn message(&self, completion: &IbvWc, header: &mut [u8]) -> PayloadView<'_> {
        let (slab, at) = self.place(completion.wr_id);
        slab.memory.read(at + HEAD, header);
        let before = HEAD + header.len();
        slab.memory
            .payload(at + before, len_of(completion) - before)
    }

    /// Posts a buffer to the device again. If the device refuses it, it is missing until the next connection.
    ///
    /// # Errors
    /// The device's error. There is one buffer less than peers have credits for.
    pub(super) fn give(&mut self, id: u64) -> io::Result<()> {
        let (slab, at) = self.place(id);
        let given = self.srq.post(id, slab.mr.piece(at, BUFFER_LEN));
        if given.is_err() {
            self.missing.push(id);
        }
        given
    }

    fn place(&self, id: u64) -> (&InboxSlab, usize) {
        let id = usize::try_from(id).unwrap_or(usize::MAX);
        let window = WINDOW as usize;
        (&self.slabs[id / window], id % window * BUFFER_LEN)
    }
}

/// Returns the bytes of an arrival, at most the length of the buffer; 0 if it failed.
pub(super) fn len_of(completion: &IbvWc) -> usize {
    if completion.status == WC_SUCCESS {
        (completion.byte_len as usize).min(BUFFER_LEN)
    } else {
        0
    }
}

/// Messages that a peer may have in flight to this rank. Twice as many as it may send before credits come back by themselves;
/// they take a quarter of a mebibyte for each connected peer.
pub(super) const WINDOW: u32 = 32;

/// Bytes of the longest header and body of a message.
pub(super) const HEADER_MAX: usize = 128;
pub(super) const BODY_MAX: usize = 8 << 10;

/// Bytes of a buffer: whole cache lines.
pub(super) const BUFFER_LEN: usize = (HEAD + HEADER_MAX + BODY_MAX).next_multiple_of(64);

/// Completions polled at a time.
const BATCH: usize = 16;
