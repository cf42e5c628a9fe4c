//! Random epochs between a hundred simulated ranks.

use std::time::Duration;

use ripstop::{Comm, Window, fabric::random::Random, sim::Simulation};

const RANKS: u32 = 100;
const ROUNDS: u64 = 6;
/// What memory holds while no epoch is open.
const CLOSED: u64 = u64::MAX;

/// Whether `from` accesses `to` in this round; about four ranks do, and some rounds have none.
fn has_edge(seed: u64, round: u64, from: usize, to: usize) -> bool {
    let key = (round * 1_000 + from as u64) * 1_000 + to as u64;
    let mut random = Random::new(seed ^ key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    random.within(0..25) == 0
}

fn value(round: u64, from: usize) -> u64 {
    round * 1_000 + from as u64
}

async fn rank(world: Comm, seed: u64) {
    let (me, size) = (world.rank(), world.size());
    let mut random = Random::new(seed + 7 * me as u64);
    let mut window = Window::<u64>::allocate(&world, size).await.unwrap();
    window.local_mut().fill(CLOSED);
    for round in 0..ROUNDS {
        world
            .sleep(Duration::from_nanos(random.within(0..50_000)))
            .await;
        // A put that came outside of an epoch would show.
        assert!(
            window.local().iter().all(|&elem| elem == CLOSED),
            "round {round}"
        );
        let origins: Vec<usize> = (0..size)
            .filter(|&of| has_edge(seed, round, of, me))
            .collect();
        let targets: Vec<usize> = (0..size)
            .filter(|&to| has_edge(seed, round, me, to))
            .collect();
        let exposure = window.post(&origins).unwrap();
        let access = exposure.start(&targets).await.unwrap();
        for &target in &targets {
            if random.within(0..4) == 0 {
                world
                    .sleep(Duration::from_nanos(random.within(0..5_000)))
                    .await;
            }
            access.put(target, me, [value(round, me)]).detach();
        }
        if random.within(0..2) == 0 {
            access.complete().await.unwrap();
        } else {
            drop(access);
        }
        let mine = exposure.wait().await.unwrap();
        for (from, elem) in mine.iter_mut().enumerate() {
            let put = origins.contains(&from);
            assert_eq!(
                *elem,
                if put { value(round, from) } else { CLOSED },
                "{from} to {me}"
            );
            *elem = CLOSED;
        }
    }
    window.free().await.unwrap();
}

#[test]
fn every_epoch_ends_and_nothing_lands_outside_of_one() {
    for (seed, faults) in [
        (1, ""),
        (2, "drop=0.05,dup=0.05,reorder=16"),
        (3, "drop=0.2"),
    ] {
        let simulation = Simulation::new(RANKS)
            .seed(seed)
            .fabric("hdr")
            .faults(faults);
        let report = simulation.run(move |world| rank(world, seed)).unwrap();
        assert_eq!(report.leaked, 0);
    }
}
