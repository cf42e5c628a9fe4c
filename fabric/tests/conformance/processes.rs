//! Claims about ranks that are processes. The test binary starts itself again for each rank; `a_rank` is their entry point.

use std::{
    env,
    process::{Child, Command as Process, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use bytemuck::Zeroable;
use ripstop_fabric::{
    driver::{AtomicOp, CommandFailure, CommandToken, DownCause, Driver, DriverCommand, WorldRank},
    memory::RemoteRegion,
    offload::{
        CounterCondition, LocalCounters, PutTarget, RemoteCounters, TaskAction, TriggeredTask,
    },
    portals::PortalsCounters,
    random::SeededRandom,
    shm::{Board, Shm, ShmConfig, WakeMethod},
};

use crate::{
    broken, hostile, messages, portals, refusals,
    sleeper::{self, Rest},
    tcp,
    world::{Guard, Heard, Rank, World, all_of, contents, local, noise, peer},
};

/// Returns what a child process does.
fn story(name: &str) -> fn(&mut Rank, usize) {
    match name {
        "exchange" => |rank, ranks| messages::exchange_streams(rank, ranks, 200),
        "share" => share_memory,
        "count" => count_rounds,
        "flood" => flood,
        "witness" => witness,
        "put one" => broken::put_one,
        "serve" => serve,
        "panic" => |rank, _| {
            rank.send(0, b"soon", b"");
            panic!("this panic is part of the test");
        },
        "greet" => |rank, _| rank.send(0, b"hello", b""),
        _ => panic!("no story {name}"),
    }
}

const STORY: &str = "RIPSTOP_TEST_STORY";
const RANK: &str = "RIPSTOP_TEST_RANK";
const BOARD: &str = "RIPSTOP_TEST_BOARD";
const MODE: &str = "RIPSTOP_TEST_MODE";

/// Not a test by itself: the other tests start it in its own process.
#[test]
fn a_rank() {
    if env::var(STORY).is_err() {
        return;
    }
    let parent_signal = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(parent_signal)).unwrap();
    let of = |name| {
        env::var(name).unwrap_or_else(|_| panic!("{name} is not set: the tests start this one"))
    };
    match of(STORY).as_str() {
        "leftovers" => leave_nothing_behind(),
        "hostile" => hostile::scribble(of(RANK).parse().unwrap()),
        "portals leftovers" => leave_no_portals_behind(),
        "portals refusal" => refusals::be_refused(),
        "portals squatted" => refusals::pass_over_an_id_that_is_taken(),
        "portals heir" => refusals::inherit_an_address(),
        "portals crowded" => refusals::receive_again_after_entries_ran_out(),
        "portals careless" => refusals::lose_what_peers_sent(),
        name => {
            let board = Board::attach(&of(BOARD)).unwrap();
            let ranks = board.size() as usize;
            let mut rank = open(&board, of(RANK).parse().unwrap(), of(MODE).parse().unwrap());
            story(name)(&mut rank, ranks);
        }
    }
}

/// Configurations of shared memory. All of them must work between processes, even mixed.
pub(crate) const MODES: u32 = 4;

/// All configurations: those of shared memory, then those of Portals.
pub(crate) const WAYS: u32 = MODES + portals::WAYS.len() as u32;

/// The configuration after all of them, which is TCP.
const TCP: u32 = WAYS;

fn open(board: &Board, rank: u32, mode: u32) -> Rank {
    let driver = match mode {
        0..MODES => open_shm(board, rank, mode),
        TCP => tcp::join(board, rank),
        _ => portals::join(board, rank, (mode - MODES) as usize, &Arc::default()),
    };
    Rank::new(WorldRank(rank), driver)
}

fn open_shm(board: &Board, rank: u32, mode: u32) -> Box<dyn Driver> {
    let config = ShmConfig::new(rank);
    let config = match mode {
        0 => config,
        1 => ShmConfig {
            wake: WakeMethod::Fd,
            ..config
        },
        2 => ShmConfig {
            single_copy: false,
            ..config
        },
        _ => ShmConfig {
            ring_slots: 4,
            chunks: 2,
            ..config
        },
    };
    Box::new(Shm::open(board, config).unwrap())
}

/// Child processes that do not outlive the test.
pub(crate) struct Job {
    board: Board,
    mode: u32,
    children: Vec<Child>,
}

impl Job {
    pub(crate) fn new(ranks: u32, mode: u32) -> Self {
        Self {
            board: Board::create(ranks).unwrap(),
            mode,
            children: Vec::new(),
        }
    }

    pub(crate) fn start(mut self, story: &str, rank: u32) -> Self {
        let address = self.board.address();
        self.children.push(start(story, rank, &address, self.mode));
        self
    }

    /// Opens the rank that the test itself plays.
    pub(crate) fn own_rank(&self, rank: u32) -> Rank {
        open(&self.board, rank, self.mode)
    }

    pub(crate) fn kill(&mut self, child: usize) {
        self.children[child].kill().unwrap();
    }

    /// Waits for all children, and returns how they ended.
    fn finish(&mut self) -> Vec<ExitStatus> {
        self.children.iter_mut().map(end_of).collect()
    }

    fn succeed(mut self) {
        let ends = self.finish();
        assert!(
            ends.iter().all(ExitStatus::success),
            "mode {}: the ranks ended with {ends:?}",
            self.mode
        );
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(story: &str, rank: u32, board: &str, mode: u32) -> Child {
    command(story, rank, board, mode).spawn().unwrap()
}

/// Returns the command for a process that plays one rank, or a story without a rank.
pub(crate) fn command(story: &str, rank: u32, board: &str, mode: u32) -> Process {
    let mut process = Process::new(env::current_exe().unwrap());
    process
        .args(["--exact", "processes::a_rank", "--nocapture"])
        .stdout(Stdio::null());
    if story == "panic" {
        process.stderr(Stdio::null());
    }
    process
        .env(STORY, story)
        .env(RANK, rank.to_string())
        .env(BOARD, board)
        .env(MODE, mode.to_string());
    process
}

#[expect(
    clippy::disallowed_methods,
    reason = "std can wait for a child only without an end"
)]
pub(crate) fn end_of(child: &mut Child) -> ExitStatus {
    let guard = Guard::new();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        guard.check("a child process to end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn processes_exchange_streams() {
    for mode in 0..=TCP {
        Job::new(3, mode)
            .start("exchange", 0)
            .start("exchange", 1)
            .start("exchange", 2)
            .succeed();
    }
}

#[test]
fn threads_and_processes_mix() {
    let job = Job::new(3, 0).start("exchange", 1);
    std::thread::scope(|scope| {
        for rank in [0, 2] {
            let mut rank = open(&job.board, rank, rank);
            scope.spawn(move || messages::exchange_streams(&mut rank, 3, 200));
        }
    });
    job.succeed();
}

#[test]
fn processes_put_get_and_count_in_each_others_memory() {
    for mode in 0..=TCP {
        Job::new(3, mode)
            .start("share", 0)
            .start("share", 1)
            .start("share", 2)
            .succeed();
    }
}

/// Has all ranks write to everyone's memory, read it back, and count there.
fn share_memory(rank: &mut Rank, ranks: usize) {
    const PIECE: usize = 50_000;
    const ADDS: u64 = 200;
    let me = rank.me.0 as usize;
    let (region, key) = rank.memory(64 + PIECE * ranks);
    (0..ranks).for_each(|to| rank.send(to, b"key", bytemuck::bytes_of(&key)));
    rank.until("the keys", |heard| {
        (0..ranks).all(|from| heard.from(from).next().is_some())
    });
    for to in 0..ranks {
        let key = first_key(rank, to);
        let piece = key.slice((64 + PIECE * me) as u64, PIECE as u64).unwrap();
        let (mut there, mut back) = (noise(me as u64, PIECE), vec![0; PIECE]);
        rank.post(DriverCommand::Put {
            to: peer(to),
            from: local(&mut there),
            into: piece,
            count: None,
            token: CommandToken(1),
        });
        rank.until("a put", |heard| heard.completed.len() == 1);
        rank.post(DriverCommand::Get {
            to: peer(to),
            from: piece,
            into: local(&mut back),
            token: CommandToken(2),
        });
        rank.until("a get", |heard| heard.completed.len() == 2);
        assert!(
            there == back,
            "rank {me} read from rank {to} what it did not write"
        );
        rank.heard.completed.clear();
        for _ in 0..ADDS {
            let at = key.slice(0, 8).unwrap();
            rank.post(DriverCommand::Atomic {
                to: peer(to),
                at,
                op: AtomicOp::Add(1),
                token: CommandToken(3),
            });
        }
    }
    rank.until("the atomics", |heard| {
        heard.fetched.len() as u64 == ADDS * ranks as u64
    });
    (0..ranks).for_each(|to| rank.send(to, b"done", b""));
    rank.until("the messages of all ranks", |heard| {
        heard.messages.len() == 2 * ranks
    });
    assert_eq!(
        region
            .atomic_u64(0)
            .load(std::sync::atomic::Ordering::SeqCst),
        ADDS * ranks as u64
    );
    let written = contents(&region);
    for from in 0..ranks {
        assert!(
            written[64 + PIECE * from..][..PIECE] == noise(from as u64, PIECE),
            "the piece of rank {from} at rank {me}"
        );
    }
    assert!(rank.heard.failed.is_empty(), "{:?}", rank.heard.failed);
}

#[test]
fn processes_count_each_other_awake() {
    for mode in 0..=TCP {
        Job::new(3, mode)
            .start("count", 0)
            .start("count", 1)
            .start("count", 2)
            .succeed();
    }
}

/// In each round, has all ranks put a word to all others with a count, and sleep until all words have arrived.
fn count_rounds(rank: &mut Rank, ranks: usize) {
    const ROUNDS: u64 = 100;
    let me = rank.me.0 as usize;
    // No rank is more than one round ahead, so two words per rank are enough.
    let (region, key) = rank.memory(16 * ranks);
    let counters = rank.counters(ranks);
    let keys = [
        bytemuck::bytes_of(&key),
        bytemuck::bytes_of(&counters.remote()),
    ]
    .concat();
    (0..ranks).for_each(|to| rank.send(to, b"keys", &keys));
    rank.until("the keys", |heard| {
        (0..ranks).all(|from| heard.from(from).next().is_some())
    });
    for round in 1..=ROUNDS {
        for to in 0..ranks {
            let keys = &rank.heard.from(to).next().unwrap().body;
            let into: RemoteRegion = bytemuck::pod_read_unaligned(&keys[..40]);
            let theirs: RemoteCounters = bytemuck::pod_read_unaligned(&keys[40..]);
            rank.post(DriverCommand::Put {
                to: peer(to),
                from: local(&mut round.to_ne_bytes()),
                into: into.slice(16 * me as u64 + 8 * (round % 2), 8).unwrap(),
                count: theirs.at(me),
                token: CommandToken(0),
            });
            rank.until("a put", |heard| heard.completed.len() == 1);
            rank.heard.completed.clear();
        }
        (0..ranks).for_each(|from| rank.watch(&counters.at(from), round, CommandToken(round)));
        rank.until("all words", |heard| heard.reached.len() == ranks);
        rank.heard.reached.clear();
        for from in 0..ranks {
            let word = region.atomic_u64(16 * from + 8 * (round % 2) as usize);
            assert_eq!(word.load(std::sync::atomic::Ordering::Relaxed), round);
        }
    }
    (0..ranks).for_each(|to| rank.send(to, b"bye", b""));
    rank.until("the end", |heard| heard.messages.len() == 2 * ranks);
}

fn first_key(rank: &Rank, from: usize) -> RemoteRegion {
    let message = rank.heard.from(from).next().unwrap();
    let mut key = RemoteRegion::zeroed();
    bytemuck::bytes_of_mut(&mut key).copy_from_slice(&message.body);
    key
}

#[test]
fn a_process_killed_while_it_sends_is_reported_and_harms_no_other_rank() {
    let seed = u64::from(std::process::id());
    eprintln!("seed {seed}");
    let mut random = SeededRandom::new(seed);
    for round in 0..12 {
        let mut job = Job::new(3, round % (TCP + 1))
            .start("flood", 1)
            .start("witness", 2);
        let mut survivor = job.own_rank(0);
        survivor.send(2, b"hello", b"");
        // The victim is in contact from its first message on. It is killed somewhere in its flood, or while it is refused.
        let bits = random.within(0..11);
        let before = random.within(1..1 << bits) as usize;
        survivor.until("the flood", |heard| heard.from(1).count() >= before);
        (0..random.within(0..200_000)).for_each(|_| std::hint::spin_loop());
        job.kill(0);
        // The victim sends to us, too, so it dies while we send to it.
        (0..random.within(0..50)).for_each(|_| survivor.send(1, b"to the dead", &[1; 3000]));
        until_death(&mut survivor);
        check_flood(&survivor, seed);
        survivor.send(1, b"again", b"");
        survivor.until("the witness", |heard| heard.down.len() == 2);
        // The witness may finish before us, so the two reports come in either order.
        survivor.heard.down.sort_by_key(|(gone, _)| *gone);
        let down = [
            (WorldRank(1), DownCause::Failed),
            (WorldRank(2), DownCause::Finished),
        ];
        assert_eq!(survivor.heard.down, down, "seed {seed}, round {round}");
        assert_eq!(
            survivor.heard.from(2).count(),
            1,
            "seed {seed}, round {round}"
        );
        drop(survivor);
        let ends = job.finish();
        assert!(
            ends[1].success(),
            "seed {seed}, round {round}: the witness ended with {}",
            ends[1]
        );
    }
}

/// Sends to all ranks until it is killed.
fn flood(rank: &mut Rank, ranks: usize) {
    let max = rank.driver.caps().body_max;
    let mut random = SeededRandom::new(rank.me.0.into());
    for number in 0.. {
        let bits = random.within(0..15);
        let body = (random.within(0..1 << bits) as usize).min(max);
        let sent = messages::message(1, number, 16, body);
        (0..ranks)
            .filter(|to| *to != 1)
            .for_each(|to| rank.send(to, &sent.header, &sent.body));
        rank.progress();
        rank.heard.messages.clear();
    }
}

/// Checks that messages from the dead rank are the beginning of its flood, unchanged.
fn check_flood(rank: &Rank, seed: u64) {
    for (number, heard) in (0..).zip(rank.heard.from(1)) {
        let sent = messages::message(1, number, 16, heard.body.len());
        assert!(
            *heard == sent,
            "seed {seed}: message {number} of the dead is torn or out of place"
        );
    }
}

/// Waits for the report that rank 1 was killed, and notifies rank 0.
fn witness(rank: &mut Rank, _ranks: usize) {
    until_death(rank);
    assert_eq!(rank.heard.down, [(WorldRank(1), DownCause::Failed)]);
    rank.send(0, b"seen", b"");
}

/// Waits until the death of rank 1 is known. A driver that does not watch its peers learns it from its own sends.
pub(crate) fn until_death(rank: &mut Rank) {
    let guard = Guard::new();
    while !rank
        .heard
        .down
        .iter()
        .any(|(gone, _)| *gone == WorldRank(1))
    {
        if !rank.driver.caps().detects_death {
            rank.send(1, b"alive?", b"");
        }
        rank.progress();
        std::thread::yield_now();
        guard.check("the report");
    }
}

#[test]
fn a_sleeper_is_woken_by_the_death_of_a_peer_within_a_second() {
    for mode in (0..MODES).chain([TCP]) {
        let mut job = Job::new(2, mode).start("serve", 1);
        let mut survivor = job.own_rank(0);
        survivor.until("the key", |heard| heard.messages.len() == 1);
        let waits = survivor.driver.wait_on();
        while survivor.progress() > 0 {}
        let rest = sleeper::rest(survivor.driver.as_mut(), &waits, Duration::from_millis(20));
        assert_eq!(rest, Rest::TimedOut, "nothing happens, mode {mode}");
        job.kill(0);
        // A generous limit for a busy machine. Without a wake-up, the sleep would last for all of it.
        let limit = Duration::from_secs(60);
        let rest = sleeper::sleep(&waits, limit);
        assert_eq!(
            rest,
            Rest::Woken,
            "the peer died and no rank woke, mode {mode}"
        );
        survivor.until("the report", |heard| {
            heard.down == [(WorldRank(1), DownCause::Failed)]
        });
    }
}

/// Gives its memory to rank 0, and serves until the end.
fn serve(rank: &mut Rank, _ranks: usize) {
    let (_region, key) = rank.memory(1 << 20);
    let mut plain = noise(1, 1 << 20);
    let plain = rank.driver.expose(local(&mut plain)).unwrap_or(key);
    let both = [key, plain];
    rank.send(0, b"keys", bytemuck::cast_slice(&both));
    rank.until("the end", |heard| !heard.down.is_empty());
}

#[test]
fn one_sided_commands_end_when_their_target_is_killed() {
    let seed = u64::from(std::process::id()) + 1;
    eprintln!("seed {seed}");
    let mut random = SeededRandom::new(seed);
    for round in 0..8 {
        let (mut job, mut origin, keys) = serve_and_open(round % (TCP + 1));
        let mut bytes = vec![1; 1 << 20];
        let kill_at = random.within(0..20);
        for number in 0..20 {
            if number == kill_at {
                job.kill(0);
            }
            post_all(&mut origin, keys, &mut bytes);
            origin.progress();
        }
        origin.until("the report", |heard| !heard.down.is_empty());
        let ended = |heard: &Heard| heard.completed.len() + heard.failed.len();
        origin.until("all commands to end", |heard| ended(heard) == 3 * 20);
        assert_eq!(
            origin.heard.down,
            [(WorldRank(1), DownCause::Failed)],
            "seed {seed}, round {round}"
        );
        origin.heard.failed.clear();
        let at = keys[0].slice(0, 8).unwrap();
        origin.post(DriverCommand::Atomic {
            to: peer(1),
            at,
            op: AtomicOp::Add(1),
            token: CommandToken(0),
        });
        origin.until("the refusal", |heard| !heard.failed.is_empty());
        assert!(
            matches!(origin.heard.failed[0].1, CommandFailure::PeerDown),
            "{:?}",
            origin.heard.failed
        );
    }
}

#[test]
fn a_rank_that_is_killed_takes_no_rail_of_others_along() {
    let mode = WAYS - 1;
    let mut job = Job::new(3, mode).start("serve", 1).start("serve", 2);
    let counters = Arc::<PortalsCounters>::default();
    let way = (mode - MODES) as usize;
    let mut origin = Rank::new(WorldRank(0), portals::join(&job.board, 0, way, &counters));
    origin.until("the keys", |heard| heard.messages.len() == 2);
    let messages = origin.heard.messages.iter();
    let keys: Vec<(WorldRank, RemoteRegion)> = messages
        .map(|message| {
            (
                message.from,
                bytemuck::pod_read_unaligned(&message.body[..size_of::<RemoteRegion>()]),
            )
        })
        .collect();
    let mut bytes = vec![1; 1 << 20];
    let mut put_to = |rank: &mut Rank, to: u32| {
        let (to, into) = keys
            .iter()
            .copied()
            .find(|(from, _)| *from == WorldRank(to))
            .unwrap();
        rank.post(DriverCommand::Put {
            to,
            from: local(&mut bytes),
            into,
            count: None,
            token: CommandToken(0),
        });
    };
    (0..20).for_each(|_| put_to(&mut origin, 1));
    job.kill(0);
    origin.until("the report", |heard| !heard.down.is_empty());
    origin.until("all commands to end", |heard| {
        heard.completed.len() + heard.failed.len() == 20
    });
    origin.heard.completed.clear();
    let before = counters.pieces.get();
    (0..5).for_each(|_| put_to(&mut origin, 2));
    origin.until("puts to the other rank", |heard| heard.completed.len() == 5);
    let pieces = counters.pieces.get() - before;
    assert!(pieces >= 5 * 4, "{pieces} pieces of five puts");
}

#[test]
fn a_busy_origin_notices_the_death_of_its_target() {
    let (mut job, mut origin, keys) = serve_and_open(0);
    let mut bytes = vec![1; 1 << 20];
    job.kill(0);
    let guard = Guard::new();
    while origin.heard.down.is_empty() {
        post_all(&mut origin, keys, &mut bytes);
        origin.progress();
        guard.check("a report to a rank that never sleeps");
    }
    let posted = origin.heard.completed.len() + origin.heard.failed.len();
    // A mebibyte takes at most a good part of a millisecond, and a death must be noticed within a second.
    assert!(posted < 30_000, "{posted} commands ended before the report");
}

/// Returns a child that serves, this process as rank 0, and keys to the child's region and to its plain memory.
fn serve_and_open(mode: u32) -> (Job, Rank, [RemoteRegion; 2]) {
    let job = Job::new(2, mode).start("serve", 1);
    let mut origin = job.own_rank(0);
    origin.until("the keys", |heard| heard.messages.len() == 1);
    let mut keys = [RemoteRegion::zeroed(); 2];
    bytemuck::cast_slice_mut(&mut keys).copy_from_slice(&origin.heard.messages[0].body);
    (job, origin, keys)
}

#[test]
fn a_list_ends_when_its_target_is_killed_in_the_midst_of_it() {
    const PUTS: usize = 40;
    for mode in MODES..WAYS {
        let (mut job, mut origin, keys) = serve_and_open(mode);
        let counters = LocalCounters::for_tasks(origin.driver.as_mut(), 2).unwrap();
        let (region, _) = origin.memory(1 << 20);
        let put = |when: CounterCondition| TriggeredTask {
            condition: when,
            second_condition: None,
            action: TaskAction::Put {
                to: peer(1),
                from: all_of(&region),
                target: PutTarget::Known {
                    into: keys[0],
                    count: None,
                },
                done: Some(counters.at(1)),
            },
        };
        let when = |nth: usize, threshold| CounterCondition {
            counter: counters.at(nth),
            threshold,
        };
        // The last one begins after the target has died.
        let mut tasks: Vec<_> = (0..PUTS as u64)
            .map(|before| put(when(1, before)))
            .collect();
        tasks.push(put(when(0, 1)));
        let token = CommandToken(7);
        origin.post_list(&tasks, token);
        while counters.at(1).value() == 0 {
            let _busy_or_ready = origin.driver.arm();
            origin.progress();
        }
        job.kill(0);
        let counter = counters.remote().at(0).unwrap();
        let (to, by) = (peer(0), 1);
        origin.post(DriverCommand::Count { to, counter, by });
        origin.until("the end of the list", |heard| !heard.failed.is_empty());
        let failed = &origin.heard.failed[..];
        assert!(
            matches!(failed, [(of, CommandFailure::PeerDown)] if *of == token),
            "mode {mode}: {failed:?}"
        );
        origin.until("the report", |heard| {
            heard.down == [(WorldRank(1), DownCause::Failed)]
        });
    }
}

fn post_all(origin: &mut Rank, [region, plain]: [RemoteRegion; 2], bytes: &mut [u8]) {
    let (to, token, bytes) = (peer(1), CommandToken(0), local(bytes));
    origin.post(DriverCommand::Put {
        to,
        from: bytes,
        into: region,
        count: None,
        token,
    });
    origin.post(DriverCommand::Get {
        to,
        from: region,
        into: bytes,
        token,
    });
    origin.post(DriverCommand::Get {
        to,
        from: plain,
        into: bytes,
        token,
    });
}

#[test]
fn a_process_that_panics_has_failed_and_one_that_returns_has_finished() {
    for mode in [0].into_iter().chain(MODES..WAYS) {
        for (story, down) in [("panic", DownCause::Failed), ("greet", DownCause::Finished)] {
            let job = Job::new(2, mode).start(story, 1);
            let mut survivor = job.own_rank(0);
            survivor.until("the report", |heard| !heard.down.is_empty());
            assert_eq!(survivor.heard.down, [(WorldRank(1), down)], "{story}");
            assert_eq!(
                survivor.heard.messages.len(),
                1,
                "its last message came first: {story}, mode {mode}"
            );
        }
    }
}

#[test]
fn the_only_message_of_a_process_that_exited_arrives() {
    for mode in 0..MODES {
        let mut job = Job::new(2, mode);
        let mut rank = job.own_rank(0);
        job = job.start("greet", 1);
        // The sender has ended before the receiver makes its first turn.
        assert!(job.finish()[0].success());
        rank.until("the report", |heard| !heard.down.is_empty());
        assert_eq!(
            rank.heard.down,
            [(WorldRank(1), DownCause::Finished)],
            "mode {mode}"
        );
        assert_eq!(rank.heard.messages.len(), 1, "mode {mode}");
    }
}

#[test]
fn messages_to_a_rank_that_opens_late_arrive() {
    let job = Job::new(2, 0);
    let board = job.board.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut early = open(&board, 0, 0);
            early.send(1, b"early", b"");
            early.until("the exchange", |heard| heard.messages.len() == 200);
        });
        let mut late = open(&board, 1, 1);
        (0..200).for_each(|_| late.send(0, b"late", b""));
        late.until("the early message", |heard| heard.messages.len() == 1);
    });
}

