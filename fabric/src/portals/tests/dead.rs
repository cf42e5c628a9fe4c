//! Dead peers over libraries that never complete operations to them.

use super::{FAMILIES, World};
use crate::{
    driver::{CommandToken, DownCause, Driver, DriverCommand, PostResult, WorldRank},
    portals::{
        PortalsConfig,
        event::{PortalsEvent, PortalsEventKind, PortalsOutcome, PortalsProcess, RailEvent},
        peer::UserPtr,
    },
};

impl World {
    /// Returns a world over a library treated as the published one, with this many events.
    fn published(family: &str, ranks: usize, events: u32) -> Self {
        let config = PortalsConfig {
            events,
            published: true,
            ..PortalsConfig::default()
        };
        let mut world = Self::of(family, ranks, &config);
        world.until(|world| (0..ranks).all(|rank| world.rank(rank).commands.is_idle()));
        world
    }

    /// Sends from rank 0 as much as there is room for, without a turn. Returns the number of messages.
    fn stuff(&mut self, to: u32, len: usize) -> u64 {
        (0..)
            .take_while(|number| self.sends(0, to, *number, len))
            .count() as u64
    }

    fn gives_up(&mut self, ranks: std::ops::RangeInclusive<u32>) {
        ranks.for_each(|rank| {
            _ = self
                .rank(0)
                .give_up(WorldRank(rank), Some(DownCause::Failed))
        });
    }

    /// Has rank 0 put 1 MiB to rank 1, and checks that it arrives. Returns the number of its pieces; 0 if it was not split.
    fn put_of_a_long_command(&mut self) -> u64 {
        const LEN: usize = 1 << 20;
        let [own, there] = [0, 1].map(|rank| self.rank(rank).allocate(LEN).expect("memory"));
        own.write(0, &[7; LEN]);
        let into = self.rank(1).expose(there.range()).expect("a key");
        let put = DriverCommand::Put {
            to: WorldRank(1),
            from: own.range(),
            into,
            count: None,
            token: CommandToken(0),
        };
        assert!(matches!(self.rank(0).post(put), PostResult::Posted));
        self.until(|world| !world.heard(0).ended.is_empty());
        let ended = self.heard(0).ended.pop();
        assert!(matches!(ended, Some((0, Ok(None)))), "{ended:?}");
        let mut arrived = vec![0; LEN];
        there.read(0, &mut arrived);
        assert!(arrived == [7; LEN], "other bytes than those of the put");
        self.rank(0).transport.resources.counters.pieces.get()
    }
}

#[test]
fn messages_to_the_dead_keep_no_room_and_may_end_late() {
    const LEN: usize = 10_000;
    let mut world = World::published("portails4", 6, 4096);
    let kept: Vec<_> = (1..=4).map(|to| world.stuff(to, LEN)).collect();
    assert_eq!(kept, [16; 4], "long ones, and there are no more");
    assert!(!world.sends(0, 5, 0, LEN));
    world.gives_up(1..=4);
    let sent = world.stuff(5, LEN);
    assert_eq!(sent, 16, "the dead keep their room");
    // Now the operations to the dead peers complete after all.
    world.until(|world| {
        let heard = world.heard(5).messages.len() as u64;
        heard == sent && world.rank(0).transport.peer(5).outbox.is_empty()
    });
    let numbers = world.heard(5).messages.iter().map(|(_, number)| *number);
    assert!(numbers.eq(0..sent));
    (0..100).for_each(|_| world.turn(0));
    let rank = world.rank(0);
    assert_eq!(
        rank.transport.room.credits(),
        rank.transport.resources.credits,
        "a credit came twice, or not"
    );
    assert_eq!(world.stuff(5, LEN), 16);
}

#[test]
fn the_dead_keep_no_credits() {
    for family in FAMILIES {
        let mut world = World::published(family, 5, 16);
        let mut number = 0;
        for to in 1..=3 {
            number += world.stuff(to, 8);
        }
        assert!(number > 0 && !world.sends(0, 4, 0, 8), "{family}");
        world.gives_up(1..=3);
        assert!(world.sends(0, 4, 0, 8), "{family}: no room for the living");
        world.until(|world| world.heard(4).messages.len() == 1);
        let lost = world.rank(0).transport.resources.counters.lost.get();
        assert_eq!((lost, world.heard(0).down.len()), (0, 3), "{family}");
        world.until(|world| {
            let rank = world.rank(0);
            rank.transport.room.credits() == rank.transport.resources.credits
        });
    }
}

