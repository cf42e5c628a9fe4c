//! The effects of drop and forget.

use std::{mem, sync::Arc};

use ripstop::{Collectives, Comm, ErrorKind, Result, Runtime, Source, Tag, buffer::SendBuf};

use crate::{
    PATHS,
    check::assert_content,
    content::content,
    mark, marked, ranks,
    turns::{turn, until},
};

#[ripstop::test(ranks = 2)]
async fn a_dropped_send_still_arrives(world: Comm) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            drop(world.send(1, 1, content(1, len)));
            world.send(1, 1, content(2, len)).detach();
            drop(world.send_synchronous(1, 1, content(3, len)));
            mark(&world, 1).await?;
        } else {
            marked(&world, 0).await?;
            for key in 1..=3 {
                assert_content(&world.recv(0, 1).await?.0, key, len);
            }
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_dropped_receive_takes_no_message(world: Comm) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            marked(&world, 1).await?;
            world.send(1, 1, content(1, len)).await?;
        } else {
            drop(world.recv::<u8>(0, 1));
            drop(world.recv::<f64>(Source::Any, Tag::Any));
            drop(world.probe(0, 1));
            mark(&world, 0).await?;
            assert_content(&world.recv(0, 1).await?.0, 1, len);
        }
    }
    Ok(())
}

/// The state of a receive when it is dropped.
#[derive(Clone, Copy, Debug)]
enum When {
    /// Its message has been announced.
    Matched,
    /// Some turns later: long messages may be in flight.
    Later,
    /// The message is in the buffer.
    Landed,
}

