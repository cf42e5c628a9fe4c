//! What the launcher and a helper say to each other: frames of a kind, a length, and that many bytes.
//!
//! The helper begins with [`MARK`], because the shell that starts it may print something first. Frames come from another
//! machine, so each is checked before it is used: the length before its bytes are awaited, every field, and that nothing
//! is left over.

pub(in crate::run) mod payload;

use crate::run::rank::StdStream;
use payload::{PayloadReader, PayloadWriter};

/// The first bytes of a helper. No start-up file of a shell prints a NUL byte.
pub(in crate::run) const MARK: &[u8] = b"\0ripstop node 1\0";

/// The most bytes of a frame behind its header.
pub(in crate::run) const PAYLOAD_MAX: usize = 64 << 10;

/// Names and values that ranks have put for each other.
pub(in crate::run) type PmiPairs = Vec<(String, String)>;

/// A frame of the launcher to a helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::run) enum LauncherFrame {
    /// The launcher is alive.
    Beat,
    /// A piece of the setup.
    Setup(Vec<u8>),
    /// The setup is complete: check that the ranks can be started.
    Check,
    /// Start the ranks.
    Start,
    /// Send all ranks a signal. SIGSTOP also stops the helper from expecting beats, until SIGCONT.
    Signal(u32),
    /// Input of rank 0.
    Input(Vec<u8>),
    /// Rank 0 has no more input.
    InputEnd,
    /// The launcher has written so many bytes of a rank's output, and takes as many more.
    Credit {
        rank: u32,
        which: StdStream,
        bytes: u32,
    },
    /// Pairs of all hosts, for the next release.
    Pairs(PmiPairs),
    /// The fence is complete.
    Release,
    /// All ranks of the job have ended: send the output that is left, and end.
    Finish,
    /// Look at the ranks, and answer this question with what the last two looks have shown.
    Look(u32),
}

/// A frame of a helper to the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::run) enum HelperFrame {
    /// The helper is alive.
    Beat,
    /// The first frame: the helper's version, and what tells its host from others.
    Hello { version: String, identity: String },
    /// The ranks can be started.
    Ready,
    /// The ranks cannot be started, and the exit code for that.
    Refused { code: u8, why: String },
    /// The process of a rank.
    Started { rank: u32, pid: u32 },
    /// Output of a rank.
    Output {
        rank: u32,
        which: StdStream,
        bytes: Vec<u8>,
    },
    /// How a rank has ended, as `wait` tells it.
    Ended { rank: u32, status: u32 },
    /// A line of PMI that the launcher must know about. The helper has answered it.
    Line { rank: u32, line: Vec<u8> },
    /// A rank does not speak PMI.
    Garbled { rank: u32, why: String },
    /// A rank will not come to another fence.
    Left { rank: u32, how: String },
    /// Pairs that ranks of this host have put.
    Pairs(PmiPairs),
    /// These ranks wait in a fence. The other ranks of this host do so already, or have left.
    Fence(Vec<u32>),
    /// Rank 0 has taken so many bytes of input.
    InputCredit(u32),
    /// Rank 0 takes no more input.
    InputShut,
    /// The last frame: all output is sent, and no process is left.
    Bye,
    /// A piece of the answer to a question.
    Observed {
        number: u32,
        is_last: bool,
        bytes: Vec<u8>,
    },
}

