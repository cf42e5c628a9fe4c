//! Events of devices: made up here, or reported by a real one.

use super::{Arc, Driver, MemoryRegion, Ranks, VerbsConfig, io};
use crate::verbs::{
    abi,
    async_events::{DeviceEvent, EventSubject},
    datagrams::{DatagramDestination, DatagramQp},
    lane::{PeerLane, RemotePort},
    objects::VerbsCq,
};
use crate::{connect::ConnectPolicy, driver::WorldRank};

/// Returns two ranks that are connected by two lanes, after an event of the first one's second device.
fn told(kind: i32, subject: impl Fn(&mut Ranks) -> EventSubject) -> Ranks {
    let mut ranks = Ranks::new(2);
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
    let subject = subject(&mut ranks);
    ranks
        .core(0)
        .handle_device_event(1, DeviceEvent { kind, subject });
    assert_eq!(ranks.counters[0].device_events.get(), 1);
    ranks
}

fn pair(ranks: &mut Ranks) -> EventSubject {
    let link = ranks.core(0).links.get_or_new(WorldRank(1));
    EventSubject::Pair(link.lanes[1].qp.as_ref().unwrap().number())
}

fn goes_on(ranks: &mut Ranks, lanes_failed: u64) {
    ranks.say(0, 1);
    ranks.say(1, 0);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 2 && ranks.ears[0].messages.len() == 1);
    ranks.until(|ranks| {
        ranks
            .counters
            .iter()
            .all(|one| one.lanes_failed.get() == lanes_failed)
    });
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_queue_pair_that_its_device_gave_up_is_left_and_the_other_lane_goes_on() {
    for kind in [
        abi::EVENT_QP_FATAL,
        abi::EVENT_QP_REQ_ERR,
        abi::EVENT_QP_ACCESS_ERR,
        abi::EVENT_PATH_MIG_ERR,
    ] {
        goes_on(&mut told(kind, pair), 1);
    }
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_device_whose_shared_queues_fail_is_left_and_the_other_goes_on() {
    for kind in SHARED {
        goes_on(&mut told(kind, |_| EventSubject::Other), 1);
    }
}

/// Begins a put by all lanes of two ranks. The first rank never learns how the part of it on this lane ends.
fn untold(lane: usize, change: impl Fn(&mut VerbsConfig)) -> (Ranks, [MemoryRegion; 2]) {
    let mut ranks = Ranks::with(2, change);
    let (from, there, key) = ranks.memory();
    ranks.put(&from, key);
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[0].ended == 1 && ranks.ears[1].messages.len() == 1);
    for (rank, peer) in [(1, 0), (0, 1)] {
        let lane = &ranks.core(rank).links.get_or_new(WorldRank(peer)).lanes[lane];
        lane.qp.as_ref().unwrap().reset();
        if rank == 1 {
            ranks.put(&from, key);
        }
    }
    let flights = ranks.core(0).outbox.flights_of(PeerLane {
        peer: WorldRank(1),
        lane,
    });
    assert!(!flights.is_empty());
    (ranks, [from, there])
}

fn one_device(config: &mut VerbsConfig) {
    config.device = Some(["rxe0", "rxe2"][config.rank.0 as usize % 2].to_owned());
}

const SHARED: [i32; 3] = [
    abi::EVENT_CQ_ERR,
    abi::EVENT_SRQ_ERR,
    abi::EVENT_DEVICE_FATAL,
];

