//! Lines of PMI-1.1, the protocol between a rank and its launcher.
//!
//! Each request and each reply is one line of attributes `name=value`, separated by a space, with `cmd` first. Both
//! ends use this module: the client of [`discover`](super::discover), and the launcher.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

/// Longest request line that every server accepts, with its newline. Some servers cut a longer line, others split it.
pub const REQUEST_MAX: usize = 1024;

/// Longest reply line that is read, with its newline.
pub const REPLY_MAX: usize = 4096;

/// Attribute with which `ripstop run` declares, in its answer to `init`, that it reads
/// [reports](crate::internal::report::FailureReport).
pub const HEARS: &str = "reports";

/// Returns the value of `RIPSTOP_LAUNCHER`: the descriptor number of a rank's connection, and the inode of its socket.
///
/// A launcher that runs below `ripstop run` passes the variable on to its own ranks. Their connections differ, so the inode
/// tells them apart.
///
/// # Errors
/// The system's error about the socket.
pub fn connection(number: impl fmt::Display, socket: impl AsFd) -> io::Result<String> {
    let inode = rustix::fs::fstat(socket)?.st_ino;
    Ok(format!("{number}:{inode}"))
}

/// One line without its newline.
///
/// A `WireLine` proves that it is text with a command. It proves nothing about the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireLine<'a> {
    text: &'a str,
}

impl<'a> WireLine<'a> {
    /// Parses a line.
    ///
    /// # Errors
    /// The line is not UTF-8, or has no attribute `cmd` with a value.
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

    /// Returns the command of the request or reply: the value of `cmd`.
    #[must_use]
    pub fn command(&self) -> &'a str {
        self.attribute("cmd").unwrap_or("")
    }

    /// Returns the value of the first attribute `name`. The order of attributes differs between servers.
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

    /// Returns the value of the attribute `name` as a number.
    #[must_use]
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.attribute(name)?.parse().ok()
    }
}

/// Reason why a line is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineError {
    /// The line is not UTF-8.
    NotText,
    /// The line has no `cmd=` with a value.
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

/// Formats a line with its newline.
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

/// Returns the hexadecimal digits of the first bytes of `text`. The result has no spaces, and fits into a request with
/// other attributes.
#[must_use]
pub fn hex(text: &str) -> String {
    let bytes = text.bytes().take(HEX_MAX);
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the bytes for hexadecimal digits.
#[must_use]
pub fn unhex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// Bytes of text: two digits each, with room left for a command and a number.
const HEX_MAX: usize = 490;

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn attributes_are_found_by_name_wherever_they_stand() {
        let hydra = WireLine::parse(b"cmd=get_result rc=0 msg=success value=a=b;c\n").unwrap();
        let slurm = WireLine::parse(b"cmd=get_result value=a=b;c rc=0").unwrap();
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
            assert_eq!(
                WireLine::parse(bytes),
                Err(LineError::NoCommand),
                "{bytes:?}"
            );
        }
        assert_eq!(WireLine::parse(b"cmd=\xff"), Err(LineError::NotText));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), name in "[a-z=]{0,4}") {
            if let Ok(line) = WireLine::parse(&bytes) {
                prop_assert!(!line.command().is_empty());
                let _ = (line.attribute(&name), line.number::<i32>(&name));
            }
        }

        #[test]
        fn what_is_written_is_read(command in "[a-z_]{1,9}", value in "[!-~]{0,60}") {
            let text = line(&command, &[("key", "k"), ("value", &value)]);
            let read = WireLine::parse(text.as_bytes()).unwrap();
            prop_assert_eq!(read.command(), command.as_str());
            prop_assert_eq!(read.attribute("value"), Some(value.as_str()));
        }
    }
}
