//! Message headers, as plain structs with a fixed layout.
//!
//! Bytes from the wire are not trusted. Reading a header is a length check and a copy. Ids consist of a slot and a generation.
//! They are looked up in tables, and never used as addresses.

mod failure_headers;

use crate::proto::collective_id::CollectiveId;
use bytemuck::{Pod, Zeroable};
use ripstop_fabric::{memory::RemoteRegion, offload::RemoteCounter};

pub(crate) use self::failure_headers::{
    Agree, CALLS, DOWN_WORDS, Death, LastCalls, Revoke, SAY_DECIDE, SAY_PROMISE, SAY_PROPOSE,
    SAY_REPORT, WORDS_LEN, WORDS_PARTS, Words,
};

/// Version of the wire format. Raised whenever a header changes.
pub(crate) const VERSION: u8 = 6;

/// First fields of every header.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Base {
    pub(crate) kind: u8,
    pub(crate) version: u8,
    /// Sequence number of the message in the channel to its receiver.
    pub(crate) seq: u16,
    /// Credits that the sender of this message returns.
    pub(crate) credits: u16,
    /// Next `seq` that the sender of this message expects. Used only on unreliable drivers.
    pub(crate) ack: u16,
}

macro_rules! kinds {
    ($($name:ident = $value:literal, $why:literal;)*) => {
        /// Kind of a message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Kind { $(#[doc = $why] $name = $value,)* }

        impl Kind {
            pub(crate) fn from_byte(byte: u8) -> Option<Self> {
                match byte { $($value => Some(Self::$name),)* _ => None }
            }
        }
    };
}

kinds! {
    Eager = 1, "A whole message, with its bytes.";
    Offer = 2, "RTS: offers a message. Its bytes stay with the sender until the receiver requests them.";
    Accept = 3, "RTR: asks the sender to put the bytes of an offered message, or to send them as fragments.";
    Fragment = 4, "A part of the bytes of an accepted message.";
    Landed = 5, "ATP: all bytes of an accepted message were put.";
    Taken = 6, "ATS: the receiver has the bytes, so the sender may reuse its buffer.";
    Withdraw = 7, "CANCEL: withdraws an offer.";
    Withdrawn = 8, "CANCEL_ACK: the offer was withdrawn, or was already matched.";
    Credit = 9, "Only returns credits.";
    Ack = 10, "Only acknowledges.";
    Nack = 11, "Asks for retransmission of all messages from `ack` on.";
    Share = 12, "Asks the sender of an offered message to put its rear half, if the sender's claim succeeds.";
    Ping = 13, "Asks whether the receiver is alive.";
    Pong = 14, "Answers a ping.";
    Gone = 15, "The sender considers its receiver failed, and ignores its messages from now on.";
    Death = 26, "The sender has seen the process of a third rank end.";
    Blocked = 16, "The sender has reached its limit of messages, and holds others back.";
    Grant = 17, "Sets the number of messages that may be sent in total.";
    Recall = 18, "Asks the peer to return the unused part of its limit.";
    Limit = 19, "Answers a recall with the limit that remains.";
    Seek = 20, "Asks for the first matching message that the peer holds back.";
    Sought = 21, "Offers a sought message out of turn.";
    Met = 22, "A sought message was matched by a receive.";
    Back = 23, "Returns a sought message, because no receive waits for it any more.";
    Held = 24, "A message with a new envelope has joined those that the sender holds back since something was sought there.";
    First = 25, "A sought message that is not matched yet is now the first of its communicator that the sender holds back.";
    Abort = 40, "A collective has failed, and its communicator is revoked for later ones.";
    Ask = 41, "The sender has waited long for a message of this collective, and asks about it.";
    Over = 42, "The sender has completed its part of this collective. All its messages for it arrive before this one.";
    Halt = 43, "A collective has failed, and the sender waits until its receiver stops putting to it.";
    Halted = 44, "The sender has stopped putting for this collective.";
    Revoke = 45, "A communicator is revoked. No message can be sent or received on it any more.";
    Words = 47, "A part of the description of a rank's call, sent when two ranks have called different collectives.";
    LastCalls = 48, "The sender's last collective calls on a communicator, to or from a rank that is about to leave.";
    Agree = 46, "The sender's message in a round of agreement, or a part of it.";
    Hello = 50, "Introduces the sender's end of a window.";
    Note = 51, "Counts how often the sender has opened its window to the receiver, or has accessed the receiver's.";
    NoWindow = 52, "The sender has freed this window.";
    Tally = 53, "Names counters of the sender. The receiver adds to them instead of sending notes.";
    Gate = 54, "Names a counter of the sender. The receiver adds to it at each fence that it reaches.";
    Update = 55, "Asks for an operation on the memory of the receiver's end of a window.";
    Updated = 56, "Answers an update.";
    Lock = 57, "Requests a lock.";
    Locked = 58, "Grants a lock.";
    Unlock = 59, "Releases a lock.";
}