#[test]
fn a_board_that_is_not_there_is_a_clear_error() {
    let board = Board::create(2).unwrap();
    let good = board.address();
    let fields: Vec<&str> = good.split(':').collect();
    let with = |at: usize, value: &str| {
        let mut fields = fields.clone();
        fields[at] = value;
        fields.join(":")
    };
    let mut wrong: Vec<String> = ["", "nonsense", "1:2:3", ":::::", "-1:3:4096:2:00", "é"]
        .map(str::to_owned)
        .into();
    // The other fields are used only if these do not lead to the board.
    wrong.extend((0..5).flat_map(|at| {
        ["", "0", "4294967294", "18446744073709551616", "x"].map(|value| with(at, value))
    }));
    wrong.extend((5..fields.len()).flat_map(|at| ["", "-1", "x"].map(|value| with(at, value))));
    // A process that has ended, and a descriptor that is something else.
    let mut gone = Process::new("true").spawn().unwrap();
    gone.wait().unwrap();
    wrong.push(with(0, &gone.id().to_string()));
    wrong.push(with(1, "0"));
    for address in wrong {
        let why = Board::attach(&address)
            .map(|_| ())
            .expect_err(&address)
            .to_string();
        assert!(
            why.contains(&address) && why.len() > address.len() + 40,
            "{address:?} gives {why:?}"
        );
    }
    assert!(Board::attach(&good).is_ok());
    assert!(Board::create(0).is_err());
    let twice = |rank| Shm::open(&board, ShmConfig::new(rank)).map(|_| ());
    let _first = Shm::open(&board, ShmConfig::new(0)).unwrap();
    assert!(twice(0).unwrap_err().to_string().contains("rank 0"));
    assert!(twice(2).unwrap_err().to_string().contains('2'));
    assert!(twice(u32::MAX).is_err());
}

