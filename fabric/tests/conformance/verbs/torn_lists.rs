//! Cables that are pulled in the middle of task lists. Every task of a list ends, with a result, and no byte of it reaches memory
//! that was given back.

use ripstop_fabric::{
    driver::{CommandFailure, CommandToken, DownCause},
    memory::MemoryRegion,
    offload::{PutTarget, TaskAction, TriggeredTask},
    verbs::DevicePort,
};

use super::{
    cables::{Cables, cable, until_all_are_up},
    lanes::world_by_two_lanes,
    put, world_across_devices,
};
use crate::{
    lists::Bench,
    world::{Make, contents, local, noise, peer},
};

#[test]
#[ignore = "needs the virtual machine's cables"]
fn lists_over_a_cable_that_is_pulled_end_in_an_error_and_write_nothing_later() {
    let _cables = Cables::new();
    let why = ["a cable or switch between the ports has failed"];
    torn(world_across_devices, ["pull 1", "plug 1"], &why);
}

#[test]
#[ignore = "needs the virtual machine's cables"]
fn lists_over_a_port_that_goes_down_end_in_an_error_and_write_nothing_later() {
    let _cables = Cables::new();
    torn(
        world_across_devices,
        ["down 0", "plug 0"],
        &["port is down"],
    );
}

/// Lists use the first of two lanes only.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn lists_whose_first_cable_is_pulled_end_in_an_error_though_another_works() {
    let _cables = Cables::new();
    // Depends on whether a list or other traffic finds out first.
    let why = [
        "a cable or switch between the ports has failed",
        "path through the first device",
    ];
    torn(world_by_two_lanes, ["pull 0", "plug 0"], &why);
}

#[test]
#[ignore = "needs the virtual machine's cables"]
fn lists_whose_second_cable_is_pulled_end_well() {
    let _cables = Cables::new();
    for torn in ["pull 1", "down 1"] {
        let mut beside = [noise(7, LONG), noise(8, LONG)];
        let (mut pair, regions) = Pair::torn(world_by_two_lanes, torn, &mut beside);
        for rank in 0..2 {
            pair.bench.until(rank, DONE, PUTS);
            pair.bench.until(rank, TICKS, PUTS);
            let ended = pair.bench.world.ended(rank, BESIDE);
            assert!(ended.is_ok(), "{ended:?}");
            assert!(contents(&regions[rank])[..LONG] == beside[rank]);
            assert!(pair.landed(rank)[..TOUCHED] == pair.bytes(1 - rank)[..TOUCHED]);
            let heard = &pair.bench.world[rank].heard;
            assert!(heard.failed.is_empty() && heard.down.is_empty());
        }
        drop(pair);
        cable("plug 1");
        until_all_are_up();
    }
}

/// A rank whose lists do not reach a peer gives up the whole peer. The peer may still put on the lane that works until it learns
/// of that.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_peer_that_is_given_up_over_lists_writes_nothing_by_another_lane() {
    let _cables = Cables::new();
    let mut bytes = noise(7, LONG);
    let mut pair = Pair::new(world_by_two_lanes);
    let (region, into) = pair.bench.world[1].memory(LONG);
    let put = |bytes: &mut [u8], token| put(1, local(bytes), into, token);
    let first = pair.bench.world.one_sided(0, put(&mut bytes, BESIDE));
    assert!(first.is_ok(), "{first:?}");
    cable("pull 2");
    pair.post(1);
    while pair.bench.world[1].heard.down.is_empty() {
        pair.bench.world.turn_others(0);
    }
    region.write(0, &vec![3; LONG]);
    assert!(pair.bench.world[0].heard.down.is_empty());
    pair.bench.world.post(0, put(&mut bytes, BESIDE));
    pair.bench.world.until("the end of the late put", |world| {
        assert!(contents(&region)[..LONG] == vec![3; LONG], "a late write");
        !world[0].heard.failed.is_empty()
    });
    let late = pair.bench.world.ended(0, BESIDE);
    assert!(matches!(late, Err(CommandFailure::PeerDown)), "{late:?}");
    cable("plug 2");
    pair.bench.world.settle();
    assert!(contents(&region)[..LONG] == vec![3; LONG], "a late write");
}

