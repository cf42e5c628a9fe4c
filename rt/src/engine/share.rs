//! Long messages that both ends move: the receiver gets the front half while the sender puts the rear half, if it is there to
//! do so.
//!
//! The receiver offers the rear half in a word of its memory. A sender that makes turns claims it there and puts; a sender that
//! computes does not come by, and then the receiver, done with the front, closes the word and gets the rear as well. So two
//! ranks that wait need half the time, and nobody ever waits for one that computes. The word decides once: after a successful
//! claim the receiver waits for the sender's `Landed` before it gives the buffer away.

use std::sync::atomic::{AtomicU64, Ordering};

use ripstop_fabric::{
    driver::{AtomicOp, Command, Peer as Rank, Post, Token},
    memory::{Region, RemoteRegion},
};

use super::{Core, Engine, Wanted, send::down_kind};
use crate::{
    buffer::word_of,
    ops::Life,
    proto::wire::{self, About, Kind, OpId, Share as Header},
};

/// Shorter messages are got faster than the two ends could agree. From `ripstop perf latency`.
const SHARED_MIN: usize = 48 << 10;

/// Operations of a higher slot are not shared.
const WORDS: usize = 512;

/// The rear halves of messages under way, at both ends, by the slot of the operation. Nothing until the first one: a rank of
/// a large simulation that does nothing should take little.
#[derive(Default)]
pub(super) struct Shares(Option<Box<Halves>>);

#[derive(Default)]
struct Halves {
    words: Option<Region>,
    list: Vec<Option<Share>>,
}

/// One message. At the receiver `key` is the rear in the sender's memory, at the sender it is the rear in the receiver's.
#[derive(Clone, Copy, Debug)]
struct Share {
    generation: u32,
    /// Where the rear begins.
    at: usize,
    key: RemoteRegion,
    /// The front is here.
    front: bool,
    rear: Rear,
}

/// Who has the rear, as far as the receiver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rear {
    Open,
    /// We get it.
    Ours,
    /// The sender has put it.
    Landed,
    /// The sender has claimed it, and could not put it.
    Refused,
    /// We cannot get anything: the sender must send it all, once it is done with its put.
    Broken,
}

impl Shares {
    fn of(&mut self, op: OpId) -> Option<&mut Share> {
        let list = &mut self.0.as_mut()?.list;
        let share = list.get_mut(op.slot as usize)?.as_mut()?;
        (share.generation == op.generation).then_some(share)
    }

