//! The errors of the surviving ranks when a rank dies, panics or stops. The ranks are processes: this very program, with its
//! role in `FAILURES_RANK`. `RIPSTOP_TEST_LAUNCHER` puts them on several hosts.
//!
//! `KILLS=100 cargo test --test failures` kills a hundred times instead of ten; `SEED=…` replays a run.

#![expect(
    clippy::print_stdout,
    reason = "seeds and times help to reproduce a failure; ranks talk to the test"
)]

#[path = "../support/content.rs"]
mod content;
mod faces;
#[path = "../support/given.rs"]
mod given;
mod hosts;
mod job;
#[path = "../windows/killed.rs"]
mod killed;
mod links;
mod report;
mod roles;
#[path = "../support/shrinking.rs"]
mod shrinking;

use std::{
    collections::BTreeSet,
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use ripstop::{Collectives, Runtime, boot};
use ripstop_fabric::shm::Board;
use rustix::process::Signal;

use content::{Random, seed};
use given::given;
use job::{Job, pause};
use roles::{afterwards, failed, ready};

/// Time limit, longer than any test takes; `GUARD_S` overrides it for slow machines.
fn guard() -> Duration {
    Duration::from_secs(given("GUARD_S", 60))
}

/// Number of times that a test kills ranks.
fn kills() -> u64 {
    given("KILLS", 10)
}

/// Runs one test at a time, because they count the open descriptors of this process.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Returns all files of Ripstop's.
fn ripstop_files() -> BTreeSet<String> {
    let names = ["/dev/shm", "/tmp"]
        .into_iter()
        .filter_map(|dir| fs::read_dir(dir).ok())
        .flatten()
        .flatten();
    names
        .map(|entry| entry.path().to_string_lossy().into_owned())
        .filter(|path| path.contains("ripstop"))
        .collect()
}

/// Returns true if one of these words is in a name. The files of other jobs come and go meanwhile.
fn is_named(path: &str, words: &BTreeSet<String>) -> bool {
    let mut parts = path.split(|letter: char| !letter.is_ascii_alphanumeric());
    parts.any(|part| words.contains(part))
}

#[test]
fn survivors_of_a_kill_at_any_moment_hear_of_it_and_go_on() {
    let test = "survivors_of_a_kill_at_any_moment_hear_of_it_and_go_on";
    survive_kills(test, "exchange");
}

#[test]
fn faces_end_when_a_rank_is_killed_that_packs_or_unpacks_one() {
    let test = "faces_end_when_a_rank_is_killed_that_packs_or_unpacks_one";
    survive_kills(test, "faces");
}

#[test]
fn epochs_end_when_a_rank_is_killed_in_one_and_the_others_go_on_with_theirs() {
    let test = "epochs_end_when_a_rank_is_killed_in_one_and_the_others_go_on_with_theirs";
    survive_kills(test, "epochs");
}

#[test]
fn fences_fail_on_all_ranks_when_one_is_killed() {
    survive_kills("fences_fail_on_all_ranks_when_one_is_killed", "fences");
}

#[test]
fn locks_are_handed_on_when_a_rank_is_killed() {
    survive_kills("locks_are_handed_on_when_a_rank_is_killed", "locks");
}

#[test]
fn ranks_of_a_node_get_no_memory_to_write_when_one_is_killed_that_reads_it() {
    let test = "ranks_of_a_node_get_no_memory_to_write_when_one_is_killed_that_reads_it";
    survive_kills(test, "node_windows");
}

/// Kills one of four ranks of this role after some milliseconds, several times. The other ranks end well, and nothing is left
/// behind.
fn survive_kills(test: &str, role: &str) {
    let _turn = one_at_a_time();
    let mut random = Random::new(seed(test));
    let before = ripstop_files();
    let mut words = BTreeSet::new();
    let mut descriptors = None;
    for kill in 0..kills() {
        let mut job = Job::start(role, 4);
        job.all_ready();
        words.extend(job.words_of_files());
        let victim = random.below(4);
        pause(Duration::from_micros(random.below(20_000) as u64));
        job.signal(victim, Signal::KILL);
        let (bad, took) = job.end();
        println!(
            "kill {kill}: rank {victim}; all survivors had ended {} ms later",
            took.as_millis()
        );
        assert_eq!(bad, [victim], "those that did not end well");
        let before = *descriptors.get_or_insert_with(open_descriptors);
        assert!(
            open_descriptors() <= before,
            "descriptors left open by a job"
        );
    }
    let left = ripstop_files();
    let left = left
        .difference(&before)
        .filter(|path| is_named(path, &words));
    assert_eq!(left.collect::<Vec<_>>(), [""; 0], "files left behind");
}

#[test]
fn a_job_shrinks_twice_and_goes_on_whichever_ranks_are_killed_when() {
    let test = "a_job_shrinks_twice_and_goes_on_whichever_ranks_are_killed_when";
    let _turn = one_at_a_time();
    let mut random = Random::new(seed(test));
    for kill in 0..kills() {
        let mut job = Job::start("shrink", 4);
        job.all_ready();
        let first = random.below(4);
        pause(Duration::from_micros(random.below(20_000) as u64));
        job.signal(first, Signal::KILL);
        job.ready(3);
        let second = (first + 1 + random.below(3)) % 4;
        pause(Duration::from_micros(random.below(20_000) as u64));
        job.signal(second, Signal::KILL);
        let (bad, took) = job.end();
        println!(
            "kill {kill}: ranks {first} and {second}; the other two had ended {} ms later",
            took.as_millis()
        );
        assert_eq!(bad, [first.min(second), first.max(second)]);
    }
}

#[test]
fn a_rank_has_started_before_the_others_have_come() {
    let _turn = one_at_a_time();
    let mut job = Job::start("late", 2);
    job.ready(1);
    job.let_go(1);
    assert_eq!(job.end().0, []);
}

#[test]
fn a_peer_that_never_comes_has_failed_for_the_rank_that_waits() {
    let _turn = one_at_a_time();
    assert_eq!(Job::start("alone", 2).end().0, []);
}

#[test]
fn a_peer_that_never_comes_has_failed_for_a_rank_that_only_receives() {
    let _turn = one_at_a_time();
    for what in ["awaits_one", "awaits_any", "awaits_all"] {
        assert_eq!(Job::start(what, 2).end().0, [], "{what}");
    }
}

#[test]
fn a_panic_in_one_rank_is_a_failure_to_the_others() {
    let _turn = one_at_a_time();
    let (bad, _) = Job::start("panic", 3).end();
    assert_eq!(bad, [1]);
}

#[test]
fn a_rank_that_fails_at_start_is_a_failure_to_the_others() {
    let _turn = one_at_a_time();
    let board = Board::create(2).expect("memory");
    let mut boots = boot::threads(2);
    let failing = Runtime::builder()
        .set("RIPSTOP_FABRIC", "portals")
        .set("RIPSTOP_PORTALS_LIBRARY", "/nowhere/libportals.so")
        .boot(boots.swap_remove(1))
        .board(board.clone());
    // The other ranks would otherwise wait for its address first.
    let waiting = Runtime::builder()
        .set("RIPSTOP_FABRIC", "shm")
        .boot(boots.swap_remove(0))
        .board(board);
    let runtime = waiting.init().expect("a runtime");
    let world = runtime.world();
    let failing = thread::spawn(|| drop(failing.init().expect_err("no such library")));
    runtime.block_on(async {
        let gone = world.recv::<u8>(1, 1).timeout(guard()).await;
        assert_eq!(failed(&gone.expect_err("never sent").error.kind), 1);
        let gone = world.send(1, 1, [1_u8]).timeout(guard()).await;
        assert_eq!(failed(&gone.expect_err("no peer there").error.kind), 1);
        assert_eq!(
            failed(&world.barrier().await.expect_err("no peer there").kind),
            1
        );
    });
    failing.join().expect("it failed as it should");
}

#[test]
fn the_death_of_a_rank_without_any_messages_is_noticed() {
    let _turn = one_at_a_time();
    for _ in 0..3 {
        let mut job = Job::start("silent", 3);
        job.all_ready();
        job.signal(2, Signal::KILL);
        assert_eq!(job.end().0, [2]);
    }
}

#[test]
fn a_rank_that_is_stopped_for_longer_than_a_peer_may_be_silent_is_not_dead() {
    let _turn = one_at_a_time();
    let mut job = Job::start("stopped", 3);
    job.all_ready();
    job.signal(1, Signal::STOP);
    // Ranks of another node cannot see that it is stopped. For them it is silent, for less time than they allow.
    let seconds = if roles::sees_processes() { 5 } else { 1 };
    pause(Duration::from_secs(seconds));
    job.signal(1, Signal::CONT);
    assert_eq!(job.end().0, [] as [usize; 0]);
}
