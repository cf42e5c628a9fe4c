//! What only some ranks find out before they begin, as of their machines, ends all of them.

use std::error::Error;

use ripstop::{Collectives, Comm, Max, Min};

/// Whether it `fits` all machines: a rank answers for its node. Of each machine the first rank that refuses says why.
/// Collective.
///
/// # Errors
/// That sentence, on that rank; or a rank failed.
pub(crate) async fn agreed(
    world: &Comm,
    fits: impl FnOnce(&Comm) -> Result<(), String>,
) -> Result<bool, Box<dyn Error>> {
    let node = world.split_node().await?;
    let mine = fits(&node);
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
