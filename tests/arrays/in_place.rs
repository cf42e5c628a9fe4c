//! Packed messages that a receiver on the same node reads in the memory of their sender, beside those that are copied.

use std::{
    mem::forget,
    ops::Range,
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use ripstop::{
    Collectives, Comm, ErrorKind, Result,
    buffer::{Layout, NestedLayout},
};

use crate::content::{Random, seed};

/// Messages that a rank can have in its own memory for others at the same time.
const BLOCKS: usize = 16;

/// Messages of so many elements of 8 bytes go by rendezvous.
const LONG: usize = 5000;

#[ripstop::test(ranks = 2)]
async fn what_is_read_in_place_is_what_an_ordinary_receive_gets(world: Comm) -> Result<()> {
    let (me, other) = (world.rank(), 1 - world.rank());
    // The ranks draw the same numbers, so each knows what the other one sends.
    let seed = if me == 0 {
        let seed = seed("what_is_read_in_place_is_what_an_ordinary_receive_gets");
        world.send(other, 9, [seed]).await?;
        seed
    } else {
        world.recv::<u64>(other, 9).await?.0[0]
    };
    let mut random = Random::new(seed);
    let mut in_blocks = 0;
    for case in 0..100 {
        in_blocks += u32::from(compare_receives(&world, case, &mut random).await?);
    }
    assert!(in_blocks > 5, "{in_blocks} of 100 cases");
    Ok(())
}

/// Exchanges parts of arrays by all kinds of receives. Returns true if they were packed where the other rank reads them.
async fn compare_receives(world: &Comm, case: u32, random: &mut Random) -> Result<bool> {
    let (me, other) = (world.rank(), 1 - world.rank());
    let shape = [(); 3].map(|()| 1 + random.below(60));
    let [from, into] = [(); 2].map(|()| layout(&shape, random));
    let len = shape.iter().product();
    let arrays: [Vec<u64>; 2] = [0, 1].map(|rank| (rank..).step_by(2).take(len).collect());

    let inboxes = [0, 1].map(|tag| world.recv_packed::<u64>(other, tag, &into));
    let ordinary = world.recv::<u64>(other, 2);
    let sent = [0, 1, 2].map(|tag| world.send_packed(other, tag, &arrays[me], &from));
    let in_block = expected_of(&from, &arrays[me]).len() >= LONG && sent[0].is_done();

    let mut expected = Vec::new();
    from.pack(&arrays[other], &mut expected);
    let (copied, _) = ordinary.await?;
    assert!(copied == expected, "case {case}: {from:?} of {shape:?}");
    let (mut array, mut by_hand) = (arrays[me].clone(), arrays[me].clone());
    into.unpack(&copied, &mut by_hand);
    let [whole, by_pieces] = inboxes;
    let fits = expected.len() <= into.len();
    let received = by_pieces.unpack_into(&mut array).await;
    let messages = [
        received.map(drop),
        whole.await.map(|message| {
            assert!(
                message.packed() == copied,
                "case {case}: {from:?} of {shape:?}"
            );
            let mut array = arrays[me].clone();
            let status = message.unpack_into(&mut array);
            assert_eq!((status.source, status.len), (other, expected.len()));
            assert!(
                array == by_hand,
                "case {case}: {from:?} to {into:?} of {shape:?}"
            );
        }),
    ];
    for received in messages {
        assert_eq!(
            received.is_ok(),
            fits,
            "case {case}: {from:?} to {into:?} of {shape:?}"
        );
        if let Err(failed) = received {
            assert!(
                matches!(failed.error.kind, ErrorKind::Truncated { .. }),
                "{failed}"
            );
        }
    }
    let untouched = if fits { by_hand } else { arrays[me].clone() };
    assert!(
        array == untouched,
        "case {case}: {from:?} to {into:?} of {shape:?}"
    );
    // A message that was too long is still there.
    for tag in [0, 1].into_iter().filter(|_| !fits) {
        assert!(
            world.recv::<u64>(other, tag).await?.0 == expected,
            "case {case}"
        );
    }
    for sent in sent {
        assert!(
            sent.await?[..] == expected_of(&from, &arrays[me]),
            "case {case}"
        );
    }
    Ok(in_block)
}

#[ripstop::test(ranks = 2)]
async fn a_rank_that_waits_for_a_message_to_unpack_is_listed_and_may_give_up(
    world: Comm,
) -> Result<()> {
    let other = 1 - world.rank();
    let column = Layout::subarray(&[LONG, 2], &[0..LONG, 0..1]);
    let mut into = vec![0_u64; 2 * LONG];
    {
        let mut unpack = pin!(world.recv_packed(other, 7, &column).unpack_into(&mut into));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(unpack.as_mut().poll(&mut cx).is_pending());
        let waiting = world.runtime().waiting();
        let expected = format!("recv from rank {other}, tag 7");
        assert!(
            waiting
                .iter()
                .any(|op| op.to_string().starts_with(&expected)),
            "{waiting:?}"
        );
    }
    let inbox = world.recv_packed(other, 7, &column);
    let limited = inbox
        .unpack_into(&mut into)
        .timeout(Duration::from_millis(1));
    let late = limited.await.expect_err("it is never sent");
    assert!(matches!(late.error.kind, ErrorKind::TimedOut), "{late}");
    world.barrier().await?; // no rank ends before the other one gave up
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_message_that_is_read_in_place_is_not_copied_on_its_way(world: Comm) -> Result<()> {
    let (me, other) = (world.rank(), 1 - world.rank());
    let column = Layout::subarray(&[LONG, 2], &[0..LONG, 0..1]);
    let mut into = vec![0; 2 * LONG];
    for (nth, by_pieces) in [(0, false), (1, true), (2, true)] {
        let before = world.runtime().counters();
        let inbox = world.recv_packed::<u64>(other, 7, &column);
        let sent = world.send_packed(other, 7, &array(me, nth), &column);
        if by_pieces {
            inbox.unpack_into(&mut into).await?;
        } else {
            inbox.await?.unpack_into(&mut into);
        }
        sent.await?;
        world.barrier().await?;
        let copied = (world.runtime().counters() - before).bytes_copied;
        assert!(copied < 4096, "{copied} bytes of message {nth}");
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn messages_that_are_not_received_use_all_blocks_and_later_ones_are_copied(
    world: Comm,
) -> Result<()> {
    let (me, other) = (world.rank(), 1 - world.rank());
    let column = Layout::subarray(&[LONG, 2], &[0..LONG, 0..1]);
    for forgotten in 0..3 {
        let sent: Vec<_> = (0..20)
            .map(|nth| world.send_packed(other, nth, &array(me, nth.into()), &column))
            .collect();
        let at_once = sent.iter().filter(|sent| sent.is_done()).count();
        assert_eq!(at_once, BLOCKS - forgotten);
        world.barrier().await?;
        for nth in 0..20 {
            let mut into = vec![0; 2 * LONG];
            let inbox = world.recv_packed(other, nth, &column);
            let expected = array(other, nth.into());
            match nth % 3 {
                0 => drop(inbox.unpack_into(&mut into).await?),
                1 => drop(inbox.await?.unpack_into(&mut into)),
                _ => {
                    drop(inbox);
                    column.unpack(&world.recv(other, nth).await?.0, &mut into);
                }
            }
            assert!(column_of(&into).eq(column_of(&expected)), "message {nth}");
        }
        for sent in sent {
            assert_eq!(sent.await?.len(), LONG);
        }
        // A receive that is forgotten keeps the block of its message for ever, but neither the send nor its rank.
        let inbox = world.recv_packed::<u64>(other, 30, &column);
        world.send_packed(other, 30, &array(me, 0), &column).await?;
        world.barrier().await?;
        while !inbox.is_done() {
            world.sleep(Duration::from_micros(1)).await; // makes turns
        }
        forget(inbox);
        world.barrier().await?; // the other rank has answered all offers
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_receive_that_is_dropped_after_its_match_leaves_the_message_to_the_next_one(
    world: Comm,
) -> Result<()> {
    let (me, other) = (world.rank(), 1 - world.rank());
    let column = Layout::subarray(&[LONG, 2], &[0..LONG, 1..2]);
    for nth in 0..6 {
        let inbox = world.recv_packed::<u64>(other, 7, &column);
        let sent = world.send_packed(other, 7, &array(me, nth), &column);
        world.barrier().await?;
        while !inbox.is_done() {
            world.sleep(Duration::from_micros(1)).await; // makes turns
        }
        drop(inbox);
        let expected = array(other, nth).into_iter().skip(1).step_by(2);
        if nth % 2 == 0 {
            let message = world.recv_packed::<u64>(other, 7, &column).await?;
            assert!(message.packed().iter().copied().eq(expected));
        } else {
            assert!(
                world
                    .recv::<u64>(other, 7)
                    .await?
                    .0
                    .into_iter()
                    .eq(expected)
            );
        }
        sent.await?;
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_send_that_is_awaited_first_does_not_wait_for_a_receive_that_is_awaited_later(
    world: Comm,
) -> Result<()> {
    let (me, other) = (world.rank(), 1 - world.rank());
    let column = Layout::subarray(&[LONG, 2], &[0..LONG, 0..1]);
    for nth in 0..40 {
        let mut into = vec![0; 2 * LONG];
        let inbox = world.recv_packed::<u64>(other, 7, &column);
        world
            .send_packed(other, 7, &array(me, nth), &column)
            .await?;
        let kind = nth % 3;
        if kind == 0 {
            inbox.unpack_into(&mut into).await?;
        } else if kind == 1 {
            inbox.await?.unpack_into(&mut into);
        } else {
            drop(inbox);
            column.unpack(&world.recv::<u64>(other, 7).await?.0, &mut into);
        }
        assert!(
            into.iter()
                .step_by(2)
                .eq(array(other, nth).iter().step_by(2)),
            "message {nth}"
        );
    }
    Ok(())
}

/// Returns a part of an array of this shape: in each dimension all of it, the upper half, or one index.
fn layout(shape: &[usize; 3], random: &mut Random) -> NestedLayout {
    let ranges: Vec<Range<usize>> = shape
        .iter()
        .map(|&len| match random.below(5) {
            0..3 => 0..len,
            3 => len / 2..len,
            _ => len / 2..len / 2 + 1,
        })
        .collect();
    Layout::subarray(shape, &ranges)
}

fn expected_of(layout: &NestedLayout, array: &[u64]) -> Vec<u64> {
    let mut packed = Vec::new();
    layout.pack(array, &mut packed);
    packed
}

/// Returns an array that a rank sends as its message of this number.
fn array(rank: usize, nth: u64) -> Vec<u64> {
    (first(rank, nth)..).take(2 * LONG).collect()
}

const fn first(rank: usize, nth: u64) -> u64 {
    (rank as u64 + 1) << 40 | nth << 20
}

/// Returns the first column of an array.
fn column_of(array: &[u64]) -> impl Iterator<Item = &u64> {
    array.iter().step_by(2)
}
