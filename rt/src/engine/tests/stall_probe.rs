//! Ranks that wait for each other in different collectives, and ranks that only seem to.

use std::{
    panic::Location,
    sync::Arc,
    task::{Poll, Waker},
};

use super::world::{CTX, Net, TICK, World, op_info};
use crate::{
    clock::ClockTime,
    engine::{
        AgreementId, CreationCall, ExecutionRequest, RunCall, RunTicket, SingleRoundProgress,
        SingleRoundRun,
    },
    error::ErrorKind,
    group::RankGroup,
    offload::{CollectiveProgram, CommRank, Plan, ProgramBuffer, StepAction},
    ops::{OpInfo, ProgramBuffers},
    proto::agree::AgreeValue,
    proto::collective_id::CollectiveId,
};

type Tickets = RunTicket<Vec<u64>, Vec<u64>>;

/// Context of collectives.
const COLLECTIVES: u32 = CTX + 1;
/// Context of the collectives of another communicator than the world.
const OTHERS: u32 = COLLECTIVES + 2;

/// Returns a program that waits for a number and sends nothing.
fn wait_for(from: usize, size: usize) -> CollectiveProgram {
    let recv = StepAction::Recv {
        from: CommRank(from),
        into: ProgramBuffer::Output.span(0, 1),
    };
    program_of(recv, [0, 1], size)
}

/// Returns a program that sends a long message and waits for nothing.
fn send_to(to: usize, size: usize) -> CollectiveProgram {
    let send = StepAction::Send {
        to: CommRank(to),
        from: ProgramBuffer::Input.span(0, LONG),
    };
    program_of(send, [LONG, 0], size)
}

fn program_of(action: StepAction, [input, output]: [usize; 2], size: usize) -> CollectiveProgram {
    let mut plan = Plan::new(0, size);
    plan.push(action, &[]);
    plan.program::<u64>(input, output).expect("it fits")
}

/// Length of a message that is offered, in elements.
const LONG: usize = 1 << 16;

/// Creates a world whose driver keeps messages in order.
fn world(ranks: u32) -> World {
    let net = Net {
        reliable: true,
        ..Net::default()
    };
    World::new(ranks, net)
}

/// Returns a call on the first `size` ranks that waits for a message from `from`.
fn call(
    tag: u32,
    sig: u64,
    from: usize,
    size: u32,
) -> (RunCall, ProgramBuffers<Vec<u64>, Vec<u64>>) {
    let call = RunCall {
        ctx: COLLECTIVES,
        tag,
        sig,
        at: Location::caller(),
        group: RankGroup::First(size),
        program: Arc::new(wait_for(from, size as usize)),
        reducer: None,
        refused: None,
        request: ExecutionRequest::Messages,
        with_block_events: false,
    };
    let buffers = ProgramBuffers::new(Vec::new(), vec![0; 1], &call.program, false);
    (call, buffers)
}

fn begin(world: &mut World, on: usize, name: (u32, u64), from: usize, size: u32) -> Tickets {
    let (tag, sig) = name;
    let (call, buffers) = call(tag, sig, from, size);
    world.engines[on].run(call, buffers, None)
}

/// Runs a collective on the rank `on` that completes immediately.
fn pass(world: &mut World, on: usize, tag: u32) {
    let (mut call, _) = call(tag, 1, 0, 2);
    call.program = Arc::new(CollectiveProgram::empty(on, 2));
    let buffers = ProgramBuffers::new([0_u64; 0], [0_u64; 0], &call.program, false);
    let tickets = world.engines[on].run(call, buffers, None);
    assert!(
        world.engines[on]
            .core
            .p2p
            .common
            .is_done(tickets.buffers.op)
    );
}

/// Lets the rank `on` wait for a plain message of an agreement.
fn agree(world: &mut World, on: usize, tag: u32, from: u32) {
    let engine = &mut world.engines[on];
    engine.core.collectives().record_creation(CreationCall {
        id: CollectiveId::new(COLLECTIVES, tag),
        name: "dup",
        window: None,
        arguments: String::new(),
        at: Location::caller(),
    });
    let info = OpInfo {
        ctx: COLLECTIVES,
        ..op_info(Some(from), Some(tag))
    };
    let ticket = engine.core.p2p.common.ops.hold_growing::<u8>(info);
    engine.post(ticket.op);
}

