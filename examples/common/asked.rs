//! What the arguments ask for.

use std::error::Error;

use ripstop::Comm;

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

/// What is to be done, if anything: otherwise gives help, or says what is wrong with the arguments. All ranks see the same ones,
/// and the first speaks.
///
/// # Errors
/// What is wrong, on that rank.
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
