//! What a simulated rank takes when it does nothing. Alone in its program, because it looks at the whole process.

#![expect(clippy::print_stdout, reason = "the figure is for who asks")]

use std::{
    fs, future,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use ripstop::{
    Comm,
    sim::{SimError, Simulation},
};

/// Bytes of this process that are in memory, but for those of its program, of which more and more is looked at.
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

/// Rank 0 looks when all have had their first turn.
async fn look(world: Comm) {
    world.sleep(Duration::from_secs(1)).await;
    ASLEEP.store(resident(), Ordering::Relaxed);
}

#[test]
fn an_idle_rank_takes_at_most_two_and_a_quarter_kibibytes() {
    const RANKS: u32 = 16_384;
    let before = resident();
    // All but one wait for what never comes: the simulation ends by saying so.
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
    assert!(each <= 2304, "{each} bytes for each idle rank");
}
