//! Worlds on the software Portals, through the same library files that programs load.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use ripstop_fabric::{
    deferred::DeferredDriver,
    driver::{self, ArmResult, DownCause, Driver, DriverCommand, PostResult, WorldRank},
    portals::{Portals, PortalsConfig, PortalsCounters, PreparedPortals},
    shm::Board,
};

use crate::{
    combine,
    copies::{Copy, Hired},
    lists,
    messages::message,
    placing,
    world::{Guard, World, peer},
};

pub(crate) fn sandia42_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "sandia42", |config| config)
}

pub(crate) fn portails4_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "portails4", |config| config)
}

/// Enables tag matching.
fn matching(config: PortalsConfig) -> PortalsConfig {
    PortalsConfig {
        tags: Some(1),
        ..config
    }
}

pub(crate) fn matching_sandia42_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "sandia42", matching)
}

pub(crate) fn matching_portails4_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "portails4", matching)
}

/// Returns such ranks with a thread that waits for events, and with little room.
pub(crate) fn matching_small_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "portails4", |config| PortalsConfig {
        helper: true,
        ..matching(little_room(config))
    })
}

/// Returns ranks with two slabs of two messages each, and sixteen events.
pub(crate) fn small_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "sandia42", little_room)
}

/// Returns ranks with eight triggered operations per counter.
pub(crate) fn eight_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "portails4", |config| PortalsConfig {
        triggered: 8,
        ..config
    })
}

pub(crate) fn helped_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "portails4", |config| PortalsConfig {
        helper: true,
        ..config
    })
}

/// Makes the driver as cautious as over the published library of this family.
pub(crate) fn as_published(config: PortalsConfig) -> PortalsConfig {
    PortalsConfig {
        published: true,
        ..config
    }
}

pub(crate) fn published_sandia42_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "sandia42", as_published)
}

pub(crate) fn published_portails4_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "portails4", as_published)
}

/// Returns ranks over a library in which an operation to a process that has died never ends.
pub(crate) fn endless_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "sandia42", |config| PortalsConfig {
        habits: Some("ends-never".to_owned()),
        ..config
    })
}

/// Returns ranks over a library whose atomics become visible only on request, that checks only queues it was asked to poll, and
/// that reports failures with as few events as allowed.
pub(crate) fn reticent_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "sandia42", |config| PortalsConfig {
        habits: Some("incoherent,polled-only,short-failures,send-alone".to_owned()),
        ..config
    })
}

pub(crate) fn little_room(config: PortalsConfig) -> PortalsConfig {
    PortalsConfig {
        events: 16,
        slabs: 2,
        slab_len: 2 * 65_664,
        ..config
    }
}

/// Families of the software libraries.
pub(crate) const FAMILIES: [&str; 2] = ["sandia42", "portails4"];

/// Ways to be one of several processes: a family, and interfaces.
pub(crate) const WAYS: [(&str, &[u32]); 3] =
    [("sandia42", &[]), ("portails4", &[]), ("sandia42", &[0, 1])];

/// Opens one rank of a job of processes, which leave their addresses on a board.
pub(crate) fn join(
    board: &Board,
    rank: u32,
    way: usize,
    counters: &Arc<PortalsCounters>,
) -> Box<dyn Driver> {
    let (family, interfaces) = WAYS[way];
    let config = PortalsConfig {
        interfaces: interfaces.iter().copied().map(Into::into).collect(),
        counters: Arc::clone(counters),
        ..PortalsConfig::default()
    };
    let hired = prepare(family, config);
    board.leave_note(rank, &hired.address());
    let notes = board.notes(Guard::new().left());
    let notes = notes.unwrap_or_else(|rank| panic!("rank {rank} has not started"));
    Box::new(hired.connect(notes))
}

pub(crate) fn world(
    ranks: u32,
    family: &'static str,
    change: impl FnMut(PortalsConfig) -> PortalsConfig,
) -> Vec<Box<dyn Driver>> {
    let drivers = hired(ranks, family, change).into_iter();
    drivers
        .map(|driver| Box::new(driver) as Box<dyn Driver>)
        .collect()
}

pub(crate) fn hired(
    ranks: u32,
    family: &'static str,
    mut change: impl FnMut(PortalsConfig) -> PortalsConfig,
) -> Vec<Hired<Portals>> {
    let hired: Vec<_> = (0..ranks)
        .map(|_| prepare(family, change(PortalsConfig::default())))
        .collect();
    let addresses: Vec<_> = hired.iter().map(PreparedCopy::address).collect();
    let connect = |one: PreparedCopy| one.connect(addresses.clone());
    hired.into_iter().map(connect).collect()
}

