//! Ranks with several devices and fewer connections than peers: lanes fail before, while and after connections are evicted.

use std::sync::Arc;

use ripstop_fabric::{
    counters::DriverStats,
    driver::CommandToken,
    memory::{MemoryRegion, RemoteRegion},
};

use super::{
    cables::{Cables, cable, until_all_are_up},
    lanes::devices_by_two,
    put, world,
};
use crate::world::{World, contents, local, noise, peer};

/// Four ranks that can be connected to two peers at a time. The first is connected to the third and to one that it reaches by the
/// wire. The home of one pair is the first lane, and that of the other the second.
struct Few {
    world: World,
    counters: Vec<Arc<DriverStats>>,
    met: usize,
    region: MemoryRegion,
    key: RemoteRegion,
}

impl Few {
    fn new(met: usize) -> Self {
        Self::on(met, devices_by_two)
    }

    fn on(met: usize, devices: fn(u32) -> String) -> Self {
        let counters: Vec<_> = (0..4).map(|_| Arc::new(DriverStats::default())).collect();
        let drivers = world(4, |config| {
            config.device = Some(devices(config.rank.0));
            config.connections_max = Some(2);
            config.counters = Arc::clone(&counters[config.rank.0 as usize]);
        });
        let mut world = World::from_drivers(drivers);
        let (region, key) = world[met].memory(LONG);
        let mut few = Self {
            world,
            counters,
            met,
            region,
            key,
        };
        few.says(met, b"hello");
        few.says(2, b"hello");
        few
    }

    /// Returns ranks with a pulled cable and a long put in flight.
    fn with_a_lane_lost(met: usize, bytes: &mut [u8]) -> Self {
        let mut few = Self::new(met);
        cable("pull 1");
        few.post_put(bytes);
        few
    }

    /// Has the first rank send a message to another one, which must receive it next.
    fn says(&mut self, to: usize, word: &[u8]) {
        self.world.send(0, to, word, b"");
        self.is_heard(to, word);
    }

    fn is_heard(&mut self, by: usize, word: &[u8]) {
        self.world.hears(by, 1);
        let heard = self.world[by].heard.messages.remove(0);
        assert_eq!((heard.from, heard.header.as_slice()), (peer(0), word));
    }

    fn post_put(&mut self, bytes: &mut [u8]) {
        self.world
            .post(0, put(self.met, local(bytes), self.key, CommandToken(1)));
    }

    /// Evicts a connection for one with the fourth rank, and then uses it again.
    fn give_way(&mut self) {
        self.says(2, b"the other was silent for longer");
        self.says(4 - self.met, b"it gives way");
        assert!(self.counters[0].evictions.get() > 0);
    }

    fn lanes_failed(&self) -> [u64; 2] {
        [0, self.met].map(|rank| self.counters[rank].lanes_failed.get())
    }
}

#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_connection_that_has_lost_a_lane_gives_way_and_comes_back() {
    let _cables = Cables::new();
    for met in [1, 3] {
        let mut bytes = noise(0, LONG);
        let mut few = Few::with_a_lane_lost(met, &mut bytes);
        few.world.ended(0, CommandToken(1)).unwrap();
        assert_eq!(few.lanes_failed(), [1; 2]);
        few.give_way();
        few.says(met, b"it is back");
        cable("plug 1");
        until_all_are_up();
    }
}

/// Messages and a long put are in flight when their connection is evicted, and nothing of them arrives on one of its lanes.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_lane_that_fails_while_its_connection_gives_way_costs_nothing() {
    let _cables = Cables::new();
    for met in [1, 3] {
        let mut bytes = noise(0, LONG);
        let mut few = Few::with_a_lane_lost(met, &mut bytes);
        for number in 0..MESSAGES {
            few.world.send(0, met, &[number], b"");
        }
        few.give_way();
        few.world.ended(0, CommandToken(1)).unwrap();
        assert!(contents(&few.region) == bytes);
        for number in 0..MESSAGES {
            few.is_heard(met, &[number]);
        }
        assert!((0..4).all(|rank| few.world[rank].heard.down.is_empty()));
        few.says(met, b"it is back");
        cable("plug 1");
        until_all_are_up();
    }
}

/// Nothing passes between the first devices of the first two ranks any more. Both ranks know that, or find out.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_connection_gives_way_and_comes_back_although_the_first_cable_is_out() {
    let _cables = Cables::new();
    for known in [true, false] {
        let mut bytes = noise(0, LONG);
        let mut few = Few::on(1, |rank| match rank {
            3 => "rxe3,rxe2".to_owned(),
            _ => devices_by_two(rank),
        });
        cable("pull 2");
        if known {
            few.post_put(&mut bytes);
            few.world.ended(0, CommandToken(1)).unwrap();
            assert_eq!(few.lanes_failed(), [1; 2]);
        }
        few.give_way();
        few.says(1, b"it is back");
        few.says(1, b"it stays");
        assert!((0..4).all(|rank| few.world[rank].heard.down.is_empty()));
        cable("plug 2");
        until_all_are_up();
    }
}

const LONG: usize = 1 << 20;
const MESSAGES: u8 = 20;
