//! Store of messages that wait for a receive.

use std::{cmp::Reverse, collections::BTreeMap};

use ripstop_fabric::{driver::PayloadView, memory::RemoteRegion};

use crate::{
    group::WorldRank,
    proto::{
        matching::{MessageEnvelope, UnexpectedHandle},
        wire::{MODE_FIRST, OpId, RtsHeader},
    },
};

/// Longest body that is stored without a vector, in bytes.
const SHORT: usize = 96;

/// Most vectors of stored bodies kept for reuse.
const SPARE_MAX: usize = 64;

/// Longest vector that is kept, in bytes.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// A message that is not in a receive's buffer yet.
#[derive(Debug)]
pub(crate) struct StoredMessage {
    pub(crate) envelope: MessageEnvelope,
    pub(crate) sig: u64,
    pub(crate) body: StoredBody,
    /// Place in the matching, while the message has one.
    pub(crate) place: Option<UnexpectedHandle>,
    /// True if the sender has withdrawn this offer. The offer is dropped when it is in the queue again.
    pub(crate) withdrawn: bool,
    /// True if the message is charged to its sender.
    pub(crate) charged: bool,
}

/// Location of a stored message's bytes.
#[derive(Debug)]
pub(crate) enum StoredBody {
    Short([u8; SHORT], usize),
    Long(Vec<u8>),
    Offered(OfferedMessage),
    /// The bytes are in the buffer of a receive whose future was dropped.
    InOp {
        op: OpId,
        bytes: usize,
    },
}

/// An offer: the bytes are still with the sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OfferedMessage {
    pub(crate) total: u64,
    pub(crate) sender: OpId,
    pub(crate) modes: u64,
    pub(crate) key: RemoteRegion,
    /// True if the offer came out of order and is not charged.
    pub(crate) out_of_order: bool,
}

/// A message as it arrives, or as it is taken from the store.
pub(crate) enum MessageBody<'a> {
    Bytes(PayloadView<'a>),
    Offered(OfferedMessage),
    InOp { op: OpId, bytes: usize },
}

/// The store. It reuses slots, and the vectors of longer bodies.
pub(crate) struct MessageStore {
    slots: Vec<Option<StoredMessage>>,
    free: Vec<u32>,
    /// State for long messages. Allocated at the first one, because an idle rank of a large simulation should take little memory.
    long: Option<Box<LongMessageStore>>,
}

/// State for long messages.
#[derive(Default)]
struct LongMessageStore {
    spare: Vec<Vec<u8>>,
    /// Stored offers, by their senders' operations.
    offers: BTreeMap<(WorldRank, OpId), u32>,
}

