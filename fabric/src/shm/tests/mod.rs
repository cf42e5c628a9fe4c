//! Tests with ranks of one process on one board.
#![expect(unsafe_code, reason = "one-sided commands take raw ranges")]

use std::{mem::MaybeUninit, panic::AssertUnwindSafe, ptr::NonNull, sync::Arc};

use super::{Board, PeerState, Shm, ShmConfig, WakeMethod};
use crate::{
    counters::DriverStats,
    driver::{
        ArmResult, AtomicOp, CommandFailure, CommandToken, DownCause, Driver, DriverCommand,
        LocalRange, MappedMemory, PayloadView, PostResult, Sink, WakeSource, WorldRank,
    },
    memory::RemoteRegion,
};

mod arrivals;
mod descriptors;
mod named_slots;
mod parting;

/// A header of the length that short messages have. Messages that repeat it share lines of the ring.
const SHORT_HEADER: [u8; 24] = [7; 24];

#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Message(u32, Vec<u8>, Vec<u8>),
    Complete(u64),
    Fetched(u64, u64),
    Failed(u64, &'static str),
    Down(u32, DownCause),
}

#[derive(Debug, Default)]
struct Ear(Vec<Heard>);

impl Sink for Ear {
    fn message(&mut self, from: WorldRank, header: &[u8], body: PayloadView<'_>) {
        self.0
            .push(Heard::Message(from.0, header.to_vec(), body.to_vec()));
    }
    fn complete(&mut self, token: CommandToken) {
        self.0.push(Heard::Complete(token.0));
    }
    fn fetched(&mut self, token: CommandToken, old: u64) {
        self.0.push(Heard::Fetched(token.0, old));
    }
    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        let why = match why {
            CommandFailure::PeerDown => "peer down",
            CommandFailure::BadRange => "bad range",
            CommandFailure::Unmatched => "unmatched",
            CommandFailure::Cancelled => "canceled",
            CommandFailure::Transport(_) => "transport",
        };
        self.0.push(Heard::Failed(token.0, why));
    }
    fn reached(&mut self, _: CommandToken) {
        panic!("nothing is watched here");
    }

    fn triggered(&mut self, _: CommandToken) {
        panic!("no list is posted here");
    }

    fn peer_down(&mut self, peer: WorldRank, why: DownCause) {
        self.0.push(Heard::Down(peer.0, why));
    }
}

fn world(ranks: u32) -> (Board, Vec<Shm>) {
    let board = Board::create(ranks).unwrap();
    let all = (0..ranks)
        .map(|rank| Shm::open(&board, ShmConfig::new(rank)).unwrap())
        .collect();
    (board, all)
}

fn pair() -> (Shm, Shm) {
    let (_, all) = world(2);
    let [a, b] = <[Shm; 2]>::try_from(all).unwrap();
    (a, b)
}

fn message<'a>(to: u32, header: &'a [u8], body: &'a [u8]) -> DriverCommand<'a> {
    DriverCommand::Message {
        to: WorldRank(to),
        header,
        body,
    }
}

/// Posts a message, and makes progress on the receiver while there is no room.
fn send(from: &mut Shm, to: &mut Shm, header: &[u8], body: &[u8], ear: &mut Ear) {
    let rank = to.rank;
    for _ in 0..1000 {
        match from.post(message(rank, header, body)) {
            PostResult::Posted => return,
            PostResult::Full(_) => {
                let _ = to.progress(64, ear);
            }
        }
    }
    panic!("rank {rank} never takes it");
}

fn hear(shm: &mut Shm) -> Vec<Heard> {
    let mut ear = Ear::default();
    for _ in 0..3 {
        while shm.progress(64, &mut ear).events > 0 {}
    }
    ear.0
}

fn posted(shm: &mut Shm, command: DriverCommand<'_>) {
    assert!(matches!(shm.post(command), PostResult::Posted));
}

/// Returns a range of test memory that outlives the commands on it.
fn range(bytes: &mut [u8]) -> LocalRange {
    // SAFETY: the tests keep the memory until the command is complete, and touch it only then.
    unsafe { LocalRange::new(NonNull::from(&mut *bytes).cast(), bytes.len()) }
}