fn agreed(world: &mut World, on: usize, call: u32) -> Poll<Result<AgreeValue, ErrorKind>> {
    let core = &mut world.engines[on].core;
    core.recovery()
        .poll_agreed(AgreementId::new(CTX, call), Waker::noop())
}

fn ended(world: &mut World, on: usize, tickets: &Tickets) -> Option<ErrorKind> {
    let core = &mut world.engines[on].core;
    if !core.p2p.common.is_done(tickets.buffers.op) {
        return None;
    }
    let (outcome, ..) = core.collectives().take_run(tickets).expect("it is over");
    Some(outcome.expect_err("nothing was sent").kind)
}

#[test]
fn a_rank_that_waits_behind_its_own_agreement_asks_about_that_alone() {
    let mut world = world(3);
    // Rank 2 is late. Rank 0 agrees with it first and then with rank 1, which has completed nothing yet.
    agree(&mut world, 0, 7, 2);
    agree(&mut world, 1, 7, 0);
    let later = begin(&mut world, 0, (8, 1), 1, 3);
    // Rank 0 asks rank 2, which has not come yet.
    assert!(world.engines[0].core.ask_in_vain(false));
    assert!(!world.engines[0].core.ask_in_vain(false), "twice");
    world.run_for(10 * TICK);
    assert!(ended(&mut world, 0, &later).is_none(), "rank 1 will come");
    // Now rank 0 has left the agreement, without sending what rank 1 waits for.
    world.engines[0]
        .core
        .record_creation_end(CollectiveId::new(COLLECTIVES, 7));
    assert!(world.engines[0].core.ask_in_vain(false));
    world.run_for(10 * TICK);
    let kind = ended(&mut world, 0, &later);
    assert!(
        matches!(
            kind,
            Some(ErrorKind::Mismatch {
                rank: 0,
                other: 1,
                ..
            })
        ),
        "{kind:?}"
    );
}

#[test]
fn ranks_ask_each_other_also_when_another_one_has_finished() {
    let mut world = world(3);
    world.engines[2].release_driver();
    world.run_until(|engines| {
        engines[..2]
            .iter()
            .all(|engine| engine.core.p2p.common.peers.downs() == 1)
    });
    let both = [(0, 1), (1, 0)].map(|(on, from)| {
        let tickets = begin(&mut world, on, (0, on as u64), from, 2);
        let now = world.now;
        world.engines[on]
            .core
            .arm_stall_probe(false, || ClockTime::from_nanos(now));
        tickets
    });
    world.now += 2_000_000_000;
    world.run_for(10 * TICK);
    for (rank, tickets) in both.iter().enumerate() {
        let kind = ended(&mut world, rank, tickets);
        assert!(
            matches!(
                kind,
                Some(ErrorKind::Mismatch {
                    rank: 0,
                    other: 1,
                    ..
                })
            ),
            "rank {rank}: {kind:?}"
        );
    }
}

/// The rank's own collectives complete soon, and each starts and stops the stall probe.
#[test]
fn an_agreeing_rank_asks_even_while_it_keeps_running_collectives() {
    for stays in [false, true] {
        let mut world = world(2);
        for engine in &mut world.engines {
            engine.join(OTHERS - 1, &RankGroup::First(2));
        }
        world.engines[1].core.leave_group(OTHERS - 1);
        let round = world.engines[0].agree(OTHERS - 1, true, 3, Location::caller());
        for tag in 0..4 {
            let now = world.now;
            world.engines[0]
                .core
                .arm_stall_probe(stays, || ClockTime::from_nanos(now));
            pass(&mut world, 0, tag);
            world.now += 600_000_000;
            world.run_for(10 * TICK);
        }
        let id = AgreementId::new(OTHERS - 1, round);
        let polled = world.engines[0]
            .core
            .recovery()
            .poll_agreed(id, Waker::noop());
        assert!(matches!(polled, Poll::Ready(Ok(_))), "{polled:?}");
    }
}

