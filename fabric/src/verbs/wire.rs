//! Wire format of a connection: a head of eight bytes, then the content for its kind.
//!
//! ```text
//! kind u8 | header length u8 | credits u16 | 0 u32          little-endian
//! message: header, body             release, released: slot u32, generation u32
//! credit, wake, hello: nothing             goodbye: 0 finished, 1 failed: u8
//! lane report: failed u8, closed u8, arrived u64     lane goodbye: as goodbye, arrived u64
//! resolve name, name retired: name u64      count: which u32, by u64
//! name resolved: name u64, slot u32, generation u32, address u64, key u32, length u64, host_counts u8
//! ```
//! Each of them except the lane report and the lane goodbye takes a credit, which is a buffer that the receiver keeps for this
//! sender. `credits` gives back buffers that are free again.

use super::{
    host_counters::CounterId,
    named_regions::NameAnswer,
    objects::RemoteAddress,
    regions::{MemoryTarget, RegionEntry, SLOTS},
};
use crate::{driver::DownCause, lanes::LaneSet};

/// Name of a region at its owner: a slot, and its generation there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RegionId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// A control word from one driver to another. Messages of the application are separate, because they are not copied first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VerbsControlWord {
    /// Gives back credits, and nothing else.
    Credit,
    /// The sender has connected its queue pairs. It comes before all others, and only on connections that were not asked for.
    Hello,
    /// The receiver must stop using this region of the sender, and answer `RegionReleased`.
    ReleaseRegion(RegionId),
    /// The sender does not use this region any more.
    RegionReleased(RegionId),
    /// A counter of the receiver has reached the threshold that it waits for.
    Wake,
    /// Asks which region has this name.
    ResolveName(u64),
    /// Answers which region has a name.
    NameResolved(NameAnswer),
    /// The name was taken back.
    NameRetired(u64),
    /// Asks the receiver to add to one of its counters.
    Count { tally: CounterId, by: u64 },
    /// Goodbye: the sender ends.
    Goodbye(DownCause),
    /// Some lanes do not work.
    LaneReport(VerbsLaneReport),
    /// Goodbye by lanes that messages do not go by, of which `sent` come before it.
    LaneGoodbye { how: DownCause, sent: u64 },
}

/// Report of a rank to a peer about the lanes between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VerbsLaneReport {
    pub(super) lanes: crate::lanes::LaneReport,
    /// Messages and control words of the peer that have arrived, by closed lanes and others.
    pub(super) arrived: u64,
}

/// Something that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VerbsArrival {
    /// A message with a header of this many bytes, which begins after the head.
    Message {
        header: usize,
    },
    Control(VerbsControlWord),
}

/// The bytes are neither a message nor a control word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VerbsWireError;

/// Returns the head of a message.
pub(super) fn message_head(header: usize, credits: u16) -> [u8; HEAD] {
    head(MESSAGE, u8::try_from(header).unwrap_or(u8::MAX), credits)
}

fn head(kind: u8, header: u8, credits: u16) -> [u8; HEAD] {
    let [low, high] = credits.to_le_bytes();
    [kind, header, low, high, 0, 0, 0, 0]
}

impl VerbsControlWord {
    /// Writes the wire form to `bytes`. Returns its length.
    pub(super) fn encode(self, credits: u16, bytes: &mut [u8; WORD_MAX]) -> usize {
        let mut put =
            |at: usize, word: &[u8]| bytes[HEAD + at..][..word.len()].copy_from_slice(word);
        let (kind, len) = match self {
            Self::Credit => (CREDIT, 0),
            Self::Wake => (WAKE, 0),
            Self::Hello => (HELLO, 0),
            Self::Goodbye(how) => {
                put(0, &[u8::from(how != DownCause::Finished)]);
                (BYE, 1)
            }
            Self::LaneReport(VerbsLaneReport {
                lanes,
                arrived: heard,
            }) => {
                put(0, &[lanes.failed.bits(), lanes.closed.bits()]);
                put(2, &heard.to_le_bytes());
                (LANES, 10)
            }
            Self::LaneGoodbye { how, sent } => {
                put(0, &[u8::from(how != DownCause::Finished)]);
                put(1, &sent.to_le_bytes());
                (END, 9)
            }
            Self::ResolveName(name) | Self::NameRetired(name) => {
                put(0, &name.to_le_bytes());
                let asks = matches!(self, Self::ResolveName(_));
                (if asks { ASK } else { UNNAMED }, 8)
            }
            Self::NameResolved(named) => {
                let RegionEntry {
                    generation,
                    place,
                    len,
                    host_counts: told,
                } = named.entry;
                put(0, &named.name.to_le_bytes());
                put(8, &named.slot.to_le_bytes());
                put(12, &generation.to_le_bytes());
                put(16, &place.address.to_le_bytes());
                put(24, &place.keys[0].to_le_bytes()); // lists go by the first device
                put(28, &len.to_le_bytes());
                put(36, &[u8::from(told)]);
                (NAMED, 37)
            }
            Self::Count { tally, by } => {
                put(0, &tally.0.to_le_bytes());
                put(4, &by.to_le_bytes());
                (COUNT, 12)
            }
            Self::ReleaseRegion(name) | Self::RegionReleased(name) => {
                put(0, &name.slot.to_le_bytes());
                put(4, &name.generation.to_le_bytes());
                (
                    if self == Self::ReleaseRegion(name) {
                        FORGET
                    } else {
                        FORGOT
                    },
                    8,
                )
            }
        };
        bytes[..HEAD].copy_from_slice(&head(kind, 0, credits));
        HEAD + len
    }
}

