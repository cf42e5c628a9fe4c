//! What programs of `#[ripstop::main]` report at their end.

use std::process::{Command, ExitCode};

use ripstop::{__private::run_main, Collectives as _, Comm, Result};

use crate::{ended, launcher};

const PROGRAM: &str = "LAUNCHER_TEST_PROGRAM";

/// Not a claim: the entry point of a rank when a test below starts this program again.
#[test]
fn a_program_of_a_job() {
    let Ok(program) = std::env::var(PROGRAM) else {
        return;
    };
    let code = match program.as_str() {
        "loses" => run_main(loses),
        "mistakes" => run_main(mistakes),
        "aborts" => run_main(aborts),
        "aborts badly" => run_main(aborts_badly),
        other => panic!("{other}"),
    };
    std::process::exit(i32::from(code != ExitCode::SUCCESS))
}

/// Runs `ripstop run -n RANKS` of this program, in one of the roles above.
fn program(ranks: u32, name: &str) -> Command {
    let mut command = launcher(ranks, &[]);
    command
        .arg("--")
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "ends::a_program_of_a_job",
            "--nocapture",
            "--quiet",
        ])
        .env(PROGRAM, name);
    command
}

/// Rank 1 sends messages that rank 0 does not receive: short and long ones, on the world and on another communicator.
async fn loses(world: Comm) -> Result<()> {
    let rows = world.dup().await?;
    if world.rank() == 1 {
        world.send(0, 8, [1.0_f64; 10]).await?;
        world.send(0, 8, [2.0_f64; 10]).await?;
        world.send(0, 9, vec![3.0_f64; 1_000_000]).detach();
        rows.send(0, 7, [4_u8; 3]).await?;
        world.send(0, 6, [5_u8; 1]).await?;
    } else {
        world.recv::<u8>(1, 6).await?;
    }
    world.barrier().await
}

/// Rank 0 waits for another tag than rank 1 has sent, and rank 1 ends.
async fn mistakes(world: Comm) -> Result<()> {
    if world.rank() == 1 {
        return Ok(world.send(0, 8, [1.0_f64; 10]).await.map(drop)?);
    }
    world.recv::<f64>(1, 7).await.map(drop).map_err(Into::into)
}

/// Rank 1 aborts the job, and the others wait for it.
async fn aborts(world: Comm) -> Result<()> {
    if world.rank() == 1 {
        world.abort(42);
    }
    world.barrier().await
}

/// The last rank aborts the job with a code that a shell would show as success.
async fn aborts_badly(world: Comm) -> Result<()> {
    if world.rank() + 1 == world.size() {
        world.abort(256);
    }
    world.barrier().await
}

#[test]
fn a_rank_that_aborts_ends_the_job_with_its_code() {
    let job = ended(program(3, "aborts"));
    assert_eq!(job.code, Some(42), "{}", job.err);
    let why = "aborted the job with code 42: `abort` was called at tests/launcher/ends.rs:";
    assert!(
        job.err.contains("rank 1 (pid ") && job.err.contains(why),
        "{}",
        job.err
    );
    for ranks in [1, 2] {
        let job = ended(program(ranks, "aborts badly"));
        assert_eq!(job.code, Some(1), "{}", job.err);
    }
}

#[test]
fn messages_that_were_not_received_are_told_once_by_their_receiver() {
    let job = ended(program(2, "loses"));
    job.with(
        0,
        &[
            "ripstop: rank 0: warning: 4 messages were not received: 2 of rank 1, tag 8, 10 f64 each; \
             1 of rank 1, tag 9, 1000000 f64; 1 of rank 1 of the world on communicator ",
            ", tag 7, 3 u8\n",
        ],
    );
    assert_eq!(job.err.matches("not received").count(), 1, "{}", job.err);
}

#[test]
fn a_receive_whose_sender_has_finished_says_what_that_one_sent_instead() {
    let job = ended(program(2, "mistakes"));
    let why = "rank 1 has finished: it sends and receives no further messages; 1 message of rank 1 was not received: tag \
               8, 10 f64";
    assert!(job.err.contains(why), "{}", job.err);
    assert_ne!(job.code, Some(0), "{}", job.err);
}