#[test]
fn where_operations_to_the_dead_never_end_they_are_given_up_with_their_room() {
    for family in FAMILIES {
        let config = PortalsConfig {
            events: 16,
            habits: Some("ends-never".to_owned()),
            ..PortalsConfig::default()
        };
        let mut world = World::of(family, 3, &config);
        // Rank 1 ends without a goodbye.
        world.rank(1).transport.resources.close();
        assert!(world.stuff(1, 8) > 0, "{family}");
        for _ in 0..100 {
            world.turn(0);
        }
        assert_eq!(world.heard(0).down, [], "{family}: something has ended");
        world.gives_up(1..=1);
        world.turn(0);
        assert_eq!(world.heard(0).down, [(1, DownCause::Failed)], "{family}");
        let rank = world.rank(0);
        assert_eq!(
            rank.transport.room.credits(),
            rank.transport.resources.credits,
            "{family}"
        );
        let sent = world.stuff(2, 8);
        assert!(sent > 0, "{family}: the dead keep the room");
        while (world.heard(2).messages.len() as u64) < sent {
            world.turn(0);
            world.turn(2);
        }
    }
}

#[test]
fn pieces_of_long_commands_give_their_credits_back_where_operations_to_the_dead_never_end() {
    for family in FAMILIES {
        let config = PortalsConfig {
            interfaces: [0, 1].map(Into::into).into(),
            events: 16,
            habits: Some("ends-never".to_owned()),
            ..PortalsConfig::default()
        };
        let mut world = World::of(family, 2, &config);
        assert!(!world.rank(0).transport.resources.ni.ends_to_dead);
        let pieces = world.put_of_a_long_command();
        assert!(pieces > 1, "{family}: the put was not split");
        // Control words may still be in flight.
        world.until(|world| {
            let rank = world.rank(0);
            rank.transport.room.credits() == rank.transport.resources.credits
        });
        assert_eq!(
            world.rank(0).transport.peer(1).in_flight,
            0,
            "{family}: a piece is still counted"
        );
    }
}

#[test]
fn a_long_command_is_not_split_where_the_library_may_use_its_memory_after_a_death() {
    let config = PortalsConfig {
        family: Some("bxi2".to_owned()),
        published: true,
        interfaces: [0, 1].map(Into::into).into(),
        habits: Some("ends-never".to_owned()),
        ..PortalsConfig::default()
    };
    let mut world = World::of("portails4", 2, &config);
    assert!(world.rank(0).transport.resources.ni.goes_on);
    // Whole commands move through memory of the driver, which the library may keep.
    assert_eq!(world.put_of_a_long_command(), 0);
}

#[test]
fn whether_operations_to_the_dead_end_is_tried_where_it_is_only_reckoned() {
    for (habits, ends) in [("", true), ("ends-never", false)] {
        // Treat the library as an adapter of the second BXI, whose numbers it shares except for failures.
        let config = PortalsConfig {
            family: Some("bxi2".to_owned()),
            published: true,
            habits: Some(habits.to_owned()),
            ..PortalsConfig::default()
        };
        let mut world = World::of("portails4", 2, &config);
        let rank = world.rank(0);
        let (caps, ni) = (rank.caps(), &rank.transport.resources.ni);
        assert_eq!((ni.ends_to_dead, ni.goes_on), (ends, !ends), "{habits}");
        assert_eq!(rank.abilities.lists.is_some(), ends, "{habits}");
        assert_eq!(caps.any_memory.is_ok(), ends, "{habits}");
        let sent = world.stuff(1, 8);
        world.until(|world| world.heard(1).messages.len() as u64 == sent);
    }
}

#[test]
fn a_failure_that_send_alone_tells_of_ends_what_it_is_about() {
    for family in FAMILIES {
        let config = PortalsConfig {
            events: 16,
            habits: Some("send-alone".to_owned()),
            ..PortalsConfig::default()
        };
        let mut world = World::of(family, 3, &config);
        world.rank(1).transport.resources.close();
        assert!(world.stuff(1, 8) > 0, "{family}");
        while world.heard(0).down.is_empty() {
            world.turn(0);
        }
        assert_eq!(world.heard(0).down, [(1, DownCause::Failed)], "{family}");
        while world.rank(0).transport.room.credits() < world.rank(0).transport.resources.credits {
            world.turn(0);
        }
        assert!(
            world.rank(0).transport.peer(1).outbox.is_empty(),
            "{family}"
        );
    }
}

