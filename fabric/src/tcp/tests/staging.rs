//! What of a turn's commands leaves at once, and what leaves later.

use super::{HangGuard, HeardEvents, Pair, holds_only};
use crate::{
    driver::{ArmResult, CommandToken, Driver, DriverCommand, PostResult, WorldRank},
    memory::MemoryRegion,
};

/// Posts messages of this length from rank 1 to rank 0.
fn post(pair: &mut Pair, count: usize, len: usize) {
    for _ in 0..count {
        let message = DriverCommand::Message {
            to: WorldRank(0),
            header: b"",
            body: &vec![7; len],
        };
        assert!(matches!(pair.ranks[1].post(message), PostResult::Posted));
    }
}

/// Ends the turn of rank 1 in which the two met. Its next command is the first after that.
fn met() -> Pair {
    let mut pair = Pair::new();
    (0..3).for_each(|_| pair.turn());
    pair
}

fn calls(pair: &mut Pair) -> u64 {
    pair.ranks[1].core().counters.system_calls.get()
}

/// Bytes that wait at rank 1.
fn waiting(pair: &mut Pair) -> usize {
    pair.ranks[1].core().peers[0].queue.copied()
}

/// Has only rank 0 make turns until it has heard `messages` in addition to the first.
fn hears(pair: &mut Pair, messages: usize) {
    let guard = HangGuard::new("messages");
    while pair.heard.messages < 1 + messages {
        pair.turn_of_the_tricked();
        guard.check();
    }
    assert_eq!(pair.heard.messages, 1 + messages);
}

#[test]
fn short_messages_of_a_turn_leave_with_two_calls() {
    let mut pair = met();
    let before = calls(&mut pair);
    post(&mut pair, 64, 8);
    assert_eq!(calls(&mut pair) - before, 1, "the first leaves at once");
    hears(&mut pair, 1);
    assert_eq!(waiting(&mut pair), 63 * 16);
    pair.ranks[1].core().send_staged();
    assert_eq!(calls(&mut pair) - before, 2);
    hears(&mut pair, 64);
}

#[test]
fn the_next_turn_and_a_sleep_send_what_waits() {
    let mut pair = met();
    post(&mut pair, 3, 8);
    let _ = pair.ranks[1].progress(0, &mut HeardEvents::default());
    assert_eq!(waiting(&mut pair), 0);
    hears(&mut pair, 3);
    post(&mut pair, 3, 8);
    let _ = pair.ranks[1].arm();
    assert_eq!(waiting(&mut pair), 0);
    hears(&mut pair, 6);
}

#[test]
fn nothing_waits_while_the_rank_may_sleep() {
    let mut pair = met();
    let guard = HangGuard::new("a sleep");
    while pair.ranks[1].arm() == ArmResult::Busy {
        let _ = pair.ranks[1].progress(16, &mut HeardEvents::default());
        guard.check();
    }
    post(&mut pair, 3, 8);
    assert_eq!(waiting(&mut pair), 0);
    hears(&mut pair, 3);
}

#[test]
fn long_messages_and_many_short_ones_do_not_wait() {
    let mut pair = met();
    post(&mut pair, 2, 8);
    post(&mut pair, 1, 4000);
    assert_eq!(waiting(&mut pair), 0, "a long one takes along what waits");
    hears(&mut pair, 3);
    post(&mut pair, 1000, 100);
    assert!(waiting(&mut pair) < 16 << 10);
    pair.ranks[1].core().send_staged();
    hears(&mut pair, 1003);
}

#[test]
fn a_rank_that_ends_sends_what_waits() {
    let mut pair = met();
    post(&mut pair, 3, 8);
    let [mut zero, one] = pair.ranks;
    drop(one);
    let guard = HangGuard::new("messages and the goodbye");
    while pair.heard.down.is_empty() {
        let _ = zero.progress(16, &mut pair.heard);
        guard.check();
    }
    assert_eq!(pair.heard.messages, 4);
}

#[test]
fn short_puts_of_a_turn_leave_together_and_complete() {
    let mut pair = met();
    let region = pair.ranks[0].allocate(4096).unwrap();
    let key = pair.ranks[0].expose(region.range()).unwrap();
    let source = MemoryRegion::anonymous(4096).unwrap();
    source.write(0, &[5; 4096]);
    let before = calls(&mut pair);
    for at in 0..64 {
        let put = DriverCommand::Put {
            to: WorldRank(0),
            from: source.range().slice(at, 1),
            into: key.slice(at as u64, 1).unwrap(),
            count: None,
            token: CommandToken(at as u64),
        };
        assert!(matches!(pair.ranks[1].post(put), PostResult::Posted));
    }
    assert_eq!(calls(&mut pair) - before, 1);
    let mut heard = HeardEvents::default();
    let guard = HangGuard::new("the puts");
    while heard.completed < 64 {
        pair.turn_of_the_tricked();
        let _ = pair.ranks[1].progress(16, &mut heard);
        guard.check();
    }
    assert_eq!(heard.ended, (0..64).collect::<Vec<_>>());
    assert!(holds_only(&region, 0..64, 5));
    assert!(holds_only(&region, 64..4096, 0));
}
