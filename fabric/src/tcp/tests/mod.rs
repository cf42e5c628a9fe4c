//! Peers that have proved that they belong to the job, and then send what no rank sends.

#![expect(
    clippy::disallowed_methods,
    reason = "waits of these tests are bounded by the machine's clock"
)]

mod checksum;
mod given_up;
mod goodbyes;
mod hot;
mod kernel;
mod landing;
mod placing;
mod shortage;
mod staging;

use std::{
    net::Ipv4Addr,
    ops::Range,
    time::{Duration, Instant},
};

use crate::tcp::{
    Tcp, TcpConfig,
    frame::{FrameHead, FrameKind, PutRecord},
    socket_calls::end_sending,
};
use crate::{
    driver::{
        AtomicOp, CommandFailure, CommandToken, DownCause, Driver, DriverCommand, PayloadView,
        PostResult, PreparedEndpoint, Sink, WorldRank,
    },
    memory::{MemoryRegion, RemoteRegion},
    offload::COUNTER_LEN,
    random::SeededRandom,
};

/// What a rank was told.
#[derive(Default)]
struct HeardEvents {
    messages: usize,
    completed: usize,
    failed: usize,
    /// Tokens of commands that have completed or failed.
    ended: Vec<u64>,
    down: Vec<DownCause>,
}

impl Sink for HeardEvents {
    fn message(&mut self, _from: WorldRank, _header: &[u8], _body: PayloadView<'_>) {
        self.messages += 1;
    }

    fn complete(&mut self, CommandToken(token): CommandToken) {
        self.completed += 1;
        self.ended.push(token);
    }

    fn fetched(&mut self, CommandToken(token): CommandToken, _old: u64) {
        self.completed += 1;
        self.ended.push(token);
    }

    fn failed(&mut self, CommandToken(token): CommandToken, _why: CommandFailure) {
        self.failed += 1;
        self.ended.push(token);
    }

    fn reached(&mut self, _token: CommandToken) {}

    fn triggered(&mut self, _token: CommandToken) {}

    fn peer_down(&mut self, _peer: WorldRank, why: DownCause) {
        self.down.push(why);
    }
}

/// Returns a frame whose head is a record, up to its body.
pub(super) fn with_record(
    kind: FrameKind,
    record: &impl bytemuck::Pod,
    body_len: usize,
) -> Vec<u8> {
    let record = bytemuck::bytes_of(record);
    let head = FrameHead::with_record(kind, record, body_len);
    [&head.encode()[..], record].concat()
}

/// Ends a test that waits for what does not come.
struct HangGuard {
    what: String,
    end: Instant,
}

impl HangGuard {
    fn new(what: &str) -> Self {
        Self {
            what: what.to_owned(),
            end: Instant::now() + Duration::from_secs(120),
        }
    }

    #[track_caller]
    fn check(&self) {
        assert!(Instant::now() < self.end, "waited for {}", self.what);
    }
}

/// Ranks that have not met.
fn ranks<const N: usize>(numbers: [u32; N]) -> [Tcp; N] {
    configured(numbers, |_| {})
}

/// Ranks that have not met, with changed configurations.
fn configured<const N: usize>(numbers: [u32; N], change: impl Fn(&mut TcpConfig)) -> [Tcp; N] {
    let prepared = numbers.map(|rank| {
        let mut config = TcpConfig {
            linger: Duration::from_millis(1),
            ..TcpConfig::new(rank, Ipv4Addr::LOCALHOST.into())
        };
        change(&mut config);
        Tcp::prepare(config).unwrap()
    });
    let addresses = prepared.each_ref().map(PreparedEndpoint::address);
    prepared.map(|one| one.connect(&addresses).unwrap())
}

/// Two ranks that have met. Rank 0 is the one to be tricked.
struct Pair {
    ranks: [Tcp; 2],
    heard: HeardEvents,
}

impl Pair {
    fn new() -> Self {
        Self::of(ranks([0, 1]))
    }