#[test]
fn messages_of_all_sizes_arrive_in_order_with_their_headers() {
    let (mut a, mut b) = pair();
    let mut ear = Ear::default();
    let sizes = [0, 1, 8, 31, 32, 33, 56, 64, 88, 96, 97, 100, 4096, 8192];
    let mut sent = Vec::new();
    for header_len in [0, 1, 24, 55, 56, 57, 112] {
        for size in sizes {
            let header = (0..header_len)
                .map(|i| u8::try_from(i).unwrap())
                .collect::<Vec<_>>();
            let body = (0..size)
                .map(|i| u8::try_from((i * 7 + size) % 251).unwrap())
                .collect::<Vec<_>>();
            send(&mut a, &mut b, &header, &body, &mut ear);
            sent.push(Heard::Message(0, header, body));
        }
    }
    ear.0.extend(hear(&mut b));
    assert_eq!(ear.0, sent);
}

#[test]
fn many_laps_of_the_ring_lose_nothing() {
    let (mut a, mut b) = pair();
    let mut ear = Ear::default();
    for i in 0..10_000_u64 {
        let body = vec![u8::try_from(i % 256).unwrap(); usize::try_from(i % 300).unwrap()];
        send(&mut a, &mut b, &i.to_le_bytes(), &body, &mut ear);
    }
    ear.0.extend(hear(&mut b));
    assert_eq!(ear.0.len(), 10_000);
    for (i, heard) in (0_u64..).zip(&ear.0) {
        let Heard::Message(0, header, body) = heard else {
            panic!("{heard:?}")
        };
        assert_eq!(
            (header.as_slice(), body.len() as u64),
            (&i.to_le_bytes()[..], i % 300)
        );
    }
}

#[test]
fn a_receiver_that_sleeps_over_half_a_line_is_woken_by_the_next_message_in_it() {
    let (mut a, mut b) = pair();
    for byte in 0..3 {
        posted(&mut a, message(1, &SHORT_HEADER, &[byte; 8]));
    }
    assert_eq!(hear(&mut b).len(), 3);
    for byte in 3..20 {
        assert_eq!(b.arm(), ArmResult::Ready);
        posted(&mut a, message(1, &SHORT_HEADER, &[byte; 8]));
        assert_eq!(a.counters.wakes_sent.get(), u64::from(byte) - 2);
        let next = Heard::Message(0, SHORT_HEADER.to_vec(), vec![byte; 8]);
        assert_eq!(hear(&mut b), [next]);
    }
}

#[test]
fn a_rank_sends_to_itself() {
    let (mut a, _b) = pair();
    let mut ear = Ear::default();
    posted(&mut a, message(0, b"h", b"to me"));
    assert_eq!(a.arm(), ArmResult::Busy);
    let _ = a.progress(64, &mut ear);
    posted(&mut a, message(0, b"h", &[1; 8000]));
    ear.0.extend(hear(&mut a));
    let own = |body: &[u8]| Heard::Message(0, b"h".to_vec(), body.to_vec());
    assert_eq!(ear.0, [own(b"to me"), own(&[1; 8000])]);
}

#[test]
fn a_full_ring_gives_the_command_back_and_room_is_an_event() {
    let (mut a, mut b) = pair();
    let mut count = 0;
    while matches!(a.post(message(1, b"", b"x")), PostResult::Posted) {
        count += 1;
    }
    assert_eq!(count, 128);
    assert_eq!(
        a.arm(),
        ArmResult::Busy,
        "no rank has looked at the board yet"
    );
    assert_eq!(hear(&mut a), []);
    assert_eq!(a.arm(), ArmResult::Ready);
    assert_eq!(hear(&mut b).len(), 128);
    assert_eq!(
        b.counters.wakes_sent.get(),
        1,
        "the sleeping sender was told that there is room"
    );
    let mut ear = Ear::default();
    assert_eq!(a.progress(64, &mut ear).events, 1);
    posted(&mut a, message(1, b"", b"x"));
}