/// Identifies an operation at one of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct OpId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Returns the lower half of a word.
pub(crate) const fn low_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

impl OpId {
    /// Packs the id into a token for the driver.
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.generation)
    }

    pub(crate) fn unpack(token: u64) -> Self {
        let [slot, generation] = [token >> 32, token & u64::from(u32::MAX)]
            .map(|half| u32::try_from(half).expect("half a word"));
        Self { slot, generation }
    }
}

/// The envelope of a message.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Eager {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) sig: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Offer {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) sig: u64,
    /// Length of the message in bytes.
    pub(crate) total: u64,
    pub(crate) sender: OpId,
    /// How the bytes may travel: the `MODE_*` bits.
    pub(crate) modes: u64,
    /// Key to the bytes. All zero without [`MODE_GET`].
    pub(crate) key: RemoteRegion,
}

/// The receiver may get the bytes with the key.
pub(crate) const MODE_GET: u64 = 1;
/// The sender can put them.
pub(crate) const MODE_PUT: u64 = 2;
/// The sender can send them in fragments.
pub(crate) const MODE_FRAGMENTS: u64 = 4;
/// Like [`FIRST`], in a [`Kind::Sought`].
pub(crate) const MODE_FIRST: u64 = 8;

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Accept {
    pub(crate) base: Base,
    pub(crate) sender: OpId,
    pub(crate) receiver: OpId,
    /// [`MODE_PUT`] or [`MODE_FRAGMENTS`].
    pub(crate) mode: u64,
    /// Key to put to. All zero for fragments.
    pub(crate) key: RemoteRegion,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Share {
    pub(crate) base: Base,
    pub(crate) sender: OpId,
    pub(crate) receiver: OpId,
    /// Offset of the rear half, in bytes.
    pub(crate) at: u64,
    /// Key to put the rear half to.
    pub(crate) key: RemoteRegion,
    /// Key to the word that decides which end moves the rear half.
    pub(crate) claim: RemoteRegion,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Fragment {
    pub(crate) base: Base,
    pub(crate) receiver: OpId,
    pub(crate) offset: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Blocked {
    pub(crate) base: Base,
    /// Limit that the sender has reached.
    pub(crate) at: u32,
    /// Messages that the sender holds back.
    pub(crate) held: u32,
    /// 1 if the sender notifies the receiver of new messages that it holds back ([`Kind::Held`]).
    pub(crate) tells: u64,
}

/// Header of [`Kind::Grant`] and [`Kind::Limit`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Limit {
    pub(crate) base: Base,
    pub(crate) messages: u64,
}

/// Header of [`Kind::Seek`] and [`Kind::Held`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Line {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// [`ANY_TAG`] or [`FIRST`].
    pub(crate) flags: u64,
}

/// Flag: any tag matches.
pub(crate) const ANY_TAG: u64 = 1;
/// Flag: no earlier message of the same communicator is held back.
pub(crate) const FIRST: u64 = 2;

/// Header of messages about one operation.
///
/// [`Kind::Landed`] names the receiver's operation. [`Kind::Taken`], [`Kind::Withdraw`], [`Kind::Withdrawn`], [`Kind::Met`],
/// [`Kind::Back`] and [`Kind::First`] name the sender's.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct About {
    pub(crate) base: Base,
    pub(crate) op: OpId,
    /// `OK`, or the reason of a failure.
    pub(crate) status: u64,
}

pub(crate) const OK: u64 = 0;
/// Status: the other end did not move the bytes.
pub(crate) const REFUSED: u64 = 1;
/// Status: the communicator is revoked.
pub(crate) const REVOKED: u64 = 2;

