//! A library that has no room for a while, or never.

use std::sync::atomic::Ordering::Relaxed;

use super::{
    super::{peer::PortalsPeerState, room::REFUSALS_MAX},
    FAMILIES, World,
};
use crate::{
    driver::{
        AtomicOp, CommandToken, DownCause, Driver, DriverCommand, FailureWatch, PostResult,
        WorldRank,
    },
    memory::{MemoryRegion, RemoteRegion},
};

impl World {
    /// Posts the command of this number from rank 0 to memory of rank 1: a put, a get, an addition or an exchange. Returns true
    /// if there was room.
    fn does(&mut self, number: usize, there: RemoteRegion, own: &MemoryRegion) -> bool {
        let at = 8 * number;
        let local = own.range().slice(at, 8);
        let remote = |at| there.slice(at as u64, 8).expect("inside");
        let (to, token) = (WorldRank(1), CommandToken(number as u64));
        let op = match number % 4 {
            2 => AtomicOp::Add(1),
            _ => AtomicOp::Swap(number as u64),
        };
        let command = match number % 4 {
            0 => {
                own.atomic_u64(at).store(number as u64, Relaxed);
                DriverCommand::Put {
                    to,
                    from: local,
                    into: remote(at),
                    count: None,
                    token,
                }
            }
            1 => DriverCommand::Get {
                to,
                from: remote(HELD),
                into: local,
                token,
            },
            rest => DriverCommand::Atomic {
                to,
                at: remote(if rest == 2 { ADDED } else { at }),
                op,
                token,
            },
        };
        matches!(self.rank(0).post(command), PostResult::Posted)
    }

    /// Sends long messages from rank 1 until rank 0, which makes no turns, refuses one. Returns the number of messages.
    fn fill(&mut self) -> u64 {
        let mut sent = 0;
        while self.rank(1).transport.resources.counters.refused.get() == 0 {
            sent += u64::from(self.sends(1, 0, sent, 60_000));
            self.turn(1);
        }
        sent
    }
}

#[test]
fn a_refused_sender_resumes_when_the_adapter_accepts_messages_and_not_before() {
    for family in FAMILIES {
        let mut world = World::new(family, 2);
        let ni = world.rank(0).transport.resources.ni.clone();
        ni.refuse("PtlPTEnable", "PTL_NO_SPACE", None);
        let sent = world.fill();
        world.until(|world| world.rank(0).transport.have_paused_senders());
        (0..200).for_each(|_| (0..2).for_each(|rank| world.turn(rank)));
        let heard = world.heard(0).messages.len() as u64;
        assert!(heard < sent, "all of {sent} found room");
        let [pauses, resumed] = [
            world.rank(0).transport.peer(1).pauses_heard,
            world.rank(0).transport.peer(1).resumed,
        ];
        assert_eq!((pauses, resumed), (1, 0), "it was told to go on");
        assert!(!world.sends(1, 0, sent, 8), "it keeps what it may not send");
        world.sleeps_between_retries(0);
        assert!(ni.obey() > 0);
        world.until(|world| world.heard(0).messages.len() as u64 == sent);
        assert!(
            world
                .heard(0)
                .messages
                .iter()
                .copied()
                .eq((0..sent).map(|number| (1, number)))
        );
        assert!(world.heard(0).down.is_empty());
    }
}

#[test]
fn a_sender_whose_table_entry_cannot_be_enabled_again_is_lost() {
    for family in FAMILIES {
        let mut world = World::new(family, 2);
        let ni = world.rank(0).transport.resources.ni.clone();
        ni.refuse("PtlPTEnable", "PTL_ARG_INVALID", None);
        world.fill();
        world.until(|world| !world.heard(0).down.is_empty());
        assert_eq!(world.heard(0).down, [(1, DownCause::Failed)], "{family}");
    }
}

/// Asserts the contents of memory after this many commands.
fn check_memory(there: &MemoryRegion, own: &MemoryRegion, count: usize) {
    let word = |region: &MemoryRegion, at| region.atomic_u64(at).load(Relaxed);
    for number in 0..count {
        match number % 4 {
            0 | 3 => assert_eq!(word(there, 8 * number), number as u64),
            1 => assert_eq!(word(own, 8 * number), SEEN),
            _ => {}
        }
    }
    assert_eq!(word(there, ADDED), count as u64 / 4);
}

/// Offset at which gets find [`SEEN`].
const HELD: usize = 8000;
/// Offset of the target of additions.
const ADDED: usize = 8008;
const SEEN: u64 = 0x5ee9;

/// Calls that are made to find no room.
const CALLS: [&str; 6] = [
    "PtlPut",
    "PtlGet",
    "PtlFetchAtomic",
    "PtlSwap",
    "PtlMEAppend",
    "PtlPTEnable",
];