#[test]
fn chunks_come_back_and_their_shortage_is_no_room() {
    let board = Board::create(2).unwrap();
    let few = ShmConfig {
        chunks: 3,
        ..ShmConfig::new(0)
    };
    let (mut a, mut b) = (
        Shm::open(&board, few).unwrap(),
        Shm::open(&board, ShmConfig::new(1)).unwrap(),
    );
    let mut ear = Ear::default();
    send(&mut a, &mut b, b"", &[1; 500], &mut ear);
    posted(&mut a, message(1, b"", &[2; 500]));
    posted(&mut a, message(1, b"", &[3; 500]));
    assert!(matches!(
        a.post(message(1, b"", &[4; 500])),
        PostResult::Full(_)
    ));
    posted(&mut a, message(1, b"", b"short ones go on"));
    assert_eq!(hear(&mut b).len(), 4);
    posted(&mut a, message(1, b"", &[4; 500]));
    assert_eq!(hear(&mut b), [Heard::Message(0, vec![], vec![4; 500])]);
}

#[test]
fn a_long_body_waits_until_the_peer_has_mapped_our_chunks() {
    let (mut a, mut b) = pair();
    assert!(matches!(
        a.post(message(1, b"", &[1; 500])),
        PostResult::Full(_)
    ));
    assert_eq!(hear(&mut a), []);
    assert_eq!(a.arm(), ArmResult::Ready);
    assert_eq!(hear(&mut b), []);
    assert_eq!(
        b.counters.wakes_sent.get(),
        1,
        "acceptance wakes the sender"
    );
    assert!(a.progress(64, &mut Ear::default()).events > 0);
    posted(&mut a, message(1, b"", &[1; 500]));
    assert_eq!(hear(&mut b), [Heard::Message(0, vec![], vec![1; 500])]);
    posted(&mut b, message(0, b"", &[2; 500])); // a peer that sends to us has mapped us
}

#[test]
fn an_absent_peer_is_no_room_and_its_coming_wakes() {
    let board = Board::create(2).unwrap();
    let mut a = Shm::open(&board, ShmConfig::new(0)).unwrap();
    assert_eq!(hear(&mut a), []);
    assert!(matches!(a.post(message(1, b"", b"x")), PostResult::Full(_)));
    assert_eq!(a.arm(), ArmResult::Ready);
    let mut b = Shm::open(&board, ShmConfig::new(1)).unwrap();
    assert_eq!(b.counters.wakes_sent.get(), 1);
    assert_eq!(a.progress(64, &mut Ear::default()).events, 1);
    posted(&mut a, message(1, b"", b"x"));
    assert_eq!(hear(&mut b), [Heard::Message(0, vec![], b"x".to_vec())]);
}

#[test]
fn a_message_to_an_armed_rank_wakes_it_once() {
    for wake in [WakeMethod::Futex, WakeMethod::Fd] {
        let board = Board::create(2).unwrap();
        let mut a = Shm::open(&board, ShmConfig::new(0)).unwrap();
        let mut b = Shm::open(
            &board,
            ShmConfig {
                wake,
                ..ShmConfig::new(1)
            },
        )
        .unwrap();
        posted(&mut a, message(1, b"", b"contact"));
        assert_eq!(hear(&mut b).len(), 1);
        assert_eq!(b.arm(), ArmResult::Ready);
        let before = a.counters.snapshot();
        posted(&mut a, message(1, b"", b"one"));
        posted(&mut a, message(1, b"", b"two"));
        assert_eq!((a.counters.snapshot() - before).wakes_sent, 1);
        match &b.wait_on()[0] {
            WakeSource::Futex { word, armed } => {
                assert_ne!(word.get().load(std::sync::atomic::Ordering::SeqCst), *armed)
            }
            WakeSource::Fd(fd) => assert!(is_readable(fd)),
            WakeSource::Virtual => panic!("shared memory is real"),
        }
        assert_eq!(b.arm(), ArmResult::Busy);
        assert_eq!(hear(&mut b).len(), 2);
    }
}

