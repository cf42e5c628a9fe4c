//! Message headers, as plain structs with a fixed layout.
//!
//! Bytes from the wire are not trusted. Reading a header is a length check and a copy. Ids consist of a slot and a generation.
//! They are looked up in tables, and never used as addresses.

mod failure_headers;

use crate::proto::collective_id::CollectiveId;
use bytemuck::{Pod, Zeroable};
use ripstop_fabric::{memory::RemoteRegion, offload::RemoteCounter};

pub(crate) use self::failure_headers::{
    AgreeHeader, CALLS, CallDescriptionHeader, DOWN_WORDS, DeathHeader, LastCallsHeader,
    RevokeHeader, SAY_DECIDE, SAY_PROMISE, SAY_PROPOSE, SAY_REPORT, WORDS_LEN, WORDS_PARTS,
};

/// Version of the wire format. A change of a header raises the version.
pub(crate) const VERSION: u8 = 8;

/// First fields of every header.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct HeaderBase {
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
        pub(crate) enum WireKind { $(#[doc = $why] $name = $value,)* }

        impl WireKind {
            pub(crate) fn from_byte(byte: u8) -> Option<Self> {
                match byte { $($value => Some(Self::$name),)* _ => None }
            }
        }
    };
}

kinds! {
    Eager = 1, "A whole message, with its bytes.";
    Rts = 2, "RTS: offers a message. Its bytes stay with the sender until the receiver requests them.";
    Rtr = 3, "RTR: asks the sender to put the bytes of an offered message, or to send them as fragments.";
    Fragment = 4, "A part of the bytes of an accepted message.";
    Atp = 5, "ATP: all bytes of an accepted message were put.";
    Ats = 6, "ATS: the receiver has the bytes, so the sender may reuse its buffer.";
    Cancel = 7, "CANCEL: withdraws an offer.";
    CancelAck = 8, "CANCEL_ACK: the offer was withdrawn, or was already matched.";
    Credit = 9, "Only returns credits.";
    Ack = 10, "Only acknowledges.";
    Nack = 11, "Asks for retransmission of all messages from `ack` on.";
    SplitRtr = 12, "Asks the sender of an offered message to put its rear half, if the sender's claim succeeds.";
    Packed = 27, "The message that the receiver's operation waits for is packed, and can be read in place.";
    Ping = 13, "Asks whether the receiver is alive.";
    Pong = 14, "Answers a ping.";
    DeclaredDown = 15, "The sender considers its receiver failed, and ignores its messages from now on.";
    Death = 26, "The sender has seen the process of a third rank end.";
    Blocked = 16, "The sender has reached its limit of messages, and holds others back.";
    Grant = 17, "Sets the number of messages that may be sent in total.";
    QuotaRecall = 18, "Asks the peer to return the unused part of its limit.";
    Limit = 19, "Answers a recall with the limit that remains.";
    FetchRequest = 20, "Asks for the first matching message that the peer holds back.";
    FetchedRts = 21, "Offers a fetched message out of order.";
    FetchMatched = 22, "A fetched message was matched by a receive.";
    FetchReturned = 23, "Returns a fetched message, because no receive waits for it any more.";
    FetchCandidate = 24, "A message with a new envelope has joined those that the sender holds back, after a fetch there.";
    FetchIsFirst = 25, "A fetched message that is not matched yet is now the first that the sender holds back there.";
    Abort = 40, "A collective has failed, and its communicator is revoked for later ones.";
    StallProbe = 41, "The sender has waited long for a message of this collective, and asks about it.";
    ProgramDone = 42, "The sender has completed its part of this collective. All its messages for it arrive before this one.";
    Quiesce = 43, "A collective has failed, and the sender waits until its receiver stops putting to it.";
    Quiesced = 44, "The sender has stopped putting for this collective.";
    Revoke = 45, "A communicator is revoked. No message can be sent or received on it any more.";
    CallDescription = 47, "A part of the description of a rank's call, sent when two ranks have called different collectives.";
    LastCalls = 48, "The sender's last collective calls on a communicator, to or from a rank that is about to leave.";
    Agree = 46, "The sender's message in a round of agreement, or a part of it.";
    WindowHello = 50, "Introduces the sender's end of a window.";
    WindowCount = 51, "Counts how often the sender has opened its window to the receiver, or has accessed the receiver's.";
    NoWindow = 52, "The sender has freed this window.";
    CounterKeys = 53, "Names counters of the sender. The receiver adds to them instead of sending `WindowCount`.";
    FenceKeys = 54, "Names two counters of the sender. The receiver adds to them in turn at the fences that it reaches.";
    Update = 55, "Asks for an operation on the memory of the receiver's end of a window.";
    UpdateReply = 56, "Answers an update.";
    Lock = 57, "Requests a lock.";
    LockGranted = 58, "Grants a lock.";
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
pub(crate) struct EagerHeader {
    pub(crate) base: HeaderBase,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) sig: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RtsHeader {
    pub(crate) base: HeaderBase,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) sig: u64,
    /// Length of the message in bytes.
    pub(crate) total: u64,
    pub(crate) sender: OpId,
    /// Paths that the bytes may take: the `MODE_*` bits.
    pub(crate) modes: u64,
    /// Key to the bytes. All zero without [`MODE_GET`] and [`MODE_IN_PLACE`].
    pub(crate) key: RemoteRegion,
}

