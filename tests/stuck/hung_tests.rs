//! Tests of users that hang: their failure says which rank waits for what, whether ranks are threads, processes or simulated.

use std::{env, process::Command};

use ripstop::Comm;

use crate::{
    fits, place,
    roles::{ROLE, play},
};

/// Not a claim: hangs in the role that a test names.
#[ripstop::test(ranks = 3, timeout = 4)]
async fn a_test_that_hangs(world: Comm) -> ripstop::Result<()> {
    hang(world).await
}

/// Not a claim: it hangs for longer, because ranks of a busy machine may take more than four seconds until they are stuck.
#[ripstop::test(ranks = 3, timeout = 60)]
async fn a_test_that_hangs_for_longer(world: Comm) -> ripstop::Result<()> {
    hang(world).await
}

async fn hang(world: Comm) -> ripstop::Result<()> {
    match env::var(ROLE) {
        Ok(role) => play(&role, &world).await,
        Err(_) => Ok(()),
    }
}

/// Runs the tests above in this role, until the output of one has a line that fits `verdict`.
#[track_caller]
fn fails_with(role: &str, variable: (&str, &str), verdict: &str) {
    let mut text = String::new();
    for test in ["a_test_that_hangs", "a_test_that_hangs_for_longer"] {
        let output = Command::new(env::current_exe().unwrap())
            .args(["--exact", &format!("hung_tests::{test}")])
            .env(ROLE, role)
            .envs([variable])
            .output()
            .unwrap();
        text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success(), "{text}");
        if text.lines().any(|line| fits(line, verdict)) {
            return;
        }
    }
    panic!("no {verdict:?} in:\n{text}");
}

const THREADS: (&str, &str) = ("RIPSTOP_TEST_RANKS", "threads");
const PROCESSES: (&str, &str) = ("RIPSTOP_TEST_RANKS", "processes");
const SIMULATED: (&str, &str) = ("RIPSTOP_TEST_SIM", "shm");

#[test]
fn a_ring_of_receives_is_a_deadlock() {
    let at = place("ring recv");
    let links = format!(
        "verdict: deadlock: rank 0 receives from 1 ({at}) -> rank 1 receives from 2 ({at}) -> rank 2 receives from 0 ({at})"
    );
    for ranks in [THREADS, PROCESSES, SIMULATED] {
        fails_with("recv_ring", ranks, &links);
    }
}

#[test]
fn the_rank_that_misses_a_collective_is_named() {
    let line = format!(
        "verdict: rank 2 has not called barrier #0 of communicator 0 ({}); it awaits something that is not communication",
        place("barrier of three")
    );
    for ranks in [THREADS, PROCESSES, SIMULATED] {
        fails_with("missing_collective", ranks, &line);
    }
}

#[test]
fn the_rank_that_computes_is_named() {
    let line = "verdict: rank 1 computes for * s without awaiting communication (* % of a processor); 2 ranks wait for it";
    fails_with("computes_inline", ("RIPSTOP_PROGRESS", "inline"), line);
}

#[test]
fn a_receive_of_another_tag_is_named() {
    let line = format!(
        "verdict: tag mismatch between {} (rank 0) and a message of rank 1: tag 9 is awaited and tag 8 was sent; 1 other rank \
         waits for rank 0",
        place("recv of tag 9")
    );
    for ranks in [THREADS, SIMULATED] {
        fails_with("tag_mismatch", ranks, &line);
    }
}
