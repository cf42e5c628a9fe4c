//! Ranks whose frames have checksums.

use super::{HangGuard, HeardEvents, Pair, configured, holds_only};
use crate::{
    driver::{AtomicOp, CommandToken, Driver, DriverCommand, FailureWatch, PostResult, WorldRank},
    memory::MemoryRegion,
    tcp::frame::{FrameHead, FrameKind},
};

fn checked_pair() -> Pair {
    Pair::of(configured([0, 1], |config| config.checksum = true))
}

fn post(pair: &mut Pair, command: DriverCommand<'_>) {
    assert!(matches!(pair.ranks[1].post(command), PostResult::Posted));
}

#[test]
fn all_commands_work_with_checksums() {
    let len = 600_000;
    let mut pair = checked_pair();
    let region = pair.ranks[0].allocate(len).unwrap();
    let key = pair.ranks[0].expose(region.range().slice(0, len)).unwrap();
    let mine = MemoryRegion::anonymous(len).unwrap();
    mine.write(0, &vec![6; len]);
    let back = MemoryRegion::anonymous(len).unwrap();
    for body in [0, 1, 5000, 100_000] {
        let message = DriverCommand::Message {
            to: WorldRank(0),
            header: b"header",
            body: &vec![3; body],
        };
        post(&mut pair, message);
    }
    let to = WorldRank(0);
    for part in [0..len, 8..16] {
        let put = DriverCommand::Put {
            to,
            from: mine.range().slice(part.start, part.len()),
            into: key.slice(part.start as u64, part.len() as u64).unwrap(),
            count: None,
            token: CommandToken(1),
        };
        post(&mut pair, put);
    }
    let get = DriverCommand::Get {
        to,
        from: key,
        into: back.range().slice(0, len),
        token: CommandToken(3),
    };
    post(&mut pair, get);
    let atomic = DriverCommand::Atomic {
        to,
        at: key.slice(0, 8).unwrap(),
        op: AtomicOp::Swap(1),
        token: CommandToken(4),
    };
    post(&mut pair, atomic);
    let mut heard = HeardEvents::default();
    let guard = HangGuard::new("the commands");
    while heard.completed < 4 || pair.heard.messages < 5 {
        pair.turn_of_the_tricked();
        let _ = pair.ranks[1].progress(16, &mut heard);
        guard.check();
    }
    assert_eq!((heard.failed, heard.down.len()), (0, 0));
    assert!(pair.heard.down.is_empty());
    assert!(holds_only(&region, 8..len, 6) && holds_only(&back, 0..len, 6));
}

/// Checks that these bytes of rank 1 end the connection, and that rank 0 says why.
#[track_caller]
fn ends_over(mut pair: Pair, bytes: &[u8], why: &str) {
    pair.say(bytes);
    pair.until("the end", |heard| !heard.down.is_empty());
    assert_eq!(pair.heard.messages, 1);
    let evidence = format!("{:?}", pair.ranks[0].evidence(WorldRank(1)));
    assert!(evidence.contains(why), "{evidence}");
    assert!(evidence.contains("rank 1"), "{evidence}");
}

#[test]
fn a_damaged_message_ends_the_connection_and_both_ranks_are_named() {
    let body = [7; 100];
    let head = FrameHead {
        kind: FrameKind::Message,
        head_len: 0,
        body_len: body.len(),
    };
    for damaged in [16, 60, 115] {
        let pair = checked_pair();
        let start = crate::tcp::checksum::FrameForm { checked: true }.start(head, &[], &body);
        let mut frame = [start.as_bytes(), &body].concat();
        frame[damaged] ^= 4;
        ends_over(pair, &frame, "to rank 0 over TCP was damaged");
    }
}

#[test]
fn a_damaged_put_is_not_acknowledged() {
    let mut pair = checked_pair();
    let region = pair.ranks[0].allocate(8192).unwrap();
    let into = pair.ranks[0].expose(region.range().slice(0, 8192)).unwrap();
    let source = MemoryRegion::anonymous(8192).unwrap();
    let core = pair.ranks[1].core();
    core.armed = false;
    core.peers[0].sent_in = Some(core.turns);
    let put = DriverCommand::Put {
        to: WorldRank(0),
        from: source.range().slice(0, 2000),
        into: into.slice(0, 2000).unwrap(),
        count: None,
        token: CommandToken(1),
    };
    post(&mut pair, put);
    // The put waits for more of its turn.
    let core = pair.ranks[1].core();
    core.peers[0].queue.damage_last_byte();
    core.flush(0);
    let mut heard = HeardEvents::default();
    let guard = HangGuard::new("the end");
    while pair.heard.down.is_empty() {
        pair.turn_of_the_tricked();
        let _ = pair.ranks[1].progress(16, &mut heard);
        guard.check();
    }
    assert_eq!(heard.completed, 0);
}

#[test]
fn ranks_of_two_settings_do_not_talk() {
    for checked in [0, 1] {
        let mut ranks = configured([0, 1], |config| config.checksum = config.rank == checked);
        let message = DriverCommand::Message {
            to: WorldRank(0),
            header: b"",
            body: b"",
        };
        let [zero, one] = &mut ranks;
        assert!(matches!(one.post(message), PostResult::Posted));
        let mut heard = HeardEvents::default();
        let guard = HangGuard::new("the end");
        while heard.down.is_empty() {
            let _ = zero.progress(16, &mut heard);
            let _ = one.progress(16, &mut HeardEvents::default());
            guard.check();
        }
        let evidence = format!("{:?}", zero.evidence(WorldRank(1)));
        assert!(evidence.contains("RIPSTOP_TCP_CHECKSUM"), "{evidence}");
        assert_eq!(heard.messages, 0);
    }
}