fn is_readable(fd: &std::os::fd::OwnedFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
    rustix::event::poll(
        &mut fds,
        Some(&rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )
    .unwrap()
        == 1
}

#[test]
fn an_awake_pair_makes_no_system_call_per_message() {
    let (mut a, mut b) = pair();
    let mut ear = Ear::default();
    send(&mut a, &mut b, b"", &[0; 500], &mut ear);
    let before = (a.counters.snapshot(), b.counters.snapshot());
    for _ in 0..1000 {
        send(&mut a, &mut b, b"header", &[0; 8], &mut ear);
        send(&mut a, &mut b, b"header", &[0; 500], &mut ear);
        let _ = b.progress(64, &mut ear);
    }
    let (sent, received) = (
        a.counters.snapshot() - before.0,
        b.counters.snapshot() - before.1,
    );
    assert_eq!(
        (sent.messages_sent, received.messages_received),
        (2000, 2001)
    );
    assert_eq!((sent.copies, sent.bytes_copied), (2000, 508_000));
    assert_eq!(
        sent.system_calls + received.system_calls + sent.wakes_sent + received.wakes_sent,
        0
    );
}

#[test]
fn what_a_finished_rank_left_is_delivered_before_the_news() {
    let (mut a, mut b) = pair();
    posted(&mut a, message(1, b"", b"first words are last words"));
    drop(a);
    let last = Heard::Message(0, vec![], b"first words are last words".to_vec());
    assert_eq!(hear(&mut b), [last, Heard::Down(0, DownCause::Finished)]);
    posted(&mut b, message(0, b"", b"nobody hears this"));
    assert_eq!(hear(&mut b), []);
}

#[test]
fn chunks_of_a_finished_rank_are_still_read() {
    let (mut a, mut b) = pair();
    let mut ear = Ear::default();
    send(&mut a, &mut b, b"", &[1; 500], &mut ear);
    posted(&mut a, message(1, b"", &[2; 8000]));
    drop(a);
    ear.0.extend(hear(&mut b));
    let all = [vec![1; 500], vec![2; 8000]].map(|body| Heard::Message(0, vec![], body));
    assert_eq!(ear.0[..2], all);
    assert_eq!(ear.0[2..], [Heard::Down(0, DownCause::Finished)]);
}

#[test]
fn a_small_budget_still_delivers_all_before_the_news() {
    let (mut a, mut b) = pair();
    (0..5).for_each(|_| posted(&mut a, message(1, b"", b"x")));
    a.fail();
    let mut ear = Ear::default();
    while b.progress(1, &mut ear).events > 0 {}
    assert_eq!(ear.0.len(), 6);
    assert_eq!(ear.0.last(), Some(&Heard::Down(0, DownCause::Failed)));
}

#[test]
fn a_panic_closes_as_failed_and_wakes_everybody() {
    let (board, mut all) = world(3);
    let dying = all.remove(0);
    for rank in &mut all {
        assert_eq!(hear(rank), []);
        assert_eq!(rank.arm(), ArmResult::Ready);
    }
    let counters = Arc::clone(&dying.counters);
    let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let _dying = dying;
        std::panic::resume_unwind(Box::new("on purpose"));
    }));
    assert!(panicked.is_err());
    assert_eq!(board.state_of(0), PeerState::Failed);
    assert_eq!(counters.wakes_sent.get(), 2);
    for rank in &mut all {
        assert_eq!(hear(rank), [Heard::Down(0, DownCause::Failed)]);
    }
}

#[test]
fn put_get_and_atomics_reach_a_region_of_the_peer() {
    let (mut a, mut b) = pair();
    let region = b.allocate(1 << 20).unwrap();
    let key = b.expose(region_range(&region)).unwrap();
    let mut source = (0..600_000)
        .map(|i| u8::try_from(i % 251).unwrap())
        .collect::<Vec<_>>();
    let mut target = vec![0; 600_000];
    let part = key.slice(4096, 600_000).unwrap();
    posted(
        &mut a,
        DriverCommand::Put {
            to: WorldRank(1),
            from: range(&mut source),
            into: part,
            count: None,
            token: CommandToken(1),
        },
    );
    assert_eq!(a.arm(), ArmResult::Busy, "a copy is in flight");
    assert_eq!(hear(&mut a), [Heard::Complete(1)]);
    posted(
        &mut a,
        DriverCommand::Get {
            to: WorldRank(1),
            from: part,
            into: range(&mut target),
            token: CommandToken(2),
        },
    );
    assert_eq!(hear(&mut a), [Heard::Complete(2)]);
    assert_eq!(source, target);
    let word = key.slice(8, 8).unwrap();
    for (token, op) in [
        (3, AtomicOp::Add(5)),
        (
            4,
            AtomicOp::CompareSwap {
                expected: 5,
                new: 9,
            },
        ),
        (5, AtomicOp::Fetch),
    ] {
        posted(
            &mut a,
            DriverCommand::Atomic {
                to: WorldRank(1),
                at: word,
                op,
                token: CommandToken(token),
            },
        );
    }
    assert_eq!(
        hear(&mut a),
        [
            Heard::Fetched(3, 0),
            Heard::Fetched(4, 5),
            Heard::Fetched(5, 9)
        ]
    );
    assert_eq!(
        region
            .atomic_u64(8)
            .load(std::sync::atomic::Ordering::SeqCst),
        9
    );
}