#[test]
fn nothing_is_left_behind() {
    let mut child = start("leftovers", 0, "", 0);
    assert!(end_of(&mut child).success());
    let mut job = Job::new(2, 0).start("flood", 1);
    let board = job.board.address();
    let mut survivor = job.own_rank(0);
    survivor.until("the flood", |heard| heard.messages.len() > 10);
    job.kill(0);
    drop(survivor);
    drop(job);
    let left = files_of(&board);
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// Runs in its own process, where no other test opens anything.
fn leave_nothing_behind() {
    let make = |mode| (0..3).map(move |rank| (rank, mode));
    let round = |mode| {
        let board = Board::create(3).unwrap();
        let drivers: Vec<Box<dyn Driver>> = make(mode)
            .map(|(rank, mode)| open(&board, rank, mode).driver)
            .collect();
        let mut world = World::from_drivers(drivers);
        world.meet();
        let (_region, key) = world[1].memory(100_000);
        let at = key.slice(0, 8).unwrap();
        world
            .one_sided(
                0,
                DriverCommand::Atomic {
                    to: peer(1),
                    at,
                    op: AtomicOp::Add(1),
                    token: CommandToken(1),
                },
            )
            .unwrap();
        world.close(1);
        world.settle();
        drop(world);
        let left = files_of(&board.address());
        assert!(left.is_empty(), "left behind: {left:?}");
    };
    // The first round may open files that stay open for the whole process.
    round(0);
    let before = held();
    (0..MODES).for_each(round);
    assert_eq!(held(), before, "descriptors and mappings");
}

#[test]
fn nothing_of_portals_is_left_behind() {
    let network = format!("left-{}", std::process::id());
    let mut process = command("portals leftovers", 0, "", MODES);
    let mut child = process.env(NETWORK, &network).spawn().unwrap();
    assert!(end_of(&mut child).success());
    assert_eq!(sockets(&network), [""; 0]);
}

/// Runs in its own process, on its own network.
fn leave_no_portals_behind() {
    let network = env::var(NETWORK).unwrap();
    let round = || {
        let mut world = World::from_drivers(portals::sandia42_world(3));
        world.meet();
        assert!(!sockets(&network).is_empty(), "nothing is seen of them");
        world.close(1);
        world.settle();
    };
    // The first round loads libraries, which stay loaded.
    round();
    let before = (held(), threads());
    round();
    assert_eq!(
        (held(), threads()),
        before,
        "descriptors, mappings, threads"
    );
    assert_eq!(sockets(&network), [""; 0]);
    let mut job = Job::new(2, MODES).start("flood", 1);
    let mut survivor = job.own_rank(0);
    survivor.until("the flood", |heard| heard.messages.len() > 10);
    job.kill(0);
    until_death(&mut survivor);
    drop(survivor);
    job.finish();
    assert_eq!(sockets(&network), [""; 0]);
}

pub(crate) const NETWORK: &str = "RIPSTOP_PORTALS_NETWORK";

/// Returns the names of the software Portals' sockets on this network.
fn sockets(network: &str) -> Vec<String> {
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    let name = format!("@ripstop-portals/{network}/");
    let ours = all.lines().filter(|line| line.contains(&name));
    ours.map(str::to_owned).collect()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Returns how many descriptors and mapped memfds this process has.
fn held() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (
        std::fs::read_dir("/proc/self/fd").unwrap().count(),
        maps.matches("memfd:").count(),
    )
}

/// Returns the files of this board's ranks in the directories for sockets and shared memory. Other tests have their own boards at
/// the same time.
pub(crate) fn files_of(board: &str) -> Vec<String> {
    let name = board.split(':').nth(5).expect("a board's address");
    let in_dir = |dir| std::fs::read_dir(dir).into_iter().flatten();
    let names = ["/dev/shm", "/tmp"].into_iter().flat_map(in_dir);
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names
        .filter(|file| file.contains("ripstop") && file.contains(name))
        .collect()
}

#[test]
fn nonsense_in_shared_memory_never_panics_or_hangs_a_rank() {
    for seed in 0..4 {
        let mut child = start("hostile", seed, "", 0);
        assert!(end_of(&mut child).success(), "seed {seed}");
    }
}
