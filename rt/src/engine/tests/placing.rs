//! Receives that lend their buffers to a scripted driver.
#![expect(unsafe_code, reason = "writes to memory as an adapter does")]

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ripstop_fabric::{
    driver::{
        ArmResult, Caps, CommandToken, DownCause, Driver, DriverAbilities, DriverCommand,
        LocalRange, PayloadView, PostResult, Sink, TagBuffer, TagMatching, TurnProgress,
        WakeSource,
    },
    lacks_abilities,
    loopback::{self, LoopbackDriver},
    memory::{MemoryRegion, RemoteRegion},
    passes_abilities,
    random::SeededRandom,
    tags::MatchTag,
};

use super::world::{CTX, DETECT, op_info};
use crate::{
    clock::ClockTime,
    engine::{Engine, EngineSetup},
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    ops::{OpInfo, OpOutcome, OpTicket},
    proto::{path::PathTables, wire::EagerHeader},
    settings::Settings,
};

/// State of the driver, and its next reports.
#[derive(Debug, Default)]
struct Script {
    lent: BTreeMap<CommandToken, TagBuffer>,
    /// Buffers into which a message is being written.
    taken: BTreeMap<CommandToken, TagBuffer>,
    /// Buffers that the engine has asked for and not got back.
    asked: Vec<CommandToken>,
    next: VecDeque<Says>,
    /// True if the driver returns a buffer immediately when asked.
    yields: bool,
    /// True if the driver accepts no buffers.
    full: bool,
    /// True once the driver was dropped.
    closed: bool,
}

#[derive(Debug)]
enum Says {
    Message(Vec<u8>, Vec<u8>),
    /// A message placed in the buffer with this token.
    Placed(CommandToken, Vec<u8>, Vec<u8>),
    Returned(CommandToken),
    Down,
}

#[derive(Debug)]
struct Scripted {
    inner: LoopbackDriver,
    caps: Caps,
    script: Arc<Mutex<Script>>,
}

fn lock(script: &Mutex<Script>) -> MutexGuard<'_, Script> {
    script.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver for Scripted {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, _: DriverCommand<'a>) -> PostResult<'a> {
        PostResult::Posted
    }

    fn progress(&mut self, _: u32, sink: &mut dyn Sink) -> TurnProgress {
        let all = std::mem::take(&mut lock(&self.script).next);
        let events = u32::try_from(all.len()).expect("a few");
        let from = WorldRank(1);
        for says in all {
            match says {
                Says::Message(header, body) => {
                    sink.message(from, &header, PayloadView::from_slice(&body));
                }
                Says::Placed(token, header, body) => {
                    let mut script = lock(&self.script);
                    let taken = script.taken.remove(&token);
                    let offer = taken.or_else(|| script.lent.remove(&token));
                    drop(script);
                    let into = offer.expect("it was lent").into;
                    write(into, &body);
                    sink.placed(token, from, &header, lent_payload(into, body.len()));
                }
                Says::Returned(token) => {
                    lock(&self.script).lent.remove(&token);
                    sink.returned(token);
                }
                Says::Down => sink.peer_down(from, DownCause::Failed),
            }
        }
        TurnProgress { events }
    }

    fn arm(&mut self) -> ArmResult {
        ArmResult::Ready
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        Vec::new()
    }

    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.inner.allocate(len)
    }

    fn expose(&mut self, _: LocalRange) -> Option<RemoteRegion> {
        None
    }

    fn expect(&mut self, _: &mut dyn FnMut() -> Vec<WorldRank>) {}

    fn give_up(&mut self, _: WorldRank, how: Option<DownCause>) -> DownCause {
        how.unwrap_or(DownCause::Failed)
    }
}

impl DriverAbilities for Scripted {
    fn tag_matching(&mut self) -> Option<&mut dyn TagMatching> {
        Some(self)
    }

    passes_abilities! { inner: event_counters }
    lacks_abilities! {
        task_lists, named_slots, mapped_memory, node_memory, peer_paths, connect_ahead, failure_watch, guarded_memory,
    }
}

impl TagMatching for Scripted {
    fn shortest_body(&mut self) -> usize {
        8
    }

