//! Names and counters for which the library has no room.

use std::sync::Arc;

use super::{FAMILIES, World};
use crate::{
    driver::{
        ArmResult, CommandFailure, CommandToken, Driver, DriverCommand, PostResult, TaskLists,
        WorldRank,
    },
    memory::{MemoryRegion, RemoteRegion},
    offload::{CounterCondition, LocalCounters, RemoteCounter, TaskAction, TriggeredTask},
    portals::{calls::PortalsNi, room::REFUSALS_MAX},
};

const NAME: u64 = 5 << 32 | 7;
/// A table entry that does not exist.
const NOWHERE: u32 = 200;

impl World {
    fn posts(&mut self, rank: usize, command: DriverCommand<'_>) {
        assert!(matches!(self.rank(rank).post(command), PostResult::Posted));
    }

    /// Has a rank retry names that found no room.
    fn name_again(&mut self, rank: usize) {
        let driver = self.rank(rank);
        driver.lists.name_again(&driver.transport);
    }

    /// Gives memory of rank 1 a name.
    fn names(&mut self) -> MemoryRegion {
        let region = self.rank(1).allocate(4096).expect("memory");
        self.rank(1).give_name(NAME, &region);
        region
    }

    /// Posts a list at rank 1 with one count of its own.
    fn lists(&mut self, counters: &LocalCounters, threshold: u64, token: u64) {
        let task = TriggeredTask {
            condition: CounterCondition {
                counter: counters.at(0),
                threshold,
            },
            second_condition: None,
            action: TaskAction::Count {
                to: WorldRank(1),
                counter: counters.remote().at(1).expect("a counter"),
                by: 1,
            },
        };
        let taken = self.rank(1).post_list(&[task], CommandToken(token));
        assert!(taken, "there is room");
    }

    /// Posts a list at rank 1 of counts at rank 0, which has no room for them, so all must be resent. The library refuses the
    /// resends.
    fn counts_in_vain(&mut self, tasks: u64) -> Arc<PortalsNi> {
        let [own, theirs] =
            [1, 0].map(|rank| LocalCounters::for_tasks(self.rank(rank), 1).expect("memory"));
        let task = |_| TriggeredTask {
            condition: CounterCondition {
                counter: own.at(0),
                threshold: 0,
            },
            second_condition: None,
            action: TaskAction::Count {
                to: WorldRank(0),
                counter: theirs.remote().at(0).expect("a counter"),
                by: 1,
            },
        };
        let tasks: Vec<_> = (0..tasks).map(task).collect();
        // A missing table entry has the same effect as a lack of room.
        let lists = std::mem::replace(
            &mut self.rank(1).transport.peer_mut(0).address.tables.lists,
            NOWHERE,
        );
        let ni = self.rank(1).transport.resources.ni.clone();
        ni.refuse("PtlPut", "PTL_NO_SPACE", None);
        let taken = self.rank(1).post_list(&tasks, CommandToken(1));
        assert!(taken, "there is room");
        self.rank(1).transport.peer_mut(0).address.tables.lists = lists;
        self.until(|world| world.rank(1).transport.room.refusals() as usize >= 2 * tasks.len());
        assert_eq!(self.heard(1).triggered, 1, "they have not begun");
        ni
    }

    /// Waits for a list of this token to fail with a remedy in its error.
    fn advises(&mut self, token: u64) {
        self.until(|world| !world.heard(1).ended.is_empty());
        let ended = self.heard(1).ended.pop();
        let Some((of, Err(CommandFailure::Transport(why)))) = ended else {
            panic!("{ended:?}");
        };
        let why = why.to_string();
        let advice = why.contains("max_entries = ") && why.contains("RIPSTOP_COLLECTIVES=messages");
        assert!(of == token && advice, "{of}: {why}");
    }
}

#[test]
fn a_name_that_finds_no_room_is_given_when_there_is_some() {
    for family in FAMILIES {
        let mut world = World::new(family, 2);
        let ni = world.rank(1).transport.resources.ni.clone();
        let region = world.rank(1).allocate(4096).expect("memory");
        ni.refuse("PtlMEAppend", "PTL_NO_SPACE", None);
        let region = &region;
        world.rank(1).give_name(NAME, region);
        let own = world.rank(0).allocate(64).expect("memory");
        let put = DriverCommand::Put {
            to: WorldRank(1),
            from: own.range().slice(0, 8),
            into: RemoteRegion::named(1, NAME, 0, 8),
            count: None,
            token: CommandToken(1),
        };
        world.posts(0, put);
        (0..100).for_each(|_| (0..2).for_each(|rank| world.turn(rank)));
        assert!(world.heard(0).ended.is_empty(), "{family}");
        world.sleeps_between_retries(1);
        assert!(ni.obey() > 50, "{family}: it is not tried in each turn");
        world.until(|world| !world.heard(0).ended.is_empty());
        let ended = &world.heard(0).ended;
        assert!(matches!(ended[..], [(1, Ok(None))]), "{family}: {ended:?}");
    }
}

