//! Probes, matched messages and streams.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use ripstop::{Comm, ErrorKind, Result, Source, Tag};

use crate::{PATHS, check::assert_content, content::content, mark, marked, ranks, turns::turn};

#[ripstop::test(ranks = 2)]
async fn a_probed_message_belongs_to_its_holder(world: Comm) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            world.send(1, 1, content(1, len)).detach();
            world.send(1, 1, content(2, len)).detach();
            marked(&world, 1).await?;
        } else {
            let first = world.probe(Source::Any, Tag::Any).await?;
            assert_eq!((first.source(), first.tag(), first.bytes()), (0, 1, len));
            assert_content(&world.recv(0, 1).await?.0, 2, len);
            assert!(
                world.recv::<u8>(0, 1).cancel().await.is_ok(),
                "the first is not in the queue"
            );
            let (got, status) = first.recv::<u8>().await?;
            assert_content(&got, 1, len);
            assert_eq!((status.source, status.tag, status.len), (0, 1, len));
            mark(&world, 0).await?;
        }
    }
    Ok(())
}

/// The closing rank waits for the sender of this message to leave.
#[test]
fn a_message_that_a_probe_holds_when_its_rank_closes_has_no_receiver() {
    const LONG: usize = 1 << 20;
    for dropped in [false, true] {
        ranks::run(2, &[], move |runtime| {
            let world = runtime.world();
            if world.rank() == 1 {
                let sent = runtime.block_on(world.send(0, 1, content(1, LONG)));
                let why = sent.expect_err("no rank receives it").error.into_kind();
                assert!(matches!(why, ErrorKind::PeerFinished { rank: 0 }), "{why}");
                let got = runtime.block_on(world.recv::<u8>(0, 2)).expect("it came");
                return assert_content(&got.0, 2, LONG);
            }
            let held = runtime.block_on(world.probe(1, 1)).expect("it came");
            let answer = world.send(1, 2, content(2, LONG));
            if dropped {
                // The runtime may be closing.
                let clock = world.clone();
                let task = runtime.spawn(async move {
                    clock.sleep(Duration::from_millis(5)).await;
                    drop((held, answer, clock));
                });
                drop(task);
                drop(world);
                return runtime.close().expect("a good end");
            }
            drop(world);
            answer.detach();
            runtime.close().expect("a good end");
            let mut recv = pin!(held.recv::<u8>());
            let polled = recv.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(Err(_))), "it is closed");
        });
    }
}

#[test]
fn a_probe_that_does_not_wait_says_when_nothing_will_come() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        if world.rank() == 1 {
            runtime
                .block_on(world.send(0, 1, [7_u8]))
                .expect("received");
            drop(world);
            return runtime.close().expect("a good end");
        }
        runtime.block_on(async {
            let mut got = Vec::new();
            let why = loop {
                match world.try_probe(1, Tag::Any) {
                    Ok(Some(found)) => got = found.recv::<u8>().await.expect("it is here").0,
                    Ok(None) => turn().await,
                    Err(why) => break why,
                }
            };
            assert_eq!(got, [7]);
            let ended = matches!(why.kind, ErrorKind::PeerFinished { rank: 1 });
            assert!(ended && why.op == "try_probe", "{why}");
            // This rank can still send to itself.
            let found = world.try_probe(Source::Any, Tag::Any);
            assert!(found.expect("no error").is_none());
        });
        let wrong = world.channel::<u8>(9, 0).expect_err("of two ranks");
        let sentence = wrong.to_string();
        assert!(
            wrong.op == "channel" && sentence.contains("`peer`"),
            "{sentence}"
        );
        let wrong = world.try_probe(9, 0).expect_err("of two ranks");
        assert_eq!(wrong.op, "try_probe");
    });
}

#[ripstop::test(ranks = 2)]
async fn a_probed_message_that_is_dropped_or_refused_goes_back_to_its_place(
    world: Comm,
) -> Result<()> {
    for len in PATHS.into_iter().filter(|len| *len > 0) {
        if world.rank() == 0 {
            world.send(1, 1, content(1, len)).detach();
            world.send(1, 1, content(2, len)).detach();
        } else {
            drop(world.probe(0, 1).await?);
            let refused = world
                .probe(0, 1)
                .await?
                .recv::<f64>()
                .await
                .expect_err("bytes");
            assert!(
                matches!(refused.error.kind, ErrorKind::TypeMismatch { .. }),
                "{refused}"
            );
            let short = world
                .probe(0, 1)
                .await?
                .recv_into(vec![0_u8; len - 1].into_boxed_slice())
                .await;
            let sent = len;
            let kind = short.expect_err("too short").error.into_kind();
            assert!(
                matches!(kind, ErrorKind::Truncated { sent: it, room } if it == sent && room == len - 1),
                "{kind}"
            );
            let receiving = world.probe(0, 1).await?.recv::<u8>();
            turn().await;
            drop(receiving);
            assert_content(
                &world.probe(0, 1).await?.recv_into(vec![0_u8; len]).await?.0,
                1,
                len,
            );
            assert_content(&world.recv(0, 1).await?.0, 2, len);
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_waiting_probe_gets_the_message_of_a_dropped_receive(world: Comm) -> Result<()> {
    for len in PATHS {
        if world.rank() == 0 {
            marked(&world, 1).await?;
            world.send(1, 1, content(1, len)).detach();
            mark(&world, 1).await?;
            marked(&world, 1).await?;
        } else {
            let first = world.recv::<u8>(0, 1);
            let mut probe = std::pin::pin!(world.probe(0, 1));
            tokio::select! {
                biased;
                _ = &mut probe => panic!("nothing was sent"),
                () = turn() => {}
            }
            mark(&world, 0).await?;
            marked(&world, 0).await?;
            drop(first);
            assert_content(&probe.await?.recv().await?.0, 1, len);
            mark(&world, 0).await?;
        }
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_stream_gives_every_message_and_its_end_loses_none(world: Comm) -> Result<()> {
    const COUNT: u64 = 200;
    if world.rank() == 0 {
        for number in 0..2 * COUNT {
            world.send(1, 1, vec![number; number as usize * 10]).await?;
        }
    } else {
        let mut inbox = world.messages::<u64>(0, 1);
        for number in 0..COUNT {
            let (got, status) = inbox.recv().await?;
            assert!(got == vec![number; number as usize * 10]);
            assert_eq!(status.len, got.len());
        }
        turn().await;
        drop(inbox);
        for number in COUNT..2 * COUNT {
            assert!(world.recv::<u64>(0, 1).await?.0 == vec![number; number as usize * 10]);
        }
    }
    Ok(())
}