    fn post_tagged<'a>(&mut self, _: MatchTag, message: DriverCommand<'a>) -> PostResult<'a> {
        self.post(message)
    }

    fn offer(&mut self, _: WorldRank, offer: TagBuffer) -> bool {
        let mut script = lock(&self.script);
        let takes = !script.full;
        if takes {
            script.lent.insert(offer.token, offer);
        }
        takes
    }

    fn take_back(&mut self, token: CommandToken) -> bool {
        let mut script = lock(&self.script);
        let is_back = script.yields && script.lent.remove(&token).is_some();
        if !is_back {
            script.asked.push(token);
        }
        is_back
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        // Write to all buffers, as an adapter may do until the last moment.
        let mut script = lock(&self.script);
        for offer in script.lent.values().chain(script.taken.values()) {
            write(offer.into, &vec![0xdd; offer.into.len()]);
        }
        script.closed = true;
    }
}

/// Writes to a buffer, as an adapter does.
fn write(into: LocalRange, from: &[u8]) {
    assert!(
        from.len() <= into.len(),
        "the adapter lets nothing longer in"
    );
    // SAFETY: the buffer is lent, so the engine keeps it alive and does not access it.
    unsafe {
        into.start()
            .as_ptr()
            .copy_from_nonoverlapping(from.as_ptr(), from.len())
    };
}

fn lent_payload<'a>(of: LocalRange, len: usize) -> PayloadView<'a> {
    // SAFETY: as above, for as long as the sink is called.
    unsafe { PayloadView::from_raw(of.start(), len) }
}

/// One rank over a scripted driver.
struct Rank {
    engine: Engine,
    script: Arc<Mutex<Script>>,
}

type Recv = OpTicket<Vec<u8>>;

impl Rank {
    fn new() -> Self {
        let inner = loopback::world(2).remove(0);
        let caps = inner.caps().clone();
        let setup = EngineSetup {
            rank: WorldRank(0),
            size: 2,
            paths: PathTables::new(&caps, &Settings::new()),
            store: Settings::new().store(),
            may_split_long: false,
            seed: 0,
            detect: DETECT,
        };
        let script = Arc::<Mutex<Script>>::default();
        let driver = Scripted {
            inner,
            caps,
            script: Arc::clone(&script),
        };
        let mut engine = Engine::new(Box::new(driver), setup);
        engine.core.join_group(CTX, &RankGroup::First(2));
        Self { engine, script }
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        lock(&self.script)
    }

    fn says(&mut self, says: impl IntoIterator<Item = Says>) {
        self.script().next.extend(says);
        self.turn();
    }

    fn turn(&mut self) {
        self.engine.turn(ClockTime::default());
    }

    fn recv(&mut self, info: &OpInfo, len: usize) -> Recv {
        let ticket = self
            .engine
            .core
            .p2p
            .common
            .ops
            .hold_recv(*info, vec![0; len]);
        self.engine.post(ticket.op);
        ticket
    }

    /// Posts a receive with this tag from rank 1, and checks that its buffer is lent.
    fn lend(&mut self, tag: u32, len: usize) -> Recv {
        let before = self.script().lent.len();
        let recv = self.recv(&exact(tag), len);
        assert_eq!(self.script().lent.len(), before + 1, "it is lent");
        recv
    }

    fn is_done(&mut self, recv: &Recv) -> bool {
        self.engine.core.p2p.common.is_done(recv.op)
    }

    fn end(&mut self, recv: &Recv) -> (OpOutcome, Vec<u8>) {
        let taken = self.engine.core.p2p.common.take_recv(recv);
        taken.expect("it is done")
    }

    /// Returns the bytes that a receive got.
    fn got(&mut self, recv: &Recv) -> Vec<u8> {
        let (outcome, bytes) = self.end(recv);
        let landed = outcome.expect("a message");
        bytes[..landed.bytes].to_vec()
    }

    fn failure(&mut self, recv: &Recv) -> ErrorKind {
        let (outcome, _) = self.end(recv);
        outcome.expect_err("an error").kind
    }
}

fn exact(tag: u32) -> OpInfo {
    op_info(Some(1), Some(tag))
}

fn token(recv: &Recv) -> CommandToken {
    CommandToken(recv.op.pack())
}

fn header(info: &OpInfo) -> Vec<u8> {
    bytemuck::bytes_of(&info.eager()).to_vec()
}

fn message(tag: u32, body: &[u8]) -> Says {
    Says::Message(header(&exact(tag)), body.to_vec())
}

fn placed(recv: &Recv, tag: u32, body: &[u8]) -> Says {
    Says::Placed(token(recv), header(&exact(tag)), body.to_vec())
}