/// This includes lanes that were left, and whose completions are waited for, before the device reports why they do not come.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_put_goes_on_by_another_lane_where_completions_are_lost_with_their_queue() {
    for left_before in [false, true] {
        for kind in SHARED {
            let (mut ranks, _memory) = untold(1, |_| ());
            if left_before {
                let to = PeerLane {
                    peer: WorldRank(1),
                    lane: 1,
                };
                ranks
                    .core(0)
                    .links
                    .note_broken(to, io::Error::other("a test"));
                ranks.until(|ranks| ranks.counters[1].lanes_failed.get() == 1);
                assert_eq!(ranks.ears[0].ended, 1);
            }
            let subject = EventSubject::Other;
            ranks
                .core(0)
                .handle_device_event(1, DeviceEvent { kind, subject });
            ranks.until(|ranks| ranks.ears[0].ended == 2);
            assert!(ranks.core(0).outbox.is_idle(1));
            goes_on(&mut ranks, 1);
        }
    }
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_put_ends_where_completions_are_lost_with_the_only_queue() {
    for kind in SHARED {
        let (mut ranks, _memory) = untold(0, one_device);
        let subject = EventSubject::Other;
        ranks
            .core(0)
            .handle_device_event(0, DeviceEvent { kind, subject });
        while ranks.ears[0].bad.len() < 2 {
            let _events = ranks.all[0].progress(64, &mut ranks.ears[0]);
            assert!(
                ranks.core(0).sleep.timer.now() < super::GUARD,
                "nothing ends"
            );
        }
        let heard = ["CommandToken(1): PeerDown", "WorldRank(1): Failed"];
        ranks.ears[0].bad.sort_unstable();
        assert_eq!(ranks.ears[0].bad, heard);
        let why = ranks.all[0]
            .core_ref()
            .links
            .why_down(WorldRank(1))
            .unwrap();
        assert!(why.contains("IBV_EVENT_"), "{why}");
        let core = ranks.core(0);
        assert!(core.outbox.is_idle(0) && !core.links.get_or_new(WorldRank(1)).is_made());
    }
}

/// A connection that is begun by a device that has failed would never complete.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn no_peer_is_connected_through_a_failed_device() {
    let mut ranks = Ranks::new(4);
    let kind = abi::EVENT_CQ_ERR;
    let subject = EventSubject::Other;
    ranks
        .core(0)
        .handle_device_event(1, DeviceEvent { kind, subject });
    ranks.say(0, 3);
    ranks.until(|ranks| ranks.ears[3].messages.len() == 1);
    assert_eq!(ranks.core(0).links.get_or_new(WorldRank(3)).lanes.len(), 1);
    ranks
        .core(0)
        .handle_device_event(0, DeviceEvent { kind, subject });
    ranks.say(0, 2);
    while ranks.ears[0].bad.len() < 2 {
        let _events = ranks.all[0].progress(64, &mut ranks.ears[0]);
        assert!(
            ranks.core(0).sleep.timer.now() < super::GUARD,
            "nothing is told"
        );
    }
    for peer in [2, 3] {
        let why = ranks.all[0]
            .core_ref()
            .links
            .why_down(WorldRank(peer))
            .unwrap();
        assert!(why.contains("IBV_EVENT_CQ_ERR"), "{why}");
    }
}

/// Everything of the first device is missing, including its datagrams. Ranks that are not connected yet can neither reach it nor
/// be reached by it. Rank 3's home with rank 0 is the second lane, rank 1's the first.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn whose_first_device_has_failed_meets_by_the_second() {
    for asks in [true, false] {
        let mut ranks = Ranks::new(4);
        let subject = EventSubject::Other;
        let kind = abi::EVENT_CQ_ERR;
        ranks
            .core(0)
            .handle_device_event(0, DeviceEvent { kind, subject });
        for peer in [1_u32, 3] {
            let (from, to) = if asks { (0, peer) } else { (peer, 0) };
            ranks.say(from as usize, to);
            let heard = |ranks: &Ranks| ranks.ears[to as usize].messages.contains(&WorldRank(from));
            ranks.until(heard);
            for (rank, peer) in [(0, peer), (peer as usize, 0)] {
                let lanes = &ranks.core(rank).links.get_or_new(WorldRank(peer)).lanes;
                let made: Vec<bool> = lanes.iter().map(|lane| lane.qp.is_some()).collect();
                assert_eq!(made, [false, true]);
            }
        }
        // A lane that was missing from the start has not failed.
        assert!(ranks.counters.iter().all(|one| one.lanes_failed.get() == 0));
        let (from, _there, key) = ranks.memory();
        ranks.put(&from, key);
        ranks.until(|ranks| ranks.ears[0].ended == 1);
    }
}