/// Runs lists in both directions next to long puts, and changes a cable meanwhile.
fn torn(make: Make, [torn, mended]: [&str; 2], why: &[&str]) {
    let mut beside = [noise(7, LONG), noise(8, LONG)];
    let (mut pair, regions) = Pair::torn(make, torn, &mut beside);
    for rank in 0..2 {
        pair.ends_in_an_error(rank);
        // The long put uses several lanes and may have completed.
        let ended = pair.bench.world.ended(rank, BESIDE);
        assert!(
            matches!(ended, Ok(None) | Err(CommandFailure::PeerDown)),
            "{ended:?}"
        );
    }
    let words = pair.bench.world[0].why_down(peer(1));
    assert!(why.iter().any(|why| words.contains(why)), "{words}");
    let done = [0, 1].map(|rank| pair.bench.value(rank, DONE));
    for rank in 0..2 {
        let other = 1 - rank;
        let bytes = pair.bytes(other);
        let there = done[other] as usize * PART;
        assert!(pair.landed(rank)[..there] == bytes[..there], "{done:?}");
        assert!((done[other]..=PUTS).contains(&pair.bench.value(rank, CAME)));
        assert!(done[rank] < PUTS, "it was not in the midst of them");
    }
    let given_back = [0, 1].map(|rank| pair.give_back(rank));
    let came = [0, 1].map(|rank| pair.bench.value(rank, CAME));
    regions
        .iter()
        .for_each(|region| region.write(0, &vec![3; LONG]));
    cable(mended);
    until_all_are_up();
    pair.bench.world.settle();
    for rank in 0..2 {
        assert!(pair.landed(rank) == given_back[rank], "a late write");
        assert_eq!(pair.bench.value(rank, CAME), came[rank], "a late count");
        assert_eq!(pair.bench.value(rank, DONE), done[rank]);
        assert!(contents(&regions[rank])[..LONG] == vec![3; LONG]);
        let heard = &pair.bench.world[rank].heard;
        assert!(heard.failed.is_empty(), "told twice: {:?}", heard.failed);
    }
}

/// Two ranks that put to each other, from the first half of their regions to the other's second half.
struct Pair {
    bench: Bench,
}

impl Pair {
    /// Uses cables that are so slow that lists take a while.
    fn new(make: Make) -> Self {
        let mut pair = Self {
            bench: Bench::new(make, 2),
        };
        for rank in 0..2 {
            let bytes = pair.bytes(rank);
            pair.bench.regions[rank].write(0, &bytes);
        }
        // Looks up all regions in advance.
        for rank in 0..2 {
            let first = pair.put(rank, 0, [FIRST, FIRST + 1]);
            pair.bench.post(rank, &[first], 99);
            pair.bench.until(rank, FIRST, 1);
        }
        pair.bench.world.settle();
        for rank in 0..2 {
            pair.bench.regions[rank].write(HALF, &[0; HALF]);
            pair.bench.world[rank].heard.triggered.clear();
        }
        for port in DevicePort::all().unwrap() {
            let number = port.device.trim_start_matches("rxe");
            cable(&format!("shape {number} rate 20mbit"));
        }
        pair
    }

    /// Changes a cable in the middle of lists in both directions and of long puts next to them, which go to the returned regions.
    fn torn(make: Make, torn: &str, beside: &mut [Vec<u8>; 2]) -> (Self, [MemoryRegion; 2]) {
        let mut pair = Self::new(make);
        pair.post(0);
        pair.post(1);
        let regions = [0, 1].map(|from| pair.put_beside(from, &mut beside[from]));
        pair.run_until_the_midst();
        cable(torn);
        (pair, regions)
    }

