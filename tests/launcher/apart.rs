//! Ranks that call different collectives and complete: they learn of it before they leave, at the latest.

use std::time::{Duration, Instant};

use ripstop::{Collectives, Comm, Result};

use crate::{Ended, ended, launcher, roles};

/// How long a rank that leaves waits for ranks from which it hears nothing.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// The calls of the ranks.
const PART: &str = "LAUNCHER_TEST_PART";

/// Runs the program; its exit code is that of the process.
pub(crate) fn live() -> ! {
    let code = format!("{:?}", main());
    let digits = code.chars().filter(char::is_ascii_digit);
    std::process::exit(digits.collect::<String>().parse().unwrap_or(99))
}

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    play(&std::env::var(PART).unwrap_or_default(), world).await
}

async fn play(part: &str, world: Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let mine = vec![me as u64; 4];
    let is_last = me + 1 == size;
    match part {
        "bcast" => drop(world.bcast(me, mine).await?),
        "one other bcast" => drop(world.bcast(if is_last { me } else { 0 }, mine).await?),
        "bcast of a dropped communicator" => {
            let half = world.dup().await?;
            drop(world);
            drop(half.bcast(me, mine).await?);
        }
        "forgotten bcast" => drop(world.bcast(me, mine)),
        "bcast of another length" => {
            let len = if is_last { 5 } else { 4 };
            drop(world.bcast(me, vec![0_u64; len]).await?);
        }
        "bcast beside scan" => {
            if is_last {
                drop(world.bcast(me, mine).await?);
            } else {
                drop(world.scan(mine, ripstop::Sum).await?);
            }
        }
        "one more" => {
            world.barrier().await?;
            if me == 0 {
                drop(world.bcast(0, mine).await?);
            }
        }
        "the same" => all_of_them(&world).await?,
        "each in its way" => each_in_its_way(world).await?,
        other => panic!("nothing is called {other}"),
    }
    Ok(())
}

/// Correct collectives in which some ranks hear from few others.
async fn all_of_them(world: &Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    drop(world.gather(size - 1, vec![me as u64; 3]).await?);
    drop(world.all_gather(vec![me as u64; 3]).await?);
    let half = world.split_some(Some(u32::from(me % 2 == 1)), 0).await?;
    if let Some(half) = half {
        drop(half.bcast(0, vec![0_u64; 100_000]).await?);
    }
    let twin = world.dup().await?;
    drop(twin.bcast(0, vec![me as u64]));
    drop(twin);
    drop(world.bcast(0, vec![1_u8; 3]).await?);
    Ok(())
}

/// Ranks that leave in other ways than by a collective that all have called, and are right to do so.
async fn each_in_its_way(world: Comm) -> Result<()> {
    let twin = world.dup().await?;
    let others = world
        .split_some(Some(u32::from(world.rank() == 0)), 0)
        .await?;
    twin.barrier().await?;
    if world.rank() == 0 {
        world.revoke();
    }
    drop(world);
    drop(twin.bcast(0, vec![1_u8]).await?);
    if let Some(others) = others {
        drop(others.bcast(0, vec![others.size()]).await?);
    }
    Ok(())
}

fn run(part: &str, ranks: u32, envs: &[(&str, &str)]) -> Ended {
    let mut command = launcher(ranks, &["--keep-going"]);
    command.arg("--").arg(std::env::current_exe().unwrap());
    command.args(roles::AS_RANK).env(roles::ROLE, "apart");
    command.env(PART, part).envs(envs.iter().copied());
    ended(command)
}

fn times() -> u32 {
    let text = std::env::var("FATES").unwrap_or_default();
    text.parse().unwrap_or(2)
}

/// Runs a job, and returns how long it took.
#[expect(clippy::disallowed_methods, reason = "ranks wait in real time")]
fn run_timed(part: &str, ranks: u32, envs: &[(&str, &str)]) -> (Ended, Duration) {
    let began = Instant::now();
    let job = run(part, ranks, envs);
    (job, began.elapsed())
}

/// Returns how the error of a rank begins.
fn of_rank(rank: u32) -> String {
    format!("ripstop: rank {rank}: ")
}

/// Each rank exits with code 1, and its error names two ranks with their calls and lines.
#[track_caller]
fn is_told_everywhere(part: &str, ranks: u32, envs: &[(&str, &str)]) {
    let mut job = run_timed(part, ranks, envs);
    // On a machine that is so busy that a rank hears nothing of the others for that long, the rank leaves, as it must.
    for _ in 0..5 {
        if job.1 < SILENCE_MAX || (0..ranks).all(|rank| job.0.err.contains(&of_rank(rank))) {
            break;
        }
        job = run_timed(part, ranks, envs);
    }
    let (job, _) = job;
    let what = format!(
        "{part} on {ranks} ranks with {envs:?}: {}{}",
        job.out, job.err
    );
    assert_eq!(job.code, Some(1), "{what}");
    for rank in 0..ranks {
        let its = of_rank(rank);
        let said: Vec<&str> = job.err.lines().filter(|line| line.contains(&its)).collect();
        assert_eq!(said.len(), 1, "rank {rank}, {what}");
        let both = said[0].matches(") at tests/launcher/apart.rs:").count();
        assert!(
            said[0].contains("do not call the same collective") && both == 2,
            "{what}"
        );
    }
}

const APART: [&str; 6] = [
    "bcast",
    "one other bcast",
    "bcast of a dropped communicator",
    "forgotten bcast",
    "bcast of another length",
    "bcast beside scan",
];

#[test]
fn ranks_that_call_different_collectives_last_all_hear_of_it_before_they_leave() {
    for _ in 0..times() {
        for part in APART {
            for ranks in [2, 4, 8] {
                is_told_everywhere(part, ranks, &[]);
            }
        }
    }
}

#[test]
fn they_hear_of_it_by_messages_without_an_agent_and_under_the_other_reactor_too() {
    for envs in [
        [("RIPSTOP_COLLECTIVES", "messages")],
        [("RIPSTOP_PROGRESS", "inline")],
        [("RIPSTOP_REACTOR", "epoll")],
    ] {
        for ranks in [2, 5] {
            is_told_everywhere("bcast", ranks, &envs);
        }
    }
}

/// A rank that has left before cannot learn of it. The job fails all the same.
#[test]
fn a_collective_that_not_all_ranks_call_fails_the_job() {
    for _ in 0..times() {
        for ranks in [2, 5, 8] {
            let job = run("one more", ranks, &[]);
            assert!(job.code != Some(0), "{ranks} ranks: {}{}", job.out, job.err);
        }
    }
}

#[test]
fn ranks_that_call_the_same_collectives_leave_in_silence() {
    for _ in 0..times() {
        for ranks in [1, 2, 3, 4, 8] {
            for part in ["the same", "each in its way"] {
                let job = run(part, ranks, &[]);
                assert_eq!(
                    (job.code, job.err.as_str()),
                    (Some(0), ""),
                    "{part}, {ranks} ranks"
                );
            }
        }
    }
}
