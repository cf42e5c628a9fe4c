//! Ways out of the short path of a receive of a channel, whose message comes to a place. A channel cannot send a message of
//! another type, so that one comes by `send`.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
    thread,
    time::Duration,
};

use super::{
    ChannelRecv, Comm, Source, Tag,
    calm_tests::ways_out::{alone, is_expecting, look_elsewhere, value},
};
use crate::{
    Runtime,
    buffer::RecvBuf,
    error::{Error, ErrorKind},
    sim::Simulation,
};

/// Posts a receive of a channel, of which only its slot knows.
fn expect<B: RecvBuf>(comm: &Comm, buf: B) -> ChannelRecv<B> {
    let channel = comm.channel::<B::Elem>(0, 7).expect("this rank exists");
    let recv = channel.recv_into(buf);
    assert!(is_expecting(comm));
    recv
}

async fn got(recv: ChannelRecv<[u64; 1]>) -> u64 {
    recv.await.expect("this rank lives").0[0]
}

#[test]
fn messages_by_send_and_by_channel_come_to_receives_of_both_kinds_in_order() {
    alone(async |world| {
        let channel = world.channel::<u64>(0, 7).unwrap();
        for number in [1, 3] {
            let recv = expect(world, [0]);
            world.send(0, 7, [number]).await.unwrap();
            channel.send([number + 1]).await.unwrap();
            assert_eq!(got(recv).await, number);
            assert_eq!(value(world.recv_into(0, 7, [0])).await, number + 1);
        }
        let recv = world.recv_into(0, 7, [0]);
        assert!(is_expecting(world));
        channel.send([5]).await.unwrap();
        world.send(0, 7, [6_u64]).await.unwrap();
        assert_eq!(value(recv).await, 5);
        assert_eq!(got(channel.recv_into([0])).await, 6);
    });
}

#[test]
fn a_short_message_leaves_the_rest_of_a_buffer_and_sets_the_length_of_a_vector() {
    alone(async |world| {
        let recv = expect(world, [7_u64; 3]);
        world.send(0, 7, [1_u64]).await.unwrap();
        let (buf, status) = recv.await.unwrap();
        assert_eq!(
            (buf, status.source, status.tag, status.len),
            ([1, 7, 7], 0, 7, 1)
        );

        let recv = expect(world, Vec::<u16>::with_capacity(9));
        world.send(0, 7, [1_u16, 2, 3]).await.unwrap();
        assert_eq!(recv.await.unwrap().0, [1, 2, 3]);

        let recv = expect(world, [0_u64; 0]);
        world.send(0, 7, [0_u64; 0]).await.unwrap();
        assert_eq!(recv.await.unwrap().1.len, 0);
    });
}

#[test]
fn a_status_names_the_rank_in_the_communicator_of_each_channel() {
    let report = Simulation::new(3).run(|world: Comm| async move {
        let reversed = world.create(&[2, 1, 0]).await.unwrap();
        let me = reversed.rank();
        assert_eq!(me, 2 - world.rank());
        let others: Vec<usize> = (0..3).filter(|&rank| rank != me).collect();
        let channels = others
            .iter()
            .map(|&rank| reversed.channel::<u64>(rank, 7).unwrap());
        let channels: Vec<_> = channels.collect();
        for round in 0..4 {
            for (&rank, channel) in others.iter().zip(&channels) {
                let recv = channel.recv_into([0]);
                channel.send([round]).await.unwrap();
                let ([got], status) = recv.await.unwrap();
                assert_eq!((got, status.source, status.tag), (round, rank, 7));
            }
        }
    });
    let results = report.unwrap().results;
    results
        .into_iter()
        .for_each(|result| result.expect("no rank waits"));
}

#[test]
fn a_message_of_another_type_fails_the_receive_and_stays() {
    alone(async |world| {
        let recv = expect(world, [3_u32]);
        world.send(0, 7, [1_u64]).await.unwrap();
        let failed = recv.await.expect_err("another type");
        assert!(matches!(failed.error.kind, ErrorKind::TypeMismatch { .. }));
        assert_eq!(failed.buf, [3]);
        assert_eq!(value(world.recv_into(0, 7, [0])).await, 1);
    });
}

