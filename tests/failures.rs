//! What the others see of a rank that dies, panics or stops. The ranks are processes: this very program, told by `FAILURES_RANK`
//! what to do.
//!
//! `KILLS=100 cargo test --test failures` kills a hundred times instead of ten; `SEED=…` replays a run.

#![expect(
    clippy::print_stdout,
    reason = "seeds and times are for who reads a failure; ranks talk to the test"
)]

#[path = "support/content.rs"]
mod content;
#[path = "support/given.rs"]
mod given;
#[path = "windows/killed.rs"]
mod killed;
#[path = "support/shrinking.rs"]
mod shrinking;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ripstop::{Collectives, Comm, ErrorKind, Result, Runtime, Source, Status, Tag, boot};
use ripstop_fabric::shm::Board;
use rustix::process::{Pid, Signal, kill_process};

use content::{Random, content, seed};
use given::given;

/// What a rank prints when the test may begin.
const READY: &str = "failures: ready";

/// Nothing here takes longer; `GUARD_S` says otherwise, where a machine is slow.
fn guard() -> Duration {
    Duration::from_secs(given("GUARD_S", 60))
}

// ---------------------------------------------------------------- ranks

/// Not a test: where a rank's process starts.
#[test]
fn a_rank() {
    let Ok(text) = std::env::var("FAILURES_RANK") else {
        return;
    };
    let words: Vec<&str> = text.split(' ').collect();
    let [role, rank, size, board] = words[..] else {
        panic!("FAILURES_RANK={text}")
    };
    let rank: usize = rank.parse().expect("a number");
    let boot = boot::threads(size.parse().expect("a number")).swap_remove(rank);
    let board = Board::attach(board).expect("the test's board");
    let builder = match role {
        // Where a driver does not see who dies, two such intervals of silence count as death.
        "stopped" => Runtime::builder().set("RIPSTOP_DETECT_MS", "5000"),
        // Both reactors in one job.
        "shrink" if rank.is_multiple_of(2) => Runtime::builder().set("RIPSTOP_REACTOR", "epoll"),
        _ => Runtime::builder(),
    };
    let runtime = builder.boot(boot).board(board).init().expect("a runtime");
    let world = runtime.world();
    runtime
        .block_on(async {
            match role {
                "exchange" => exchange(&world).await,
                "panic" => panics(&world).await,
                "silent" => silent(&world).await,
                "stopped" => stopped(&world).await,
                "epochs" => killed::epochs(&world).await,
                "fences" => killed::fences(&world).await,
                "locks" => killed::locks(&world).await,
                "shrink" => shrinking::shrink(&world, ready).await,
                _ => panic!("{role} is no role"),
            }
        })
        .unwrap_or_else(|error| panic!("rank {rank}: {error}"));
    runtime.close().expect("a good end");
}

fn ready() {
    println!("{READY}");
}

/// The rank that an error says has failed.
fn failed(kind: &ErrorKind) -> usize {
    match kind {
        ErrorKind::PeerFailed { rank } => *rank,
        other => panic!("{other}"),
    }
}

/// All ranks exchange messages of mixed sizes with all others until one of them is killed and everybody knows it.
async fn exchange(world: &Comm) -> Result<()> {
    let others: Vec<usize> = (0..world.size())
        .filter(|rank| *rank != world.rank())
        .collect();
    let pending = Pending::new(world, &others).await?;
    world.barrier().await?;
    ready();
    let mut victim = None;
    for round in 0.. {
        let knew = victim;
        let alive: Vec<usize> = others
            .iter()
            .copied()
            .filter(|rank| Some(*rank) != knew)
            .collect();
        let inboxes: Vec<_> = alive
            .iter()
            .map(|&peer| world.recv::<u8>(peer, 1))
            .collect();
        let sends: Vec<_> = alive
            .iter()
            .map(|&peer| world.send(peer, 1, note(world.rank(), round, knew)))
            .collect();
        let mut all_know = knew.is_some();
        for (inbox, &peer) in inboxes.into_iter().zip(&alive) {
            match inbox.await {
                Ok((got, _)) => {
                    let knows = got[0] == 1;
                    assert!(
                        got == note(peer, round, knows.then_some(0)),
                        "round {round} of rank {peer}"
                    );
                    all_know &= knows;
                }
                Err(gone) => victim = Some(failed(&gone.error.kind)),
            }
        }
        for send in sends {
            if let Err(gone) = send.await {
                victim = Some(failed(&gone.error.kind));
            }
        }
        if all_know {
            break;
        }
    }
    let victim = victim.expect("everybody knows");
    pending.end(victim).await;
    afterwards(world, victim).await
}