fn region_range(region: &crate::memory::MemoryRegion) -> LocalRange {
    // SAFETY: the region lives to the end of the test.
    unsafe { LocalRange::new(region.start(), region.len()) }
}

#[test]
fn plain_memory_is_reached_in_one_copy() {
    let (mut a, mut b) = pair();
    if let Err(why) = &b.caps().any_memory {
        assert!(!why.is_empty());
        assert!(b.expose(range(&mut [0; 8])).is_none());
        return;
    }
    let mut theirs = vec![7; 3 << 20];
    let mut ours = vec![MaybeUninit::<u8>::new(0); 3 << 20];
    let key = b.expose(range(&mut theirs)).unwrap();
    // SAFETY: `ours` outlives the command.
    let into = unsafe { LocalRange::new(NonNull::from(&mut ours[..]).cast(), ours.len()) };
    posted(
        &mut a,
        DriverCommand::Get {
            to: WorldRank(1),
            from: key,
            into,
            token: CommandToken(1),
        },
    );
    assert_eq!(hear(&mut a), [Heard::Complete(1)]);
    // SAFETY: every byte was initialized above.
    assert!(ours.iter().all(|byte| unsafe { byte.assume_init() } == 7));
    let mut short = [9; 100];
    posted(
        &mut a,
        DriverCommand::Put {
            to: WorldRank(1),
            from: range(&mut short),
            into: key.slice(50, 100).unwrap(),
            count: None,
            token: CommandToken(2),
        },
    );
    assert_eq!(hear(&mut a), [Heard::Complete(2)]);
    assert_eq!(
        (theirs[49], theirs[50], theirs[149], theirs[150]),
        (7, 9, 9, 7)
    );
}

#[test]
fn keys_that_grant_nothing_are_refused() {
    let (mut a, mut b) = pair();
    let region = b.allocate(8192).unwrap();
    let key = b.expose(region_range(&region)).unwrap();
    let mut memory = [0; 64];
    let plain = b.expose(range(&mut memory)).unwrap_or(key);
    let mut local = [0; 64];
    for key in bad_keys(key, plain) {
        let (to, into) = (WorldRank(1), range(&mut local));
        posted(
            &mut a,
            DriverCommand::Get {
                to,
                from: key,
                into,
                token: CommandToken(1),
            },
        );
        assert_eq!(hear(&mut a), [Heard::Failed(1, "bad range")], "{key:?}");
    }
    let (to, at) = (WorldRank(1), key.slice(4, 8).unwrap());
    posted(
        &mut a,
        DriverCommand::Atomic {
            to,
            at,
            op: AtomicOp::Fetch,
            token: CommandToken(2),
        },
    );
    assert_eq!(hear(&mut a), [Heard::Failed(2, "bad range")]);
}

/// Keys that do not grant 64 bytes of rank 1, made from valid ones to a region, whose length is whole pages, and to 64 other
/// bytes.
fn bad_keys(key: RemoteRegion, plain: RemoteRegion) -> [RemoteRegion; 13] {
    let key = key.slice(0, 64).unwrap();
    let end = u64::MAX - 8;
    [
        RemoteRegion { kind: 9, ..key },
        RemoteRegion { owner: 0, ..key },
        RemoteRegion { id: 1, ..key },
        RemoteRegion {
            id: u32::MAX,
            ..key
        },
        RemoteRegion {
            generation: 0,
            ..key
        },
        RemoteRegion {
            generation: key.generation + 1,
            ..key
        },
        RemoteRegion {
            whole: key.whole / 2,
            ..key
        },
        RemoteRegion {
            base: key.whole - 63,
            ..key
        },
        RemoteRegion { base: end, ..key },
        RemoteRegion { len: 65, ..key },
        RemoteRegion {
            generation: plain.generation ^ 1,
            ..plain
        },
        RemoteRegion { base: end, ..plain },
        RemoteRegion {
            base: end,
            kind: 2,
            whole: 0,
            ..key
        },
    ]
}

