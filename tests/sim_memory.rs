//! The memory of an idle simulated rank. Alone in its program, because it measures the whole process.

#![expect(clippy::print_stdout, reason = "the figure is printed on request")]

use std::{
    fs, future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use ripstop::{
    Comm,
    sim::{SimError, Simulation},
};

/// Returns the resident memory of this process in bytes, without the pages of its program, which are loaded as it runs.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux says what a process takes");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: u64 = kib
        .and_then(|kib| kib.parse().ok())
        .expect("a number of KiB");
    kib * 1024
}

static ASLEEP: AtomicU64 = AtomicU64::new(0);

/// Rank 0 measures after all ranks have had their first turn.
async fn look(world: Comm) {
    world.sleep(Duration::from_secs(1)).await;
    ASLEEP.store(resident(), Ordering::Relaxed);
}

#[test]
fn an_idle_rank_takes_at_most_two_and_three_quarters_kibibytes() {
    const RANKS: u32 = 16_384;
    let before = resident();
    // All ranks but one wait for messages that never come, and the simulation ends with a report of that.
    let ended = Simulation::new(RANKS).run(|world| async move {
        if world.rank() == 0 {
            Box::pin(look(world)).await;
        } else {
            future::pending::<()>().await;
        }
    });
    assert!(matches!(ended, Err(SimError::Deadlock(_))), "{ended:?}");
    let each = (ASLEEP.load(Ordering::Relaxed) - before) / u64::from(RANKS);
    println!("{each} bytes for each of {RANKS} ranks, their functions and communicators included");
    assert!(each <= 2816, "{each} bytes for each idle rank");
}
