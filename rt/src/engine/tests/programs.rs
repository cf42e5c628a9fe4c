//! Programs without threads: failed and paused ranks on a driver that does not report failures, and what stays behind.

use std::{panic::Location, sync::Arc};

use super::world::{CTX, DETECT, Net, Spoken, TICK, World, failed_rank, op_info};
use crate::{
    engine::{Engine, ExecutionRequest, RunCall, RunTicket},
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    offload::{
        CollectiveProgram, CollectiveSignature, CommRank, ErasedReducer, OperandSide, Plan,
        ProgramBuffer, StepAction,
    },
    ops::{OpInfo, OpOutcome, ProgramBuffers},
    proto::wire::{AbortHeader, HeaderBase, WireKind},
};

pub(super) type Tickets = RunTicket<Vec<u64>, Vec<u64>>;

/// Returns a program that passes every rank's numbers around a ring to all ranks, and adds up the received ones in scratch
/// memory.
fn ring(rank: usize, size: usize, block: usize) -> CollectiveProgram {
    let mut plan = Plan::new(rank, size);
    let sum = plan.add_scratch(block);
    let place = |of: usize| ProgramBuffer::Output.span(of % size * block, block);
    let copy = StepAction::Copy {
        from: ProgramBuffer::Input.span(0, block),
        into: place(rank),
    };
    let mut here = plan.push(copy, &[]);
    for round in 0..size - 1 {
        let send = StepAction::Send {
            to: CommRank((rank + 1) % size),
            from: place(rank + size - round),
        };
        plan.push(send, &[here]);
        let recv = StepAction::Recv {
            from: CommRank((rank + size - 1) % size),
            into: place(rank + size - round - 1),
        };
        here = plan.push(recv, &[]);
        let reduce = StepAction::Reduce {
            from: place(rank + size - round - 1),
            into: sum,
            side: OperandSide::Right,
        };
        plan.push(reduce, &[here]);
    }
    plan.program::<u64>(block, size * block).expect("it fits")
}

/// Returns a program that exchanges one number with every other rank.
fn everybody(rank: usize, size: usize) -> CollectiveProgram {
    let mut plan = Plan::new(rank, size);
    for other in (0..size).filter(|other| *other != rank) {
        let send = StepAction::Send {
            to: CommRank(other),
            from: ProgramBuffer::Input.span(0, 1),
        };
        plan.push(send, &[]);
        let recv = StepAction::Recv {
            from: CommRank(other),
            into: ProgramBuffer::Output.span(other, 1),
        };
        plan.push(recv, &[]);
    }
    plan.program::<u64>(1, size).expect("it fits")
}

pub(super) fn begin(world: &mut World, rank: usize, tag: u32, block: usize) -> Tickets {
    let program = ring(rank, world.engines.len(), block);
    begin_this(world, rank, tag, block, program)
}

fn begin_this(
    world: &mut World,
    rank: usize,
    tag: u32,
    block: usize,
    program: CollectiveProgram,
) -> Tickets {
    let size = world.engines.len();
    let call = RunCall {
        ctx: CTX + 1,
        tag,
        sig: CollectiveSignature::of("ring").0.0,
        at: Location::caller(),
        group: RankGroup::First(u32::try_from(size).expect("few")),
        program: Arc::new(program),
        reducer: Some(ErasedReducer::new::<u64>(u64::wrapping_add)),
        refused: None,
        request: ExecutionRequest::Messages,
        with_block_events: false,
    };
    let (input, output) = (vec![rank as u64; block], vec![9; size * block]);
    let buffers = ProgramBuffers::new(input, output, &call.program, false);
    world.engines[rank].run(call, buffers, None)
}

fn begin_all(world: &mut World, tag: u32, block: usize) -> Vec<Tickets> {
    let ranks = 0..world.engines.len();
    ranks.map(|rank| begin(world, rank, tag, block)).collect()
}

fn done(engine: &mut Engine, tickets: &Tickets) -> bool {
    engine.core.p2p.common.is_done(tickets.buffers.op)
}

