//! Tests of what is done differently over published libraries, as far as our own libraries can show it.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use ripstop_fabric::{
    driver::{CommandFailure, CommandToken, DownCause, DriverCommand},
    portals::{PortalsConfig, PortalsCounters},
};

use crate::{
    portals::{
        PreparedCopy, as_published, prepare, published_portails4_world, published_sandia42_world,
        world,
    },
    world::{World, local, noise, peer},
};

#[test]
fn a_long_get_takes_short_ones_where_long_ones_are_answered_from_elsewhere() {
    let counters = Arc::<PortalsCounters>::default();
    let drivers = world(2, "sandia42", |config| PortalsConfig {
        counters: Arc::clone(&counters),
        ..as_published(config)
    });
    let mut world = World::from_drivers(drivers);
    let (region, key) = world[1].memory(8192);
    let bytes = noise(1, 8192);
    region.write(0, &bytes);
    let before = counters.ends.get();
    let mut got = [0; 5000];
    let get = DriverCommand::Get {
        to: peer(1),
        from: key.slice(1000, 5000).unwrap(),
        into: local(&mut got),
        token: CommandToken(1),
    };
    world.one_sided(0, get).unwrap();
    assert!(got[..] == bytes[1000..6000]);
    assert_eq!(counters.ends.get() - before, 6, "gets of 900 bytes");
}

#[test]
fn what_is_under_way_to_a_peer_that_is_given_up_ends_where_the_library_does_not_notice() {
    for make in [published_sandia42_world, published_portails4_world] {
        let mut world = World::new(make, 3);
        world.meet();
        let [(_kept, theirs), (_also, others)] = [1, 2].map(|rank| world[rank].memory(4096));
        let mut got = [[0; 4096]; 4];
        for (number, into) in got.iter_mut().enumerate() {
            let get = DriverCommand::Get {
                to: peer(1),
                from: theirs,
                into: local(into),
                token: CommandToken(number as u64),
            };
            world.post(0, get);
        }
        assert_eq!(world[0].driver.give_up(peer(1), None), DownCause::Failed);
        for number in 0..4 {
            let ended = world.ended(0, CommandToken(number));
            assert!(matches!(ended, Err(CommandFailure::PeerDown)), "{ended:?}");
        }
        assert_eq!(world[0].heard.down, [(peer(1), DownCause::Failed)]);
        let mut last = [0; 4096];
        let get = DriverCommand::Get {
            to: peer(2),
            from: others,
            into: local(&mut last),
            token: CommandToken(9),
        };
        world.one_sided(0, get).unwrap();
    }
}

#[test]
fn a_rank_does_not_leave_before_all_peers_have_connected() {
    let hired: Vec<_> = (0..2)
        .map(|_| prepare("sandia42", as_published(PortalsConfig::default())))
        .collect();
    let addresses: Vec<_> = hired.iter().map(PreparedCopy::address).collect();
    let [first, second] = <[_; 2]>::try_from(hired).unwrap();
    let (leaving, left) = mpsc::channel();
    thread::scope(|scope| {
        let its_addresses = addresses.clone();
        scope.spawn(move || {
            drop(first.connect(its_addresses));
            leaving.send(()).unwrap();
        });
        let early = left.recv_timeout(Duration::from_millis(300));
        assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout), "it has gone");
        let _second = second.connect(addresses);
        left.recv_timeout(Duration::from_secs(60))
            .expect("it stays");
    });
}