/// Ranks that learn each other's addresses while they are running.
pub(crate) fn late_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    let hired: Vec<_> = (0..ranks)
        .map(|_| prepare("portails4", PortalsConfig::default()))
        .collect();
    let addresses: Vec<_> = hired.iter().map(PreparedCopy::address).collect();
    let late = |(rank, hired): (u32, PreparedCopy)| {
        let PreparedCopy { copy, prepared } = hired;
        let addresses = addresses.clone();
        let join = move |prepared: Box<dyn driver::PreparedEndpoint>| prepared.connect(&addresses);
        let driver =
            DeferredDriver::open(Box::new(prepared), (WorldRank(rank), ranks), join).unwrap();
        Box::new(Hired::new(driver, copy)) as Box<dyn Driver>
    };
    (0..).zip(hired).map(late).collect()
}

pub(crate) fn prepare(family: &'static str, config: PortalsConfig) -> PreparedCopy {
    let copy = Copy::hire(family);
    let config = PortalsConfig {
        library: Some(copy.path()),
        // A reused copy may have the habits of another world.
        habits: config.habits.or_else(|| Some(String::new())),
        ..config
    };
    let prepared = Portals::prepare(config).unwrap();
    PreparedCopy { copy, prepared }
}

/// A driver that does not know the other ranks yet, and the copy of the library that it uses.
#[derive(Debug)]
pub(crate) struct PreparedCopy {
    copy: Copy,
    prepared: PreparedPortals,
}

impl PreparedCopy {
    pub(crate) fn address(&self) -> Vec<u8> {
        self.prepared.address()
    }

    pub(crate) fn connect(self, addresses: Vec<Vec<u8>>) -> Hired<Portals> {
        Hired::new(self.prepared.connect(addresses).unwrap(), self.copy)
    }
}

#[test]
fn a_flood_of_64_into_little_room_arrives_whole_and_appends_next_to_nothing() {
    flood(64, 1, 100);
}

#[test]
fn several_receivers_that_are_full_at_the_same_time_do_not_stop_each_other() {
    // Twelve senders have more in flight than four receivers have room for.
    flood(12, 4, 100);
}

/// Has each of the first `receivers` ranks get `count` messages from each other rank, with room for four.
fn flood(senders: usize, receivers: usize, count: u64) {
    let counters: Vec<_> = (0..receivers)
        .map(|_| Arc::<PortalsCounters>::default())
        .collect();
    let ranks = senders.max(receivers) + usize::from(receivers == 1);
    let given = Mutex::new(counters.iter().map(Arc::clone).collect::<VecDeque<_>>());
    let drivers = world(ranks as u32, "sandia42", |config| {
        let counters = given.lock().unwrap().pop_front().unwrap_or_default();
        PortalsConfig {
            counters,
            ..little_room(config)
        }
    });
    let mut world = World::from_drivers(drivers);
    let before: Vec<_> = counters
        .iter()
        .map(|counters| counters.all.entries.get())
        .collect();
    let pairs = || (0..receivers).flat_map(|to| (0..ranks).map(move |from| (from, to)));
    for number in 0..count {
        for (from, to) in pairs().filter(|(from, to)| from != to) {
            let sent = message(from, number, 8, 40);
            world.send(from, to, &sent.header, &sent.body);
        }
    }
    let all = usize::try_from(count).unwrap() * (ranks - 1);
    for to in 0..receivers {
        world.hears(to, all);
    }
    for (from, to) in pairs().filter(|(from, to)| from != to) {
        let sent = (0..count).map(|number| message(from, number, 8, 40));
        assert!(
            world[to].heard.from(from).cloned().eq(sent),
            "rank {from} to {to}"
        );
    }
    for (counters, before) in counters.iter().zip(before) {
        assert!(counters.enabled.get() > 0, "there was room enough for all");
        let appended = counters.all.entries.get() - before;
        assert!(100 * appended <= all as u64, "{appended} entries");
    }
    // Each sender that is refused gives a hint, and sixteen fit.
    let lost = counters
        .iter()
        .map(|counters| counters.lost.get())
        .sum::<u64>();
    assert!(senders < 64 || lost > 0, "no hint was dropped");
}

#[test]
fn a_rank_that_has_run_out_of_room_goes_on_placing() {
    for family in FAMILIES {
        let all: Vec<_> = (0..2).map(|_| Arc::<PortalsCounters>::default()).collect();
        let left = Mutex::new(all.clone());
        let drivers = world(2, family, |config| PortalsConfig {
            counters: left.lock().unwrap().pop().unwrap(),
            ..matching(little_room(config))
        });
        let before = all[0].all.entries.get();
        placing::more_than_there_is_room_for(World::from_drivers(drivers));
        // The last counters handed out are rank 1's.
        let [receiver, _] = &all[..] else {
            unreachable!("two ranks")
        };
        assert!(receiver.enabled.get() > 0, "there was room enough for all");
        let (lent, placed) = (receiver.lent.get(), receiver.all.placed.get());
        assert!(lent >= placed && placed > 0, "{placed} of {lent}");
        let slabs = receiver.all.entries.get() - before - lent;
        assert!(
            slabs < 320 - placed,
            "{slabs} slabs for what was not placed"
        );
    }
}

