//! Receives that are held by a queue pair that was given up.

use super::{PeerLane, Ranks, io};
use crate::{
    driver::WorldRank,
    verbs::{
        abi,
        async_events::{DeviceEvent, EventSubject},
        srq_drain::{HOLDS_MAX, HeldReceives},
    },
};

const LANE: usize = 1;

/// Returns connected ranks. The first has given up its queue pair to rank 1 on its second device, which may hold receives.
fn given_up(says_last: Option<bool>) -> (Ranks, PeerLane) {
    let mut ranks = Ranks::new(4);
    for peer in [1, 3] {
        ranks.say(0, peer);
        ranks.until(|ranks| ranks.ears[peer as usize].messages.len() == 1);
    }
    ranks.core(0).rails[LANE].reports_last_wqe = says_last;
    let to = give_up(&mut ranks, 1);
    while ranks.core(0).draining_receives.is_empty() {
        assert!(is_there(&mut ranks, to), "it was not waited for");
        turn_all(&mut ranks);
    }
    (ranks, to)
}

fn give_up(ranks: &mut Ranks, peer: u32) -> PeerLane {
    let to = PeerLane {
        peer: WorldRank(peer),
        lane: LANE,
    };
    let why = io::Error::other("a test");
    ranks.core(0).links.note_broken(to, why);
    to
}

fn turn_all(ranks: &mut Ranks) {
    (0..4).for_each(|rank| ranks.turn(rank, 64));
    assert!(
        ranks.core(0).sleep.timer.now() < super::GUARD,
        "it never comes"
    );
}

fn is_there(ranks: &mut Ranks, to: PeerLane) -> bool {
    let lane = &ranks.core(0).links.get_or_new(to.peer).lanes[to.lane];
    lane.qp.is_some()
}

fn until_it_is_gone(ranks: &mut Ranks, to: PeerLane) {
    while is_there(ranks, to) {
        turn_all(ranks);
    }
    assert!(ranks.core(0).draining_receives.is_empty());
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_queue_pair_is_taken_down_when_its_device_has_said_that_it_holds_nothing() {
    let (mut ranks, to) = given_up(None);
    let core = ranks.core(0);
    let taken = core.rails[LANE].inbox.taken();
    let lane = &core.links.get_or_new(to.peer).lanes[to.lane];
    let number = lane.qp.as_ref().unwrap().number();
    let last = |number| DeviceEvent {
        kind: abi::EVENT_QP_LAST_WQE_REACHED,
        subject: EventSubject::Pair(number),
    };
    // An event about an unknown queue pair only shows that the device reports such events.
    core.handle_device_event(LANE, last(0));
    assert!(is_there(&mut ranks, to));
    ranks.core(0).handle_device_event(LANE, last(number));
    until_it_is_gone(&mut ranks, to);
    let core = ranks.core(0);
    assert_eq!(core.rails[LANE].reports_last_wqe, Some(true));
    // If the time had passed, the receives would count as lost.
    assert_eq!(core.rails[LANE].inbox.taken(), taken - 1);
    assert_eq!(ranks.counters[0].stuck.get(), 0);
}

/// A rank that has nothing else to do is not woken earlier, and does not sleep for longer.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_device_that_never_says_so_is_waited_for_once() {
    let (mut ranks, to) = given_up(None);
    let HeldReceives::Until(until) =
        ranks.core(0).links.get_or_new(to.peer).lanes[to.lane].held_receives
    else {
        panic!("nothing is waited for");
    };
    assert!(ranks.core(0).next_retry().is_some_and(|at| at <= until));
    until_it_is_gone(&mut ranks, to);
    let core = ranks.core(0);
    assert!(core.sleep.timer.now() >= until);
    assert_eq!(core.rails[LANE].reports_last_wqe, Some(false));
    let next = give_up(&mut ranks, 3);
    while is_there(&mut ranks, next) {
        turn_all(&mut ranks);
        assert!(ranks.core(0).draining_receives.is_empty());
    }
    assert_eq!(ranks.counters[0].stuck.get(), 0);
    // Both peers go on by the first lane.
    for peer in [1, 3] {
        ranks.until_settled(0, peer);
        ranks.say(0, peer);
        ranks.until(|ranks| ranks.ears[peer as usize].messages.len() == 2);
    }
}

/// There may be fewer receives than before, so no other peer is promised those.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn where_a_device_does_not_say_so_in_time_the_receives_count_as_lost() {
    let (mut ranks, to) = given_up(Some(true));
    let taken = ranks.core(0).rails[LANE].inbox.taken();
    until_it_is_gone(&mut ranks, to);
    assert_eq!(ranks.core(0).rails[LANE].inbox.taken(), taken);
    assert_eq!(ranks.counters[0].stuck.get(), 1);
    // The next connection has its own.
    ranks.say(0, 2);
    ranks.until(|ranks| ranks.ears[2].messages.len() == 1);
    assert_eq!(ranks.core(0).rails[LANE].inbox.taken(), taken + 1);
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_device_that_had_nothing_left_while_some_were_held_is_asked_again_when_they_have_gone() {
    let (mut ranks, to) = given_up(Some(true));
    assert!(ranks.core(0).handle_exhausted(WorldRank(2)));
    assert!(!ranks.core(0).has_spare());
    until_it_is_gone(&mut ranks, to);
    ranks.turn(0, 64);
    assert!(ranks.core(0).has_spare());
    ranks.say(0, 2);
    ranks.until(|ranks| ranks.ears[2].messages.len() == 1);
    assert_eq!(ranks.counters[0].evictions.get(), 0);
    assert!(!ranks.core(0).has_spare(), "by one");
}

/// The device's time is much shorter than that of a test that hangs.
const _: () = assert!(HOLDS_MAX < super::GUARD / 8);
