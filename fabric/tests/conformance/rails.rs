//! Long puts and gets over several interfaces of a rank, some of which fail.

use std::{
    env,
    process::{Command as Process, Stdio},
    sync::{Arc, atomic::Ordering::SeqCst},
};

use ripstop_fabric::{
    counters::StatCount,
    driver::{ArmResult, AtomicOp, CommandFailure, CommandToken, DownCause, Driver, DriverCommand},
    memory::{MemoryRegion, RemoteRegion},
    offload::{LocalCounters, PutLanding, PutTarget, TaskAction, TriggeredTask},
    portals::{Interface, PortalsConfig, PortalsCounters},
};

use crate::{
    lists::Bench,
    messages::message,
    portals::world,
    processes::end_of,
    sleeper::{Rest, sleep},
    world::{Guard, Rank, World, all_of, contents, local, noise, peer},
};

pub(crate) fn two_rails_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "sandia42", |config| PortalsConfig {
        interfaces: interfaces(2),
        ..config
    })
}

pub(crate) fn four_rails_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "portails4", |config| PortalsConfig {
        interfaces: interfaces(4),
        ..config
    })
}

pub(crate) fn four_helped_rails_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "portails4", |config| PortalsConfig {
        interfaces: interfaces(4),
        helper: true,
        ..config
    })
}

/// One call of a library can only wait for queues of one interface.
#[test]
fn a_thread_that_waits_for_several_rails_is_never_refused_that() {
    let all: Vec<_> = (0..2).map(|_| Arc::<PortalsCounters>::default()).collect();
    let mut each = all.iter();
    let drivers = world(2, "portails4", |config| PortalsConfig {
        interfaces: interfaces(3),
        helper: true,
        counters: Arc::clone(each.next().unwrap()),
        ..config
    });
    let mut world = World::from_drivers(drivers);
    world.meet();
    let waits = world[1].driver.wait_on();
    for round in 0..20 {
        assert_eq!(world[1].driver.arm(), ArmResult::Ready, "round {round}");
        world.send(0, 1, b"wake", b"");
        assert_eq!(sleep(&waits, Guard::new().left()), Rest::Woken);
        world.hears(1, 1 + round);
        world.settle();
    }
    assert!(all.iter().all(|counters| counters.unwaited.get() == 0));
}

/// Returns the first interfaces.
fn interfaces(count: u32) -> Vec<Interface> {
    (0..count).map(Interface::from).collect()
}

/// Two ranks with several rails, and their counters.
struct Pair {
    world: World,
    counters: Vec<Arc<PortalsCounters>>,
    region: MemoryRegion,
    key: RemoteRegion,
}

impl Pair {
    fn new(rails: [u32; 2], family: &'static str, len: usize) -> Self {
        Self::with(rails.map(interfaces), family, len)
    }

    /// Creates two ranks with these interfaces and connects them.
    fn with(rails: [Vec<Interface>; 2], family: &'static str, len: usize) -> Self {
        let mut pair = Self::bare(rails, family);
        pair.world.meet();
        (pair.region, pair.key) = pair.world[1].memory(len);
        pair
    }

    /// Creates two ranks that have not met.
    fn bare(rails: [Vec<Interface>; 2], family: &'static str) -> Self {
        let counters: Vec<_> = (0..2).map(|_| Arc::<PortalsCounters>::default()).collect();
        let mut each = counters.iter().zip(rails);
        let drivers = world(2, family, |config| {
            let (counters, rails) = each.next().unwrap();
            PortalsConfig {
                interfaces: rails,
                counters: Arc::clone(counters),
                ..config
            }
        });
        let mut world = World::from_drivers(drivers);
        let (region, key) = world[1].memory(4096);
        Self {
            world,
            counters,
            region,
            key,
        }
    }

    /// Returns a key to the first bytes.
    fn part(&mut self, len: usize) -> RemoteRegion {
        let range = all_of(&self.region).slice(0, len);
        self.world[1].driver.expose(range).unwrap()
    }

    fn put(&mut self, bytes: &mut [u8], into: RemoteRegion) {
        let command = DriverCommand::Put {
            to: peer(1),
            from: local(bytes),
            into,
            count: None,
            token: CommandToken(1),
        };
        self.world.post(0, command);
        self.end();
    }

    fn get(&mut self, bytes: &mut [u8], from: RemoteRegion) {
        let command = DriverCommand::Get {
            to: peer(1),
            from,
            into: local(bytes),
            token: CommandToken(1),
        };
        self.world.post(0, command);
        self.end();
    }

