use super::{
    CollectiveFailure, CollectiveId, CollectiveRegistry, DISPLACED_MAX, Location, OVER_MAX,
    revocations::LEFT_MAX,
};
use crate::{error::ErrorKind, group::WorldRank};

const HERE: &Location<'_> = Location::caller();

#[test]
fn a_revoked_communicator_says_nothing_of_others() {
    let mut calls = CollectiveRegistry::new();
    calls.revocations.revoke(
        CollectiveId::new(3, 7),
        CollectiveFailure::Failed(WorldRank(1)),
    );
    calls.revocations.make_void(5);
    let calm = |ctx: u32| {
        !calls.revocations.is_revoked(ctx) && !calls.early.may_have(CollectiveId::new(ctx, 2))
    };
    assert!(calm(1) && !calm(3) && !calm(5));
}

#[test]
fn a_rank_that_completed_before_a_mismatch_is_notified_once_of_both_ranks() {
    let mut calls = CollectiveRegistry::new();
    let told = |calls: &mut CollectiveRegistry, tag| {
        calls
            .revocations
            .report(CollectiveId::new(3, tag), ErrorKind::Revoked)
    };
    calls.revocations.revoke(
        CollectiveId::new(3, 7),
        CollectiveFailure::Mismatch(WorldRank(1), WorldRank(4)),
    );
    let first = told(&mut calls, 8);
    assert!(matches!(
        first,
        ErrorKind::Mismatch {
            rank: 1,
            other: 4,
            ..
        }
    ));
    assert!(matches!(told(&mut calls, 9), ErrorKind::Revoked));
}

#[test]
fn a_rank_that_completed_before_a_failure_is_notified_once_of_the_failed_rank() {
    let mut calls = CollectiveRegistry::new();
    let told = |calls: &mut CollectiveRegistry, tag| {
        calls
            .revocations
            .report(CollectiveId::new(5, tag), ErrorKind::Revoked)
    };
    calls.revocations.revoke(
        CollectiveId::new(5, 7),
        CollectiveFailure::Failed(WorldRank(1)),
    );
    let first = told(&mut calls, 8);
    assert!(matches!(first, ErrorKind::PeerFailed { rank: 1, .. }));
    calls.revocations.revoke(
        CollectiveId::new(5, 6),
        CollectiveFailure::Failed(WorldRank(1)),
    );
    assert!(matches!(told(&mut calls, 9), ErrorKind::Revoked));
    calls.revocations.revoke(
        CollectiveId::new(3, 7),
        CollectiveFailure::GaveUp(WorldRank(1)),
    );
    let other = calls
        .revocations
        .report(CollectiveId::new(3, 8), ErrorKind::Revoked);
    assert!(matches!(other, ErrorKind::Revoked));
}

#[test]
fn the_next_number_is_new_however_many_others_have_ended_meanwhile() {
    let mut calls = CollectiveRegistry::new();
    assert_eq!(calls.next(1), 0);
    for tag in 0..6 {
        calls.begin(CollectiveId::new(1, tag), 0, 0);
        calls.end(CollectiveId::new(1, tag), 0, HERE);
    }
    calls.begin(CollectiveId::new(1, 6), 0, 0);
    assert_eq!(calls.next(1), 7);
    calls.end(CollectiveId::new(1, 6), 0, HERE);
    let others = u32::try_from(2 * OVER_MAX).unwrap();
    for tag in 0..others {
        calls.note_over(CollectiveId::new(5, tag), 0, HERE);
    }
    assert_eq!(calls.next(1), 7);
    assert_eq!(calls.next(5), others);
}

#[test]
fn what_others_have_displaced_is_long_over() {
    let mut calls = CollectiveRegistry::new();
    let all = u32::try_from(OVER_MAX).unwrap();
    for tag in 0..10 {
        calls.note_over(CollectiveId::new(1, tag), 0, HERE);
    }
    assert!((0..20).all(|tag| !calls.is_long_over(CollectiveId::new(1, tag))));
    for tag in 0..all {
        calls.note_over(CollectiveId::new(3, tag), 0, HERE);
    }
    assert!((0..10).all(|tag| calls.is_long_over(CollectiveId::new(1, tag))));
    assert!(!calls.is_long_over(CollectiveId::new(1, 10)));
    // The first collective of a communicator ends after later ones.
    for tag in (1..=all).chain([0]) {
        calls.note_over(CollectiveId::new(5, tag), 0, HERE);
    }
    assert_eq!(calls.next(5), all + 1);
    assert!(
        calls.is_over(CollectiveId::new(5, 0)) && calls.is_long_over(CollectiveId::new(5, all))
    );
}

