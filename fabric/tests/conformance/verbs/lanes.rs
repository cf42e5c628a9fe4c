//! Ranks with several devices: which traffic uses which device, and cables that are pulled meanwhile.
//!
//! Two ranks with two devices each share no cable, so one cable is pulled per lane. If ranks use the same four devices, one cable
//! belongs to two lanes. With eight devices, two ranks have four each.

use std::sync::Arc;

use ripstop_fabric::{
    counters::DriverStats,
    driver::{AtomicOp, CommandFailure, CommandToken, DownCause, Driver, DriverCommand},
    memory::{MemoryRegion, RemoteRegion},
    verbs::DevicePort,
};

use super::{
    cables::{Cables, cable, talk},
    counters::of_device,
    put, world,
};
use crate::world::{Guard, World, contents, in_threads, local, noise, peer};

/// Ranks with two devices each: even ranks share two, and odd ranks two others.
pub(crate) fn world_by_two_lanes(ranks: u32) -> Vec<Box<dyn Driver>> {
    by_two_lanes(ranks, &[])
}

/// Ranks with four devices each. Of eight devices, even ranks share four, and odd ranks the others. Of four devices, each rank
/// starts with a different one, so that all lanes use the wire.
pub(crate) fn world_by_four_lanes(ranks: u32) -> Vec<Box<dyn Driver>> {
    by_four_lanes(ranks, &[])
}

fn by_two_lanes(ranks: u32, counters: &[Arc<DriverStats>]) -> Vec<Box<dyn Driver>> {
    named(ranks, counters, devices_by_two)
}

pub(super) fn devices_by_two(rank: u32) -> String {
    let devices = if rank.is_multiple_of(2) {
        "rxe0,rxe1"
    } else {
        "rxe2,rxe3"
    };
    devices.to_owned()
}

fn by_four_lanes(ranks: u32, counters: &[Arc<DriverStats>]) -> Vec<Box<dyn Driver>> {
    if device_count() < 8 {
        return by_the_same_four(ranks, counters);
    }
    named(ranks, counters, |rank| four(|lane| rank % 2 * 4 + lane))
}

/// Uses the first four devices, however many there are.
fn by_the_same_four(ranks: u32, counters: &[Arc<DriverStats>]) -> Vec<Box<dyn Driver>> {
    named(ranks, counters, |rank| four(|lane| (rank + lane) % 4))
}

fn four(device: impl Fn(u32) -> u32) -> String {
    let names = (0..4).map(|lane| format!("rxe{}", device(lane)));
    names.collect::<Vec<_>>().join(",")
}

fn named(
    ranks: u32,
    counters: &[Arc<DriverStats>],
    devices: impl Fn(u32) -> String,
) -> Vec<Box<dyn Driver>> {
    let all = device_count();
    assert!(all >= 4, "needs four devices: `cargo xtask vm --devices 4`");
    world(ranks, |config| {
        config.device = Some(devices(config.rank.0));
        if let Some(counters) = counters.get(config.rank.0 as usize) {
            config.counters = Arc::clone(counters);
        }
    })
}

fn device_count() -> usize {
    DevicePort::all().unwrap().len()
}

/// Makes ranks that use these counters.
type Counted = fn(u32, &[Arc<DriverStats>]) -> Vec<Box<dyn Driver>>;

/// Two ranks that are connected, and memory of the second one.
struct Pair {
    world: World,
    counters: Vec<Arc<DriverStats>>,
    region: MemoryRegion,
    key: RemoteRegion,
}

impl Pair {
    fn new(make: Counted, len: usize) -> Self {
        Self::by(make, len)
    }

    fn by(make: impl Fn(u32, &[Arc<DriverStats>]) -> Vec<Box<dyn Driver>>, len: usize) -> Self {
        let counters: Vec<_> = (0..2).map(|_| Arc::new(DriverStats::default())).collect();
        let mut world = World::from_drivers(make(2, &counters));
        world.meet();
        let (region, key) = world[1].memory(len);
        Self {
            world,
            counters,
            region,
            key,
        }
    }

    fn post_put(&mut self, bytes: &mut [u8], token: u64) {
        self.world
            .post(0, put(1, local(bytes), self.key, CommandToken(token)));
    }

    fn put(&mut self, bytes: &mut [u8], into: RemoteRegion) -> Result<Option<u64>, CommandFailure> {
        self.world
            .one_sided(0, put(1, local(bytes), into, CommandToken(1)))
    }

    fn get(&mut self, bytes: &mut [u8], from: RemoteRegion) -> Result<Option<u64>, CommandFailure> {
        let get = DriverCommand::Get {
            to: peer(1),
            from,
            into: local(bytes),
            token: CommandToken(2),
        };
        self.world.one_sided(0, get)
    }

    fn pieces(&self) -> u64 {
        self.counters[0].pieces.get()
    }

    fn lanes_failed(&self) -> [u64; 2] {
        [0, 1].map(|rank: usize| self.counters[rank].lanes_failed.get())
    }