    fn end(&mut self) {
        self.world.until("the end of a command", |world| {
            let heard = &world[0].heard;
            !heard.completed.is_empty() || !heard.failed.is_empty()
        });
        let heard = std::mem::take(&mut self.world[0].heard);
        assert_eq!(heard.completed, [CommandToken(1)], "{:?}", heard.failed);
    }

    /// Adds to a word, and returns its previous value.
    fn add(&mut self, number: u64) -> u64 {
        let range = all_of(&self.region).slice(4096, 8);
        let at = self.world[1].driver.expose(range).unwrap();
        let command = DriverCommand::Atomic {
            to: peer(1),
            at,
            op: AtomicOp::Add(number),
            token: CommandToken(2),
        };
        let before = self.world.one_sided(0, command);
        before.unwrap().expect("an atomic fetches")
    }

    fn by_rail(&self) -> [u64; 4] {
        self.counters[0].by_rail.each_ref().map(StatCount::get)
    }
}

#[test]
fn bytes_of_every_length_go_by_all_rails_and_arrive_once() {
    for (family, rails) in [("sandia42", 2), ("portails4", 4)] {
        let mut pair = Pair::new([rails; 2], family, 4 << 20);
        let all = pair.region.len();
        for (seed, len) in [65_535, 65_536, 65_537, 100_001, 1 << 20, 3_333_333, all]
            .into_iter()
            .enumerate()
        {
            let before = pair.by_rail();
            let mut bytes = noise(seed as u64, len);
            let key = pair.part(len);
            pair.put(&mut bytes, key);
            assert!(contents(&pair.region)[..len] == bytes, "{len} bytes");
            let mut back = vec![0; len];
            pair.get(&mut back, key);
            assert!(back == bytes, "{len} bytes back");
            let after = pair.by_rail();
            let used = (0..4).filter(|rail| after[*rail] > before[*rail]).count();
            assert_eq!(used > 1, len > 65_537, "{used} rails for {len} bytes");
        }
        assert_eq!(pair.counters[0].lanes_failed.get(), 0);
    }
}

#[test]
fn ranks_with_different_numbers_of_rails_use_those_that_both_have() {
    for rails in [[1, 2], [2, 1], [2, 4], [4, 2]] {
        let mut pair = Pair::new(rails, "sandia42", 1 << 20);
        let mut bytes = noise(3, 1 << 20);
        let key = pair.key;
        pair.put(&mut bytes, key);
        assert!(contents(&pair.region) == bytes);
        let both = rails[0] > 1 && rails[1] > 1;
        assert_eq!(pair.by_rail()[1] > 100, both, "{rails:?}");
    }
}

#[test]
fn a_rail_of_little_weight_is_left_aside_and_others_share() {
    for (weights, used) in [
        ([1, 1], [true, true]),
        ([1000, 999], [true, true]),
        ([5, 1], [true, false]),
        ([1, 5], [false, true]),
    ] {
        let rails = [0, 1].map(|number| Interface {
            number,
            weight: weights[number as usize],
        });
        let mut pair = Pair::with([rails.to_vec(), rails.to_vec()], "sandia42", 1 << 20);
        let mut bytes = noise(5, 1 << 20);
        let key = pair.key;
        let before = pair.by_rail();
        pair.put(&mut bytes, key);
        assert!(contents(&pair.region) == bytes);
        let moved = pair.by_rail();
        let moved = [0, 1].map(|rail| moved[rail] - before[rail]);
        assert_eq!(moved.map(|bytes| bytes > 0), used, "{weights:?}: {moved:?}");
        assert_eq!(moved.iter().sum::<u64>(), 1 << 20, "{weights:?}");
    }
}