/// Rank 1 asks, without its first device. Rank 0 has made its half and does not know yet that rank 1 has, too.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn what_is_put_while_a_connection_without_the_first_lane_is_made_waits_for_that() {
    let mut ranks = Ranks::new(2);
    let (from, _there, key) = ranks.memory();
    let (kind, subject) = (abi::EVENT_CQ_ERR, EventSubject::Other);
    ranks
        .core(1)
        .handle_device_event(0, DeviceEvent { kind, subject });
    ranks.say(1, 0);
    while ranks
        .core(0)
        .links
        .get_or_new(WorldRank(1))
        .lanes
        .is_empty()
    {
        [1, 0].into_iter().for_each(|rank| ranks.turn(rank, 64));
        assert!(
            ranks.core(0).sleep.timer.now() < super::GUARD,
            "no rank asks"
        );
    }
    let link = ranks.core(0).links.get_or_new(WorldRank(1));
    assert!(link.is_wide() && !link.open && !link.lanes_at_work().has(0));
    ranks.put(&from, key);
    ranks.until(|ranks| ranks.ears[0].ended == 1);
}

/// No event reports that: the first connection message finds no answer, and the next goes by all devices.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn whose_first_device_is_out_of_reach_is_met_by_the_second() {
    let mut ranks = Ranks::new(4);
    ranks.core(3).peers[0].gid = super::NOWHERE;
    ranks.say(3, 0);
    ranks.until(|ranks| ranks.ears[0].messages.len() == 1);
}

/// No event reports this either: the messages wait for room, and go by the second device when they are repeated.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn whose_first_device_hangs_meets_by_the_second() {
    for asks in [true, false] {
        let mut ranks = Ranks::new(4);
        ranks.core(0).datagrams.qp(0).unwrap().hang();
        let (from, to) = if asks { (0, 3) } else { (3, 0) };
        ranks.say(from, to);
        let heard = |ranks: &Ranks| ranks.ears[to as usize].messages.len() == 1;
        ranks.until(heard);
    }
}

fn talking(config: &mut VerbsConfig) {
    config.scheme = Some(ConnectPolicy::Hybrid);
}

/// Datagram messages go by the first device only, and so do acknowledgments.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn datagrams_of_the_first_device_end_with_it() {
    let mut ranks = Ranks::with(2, talking);
    let say = super::DriverCommand::Message {
        to: WorldRank(1),
        header: b"",
        body: &[7; 100],
    };
    assert!(matches!(ranks.all[0].post(say), super::PostResult::Posted));
    let core = ranks.core(0);
    assert!(core.datagrams.next_retry(&core.links).is_some());
    let (kind, subject) = (abi::EVENT_CQ_ERR, EventSubject::Other);
    ranks
        .core(0)
        .handle_device_event(0, DeviceEvent { kind, subject });
    let core = ranks.core(0);
    assert!(core.datagrams.next_retry(&core.links).is_none());
    ranks.until_bad(&[0]);
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_peer_without_its_first_device_gets_no_datagrams() {
    let mut ranks = Ranks::with(2, talking);
    assert!(ranks.core(0).datagrams().accepts(WorldRank(1)));
    let (kind, subject) = (abi::EVENT_CQ_ERR, EventSubject::Other);
    ranks
        .core(1)
        .handle_device_event(0, DeviceEvent { kind, subject });
    ranks.say(1, 0);
    ranks.until(|ranks| ranks.ears[0].messages.len() == 1);
    assert!(!ranks.core(0).datagrams().accepts(WorldRank(1)));
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
}

/// The first device of one rank fails, and the second of the other, so there is no lane between them.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn two_ranks_whose_devices_that_work_are_no_counterparts_hear_why_they_do_not_meet() {
    let mut ranks = Ranks::new(2);
    let subject = EventSubject::Other;
    let kind = abi::EVENT_CQ_ERR;
    for rank in 0..2 {
        ranks
            .core(rank)
            .handle_device_event(rank, DeviceEvent { kind, subject });
    }
    ranks.say(0, 1);
    ranks.until_bad(&[0, 1]);
    // The rank that was asked knows the reason, and has said that it gives up.
    let why = ranks.all[1]
        .core_ref()
        .links
        .why_down(WorldRank(0))
        .unwrap();
    assert!(why.contains("counterpart"), "{why}");
    assert!(
        ranks.all[0]
            .core_ref()
            .links
            .why_down(WorldRank(1))
            .is_some()
    );
}