    fn of(ranks: [Tcp; 2]) -> Self {
        let mut pair = Self {
            ranks,
            heard: HeardEvents::default(),
        };
        let hello = DriverCommand::Message {
            to: WorldRank(0),
            header: b"hello",
            body: b"",
        };
        assert!(matches!(pair.ranks[1].post(hello), PostResult::Posted));
        pair.until("the first message", |heard| heard.messages == 1);
        pair
    }

    fn until(&mut self, what: &str, done: impl Fn(&HeardEvents) -> bool) {
        let guard = HangGuard::new(what);
        while !done(&self.heard) {
            self.turn();
            guard.check();
        }
    }

    fn turn_of_the_tricked(&mut self) {
        let _ = self.ranks[0].progress(16, &mut self.heard);
    }

    fn turn(&mut self) {
        self.turn_of_the_tricked();
        let _ = self.ranks[1].progress(16, &mut HeardEvents::default());
    }

    /// Has rank 1 send these bytes instead of frames.
    fn say(&mut self, bytes: &[u8]) {
        let core = self.ranks[1].core();
        core.peers[0].queue.push(bytes);
        core.flush(0);
    }

    /// Checks that these bytes end the connection.
    #[track_caller]
    fn ends_over(bytes: &[u8]) {
        let mut pair = Self::new();
        pair.say(bytes);
        pair.until("the end", |heard| !heard.down.is_empty());
        assert_eq!(pair.heard.down, [DownCause::Failed]);
        assert_eq!(pair.heard.completed, 0);
    }
}

#[test]
fn answers_to_no_command_end_the_connection() {
    Pair::ends_over(&with_record(FrameKind::Done, &1_u32, 0));
    Pair::ends_over(&with_record(FrameKind::Old, &1_u64, 0));
    Pair::ends_over(&with_record(FrameKind::Refused, &[0_u8; 0], 0));
    Pair::ends_over(&with_record(FrameKind::Fetched, &[0_u8; 0], 0));
    Pair::ends_over(&with_record(FrameKind::Fetched, &[0_u8; 0], 8));
}

#[test]
fn frames_of_no_kind_and_puts_beyond_their_end_end_the_connection() {
    Pair::ends_over(&[0; 8]);
    Pair::ends_over(&[0xff; 64]);
    let head = FrameHead {
        kind: FrameKind::Message,
        head_len: 200,
        body_len: 0,
    };
    Pair::ends_over(&head.encode());
    let mut put: PutRecord = bytemuck::Zeroable::zeroed();
    put.into.len = 8;
    put.offset = 4;
    Pair::ends_over(&with_record(FrameKind::Put, &put, 8));
    put.offset = u64::MAX - 3;
    Pair::ends_over(&with_record(FrameKind::Put, &put, 8));
}

#[test]
fn an_answer_to_a_put_that_has_not_been_sent_completes_nothing() {
    let mut pair = Pair::new();
    // Longer than a socket takes while its peer makes no turn.
    let len = 64 << 20;
    let region = pair.ranks[0].allocate(len).unwrap();
    let into = RemoteRegion {
        len: len as u64,
        ..bytemuck::Zeroable::zeroed()
    };
    let put = DriverCommand::Put {
        to: WorldRank(1),
        from: region.range(),
        into,
        count: None,
        token: CommandToken(1),
    };
    assert!(matches!(pair.ranks[0].post(put), PostResult::Posted));
    pair.say(&with_record(FrameKind::Done, &1_u32, 0));
    let guard = HangGuard::new("the end");
    while pair.heard.down.is_empty() {
        pair.turn_of_the_tricked();
        guard.check();
    }
    assert_eq!((pair.heard.completed, pair.heard.failed), (0, 1));
}

#[test]
fn nothing_is_heard_after_a_goodbye() {
    let mut pair = Pair::new();
    let bye = with_record(FrameKind::Bye, &1_u32, 0);
    let head = FrameHead {
        kind: FrameKind::Message,
        head_len: 0,
        body_len: 0,
    };
    pair.say(&[&bye[..], &head.encode()].concat());
    pair.until("the goodbye", |heard| !heard.down.is_empty());
    (0..20).for_each(|_| pair.turn());
    assert_eq!(pair.heard.down, [DownCause::Finished]);
    assert_eq!(pair.heard.messages, 1);
}