/// What both kinds of frames have in common.
pub(in crate::run) trait NodeFrame: Sized {
    /// Appends the payload, and returns the kind.
    fn write(&self, into: &mut PayloadWriter) -> u8;
    /// Returns the frame of this kind and payload, or `None` if there is none.
    fn parse(kind: u8, payload: &mut PayloadReader<'_>) -> Option<Self>;
}

/// Appends a frame to `bytes`.
pub(in crate::run) fn encode(frame: &impl NodeFrame, bytes: &mut Vec<u8>) {
    let mut payload = PayloadWriter::default();
    let kind = frame.write(&mut payload);
    let length = payload.bytes.len();
    assert!(length <= PAYLOAD_MAX, "a frame of {length} bytes");
    let length = u32::try_from(length).expect("checked in the line above");
    bytes.push(kind);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.append(&mut payload.bytes);
}

/// Splits pairs into frames that are not too long.
pub(in crate::run) fn pieces(pairs: PmiPairs) -> Vec<PmiPairs> {
    let mut pieces = Vec::new();
    let (mut piece, mut length) = (PmiPairs::new(), 0);
    for (name, value) in pairs {
        let more = pair_length(&name, &value);
        if length + more > PAYLOAD_MAX {
            pieces.push(std::mem::take(&mut piece));
            length = 0;
        }
        length += more;
        piece.push((name, value));
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

/// Returns the length of a pair in a frame. It is never 0, so it also bounds how many pairs there are.
pub(in crate::run) fn pair_length(name: &str, value: &str) -> usize {
    name.len() + value.len() + 8
}

/// Assembles frames from bytes as they arrive.
#[derive(Debug, Default)]
pub(in crate::run) struct FrameReader {
    bytes: Vec<u8>,
    /// Bytes at the front that belong to frames already returned.
    done: usize,
}

impl FrameReader {
    pub(in crate::run) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.done);
        self.done = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next whole frame, if it has arrived. After an error, the channel is of no more use.
    pub(in crate::run) fn next<F: NodeFrame>(&mut self) -> Result<Option<F>, String> {
        let bytes = &self.bytes[self.done..];
        let Some((&[kind, length @ ..], rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(length) as usize;
        if length > PAYLOAD_MAX {
            return Err(format!("a frame of {length} bytes, kind {kind}"));
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let mut payload = PayloadReader::new(payload);
        let frame = F::parse(kind, &mut payload).filter(|_| payload.is_empty());
        self.done += HEADER_LEN + length;
        let frame = frame.ok_or_else(|| format!("a frame of {length} bytes, kind {kind}"));
        frame.map(Some)
    }
}

const HEADER_LEN: usize = 5;

impl NodeFrame for LauncherFrame {
    fn write(&self, into: &mut PayloadWriter) -> u8 {
        match self {
            Self::Beat => 0,
            Self::Setup(piece) => {
                into.rest(piece);
                1
            }
            Self::Check => 2,
            Self::Start => 3,
            Self::Signal(signal) => {
                into.number(*signal);
                4
            }
            Self::Input(bytes) => {
                into.rest(bytes);
                5
            }
            Self::InputEnd => 6,
            Self::Credit { rank, which, bytes } => {
                into.number(*rank);
                into.byte(*which as u8);
                into.number(*bytes);
                7
            }
            Self::Pairs(pairs) => {
                write_pairs(pairs, into);
                8
            }
            Self::Release => 9,
            Self::Finish => 10,
            Self::Look(number) => {
                into.number(*number);
                11
            }
        }
    }

    fn parse(kind: u8, payload: &mut PayloadReader<'_>) -> Option<Self> {
        Some(match kind {
            0 => Self::Beat,
            1 => Self::Setup(payload.rest().to_vec()),
            2 => Self::Check,
            3 => Self::Start,
            4 => Self::Signal(payload.number()?),
            5 => Self::Input(payload.rest().to_vec()),
            6 => Self::InputEnd,
            7 => Self::Credit {
                rank: payload.number()?,
                which: stream(payload)?,
                bytes: payload.number()?,
            },
            8 => Self::Pairs(parse_pairs(payload)?),
            9 => Self::Release,
            10 => Self::Finish,
            11 => Self::Look(payload.number()?),
            _ => return None,
        })
    }
}

impl NodeFrame for HelperFrame {
    fn write(&self, into: &mut PayloadWriter) -> u8 {
        match self {
            Self::Beat => 0,
            Self::Hello { version, identity } => {
                into.text(version.as_bytes());
                into.text(identity.as_bytes());
                1
            }
            Self::Ready => 2,
            Self::Refused { code, why } => {
                into.byte(*code);
                into.text(why.as_bytes());
                3
            }
            Self::Started { rank, pid } => numbers(into, *rank, *pid, 4),
            Self::Output { rank, which, bytes } => {
                into.number(*rank);
                into.byte(*which as u8);
                into.rest(bytes);
                5
            }
            Self::Ended { rank, status } => numbers(into, *rank, *status, 6),
            Self::Line { rank, line } => number_and_text(into, *rank, line, 7),
            Self::Garbled { rank, why } => number_and_text(into, *rank, why.as_bytes(), 8),
            Self::Left { rank, how } => number_and_text(into, *rank, how.as_bytes(), 9),
            Self::Pairs(pairs) => {
                write_pairs(pairs, into);
                10
            }
            Self::Fence(ranks) => {
                ranks.iter().for_each(|&rank| into.number(rank));
                11
            }
            Self::InputCredit(bytes) => {
                into.number(*bytes);
                12
            }
            Self::InputShut => 13,
            Self::Bye => 14,
            Self::Observed {
                number,
                is_last,
                bytes,
            } => {
                into.number(*number);
                into.byte(u8::from(*is_last));
                into.rest(bytes);
                15
            }
        }
    }

    fn parse(kind: u8, payload: &mut PayloadReader<'_>) -> Option<Self> {
        Some(match kind {
            0 => Self::Beat,
            1 => Self::Hello {
                version: payload.string()?,
                identity: payload.string()?,
            },
            2 => Self::Ready,
            3 => Self::Refused {
                code: payload.byte()?,
                why: payload.string()?,
            },
            4 => Self::Started {
                rank: payload.number()?,
                pid: payload.number()?,
            },
            5 => Self::Output {
                rank: payload.number()?,
                which: stream(payload)?,
                bytes: payload.rest().to_vec(),
            },
            6 => Self::Ended {
                rank: payload.number()?,
                status: payload.number()?,
            },
            7 => Self::Line {
                rank: payload.number()?,
                line: payload.text()?.to_vec(),
            },
            8 => Self::Garbled {
                rank: payload.number()?,
                why: payload.string()?,
            },
            9 => Self::Left {
                rank: payload.number()?,
                how: payload.string()?,
            },
            10 => Self::Pairs(parse_pairs(payload)?),
            11 => Self::Fence(payload.list(PayloadReader::number)?),
            12 => Self::InputCredit(payload.number()?),
            13 => Self::InputShut,
            14 => Self::Bye,
            15 => Self::Observed {
                number: payload.number()?,
                is_last: match payload.byte()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                },
                bytes: payload.rest().to_vec(),
            },
            _ => return None,
        })
    }
}

fn numbers(into: &mut PayloadWriter, first: u32, second: u32, kind: u8) -> u8 {
    into.number(first);
    into.number(second);
    kind
}

fn number_and_text(into: &mut PayloadWriter, number: u32, text: &[u8], kind: u8) -> u8 {
    into.number(number);
    into.text(text);
    kind
}

fn write_pairs(pairs: &PmiPairs, into: &mut PayloadWriter) {
    for (name, value) in pairs {
        into.text(name.as_bytes());
        into.text(value.as_bytes());
    }
}

fn parse_pairs(payload: &mut PayloadReader<'_>) -> Option<PmiPairs> {
    payload.list(|payload| Some((word(payload)?, word(payload)?)))
}

/// Takes a text that is an attribute of PMI, and so cannot end one or begin another in an answer.
fn word(payload: &mut PayloadReader<'_>) -> Option<String> {
    payload.string().filter(|word| !word.contains([' ', '\n']))
}

fn stream(payload: &mut PayloadReader<'_>) -> Option<StdStream> {
    match payload.byte()? {
        0 => Some(StdStream::Out),
        1 => Some(StdStream::Err),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
