//! Panics of a rank: named in one line, and told to the launcher before any peer can notice.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    panic::{self, PanicHookInfo},
    thread,
};

use super::say;
use crate::boot::report::{Report, Reporter};

/// From here on a panic of any thread is one line that names the rank and the line of the program.
///
/// Where traces are asked for, what was there before prints its own.
pub(super) fn name_panics(rank: usize, reporter: Option<Reporter>) {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let at = panic.location().map(ToString::to_string);
        let at = at.unwrap_or_default();
        if let Some(reporter) = &reporter {
            reporter.say(Report::Panicked { at: at.clone() });
        }
        say(&sentence(rank, &at, panic));
        if Backtrace::capture().status() == BacktraceStatus::Captured {
            before(panic);
        }
    }));
}

fn sentence(rank: usize, at: &str, panic: &PanicHookInfo<'_>) -> String {
    let message = panic.payload_as_str().unwrap_or("a value that is no text");
    let thread = thread::current();
    let thread = match thread.name() {
        Some("main") => String::new(),
        Some(name) => format!(" in thread '{name}'"),
        None => " in a thread without a name".to_owned(),
    };
    format!("ripstop: rank {rank} panicked at {at}{thread}: {message}")
}
