//! What the kernel does with sockets: it takes little at a time, ends connections anywhere, refuses ports, and knows two families
//! of addresses.

use std::{
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::{
    io::{FdFlags, fcntl_getfd},
    net::{AddressFamily, SocketType, sockopt},
};

use super::{HangGuard, HeardEvents, Pair, configured, filled, holds_only, with_record};
use crate::{
    driver::{
        CommandFailure, CommandToken, DownCause, Driver, DriverCommand, PayloadView, PostResult,
        Sink, WorldRank,
    },
    offload::COUNTER_LEN,
    random::SeededRandom,
    tcp::{
        ListenAddress, PreparedTcp, Tcp, TcpConfig,
        frame::{FrameKind, PutRecord},
        interfaces::port_range,
        socket_calls::{HostLife, connected, end_sending, host_life, leads_here},
    },
};

/// Keeps bodies, and counts commands that have completed.
#[derive(Default)]
struct KeptBodies {
    bodies: Vec<Vec<u8>>,
    completed: usize,
}

impl Sink for KeptBodies {
    fn message(&mut self, _from: WorldRank, _header: &[u8], body: PayloadView<'_>) {
        self.bodies.push(body.to_vec());
    }

    fn complete(&mut self, _token: CommandToken) {
        self.completed += 1;
    }

    fn fetched(&mut self, _token: CommandToken, _old: u64) {}

    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        panic!("{token:?} has failed: {why:?}");
    }

    fn reached(&mut self, _token: CommandToken) {}

    fn triggered(&mut self, _token: CommandToken) {}

    fn peer_down(&mut self, peer: WorldRank, _why: DownCause) {
        panic!("{peer:?} is down");
    }
}

/// The socket with which a rank reaches the other one.
fn socket_to(rank: &mut Tcp, peer: usize) -> &OwnedFd {
    let core = rank.core();
    let name = core.peers[peer].connection.as_ref().unwrap().socket;
    core.sockets.get(name).unwrap().socket().unwrap()
}

#[test]
fn sockets_with_room_for_little_cut_everything_and_lose_nothing() {
    let seed = 97;
    let mut random = SeededRandom::new(seed);
    let mut pair = Pair::new();
    for rank in 0..2 {
        let socket = socket_to(&mut pair.ranks[rank], 1 - rank);
        // The kernel takes more than that, but far less than any of these bodies.
        sockopt::set_socket_send_buffer_size(socket, 1).unwrap();
    }
    let bodies: Vec<Vec<u8>> = (0..20)
        .map(|_| {
            let mut body = vec![0; 100_000 + usize::try_from(random.within(0..100_000)).unwrap()];
            random.fill(&mut body);
            body
        })
        .collect();
    let regions = [5, 6].map(|byte| filled(&mut pair.ranks[0], byte));
    let key = pair.ranks[0].expose(regions[0].range()).unwrap();
    let mut heard = [KeptBodies::default(), KeptBodies::default()];
    let mut posted = [0; 2];
    let mut cut = false;
    let guard = HangGuard::new("all bodies");
    while heard.iter().any(|one| one.bodies.len() < bodies.len()) || heard[1].completed < 1 {
        for rank in 0..2 {
            while posted[rank] < bodies.len() {
                let message = DriverCommand::Message {
                    to: WorldRank(u32::try_from(1 - rank).unwrap()),
                    header: b"",
                    body: &bodies[posted[rank]],
                };
                if !matches!(pair.ranks[rank].post(message), PostResult::Posted) {
                    break;
                }
                posted[rank] += 1;
                if (rank, posted[rank]) == (1, bodies.len() / 2) {
                    let get = DriverCommand::Get {
                        to: WorldRank(0),
                        from: key,
                        into: regions[1].range(),
                        token: CommandToken(1),
                    };
                    assert!(matches!(pair.ranks[1].post(get), PostResult::Posted));
                }
            }
            cut |= !pair.ranks[rank].core().peers[1 - rank].queue.is_empty();
            let _ = pair.ranks[rank].progress(16, &mut heard[rank]);
        }
        guard.check();
    }
    assert!(cut, "the sockets took everything at once");
    for one in &heard {
        assert!(one.bodies == bodies, "bodies differ, seed {seed}");
    }
    assert!(holds_only(&regions[1], 0..4096, 5));
}

#[test]
fn a_put_that_is_lost_half_way_counts_nothing_and_is_not_told() {
    let mut pair = Pair::new();
    let memory = filled(&mut pair.ranks[0], 9);
    let counters = pair.ranks[0].allocate(COUNTER_LEN).unwrap();
    let into = pair.ranks[0].expose(memory.range()).unwrap();
    let counter = pair.ranks[0].expose(counters.range()).unwrap();
    let counter = counter.slice(0, COUNTER_LEN as u64).unwrap();
    let put = PutRecord {
        into,
        counter,
        offset: 0,
        counts: 1,
    };
    let head = with_record(FrameKind::Put, &put, 4096);
    pair.say(&[&head[..], &[7; 1000]].concat());
    let guard = HangGuard::new("the first bytes");
    while !holds_only(&memory, 0..1000, 7) {
        pair.turn_of_the_tricked();
        guard.check();
    }
    end_sending(socket_to(&mut pair.ranks[1], 0));
    pair.until("the end", |heard| !heard.down.is_empty());
    assert!(holds_only(&memory, 1000..4096, 9));
    assert!(holds_only(&counters, 0..COUNTER_LEN, 0));
    assert_eq!((pair.heard.messages, pair.heard.completed), (1, 0));
}