#[test]
fn a_key_outlives_its_region_harmlessly() {
    let (mut a, mut b) = pair();
    let region = b.allocate(4096).unwrap();
    let key = b.expose(region_range(&region)).unwrap();
    let mut local = [0; 8];
    let from = key.slice(0, 8).unwrap();
    posted(
        &mut a,
        DriverCommand::Get {
            to: WorldRank(1),
            from,
            into: range(&mut local),
            token: CommandToken(1),
        },
    );
    assert_eq!(hear(&mut a), [Heard::Complete(1)]);
    drop(region);
    let _newer = b.allocate(4096).unwrap();
    posted(
        &mut a,
        DriverCommand::Get {
            to: WorldRank(1),
            from,
            into: range(&mut local),
            token: CommandToken(2),
        },
    );
    assert_eq!(hear(&mut a), [Heard::Failed(2, "bad range")]);
}

/// Returns how many mappings of this process have `len` bytes and this name.
fn mapped(name: &str, len: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_len = |line: &&str| {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
        line.contains(name) && end - start == len
    };
    maps.lines().filter(of_len).count()
}

fn mapped_regions(len: usize) -> usize {
    mapped("ripstop-region", len)
}

#[test]
fn memory_that_its_owner_freed_is_unmapped_by_its_peers() {
    // Lengths that no other test has: whole pages, which are longer on some processors.
    let lens = [77, 78, 79].map(|pages| pages * rustix::param::page_size());
    let (mut a, mut b) = pair();
    let mut reach = |b: &mut Shm, len: usize| {
        let region = b.allocate(len).unwrap();
        let key = b.expose(region_range(&region)).unwrap();
        assert!(a.reach(WorldRank(1), key).is_some());
        region
    };
    let [first, second] = [lens[0], lens[1]].map(|len| reach(&mut b, len));
    assert_eq!(lens.map(mapped_regions), [2, 2, 0]);
    // Two slots are dropped, because the third region reuses the slot of the first.
    drop([first, second]);
    let third = reach(&mut b, lens[2]);
    assert_eq!(
        lens.map(mapped_regions),
        [0, 0, 2],
        "another one was opened"
    );
    drop(third);
    while a.arm() == ArmResult::Busy {
        hear(&mut a);
    }
    assert_eq!(lens.map(mapped_regions), [0; 3], "a sleep");
}

#[test]
fn what_is_copied_from_a_rank_that_has_failed_is_nothing() {
    let (mut a, mut b) = pair();
    let region = b.allocate(4096).unwrap();
    let key = b.expose(region_range(&region)).unwrap();
    let mut local = vec![0; 4096];
    let mut get = |a: &mut Shm, token| {
        let command = DriverCommand::Get {
            to: WorldRank(1),
            from: key,
            into: range(&mut local),
            token: CommandToken(token),
        };
        posted(a, command);
    };
    get(&mut a, 1);
    assert_eq!(hear(&mut a), [Heard::Complete(1)]);
    b.fail();
    // Posted before the rank checks which peers are down.
    get(&mut a, 2);
    let gone = [
        Heard::Failed(2, "peer down"),
        Heard::Down(1, DownCause::Failed),
    ];
    assert_eq!(hear(&mut a), gone);
}

#[test]
fn commands_for_a_rank_that_is_gone_fail() {
    let (mut a, mut b) = pair();
    let region = b.allocate(1 << 20).unwrap();
    let key = b.expose(region_range(&region)).unwrap();
    let mut local = vec![0; 1 << 20];
    posted(
        &mut a,
        DriverCommand::Get {
            to: WorldRank(1),
            from: key,
            into: range(&mut local),
            token: CommandToken(1),
        },
    );
    drop(b);
    posted(
        &mut a,
        DriverCommand::Get {
            to: WorldRank(1),
            from: key,
            into: range(&mut local),
            token: CommandToken(2),
        },
    );
    assert_eq!(
        hear(&mut a),
        [
            Heard::Failed(1, "peer down"),
            Heard::Failed(2, "peer down"),
            Heard::Down(1, DownCause::Finished)
        ]
    );
    posted(
        &mut a,
        DriverCommand::Get {
            to: WorldRank(1),
            from: key,
            into: range(&mut local),
            token: CommandToken(3),
        },
    );
    assert_eq!(hear(&mut a), [Heard::Failed(3, "peer down")]);
}