/// Ports that are up, ports of others, queue pairs without a peer, and kinds that do not exist.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn what_says_nothing_about_a_lane_costs_none() {
    for (kind, subject) in [
        (abi::EVENT_PORT_ERR, EventSubject::Port(1)),
        (abi::EVENT_PORT_ERR, EventSubject::Port(2)),
        (abi::EVENT_PORT_ACTIVE, EventSubject::Port(1)),
        (abi::EVENT_GID_CHANGE, EventSubject::Port(1)),
        (abi::EVENT_QP_FATAL, EventSubject::Pair(0)),
        (abi::EVENT_SM_CHANGE, EventSubject::Port(1)),
        (63, EventSubject::Other),
    ] {
        goes_on(&mut told(kind, |_| subject), 0);
    }
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn the_reason_why_a_peer_is_lost_names_what_the_device_told() {
    let mut ranks = told(abi::EVENT_QP_FATAL, pair);
    let number = ranks.core(0).links.get_or_new(WorldRank(1)).lanes[0]
        .qp
        .as_ref()
        .unwrap()
        .number();
    let subject = EventSubject::Pair(number);
    let kind = abi::EVENT_QP_ACCESS_ERR;
    ranks
        .core(0)
        .handle_device_event(0, DeviceEvent { kind, subject });
    ranks.until_bad(&[0]);
    let why = ranks.all[0]
        .core_ref()
        .links
        .why_down(WorldRank(1))
        .unwrap();
    assert!(why.contains("IBV_EVENT_QP_"), "{why}");
}

/// Later connections go by where the port is then.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_port_that_is_back_is_looked_at_again() {
    let mut ranks = Ranks::new(2);
    let right = ranks.core(0).ports[1];
    ranks.core(0).ports[1] = RemotePort {
        lid: right.lid ^ 1,
        gid: super::NOWHERE,
        ..right
    };
    let back = DeviceEvent {
        kind: abi::EVENT_PORT_ACTIVE,
        subject: EventSubject::Port(1),
    };
    ranks.core(0).handle_device_event(1, back);
    assert_eq!(ranks.core(0).ports[1], right);
}

/// The second rank asks in vain where the first rank's port was, and is asked by the first then.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_peer_learns_the_new_address_of_a_first_port_when_it_is_connected() {
    let mut ranks = Ranks::new(2);
    let second = ranks.core(0).ports[1];
    // Both were told the wrong port when the job began.
    for rank in 0..2 {
        let peer = &mut ranks.core(rank).peers[0];
        (peer.gid, peer.lid) = (second.gid, second.lid);
    }
    ranks.say(1, 0);
    let changed = DeviceEvent {
        kind: abi::EVENT_GID_CHANGE,
        subject: EventSubject::Port(1),
    };
    ranks.core(0).handle_device_event(0, changed);
    assert!(ranks.core(0).moved);
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears.iter().all(|ears| ears.messages.len() == 1));
    let first = ranks.core(0).ports[0];
    assert!(ranks.core(1).peers[0].first().is_at(&first));
    // All lanes work, including the first one.
    let (from, _there, key) = ranks.memory();
    ranks.put(&from, key);
    ranks.until(|ranks| ranks.ears[0].ended == 1);
    assert!(ranks.counters.iter().all(|one| one.lanes_failed.get() == 0));
}

/// Datagrams to the rank itself arrive in a queue that is never polled, until the device has no room left and reports that.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_device_that_tells_of_an_overrun_is_left() {
    let mut ranks = Ranks::new(2);
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
    let core = ranks.core(0);
    let (own, remote) = (&core.rails[1].device, core.ports[1]);
    let few = [0, 1].map(|_| VerbsCq::new(&own.channel, 1).unwrap());
    let mut words = DatagramQp::new(&own.pd, few.each_ref(), 0).unwrap();
    words.open(own.port, QKEY, 1).unwrap();
    let to = DatagramDestination {
        peer: WorldRank(0),
        route: remote.route(own.port, own.gid_index, own.ethernet),
        qpn: words.qp.number(),
        qkey: QKEY,
    };
    while words.has_room() {
        words.send(&Arc::clone(&own.pd), &to, b"overrun").unwrap();
    }
    // The rank never sleeps.
    while ranks.counters[0].device_events.get() == 0 {
        ranks.turn(0, 64);
        assert!(
            ranks.core(0).sleep.timer.now() < super::GUARD,
            "it never tells"
        );
    }
    goes_on(&mut ranks, 1);
}

const QKEY: u32 = 0x1234;
