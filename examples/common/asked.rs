//! The work that the arguments ask for.

use std::error::Error;

use ripstop::Comm;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// Returns the work, or prints help or the fault of the arguments and returns nothing. All ranks see the same arguments, and
/// the first rank prints.
///
/// # Errors
/// The fault of the arguments, on that rank.
pub(crate) fn asked<T>(
    world: &Comm,
    read: Result<Option<T>, String>,
    help: impl FnOnce() -> Result<()>,
) -> Result<Option<T>> {
    match read {
        Ok(None) if world.rank() == 0 => help().map(|()| None),
        Err(sentence) if world.rank() == 0 => Err(sentence.into()),
        read => Ok(read.ok().flatten()),
    }
}
