//! The frames of a handshake, as bytes of a fixed length, and the proofs over them.
//!
//! ```text
//! magic 8 bytes | version u16 | kind u8 | 0 u8 | from: rank u32, incarnation u32 | to: rank u32, incarnation u32
//! 0 4 bytes | nonce 16 bytes | proof 16 bytes | all little-endian
//! ```
//!
//! Magic, version and kind keep their places in all versions, so that ranks of two versions can tell each other theirs.

use std::{hash::Hasher, hint};

use siphasher::sip128::{Hasher128, SipHasher24};

use super::{GiveUpReason, RankGoodbye, SIGNED_LEN};

/// A run of a rank. Two runs of one rank have different incarnations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct TcpIdentity {
    pub(in crate::tcp) rank: u32,
    pub(in crate::tcp) incarnation: u32,
}

/// What both sides send first, without its proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HelloFrame {
    pub(super) kind: HelloKind,
    pub(super) from: TcpIdentity,
    pub(super) to: TcpIdentity,
    pub(super) nonce: [u8; 16],
}

/// Meaning of a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum HelloKind {
    /// The connecting side asks.
    Dial = 1,
    /// The listening side agrees.
    Accepted = 2,
    /// The listening side is another run than the one that was asked for, or knows another run of the connecting rank.
    OtherIncarnation = 3,
    /// The two ranks have a connection already, or are about to have one that was opened by the listening side.
    Duplicate = 4,
    /// The listening side cannot read the hello. Its own version is in this one.
    OtherVersion = 5,
    /// The connecting side leaves the job because it has finished.
    Finished = 6,
    /// The connecting side leaves the job because it has failed.
    Failed = 7,
    /// The connecting side has given the listening side up, because long packets do not arrive.
    GaveUpLongPackets = 8,
    /// The connecting side has given the listening side up, because what that has sent was damaged.
    GaveUpDamaged = 9,
    /// The connecting side has given the listening side up, because that has sent what no rank sends.
    GaveUpNonsense = 10,
}

/// What the first bytes of a hello say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HelloStart {
    /// Nothing is wrong so far.
    Plausible,
    /// The bytes come from something that is no rank.
    Stranger,
    /// The bytes come from a rank of this version.
    Version(u16),
}

/// Which proof this is. No proof of one use is valid for another.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum ProofUse {
    /// The connecting side knows the token. Its hello can be replayed, so this alone proves little.
    Hello = 1,
    /// The listening side knows the token, and answers this hello.
    Answer = 2,
    /// The connecting side knows the token, and has seen this answer.
    Confirm = 3,
}

impl HelloFrame {
    pub(super) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(10, &[self.kind as u8]);
        put(12, &self.from.rank.to_le_bytes());
        put(16, &self.from.incarnation.to_le_bytes());
        put(20, &self.to.rank.to_le_bytes());
        put(24, &self.to.incarnation.to_le_bytes());
        put(32, &self.nonce);
        bytes
    }

    /// Decodes a hello. Returns none if no [`encode`](Self::encode) of this version returns these bytes.
    pub(super) fn decode(bytes: &[u8; HELLO_LEN]) -> Option<Self> {
        let identity = |at: usize| TcpIdentity {
            rank: u32::from_le_bytes(field(bytes, at)),
            incarnation: u32::from_le_bytes(field(bytes, at + 4)),
        };
        let hello = Self {
            kind: HelloKind::of(bytes[10])?,
            from: identity(12),
            to: identity(20),
            nonce: field(bytes, 32),
        };
        (hello.encode() == *bytes).then_some(hello)
    }

    /// Returns the bytes of the connecting side's hello, and of its proof.
    pub(super) fn signed(&self, token: &[u8; 16]) -> [u8; SIGNED_LEN] {
        let bytes = self.encode();
        let mut signed = [0; SIGNED_LEN];
        signed[..HELLO_LEN].copy_from_slice(&bytes);
        signed[HELLO_LEN..].copy_from_slice(&proof(token, ProofUse::Hello, &[&bytes]));
        signed
    }
}

