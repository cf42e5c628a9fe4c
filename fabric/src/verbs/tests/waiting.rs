//! Commands that wait for a connection, or for room in it.

use super::{Driver, DriverCommand, PostResult, Ranks, WorldRank};
use crate::{connect::ConnectPolicy, offload::LocalCounters};

/// A thousand commands wait for requests of one queue pair, or for the peer's buffers. Trying all of them in each turn would be a
/// million tries.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn of_commands_that_wait_for_the_same_one_is_tried() {
    let mut ranks = Ranks::with(2, |config| {
        config.device = Some(["rxe0", "rxe2"][config.rank.0 as usize % 2].to_owned());
    });
    let (from, _there, key) = ranks.memory();
    ranks.put(&from, key);
    ranks.until(|ranks| ranks.ears[0].ended == 1);
    let counters = LocalCounters::for_tasks(&mut ranks.all[1], 1).unwrap();
    let counter = counters.remote().at(0).unwrap();
    for counts in [false, true] {
        for _ in 0..MANY {
            if counts {
                let (to, by) = (WorldRank(1), 1);
                let count = DriverCommand::Count { to, counter, by };
                assert!(matches!(ranks.all[0].post(count), PostResult::Posted));
            } else {
                ranks.put_and_count(from.range().slice(0, 8), key.slice(0, 8).unwrap(), None);
            }
        }
        let mut turns = 0;
        while ranks.core(0).commands.len() > 0 {
            (0..2).for_each(|rank| ranks.turn(rank, 64));
            turns += 1;
        }
        let parked = &mut ranks.core(0).links.get_or_new(WorldRank(1)).backlog;
        let tried = std::mem::take(&mut parked.popped);
        // Each is tried once when it is posted and once when it goes, and one whenever there is no room.
        assert!(tried <= 3 * (MANY + turns), "{tried} in {turns} turns");
    }
    ranks.until(|_| counters.at(0).value() == MANY as u64);
}

/// Datagram messages need no connection, so a peer that cannot be connected is not lost, unless a command needs a connection.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn what_needs_a_connection_ends_where_there_is_none_to_be_had() {
    for puts in [false, true] {
        let mut ranks = Ranks::with(2, |config| config.scheme = Some(ConnectPolicy::Hybrid));
        let (from, _there, key) = ranks.memory();
        // As if other peers used all of the shared queues.
        for rail in &mut ranks.core(0).rails {
            while rail.inbox.reserve().is_ok() {}
        }
        if puts {
            ranks.put(&from, key);
        } else {
            let (to, header, body) = (WorldRank(1), &b""[..], &[7; 4000][..]);
            let long = DriverCommand::Message { to, header, body };
            assert!(matches!(ranks.all[0].post(long), PostResult::Posted));
        }
        ranks.until_bad(&[0, 1]);
        assert!(
            ranks.ears[0]
                .bad
                .contains(&"WorldRank(1): Failed".to_owned())
        );
        assert_eq!(ranks.core(0).commands.len(), 0);
    }
}

const MANY: usize = 1000;