/// The receiver may get the bytes with the key.
pub(crate) const MODE_GET: u64 = 1;
/// The sender can put them.
pub(crate) const MODE_PUT: u64 = 2;
/// The sender can send them in fragments.
pub(crate) const MODE_FRAGMENTS: u64 = 4;
/// Like [`FIRST`], in a [`WireKind::FetchedRts`].
pub(crate) const MODE_FIRST: u64 = 8;
/// The bytes are in a packing block, which a receiver that can map it may read in place, as far as they are packed.
pub(crate) const MODE_IN_PLACE: u64 = 16;

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RtrHeader {
    pub(crate) base: HeaderBase,
    pub(crate) sender: OpId,
    pub(crate) receiver: OpId,
    /// [`MODE_PUT`] or [`MODE_FRAGMENTS`].
    pub(crate) mode: u64,
    /// Key to put to. All zero for fragments.
    pub(crate) key: RemoteRegion,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct SplitRtrHeader {
    pub(crate) base: HeaderBase,
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
pub(crate) struct FragmentHeader {
    pub(crate) base: HeaderBase,
    pub(crate) receiver: OpId,
    pub(crate) offset: u64,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BlockedHeader {
    pub(crate) base: HeaderBase,
    /// Limit that the sender has reached.
    pub(crate) at: u32,
    /// Messages that the sender holds back.
    pub(crate) held: u32,
    /// 1 if the sender notifies the receiver of new messages that it holds back ([`WireKind::FetchCandidate`]).
    pub(crate) notifies: u64,
}

/// Header of [`WireKind::Grant`] and [`WireKind::Limit`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct QuotaHeader {
    pub(crate) base: HeaderBase,
    pub(crate) messages: u64,
}

/// Header of [`WireKind::FetchRequest`] and [`WireKind::FetchCandidate`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct FetchHeader {
    pub(crate) base: HeaderBase,
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
/// [`WireKind::Atp`] and [`WireKind::Packed`] name the receiver's operation. [`WireKind::Ats`], [`WireKind::Cancel`],
/// [`WireKind::CancelAck`], [`WireKind::FetchMatched`], [`WireKind::FetchReturned`] and [`WireKind::FetchIsFirst`] name the
/// sender's.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct OpHeader {
    pub(crate) base: HeaderBase,
    pub(crate) op: OpId,
    /// `OK`, or the reason of a failure.
    pub(crate) status: u64,
}

pub(crate) const OK: u64 = 0;
/// Status: the other end did not move the bytes.
pub(crate) const REFUSED: u64 = 1;
/// Status: the communicator is revoked.
pub(crate) const REVOKED: u64 = 2;
/// Status: another rank has begun to update the same numbers, and did not go on.
pub(crate) const NUMBERS_HELD: u64 = 3;

/// Header of [`WireKind::StallProbe`], [`WireKind::ProgramDone`], [`WireKind::Quiesce`] and [`WireKind::Quiesced`]. It names a
/// collective, and has the signature of the sender's call.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ProgramHeader {
    pub(crate) base: HeaderBase,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) sig: u64,
}

impl ProgramHeader {
    pub(crate) fn new(kind: WireKind, id: CollectiveId, sig: u64) -> Self {
        Self {
            base: HeaderBase::new(kind),
            ctx: id.context,
            tag: id.sequence,
            sig,
        }
    }

