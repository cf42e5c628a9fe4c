//! Packed messages that are long enough to be read in place, received and sent in every way.

use std::{future::poll_fn, mem::forget, pin::pin, task::Poll, thread, time::Duration};

use ripstop::{
    Collectives, Comm, ErrorKind, Result, Source, Tag,
    buffer::{Layout, NestedLayout},
};

/// Rows of an array, of which each message has one column: so long that it goes by rendezvous.
const ROWS: usize = 5000;

/// Rows whose column is longer than any packing block.
const LONG_ROWS: usize = (4 << 20) / size_of::<u64>() + 1;

/// Messages of which a rank forgets something. It has fewer packing blocks.
const MANY: u64 = 20;

fn column(rows: usize) -> NestedLayout {
    Layout::subarray(&[rows, 2], &[0..rows, 1..2])
}

/// Returns the array whose column a rank sends as its message of this number.
fn array(rows: usize, rank: usize, nth: u64) -> Vec<u64> {
    (first(rank, nth)..).take(2 * rows).collect()
}

const fn first(rank: usize, nth: u64) -> u64 {
    (rank as u64 + 1) << 40 | nth << 24
}

/// Returns the elements of a message.
fn sent(rows: usize, rank: usize, nth: u64) -> impl Iterator<Item = u64> {
    (first(rank, nth) + 1..).step_by(2).take(rows)
}

/// Returns true if the column is this message, and the rest of the array is zero.
fn has(array: &[u64], rank: usize, nth: u64) -> bool {
    let rows = array.chunks(2);
    rows.zip(sent(array.len() / 2, rank, nth))
        .all(|(row, sent)| row == [0, sent])
}

