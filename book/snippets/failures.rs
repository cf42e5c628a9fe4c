use std::time::Duration;

use ripstop::{Collectives, Comm, Error, ErrorKind, Result, Source, Sum, sim::Simulation};

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

const READY: u32 = 1;
const TASK: u32 = 2;

// ANCHOR: lost_worker
/// Hands out tasks to all other ranks, and adds up their results. The task of a rank that dies goes to another rank.
async fn hand_out(world: &Comm, mut tasks: Vec<u64>) -> Result<u64> {
    let mut sum = 0;
    let mut given = vec![None; world.size()];
    let (mut idle, mut dead) = (Vec::new(), Vec::new());
    while !tasks.is_empty() || given.iter().any(Option::is_some) {
        match world.recv_into(Source::Any, READY, [0]).await {
            Ok(([result], status)) if !dead.contains(&status.source) => {
                if given[status.source].take().is_some() {
                    sum += result;
                }
                idle.push(status.source);
            }
            Ok(_) => {} // its rank sent it, and then died
            Err(failure) => match failure.error.kind {
                ErrorKind::PeerFailed { rank, .. } => {
                    dead.push(rank);
                    idle.retain(|worker| *worker != rank);
                    tasks.extend(given[rank].take());
                }
                _ => return Err(failure.into()),
            },
        }
        while !tasks.is_empty()
            && let Some(worker) = idle.pop()
        {
            given[worker] = tasks.pop();
            let task: Vec<u64> = given[worker].into_iter().collect();
            world.send(worker, TASK, task).detach(); // if the rank is dead, the next receive says so
        }
        if dead.len() + 1 == world.size() {
            return Ok(sum + tasks.into_iter().map(solve).sum::<u64>());
        }
    }
    for worker in (1..world.size()).filter(|worker| !dead.contains(worker)) {
        world.send(worker, TASK, [0_u64; 0]).detach(); // no more tasks
    }
    Ok(sum)
}
// ANCHOR_END: lost_worker

async fn work(world: &Comm) -> Result<u64> {
    let mut result = 0;
    loop {
        world.send(0, READY, [result]).await?;
        let (task, _) = world.recv::<u64>(0, TASK).await?;
        let [task] = task[..] else { return Ok(0) };
        world.sleep(Duration::from_micros(10)).await;
        result = solve(task);
    }
}

fn solve(task: u64) -> u64 {
    task * task
}

#[test]
fn the_tasks_of_workers_that_die_are_done_by_others() {
    for faults in [
        "kill=2@100us",
        "kill=1@30us,kill=3@200us",
        "kill=1@50us,kill=2@90us,kill=3@90us",
    ] {
        let simulation = Simulation::new(4).faults(faults);
        let report = simulation.run(|world| async move {
            match world.rank() {
                0 => hand_out(&world, (1..=60).collect()).await,
                _ => work(&world).await,
            }
        });
        let mut results = report.expect("the ranks that live end").results;
        let dead = results.iter().filter(|result| result.is_none());
        assert_eq!(dead.count(), faults.split(',').count(), "{faults}");
        let sum = results.swap_remove(0).expect("rank 0 lives");
        assert_eq!(
            sum.expect("it goes on"),
            (1..=60).map(solve).sum(),
            "{faults}"
        );
    }
}