#[test]
fn only_what_a_host_acknowledges_is_a_sign_of_its_life() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut own = listener.accept().unwrap().0;
    let life = |own: &TcpStream| host_life(&own.try_clone().unwrap().into()).unwrap();
    let at_first = life(&own);
    assert!(!at_first.owes && !at_first.unsent, "{at_first:?}");
    for _ in 0..3 {
        peer.write_all(&[1; 1000]).unwrap();
        own.read_exact(&mut [0; 1000]).unwrap();
    }
    let signs = |life: HostLife| (life.acknowledged, life.empty_segments);
    let with_data = signs(life(&own));
    assert_eq!(with_data, signs(at_first), "three segments with data");
    own.write_all(&[1; 1000]).unwrap();
    let guard = HangGuard::new("the acknowledgment");
    while life(&own).owes {
        guard.check();
    }
    assert!(life(&own).acknowledged >= at_first.acknowledged + 1000);
    // The peer's kernel probes once a second. The kernel here answers, and takes none of that for an acknowledgment.
    sockopt::set_socket_keepalive(&peer, true).unwrap();
    sockopt::set_tcp_keepidle(&peer, Duration::from_secs(1)).unwrap();
    let before = life(&own).empty_segments;
    let guard = HangGuard::new("a probe");
    let probed = loop {
        let seen = life(&own);
        if seen.empty_segments != before {
            break seen;
        }
        guard.check();
    };
    assert!(probed.acknowledgment_age >= 800, "{probed:?}");
}

#[test]
fn no_descriptor_of_a_rank_survives_the_start_of_a_program() {
    let mut pair = Pair::new();
    for rank in &mut pair.ranks {
        let core = rank.core();
        let (asleep, timer) = (core.wait_on(), core.timer.wait_on());
        let listeners: Vec<_> = core.sockets.listeners().collect();
        assert_eq!(listeners.len(), 1);
        let rest = [&*asleep, &*timer];
        for fd in listeners.into_iter().chain(rest) {
            assert_eq!(fcntl_getfd(fd).unwrap(), FdFlags::CLOEXEC);
        }
    }
    // One of them was opened by `connect`, and the other by `accept`.
    for rank in 0..2 {
        let socket = socket_to(&mut pair.ranks[rank], 1 - rank);
        assert_eq!(fcntl_getfd(socket).unwrap(), FdFlags::CLOEXEC);
    }
}

#[test]
fn a_socket_that_has_connected_to_itself_is_refused() {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).unwrap();
    let own = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    rustix::net::connect(&socket, &own).unwrap();
    let why = connected(&socket).unwrap_err();
    assert_eq!(why.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_connection_to_the_address_from_which_it_comes_leads_here() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let socket: OwnedFd = TcpStream::connect(to).unwrap().into();
    assert!(leads_here(&socket).unwrap());
    let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    assert!(leads_here(&socket).is_err(), "there is no connection");
    rustix::net::bind(&socket, &SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    assert!(!leads_here(&socket).unwrap());
}

#[test]
fn a_range_whose_ports_are_all_taken_is_an_error_that_names_it() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let ports = port_range(&format!("{port}-{port}")).unwrap();
    let config = TcpConfig::new(0, Ipv4Addr::LOCALHOST.into());
    let why = PreparedTcp::open(config, ports).unwrap_err();
    assert_eq!(why.kind(), ErrorKind::AddrInUse);
    let text = why.to_string();
    for word in ["127.0.0.1", &format!("{port}-{port}"), "RIPSTOP_TCP_PORTS"] {
        assert!(text.contains(word), "{text}");
    }
}

/// Has rank 1 say hello to rank 0, and returns the address to which the connection leads.
fn meet([mut zero, mut one]: [Tcp; 2]) -> IpAddr {
    let hello = DriverCommand::Message {
        to: WorldRank(0),
        header: b"hello",
        body: b"",
    };
    assert!(matches!(one.post(hello), PostResult::Posted));
    let mut heard = HeardEvents::default();
    let guard = HangGuard::new("the hello");
    while heard.messages == 0 {
        let _ = zero.progress(16, &mut heard);
        let _ = one.progress(16, &mut HeardEvents::default());
        guard.check();
    }
    assert!(heard.down.is_empty());
    let peer = rustix::net::getpeername(socket_to(&mut one, 0)).unwrap();
    SocketAddr::try_from(peer.unwrap()).unwrap().ip()
}

#[test]
#[expect(
    clippy::print_stderr,
    reason = "says what a host without IPv6 leaves out"
)]
fn ranks_meet_where_there_is_only_one_family_of_addresses_and_where_they_have_different_ones() {
    let (v4, v6) = (
        IpAddr::from(Ipv4Addr::LOCALHOST),
        IpAddr::from(Ipv6Addr::LOCALHOST),
    );
    let listening = |zero: &'static [bool], one: &'static [bool]| {
        configured([0, 1], move |config| {
            let six = if config.rank == 0 { zero } else { one };
            let ips = six.iter().map(|six| if *six { v6 } else { v4 });
            config.listen = ips.map(ListenAddress::new).collect();
        })
    };
    assert_eq!(meet(listening(&[false], &[false])), v4);
    if TcpListener::bind((v6, 0)).is_err() {
        eprintln!("this host has no IPv6, so only IPv4 was tried");
        return;
    }
    assert_eq!(meet(listening(&[true], &[true])), v6);
    // A rank that listens at one family connects to the other all the same.
    assert_eq!(meet(listening(&[false], &[true])), v4);
    assert_eq!(meet(listening(&[true], &[false])), v6);
    assert!([v4, v6].contains(&meet(listening(&[false, true], &[true, false]))));
}
