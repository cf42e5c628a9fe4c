//! The pictures that examples draw, and paths to which they cannot write.

#[path = "../examples/common/files.rs"]
mod files;
#[path = "../examples/common/png.rs"]
mod png;

use std::{env, fs, process};

use png::{diverging, write_png};

/// More than one block of the compressed stream, with a short last block.
const SIZE: (usize, usize) = (200, 150);

#[test]
fn a_picture_has_the_pixels_that_were_written() {
    let (width, height) = SIZE;
    let pixels: Vec<u8> = (0..width * height * 3)
        .map(|i| u8::try_from(i * 7 % 251).unwrap())
        .collect();
    let path = env::temp_dir().join(format!("ripstop-png-{}.png", process::id()));
    write_png(&path, width, height, &pixels).unwrap();
    let file = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();

    let rest = file.strip_prefix(b"\x89PNG\r\n\x1a\n").unwrap();
    let (header, rest) = chunk(rest, b"IHDR");
    assert_eq!(header, [0, 0, 0, 200, 0, 0, 0, 150, 8, 2, 0, 0, 0]);
    let (data, rest) = chunk(rest, b"IDAT");
    let (end, rest) = chunk(rest, b"IEND");
    assert!(end.is_empty() && rest.is_empty());
    let lines = unstored(data);
    let read: Vec<u8> = lines
        .chunks_exact(1 + 3 * width)
        .flat_map(|line| {
            assert_eq!(line[0], 0, "no filter");
            &line[1..]
        })
        .copied()
        .collect();
    assert_eq!(read, pixels);
}

#[test]
fn a_file_without_a_place_is_refused_by_its_argument() {
    let folder = env::temp_dir();
    for good in [folder.join("wave.png"), "wave.png".into()] {
        assert_eq!(files::check("--png", &good), Ok(()));
    }
    let nowhere = folder.join("ripstop-no-such-folder/wave.png");
    for (bad, word) in [(nowhere, "no directory"), (folder, "is a directory")] {
        let sentence = files::check("--png", &bad).unwrap_err();
        assert!(
            sentence.starts_with("--png ") && sentence.contains(word),
            "{sentence}"
        );
    }
}

/// Returns the chunk that `bytes` start with, and the rest.
fn chunk<'a>(bytes: &'a [u8], kind: &[u8; 4]) -> (&'a [u8], &'a [u8]) {
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
    let len = word(0) as usize;
    assert_eq!(&bytes[4..8], kind);
    assert_eq!(word(8 + len), long_division(&bytes[4..8 + len]));
    (&bytes[8..8 + len], &bytes[12 + len..])
}

/// Returns the checksum by its definition: the remainder of the bits, the lowest of every byte first, divided by the
/// polynomial.
fn long_division(bytes: &[u8]) -> u32 {
    let mut bits: Vec<bool> = bytes
        .iter()
        .flat_map(|byte| (0..8).map(move |i| byte >> i & 1 == 1))
        .collect();
    bits.extend([false; 32]);
    bits[..32].iter_mut().for_each(|bit| *bit = !*bit);
    for at in 0..bits.len() - 32 {
        if bits[at] {
            for (i, bit) in bits[at..at + 33].iter_mut().enumerate() {
                *bit ^= 0x1_04c1_1db7_u64 >> (32 - i) & 1 == 1;
            }
        }
    }
    let remainder = bits[bits.len() - 32..].iter().enumerate();
    !remainder.fold(0, |crc, (i, &bit)| crc | u32::from(bit) << i)
}

/// Returns the data of a zlib stream of copied blocks.
fn unstored(stream: &[u8]) -> Vec<u8> {
    assert_eq!(
        u16::from_be_bytes([stream[0], stream[1]]) % 31,
        0,
        "the header's check bits"
    );
    let (mut data, mut at) = (Vec::new(), 2);
    loop {
        let last = stream[at] == 1;
        let len = u16::from_le_bytes([stream[at + 1], stream[at + 2]]);
        let inverted = u16::from_le_bytes([stream[at + 3], stream[at + 4]]);
        assert_eq!(len, !inverted);
        data.extend(&stream[at + 5..][..usize::from(len)]);
        at += 5 + usize::from(len);
        if last {
            break;
        }
    }
    let sums = data.iter().scan(1_u64, |sum, &byte| {
        *sum += u64::from(byte);
        Some(*sum)
    });
    let (low, high) = sums.fold((1, 0), |(_, high), sum| (sum % 65_521, high + sum));
    let adler = (high % 65_521) << 16 | low;
    assert_eq!(stream[at..], adler.to_be_bytes()[4..]);
    data
}

#[test]
fn pixels_that_do_not_fill_the_picture_are_refused() {
    let path = env::temp_dir().join("ripstop-never-written.png");
    for (width, height, bytes) in [(2, 2, 11), (2, 2, 13), (0, 2, 0), (2, 0, 0)] {
        let error = write_png(&path, width, height, &vec![0; bytes]).unwrap_err();
        assert!(error.to_string().contains("pixels"), "{error}");
    }
    assert!(!path.exists());
}

#[test]
fn colours_run_from_blue_over_white_to_red() {
    let [red, _, blue] = diverging(-1.0);
    assert!(blue > 2 * red);
    assert!(diverging(0.0).iter().all(|&part| part > 240));
    let [red, _, blue] = diverging(1.0);
    assert!(red > 2 * blue);
    assert_eq!(diverging(9.0), diverging(1.0));
    assert_eq!(diverging(-9.0), diverging(-1.0));
    assert_eq!(diverging(f64::NAN), [0; 3]);
    let steps: Vec<[u8; 3]> = (-100..=100)
        .map(|i| diverging(f64::from(i) / 100.0))
        .collect();
    let jump = |pair: &[[u8; 3]]| (0..3).map(|i| pair[0][i].abs_diff(pair[1][i])).max();
    assert!(steps.windows(2).all(|pair| jump(pair) < Some(6)));
}
