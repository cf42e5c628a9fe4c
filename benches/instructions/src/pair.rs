//! The rows of two ranks, which are threads of this process and take turns.
//!
//! A rank that waits would spin, and how often depends on the system. So a rank that has nothing to do hands its turn to the
//! other one, and finds everything there when it continues. What `hand_over` costs is not counted, and neither is `connect`,
//! in which both ranks run until they can reach each other.

use std::{
    future::Future,
    io::{PipeReader, PipeWriter, Read, Write, pipe},
    pin::Pin,
    thread,
};

use ripstop::{Collectives, Comm, Runtime, Sum, boot};

use crate::RowResult;

/// Makes the calls of a row as one of two ranks.
pub(crate) type PairRow = fn(Comm, RankTurns, usize) -> Pin<Box<dyn Future<Output = RowResult>>>;

/// The rows over shared memory by their names.
pub(crate) const PAIR_ROWS: [(&str, PairRow); 9] = [
    ("ping_pong", |world, turns, calls| {
        Box::pin(ping_pong(world, turns, calls))
    }),
    ("pair_channel", |world, turns, calls| {
        Box::pin(pair_channel(world, turns, calls))
    }),
    ("stream_recv", |world, turns, calls| {
        let sender = 1;
        Box::pin(stream(world, turns, calls, sender))
    }),
    ("stream_send", |world, turns, calls| {
        let sender = 0;
        Box::pin(stream(world, turns, calls, sender))
    }),
    ("rendezvous", |world, turns, calls| {
        Box::pin(rendezvous(world, turns, calls))
    }),
    ("pair_barrier", |world, turns, calls| {
        Box::pin(pair_barrier(world, turns, calls))
    }),
    ("pair_bcast", |world, turns, calls| {
        Box::pin(pair_bcast(world, turns, calls))
    }),
    ("pair_all_reduce", |world, turns, calls| {
        Box::pin(pair_all_reduce(world, turns, calls))
    }),
    ("pair_all_to_all", |world, turns, calls| {
        Box::pin(pair_all_to_all(world, turns, calls))
    }),
];

/// The rows over TCP by their names.
pub(crate) const TCP_ROWS: [(&str, PairRow); 2] = [
    ("tcp_message", |world, turns, calls| {
        Box::pin(tcp_ping_pong(world, turns, calls, 8))
    }),
    ("tcp_long", |world, turns, calls| {
        Box::pin(tcp_ping_pong(world, turns, calls, LONG))
    }),
];

/// Runs a row as both ranks of a job: rank 0, which is counted, on this thread, and rank 1 on another one.
pub(crate) fn run(row: PairRow, fabric: &'static str, calls: usize) -> RowResult {
    let mut boots = boot::threads(2).into_iter();
    let ((to_one, from_zero), (to_zero, from_one)) = (ends()?, ends()?);
    let turns = [
        RankTurns {
            give: to_one,
            take: from_one,
        },
        RankTurns {
            give: to_zero,
            take: from_zero,
        },
    ];
    let [zero, one] = turns.map(|turns| {
        let boot = boots.next();
        move || -> RowResult {
            let boot = boot.ok_or("a job of two ranks has two")?;
            // An agent would take over while this rank waits for its turn.
            let runtime = Runtime::builder()
                .boot(boot)
                .set("RIPSTOP_FABRIC", fabric)
                .set("RIPSTOP_PROGRESS", "inline")
                .init()?;
            connect(&runtime)?;
            runtime.block_on(row(runtime.world(), turns, calls))?;
            Ok(runtime.close()?)
        }
    });
    let other = thread::spawn(one);
    zero()?;
    other.join().map_err(|_| "rank 1 panicked")?
}

/// Has the ranks connect, for which both must run at the same time.
#[inline(never)]
fn connect(runtime: &Runtime) -> RowResult {
    Ok(runtime.block_on(runtime.world().barrier())?)
}

fn ends() -> std::io::Result<(PipeWriter, PipeReader)> {
    pipe().map(|(reader, writer)| (writer, reader))
}

/// The turns of one rank. Rank 0 has the first one.
#[derive(Debug)]
pub(crate) struct RankTurns {
    give: PipeWriter,
    take: PipeReader,
}

impl RankTurns {
    /// Gives the turn to the other rank, and returns when that one has given it back.
    fn hand_over(&mut self) {
        self.give();
        self.take();
    }

    /// Gives the turn away for good. It is no error if the other rank has ended.
    #[inline(never)]
    fn give(&mut self) {
        let _ended = self.give.write(&[0]);
    }

    /// Awaits a collective that rank 1 begins first, so that rank 0 finds its message there.
    async fn meet<F: Future>(&mut self, world: &Comm, begin: impl FnOnce() -> F) -> F::Output {
        if world.rank() == 0 {
            self.take();
            let done = begin().await;
            self.give();
            return done;
        }
        let begun = begin();
        self.give();
        self.take();
        begun.await
    }

    /// Waits for the turn.
    #[inline(never)]
    fn take(&mut self) {
        let _ended = self.take.read(&mut [0]);
    }
}

/// A message of 8 bytes to the other rank and one back, which has arrived when this rank looks for it.
async fn ping_pong(world: Comm, mut turns: RankTurns, calls: usize) -> RowResult {
    let other = 1 - world.rank();
    let (mut sent, mut received) = (vec![1_u64], vec![0_u64]);
    if world.rank() == 1 {
        turns.take();
        for _ in 0..calls {
            received = world.recv_into(other, TAG, received).await?.0;
            sent = world.send(other, TAG, sent).await?;
            turns.hand_over();
        }
        return Ok(());
    }
    for _ in 0..calls {
        let recv = world.recv_into(other, TAG, received);
        let send = world.send(other, TAG, sent);
        sent = send.await?;
        turns.hand_over();
        received = recv.await?.0;
    }
    turns.give();
    Ok(())
}

