//! Peers that do not come, do not answer, or do not read.

#![expect(
    clippy::disallowed_methods,
    reason = "waits of these tests are bounded by the machine's clock"
)]

use std::{
    io::{self, Read as _},
    net::{Ipv4Addr, TcpListener},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    PreparedTcp, Tcp, TcpConfig,
    address::{TcpAddress, TcpEndpoint},
    frame::{FrameHead, FrameKind},
    handshake::{HandshakeRefusal, TcpIdentity},
    lost_peer::NETWORK_ADVICE,
    reach::{AttemptEnd, UNDECIDED_MAX},
    receive::REST_KEPT,
    tests::with_record,
};
use crate::{
    driver::{
        ArmResult, CommandFailure, CommandToken, DownCause, Driver, DriverCommand, PayloadView,
        PostResult, PreparedEndpoint, Sink, WorldRank,
    },
    memory::RemoteRegion,
    timer::picoseconds,
};

#[derive(Default)]
struct ToldEvents {
    messages: usize,
    completed: usize,
    down: Vec<DownCause>,
}

impl Sink for ToldEvents {
    fn message(&mut self, _from: WorldRank, _header: &[u8], _body: PayloadView<'_>) {
        self.messages += 1;
    }

    fn complete(&mut self, _token: CommandToken) {
        self.completed += 1;
    }

    fn fetched(&mut self, _token: CommandToken, _old: u64) {}

    fn failed(&mut self, _token: CommandToken, _why: CommandFailure) {}

    fn reached(&mut self, _token: CommandToken) {}

    fn triggered(&mut self, _token: CommandToken) {}

    fn peer_down(&mut self, _peer: WorldRank, why: DownCause) {
        self.down.push(why);
    }
}

fn prepared(rank: u32, patience: Duration, silence: Duration) -> PreparedTcp {
    let config = TcpConfig {
        patience,
        silence,
        linger: Duration::from_millis(1),
        ..TcpConfig::new(rank, Ipv4Addr::LOCALHOST.into())
    };
    Tcp::prepare(config).unwrap()
}

/// Makes rank 0, for which rank 1 is at these ports.
fn rank_with_peer_at(ports: &[u16], patience: Duration) -> Tcp {
    let [own, peer] = [0, 1].map(|rank| prepared(rank, patience, LONG));
    let mut address = TcpAddress::decode(&PreparedEndpoint::address(&peer)).unwrap();
    let known = address.endpoints[0];
    let at = |port: &u16| TcpEndpoint {
        port: *port,
        ..known
    };
    address.endpoints = ports.iter().map(at).collect();
    let addresses = [PreparedEndpoint::address(&own), address.encode()];
    own.connect(&addresses).unwrap()
}

/// Makes two ranks, of which the second has said hello to the first.
fn met(silence: Duration) -> [Tcp; 2] {
    let prepared = [0, 1].map(|rank| prepared(rank, LONG, silence));
    let addresses = prepared.each_ref().map(PreparedEndpoint::address);
    let mut ranks = prepared.map(|one| one.connect(&addresses).unwrap());
    assert!(post(&mut ranks[1], 0, b""));
    let mut told = ToldEvents::default();
    let guard = Instant::now();
    while told.messages == 0 {
        let _ = ranks[0].progress(16, &mut told);
        let _ = ranks[1].progress(16, &mut told);
        assert!(guard.elapsed() < GUARD, "waited for the hello");
    }
    ranks
}

fn post(from: &mut Tcp, to: u32, body: &[u8]) -> bool {
    let message = DriverCommand::Message {
        to: WorldRank(to),
        header: b"",
        body,
    };
    matches!(from.post(message), PostResult::Posted)
}

/// Has rank 0 wait for rank 1 until that is down, asleep whenever there is nothing to do.
fn waits_in_vain(rank: &mut Tcp) -> DownCause {
    rank.expect(&mut || vec![WorldRank(1)]);
    let mut told = ToldEvents::default();
    let guard = Instant::now();
    while told.down.is_empty() {
        assert!(guard.elapsed() < GUARD, "waited for the end");
        if rank.progress(16, &mut told).events == 0 && rank.arm() == ArmResult::Ready {
            let fd = rank.core().wait_on();
            let limit = Timespec {
                tv_sec: 10,
                tv_nsec: 0,
            };
            let woken = poll(&mut [PollFd::new(&*fd, PollFlags::IN)], Some(&limit)).unwrap();
            assert_eq!(woken, 1, "the rank sleeps for ever");
        }
    }
    assert_eq!(told.down.len(), 1);
    told.down[0]
}

