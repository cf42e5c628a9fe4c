//! Connection messages, and their wire format.
//!
//! ```text
//! version u8 | kind u8 | reason u8 | lanes u8 | id u32 | from rank u32 | from life u32 | to rank u32 | to life u32 | caps u32
//! then for each lane: qpn u32 | psn u32          all little-endian
//! ```

use std::fmt;

use super::UNKNOWN;

/// A rank in one of its lives (incarnations).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// The rank.
    pub rank: u32,
    /// Number that grows with every life; 0 if it is not known yet.
    pub incarnation: u32,
}

/// A message between the two sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    /// Kind of the message.
    pub kind: Kind,
    /// Attempt that it is about.
    pub id: u32,
    /// Sender.
    pub from: End,
    /// Receiver.
    pub to: End,
}

/// Kind of a [`Message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// REQ: names the sender's lanes, and asks for the receiver's.
    Request,
    /// REP: names the sender's lanes.
    Reply,
    /// RTU: the sender has the receiver's lanes.
    Ready,
    /// BUSY: the requests have crossed, and the receiver must answer the sender's.
    Busy,
    /// REJ: the sender refuses.
    Reject(Reason),
    /// DRAIN: the sender has nothing in flight. The receiver must take the connection down when it has nothing in flight, either.
    Drain,
    /// DRAINED: the connection is down.
    Drained,
}

/// Reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// No queue pair is left. The peer may ask again.
    NoQueuePair,
    /// The sender speaks another version.
    Version,
    /// The sender does not want the connection.
    Policy,
    /// The sender never asked for this.
    Unknown,
    /// The sender counts the receiver as failed.
    Gone,
    /// The message was for an earlier life.
    Restarted,
}

/// One queue pair of a connection. The record of its node says where its port is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lane {
    /// Number of the queue pair, 24 bits.
    pub qpn: u32,
    /// Number of its first packet, 24 bits.
    pub psn: u32,
}

/// A [`Message`] with the lanes of its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The message.
    pub message: Message,
    /// Capabilities of the sender's lanes, as bits that the driver gives meaning to.
    pub caps: u32,
    /// Lanes of the sender, only in requests and replies.
    pub lanes: Lanes,
}

/// Up to [`LANES_MAX`] lanes, in the order in which both sides pair them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes {
    lanes: [Lane; LANES_MAX],
    len: u8,
}

/// Defect of bytes that are no [`Frame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// This number of bytes is too small or too large.
    Length(usize),
    /// The version is another one.
    Version(u8),
    /// There is no such kind.
    Kind(u8),
    /// There is no such reason, or none belongs there.
    Reason(u8),
    /// This number of lanes is too small or too large, or none belong there.
    Lanes(u8),
    /// A number of more than 24 bits.
    Lane(u32),
    /// The incarnation is 0 where it must be known.
    Incarnation,
}

impl Lanes {
    /// Collects lanes. Returns `None` if there are more than [`LANES_MAX`].
    #[must_use]
    pub fn new(lanes: &[Lane]) -> Option<Self> {
        let mut all = Self {
            lanes: [Lane::default(); LANES_MAX],
            len: u8::try_from(lanes.len()).ok()?,
        };
        all.lanes.get_mut(..lanes.len())?.copy_from_slice(lanes);
        Some(all)
    }

    /// Returns the lanes.
    #[must_use]
    pub fn as_slice(&self) -> &[Lane] {
        &self.lanes[..usize::from(self.len)]
    }
}

impl Frame {
    /// Makes a frame without lanes.
    #[must_use]
    pub fn bare(message: Message) -> Self {
        Self {
            message,
            caps: CAPS_NONE,
            lanes: Lanes::default(),
        }
    }