fn take(world: &mut World, rank: usize, tickets: &Tickets) -> (OpOutcome, Vec<u64>) {
    let taken = world.engines[rank].core.collectives().take_run(tickets);
    let (outcome, input, output, panic) = taken.expect("it is over");
    assert!(panic.is_none() && input.iter().all(|&word| word == rank as u64));
    (outcome, output)
}

/// Returns the number of operations left on all ranks.
fn left(world: &mut World) -> usize {
    let engines = world.engines.iter_mut();
    engines.map(|engine| engine.state().operations).sum()
}

fn net(reliable: bool) -> Net {
    Net {
        reliable,
        ..Net::default()
    }
}

#[test]
fn one_runs_to_its_end_and_leaves_nothing() {
    for block in [1, 700, 100_000] {
        let mut world = World::new(5, net(true));
        let all = begin_all(&mut world, 0, block);
        for (rank, tickets) in all.iter().enumerate() {
            world.run_until(|engines| done(&mut engines[rank], tickets));
            let (outcome, output) = take(&mut world, rank, tickets);
            assert!(outcome.is_ok());
            let expected = (0..5).flat_map(|of| vec![of; block]);
            assert!(output.into_iter().eq(expected));
        }
        world.run_for(10 * TICK);
        assert_eq!(left(&mut world), 0);
    }
}

/// Checks drivers that connect to all peers of which they are notified at the same time.
#[test]
fn ranks_announce_the_peers_of_a_program_once_and_before_its_messages() {
    const RANKS: u32 = 5;
    let mut world = World::new(
        RANKS,
        Net {
            connects: true,
            ..net(true)
        },
    );
    for tag in 0..2 {
        let begin = |rank| begin_this(&mut world, rank, tag, 1, everybody(rank, RANKS as usize));
        let all: Vec<Tickets> = (0..RANKS as usize).map(begin).collect();
        for (rank, tickets) in all.iter().enumerate() {
            world.run_until(|engines| done(&mut engines[rank], tickets));
            let (outcome, output) = take(&mut world, rank, tickets);
            let others = output.iter().zip(0..).filter(|(_, of)| *of != rank as u64);
            assert!(outcome.is_ok() && others.into_iter().all(|(got, of)| *got == of));
        }
    }
    let spoken = world.net.spoken.lock().unwrap().clone();
    for me in 0..RANKS {
        let of_mine = |spoken: &&Spoken| match spoken {
            Spoken::Will(rank, _) | Spoken::Does(rank, _) => *rank == me,
        };
        let mine: Vec<&Spoken> = spoken.iter().filter(of_mine).collect();
        let others = (0..RANKS).filter(|other| *other != me).collect();
        assert_eq!(mine[0], &Spoken::Will(me, others), "before anything else");
        let rest = &mine[1..];
        assert!(rest.len() >= 2 * (RANKS as usize - 1));
        assert!(
            rest.iter().all(|one| matches!(one, Spoken::Does(..))),
            "and once"
        );
    }
}

/// The second program has one more peer than the first.
#[test]
fn only_new_peers_of_a_program_are_announced() {
    let connects = true;
    let mut world = World::new(
        5,
        Net {
            connects,
            ..net(true)
        },
    );
    let _ring = begin(&mut world, 2, 0, 1);
    let _all = begin_this(&mut world, 2, 1, 1, everybody(2, 5));
    let spoken = world.net.spoken.lock().unwrap().clone();
    let will = |one: &Spoken| matches!(one, Spoken::Will(..)).then(|| one.clone());
    let will: Vec<Spoken> = spoken.iter().filter_map(will).collect();
    assert_eq!(
        will,
        [Spoken::Will(2, vec![3]), Spoken::Will(2, vec![0, 1, 4])]
    );
}

#[test]
fn where_drivers_have_no_connections_nothing_is_said_of_them() {
    let mut world = World::new(3, net(true));
    let _all = begin_all(&mut world, 0, 1);
    world.run_for(10 * TICK);
    let spoken = world.net.spoken.lock().unwrap().clone();
    let does = |one: &Spoken| matches!(one, Spoken::Does(..));
    assert!(!spoken.is_empty() && spoken.iter().all(does));
}

