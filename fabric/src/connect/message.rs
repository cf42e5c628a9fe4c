//! Connection messages, and their wire format.
//!
//! ```text
//! version u8 | kind u8 | reason u8 | lanes u8 | id u32 | from rank u32 | from life u32 | to rank u32 | to life u32 | caps u32
//! then for each lane: qpn u32 | psn u32          all little-endian
//! ```

use std::fmt;

use super::UNKNOWN;
use crate::driver::WorldRank;

/// A rank in one of its lives (incarnations).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RankIncarnation {
    /// The rank.
    pub rank: WorldRank,
    /// Number that grows with every life; 0 if it is not known yet.
    pub incarnation: u32,
}

/// A message between the two sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectMessage {
    /// Kind of the message.
    pub kind: ConnectKind,
    /// Attempt that the message is about.
    pub id: u32,
    /// Sender.
    pub from: RankIncarnation,
    /// Receiver.
    pub to: RankIncarnation,
}

/// Kind of a [`ConnectMessage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ConnectKind {
    /// REQ: names the sender's lanes, and asks for the receiver's.
    Request,
    /// REP: names the sender's lanes.
    Reply,
    /// RTU: the sender has the receiver's lanes.
    Ready,
    /// BUSY: the requests have crossed, and the receiver must answer the sender's.
    Busy,
    /// REJ: the sender refuses.
    Reject(RejectReason),
    /// DRAIN: the sender has nothing in flight. The receiver must take the connection down when it has nothing in flight, either.
    Drain,
    /// DRAINED: the connection is down.
    Drained,
}

/// Reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// No queue pair is left. The peer may ask again.
    NoQueuePair,
    /// The sender speaks another version.
    Version,
    /// The sender does not want the connection.
    Policy,
    /// The sender never asked for this.
    Unknown,
    /// The sender counts the receiver as failed.
    PeerFailed,
    /// The message was for an earlier life.
    Restarted,
}

/// One queue pair of a connection. The record of its node says where its port is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QpAddress {
    /// Number of the queue pair, 24 bits.
    pub qpn: u32,
    /// Number of the queue pair's first packet, 24 bits.
    pub psn: u32,
}

/// A [`ConnectMessage`] with the lanes of its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectFrame {
    /// The message.
    pub message: ConnectMessage,
    /// Capabilities of the sender's lanes, as bits that the driver gives meaning to.
    pub caps: u32,
    /// Lanes of the sender, only in requests and replies.
    pub lanes: QpAddressList,
}

/// Up to [`LANES_MAX`] lanes, in the order in which both sides pair them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAddressList {
    lanes: [QpAddress; LANES_MAX],
    len: u8,
}

/// Defect of bytes that are no [`ConnectFrame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectFrameError {
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

impl QpAddressList {
    /// Collects lanes. Returns `None` if there are more than [`LANES_MAX`].
    #[must_use]
    pub fn new(lanes: &[QpAddress]) -> Option<Self> {
        let mut all = Self {
            lanes: [QpAddress::default(); LANES_MAX],
            len: u8::try_from(lanes.len()).ok()?,
        };
        all.lanes.get_mut(..lanes.len())?.copy_from_slice(lanes);
        Some(all)
    }

    /// Returns the lanes.
    #[must_use]
    pub fn as_slice(&self) -> &[QpAddress] {
        &self.lanes[..usize::from(self.len)]
    }
}

impl ConnectFrame {
    /// Makes a frame without lanes.
    #[must_use]
    pub fn bare(message: ConnectMessage) -> Self {
        Self {
            message,
            caps: CAPS_NONE,
            lanes: QpAddressList::default(),
        }
    }