/// Content by sender and round; the first byte says whether the sender knows of the death.
fn note(from: usize, round: u64, knows: Option<usize>) -> Vec<u8> {
    let mut random = Random::new(round << 8 | from as u64);
    let len = match random.below(8) {
        0 => 100_000 + random.below(1 << 20),
        1 | 2 => random.below(20_000),
        _ => random.below(200),
    };
    let mut note = content(random.next(), len + 1);
    note[0] = u8::from(knows.is_some());
    note
}

type Bytes = Vec<u8>;

/// Operations of every kind that wait for every peer when one dies, of each as many.
struct Pending {
    receives: Vec<(usize, ripstop::RecvOp<Bytes>)>,
    sends: Vec<(usize, ripstop::SendOp<Bytes>)>,
    any: ripstop::RecvOp<Bytes>,
    twin: Comm,
}

impl Pending {
    async fn new(world: &Comm, others: &[usize]) -> Result<Self> {
        let twin = world.dup().await?;
        let receives = others
            .iter()
            .map(|&peer| (peer, twin.recv_into(peer, 2, vec![7; 1000])));
        let sends = others.iter().flat_map(|&peer| {
            [
                (peer, twin.send_synchronous(peer, 3, vec![8; 10])),
                (peer, twin.send(peer, 3, vec![8; 300_000])),
            ]
        });
        let any = twin.recv_into(Source::Any, 2, vec![9; 10]);
        Ok(Self {
            receives: receives.collect(),
            sends: sends.collect(),
            any,
            twin: twin.clone(),
        })
    }

    /// Those for the victim have failed, with their buffers; the others still wait.
    async fn end(self, victim: usize) {
        for (peer, op) in self.receives {
            if peer == victim {
                let gone = op.await.expect_err("never sent");
                assert_eq!(
                    (failed(&gone.error.kind), gone.buf),
                    (victim, vec![7; 1000])
                );
            } else {
                assert_eq!(op.cancel().await.expect("still waits"), vec![7; 1000]);
            }
        }
        for (peer, op) in self.sends {
            if peer == victim {
                let gone = op.await.expect_err("never received");
                assert_eq!(failed(&gone.error.kind), victim);
                assert!(gone.buf.iter().all(|&byte| byte == 8));
            } else {
                assert!(!op.is_done());
            }
        }
        let gone = self.any.await.expect_err("never sent");
        assert_eq!((failed(&gone.error.kind), gone.buf), (victim, vec![9; 10]));
        // Anybody is whoever is left, once the failure has been told.
        assert!(self.twin.recv::<u8>(Source::Any, 2).cancel().await.is_ok());
    }
}

/// Survivors go on with each other, and whatever concerns the dead is an error at once.
async fn afterwards(world: &Comm, victim: usize) -> Result<()> {
    assert_eq!(
        failed(
            &world
                .send(victim, 1, [1_u8])
                .await
                .expect_err("dead")
                .error
                .kind
        ),
        victim
    );
    assert_eq!(
        failed(
            &world
                .recv::<f32>(victim, 9)
                .await
                .expect_err("dead")
                .error
                .kind
        ),
        victim
    );
    assert_eq!(
        failed(&world.probe(victim, Tag::Any).await.expect_err("dead").kind),
        victim
    );
    for peer in (0..world.size()).filter(|rank| ![victim, world.rank()].contains(rank)) {
        let inbox = world.recv_into(peer, 8, [0_u64]);
        world.send(peer, 8, [42_u64]).await?;
        assert_eq!(inbox.await?.0, [42]);
    }
    Ok(())
}

