//! Long messages that both ends move: the receiver gets the front half while the sender puts the rear half.
//!
//! The receiver offers the rear half through a word in its memory. A sender that makes turns claims the word and puts the half.
//! A sender that computes does not, so the receiver, when it has the front half, closes the word and gets the rear half as well.
//! So the transfer takes half the time if both ranks wait, and no rank waits for one that computes.
//!
//! The word decides once. After a successful claim the receiver keeps the buffer until the sender's ATP has arrived.

use std::sync::atomic::{AtomicU64, Ordering};

use ripstop_fabric::{
    driver::{AtomicOp, CommandToken, DriverCommand, PostResult},
    memory::{MemoryRegion, RemoteRegion},
};

use super::{MessageTransmitter, PointToPoint};
use crate::{
    buffer::word_of,
    engine::OneSidedCommand,
    error::ErrorKind,
    group::WorldRank,
    ops::OpState,
    proto::wire::{self, OpHeader, OpId, SplitRtrHeader as Header, WireKind},
};

/// Least length in bytes of a shared message. The receiver gets shorter ones faster than both ends could agree. Measured by
/// `ripstop perf latency`.
const SPLIT_MIN: usize = 48 << 10;

/// Number of words. Operations of a higher slot are not shared.
const WORDS: usize = 512;

/// Rear halves of messages in flight, at both ends, by the slot of the operation. Allocated at the first one, because an idle
/// rank of a large simulation should take little memory.
#[derive(Default)]
pub(in crate::engine) struct SplitTable(Option<Box<SplitTableSlots>>);

#[derive(Default)]
struct SplitTableSlots {
    words: Option<MemoryRegion>,
    list: Vec<Option<SplitMessage>>,
}

/// A shared message. At the receiver `key` leads to the rear half in the sender's memory, at the sender to that in the
/// receiver's.
#[derive(Clone, Copy, Debug)]
struct SplitMessage {
    generation: u32,
    /// Offset at which the rear half begins, in bytes.
    at: usize,
    key: RemoteRegion,
    /// True once the front half has arrived.
    front: bool,
    rear: RearState,
}

/// State of the rear half, as far as the receiver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RearState {
    Open,
    /// The receiver gets it.
    Ours,
    /// The sender has put it.
    Landed,
    /// The sender has claimed it and could not put it.
    Refused,
    /// A get has failed. The sender must send the whole message, after the end of its put.
    Broken,
}

impl SplitTable {
    fn of(&mut self, op: OpId) -> Option<&mut SplitMessage> {
        let list = &mut self.0.as_mut()?.list;
        let split = list.get_mut(op.slot as usize)?.as_mut()?;
        (split.generation == op.generation).then_some(split)
    }

    fn put(&mut self, op: OpId, at: usize, key: RemoteRegion) {
        let list = &mut self.0.get_or_insert_default().list;
        if list.is_empty() {
            list.resize(WORDS, None);
        }
        list[op.slot as usize] = Some(SplitMessage {
            generation: op.generation,
            at,
            key,
            front: false,
            rear: RearState::Open,
        });
    }

    fn remove(&mut self, op: OpId) {
        if self.of(op).is_some()
            && let Some(halves) = &mut self.0
        {
            halves.list[op.slot as usize] = None;
        }
    }

    fn word(&self, op: OpId) -> Option<&AtomicU64> {
        let words = self.0.as_ref()?.words.as_ref()?;
        Some(words.atomic_u64(op.slot as usize * 8))
    }

    /// Closes the word. Returns true if the rear half is the receiver's now, and false if the sender has claimed it.
    fn close(&self, op: OpId) -> bool {
        let (open, closed) = (state(op, OPEN), state(op, CLOSED));
        self.word(op).is_some_and(|word| {
            word.compare_exchange(open, closed, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        })
    }

    fn is_claimed(&self, op: OpId) -> bool {
        self.word(op)
            .is_some_and(|word| word.load(Ordering::Acquire) == state(op, CLAIMED))
    }
}

const OPEN: u64 = 1;
const CLAIMED: u64 = 2;
const CLOSED: u64 = 3;

/// Returns the value of a word. The generation keeps a late claim from taking the word of the next operation in the slot.
fn state(op: OpId, state: u64) -> u64 {
    u64::from(op.generation) << 8 | state
}

/// What became of the offer of a rear half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RearOffer {
    /// Its header is queued for the sender of the message.
    Made(WorldRank),
    /// The receive has ended.
    NotNeeded,
    Impossible,
}

