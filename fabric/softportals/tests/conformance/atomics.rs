//! Atomics and their valid arguments.

use ripstop_softportals::{
    Ack, Command, Datatype, Entry, EntryOptions, Error, EventKind, Fail, Limits, List, Memory,
    Operator, Remote,
};

use crate::world::{INITIATOR_AT, Initiator, Target, World, bytes, entry, events, kinds};

fn ready() -> (World, Target, Initiator) {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 4096), List::Priority, 5);
    world.nodes[1]
        .memory()
        .write(0, &10_u64.to_ne_bytes())
        .unwrap();
    let initiator = Initiator::new(&mut world.nodes[0]);
    world.nodes[0]
        .memory()
        .write(INITIATOR_AT, &32_u64.to_ne_bytes())
        .unwrap();
    (world, target, initiator)
}

fn value(world: &mut World, node: usize, at: u64) -> u64 {
    u64::from_ne_bytes(bytes(&mut world.nodes[node], at, 8).try_into().unwrap())
}

#[test]
fn an_atomic_combines_and_is_told_on_both_sides() {
    let (mut world, target, initiator) = ready();
    let remote = Remote {
        length: 8,
        ..world.remote(1)
    };
    let (sum, long) = (Operator::Sum, Datatype::U64);
    let command = Command::Atomic(initiator.local(0), remote, Ack::Full, sum, long);
    world.nodes[0].start(command).unwrap();
    world.run();
    assert_eq!(value(&mut world, 1, 0), 42);
    let told = [EventKind::Send, EventKind::Ack];
    assert_eq!(kinds(&mut world.nodes[0], initiator.eq), told);
    let seen = events(&mut world.nodes[1], target.eq)[0];
    assert_eq!(seen.kind, EventKind::Atomic);
    assert_eq!((seen.operator, seen.datatype), (Some(sum), Some(long)));
}

#[test]
fn a_fetching_atomic_brings_back_what_was_there() {
    let (mut world, target, initiator) = ready();
    let remote = Remote {
        length: 8,
        ..world.remote(1)
    };
    let (get, put) = (initiator.local(64), initiator.local(0));
    let command = Command::FetchAtomic(get, put, remote, Operator::Prod, Datatype::I64);
    world.nodes[0].start(command).unwrap();
    world.run();
    assert_eq!(
        (
            value(&mut world, 1, 0),
            value(&mut world, 0, INITIATOR_AT + 64)
        ),
        (320, 10)
    );
    let told = [EventKind::Send, EventKind::Reply];
    assert_eq!(kinds(&mut world.nodes[0], initiator.eq), told);
    assert_eq!(
        kinds(&mut world.nodes[1], target.eq),
        [EventKind::FetchAtomic]
    );
}

#[test]
fn a_conditional_swap_compares_with_its_operand() {
    for (compared, after) in [(10_u64, 32), (11, 10)] {
        let (mut world, _, initiator) = ready();
        let remote = Remote {
            length: 8,
            ..world.remote(1)
        };
        let mut operand = [0; 32];
        operand[..8].copy_from_slice(&compared.to_ne_bytes());
        let (get, put) = (initiator.local(64), initiator.local(0));
        let command = Command::Swap(get, put, remote, Operator::Cswap, Datatype::U64, operand);
        world.nodes[0].start(command).unwrap();
        world.run();
        assert_eq!(value(&mut world, 1, 0), after);
        assert_eq!(value(&mut world, 0, INITIATOR_AT + 64), 10);
    }
}

#[test]
fn every_operator_and_datatype_is_taken_by_one_call_or_refused_by_name() {
    let (mut world, _, initiator) = ready();
    let remote = world.remote(1);
    let (get, put) = (initiator.local(64), initiator.local(0));
    for operator in Operator::ALL {
        for datatype in Datatype::ALL {
            let length = datatype.size() as u64;
            let remote = Remote { length, ..remote };
            let node = &mut world.nodes[0];
            let combines = node.start(Command::Atomic(put, remote, Ack::No, operator, datatype));
            let fetches = node.start(Command::FetchAtomic(get, put, remote, operator, datatype));
            let swaps = node.start(Command::Swap(get, put, remote, operator, datatype, [0; 32]));
            let allowed = operator.takes(datatype);
            assert_eq!(combines.is_ok(), allowed && !operator.swaps());
            assert_eq!(fetches.is_ok(), combines.is_ok());
            assert_eq!(swaps.is_ok(), allowed && operator.swaps());
            world.run();
            events(&mut world.nodes[0], initiator.eq);
        }
    }
}

#[test]
fn lengths_are_whole_elements_within_the_limits() {
    let (mut world, _, initiator) = ready();
    let most = Limits::MOST.max_atomic_size;
    let remote = world.remote(1);
    let (get, put) = (initiator.local(4096), initiator.local(0));
    let mut atomic = |length| {
        let remote = Remote { length, ..remote };
        let command = Command::Atomic(put, remote, Ack::No, Operator::Sum, Datatype::U64);
        world.nodes[0].start(command)
    };
    assert!(atomic(most).is_ok() && atomic(0).is_ok());
    assert!(matches!(atomic(most + 8), Err(Error::ArgInvalid(_))));
    assert!(matches!(atomic(12), Err(Error::ArgInvalid(_))));
    let two = Remote {
        length: 16,
        ..remote
    };
    let node = &mut world.nodes[0];
    let cswap = Command::Swap(get, put, two, Operator::Cswap, Datatype::U64, [0; 32]);
    assert!(
        matches!(node.start(cswap), Err(Error::ArgInvalid(_))),
        "one element"
    );
    let swap = Command::Swap(get, put, two, Operator::Swap, Datatype::U64, [0; 32]);
    assert!(node.start(swap).is_ok());
}

#[test]
fn a_fetching_atomic_needs_an_entry_for_puts_and_gets() {
    for options in [EntryOptions::OP_PUT, EntryOptions::OP_GET] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        let one = Entry {
            options,
            ..entry(0, 8)
        };
        target.append(&mut world.nodes[1], one, List::Priority, 5);
        let initiator = Initiator::new(&mut world.nodes[0]);
        let remote = Remote {
            length: 8,
            ..world.remote(1)
        };
        let (get, put) = (initiator.local(64), initiator.local(0));
        let command = Command::FetchAtomic(get, put, remote, Operator::Sum, Datatype::U64);
        world.nodes[0].start(command).unwrap();
        world.run();
        let reply = events(&mut world.nodes[0], initiator.eq)[1];
        assert_eq!(
            (reply.kind, reply.fail),
            (EventKind::Reply, Fail::OpViolation)
        );
    }
}

#[test]
fn what_does_not_fit_is_cut_and_only_whole_elements_change() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 12), List::Priority, 5);
    let initiator = Initiator::new(&mut world.nodes[0]);
    world.nodes[0]
        .memory()
        .write(INITIATOR_AT, &[1; 16])
        .unwrap();
    let remote = Remote {
        length: 16,
        ..world.remote(1)
    };
    let command = Command::Atomic(
        initiator.local(0),
        remote,
        Ack::Full,
        Operator::Sum,
        Datatype::U64,
    );
    world.nodes[0].start(command).unwrap();
    world.run();
    assert_eq!(bytes(&mut world.nodes[1], 0, 16), [[1; 8], [0; 8]].concat());
    assert_eq!(events(&mut world.nodes[1], target.eq)[0].mlength, 12);
}