/// Reads a head and, of a control word, its content. `len` bytes arrived, and `first` holds the first of them.
pub(super) fn parse(
    first: &[u8; WORD_MAX],
    len: usize,
) -> Result<(VerbsArrival, u16), VerbsWireError> {
    let rest = len.checked_sub(HEAD).ok_or(VerbsWireError)?;
    let [kind, header, low, high, ..] = *first;
    let credits = u16::from_le_bytes([low, high]);
    let name = RegionId {
        slot: word(first, 0),
        generation: word(first, 4),
    };
    let (arrival, expected) = match kind {
        MESSAGE if usize::from(header) <= rest => {
            return Ok((
                VerbsArrival::Message {
                    header: header.into(),
                },
                credits,
            ));
        }
        CREDIT => (VerbsControlWord::Credit, 0),
        WAKE => (VerbsControlWord::Wake, 0),
        HELLO => (VerbsControlWord::Hello, 0),
        BYE => (VerbsControlWord::Goodbye(how(first)), 1),
        END => (
            VerbsControlWord::LaneGoodbye {
                how: how(first),
                sent: long(first, 1),
            },
            9,
        ),
        FORGET | FORGOT if name.slot >= SLOTS => return Err(VerbsWireError),
        FORGET => (VerbsControlWord::ReleaseRegion(name), 8),
        FORGOT => (VerbsControlWord::RegionReleased(name), 8),
        ASK => (VerbsControlWord::ResolveName(long(first, 0)), 8),
        UNNAMED => (VerbsControlWord::NameRetired(long(first, 0)), 8),
        NAMED if word(first, 8) >= SLOTS => return Err(VerbsWireError),
        NAMED => (VerbsControlWord::NameResolved(named(first)), 37),
        COUNT => (
            VerbsControlWord::Count {
                tally: CounterId(word(first, 0)),
                by: long(first, 4),
            },
            12,
        ),
        LANES => (VerbsControlWord::LaneReport(said(first)), 10),
        _ => return Err(VerbsWireError),
    };
    (rest == expected)
        .then_some((VerbsArrival::Control(arrival), credits))
        .ok_or(VerbsWireError)
}

fn word(first: &[u8; WORD_MAX], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|nth| first[HEAD + at + nth]))
}

fn long(first: &[u8; WORD_MAX], at: usize) -> u64 {
    u64::from(word(first, at)) | u64::from(word(first, at + 4)) << 32
}

fn how(first: &[u8; WORD_MAX]) -> DownCause {
    match first[HEAD] {
        0 => DownCause::Finished,
        _ => DownCause::Failed,
    }
}

fn named(first: &[u8; WORD_MAX]) -> NameAnswer {
    let place = RemoteAddress {
        address: long(first, 16),
        key: word(first, 24),
    };
    let (generation, len) = (word(first, 12), long(first, 28));
    NameAnswer {
        name: long(first, 0),
        slot: word(first, 8),
        entry: RegionEntry {
            generation,
            place: MemoryTarget::by_first(place),
            len,
            host_counts: first[HEAD + 36] != 0,
        },
    }
}

fn said(first: &[u8; WORD_MAX]) -> VerbsLaneReport {
    let set = |at: usize| LaneSet::from_bits(first[HEAD + at]);
    VerbsLaneReport {
        lanes: crate::lanes::LaneReport {
            failed: set(0),
            closed: set(1),
        },
        arrived: long(first, 2),
    }
}

/// Offset of the credits in a head.
pub(super) const CREDITS_AT: usize = 2;
/// Bytes of the head.
pub(super) const HEAD: usize = 8;
/// Bytes of the longest control word.
pub(super) const WORD_MAX: usize = HEAD + 37;

