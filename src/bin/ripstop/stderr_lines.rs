//! Messages of the command on standard error.
//!
//! Several ranks of a job may print at the same time, so each writes its message in one piece, and lines do not mix.

use std::io::{Write, stderr};

/// Prints a line under the name of a command.
pub(crate) fn print_line(command: &str, text: &str) {
    print(&line(command, text));
}

/// Returns the line that [`print_line`] prints.
pub(crate) fn line(command: &str, text: &str) -> String {
    format!("{command}: {text}\n")
}

/// Prints whole lines. A closed output changes nothing.
pub(crate) fn print(lines: &str) {
    let _ = stderr().lock().write_all(lines.as_bytes());
}