#[ripstop::test(ranks = 2)]
async fn the_message_of_a_dropped_receive_goes_back_to_its_place(world: Comm) -> Result<()> {
    for (len, when) in PATHS
        .into_iter()
        .flat_map(|len| [When::Matched, When::Later, When::Landed].map(|when| (len, when)))
    {
        if world.rank() == 0 {
            marked(&world, 1).await?;
            let sends = [1, 2, 3].map(|key| world.send(1, 7, content(key, len)));
            mark(&world, 1).await?;
            for send in sends {
                send.await?;
            }
        } else {
            let first = world.recv::<u8>(0, 7);
            mark(&world, 0).await?;
            marked(&world, 0).await?;
            match when {
                When::Matched => {}
                When::Later => turn().await,
                When::Landed => until(|| first.is_done()).await,
            }
            drop(first);
            for key in 1..=3 {
                let (got, status) = world.recv(Source::Any, Tag::Any).await?;
                assert_content(&got, key, len);
                assert_eq!(
                    (status.source, status.tag, status.len),
                    (0, 7, len),
                    "{when:?}"
                );
            }
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn the_message_of_a_dropped_receive_goes_to_the_next_that_is_posted(
    world: Comm,
) -> Result<()> {
    for (len, landed) in PATHS
        .into_iter()
        .flat_map(|len| [(len, false), (len, true)])
    {
        if world.rank() == 0 {
            marked(&world, 1).await?;
            let send = world.send(1, 7, content(1, len));
            mark(&world, 1).await?;
            send.await?;
            marked(&world, 1).await?;
        } else {
            let first = world.recv::<u8>(0, 7);
            let second = world.recv_into(Source::Any, 7, vec![0_u8; len + 1].into_boxed_slice());
            let third = world.recv::<u8>(0, 7);
            mark(&world, 0).await?;
            marked(&world, 0).await?;
            if landed {
                until(|| first.is_done()).await;
            }
            drop(first);
            let (got, status) = second.await?;
            assert_content(&got[..len], 1, len);
            assert_eq!(status.len, len);
            assert!(!third.is_done(), "there was only one message");
            mark(&world, 0).await?;
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_message_survives_any_number_of_dropped_receives(world: Comm) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            world.send(1, 7, content(1, len)).await?;
            world.send(1, 7, content(2, len)).await?;
        } else {
            for round in 0..50 {
                let one = world.recv::<u8>(0, 7);
                let two = world.recv_into(0, Tag::Any, vec![0_u8; len]);
                if round % 3 == 0 {
                    turn().await;
                }
                if round % 2 == 0 {
                    drop((one, two));
                } else {
                    drop((two, one));
                }
            }
            assert_content(&world.recv(0, 7).await?.0, 1, len);
            assert_content(&world.recv(0, 7).await?.0, 2, len);
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn forgetting_leaks_and_does_no_other_harm(world: Comm) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            mem::forget(world.send(1, 1, content(1, len)));
            mem::forget(world.send_synchronous(1, 1, content(2, len)));
            // These are never received.
            mem::forget(world.send_synchronous(1, 2, content(3, len)));
            mem::forget(world.send(1, 3, content(4, len)));
            mark(&world, 1).await?;
        } else {
            mem::forget(world.recv::<u8>(0, 90));
            marked(&world, 0).await?;
            assert_content(&world.recv(0, 1).await?.0, 1, len);
            assert_content(&world.recv(0, 1).await?.0, 2, len);
            mem::forget(world.recv::<u8>(0, 2));
            mem::forget(world.probe(0, 3).await?);
            mem::forget(world.messages::<u8>(0, 91));
        }
    }
    world.barrier().await
}

#[ripstop::test(ranks = 2)]
async fn a_dropped_receive_of_a_failing_kind_leaves_the_message_for_the_right_one(
    world: Comm,
) -> Result<()> {
    for len in PATHS.into_iter().filter(|len| *len > 0) {
        if world.rank() == 0 {
            marked(&world, 1).await?;
            world.send(1, 7, content(1, len)).await?;
        } else {
            let fine = world.recv::<u8>(0, 7);
            let wrong = world.recv::<f64>(0, 7);
            let short = world.recv_into(0, 7, vec![0_u8; len - 1].into_boxed_slice());
            mark(&world, 0).await?;
            until(|| fine.is_done()).await;
            drop(fine);
            assert!(
                wrong.await.is_err() && short.await.is_err(),
                "both have met the message"
            );
            assert_content(&world.recv(0, 7).await?.0, 1, len);
        }
    }
    Ok(())
}

/// A buffer that is the last owner of the runtime.
struct Owner(
    Vec<u8>,
    #[expect(dead_code, reason = "it is owned")] Arc<Runtime>,
);

impl SendBuf for Owner {
    type Elem = u8;

    fn elems(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn a_runtime_that_its_own_agent_drops_leaves_in_good_order() {
    ranks::run(2, &[("RIPSTOP_PROGRESS", "thread")], |runtime| {
        let world = runtime.world();
        if world.rank() == 0 {
            let runtime = Arc::new(runtime);
            let buf = Owner(content(1, 1 << 20), Arc::clone(&runtime));
            drop(world.send(1, 1, buf));
            drop(runtime);
            // Messages in flight must still arrive when the agent drops that buffer.
            drop(world.send(1, 3, content(3, 1 << 20)));
            drop(world.send(1, 2, [0_u8]));
            return;
        }
        let ended = runtime.block_on(async {
            world.recv::<u8>(0, 2).await?;
            assert_content(&world.recv(0, 1).await?.0, 1, 1 << 20);
            assert_content(&world.recv(0, 3).await?.0, 3, 1 << 20);
            world.recv::<u8>(0, 4).await
        });
        let kind = ended.unwrap_err().error.into_kind();
        let left = matches!(kind, ErrorKind::PeerFinished { rank: 0 });
        // As a process of its own, rank 0 may have ended before it has left.
        let alone = std::env::var_os("RIPSTOP_TEST_RANKS").is_some();
        let died = matches!(kind, ErrorKind::PeerFailed { rank: 0, .. });
        assert!(left || alone && died, "{kind:?}");
    });
}