#[test]
fn nonsense_in_a_ring_fails_the_peer_that_wrote_it() {
    let (mut a, mut b) = pair();
    posted(&mut a, message(1, b"", b"contact"));
    assert_eq!(hear(&mut b).len(), 1);
    let shape = b.segment.shape();
    let second = shape.ring(0) + super::ring::SLOT_LEN;
    let nonsense = 2 | 255_u64 << 32 | 0xffff << 48;
    b.segment
        .region()
        .atomic_u64(second)
        .store(nonsense, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(hear(&mut b), [Heard::Down(0, DownCause::Failed)]);
    assert!(b.trouble_with(0).unwrap().to_string().contains("rank 0"));
    while matches!(a.post(message(1, b"", b"more")), PostResult::Posted)
        && a.trouble_with(1).is_none()
    {}
    assert_eq!(
        hear(&mut a),
        [Heard::Down(1, DownCause::Failed)],
        "and the peer hears that it was given up"
    );
}

#[test]
fn a_rank_opens_once_and_in_range() {
    let board = Board::create(2).unwrap();
    let _open = Shm::open(&board, ShmConfig::new(0)).unwrap();
    let refused = [
        (ShmConfig::new(0), "rank 0"),
        (ShmConfig::new(2), "rank 2"),
        (
            ShmConfig {
                ring_slots: 100,
                ..ShmConfig::new(1)
            },
            "100 ring slots",
        ),
        (
            ShmConfig {
                chunks: 0,
                ..ShmConfig::new(1)
            },
            "0 chunks",
        ),
    ];
    for (config, word) in refused {
        let why = Shm::open(&board, config).unwrap_err().to_string();
        assert!(why.contains(word), "{why}");
    }
    assert!(
        Shm::open(&board, ShmConfig::new(1)).is_ok(),
        "a refused configuration takes no place"
    );
}

#[test]
fn counters_are_the_callers() {
    let counters = Arc::new(DriverStats::default());
    let board = Board::create(1).unwrap();
    let mut a = Shm::open(
        &board,
        ShmConfig {
            counters: Arc::clone(&counters),
            ..ShmConfig::new(0)
        },
    )
    .unwrap();
    posted(&mut a, message(0, b"", b"x"));
    assert_eq!(counters.messages_sent.get(), 1);
}

/// Names of the tests below, and of the variable in which they find the board.
const OTHER_PROCESS: &str = "shm::tests::the_other_process_of_the_test_above";
const HEADLESS: &str = "shm::tests::a_process_whose_first_thread_ends";
const BOARD: &str = "RIPSTOP_TEST_BOARD";

fn other_process(test: &str, board: &Board) -> std::process::Child {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(BOARD, board.address())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_killed_process_is_noticed_and_what_it_sent_arrives() {
    let board = Board::create(2).unwrap();
    let mut a = Shm::open(
        &board,
        ShmConfig {
            wake: WakeMethod::Fd,
            ..ShmConfig::new(0)
        },
    )
    .unwrap();
    let mut other = other_process(OTHER_PROCESS, &board);
    let mut ear = Ear::default();
    while ear.0.is_empty() {
        sleep(&mut a, &mut ear);
    }
    other.kill().unwrap();
    while ear.0.last() != Some(&Heard::Down(1, DownCause::Failed)) {
        sleep(&mut a, &mut ear);
    }
    other.wait().unwrap();
    assert_eq!(
        ear.0[0],
        Heard::Message(1, b"header".to_vec(), vec![1; 300])
    );
    assert_eq!(board.state_of(1), PeerState::Failed);
    posted(&mut a, message(1, b"", b"too late"));
    assert_eq!(hear(&mut a), []);
}

/// Makes one turn of a loop like a runtime's.
fn sleep(shm: &mut Shm, ear: &mut Ear) {
    let moved = shm.progress(64, ear).events > 0;
    if moved || shm.arm() == ArmResult::Busy {
        return;
    }
    let all = shm.wait_on();
    let mut fds = Vec::new();
    for wait in &all {
        let WakeSource::Fd(fd) = wait else {
            panic!("a futex")
        };
        fds.push(rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN));
    }
    let guard = rustix::time::Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    assert!(
        rustix::event::poll(&mut fds, Some(&guard)).unwrap() > 0,
        "nothing woke us"
    );
}

#[test]
fn the_other_process_of_the_test_above() {
    let Ok(address) = std::env::var(BOARD) else {
        return;
    };
    let mut shm = Shm::open(
        &Board::attach(&address).unwrap(),
        ShmConfig {
            wake: WakeMethod::Fd,
            ..ShmConfig::new(1)
        },
    )
    .unwrap();
    let mut ear = Ear::default();
    // The first post finds no room, because the peer must map us first.
    while let PostResult::Full(_) = shm.post(message(0, b"header", &[1; 300])) {
        sleep(&mut shm, &mut ear);
    }
    while ear.0.is_empty() {
        sleep(&mut shm, &mut ear);
    }
}

/// While a process is being killed, its first thread may have ended and its memory may seem gone, but another thread may still be
/// in a system call that writes to our memory.
#[test]
fn a_get_fails_when_all_threads_of_its_peer_have_ended() {
    let board = Board::create(2).unwrap();
    let config = ShmConfig {
        wake: WakeMethod::Fd,
        ..ShmConfig::new(0)
    };
    let mut a = Shm::open(&board, config).unwrap();
    let mut other = other_process(HEADLESS, &board);
    let mut ear = Ear::default();
    while ear.0.is_empty() {
        sleep(&mut a, &mut ear);
    }
    let Some(Heard::Message(1, _, key)) = ear.0.pop() else {
        panic!("{:?}", ear.0);
    };
    // Map its memory before its first thread ends, because that is impossible afterwards.
    while let PostResult::Full(_) = a.post(message(1, b"", b"")) {
        assert_eq!(hear(&mut a), []);
    }
    let stat = format!("/proc/{}/stat", other.id());
    let is_headless = || std::fs::read_to_string(&stat).unwrap().contains(") Z ");
    while !is_headless() {
        assert!(other.try_wait().unwrap().is_none(), "it should live");
        std::thread::yield_now();
    }
    let mut local = [0; 8];
    let command = DriverCommand::Get {
        to: WorldRank(1),
        from: bytemuck::pod_read_unaligned(&key),
        into: range(&mut local),
        token: CommandToken(1),
    };
    posted(&mut a, command);
    assert_eq!(hear(&mut a), [], "a thread of it lives");
    assert_eq!(a.arm(), ArmResult::Ready, "and its end will wake us");
    other.kill().unwrap();
    while ear.0.len() < 2 {
        sleep(&mut a, &mut ear);
    }
    other.wait().unwrap();
    let ends = [
        Heard::Failed(1, "peer down"),
        Heard::Down(1, DownCause::Failed),
    ];
    assert_eq!(ear.0, ends);
}

#[test]
fn a_process_whose_first_thread_ends() {
    let Ok(address) = std::env::var(BOARD) else {
        return;
    };
    let board = Board::attach(&address).unwrap();
    let mut shm = Shm::open(&board, ShmConfig::new(1)).unwrap();
    let word = Box::leak(Box::new([7; 8]));
    let key = shm.expose(range(word)).unwrap();
    while let PostResult::Full(_) = shm.post(message(0, b"", bytemuck::bytes_of(&key))) {
        let _nothing = shm.progress(64, &mut Ear::default());
    }
    let mut ear = Ear::default();
    while ear.0.is_empty() {
        let _moved = shm.progress(64, &mut ear);
        std::thread::yield_now();
    }
    extern "C" fn end_thread(_: libc::c_int) {
        // SAFETY: ends the thread; the data on its stack stays where it is.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    let handler = end_thread as extern "C" fn(libc::c_int);
    // SAFETY: the handler makes one system call.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    let first = std::process::id(); // also the number of its first thread, which waits for this test
    // SAFETY: the call takes numbers only.
    unsafe { libc::syscall(libc::SYS_tgkill, first, first, libc::SIGUSR1) };
    loop {
        std::thread::park();
    }
}