    /// Returns the collective that the header names.
    pub(crate) const fn collective_id(&self) -> CollectiveId {
        CollectiveId::new(self.ctx, self.tag)
    }
}

/// Header of [`WireKind::Abort`]: which collective of which communicator failed, and why. Ranks are those of the world.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct AbortHeader {
    pub(crate) base: HeaderBase,
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
/// Reason: `rank` could not take part. The error that `rank` itself returns says why.
pub(crate) const WHY_GAVE_UP: u32 = 4;

/// Header of [`WireKind::WindowHello`], which describes the sender's memory of a window. A window is named by its
/// communicator and the number of the collective that created it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct WindowHelloHeader {
    pub(crate) base: HeaderBase,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// Signature of an element.
    pub(crate) sig: u64,
    /// Length of the memory in bytes.
    pub(crate) len: u64,
    /// Key to all of the memory. All zero if it is accessed by messages only.
    pub(crate) key: RemoteRegion,
}

/// Header of [`WireKind::CounterKeys`], with two counters of the sender, for posts and for completed accesses. Also of
/// [`WireKind::FenceKeys`], with two counters for fences of even and of odd numbers.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct CounterKeysHeader {
    pub(crate) base: HeaderBase,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) first: RemoteCounter,
    pub(crate) second: RemoteCounter,
}

/// Header of [`WireKind::Update`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct UpdateHeader {
    pub(crate) base: HeaderBase,
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
    pub(crate) op_code: u64,
}

/// Header of [`WireKind::UpdateReply`]. The body has the previous content of the memory if the update asked for it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct UpdateReplyHeader {
    pub(crate) base: HeaderBase,
    pub(crate) op: OpId,
    pub(crate) from: u64,
    /// `OK`, or the reason of a failure.
    pub(crate) status: u64,
}

/// Header of [`WireKind::Lock`], [`WireKind::LockGranted`] and [`WireKind::Unlock`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct LockHeader {
    pub(crate) base: HeaderBase,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// Kind of lock, in the low bits, and the number of the request above.
    pub(crate) want: u64,
}

/// Header of [`WireKind::WindowCount`] and [`WireKind::NoWindow`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct WindowCountHeader {
    pub(crate) base: HeaderBase,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// One of the `COUNT_*` numbers.
    pub(crate) event: u32,
    pub(crate) zero: u32,
    /// Total since the window was created, so that a repeated note changes nothing.
    pub(crate) count: u64,
}

/// Counts exposures that the sender has opened to the receiver.
pub(crate) const COUNT_POSTED: u32 = 1;
/// Counts accesses to the receiver that the sender has completed.
pub(crate) const COUNT_COMPLETED: u32 = 2;
/// Counts fences that the sender has passed, in a [`WireKind::NoWindow`]. In a [`WireKind::WindowCount`], the sender waits
/// in a fence, and asks to be notified when the receiver frees its end of the window.
pub(crate) const COUNT_FENCES: u32 = 3;

/// Header of messages that need only a base.
///
/// These are [`WireKind::Credit`], [`WireKind::Ack`], [`WireKind::Nack`] and [`WireKind::QuotaRecall`]. So are
/// [`WireKind::Ping`], [`WireKind::Pong`] and [`WireKind::DeclaredDown`], which are not part of the channel's order.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct BareHeader {
    pub(crate) base: HeaderBase,
}

/// Reads a header. Returns `None` if the length of the bytes is wrong.
pub(crate) fn read<H: Pod>(header: &[u8]) -> Option<H> {
    (header.len() == size_of::<H>()).then(|| bytemuck::pod_read_unaligned(header))
}

/// Reads the kind and the base of any header. Returns `None` if the kind or the version is unknown.
pub(crate) fn read_base(header: &[u8]) -> Option<(WireKind, HeaderBase)> {
    let base: HeaderBase = bytemuck::pod_read_unaligned(header.get(..size_of::<HeaderBase>())?);
    let kind = WireKind::from_byte(base.kind)?;
    (base.version == VERSION).then_some((kind, base))
}

