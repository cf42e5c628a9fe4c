//! The headers of every message, as bytes. After spec P2.
//!
//! Whatever comes from the wire is hostile: reading a header is a length check and a copy, ids are slot + generation and are
//! looked up, never followed.

mod failing;

use bytemuck::{Pod, Zeroable};
use ripstop_fabric::{memory::RemoteRegion, offload::RemoteCounter};

pub(crate) use self::failing::{
    Agree, CALLS, DOWN_WORDS, Death, LastCalls, Revoke, SAY_DECIDE, SAY_PROMISE, SAY_PROPOSE,
    SAY_REPORT, WORDS_LEN, WORDS_PARTS, Words,
};

/// Raised whenever a header changes.
pub(crate) const VERSION: u8 = 6;

/// What every header starts with.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Base {
    pub(crate) kind: u8,
    pub(crate) version: u8,
    /// Place in the peer's channel.
    pub(crate) seq: u16,
    /// Credits that the sender of this message gives back.
    pub(crate) credits: u16,
    /// The next `seq` that the sender of this message expects; means something on unreliable drivers only.
    pub(crate) ack: u16,
}

macro_rules! kinds {
    ($($name:ident = $value:literal, $why:literal;)*) => {
        /// The kinds of message.
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
    Eager = 1, "A whole message.";
    Offer = 2, "RTS: a message whose bytes stay with the sender until they are asked for.";
    Accept = 3, "RTR: put or send the bytes of an offered message.";
    Fragment = 4, "Some bytes of an accepted message.";
    Landed = 5, "ATP: all bytes of an accepted message were put.";
    Taken = 6, "ATS: the receiver has the bytes; the sender's buffer is free.";
    Withdraw = 7, "CANCEL: forget this offer.";
    Withdrawn = 8, "CANCEL_ACK: forgotten, or too late.";
    Credit = 9, "Credits only.";
    Ack = 10, "Acknowledgement only.";
    Nack = 11, "Send again from `ack` on.";
    Share = 12, "Put the rear of an offered message, if the claim succeeds.";
    Ping = 13, "Are you there?";
    Pong = 14, "Yes.";
    Gone = 15, "The sender of this counts its receiver as failed, and will not hear it any more.";
    Death = 26, "The sender has seen the process of a third rank end.";
    Blocked = 16, "As many messages were sent as may be.";
    Grant = 17, "So many messages may be sent in all.";
    Recall = 18, "Give back what you do not need of that.";
    Limit = 19, "This is what is left of it.";
    Seek = 20, "The first message in your line that fits this is wanted.";
    Sought = 21, "An offer out of turn, of a message that was sought.";
    Met = 22, "A sought message has come to its receive.";
    Back = 23, "Nobody waits for a sought message any more.";
    Held = 24, "A message with this envelope is in our line, and was not when something was sought.";
    First = 25, "A sought message, still unmet, is the first of its communicator in our line now.";
    Abort = 40, "A collective has failed, and its communicator is revoked for later ones.";
    Ask = 41, "The sender has waited for something of this collective for long.";
    Over = 42, "All that the sender does in this collective is done, and has arrived before this.";
    Halt = 43, "A collective has failed, and the sender waits until its receiver puts no more of it.";
    Halted = 44, "The sender puts no more of this collective.";
    Revoke = 45, "A communicator is revoked: there is nothing to be sent or received on it any more.";
    Words = 47, "A part of what a rank has called, where two called different collectives.";
    LastCalls = 48, "What the sender, which is about to leave or asked by a rank that is, has called last on a communicator.";
    Agree = 46, "What the sender says in a round of agreement, or a part of it.";
    Hello = 50, "An end of a window introduces itself.";
    Note = 51, "How often the sender has opened its window to the receiver, or completed an access to the receiver's.";
    NoWindow = 52, "There is no such window here any more.";
    Tally = 53, "Where the receiver of this counts what it would else say in notes.";
    Gate = 54, "Where the receiver of this counts the fences that it has come to.";
    Update = 55, "Something to be done with the receiver's end of a window.";
    Updated = 56, "It is done.";
    Lock = 57, "A lock is asked for.";
    Locked = 58, "It is granted.";
    Unlock = 59, "It is given back.";
}

/// An operation at one of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct OpId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// What is in the lower half of a word.
pub(crate) const fn low_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

impl OpId {
    /// As a driver's token.
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
    /// Bytes.
    pub(crate) total: u64,
    pub(crate) sender: OpId,
    /// How the bytes may travel: the `MODE_*` bits.
    pub(crate) modes: u64,
    /// Where they are; all zero without [`MODE_GET`].
    pub(crate) key: RemoteRegion,
}

/// The receiver may get the bytes with the key.
pub(crate) const MODE_GET: u64 = 1;
/// The sender can put them.
pub(crate) const MODE_PUT: u64 = 2;
/// The sender can send them in fragments.
pub(crate) const MODE_FRAGMENTS: u64 = 4;
/// Of [`Kind::Sought`]: as [`FIRST`].
pub(crate) const MODE_FIRST: u64 = 8;

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Accept {
    pub(crate) base: Base,
    pub(crate) sender: OpId,
    pub(crate) receiver: OpId,
    /// [`MODE_PUT`] or [`MODE_FRAGMENTS`].
    pub(crate) mode: u64,
    /// Where to put them; all zero for fragments.
    pub(crate) key: RemoteRegion,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Share {
    pub(crate) base: Base,
    pub(crate) sender: OpId,
    pub(crate) receiver: OpId,
    /// Where the rear begins.
    pub(crate) at: u64,
    /// Where to put it.
    pub(crate) key: RemoteRegion,
    /// The word that decides who moves it.
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
    /// The limit that was reached.
    pub(crate) at: u32,
    /// Messages that wait.
    pub(crate) held: u32,
    /// 1 if the receiver hears of what is new in the line ([`Kind::Held`]).
    pub(crate) tells: u64,
}

/// [`Kind::Grant`] and [`Kind::Limit`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Limit {
    pub(crate) base: Base,
    pub(crate) messages: u64,
}

/// [`Kind::Seek`] and [`Kind::Held`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Line {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// [`ANY_TAG`] or [`FIRST`].
    pub(crate) flags: u64,
}

