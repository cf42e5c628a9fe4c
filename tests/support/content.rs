//! Distinguishable content, and chance that can be replayed.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).expect("less than n")
    }
}

/// Returns `len` bytes that no other `key` has.
pub(crate) fn content(key: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(key.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ len as u64);
    let mut bytes = vec![0; len];
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&random.next().to_ne_bytes()[..word.len()]);
    }
    bytes
}

/// Returns `SEED` of the environment, or one of the clock. It is printed, so that a failure can be replayed.
pub(crate) fn seed(test: &str) -> u64 {
    let from_clock = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(1, |since| {
            since.as_secs() ^ u64::from(since.subsec_nanos()) << 20
        })
    };
    let given = std::env::var("SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(from_clock);
    println!("{test}: SEED={seed}");
    seed
}
