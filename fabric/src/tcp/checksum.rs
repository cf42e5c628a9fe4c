//! Optional checksums of frames, for networks whose switches or adapters damage what the weak checksum of TCP lets pass.
//!
//! ```text
//! fixed part 8 bytes, of which the second byte is 1 | sum of the body u32 | sum of all before the body u32 | head | body
//! ```
//!
//! The two CRC-32C have their own sums, because a head is used before its body has arrived. All ranks of a job have checksums, or
//! none has: the second byte of the first frame tells a peer's choice.

use super::frame::{FRAME_HEAD, FrameHead, FrameKind};
use crate::{
    crc::Crc32c,
    provider::{DriverSetting, parsing::one_of},
};
use bytemuck::Pod;

/// Whether frames have checksums.
pub(super) static CHECKSUM: DriverSetting = DriverSetting {
    name: "RIPSTOP_TCP_CHECKSUM",
    range: "0 | 1",
    meaning: "whether all bytes between ranks are checked by CRC-32C, for networks that damage them; the same on all ranks",
    default: "0",
    accepts: |value| one_of("0 | 1", value),
};

/// Parses a value of [`CHECKSUM`].
pub(super) fn is_on(value: &str) -> Option<bool> {
    one_of("0 | 1", value).map(|value| value == "1")
}

/// What frames of a rank look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameForm {
    /// True if they have checksums.
    pub(super) checked: bool,
}

/// The bytes of a frame before its head.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameStart {
    bytes: [u8; FRAME_HEAD + SUMS],
    len: usize,
}

/// Sums that a frame must have.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedSums {
    head: u32,
    body: u32,
}

/// The sum of a body that is arriving.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodySum {
    seen: Crc32c,
    expected: u32,
}

impl FrameForm {
    /// Returns the length of what comes before a frame's head.
    pub(super) const fn start_len(self) -> usize {
        if self.checked {
            FRAME_HEAD + SUMS
        } else {
            FRAME_HEAD
        }
    }

    /// Returns what comes before these bytes of a head. The body need not be there if frames have no checksums.
    pub(super) fn start(self, head: FrameHead, record: &[u8], body: &[u8]) -> FrameStart {
        let mut bytes = [0; FRAME_HEAD + SUMS];
        bytes[..FRAME_HEAD].copy_from_slice(&head.encode());
        if self.checked {
            bytes[1] = 1;
            let body = Crc32c::new().with(body).get();
            bytes[BODY_SUM..HEAD_SUM].copy_from_slice(&body.to_le_bytes());
            let sum = Crc32c::new().with(&bytes[..HEAD_SUM]).with(record).get();
            bytes[HEAD_SUM..].copy_from_slice(&sum.to_le_bytes());
        }
        FrameStart {
            bytes,
            len: self.start_len(),
        }
    }

    /// Returns a frame whose head is a record, without a body.
    pub(super) fn with_record(self, kind: FrameKind, record: &impl Pod) -> Vec<u8> {
        let record = bytemuck::bytes_of(record);
        let head = FrameHead::with_record(kind, record, 0);
        [self.start(head, record, &[]).as_bytes(), record].concat()
    }

    /// Reads the fixed part, or returns `None` if no rank with frames of this form writes such a frame.
    pub(super) fn decode(self, mut bytes: [u8; FRAME_HEAD]) -> Option<FrameHead> {
        let right = std::mem::take(&mut bytes[1]) == u8::from(self.checked);
        FrameHead::decode(bytes).filter(|_| right)
    }

    /// Describes what is wrong with the start of a frame that cannot be decoded.
    pub(super) fn describe_fault(self, bytes: &[u8]) -> &'static str {
        let other = Self {
            checked: !self.checked,
        };
        let head = bytes.first_chunk::<FRAME_HEAD>();
        match head.and_then(|head| other.decode(*head)) {
            Some(_) if self.checked => {
                "a frame without a checksum although RIPSTOP_TCP_CHECKSUM=1 is set here"
            }
            Some(_) => "a frame with a checksum although RIPSTOP_TCP_CHECKSUM=1 is not set here",
            None => "a frame of no kind",
        }
    }

    /// Returns the sums at the start of a frame.
    pub(super) fn sums(self, frame: &[u8]) -> Option<ExpectedSums> {
        let sum = |at: usize| Some(u32::from_le_bytes(*frame.get(at..)?.first_chunk()?));
        if !self.checked {
            return None;
        }
        Some(ExpectedSums {
            head: sum(HEAD_SUM)?,
            body: sum(BODY_SUM)?,
        })
    }
}

impl FrameStart {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl ExpectedSums {
    /// Returns true if these are the bytes of the head, and the fixed part before it, that were sent.
    pub(super) fn allow(self, head: FrameHead, record: &[u8]) -> bool {
        let mut fixed = head.encode();
        fixed[1] = 1;
        let start = Crc32c::new().with(&fixed).with(&self.body.to_le_bytes());
        start.with(record).get() == self.head
    }

    pub(super) const fn of_body(self) -> BodySum {
        BodySum {
            seen: Crc32c::new(),
            expected: self.body,
        }
    }
}

impl BodySum {
    /// Adds bytes that have arrived.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.seen = self.seen.with(bytes);
    }

    /// Returns true if all bytes are those that were sent.
    pub(super) const fn is_right(self) -> bool {
        self.seen.get() == self.expected
    }
}

/// Bytes of both sums, and where they are.
const SUMS: usize = 8;
const BODY_SUM: usize = FRAME_HEAD;
const HEAD_SUM: usize = FRAME_HEAD + 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{FrameForm, FrameKind};
    use crate::tcp::frame::FrameHead;

    const CHECKED: FrameForm = FrameForm { checked: true };

    proptest! {
        #[test]
        fn a_flipped_bit_is_seen(
            record in prop::collection::vec(any::<u8>(), 0..100),
            body in prop::collection::vec(any::<u8>(), 0..300),
            flip in any::<prop::sample::Index>(),
        ) {
            let head = FrameHead { kind: FrameKind::Message, head_len: record.len(), body_len: body.len() };
            let start = CHECKED.start(head, &record, &body);
            let mut frame = [start.as_bytes(), &record, &body].concat();
            let is_right = |frame: &[u8]| {
                let head = CHECKED.decode(*frame.first_chunk().unwrap());
                let sums = CHECKED.sums(frame).unwrap();
                let Some((record, body)) = frame[CHECKED.start_len()..].split_at_checked(record.len()) else {
                    return false;
                };
                let mut sum = sums.of_body();
                sum.add(body);
                head.is_some_and(|head| sums.allow(head, record)) && sum.is_right()
            };
            prop_assert!(is_right(&frame));
            let bit = flip.index(8 * frame.len());
            frame[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!is_right(&frame));
        }
    }

    #[test]
    fn the_other_form_is_told_from_nonsense() {
        let head = FrameHead {
            kind: FrameKind::Refused,
            head_len: 0,
            body_len: 0,
        };
        let plain = FrameForm::default();
        let [with, without] = [CHECKED, plain].map(|form| form.start(head, &[], &[]));
        assert_eq!(plain.decode(*with.as_bytes().first_chunk().unwrap()), None);
        assert!(
            plain
                .describe_fault(with.as_bytes())
                .contains("with a checksum")
        );
        assert!(
            CHECKED
                .describe_fault(without.as_bytes())
                .contains("without a checksum")
        );
        assert_eq!(CHECKED.describe_fault(&[0; 8]), "a frame of no kind");
    }
}
