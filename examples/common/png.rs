//! PNG pictures, stored without compression, and colors for signed values.

use std::{fs, io, path::Path};

/// Writes a picture of 8-bit pixels, red, green and blue, row by row from the top.
///
/// # Errors
/// `rgb` is not `3 * width * height` long, or an edge is 0 or more than PNG allows; otherwise those of writing the file.
pub(crate) fn write_png(path: &Path, width: usize, height: usize, rgb: &[u8]) -> io::Result<()> {
    fs::write(path, encode(width, height, rgb)?)
}

/// Returns blue for −1, white for 0, red for 1, and black for NaN. Values beyond the range count as its nearest end.
pub(crate) fn diverging(value: f64) -> [u8; 3] {
    if value.is_nan() {
        return [0; 3];
    }
    let side = if value < 0.0 { BLUES } else { REDS };
    let at = value.abs().min(1.0) * 2.0;
    let (from, to, part) = if at < 1.0 {
        (WHITE, side[0], at)
    } else {
        (side[0], side[1], at - 1.0)
    };
    [0, 1, 2].map(|i| between(from[i], to[i], part))
}

fn encode(width: usize, height: usize, rgb: &[u8]) -> io::Result<Vec<u8>> {
    let stride = width.saturating_mul(3);
    if width == 0 || height == 0 || stride.checked_mul(height) != Some(rgb.len()) {
        let sentence = format!("{} bytes for {width} x {height} pixels", rgb.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, sentence));
    }
    let mut header = Vec::with_capacity(13);
    header.extend(length(width)?);
    header.extend(length(height)?);
    header.extend([BITS, TRUE_COLOUR, 0, 0, 0]);
    let rows = rgb.chunks_exact(stride);
    let lines: Vec<u8> = rows.flat_map(|row| [&[NO_FILTER], row].concat()).collect();
    let mut file = SIGNATURE.to_vec();
    push_chunk(&mut file, *b"IHDR", &header)?;
    push_chunk(&mut file, *b"IDAT", &stored(&lines))?;
    push_chunk(&mut file, *b"IEND", &[])?;
    Ok(file)
}

fn push_chunk(file: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) -> io::Result<()> {
    file.extend(length(data.len())?);
    let start = file.len();
    file.extend(kind);
    file.extend(data);
    let crc = crc32(&file[start..]);
    file.extend(crc.to_be_bytes());
    Ok(())
}

/// Returns a zlib stream whose blocks are copies; pictures of a few hundred pixels need no compression.
fn stored(data: &[u8]) -> Vec<u8> {
    let mut stream = ZLIB_HEADER.to_vec();
    let mut blocks = data.chunks(usize::from(u16::MAX)).peekable();
    while let Some(block) = blocks.next() {
        let len = u16::try_from(block.len()).unwrap_or(u16::MAX);
        stream.push(u8::from(blocks.peek().is_none()));
        stream.extend(len.to_le_bytes());
        stream.extend((!len).to_le_bytes());
        stream.extend(block);
    }
    stream.extend(adler32(data).to_be_bytes());
    stream
}

fn crc32(data: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ (CRC_POLYNOMIAL & 0_u32.wrapping_sub(crc & 1));
    let crc = data.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc))
    });
    !crc
}

fn adler32(data: &[u8]) -> u32 {
    let (low, high) = data.iter().fold((1, 0), |(low, high), &byte| {
        let low = (low + u32::from(byte)) % ADLER_PRIME;
        (low, (high + low) % ADLER_PRIME)
    });
    (high << 16) | low
}

fn length(value: usize) -> io::Result<[u8; 4]> {
    // PNG has 31 bits for a length.
    let fitting = i32::try_from(value).map(i32::to_be_bytes);
    fitting.map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a picture too large for PNG"))
}

fn between(from: f64, to: f64, part: f64) -> u8 {
    let value = from + (to - from) * part;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a colour between two colours is in 0 to 255"
    )]
    let rounded = value.round() as u8;
    rounded
}

const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";
const BITS: u8 = 8;
const TRUE_COLOUR: u8 = 2;
const NO_FILTER: u8 = 0;
/// Deflate with a window of 32 KiB, fastest method, no dictionary.
const ZLIB_HEADER: [u8; 2] = [0x78, 0x01];
const CRC_POLYNOMIAL: u32 = 0xedb8_8320;
const ADLER_PRIME: u32 = 65_521;

const WHITE: [f64; 3] = [250.0, 250.0, 248.0];
/// Colors at one half, and at the end of the range.
const BLUES: [[f64; 3]; 2] = [[84.0, 142.0, 205.0], [16.0, 40.0, 104.0]];
const REDS: [[f64; 3]; 2] = [[222.0, 104.0, 74.0], [112.0, 10.0, 32.0]];