#[test]
fn both_ranks_of_a_pair_find_the_same_home_and_different_pairs_use_different_rails() {
    const RANKS: u32 = 8;
    let counters: Vec<_> = (0..RANKS)
        .map(|_| Arc::<PortalsCounters>::default())
        .collect();
    let mut each = counters.iter();
    let drivers = world(RANKS, "sandia42", |config| PortalsConfig {
        interfaces: interfaces(2),
        counters: Arc::clone(each.next().unwrap()),
        ..config
    });
    let mut world = World::from_drivers(drivers);
    let moved = || {
        let of_rank =
            |counters: &Arc<PortalsCounters>| counters.by_rail.each_ref().map(StatCount::get);
        counters.iter().map(of_rank).collect::<Vec<_>>()
    };
    let mut homes = [0; 2];
    for from in 0..RANKS as usize {
        for to in 0..from {
            let before = moved();
            world.send(from, to, b"there", b"");
            world.send(to, from, b"back!", b"");
            world.settle();
            let after = moved();
            let rails = [from, to].map(|rank| {
                let used = |rail: &usize| after[rank][*rail] == before[rank][*rail] + 5;
                (0..2).find(used).expect("a rail moved the message")
            });
            assert_eq!(rails[0], rails[1], "ranks {from} and {to}");
            homes[rails[0]] += 1;
        }
    }
    assert!(
        homes.iter().all(|pairs| *pairs > 5),
        "{homes:?} of 28 pairs"
    );
}

/// Bytes that leave each rail of each rank until it is cut off; 0 for never.
const CUTS: [&[u64]; 8] = [
    &[0, 1],
    &[0, 700_000, 0, 0],
    &[0, 0, 3_000_000, 0],
    &[0, 0, 0, 6_000_000],
    &[FIRST_WORDS, 0],
    &[700_000, 0],
    &[3_000_000, 0, 0, 0],
    &[300_000, 1_000_000, 4_000_000, 0],
];
/// Bytes that are more than the test of the first rail needs when it is opened.
const FIRST_WORDS: u64 = 2000;
const CUT: &str = "RIPSTOP_PORTALS_CUT";
const FAMILY: &str = "RIPSTOP_TEST_FAMILY";

/// Starts a test in its own process, because a library reads its settings from the environment.
pub(crate) fn run_cut(test: &str, cuts: &[u64], family: &str) {
    let mut child = Process::new(env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]);
    let all: Vec<_> = cuts.iter().map(u64::to_string).collect();
    child.env(CUT, all.join(",")).env(FAMILY, family);
    child.stdout(Stdio::null());
    let ended = end_of(&mut child.spawn().unwrap());
    assert!(ended.success(), "{test}: {cuts:?}, {family}");
}

/// A child process: its family, its number of rails, and how many of them are cut off.
pub(crate) struct Child {
    pub(crate) family: &'static str,
    rails: u32,
    cut: u64,
}

impl Child {
    /// Returns `None` if the test was not started with these variables.
    pub(crate) fn of_environment() -> Option<Self> {
        let (cuts, family) = (env::var(CUT).ok()?, env::var(FAMILY).ok()?);
        let mut known = crate::portals::FAMILIES.iter().copied();
        let cuts: Vec<_> = cuts.split(',').collect();
        Some(Self {
            family: known.find(|known| *known == family)?,
            rails: cuts.len() as u32,
            cut: cuts.iter().filter(|bytes| **bytes != "0").count() as u64,
        })
    }
}

#[test]
fn what_a_rail_had_when_it_was_cut_off_goes_by_others() {
    for (nth, cuts) in CUTS.into_iter().enumerate() {
        run_cut(
            "rails::a_rail_is_cut_off",
            cuts,
            ["sandia42", "portails4"][nth % 2],
        );
    }
}

/// Not a test by itself: the test before starts it.
#[test]
fn a_rail_is_cut_off() {
    let Some(Child { family, rails, cut }) = Child::of_environment() else {
        return;
    };
    let mut pair = Pair::new([rails; 2], family, 16 << 20);
    let key = pair.key;
    for seed in 0..4 {
        let mut bytes = noise(seed, pair.region.len());
        pair.put(&mut bytes, key);
        assert!(contents(&pair.region) == bytes, "put {seed}");
        let mut back = vec![0; bytes.len()];
        pair.get(&mut back, key);
        assert!(back == bytes, "get {seed}");
    }
    let [first, second] = [0, 1].map(|rank: usize| pair.counters[rank].lanes_failed.get());
    assert!(first + second > 0, "nothing was cut off");
    assert!(
        first <= cut && second <= cut,
        "{first} and {second} lanes failed"
    );
    // New memory is reached by the remaining rails.
    let (region, key) = pair.world[1].memory(1 << 20);
    (pair.region, pair.key) = (region, key);
    let mut bytes = noise(9, 1 << 20);
    pair.put(&mut bytes, key);
    assert!(contents(&pair.region) == bytes);
    let before = pair.add(1);
    assert_eq!(pair.add(1), before + 1);
}

