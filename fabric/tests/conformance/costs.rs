//! What messages over Portals cost: checks the counts.

use std::{env, process::Command as Process, sync::Arc, time::Duration};

use ripstop_fabric::{
    driver::{Driver, DriverCommand, PostResult},
    portals::{PortalsConfig, PortalsCounters},
};

use crate::{
    messages::message,
    portals::{hired, world},
    world::{Guard, Heard, World, peer},
};

const COUNT: u64 = 2000;

/// The messages fit into the initial room, so none is refused and sent again.
#[test]
fn a_message_is_copied_once_and_appends_next_to_nothing() {
    let counters: [Arc<PortalsCounters>; 2] = Default::default();
    let mut each = counters.clone().into_iter();
    let drivers = world(2, "sandia42", |config| PortalsConfig {
        counters: each.next().unwrap(),
        ..config
    });
    let mut world = World::from_drivers(drivers);
    world.meet();
    let before = counters.each_ref().map(|one| one.all.snapshot());
    for number in 0..COUNT {
        let sent = message(1, number, 8, 64);
        world.send(1, 0, &sent.header, &sent.body);
    }
    world.hears(0, COUNT as usize);
    world.settle();
    let sent = (0..COUNT).map(|number| message(1, number, 8, 64));
    assert!(world[0].heard.from(1).cloned().eq(sent));
    let [a, b] = [0, 1].map(|rank| counters[rank].all.snapshot() - before[rank]);
    let entries = a.entries + b.entries;
    assert!(100 * entries <= COUNT, "{entries} entries");
    assert_eq!(a.copies + b.copies, COUNT);
    assert_eq!(a.bytes_copied + b.bytes_copied, COUNT * (8 + 64));
    assert_eq!(a.acks + b.acks, COUNT);
    assert_eq!(a.events + b.events, 2 * COUNT, "an event at each end");
    let peer_bytes = counters[0].peer_bytes.get();
    assert!(
        peer_bytes <= 256,
        "{peer_bytes} bytes for a peer that says nothing"
    );
}

/// Interrupts per message: the mode, the length of header and body together, and the number of interrupts.
const INTERRUPTS: [(&str, usize, u64); 6] = [
    ("generic", 1000, 2),
    ("generic", 129, 2),
    ("generic", 128, 1),
    ("generic", 8, 1),
    ("offload", 1000, 0),
    ("offload", 8, 0),
];
const LENGTH: &str = "RIPSTOP_TEST_LENGTH";
const EXPECTED: &str = "RIPSTOP_TEST_INTERRUPTS";

#[test]
fn a_message_interrupts_the_host_twice_once_or_never() {
    for (mode, len, interrupts) in INTERRUPTS {
        let mut child = Process::new(env::current_exe().unwrap());
        child.args(["--exact", "costs::interrupts_are_counted", "--nocapture"]);
        child.env("RIPSTOP_PORTALS_MODE", mode);
        child
            .env(LENGTH, len.to_string())
            .env(EXPECTED, interrupts.to_string());
        let ended = child.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success(), "{mode}, {len} bytes: {said}");
    }
}

/// Not a test by itself: the test before starts it in its own process, because the library keeps its mode for its whole life.
#[test]
fn interrupts_are_counted() {
    let number = |name| {
        env::var(name)
            .ok()
            .and_then(|text| text.parse::<usize>().ok())
    };
    let (Some(len), Some(interrupts)) = (number(LENGTH), number(EXPECTED)) else {
        return;
    };
    let mut ranks = hired(2, "sandia42", |config| config);
    let is_inline = len <= ranks[0].driver.caps().inline_max;
    assert!(interrupts == 0 || is_inline == (interrupts == 1));
    let mut heard = [Heard::default(), Heard::default()];
    let guard = Guard::new();
    let mut seen = None;
    for number in 0..21 {
        let sent = message(1, number, 8, len - 8);
        let command = DriverCommand::Message {
            to: peer(0),
            header: &sent.header,
            body: &sent.body,
        };
        let posted = ranks[1].driver.post(command);
        assert!(matches!(posted, PostResult::Posted));
        while heard[0].messages.len() as u64 <= number {
            for (rank, heard) in ranks.iter_mut().zip(&mut heard) {
                let _turn = rank.driver.progress(64, heard);
            }
            guard.check("the message");
        }
        // An arrival while the host is still working needs no interrupt of its own.
        pause();
        if number == 0 {
            seen = ranks[0].driver.interrupts();
        }
    }
    let now = ranks[0].driver.interrupts();
    let interrupted = seen.zip(now).map(|(seen, now)| now - seen);
    let expected = (interrupts > 0).then_some(20 * interrupts as u64);
    assert_eq!(interrupted, expected);
}

#[expect(
    clippy::disallowed_methods,
    reason = "threads of a library cannot be waited for"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(10));
}