const MESSAGE: u8 = 1;
const CREDIT: u8 = 2;
const FORGET: u8 = 3;
const FORGOT: u8 = 4;
const WAKE: u8 = 5;
const BYE: u8 = 6;
const ASK: u8 = 7;
const NAMED: u8 = 8;
const UNNAMED: u8 = 9;
const LANES: u8 = 10;
const COUNT: u8 = 11;
const END: u8 = 12;
const HELLO: u8 = 13;

#[cfg(test)]
mod tests {
    use super::{
        CounterId, DownCause, HEAD, LaneSet, MemoryTarget, NameAnswer, RegionEntry, RegionId,
        RemoteAddress, SLOTS, VerbsArrival, VerbsControlWord, VerbsLaneReport, VerbsWireError,
        WORD_MAX, message_head, parse,
    };
    use crate::random::SeededRandom;

    const NAME: RegionId = RegionId {
        slot: 7,
        generation: 0x8000_0001,
    };

    const SAID: VerbsLaneReport = VerbsLaneReport {
        lanes: crate::lanes::LaneReport {
            failed: LaneSet::from_bits(0b1011),
            closed: LaneSet::from_bits(0b1001),
        },
        arrived: 0x0123_4567_89ab_cdef,
    };

    const NAMED: NameAnswer = NameAnswer {
        name: 0xfeed_0000_0000_beef,
        slot: 7,
        entry: RegionEntry {
            generation: 5,
            place: MemoryTarget::by_first(RemoteAddress {
                address: 0x7f00_1234_5000,
                key: 0x8765_4321,
            }),
            len: 1 << 33,
            host_counts: true,
        },
    };

    #[test]
    fn every_word_arrives_as_it_was_said() {
        for word in [
            VerbsControlWord::Credit,
            VerbsControlWord::ReleaseRegion(NAME),
            VerbsControlWord::RegionReleased(NAME),
            VerbsControlWord::Wake,
            VerbsControlWord::Hello,
            VerbsControlWord::ResolveName(0x0123_4567_89ab_cdef),
            VerbsControlWord::NameResolved(NAMED),
            VerbsControlWord::NameRetired(u64::MAX),
            VerbsControlWord::Count {
                tally: CounterId(0xfedc_ba98),
                by: u64::MAX - 1,
            },
            VerbsControlWord::Goodbye(DownCause::Finished),
            VerbsControlWord::Goodbye(DownCause::Failed),
            VerbsControlWord::LaneReport(SAID),
            VerbsControlWord::LaneGoodbye {
                how: DownCause::Failed,
                sent: u64::MAX - 1,
            },
        ] {
            let mut bytes = [0; WORD_MAX];
            let len = word.encode(513, &mut bytes);
            assert_eq!(parse(&bytes, len), Ok((VerbsArrival::Control(word), 513)));
            assert_eq!(
                parse(&bytes, len + 1),
                Err(VerbsWireError),
                "{word:?} and more"
            );
            assert_eq!(
                parse(&bytes, len - 1),
                Err(VerbsWireError),
                "{word:?} cut short"
            );
        }
    }

    /// State about regions is kept by slot.
    #[test]
    fn a_word_about_a_slot_that_no_table_has_is_refused() {
        for (slot, exists) in [(SLOTS - 1, true), (SLOTS, false), (u32::MAX, false)] {
            let name = RegionId { slot, ..NAME };
            let named = NameAnswer { slot, ..NAMED };
            for word in [
                VerbsControlWord::ReleaseRegion(name),
                VerbsControlWord::RegionReleased(name),
                VerbsControlWord::NameResolved(named),
            ] {
                let mut bytes = [0; WORD_MAX];
                let len = word.encode(0, &mut bytes);
                assert_eq!(parse(&bytes, len).is_ok(), exists, "{word:?}");
            }
        }
    }

    #[test]
    fn a_header_that_is_longer_than_its_message_is_refused() {
        let mut bytes = [0; WORD_MAX];
        bytes[..HEAD].copy_from_slice(&message_head(24, 3));
        assert_eq!(
            parse(&bytes, HEAD + 24),
            Ok((VerbsArrival::Message { header: 24 }, 3))
        );
        assert_eq!(parse(&bytes, HEAD + 23), Err(VerbsWireError));
        assert_eq!(parse(&bytes, HEAD - 1), Err(VerbsWireError));
        assert_eq!(parse(&bytes, 0), Err(VerbsWireError));
    }

    #[test]
    fn noise_is_refused_or_a_word_but_never_a_panic() {
        let mut random = SeededRandom::new(3);
        let mut bytes = [0; WORD_MAX];
        for _ in 0..10_000 {
            random.fill(&mut bytes);
            bytes[0] %= 14;
            let len = usize::try_from(random.within(0..100)).unwrap();
            let _no_panic = parse(&bytes, len);
        }
    }
}