#[test]
fn frames_arrive_whole_whatever_the_pieces_they_come_in() {
    let mut pair = Pair::new();
    let head = FrameHead {
        kind: FrameKind::Message,
        head_len: 3,
        body_len: 40,
    };
    let frame = [&head.encode()[..], &[7; 43]].concat();
    for byte in &frame {
        pair.say(&[*byte]);
        pair.turn();
    }
    pair.until("the message", |heard| heard.messages == 2);
    pair.say(&frame.repeat(1000));
    pair.until("the messages", |heard| heard.messages == 1002);
    assert!(pair.heard.down.is_empty());
}

/// Bytes of a frame that looks like one of a rank, with this key or with a random one.
fn random_frame(random: &mut SeededRandom, key: RemoteRegion) -> Vec<u8> {
    let usual = [1, 2, 2, 2, 3, 4, 4, 5, 7];
    let kind = if random.chance(0.8) {
        usual[small(random, usual.len())]
    } else {
        1 + small(random, 10)
    };
    let mut head = vec![0; [0, 96, 40, 64, 48, 4, 0, 8, 0, 4][kind - 1]];
    random.fill(&mut head);
    if head.len() >= 40 && random.chance(0.9) {
        let len = [0, 0, 0, 8, COUNTER_LEN as u64][kind - 1];
        let part = key.slice(8 * random.within(0..16), len);
        let key = part.filter(|part| part.len > 0).unwrap_or(key);
        head[..40].copy_from_slice(bytemuck::bytes_of(&key));
    }
    match kind {
        2 => {
            let offset_and_counts = [random.within(0..64), random.within(0..2)];
            head[80..].copy_from_slice(bytemuck::bytes_of(&offset_and_counts));
        }
        4 => head[40..48].copy_from_slice(&random.within(0..10).to_le_bytes()),
        6 | 10 => head.copy_from_slice(&[u8::from(random.chance(0.8)), 0, 0, 0]),
        _ => {}
    }
    let mut body = vec![0; small(random, [300, 300, 1, 1, 1, 1, 80, 1, 1, 1][kind - 1])];
    random.fill(&mut body);
    let [kind, head_len] = [kind, head.len()].map(|n| u8::try_from(n).unwrap());
    let body_len = u32::try_from(body.len()).unwrap().to_le_bytes();
    [&[kind, 0, head_len, 0], &body_len[..], &head, &body].concat()
}

fn small(random: &mut SeededRandom, end: usize) -> usize {
    usize::try_from(random.within(0..end as u64)).unwrap()
}

/// Flips a bit in some bytes of a key.
fn flip(random: &mut SeededRandom, key: RemoteRegion, bytes: Range<usize>) -> RemoteRegion {
    let mut key: [u8; 40] = bytemuck::cast(key);
    key[bytes.start + small(random, bytes.len())] ^= 1 << random.within(0..8);
    bytemuck::cast(key)
}

fn filled(rank: &mut Tcp, byte: u8) -> MemoryRegion {
    let region = rank.allocate(4096).unwrap();
    region.write(0, &[byte; 4096]);
    region
}

fn holds_only(region: &MemoryRegion, range: Range<usize>, byte: u8) -> bool {
    let mut bytes = vec![0; range.len()];
    region.read(range.start, &mut bytes);
    bytes.iter().all(|found| *found == byte)
}

/// Has rank 0 post commands of which only rank 1's strange frames can be answers. The get is into bytes 1000..1064.
fn post_commands(rank: &mut Tcp, landing: &MemoryRegion) {
    let (to, remote) = (
        WorldRank(1),
        RemoteRegion {
            len: 64,
            ..bytemuck::Zeroable::zeroed()
        },
    );
    for command in [
        DriverCommand::Get {
            to,
            from: remote,
            into: landing.range().slice(1000, 64),
            token: CommandToken(0),
        },
        DriverCommand::Put {
            to,
            from: landing.range().slice(0, 64),
            into: remote,
            count: None,
            token: CommandToken(1),
        },
        DriverCommand::Atomic {
            to,
            at: remote,
            op: AtomicOp::Fetch,
            token: CommandToken(2),
        },
    ] {
        assert!(matches!(rank.post(command), PostResult::Posted));
    }
}

