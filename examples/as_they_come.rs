//! Takes the parts of all ranks in the order in which they arrive, with the combinators of the crate `futures`.
//!
//!     ripstop run -n 4 --example as_they_come
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use futures::{
    future::try_join_all,
    stream::{FuturesUnordered, TryStreamExt},
};
use ripstop::prelude::*;

const PART: u32 = 0;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());

    // Operations are in flight from here on. What follows only decides in which order their results are taken.
    let receives = (0..size).map(|from| world.recv::<u64>(from, PART));
    let mut arriving: FuturesUnordered<_> = receives.collect();
    let sends = (0..size).map(|to| world.send(to, PART, vec![(me + 1) as u64; 1 + to]));
    let sending = try_join_all(sends);

    let (mut sum, mut order) = (0, Vec::new());
    while let Some((part, status)) = arriving.try_next().await? {
        sum += part.iter().sum::<u64>(); // while other parts are still on their way
        order.push(status.source);
    }
    sending.await?;

    println!("rank {me} took the parts in the order {order:?}");
    let expected = (1 + me) * size * (size + 1) / 2;
    assert_eq!(sum, expected as u64);
    Ok(())
}
