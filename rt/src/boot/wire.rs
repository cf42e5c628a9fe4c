//! The lines of PMI-1.1, the protocol between a rank and what launched it.
//!
//! One line per request, one per reply; attributes `name=value`, separated by a space, `cmd` first. Both ends of it use this
//! module: the client of [`discover`](super::discover), and the launcher.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

/// The longest request line that every server takes, with its newline: a longer one is cut by some and torn in two by others.
pub const REQUEST_MAX: usize = 1024;

/// The longest reply line that is read, with its newline.
pub const REPLY_MAX: usize = 4096;

/// The attribute by which our launcher says, in its answer to `init`, that it reads [reports](super::report::Report).
pub const HEARS: &str = "reports";

/// What our launcher says in `RIPSTOP_LAUNCHER`: the number that a rank inherits its end of the connection as, and the socket's
/// inode. A launcher below ours hands the variable on to ranks of its own, whose connections are others.
///
/// # Errors
/// What the system said about the socket.
pub fn connection(number: impl fmt::Display, socket: impl AsFd) -> io::Result<String> {
    let inode = rustix::fs::fstat(socket)?.st_ino;
    Ok(format!("{number}:{inode}"))
}

/// One line, without its newline.
///
/// Holding one proves that it is text with a command in it, and nothing about what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    text: &'a str,
}

impl<'a> Line<'a> {
    /// Reads a line.
    ///
    /// # Errors
    /// It is not UTF-8, or has no attribute `cmd` with a value.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, LineError> {
        let text = std::str::from_utf8(bytes).map_err(|_| LineError::NotText)?;
        let line = Self {
            text: text.trim_end_matches(['\n', '\r']),
        };
        if line.command().is_empty() {
            Err(LineError::NoCommand)
        } else {
            Ok(line)
        }
    }

    /// What is asked or answered: the value of `cmd`.
    #[must_use]
    pub fn command(&self) -> &'a str {
        self.attribute("cmd").unwrap_or("")
    }

    /// The value of the first attribute called `name`. Servers differ in their order, so there is no other way to ask.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&'a str> {
        let mut attributes = self
            .text
            .split(' ')
            .filter_map(|attribute| attribute.split_once('='));
        attributes
            .find(|&(found, _)| found == name)
            .map(|(_, value)| value)
    }

    /// The value of the attribute `name` as a number.
    #[must_use]
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.attribute(name)?.parse().ok()
    }
}

/// Why a line is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineError {
    /// It is not UTF-8.
    NotText,
    /// It has no `cmd=` with a value.
    NoCommand,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotText => "it is not text",
            Self::NoCommand => "it has no cmd=",
        })
    }
}

impl std::error::Error for LineError {}

/// Writes a line with its newline.
#[must_use]
pub fn line(command: &str, attributes: &[(&str, &str)]) -> String {
    let mut line = format!("cmd={command}");
    for (name, value) in attributes {
        line.push(' ');
        line.push_str(name);
        line.push('=');
        line.push_str(value);
    }
    line.push('\n');
    line
}

/// Hexadecimal digits of the first bytes of `text`: free of spaces, and short enough for a request beside others.
#[must_use]
pub fn hex(text: &str) -> String {
    let bytes = text.bytes().take(HEX_MAX);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes behind hexadecimal digits.
#[must_use]
pub fn unhex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// Two digits each, and room for a command and a number beside them.
const HEX_MAX: usize = 490;

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn attributes_are_found_by_name_wherever_they_stand() {
        let hydra = Line::parse(b"cmd=get_result rc=0 msg=success value=a=b;c\n").unwrap();
        let slurm = Line::parse(b"cmd=get_result value=a=b;c rc=0").unwrap();
        for line in [hydra, slurm] {
            assert_eq!(
                (
                    line.command(),
                    line.number::<i32>("rc"),
                    line.attribute("value")
                ),
                ("get_result", Some(0), Some("a=b;c"))
            );
        }
        assert_eq!(hydra.attribute("val"), None);
        assert_eq!(hydra.number::<i32>("msg"), None);
    }

    #[test]
    fn a_line_without_command_is_none() {
        for bytes in [&b""[..], b"\n", b"cmd=", b"hello", b"rc=0"] {
            assert_eq!(Line::parse(bytes), Err(LineError::NoCommand), "{bytes:?}");
        }
        assert_eq!(Line::parse(b"cmd=\xff"), Err(LineError::NotText));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), name in "[a-z=]{0,4}") {
            if let Ok(line) = Line::parse(&bytes) {
                prop_assert!(!line.command().is_empty());
                let _ = (line.attribute(&name), line.number::<i32>(&name));
            }
        }

        #[test]
        fn what_is_written_is_read(command in "[a-z_]{1,9}", value in "[!-~]{0,60}") {
            let text = line(&command, &[("key", "k"), ("value", &value)]);
            let read = Line::parse(text.as_bytes()).unwrap();
            prop_assert_eq!(read.command(), command.as_str());
            prop_assert_eq!(read.attribute("value"), Some(value.as_str()));
        }
    }
}
