//! Rank 0 answers the questions of all other ranks in the order in which they arrive, and stops when each has said goodbye.
//!
//!     ripstop run -n 4 --example any_source_server
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use ripstop::prelude::*;

const SQUARE: u32 = 0;
const GOODBYE: u32 = 1;
const ANSWER: u32 = 2;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    if world.rank() == 0 {
        return serve(&world).await;
    }
    for question in 1..=10_u64 {
        let answer = world.recv_into(0, ANSWER, [0]);
        world.send(0, SQUARE, [question]).await?;
        assert_eq!(answer.await?.0, [question * question]);
    }
    world.send(0, GOODBYE, [0_u64]).await?;
    Ok(())
}

async fn serve(world: &Comm) -> Result<()> {
    let (mut clients, mut answered) = (world.size() - 1, 0);
    while clients > 0 {
        let ([question], status) = world.recv_into(Source::Any, Tag::Any, [0_u64]).await?;
        if status.tag == GOODBYE {
            clients -= 1;
        } else {
            world
                .send(status.source, ANSWER, [question * question])
                .await?;
            answered += 1;
        }
    }
    println!("{answered} questions answered");
    assert_eq!(answered, 10 * (world.size() - 1));
    Ok(())
}