    /// Appends the wire form to `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let ConnectMessage { kind, id, from, to } = self.message;
        let (kind, reason) = kind_to_wire(kind);
        bytes.extend([VERSION, kind, reason, self.lanes.len]);
        let words = [
            id,
            from.rank.0,
            from.incarnation,
            to.rank.0,
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
    pub fn parse(bytes: &[u8]) -> Result<Self, ConnectFrameError> {
        let length = ConnectFrameError::Length(bytes.len());
        let (&[version, kind, reason, count], rest) = bytes.split_first_chunk().ok_or(length)?;
        if version != VERSION {
            return Err(ConnectFrameError::Version(version));
        }
        let kind = kind_from_wire(kind, reason)?;
        let (words, rest) = rest.split_first_chunk::<{ 4 * WORDS }>().ok_or(length)?;
        let mut words = words.chunks_exact(4).map(word);
        let [id, rank, incarnation, to_rank, to_incarnation, caps] =
            std::array::from_fn(|_| words.next().unwrap_or_default());
        let message = ConnectMessage {
            kind,
            id,
            from: RankIncarnation {
                rank: WorldRank(rank),
                incarnation,
            },
            to: RankIncarnation {
                rank: WorldRank(to_rank),
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

    fn checked(self) -> Result<Self, ConnectFrameError> {
        let first = self.message.kind == ConnectKind::Request;
        let with_lanes = first || self.message.kind == ConnectKind::Reply;
        if with_lanes == self.lanes.as_slice().is_empty() {
            return Err(ConnectFrameError::Lanes(self.lanes.len));
        }
        let unknown = self.message.to.incarnation == UNKNOWN && !first;
        if unknown || self.message.from.incarnation == UNKNOWN {
            return Err(ConnectFrameError::Incarnation);
        }
        Ok(self)
    }
}

/// Reads `count` lanes. Returns `None` if `rest` has another length than that many.
fn parse_lanes(count: u8, rest: &[u8]) -> Option<Result<QpAddressList, ConnectFrameError>> {
    if usize::from(count) > LANES_MAX {
        return Some(Err(ConnectFrameError::Lanes(count)));
    }
    if rest.len() != usize::from(count) * LANE_BYTES {
        return None;
    }
    let mut lanes = QpAddressList {
        len: count,
        ..QpAddressList::default()
    };
    for (lane, bytes) in lanes.lanes.iter_mut().zip(rest.chunks_exact(LANE_BYTES)) {
        let (qpn, psn) = bytes.split_at(4);
        *lane = QpAddress {
            qpn: word(qpn),
            psn: word(psn),
        };
        if let Some(wide) = [lane.qpn, lane.psn].into_iter().find(|n| n >> 24 != 0) {
            return Some(Err(ConnectFrameError::Lane(wide)));
        }
    }
    Some(Ok(lanes))
}

fn word(bytes: &[u8]) -> u32 {
    let bytes: [u8; 4] = bytes.try_into().unwrap_or_default();
    u32::from_le_bytes(bytes)
}

fn kind_to_wire(kind: ConnectKind) -> (u8, u8) {
    match kind {
        ConnectKind::Request => (1, 0),
        ConnectKind::Reply => (2, 0),
        ConnectKind::Ready => (3, 0),
        ConnectKind::Busy => (4, 0),
        ConnectKind::Reject(reason) => {
            let code = REASONS.iter().position(|known| *known == reason);
            (
                5,
                code.map_or(0, |code| u8::try_from(code + 1).unwrap_or(0)),
            )
        }
        ConnectKind::Drain => (6, 0),
        ConnectKind::Drained => (7, 0),
    }
}

fn kind_from_wire(kind: u8, reason: u8) -> Result<ConnectKind, ConnectFrameError> {
    if (reason != 0) != (kind == 5) {
        return Err(ConnectFrameError::Reason(reason));
    }
    Ok(match kind {
        1 => ConnectKind::Request,
        2 => ConnectKind::Reply,
        3 => ConnectKind::Ready,
        4 => ConnectKind::Busy,
        5 => {
            let known = REASONS.get(usize::from(reason) - 1);
            ConnectKind::Reject(*known.ok_or(ConnectFrameError::Reason(reason))?)
        }
        6 => ConnectKind::Drain,
        7 => ConnectKind::Drained,
        other => return Err(ConnectFrameError::Kind(other)),
    })
}

impl fmt::Display for ConnectFrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(bytes) => write!(f, "length: {bytes} bytes are not one whole message"),
            Self::Version(version) => write!(
                f,
                "version: {version} is not {VERSION}, the version of this driver: run the same build of the program on all \
                 ranks"
            ),
            Self::Kind(kind) => write!(f, "kind: {kind} is not a kind of message"),
            Self::Reason(reason) => {
                write!(f, "reason: {reason} is not valid in this kind of message")
            }
            Self::Lanes(lanes) => write!(f, "lanes: {lanes} are not valid in this kind of message"),
            Self::Lane(number) => write!(f, "lane: {number:#x} has more than 24 bits"),
            Self::Incarnation => write!(f, "incarnation: 0 is not valid"),
        }
    }
}

impl std::error::Error for ConnectFrameError {}

/// Most lanes of a connection: as many as a node has rails at most.
pub const LANES_MAX: usize = 8;

/// No capabilities.
pub const CAPS_NONE: u32 = 0;

/// Reasons in the order of their codes, from 1.
const REASONS: [RejectReason; 6] = [
    RejectReason::NoQueuePair,
    RejectReason::Version,
    RejectReason::Policy,
    RejectReason::Unknown,
    RejectReason::PeerFailed,
    RejectReason::Restarted,
];

const VERSION: u8 = 1;
const WORDS: usize = 6;
const LANE_BYTES: usize = 8;
