//! Long puts and gets over several interfaces of a rank, of which one may fail.

use std::{
    env,
    process::{Command as Process, Stdio},
    sync::Arc,
};

use ripstop_fabric::{
    driver::{Command, Driver, Token},
    memory::{Region, RemoteRegion},
    portals::{Interface, PortalsConfig, PortalsCounters},
};

use crate::{
    portals::world,
    processes::end_of,
    world::{World, all_of, contents, local, noise, peer},
};

pub(crate) fn two_rails_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "sandia42", |config| PortalsConfig {
        interfaces: [0, 1].map(Interface::from).to_vec(),
        ..config
    })
}

pub(crate) fn four_rails_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "portails4", |config| PortalsConfig {
        interfaces: [0, 1, 2, 3].map(Interface::from).to_vec(),
        helper: true,
        ..config
    })
}

/// Two ranks with so many rails, and what they count.
struct Pair {
    world: World,
    counters: Vec<Arc<PortalsCounters>>,
    region: Region,
    key: RemoteRegion,
}

impl Pair {
    fn new(rails: [u32; 2], family: &'static str, len: usize) -> Self {
        let rails = rails.map(|count| (0..count).map(Interface::from).collect());
        Self::with(rails, family, len)
    }

    /// With these interfaces.
    fn with(rails: [Vec<Interface>; 2], family: &'static str, len: usize) -> Self {
        let counters: Vec<_> = (0..2).map(|_| Arc::<PortalsCounters>::default()).collect();
        let mut each = counters.iter().zip(rails);
        let drivers = world(2, family, |config| {
            let (counters, rails) = each.next().unwrap();
            PortalsConfig {
                interfaces: rails,
                counters: Arc::clone(counters),
                ..config
            }
        });
        let mut world = World::from_drivers(drivers);
        world.meet();
        let (region, key) = world[1].memory(len);
        Self {
            world,
            counters,
            region,
            key,
        }
    }

    /// A key to the first bytes.
    fn part(&mut self, len: usize) -> RemoteRegion {
        let range = all_of(&self.region).slice(0, len);
        self.world[1].driver.expose(range).unwrap()
    }

    fn put(&mut self, bytes: &mut [u8], into: RemoteRegion) {
        let command = Command::Put {
            to: peer(1),
            from: local(bytes),
            into,
            count: None,
            token: Token(1),
        };
        self.world.post(0, command);
        self.end();
    }

    fn get(&mut self, bytes: &mut [u8], from: RemoteRegion) {
        let command = Command::Get {
            to: peer(1),
            from,
            into: local(bytes),
            token: Token(1),
        };
        self.world.post(0, command);
        self.end();
    }

    fn end(&mut self) {
        self.world.until("the end of a command", |world| {
            let heard = &world[0].heard;
            !heard.completed.is_empty() || !heard.failed.is_empty()
        });
        let heard = std::mem::take(&mut self.world[0].heard);
        assert_eq!(heard.completed, [Token(1)], "{:?}", heard.failed);
    }

    fn pieces(&self) -> u64 {
        self.counters[0].pieces.get()
    }
}

#[test]
fn bytes_of_every_length_go_by_all_rails_and_arrive_once() {
    for (family, rails) in [("sandia42", 2), ("portails4", 4)] {
        let mut pair = Pair::new([rails; 2], family, 4 << 20);
        let all = pair.region.len();
        for (seed, len) in [65_535, 65_536, 65_537, 100_001, 1 << 20, 3_333_333, all]
            .into_iter()
            .enumerate()
        {
            let before = pair.pieces();
            let mut bytes = noise(seed as u64, len);
            let key = pair.part(len);
            pair.put(&mut bytes, key);
            assert!(contents(&pair.region)[..len] == bytes, "{len} bytes");
            let mut back = vec![0; len];
            pair.get(&mut back, key);
            assert!(back == bytes, "{len} bytes back");
            let pieces = pair.pieces() - before;
            assert_eq!(pieces >= 4, len >= 65_536, "{pieces} pieces of {len} bytes");
        }
        assert_eq!(pair.counters[0].lanes_failed.get(), 0);
    }
}

