//! The kernel inside a kernel image.
//!
//! An image unpacks itself when it starts, which takes seconds in emulation. QEMU can start the ELF file inside directly, so it
//! is extracted here once.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Writes the ELF file inside `image` to `elf`.
pub(super) fn unpack(image: &Path, elf: &Path) -> Result<(), String> {
    let bytes = fs::read(image).map_err(|why| format!("{}: {why}", image.display()))?;
    let payload = payload(&bytes)
        .ok_or_else(|| format!("{} is not a kernel image of x86", image.display()))?;
    let unpacker = unpacker(payload)
        .ok_or_else(|| format!("{} is packed in a way unknown here", image.display()))?;
    decompress(unpacker, payload, elf)?;
    let head = fs::read(elf).map_err(|why| format!("{}: {why}", elf.display()))?;
    if head.starts_with(b"\x7fELF") {
        Ok(())
    } else {
        Err(format!("{} has no ELF file inside", image.display()))
    }
}

/// Unpacks `packed` with `unpacker`, and writes the result to a file.
pub(super) fn decompress(unpacker: &str, packed: &[u8], to: &Path) -> Result<(), String> {
    let named = |why: std::io::Error| format!("{unpacker} to {}: {why}", to.display());
    let mut child = Command::new(unpacker)
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(File::create(to).map_err(named)?)
        .spawn()
        .map_err(named)?;
    let mut input = child.stdin.take().ok_or("no input to write")?;
    input.write_all(packed).map_err(named)?;
    drop(input);
    let status = child.wait().map_err(named)?;
    if status.success() {
        Ok(())
    } else {
        Err(format!(
            "{unpacker} cannot unpack to {}: {status}",
            to.display()
        ))
    }
}

/// Returns the program that unpacks data with this beginning.
fn unpacker(packed: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], _); 3] = [
        (b"\xfd7zXZ\0", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\x1f\x8b", "gzip"),
    ];
    known
        .iter()
        .find(|(magic, _)| packed.starts_with(magic))
        .map(|(_, unpacker)| *unpacker)
}

/// Returns the packed kernel, found as the kernel's documentation of the x86 boot protocol says.
fn payload(image: &[u8]) -> Option<&[u8]> {
    if image.get(MAGIC..MAGIC + 4)? != b"HdrS" {
        return None;
    }
    // Zero sectors mean four, for compatibility with old kernels.
    let sectors = match *image.get(SETUP_SECTORS)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = ((sectors + 1) * SECTOR).checked_add(word(image, PAYLOAD_OFFSET)?)?;
    let end = start.checked_add(word(image, PAYLOAD_LENGTH)?)?;
    // The last four bytes are the unpacked size.
    image.get(start..end.checked_sub(4)?)
}

fn word(image: &[u8], at: usize) -> Option<usize> {
    let bytes = image.get(at..at + 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

const SECTOR: usize = 512;
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

#[cfg(test)]
mod tests {
    use super::{MAGIC, PAYLOAD_LENGTH, PAYLOAD_OFFSET, SETUP_SECTORS, payload, unpacker};

    fn image(length: u32) -> Vec<u8> {
        let mut image = vec![0; 2048];
        image[SETUP_SECTORS] = 1;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&16u32.to_le_bytes());
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
        image[1024 + 16..1024 + 18].copy_from_slice(b"\x1f\x8b");
        image
    }

    #[test]
    fn the_payload_is_where_the_header_says_without_its_size() {
        let image = image(104);
        let packed = payload(&image).unwrap();
        assert_eq!((packed.len(), unpacker(packed)), (100, Some("gzip")));
    }

    #[test]
    fn a_header_that_points_outside_is_refused() {
        for length in [0, 3, 2048, u32::MAX] {
            assert_eq!(payload(&image(length)), None, "{length}");
        }
        assert_eq!(payload(b"short"), None);
        assert_eq!(unpacker(b"unknown"), None);
    }
}