/// The tag means nothing.
pub(crate) const ANY_TAG: u64 = 1;
/// No message of the communicator is in front of it in the line.
pub(crate) const FIRST: u64 = 2;

/// [`Kind::Landed`] names the receiver's operation; [`Kind::Taken`], [`Kind::Withdraw`],
/// [`Kind::Withdrawn`], [`Kind::Met`], [`Kind::Back`] and [`Kind::First`] the sender's.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct About {
    pub(crate) base: Base,
    pub(crate) op: OpId,
    /// `OK`, or why not.
    pub(crate) status: u64,
}

pub(crate) const OK: u64 = 0;
/// The other end could not move the bytes.
pub(crate) const REFUSED: u64 = 1;
/// The communicator's collectives are no more.
pub(crate) const REVOKED: u64 = 2;

/// [`Kind::Ask`], [`Kind::Over`], [`Kind::Halt`] and [`Kind::Halted`]: of which collective, and what its sender takes it for.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Ask {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    pub(crate) sig: u64,
}

impl Ask {
    pub(crate) fn new(kind: Kind, (ctx, tag): (u32, u32), sig: u64) -> Self {
        Self {
            base: Base::new(kind),
            ctx,
            tag,
            sig,
        }
    }
}

/// [`Kind::Abort`]: which collective of which communicator failed, and why. Ranks are the world's.
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

/// `rank` failed.
pub(crate) const WHY_FAILED: u32 = 1;
/// `rank` has finished.
pub(crate) const WHY_FINISHED: u32 = 2;
/// `rank` and `other` called different collectives.
pub(crate) const WHY_MISMATCH: u32 = 3;
/// `rank` could not take part, and its own error says why.
pub(crate) const WHY_GAVE_UP: u32 = 4;

/// [`Kind::Hello`]: what the sender has behind a window. A window is named by its communicator, and the number of the
/// collective that made it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Hello {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// Of an element.
    pub(crate) sig: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// To all of it; all zero when it is reached by messages only.
    pub(crate) key: RemoteRegion,
}

/// [`Kind::Tally`]: two counters of the sender, for posts and for completed accesses. [`Kind::Gate`]: one.
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

/// [`Kind::Update`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Update {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// The sender's.
    pub(crate) op: OpId,
    /// In the receiver's memory, in bytes.
    pub(crate) at: u64,
    /// In the operation's buffer: comes back.
    pub(crate) from: u64,
    /// Bytes of the receiver's memory.
    pub(crate) len: u64,
    /// What to do.
    pub(crate) deed: u64,
}

/// [`Kind::Updated`], with what was there before if that was asked for.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Updated {
    pub(crate) base: Base,
    pub(crate) op: OpId,
    pub(crate) from: u64,
    /// `OK`, or why not.
    pub(crate) status: u64,
}

/// [`Kind::Lock`], [`Kind::Locked`] and [`Kind::Unlock`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Lock {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// Which lock, and above that the number of the request.
    pub(crate) want: u64,
}

/// [`Kind::Note`] and [`Kind::NoWindow`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Note {
    pub(crate) base: Base,
    pub(crate) ctx: u32,
    pub(crate) tag: u32,
    /// One of the `COUNT_*` numbers.
    pub(crate) what: u32,
    pub(crate) zero: u32,
    /// Since the window was made, so that saying it twice changes nothing.
    pub(crate) count: u64,
}

/// Exposures that the sender has opened to the receiver.
pub(crate) const COUNT_POSTED: u32 = 1;
/// Accesses to the receiver that the sender has completed.
pub(crate) const COUNT_COMPLETED: u32 = 2;
/// Fences that it has passed; or who says it waits in one, and wants to hear of the end's end.
pub(crate) const COUNT_FENCES: u32 = 3;

/// [`Kind::Credit`], [`Kind::Ack`], [`Kind::Nack`]: what they say is in the base. [`Kind::Ping`], [`Kind::Pong`] and
/// [`Kind::Gone`] say no more than that, and are outside of the channel's order.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Plain {
    pub(crate) base: Base,
}

/// Reads a header, or `None` when the bytes are not as long as one.
pub(crate) fn read<H: Pod>(header: &[u8]) -> Option<H> {
    (header.len() == size_of::<H>()).then(|| bytemuck::pod_read_unaligned(header))
}

/// The base of any header.
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

    /// Writes what every message carries into a header that is about to leave.
    ///
    /// In one word, because it is read as one right after: what was stored in pieces would first have to reach the cache.
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

    /// The number goes round.
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