/// Rank 1 panics; the others wait for it.
async fn panics(world: &Comm) -> Result<()> {
    world.barrier().await?;
    let posted = world.recv::<u8>(1, 1);
    if world.rank() == 1 {
        drop(posted);
        let _at_the_peer_too = world.send_synchronous(0, 2, vec![1_u8; 100_000]);
        panic!("on purpose");
    }
    assert_eq!(
        failed(&posted.await.expect_err("it panicked").error.kind),
        1
    );
    afterwards(world, 1).await
}

/// Nobody talks to rank 2, which is killed.
async fn silent(world: &Comm) -> Result<()> {
    let (posted, any) = (world.recv::<u8>(2, 1), world.recv::<u8>(Source::Any, 1));
    ready();
    match world.rank() {
        0 => {
            assert_eq!(failed(&posted.await.expect_err("dead").error.kind), 2);
            drop(any);
            afterwards(world, 2).await
        }
        1 => {
            drop(posted);
            assert_eq!(failed(&any.await.expect_err("dead").error.kind), 2);
            afterwards(world, 2).await
        }
        _ => posted.await.map(drop).map_err(Into::into),
    }
}

/// Rank 1 is stopped for a while, and nobody minds.
async fn stopped(world: &Comm) -> Result<()> {
    world.barrier().await?;
    ready();
    for round in 0..400 {
        let peer = (world.rank() + 1) % world.size();
        let from = (world.rank() + world.size() - 1) % world.size();
        let inbox = world.recv::<u32>(from, 1);
        world
            .send(peer, 1, vec![round; 50 * round as usize])
            .await?;
        let (got, Status { len, .. }) = inbox.await?;
        assert!(len == 50 * round as usize && got.iter().all(|&word| word == round));
        if round == 200 {
            // Time for the signal, also on a fast machine.
            let never = world
                .recv::<u8>(from, 2)
                .timeout(Duration::from_millis(50))
                .await;
            assert!(never.is_err());
        }
    }
    Ok(())
}

// ---------------------------------------------------------------- the test's side

/// Ranks under way. Whatever ends a test ends them.
struct Job {
    board: Board,
    ranks: Vec<Child>,
    lines: mpsc::Receiver<usize>,
    readers: Vec<JoinHandle<()>>,
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            drop(rank.kill());
            drop(rank.wait());
        }
    }
}

impl Job {
    fn start(role: &str, size: usize) -> Self {
        let board = Board::create(u32::try_from(size).expect("few")).expect("memory");
        let (tell, lines) = mpsc::channel();
        let mut job = Self {
            board,
            ranks: Vec::new(),
            lines,
            readers: Vec::new(),
        };
        for rank in 0..size {
            let mut child = start(role, rank, size, &job.board);
            let out = child.stdout.take().expect("piped");
            job.readers.push(read(rank, out, tell.clone()));
            job.ranks.push(child);
        }
        job
    }

    /// Waits until all ranks are ready.
    fn all_ready(&self) {
        self.ready(self.ranks.len());
    }

    /// Waits until so many ranks are ready.
    fn ready(&self, ranks: usize) {
        for count in 0..ranks {
            assert!(
                self.lines.recv_timeout(guard()).is_ok(),
                "only {count} ranks became ready"
            );
        }
    }

    fn signal(&self, rank: usize, signal: Signal) {
        let pid = Pid::from_child(&self.ranks[rank]);
        kill_process(pid, signal).expect("our own child");
    }

