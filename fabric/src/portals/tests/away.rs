//! Arrivals while the helper thread has the queues.

use super::{super::Portals, FAMILIES, World};
use crate::driver::{ArmResult, DownCause, Driver};

#[test]
fn a_suspect_is_heard_out_when_the_waiting_thread_has_come_back() {
    for family in FAMILIES {
        let mut world = World::new(family, 2);
        world.rank(0).transport.resources.queues.send_away();
        assert!(world.sends(1, 0, 7, 8));
        // The message is in the queue, because the adapter has acknowledged it.
        while world.rank(1).transport.peer(0).answers == 0 {
            world.turn(1);
        }
        world.rank(0).transport.suspect(1);
        (0..3).for_each(|_| world.turn(0));
        assert!(
            world.heard(0).down.is_empty(),
            "{family}: no turn has handled the arrivals"
        );
        assert_eq!(
            world.rank(0).arm(),
            ArmResult::Ready,
            "{family}: it does not wait for the thread"
        );
        world.rank(0).transport.resources.queues.come_back();
        assert_eq!(
            world.rank(0).arm(),
            ArmResult::Busy,
            "{family}: the suspect is forgotten"
        );
        world.turn(0);
        assert_eq!(world.heard(0).messages, [(1, 7)], "{family}");
        assert_eq!(world.heard(0).down, [(1, DownCause::Failed)], "{family}");
    }
}

#[test]
fn what_task_lists_tell_is_not_all_heard_while_the_thread_has_the_queue() {
    let mut world = World::new("portails4", 1);
    let rank = world.rank(0);
    rank.transport.resources.queues.send_away();
    let drain = |rank: &mut Portals| {
        let (commands, transport) = (&mut rank.commands, &mut rank.transport);
        rank.lists.drain_list_events(commands, transport)
    };
    assert!(!drain(rank), "it may have found something");
    rank.transport.resources.queues.come_back();
    assert!(drain(rank));
}
