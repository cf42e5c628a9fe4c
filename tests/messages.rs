//! Messages between ranks.

#[path = "support/ranks.rs"]
mod ranks;

use std::time::Duration;

use ripstop::{Collectives, Comm, ErrorKind, Result, Runtime, Source, Status, Tag};

#[ripstop::test(ranks = 4)]
async fn a_ring_passes_every_value_on(world: Comm) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    for len in [0, 1, 10, 1000, 100_000, 1_000_000] {
        let inbox = world.recv::<f64>((rank + size - 1) % size, 7);
        let mine = world
            .send((rank + 1) % size, 7, vec![rank as f64; len])
            .await?;
        assert_eq!(mine, vec![rank as f64; len]);
        let (got, status) = inbox.await?;
        assert_eq!(got, vec![((rank + size - 1) % size) as f64; len]);
        assert_eq!(
            (status.source, status.tag, status.len),
            ((rank + size - 1) % size, 7, len)
        );
    }
    Ok(())
}

#[ripstop::test(ranks = 3)]
async fn a_receive_of_any_source_takes_messages_of_all_ranks(world: Comm) -> Result<()> {
    if world.rank() == 0 {
        let mut from = Vec::new();
        for _ in 1..world.size() {
            let (text, status) = world.recv::<u8>(Source::Any, Tag::Any).await?;
            assert_eq!(usize::from(text[0]), status.source);
            from.push(status.source);
        }
        from.sort_unstable();
        assert_eq!(from, [1, 2]);
    } else {
        let rank = u8::try_from(world.rank()).expect("three ranks");
        world.send(0, u32::from(rank), [rank]).await?;
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn messages_to_and_from_no_rank_complete_at_once_and_leave_buffers_as_they_are(
    world: Comm,
) -> Result<()> {
    let nowhere: Option<usize> = None;
    let long = vec![0.5; 1 << 20];
    assert_eq!(world.send(nowhere, 7, long.clone()).await?, long);
    assert_eq!(world.send_synchronous(None, 7, long.clone()).await?, long);
    world.send_copy(nowhere, 7, &long).await?;
    assert!(world.try_send_copy(None, 7, &long)?);

    let inbox = world.recv_into(nowhere, 7, vec![3_u16; 5]);
    assert!(inbox.is_done());
    let (kept, status) = inbox.timeout(Duration::ZERO).await?;
    assert_eq!(kept, [3; 5]);
    assert_eq!(
        (status.source, status.tag, status.len),
        (Status::NO_RANK, 7, 0)
    );
    let (empty, status) = world.recv::<u16>(Source::NoRank, Tag::Any).await?;
    assert_eq!((empty.len(), status.len), (0, 0));
    let (kept, _) = world
        .recv_into(None, 7, [1_u8; 3])
        .cancel()
        .await
        .unwrap_err();
    assert_eq!(kept, [1; 3]);
    drop(world.recv::<u8>(None, 7));

    let channel = world.channel::<f64>(None, 7)?;
    assert_eq!(channel.send(4.0).await?, 4.0);
    let (kept, status) = channel.recv_into([1.0, 2.0]).await?;
    assert_eq!((kept, status.len), ([1.0, 2.0], 0));
    // None of these went anywhere: nothing is there to receive.
    world.barrier().await?;
    assert!(world.try_probe(Source::Any, Tag::Any)?.is_none());
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn a_wait_for_a_message_of_no_rank_is_refused(world: Comm) {
    let said = [
        world.probe(None, 7).await.unwrap_err().to_string(),
        world.try_probe(Source::NoRank, 7).unwrap_err().to_string(),
        world
            .messages::<u8>(None, 7)
            .recv()
            .await
            .unwrap_err()
            .to_string(),
    ];
    for sentence in said {
        assert!(sentence.contains("`from` names no rank"), "{sentence}");
        assert!(sentence.contains("tests/messages.rs"), "{sentence}");
    }
    let wrong = world.channel::<u8>(Some(1), 7).unwrap_err();
    assert!(
        matches!(wrong.kind, ErrorKind::InvalidArgument(_)),
        "{wrong}"
    );
}

#[test]
fn sendrecv_shifts_along_a_ring_and_along_a_line_at_any_size() {
    for size in [1, 2, 4] {
        ranks::run(size, &[], |runtime| {
            let world = runtime.world();
            runtime.block_on(shifts(&world)).unwrap();
        });
    }
}

async fn shifts(world: &Comm) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    // Long messages wait for their receives, so a send that is awaited first would not end.
    for len in [0, 1, 1 << 18] {
        let (mine, got, status) = world.sendrecv(right, left, 7, vec![rank; len]).await?;
        assert_eq!((mine, got), (vec![rank; len], vec![left; len]));
        assert_eq!((status.source, status.len), (left, len));
    }
    let [before, after] = [
        rank.checked_sub(1),
        Some(rank + 1).filter(|&next| next < size),
    ];
    let shift = world.sendrecv_into(after, before, 8, rank as u64, -1.0_f32);
    if rank == 0 {
        let (_, kept, status) = shift.await?;
        assert_eq!((kept, status.len), (-1.0, 0));
        return Ok(());
    }
    // The neighbor sent u64: the error has both buffers, and the message stays.
    let wrong = shift.await.expect_err("the neighbor sent u64");
    assert!(
        matches!(wrong.error.kind, ErrorKind::TypeMismatch { .. }),
        "{wrong}"
    );
    assert_eq!(wrong.buf, (rank as u64, -1.0));
    let (got, _) = world.recv_into(before, 8, 0_u64).await?;
    assert_eq!(got, rank as u64 - 1);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn sendrecv_gives_both_buffers_back_when_one_half_fails(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    // No rank sends here: the receive is taken back because the send cannot be done.
    let wrong = world
        .sendrecv_into(2, peer, 9, [1_u8], [2_u8])
        .await
        .unwrap_err();
    assert!(
        matches!(wrong.error.kind, ErrorKind::InvalidArgument(_)),
        "{wrong}"
    );
    assert_eq!(wrong.buf, ([1], [2]));
    let late = world.sendrecv_into(None, peer, 9, [1_u8], [2_u8]);
    assert!(!late.is_done());
    let late = late.timeout(Duration::from_millis(1)).await.unwrap_err();
    assert!(matches!(late.error.kind, ErrorKind::TimedOut), "{late}");
    assert_eq!(late.buf, ([1], [2]));
    world.barrier().await
}

#[ripstop::test(ranks = 4, process)]
async fn ranks_can_be_processes(world: Comm) -> Result<()> {
    world.barrier().await?;
    let [sum] = world
        .all_reduce([world.rank() as u64], ripstop::Sum)
        .await?;
    assert_eq!(sum, 6);
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn a_buffer_that_is_larger_than_memory_is_an_error_with_both_numbers(world: Comm) {
    let error = world
        .alloc::<f64>(1 << 50)
        .expect_err("more than any machine has");
    assert!(
        error.to_string().contains("bytes of memory are available"),
        "{error}"
    );
    let error = world.alloc::<f64>(0).expect_err("nothing");
    assert!(error.to_string().contains("`len` is 0"), "{error}");
}

/// An offer, which the receiver gets, and the notice that it has the bytes.
#[test]
fn a_long_message_that_its_receiver_gets_takes_two_of_the_driver() {
    ranks::run(2, &[("RIPSTOP_RENDEZVOUS", "get")], |runtime| {
        let spent = runtime.block_on(messages_of_long_ones(&runtime)).unwrap();
        assert_eq!(spent, [1; 3]);
    });
}

#[test]
fn adapters_get_what_is_long_unless_asked_otherwise() {
    ranks::run(2, &[], |runtime| {
        let spent = runtime.block_on(messages_of_long_ones(&runtime)).unwrap();
        assert!(!is_inter_node(&runtime) || spent == [1; 3], "{spent:?}");
    });
}

/// Counts the messages of this rank for each long message from rank 0 to rank 1, after a first one.
async fn messages_of_long_ones(runtime: &Runtime) -> Result<Vec<u64>> {
    let world = runtime.world();
    let sent = || runtime.counters().messages_sent;
    let mut spent = Vec::new();
    for _ in 0..4 {
        let mut buffer = world.alloc::<u8>(1 << 20)?;
        if world.rank() == 0 {
            buffer.fill(7);
            world.recv::<u8>(1, 1).await?;
            let before = sent();
            world.send(1, 2, buffer).await?;
            spent.push(sent() - before);
            world.send(1, 3, [0_u8]).await?;
        } else {
            let inbox = world.recv_into(0, 2, buffer);
            world.send(0, 1, [0_u8]).await?;
            let before = sent();
            let (buffer, _) = inbox.await?;
            assert!(buffer.iter().all(|byte| *byte == 7));
            // The sender knows that all has arrived, so nothing more is in flight.
            world.recv::<u8>(0, 3).await?;
            spent.push(sent() - before);
        }
    }
    Ok(spent.split_off(1))
}

/// Returns true if ranks reach each other only by adapters. Over shared memory both ranks copy, which takes a third message.
fn is_inter_node(runtime: &Runtime) -> bool {
    let settings = runtime.settings();
    let fabric = settings.iter().find(|row| row.name == "RIPSTOP_FABRIC");
    fabric.is_some_and(|row| row.value == "portals")
}

#[ripstop::test(ranks = 2)]
async fn a_sendrecv_whose_send_cannot_start_is_done(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    let shift = world.sendrecv(2, peer, 9, [1_u8]);
    assert!(shift.is_done(), "no message comes, and the call has ended");
    let failed = shift.await.unwrap_err();
    assert!(matches!(failed.error.kind, ErrorKind::InvalidArgument(_)));
    world.barrier().await?;
    // The receive was taken back, so that the next one gets the message.
    let inbox = world.recv::<u8>(peer, 9);
    world.send(peer, 9, [7_u8]).await?;
    assert_eq!(inbox.await?.0, [7]);
    Ok(())
}
