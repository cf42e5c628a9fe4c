//! Slots that are freed and used again, and the operation that ended last.

use super::{BLOCK, EXPECTED_SLOT, EndedOp, LastOp, OpTable};
use crate::{ops::OpInfo, proto::wire::OpId};

fn op_info() -> OpInfo {
    OpInfo {
        ctx: 0,
        peer: None,
        tag: None,
        sig: 0,
        elem: 1,
        synchronous: false,
        probe: false,
        at: std::panic::Location::caller(),
    }
}

fn hold(ops: &mut OpTable) -> OpId {
    ops.hold_recv(op_info(), [0_u8; 1]).op
}

#[test]
fn what_named_a_slot_that_was_given_back_names_no_later_operation() {
    let mut ops = OpTable::new();
    let first = hold(&mut ops);
    let mut stale = Vec::new();
    for _ in 0..3 {
        let burst: Vec<OpId> = (0..10 * BLOCK).map(|_| hold(&mut ops)).collect();
        for &op in &burst {
            drop(ops.release(op));
        }
        stale.extend(burst);
        ops.shrink();
        assert_eq!(ops.room(), (BLOCK, 1), "the first one stays where it is");
    }
    let again: Vec<OpId> = (0..10 * BLOCK).map(|_| hold(&mut ops)).collect();
    assert!(stale.iter().all(|&op| ops.get(op).is_none()));
    assert!(again.iter().all(|&op| ops.get(op).is_some()));
    assert!(ops.get(first).is_some());
}

#[test]
fn an_operation_that_leaves_without_a_result_is_not_taken_for_the_last_one() {
    let mut ops = OpTable::new();
    let op = hold(&mut ops);
    drop(ops.release(op));
    ops.last = LastOp::received(op.slot);
    assert!(matches!(ops.last_ended(), EndedOp::Recv(_)));
    let next = hold(&mut ops);
    assert_eq!(next.slot, op.slot, "the slot was free");
    assert!(matches!(ops.last_ended(), EndedOp::Unknown));
    drop(ops.release(next));
    assert!(matches!(ops.last_ended(), EndedOp::Unknown));
}

#[test]
fn an_expected_receive_stays_the_last_operation_when_all_blocks_are_given_back() {
    let mut ops = OpTable::new();
    let op = hold(&mut ops);
    drop(ops.release(op));
    ops.last = LastOp::received(EXPECTED_SLOT);
    ops.shrink();
    assert!(matches!(ops.last_ended(), EndedOp::Recv(_)));
}

#[test]
fn the_last_operation_is_not_known_once_its_slot_was_given_back() {
    let mut ops = OpTable::new();
    let op = hold(&mut ops);
    drop(ops.release(op));
    ops.last = LastOp::of_slot(5);
    assert!(matches!(ops.last_ended(), EndedOp::Send(_)));
    ops.shrink();
    let in_new_block = hold(&mut ops);
    assert_ne!(in_new_block.slot, 5, "that slot is there again, and free");
    assert!(matches!(ops.last_ended(), EndedOp::Unknown));
}
