//! The work that the arguments ask for.

use std::error::Error;

use ripstop::Comm;

/// Returns the work, or prints help or the fault of the arguments and returns nothing. All ranks see the same arguments, and
/// the first rank prints.
///
/// # Errors
/// The fault of the arguments, on that rank.
#[expect(clippy::print_stdout, reason = "this is what was asked for")]
pub(crate) fn asked<T>(
    world: &Comm,
    read: Result<Option<T>, String>,
    help: &str,
) -> Result<Option<T>, Box<dyn Error>> {
    match read {
        Ok(None) if world.rank() == 0 => print!("{help}"),
        Err(sentence) if world.rank() == 0 => return Err(sentence.into()),
        read => return Ok(read.ok().flatten()),
    }
    Ok(None)
}