    /// Returns the bytes that a rank puts.
    fn bytes(&self, rank: usize) -> Vec<u8> {
        noise(rank as u64, HALF)
    }

    /// Returns a put that begins when the puts before its pair are complete. It counts at counter `done` here and at `came`
    /// there.
    fn put(&mut self, rank: usize, nth: u64, [done, came]: [usize; 2]) -> TriggeredTask {
        let at = nth as usize * PART;
        let landing = self.bench.landing(1 - rank, HALF + at, PART, came);
        TriggeredTask {
            condition: self.bench.when(rank, DONE, nth / 2 * 2),
            second_condition: None,
            action: TaskAction::Put {
                to: peer(1 - rank),
                from: self.bench.part(rank, at, PART),
                target: PutTarget::Known {
                    into: landing.into,
                    count: Some(landing.count),
                },
                done: Some(self.bench.own(rank, done)),
            },
        }
    }

    /// Posts a list of puts, two at a time, and a list that counts the other rank's puts.
    fn post(&mut self, rank: usize) {
        let puts: Vec<_> = (0..PUTS)
            .map(|nth| self.put(rank, nth, [DONE, CAME]))
            .collect();
        self.bench.post(rank, &puts, PUT.0);
        let ticks: Vec<_> = (1..=PUTS)
            .map(|nth| {
                self.bench
                    .tick(rank, self.bench.when(rank, CAME, nth), TICKS)
            })
            .collect();
        self.bench.post(rank, &ticks, TICK.0);
    }

    /// Posts a long put to the other rank next to the lists. Returns the region that it writes to.
    fn put_beside(&mut self, from: usize, bytes: &mut [u8]) -> MemoryRegion {
        let (region, into) = self.bench.world[1 - from].memory(bytes.len());
        let put = put(1 - from, local(bytes), into, BESIDE);
        self.bench.world.post(from, put);
        region
    }

    fn run_until_the_midst(&mut self) {
        let done = [0, 1].map(|rank| self.bench.own(rank, DONE));
        self.bench.world.until("the midst of the lists", |_| {
            done.iter().all(|done| done.value() >= 2)
        });
    }

    /// Checks the end of torn lists: the puts fail, the peer is reported as down, and the list that waits for the other rank's
    /// puts can be canceled.
    fn ends_in_an_error(&mut self, rank: usize) {
        let ended = self.bench.world.ended(rank, PUT);
        assert!(matches!(ended, Err(CommandFailure::PeerDown)), "{ended:?}");
        self.bench.world.until("the end of a peer", |world| {
            world[rank].heard.down == [(peer(1 - rank), DownCause::Failed)]
        });
        self.bench.world.lists(rank).cancel_lists(TICK);
        let ended = self.bench.world.ended(rank, TICK);
        assert!(matches!(ended, Err(CommandFailure::Cancelled)), "{ended:?}");
        assert!(self.bench.world[rank].heard.triggered.is_empty());
    }

    /// Returns the bytes where the other rank puts.
    fn landed(&self, rank: usize) -> Vec<u8> {
        contents(&self.bench.regions[rank])[HALF..].to_vec()
    }

    /// Reuses all of a region for something else. Returns the new contents of its second half.
    fn give_back(&self, rank: usize) -> Vec<u8> {
        let bytes = noise(20 + rank as u64, 2 * HALF);
        self.bench.regions[rank].write(0, &bytes);
        bytes[HALF..].to_vec()
    }
}

/// Counters of both ranks: completed puts, arrived puts, and tasks that waited for arrivals.
const DONE: usize = 1;
const CAME: usize = 2;
const TICKS: usize = 3;
const FIRST: usize = 4;

const PUT: CommandToken = CommandToken(1);
const TICK: CommandToken = CommandToken(2);
const BESIDE: CommandToken = CommandToken(3);

const PUTS: u64 = 8;
const PART: usize = 4000;
const HALF: usize = 32 << 10;
const TOUCHED: usize = PUTS as usize * PART;
const LONG: usize = 1 << 20;
