//! Hellos that are not confirmed: a peer may be slow, and a stranger may have recorded them.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use rustix::net::sockopt::set_socket_linger;

use super::HELLO_LIMIT;
use crate::{
    driver::{
        CommandFailure, CommandToken, DownCause, Driver, DriverCommand, PayloadView, PostResult,
        PreparedEndpoint, Sink, WorldRank,
    },
    tcp::{
        Tcp, TcpConfig,
        frame::{FrameHead, FrameKind},
        handshake::DialHandshake,
        peer::AGREED_MAX,
    },
};

/// What a rank heard.
#[derive(Default)]
struct HeardWords {
    messages: usize,
    down: Vec<DownCause>,
}

impl Sink for HeardWords {
    fn message(&mut self, _from: WorldRank, _header: &[u8], _body: PayloadView<'_>) {
        self.messages += 1;
    }

    fn complete(&mut self, _token: CommandToken) {}

    fn fetched(&mut self, _token: CommandToken, _old: u64) {}

    fn failed(&mut self, _token: CommandToken, _why: CommandFailure) {}

    fn reached(&mut self, _token: CommandToken) {}

    fn triggered(&mut self, _token: CommandToken) {}

    fn peer_down(&mut self, _peer: WorldRank, why: DownCause) {
        self.down.push(why);
    }
}

/// Two ranks that have not met, and where rank 0 listens.
struct UnmetPair {
    ranks: [Tcp; 2],
    heard: [HeardWords; 2],
    door: SocketAddr,
}

impl UnmetPair {
    fn new() -> Self {
        let prepared = [0, 1].map(|rank| {
            let config = TcpConfig {
                linger: Duration::from_millis(1),
                ..TcpConfig::new(rank, Ipv4Addr::LOCALHOST.into())
            };
            Tcp::prepare(config).unwrap()
        });
        let door = prepared[0].endpoints()[0];
        let addresses = prepared.each_ref().map(PreparedEndpoint::address);
        Self {
            ranks: prepared.map(|one| one.connect(&addresses).unwrap()),
            heard: Default::default(),
            door,
        }
    }

    fn turn(&mut self, rank: usize) {
        let _ = self.ranks[rank].progress(16, &mut self.heard[rank]);
    }

    /// Has some ranks make turns until something is so.
    fn until(&mut self, ranks: &[usize], what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.ranks[0].core().timer.now() + HANG;
        while !done(self) {
            ranks.iter().for_each(|rank| self.turn(*rank));
            thread::yield_now();
            assert!(self.ranks[0].core().timer.now() < end, "waited for {what}");
        }
    }

    fn send(&mut self, from: usize) {
        let message = DriverCommand::Message {
            to: WorldRank(u32::try_from(1 - from).unwrap()),
            header: b"hello",
            body: b"",
        };
        assert!(matches!(self.ranks[from].post(message), PostResult::Posted));
    }

    /// Opens a connection to rank 0, and says what rank 1 would say.
    fn knock(&mut self, nonce: u16) -> (TcpStream, DialHandshake) {
        let mut long = [0; 16];
        long[..2].copy_from_slice(&nonce.to_le_bytes());
        let from = self.ranks[1].core().own;
        let core = self.ranks[0].core();
        let (handshake, hello) = DialHandshake::new(from, core.own, &core.token, long);
        let mut stream = TcpStream::connect(self.door).unwrap();
        stream.write_all(&hello).unwrap();
        stream.set_nonblocking(true).unwrap();
        (stream, handshake)
    }

    /// Opens the connection of rank 1, without that rank.
    fn enter(&mut self) -> TcpStream {
        let (mut stream, mut handshake) = self.knock(1);
        let answer = self.answer(&stream);
        let step = handshake.receive(&answer);
        stream.write_all(&step.send).unwrap();
        self.until(&[0], "the confirmation", |pair| {
            pair.ranks[0].core().peers[1].connection.is_some()
        });
        stream
    }

    /// Returns what rank 0 answers, which is nothing if it closes the connection.
    fn answer(&mut self, mut stream: &TcpStream) -> Vec<u8> {
        let mut answer = Vec::new();
        self.until(&[0], "an answer", |_| {
            let mut bytes = [0; 64];
            match stream.read(&mut bytes) {
                Ok(count) => answer.extend(&bytes[..count]),
                Err(why) if why.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => {}
            }
            true
        });
        answer
    }
}

#[test]
fn a_repeated_hello_gets_no_answer_and_is_in_no_peers_way() {
    let mut pair = UnmetPair::new();
    let (first, _) = pair.knock(1);
    assert_eq!(pair.answer(&first).len(), 64);
    let (repeated, _) = pair.knock(1);
    assert!(pair.answer(&repeated).is_empty());
    pair.send(1);
    pair.until(&[0, 1], "the message", |pair| pair.heard[0].messages == 1);
}