#[test]
fn lists_end_with_advice_as_long_as_a_name_has_no_room() {
    for code in ["PTL_NO_SPACE", "PTL_LIST_TOO_LONG"] {
        let mut world = World::new("sandia42", 2);
        let counters = LocalCounters::for_tasks(world.rank(1), 2).expect("memory");
        let region = world.names();
        world.rank(1).take_back_name(NAME);
        let ni = world.rank(1).transport.resources.ni.clone();
        world.lists(&counters, 9, 1);
        ni.refuse("PtlMEAppend", code, None);
        world.rank(1).give_name(NAME, &region);
        if code == "PTL_NO_SPACE" {
            (0..REFUSALS_MAX - 2).for_each(|_| world.name_again(1));
            assert!(world.rank(1).lists.need_retry(), "too early");
            world.name_again(1);
        }
        world.advises(1);
        world.lists(&counters, 0, 2);
        world.advises(2);
        assert_eq!(
            world.rank(1).arm(),
            ArmResult::Ready,
            "{code}: busy for ever"
        );
        ni.obey();
        world.turn(1);
        world.lists(&counters, 0, 3);
        world.until(|world| world.heard(1).triggered == 1);
    }
}

#[test]
fn lists_end_as_long_as_a_name_is_to_be_given_that_no_bits_say() {
    const TOO_LONG: u64 = 1 << 63;
    let mut world = World::new("sandia42", 2);
    let counters = LocalCounters::for_tasks(world.rank(1), 2).expect("memory");
    let region = world.rank(1).allocate(4096).expect("memory");
    for region in [counters.region(), &region] {
        let name = TOO_LONG;
        world.lists(&counters, 9, 1);
        world.rank(1).give_name(name, region);
        world.until(|world| !world.heard(1).ended.is_empty());
        let ended = world.heard(1).ended.pop();
        let Some((1, Err(CommandFailure::Transport(why)))) = ended else {
            panic!("{ended:?}");
        };
        assert!(why.to_string().contains("fewer"), "{why}");
        world.rank(1).take_back_name(name);
        world.rank(1).cancel_lists(CommandToken(1));
        world.until(|world| world.heard(1).ended.pop().is_some());
    }
    world.lists(&counters, 0, 3);
    world.until(|world| world.heard(1).triggered == 1);
}

#[test]
fn a_list_whose_count_is_to_be_sent_again_ends_as_long_as_a_name_has_no_room() {
    for family in FAMILIES {
        let mut world = World::new(family, 2);
        let ni = world.counts_in_vain(1);
        let region = world.rank(1).allocate(4096).expect("memory");
        ni.refuse("PtlMEAppend", "PTL_LIST_TOO_LONG", None);
        world.rank(1).give_name(NAME, &region);
        world.advises(1);
    }
}

#[test]
fn a_rank_with_counts_that_a_peer_has_no_room_for_sleeps() {
    for family in FAMILIES {
        let mut world = World::new(family, 2);
        let ni = world.counts_in_vain(1);
        world.sleeps_between_retries(1);
        ni.obey();
        // Now the library has room, and the peer has none.
        world.sleeps_between_retries(1);
        assert!(world.heard(1).ended.is_empty(), "{family}: given up");
    }
}

#[test]
fn a_sleeping_rank_gives_up_a_name_that_never_finds_room() {
    let mut world = World::new("sandia42", 2);
    let counters = LocalCounters::for_tasks(world.rank(1), 2).expect("memory");
    let region = world.rank(1).allocate(4096).expect("memory");
    let ni = world.rank(1).transport.resources.ni.clone();
    world.lists(&counters, 9, 1);
    ni.refuse("PtlMEAppend", "PTL_NO_SPACE", None);
    world.rank(1).give_name(NAME, &region);
    while world.heard(1).ended.is_empty() {
        world.rests(1);
    }
    let asked = ni.obey();
    // A second in total, in sleeps of 4 ms.
    assert!((256..2000).contains(&asked), "{asked} times");
    world.advises(1);
}

#[test]
fn what_was_to_be_sent_again_is_not_when_its_list_is_taken_back() {
    for family in FAMILIES {
        let mut world = World::new(family, 2);
        let ni = world.counts_in_vain(2);
        ni.obey();
        ni.refuse("PtlPut", "PTL_ARG_INVALID", None);
        world.until(|world| !world.heard(1).ended.is_empty());
        let ended = &world.heard(1).ended;
        assert!(
            matches!(ended[..], [(1, Err(CommandFailure::Transport(_)))]),
            "{family}: {ended:?}"
        );
        assert_eq!(ni.obey(), 1, "{family}: sent for a list that had failed");
    }
}

#[test]
fn a_watch_without_room_for_its_counter_is_not_told_of_before_it_is_reached() {
    for family in FAMILIES {
        let mut world = World::new(family, 1);
        let counters = LocalCounters::for_tasks(world.rank(0), 1).expect("memory");
        let ni = world.rank(0).transport.resources.ni.clone();
        ni.refuse("PtlMEAppend", "PTL_NO_SPACE", None);
        let counter = counters.at(0);
        let watch = DriverCommand::Watch {
            counter: &counter,
            threshold: 5,
            token: CommandToken(1),
        };
        world.posts(0, watch);
        (0..10).for_each(|_| world.turn(0));
        assert!(
            world.heard(0).reached.is_empty(),
            "{family}: no peer counted"
        );
        ni.obey();
        let counter: RemoteCounter = counters.remote().at(0).expect("a counter");
        let (to, by) = (WorldRank(0), 5);
        world.posts(0, DriverCommand::Count { to, counter, by });
        world.until(|world| world.heard(0).reached == [1]);
    }
}