#[ripstop::test(ranks = 3)]
async fn a_receive_from_any_rank_reads_what_each_of_them_packs(world: Comm) -> Result<()> {
    let (me, layout) = (world.rank(), column(ROWS));
    if me > 0 {
        let array = array(ROWS, me, 0);
        let tag = u32::try_from(10 + me).expect("few ranks");
        world.send_packed(0, tag, &array, &layout).await?;
        return Ok(());
    }
    let inboxes = [(); 2].map(|()| world.recv_packed::<u64>(Source::Any, Tag::Any, &layout));
    let mut senders = Vec::new();
    for inbox in inboxes {
        let mut into = vec![0; 2 * ROWS];
        let status = inbox.unpack_into(&mut into).await?;
        assert_eq!(
            (status.tag as usize, status.len),
            (10 + status.source, ROWS)
        );
        assert!(has(&into, status.source, 0), "{status:?}");
        senders.push(status.source);
    }
    senders.sort_unstable();
    assert_eq!(senders, [1, 2]);
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_packed_message_is_probed_like_any_other(world: Comm) -> Result<()> {
    let (me, other, layout) = (world.rank(), 1 - world.rank(), column(ROWS));
    for nth in 0..6 {
        let sends = world.send_packed(other, 7, &array(ROWS, me, nth), &layout);
        let probed = world.probe(other, Tag::Any).await?;
        assert_eq!((probed.source(), probed.tag()), (other, 7));
        assert_eq!(probed.bytes(), ROWS * size_of::<u64>());
        match nth % 3 {
            0 => assert!(
                probed
                    .recv::<u64>()
                    .await?
                    .0
                    .into_iter()
                    .eq(sent(ROWS, other, nth))
            ),
            1 => {
                let (got, status) = probed.recv_into(vec![0; ROWS]).await?;
                assert_eq!(status.len, ROWS);
                assert!(got.into_iter().eq(sent(ROWS, other, nth)));
            }
            _ => {
                drop(probed);
                let mut into = vec![0; 2 * ROWS];
                let inbox = world.recv_packed(other, 7, &layout);
                inbox.unpack_into(&mut into).await?;
                assert!(has(&into, other, nth));
            }
        }
        sends.await?;
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_message_longer_than_any_block_is_copied_on_its_way(world: Comm) -> Result<()> {
    let (me, other, layout) = (world.rank(), 1 - world.rank(), column(LONG_ROWS));
    for by_pieces in [true, false] {
        let inbox = world.recv_packed(other, 7, &layout);
        let sends = world.send_packed(other, 7, &array(LONG_ROWS, me, 0), &layout);
        let mut into = vec![0; 2 * LONG_ROWS];
        let status = if by_pieces {
            inbox.unpack_into(&mut into).await?
        } else {
            inbox.await?.unpack_into(&mut into)
        };
        assert_eq!(status.len, LONG_ROWS);
        assert!(has(&into, other, 0));
        assert!(sends.await?.iter().copied().eq(sent(LONG_ROWS, me, 0)));
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_rank_unpacks_what_it_has_packed_for_itself(world: Comm) -> Result<()> {
    let (me, layout) = (world.rank(), column(ROWS));
    for (nth, is_posted_first) in [(0, true), (1, false)] {
        let mut into = vec![0; 2 * ROWS];
        let post = || world.recv_packed(me, 7, &layout);
        let posted = is_posted_first.then(post);
        let sends = world.send_packed(me, 7, &array(ROWS, me, nth), &layout);
        let inbox = posted.unwrap_or_else(post);
        inbox.unpack_into(&mut into).await?;
        assert!(has(&into, me, nth));
        assert_eq!(sends.await?.len(), ROWS);
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn two_threads_of_a_rank_exchange_columns_at_the_same_time(world: Comm) -> Result<()> {
    let (me, other, layout) = (world.rank(), 1 - world.rank(), column(ROWS));
    let exchange = |tag: u32| {
        let (world, layout) = (world.clone(), layout.clone());
        move || -> Result<()> {
            world.block_on(async {
                for round in 0..50 {
                    let nth = round << 1 | u64::from(tag);
                    let inbox = world.recv_packed(other, tag, &layout);
                    let sends = world.send_packed(other, tag, &array(ROWS, me, nth), &layout);
                    let mut into = vec![0; 2 * ROWS];
                    inbox.unpack_into(&mut into).await?;
                    assert!(has(&into, other, nth), "round {round} of thread {tag}");
                    sends.await?;
                }
                Ok(())
            })
        }
    };
    let threads = [0, 1].map(|tag| thread::spawn(exchange(tag)));
    threads
        .into_iter()
        .try_for_each(|thread| thread.join().expect("no panic"))
}

#[ripstop::test(ranks = 2)]
async fn a_send_that_is_dropped_or_forgotten_at_once_arrives(world: Comm) -> Result<()> {
    let (me, other, layout) = (world.rank(), 1 - world.rank(), column(ROWS));
    for nth in 0..3 * MANY {
        let inbox = world.recv_packed(other, 7, &layout);
        let sends = world.send_packed(other, 7, &array(ROWS, me, nth), &layout);
        match nth / MANY {
            1 => forget(sends), // its block is never used again, so the last ones are without
            _ => drop(sends),
        }
        let mut into = vec![0; 2 * ROWS];
        inbox.unpack_into(&mut into).await?;
        assert!(has(&into, other, nth), "message {nth}");
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn the_messages_of_a_rank_that_returns_at_once_are_received(world: Comm) -> Result<()> {
    let (me, layout) = (world.rank(), column(ROWS));
    if me == 0 {
        for nth in 0..MANY {
            let sends = world.send_packed(1, 7, &array(ROWS, me, nth), &layout);
            sends.detach();
        }
        return Ok(());
    }
    for nth in 0..MANY {
        let mut into = vec![0; 2 * ROWS];
        let inbox = world.recv_packed(0, 7, &layout);
        if nth % 2 == 0 {
            inbox.unpack_into(&mut into).await?;
        } else {
            inbox.await?.unpack_into(&mut into);
        }
        assert!(has(&into, 0, nth), "message {nth}");
    }
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn revoked_communicators_lose_no_block_and_no_message_that_was_found(
    world: Comm,
) -> Result<()> {
    let (me, other, layout) = (world.rank(), 1 - world.rank(), column(ROWS));
    for round in 0..MANY {
        let comm = world.dup().await?;
        let mut into = vec![0; 2 * ROWS];
        let [found, late] = [7, 8].map(|tag| comm.recv_packed::<u64>(other, tag, &layout));
        let sends = comm.send_packed(other, 7, &array(ROWS, me, round), &layout);
        poll_fn(|cx| {
            if found.is_done() {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        world.barrier().await?; // both ranks have found it
        if me == 0 {
            comm.revoke();
        }
        let failed = late.await.expect_err("it is revoked").error;
        assert!(matches!(failed.kind, ErrorKind::Revoked), "{failed}");
        if round % 2 == 0 {
            found.unpack_into(&mut into).await?;
            assert!(has(&into, other, round), "round {round}");
        } else {
            drop(found);
        }
        let sends = sends.await;
        assert!(sends.is_ok(), "it was packed before");
        let unsent = comm.send_packed(other, 9, &array(ROWS, me, round), &layout);
        let failed = unsent.await.expect_err("it is revoked").error;
        assert!(matches!(failed.kind, ErrorKind::Revoked), "{failed}");
        world.barrier().await?;
    }
    // All blocks are free again, or new ones are there for those that were lost.
    let inbox = world.recv_packed(other, 7, &layout);
    let sends = world.send_packed(other, 7, &array(ROWS, me, 0), &layout);
    assert!(sends.is_done(), "a free block");
    let mut into = vec![0; 2 * ROWS];
    inbox.unpack_into(&mut into).await?;
    assert!(has(&into, other, 0));
    Ok(())
}

#[ripstop::test(ranks = 2)]
async fn a_receive_that_gives_up_by_a_limit_leaves_what_arrives_later(world: Comm) -> Result<()> {
    let (me, other, layout) = (world.rank(), 1 - world.rank(), column(ROWS));
    let mut into = vec![0; 2 * ROWS];
    let limit = Duration::from_millis(1);
    let late = world.recv_packed(other, 7, &layout).timeout(limit);
    let late = late.unpack_into(&mut into).await.expect_err("not sent");
    assert!(matches!(late.error.kind, ErrorKind::TimedOut), "{late}");
    world.barrier().await?;
    let sends = world.send_packed(other, 7, &array(ROWS, me, 0), &layout);
    let unpack = world.recv_packed(other, 7, &layout).unpack_into(&mut into);
    let mut unpack = pin!(unpack.timeout(Duration::from_secs(600)));
    unpack.as_mut().await?;
    assert!(has(&into, other, 0));
    sends.await?;
    Ok(())
}