#[test]
fn an_atomic_that_comes_to_where_memory_was_is_done_where_it_is_now() {
    for family in crate::portals::FAMILIES {
        run_cut("rails::the_memory_of_a_peer_moves", &[300_000, 0], family);
    }
}

/// Not a test by itself: the test before starts it.
#[test]
fn the_memory_of_a_peer_moves() {
    let Some(Child { family, rails, .. }) = Child::of_environment() else {
        return;
    };
    let drivers = world(3, family, |config| PortalsConfig {
        interfaces: interfaces(rails),
        ..config
    });
    let mut world = World::from_drivers(drivers);
    world.meet();
    let (region, key) = world[1].memory(1 << 20);
    // Too many bytes for the first rail of rank 0. Both ranks close that lane, but rank 2, which makes no turns, does not learn
    // of it.
    let mut bytes = noise(11, 1 << 20);
    let command = DriverCommand::Put {
        to: peer(1),
        from: local(&mut bytes),
        into: key,
        count: None,
        token: CommandToken(1),
    };
    world.post(0, command);
    while world[0].heard.completed.is_empty() {
        assert!(world[0].heard.failed.is_empty());
        world.turn_others(2);
    }
    region.atomic_u64(8).store(40, SeqCst);
    for (token, old) in [(2, 40), (3, 42)] {
        let command = DriverCommand::Atomic {
            to: peer(1),
            at: key.slice(8, 8).unwrap(),
            op: AtomicOp::Add(2),
            token: CommandToken(token),
        };
        assert_eq!(world.one_sided(2, command).unwrap(), Some(old));
    }
    assert!(world[2].heard.down.is_empty());
}

#[test]
fn a_count_that_no_rail_takes_any_more_is_not_waited_for_in_vain() {
    for family in crate::portals::FAMILIES {
        run_cut("rails::no_rail_reaches_all", &[300_000, 600_000], family);
    }
}

/// Not a test by itself: the test before starts it.
#[test]
fn no_rail_reaches_all() {
    const LEN: usize = 17 * 4096;
    let Some(Child { family, .. }) = Child::of_environment() else {
        return;
    };
    // Long puts of rank 1 use its first rail, and those of rank 2 its second.
    let mut weights = [[1, 1], [1000, 1], [1, 1000]].into_iter();
    let drivers = world(3, family, |config| {
        let weights = weights.next().unwrap();
        let interface = |number: u32| Interface {
            number,
            weight: weights[number as usize],
        };
        PortalsConfig {
            interfaces: (0..2).map(interface).collect(),
            ..config
        }
    });
    let mut world = World::from_drivers(drivers);
    world.meet();
    let (_region, into) = world[0].memory(LEN);
    let counters = LocalCounters::new(&mut *world[0].driver, 1).unwrap();
    for (from, bytes) in [(1, 300_000), (2, 600_000)] {
        for token in 0..=bytes / LEN as u64 {
            let mut bytes = noise(token, LEN);
            let command = DriverCommand::Put {
                to: peer(0),
                from: local(&mut bytes),
                into,
                count: None,
                token: CommandToken(token),
            };
            world.one_sided(from, command).unwrap();
        }
        world.settle();
    }
    // Counts for rank 0 use the first rail, which rank 1 has lost.
    let counter = counters.remote().at(0).unwrap();
    let to = peer(0);
    world.post(1, DriverCommand::Count { to, counter, by: 1 });
    world.until("a count, or the news that there is none", |world| {
        counters.at(0).value() == 1 || !world[0].heard.down.is_empty()
    });
}

#[test]
fn what_a_rank_puts_to_itself_by_a_rail_that_is_cut_off_goes_by_others() {
    for cuts in [&[0, 700_000][..], &[700_000, 0, 0, 0]] {
        run_cut("rails::the_way_to_oneself_is_cut_off", cuts, "portails4");
    }
}

/// Not a test by itself: the test before starts it.
#[test]
fn the_way_to_oneself_is_cut_off() {
    let Some(Child { family, rails, .. }) = Child::of_environment() else {
        return;
    };
    let counters = Arc::<PortalsCounters>::default();
    let drivers = world(1, family, |config| PortalsConfig {
        interfaces: interfaces(rails),
        counters: Arc::clone(&counters),
        ..config
    });
    let mut world = World::from_drivers(drivers);
    let (region, into) = world[0].memory(1 << 20);
    for round in 0..4 {
        let mut bytes = noise(round, 1 << 20);
        let command = DriverCommand::Put {
            to: peer(0),
            from: local(&mut bytes),
            into,
            count: None,
            token: CommandToken(round),
        };
        world.one_sided(0, command).unwrap();
        assert!(contents(&region) == bytes, "round {round}");
    }
    assert!(counters.lanes_failed.get() > 0, "nothing was cut off");
}

