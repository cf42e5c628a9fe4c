//! Packing blocks: memory that a rank packs messages into, and that receivers on its node read in place.
//!
//! A sender [takes](PackingBlocks::take) a block, offers its key with `MODE_IN_PLACE`, and packs while the offer is in flight. A
//! receiver that can map the block [reads](BlockReader) what is packed so far, until it has all. A word in the last cache line of
//! a block says how much is packed.
//!
//! A receiver that has looked for long enough writes its operation to the word beside it, and waits as for any message. A sender
//! that finds an operation there, once it has packed, [tells](crate::proto::wire::WireKind::Packed) the receiver so.
//!
//! - For the program, the send completes when the message is packed, because a receiver reads only when its program polls. The
//!   operation goes on without a future, and keeps the block until the receiver answers that it has read.
//! - A receiver that never answers keeps a block from being used again. A sender has at most [`BLOCKS_MAX`] that are not retired,
//!   and then packs into memory of its own.
//! - A send that fails retires its block, because the receiver may still have the offer.
//! - A block's memory stays mapped as long as a receiver has it. So packed bytes stay as they are, even if the sender ends.
//!   A message that no receive has found is lost with its sender.

use std::sync::{
    Arc,
    atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
        fence,
    },
};

use ripstop_fabric::{
    driver::{Driver, PayloadView},
    memory::MemoryRegion,
};

use crate::{buffer::LINE, group::WorldRank, ops::BufferArea, proto::wire::OpId};

/// Most blocks of a rank.
const BLOCKS_MAX: usize = 16;

/// Shortest block, in bytes.
const BLOCK_MIN: usize = 64 << 10;

/// Longest message in a block, in bytes.
const BLOCK_MAX: usize = 4 << 20;

/// Most memory of all blocks of a rank, in bytes.
pub(in crate::engine) const BYTES_MAX: usize = BLOCKS_MAX * (BLOCK_MAX + PAGE);

/// Length of a page in bytes: a block has one more, for its word, and begins at one.
pub(crate) const PAGE: usize = 4096;

/// The blocks of a rank. A block is free while no message has it.
#[derive(Debug, Default)]
pub(in crate::engine) struct PackingBlocks(Vec<Arc<PackingBlock>>);

/// A block, which belongs to one message until all but the rank itself have dropped it.
#[derive(Debug)]
pub(crate) struct PackingBlock(MemoryRegion);

/// A message in a block of another rank.
#[derive(Debug)]
pub(crate) struct BlockReader {
    region: MemoryRegion,
    len: usize,
}

impl PackingBlocks {
    /// Returns a block for a message of so many bytes to a rank that maps this rank's memory, if there is one.
    pub(in crate::engine) fn take(
        &mut self,
        driver: &mut dyn Driver,
        to: WorldRank,
        bytes: usize,
    ) -> Option<Arc<PackingBlock>> {
        if bytes > BLOCK_MAX || !driver.node_memory()?.shares_with(to) {
            return None;
        }
        let fits = |block: &mut Arc<PackingBlock>| block.0.len() - LINE >= bytes && is_free(block);
        let free = self
            .0
            .iter_mut()
            .filter_map(|block| fits(block).then_some(block));
        if let Some(block) = free.min_by_key(|block| block.0.len()) {
            asker_of(&block.0).store(NO_ASKER, Relaxed);
            block.publish(0);
            return Some(Arc::clone(block));
        }
        if self.0.len() == BLOCKS_MAX {
            self.0.retain_mut(|block| !is_free(block));
        }
        if self.0.len() == BLOCKS_MAX {
            return None;
        }
        let len = bytes.max(BLOCK_MIN).next_power_of_two() + LINE;
        let region = driver.node_memory()?.allocate_on_node(len).ok()?;
        let block = Arc::new(PackingBlock(region));
        self.0.push(Arc::clone(&block));
        Some(block)
    }

    /// Returns the memory of all blocks, in bytes.
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.0.iter().map(|block| block.0.len()).sum()
    }

    /// Returns true if a message is in a block.
    pub(in crate::engine) fn has(&self, message: BufferArea) -> bool {
        self.0.iter().any(|block| block.is_at(message))
    }

    /// Forgets the block of a message that failed, if it is in one.
    pub(in crate::engine) fn retire(&mut self, message: BufferArea) {
        self.0.retain(|block| !block.is_at(message));
    }
}

impl PackingBlock {
    /// Returns the memory. The message begins at its start.
    pub(crate) const fn region(&self) -> &MemoryRegion {
        &self.0
    }

    /// Publishes the first `bytes` bytes of the message to its receiver.
    pub(crate) fn publish(&self, bytes: usize) {
        packed_of(&self.0).store(bytes as u64, Release);
    }

    /// Returns the receiver's operation that waits until the message is packed, if there is one. The whole message must be
    /// published before.
    pub(in crate::engine) fn asker(&self) -> Option<OpId> {
        fence(SeqCst); // either this rank sees the operation, or the receiver sees the whole message (see `ask`)
        let asker = asker_of(&self.0).load(Relaxed);
        (asker != NO_ASKER).then(|| OpId::unpack(asker))
    }

    fn is_at(&self, message: BufferArea) -> bool {
        self.0.start() == message.start
    }
}

impl BlockReader {
    /// Returns a message of `len` bytes at the start of a region of another rank, or `None` if the region is no block with room
    /// for it.
    pub(in crate::engine) fn new(region: MemoryRegion, len: usize) -> Option<Self> {
        let room = region.len().checked_sub(LINE)?;
        (len <= room && room.is_multiple_of(LINE)).then_some(Self { region, len })
    }

    /// Returns how many bytes of the message are packed.
    pub(crate) fn packed(&self) -> usize {
        let packed = packed_of(&self.region).load(Acquire);
        usize::try_from(packed).map_or(self.len, |packed| packed.min(self.len))
    }

    /// Asks the sender to notify this operation when the whole message is packed. Returns false if it is packed already, so that
    /// no notification need come.
    pub(in crate::engine) fn ask(&self, op: OpId) -> bool {
        asker_of(&self.region).store(op.pack(), Relaxed);
        fence(SeqCst); // as in `asker`
        self.packed() < self.len
    }

    /// Returns `len` bytes of the message, which begin at byte `from`. A sender that breaks the protocol may write there, so the
    /// caller can only copy them.
    ///
    /// # Panics
    /// Panics if the message is shorter.
    pub(crate) fn bytes(&self, from: usize, len: usize) -> PayloadView<'_> {
        let is_inside = from <= self.len && len <= self.len - from;
        assert!(is_inside, "{from}+{len} of {} bytes", self.len);
        self.region.payload(from, len)
    }

    /// Returns the length of the message, in bytes.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }
}

/// Returns true if no message has the block. All reads of the last message happen before that.
fn is_free(block: &mut Arc<PackingBlock>) -> bool {
    Arc::get_mut(block).is_some() // unlike the count of holders, this is ordered after their drops
}

/// What the word of the asking operation has before a receiver asks. No receiver asks with this operation, as the slot of the
/// expected receive is in no block of slots.
const NO_ASKER: u64 = 0;

/// Returns the word with the operation that waits until the message is packed.
fn asker_of(region: &MemoryRegion) -> &AtomicU64 {
    region.atomic_u64(region.len() - LINE + size_of::<u64>())
}

/// Returns the word with the number of packed bytes.
fn packed_of(region: &MemoryRegion) -> &AtomicU64 {
    region.atomic_u64(region.len() - LINE)
}