    /// Waits for all ranks; those that did not end well, and how long it took.
    fn end(mut self) -> (Vec<usize>, Duration) {
        let start = now();
        let mut bad = Vec::new();
        let mut left: Vec<usize> = (0..self.ranks.len()).collect();
        while !left.is_empty() {
            assert!(
                now() - start < guard(),
                "ranks {left:?} still wait after {} s",
                guard().as_secs()
            );
            left.retain(
                |&rank| match self.ranks[rank].try_wait().expect("our own child") {
                    None => true,
                    Some(status) => {
                        if !status.success() {
                            bad.push(rank);
                        }
                        false
                    }
                },
            );
            pause(Duration::from_millis(1));
        }
        let took = now() - start;
        for reader in self.readers.drain(..) {
            reader.join().expect("no panic");
        }
        let _kept_until_here = &self.board;
        bad.sort_unstable();
        (bad, took)
    }
}

fn start(role: &str, rank: usize, size: usize, board: &Board) -> Child {
    let who = format!("{role} {rank} {size} {}", board.address());
    Command::new(std::env::current_exe().expect("this program"))
        .args(["a_rank", "--exact", "--nocapture", "--test-threads=1"])
        .env("FAILURES_RANK", who)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// Reads what a rank prints until it ends.
fn read(rank: usize, out: ChildStdout, tell: mpsc::Sender<usize>) -> JoinHandle<()> {
    thread::spawn(move || {
        let lines = BufReader::new(out).lines().map_while(std::io::Result::ok);
        for _ready in lines.filter(|line| line.contains(READY)) {
            let _nobody_listens_any_more = tell.send(rank);
        }
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the real time, for a guard against hangs"
)]
fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "between two looks at a child process, and until a random moment"
)]
fn pause(time: Duration) {
    thread::sleep(time);
}

/// How many times ranks are killed in a test.
fn kills() -> u64 {
    given("KILLS", 10)
}

/// One at a time: they count what this process has open.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn our_files() -> BTreeSet<String> {
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

#[test]
fn survivors_of_a_kill_at_any_moment_hear_of_it_and_go_on() {
    let test = "survivors_of_a_kill_at_any_moment_hear_of_it_and_go_on";
    survive_kills(test, "exchange");
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

/// Kills one of four ranks of this role after some milliseconds, several times. The others end well, and nothing is left behind.
fn survive_kills(test: &str, role: &str) {
    let _turn = one_at_a_time();
    let mut random = Random::new(seed(test));
    let files = our_files();
    let mut descriptors = None;
    for kill in 0..kills() {
        let job = Job::start(role, 4);
        job.all_ready();
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
    assert_eq!(our_files(), files, "files left behind");
}

#[test]
fn a_job_shrinks_twice_and_goes_on_whichever_ranks_are_killed_when() {
    let test = "a_job_shrinks_twice_and_goes_on_whichever_ranks_are_killed_when";
    let _turn = one_at_a_time();
    let mut random = Random::new(seed(test));
    for kill in 0..kills() {
        let job = Job::start("shrink", 4);
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
    // Others would wait for its address first.
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
        assert_eq!(failed(&gone.expect_err("nobody there").error.kind), 1);
        assert_eq!(
            failed(&world.barrier().await.expect_err("nobody there").kind),
            1
        );
    });
    failing.join().expect("it failed as it should");
}

#[test]
fn the_death_of_a_rank_that_nobody_talked_to_is_heard_of() {
    let _turn = one_at_a_time();
    for _ in 0..3 {
        let job = Job::start("silent", 3);
        job.all_ready();
        job.signal(2, Signal::KILL);
        assert_eq!(job.end().0, [2]);
    }
}

#[test]
fn a_rank_that_is_stopped_for_two_seconds_is_not_dead() {
    let _turn = one_at_a_time();
    let job = Job::start("stopped", 3);
    job.all_ready();
    job.signal(1, Signal::STOP);
    pause(Duration::from_secs(2));
    job.signal(1, Signal::CONT);
    assert_eq!(job.end().0, [] as [usize; 0]);
}