#[test]
fn frames_of_random_bytes_harm_no_rank() {
    let seed = 77;
    let mut random = SeededRandom::new(seed);
    let (mut written, mut completed) = (0, 0);
    for round in 0..200 {
        let mut pair = Pair::new();
        let [secret, open, landing] = [1, 2, 3].map(|byte| filled(&mut pair.ranks[0], byte));
        let key = pair.ranks[0].expose(open.range()).unwrap();
        post_commands(&mut pair.ranks[0], &landing);
        let guesses = round % 2 == 0;
        for _ in 0..8 {
            let key = match random.within(0..3) {
                _ if guesses => flip(&mut random, key, 0..24),
                0 => flip(&mut random, key, 24..40),
                _ => key,
            };
            pair.say(&random_frame(&mut random, key));
            (0..3).for_each(|_| pair.turn_of_the_tricked());
        }
        let at = format!("seed {seed}, round {round}");
        let heard = &pair.heard;
        let mut ended = heard.ended.clone();
        ended.sort_unstable();
        ended.dedup();
        assert_eq!(ended.len(), heard.completed + heard.failed, "{at}");
        assert!(heard.down.len() <= 1, "{at}");
        assert!(heard.down.is_empty() || ended == [0, 1, 2], "{at}");
        assert!(holds_only(&secret, 0..4096, 1), "{at}");
        assert!(holds_only(&landing, 0..1000, 3), "{at}");
        assert!(holds_only(&landing, 1064..4096, 3), "{at}");
        let kept = holds_only(&open, 0..4096, 2);
        assert!(kept || !guesses, "{at}");
        written += u32::from(!kept);
        completed += heard.completed;
    }
    assert!(
        written > 0 && completed > 0,
        "all frames were refused, seed {seed}"
    );
}

#[test]
fn a_put_that_is_arriving_leaves_memory_alone_that_is_withdrawn() {
    let mut pair = Pair::new();
    let memory = MemoryRegion::anonymous(16).unwrap();
    let key = pair.ranks[0].expose(memory.range().slice(0, 16)).unwrap();
    assert_eq!(key.whole, 0, "a key to plain memory");
    let put = PutRecord {
        into: key,
        ..bytemuck::Zeroable::zeroed()
    };
    pair.say(&[&with_record(FrameKind::Put, &put, 16)[..], &[7; 8]].concat());
    let guard = HangGuard::new("the first half");
    while !holds_only(&memory, 0..8, 7) {
        pair.turn_of_the_tricked();
        guard.check();
    }
    let withdraw = DriverCommand::Withdraw { key };
    assert!(matches!(pair.ranks[0].post(withdraw), PostResult::Posted));
    memory.write(0, &[9; 16]);
    let head = FrameHead {
        kind: FrameKind::Message,
        head_len: 0,
        body_len: 0,
    };
    pair.say(&[&[7; 8][..], &head.encode()].concat());
    let guard = HangGuard::new("the message after the put");
    while pair.heard.messages < 2 {
        pair.turn_of_the_tricked();
        guard.check();
    }
    assert!(holds_only(&memory, 0..16, 9));
    assert!(pair.heard.down.is_empty());
}

