//! When operations start, and in which order they match.

use ripstop::{Comm, Result, Source, Tag};

use crate::{PATHS, check::assert_content, content::content, mark, marked};

#[ripstop::test(ranks = 2)]
async fn a_send_goes_on_without_ever_being_polled(world: Comm) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            let op = world.send(1, 1, content(1, len));
            marked(&world, 1).await?;
            assert_content(&op.await?, 1, len);
        } else {
            assert_content(&world.recv(0, 1).await?.0, 1, len);
            mark(&world, 0).await?;
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_receive_takes_its_message_without_ever_being_polled(world: Comm) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            marked(&world, 1).await?;
            world.send_synchronous(1, 1, content(2, len)).await?;
            mark(&world, 1).await?;
        } else {
            let op = world.recv::<u8>(0, 1);
            mark(&world, 0).await?;
            marked(&world, 0).await?;
            assert!(
                op.is_done(),
                "the sender has heard that {len} bytes were received"
            );
            assert_content(&op.await?.0, 2, len);
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn matching_order_is_program_order_in_whatever_order_they_are_awaited(
    world: Comm,
) -> Result<()> {
    for (first, second) in PATHS.into_iter().flat_map(|a| PATHS.map(|b| (a, b))) {
        if world.rank() == 0 {
            let a = world.send(1, 7, content(1, first));
            let b = world.send(1, 7, content(2, second));
            let c = world.send(1, 7, content(3, first));
            let (c, b, a) = tokio::join!(c, b, a);
            assert_content(&a?, 1, first);
            assert_content(&b?, 2, second);
            assert_content(&c?, 3, first);
        } else {
            let a = world.recv::<u8>(0, 7);
            let b = world.recv::<u8>(Source::Any, 7);
            let c = world.recv::<u8>(0, Tag::Any);
            let (c, b, a) = tokio::join!(c, b, a);
            assert_content(&a?.0, 1, first);
            assert_content(&b?.0, 2, second);
            assert_content(&c?.0, 3, first);
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn messages_that_waited_are_received_in_the_order_they_were_sent(world: Comm) -> Result<()> {
    if world.rank() == 0 {
        for (key, len) in PATHS.into_iter().enumerate() {
            world.send(1, 7, content(key as u64, len)).detach();
        }
        mark(&world, 1).await?;
    } else {
        marked(&world, 0).await?;
        for (key, len) in PATHS.into_iter().enumerate() {
            let (got, status) = world.recv(Source::Any, Tag::Any).await?;
            assert_content(&got, key as u64, len);
            assert_eq!((status.source, status.tag, status.len), (0, 7, len));
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_synchronous_send_completes_only_when_it_is_received(world: Comm) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            let op = world.send_synchronous(1, 1, content(1, len));
            mark(&world, 1).await?;
            marked(&world, 1).await?;
            assert!(!op.is_done(), "{len} bytes that no rank has received");
            mark(&world, 1).await?;
            assert_content(&op.await?, 1, len);
        } else {
            marked(&world, 0).await?;
            mark(&world, 0).await?;
            marked(&world, 0).await?;
            assert_content(&world.recv(0, 1).await?.0, 1, len);
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn a_rank_can_send_to_itself_before_and_after_it_receives(world: Comm) -> Result<()> {
    for len in crate::SIZES {
        let early = world.recv::<u8>(0, 1);
        let (sent, got) = tokio::join!(world.send(0, 1, content(1, len)), early);
        assert_content(&sent?, 1, len);
        assert_content(&got?.0, 1, len);
        let sent = world.send(0, 1, content(2, len));
        let (got, status) = world.recv(Source::Any, Tag::Any).await?;
        assert_content(&got, 2, len);
        assert_content(&sent.await?, 2, len);
        assert_eq!(status.source, 0);
    }
    Ok(())
}
