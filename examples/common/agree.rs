//! What only some ranks find out before they begin, as of their machines, ends all of them.

use std::error::Error;

use ripstop::{Collectives, Comm, Max, Min};

/// Whether no rank refuses to begin. Of each machine the first rank that does says why. Collective.
///
/// # Errors
/// That sentence, on that rank; or a rank failed.
pub(crate) async fn agreed(
    world: &Comm,
    node: &Comm,
    mine: Result<(), String>,
) -> Result<bool, Box<dyn Error>> {
    let silent = u64::MAX;
    let me = node.rank() as u64;
    let refusing = if mine.is_err() { me } else { silent };
    let [speaker] = node.all_reduce([refusing], Min).await?;
    let [refused] = world.all_reduce([u8::from(mine.is_err())], Max).await?;
    match mine {
        Err(sentence) if speaker == me => Err(sentence.into()),
        _ => Ok(refused == 0),
    }
}