#[test]
fn ranks_with_different_numbers_of_rails_use_those_that_both_have() {
    for rails in [[1, 2], [2, 1], [2, 4], [4, 2]] {
        let mut pair = Pair::new(rails, "sandia42", 1 << 20);
        let mut bytes = noise(3, 1 << 20);
        let key = pair.key;
        pair.put(&mut bytes, key);
        assert!(contents(&pair.region) == bytes);
        assert_eq!(pair.pieces() > 0, rails[0] > 1 && rails[1] > 1, "{rails:?}");
    }
}

#[test]
fn a_rail_of_little_weight_is_left_aside_and_others_share() {
    for (weights, used) in [
        ([1, 1], [true, true]),
        ([1000, 999], [true, true]),
        ([5, 1], [true, false]),
        ([1, 5], [false, true]),
    ] {
        let rails = [0, 1].map(|number| Interface {
            number,
            weight: weights[number as usize],
        });
        let mut pair = Pair::with([rails.to_vec(), rails.to_vec()], "sandia42", 1 << 20);
        let mut bytes = noise(5, 1 << 20);
        let key = pair.key;
        pair.put(&mut bytes, key);
        assert!(contents(&pair.region) == bytes);
        let moved = [0, 1].map(|rail: usize| pair.counters[0].by_rail[rail].get());
        assert_eq!(moved.map(|bytes| bytes > 0), used, "{weights:?}: {moved:?}");
        assert_eq!(moved.iter().sum::<u64>(), 1 << 20, "{weights:?}");
    }
}

/// Which rail is cut off, and after how many bytes, at whom.
const CUTS: [(u32, u64); 4] = [(1, 1), (1, 700_000), (2, 3_000_000), (3, 6_000_000)];
const CUT: &str = "RIPSTOP_PORTALS_CUT";
const FAMILY: &str = "RIPSTOP_TEST_FAMILY";

#[test]
fn what_a_rail_had_when_it_was_cut_off_goes_by_others() {
    for (nth, (rail, bytes)) in CUTS.into_iter().enumerate() {
        let family = ["sandia42", "portails4"][nth % 2];
        let cuts: Vec<_> = (0..4)
            .map(|other| if other == rail { bytes } else { 0 })
            .map(|bytes| bytes.to_string())
            .collect();
        let mut child = Process::new(env::current_exe().unwrap());
        child.args(["--exact", "rails::a_rail_is_cut_off", "--nocapture"]);
        child.env(CUT, cuts.join(",")).env(FAMILY, family);
        child.stdout(Stdio::null());
        let ended = end_of(&mut child.spawn().unwrap());
        assert!(ended.success(), "rail {rail} after {bytes} bytes, {family}");
    }
}

/// Not a test by itself: the test before starts it in processes of its own, because a library is told by its environment.
#[test]
fn a_rail_is_cut_off() {
    let (Ok(_), Ok(family)) = (env::var(CUT), env::var(FAMILY)) else {
        return;
    };
    let family = *crate::portals::FAMILIES
        .iter()
        .find(|known| **known == family)
        .unwrap();
    let mut pair = Pair::new([4; 2], family, 16 << 20);
    let key = pair.key;
    for seed in 0..4 {
        let mut bytes = noise(seed, pair.region.len());
        pair.put(&mut bytes, key);
        assert!(contents(&pair.region) == bytes, "put {seed}");
        let mut back = vec![0; bytes.len()];
        pair.get(&mut back, key);
        assert!(back == bytes, "get {seed}");
    }
    let [first, second] = [0, 1].map(|rank: usize| pair.counters[rank].lanes_failed.get());
    assert!(first + second > 0, "nothing was cut off");
    assert!(
        first <= 1 && second <= 1,
        "{first} and {second} lanes failed"
    );
    // What is new since then is reached by the rails that are left.
    let (region, key) = pair.world[1].memory(1 << 20);
    (pair.region, pair.key) = (region, key);
    let mut bytes = noise(9, 1 << 20);
    pair.put(&mut bytes, key);
    assert!(contents(&pair.region) == bytes);
}