    /// Makes turns until both ranks have left `lanes` lanes. One of them may learn of it later than the other.
    fn leaves(&mut self, lanes: u64) {
        let guard = Guard::new();
        while self.lanes_failed().iter().any(|failed| *failed < lanes) {
            let _rest = self.world[0].driver.arm();
            self.world.turn();
            guard.check(&format!(
                "{lanes} lanes to fail, and not {:?}",
                self.lanes_failed()
            ));
        }
        assert_eq!(self.lanes_failed(), [lanes; 2]);
    }
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn bytes_of_every_length_go_by_all_lanes_and_arrive_once() {
    for make in [by_two_lanes, by_four_lanes] {
        let mut pair = Pair::new(make, 1 << 20);
        let mut plain = vec![0; 1 << 20];
        let plain_key = pair.world[1].driver.expose(local(&mut plain)).unwrap();
        for (seed, len) in [1, 8_191, 8_193, 65_535, 80_001, 200_001, 1 << 20]
            .into_iter()
            .enumerate()
        {
            let before = pair.pieces();
            let mut bytes = noise(seed as u64, len);
            for key in [pair.key, plain_key] {
                let key = key.slice(0, len as u64).unwrap();
                pair.put(&mut bytes, key).unwrap();
                let mut back = vec![0; len];
                pair.get(&mut back, key).unwrap();
                assert!(back == bytes, "{len} bytes back");
            }
            assert!(contents(&pair.region)[..len] == bytes, "{len} bytes");
            let pieces = pair.pieces() - before;
            assert_eq!(pieces > 4, len > 65_535, "{pieces} pieces for {len} bytes");
        }
        let withdraw = DriverCommand::Withdraw { key: plain_key };
        pair.world.post(1, withdraw);
        assert_eq!(pair.lanes_failed(), [0; 2]);
    }
}

/// The first pieces follow the weights; after that, the device that finishes first takes more.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn devices_send_by_their_weights_until_they_have_shown_how_fast_they_are() {
    let _cables = Cables::new();
    for (weights, from, to) in [
        ([3, 1], 0.53, 0.83),
        ([1, 3], 0.17, 0.47),
        // A device that is not worth it is not used.
        ([5, 1], 0.95, 1.0),
        ([1, 5], 0.0, 0.05),
    ] {
        let [first, second] = weights;
        let make = |ranks, counters: &[Arc<DriverStats>]| {
            named(ranks, counters, |rank| {
                let two = 2 * (rank % 2);
                format!("rxe{two}*{first},rxe{}*{second}", two + 1)
            })
        };
        let mut pair = Pair::by(make, SHORT);
        let sent = || ["rxe0", "rxe1"].map(|device| of_device(device, "sent_pkts"));
        let before = sent();
        for seed in 0..PUTS {
            let mut bytes = noise(seed, SHORT);
            let key = pair.key;
            pair.put(&mut bytes, key).unwrap();
            assert!(contents(&pair.region)[..SHORT] == bytes);
        }
        let after = sent();
        #[expect(clippy::cast_precision_loss, reason = "they are few")]
        let [one, two] = [0, 1].map(|lane| (after[lane] - before[lane]) as f64);
        let part = one / (one + two);
        assert!((from..=to).contains(&part), "{part:.2} by {weights:?}");
        assert_eq!(pair.lanes_failed(), [0; 2]);
    }
}

/// Pulls the second cable of the first rank, then the first.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_cable_that_is_pulled_in_the_midst_of_puts_costs_none_of_them_and_no_byte_comes_late() {
    let _cables = Cables::new();
    for lane in [1, 0] {
        // Slow enough that the puts take a while.
        (0..4).for_each(|cut| cable(&format!("shape {cut} rate 80mbit")));
        let mut pair = Pair::new(by_two_lanes, LONG);
        let mut bytes: Vec<Vec<u8>> = (0..PUTS).map(|nth| noise(nth, LONG)).collect();
        let mut posted = 0;
        let mut pulled = false;
        let guard = Guard::new();
        while pair.lanes_failed() != [1; 2] {
            let ended = pair.world[0].heard.completed.len() as u64;
            if posted < ended + PUTS {
                let from = &mut bytes[usize::try_from(posted % PUTS).unwrap()];
                pair.post_put(from, posted);
                posted += 1;
            }
            if ended > 0 && !pulled {
                cable(&format!("pull {lane}"));
                pulled = true;
            }
            pair.world.turn();
            guard.check("both ranks to leave the lane");
            assert!(pair.world[0].heard.failed.is_empty());
        }
        pair.world.until("all puts", |world| {
            let heard = &world[0].heard;
            assert!(heard.failed.is_empty(), "{:?}", heard.failed);
            heard.completed.len() as u64 == posted
        });
        pair.world[0].heard.completed.clear();
        // No earlier write may overwrite what is written now.
        let mut last = noise(99, LONG);
        let key = pair.key;
        pair.put(&mut last, key).unwrap();
        assert_eq!(stray(&contents(&pair.region), &last, &bytes), None);
        cable(&format!("plug {lane}"));
        pair.world.settle();
        assert_eq!(stray(&contents(&pair.region), &last, &bytes), None);
        let mut back = vec![0; LONG];
        pair.get(&mut back, key).unwrap();
        assert!(back == last);
        drop(pair);
        super::cables::until_all_are_up();
    }
}

