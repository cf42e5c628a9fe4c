//! An archive that the kernel unpacks into its first file system: cpio, format `newc`.

use std::fmt::Write as _;

/// An archive that is being built.
#[derive(Debug, Default)]
pub(super) struct CpioArchive {
    bytes: Vec<u8>,
    entries: u32,
}

impl CpioArchive {
    /// Adds a folder; its parent must exist.
    pub(super) fn folder(&mut self, path: &str) {
        self.entry(path, 0o040_755, &[]);
    }

    /// Adds an executable file.
    pub(super) fn program(&mut self, path: &str, content: &[u8]) {
        self.entry(path, 0o100_755, content);
    }

    /// Returns the whole archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let links = 1;
        let (uid, gid, time, device) = (0, 0, 0, 0);
        let mut header = String::from("070701");
        for field in [self.entries, mode, uid, gid, links, time, size(content)] {
            hex(&mut header, field);
        }
        for field in [device, device, device, device, size(path.as_bytes()) + 1, 0] {
            hex(&mut header, field);
        }
        self.bytes.extend(header.bytes());
        self.bytes.extend(path.bytes().chain([0]));
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

fn hex(header: &mut String, field: u32) {
    write!(header, "{field:08X}").expect("writing to a string never fails");
}

fn size(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("no file of a first file system has 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::CpioArchive;

    #[test]
    fn every_part_of_an_archive_begins_at_a_multiple_of_four() {
        let mut archive = CpioArchive::default();
        archive.folder("bin");
        archive.program("bin/ab", b"12345");
        let bytes = archive.finish();
        let starts: Vec<usize> = (0..bytes.len())
            .filter(|&at| bytes[at..].starts_with(b"070701"))
            .collect();
        // A header has 110 bytes: "bin" and its end make 114, so 116; the next has 117, so 120, and 5 more, so 128.
        assert_eq!(starts, [0, 116, 244]);
        assert_eq!(&bytes[116 + 54..116 + 62], b"00000005");
        assert!(bytes.len().is_multiple_of(4));
    }
}
