//! Ranks of a test as processes: the test binary runs itself, once for each rank, with only this test.

use std::{
    env,
    process::{Child, Command},
    sync::mpsc,
    thread,
    time::Duration,
};

use ripstop_fabric::shm::Board;

use super::TestConfig;
use crate::boot::{Boot, one_of};

/// `name rank size board`, for a process that is one rank of a test.
const VARIABLE: &str = "RIPSTOP_TEST_RANK";

/// Who this process is, if it is a rank of this test.
pub(super) fn this_rank(name: &str) -> Option<(Boot, Board)> {
    let text = env::var(VARIABLE).ok()?;
    let mut words = text.split(' ');
    if words.next() != Some(name) {
        return None;
    }
    let mut number = || words.next()?.parse().ok();
    let (rank, size) = (number()?, number()?);
    let board =
        Board::attach(words.next()?).unwrap_or_else(|error| panic!("{VARIABLE}={text}: {error}"));
    Some((one_of(rank, size), board))
}

/// Runs all ranks, and panics with the first that failed.
pub(super) fn run(config: &TestConfig, limit: Duration) {
    let size = u32::try_from(config.ranks).expect("a number of ranks below 2^32");
    let board =
        Board::create(size).unwrap_or_else(|error| panic!("no board for the ranks: {error}"));
    let (ended, ends) = mpsc::channel();
    let mut pids = Vec::new();
    for rank in 0..size {
        let mut child = start(config, rank, size, &board);
        pids.push(child.id());
        let ended = ended.clone();
        thread::spawn(move || ended.send((rank, child.wait())));
    }
    let mut failed = None;
    for _ in 0..size {
        match ends.recv_timeout(limit) {
            Ok((rank, Ok(status))) if !status.success() => {
                failed.get_or_insert((rank, status));
            }
            Ok((rank, Err(error))) => panic!("rank {rank}: {error}"),
            Ok(_) => {}
            Err(_) => {
                pids.iter().for_each(|&pid| kill(pid));
                panic!(
                    "{}: not all ranks ended within {} s",
                    config.name,
                    limit.as_secs()
                );
            }
        }
    }
    if let Some((rank, status)) = failed {
        panic!(
            "rank {rank} of {}: {status}; its own words are above",
            config.name
        );
    }
}

fn start(config: &TestConfig, rank: u32, size: u32, board: &Board) -> Child {
    let path = env::current_exe().expect("the path of the test binary");
    let test = config
        .name
        .split_once("::")
        .map_or(config.name, |(_, test)| test);
    let mut command = Command::new(path);
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(
        VARIABLE,
        format!("{} {rank} {size} {}", config.name, board.address()),
    );
    command
        .spawn()
        .unwrap_or_else(|error| panic!("rank {rank} could not be started: {error}"))
}

/// A child that was started here and has not been waited for: its id is its own.
fn kill(pid: u32) {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // It may have ended by itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