impl HeaderBase {
    /// The bits of a base, as one word, that its receiver knows before the message arrives: kind and version.
    pub(crate) const KNOWN: u64 = u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0]);

    pub(crate) fn new(kind: WireKind) -> Self {
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
    /// The base is changed as one word, because it is read as one word right after. A load that covers several smaller stores
    /// would stall until they have reached the cache, and the compiler makes such stores of anything but arithmetic.
    #[inline]
    pub(crate) fn stamp(header: &mut [u8], seq: u16, credits: u16, ack: u16) {
        let base = header.first_chunk_mut::<8>().expect("a header has a base");
        let known = u64::from_ne_bytes(*base) & Self::KNOWN;
        let stamps = [(seq, 2), (credits, 4), (ack, 6)];
        let word = stamps.iter().fold(known, |word, &(stamp, at)| {
            word | u64::from(stamp) << shift_of_half(at)
        });
        *base = word.to_ne_bytes();
    }
}

const _: () = assert!(
    size_of::<EagerHeader>() == 24,
    "an 8-byte message, its header and its frame share one cache line"
);
const _: () = assert!(
    size_of::<RtsHeader>() <= 112
        && size_of::<SplitRtrHeader>() <= 112
        && size_of::<AgreeHeader>() <= 112
        && size_of::<CallDescriptionHeader>() <= 112
        && size_of::<LastCallsHeader>() <= 112,
    "the longest headers travel inline"
);

/// Returns by how many bits a half-word is shifted to be at byte `at` of a word in memory.
const fn shift_of_half(at: u32) -> u32 {
    if cfg!(target_endian = "little") {
        8 * at
    } else {
        48 - 8 * at
    }
}

impl OpHeader {
    pub(crate) fn new(kind: WireKind, op: OpId, status: u64) -> Self {
        Self {
            base: HeaderBase::new(kind),
            op,
            status,
        }
    }
}

impl BlockedHeader {
    pub(crate) fn new(at: u32, held: u32, tells: bool) -> Self {
        Self {
            base: HeaderBase::new(WireKind::Blocked),
            at,
            held,
            notifies: u64::from(tells),
        }
    }
}

impl RevokeHeader {
    pub(crate) fn new(ctx: u32) -> Self {
        Self {
            base: HeaderBase::new(WireKind::Revoke),
            ctx,
            left: 0,
        }
    }

    /// Returns the answer of a rank that has left the communicator, or is not in it yet.
    pub(crate) fn left(ctx: u32) -> Self {
        Self {
            left: 1,
            ..Self::new(ctx)
        }
    }
}

impl QuotaHeader {
    pub(crate) fn new(kind: WireKind, messages: u32) -> Self {
        Self {
            base: HeaderBase::new(kind),
            messages: u64::from(messages),
        }
    }

    /// Returns the number of messages, or `None` if it does not fit. The number wraps around.
    pub(crate) fn messages(&self) -> Option<u32> {
        u32::try_from(self.messages).ok()
    }
}

impl FetchHeader {
    pub(crate) fn request(ctx: u32, tag: Option<u32>) -> Self {
        Self {
            base: HeaderBase::new(WireKind::FetchRequest),
            ctx,
            tag: tag.unwrap_or(0),
            flags: if tag.is_none() { ANY_TAG } else { 0 },
        }
    }

    pub(crate) fn candidate(ctx: u32, tag: u32, first: bool) -> Self {
        Self {
            base: HeaderBase::new(WireKind::FetchCandidate),
            ctx,
            tag,
            flags: if first { FIRST } else { 0 },
        }
    }
}

impl SplitRtrHeader {
    pub(crate) fn new(
        sender: OpId,
        receiver: OpId,
        at: u64,
        key: RemoteRegion,
        claim: RemoteRegion,
    ) -> Self {
        Self {
            base: HeaderBase::new(WireKind::SplitRtr),
            sender,
            receiver,
            at,
            key,
            claim,
        }
    }
}

impl BareHeader {
    pub(crate) fn new(kind: WireKind) -> Self {
        Self {
            base: HeaderBase::new(kind),
        }
    }
}

impl RtrHeader {
    pub(crate) fn fragments(sender: OpId, receiver: OpId) -> Self {
        Self {
            base: HeaderBase::new(WireKind::Rtr),
            sender,
            receiver,
            mode: MODE_FRAGMENTS,
            key: RemoteRegion::zeroed(),
        }
    }

    pub(crate) fn put(sender: OpId, receiver: OpId, key: RemoteRegion) -> Self {
        Self {
            base: HeaderBase::new(WireKind::Rtr),
            sender,
            receiver,
            mode: MODE_PUT,
            key,
        }
    }
}
