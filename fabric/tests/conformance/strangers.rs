//! Messages to a Portals rank from processes that are not its peers, or that take it for another rank.

use std::sync::Arc;

use ripstop_fabric::{
    driver::{Driver, DriverCommand, PostResult},
    portals::{PortalsConfig, PortalsCounters},
};

use crate::{
    messages::message,
    portals::{FAMILIES, PreparedCopy, little_room, prepare},
    world::{World, peer},
};

/// Rank 0 is the intended target and rank 1 its peer. A third process is the stranger.
struct Street {
    world: World,
    counters: Arc<PortalsCounters>,
    /// The stranger, in a world of its own.
    stranger: World,
}

/// Selects the addresses that a process believes in, from those of all three.
type Belief = fn([Vec<u8>; 3]) -> Vec<Vec<u8>>;

impl Street {
    /// Creates the ranks, with little room at rank 0. The ranks use one belief, the stranger another.
    fn new(family: &'static str, ranks: Belief, stranger: Belief) -> Self {
        let counters = Arc::<PortalsCounters>::default();
        let meant = PortalsConfig {
            counters: Arc::clone(&counters),
            ..little_room(PortalsConfig::default())
        };
        let hired = [meant, PortalsConfig::default(), PortalsConfig::default()]
            .map(|config| prepare(family, config));
        let addresses = hired.each_ref().map(PreparedCopy::address);
        let [meant, friend, third] = hired;
        let connect = |one: PreparedCopy, belief: Belief| {
            Box::new(one.connect(belief(addresses.clone()))) as Box<dyn Driver>
        };
        Self {
            world: World::from_drivers(vec![connect(meant, ranks), connect(friend, ranks)]),
            counters,
            stranger: World::from_drivers(vec![connect(third, stranger)]),
        }
    }

    /// Has the stranger send `count` messages to rank 0, as far as it has room.
    fn is_called(&mut self, count: u64, len: usize) {
        for number in 0..count {
            let message = message(7, number, 8, len);
            let command = DriverCommand::Message {
                to: peer(0),
                header: &message.header,
                body: &message.body,
            };
            // Without room the message is skipped.
            let (PostResult::Posted | PostResult::Full(_)) = self.stranger[0].driver.post(command);
            if number % 8 == 7 {
                self.stranger.carry(0);
            }
        }
        self.stranger.carry(0);
    }

    /// Checks that rank 0 receives only the messages of its peer, numbered from 0 to `numbers.end`.
    fn hears_its_peer(&mut self, numbers: std::ops::Range<u64>) {
        for number in numbers.clone() {
            let sent = message(1, number, 8, 3000);
            self.world.send(1, 0, &sent.header, &sent.body);
        }
        self.world.hears(0, numbers.end as usize);
        self.world.settle();
        let sent = (0..numbers.end).map(|number| message(1, number, 8, 3000));
        assert!(self.world[0].heard.messages.iter().cloned().eq(sent));
        assert!(self.world[0].heard.down.is_empty());
    }
}

/// Ways to be a stranger, each with the beliefs of the ranks and of the stranger.
const STRANGERS: [(&str, Belief, Belief); 3] = [
    ("says it is rank 1", two, |[meant, _, own]| vec![meant, own]),
    ("is of a larger world", two, |all| all.to_vec()),
    (
        "means the process that had the address before",
        |all| all.to_vec(),
        |[mut meant, friend, own]| {
            meant[12] ^= 1; // the field with the process's life
            vec![meant, friend, own]
        },
    ),
];

fn two([meant, friend, _]: [Vec<u8>; 3]) -> Vec<Vec<u8>> {
    vec![meant, friend]
}

#[test]
fn a_stranger_is_not_heard_and_takes_no_sequence_number_of_a_peer() {
    for family in FAMILIES {
        for (case, ranks, stranger) in STRANGERS {
            let mut street = Street::new(family, ranks, stranger);
            street.is_called(3, 100);
            let counters = Arc::clone(&street.counters);
            let what = format!("the nonsense of case {case}, {family}");
            street.world.until(&what, |_| counters.nonsense.get() == 3);
            street.hears_its_peer(0..5);
        }
    }
}

#[test]
fn a_stranger_that_fills_all_memory_stops_no_peer() {
    for family in FAMILIES {
        for (case, ranks, stranger) in STRANGERS {
            let mut street = Street::new(family, ranks, stranger);
            street.hears_its_peer(0..5);
            street.is_called(40, 8000);
            street.hears_its_peer(5..40);
            let nonsense = street.counters.nonsense.get();
            assert!(
                (4..40).contains(&nonsense),
                "{family}, case {case}: {nonsense}"
            );
            assert!(street.counters.enabled.get() > 0, "{family}, case {case}");
        }
    }
}