#[test]
fn a_message_that_is_too_long_fails_the_receive_and_stays() {
    alone(async |world| {
        let recv = expect(world, [3_u64]);
        let channel = world.channel::<u64>(0, 7).unwrap();
        channel.send([1, 2]).await.unwrap();
        let failed = recv.await.expect_err("too long");
        assert!(matches!(
            failed.error.kind,
            ErrorKind::Truncated { sent: 2, room: 1 }
        ));
        assert_eq!(failed.buf, [3]);
        let again = channel.recv_into([0; 2]).await;
        assert_eq!(again.unwrap().0, [1, 2]);
    });
}

#[test]
fn a_receive_that_is_dropped_before_or_after_its_message_leaves_it_to_the_next_one() {
    alone(async |world| {
        let channel = world.channel::<u64>(0, 7).unwrap();
        drop(expect(world, [0_u64]));
        channel.send([1]).await.unwrap();
        assert_eq!(got(channel.recv_into([0])).await, 1);

        let has_come = expect(world, [0_u64]);
        channel.send([2]).await.unwrap();
        drop(has_come);
        assert_eq!(got(channel.recv_into([0])).await, 2);
    });
}

#[test]
fn a_receive_is_canceled_unless_its_message_has_come() {
    alone(async |world| {
        let unsent = expect(world, [3_u64]).cancel().await;
        assert_eq!(unsent, Ok([3]));

        let recv = expect(world, [3_u64]);
        world.send(0, 7, [1_u64]).await.unwrap();
        let (buf, status) = recv
            .cancel()
            .await
            .expect_err("the message was there first");
        assert_eq!((buf, status.len), ([1], 1));
    });
}

#[test]
fn a_receive_with_a_time_limit_ends_with_or_without_its_message() {
    alone(async |world| {
        let limited = expect(world, [3_u64]).timeout(Duration::from_millis(1));
        let failed = limited.await.expect_err("no message");
        assert!(matches!(failed.error.kind, ErrorKind::TimedOut));
        assert_eq!(failed.buf, [3]);

        let recv = expect(world, [3_u64]);
        world.send(0, 7, [1_u64]).await.unwrap();
        let limited = recv.timeout(Duration::from_secs(600));
        assert!(limited.is_done());
        assert_eq!(got(limited).await, 1);
        assert_eq!(
            world
                .shared()
                .look(|engine| engine.core.p2p.common.ops.room().1),
            0
        );
    });
}

#[test]
fn a_revoked_communicator_fails_the_receive_and_the_send() {
    alone(async |world| {
        let comm = world.dup().await.unwrap();
        let recv = expect(&comm, [3_u64]);
        comm.revoke();
        let failed = recv.await.expect_err("revoked");
        assert!(matches!(failed.error.kind, ErrorKind::Revoked));
        let channel = comm.channel::<u64>(0, 7).unwrap();
        let failed = channel.send([1]).await.expect_err("revoked");
        assert!(matches!(failed.error.kind, ErrorKind::Revoked));
        let failed = channel.recv_into([3]).await.expect_err("revoked");
        assert!(matches!(failed.error.kind, ErrorKind::Revoked));
        assert_eq!(failed.buf, [3]);
    });
}

#[test]
fn a_second_thread_receives_second_and_sends_first() {
    alone(async |world| {
        let channel = world.channel::<u64>(0, 7).unwrap();
        let first = expect(world, [0_u64]);
        let second = thread::scope(|scope| {
            let post = || channel.recv_into([0_u64]);
            scope.spawn(post).join().expect("no panic")
        });
        thread::scope(|scope| {
            scope.spawn(|| channel.send([1]).detach());
        });
        channel.send([2]).await.unwrap();
        assert_eq!((got(first).await, got(second).await), (1, 2));
    });
}

#[test]
fn a_message_wakes_a_receive_that_was_polled_without_it() {
    #[derive(Default)]
    struct WokenFlag(AtomicBool);
    impl Wake for WokenFlag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    alone(async |world| {
        let mut recv = expect(world, [0_u64]);
        let woken = Arc::new(WokenFlag::default());
        let waker = Waker::from(Arc::clone(&woken));
        let polled = Pin::new(&mut recv).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        assert!(!is_expecting(world), "a poll that finds nothing posts it");
        world.send(0, 7, [1_u64]).await.unwrap();
        assert!(woken.0.load(Ordering::Relaxed));
        assert_eq!(got(recv).await, 1);
    });
}