/// A pair of which rank 1 gets memory of rank 0 that no socket holds at once, and rank 0 has sent a part of it.
fn pair_with_a_long_get() -> (Pair, RemoteRegion, [MemoryRegion; 2]) {
    let mut pair = Pair::new();
    let [memory, into] = [(); 2].map(|()| MemoryRegion::anonymous(LONG_GET).unwrap());
    memory.write(0, &vec![7; LONG_GET]);
    let key = pair.ranks[0].expose(memory.range()).unwrap();
    assert_eq!(key.whole, 0, "a key to plain memory");
    let get = DriverCommand::Get {
        to: WorldRank(0),
        from: key,
        into: into.range(),
        token: CommandToken(1),
    };
    assert!(matches!(pair.ranks[1].post(get), PostResult::Posted));
    let guard = HangGuard::new("the get");
    while pair.ranks[0].core().peers[1].queue.is_empty() {
        pair.turn_of_the_tricked();
        guard.check();
    }
    (pair, key, [memory, into])
}

/// Longer than sockets hold.
const LONG_GET: usize = 48 << 20;

#[test]
fn a_get_brings_what_memory_had_when_it_was_withdrawn() {
    let (mut pair, key, [memory, into]) = pair_with_a_long_get();
    let withdraw = DriverCommand::Withdraw { key };
    assert!(matches!(pair.ranks[0].post(withdraw), PostResult::Posted));
    memory.write(0, &vec![9; LONG_GET]);
    let guard = HangGuard::new("the data");
    let mut heard = HeardEvents::default();
    while heard.completed == 0 {
        pair.turn_of_the_tricked();
        let _ = pair.ranks[1].progress(16, &mut heard);
        guard.check();
    }
    assert!(holds_only(&into, 0..LONG_GET, 7));
}

#[test]
fn an_error_of_sending_ends_a_connection_that_is_silent() {
    let mut pair = Pair::new();
    let core = pair.ranks[0].core();
    let name = core.peers[1].connection.as_ref().unwrap().socket;
    end_sending(core.sockets.get(name).unwrap().fd.as_ref().unwrap());
    let message = DriverCommand::Message {
        to: WorldRank(1),
        header: b"",
        body: b"lost",
    };
    assert!(matches!(pair.ranks[0].post(message), PostResult::Posted));
    let guard = HangGuard::new("the end");
    while pair.heard.down.is_empty() {
        pair.turn_of_the_tricked();
        guard.check();
    }
    assert_eq!(pair.heard.down, [DownCause::Failed]);
}

/// Counts messages by their senders.
#[derive(Default)]
struct HeardSenders {
    from: [usize; 5],
}

impl Sink for HeardSenders {
    fn message(&mut self, WorldRank(from): WorldRank, _header: &[u8], _body: PayloadView<'_>) {
        self.from[from as usize] += 1;
    }

    fn complete(&mut self, _token: CommandToken) {}

    fn fetched(&mut self, _token: CommandToken, _old: u64) {}

    fn failed(&mut self, _token: CommandToken, _why: CommandFailure) {}

    fn reached(&mut self, _token: CommandToken) {}

    fn triggered(&mut self, _token: CommandToken) {}

    fn peer_down(&mut self, _peer: WorldRank, _why: DownCause) {}
}

/// Checks that a message of a rank that has not met rank 0 arrives while another rank sends without an end.
fn is_heard_in_a_flood(budget: u32) {
    let [mut zero, mut flooder, mut other] = ranks([0, 1, 2]);
    let message = || DriverCommand::Message {
        to: WorldRank(0),
        header: b"",
        body: b"",
    };
    let mut heard = HeardSenders::default();
    let guard = HangGuard::new("the second message");
    let mut posted = false;
    while heard.from[2] == 0 {
        for _ in 0..2 * budget {
            // There may be no room.
            let _ = flooder.post(message());
        }
        let _ = flooder.progress(1, &mut HeardSenders::default());
        let _ = zero.progress(budget, &mut heard);
        if heard.from[1] > 0 && !std::mem::replace(&mut posted, true) {
            assert!(matches!(other.post(message()), PostResult::Posted));
        }
        let _ = other.progress(1, &mut HeardSenders::default());
        // One inbox has 32768 empty messages.
        assert!(
            heard.from[1] < 10 * 32768,
            "a flood starves, budget {budget}"
        );
        guard.check();
    }
}

#[test]
fn a_flood_of_one_peer_starves_no_other() {
    is_heard_in_a_flood(1);
    is_heard_in_a_flood(64);
}
