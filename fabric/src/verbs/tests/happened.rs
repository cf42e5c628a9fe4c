//! What devices tell of themselves, as if they had; and what a device does tell.

use super::{Arc, Driver, Ranks};
use crate::verbs::{
    abi,
    datagrams::{Datagrams, Destination},
    happened::{Happened, Subject},
    objects::Cq,
    way::Far,
};

/// Two ranks by two lanes that have met, and something that the first one's second device tells.
fn told(kind: i32, about: impl Fn(&mut Ranks) -> Subject) -> Ranks {
    let mut ranks = Ranks::new(2);
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
    let about = about(&mut ranks);
    ranks.core(0).handle_happened(1, Happened { kind, about });
    assert_eq!(ranks.counters[0].device_events.get(), 1);
    ranks
}

fn pair(ranks: &mut Ranks) -> Subject {
    let link = ranks.core(0).link_or_new(1);
    Subject::Pair(link.ways[1].qp.as_ref().unwrap().number())
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
    for kind in [
        abi::EVENT_CQ_ERR,
        abi::EVENT_SRQ_ERR,
        abi::EVENT_DEVICE_FATAL,
    ] {
        goes_on(&mut told(kind, |_| Subject::Other), 1);
    }
}

/// Ports that are up, another one's, queue pairs of nobody, and kinds that nobody knows.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn what_says_nothing_about_a_lane_costs_none() {
    for (kind, about) in [
        (abi::EVENT_PORT_ERR, Subject::Port(1)),
        (abi::EVENT_PORT_ERR, Subject::Port(2)),
        (abi::EVENT_PORT_ACTIVE, Subject::Port(1)),
        (abi::EVENT_GID_CHANGE, Subject::Port(1)),
        (abi::EVENT_QP_FATAL, Subject::Pair(0)),
        (abi::EVENT_SM_CHANGE, Subject::Port(1)),
        (63, Subject::Other),
    ] {
        goes_on(&mut told(kind, |_| about), 0);
    }
}

#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn the_reason_why_a_peer_is_lost_names_what_the_device_told() {
    let mut ranks = told(abi::EVENT_QP_FATAL, pair);
    let number = ranks.core(0).link_or_new(1).ways[0]
        .qp
        .as_ref()
        .unwrap()
        .number();
    let about = Subject::Pair(number);
    let kind = abi::EVENT_QP_ACCESS_ERR;
    ranks.core(0).handle_happened(0, Happened { kind, about });
    while ranks.ears[0].bad.is_empty() {
        let _events = ranks.all[0].progress(64, &mut ranks.ears[0]);
        assert!(
            ranks.core(0).sleep.timer.now() < super::GUARD,
            "nothing is told"
        );
    }
    let why = ranks.all[0].why_down(super::Peer(1)).unwrap();
    assert!(why.contains("IBV_EVENT_QP_"), "{why}");
}

/// Connections that are made later go by where the port is then.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_port_that_is_back_is_looked_at_again() {
    let mut ranks = Ranks::new(2);
    let right = ranks.core(0).ports[1];
    ranks.core(0).ports[1] = Far {
        lid: right.lid ^ 1,
        gid: super::NOWHERE,
        ..right
    };
    let back = Happened {
        kind: abi::EVENT_PORT_ACTIVE,
        about: Subject::Port(1),
    };
    ranks.core(0).handle_happened(1, back);
    assert_eq!(ranks.core(0).ports[1], right);
}

/// Datagrams to itself land in a queue that nobody takes them from, until the device has no room left and says so.
#[test]
#[ignore = "needs four RDMA devices: run it in the virtual machine"]
fn a_device_that_tells_of_an_overrun_is_left() {
    let mut ranks = Ranks::new(2);
    ranks.say(0, 1);
    ranks.until(|ranks| ranks.ears[1].messages.len() == 1);
    let core = ranks.core(0);
    let (own, far) = (&core.rails[1].own, core.ports[1]);
    let few = [0, 1].map(|_| Cq::new(&own.channel, 1).unwrap());
    let mut words = Datagrams::new(&own.pd, few.each_ref(), 0).unwrap();
    words.open(own.port, QKEY, 1).unwrap();
    let to = Destination {
        peer: 0,
        route: far.route(own.port, own.gid_index, own.ethernet),
        qpn: words.qp.number(),
        qkey: QKEY,
    };
    while words.has_room() {
        words.send(&Arc::clone(&own.pd), &to, b"overrun").unwrap();
    }
    while ranks.counters[0].device_events.get() == 0 {
        ranks.core(0).hear_devices();
        assert!(
            ranks.core(0).sleep.timer.now() < super::GUARD,
            "it never tells"
        );
    }
    goes_on(&mut ranks, 1);
}

const QKEY: u32 = 0x1234;
