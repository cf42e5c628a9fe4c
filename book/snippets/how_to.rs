//! Snippets of the how-to pages.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use ripstop::{Runtime, prelude::*, sim::Simulation};

#[ripstop::test(ranks = 3)]
async fn a_pipeline_passes_all_blocks_on(world: Comm) -> Result<()> {
    let mut finished = Vec::new();
    // ANCHOR: pipeline
    let line = world.cart(&[world.size()], &[false]).await?;
    let (before, behind) = line.shift(0, 1); // `None` at the ends
    let mut in_flight = None;
    for block in 0..8 {
        let (mut numbers, _) = line.recv::<u64>(before, 0).await?;
        if before.is_none() {
            numbers = vec![block; 1000]; // the first rank makes the blocks
        }
        numbers.iter_mut().for_each(|number| *number += 1); // the work of this stage
        if behind.is_none() {
            finished.push(numbers); // the last rank keeps them
        } else if let Some(sent) = in_flight.replace(line.send(behind, 0, numbers)) {
            sent.await?; // at most two blocks of a rank are in flight
        }
    }
    if let Some(sent) = in_flight {
        sent.await?;
    }
    // ANCHOR_END: pipeline
    let first: Vec<u64> = finished.iter().map(|numbers| numbers[0]).collect();
    let expected = if world.rank() == 2 { 3..11 } else { 0..0 };
    assert_eq!(first, expected.collect::<Vec<_>>());
    Ok(())
}

// ANCHOR: must_stop
/// Returns true on all ranks if one of them was asked to stop, or has run for `limit`.
async fn must_stop(
    world: &Comm,
    asked: &AtomicBool,
    started: Instant,
    limit: Duration,
) -> Result<bool> {
    let stops = asked.load(Ordering::Relaxed) || started.elapsed() > limit;
    let any = world.all_reduce(u8::from(stops), Max).await?;
    Ok(any == 1)
}
// ANCHOR_END: must_stop

#[ripstop::test(ranks = 3)]
async fn all_ranks_stop_in_the_same_step(world: Comm) -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "a program's own clock")]
    let started = Instant::now();
    let limit = Duration::from_secs(3600);
    let asked = AtomicBool::new(false);
    let mut steps = 0;
    while !must_stop(&world, &asked, started, limit).await? {
        steps += 1;
        asked.store(world.rank() == 1 && steps == 5, Ordering::Relaxed);
    }
    assert_eq!(steps, 5);
    assert!(must_stop(&world, &asked, started, Duration::ZERO).await?);
    Ok(())
}

// ANCHOR: any_number
#[test]
fn the_answer_does_not_depend_on_the_number_of_ranks() {
    let alone = answers(1)[0];
    for ranks in 2..=7 {
        let same = answers(ranks).iter().all(|answer| *answer == alone);
        assert!(
            same,
            "{:?} on {ranks} ranks, {alone} on one",
            answers(ranks)
        );
    }
}

/// Returns what each of the ranks has computed.
fn answers(ranks: u32) -> Vec<f64> {
    let simulation = Simulation::new(ranks);
    let report = simulation.run(|world| async move { norm(&world).await });
    let results = report.expect("the ranks end").results.into_iter().flatten();
    results.map(|norm| norm.expect("no error")).collect()
}
// ANCHOR_END: any_number

/// Adds up numbers that are spread over the ranks, always in the order of the cells.
async fn norm(world: &Comm) -> Result<f64> {
    let cells = 1000;
    let share = |rank| rank * cells / world.size();
    let mine = share(world.rank())..share(world.rank() + 1);
    let squares: Vec<f64> = mine.map(|cell| (cell as f64).sqrt()).collect();
    let sums = world.all_gather_ragged(squares).await?;
    let all: Vec<f64> = sums.into_iter().flatten().collect();
    Ok(all.iter().sum::<f64>().sqrt())
}

// ANCHOR: session
/// What a program in another language holds between its calls.
struct Session {
    runtime: Runtime,
}

impl Session {
    fn start() -> Result<Self> {
        let runtime = Runtime::init()?; // joins the job, as `#[ripstop::main]` does
        Ok(Self { runtime })
    }

    /// Replaces each of the values by its sum over all ranks.
    fn add_up(&self, values: &mut [f64]) -> Result<()> {
        let world = self.runtime.world();
        let sums = world.block_on(world.all_reduce(values.to_vec(), Sum))?;
        values.copy_from_slice(&sums);
        Ok(())
    }

    fn end(self) -> Result<()> {
        self.runtime.close()
    }
}
// ANCHOR_END: session

#[test]
fn a_session_is_used_without_async() -> Result<()> {
    let session = Session::start()?;
    let mut values = [1.5, 2.5];
    session.add_up(&mut values)?;
    assert_eq!(values, [1.5, 2.5]);
    session.end()
}
