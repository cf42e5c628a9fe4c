use std::time::Duration;

use ripstop::{
    Collectives, Comm, Result,
    sim::{SimError, Simulation, compute, now},
};

// ANCHOR: test
#[ripstop::sim(ranks = 128, fabric = "bxi", faults = "drop=0.01,delay=0.05:20us")]
async fn a_sum_is_right_on_a_bad_network(world: Comm) -> Result<()> {
    let sum = world.all_reduce(world.rank() as u64, ripstop::Sum).await?;
    assert_eq!(sum, 127 * 128 / 2);
    Ok(())
}
// ANCHOR_END: test

#[test]
fn a_simulation_is_a_value() {
    // ANCHOR: value
    let report = Simulation::new(1024)
        .seed(7)
        .fabric("hdr")
        .run(|world| async move {
            let start = now(&world);
            compute(&world, Duration::from_micros(50)).await;
            world.barrier().await?;
            Result::<_, ripstop::Error>::Ok(now(&world) - start)
        })
        .expect("nothing goes wrong here");
    println!(
        "{:?} of virtual time, {} messages, digest {:016x}",
        report.time, report.stats.messages, report.digest
    );
    // ANCHOR_END: value
    assert!(report.time > Duration::from_micros(50));
    assert!(
        report
            .results
            .into_iter()
            .flatten()
            .all(|time| time.is_ok())
    );
}

#[test]
fn a_deadlock_names_waiting_ranks_and_awaited_ranks() {
    // ANCHOR: deadlock
    let ended = Simulation::new(3).run(|world| async move {
        let left = (world.rank() + world.size() - 1) % world.size();
        world.recv::<f64>(left, 7).await.map(drop) // every rank receives, and none sends
    });
    let error = ended.expect_err("this cannot end");
    println!("{error}");
    // ANCHOR_END: deadlock
    assert!(matches!(error, SimError::Deadlock(stuck) if stuck.ranks == 3));
}
