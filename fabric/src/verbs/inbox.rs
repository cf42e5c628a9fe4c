//! What peers send lands here: buffers of one queue that all connections share. A count that comes with a put takes one, and
//! leaves it as it was.
//!
//! Each peer that may send has so many of them for itself, by credits, so that the queue never runs dry; and as no more
//! completions can come than there are buffers, the completion queue never overruns.

use std::{collections::VecDeque, io, sync::Arc};

use super::{
    abi::{Completion, WC_RECV_RDMA_WITH_IMM, WC_SUCCESS},
    objects::{Access, Cq, Mr, Pd, Srq},
    wire::{HEAD, WORD_MAX},
};
use crate::{driver::Payload, memory::Region};

/// Buffers, and what came into them.
#[derive(Debug)]
pub(super) struct Inbox {
    pd: Arc<Pd>,
    pub(super) cq: Arc<Cq>,
    pub(super) srq: Arc<Srq>,
    slabs: Vec<Slab>,
    slabs_max: usize,
    /// Slabs that belong to connections, or that those before took along.
    taken: usize,
    arrived: VecDeque<Completion>,
    /// Counts, which are in no order with messages: they are taken without anybody who hears these.
    told: VecDeque<Completion>,
    /// Something did since somebody last asked.
    pub(super) came: bool,
    /// Buffers that the device did not take.
    missing: Vec<u64>,
}

/// The buffers of one connection. When it ends, they serve the next.
#[derive(Debug)]
struct Slab {
    mr: Mr,
    memory: Region,
}

impl Inbox {
    pub(super) fn new(pd: &Arc<Pd>, cq: &Arc<Cq>, room: u32) -> io::Result<Self> {
        Ok(Self {
            pd: Arc::clone(pd),
            cq: Arc::clone(cq),
            srq: Srq::new(pd, room)?,
            slabs: Vec::new(),
            slabs_max: (room / WINDOW) as usize,
            taken: 0,
            arrived: VecDeque::with_capacity(BATCH),
            told: VecDeque::with_capacity(BATCH),
            came: false,
            missing: Vec::new(),
        })
    }

    /// Buffers for one more peer.
    ///
    /// # Errors
    /// When the device's queue has no room for them, or there is no memory that may be locked.
    pub(super) fn reserve(&mut self) -> io::Result<()> {
        if self.taken >= self.slabs.len() {
            if self.slabs.len() >= self.slabs_max {
                let why = format!(
                    "the shared queue has receives for {} peers, and all are in use",
                    self.taken
                );
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
            }
            let memory = Region::anonymous(WINDOW as usize * BUFFER_LEN)?;
            let mr = Mr::new(&self.pd, memory.range(), Access::Write)?;
            self.slabs.push(Slab { mr, memory });
            let first = (self.slabs.len() as u64 - 1) * u64::from(WINDOW);
            self.missing.extend(first..first + u64::from(WINDOW));
        }
        // Whoever is connected now has as many as it may fill.
        while let Some(id) = self.missing.pop() {
            self.give(id)?;
        }
        self.taken += 1;
        Ok(())
    }

    /// A peer is gone.
    pub(super) fn release(&mut self) {
        self.taken -= 1;
    }

    /// A queue pair may have taken buffers along, as many as its peer had at the most: no other connection gets those.
    pub(super) const fn lose(&mut self) {
        self.taken += 1;
    }

    #[cfg(test)]
    pub(super) const fn taken(&self) -> usize {
        self.taken
    }

    /// Takes what has come from the device. Whether there is anything.
    pub(super) fn look(&mut self) -> bool {
        if self.arrived.is_empty() && self.told.is_empty() {
            self.take();
        }
        !self.arrived.is_empty() || !self.told.is_empty()
    }

    /// Takes some of what has come. Whether anything had.
    fn take(&mut self) -> bool {
        let mut batch = [Completion::default(); BATCH];
        let came = self.cq.poll(&mut batch);
        for came in &batch[..came] {
            let told = came.status == WC_SUCCESS && came.opcode == WC_RECV_RDMA_WITH_IMM;
            let queue = if told {
                &mut self.told
            } else {
                &mut self.arrived
            };
            queue.push_back(*came);
        }
        self.came |= came > 0;
        came > 0
    }

    /// Takes all that has come.
    pub(super) fn take_all(&mut self) {
        while self.take() {}
    }

    /// Takes all that has come, and says whether any of it came by this queue pair.
    pub(super) fn has_from(&mut self, qpn: u32) -> bool {
        self.take_all();
        let mut all = self.told.iter().chain(&self.arrived);
        all.any(|came| came.qp_num == qpn)
    }

    /// A queue pair is gone. What came by it is nobody's any more, and its number may be that of the next one.
    pub(super) fn forget(&mut self, qpn: u32) {
        self.take_all();
        let mut free = Vec::new();
        self.arrived.retain(|came| {
            let stays = came.qp_num != qpn;
            free.extend((!stays).then_some(came.wr_id));
            stays
        });
        for id in free {
            let _missing_if_not = self.give(id);
        }
    }

    /// The next that came, but for counts.
    pub(super) fn next(&mut self) -> Option<Completion> {
        if self.arrived.is_empty() {
            self.take();
        }
        self.arrived.pop_front()
    }

    /// The next count that came.
    pub(super) fn next_told(&mut self) -> Option<Completion> {
        if self.told.is_empty() {
            self.take();
        }
        self.told.pop_front()
    }

    /// The first bytes of what came.
    pub(super) fn first(&self, came: &Completion) -> [u8; WORD_MAX] {
        let mut first = [0; WORD_MAX];
        let (slab, at) = self.place(came.wr_id);
        let len = len_of(came).min(WORD_MAX);
        slab.memory.read(at, &mut first[..len]);
        first
    }

    /// Header and body of a message, of which the head said how long its header is.
    pub(super) fn message(&self, came: &Completion, header: &mut [u8]) -> Payload<'_> {
        let (slab, at) = self.place(came.wr_id);
        slab.memory.read(at + HEAD, header);
        let before = HEAD + header.len();
        slab.memory.payload(at + before, len_of(came) - before)
    }

    /// Gives a buffer to the device again. One that it does not take is missing until the next connection.
    ///
    /// # Errors
    /// What the device said: there is one buffer less than peers have credits for.
    pub(super) fn give(&mut self, id: u64) -> io::Result<()> {
        let (slab, at) = self.place(id);
        let given = self.srq.post(id, slab.mr.piece(at, BUFFER_LEN));
        if given.is_err() {
            self.missing.push(id);
        }
        given
    }

    fn place(&self, id: u64) -> (&Slab, usize) {
        let id = usize::try_from(id).unwrap_or(usize::MAX);
        let window = WINDOW as usize;
        (&self.slabs[id / window], id % window * BUFFER_LEN)
    }
}

/// Bytes that came; the device writes no more than the buffer is long.
pub(super) fn len_of(came: &Completion) -> usize {
    if came.status == WC_SUCCESS {
        (came.byte_len as usize).min(BUFFER_LEN)
    } else {
        0
    }
}

/// Messages that a peer may have under way to us: twice what it may send between two credits that come by themselves, and a
/// quarter of a mebibyte for each peer in contact.
pub(super) const WINDOW: u32 = 32;

/// The longest header and body of a message.
pub(super) const HEADER_MAX: usize = 128;
pub(super) const BODY_MAX: usize = 8 << 10;

/// Bytes of a buffer: whole cache lines.
pub(super) const BUFFER_LEN: usize = (HEAD + HEADER_MAX + BODY_MAX).next_multiple_of(64);

/// Completions taken at a time.
const BATCH: usize = 16;