impl MessageStore {
    /// Bytes of a place, which includes a short body.
    pub(crate) const PLACE_BYTES: usize = size_of::<Option<StoredMessage>>();

    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            long: None,
        }
    }

    /// Returns the number of places, and how many of them are in use.
    pub(crate) fn room(&self) -> (usize, usize) {
        (self.slots.len(), self.slots.len() - self.free.len())
    }

    /// Frees the places behind the last message, and the vectors kept for reuse. O(places).
    #[cold]
    pub(crate) fn shrink(&mut self) {
        let used = self.slots.iter().rposition(Option::is_some);
        let kept = used.map_or(0, |last| last + 1);
        if kept == self.slots.len() {
            return;
        }
        self.slots.truncate(kept);
        self.slots.shrink_to_fit();
        self.free.retain(|&index| (index as usize) < kept);
        self.free.sort_unstable_by_key(|&index| Reverse(index)); // the first ones are reused first
        self.free.shrink_to_fit();
        if let Some(long) = &mut self.long {
            long.spare = Vec::new();
        }
    }

    /// Returns the bytes of the store, including the stored bodies and the vectors kept for reuse.
    pub(crate) fn bytes(&self) -> usize {
        let long = |slot: &Option<StoredMessage>| match slot.as_ref().map(|message| &message.body) {
            Some(StoredBody::Long(bytes)) => bytes.capacity(),
            _ => 0,
        };
        let spare = self.long.iter().flat_map(|long| &long.spare);
        self.slots.capacity() * size_of::<Option<StoredMessage>>()
            + self.slots.iter().map(long).sum::<usize>()
            + spare.map(Vec::capacity).sum::<usize>()
    }

    /// Returns the index at which the next message will be stored.
    pub(crate) fn next(&mut self) -> u32 {
        if let Some(&index) = self.free.last() {
            return index;
        }
        let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 messages in memory");
        self.slots.push(None);
        self.free.push(index);
        index
    }

    /// Stores a message at [`next`](Self::next).
    pub(crate) fn store(&mut self, message: StoredMessage) -> u32 {
        let index = self.next();
        self.free.pop();
        if let StoredBody::Offered(offered) = &message.body {
            self.note_offer(message.envelope.source, offered.sender, index);
        }
        self.slots[index as usize] = Some(message);
        index
    }

    /// Turns a stored message into an offer, because its bytes are still with its sender.
    pub(crate) fn make_offer(&mut self, index: u32, offered: OfferedMessage) {
        let message = self.get(index);
        message.body = StoredBody::Offered(offered);
        let source = message.envelope.source;
        self.note_offer(source, offered.sender, index);
    }

    fn note_offer(&mut self, source: WorldRank, sender: OpId, index: u32) {
        self.long().offers.insert((source, sender), index);
    }

    fn long(&mut self) -> &mut LongMessageStore {
        self.long.get_or_insert_default()
    }

    pub(crate) fn get(&mut self, index: u32) -> &mut StoredMessage {
        self.slots[index as usize]
            .as_mut()
            .expect("a stored message")
    }

    pub(crate) fn take(&mut self, index: u32) -> StoredMessage {
        self.free.push(index);
        let message = self.slots[index as usize].take().expect("a stored message");
        if let StoredBody::Offered(offered) = &message.body {
            let key = (message.envelope.source, offered.sender);
            let offers = &mut self.long().offers;
            // A peer may have offered it twice.
            if offers.get(&key) == Some(&index) {
                offers.remove(&key);
            }
        }
        message
    }

    /// Copies the bytes of a message that is only lent.
    pub(crate) fn keep(&mut self, content: &MessageBody<'_>) -> StoredBody {
        match *content {
            MessageBody::Bytes(bytes) if bytes.len() <= SHORT => {
                let mut short = [0; SHORT];
                bytes.copy_into(&mut short[..bytes.len()]);
                StoredBody::Short(short, bytes.len())
            }
            MessageBody::Bytes(bytes) => {
                let mut long = self.long().spare.pop().unwrap_or_default();
                long.clear();
                bytes.append_to(&mut long);
                StoredBody::Long(long)
            }
            MessageBody::Offered(offered) => StoredBody::Offered(offered),
            MessageBody::InOp { op, bytes } => StoredBody::InOp { op, bytes },
        }
    }

    /// Keeps the vector of a body for reuse.
    pub(crate) fn recycle(&mut self, body: StoredBody) {
        if let StoredBody::Long(bytes) = body
            && let spare = &mut self.long().spare
            && spare.len() < SPARE_MAX
            && bytes.capacity() <= SPARE_BYTES_MAX
        {
            spare.push(bytes);
        }
    }

    /// Returns the stored offer of this sender's operation. O(log offers).
    pub(crate) fn offer_of(&self, source: WorldRank, sender: OpId) -> Option<u32> {
        let offers = &self.long.as_ref()?.offers;
        offers.get(&(source, sender)).copied()
    }

    /// Returns the sender of a stored message that has another signature than this collective. O(stored messages).
    pub(crate) fn mismatched_sender(&self, ctx: u32, tag: u32, sig: u64) -> Option<WorldRank> {
        let is_it = |message: &&StoredMessage| {
            let MessageEnvelope {
                ctx: its, tag: of, ..
            } = message.envelope;
            its == ctx && of == tag && message.sig != sig
        };
        let found = self.slots.iter().flatten().find(is_it)?;
        Some(found.envelope.source)
    }

    /// Returns all stored messages.
    pub(crate) fn all(&self) -> impl Iterator<Item = &StoredMessage> {
        self.slots.iter().flatten()
    }

    /// Returns the stored message whose body satisfies `is_it`.
    pub(crate) fn find(&self, is_it: impl Fn(&StoredBody) -> bool) -> Option<u32> {
        let found = self
            .slots
            .iter()
            .position(|slot| slot.as_ref().is_some_and(|message| is_it(&message.body)))?;
        u32::try_from(found).ok()
    }

    /// Returns the stored offers whose envelopes satisfy `of`.
    pub(crate) fn offers(&self, mut of: impl FnMut(&MessageEnvelope) -> bool) -> Vec<u32> {
        let slots = self.slots.iter().zip(0u32..);
        slots
            .filter_map(|(slot, index)| slot.as_ref().map(|message| (message, index)))
            .filter(|(message, _)| {
                matches!(message.body, StoredBody::Offered(_)) && of(&message.envelope)
            })
            .map(|(_, index)| index)
            .collect()
    }
}