#[test]
fn a_library_that_has_no_room_now_and_then_loses_nothing() {
    const COUNT: usize = 200;
    for family in FAMILIES {
        let mut world = World::new(family, 2);
        let memory = world.rank(1).allocate(8 << 10).expect("memory");
        let own = world.rank(0).allocate(8 << 10).expect("memory");
        memory.atomic_u64(HELD).store(SEEN, Relaxed);
        let key = world.rank(1).expose(memory.range()).expect("a key");
        let nis = [0, 1].map(|rank| world.rank(rank).transport.resources.ni.clone());
        for (made, call) in (2..).zip(CALLS) {
            nis.iter()
                .for_each(|ni| ni.refuse(call, "PTL_NO_SPACE", Some(made)));
        }
        let (mut sent, mut posted) = ([0; 2], 0);
        let all = COUNT as u64;
        world.until(|world| {
            for from in [0, 1] {
                let to = 1 - u32::try_from(from).expect("a rank");
                let len = if sent[from] % 3 == 0 { 30_000 } else { 8 };
                let room = sent[from] < all && world.sends(from, to, sent[from], len);
                sent[from] += u64::from(room);
            }
            posted += usize::from(posted < COUNT && world.does(posted, key, &own));
            let heard = [0, 1].map(|rank| world.heard(rank).messages.len());
            heard == [COUNT; 2] && world.heard(0).ended.len() == COUNT
        });
        for rank in [0, 1] {
            let numbers = world.heard(rank).messages.iter().map(|(_, number)| *number);
            assert!(numbers.eq(0..all), "{family}: lost or overtaken");
            assert!(world.heard(rank).down.is_empty(), "{family}");
        }
        let failed = |(_, how): &&(u64, Result<_, _>)| how.is_err();
        let failed = world.heard(0).ended.iter().find(failed);
        assert!(failed.is_none(), "{family}: {failed:?}");
        check_memory(&memory, &own, COUNT);
        for ni in nis {
            assert!(ni.obey() > 0);
        }
    }
}

#[test]
fn pieces_of_long_commands_find_room_by_and_by() {
    const LEN: usize = 1 << 20;
    for family in FAMILIES {
        let mut world = World::by_rails(family, 2, &[0, 1]);
        let [own, there] = [0, 1].map(|rank| world.rank(rank).allocate(LEN).expect("memory"));
        let key = world.rank(1).expose(there.range()).expect("a key");
        let nis = [0, 1].map(|rail| world.rank(0).transport.resources.rails[rail].ni.clone());
        for ni in &nis {
            for call in ["PtlPut", "PtlGet"] {
                ni.refuse(call, "PTL_NO_SPACE", Some(3));
            }
        }
        let bytes: Vec<u8> = (0..251).cycle().take(LEN).collect();
        own.write(0, &bytes);
        let (to, token, range) = (WorldRank(1), CommandToken(0), own.range());
        let put = DriverCommand::Put {
            to,
            from: range,
            into: key,
            count: None,
            token,
        };
        let get = DriverCommand::Get {
            to,
            from: key,
            into: range,
            token,
        };
        for (command, to) in [(put, &there), (get, &own)] {
            assert!(matches!(world.rank(0).post(command), PostResult::Posted));
            world.until(|world| !world.heard(0).ended.is_empty());
            let ended = world.heard(0).ended.pop();
            assert!(matches!(ended, Some((0, Ok(None)))), "{family}: {ended:?}");
            let mut found = vec![0; LEN];
            to.read(0, &mut found);
            assert!(found == bytes, "{family}: it is not what it was");
            own.write(0, &[7; LEN]);
        }
        assert!(nis.iter().all(|ni| ni.obey() > 0), "{family}");
    }
}

#[test]
fn what_never_finds_room_is_given_up_after_a_while() {
    let mut world = World::new("sandia42", 2);
    let ni = world.rank(0).transport.resources.ni.clone();
    ni.refuse("PtlPut", "PTL_NO_SPACE", None);
    assert!(world.sends(0, 1, 0, 8));
    for _ in 0..REFUSALS_MAX / 2 {
        world.rank(0).transport.transmit();
    }
    let state = world.rank(0).transport.peer(1).state;
    assert_eq!(state, PortalsPeerState::Up, "too early");
    for _ in 0..REFUSALS_MAX / 2 {
        world.rank(0).transport.transmit();
    }
    world.until(|world| !world.heard(0).down.is_empty());
    assert_eq!(world.heard(0).down, [(1, DownCause::Failed)]);
    assert_eq!(ni.obey(), REFUSALS_MAX);
}

#[test]
fn an_operation_that_is_done_is_a_sign_of_life() {
    for family in FAMILIES {
        let mut world = World::new(family, 2);
        let there = world.rank(1).allocate(8 << 10).expect("memory");
        let own = world.rank(0).allocate(8 << 10).expect("memory");
        let key = world.rank(1).expose(there.range()).expect("a key");
        for number in 0..4 {
            let before = world.rank(0).answers(WorldRank(1));
            assert!(world.does(number, key, &own));
            world.until(|world| world.heard(0).ended.len() > number);
            assert!(world.rank(0).answers(WorldRank(1)) > before, "{number}");
        }
    }
}