impl HelloKind {
    const ALL: [Self; 10] = [
        Self::Dial,
        Self::Accepted,
        Self::OtherIncarnation,
        Self::Duplicate,
        Self::OtherVersion,
        Self::Finished,
        Self::Failed,
        Self::GaveUpLongPackets,
        Self::GaveUpDamaged,
        Self::GaveUpNonsense,
    ];

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Returns the goodbye of the connecting side, if the hello is one.
    pub(super) const fn goodbye(self) -> Option<RankGoodbye> {
        Some(match self {
            Self::Finished => RankGoodbye::Finished,
            Self::Failed => RankGoodbye::Failed,
            Self::GaveUpLongPackets => RankGoodbye::GaveUp(GiveUpReason::LongPackets),
            Self::GaveUpDamaged => RankGoodbye::GaveUp(GiveUpReason::Damaged),
            Self::GaveUpNonsense => RankGoodbye::GaveUp(GiveUpReason::Nonsense),
            Self::Dial
            | Self::Accepted
            | Self::OtherIncarnation
            | Self::Duplicate
            | Self::OtherVersion => return None,
        })
    }

    /// Returns the kind of a hello that is this goodbye.
    pub(super) const fn of_goodbye(goodbye: RankGoodbye) -> Self {
        match goodbye {
            RankGoodbye::Finished => Self::Finished,
            RankGoodbye::Failed => Self::Failed,
            RankGoodbye::GaveUp(GiveUpReason::LongPackets) => Self::GaveUpLongPackets,
            RankGoodbye::GaveUp(GiveUpReason::Damaged) => Self::GaveUpDamaged,
            RankGoodbye::GaveUp(GiveUpReason::Nonsense) => Self::GaveUpNonsense,
        }
    }
}

impl HelloStart {
    /// Judges the bytes of a hello that have arrived so far.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let len = bytes.len().min(MAGIC.len());
        if bytes[..len] != MAGIC[..len] {
            return Self::Stranger;
        }
        let version = bytes.get(8..10).and_then(<[u8]>::first_chunk);
        version.map_or(Self::Plausible, |version| {
            Self::Version(u16::from_le_bytes(*version))
        })
    }
}

/// Returns the proof that a rank knows `token`, for these hellos.
pub(super) fn proof(
    token: &[u8; 16],
    of: ProofUse,
    hellos: &[&[u8; HELLO_LEN]],
) -> [u8; PROOF_LEN] {
    let mut mac = SipHasher24::new_with_key(token);
    mac.write(&[of as u8]);
    for hello in hellos {
        mac.write(*hello);
    }
    mac.finish128().as_bytes()
}

/// Compares two proofs in a time that does not tell where they differ, which would let a stranger guess byte by byte.
pub(super) fn same_proof(left: &[u8; PROOF_LEN], right: &[u8; PROOF_LEN]) -> bool {
    let pairs = left.iter().zip(right);
    let differing = pairs.fold(0, |bits, (left, right)| {
        hint::black_box(bits | (left ^ right))
    });
    differing == 0
}

pub(super) fn field<const LEN: usize>(bytes: &[u8], at: usize) -> [u8; LEN] {
    let mut field = [0; LEN];
    field.copy_from_slice(&bytes[at..at + LEN]);
    field
}

/// Version of the handshake and of the frames that follow it. It stays the same when a change also raises the version of
/// addresses: a rank reads the addresses of its peers before it connects to any, so ranks of two builds differ there already.
pub(super) const VERSION: u16 = 1;

/// Bytes of a hello without its proof.
pub(super) const HELLO_LEN: usize = 48;

/// Bytes of a proof.
pub(super) const PROOF_LEN: usize = 16;

/// The first byte is no letter, so that text is recognized as a stranger's at once.
const MAGIC: [u8; 8] = *b"\xb5RipTCP\n";

#[cfg(test)]
mod tests {
    use super::{
        HELLO_LEN, HelloFrame, HelloKind, HelloStart, ProofUse, TcpIdentity, VERSION, proof,
        same_proof,
    };
    use siphasher::sip128::{Hasher128, SipHasher24};
    use std::hash::Hasher;

