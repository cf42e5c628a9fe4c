//! CRC-32C, by which receivers detect flipped bits.

/// The checksum of iSCSI and SCTP (Castagnoli's polynomial, reflected), computed over bytes in parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crc32c(u32);

impl Crc32c {
    pub(crate) const fn new() -> Self {
        Self(!0)
    }

    /// Adds more bytes.
    #[must_use]
    pub(crate) fn with(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks();
        let crc = words.iter().fold(self.0, |crc, word| add_word(crc, *word));
        Self(rest.iter().fold(crc, |crc, byte| add_byte(crc, *byte)))
    }

    pub(crate) const fn get(self) -> u32 {
        !self.0
    }
}

fn add_byte(crc: u32, byte: u8) -> u32 {
    let [low, ..] = (crc ^ u32::from(byte)).to_le_bytes();
    TABLES[0][usize::from(low)] ^ (crc >> 8)
}

/// Adds eight bytes with look-ups that need not wait for each other.
fn add_word(crc: u32, word: [u8; 8]) -> u32 {
    let word = u64::from_le_bytes(word) ^ u64::from(crc);
    let tables = TABLES.iter().rev();
    tables
        .zip(word.to_le_bytes())
        .fold(0, |sum, (table, byte)| sum ^ table[usize::from(byte)])
}

/// For each number of zero bytes behind a byte, the checksum that the byte leaves.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0_u32;
    while byte < 256 {
        let mut crc = byte;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][byte as usize] = crc;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before: u32 = tables[zeros - 1][byte];
            tables[zeros][byte] = tables[0][(before & 0xff) as usize] ^ (before >> 8);
            byte += 1;
        }
        zeros += 1;
    }
    tables
}

const POLYNOMIAL: u32 = 0x82f6_3b78;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Crc32c;

    fn of(bytes: &[u8]) -> u32 {
        Crc32c::new().with(bytes).get()
    }

    /// Checks the vectors of RFC 3720, B.4, and the usual check value.
    #[test]
    fn the_known_vectors_come_out() {
        assert_eq!(of(b"123456789"), 0xe306_9283);
        assert_eq!(of(&[0; 32]), 0x8a91_36aa);
        assert_eq!(of(&[0xff; 32]), 0x62a8_ab43);
        let up: Vec<u8> = (0..32).collect();
        let down: Vec<u8> = (0..32).rev().collect();
        assert_eq!((of(&up), of(&down)), (0x46dd_794e, 0x113f_db5c));
        assert_eq!(of(b""), 0);
    }

    proptest! {
        #[test]
        fn parts_give_the_same_as_the_whole(
            bytes in prop::collection::vec(any::<u8>(), 0..300), cut in any::<prop::sample::Index>()
        ) {
            let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(Crc32c::new().with(head).with(tail).get(), of(&bytes));
        }

        #[test]
        fn up_to_three_flipped_bits_are_seen(
            bytes in prop::collection::vec(any::<u8>(), 1..2000),
            flips in prop::collection::vec(any::<prop::sample::Index>(), 1..=3)
        ) {
            let mut damaged = bytes.clone();
            for flip in flips {
                let bit = flip.index(8 * bytes.len());
                damaged[bit / 8] ^= 1 << (bit % 8);
            }
            prop_assume!(damaged != bytes);
            prop_assert_ne!(of(&damaged), of(&bytes));
        }
    }
}