#[test]
fn a_list_of_a_first_rail_that_is_cut_off_ends_with_an_error_that_says_so() {
    for family in crate::portals::FAMILIES {
        run_cut("rails::a_list_is_cut_off", &[300_000, 0], family);
    }
}

/// Not a test by itself: the test before starts it.
#[test]
fn a_list_is_cut_off() {
    const LEN: usize = 20_000;
    let Some(Child { family, rails, .. }) = Child::of_environment() else {
        return;
    };
    let drivers = world(2, family, |config| PortalsConfig {
        interfaces: interfaces(rails),
        ..config
    });
    let mut bench = Bench::of(World::from_drivers(drivers), 2);
    let PutLanding { into, count, .. } = bench.landing(1, 0, LEN, 3);
    let put = |nth| TriggeredTask {
        condition: bench.when(0, 1, nth),
        second_condition: Some(bench.when(0, 0, 1)),
        action: TaskAction::Put {
            to: peer(1),
            from: bench.part(0, 0, LEN),
            target: PutTarget::Known {
                into,
                count: Some(count),
            },
            done: Some(bench.own(0, 1)),
        },
    };
    let puts: Vec<_> = (0..40).map(put).collect();
    bench.post(0, &puts, 1);
    bench.count(0, 0, 0, 1);
    match bench.world.ended(0, CommandToken(1)) {
        Err(CommandFailure::Transport(why)) => {
            let why = why.to_string();
            assert!(
                why.contains("the first rail to this peer has failed"),
                "{why}"
            );
        }
        other => panic!("{other:?}"),
    }
    // A rank that waits for a counter is notified, although the adapter's notifications to its own rank no longer use that rail.
    bench.count(0, 0, 2, 1);
    bench.until(0, 2, 1);
    // Traffic that does not belong to lists continues on the other rail.
    for (from, to) in [(0, 1), (1, 0)] {
        bench.world[to].heard.messages.clear();
        bench.world.send(from, to, b"still there?", b"");
        bench.world.hears(to, 1);
    }
    assert!((0..2).all(|rank| bench.world[rank].heard.down.is_empty()));
}

#[test]
fn what_a_list_counts_by_failing_is_told_after_the_failure() {
    for family in crate::portals::FAMILIES {
        run_cut("rails::a_list_counts_by_failing", &[300_000, 0], family);
    }
}

/// Not a test by itself: the test before starts it.
#[test]
fn a_list_counts_by_failing() {
    let Some(child) = Child::of_environment() else {
        return;
    };
    (0..2).for_each(|cut| counts_by_failing(&child, cut));
}

/// Has rank 0 put to rank 1 while the first rail of one of them is cut off.
fn counts_by_failing(child: &Child, cut: usize) {
    let drivers = world(2, child.family, |config| PortalsConfig {
        interfaces: interfaces(child.rails),
        ..config
    });
    let mut bench = Bench::of(World::from_drivers(drivers), 2);
    post_puts(&mut bench, 0);
    let (counter, token) = (bench.own(0, 1), CommandToken(2));
    let watch = DriverCommand::Watch {
        counter: &counter,
        threshold: PUTS,
        token,
    };
    bench.world.post(0, watch);
    if cut == 1 {
        post_puts(&mut bench, 1);
        bench.count(1, 1, 0, 1);
        while bench.value(1, 1) < PUTS {
            bench.world.turn_others(1);
        }
    }
    bench.count(0, 0, 0, 1);
    // Take one event per turn, to see which comes first.
    let turn = |bench: &mut Bench| {
        let Rank { driver, heard, .. } = &mut bench.world[0];
        let _events = driver.progress(1, heard);
        let in_order = heard.reached.is_empty() || !heard.failed.is_empty();
        assert!(in_order, "as if all had gone well: rail of {cut}");
    };
    while bench.value(0, 1) < PUTS {
        turn(&mut bench);
    }
    // While the other rank does not answer, it may have died.
    (0..4 * PUTS).for_each(|_| turn(&mut bench));
    while bench.world[0].heard.failed.is_empty() {
        turn(&mut bench);
        bench.world.turn_others(0);
    }
    let ended = bench.world.ended(0, CommandToken(1));
    assert!(
        matches!(ended, Err(CommandFailure::Transport(_))),
        "{ended:?}"
    );
    let told = |world: &World| world[0].heard.reached == [token];
    bench.world.until("a watch that was held back", told);
}