    fn example(kind: HelloKind) -> HelloFrame {
        HelloFrame {
            kind,
            from: TcpIdentity {
                rank: 1,
                incarnation: 2,
            },
            to: TcpIdentity {
                rank: 3,
                incarnation: 4,
            },
            nonce: [5; 16],
        }
    }

    #[test]
    fn a_hello_is_read_as_it_was_written_and_nothing_else_is() {
        for kind in HelloKind::ALL {
            let hello = example(kind);
            let bytes = hello.encode();
            assert_eq!(HelloFrame::decode(&bytes), Some(hello));
            assert_eq!(HelloStart::of(&bytes), HelloStart::Version(VERSION));
        }
        let good = example(HelloKind::Dial).encode();
        for at in [0, 7, 8, 9, 11, 28, 31] {
            let mut bytes = good;
            bytes[at] ^= 0x40;
            assert_eq!(HelloFrame::decode(&bytes), None, "byte {at}");
        }
        for kind in [0, 11, 255] {
            let mut bytes = good;
            bytes[10] = kind;
            assert_eq!(HelloFrame::decode(&bytes), None, "kind {kind}");
        }
    }

    #[test]
    fn strangers_are_recognized_by_the_first_byte_that_is_wrong() {
        let good = example(HelloKind::Dial).encode();
        assert_eq!(HelloStart::of(&[]), HelloStart::Plausible);
        assert_eq!(HelloStart::of(&good[..9]), HelloStart::Plausible);
        assert_eq!(HelloStart::of(b"G"), HelloStart::Stranger);
        assert_eq!(HelloStart::of(&[0]), HelloStart::Stranger);
        let mut late = good;
        late[7] = 0;
        assert_eq!(HelloStart::of(&late[..7]), HelloStart::Plausible);
        assert_eq!(HelloStart::of(&late[..8]), HelloStart::Stranger);
    }

    /// Checks the first vector of the authors of SipHash for 128 bits.
    #[test]
    fn the_hash_is_siphash_2_4_with_128_bits() {
        let key = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let empty = SipHasher24::new_with_key(&key).finish128().as_bytes();
        let expected = [
            0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55,
            0x02, 0x93,
        ];
        assert_eq!(empty, expected);
        let hello = example(HelloKind::Dial).encode();
        let mut whole = SipHasher24::new_with_key(&key);
        whole.write(&[&[1], &hello[..]].concat());
        let whole = whole.finish128().as_bytes();
        assert_eq!(proof(&key, ProofUse::Hello, &[&hello]), whole);
    }

    #[test]
    fn every_bit_of_key_use_and_hellos_counts_in_a_proof() {
        let (token, hello) = ([9; 16], example(HelloKind::Dial).encode());
        let answer = example(HelloKind::Accepted).encode();
        let right = proof(&token, ProofUse::Answer, &[&hello, &answer]);
        assert!(same_proof(&right, &right));
        let mut wrong = vec![
            proof(&token, ProofUse::Confirm, &[&hello, &answer]),
            proof(&token, ProofUse::Hello, &[&hello, &answer]),
            proof(&token, ProofUse::Answer, &[&answer, &hello]),
            proof(&token, ProofUse::Answer, &[&hello]),
        ];
        for bit in 0..8 * HELLO_LEN {
            let mut flipped = hello;
            flipped[bit / 8] ^= 1 << (bit % 8);
            wrong.push(proof(&token, ProofUse::Answer, &[&flipped, &answer]));
        }
        for bit in 0..128 {
            let mut flipped = token;
            flipped[bit / 8] ^= 1 << (bit % 8);
            wrong.push(proof(&flipped, ProofUse::Answer, &[&hello, &answer]));
            let mut flipped = right;
            flipped[bit / 8] ^= 1 << (bit % 8);
            wrong.push(flipped);
        }
        assert!(wrong.iter().all(|wrong| !same_proof(&right, wrong)));
    }
}
