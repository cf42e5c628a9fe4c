use std::time::Duration;

use ripstop::{Collectives, Comm, Error, Result, Sum, sim::Simulation};

// ANCHOR: supervisor
fn supervise(world: &Comm) {
    let (mut failures, supervised) = (world.failures(), world.clone());
    drop(world.spawn(async move {
        while let Some(rank) = failures.next().await {
            eprintln!("rank {rank} has failed");
            supervised.revoke();
        }
    }));
}
// ANCHOR_END: supervisor

// ANCHOR: abort
fn check(world: &Comm, energy: f64) {
    if energy.is_nan() {
        eprintln!("rank {}: the energy is not a number", world.rank());
        world.abort(3);
    }
}
// ANCHOR_END: abort

#[ripstop::test(ranks = 2)]
async fn a_good_energy_aborts_nothing(world: Comm) -> Result<()> {
    check(&world, 1.0);
    world.barrier().await
}

/// A step whose error is in a box, as many programs have it.
async fn boxed(world: Comm) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    world.send(world.size(), 0, [1.0_f64; 3]).await?;
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn the_error_of_an_operation_is_the_source_in_a_box(world: Comm) {
    let boxed = boxed(world).await.expect_err("there is no such rank");
    let error = boxed.source().expect("the error of the operation");
    let error: &Error = error.downcast_ref().expect("an error of Ripstop");
    assert_eq!(error.op, "send");
}

// ANCHOR: going_on
async fn simulate(world: Comm) -> Result<usize> {
    let mut comm = world;
    let mut steps = 0;
    while steps < 100 {
        let went_well = step(&comm).await.is_ok();
        if !went_well {
            comm.revoke(); // ranks that still wait in this step are notified
        }
        if comm.agree(went_well).await? {
            steps += 1; // all ranks have done it
        } else {
            comm = comm.shrink().await?; // the step does not count, and the survivors repeat it
        }
    }
    Ok(comm.size())
}
// ANCHOR_END: going_on

async fn step(comm: &Comm) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let inbox = comm.recv_into((rank + size - 1) % size, 1, [0]);
    comm.send((rank + 1) % size, 1, [rank]).await?;
    let ([from], _) = inbox.await?;
    let [sum] = comm.all_reduce([from], Sum).await.map_err(Error::from)?;
    assert_eq!(sum, size * (size - 1) / 2);
    comm.sleep(Duration::from_micros(10)).await;
    Ok(())
}

#[test]
fn a_job_goes_on_without_the_ranks_that_die() {
    let simulation = Simulation::new(16).faults("kill=0@400us,kill=7@2ms");
    let report = simulation.run(|world| async move {
        supervise(&world);
        simulate(world).await
    });
    for (rank, left) in (0..).zip(report.expect("nothing else goes wrong").results) {
        match left {
            Some(left) => assert_eq!(left.expect("it goes on"), 14),
            None => assert!(rank == 0 || rank == 7),
        }
    }
}
