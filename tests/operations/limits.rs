//! Cancel and time limits.

use std::time::Duration;

use ripstop::{Collectives, Comm, ErrorKind, Result};

use crate::{PATHS, check::assert_content, content::content, mark, marked, turns::until};

const SHORT: Duration = Duration::from_millis(5);

#[ripstop::test(ranks = 2)]
async fn a_cancelled_receive_gives_back_its_buffer_or_its_message(world: Comm) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            marked(&world, 1).await?;
            world.send(1, 1, content(1, len)).await?;
            world.send(1, 1, content(2, len)).await?;
        } else {
            let early = world.recv_into(0, 1, vec![9_u8; len]).cancel().await;
            assert_eq!(early.expect("nothing was sent"), vec![9; len]);
            let op = world.recv::<u8>(0, 1);
            mark(&world, 0).await?;
            until(|| op.is_done()).await;
            let (got, status) = op.cancel().await.expect_err("the message was faster");
            assert_content(&got, 1, len);
            assert_eq!(status.len, len);
            assert_content(&world.recv(0, 1).await?.0, 2, len);
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_receive_that_times_out_loses_nothing(world: Comm) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            marked(&world, 1).await?;
            world.send(1, 1, content(1, len)).await?;
        } else {
            let late = world.recv_into(0, 1, vec![7_u8; 12]).timeout(SHORT).await;
            let (error, buf) = late.expect_err("nothing was sent").into_parts();
            assert!(matches!(error.kind, ErrorKind::TimedOut), "{error}");
            assert_eq!(buf, [7; 12]);
            mark(&world, 0).await?;
            let (got, _) = world.recv(0, 1).timeout(Duration::MAX).await?;
            assert_content(&got, 1, len);
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_limit_that_is_set_again_replaces_the_first(world: Comm) -> Result<()> {
    if world.rank() == 0 {
        let op = world
            .recv::<u8>(1, 1)
            .timeout(Duration::ZERO)
            .timeout(Duration::MAX);
        mark(&world, 1).await?;
        assert_eq!(op.await?.0, [1]);
    } else {
        marked(&world, 0).await?;
        let late = world.recv::<u8>(0, 9).timeout(SHORT).await;
        assert!(matches!(
            late.expect_err("never sent").error.kind,
            ErrorKind::TimedOut
        ));
        world.send(0, 1, [1_u8]).await?;
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_send_that_times_out_was_never_received_and_never_will_be(world: Comm) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            let late = world
                .send_synchronous(1, 1, content(1, len))
                .timeout(SHORT)
                .await;
            let (error, buf) = late.expect_err("no rank received it").into_parts();
            assert!(matches!(error.kind, ErrorKind::TimedOut), "{error}");
            assert_content(&buf, 1, len);
            mark(&world, 1).await?;
            world.send(1, 1, content(2, len)).await?;
        } else {
            marked(&world, 0).await?;
            assert_content(&world.recv(0, 1).await?.0, 2, len);
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_probed_message_that_times_out_is_its_holders(world: Comm) -> Result<()> {
    for (len, wanted) in PATHS
        .into_iter()
        .flat_map(|len| [(len, true), (len, false)])
    {
        if world.rank() == 0 {
            let send = world.send_synchronous(1, 1, content(1, len));
            marked(&world, 1).await?;
            // Only now, because a limit that ends before the probe would leave nothing to probe.
            let send = send.timeout(SHORT);
            // The limit is long past, but the message still belongs to the holder.
            let late = world.recv::<u8>(1, 9).timeout(2 * SHORT).await;
            assert!(late.is_err() && !send.is_done());
            mark(&world, 1).await?;
            let outcome = send.await;
            assert_eq!(outcome.is_ok(), wanted, "{:?}", outcome.err());
            mark(&world, 1).await?;
            marked(&world, 1).await?;
        } else {
            let message = world.probe(0, 1).await?;
            mark(&world, 0).await?;
            marked(&world, 0).await?;
            if wanted {
                assert_content(&message.recv().await?.0, 1, len);
            } else {
                drop(message);
            }
            marked(&world, 0).await?;
            assert!(
                world.recv::<u8>(0, 1).cancel().await.is_ok(),
                "nothing is left of it"
            );
            mark(&world, 0).await?;
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn every_one_of_many_sends_with_a_limit_is_received_or_timed_out(world: Comm) -> Result<()> {
    const COUNT: u64 = 2000;
    if world.rank() == 0 {
        let size = |key: u64| if key.is_multiple_of(7) { 2500 } else { 40 };
        let send = |key| {
            world
                .send(1, 1, vec![key; size(key)])
                .timeout(Duration::from_micros(key))
        };
        let sends: Vec<_> = (0..COUNT).map(send).collect();
        let mut arrived = Vec::new();
        for (key, send) in (0..).zip(sends) {
            match send.await {
                Ok(_) => arrived.push(key),
                Err(late) => {
                    assert!(matches!(late.error.kind, ErrorKind::TimedOut), "{late}");
                    assert_eq!(late.buf, vec![key; size(key)]);
                }
            }
        }
        world.send(1, 2, arrived).await?;
        marked(&world, 1).await?;
    } else {
        let list = world.recv::<u64>(0, 2);
        let mut got = Vec::new();
        let mut list = std::pin::pin!(list);
        let arrived = loop {
            tokio::select! {
                biased;
                message = world.recv::<u64>(0, 1) => got.push(message?.0[0]),
                list = &mut list => break list?.0,
            }
        };
        while let Err((words, _)) = world.recv::<u64>(0, 1).cancel().await {
            got.push(words[0]);
        }
        assert_eq!(got, arrived);
        mark(&world, 0).await?;
    }
    Ok(())
}

/// A collective that is late goes on where its time limit leaves it, and the error says what is in flight.
#[ripstop::test(ranks = 2)]
async fn a_time_limit_leaves_a_collective_in_flight(world: Comm) -> Result<()> {
    if world.rank() == 1 {
        world.recv::<u8>(0, 9).await?;
        world.barrier().await?;
        return Ok(());
    }
    let inbox = world.recv::<u8>(1, 5);
    let mut barrier = world.barrier();
    let late = world.timeout(SHORT, &mut barrier).await;
    let error = late.expect_err("rank 1 comes after the message below");
    assert!(matches!(error.kind, ErrorKind::TimedOut), "{error}");
    let text = error.to_string();
    assert!(text.contains("tests/operations/limits.rs"), "{text}");
    assert!(text.contains("barrier #0 of communicator 0"), "{text}");
    assert!(text.contains("recv from rank 1, tag 5"), "{text}");
    drop(inbox);
    world.send(1, 9, [0_u8]).await?;
    barrier.await
}

/// A limit of a future that is passed by value drops it: a probe reserves no message then.
#[ripstop::test(ranks = 2)]
async fn a_time_limit_gives_up_a_probe(world: Comm) -> Result<()> {
    if world.rank() == 1 {
        world.recv::<u8>(0, 9).await?;
        world.send(0, 5, [42_u8]).await?;
        return Ok(());
    }
    let late = world.timeout(SHORT, world.probe(1, 5)).await;
    let error = late.expect_err("the message comes after the one below");
    assert!(matches!(error.kind, ErrorKind::TimedOut), "{error}");
    world.send(1, 9, [0_u8]).await?;
    let found = world.timeout(Duration::MAX, world.probe(1, 5)).await??;
    assert_eq!(found.recv::<u8>().await?.0, [42]);
    Ok(())
}