impl MessageTransmitter<'_> {
    /// Offers the rear half of a message to its sender and gets the front half. If that is impossible, gets the whole message.
    /// Returns the sender, if the offer must leave at once.
    pub(in crate::engine) fn start_split(
        &mut self,
        op: OpId,
        key: RemoteRegion,
    ) -> Option<WorldRank> {
        match self.offer_rear(op, key) {
            RearOffer::Made(source) => return Some(source),
            RearOffer::NotNeeded => {}
            RearOffer::Impossible => {
                let get = OneSidedCommand::Get { op, key, at: 0 };
                self.p2p.common.commands.push(get);
            }
        }
        None
    }

    fn offer_rear(&mut self, op: OpId, key: RemoteRegion) -> RearOffer {
        let Some(claim) = self.claim_key(op) else {
            return RearOffer::Impossible;
        };
        let Some(slot) = self.p2p.common.ops.get(op) else {
            return RearOffer::NotNeeded;
        };
        let OpState::Landing(mut landing) = slot.state else {
            return RearOffer::NotNeeded;
        };
        let total = landing.landed.bytes;
        let at = (total / 2).next_multiple_of(4096).min(total);
        slot.blank(at..total);
        let whole = slot.range(total);
        let halves = key
            .slice(0, at as u64)
            .zip(key.slice(at as u64, (total - at) as u64));
        let Some((front, rear)) = halves else {
            return RearOffer::Impossible;
        };
        let Some(here) = self.p2p.common.exposed.expose(
            &mut *self.driver,
            op,
            landing.landed.source,
            whole.slice(at, total - at),
        ) else {
            return RearOffer::Impossible;
        };
        let slot = self.p2p.common.ops.live(op);
        landing.is_split = true;
        slot.state = OpState::Landing(landing);
        self.p2p.splits.put(op, at, rear);
        let source = landing.landed.source;
        let header = Header::new(landing.sender, op, at as u64, here, claim);
        self.p2p.common.peers.control(source, &header);
        self.p2p.common.commands.push(OneSidedCommand::Get {
            op,
            key: front,
            at: 0,
        });
        RearOffer::Made(source)
    }

    /// Opens the operation's word and returns a key to it.
    fn claim_key(&mut self, op: OpId) -> Option<RemoteRegion> {
        if op.slot as usize >= WORDS || !self.driver.caps().atomics {
            return None;
        }
        let halves = self.p2p.splits.0.get_or_insert_default();
        if halves.words.is_none() {
            halves.words = self.driver.allocate(WORDS * 8).ok();
        }
        let words = halves.words.as_ref()?;
        let offset = op.slot as usize * 8;
        words
            .atomic_u64(offset)
            .store(state(op, OPEN), Ordering::Release);
        self.driver.expose(word_of(words, offset))
    }

    /// Posts the claim. Returns true if it is posted or no longer needed.
    pub(in crate::engine) fn post_claim(
        &mut self,
        op: OpId,
        claim: RemoteRegion,
        receiver: OpId,
    ) -> bool {
        let Some(slot) = self.p2p.common.ops.get(op) else {
            return true;
        };
        let (OpState::Claiming { .. }, Some(to)) = (&slot.state, slot.info.peer) else {
            return true;
        };
        let command = DriverCommand::Atomic {
            to,
            at: claim,
            op: AtomicOp::CompareSwap {
                expected: state(receiver, OPEN),
                new: state(receiver, CLAIMED),
            },
            token: CommandToken(op.pack()),
        };
        let posted = matches!(self.driver.post(command), PostResult::Posted);
        self.p2p.common.commands_in_flight += u32::from(posted);
        posted
    }
}

/// Calls at the sender.
impl PointToPoint {
    /// Handles an offer of the rear half by claiming it.
    pub(in crate::engine) fn handle_split_rtr(&mut self, rank: WorldRank, header: &Header) {
        let Some(slot) = self.common.ops.get(header.sender) else {
            return;
        };
        let rear = (slot.area.len as u64).checked_sub(header.at);
        let offered = matches!(slot.state, OpState::Offered)
            && slot.info.peer == Some(rank)
            && slot.is_packed();
        let fits = rear == Some(header.key.len) && (header.sender.slot as usize) < WORDS;
        let (true, true, Ok(at)) = (offered, fits, usize::try_from(header.at)) else {
            return; // it is not claimed, so the receiver gets it
        };
        let receiver = header.receiver;
        slot.state = OpState::Claiming { receiver };
        self.splits.put(header.sender, at, header.key);
        self.common.commands.push(OneSidedCommand::Claim {
            op: header.sender,
            claim: header.claim,
            receiver,
        });
    }

    /// Handles the result of a claim, which is the old value of the word.
    pub(in crate::engine) fn claimed(&mut self, op: OpId, old: u64) {
        let Some(slot) = self.common.ops.get(op) else {
            return;
        };
        let OpState::Claiming { receiver } = slot.state else {
            return;
        };
        let Some(split) = self.splits.of(op).filter(|_| old == state(receiver, OPEN)) else {
            slot.state = OpState::Offered; // too late: the receiver gets the whole message
            self.splits.remove(op);
            return;
        };
        slot.state = OpState::PuttingRear { receiver };
        let (key, at) = (split.key, split.at);
        self.common
            .commands
            .push(OneSidedCommand::Put { op, key, at });
    }