#[test]
fn a_question_remains_after_a_test_for_completion_of_a_collective() {
    let mut world = world(2);
    let asked = begin(&mut world, 1, (0, 2), 0, 2);
    assert!(world.engines[1].core.ask_in_vain(false));
    world.run_for(10 * TICK);
    let (call, buffers) = call(0, 1, 1, 2);
    let single_round = SingleRoundRun::new(Box::new(call), buffers, SingleRoundProgress::default());
    let engine = &mut world.engines[0];
    assert!(
        [(); 2]
            .iter()
            .all(|()| engine.collectives().is_single_round_done(&single_round))
    );
    let (answer, _) = engine.convert_to_run(single_round);
    world.run_for(10 * TICK);
    for (rank, tickets) in [&answer, &asked].into_iter().enumerate() {
        let kind = ended(&mut world, rank, tickets);
        assert!(
            matches!(
                kind,
                Some(ErrorKind::Mismatch {
                    rank: 0,
                    other: 1,
                    ..
                })
            ),
            "rank {rank}: {kind:?}"
        );
    }
}

#[test]
fn waiting_for_a_rank_that_has_released_the_communicator_fails() {
    for sends in [false, true] {
        let mut world = world(2);
        for engine in &mut world.engines {
            for ctx in [OTHERS - 1, OTHERS] {
                engine.core.join_group(ctx, &RankGroup::First(2));
            }
        }
        for ctx in [OTHERS - 1, OTHERS] {
            world.engines[1].core.leave_group(ctx);
        }
        let (mut call, _) = call(3, 1, 1, 2);
        call.ctx = OTHERS;
        let mut buffers = ProgramBuffers::new(Vec::new(), vec![0; 1], &call.program, false);
        if sends {
            call.program = Arc::new(send_to(1, 2));
            buffers = ProgramBuffers::new(vec![1; LONG], Vec::new(), &call.program, false);
        }
        let waits = world.engines[0].run(call, buffers, None);
        world.run_for(10 * TICK);
        assert!(ended(&mut world, 0, &waits).is_none());
        assert!(world.engines[0].core.ask_in_vain(false));
        world.run_for(10 * TICK);
        let kind = ended(&mut world, 0, &waits);
        assert!(
            matches!(
                kind,
                Some(ErrorKind::Mismatch {
                    rank: 0,
                    other: 1,
                    ..
                })
            ),
            "{sends}: {kind:?}"
        );
    }
}

/// Their sends keep both ranks from exiting, and neither begins another collective.
#[test]
fn ranks_that_leave_with_a_message_for_each_other_hear_of_it() {
    let mut world = world(2);
    let both = [0, 1].map(|on| {
        let (mut call, _) = call(3, on as u64, 1 - on, 2);
        call.program = Arc::new(send_to(1 - on, 2));
        let buffers =
            ProgramBuffers::new(vec![1_u64; LONG], Vec::<u64>::new(), &call.program, false);
        let tag = 3 + u32::try_from(on).expect("few");
        let tickets = world.engines[on].run(RunCall { tag, ..call }, buffers, None);
        world.engines[on].begin_close();
        tickets
    });
    world.run_for(10 * TICK);
    assert!(world.engines[0].core.ask_in_vain(false));
    world.run_for(10 * TICK);
    for (rank, tickets) in both.iter().enumerate() {
        let kind = ended(&mut world, rank, tickets);
        assert!(kind.is_some(), "rank {rank} waits");
    }
}

/// If only the future or its task is dropped, the collective continues, and the rank begins no other one.
#[test]
fn waiting_for_a_rank_that_is_about_to_leave_fails() {
    let mut world = world(2);
    let waits = begin(&mut world, 0, (3, 1), 1, 2);
    let others = begin(&mut world, 1, (2, 1), 0, 2);
    world.engines[1].begin_close();
    assert!(world.engines[0].core.ask_in_vain(false));
    world.run_for(10 * TICK);
    for (rank, tickets) in [(0, &waits), (1, &others)] {
        let kind = ended(&mut world, rank, tickets);
        assert!(
            matches!(
                kind,
                Some(ErrorKind::Mismatch {
                    rank: 0,
                    other: 1,
                    ..
                }) | None
            ),
            "{kind:?}"
        );
        assert!(rank == 1 || kind.is_some());
    }
}

