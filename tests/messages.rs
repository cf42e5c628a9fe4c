//! Messages between ranks.

#[path = "support/ranks.rs"]
mod ranks;

use ripstop::{Collectives, Comm, Result, Runtime, Source, Tag};

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