#[test]
fn a_rank_that_stops_in_the_middle_ends_it_on_all_others_within_two_intervals() {
    // Some receives wait for rank 3 itself, the others for ranks that wait for it.
    for (reliable, block) in [(true, 1), (false, 1), (true, 100_000)] {
        for turns in 0..12 {
            let mut world = World::new(8, net(reliable));
            let all = begin_all(&mut world, 0, block);
            world.run_for(turns * TICK / 3);
            world.paused.insert(3);
            world.run_for(2 * DETECT + 30 * TICK);
            let others = [0, 1, 2, 4, 5, 6, 7];
            for rank in others {
                let tickets = &all[rank];
                assert!(
                    done(&mut world.engines[rank], tickets),
                    "rank {rank}, {turns}"
                );
                let (outcome, _) = take(&mut world, rank, tickets);
                assert!(outcome.is_ok() || failed_rank(&outcome) == Some(3));
            }
            // The ranks that had completed before fail in the next collective.
            let later = others.map(|rank| begin(&mut world, rank, 1, 1));
            world.run_for(2 * DETECT + 30 * TICK);
            for (rank, tickets) in others.into_iter().zip(&later) {
                assert!(
                    done(&mut world.engines[rank], tickets),
                    "rank {rank}, {turns}"
                );
                assert!(
                    take(&mut world, rank, tickets).0.is_err(),
                    "there is no other"
                );
            }
        }
    }
}

#[test]
fn collectives_before_one_that_fails_go_on_and_later_ones_end() {
    let mut world = World::new(3, net(true));
    let first = begin_all(&mut world, 0, 40_000);
    let third: Vec<_> = (0..2).map(|rank| begin(&mut world, rank, 2, 1)).collect();
    // Number 1 fails on rank 2, whose output has no room.
    let call = RunCall {
        ctx: CTX + 1,
        tag: 1,
        sig: 1,
        at: Location::caller(),
        group: RankGroup::First(3),
        program: Arc::new(ring(2, 3, 1)),
        reducer: None,
        refused: None,
        request: ExecutionRequest::Messages,
        with_block_events: false,
    };
    let buffers = ProgramBuffers::new(vec![2], Vec::new(), &call.program, false);
    let bad: RunTicket<Vec<u64>, Vec<u64>> = world.engines[2].run(call, buffers, None);
    world.run_for(100 * TICK);
    let (outcome, _) = take(&mut world, 2, &bad);
    let kind = outcome.expect_err("no room").kind;
    assert!(matches!(kind, ErrorKind::InvalidArgument(_)), "{kind}");
    for (rank, tickets) in third.iter().enumerate() {
        let kind = take(&mut world, rank, tickets).0.expect_err("revoked").kind;
        assert!(matches!(kind, ErrorKind::Revoked), "{kind}");
        // The rank gets the reason of the failed collective, even if it calls it only after the failure.
        let late = begin(&mut world, rank, 1, 1);
        let kind = take(&mut world, rank, &late).0.expect_err("aborted").kind;
        assert!(matches!(kind, ErrorKind::Aborted { rank: 2 }), "{kind}");
    }
    for (rank, tickets) in first.iter().enumerate() {
        assert!(take(&mut world, rank, tickets).0.is_ok());
    }
    world.run_for(10 * TICK);
    assert_eq!(left(&mut world), 0);
}

#[test]
fn one_of_a_runtime_that_ends_is_over_or_keeps_its_memory() {
    for turns in 0..10 {
        let mut world = World::new(4, net(true));
        let all = begin_all(&mut world, 0, 50_000);
        world.run_for(turns * TICK);
        world.engines[1].release_driver();
        if done(&mut world.engines[1], &all[1]) {
            let (outcome, _) = take(&mut world, 1, &all[1]);
            drop(outcome);
        }
        let after = begin(&mut world, 1, 1, 1);
        let (outcome, _) = take(&mut world, 1, &after);
        assert!(matches!(
            outcome.expect_err("closed").kind,
            ErrorKind::Closed
        ));
        world.run_for(100 * TICK);
        for rank in [0, 2, 3] {
            assert!(
                done(&mut world.engines[rank], &all[rank]),
                "rank {rank} after {turns}"
            );
        }
    }
}

