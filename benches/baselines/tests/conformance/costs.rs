//! What messages cost in the layouts of other libraries, compared with the Portals driver's layout: checks the counts of each.

use std::{sync::Arc, time::Duration};

use ripstop_fabric::{
    counters::StatsSnapshot,
    driver::{DownCause, DriverCommand, PostResult},
    portals::{PortalsConfig, PortalsCounters},
};

use crate::{
    messages::message,
    world::{Guard, World, peer},
    worlds::{Layout, mpc, ours, pscom, world},
};

/// Costs of `COUNT` messages for both ranks.
struct Cost {
    entries: u64,
    acks: u64,
    events: u64,
    copies: u64,
    copied: u64,
    peer_bytes: u64,
}

const COUNT: u64 = 2000;

fn cost_of(layout: &Layout, body: usize) -> Cost {
    let counters: [Arc<PortalsCounters>; 2] = Default::default();
    let mut each = counters.clone().into_iter();
    let drivers = world(2, "sandia42", layout, |config| PortalsConfig {
        counters: each.next().unwrap(),
        ..config
    });
    let mut world = World::from_drivers(drivers);
    world.meet();
    let before = counters.each_ref().map(|one| one.all.snapshot());
    for number in 0..COUNT {
        let sent = message(1, number, 8, body);
        world.send(1, 0, &sent.header, &sent.body);
    }
    world.hears(0, COUNT as usize);
    world.settle();
    let sent = (0..COUNT).map(|number| message(1, number, 8, body));
    assert!(world[0].heard.from(1).cloned().eq(sent));
    let [a, b] = [0, 1].map(|rank| counters[rank].all.snapshot() - before[rank]);
    let sum = |count: fn(&StatsSnapshot) -> u64| count(&a) + count(&b);
    Cost {
        entries: sum(|one| one.entries),
        acks: sum(|one| one.acks),
        events: sum(|one| one.events),
        copies: sum(|one| one.copies),
        copied: sum(|one| one.bytes_copied),
        peer_bytes: counters[0].peer_bytes.get(),
    }
}

#[test]
fn a_message_appends_an_entry_with_pscom_and_next_to_none_with_ours() {
    let (theirs, ours) = (cost_of(&pscom(), 64), cost_of(&ours(), 64));
    assert_eq!(
        theirs.entries, COUNT,
        "each buffer is appended for one message"
    );
    assert!(100 * ours.entries <= COUNT, "{} entries", ours.entries);
    assert!(
        theirs.acks >= COUNT && ours.acks >= COUNT,
        "each message is acknowledged"
    );
}

/// The messages fit into the initial room, so none is refused and sent again.
#[test]
fn a_message_is_copied_once_and_gives_an_event_at_each_end() {
    for layout in [ours(), mpc()] {
        let cost = cost_of(&layout, 64);
        assert_eq!(cost.copies, COUNT);
        assert_eq!(cost.copied, COUNT * (8 + 64));
        assert_eq!(cost.acks, COUNT);
        assert_eq!(cost.events, 2 * COUNT);
    }
}

#[test]
fn what_pscom_sends_again_is_not_copied_again() {
    for body in [0, 64, 4000] {
        let cost = cost_of(&pscom(), body);
        assert_eq!(cost.copies, COUNT);
        assert_eq!(cost.copied, COUNT * (8 + body as u64));
        assert_eq!(
            cost.events - cost.acks,
            COUNT,
            "each arrives once, however often its put is answered"
        );
    }
}

#[test]
fn a_peer_that_says_nothing_costs_little() {
    let (theirs, ours) = (cost_of(&pscom(), 0), cost_of(&ours(), 0));
    assert!(ours.peer_bytes <= 256, "{} bytes", ours.peer_bytes);
    assert!(theirs.peer_bytes >= 262_144, "{} bytes", theirs.peer_bytes);
}

#[test]
fn blocks_of_mpc_are_shared_as_slabs_are() {
    let theirs = cost_of(&mpc(), 4000);
    assert!(8 * theirs.entries <= COUNT, "{} entries", theirs.entries);
    assert!(theirs.peer_bytes <= 256);
}

#[test]
fn a_job_in_the_layout_of_mpc_ends_when_its_blocks_are_full_and_ours_goes_on() {
    for (layout, ends) in [(mpc(), true), (ours(), false)] {
        let drivers = world(2, "sandia42", &layout, |config| PortalsConfig {
            events: 64,
            ..config
        });
        let mut world = World::from_drivers(drivers);
        let sent = fill(&mut world);
        if ends {
            world.until("the end", |world| !world[0].heard.down.is_empty());
            assert!(world[0].heard.down.contains(&(peer(1), DownCause::Failed)));
        } else {
            world.hears(0, sent as usize);
            assert!(world[0].heard.down.is_empty());
        }
    }
}

/// Sends from rank 1 to rank 0, which makes no turns, until there is no room any more. Returns the number of messages.
fn fill(world: &mut World) -> u64 {
    let guard = Guard::new();
    let (mut sent, mut idle) = (0, 0);
    while idle < 200 {
        let message = message(1, sent, 8, 64);
        let command = DriverCommand::Message {
            to: peer(0),
            header: &message.header,
            body: &message.body,
        };
        let room = matches!(world[1].driver.post(command), PostResult::Posted);
        sent += u64::from(room);
        idle = if room || world[1].progress() > 0 {
            0
        } else {
            idle + 1
        };
        if idle > 0 {
            pause();
        }
        guard.check("the receiver to be full");
    }
    sent
}

#[expect(
    clippy::disallowed_methods,
    reason = "threads of a library cannot be waited for"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}
