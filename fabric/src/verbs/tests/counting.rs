//! Counts of tasks, and commands that wait for them.

use std::time::Duration;

use super::{CommandToken, Driver, DriverCommand, GUARD, PostResult, Ranks, WorldRank};
use crate::driver::TaskLists;
use crate::{
    driver::DownCause,
    memory::RemoteRegion,
    offload::{CounterCondition, LocalCounters, RemoteCounter, TaskAction, TriggeredTask},
};

/// As many commands as there may be wait for a name, so those of tasks have begun and wait for room.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn what_tasks_have_counted_before_the_end_is_counted_also_where_there_was_no_room() {
    const TASKS: u64 = 10;
    let mut ranks = Ranks::with(2, |config| {
        config.device = Some(["rxe0", "rxe2"][config.rank.0 as usize % 2].to_owned());
    });
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
    let own = LocalCounters::for_tasks(&mut ranks.all[0], 1).unwrap();
    let there = LocalCounters::for_tasks(&mut ranks.all[1], 2).unwrap();
    let (to, by) = (WorldRank(1), 2);
    let counter = RemoteCounter::named(1, NAME, 0);
    let mut waiting = 0;
    while let PostResult::Posted = ranks.all[0].post(DriverCommand::Count { to, counter, by }) {
        waiting += 1;
    }
    let counter = there.remote().at(1).unwrap();
    let task = |_| TriggeredTask {
        condition: CounterCondition {
            counter: own.at(0),
            threshold: 0,
        },
        second_condition: None,
        action: TaskAction::Count { to, counter, by },
    };
    let (tasks, token) = (
        &(0..TASKS).map(task).collect::<Vec<_>>()[..],
        CommandToken(1),
    );
    assert!(ranks.all[0].post_list(tasks, token));
    let mut core = ranks.all[0].core.take().unwrap();
    assert!(core.tasks.has_stalled_for(WorldRank(1)));
    core.begin_close(DownCause::Finished);
    let (name, region) = (NAME, there.region());
    ranks.all[1].give_name(name, region);
    while !core.finish(Duration::from_millis(1)) {
        ranks.turn_all_the_same(1);
    }
    drop(core);
    ranks.until_bad(&[1]);
    assert_eq!(ranks.ears[1].bad, ["WorldRank(0): Finished"]);
    let counted = [0, 1].map(|nth| there.at(nth).value());
    assert_eq!(counted, [waiting * by, TASKS * by]);
}

/// This also holds for a peer that was not connected before.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_count_for_a_name_that_is_not_given_yet_keeps_no_message_back() {
    for mut ranks in [Ranks::met(), Ranks::new(2)] {
        let there = LocalCounters::for_tasks(&mut ranks.all[1], 2).unwrap();
        let heard = ranks.ears[1].messages.len();
        for by in [1, 4] {
            let (to, counter) = (WorldRank(1), RemoteCounter::named(1, NAME, 1));
            let count = DriverCommand::Count { to, counter, by };
            assert!(matches!(ranks.all[0].post(count), PostResult::Posted));
        }
        ranks.say(0, 1);
        ranks.say(1, 0);
        let all = |ranks: &Ranks| [0, 1].map(|rank: usize| ranks.ears[rank].messages.len());
        ranks.until(|ranks| all(ranks) == [1, heard + 1]);
        assert_eq!(there.at(1).value(), 0);
        let (name, region) = (NAME, there.region());
        ranks.all[1].give_name(name, region);
        ranks.until(|_| there.at(1).value() == 5);
        assert_eq!(ranks.core(0).links.get_or_new(WorldRank(1)).counts, 0);
        ranks.say(0, 1);
        ranks.until(|ranks| all(ranks) == [1, heard + 2]);
    }
}

/// Otherwise the count would stay as long as the peer, and commands are limited. A put waits on, also for a name that is given
/// again.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_count_for_a_name_that_was_taken_back_ends_and_a_put_waits() {
    let mut ranks = Ranks::met();
    let there = LocalCounters::for_tasks(&mut ranks.all[1], 1).unwrap();
    let (name, region) = (NAME, there.region());
    let to_name = |ranks: &mut Ranks| {
        ranks.all[1].give_name(name, region);
    };
    to_name(&mut ranks);
    ranks.all[1].take_back_name(name);
    let from = ranks.all[0].allocate(8).unwrap();
    let put = DriverCommand::Put {
        to: WorldRank(1),
        from: from.range().slice(0, 8),
        into: RemoteRegion::named(1, NAME, 0, 8),
        count: None,
        token: CommandToken(1),
    };
    assert!(matches!(ranks.all[0].post(put), PostResult::Posted));
    for _ in 0..2 {
        let (to, counter, by) = (WorldRank(1), RemoteCounter::named(1, NAME, 0), 3);
        let count = DriverCommand::Count { to, counter, by };
        assert!(matches!(ranks.all[0].post(count), PostResult::Posted));
        while ranks.core(0).commands.len() > 1 {
            (0..2).for_each(|rank| ranks.turn(rank, 64));
            assert!(ranks.core(0).sleep.timer.now() < GUARD, "it never ends");
        }
    }
    assert_eq!(there.at(0).value(), 0);
    to_name(&mut ranks);
    while ranks.core(0).commands.len() > 0 {
        (0..2).for_each(|rank| ranks.turn(rank, 64));
        assert!(ranks.core(0).sleep.timer.now() < GUARD, "it never goes");
    }
}

/// The answer to the question for the name is in flight when the end begins.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_count_by_a_name_that_is_given_leaves_before_the_end_is_said() {
    for early in [false, true] {
        let mut ranks = Ranks::met();
        let there = LocalCounters::for_tasks(&mut ranks.all[1], 1).unwrap();
        let (name, region) = (NAME, there.region());
        if early {
            ranks.all[1].give_name(name, region);
        }
        let (to, counter, by) = (WorldRank(1), RemoteCounter::named(1, NAME, 0), 7);
        let count = DriverCommand::Count { to, counter, by };
        assert!(matches!(ranks.all[0].post(count), PostResult::Posted));
        let mut core = ranks.all[0].core.take().unwrap();
        core.begin_close(DownCause::Finished);
        assert!(!core.finish(Duration::from_millis(1)), "no peer answers");
        if !early {
            ranks.all[1].give_name(name, region);
        }
        while !core.finish(Duration::from_millis(1)) {
            ranks.turn_all_the_same(1);
        }
        drop(core);
        ranks.until_bad(&[1]);
        assert_eq!(ranks.ears[1].bad, ["WorldRank(0): Finished"]);
        assert_eq!(there.at(0).value(), 7);
    }
}

/// The closing rank waits for a while before that.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_closing_rank_says_goodbye_even_if_a_name_is_never_given() {
    let mut ranks = Ranks::met();
    let (to, counter, by) = (WorldRank(1), RemoteCounter::named(1, NAME, 0), 7);
    let count = DriverCommand::Count { to, counter, by };
    assert!(matches!(ranks.all[0].post(count), PostResult::Posted));
    ranks.until(|ranks| ranks.counters[1].events.get() > 0);
    let core = ranks.core(0);
    core.begin_close(DownCause::Finished);
    assert!(!core.finish(Duration::from_millis(50)));
    core.commands().cancel_name_waits();
    assert!(core.finish(Duration::from_secs(60)));
    ranks.until_bad(&[1]);
    assert_eq!(ranks.ears[1].bad, ["WorldRank(0): Finished"]);
}

const NAME: u64 = 0xfeed;
