//! Waiting for room that is never signaled: a rank sleeps meanwhile, and continues once there is room.

use super::{FAMILIES, World};
use crate::{
    driver::{
        ArmResult, CommandFailure, CommandToken, DownCause, Driver, DriverCommand, PostResult,
        TaskLists, WorldRank,
    },
    memory::{MemoryRegion, RemoteRegion},
    offload::{CounterCondition, LocalCounter, LocalCounters, TaskAction, TriggeredTask},
    portals::room::REFUSALS_MAX,
};

impl World {
    /// Lets a rank sleep while it waits for something. Each of its retries may end one sleep.
    pub(super) fn sleeps_between_retries(&mut self, rank: usize) {
        for _ in 0..100 {
            (0..self.ranks.len()).for_each(|rank| self.turn(rank));
        }
        let others: u32 = (0..10).map(|_| self.sleeps(rank)).sum();
        assert!(others <= 15, "woken {others} times in vain");
    }

    fn takes(&mut self, rank: usize, command: DriverCommand<'_>) {
        assert!(matches!(self.rank(rank).post(command), PostResult::Posted));
    }

    /// Rank 0 gets `len` bytes of memory of rank 1.
    fn gets(&mut self, key: RemoteRegion, into: &MemoryRegion, len: usize) {
        let get = DriverCommand::Get {
            to: WorldRank(1),
            from: key,
            into: into.range().slice(0, len),
            token: CommandToken(1),
        };
        self.takes(0, get);
    }

    fn has_ended(&mut self) {
        self.until(|world| !world.heard(0).ended.is_empty());
        let ended = &self.heard(0).ended;
        assert!(matches!(ended[..], [(1, Ok(None))]), "{ended:?}");
    }

    /// Asserts that rank 0 waits only for events.
    fn waits_for_nothing(&mut self) {
        self.until(|world| !world.rank(0).lists.need_retry());
        assert_eq!(self.rank(0).arm(), ArmResult::Ready);
        assert!(
            !self.rank(0).transport.room.backoff.have_begun(),
            "it will wake up in vain"
        );
    }

    fn counters_of(&mut self, rank: usize, count: usize) -> LocalCounters {
        LocalCounters::for_tasks(self.rank(rank), count).expect("memory")
    }

    fn watches(&mut self, rank: usize, counter: &LocalCounter, threshold: u64) {
        let watch = DriverCommand::Watch {
            counter,
            threshold,
            token: CommandToken(9),
        };
        self.takes(rank, watch);
    }

    /// Posts a list at rank 0 that adds to a counter once another of its own counters reaches a threshold.
    fn counts(&mut self, when: (&LocalCounters, u64), to: usize, at: &LocalCounters, by: u64) {
        let task = TriggeredTask {
            condition: CounterCondition {
                counter: when.0.at(0),
                threshold: when.1,
            },
            second_condition: None,
            action: TaskAction::Count {
                to: WorldRank(u32::try_from(to).expect("a rank")),
                counter: at.remote().at(at.remote().len() - 1).expect("a counter"),
                by,
            },
        };
        let taken = self.rank(0).post_list(&[task], CommandToken(1));
        assert!(taken, "there is room");
    }
}

#[test]
fn a_rank_with_messages_that_the_library_refuses_sleeps() {
    for family in ["sandia42", "portails4"] {
        let mut world = World::new(family, 2);
        let ni = world.rank(0).transport.resources.ni.clone();
        ni.refuse("PtlPut", "PTL_NO_SPACE", None);
        assert!(world.sends(0, 1, 7, 8));
        world.sleeps_between_retries(0);
        assert!(ni.obey() > 100, "it is not tried in each turn");
        world.until(|world| world.heard(1).messages == [(0, 7)]);
    }
}

#[test]
fn a_rank_with_control_words_that_the_library_refuses_sleeps() {
    let mut world = World::new("sandia42", 2);
    let ni = world.rank(0).transport.resources.ni.clone();
    ni.refuse("PtlPut", "PTL_NO_SPACE", None);
    world.rank(0).transport.schedule_words(1);
    world.sleeps_between_retries(0);
    ni.obey();
    world.until(|world| world.rank(0).transport.is_through());
}

