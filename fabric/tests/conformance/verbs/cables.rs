//! Cables that lose packets, are pulled, and are put back. Only in the virtual machine, which has a command for that.

use std::{
    process::{Child, Command},
    sync::{Mutex, MutexGuard, PoisonError},
};

use ripstop_fabric::{
    driver::{CommandFailure, CommandToken, DownCause},
    memory::RemoteRegion,
    verbs::DevicePort,
};

use super::{counters::of_devices, put, world_across_devices};
use crate::world::{Guard, Heard, Rank, World, all_of, contents, in_threads, noise, peer};

/// Messages of mixed lengths and a long put, in both directions, over cables that lose one packet in twenty.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_loss_of_five_percent_loses_nothing() {
    let _cables = Cables::new();
    cable("shape 0 loss 5%");
    cable("shape 1 loss 5%");
    let again = of_devices(AGAIN);
    in_threads(world_across_devices, 2, |rank| {
        talk(rank, 100, |_| ());
        let other = 1 - rank.me.0 as usize;
        let (region, key) = rank.memory(LONG);
        let mine = noise(u64::from(rank.me.0), LONG);
        rank.send(other, bytemuck::bytes_of(&key), b"");
        let told = |heard: &Heard| {
            heard
                .messages
                .iter()
                .find_map(|one| bytemuck::try_pod_read_unaligned(&one.header).ok())
        };
        rank.until("the other's key", |heard| told(heard).is_some());
        let into: RemoteRegion = told(&rank.heard).unwrap();
        let (source, _) = rank.memory(LONG);
        source.write(0, &mine);
        rank.post(put(other, all_of(&source), into, CommandToken(0)));
        rank.until("the put", |heard| heard.completed.len() == 1);
        rank.send(other, b"look", b"");
        rank.until("the other's put", |heard| {
            heard.messages.iter().any(|one| one.header == b"look")
        });
        assert!(contents(&region)[..LONG] == noise(other as u64, LONG));
    });
    assert!(of_devices(AGAIN) > again, "nothing was ever lost");
}

/// One packet in ten overtakes those before it, as where several processors take the packets of one wire. Nothing is lost, but
/// soft-RoCE asks for packets again, and it ends the connection if it must do so too often for one request.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn packets_that_overtake_others_end_no_connection() {
    let _cables = Cables::new();
    cable("shape 0 delay 1ms reorder 10%");
    cable("shape 1 delay 1ms reorder 10%");
    let again = of_devices(AGAIN);
    let mut world = World::new(world_across_devices, 2);
    world.meet();
    let (there, key) = world[1].memory(LONGEST);
    let (here, _) = world[0].memory(LONGEST);
    here.write(0, &noise(1, LONGEST));
    let ended = world.one_sided(0, put(1, all_of(&here), key, CommandToken(3)));
    assert!(ended.is_ok(), "{ended:?}");
    assert!(contents(&there)[..LONGEST] == noise(1, LONGEST));
    assert!(of_devices(AGAIN) > again, "no packet overtook another one");
}

/// Devices retransmit for two seconds. The test does not check that they did, because nothing need be in flight at that moment.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_cable_that_is_pulled_for_a_moment_loses_nothing() {
    let _cables = Cables::new();
    in_threads(world_across_devices, 2, |rank| {
        let mut plugging = None;
        let me = rank.me.0;
        talk(rank, 300, |round| {
            if round == 100 && me == 0 {
                plugging = Some(shell("cable pull 1; sleep 0.7; cable plug 1"));
            }
        });
        plugging.into_iter().for_each(|mut plugging: Child| {
            assert!(plugging.wait().unwrap().success());
        });
    });
}

/// A pulled cable is not reported, so ranks that have something to send must find out.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_cable_that_stays_pulled_fails_only_the_peers_behind_it() {
    let _cables = Cables::new();
    let mut world = World::new(world_across_devices, 3);
    world.meet();
    let (_there, key) = world[1].memory(64);
    let (here, _) = world[0].memory(64);
    cable("pull 1");
    let ended = world.one_sided(0, put(1, all_of(&here), key, CommandToken(3)));
    assert!(matches!(ended, Err(CommandFailure::PeerDown)), "{ended:?}");
    world.send(1, 0, b"lost", b"");
    world.send(1, 2, b"lost", b"");
    for (rank, gone) in [(0, 1), (1, 0), (1, 2)] {
        world.until("a failure", |world| {
            world[rank]
                .heard
                .down
                .contains(&(peer(gone), DownCause::Failed))
        });
    }
    world.send(0, 2, b"still there", b"");
    world.hears(2, 1);
}

