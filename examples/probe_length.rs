//! Looks at a message before it is received: its sender, tag and length.
//!
//!     ripstop run -n 2 --example probe_length
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use ripstop::prelude::*;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let send = world.send((me + 1) % size, 7, vec![0.5_f32; 100 * (me + 1)]);
    let message = world.probe(Source::Any, Tag::Any).await?;
    println!(
        "rank {me}: {} bytes with tag {} from rank {}",
        message.bytes(),
        message.tag(),
        message.source()
    );
    let room = Vec::<f32>::with_capacity(message.bytes() / size_of::<f32>());
    let (numbers, status) = message.recv_into(room).await?;
    assert_eq!(numbers.len(), 100 * (status.source + 1));
    send.await?;
    Ok(())
}