fn abort(ctx: u32, why: u32) -> AbortHeader {
    AbortHeader {
        base: HeaderBase::new(WireKind::Abort),
        ctx,
        tag: 7,
        why,
        rank: 2,
        other: 0,
        zero: 0,
    }
}

fn is_revoked(engine: &Engine, ctx: u32) -> bool {
    engine.core.p2p.common.revoked_kind(ctx, Some(7)).is_some()
}

#[test]
fn news_of_failures_are_believed_of_members() {
    let mut world = World::new(3, net(true));
    let engine = &mut world.engines[0];
    let ctx = CTX + 3;
    engine
        .core
        .join_group(ctx, &RankGroup::new(vec![WorldRank(0), WorldRank(2)]));
    for (from, header) in [
        (2, abort(ctx - 1, 1)),
        (2, abort(ctx, 9)),
        (1, abort(ctx, 1)),
    ] {
        engine.core.handle_abort(WorldRank(from), &header);
        assert!(!is_revoked(engine, ctx));
    }
    assert_eq!(engine.core.p2p.common.refused, 3);
    engine.core.handle_abort(WorldRank(2), &abort(ctx, 1));
    let kind = engine.core.p2p.common.revoked_kind(ctx, Some(7));
    assert!(
        matches!(kind, Some(ErrorKind::PeerFailed { rank: 2, .. })),
        "{kind:?}"
    );
    assert!(engine.core.p2p.common.revoked_kind(ctx, Some(6)).is_none());
}

#[test]
fn news_of_failures_wait_within_bounds_until_the_members_are_known() {
    let mut world = World::new(3, net(true));
    let engine = &mut world.engines[0];
    let strange = |nth: u32| 2 * nth + 1001;
    for nth in 0..100_000 {
        engine
            .core
            .handle_abort(WorldRank(1), &abort(strange(nth), 1));
    }
    for (nth, group) in [
        (0, [0, 1]),
        (98_975, [0, 1]),
        (98_976, [0, 1]),
        (98_977, [0, 2]),
        (99_999, [0, 1]),
    ] {
        let ctx = strange(nth);
        assert!(!is_revoked(engine, ctx), "this rank is not in it");
        engine
            .core
            .join_group(ctx, &RankGroup::new(group.map(WorldRank).to_vec()));
        let believed = nth > 98_975 && group[1] == 1;
        assert_eq!(is_revoked(engine, ctx), believed, "number {nth}");
    }
    assert_eq!(engine.core.p2p.common.refused, 0);
}

#[test]
fn what_comes_for_collectives_of_a_dropped_communicator_goes_and_why_it_failed_is_still_said() {
    for fails in [false, true] {
        for early in [false, true] {
            let mut world = World::new(2, net(true));
            let ctx = CTX + 3;
            for engine in &mut world.engines {
                engine.core.join_group(ctx - 1, &RankGroup::First(2));
                engine.core.join_group(ctx, &RankGroup::First(2));
            }
            let send = |world: &mut World| {
                let info = OpInfo {
                    ctx,
                    ..op_info(Some(1), Some(9))
                };
                let _ = world.engines[0].send(info, vec![5_u8; 100]);
                world.run_for(10 * TICK);
            };
            if early {
                send(&mut world);
                assert_eq!(world.engines[1].core.p2p.common.peers.stored(), 1);
            }
            if fails {
                world.net.cut(1, 0);
                world.engines[1]
                    .core
                    .handle_abort(WorldRank(0), &abort(ctx, 1));
                world.run_for(10 * TICK);
                world.net.heal();
            }
            world.engines[1].core.leave_group(ctx - 1);
            world.engines[1].core.leave_group(ctx);
            if !early {
                send(&mut world);
            }
            world.run_for(10 * TICK);
            assert_eq!(world.engines[1].core.p2p.common.peers.stored(), 0);
            let said = is_revoked(&world.engines[0], ctx);
            assert_eq!(said, fails && !early, "{fails}, {early}");
        }
    }
}
