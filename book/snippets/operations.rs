//! Snippets of the chapter on the rules of an operation.

use std::time::Duration;

use futures::{
    future::try_join_all,
    stream::{FuturesUnordered, TryStreamExt},
};
use ripstop::{Collectives, Comm, ErrorKind, Result, Runtime, Source, Sum};

#[ripstop::test(ranks = 2)]
async fn the_buffer_comes_home_with_an_error(world: Comm) -> Result<()> {
    let no_rank = world.size();
    // ANCHOR: error
    let values = vec![1.0_f64; 8];
    let values = match world.send(no_rank, 0, values).await {
        Ok(values) => values,
        Err(failure) => {
            let (why, values) = failure.into_parts();
            eprintln!("{why}");
            values
        }
    };
    // ANCHOR_END: error
    assert_eq!(values, [1.0; 8]);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn several_are_taken_as_they_complete(world: Comm) -> Result<()> {
    let (size, mine) = (world.size(), [0.5; 4]);
    let mut sum = 0.0;
    // ANCHOR: several
    let receives = (0..size).map(|from| world.recv::<f64>(from, 3));
    let mut arriving: FuturesUnordered<_> = receives.collect(); // all receives are posted
    let sending = try_join_all((0..size).map(|to| world.send(to, 3, mine)));
    while let Some((values, _)) = arriving.try_next().await? {
        sum += values.iter().sum::<f64>();
    }
    sending.await?;
    // ANCHOR_END: several
    assert_eq!(sum, 4.0);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_time_limit_loses_no_message(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    if world.rank() == 1 {
        world.send(peer, 0, *b"at last").await?;
        return Ok(());
    }
    // ANCHOR: timeout
    let text = loop {
        let inbox = world.recv::<u8>(peer, 0);
        match inbox.timeout(Duration::from_millis(1)).await {
            Ok((text, _)) => break text,
            Err(late) if matches!(late.error.kind, ErrorKind::TimedOut) => println!("nothing yet"),
            Err(other) => return Err(other.into()),
        }
    };
    // ANCHOR_END: timeout
    assert_eq!(text, b"at last");
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_late_collective_is_reported_and_awaited_again(world: Comm) -> Result<()> {
    let residual = [0.5];
    // ANCHOR: late
    let mut sum = world.all_reduce(residual, Sum);
    let total = loop {
        match world.timeout(Duration::from_secs(10), &mut sum).await {
            Ok(total) => break total?,
            Err(late) => eprintln!("rank {} still waits: {late}", world.rank()),
        }
    };
    // ANCHOR_END: late
    assert_eq!(total, [1.0]);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_receive_can_be_cancelled(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    // ANCHOR: cancel
    let inbox = world.recv_into(peer, 0, vec![0_u8; 64]);
    match inbox.cancel().await {
        Ok(buffer) => println!(
            "nothing had come; {} bytes of room are free again",
            buffer.len()
        ),
        Err((message, status)) => println!(
            "{} bytes from rank {} were faster",
            message.len(),
            status.source
        ),
    }
    // ANCHOR_END: cancel
    Ok(())
}

#[test]
fn a_scope_lends_buffers() -> Result<()> {
    let runtime = Runtime::init()?;
    let world = runtime.world();
    let (left, right) = (0, 0);
    // ANCHOR: scope
    let field = vec![1.0_f64; 1000];
    let mut ghosts = vec![0.0_f64; 10];
    world.scope(|s| {
        let inbox = s.recv(&world, left, 3, &mut ghosts);
        let outbox = s.send(&world, right, 3, &field[990..]);
        outbox.wait()?;
        inbox.wait()
    })?;
    // ANCHOR_END: scope
    assert_eq!(ghosts, [1.0; 10]);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn threads_wait_by_themselves(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    // ANCHOR: threads
    std::thread::scope(|threads| {
        for tag in 0..3 {
            let world = &world;
            threads.spawn(move || {
                let shift = world.sendrecv(peer, peer, tag, vec![tag]);
                let (_, got, _) = world.block_on(shift).unwrap();
                assert_eq!(got, [tag]);
            });
        }
    }); // the scope joins the threads, and panics if one of them has
    let sent = world.runtime().counters().messages_sent;
    // ANCHOR_END: threads
    println!("{sent} messages");
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_task_that_serves_requests_is_ended(world: Comm) -> Result<()> {
    let requests = world.dup().await?;
    let other = 1 - world.rank();
    // ANCHOR: abort
    let asked = requests.clone();
    let server = world.spawn(async move {
        while let Ok((numbers, asker)) = requests.recv::<u64>(Source::Any, 1).await {
            let answer = [numbers.iter().sum::<u64>()];
            drop(requests.send(asker.source, 2, answer)); // it goes on by itself
        }
    });
    asked.send(other, 1, [3_u64, 4, 5]).await?;
    let (answer, _) = asked.recv::<u64>(other, 2).await?;
    world.barrier().await?; // all have their answers
    server.abort().await;
    // ANCHOR_END: abort
    assert_eq!(answer, [12]);
    Ok(())
}