#[test]
fn a_peer_that_never_makes_a_turn_is_down_after_the_patience() {
    let [own, peer] = [0, 1].map(|rank| prepared(rank, SHORT, LONG));
    let addresses = [&own, &peer].map(PreparedEndpoint::address);
    let mut own = own.connect(&addresses).unwrap();
    assert_eq!(waits_in_vain(&mut own), DownCause::Failed);
    let evidence = own.core().peers[1].evidence.clone().unwrap();
    assert!(evidence.contains("no answer in time"), "{evidence}");
}

#[test]
fn a_service_that_accepts_and_says_nothing_is_no_peer() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut own = rank_with_peer_at(&[silent.local_addr().unwrap().port()], SHORT);
    own.core().reach(1);
    let (mut socket, _) = silent.accept().unwrap();
    assert_eq!(waits_in_vain(&mut own), DownCause::Failed);
    let mut said = Vec::new();
    socket.read_to_end(&mut said).unwrap();
    assert!(!said.is_empty(), "the rank said hello, and hung up");
}

#[test]
fn a_rank_of_another_job_at_the_address_of_a_peer_is_no_peer_and_not_disturbed() {
    let other_job = [0, 1].map(|rank| prepared(rank, LONG, LONG));
    let port = other_job[1].endpoints()[0].port();
    let addresses = other_job.each_ref().map(PreparedEndpoint::address);
    let mut others = other_job.map(|one| one.connect(&addresses).unwrap());
    let mut own = rank_with_peer_at(&[port], SHORT);
    own.expect(&mut || vec![WorldRank(1)]);
    let (mut told, mut others_told) = (ToldEvents::default(), ToldEvents::default());
    let guard = Instant::now();
    while told.down.is_empty() {
        let _ = own.progress(16, &mut told);
        let _ = others[1].progress(16, &mut others_told);
        assert!(guard.elapsed() < GUARD, "waited for the end");
    }
    assert_eq!(told.down, [DownCause::Failed]);
    let evidence = own.core().peers[1].evidence.clone().unwrap();
    assert!(evidence.contains("closed without an answer"), "{evidence}");
    assert!(others[1].core().arrivals.is_empty());
    assert!(post(&mut others[0], 1, b""));
    while others_told.messages == 0 {
        for rank in &mut others {
            let _ = rank.progress(16, &mut others_told);
        }
        assert!(guard.elapsed() < GUARD, "waited for the other job");
    }
    assert!(others_told.down.is_empty());
}

#[test]
fn an_endpoint_is_tried_again_while_another_is_silent() {
    let listeners = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let ports = listeners
        .each_ref()
        .map(|one| one.local_addr().unwrap().port());
    let mut own = rank_with_peer_at(&ports, LONG);
    // The order of endpoints that are equally good is the address's, or another.
    let first = own.core().peers[1].address.endpoints[0].port;
    let closing = &listeners[usize::from(first == ports[0])];
    closing.set_nonblocking(true).unwrap();
    own.core().reach(1);
    let (guard, mut closed) = (Instant::now(), 0);
    while closed < 3 {
        let _ = own.progress(16, &mut ToldEvents::default());
        closed += usize::from(closing.accept().is_ok());
        assert!(guard.elapsed() < GUARD, "waited for another attempt");
    }
}

#[test]
fn a_lack_of_descriptors_is_no_fault_of_the_peer() {
    let mut own = rank_with_peer_at(&[1], LONG);
    let core = own.core();
    core.reach(1);
    let mut now = core.timer.now();
    for _ in 0..3 {
        now += picoseconds(LONG) * 6 / 10;
        let why = io::Error::from_raw_os_error(libc::EMFILE);
        core.note_failure(1, 0, &AttemptEnd::Error(why), now);
        core.continue_reach(1, now);
        let reach = core.peers[1].reach.as_ref();
        assert!(reach.is_some(), "the peer was given up");
    }
}

