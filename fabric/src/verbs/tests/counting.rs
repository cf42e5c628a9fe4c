//! Counts of tasks, and what waits for them.

use std::time::Duration;

use super::{Command, Driver, Peer, Post, Ranks, Token};
use crate::{
    driver::Down,
    offload::{Action, Counters, RemoteCounter, Task, When},
};

/// As many commands as there may be wait for a name, so that those of tasks have begun and wait for room.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn what_tasks_have_counted_before_the_end_is_counted_also_where_there_was_no_room() {
    const TASKS: u64 = 10;
    let mut ranks = Ranks::with(2, |config| {
        config.device = Some(["rxe0", "rxe2"][config.rank as usize % 2].to_owned());
    });
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
    let own = Counters::for_tasks(&mut ranks.all[0], 1).unwrap();
    let there = Counters::for_tasks(&mut ranks.all[1], 2).unwrap();
    let (to, by) = (Peer(1), 2);
    let counter = RemoteCounter::named(1, NAME, 0);
    let mut waiting = 0;
    while let Post::Posted = ranks.all[0].post(Command::Count { to, counter, by }) {
        waiting += 1;
    }
    let counter = there.remote().at(1).unwrap();
    let task = |_| Task {
        when: When {
            counter: own.at(0),
            threshold: 0,
        },
        and: None,
        then: Action::Count { to, counter, by },
    };
    let (tasks, token) = (&(0..TASKS).map(task).collect::<Vec<_>>()[..], Token(1));
    let posted = ranks.all[0].post(Command::List { tasks, token });
    assert!(matches!(posted, Post::Posted));
    let mut core = ranks.all[0].core.take().unwrap();
    assert!(core.tasks.are_stuck(1));
    core.begin_close(Down::Finished);
    let (name, region) = (NAME, there.region());
    let given = ranks.all[1].post(Command::Name { name, region });
    assert!(matches!(given, Post::Posted));
    while !core.finish(Duration::from_millis(1)) {
        ranks.turn_all_the_same(1);
    }
    drop(core);
    ranks.until_bad(&[1]);
    assert_eq!(ranks.ears[1].bad, ["Peer(0): Finished"]);
    let counted = [0, 1].map(|nth| there.at(nth).value());
    assert_eq!(counted, [waiting * by, TASKS * by]);
}

/// Also to a peer that was not met before.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_count_for_a_name_that_is_not_given_yet_keeps_no_message_back() {
    for mut ranks in [Ranks::met(), Ranks::new(2)] {
        let there = Counters::for_tasks(&mut ranks.all[1], 2).unwrap();
        let heard = ranks.ears[1].messages.len();
        for by in [1, 4] {
            let (to, counter) = (Peer(1), RemoteCounter::named(1, NAME, 1));
            let count = Command::Count { to, counter, by };
            assert!(matches!(ranks.all[0].post(count), Post::Posted));
        }
        ranks.say(0, 1);
        ranks.say(1, 0);
        let all = |ranks: &Ranks| [0, 1].map(|rank: usize| ranks.ears[rank].messages.len());
        ranks.until(|ranks| all(ranks) == [1, heard + 1]);
        assert_eq!(there.at(1).value(), 0);
        let (name, region) = (NAME, there.region());
        let given = ranks.all[1].post(Command::Name { name, region });
        assert!(matches!(given, Post::Posted));
        ranks.until(|_| there.at(1).value() == 5);
        assert_eq!(ranks.core(0).link_or_new(1).counts, 0);
        ranks.say(0, 1);
        ranks.until(|ranks| all(ranks) == [1, heard + 2]);
    }
}

const NAME: u64 = 0xfeed;