/// The same by a channel.
async fn pair_channel(world: Comm, mut turns: RankTurns, calls: usize) -> RowResult {
    let channel = world.channel::<u64>(1 - world.rank(), TAG)?;
    let (mut sent, mut received) = (1_u64, 0_u64);
    if world.rank() == 1 {
        turns.take();
        for _ in 0..calls {
            received = channel.recv_into(received).await?.0;
            sent = channel.send(sent).await?;
            turns.hand_over();
        }
        return Ok(());
    }
    for _ in 0..calls {
        let recv = channel.recv_into(received);
        sent = channel.send(sent).await?;
        turns.hand_over();
        received = recv.await?.0;
    }
    turns.give();
    Ok(())
}

/// Messages of 8 bytes from one rank to the other. They are sent in windows, for which all receives are posted before, and each
/// window is answered.
async fn stream(world: Comm, mut turns: RankTurns, calls: usize, sender: usize) -> RowResult {
    if world.rank() == 1 {
        turns.take();
    }
    for left in (1..=calls).rev().step_by(WINDOW) {
        let window = left.min(WINDOW);
        if world.rank() == sender {
            send_window(&world, &mut turns, window).await?;
        } else {
            recv_window(&world, &mut turns, window).await?;
        }
    }
    turns.give();
    Ok(())
}

async fn send_window(world: &Comm, turns: &mut RankTurns, window: usize) -> RowResult {
    let receiver = 1 - world.rank();
    if world.rank() == 0 {
        turns.hand_over(); // the receives are posted meanwhile
    }
    let sends: Vec<_> = (0..window)
        .map(|_| world.send(receiver, TAG, [1_u64]))
        .collect();
    for send in sends {
        send.await?;
    }
    turns.hand_over();
    world.recv_into(receiver, TAG_OF_ANSWER, [0_u64]).await?;
    Ok(())
}

async fn recv_window(world: &Comm, turns: &mut RankTurns, window: usize) -> RowResult {
    let sender = 1 - world.rank();
    let receives: Vec<_> = (0..window)
        .map(|_| world.recv_into(sender, TAG, [0_u64]))
        .collect();
    turns.hand_over();
    for receive in receives {
        receive.await?;
    }
    world.send(sender, TAG_OF_ANSWER, [1_u64]).await?;
    if world.rank() == 1 {
        turns.hand_over(); // the answer is received meanwhile
    }
    Ok(())
}

/// A message of 64 KiB each way at the same time. Each rank looks once before it hands over.
async fn rendezvous(world: Comm, mut turns: RankTurns, calls: usize) -> RowResult {
    let other = 1 - world.rank();
    let (mut sent, mut received) = (vec![1_u8; LONG], vec![0_u8; LONG]);
    if world.rank() == 1 {
        turns.take();
    }
    for _ in 0..calls {
        let recv = world.recv_into(other, TAG, received);
        let send = world.send(other, TAG, sent);
        // `is_done` makes one turn, where a poll that finds nothing makes many.
        while !recv.is_done() {
            turns.hand_over();
        }
        while !send.is_done() {
            turns.hand_over();
        }
        received = recv.await?.0;
        sent = send.await?;
    }
    turns.give();
    Ok(())
}

/// A message of `len` bytes to the other rank and one back. Each rank makes a turn before it hands over, because until then TCP
/// may keep a short message for others of the same turn.
async fn tcp_ping_pong(world: Comm, mut turns: RankTurns, calls: usize, len: usize) -> RowResult {
    let other = 1 - world.rank();
    let (mut sent, mut received) = (vec![1_u8; len], vec![0_u8; len]);
    if world.rank() == 1 {
        turns.take();
    }
    for _ in 0..calls {
        let recv = world.recv_into(other, TAG, received);
        let send = world.send(other, TAG, sent);
        let _may_be_done = recv.is_done();
        turns.hand_over();
        // The kernel may deliver the end of a message a little later. If this rank handed over for that, the other one would
        // send its next message before there is a receive for it.
        for looks in 1_u32.. {
            if recv.is_done() && send.is_done() {
                break;
            }
            if looks.is_multiple_of(LOOKS) {
                turns.hand_over(); // a socket had no room for all of a message
            }
        }
        received = recv.await?.0;
        sent = send.await?;
    }
    turns.give();
    Ok(())
}

async fn pair_barrier(world: Comm, mut turns: RankTurns, calls: usize) -> RowResult {
    for _ in 0..calls {
        turns.meet(&world, || world.barrier()).await?;
    }
    Ok(())
}

/// Each rank is the root of every other call.
async fn pair_bcast(world: Comm, mut turns: RankTurns, calls: usize) -> RowResult {
    for call in 0..calls {
        turns
            .meet(&world, || world.bcast(call % 2, [1_u64]))
            .await?;
    }
    Ok(())
}

async fn pair_all_reduce(world: Comm, mut turns: RankTurns, calls: usize) -> RowResult {
    for _ in 0..calls {
        turns
            .meet(&world, || world.all_reduce([1_u64], Sum))
            .await?;
    }
    Ok(())
}

/// A block of 8 bytes for each rank.
async fn pair_all_to_all(world: Comm, mut turns: RankTurns, calls: usize) -> RowResult {
    for _ in 0..calls {
        let begin = || world.all_to_all_into([1_u64, 2], [0_u64; 2]);
        turns.meet(&world, begin).await?;
    }
    Ok(())
}

const TAG: u32 = 7;
const TAG_OF_ANSWER: u32 = 8;
const WINDOW: usize = 64;
const LONG: usize = 64 << 10;

/// Looks for the end of a message before the other rank has a turn.
const LOOKS: u32 = 1000;