#[test]
fn a_message_that_was_placed_is_received_where_it_is() {
    let mut rank = Rank::new();
    let recv = rank.lend(1, 20);
    let offer = rank.script().lent[&token(&recv)];
    assert_eq!(
        (offer.header_len, offer.into.len()),
        (size_of::<EagerHeader>(), 20)
    );
    rank.says([placed(&recv, 1, b"placed bytes")]);
    assert_eq!(rank.got(&recv), b"placed bytes");
    assert!(rank.script().asked.is_empty());
}

#[test]
fn only_exact_receives_of_some_length_lend_their_buffers() {
    let mut rank = Rank::new();
    let longest = rank
        .engine
        .core
        .p2p
        .common
        .paths
        .to(WorldRank(1))
        .eager_max();
    for (info, len) in [
        (exact(1), 7),
        (exact(1), longest + 1),
        (op_info(None, Some(1)), 20),
    ] {
        rank.recv(&info, len);
        assert!(rank.script().lent.is_empty(), "{len} bytes");
    }
    // The wildcard receive is still waiting.
    rank.recv(&exact(1), 20);
    assert!(rank.script().lent.is_empty());
    let mut rank = Rank::new();
    rank.script().full = true;
    let recv = rank.recv(&exact(1), 20);
    rank.says([message(1, b"as ever")]);
    assert_eq!(rank.got(&recv), b"as ever");
}

#[test]
fn a_message_that_came_otherwise_waits_until_the_buffer_is_back() {
    for yields in [true, false] {
        let mut rank = Rank::new();
        rank.script().yields = yields;
        let recv = rank.lend(1, 20);
        rank.says([message(1, b"in a slab")]);
        if !yields {
            assert!(!rank.is_done(&recv), "the driver may still write");
            assert_eq!(rank.script().asked, [token(&recv)]);
            rank.says([Says::Returned(token(&recv))]);
        }
        assert_eq!(rank.got(&recv), b"in a slab");
    }
}

#[test]
fn two_messages_that_came_in_each_others_way_are_swapped() {
    let mut rank = Rank::new();
    let [first, second] = [1, 1].map(|tag| rank.lend(tag, 20));
    rank.says([message(1, b"the first")]);
    assert!(!rank.is_done(&first), "the second is on its way into it");
    rank.says([placed(&first, 1, b"the second")]);
    assert_eq!(rank.got(&first), b"the first");
    assert!(!rank.is_done(&second), "its own buffer is lent as well");
    rank.says([placed(&second, 1, b"the third")]);
    assert_eq!(rank.got(&second), b"the second");
    let third = rank.recv(&exact(1), 20);
    assert_eq!(rank.got(&third), b"the third");
}

#[test]
fn a_message_that_was_placed_for_another_is_copied_there() {
    let mut rank = Rank::new();
    let [lent, other] = [1, 2].map(|tag| rank.lend(tag, 20));
    rank.script().yields = true;
    rank.says([placed(&lent, 2, b"for the other")]);
    assert_eq!(rank.got(&other), b"for the other");
    assert!(!rank.is_done(&lent));
    rank.says([message(1, b"its own")]);
    assert_eq!(rank.got(&lent), b"its own", "it is not lent any more");
}

#[test]
fn a_receive_that_is_given_up_keeps_its_buffer_until_the_driver_gives_it_back() {
    for says in 0..2 {
        let mut rank = Rank::new();
        let recv = rank.lend(1, 20);
        assert!(rank.engine.core.p2p.unpost(recv.op, ErrorKind::Cancelled));
        rank.engine.flush();
        assert!(!rank.is_done(&recv));
        if says == 0 {
            rank.says([Says::Returned(token(&recv))]);
        } else {
            rank.says([placed(&recv, 1, b"nobody's")]);
        }
        assert!(matches!(rank.failure(&recv), ErrorKind::Cancelled));
        let next = rank.recv(&exact(1), 20);
        assert_eq!(rank.is_done(&next), says == 1, "the message is not lost");
    }
}