/// The program waits for a collective that the other rank calls after the agreement.
#[test]
fn an_agreement_goes_on_without_a_rank_that_is_about_to_leave() {
    for promised in [0, 1] {
        let mut world = world(2);
        let kept = begin(&mut world, 0, (3, 1), 1, 2);
        world.engines[0].core.p2p.common.promised = promised;
        world.engines[0].begin_close();
        let round = world.engines[1].agree(CTX, true, 3, Location::caller());
        assert!(world.engines[1].core.ask_in_vain(false));
        world.run_for(10 * TICK);
        // A task that is still promised may begin the agreement later.
        assert_eq!(agreed(&mut world, 1, round).is_ready(), promised == 0);
        let late = world.engines[0].agree(CTX, true, 4, Location::caller());
        world.run_for(10 * TICK);
        let is_closed = matches!(
            agreed(&mut world, 0, late),
            Poll::Ready(Err(ErrorKind::Closed))
        );
        assert!(is_closed == (promised == 0) && ended(&mut world, 0, &kept).is_none());
    }
}

/// The rank cannot exit, because its last send was not received.
#[test]
fn waiting_for_a_closing_rank_that_cannot_exit_fails() {
    for sends in [true, false] {
        let mut world = world(2);
        let waits = begin(&mut world, 0, (3, 1), 1, 2);
        if sends {
            let _ = world.send(1, 0, 1, vec![1_u64; 1 << 16]);
        }
        world.engines[1].begin_close();
        world.run_for(10 * TICK);
        assert!(world.engines[0].core.ask_in_vain(false));
        world.run_for(10 * TICK);
        let kind = ended(&mut world, 0, &waits);
        let named = matches!(
            kind,
            Some(ErrorKind::Mismatch {
                rank: 0,
                other: 1,
                ..
            })
        );
        // Without that send, the rank exits soon, and its exit ends the wait of the other one.
        assert_eq!(named, sends, "{kind:?}");
    }
}

#[test]
fn a_question_about_a_completed_collective_is_answered_however_old_it_is() {
    for passed in [1, 200, 300, 1_000] {
        let mut world = world(2);
        for tag in 0..passed {
            pass(&mut world, 1, tag);
            world.run_for(TICK);
        }
        let late = begin(&mut world, 0, (0, 1), 1, 2);
        // A collective that may still begin in an earlier place may be the one for which rank 0 waits.
        world.engines[1].core.p2p.common.promised = u32::from(passed == 1_000);
        assert!(world.engines[0].core.ask_in_vain(false));
        world.run_for(10 * TICK);
        match ended(&mut world, 0, &late) {
            Some(ErrorKind::Mismatch {
                rank: 0, other: 1, ..
            }) => assert!(passed < 1_000),
            None => assert!(passed == 1_000),
            kind => panic!("after {passed}: {kind:?}"),
        }
    }
}

/// The future of a collective that completed long ago may still fetch the message.
#[test]
fn an_offer_for_an_old_collective_is_not_answered_with_its_completion() {
    let mut world = world(2);
    for tag in 1..1_000 {
        pass(&mut world, 1, tag);
        world.run_for(TICK);
    }
    let (mut offers, _) = call(0, 1, 1, 2);
    offers.program = Arc::new(send_to(1, 2));
    let buffers = ProgramBuffers::new(vec![1_u64; LONG], Vec::<u64>::new(), &offers.program, false);
    let offers = world.engines[0].run(offers, buffers, None);
    world.run_for(10 * TICK);
    assert!(world.engines[0].core.ask_in_vain(false));
    world.run_for(10 * TICK);
    assert!(ended(&mut world, 0, &offers).is_none());
}
