//! Entries of task lists that the library does not release.

use rustix::event::{PollFd, PollFlags, poll};

use super::{super::Portals, FAMILIES, PATIENCE, World};
use crate::{
    driver::{
        ArmResult, CommandFailure, CommandToken, DownCause, Driver, TaskLists, WakeSource,
        WorldRank,
    },
    offload::{CounterCondition, LocalCounters, PairKey, PutLanding, TaskAction, TriggeredTask},
};

impl World {
    fn posts_list(&mut self, rank: usize, task: TriggeredTask) {
        assert!(self.rank(rank).post_list(&[task], CommandToken(1)));
    }

    /// Lets a rank sleep until its timer ends, and make a turn. Returns how often it was woken for other reasons before.
    pub(super) fn sleeps(&mut self, rank: usize) -> u32 {
        let others = (0..10).find(|_| self.rests(rank));
        others.expect("it does not rest")
    }

    /// Lets a rank sleep if it may, and make a turn. Returns true if its timer had ended.
    pub(super) fn rests(&mut self, rank: usize) -> bool {
        let waits = self.rank(rank).wait_on().into_iter();
        let fds = waits.map(|wait| match wait {
            WakeSource::Fd(fd) => fd,
            other => panic!("{other:?}"),
        });
        let fds: Vec<_> = fds.collect();
        let rings = || {
            let look = |fd| PollFd::new(fd, PollFlags::IN);
            let mut polled: Vec<_> = fds.iter().map(look).collect();
            let limit = PATIENCE.try_into().expect("two minutes");
            poll(&mut polled, Some(&limit)).expect("descriptors");
            let fd = polled.last().expect("an alarm");
            !fd.revents().is_empty()
        };
        let alarm = self.rank(rank).arm() == ArmResult::Ready && rings();
        self.turn(rank);
        alarm
    }

    fn counters(&mut self, rank: usize) -> LocalCounters {
        LocalCounters::for_tasks(self.rank(rank), 4).expect("memory")
    }
}

fn at_once(counters: &LocalCounters) -> CounterCondition {
    CounterCondition {
        counter: counters.at(0),
        threshold: 0,
    }
}

#[test]
fn a_list_ends_when_nothing_can_land_for_it_any_more_and_not_before() {
    for family in FAMILIES {
        let mut world = World::new(family, 2);
        let [theirs, own] = [0, 1].map(|rank| world.counters(rank));
        let [board, memory] = [0, 1].map(|rank| world.rank(rank).allocate(4096).expect("memory"));
        let place = world.rank(0).expose(board.range()).expect("a key");
        let into = world.rank(1).expose(memory.range()).expect("a key");
        let offer = TaskAction::PublishLanding {
            to: WorldRank(0),
            landing: PutLanding {
                into,
                count: own.remote().at(1).expect("a counter"),
                word: 0x1a4d,
            },
            place: place
                .slice(0, size_of::<PutLanding>() as u64)
                .expect("inside"),
            count: theirs.remote().at(1).expect("a counter"),
            pair: Some(PairKey {
                sequence: 1,
                nth: 1,
            }),
        };
        world.posts_list(
            1,
            TriggeredTask {
                condition: at_once(&own),
                second_condition: None,
                action: offer,
            },
        );
        let ni = world.rank(1).transport.resources.ni.clone();
        ni.refuse("PtlMEUnlink", "PTL_IN_USE", None);
        world.rank(1).give_up(WorldRank(0), Some(DownCause::Failed));
        (0..100).for_each(|_| world.turn(1));
        assert!(world.heard(1).ended.is_empty(), "{family}: it may land");
        assert!(ni.obey() > 50, "{family}: it is not tried in each turn");
        ni.refuse("PtlMEUnlink", "PTL_IN_USE", None);
        let others: u32 = (0..10).map(|_| world.sleeps(1)).sum();
        assert_eq!(ni.obey(), 10 + others, "{family}: one try for a sleep");
        assert!(others < 10, "{family}: woken {others} times in vain");
        while world.heard(1).ended.is_empty() {
            world.sleeps(1);
        }
        let ended = &world.heard(1).ended;
        assert!(
            matches!(ended[..], [(1, Err(CommandFailure::PeerDown))]),
            "{family}: {ended:?}"
        );
    }
}

#[test]
fn the_way_to_oneself_is_open_as_long_as_something_comes_by_it() {
    let mut world = World::by_rails("sandia42", 1, &[0, 1]);
    let (counters, memory) = (
        world.counters(0),
        world.rank(0).allocate(4096).expect("memory"),
    );
    let (from, into) = (memory.range().slice(0, 64), memory.range().slice(64, 64));
    let copy = TaskAction::Copy {
        from,
        into,
        done: None,
    };
    world.posts_list(
        0,
        TriggeredTask {
            condition: at_once(&counters),
            second_condition: None,
            action: copy,
        },
    );
    world.until(|world| world.heard(0).triggered > 0);
    let ni = world.rank(0).transport.resources.ni.clone();
    ni.refuse("PtlMEUnlink", "PTL_IN_USE", None);
    let closes = |rank: &mut Portals| rank.lists.close_own_memory(&rank.transport);
    assert!(!closes(world.rank(0)));
    assert_eq!(ni.obey(), 1, "there was no such way");
    assert!(closes(world.rank(0)));
}

#[test]
fn a_rank_that_waits_for_a_lane_to_close_sleeps() {
    let mut world = World::by_rails("sandia42", 2, &[0, 1]);
    let _memory = world.rank(0).allocate(4096).expect("memory");
    let ni = world.rank(0).transport.resources.ni.clone();
    ni.refuse("PtlMEUnlink", "PTL_IN_USE", None);
    world.rank(0).transport.fail_lane(1, 0);
    world.until(|world| world.rank(0).transport.rails.are_leaving());
    (0..100).for_each(|_| (0..2).for_each(|rank| world.turn(rank)));
    let others: u32 = (0..10).map(|_| world.sleeps(0)).sum();
    assert!(others < 10, "woken {others} times in vain");
    ni.obey();
    world.sleeps(0);
    assert!(!world.rank(0).transport.rails.are_leaving());
}
