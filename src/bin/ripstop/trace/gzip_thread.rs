//! Compression on a thread of its own, because it takes as long as everything else that makes a file.

use std::io::{self, Write};
use std::mem;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Bytes that are handed over at once. The encoder is fast with long pieces only.
const PIECE_LEN: usize = 256 << 10;

/// Pieces that wait for the encoder. A slow disk makes the writer wait, instead of filling the memory.
const PIECES_MAX: usize = 4;

/// Calls `write` with a writer, and writes what that is given, compressed, to `out`.
///
/// # Errors
/// `out` fails, or `write` does.
pub(super) fn write_compressed(
    out: impl Write + Send,
    write: impl FnOnce(&mut PieceWriter) -> io::Result<()>,
) -> io::Result<()> {
    let (pieces, to_compress) = sync_channel(PIECES_MAX);
    let mut writer = PieceWriter {
        piece: Vec::with_capacity(PIECE_LEN),
        pieces,
    };
    thread::scope(|scope| {
        let compressing = scope.spawn(move || compress(&to_compress, out));
        let written = write(&mut writer).and_then(|()| writer.flush());
        // The encoder ends when there is no writer.
        drop(writer);
        let compressed = compressing.join();
        // If the encoder has failed, the writer only knows that it is gone.
        compressed.unwrap_or_else(|panic| resume_unwind(panic))?;
        written
    })
}

fn compress(pieces: &Receiver<Vec<u8>>, out: impl Write) -> io::Result<()> {
    let mut encoder = GzEncoder::new(out, Compression::fast());
    pieces
        .iter()
        .try_for_each(|piece| encoder.write_all(&piece))?;
    encoder.finish()?.flush()
}

/// Collects what is written, and hands it over to the thread that compresses it.
pub(super) struct PieceWriter {
    piece: Vec<u8>,
    pieces: SyncSender<Vec<u8>>,
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.len() + bytes.len() > PIECE_LEN {
            self.flush()?;
        }
        self.piece.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = mem::replace(&mut self.piece, Vec::with_capacity(PIECE_LEN));
        let handed_over = self.pieces.send(piece);
        handed_over.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn what_was_written_is_read_back() {
        let numbers = (0..=250_u8).cycle();
        let long: Vec<u8> = numbers.take(3 * PIECE_LEN).collect();
        let mut packed = Vec::new();
        write_compressed(&mut packed, |writer| {
            writer.write_all(b"first")?;
            writer.write_all(&long)?;
            writer.write_all(b"last")
        })
        .unwrap();
        let mut bytes = Vec::new();
        GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
        assert!(bytes == [b"first", &long[..], b"last"].concat());
    }

    #[test]
    fn a_disk_that_is_full_is_the_error_and_not_that_the_encoder_is_gone() {
        struct FullDisk;
        impl Write for FullDisk {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let fault = write_compressed(FullDisk, |writer| {
            (0..100).try_for_each(|_| writer.write_all(&vec![7; PIECE_LEN]))
        });
        assert_eq!(fault.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