const PUTS: u64 = 40;

/// Posts puts of a rank to the other one, which begin when its first counter is 1. Its second counter counts them.
fn post_puts(bench: &mut Bench, rank: usize) {
    const LEN: usize = 20_000;
    let into = bench.landing(1 - rank, 0, LEN, 3).into;
    let put = |_| TriggeredTask {
        condition: bench.when(rank, 0, 1),
        second_condition: None,
        action: TaskAction::Put {
            to: peer(1 - rank),
            from: bench.part(rank, 0, LEN),
            target: PutTarget::Known { into, count: None },
            done: Some(bench.own(rank, 1)),
        },
    };
    let puts: Vec<_> = (0..PUTS).map(put).collect();
    bench.post(rank, &puts, 1);
}

#[test]
fn messages_of_a_rail_that_is_cut_off_arrive_once_and_in_order_by_another() {
    for (rails, rail) in [(2, 0), (2, 1), (4, 0), (4, 2)] {
        for bytes in [1, 20_000, 500_000] {
            let mut cuts = vec![0; rails];
            cuts[rail] = bytes + FIRST_WORDS;
            run_cut("rails::the_home_is_cut_off", &cuts, "sandia42");
        }
    }
    let three = [100_000, 1, 300_000, 0];
    run_cut("rails::the_home_is_cut_off", &three, "portails4");
}

/// Not a test by itself: the test before starts it.
#[test]
fn the_home_is_cut_off() {
    const COUNT: u64 = 600;
    let Some(Child { family, rails, .. }) = Child::of_environment() else {
        return;
    };
    // Each rail is the home of some pairs.
    let drivers = world(4, family, |config| PortalsConfig {
        interfaces: interfaces(rails),
        ..config
    });
    let mut world = World::from_drivers(drivers);
    let pairs = || (0..4).flat_map(|from| (0..4).map(move |to| (from, to)));
    let sent = |from, number| message(from, number, 8, (number as usize * 37) % 5000);
    for number in 0..COUNT {
        for (from, to) in pairs().filter(|(from, to)| from != to) {
            let sent = sent(from, number);
            world.send(from, to, &sent.header, &sent.body);
        }
    }
    for to in 0..4 {
        world.hears(to, 3 * COUNT as usize);
    }
    for (from, to) in pairs().filter(|(from, to)| from != to) {
        let sent = (0..COUNT).map(|number| sent(from, number));
        assert!(
            world[to].heard.from(from).cloned().eq(sent),
            "rank {from} to {to}"
        );
    }
    assert!((0..4).all(|rank| world[rank].heard.down.is_empty()));
}

#[test]
fn a_peer_that_no_rail_reaches_is_lost_and_all_commands_end() {
    for cuts in [&[FIRST_WORDS, 1][..], &[400_000, 1, 900_000, 200_000]] {
        run_cut("rails::all_rails_are_cut_off", cuts, "sandia42");
    }
}

/// Not a test by itself: the test before starts it.
#[test]
fn all_rails_are_cut_off() {
    let Some(Child { family, rails, .. }) = Child::of_environment() else {
        return;
    };
    let mut pair = Pair::bare([interfaces(rails), interfaces(rails)], family);
    let mut bytes = vec![7; 16 << 20];
    let (_region, key) = pair.world[1].memory(bytes.len());
    for token in 0..3 {
        let command = DriverCommand::Put {
            to: peer(1),
            from: local(&mut bytes),
            into: key,
            count: None,
            token: CommandToken(token),
        };
        pair.world.post(0, command);
    }
    pair.world.send(0, 1, b"is anybody there?", b"");
    pair.world.until("the end of everything", |world| {
        let heard = &world[0].heard;
        heard.completed.len() + heard.failed.len() == 3 && !heard.down.is_empty()
    });
    let heard = &pair.world[0].heard;
    assert_eq!(heard.down, [(peer(1), DownCause::Failed)]);
    assert!(!heard.failed.is_empty(), "what was it that arrived?");
}
