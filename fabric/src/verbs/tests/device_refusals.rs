//! Devices that do not release objects, or that refuse buffers. Objects that they keep are not used for anything else.

use super::{Driver, LONG, PeerLane, Ranks, VerbsCore, io};
use crate::{connect::ConnectEvent, driver::WorldRank, verbs::rail::VerbsRail};

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_peer_whose_queue_pair_cannot_be_taken_down_is_lost_and_the_reason_says_so() {
    cannot_be_taken_down(libc::EBUSY);
}

/// The queue pair may go on, as after any other error.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_device_that_is_there_is_not_taken_for_gone_because_of_what_it_says_of_a_queue_pair() {
    cannot_be_taken_down(libc::EIO);
}

fn cannot_be_taken_down(error: i32) {
    let mut ranks = Ranks::met();
    let core = ranks.core(0);
    core.rails[1].device.context.keep_all(error);
    core.links.note_broken(
        PeerLane {
            peer: WorldRank(1),
            lane: 1,
        },
        io::Error::other("a test"),
    );
    ranks.until_bad(&[0]);
    assert_eq!(ranks.ears[0].bad, ["WorldRank(1): Failed"]);
    let why = ranks.all[0]
        .core_ref()
        .links
        .why_down(WorldRank(1))
        .unwrap();
    assert!(
        why.contains("a test") || why.contains("destroying a queue pair"),
        "{why}"
    );
    assert!(ranks.counters[0].stuck.get() > 0);
    drop(ranks);
    // The kernel has ended the queue pair together with the device.
    drop(Ranks::met());
}

/// A message waits for the next connection while the one before is drained in good order.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn no_connection_is_made_beside_queue_pairs_that_could_not_be_taken_down() {
    let mut ranks = Ranks::met();
    let core = ranks.core(0);
    let keep = |rail: &VerbsRail| rail.device.context.keep_all(libc::EBUSY);
    core.rails.iter().for_each(keep);
    core.handle_connect_event(WorldRank(1), ConnectEvent::Evict, None);
    ranks.say(0, 1);
    ranks.until_bad(&[0, 1]);
    assert_eq!(ranks.ears[0].bad, ["WorldRank(1): Failed"]);
    let why = ranks.all[0]
        .core_ref()
        .links
        .why_down(WorldRank(1))
        .unwrap();
    assert!(
        why.contains("the device may still use the queue pair"),
        "{why}"
    );
    let is_stuck = |core: &mut VerbsCore| {
        core.links
            .get_or_new(WorldRank(1))
            .lanes
            .iter()
            .all(|lane| lane.stuck)
    };
    while !is_stuck(ranks.core(0)) {
        let _events = ranks.all[0].progress(64, &mut ranks.ears[0]);
        assert!(
            ranks.core(0).sleep.timer.now() < super::GUARD,
            "one was taken down"
        );
    }
    let made = ranks.counters[0].stuck.get();
    assert_eq!(made, 2, "one by each lane, and no other was made");
}

/// The device was pulled out of its slot, so the kernel has ended everything that was made on it.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_device_that_is_gone_has_kept_nothing() {
    let mut ranks = Ranks::met();
    let core = ranks.core(0);
    core.rails[1].device.context.lose();
    core.links.note_broken(
        PeerLane {
            peer: WorldRank(1),
            lane: 1,
        },
        io::Error::other("a test"),
    );
    ranks.until(|ranks| ranks.counters.iter().all(|one| one.lanes_failed.get() == 1));
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 2);
    assert_eq!(ranks.counters[0].stuck.get(), 0);
}

/// Two puts are in flight on queue pairs that may go on.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn what_a_queue_pair_that_is_kept_may_touch_is_not_given_back_before_the_device_is_closed() {
    let mut ranks = Ranks::met();
    let (_memory, mut core) = ranks.closing_in_vain();
    core.rails
        .iter()
        .for_each(|rail| rail.device.context.keep_all(libc::EBUSY));
    assert!(!core.release_memory(), "devices have to be closed");
    assert!(core.commands.touches_memory(WorldRank(1)));
    assert!(ranks.counters[0].stuck.get() > 0);
    drop(core);
    drop(Ranks::met());
}

/// Nothing of this rank is in flight on the memory, so the command completes and the registration is counted.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn memory_that_a_device_keeps_registered_is_counted() {
    let mut ranks = Ranks::met();
    let (_from, _there, key) = ranks.memory();
    let other = ranks.all[1].allocate(LONG).unwrap();
    ranks.put(&other, key);
    let keep = |ranks: &mut Ranks, error| {
        let rails = &ranks.core(0).rails;
        rails
            .iter()
            .for_each(|rail| rail.device.context.keep_all(error));
    };
    keep(&mut ranks, libc::EBUSY);
    ranks.until(|ranks| ranks.ears[0].ended == 1);
    keep(&mut ranks, 0);
    assert_eq!(ranks.counters[0].stuck.get(), 2, "once for each device");
    assert_eq!(ranks.core(0).registrations.pinned_for_commands(), 0);
}

/// Peers may send as many messages as there are buffers, so the lane of the sender by that device is left.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_lane_whose_device_takes_no_buffers_is_left_and_another_goes_on() {
    let mut ranks = Ranks::met();
    let refuse = |ranks: &mut Ranks| ranks.core(1).rails[0].device.context.take_receives_by(None);
    let by = refuse(&mut ranks);
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.counters.iter().all(|one| one.lanes_failed.get() == 1));
    ranks.until_settled(0, 1);
    for heard in 3..53 {
        ranks.say(0, 1);
        ranks.until(|ranks| ranks.ears[1].messages.len() == heard);
    }
    // The next connection gets the missing buffer.
    let inbox = &mut ranks.core(1).rails[0].inbox;
    assert!(inbox.reserve().is_err());
    ranks.core(1).rails[0].device.context.take_receives_by(by);
    let inbox = &mut ranks.core(1).rails[0].inbox;
    inbox.reserve().unwrap();
    inbox.release();
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_peer_that_no_buffer_is_left_for_is_lost_and_the_reason_says_so() {
    let mut ranks = Ranks::with(2, |config| {
        config.device = Some(["rxe0", "rxe2"][config.rank.0 as usize % 2].to_owned());
    });
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
    let _by = ranks.core(1).rails[0].device.context.take_receives_by(None);
    ranks.say(0, 1);
    ranks.until_bad(&[1]);
    let why = ranks.all[1]
        .core_ref()
        .links
        .why_down(WorldRank(0))
        .unwrap();
    assert!(
        why.contains("posting a buffer to the shared receive queue"),
        "{why}"
    );
    assert_eq!(ranks.ears[1].messages.len(), 2, "it was heard before");
}
