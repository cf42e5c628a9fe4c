//! Panic hook of a rank. It prints one line for a panic, and reports it to the launcher before any peer can notice.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    panic::{self, PanicHookInfo},
    thread,
};

use super::say;
use crate::boot::report::{FailureReport, FailureReporter};

/// Installs a panic hook that prints one line, with the rank and the line of the program.
///
/// If backtraces are enabled, the previous hook runs, too.
pub(super) fn name_panics(rank: usize, reporter: Option<FailureReporter>) {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let at = panic.location().map(ToString::to_string);
        let at = at.unwrap_or_default();
        if let Some(reporter) = &reporter {
            reporter.send_report(FailureReport::Panicked { at: at.clone() });
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
