//! Compression on a thread of its own, because it takes as long as everything else that makes a file.

use std::io::{self, Write};
use std::mem;
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::proto_message::ProtoMessage;

/// Bytes from which on a piece is handed over. The encoder is fast with long pieces only.
const PIECE_LEN: usize = 256 << 10;

/// Pieces that wait for the encoder. A slow disk makes the writer wait, instead of filling the memory.
const PIECES_MAX: usize = 4;

/// Calls `write` with a writer, and writes the packets that it is given, compressed, to `out`.
///
/// # Errors
/// `out` fails, or `write` does.
pub(super) fn write_compressed(
    out: impl Write + Send,
    write: impl FnOnce(&mut TracePacketWriter) -> io::Result<()>,
) -> io::Result<()> {
    let (pieces, to_compress) = sync_channel(PIECES_MAX);
    let mut writer = TracePacketWriter {
        piece: new_piece(),
        pieces,
    };
    thread::scope(|scope| {
        let compressing = scope.spawn(move || compress(&to_compress, out));
        let written = write(&mut writer).and_then(|()| writer.hand_over());
        // The encoder ends when there is no writer.
        drop(writer);
        let compressed = compressing.join();
        // If the encoder has failed, the writer only knows that it is gone.
        compressed.unwrap_or_else(|panic| resume_unwind(panic))?;
        written
    })
}

fn compress(pieces: &Receiver<ProtoMessage>, out: impl Write) -> io::Result<()> {
    let mut encoder = GzEncoder::new(out, Compression::fast());
    pieces
        .iter()
        .try_for_each(|piece| encoder.write_all(piece.bytes()))?;
    encoder.finish()?.flush()
}

/// Field of a trace that each packet is.
const PACKET: u64 = 1;

/// Collects packets, and hands them over to the thread that compresses them.
pub(super) struct TracePacketWriter {
    piece: ProtoMessage,
    pieces: SyncSender<ProtoMessage>,
}

impl TracePacketWriter {
    /// Writes a packet, of which `write` makes the fields.
    ///
    /// # Errors
    /// The thread that compresses has failed.
    pub(super) fn packet(&mut self, write: impl FnOnce(&mut ProtoMessage)) -> io::Result<()> {
        self.piece.nest(PACKET, write);
        if self.piece.len() < PIECE_LEN {
            return Ok(());
        }
        self.hand_over()
    }

    fn hand_over(&mut self) -> io::Result<()> {
        let piece = mem::replace(&mut self.piece, new_piece());
        let handed_over = self.pieces.send(piece);
        handed_over.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }
}

/// Returns memory for a piece and the packet that makes it full. Few packets are longer.
fn new_piece() -> ProtoMessage {
    ProtoMessage::with_capacity(PIECE_LEN + PACKET_LEN)
}

/// Length of a packet with new names.
const PACKET_LEN: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn what_was_written_is_read_back() {
        let texts = ["first", &"long".repeat(PIECE_LEN), "last"];
        let mut packed = Vec::new();
        write_compressed(&mut packed, |writer| {
            let mut texts = texts.iter();
            texts.try_for_each(|text| writer.packet(|it| it.put_bytes(2, text.as_bytes())))
        })
        .unwrap();
        let mut bytes = Vec::new();
        GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
        let expected = texts.iter().fold(ProtoMessage::default(), |all, text| {
            all.message(PACKET, &ProtoMessage::default().text(2, text))
        });
        assert!(bytes == expected.bytes());
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
            (0..100).try_for_each(|_| writer.packet(|it| it.put_bytes(2, &vec![7; PIECE_LEN])))
        });
        assert_eq!(fault.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
