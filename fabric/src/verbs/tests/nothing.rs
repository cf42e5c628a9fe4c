//! Puts and gets of no bytes.

use super::{
    CommandToken, Driver, DriverCommand, LONG, PeerLane, PostResult, Ranks, WorldRank, io,
};
use crate::memory::RemoteRegion;

fn move_nothing(ranks: &mut Ranks, key: RemoteRegion) {
    let memory = ranks.all[0].allocate(LONG).unwrap();
    let (to, token) = (WorldRank(1), CommandToken(1));
    let (none, there) = (memory.range().slice(0, 0), key.slice(0, 0).unwrap());
    let (from, into, count) = (none, there, None);
    let put = DriverCommand::Put {
        to,
        from,
        into,
        count,
        token,
    };
    let (from, into) = (there, none);
    let get = DriverCommand::Get {
        to,
        from,
        into,
        token,
    };
    for command in [put, get] {
        assert!(matches!(ranks.all[0].post(command), PostResult::Posted));
    }
}

/// The key is looked up for the first command, and known for the second.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn what_moves_nothing_ends_well_without_the_first_lane() {
    for broken in [false, true] {
        let mut ranks = Ranks::new(2);
        let (_from, _there, key) = ranks.memory();
        ranks.say(0, 1);
        ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
        if broken {
            let first = PeerLane {
                peer: WorldRank(1),
                lane: 0,
            };
            let why = io::Error::other("a test");
            ranks.core(0).links.note_broken(first, why);
            ranks.until(|ranks| ranks.counters[1].lanes_failed.get() == 1);
            ranks.until_settled(0, 1);
        }
        for ended in [2, 4] {
            move_nothing(&mut ranks, key);
            ranks.until(|ranks| ranks.ears[0].ended == ended);
        }
        ranks.say(0, 1);
        ranks.until(|ranks| ranks.ears[1].messages.len() == 2);
    }
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn what_moves_nothing_by_a_key_that_leads_nowhere_ends_in_an_error() {
    let mut ranks = Ranks::new(2);
    let (_from, _there, key) = ranks.memory();
    let generation = key.generation + 1;
    move_nothing(&mut ranks, RemoteRegion { generation, ..key });
    while ranks.ears[0].bad.len() < 2 {
        (0..2).for_each(|rank| ranks.turn_all_the_same(rank));
    }
    assert_eq!(ranks.ears[0].bad, ["CommandToken(1): BadRange"; 2]);
}