#[test]
fn a_failure_that_is_told_twice_ends_what_it_is_about_once() {
    let mut world = World::of("sandia42", 2, &PortalsConfig::default());
    assert!(world.sends(0, 1, 0, 8) && world.sends(0, 1, 1, 8));
    let rank = world.rank(0);
    let before = rank.transport.room.credits();
    for kind in [
        PortalsEventKind::Send,
        PortalsEventKind::Ack,
        PortalsEventKind::Error,
    ] {
        rank.handle_completion(got(PortalsEvent {
            kind,
            end: PortalsOutcome::Dropped,
            user: UserPtr::Message(1, 1).bits(),
            ..told()
        }));
        assert_eq!(rank.transport.room.credits(), before + 1, "{kind:?}");
    }
    rank.handle_completion(got(PortalsEvent {
        kind: PortalsEventKind::Send,
        user: UserPtr::Message(1, 0).bits(),
        ..told()
    }));
    assert_eq!(
        rank.transport.room.credits(),
        before + 1,
        "what has left is not acknowledged"
    );
}

#[test]
fn what_broke_off_gives_its_slab_back_although_it_says_that_it_has_no_bytes() {
    let mut world = World::new("sandia42", 2);
    let (rank, heard) = &mut world.ranks[0];
    let before = rank.transport.resources.counters.all.entries.get();
    for _ in 0..2 {
        let event = PortalsEvent {
            kind: PortalsEventKind::Put,
            end: PortalsOutcome::Other(1),
            user: 1,
            rlength: 65_664,
            ..told()
        };
        rank.handle_arrival(got(event), heard);
    }
    assert_eq!(
        rank.transport.resources.counters.all.entries.get(),
        before + 1
    );
    assert!(heard.messages.is_empty());
}

fn told() -> PortalsEvent {
    PortalsEvent {
        kind: PortalsEventKind::Ack,
        end: PortalsOutcome::Success,
        start: 0,
        user: u64::MAX,
        header: 0,
        match_bits: 0,
        mlength: 0,
        rlength: 0,
        initiator: PortalsProcess { nid: 0, pid: 0 },
        pt: 0,
    }
}

const fn got(event: PortalsEvent) -> RailEvent {
    RailEvent {
        event,
        rail: 0,
        dropped: false,
    }
}

#[test]
fn after_a_lost_event_the_driver_waits_for_no_peer() {
    let mut world = World::published("portails4", 3, 16);
    world.rank(0).handle_completion(RailEvent {
        dropped: true,
        ..got(told())
    });
    world.turn(0);
    let down = [1, 2].map(|rank| (rank, DownCause::Failed));
    assert_eq!(world.heard(0).down, down);
}

#[test]
fn commands_towards_the_dead_keep_no_slots() {
    let mut world = World::published("portails4", 4, 4096);
    let keys: Vec<_> = (1..4)
        .map(|rank| {
            let region = world.rank(rank).allocate(4096).expect("memory");
            region.write(0, &[u8::try_from(rank).expect("few"); 4096]);
            (
                world.rank(rank).expose(region.range()).expect("a key"),
                region,
            )
        })
        .collect();
    let own = world.rank(0).allocate(4096).expect("memory");
    let gets = |world: &mut World, to: u32| {
        let get = || DriverCommand::Get {
            to: WorldRank(to),
            from: keys[to as usize - 1].0.slice(0, 8).expect("inside"),
            into: own.range().slice(0, 8),
            token: CommandToken(to.into()),
        };
        let posted =
            std::iter::repeat_with(|| matches!(world.rank(0).post(get()), PostResult::Posted));
        posted.take_while(|posted| *posted).count()
    };
    let all = gets(&mut world, 1);
    assert_eq!(gets(&mut world, 2), 0, "there is more room");
    world.gives_up(1..=1);
    assert_eq!(gets(&mut world, 2), all, "the dead keep slots");
    world.gives_up(2..=2);
    assert_eq!(gets(&mut world, 3), all, "the dead keep slots");
    world.until(|world| world.heard(0).ended.len() == 3 * all);
    let well = |(token, how): &(u64, Result<_, _>)| (*token == 3) == how.is_ok();
    assert!(world.heard(0).ended.iter().all(well));
    let mut found = [0; 8];
    own.read(0, &mut found);
    assert_eq!(found, [3; 8], "what came from the dead has landed");
}

#[test]
fn no_lists_are_taken_where_what_is_in_flight_to_the_dead_does_not_end() {
    for family in FAMILIES {
        let mut world = World::published(family, 2, 64);
        let lists = world.rank(0).abilities.lists;
        assert_eq!(lists, None, "{family}: they would not end either");
    }
}
