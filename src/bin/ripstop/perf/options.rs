//! Options that the measurements share.

use clap::value_parser;

/// The number of samples, and the form of the output.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct CommonOptions {
    /// Samples per line [default: by size]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    pub(super) iters: Option<u64>,

    /// Samples that are thrown away before the first one counts [default: a tenth of --iters, and a few more]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(0..=1_000_000_000))]
    pub(super) warmup: Option<u64>,

    /// Print one JSON object per line instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

impl CommonOptions {
    /// Returns the round trips for messages of `size` bytes; the same numbers as in `benches/compare`.
    pub(super) fn iters(&self, size: usize) -> u64 {
        self.iters.unwrap_or(match size {
            0..=8192 => 20_000,
            8193..=131_072 => 4_000,
            131_073..=1_048_576 => 600,
            _ => 150,
        })
    }

    /// Returns the windows of messages of `size` bytes.
    pub(super) fn windows(&self, size: usize) -> u64 {
        self.iters.unwrap_or_else(|| self.iters(size) / 8)
    }

    /// Returns the windows of one-sided operations on blocks of `size` bytes; the same numbers as in `benches/compare`.
    pub(super) fn onesided_windows(&self, size: usize) -> u64 {
        self.iters.unwrap_or_else(|| self.iters(size) / 16)
    }

    /// Returns the samples to throw away if `iters` count.
    pub(super) fn warmup(&self, iters: u64, least: u64) -> u64 {
        self.warmup.unwrap_or(iters / 10 + least)
    }
}

/// Parses a number of bytes: `4096`, `4K`, `4KiB`, `1M`, `64MiB`, `1G`; the units are powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    bytes_up_to(SIZE_MAX, text)
}

/// Like [`bytes`], with another limit.
pub(crate) fn bytes_up_to(most: usize, text: &str) -> Result<usize, String> {
    let wrong = || format!("expected 1 to {most} bytes, such as 8, 4096, 64K or 1MiB");
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "" | "B" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    let size = number
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_mul(factor));
    size.filter(|size| (1..=most).contains(size))
        .ok_or_else(wrong)
}

/// The limit of measurements that need just one buffer; a window of 64 needs as many buffers.
const SIZE_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_bytes_or_carry_a_unit() {
        assert_eq!(bytes("8"), Ok(8));
        assert_eq!(bytes("64K"), Ok(65_536));
        assert_eq!(bytes("64 MiB"), Ok(64 << 20));
        for text in ["", "0", "x", "-1", "1.5K", "2G", "99999999999999999999G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