#[test]
fn a_buffer_that_was_dropped_goes_when_it_is_back_and_its_messages_to_others() {
    for matched in [false, true] {
        let mut rank = Rank::new();
        let recv = rank.lend(1, 20);
        if matched {
            rank.says([message(1, b"kept for it")]);
        }
        rank.engine.core.p2p.drop_recv(recv.op);
        rank.engine.flush();
        rank.says([]);
        assert!(
            rank.engine.core.p2p.common.garbage.is_empty(),
            "it may be written to"
        );
        rank.says([placed(&recv, 1, b"came late")]);
        assert_eq!(rank.engine.core.p2p.common.garbage.len(), 1, "it is let go");
        assert!(rank.engine.core.p2p.common.ops.get(recv.op).is_none());
        let expected: &[&[u8]] = if matched {
            &[b"kept for it", b"came late"]
        } else {
            &[b"came late"]
        };
        for body in expected {
            let next = rank.recv(&exact(1), 20);
            assert_eq!(rank.got(&next), *body);
        }
    }
}

#[test]
fn a_message_of_another_type_or_too_long_fails_its_receive_and_goes_on() {
    let mut rank = Rank::new();
    let strange = OpInfo { sig: 8, ..exact(1) };
    let recv = rank.lend(1, 20);
    rank.says([Says::Placed(
        token(&recv),
        header(&strange),
        b"strange bytes".to_vec(),
    )]);
    assert!(matches!(
        rank.failure(&recv),
        ErrorKind::TypeMismatch { .. }
    ));
    let next = rank.recv(&strange, 20);
    assert_eq!(rank.got(&next), b"strange bytes");

    let [short, long] = [12, 30].map(|len| rank.lend(1, len));
    rank.says([message(1, b"too long for the first one")]);
    assert!(!rank.is_done(&short));
    rank.says([placed(&short, 1, b"the next"), Says::Returned(token(&long))]);
    assert!(matches!(
        rank.failure(&short),
        ErrorKind::Truncated { sent: 26, room: 12 }
    ));
    assert_eq!(rank.got(&long), b"too long for the first one");
}

#[test]
fn the_end_of_a_peer_ends_its_receives_when_their_buffers_are_back() {
    let mut rank = Rank::new();
    let both = [1, 2].map(|tag| rank.lend(tag, 20));
    rank.says([Says::Down]);
    assert!(both.iter().all(|recv| !rank.is_done(recv)));
    rank.says(both.each_ref().map(|recv| Says::Returned(token(recv))));
    for recv in &both {
        let why = rank.failure(recv);
        assert!(
            matches!(why, ErrorKind::PeerFailed { rank: 1, .. }),
            "{why:?}"
        );
    }
}

#[test]
fn close_waits_for_buffers_that_are_lent() {
    let mut rank = Rank::new();
    let recv = rank.lend(1, 20);
    rank.engine.begin_close();
    assert!(!rank.engine.is_closed());
    rank.says([Says::Returned(token(&recv))]);
    assert!(matches!(rank.failure(&recv), ErrorKind::Closed));
    assert!(rank.engine.is_closed());
}

#[test]
fn an_abrupt_end_gives_buffers_back_after_the_driver() {
    let mut rank = Rank::new();
    let [waits, over] = [1, 2].map(|tag| rank.lend(tag, 20));
    rank.engine.core.p2p.unpost(over.op, ErrorKind::Cancelled);
    rank.engine.release_driver();
    assert!(rank.script().closed);
    for recv in [waits, over] {
        let (outcome, buf) = rank.end(&recv);
        assert!(matches!(
            outcome.expect_err("closed").kind,
            ErrorKind::Closed
        ));
        assert_eq!(buf, [0xdd; 20], "the driver wrote before it was gone");
    }
}

/// A rank whose adapter places all messages that it can, next to one whose adapter places none.
struct Both {
    lending: Rank,
    plain: Rank,
    receives: Vec<[Option<Recv>; 2]>,
    placed: u32,
}

impl Both {
    fn new() -> Self {
        let [lending, plain] = [(); 2].map(|()| Rank::new());
        plain.script().full = true;
        Self {
            lending,
            plain,
            receives: Vec::new(),
            placed: 0,
        }
    }

    fn each(&mut self) -> [&mut Rank; 2] {
        [&mut self.lending, &mut self.plain]
    }

    fn recv(&mut self, info: &OpInfo, len: usize) {
        let both = self.each().map(|rank| Some(rank.recv(info, len)));
        self.receives.push(both);
    }

