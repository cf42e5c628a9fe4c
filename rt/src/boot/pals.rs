//! The number of ranks in the file with which PALS, the launcher of Cray EX, describes a job to its ranks.
//!
//! PALS serves no PMI-1. With `--pmi=pmix` it is a server of PMIx, and only without that does this file show that a rank is not
//! alone.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Returns the number of ranks that the file at `path` describes; `None` if this is no such file.
pub(super) fn ranks(path: &Path) -> Option<u32> {
    if !path.metadata().ok()?.is_file() {
        return None; // Opening a pipe could take forever.
    }
    let mut header = [0; HEADER];
    File::open(path).ok()?.read_exact(&mut header).ok()?;
    let number = |at: usize| {
        let bytes = header[at..at + 4].try_into().ok()?;
        u32::try_from(i32::from_ne_bytes(bytes)).ok()
    };
    let is_known = VERSIONS.contains(&number(0)?);
    is_known.then(|| number(COUNT_AT)).flatten()
}

/// The file begins with a C structure. Its first member is the version, an `int`. The number of ranks is an `int` behind two
/// more, and seven of type `size_t`. Versions 1 to 5 agree up to there.
const COUNT_AT: usize = 80;
const HEADER: usize = COUNT_AT + 4;
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_ranks_is_read_from_a_known_header_only() {
        let path = std::env::temp_dir().join(format!("ripstop-apinfo-{}", std::process::id()));
        let read = |version: i32, count: i32, length: usize| {
            let mut file = [0; 200];
            file[..4].copy_from_slice(&version.to_ne_bytes());
            file[COUNT_AT..HEADER].copy_from_slice(&count.to_ne_bytes());
            std::fs::write(&path, &file[..length]).unwrap();
            ranks(&path)
        };
        assert_eq!(read(1, 8, 200), Some(8));
        assert_eq!(read(5, 4096, HEADER), Some(4096));
        assert_eq!(read(5, 8, HEADER - 1), None, "too short");
        assert_eq!(read(6, 8, 200), None, "a version of the future");
        assert_eq!(read(0, 8, 200), None);
        assert_eq!(read(1, -1, 200), None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(ranks(&path), None);
        assert_eq!(ranks(Path::new("/dev/zero")), None, "no regular file");
    }
}