/// Header of [`Kind::Ask`], [`Kind::Over`], [`Kind::Halt`] and [`Kind::Halted`]. It names a collective, and has the signature of
/// the sender's call.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Ask {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) sig: u64,
}

impl Ask {
    pub(crate) fn new(kind: Kind, id: CollectiveId, sig: u64) -> Self {
        Self {
            base: Base::new(kind),
            ctx: id.context,
            tag: id.sequence,
            sig,
        }
    }
}

/// Header of [`Kind::Abort`]: which collective of which communicator failed, and why. Ranks are those of the world.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Abort {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// One of the `WHY_*` numbers.
    pub(crate) why: u32,
    pub(crate) rank: u32,
    pub(crate) other: u32,
    pub(crate) zero: u32,
}

/// Reason: `rank` has failed.
pub(crate) const WHY_FAILED: u32 = 1;
/// Reason: `rank` has finished.
pub(crate) const WHY_FINISHED: u32 = 2;
/// Reason: `rank` and `other` have called different collectives.
pub(crate) const WHY_MISMATCH: u32 = 3;
/// Reason: `rank` could not take part. Its own error says why.
pub(crate) const WHY_GAVE_UP: u32 = 4;

/// Header of [`Kind::Hello`], which describes the sender's memory of a window. A window is named by its communicator and the
/// number of the collective that created it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Hello {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// Signature of an element.
    pub(crate) sig: u64,
    /// Length of the memory in bytes.
    pub(crate) len: u64,
    /// Key to all of the memory. All zero if it is accessed by messages only.
    pub(crate) key: RemoteRegion,
}

/// Header of [`Kind::Tally`], with two counters of the sender, for posts and for completed accesses. Also of [`Kind::Gate`], with
/// one counter.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Tally {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) first: RemoteCounter,
    /// All zero in a gate.
    pub(crate) second: RemoteCounter,
}

/// Header of [`Kind::Update`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Update {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// The sender's operation.
    pub(crate) op: OpId,
    /// Offset in the receiver's memory, in bytes.
    pub(crate) at: u64,
    /// Offset in the operation's buffer. The answer repeats it.
    pub(crate) from: u64,
    /// Length of the range of the receiver's memory, in bytes.
    pub(crate) len: u64,
    /// Operation to perform, encoded.
    pub(crate) deed: u64,
}

/// Header of [`Kind::Updated`]. The body has the previous content of the memory if the update asked for it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Updated {
    pub(crate) base: Base,
    pub(crate) op: OpId,
    pub(crate) from: u64,
    /// `OK`, or the reason of a failure.
    pub(crate) status: u64,
}

/// Header of [`Kind::Lock`], [`Kind::Locked`] and [`Kind::Unlock`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Lock {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// Which lock, in the low bits, and the number of the request above.
    pub(crate) want: u64,
}

/// Header of [`Kind::Note`] and [`Kind::NoWindow`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Note {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// One of the `COUNT_*` numbers.
    pub(crate) what: u32,
    pub(crate) zero: u32,
    /// Total since the window was created, so that a repeated note changes nothing.
    pub(crate) count: u64,
}

/// Counts exposures that the sender has opened to the receiver.
pub(crate) const COUNT_POSTED: u32 = 1;
/// Counts accesses to the receiver that the sender has completed.
pub(crate) const COUNT_COMPLETED: u32 = 2;
/// Counts fences that the sender has passed, in a [`Kind::NoWindow`]. In a [`Kind::Note`], the sender waits in a fence, and asks
/// to be notified when the receiver frees its end of the window.
pub(crate) const COUNT_FENCES: u32 = 3;

/// Header of messages that need only a base.
///
/// These are [`Kind::Credit`], [`Kind::Ack`], [`Kind::Nack`] and [`Kind::Recall`]. So are [`Kind::Ping`], [`Kind::Pong`] and
/// [`Kind::Gone`], which are not part of the channel's order.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Plain {
    pub(crate) base: Base,
}

/// Reads a header. Returns `None` if the length of the bytes is wrong.
pub(crate) fn read<H: Pod>(header: &[u8]) -> Option<H> {
    (header.len() == size_of::<H>()).then(|| bytemuck::pod_read_unaligned(header))
}