    /// Handles the end of the put of the rear half. The receiver will report when it also has the front half.
    pub(in crate::engine) fn rear_put(&mut self, op: OpId, receiver: OpId, status: u64) {
        let slot = self.common.ops.live(op);
        slot.state = OpState::Offered;
        let to = slot.info.peer;
        self.splits.remove(op);
        let Some(to) = to else { return };
        match self.common.peers.down(to) {
            // The peer went down during the put, after everything offered to it had failed.
            Some(down) => self.abandon(op, ErrorKind::of_down(to, down)),
            None => self
                .common
                .send_control(to, WireKind::Atp, receiver, status),
        }
    }
}

/// Calls at the receiver.
impl PointToPoint {
    /// Returns true if both ends move a message of this length.
    pub(in crate::engine) fn may_split(&self, bytes: usize) -> bool {
        self.may_split_long && self.common.offers == 0 && bytes >= SPLIT_MIN
    }

    /// Handles the end of one of this receive's gets: of the front half, or of the rear half if the receiver claimed it.
    pub(in crate::engine) fn split_got(&mut self, op: OpId) {
        let Some(split) = self.splits.of(op) else {
            return;
        };
        split.front = true;
        let rear = split.rear;
        match rear {
            RearState::Ours | RearState::Landed => self.split_done(op),
            RearState::Refused => self.get_rear(op),
            RearState::Broken => {}
            RearState::Open if self.splits.close(op) => self.get_rear(op),
            RearState::Open => self.await_rear(op),
        }
    }

    /// Handles the sender's report on its put of the rear half.
    pub(in crate::engine) fn rear_landed(&mut self, op: OpId, header: &OpHeader) {
        let is_claimed = self.splits.is_claimed(op);
        // Accept only one report: after it, the rear half may be the receiver's and the driver may be writing to the buffer.
        let waits = |split: &&mut SplitMessage| {
            is_claimed && matches!(split.rear, RearState::Open | RearState::Broken)
        };
        let Some(split) = self.splits.of(op).filter(waits) else {
            self.common.refused += 1;
            return;
        };
        let (front, broken) = (split.front, split.rear == RearState::Broken);
        split.rear = if header.status == wire::OK {
            RearState::Landed
        } else {
            RearState::Refused
        };
        match (broken, front, header.status == wire::OK) {
            (true, ..) => self.split_failed(op),
            (_, false, _) => {} // the front half is in flight
            (_, true, true) => self.split_done(op),
            (_, true, false) => self.get_rear(op),
        }
    }

    /// Handles a get that failed while the peer is alive. The peer must send everything, after the end of a put that it has
    /// claimed.
    pub(in crate::engine) fn split_broken(&mut self, op: OpId) {
        let Some(split) = self.splits.of(op) else {
            return;
        };
        let open = std::mem::replace(&mut split.rear, RearState::Broken) == RearState::Open;
        if !open || self.splits.close(op) {
            self.split_failed(op);
        } else {
            self.await_rear(op);
        }
    }

    fn split_failed(&mut self, op: OpId) {
        self.splits.remove(op);
        if let OpState::Landing(landing) = &mut self.common.ops.live(op).state {
            landing.is_split = false;
            landing.sender_moves_rest = false;
        }
        self.ask_for_fragments(op);
    }

    fn get_rear(&mut self, op: OpId) {
        let Some(split) = self.splits.of(op) else {
            return;
        };
        split.rear = RearState::Ours;
        let (key, at) = (split.key, split.at);
        // The driver uses the buffer again, and the peer does not.
        if let OpState::Landing(landing) = &mut self.common.ops.live(op).state {
            landing.sender_moves_rest = false;
        }
        self.common
            .commands
            .push(OneSidedCommand::Get { op, key, at });
    }

    /// Waits for the sender. The driver has no command of this receive any more, so from here on a failure of the peer ends the
    /// operation.
    fn await_rear(&mut self, op: OpId) {
        let OpState::Landing(landing) = &mut self.common.ops.live(op).state else {
            return;
        };
        landing.sender_moves_rest = true;
        let source = landing.landed.source;
        if let Some(down) = self.common.peers.down(source) {
            self.abandon(op, ErrorKind::of_down(source, down));
        }
    }

    fn split_done(&mut self, op: OpId) {
        self.splits.remove(op);
        let OpState::Landing(landing) = self.common.ops.live(op).state else {
            return;
        };
        self.common.send_control(
            landing.landed.source,
            WireKind::Ats,
            landing.sender,
            wire::OK,
        );
        self.complete_recv(op);
    }
}