    fn put(&mut self, op: OpId, at: usize, key: RemoteRegion) {
        let list = &mut self.0.get_or_insert_default().list;
        if list.is_empty() {
            list.resize(WORDS, None);
        }
        list[op.slot as usize] = Some(Share {
            generation: op.generation,
            at,
            key,
            front: false,
            rear: Rear::Open,
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

    /// Whether the rear is ours now; if not, the sender has claimed it.
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

/// The generation keeps a late claim from taking the word of the next operation in the slot.
fn state(op: OpId, state: u64) -> u64 {
    u64::from(op.generation) << 8 | state
}

impl Engine {
    /// Offers the rear half of a message to its sender, and gets the front. Gets the whole where that cannot be.
    pub(super) fn share(&mut self, op: OpId, key: RemoteRegion) {
        if !self.offer_rear(op, key) {
            self.core.wanted.push(Wanted::Get { op, key, at: 0 });
        }
    }

    fn offer_rear(&mut self, op: OpId, key: RemoteRegion) -> bool {
        let Some(claim) = self.claim_key(op) else {
            return false;
        };
        let Some(slot) = self.core.ops.get(op) else {
            return true;
        };
        let Life::Landing(mut landing) = slot.life else {
            return true;
        };
        let total = landing.landed.bytes;
        let at = (total / 2).next_multiple_of(4096).min(total);
        slot.blank(at..total);
        let whole = slot.range(total);
        let halves = key
            .slice(0, at as u64)
            .zip(key.slice(at as u64, (total - at) as u64));
        let Some((front, rear)) = halves else {
            return false;
        };
        let Some(here) = self.expose(op, landing.landed.source, whole.slice(at, total - at)) else {
            return false;
        };
        let slot = self.core.ops.live(op);
        landing.shared = true;
        slot.life = Life::Landing(landing);
        self.core.shares.put(op, at, rear);
        let source = landing.landed.source;
        let header = Header::new(landing.sender, op, at as u64, here, claim);
        self.core.peers.control(source, &header);
        self.flush_peer(source); // before the front is got: that keeps this thread for a while
        self.core.wanted.push(Wanted::Get {
            op,
            key: front,
            at: 0,
        });
        true
    }

    /// A key to the operation's word, which is open now.
    fn claim_key(&mut self, op: OpId) -> Option<RemoteRegion> {
        if op.slot as usize >= WORDS || !self.driver.caps().atomics {
            return None;
        }
        let halves = self.core.shares.0.get_or_insert_default();
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

    /// Whether the claim is posted, or no longer wanted.
    pub(super) fn post_claim(&mut self, op: OpId, claim: RemoteRegion, receiver: OpId) -> bool {
        let Some(slot) = self.core.ops.get(op) else {
            return true;
        };
        let (Life::Claiming { .. }, Some(to)) = (&slot.life, slot.about.peer) else {
            return true;
        };
        let command = Command::Atomic {
            to: Rank(to),
            at: claim,
            op: AtomicOp::CompareSwap {
                expected: state(receiver, OPEN),
                new: state(receiver, CLAIMED),
            },
            token: Token(op.pack()),
        };
        let posted = matches!(self.driver.post(command), Post::Posted);
        self.core.moving += usize::from(posted);
        posted
    }
}

/// At the sender.
impl Core {
    /// The receiver offers the rear half: claim it.
    pub(super) fn handle_share(&mut self, rank: u32, header: &Header) {
        let Some(slot) = self.ops.get(header.sender) else {
            return;
        };
        let rear = (slot.area.len as u64).checked_sub(header.at);
        let offered = matches!(slot.life, Life::Offered) && slot.about.peer == Some(rank);
        let fits = rear == Some(header.key.len) && (header.sender.slot as usize) < WORDS;
        let (true, true, Ok(at)) = (offered, fits, usize::try_from(header.at)) else {
            return; // nobody claims it, so the receiver gets it
        };
        let receiver = header.receiver;
        slot.life = Life::Claiming { receiver };
        self.shares.put(header.sender, at, header.key);
        self.wanted.push(Wanted::Claim {
            op: header.sender,
            claim: header.claim,
            receiver,
        });
    }

    /// The word as it was before our claim.
    pub(super) fn claimed(&mut self, op: OpId, old: u64) {
        let Some(slot) = self.ops.get(op) else { return };
        let Life::Claiming { receiver } = slot.life else {
            return;
        };
        let Some(share) = self.shares.of(op).filter(|_| old == state(receiver, OPEN)) else {
            slot.life = Life::Offered; // too late: the receiver gets it all
            self.shares.remove(op);
            return;
        };
        slot.life = Life::Sharing { receiver };
        let (key, at) = (share.key, share.at);
        self.wanted.push(Wanted::Put { op, key, at });
    }

    /// The put of the rear has ended; the receiver says when it has the front too.
    pub(super) fn rear_put(&mut self, op: OpId, receiver: OpId, status: u64) {
        let slot = self.ops.live(op);
        slot.life = Life::Offered;
        let to = slot.about.peer;
        self.shares.remove(op);
        let Some(to) = to else { return };
        match self.peers.down(to) {
            // It ended while its rear was put, and all that was offered to it was lost before.
            Some(down) => self.abandon(op, down_kind(to, down)),
            None => self.tell(to, Kind::Landed, receiver, status),
        }
    }
}

/// At the receiver.
impl Core {
    /// Whether both ends move a message of this many bytes.
    pub(super) fn shares(&self, bytes: usize) -> bool {
        self.shares_long && self.offers == 0 && bytes >= SHARED_MIN
    }

    /// One of our gets is complete: the front, or the rear if it was ours.
    pub(super) fn share_got(&mut self, op: OpId) {
        let Some(share) = self.shares.of(op) else {
            return;
        };
        share.front = true;
        let rear = share.rear;
        match rear {
            Rear::Ours | Rear::Landed => self.share_done(op),
            Rear::Refused => self.get_rear(op),
            Rear::Broken => {}
            Rear::Open if self.shares.close(op) => self.get_rear(op),
            Rear::Open => self.await_rear(op),
        }
    }

    /// The sender says how its put of the rear went.
    pub(super) fn rear_landed(&mut self, op: OpId, header: &About) {
        let is_claimed = self.shares.is_claimed(op);
        // Once: after that the rear may be ours, and the driver in its buffer.
        let waits =
            |share: &&mut Share| is_claimed && matches!(share.rear, Rear::Open | Rear::Broken);
        let Some(share) = self.shares.of(op).filter(waits) else {
            self.refused += 1;
            return;
        };
        let (front, broken) = (share.front, share.rear == Rear::Broken);
        share.rear = if header.status == wire::OK {
            Rear::Landed
        } else {
            Rear::Refused
        };
        match (broken, front, header.status == wire::OK) {
            (true, ..) => self.share_failed(op),
            (_, false, _) => {} // the front is on its way
            (_, true, true) => self.share_done(op),
            (_, true, false) => self.get_rear(op),
        }
    }

    /// One of our gets failed, and the peer lives: it must send everything, when it is done with what it has claimed.
    pub(super) fn share_broken(&mut self, op: OpId) {
        let Some(share) = self.shares.of(op) else {
            return;
        };
        let open = std::mem::replace(&mut share.rear, Rear::Broken) == Rear::Open;
        if !open || self.shares.close(op) {
            self.share_failed(op);
        } else {
            self.await_rear(op);
        }
    }

    fn share_failed(&mut self, op: OpId) {
        self.shares.remove(op);
        if let Life::Landing(landing) = &mut self.ops.live(op).life {
            landing.shared = false;
            landing.invited = false;
        }
        self.ask_for_fragments(op);
    }

    fn get_rear(&mut self, op: OpId) {
        let Some(share) = self.shares.of(op) else {
            return;
        };
        share.rear = Rear::Ours;
        let (key, at) = (share.key, share.at);
        // The driver has it again, and not the peer.
        if let Life::Landing(landing) = &mut self.ops.live(op).life {
            landing.invited = false;
        }
        self.wanted.push(Wanted::Get { op, key, at });
    }

    /// Nothing of ours is at the driver any more: from here on the peer's end ends the operation.
    fn await_rear(&mut self, op: OpId) {
        let Life::Landing(landing) = &mut self.ops.live(op).life else {
            return;
        };
        landing.invited = true;
        let source = landing.landed.source;
        if let Some(down) = self.peers.down(source) {
            self.abandon(op, down_kind(source, down));
        }
    }

    fn share_done(&mut self, op: OpId) {
        self.shares.remove(op);
        let Life::Landing(landing) = self.ops.live(op).life else {
            return;
        };
        self.tell(landing.landed.source, Kind::Taken, landing.sender, wire::OK);
        self.landed(op);
    }
}
