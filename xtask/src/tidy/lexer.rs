//! Blanks the parts of Rust source that only people read.

/// Returns the source with comments, and the contents of strings and characters, as spaces. Line numbers stay the same.
pub(super) fn code(source: &str) -> String {
    Lexer::new(source, false).run()
}

/// Returns the source with comments as spaces.
pub(super) fn uncommented(source: &str) -> String {
    Lexer::new(source, true).run()
}

/// Returns the source before a module of tests that is written out at the end of a file. A module of tests in a file of its own
/// ends nothing.
pub(super) fn before_tests(source: &str) -> &str {
    let mut starts = source.match_indices("\n#[cfg(test)]\nmod ");
    let start = starts.find(|(at, start)| {
        let name = source[at + start.len()..].lines().next();
        name.is_some_and(|name| name.ends_with('{'))
    });
    start.map_or(source, |(at, _)| &source[..at])
}

struct Lexer<'a> {
    left: &'a [u8],
    out: Vec<u8>,
    strings: bool,
}

impl<'a> Lexer<'a> {
    fn new(source: &'a str, strings: bool) -> Self {
        Self {
            left: source.as_bytes(),
            out: Vec::with_capacity(source.len()),
            strings,
        }
    }

    fn run(mut self) -> String {
        while let Some(&byte) = self.left.first() {
            let word = self.word();
            if self.left.starts_with(b"//") {
                let end = self.find(b"\n").unwrap_or(self.left.len());
                self.blank(end);
            } else if self.left.starts_with(b"/*") {
                let end = block_comment(self.left);
                self.blank(end);
            } else if let Some(hashes) = raw_string(self.left) {
                self.raw(hashes);
            } else if word > 0 {
                self.keep(word);
            } else if byte == b'"' {
                let end = quoted(self.left, b'"').unwrap_or(self.left.len());
                self.string(end);
            } else if let Some(end) = character(self.left) {
                self.string(end);
            } else {
                self.keep(1);
            }
        }
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// Returns the length of the identifier or number here. The prefix of a raw string or byte string is not one.
    fn word(&self) -> usize {
        let is_word = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
        self.left.iter().take_while(is_word).count()
    }

    fn raw(&mut self, hashes: usize) {
        let start = self.find(b"\"").map_or(self.left.len(), |at| at + 1);
        let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
        let inside = self.left.get(start..).unwrap_or_default();
        let end = inside
            .windows(close.len())
            .position(|window| window == close);
        self.string(end.map_or(self.left.len(), |end| start + end + close.len()));
    }

    fn string(&mut self, len: usize) {
        if self.strings {
            self.keep(len)
        } else {
            self.blank(len)
        }
    }

    fn keep(&mut self, len: usize) {
        let (kept, left) = self.left.split_at(len.min(self.left.len()));
        self.out.extend_from_slice(kept);
        self.left = left;
    }

    fn blank(&mut self, len: usize) {
        let (gone, left) = self.left.split_at(len.min(self.left.len()));
        self.out.extend(
            gone.iter()
                .map(|&byte| if byte == b'\n' { b'\n' } else { b' ' }),
        );
        self.left = left;
    }

    fn find(&self, what: &[u8]) -> Option<usize> {
        self.left
            .windows(what.len())
            .position(|window| window == what)
    }
}

fn block_comment(left: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < left.len() {
        match &left[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    left.len()
}

/// Returns the number of `#` of the raw string that starts here, if one does.
fn raw_string(left: &[u8]) -> Option<usize> {
    let rest = [b"br".as_slice(), b"cr", b"r"]
        .iter()
        .find_map(|prefix| left.strip_prefix(*prefix))?;
    let hashes = rest.iter().take_while(|byte| **byte == b'#').count();
    (rest.get(hashes) == Some(&b'"')).then_some(hashes)
}

/// Returns the length of a character literal, and `None` for a lifetime.
fn character(left: &[u8]) -> Option<usize> {
    match left {
        [b'\'', b'\\', ..] => quoted(left, b'\''),
        [b'\'', first, ..] => {
            let width = match first {
                0xf0.. => 4,
                0xe0.. => 3,
                0xc0.. => 2,
                _ => 1,
            };
            (left.get(1 + width) == Some(&b'\'')).then_some(2 + width)
        }
        _ => None,
    }
}

/// Returns the length of the text from the quote here to the next one that is not escaped.
fn quoted(left: &[u8], quote: u8) -> Option<usize> {
    let mut at = 1;
    while at < left.len() {
        match left[at] {
            b'\\' => at += 2,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{code, uncommented};

    #[test]
    fn comments_strings_and_characters_are_blanked_and_lifetimes_are_not() {
        let source =
            "a(\"x // \\\" y\", 'b', '\\'', 'é', b\"z\"); // c\n/* d /* e */ f */ fn g<'h>() {}";
        let blanked = code(source);
        assert_eq!(blanked.len(), source.len());
        let words: Vec<&str> = blanked.split_whitespace().collect();
        assert_eq!(
            words,
            ["a(", ",", ",", ",", ",", "b", ");", "fn", "g<'h>()", "{}"]
        );
    }

    #[test]
    fn raw_strings_end_where_their_hashes_do() {
        assert_eq!(code("r#\"a \" // b\"# c").trim(), "c");
        assert_eq!(code("br\"\\\" c").trim(), "c");
        assert_eq!(code("r#type").trim(), "r#type");
    }

    #[test]
    fn strings_stay_where_only_comments_go() {
        assert_eq!(uncommented("\"// a\" // b").trim(), "\"// a\"");
    }
}
