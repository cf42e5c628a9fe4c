//! Ranks on a simulated fabric: what the protocols promise, under faults from seeds.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    reason = "a failure is the test's; ranks and counts in tests are small; figures are printed on request"
)]

#[path = "../support/check.rs"]
mod check;
#[path = "../support/content.rs"]
#[expect(dead_code, reason = "seeds come from the attribute here")]
mod content;

mod ending;
mod floods;
mod inputs;
mod order;
mod recovery;
mod replay;

/// Ends a rank that found nothing wrong.
fn well() -> ripstop::Result<()> {
    Ok(())
}
