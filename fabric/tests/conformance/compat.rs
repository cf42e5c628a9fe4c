//! Messages over Portals in the layouts of other libraries, compared with ours: checks the counts of each.

use std::{env, process::Command as Process, sync::Arc, time::Duration};

use ripstop_fabric::{
    counters::StatsSnapshot,
    driver::{DownCause, Driver},
    portals::{BaselineLayout, PortalsConfig, PortalsCounters, PscomLayout},
};

use crate::{
    messages::message,
    portals::{hired, world},
    world::{Guard, Heard, World, peer},
};

pub(crate) fn pscom_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "sandia42", pscom)
}

/// Returns ranks with two receive buffers of 1 KiB and nine send buffers, so that long messages are sent in pieces and many are
/// dropped at first.
pub(crate) fn little_pscom_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    let little = || PscomLayout {
        buffer_size: 1024,
        recvq_size: 2,
        sendq_size: 9,
        eq_size: 256,
        ..PscomLayout::default()
    };
    world(ranks, "portails4", |config| PortalsConfig {
        compat: Some(BaselineLayout::Pscom(little())),
        ..config
    })
}

pub(crate) fn mpc_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "portails4", mpc)
}

pub(crate) fn pscom(config: PortalsConfig) -> PortalsConfig {
    PortalsConfig {
        compat: Some(BaselineLayout::Pscom(PscomLayout::default())),
        ..config
    }
}

fn mpc(config: PortalsConfig) -> PortalsConfig {
    PortalsConfig {
        compat: Some(BaselineLayout::Mpc),
        ..config
    }
}

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

fn cost_of(layout: fn(PortalsConfig) -> PortalsConfig, body: usize) -> Cost {
    let counters: [Arc<PortalsCounters>; 2] = Default::default();
    let mut each = counters.clone().into_iter();
    let drivers = world(2, "sandia42", |config| PortalsConfig {
        counters: each.next().unwrap(),
        ..layout(config)
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
    let (theirs, ours) = (cost_of(pscom, 64), cost_of(|config| config, 64));
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
    for layout in [|config| config, mpc] {
        let cost = cost_of(layout, 64);
        assert_eq!(cost.copies, COUNT);
        assert_eq!(cost.copied, COUNT * (8 + 64));
        assert_eq!(cost.acks, COUNT);
        assert_eq!(cost.events, 2 * COUNT);
    }
}

#[test]
fn what_pscom_sends_again_is_not_copied_again() {
    for body in [0, 64, 4000] {
        let cost = cost_of(pscom, body);
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
    let (theirs, ours) = (cost_of(pscom, 0), cost_of(|config| config, 0));
    assert!(ours.peer_bytes <= 256, "{} bytes", ours.peer_bytes);
    assert!(theirs.peer_bytes >= 262_144, "{} bytes", theirs.peer_bytes);
}

#[test]
fn blocks_of_mpc_are_shared_as_slabs_are() {
    let theirs = cost_of(mpc, 4000);
    assert!(8 * theirs.entries <= COUNT, "{} entries", theirs.entries);
    assert!(theirs.peer_bytes <= 256);
}

#[test]
fn a_job_in_the_layout_of_mpc_ends_when_its_blocks_are_full_and_ours_goes_on() {
    for (layout, ends) in [
        (mpc as fn(PortalsConfig) -> PortalsConfig, true),
        (|config| config, false),
    ] {
        let mut world = World::from_drivers(world(2, "sandia42", |config| PortalsConfig {
            events: 64,
            ..layout(config)
        }));
        let guard = Guard::new();
        let mut sent = 0;
        // The receiver makes no turns until the sender finds no room any more.
        let mut idle = 0;
        while idle < 200 {
            let message = message(1, sent, 8, 64);
            let command = ripstop_fabric::driver::DriverCommand::Message {
                to: peer(0),
                header: &message.header,
                body: &message.body,
            };
            let room = matches!(
                world[1].driver.post(command),
                ripstop_fabric::driver::PostResult::Posted
            );
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
        if ends {
            world.until("the end", |world| !world[0].heard.down.is_empty());
            assert!(world[0].heard.down.contains(&(peer(1), DownCause::Failed)));
        } else {
            world.hears(0, sent as usize);
            assert!(world[0].heard.down.is_empty());
        }
    }
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
        child.args(["--exact", "compat::interrupts_are_counted", "--nocapture"]);
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
        let command = ripstop_fabric::driver::DriverCommand::Message {
            to: peer(0),
            header: &sent.header,
            body: &sent.body,
        };
        let posted = ranks[1].driver.post(command);
        assert!(matches!(posted, ripstop_fabric::driver::PostResult::Posted));
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
