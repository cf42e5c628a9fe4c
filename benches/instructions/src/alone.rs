//! The rows of one rank, which talks to itself.

use std::{future::Future, pin::Pin};

use ripstop::{Collectives, Comm, Runtime, Source, Sum, Tag, Window, rma::PassiveWindow};

use crate::RowResult;

/// Makes the calls of a row on this communicator.
pub(crate) type LoneRow = fn(Comm, usize) -> Pin<Box<dyn Future<Output = RowResult>>>;

/// The rows by their names.
pub(crate) const LONE_ROWS: [(&str, LoneRow); 14] = [
    ("message", |world, calls| Box::pin(message(world, calls))),
    ("channel", |world, calls| Box::pin(channel(world, calls))),
    ("send_copy", |world, calls| {
        Box::pin(send_copy(world, calls))
    }),
    ("wildcard", |world, calls| Box::pin(wildcard(world, calls))),
    ("probe", |world, calls| Box::pin(probe(world, calls))),
    ("bcast", |world, calls| Box::pin(bcast(world, calls))),
    ("barrier", |world, calls| Box::pin(barrier(world, calls))),
    ("all_reduce", |world, calls| {
        Box::pin(all_reduce(world, calls))
    }),
    ("plan", |world, calls| Box::pin(plan(world, calls))),
    ("fence", |world, calls| Box::pin(fence(world, calls))),
    ("put", |world, calls| Box::pin(put(world, calls))),
    ("fetch_add", |world, calls| {
        Box::pin(fetch_add(world, calls))
    }),
    ("accumulate", |world, calls| {
        Box::pin(accumulate(world, calls))
    }),
    ("pscw", |world, calls| Box::pin(pscw(world, calls))),
];

/// Runs a row as the only rank of a job.
pub(crate) fn run(row: LoneRow, calls: usize) -> RowResult {
    let runtime = Runtime::init()?;
    runtime.block_on(row(runtime.world(), calls))?;
    Ok(runtime.close()?)
}

async fn message(world: Comm, calls: usize) -> RowResult {
    let (mut sent, mut received) = (vec![1_u64], vec![0_u64]);
    for _ in 0..calls {
        let recv = world.recv_into(0, TAG, received);
        let send = world.send(0, TAG, sent);
        sent = send.await?;
        received = recv.await?.0;
    }
    Ok(())
}

async fn channel(world: Comm, calls: usize) -> RowResult {
    let channel = world.channel::<u64>(0, TAG)?;
    let (mut sent, mut received) = (vec![1_u64], vec![0_u64]);
    for _ in 0..calls {
        let recv = channel.recv_into(received);
        let send = channel.send(sent);
        sent = send.await?;
        received = recv.await?.0;
    }
    Ok(())
}

async fn send_copy(world: Comm, calls: usize) -> RowResult {
    let (sent, mut received) = ([1_u64], vec![0_u64]);
    for _ in 0..calls {
        let recv = world.recv_into(0, TAG, received);
        world.send_copy(0, TAG, &sent).await?;
        received = recv.await?.0;
    }
    Ok(())
}

async fn wildcard(world: Comm, calls: usize) -> RowResult {
    let (mut sent, mut received) = (vec![1_u64], vec![0_u64]);
    for _ in 0..calls {
        let recv = world.recv_into(Source::Any, Tag::Any, received);
        let send = world.send(0, TAG, sent);
        sent = send.await?;
        received = recv.await?.0;
    }
    Ok(())
}

async fn probe(world: Comm, calls: usize) -> RowResult {
    let (mut sent, mut received) = (vec![1_u64], vec![0_u64]);
    for _ in 0..calls {
        let send = world.send(0, TAG, sent);
        let matched = world.probe(0, TAG).await?;
        received = matched.recv_into(received).await?.0;
        sent = send.await?;
    }
    Ok(())
}

async fn bcast(world: Comm, calls: usize) -> RowResult {
    for _ in 0..calls {
        world.bcast(0, [1_u64]).await?;
    }
    Ok(())
}

async fn barrier(world: Comm, calls: usize) -> RowResult {
    for _ in 0..calls {
        world.barrier().await?;
    }
    Ok(())
}

async fn all_reduce(world: Comm, calls: usize) -> RowResult {
    for _ in 0..calls {
        world.all_reduce([1_u64], Sum).await?;
    }
    Ok(())
}

async fn plan(world: Comm, calls: usize) -> RowResult {
    let mut plan = world.all_to_all_plan::<u64>(1).await?;
    for _ in 0..calls {
        plan.run().await?;
    }
    Ok(())
}

async fn fence(world: Comm, calls: usize) -> RowResult {
    let mut window = Window::<u64>::allocate(&world, 1).await?;
    for _ in 0..calls {
        let epoch = window.fence().await?;
        epoch.put(0, 0, [1]).await?;
        epoch.end().await?;
    }
    Ok(window.free().await?)
}

async fn put(world: Comm, calls: usize) -> RowResult {
    let window = passive_window(&world).await?;
    let epoch = window.lock_all().await?;
    for _ in 0..calls {
        epoch.put(0, 0, [1]).await?;
        epoch.flush(0).await?;
    }
    epoch.unlock().await;
    Ok(window.free().await?)
}

async fn fetch_add(world: Comm, calls: usize) -> RowResult {
    let window = passive_window(&world).await?;
    let epoch = window.lock_all().await?;
    for _ in 0..calls {
        epoch.fetch_add(0, 0, 1).await?;
    }
    epoch.unlock().await;
    Ok(window.free().await?)
}

/// A sum of 4 KiB.
async fn accumulate(world: Comm, calls: usize) -> RowResult {
    let window = Window::<u64>::allocate(&world, NUMBERS).await?;
    let window = window.into_passive().await?;
    let epoch = window.lock_all().await?;
    let mut block = vec![1; NUMBERS];
    for _ in 0..calls {
        block = epoch.accumulate(0, 0, block, Sum).await?;
    }
    epoch.unlock().await;
    Ok(window.free().await?)
}

async fn pscw(world: Comm, calls: usize) -> RowResult {
    let mut window = Window::<u64>::allocate(&world, 1).await?;
    for _ in 0..calls {
        let exposure = window.post(&[0])?;
        let epoch = exposure.start(&[0]).await?;
        epoch.put(0, 0, [1]).await?;
        epoch.complete().await?;
        exposure.wait().await?;
    }
    Ok(window.free().await?)
}

async fn passive_window(world: &Comm) -> Result<PassiveWindow<u64>, ripstop::Error> {
    Window::allocate(world, 1).await?.into_passive().await
}

const TAG: u32 = 7;
const NUMBERS: usize = 512;