#[test]
fn a_rank_with_commands_that_the_library_refuses_sleeps() {
    const LEN: usize = 1 << 20;
    for (rails, len) in [(&[][..], 8), (&[0, 1], LEN)] {
        let mut world = World::by_rails("sandia42", 2, rails);
        let [own, there] = [0, 1].map(|rank| world.rank(rank).allocate(LEN).expect("memory"));
        let key = world.rank(1).expose(there.range()).expect("a key");
        let rails = world.rank(0).transport.resources.rails.iter();
        let nis: Vec<_> = rails.map(|rail| rail.ni.clone()).collect();
        nis.iter()
            .for_each(|ni| ni.refuse("PtlGet", "PTL_NO_SPACE", None));
        world.gets(key.slice(0, len as u64).expect("inside"), &own, len);
        world.sleeps_between_retries(0);
        assert!(nis.iter().map(|ni| ni.obey()).sum::<u32>() > 0);
        world.has_ended();
    }
}

#[test]
fn a_rank_that_waits_for_a_name_of_a_peer_sleeps() {
    for family in FAMILIES {
        let mut world = World::new(family, 2);
        let [own, there] = [0, 1].map(|rank| world.rank(rank).allocate(64).expect("memory"));
        world.gets(RemoteRegion::named(1, NAME, 0, 8), &own, 8);
        world.sleeps_between_retries(0);
        world.rank(1).give_name(NAME, &there);
        // Only the timer wakes the rank.
        while world.heard(0).ended.is_empty() {
            world.rests(0);
        }
        world.has_ended();
    }
}

#[test]
fn a_watch_for_which_there_is_no_room_is_looked_at_between_sleeps_and_asked_for_again() {
    for family in FAMILIES {
        let mut world = World::new(family, 1);
        let counters = world.counters_of(0, 1);
        let ni = world.rank(0).transport.resources.ni.clone();
        ni.refuse("PtlTriggeredPut", "PTL_NO_SPACE", None);
        world.watches(0, &counters.at(0), 5);
        world.sleeps_between_retries(0);
        assert!(ni.obey() < 30, "{family}: asked for in each turn");
        world.waits_for_nothing();
        let counter = counters.remote().at(0).expect("a counter");
        let (to, by) = (WorldRank(0), 5);
        world.takes(0, DriverCommand::Count { to, counter, by });
        world.until(|world| world.heard(0).reached == [9]);
    }
}

#[test]
fn a_task_for_whose_wait_there_is_no_room_is_looked_at_between_sleeps_and_armed_again() {
    for family in FAMILIES {
        let mut world = World::new(family, 2);
        let (own, theirs) = (world.counters_of(0, 1), world.counters_of(1, 1));
        let ni = world.rank(0).transport.resources.ni.clone();
        // Each task makes two of these calls: one to count that it begins, and one to wait.
        ni.refuse("PtlTriggeredCTInc", "PTL_NO_SPACE", Some(2));
        let ct = ni.ct_alloc().expect("a counter");
        assert!(ni.inc_when(ct, 1, (ct, 1)).is_err());
        world.counts((&own, 3), 1, &theirs, 1);
        world.watches(1, &theirs.at(0), 1);
        assert_eq!(
            ni.obey(),
            2,
            "{family}: it is not the wait that was refused"
        );
        ni.refuse("PtlTriggeredCTInc", "PTL_NO_SPACE", None);
        world.sleeps_between_retries(0);
        assert!(ni.obey() < 30, "{family}: armed in each turn");
        world.waits_for_nothing();
        let counter = own.remote().at(0).expect("a counter");
        let (to, by) = (WorldRank(0), 3);
        world.takes(0, DriverCommand::Count { to, counter, by });
        world.until(|world| world.heard(1).reached == [9] && world.heard(0).triggered == 1);
    }
}

#[test]
fn a_task_that_is_the_hosts_and_finds_no_room_is_done_after_a_sleep() {
    let mut world = World::new("sandia42", 2);
    let (own, theirs) = (world.counters_of(0, 1), world.counters_of(1, 1));
    let [from, there] = [0, 1].map(|rank| world.rank(rank).allocate(64).expect("memory"));
    let key = world.rank(1).expose(there.range()).expect("a key");
    let ni = world.rank(0).transport.resources.ni.clone();
    for call in ["PtlGet", "PtlPut"] {
        ni.refuse(call, "PTL_NO_SPACE", None);
    }
    let get = || DriverCommand::Get {
        to: WorldRank(1),
        from: key,
        into: from.range(),
        token: CommandToken(2),
    };
    while matches!(world.rank(0).post(get()), PostResult::Posted) {}
    // An adapter adds only one at a time, so the host must do this.
    world.counts((&own, 0), 1, &theirs, 2);
    world.watches(1, &theirs.at(0), 2);
    world.sleeps_between_retries(0);
    ni.obey();
    world.until(|world| world.heard(1).reached == [9]);
}