impl StoredMessage {
    /// Returns true if the message came out of order.
    pub(crate) fn is_out_of_order(&self) -> bool {
        matches!(
            self.body,
            StoredBody::Offered(OfferedMessage {
                out_of_order: true,
                ..
            })
        )
    }
}

impl StoredMessage {
    /// Returns true if no message of its communicator precedes it at its sender, as far as the sender has reported.
    pub(crate) fn is_first(&self) -> bool {
        matches!(&self.body, StoredBody::Offered(offered) if offered.modes & MODE_FIRST != 0)
    }
}

impl StoredBody {
    pub(crate) const NOTHING: Self = Self::Short([0; SHORT], 0);

    pub(crate) fn as_message_body(&self) -> MessageBody<'_> {
        match self {
            Self::Short(bytes, len) => MessageBody::Bytes(PayloadView::from_slice(&bytes[..*len])),
            Self::Long(bytes) => MessageBody::Bytes(PayloadView::from_slice(bytes)),
            Self::Offered(offered) => MessageBody::Offered(*offered),
            Self::InOp { op, bytes } => MessageBody::InOp {
                op: *op,
                bytes: *bytes,
            },
        }
    }
}

impl OfferedMessage {
    /// Returns the offer that this header makes.
    pub(crate) fn of(header: &RtsHeader) -> Self {
        Self {
            total: header.total,
            sender: header.sender,
            modes: header.modes,
            key: header.key,
            out_of_order: false,
        }
    }
}

impl MessageBody<'_> {
    /// Returns the length of the whole message in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Offered(offered) => offered.total,
            Self::InOp { bytes, .. } => *bytes as u64,
        }
    }

    /// Returns true if the message is charged to its sender.
    pub(crate) fn counts(&self) -> bool {
        match self {
            Self::Bytes(_) => true,
            Self::Offered(offered) => !offered.out_of_order,
            Self::InOp { .. } => false,
        }
    }

    /// Returns the bytes that were sent uninvited, for which the sender spent credits. An offer spends none, and the credits for
    /// a message in an operation's buffer have been returned already.
    pub(crate) fn uninvited(&self) -> Option<usize> {
        match self {
            Self::Bytes(bytes) => Some(bytes.len()),
            Self::Offered(_) | Self::InOp { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;
    use ripstop_fabric::memory::RemoteRegion;

    use super::{MessageStore, OfferedMessage, StoredBody, StoredMessage, WorldRank};
    use crate::proto::{matching::MessageEnvelope, wire::OpId};

    const fn op(slot: u32) -> OpId {
        OpId {
            slot,
            generation: 1,
        }
    }

    fn offer(source: u32, slot: u32) -> StoredMessage {
        StoredMessage {
            envelope: MessageEnvelope {
                ctx: 0,
                source: WorldRank(source),
                tag: 0,
            },
            sig: 0,
            body: StoredBody::Offered(OfferedMessage {
                total: 1,
                sender: op(slot),
                modes: 0,
                key: RemoteRegion::zeroed(),
                out_of_order: false,
            }),
            place: None,
            withdrawn: false,
            charged: false,
        }
    }

    #[test]
    fn an_offer_is_found_by_its_sender_and_operation_as_long_as_it_is_stored() {
        let mut messages = MessageStore::new();
        let first = messages.store(offer(1, 7));
        let other = messages.store(offer(2, 7));
        assert_eq!(messages.offer_of(WorldRank(1), op(7)), Some(first));
        assert_eq!(messages.offer_of(WorldRank(2), op(7)), Some(other));
        assert_eq!(messages.offer_of(WorldRank(1), op(8)), None);
        // If a peer offers the same message twice, the last offer counts.
        let again = messages.store(offer(1, 7));
        messages.take(first);
        assert_eq!(messages.offer_of(WorldRank(1), op(7)), Some(again));
        messages.take(again);
        assert_eq!(messages.offer_of(WorldRank(1), op(7)), None);
    }
}