#[test]
fn what_was_displaced_is_no_reason_once_numbers_go_round() {
    let mut calls = CollectiveRegistry::new();
    calls.note_over(CollectiveId::new(1, 9), 0, HERE);
    for tag in 0..u32::try_from(OVER_MAX).unwrap() {
        calls.note_over(CollectiveId::new(3, tag), 0, HERE);
    }
    assert!(calls.is_long_over(CollectiveId::new(1, 9)));
    for tag in [1 << 16, 1 << 31] {
        calls.note_over(CollectiveId::new(1, tag), 0, HERE);
        assert!(calls.is_long_over(CollectiveId::new(1, tag - 1_000)));
        assert!(
            !calls.is_long_over(CollectiveId::new(1, tag + 20)),
            "it has not begun"
        );
    }
}

#[test]
fn communicators_that_come_and_go_leave_nothing_for_long() {
    let mut calls = CollectiveRegistry::new();
    calls.note_over(CollectiveId::new(1, 0), 0, HERE);
    for ctx in (3..10_001).step_by(2) {
        calls.note_over(CollectiveId::new(ctx, 0), 0, HERE);
        calls.forget(ctx, |its| 1 < its && its <= ctx);
        assert!(calls.displaced.len() <= DISPLACED_MAX + 1);
    }
    assert!(
        calls.is_long_over(CollectiveId::new(1, 0)),
        "it has not been left"
    );
}

#[test]
fn why_a_communicator_was_revoked_is_known_for_a_while_and_of_the_world_for_good() {
    let mut calls = CollectiveRegistry::new();
    let all = u32::try_from(LEFT_MAX + 100).unwrap();
    for ctx in (0..all).map(|nth| 2 * nth + 1) {
        calls.revocations.revoke(
            CollectiveId::new(ctx, 7),
            CollectiveFailure::GaveUp(WorldRank(1)),
        );
        calls.forget(ctx, |its| 1 < its && its <= ctx);
        calls.forget(ctx, |its| 1 < its && its <= ctx);
        assert!(calls.revocations.kind(CollectiveId::new(ctx, 7)).is_some());
    }
    assert!(calls.revocations.kind(CollectiveId::new(1, 8)).is_some());
    assert!(
        calls.revocations.kind(CollectiveId::new(3, 8)).is_none(),
        "it is long gone"
    );
    assert_eq!(calls.revocations.count(), LEFT_MAX + 1);
}

#[test]
fn what_is_known_of_early_messages_goes_with_them() {
    let mut calls = CollectiveRegistry::new();
    for (tag, sig) in [(7, 1), (6, 1), (7, 2)] {
        calls.early.add(CollectiveId::new(3, tag), sig);
    }
    assert!(
        calls.early.may_have(CollectiveId::new(3, 6))
            && !calls.early.may_have(CollectiveId::new(3, 8))
    );
    assert!(
        !calls.early.may_have_other(CollectiveId::new(3, 6), 1)
            && calls.early.may_have_other(CollectiveId::new(3, 6), 2)
    );
    assert!(
        calls.early.may_have_other(CollectiveId::new(3, 7), 1),
        "there are two signatures"
    );
    [7, 6, 7, 9]
        .into_iter()
        .for_each(|tag| calls.early.remove(CollectiveId::new(3, tag)));
    assert!(calls.early.is_empty());
}

#[test]
fn what_is_over_is_known_until_others_have_its_place() {
    let mut calls = CollectiveRegistry::new();
    assert!(!calls.is_over(CollectiveId::new(1, 0)));
    for tag in 0..1_000 {
        calls.begin(CollectiveId::new(1, tag), 5, 0);
        assert!(
            calls.running(CollectiveId::new(1, tag)).is_some()
                && !calls.is_over(CollectiveId::new(1, tag))
        );
        calls.end(CollectiveId::new(1, tag), 5, HERE);
        assert!(
            calls.running(CollectiveId::new(1, tag)).is_none()
                && calls.is_over(CollectiveId::new(1, tag))
        );
    }
    assert!(
        calls.is_over(CollectiveId::new(1, 900))
            && !calls.is_over(CollectiveId::new(1, 100))
            && !calls.is_over(CollectiveId::new(3, 900))
    );
    assert!(
        calls.is_long_over(CollectiveId::new(1, 100))
            && !calls.is_long_over(CollectiveId::new(3, 100))
    );
    assert!(
        !calls.is_long_over(CollectiveId::new(1, 900))
            && !calls.is_long_over(CollectiveId::new(1, 1_100))
    );
    assert_eq!(calls.over.len(), OVER_MAX);
}