#[test]
fn a_lack_that_does_not_end_is_an_error_that_says_what_to_do() {
    for (errno, advice) in [
        (libc::EMFILE, "ulimit -n"),
        (libc::EADDRNOTAVAIL, "net.ipv4.ip_local_port_range"),
    ] {
        let mut own = rank_with_peer_at(&[1], LONG);
        let core = own.core();
        core.reach(1);
        let start = core.timer.now();
        for step in 1..=10 {
            assert_eq!(core.peers[1].ended, None, "step {step}");
            let now = start + picoseconds(LONG) * step / 4;
            let why = io::Error::from_raw_os_error(errno);
            core.note_failure(1, 0, &AttemptEnd::Error(why), now);
            core.continue_reach(1, now);
            if core.peers[1].ended.is_some() {
                assert!(step >= 8, "given up in step {step}");
                break;
            }
        }
        assert_eq!(core.peers[1].ended, Some(DownCause::Failed));
        let evidence = core.peers[1].evidence.clone().unwrap();
        assert!(evidence.contains(advice), "{evidence}");
    }
}

#[test]
fn an_address_that_both_hosts_may_have_is_named_where_no_process_listens() {
    for is_here in [true, false] {
        let mut own = rank_with_peer_at(&[1], LONG);
        let core = own.core();
        core.reach(1);
        if !is_here {
            core.peers[1].address.endpoints[0].ip = [127, 0, 0, 2].into();
        }
        let start = core.timer.now();
        for now in [start, start + picoseconds(LONG)] {
            let why = io::ErrorKind::ConnectionRefused.into();
            core.note_failure(1, 0, &AttemptEnd::Error(why), now);
            core.continue_reach(1, now);
        }
        let evidence = core.peers[1].evidence.clone().unwrap();
        assert!(evidence.contains("no process listens"), "{evidence}");
        assert_eq!(
            evidence.contains("RIPSTOP_TCP_IFACE"),
            is_here,
            "{evidence}"
        );
    }
}

#[test]
fn a_service_of_another_version_is_only_one_endpoint_that_fails() {
    let mut own = rank_with_peer_at(&[1, 2], LONG);
    let core = own.core();
    core.reach(1);
    let now = core.timer.now();
    for endpoint in 0..2 {
        assert_eq!(core.peers[1].ended, None);
        let other = HandshakeRefusal::OtherVersion { own: 1, peer: 2 };
        core.note_failure(1, endpoint, &AttemptEnd::Refused(other), now);
        core.continue_reach(1, now);
    }
    assert_eq!(core.peers[1].ended, Some(DownCause::Failed));
    let evidence = core.peers[1].evidence.clone().unwrap();
    assert!(evidence.contains("speaks version 2"), "{evidence}");
    assert!(!evidence.contains(NETWORK_ADVICE), "{evidence}");
}

#[test]
fn another_incarnation_of_the_peer_ends_all_attempts_at_once() {
    let mut own = rank_with_peer_at(&[1, 2], LONG);
    let core = own.core();
    core.reach(1);
    let running = TcpIdentity {
        rank: 1,
        incarnation: 8,
    };
    let other = HandshakeRefusal::OtherIncarnation {
        running,
        expected: 7,
    };
    let now = core.timer.now();
    core.note_failure(1, 0, &AttemptEnd::Refused(other), now);
    assert_eq!(core.peers[1].ended, Some(DownCause::Failed));
    let evidence = core.peers[1].evidence.clone().unwrap();
    assert!(evidence.contains("incarnation 8"), "{evidence}");
    assert!(!evidence.contains(NETWORK_ADVICE), "{evidence}");
}

#[test]
fn few_attempts_at_a_time_reach_many_peers() {
    let size = 3 * UNDECIDED_MAX;
    let ranks = (0..).take(size + 1);
    let mut all: Vec<_> = ranks.map(|rank| prepared(rank, LONG, LONG)).collect();
    let addresses: Vec<_> = all.iter().map(PreparedEndpoint::address).collect();
    let own = all.remove(0);
    let mut own = own.connect(&addresses).unwrap();
    own.expect(&mut || (1..).take(size).map(WorldRank).collect());
    let begun = own.core().counters.connecting.get();
    assert_eq!(begun, UNDECIDED_MAX as u64);
    let guard = Instant::now();
    let asked = |core: &super::core::TcpCore| {
        let reaches = core.peers.iter().filter_map(|peer| peer.reach.as_ref());
        reaches.filter(|reach| reach.has_asked()).count()
    };
    while asked(own.core()) < size {
        let _ = own.progress(16, &mut ToldEvents::default());
        assert!(guard.elapsed() < GUARD, "waited for attempts");
    }
}