    /// Appends the wire form to `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let Message { kind, id, from, to } = self.message;
        let (kind, reason) = kind_to_wire(kind);
        bytes.extend([VERSION, kind, reason, self.lanes.len]);
        let words = [
            id,
            from.rank,
            from.incarnation,
            to.rank,
            to.incarnation,
            self.caps,
        ];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        for lane in self.lanes.as_slice() {
            bytes.extend(lane.qpn.to_le_bytes());
            bytes.extend(lane.psn.to_le_bytes());
        }
    }

    /// Reads the wire form. `bytes` may be anything.
    ///
    /// # Errors
    /// The bytes are no valid frame.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let length = Malformed::Length(bytes.len());
        let (&[version, kind, reason, count], rest) = bytes.split_first_chunk().ok_or(length)?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let kind = kind_from_wire(kind, reason)?;
        let (words, rest) = rest.split_first_chunk::<{ 4 * WORDS }>().ok_or(length)?;
        let mut words = words.chunks_exact(4).map(word);
        let [id, rank, incarnation, to_rank, to_incarnation, caps] =
            std::array::from_fn(|_| words.next().unwrap_or_default());
        let message = Message {
            kind,
            id,
            from: End { rank, incarnation },
            to: End {
                rank: to_rank,
                incarnation: to_incarnation,
            },
        };
        let lanes = parse_lanes(count, rest).unwrap_or(Err(length))?;
        Self {
            message,
            caps,
            lanes,
        }
        .checked()
    }

    fn checked(self) -> Result<Self, Malformed> {
        let first = self.message.kind == Kind::Request;
        let with_lanes = first || self.message.kind == Kind::Reply;
        if with_lanes == self.lanes.as_slice().is_empty() {
            return Err(Malformed::Lanes(self.lanes.len));
        }
        let unknown = self.message.to.incarnation == UNKNOWN && !first;
        if unknown || self.message.from.incarnation == UNKNOWN {
            return Err(Malformed::Incarnation);
        }
        Ok(self)
    }
}

/// Reads `count` lanes. Returns `None` if `rest` has another length than that many.
fn parse_lanes(count: u8, rest: &[u8]) -> Option<Result<Lanes, Malformed>> {
    if usize::from(count) > LANES_MAX {
        return Some(Err(Malformed::Lanes(count)));
    }
    if rest.len() != usize::from(count) * LANE_BYTES {
        return None;
    }
    let mut lanes = Lanes {
        len: count,
        ..Lanes::default()
    };
    for (lane, bytes) in lanes.lanes.iter_mut().zip(rest.chunks_exact(LANE_BYTES)) {
        let (qpn, psn) = bytes.split_at(4);
        *lane = Lane {
            qpn: word(qpn),
            psn: word(psn),
        };
        if let Some(wide) = [lane.qpn, lane.psn].into_iter().find(|n| n >> 24 != 0) {
            return Some(Err(Malformed::Lane(wide)));
        }
    }
    Some(Ok(lanes))
}

fn word(bytes: &[u8]) -> u32 {
    let bytes: [u8; 4] = bytes.try_into().unwrap_or_default();
    u32::from_le_bytes(bytes)
}

fn kind_to_wire(kind: Kind) -> (u8, u8) {
    match kind {
        Kind::Request => (1, 0),
        Kind::Reply => (2, 0),
        Kind::Ready => (3, 0),
        Kind::Busy => (4, 0),
        Kind::Reject(reason) => {
            let code = REASONS.iter().position(|known| *known == reason);
            (
                5,
                code.map_or(0, |code| u8::try_from(code + 1).unwrap_or(0)),
            )
        }
        Kind::Drain => (6, 0),
        Kind::Drained => (7, 0),
    }
}

fn kind_from_wire(kind: u8, reason: u8) -> Result<Kind, Malformed> {
    if (reason != 0) != (kind == 5) {
        return Err(Malformed::Reason(reason));
    }
    Ok(match kind {
        1 => Kind::Request,
        2 => Kind::Reply,
        3 => Kind::Ready,
        4 => Kind::Busy,
        5 => {
            let known = REASONS.get(usize::from(reason) - 1);
            Kind::Reject(*known.ok_or(Malformed::Reason(reason))?)
        }
        6 => Kind::Drain,
        7 => Kind::Drained,
        other => return Err(Malformed::Kind(other)),
    })
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(bytes) => write!(f, "length: {bytes} bytes are no whole message"),
            Self::Version(version) => write!(f, "version: {version}, and this is {VERSION}"),
            Self::Kind(kind) => write!(f, "kind: {kind} is none"),
            Self::Reason(reason) => write!(f, "reason: {reason} does not belong here"),
            Self::Lanes(lanes) => write!(f, "lanes: {lanes} do not belong here"),
            Self::Lane(number) => write!(f, "lane: {number:#x} has more than 24 bits"),
            Self::Incarnation => write!(f, "incarnation: 0 is none"),
        }
    }
}

impl std::error::Error for Malformed {}

/// Most lanes of a connection: as many as a node has rails at most.
pub const LANES_MAX: usize = 8;

/// No capabilities.
pub const CAPS_NONE: u32 = 0;

/// Reasons in the order of their codes, from 1.
const REASONS: [Reason; 6] = [
    Reason::NoQueuePair,
    Reason::Version,
    Reason::Policy,
    Reason::Unknown,
    Reason::Gone,
    Reason::Restarted,
];

const VERSION: u8 = 1;
const WORDS: usize = 6;
const LANE_BYTES: usize = 8;
