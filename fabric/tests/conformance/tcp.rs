//! Worlds on TCP, over the loopback interface.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use ripstop_fabric::{
    deferred::DeferredDriver,
    driver::{Driver, PreparedEndpoint, WorldRank},
    random::SeededRandom,
    shm::Board,
    tcp::{PreparedTcp, Tcp, TcpConfig},
};

use crate::world::{Guard, World};

pub(crate) fn world(ranks: u32) -> Vec<Box<dyn Driver>> {
    connected((0..ranks).map(prepare).collect())
}

fn connected(prepared: Vec<PreparedTcp>) -> Vec<Box<dyn Driver>> {
    let addresses: Vec<_> = prepared.iter().map(PreparedTcp::address).collect();
    let connect = |one: PreparedTcp| Box::new(one.connect(&addresses).unwrap()) as Box<dyn Driver>;
    prepared.into_iter().map(connect).collect()
}

/// Ranks that learn each other's addresses while they are running.
pub(crate) fn late_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    let prepared: Vec<_> = (0..ranks).map(prepare).collect();
    let addresses: Vec<_> = prepared.iter().map(PreparedTcp::address).collect();
    let late = |(rank, one): (u32, PreparedTcp)| {
        let addresses = addresses.clone();
        let join = move |one: Box<dyn PreparedEndpoint>| one.connect(&addresses);
        Box::new(DeferredDriver::open(Box::new(one), (WorldRank(rank), ranks), join).unwrap())
            as Box<dyn Driver>
    };
    (0..).zip(prepared).map(late).collect()
}

fn prepare(rank: u32) -> PreparedTcp {
    let config = TcpConfig {
        // A rank that closes may wait for another one of the same thread.
        linger: Duration::from_millis(10),
        ..TcpConfig::new(rank, Ipv4Addr::LOCALHOST.into())
    };
    Tcp::prepare(config).unwrap()
}

/// Opens one rank of a job of processes, which leave their addresses on a board.
pub(crate) fn join(board: &Board, rank: u32) -> Box<dyn Driver> {
    let config = TcpConfig::new(rank, Ipv4Addr::LOCALHOST.into());
    let prepared = Tcp::prepare(config).unwrap();
    board.leave_note(rank, &prepared.address());
    let notes = board.notes(Guard::new().left());
    let notes = notes.unwrap_or_else(|rank| panic!("rank {rank} has not started"));
    Box::new(prepared.connect(&notes).unwrap())
}

/// A world of two ranks that have not met, and where rank 0 listens.
fn with_door() -> (World, SocketAddr) {
    let prepared: Vec<_> = (0..2).map(prepare).collect();
    let door = prepared[0].endpoints()[0];
    (World::from_drivers(connected(prepared)), door)
}

#[test]
fn strangers_that_say_nonsense_are_sent_away_and_stop_no_peer() {
    let seed = 41;
    let mut random = SeededRandom::new(seed);
    let mut noise = vec![0; 3000];
    random.fill(&mut noise);
    let (mut world, door) = with_door();
    let mut strangers = Vec::new();
    for words in [
        b"GET / HTTP/1.1\r\nHost: rank-0\r\n\r\n".to_vec(),
        noise[..1].to_vec(),
        noise.clone(),
        vec![0; 64],
        vec![0xff; 64],
    ] {
        let mut stranger = TcpStream::connect(door).unwrap();
        stranger.write_all(&words).unwrap();
        strangers.push(stranger);
    }
    world.meet();
    for mut stranger in strangers {
        stranger.set_nonblocking(true).unwrap();
        // Silence, the end or a reset: a stranger gets no byte that only a rank should have.
        let mut answer = [0; 1];
        let read = stranger.read(&mut answer);
        assert!(
            !matches!(read, Ok(1)),
            "an answer to a stranger, seed {seed}"
        );
    }
    assert!(world[0].heard.down.is_empty() && world[1].heard.down.is_empty());
}

#[test]
fn more_silent_strangers_than_there_is_room_for_delay_a_peer_and_do_not_stop_it() {
    let (mut world, door) = with_door();
    let strangers: Vec<_> = (0..300)
        .map(|_| TcpStream::connect(door).unwrap())
        .collect();
    world.send(1, 0, b"hello", b"");
    world.hears(0, 1);
    drop(strangers);
    world.meet();
}

#[test]
fn a_stranger_beyond_the_limit_is_looked_at_when_another_one_has_left() {
    let (mut world, door) = with_door();
    let mut silent: Vec<_> = (0..256)
        .map(|_| TcpStream::connect(door).unwrap())
        .collect();
    let mut last = TcpStream::connect(door).unwrap();
    last.write_all(b"nonsense").unwrap();
    last.set_nonblocking(true).unwrap();
    let mut waits = || {
        let read = last.read(&mut [0; 1]);
        matches!(read, Err(why) if why.kind() == ErrorKind::WouldBlock)
    };
    for _ in 0..100 {
        world.turn();
        assert!(waits(), "the limit does not hold");
    }
    silent.pop();
    let guard = Guard::new();
    while waits() {
        world.turn();
        guard.check("the last stranger to be sent away");
    }
}

#[test]
fn an_address_that_is_none_is_refused_with_its_rank() {
    let one = prepare(0);
    let addresses = [one.address(), vec![7; 30]];
    let why = one.connect(&addresses).map(|_| ()).unwrap_err();
    assert!(why.to_string().contains("rank 1"), "{why}");
    let one = prepare(0);
    let other = prepare(0).address();
    assert!(
        one.connect(&[other]).is_err(),
        "an address of another rank 0"
    );
}