#[test]
fn a_peer_that_asks_and_never_reads_is_cut_off() {
    let mut ranks = met(LONG);
    let region = ranks[0].allocate(1 << 20).unwrap();
    let key = ranks[0].expose(region.range()).unwrap();
    let frame = with_record(FrameKind::Get, &key, 0);
    let core = ranks[1].core();
    core.peers[0].queue.push(&frame.repeat(4000));
    let mut told = ToldEvents::default();
    let guard = Instant::now();
    while told.down.is_empty() {
        ranks[1].core().flush(0);
        let _ = ranks[0].progress(16, &mut told);
        assert!(guard.elapsed() < GUARD, "waited for the end");
    }
    let evidence = ranks[0].core().peers[1].evidence.clone().unwrap();
    assert!(evidence.contains("more commands than"), "{evidence}");
}

#[test]
fn a_peer_may_have_many_commands_in_flight() {
    let mut ranks = met(LONG);
    let len = 64 << 10;
    let region = ranks[0].allocate(len).unwrap();
    let key: RemoteRegion = ranks[0].expose(region.range()).unwrap();
    let into = ranks[1].allocate(len).unwrap();
    let (mut told, mut posted) = (ToldEvents::default(), 0);
    let mut get = |rank: &mut Tcp| {
        let get = DriverCommand::Get {
            to: WorldRank(0),
            from: key,
            into: into.range(),
            token: CommandToken(0),
        };
        let taken = matches!(rank.post(get), PostResult::Posted);
        posted += usize::from(taken);
        taken
    };
    let guard = Instant::now();
    for _ in 0..3 {
        while get(&mut ranks[1]) {}
        // Rank 0 answers as much as there is room for.
        for _ in 0..3000 {
            let _ = ranks[0].progress(1, &mut told);
        }
        for _ in 0..50 {
            let _ = ranks[1].progress(16, &mut told);
        }
    }
    while told.completed < posted {
        for rank in &mut ranks {
            let _ = rank.progress(64, &mut told);
        }
        assert!(told.down.is_empty());
        assert!(guard.elapsed() < GUARD, "waited for answers");
    }
    assert!(posted > 1024);
}

#[test]
fn a_connection_does_not_keep_the_room_for_a_long_frame() {
    let mut ranks = met(LONG);
    let head = FrameHead {
        kind: FrameKind::Message,
        head_len: 0,
        body_len: 100 << 10,
    };
    let frame = [&head.encode()[..], &vec![7; 100 << 10]].concat();
    let mut told = ToldEvents::default();
    let guard = Instant::now();
    let (first, second) = frame.split_at(frame.len() / 2);
    let rest = |rank: &mut Tcp| {
        let connection = rank.core().peers[1].connection.as_ref().unwrap();
        (connection.rest.len(), connection.rest.capacity())
    };
    let mut say = |ranks: &mut [Tcp; 2], bytes: &[u8], done: &dyn Fn(&mut Tcp, usize) -> bool| {
        ranks[1].core().peers[0].queue.push(bytes);
        while !done(&mut ranks[0], told.messages) {
            ranks[1].core().flush(0);
            let _ = ranks[0].progress(16, &mut told);
            let _ = ranks[1].progress(16, &mut ToldEvents::default());
            assert!(guard.elapsed() < GUARD, "waited for bytes");
        }
    };
    say(&mut ranks, first, &|rank, _| rest(rank).0 == first.len());
    say(&mut ranks, second, &|_, messages| messages == 1);
    assert!(rest(&mut ranks[0]).1 <= REST_KEPT);
}

#[test]
fn a_peer_that_does_not_read_for_longer_than_the_limit_is_alive() {
    let silence = Duration::from_millis(50);
    let mut ranks = met(silence);
    let (mut told, mut posted) = (ToldEvents::default(), 0);
    let (guard, body) = (Instant::now(), vec![1; 64 << 10]);
    while guard.elapsed() < 120 * silence {
        posted += usize::from(post(&mut ranks[0], 1, &body));
        let _ = ranks[0].progress(16, &mut told);
        assert!(told.down.is_empty(), "after {:?}", guard.elapsed());
    }
    while told.messages < posted {
        for rank in &mut ranks {
            let _ = rank.progress(16, &mut told);
        }
        assert!(told.down.is_empty());
        assert!(guard.elapsed() < GUARD, "waited for messages");
    }
}

const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(100);

/// Time after which a test hangs.
const GUARD: Duration = Duration::from_secs(60);