#[test]
fn a_channel_and_a_wildcard_get_their_messages_in_the_order_in_which_they_were_posted() {
    alone(async |world| {
        let channel = world.channel::<u64>(0, 7).unwrap();
        let first = expect(world, [0]);
        let second = world.recv_into(Source::Any, Tag::Any, [0_u64]);
        look_elsewhere(world);
        channel.send([1]).await.unwrap();
        channel.send([2]).await.unwrap();
        assert_eq!((got(first).await, value(second).await), (1, 2));

        let first = world.recv_into(Source::Any, Tag::Any, [0_u64]);
        assert!(is_expecting(world));
        let second = channel.recv_into([0]);
        look_elsewhere(world);
        channel.send([3]).await.unwrap();
        channel.send([4]).await.unwrap();
        assert_eq!((value(first).await, got(second).await), (3, 4));
    });
}

/// Number of receives that were posted so far, of which not only their slot knew.
fn postings(comm: &Comm) -> u64 {
    let shared = comm.shared();
    shared.look(|engine| engine.core.p2p.tables().counts().0)
}

#[test]
fn a_message_by_the_channel_of_a_receive_comes_to_its_place_and_posts_nothing() {
    alone(async |world| {
        let channel = world.channel::<u64>(0, 7).unwrap();
        let clone = channel.clone();
        let before = postings(world);
        for number in 0..9 {
            let recv = clone.recv_into([0, 0]);
            channel.send([number]).await.unwrap();
            let (buf, status) = recv.await.unwrap();
            assert_eq!((buf, status.len, status.tag), ([number, 0], 1, 7));
        }
        assert_eq!(postings(world), before);
    });
}

#[test]
fn a_message_by_another_channel_does_not_come_to_the_place() {
    alone(async |world| {
        let dup = world.dup().await.unwrap();
        let recv = expect(world, [0]);
        let others = [world.channel(0, 8).unwrap(), dup.channel(0, 7).unwrap()];
        for other in &others {
            other.send([1_u64]).await.unwrap();
        }
        world.channel(0, 7).unwrap().send([2_u64]).await.unwrap();
        assert_eq!(got(recv).await, 2);
        for other in &others {
            assert_eq!(got(other.recv_into([0])).await, 1);
        }
    });
}

#[test]
fn a_receive_in_place_is_of_its_channel_whatever_was_in_the_place_before() {
    alone(async |world| {
        let channels = [7, 8].map(|tag| world.channel::<u64>(0, tag).unwrap());
        for number in 0..3 {
            for (channel, tag) in channels.iter().zip([7, 8]) {
                for other in [9, tag] {
                    let recv = world.recv_into(0, other, [0]);
                    assert!(is_expecting(world));
                    world.send(0, other, [number]).await.unwrap();
                    assert_eq!(value(recv).await, number);
                }
                let recv = channel.recv_into([0]);
                assert!(is_expecting(world));
                world.send(0, tag, [number]).await.unwrap();
                assert_eq!(got(recv).await, number);
            }
        }
    });
}

#[test]
fn a_rank_that_talks_to_itself_by_a_channel_sends_by_the_driver_now_and_then() {
    let builder = Runtime::builder().set("RIPSTOP_PROGRESS", "inline");
    let runtime = builder.init().unwrap();
    let world = runtime.world();
    runtime.block_on(async {
        let channel = world.channel::<u64>(0, 7).unwrap();
        for number in 0..1000 {
            let recv = channel.recv_into([0]);
            channel.send([number]).await.unwrap();
            assert_eq!(got(recv).await, number);
        }
    });
    let by_driver = runtime.counters().messages_sent;
    assert!(
        (2..=20).contains(&by_driver),
        "{by_driver} of 1000 messages"
    );
}

#[test]
fn a_message_to_the_rank_from_which_a_channel_expects_one_does_not_come_to_the_own_place() {
    let report = Simulation::new(2).run(|world: Comm| async move {
        let channel = world.channel::<usize>(1 - world.rank(), 7)?;
        for _ in 0..9 {
            let recv = channel.recv_into([9]);
            channel.send([world.rank()]).await?;
            assert_eq!(recv.await?.0, [1 - world.rank()]);
        }
        Ok::<_, Error>(())
    });
    for result in report.unwrap().results {
        result.unwrap().unwrap();
    }
}
