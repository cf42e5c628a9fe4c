//! One number for a whole run.

use crate::driver::LocalRange;

/// A hash of everything that was mixed in, and of the order. For comparing runs, not for security.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunDigest(u64);

impl RunDigest {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed ^ 0x6a09_e667_f3bc_c908)
    }

    #[inline]
    pub(super) const fn mix(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.0 = mixed ^ (mixed >> 32);
    }

    /// Mixes in bytes and their number.
    pub(super) fn mix_bytes(&mut self, bytes: &[u8]) {
        self.mix(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks();
        words
            .iter()
            .for_each(|word| self.mix(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last));
    }

    /// Mixes in `len` bytes. `read` copies a piece of them out, from an offset on.
    pub(super) fn mix_pieces(&mut self, len: usize, read: impl Fn(usize, &mut [u8])) {
        let mut piece = [0; PIECE_LEN];
        for at in (0..len).step_by(PIECE_LEN) {
            let piece = &mut piece[..PIECE_LEN.min(len - at)];
            read(at, piece);
            self.mix_bytes(piece);
        }
    }

    /// Mixes in the bytes of a range, such as those that a put has read or a get has written.
    pub(super) fn mix_range(&mut self, range: LocalRange) {
        self.mix_pieces(range.len(), |at, piece| {
            range.slice(at, piece.len()).read(piece);
        });
    }

    pub(super) const fn get(self) -> u64 {
        self.0
    }
}

/// Bytes copied out at a time to be hashed.
const PIECE_LEN: usize = 4096;

#[cfg(test)]
mod tests {
    use super::RunDigest;

    fn of(parts: &[&[u8]]) -> u64 {
        let mut digest = RunDigest::new(1);
        parts.iter().for_each(|part| digest.mix_bytes(part));
        digest.get()
    }

    #[test]
    fn every_bit_the_order_and_the_borders_count() {
        let whole = of(&[b"one message", b"another one"]);
        assert_ne!(whole, of(&[b"another one", b"one message"]));
        assert_ne!(whole, of(&[b"one message", b"another onf"]));
        assert_ne!(whole, of(&[b"one messagea", b"nother one"]));
        assert_ne!(of(&[b""]), of(&[b"\0"]));
        assert_eq!(whole, of(&[b"one message", b"another one"]));
    }
}
