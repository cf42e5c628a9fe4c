//! A rank is killed while collectives of all lengths are in flight. The ranks are processes: this very program, whose rank is
//! in `COLLECTIVES_RANK`. `SEED=…` replays a run.

#![expect(
    clippy::print_stdout,
    reason = "ranks talk to the test, and seeds help to reproduce a failure"
)]

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use ripstop::{Error, ErrorKind, OpError, Runtime, boot, prelude::*};
use ripstop_fabric::{random::SeededRandom, shm::Board};

use crate::given::given;

const RANKS: usize = 3;
const BOARD: u32 = 3;
/// Line that a rank prints when it may be killed. No rank may have failed before.
const READY: &str = "collectives: ready";
/// Time limit, longer than any test takes; `GUARD_S` overrides it for slow machines.
fn guard() -> Duration {
    Duration::from_secs(given("GUARD_S", 60))
}

#[test]
fn a_rank_that_is_killed_ends_collectives_of_all_lengths_on_all_others() {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("SEED={seed}");
    let mut random = SeededRandom::new(seed);
    for _ in 0..given("KILLS", 6) {
        let mut job = Job::start();
        let victim = usize::try_from(random.within(0..RANKS as u64)).unwrap();
        let moment = Duration::from_micros(random.within(0..5_000));
        pause(moment);
        job.ranks[victim].kill().unwrap();
        assert_eq!(job.end(), [victim], "killed after {moment:?}");
    }
}

/// Not a test: the entry point of a rank's process.
#[test]
fn a_rank() {
    let Ok(text) = std::env::var("COLLECTIVES_RANK") else {
        return;
    };
    let (rank, board) = text.split_once(' ').unwrap();
    let boot = boot::threads(BOARD).swap_remove(rank.parse().unwrap());
    let board = Board::attach(board).unwrap();
    let runtime = Runtime::builder().boot(boot).board(board).init().unwrap();
    let world = runtime.world();
    runtime.block_on(survive(&world)).unwrap();
    drop(world);
    runtime.close().unwrap();
}

async fn survive(world: &Comm) -> Result<()> {
    let (mut buffers, errors) = until_one_dies(world).await?;
    // The buffers are the application's again: no rank may write there any more, however late messages in flight arrive.
    for buffer in &mut buffers {
        buffer.fill(POISON);
    }
    let mut dead = 0;
    for peer in (1..RANKS).map(|by| (world.rank() + by) % RANKS) {
        let inbox = world.recv_into(peer, 1, vec![0_u64; LONG]);
        let sent = world.send(peer, 1, vec![7_u64; LONG]).await;
        match (sent, inbox.await) {
            (Ok(_), Ok((got, _))) => assert!(got == vec![7_u64; LONG], "messages go on"),
            (_, Err(failed)) => {
                assert!(
                    matches!(failed.error.kind, ErrorKind::PeerFailed { rank, .. } if rank == peer)
                );
                dead += 1;
            }
            (Err(failed), Ok(_)) => panic!("{}", failed.error),
        }
    }
    assert_eq!(dead, 1, "the collectives ended with {errors:?}");
    pause(Duration::from_millis(20));
    for buffer in &buffers {
        assert!(buffer.iter().all(|word| *word == POISON), "a late put");
    }
    let later = world.barrier().await.unwrap_err();
    assert!(matches!(later.kind, ErrorKind::Revoked), "{later}");
    Ok(())
}

/// Returns the buffers of the collectives that were in flight when a rank died, and how they ended.
async fn until_one_dies(world: &Comm) -> Result<(Vec<Vec<u64>>, Vec<Error>)> {
    let me = world.rank() as u64;
    let (mut send, mut recv) = (vec![me; RANKS * LONG], vec![0; RANKS * LONG]);
    let (mut sums, mut told) = (vec![1_u64; LONG], vec![me; LONG]);
    for round in 0.. {
        sums.fill(1);
        let root = round % RANKS;
        told.fill(me);
        let short = world.all_reduce([1_u64], Sum);
        let exchange = world.all_to_all_into(send, recv);
        let reduction = world.all_reduce(sums, Sum);
        let word = world.bcast(root, told);
        let mut errors = Vec::new();
        let [count] = home(short.await, &mut errors);
        (send, recv) = home(exchange.await, &mut errors);
        sums = home(reduction.await, &mut errors);
        told = home(word.await, &mut errors);
        if !errors.is_empty() {
            assert!(
                round > 2,
                "a collective failed before any rank was killed: {errors:?}"
            );
            return Ok((vec![send, recv, sums, told], errors));
        }
        assert_eq!(count, RANKS as u64);
        let all = |words: &[u64], word: usize| words.iter().all(|its| *its == word as u64);
        assert!(all(&sums, RANKS) && all(&told, root));
        let from = |rank: usize| &recv[rank * LONG..][..LONG];
        assert!((0..RANKS).all(|rank| all(from(rank), rank)));
        if round == 2 {
            println!("{READY}");
        }
    }
    unreachable!("a rank dies before")
}

/// Checks a collective's end; the buffer returns in any case. A rank that had completed the collective which failed first
/// learns of the failure in the next one.
fn home<T>(ended: Result<T, OpError<T>>, errors: &mut Vec<Error>) -> T {
    ended.unwrap_or_else(|OpError { error, buf, .. }| {
        let known = matches!(
            error.kind,
            ErrorKind::PeerFailed { .. } | ErrorKind::Revoked
        );
        assert!(known, "{error}");
        errors.push(error);
        buf
    })
}

/// Running ranks. They are killed however the test ends.
struct Job {
    ranks: Vec<Child>,
    _board: Board,
}

impl Job {
    fn start() -> Self {
        let board = Board::create(BOARD).unwrap();
        let start = |rank: usize| {
            Command::new(std::env::current_exe().unwrap())
                .args(["killed::a_rank", "--exact", "--nocapture"])
                .env("COLLECTIVES_RANK", format!("{rank} {}", board.address()))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let mut job = Self {
            ranks: (0..RANKS).map(start).collect(),
            _board: board,
        };
        let (tell, ready) = mpsc::channel();
        for rank in &mut job.ranks {
            let (out, tell) = (rank.stdout.take().unwrap(), tell.clone());
            thread::spawn(move || {
                let lines = BufReader::new(out).lines().map_while(|line| line.ok());
                for _ready in lines.filter(|line| line.contains(READY)) {
                    let _receiver_may_be_gone = tell.send(());
                }
            });
        }
        for _ in 0..RANKS {
            ready.recv_timeout(guard()).unwrap();
        }
        job
    }

    /// Returns the ranks that did not end well.
    fn end(mut self) -> Vec<usize> {
        let mut looks = 0;
        let mut bad = Vec::new();
        for (rank, child) in self.ranks.iter_mut().enumerate() {
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                assert!(looks < guard().as_millis(), "rank {rank} still waits");
                looks += 1;
                pause(Duration::from_millis(1));
            };
            if !status.success() {
                bad.push(rank);
            }
        }
        bad
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            drop(rank.kill());
            drop(rank.wait());
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "until a random moment, and between two looks at a process"
)]
fn pause(time: Duration) {
    thread::sleep(time);
}

/// Numbers of a long block: 1 MiB, which is put and got.
const LONG: usize = 1 << 17;
const POISON: u64 = 0x5a5a_5a5a_5a5a_5a5a;