#[test]
fn a_stranger_that_sends_byte_after_byte_gets_no_more_time_than_a_silent_one() {
    let mut pair = UnmetPair::new();
    let mut stranger = TcpStream::connect(pair.door).unwrap();
    pair.until(&[0], "the connection", |pair| {
        !pair.ranks[0].core().arrivals.is_empty()
    });
    let began = pair.ranks[0].core().timer.now();
    let from = pair.ranks[1].core().own;
    let core = pair.ranks[0].core();
    let (_, hello) = DialHandshake::new(from, core.own, &core.token, [1; 16]);
    for byte in &hello[..hello.len() - 1] {
        stranger.write_all(&[*byte]).unwrap();
        pair.turn(0);
        assert_eq!(pair.ranks[0].core().arrivals.len(), 1);
    }
    let core = pair.ranks[0].core();
    let end = core.drop_silent_arrivals(began).unwrap();
    assert!(end <= began + HELLO_LIMIT, "the bytes have moved the end");
    let _ = core.drop_silent_arrivals(end - 1);
    assert_eq!(core.arrivals.len(), 1);
    assert_eq!(core.drop_silent_arrivals(end), None);
    assert!(core.arrivals.is_empty());
}

#[test]
fn strangers_that_connect_and_reset_at_once_leave_nothing() {
    let mut pair = UnmetPair::new();
    for _ in 0..1000 {
        let stranger = TcpStream::connect(pair.door).unwrap();
        set_socket_linger(&stranger, Some(Duration::ZERO)).unwrap();
        drop(stranger);
        pair.turn(0);
    }
    pair.send(1);
    pair.until(&[0, 1], "the message", |pair| pair.heard[0].messages == 1);
    pair.until(&[0], "the last stranger's end", |pair| {
        pair.ranks[0].core().arrivals.is_empty()
    });
    assert!(pair.heard[0].down.is_empty());
}

#[test]
fn unconfirmed_hellos_take_no_room_from_others_and_stop_no_rank() {
    let mut pair = UnmetPair::new();
    let mut knocked = Vec::new();
    for nonce in 0..300 {
        let (stream, _) = pair.knock(nonce);
        assert_eq!(pair.answer(&stream).len(), 64, "hello {nonce}");
        knocked.push(stream);
    }
    let core = pair.ranks[0].core();
    assert!(core.arrivals.is_empty());
    assert_eq!(core.peers[1].agreed.names.len(), AGREED_MAX);
    // None of them confirms, so this rank connects when their time is over.
    pair.send(0);
    (0..20).for_each(|_| pair.turn(0));
    let core = pair.ranks[0].core();
    assert!(core.peers[1].reach.is_none(), "a peer may confirm late");
    let now = core.timer.now();
    core.peers[1].agreed.dial_at = Some(now);
    core.wake_at(now);
    pair.until(&[0, 1], "the message", |pair| pair.heard[1].messages == 1);
}

#[test]
fn a_rank_that_ends_before_its_peer_confirms_says_goodbye() {
    let mut pair = UnmetPair::new();
    pair.ranks[1].core().reach(0);
    pair.until(&[1], "the hello", |pair| {
        let peer = &pair.ranks[1].core().peers[0];
        peer.reach.as_ref().is_some_and(|reach| reach.has_asked())
    });
    pair.until(&[0], "the agreement", |pair| {
        !pair.ranks[0].core().peers[1].agreed.names.is_empty()
    });
    let UnmetPair {
        ranks: [ended, mut other],
        ..
    } = pair;
    drop(ended);
    let mut heard = HeardWords::default();
    let end = other.core().timer.now() + HANG;
    while heard.down.is_empty() {
        let _ = other.progress(16, &mut heard);
        assert!(other.core().timer.now() < end, "waited for the end");
    }
    assert_eq!(heard.down, [DownCause::Finished]);
}

#[test]
fn a_rank_ends_while_a_peer_sends_without_end() {
    let mut pair = UnmetPair::new();
    let mut stream = pair.enter();
    stream.set_nonblocking(false).unwrap();
    let head = FrameHead {
        kind: FrameKind::Message,
        head_len: 0,
        body_len: 0,
    };
    let flood = head.encode().repeat(64 << 10);
    let flood = thread::spawn(move || while stream.write_all(&flood).is_ok() {});
    pair.until(&[0], "the flood", |pair| pair.heard[0].messages > 0);
    drop(pair);
    flood.join().unwrap();
}

#[test]
fn a_rank_that_ends_takes_little_of_a_peer_before_it_looks_at_others() {
    let mut pair = UnmetPair::new();
    let mut stream = pair.enter();
    while stream.write(&[0; 64 << 10]).is_ok() {}
    let core = pair.ranks[0].core();
    while core.sockets.next_ready().is_some() {}
    core.drain(1);
    assert!(core.sockets.has_ready(), "the rest must wait its turn");
}

/// Time after which a test hangs, in picoseconds.
const HANG: u64 = 60_000_000_000_000;
