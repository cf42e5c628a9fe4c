//! Output of ranks, line by line, each line labeled with its rank.

use std::io::{self, Write};

/// One output stream of one rank; it holds an incomplete line back.
#[derive(Debug)]
pub(super) struct LabeledLines {
    prefix: String,
    partial: Vec<u8>,
}

impl LabeledLines {
    pub(super) fn new(prefix: String) -> Self {
        Self {
            prefix,
            partial: Vec::new(),
        }
    }

    /// Writes the lines that `bytes` complete, in one write, so that lines of ranks never mix.
    pub(super) fn write(&mut self, bytes: &[u8], into: &mut dyn Write) -> io::Result<()> {
        let mut whole = Vec::with_capacity(bytes.len() + self.partial.len());
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.finish_line(&mut whole);
            }
        }
        if self.partial.len() >= LINE_MAX {
            self.end_line(&mut whole);
        }
        flush(&whole, into)
    }

    /// Writes an incomplete line at the end of the stream.
    pub(super) fn end(&mut self, into: &mut dyn Write) -> io::Result<()> {
        let mut whole = Vec::new();
        if !self.partial.is_empty() {
            self.end_line(&mut whole);
        }
        flush(&whole, into)
    }

    fn end_line(&mut self, whole: &mut Vec<u8>) {
        self.partial.push(b'\n');
        self.finish_line(whole);
    }

    fn finish_line(&mut self, whole: &mut Vec<u8>) {
        whole.extend_from_slice(self.prefix.as_bytes());
        whole.append(&mut self.partial);
    }
}

fn flush(whole: &[u8], into: &mut dyn Write) -> io::Result<()> {
    if whole.is_empty() {
        return Ok(());
    }
    into.write_all(whole)?;
    into.flush()
}

/// Longest line; longer ones are broken, because a rank that writes no newline must not fill this process.
const LINE_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn labelled(pieces: &[&str]) -> String {
        let mut lines = LabeledLines::new("[3] ".to_owned());
        let mut out = Vec::new();
        for piece in pieces {
            lines.write(piece.as_bytes(), &mut out).unwrap();
        }
        lines.end(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_line_is_written_once_it_is_whole() {
        assert_eq!(
            labelled(&["a", "b\nc\n", "\n", "d"]),
            "[3] ab\n[3] c\n[3] \n[3] d\n"
        );
        assert_eq!(labelled(&[]), "");
    }

    #[test]
    fn a_line_without_end_is_broken() {
        let long = "x".repeat(LINE_MAX);
        assert_eq!(labelled(&[&long, "y"]), format!("[3] {long}\n[3] y\n"));
    }
}
