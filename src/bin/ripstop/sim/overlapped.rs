//! An all-to-all while every rank computes for as long as it takes: carried out by adapters, or by hosts that look now and then.
//!
//! `offload-L` is the lowering to task lists on adapters whose queues hold L tasks, with an agent that has no processor of its
//! own: its turns, and being woken for them, lengthen the computation. `host-T` is the runtime over messages without an agent,
//! and T looks while it computes.

use std::time::Duration;

use ripstop::{
    Collectives, Comm, Result, Sum,
    sim::{
        self, Model,
        overlap::{AllToAll, Overlap},
    },
};

use super::{
    Args, Case, Trouble,
    plot::Plot,
    scenario::{Figures, Work},
};
use crate::perf::report::Row;

pub(super) const WAYS: &[&str] = &[
    "offload-1024",
    "offload-256",
    "offload-64",
    "offload-32",
    "offload-8",
    "host-0",
    "host-1",
    "host-10",
    "host-100",
    "host-1000",
];

/// The adapters' queue of a way, if it is theirs.
pub(super) fn queue_of(way: &str) -> Option<u32> {
    way.strip_prefix("offload-")?.parse().ok()
}

/// Runs one way of the adapters.
pub(super) fn offloaded(
    args: &Args,
    case: Case,
    queue: u32,
    plot: &mut Plot,
) -> std::result::Result<Row, Trouble> {
    let mut model: Model = args.fabric_model()?;
    model.host.steals = true;
    model.nic.triggered = queue;
    let ranks = u64::from(case.ranks);
    let job = AllToAll {
        ranks: case.ranks,
        model,
        block: args.size,
        window: WINDOW,
        checked: ranks * ranks * args.size as u64 <= CHECKED_MAX,
        seed: case.seed,
    };
    let found = job.run()?;
    plot.point(
        &format!("{} overlap %", case.way),
        f64::from(case.ranks),
        found.osu(),
    );
    Ok(figures_of(
        Row::new("ialltoall")
            .label("ranks", case.ranks)
            .label("way", case.way),
        &found,
    )
    .figure("wakes", "wakes", found.wakes as f64)
    .figure("wakes_bound", "bound", found.wakes_bound(case.ranks) as f64)
    .field("list_steps", found.list_steps)
    .field("block", args.size)
    .field("checked", job.checked)
    .field("events", found.events)
    .label("digest", format!("{:016x}", found.digest)))
}

fn figures_of(row: Row, found: &Overlap) -> Row {
    row.figure("pure_us", "pure µs", micros(found.pure))
        .figure("compute_us", "compute µs", micros(found.compute))
        .figure("overall_us", "overall µs", micros(found.overall))
        .figure("overlap_osu", "OSU %", found.osu())
        .figure("overlap_imb", "IMB %", found.imb())
}

/// One rank of a way of the hosts. Rank 0 tells.
pub(super) async fn by_host(world: Comm, work: Work) -> Result<Figures> {
    let looks: u32 = work
        .way
        .strip_prefix("host-")
        .and_then(|looks| looks.parse().ok())
        .unwrap_or(0);
    let send = vec![1_u8; world.size() * work.size];
    let recv = vec![0_u8; send.len()];
    let (send, recv) = world.all_to_all_into(send, recv).await?;
    world.barrier().await?;
    let start = sim::now(&world);
    let (send, recv) = world.all_to_all_into(send, recv).await?;
    let pure = sim::now(&world) - start;
    world.barrier().await?;
    let start = sim::now(&world);
    let exchange = world.all_to_all_into(send, recv);
    for _ in 0..=looks {
        sim::compute(&world, pure / (looks + 1)).await;
    }
    exchange.await?;
    let overall = sim::now(&world) - start;
    let times = vec![pure.as_secs_f64(), overall.as_secs_f64()];
    let sums = world.all_reduce(times, Sum).await?;
    if world.rank() > 0 {
        return Ok(Figures::new());
    }
    let mean = |nth: usize| sums[nth] / world.size() as f64;
    let (pure, overall) = (mean(0), mean(1));
    let exposed = overall - pure;
    Ok(vec![
        (
            "overlap_osu",
            "OSU %",
            (100.0 - exposed / pure * 100.0).max(0.0),
        ),
        (
            "overlap_imb",
            "IMB %",
            100.0 * (1.0 - exposed / pure).clamp(0.0, 1.0),
        ),
        ("pure_us", "pure µs", pure * 1e6),
        ("overall_us", "overall µs", overall * 1e6),
    ])
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Messages of a rank under way at a time: enough for the longest latency of any preset, and no burden for receivers.
const WINDOW: usize = 32;
/// Bytes of all blocks up to which they have contents.
const CHECKED_MAX: u64 = 256 << 20;
