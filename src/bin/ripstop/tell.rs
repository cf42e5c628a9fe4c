//! What the command says on standard error.
//!
//! Ranks of a job may say it at the same time, so each of them says it in one piece: their lines do not mix.

use std::io::{Write, stderr};

/// Prints a line under the name of a command.
pub(crate) fn tell(command: &str, text: &str) {
    print(&line(command, text));
}

/// What [`tell`] prints.
pub(crate) fn line(command: &str, text: &str) -> String {
    format!("{command}: {text}\n")
}

/// Prints whole lines. That nobody reads them changes nothing.
pub(crate) fn print(lines: &str) {
    let _ = stderr().lock().write_all(lines.as_bytes());
}
