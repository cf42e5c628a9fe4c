//! Atomics and their valid arguments.

use ripstop_softportals::{
    AckRequest, AppMemory, AtomicDatatype, AtomicOperator, EntryList, EntryOptions, EventKind,
    NiCommand, NiFail, NiLimits, RequestTarget, SoftError, SoftListEntry,
};

use crate::world::{INITIATOR_AT, Initiator, Target, World, bytes, entry, events, kinds};

fn ready() -> (World, Target, Initiator) {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 4096), EntryList::Priority, 5);
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
    let remote = RequestTarget {
        length: 8,
        ..world.remote(1)
    };
    let (sum, long) = (AtomicOperator::Sum, AtomicDatatype::U64);
    let command = NiCommand::Atomic(initiator.local(0), remote, AckRequest::Full, sum, long);
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
    let remote = RequestTarget {
        length: 8,
        ..world.remote(1)
    };
    let (get, put) = (initiator.local(64), initiator.local(0));
    let command =
        NiCommand::FetchAtomic(get, put, remote, AtomicOperator::Prod, AtomicDatatype::I64);
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
        let remote = RequestTarget {
            length: 8,
            ..world.remote(1)
        };
        let mut operand = [0; 32];
        operand[..8].copy_from_slice(&compared.to_ne_bytes());
        let (get, put) = (initiator.local(64), initiator.local(0));
        let command = NiCommand::Swap(
            get,
            put,
            remote,
            AtomicOperator::Cswap,
            AtomicDatatype::U64,
            operand,
        );
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
    for operator in AtomicOperator::ALL {
        for datatype in AtomicDatatype::ALL {
            let length = datatype.size() as u64;
            let remote = RequestTarget { length, ..remote };
            let node = &mut world.nodes[0];
            let combines = node.start(NiCommand::Atomic(
                put,
                remote,
                AckRequest::No,
                operator,
                datatype,
            ));
            let fetches = node.start(NiCommand::FetchAtomic(get, put, remote, operator, datatype));
            let swaps = node.start(NiCommand::Swap(
                get, put, remote, operator, datatype, [0; 32],
            ));
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
    let most = NiLimits::MOST.max_atomic_size;
    let remote = world.remote(1);
    let (get, put) = (initiator.local(4096), initiator.local(0));
    let mut atomic = |length| {
        let remote = RequestTarget { length, ..remote };
        let command = NiCommand::Atomic(
            put,
            remote,
            AckRequest::No,
            AtomicOperator::Sum,
            AtomicDatatype::U64,
        );
        world.nodes[0].start(command)
    };
    assert!(atomic(most).is_ok() && atomic(0).is_ok());
    assert!(matches!(atomic(most + 8), Err(SoftError::ArgInvalid(_))));
    assert!(matches!(atomic(12), Err(SoftError::ArgInvalid(_))));
    let two = RequestTarget {
        length: 16,
        ..remote
    };
    let node = &mut world.nodes[0];
    let cswap = NiCommand::Swap(
        get,
        put,
        two,
        AtomicOperator::Cswap,
        AtomicDatatype::U64,
        [0; 32],
    );
    assert!(
        matches!(node.start(cswap), Err(SoftError::ArgInvalid(_))),
        "one element"
    );
    let swap = NiCommand::Swap(
        get,
        put,
        two,
        AtomicOperator::Swap,
        AtomicDatatype::U64,
        [0; 32],
    );
    assert!(node.start(swap).is_ok());
}

#[test]
fn a_fetching_atomic_needs_an_entry_for_puts_and_gets() {
    for options in [EntryOptions::OP_PUT, EntryOptions::OP_GET] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        let one = SoftListEntry {
            options,
            ..entry(0, 8)
        };
        target.append(&mut world.nodes[1], one, EntryList::Priority, 5);
        let initiator = Initiator::new(&mut world.nodes[0]);
        let remote = RequestTarget {
            length: 8,
            ..world.remote(1)
        };
        let (get, put) = (initiator.local(64), initiator.local(0));
        let command =
            NiCommand::FetchAtomic(get, put, remote, AtomicOperator::Sum, AtomicDatatype::U64);
        world.nodes[0].start(command).unwrap();
        world.run();
        let reply = events(&mut world.nodes[0], initiator.eq)[1];
        assert_eq!(
            (reply.kind, reply.fail),
            (EventKind::Reply, NiFail::OpViolation)
        );
    }
}

#[test]
fn what_does_not_fit_is_cut_and_only_whole_elements_change() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 12), EntryList::Priority, 5);
    let initiator = Initiator::new(&mut world.nodes[0]);
    world.nodes[0]
        .memory()
        .write(INITIATOR_AT, &[1; 16])
        .unwrap();
    let remote = RequestTarget {
        length: 16,
        ..world.remote(1)
    };
    let command = NiCommand::Atomic(
        initiator.local(0),
        remote,
        AckRequest::Full,
        AtomicOperator::Sum,
        AtomicDatatype::U64,
    );
    world.nodes[0].start(command).unwrap();
    world.run();
    assert_eq!(bytes(&mut world.nodes[1], 0, 16), [[1; 8], [0; 8]].concat());
    assert_eq!(events(&mut world.nodes[1], target.eq)[0].mlength, 12);
}