/// Length of a message in bytes, and how many such messages may be in flight to a peer that takes none.
const KEPT: [(usize, u64); 3] = [(100, 256), (8000, 32), (60_000, 16)];

#[test]
fn what_a_peer_has_not_taken_is_bounded_and_leaves_room_for_others() {
    for (len, most) in KEPT {
        let mut world = World::new(sandia42_world, 3);
        let mut posts = |to, number| {
            let sent = message(0, number, 8, len);
            let command = DriverCommand::Message {
                to: peer(to),
                header: &sent.header,
                body: &sent.body,
            };
            matches!(world[0].driver.post(command), PostResult::Posted)
        };
        // Without a turn, the sender does not learn that any was taken.
        let kept = (0..1000).take_while(|number| posts(1, *number)).count() as u64;
        assert_eq!(kept, most, "messages of {len} bytes");
        assert!(!posts(1, kept), "{len} bytes");
        assert!(posts(2, 0), "no room for another peer: {len} bytes");
        world.hears(1, kept as usize);
        world.hears(2, 1);
        let sent = (0..kept).map(|number| message(0, number, 8, len));
        assert!(world[1].heard.from(0).cloned().eq(sent), "{len} bytes");
    }
}

/// The last messages of a rank may reach a process that has inherited the address of its peer, and that can answer.
#[test]
fn jobs_that_take_over_addresses_of_others_are_not_mixed_up_with_them() {
    const JOBS: u32 = 80;
    let run = |line: u32| {
        for job in 0..JOBS {
            let make = [sandia42_world, portails4_world, helped_world, small_world];
            let make = make[((line + job) % 4) as usize];
            World::new(make, 2 + job / 4 % 3).meet();
        }
    };
    std::thread::scope(|scope| {
        for line in 0..4 {
            scope.spawn(move || run(line));
        }
    });
}

#[test]
fn a_list_of_any_length_ends_one_sleep_and_needs_no_help() {
    const TASKS: u64 = 40;
    let all: Vec<_> = (0..2).map(|_| Arc::<PortalsCounters>::default()).collect();
    let left = Mutex::new(all.clone());
    let drivers = world(2, "sandia42", |config| PortalsConfig {
        counters: left.lock().unwrap().pop().unwrap(),
        ..config
    });
    lists::a_row_of_pairs_is_put(World::from_drivers(drivers), TASKS);
    for counters in &all {
        // One for the list, and one for the watch of its end.
        assert_eq!(counters.all.list_words.get(), 2);
        assert_eq!(counters.aided.get(), 0);
    }
}

#[test]
fn blocks_of_integers_are_added_up_without_help() {
    for family in FAMILIES {
        let all: Vec<_> = (0..2).map(|_| Arc::<PortalsCounters>::default()).collect();
        let left = Mutex::new(all.clone());
        let drivers = world(2, family, |config| PortalsConfig {
            counters: left.lock().unwrap().pop().unwrap(),
            ..config
        });
        combine::a_row_of_blocks_is_added(World::from_drivers(drivers), 40);
        for counters in &all {
            // One for the list, and one for the watch of its end.
            assert_eq!(counters.all.list_words.get(), 2, "{family}");
            assert_eq!(counters.aided.get(), 0, "{family}");
        }
    }
}

#[test]
fn a_rank_that_makes_no_turns_serves_its_part_of_a_list() {
    for make in [sandia42_world, portails4_world, eight_world] {
        lists::a_forwarding_adapter_needs_no_turns_of_its_rank(make);
    }
}

#[test]
fn what_forgotten_lists_have_offered_is_not_taken_back() {
    for make in [sandia42_world, portails4_world] {
        lists::what_forgotten_lists_have_offered_is_not_taken_back(make);
    }
}

#[test]
fn a_message_that_the_library_refuses_for_good_costs_the_peer_and_no_sleep() {
    for family in FAMILIES {
        let hired = [(); 2].map(|()| prepare(family, PortalsConfig::default()));
        let [own, mut other] = hired.each_ref().map(PreparedCopy::address);
        // A table entry that no interface has.
        other[17] = 254;
        let [hired, _] = hired;
        let rank = Box::new(hired.connect(vec![own, other])) as Box<dyn Driver>;
        let mut world = World::from_drivers(vec![rank]);
        world.send(0, 1, b"to nowhere", b"");
        world.until("the end of the peer", |world| {
            world[0].heard.down == [(WorldRank(1), DownCause::Failed)]
        });
        assert_eq!(world[0].driver.arm(), ArmResult::Ready, "{family}");
    }
}