/// Pulls a cable while messages of all lengths are in flight in both directions. One of the two lanes is the pair's home.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn messages_go_on_by_another_lane_and_none_is_lost_or_doubled_or_overtakes() {
    let _cables = Cables::new();
    for lane in [0, 1] {
        in_threads(world_by_two_lanes, 2, |rank| {
            let me = rank.me.0;
            talk(rank, 400, |round| {
                if round == 150 && me == 0 {
                    cable(&format!("pull {lane}"));
                }
            });
        });
        cable(&format!("plug {lane}"));
        super::cables::until_all_are_up();
    }
}

/// Pulls one cable after the other, each of two lanes, until one lane is left.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn of_four_lanes_three_may_fail() {
    let _cables = Cables::new();
    let mut pair = Pair::new(by_the_same_four, LONG);
    for (pulled, failed) in [(2, 2), (1, 3)] {
        let mut bytes = noise(pulled, LONG);
        cable(&format!("pull {pulled}"));
        let key = pair.key;
        pair.put(&mut bytes, key).unwrap();
        assert!(contents(&pair.region) == bytes);
        pair.world.send(0, 1, b"there", b"");
        pair.world.send(1, 0, b"back", b"");
        for rank in 0..2 {
            pair.world.hears(rank, 1);
            pair.world[rank].heard.messages.clear();
        }
        pair.leaves(failed);
    }
}

/// Atomics do not move to another lane, because two devices are not atomic with respect to each other.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_peer_without_its_first_lane_is_lost_when_an_atomic_is_posted_to_it() {
    let _cables = Cables::new();
    let mut pair = Pair::new(by_two_lanes, LONG);
    let at = pair.key.slice(0, 8).unwrap();
    let add = |number| DriverCommand::Atomic {
        to: peer(1),
        at,
        op: AtomicOp::Add(number),
        token: CommandToken(3),
    };
    assert_eq!(pair.world.one_sided(0, add(5)).unwrap(), Some(0));
    cable("pull 0");
    let mut bytes = noise(4, LONG);
    let key = pair.key;
    pair.put(&mut bytes, key).unwrap();
    let ended = pair.world.one_sided(0, add(5));
    assert!(matches!(ended, Err(CommandFailure::PeerDown)), "{ended:?}");
    let why = pair.world[0].why_down(peer(1));
    assert!(why.contains("path through the first device"), "{why}");
}

/// Nothing is in flight on the lane, but the device reports the port, which ends a sleep.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_port_that_goes_down_is_left_before_anything_is_lost_by_it() {
    let _cables = Cables::new();
    let mut pair = Pair::new(by_two_lanes, LONG);
    cable("down 1");
    pair.leaves(1);
    assert!(pair.counters[0].device_events.get() > 0);
    let mut bytes = noise(5, LONG);
    let key = pair.key;
    pair.put(&mut bytes, key).unwrap();
    assert!(contents(&pair.region) == bytes);
    // Ranks that connect when the port is up again use it again.
    drop(pair);
    cable("plug 1");
    super::cables::until_all_are_up();
    let mut pair = Pair::new(by_two_lanes, LONG);
    let key = pair.key;
    pair.put(&mut bytes, key).unwrap();
    assert_eq!(pair.lanes_failed(), [0; 2]);
}

#[test]
#[ignore = "needs the virtual machine's cables"]
fn when_all_lanes_have_failed_the_peer_has() {
    let _cables = Cables::new();
    let mut pair = Pair::new(by_two_lanes, LONG);
    cable("pull 0");
    cable("pull 1");
    let mut bytes = noise(4, LONG);
    let key = pair.key;
    let ended = pair.put(&mut bytes, key);
    assert!(matches!(ended, Err(CommandFailure::PeerDown)), "{ended:?}");
    pair.world.send(1, 0, b"lost", b"");
    for rank in 0..2 {
        pair.world.until("a failure", |world| {
            world[rank].heard.down == [(peer(1 - rank), DownCause::Failed)]
        });
    }
}

/// Returns the first page with wrong contents, and which of the other contents it has.
fn stray(found: &[u8], wanted: &[u8], others: &[Vec<u8>]) -> Option<(usize, Option<usize>)> {
    let pages = found.chunks(PAGE).zip(wanted.chunks(PAGE));
    let page = pages
        .into_iter()
        .position(|(found, wanted)| found != wanted)?;
    let range = page * PAGE..(page + 1) * PAGE;
    let other = |other: &Vec<u8>| other[range.clone()] == found[range.clone()];
    Some((page, others.iter().position(other)))
}

const PAGE: usize = 4096;
const LONG: usize = 1 << 20;
/// Short enough that most of it is started before anything has landed.
const SHORT: usize = 256 << 10;
const PUTS: u64 = 12;