    /// Delivers a message to both ranks. The adapter decides immediately where to place it, and the rank learns of that later.
    fn comes(&mut self, info: &OpInfo, body: &[u8]) {
        let (head, tag) = (header(info), info.tag.unwrap_or(0));
        let mut script = self.lending.script();
        let fits = |(_, offer): &(&CommandToken, &TagBuffer)| {
            offer.tag.tag == tag && offer.into.len() >= body.len()
        };
        let found = script.lent.iter().find(fits).map(|(token, _)| *token);
        let says = match found {
            Some(token) => {
                let offer = script.lent.remove(&token).expect("just found");
                script.taken.insert(token, offer);
                self.placed += 1;
                Says::Placed(token, head.clone(), body.to_vec())
            }
            None => Says::Message(head.clone(), body.to_vec()),
        };
        script.next.push_back(says);
        drop(script);
        let says = Says::Message(head, body.to_vec());
        self.plain.script().next.push_back(says);
    }

    /// Returns the buffers that the engine has asked for, except those into which a message is being written.
    fn give_back(&self) {
        let mut script = self.lending.script();
        let asked = std::mem::take(&mut script.asked);
        let waits = |token: &CommandToken| script.lent.contains_key(token);
        let back: Vec<_> = asked.into_iter().filter(waits).collect();
        for token in back {
            script.lent.remove(&token);
            script.next.push_back(Says::Returned(token));
        }
    }

    fn turn(&mut self) {
        self.each().into_iter().for_each(Rank::turn);
    }

    fn cancel(&mut self, at: usize) {
        let [lending, plain] = &self.receives[at];
        let ops = [lending, plain].map(|recv| recv.as_ref().map(|recv| recv.op));
        for (rank, op) in self.each().into_iter().zip(ops) {
            if let Some(op) = op {
                rank.engine.core.p2p.unpost(op, ErrorKind::Cancelled);
                rank.engine.flush();
            }
        }
    }

    fn drop_recv(&mut self, at: usize) {
        let both = std::mem::take(&mut self.receives[at]);
        for (rank, recv) in self.each().into_iter().zip(both) {
            if let Some(recv) = recv {
                rank.engine.core.p2p.drop_recv(recv.op);
                rank.engine.flush();
            }
        }
    }

    /// Returns how a receive ended on both ranks, in words.
    fn ends(&mut self, at: usize) -> [Option<String>; 2] {
        let both = std::mem::take(&mut self.receives[at]);
        let mut ends = [None, None];
        for ((rank, recv), end) in self.each().into_iter().zip(both).zip(&mut ends) {
            let Some(recv) = recv.filter(|recv| rank.is_done(recv)) else {
                continue;
            };
            let (outcome, bytes) = rank.end(&recv);
            *end = Some(match outcome {
                Ok(landed) => format!("{} {:?}", landed.tag, &bytes[..landed.bytes]),
                Err(failure) => format!("{:?}", failure.kind),
            });
        }
        ends
    }
}

/// Whichever way messages take, receives end as if no buffer had been lent.
#[test]
fn what_the_adapter_places_changes_nothing_but_copies() {
    let mut placed = 0;
    for seed in 0..400 {
        let mut random = SeededRandom::new(seed);
        let mut both = Both::new();
        both.lending.script().yields = random.chance(0.5);
        for number in 0..120_u8 {
            let mut below = |end: usize| {
                let number = random.within(0..end as u64);
                usize::try_from(number).expect("it is small")
            };
            let tag = u32::try_from(below(3)).expect("it is small");
            let (len, some) = (8 + below(8), below(both.receives.len()));
            match random.within(0..16) {
                0..5 => both.recv(&exact(tag), len),
                5 => both.recv(&op_info(None, Some(tag)), len),
                6 => both.recv(&op_info(Some(1), None), len),
                7..12 => {
                    let sig = if random.chance(0.1) { 8 } else { 7 };
                    both.comes(&OpInfo { sig, ..exact(tag) }, &vec![number; len]);
                }
                // Make a turn first: the two ranks only agree on what a receive has matched when both have handled all messages.
                12 if !both.receives.is_empty() => {
                    both.turn();
                    both.cancel(some);
                }
                13 if !both.receives.is_empty() => {
                    both.turn();
                    both.drop_recv(some);
                }
                14 => both.give_back(),
                _ => both.turn(),
            }
        }
        for _ in 0..both.receives.len() {
            both.turn();
            both.give_back();
        }
        both.turn();
        let end = both.receives.len();
        (0..200).for_each(|_| both.recv(&op_info(None, None), 16));
        both.turn();
        for at in 0..both.receives.len() {
            let [lending, plain] = both.ends(at);
            assert_eq!(lending, plain, "seed {seed}, receive {at} of {end}");
        }
        placed += both.placed;
    }
    assert!(placed > 400, "{placed} placed in all stories");
}