/// Reads the kind and the base of any header. Returns `None` if the kind or the version is unknown.
pub(crate) fn read_base(header: &[u8]) -> Option<(Kind, Base)> {
    let base: Base = bytemuck::pod_read_unaligned(header.get(..size_of::<Base>())?);
    let kind = Kind::from_byte(base.kind)?;
    (base.version == VERSION).then_some((kind, base))
}

impl Base {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind: kind as u8,
            version: VERSION,
            seq: 0,
            credits: 0,
            ack: 0,
        }
    }

    /// Writes the sequence number, credits and acknowledgment into a header that is about to leave.
    ///
    /// The base is stored as one word, because it is read as one word right after. A load that covers several smaller stores
    /// would stall until they have reached the cache.
    #[inline]
    pub(crate) fn stamp(header: &mut [u8], seq: u16, credits: u16, ack: u16) {
        let base = header.first_chunk_mut::<8>().expect("a header has a base");
        let [kind, version, ..] = *base;
        let ([a, b], [c, d], [e, f]) =
            (seq.to_ne_bytes(), credits.to_ne_bytes(), ack.to_ne_bytes());
        *base = u64::from_ne_bytes([kind, version, a, b, c, d, e, f]).to_ne_bytes();
    }
}

const _: () = assert!(
    size_of::<Eager>() == 24,
    "an 8-byte message, its header and its frame share one cache line"
);
const _: () = assert!(
    size_of::<Offer>() <= 112
        && size_of::<Share>() <= 112
        && size_of::<Agree>() <= 112
        && size_of::<Words>() <= 112
        && size_of::<LastCalls>() <= 112,
    "the longest headers travel inline"
);

impl About {
    pub(crate) fn new(kind: Kind, op: OpId, status: u64) -> Self {
        Self {
            base: Base::new(kind),
            op,
            status,
        }
    }
}

impl Blocked {
    pub(crate) fn new(at: u32, held: u32, tells: bool) -> Self {
        Self {
            base: Base::new(Kind::Blocked),
            at,
            held,
            tells: u64::from(tells),
        }
    }
}

impl Revoke {
    pub(crate) fn new(ctx: u32) -> Self {
        Self {
            base: Base::new(Kind::Revoke),
            ctx,
            zero: 0,
        }
    }
}

impl Limit {
    pub(crate) fn new(kind: Kind, messages: u32) -> Self {
        Self {
            base: Base::new(kind),
            messages: u64::from(messages),
        }
    }

    /// Returns the number of messages, or `None` if it does not fit. The number wraps around.
    pub(crate) fn messages(&self) -> Option<u32> {
        u32::try_from(self.messages).ok()
    }
}

impl Line {
    pub(crate) fn seek(ctx: u32, tag: Option<u32>) -> Self {
        Self {
            base: Base::new(Kind::Seek),
            ctx,
            tag: tag.unwrap_or(0),
            flags: if tag.is_none() { ANY_TAG } else { 0 },
        }
    }

    pub(crate) fn held(ctx: u32, tag: u32, first: bool) -> Self {
        Self {
            base: Base::new(Kind::Held),
            ctx,
            tag,
            flags: if first { FIRST } else { 0 },
        }
    }
}

impl Share {
    pub(crate) fn new(
        sender: OpId,
        receiver: OpId,
        at: u64,
        key: RemoteRegion,
        claim: RemoteRegion,
    ) -> Self {
        Self {
            base: Base::new(Kind::Share),
            sender,
            receiver,
            at,
            key,
            claim,
        }
    }
}

impl Plain {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            base: Base::new(kind),
        }
    }
}

impl Accept {
    pub(crate) fn fragments(sender: OpId, receiver: OpId) -> Self {
        Self {
            base: Base::new(Kind::Accept),
            sender,
            receiver,
            mode: MODE_FRAGMENTS,
            key: RemoteRegion::zeroed(),
        }
    }

    pub(crate) fn put(sender: OpId, receiver: OpId, key: RemoteRegion) -> Self {
        Self {
            base: Base::new(Kind::Accept),
            sender,
            receiver,
            mode: MODE_PUT,
            key,
        }
    }
}
