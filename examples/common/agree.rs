//! Ends all ranks for a reason that only some ranks find before they begin, such as the memory of their machine.

use std::error::Error;

use ripstop::{Collectives, Comm, Max, Min};

/// Checks that the problem `fits` all machines; a rank answers for its node. On each machine, the first rank that refuses
/// reports why. Collective.
///
/// # Errors
/// The reported sentence, on that rank; or a rank failed.
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
