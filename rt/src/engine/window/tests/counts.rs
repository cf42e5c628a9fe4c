//! Ends of windows, where counter additions and messages arrive in any order.

use std::panic::Location;

use ripstop_fabric::driver::PayloadView;

use super::alone::{ID, LoneEnd, LoneFlush, lone_ends, remote_info, settle};
use crate::{
    buffer::TypeSig,
    engine::window::{TargetRanges, WindowExtent, WindowLockKind, WindowOpKind},
    error::ErrorKind,
    group::WorldRank,
    ops::OpTicket,
    proto::wire::{
        self, COUNT_COMPLETED, COUNT_POSTED, HeaderBase, UpdateReplyHeader, WindowCountHeader,
        WireKind,
    },
    trace::WindowCall,
};

const PEER: WorldRank = WorldRank(1);

fn open(end: &mut LoneEnd) {
    let extent = WindowExtent::Growing(TypeSig(7));
    end.windows().open_window(ID, extent);
}

/// Returns rank 0, whose end is open to the peer.
fn exposed() -> LoneEnd {
    let mut end = lone_ends(2).swap_remove(0);
    open(&mut end);
    end.windows().post_window(ID, PEER);
    end
}

fn note(kind: WireKind, what: u32, count: u64) -> WindowCountHeader {
    WindowCountHeader {
        base: HeaderBase::new(kind),
        ctx: ID.context,
        tag: ID.sequence,
        event: what,
        zero: 0,
        count,
    }
}

/// Delivers the notice of the peer that it has freed its end, after these numbers of posts and completions.
fn free(end: &mut LoneEnd, posts: u64, completions: u64) {
    for (what, count) in [(COUNT_POSTED, posts), (COUNT_COMPLETED, completions)] {
        let header = note(WireKind::NoWindow, what, count);
        end.core.windows().handle_no_window(PEER, &header);
    }
}

#[test]
fn a_completion_that_is_overtaken_by_the_end_of_its_window_counts() {
    let mut end = exposed();
    free(&mut end, 0, 1);
    let mut windows = end.core.windows();
    assert!(
        windows.has_completed(ID, PEER).is_none(),
        "it is on its way"
    );
    let counted = note(WireKind::WindowCount, COUNT_COMPLETED, 1);
    windows.handle_window_count(PEER, &counted);
    assert!(matches!(windows.has_completed(ID, PEER), Some(Ok(()))));
}

#[test]
fn a_peer_that_never_completed_is_not_waited_for_after_the_window_is_freed() {
    let mut end = exposed();
    free(&mut end, 0, 0);
    let ended = end.core.windows().has_completed(ID, PEER);
    assert!(matches!(ended, Some(Err(ErrorKind::NoWindow { .. }))));
}

#[test]
fn a_post_that_is_overtaken_by_the_end_of_its_window_is_waited_for() {
    let started = |posts| {
        let mut end = exposed();
        free(&mut end, posts, 0);
        end.core.windows().start_window(ID, &[PEER])
    };
    assert!(started(1).is_none(), "it is on its way");
    let refused = started(0);
    assert!(matches!(
        refused,
        Some(Err((PEER, ErrorKind::NoWindow { .. })))
    ));
}

/// Returns two ranks with an end each. The end of rank 1 is open to rank 0, and they have greeted each other.
fn met() -> Vec<LoneEnd> {
    let mut ends = lone_ends(2);
    ends.iter_mut().for_each(open);
    ends[1].windows().post_window(ID, WorldRank(0));
    settle_all(&mut ends);
    ends
}

fn settle_all(ends: &mut [LoneEnd]) {
    settle(|| {
        let turns = ends.iter_mut().map(LoneEnd::turn);
        turns.fold(false, |before, happened| before | happened)
    });
}

fn lose(ends: &mut Vec<LoneEnd>) {
    ends.truncate(1);
    settle_all(ends);
    assert_eq!(ends[0].core.common.peers.downs(), 1);
}

fn complete(end: &mut LoneEnd) {
    end.windows().complete_window(ID, PEER);
    end.flush();
}

#[test]
fn an_access_that_the_target_has_heard_the_end_of_ended_well_when_the_target_finishes() {
    for told in [true, false] {
        let mut ends = met();
        let started = ends[0].core.windows().start_window(ID, &[PEER]);
        assert!(matches!(started, Some(Ok(()))));
        if told {
            complete(&mut ends[0]);
            settle_all(&mut ends);
        }
        lose(&mut ends);
        complete(&mut ends[0]);
        let ended = ends[0].core.windows().has_ended(ID, PEER, 1);
        match ended.expect("it is over") {
            Ok(()) => assert!(told),
            Err(why) => assert!(!told && matches!(why, ErrorKind::PeerFinished { rank: 1 })),
        }
    }
}

fn put(end: &mut LoneEnd) -> OpTicket<Vec<u8>> {
    let (info, ranges) = (remote_info(PEER), TargetRanges::From(0));
    let mut windows = end.core.windows();
    let put = windows.write_window(info, WindowOpKind::Put, ranges, vec![1_u8]);
    end.flush();
    put
}

#[test]
fn an_answer_to_an_operation_that_was_not_begun_is_none() {
    let mut ends = met();
    let end = &mut ends[0];
    let _asked = put(end);
    let (op, at) = ("lock_shared", Location::caller());
    let (want, call) = (WindowLockKind::Shared, WindowCall { op, at });
    let asked = end.windows().ask_lock(ID, PEER, want, call);
    asked.expect("there is none");
    end.flush();
    let waits = put(end);
    let updated = UpdateReplyHeader {
        base: HeaderBase::new(WireKind::UpdateReply),
        op: waits.op,
        from: 0,
        status: wire::OK,
    };
    let body = PayloadView::from_slice(&[]);
    let mut windows = end.core.windows();
    windows.handle_update_reply(PEER, &updated, body);
    assert!(!end.core.common.is_done(waits.op) && end.core.common.refused > 0);
    lose(&mut ends);
    assert!(ends[0].core.common.is_done(waits.op));
}