/// Simulates a switch that is configured for shorter packets than the ports.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_loss_of_only_long_packets_is_reported_with_the_lengths_to_compare() {
    let _cables = Cables::new();
    let mut world = World::new(world_across_devices, 2);
    world.meet();
    let (_there, key) = world[1].memory(LONG);
    let (here, _) = world[0].memory(LONG);
    let shorter = |bytes| {
        let done = shell(&format!("ip link set port1 mtu {bytes}")).wait();
        assert!(done.unwrap().success());
    };
    shorter(1500);
    world.send(0, 1, b"short", b"");
    world.hears(1, 1);
    let ended = world.one_sided(0, put(1, all_of(&here), key, CommandToken(3)));
    shorter(9000);
    assert!(matches!(ended, Err(CommandFailure::PeerDown)), "{ended:?}");
    let why = world[0].why_down(peer(1));
    for words in ["active_mtu", "ibv_devinfo", "76 bytes"] {
        assert!(why.contains(words), "{why}");
    }
}

/// The port with longer packets must send packets that the other one accepts.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn ports_of_different_lengths_of_packets_go_by_the_shorter() {
    let _cables = Cables::new();
    let length = |bytes| {
        let done = shell(&format!("ip link set eth1 mtu {bytes}; cable plug 1")).wait();
        assert!(done.unwrap().success());
    };
    length(1500);
    in_threads(world_across_devices, 2, |rank| talk(rank, 30, |_| ()));
    length(9000);
}

/// A port that goes down ends its connections. When it is up again, new ranks find each other.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_port_that_goes_down_fails_its_peers_and_serves_the_next_job() {
    let _cables = Cables::new();
    let mut world = World::new(world_across_devices, 2);
    world.meet();
    cable("down 0");
    world.send(0, 1, b"lost", b"");
    world.send(1, 0, b"lost", b"");
    for rank in 0..2 {
        world.until("a failure", |world| {
            world[rank].heard.down == [(peer(1 - rank), DownCause::Failed)]
        });
    }
    let why = world[0].why_down(peer(1));
    assert!(why.contains("port is down"), "{why}");
    drop(world);
    cable("plug 0");
    until_all_are_up();
    in_threads(world_across_devices, 2, |rank| talk(rank, 10, |_| ()));
}

/// Sends `rounds` messages of all kinds of length to the other rank, and checks that its messages arrive complete and in order.
pub(super) fn talk(rank: &mut Rank, rounds: usize, mut before: impl FnMut(usize)) {
    let (me, other) = (rank.me.0 as usize, 1 - rank.me.0 as usize);
    let body = |from: usize, round: usize| noise((2 * round + from) as u64, round * 677 % 8000);
    for round in 0..rounds {
        before(round);
        rank.send(other, &round.to_le_bytes(), &body(me, round));
    }
    rank.until("all messages", |heard| heard.messages.len() >= rounds);
    for (round, message) in rank.heard.messages.iter().take(rounds).enumerate() {
        assert_eq!(message.header, round.to_le_bytes());
        assert!(message.body == body(other, round), "message {round}");
    }
}

/// Restores all cables when a test begins and when it ends, in whatever way, and runs one test at a time.
pub(super) struct Cables {
    _turn: MutexGuard<'static, ()>,
}

impl Cables {
    pub(super) fn new() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        Self {
            _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl Drop for Cables {
    fn drop(&mut self) {
        let all = "for n in 0 1 2 3 4 5 6 7; do [ ! -e /sys/class/net/eth$n ] || { cable plug $n; cable shape $n; }; done";
        assert!(shell(all).wait().unwrap().success());
        until_all_are_up();
    }
}

/// Waits until all ports are up. A port reports that a while after its cable was plugged in, and until then ranks ignore it.
pub(super) fn until_all_are_up() {
    let guard = Guard::new();
    while DevicePort::all().unwrap().iter().any(|port| !port.active) {
        std::thread::yield_now();
        guard.check("all ports to be up");
    }
}

pub(super) fn cable(words: &str) {
    let done = shell(&format!("cable {words}")).wait().unwrap();
    assert!(done.success(), "cable {words}: {done}");
}

fn shell(script: &str) -> Child {
    Command::new("sh").args(["-c", script]).spawn().unwrap()
}

/// A device's count of retransmissions.
const AGAIN: &str = "completer_retry_err";

const LONG: usize = 1 << 18;
/// Bytes of a thousand packets.
const LONGEST: usize = 4 << 20;