/// Posts one list at rank 0 of `tasks` counts at rank 1, which wait for a count of rank 0.
fn counts_at(world: &mut World, own: &LocalCounters, theirs: &LocalCounters, tasks: u64) {
    let task = |_| TriggeredTask {
        condition: CounterCondition {
            counter: own.at(0),
            threshold: 1,
        },
        second_condition: None,
        action: TaskAction::Count {
            to: WorldRank(1),
            counter: theirs.remote().at(0).expect("a counter"),
            by: 1,
        },
    };
    let tasks: Vec<_> = (0..tasks).map(task).collect();
    let taken = world.rank(0).post_list(&tasks, CommandToken(1));
    assert!(taken, "there is room");
}

#[test]
fn a_list_that_finds_no_room_is_armed_by_and_by() {
    const TASKS: u64 = 5;
    let calls = [
        "PtlTriggeredPut",
        "PtlTriggeredCTInc",
        "PtlCTAlloc",
        "PtlMDBind",
        "PtlMEAppend",
    ];
    for (family, call) in FAMILIES
        .into_iter()
        .flat_map(|family| calls.map(|call| (family, call)))
    {
        let mut world = World::new(family, 2);
        let (own, theirs) = (world.counters_of(0, 1), world.counters_of(1, 1));
        world.watches(1, &theirs.at(0), 2 * TASKS);
        let ni = world.rank(0).transport.resources.ni.clone();
        ni.refuse(call, "PTL_NO_SPACE", None);
        counts_at(&mut world, &own, &theirs, TASKS);
        counts_at(&mut world, &own, &theirs, TASKS);
        world.sleeps_between_retries(0);
        assert!(ni.obey() < 40, "{family}, {call}: armed in each turn");
        ni.refuse(call, "PTL_NO_SPACE", Some(3));
        let counter = own.remote().at(0).expect("a counter");
        let (to, by) = (WorldRank(0), 1);
        world.until(|world| !world.rank(0).lists.need_retry());
        world.takes(0, DriverCommand::Count { to, counter, by });
        world.until(|world| world.heard(0).triggered == 2 && world.heard(1).reached == [9]);
        ni.obey();
        (0..100).for_each(|_| (0..2).for_each(|rank| world.turn(rank)));
        let counted = theirs.at(0).value();
        assert_eq!(counted, 2 * TASKS, "{family}, {call}: counted twice");
        assert!(world.heard(0).ended.is_empty(), "{family}, {call}");
        world.waits_for_nothing();
    }
}

#[test]
fn a_list_that_finds_no_room_can_be_taken_back() {
    let mut world = World::new("sandia42", 2);
    let (own, theirs) = (world.counters_of(0, 1), world.counters_of(1, 1));
    let ni = world.rank(0).transport.resources.ni.clone();
    ni.refuse("PtlTriggeredPut", "PTL_NO_SPACE", None);
    counts_at(&mut world, &own, &theirs, 2);
    world.turn(0);
    world.rank(0).cancel_lists(CommandToken(1));
    world.until(|world| !world.heard(0).ended.is_empty());
    let ended = &world.heard(0).ended;
    assert!(
        matches!(ended[..], [(1, Err(CommandFailure::Cancelled))]),
        "{ended:?}"
    );
    world.waits_for_nothing();
}

#[test]
fn a_list_that_never_finds_room_ends() {
    let mut world = World::new("sandia42", 2);
    let (own, theirs) = (world.counters_of(0, 1), world.counters_of(1, 1));
    let ni = world.rank(0).transport.resources.ni.clone();
    ni.refuse("PtlTriggeredPut", "PTL_NO_SPACE", None);
    counts_at(&mut world, &own, &theirs, 2);
    while world.heard(0).ended.is_empty() {
        world.rests(0);
    }
    let ended = &world.heard(0).ended;
    assert!(
        matches!(ended[..], [(1, Err(CommandFailure::Transport(_)))]),
        "{ended:?}"
    );
    let asked = ni.obey();
    assert!((200..2000).contains(&asked), "{asked} times");
}

#[test]
fn a_sleeping_rank_gives_up_a_peer_whose_messages_never_find_room() {
    let mut world = World::new("sandia42", 2);
    let ni = world.rank(0).transport.resources.ni.clone();
    ni.refuse("PtlPut", "PTL_NO_SPACE", None);
    assert!(world.sends(0, 1, 0, 8));
    while world.heard(0).down.is_empty() {
        world.rests(0);
    }
    assert_eq!(world.heard(0).down, [(1, DownCause::Failed)]);
    let asked = ni.obey();
    // A second in total, in sleeps of 4 ms.
    assert!((256..2000).contains(&asked), "{asked} times");
    assert!(asked < REFUSALS_MAX);
}

const NAME: u64 = 5 << 32 | 7;
