//! Asynchronous events: reports of a device about itself, its port and its queues, apart from completions.
//!
//! * If a device has failed, all its lanes are left, without waiting for completions, which may be lost. If a queue pair has
//!   failed, that one lane is left.
//! * A port that is down is left immediately where there is another lane, instead of after all the device's retries. Without
//!   another lane the devices go on with their retries, and a port that is up in time has lost nothing.
//! * Later connections use the port as it is by then: connection messages in both directions say where it is. If the only port of
//!   a rank moves, peers that hear nothing from it ask at the old place, and eventually count it as unreachable. With several
//!   devices, connection messages go by another one.
//!
//! The events are read after a sleep, and now and then by a rank that never sleeps.

use std::io;

use super::{
    abi,
    core::{Core, index},
    rail::Own,
    lane::{FIRST, Far, To},
};

/// An event, and its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Happened {
    pub(super) kind: i32,
    pub(super) about: Subject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// The queue pair of this number.
    Pair(u32),
    /// The port of this number.
    Port(u32),
    /// The device, or a queue that all connections by it share.
    Other,
}

/// Kind of subject that an event carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    Pair,
    Port,
    Other,
}

/// Reaction to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Leave the device, for this reason.
    LeaveDevice(&'static str),
    /// Leave the lane of the queue pair, for this reason.
    LeaveLane(&'static str),
    /// Leave the port, if it is still down.
    LeavePort,
    /// Read the port's address, which may have changed.
    LookAtPort,
    /// Note that a queue pair that was given up holds no receives any more.
    LetGo,
    /// Do nothing, for this reason.
    Ignore(&'static str),
}

/// Returns the kind of subject of an event. Other kinds carry nothing that could be read.
pub(super) const fn about(kind: i32) -> About {
    match kind {
        abi::EVENT_QP_FATAL
        | abi::EVENT_QP_REQ_ERR
        | abi::EVENT_QP_ACCESS_ERR
        | abi::EVENT_COMM_EST
        | abi::EVENT_SQ_DRAINED
        | abi::EVENT_PATH_MIG
        | abi::EVENT_PATH_MIG_ERR
        | abi::EVENT_QP_LAST_WQE_REACHED => About::Pair,
        abi::EVENT_PORT_ACTIVE
        | abi::EVENT_PORT_ERR
        | abi::EVENT_LID_CHANGE
        | abi::EVENT_PKEY_CHANGE
        | abi::EVENT_SM_CHANGE
        | abi::EVENT_CLIENT_REREGISTER
        | abi::EVENT_GID_CHANGE => About::Port,
        _ => About::Other,
    }
}

const fn then(kind: i32) -> Then {
    match kind {
        abi::EVENT_DEVICE_FATAL => {
            Then::LeaveDevice("the device failed (IBV_EVENT_DEVICE_FATAL): see the kernel's log")
        }
        abi::EVENT_CQ_ERR => Then::LeaveDevice(
            "a completion queue of the device failed or overran (IBV_EVENT_CQ_ERR)",
        ),
        abi::EVENT_SRQ_ERR => Then::LeaveDevice(
            "the device's queue of receives failed (IBV_EVENT_SRQ_ERR): nothing can come by it",
        ),
        abi::EVENT_QP_FATAL => {
            Then::LeaveLane("the device gave a queue pair up (IBV_EVENT_QP_FATAL)")
        }
        abi::EVENT_QP_REQ_ERR => {
            Then::LeaveLane("the peer asked for what its queue pair may not (IBV_EVENT_QP_REQ_ERR)")
        }
        abi::EVENT_QP_ACCESS_ERR => Then::LeaveLane(
            "the peer reached for memory that it may not touch (IBV_EVENT_QP_ACCESS_ERR)",
        ),
        abi::EVENT_PATH_MIG_ERR => {
            Then::LeaveLane("a queue pair found no other path (IBV_EVENT_PATH_MIG_ERR)")
        }
        abi::EVENT_PORT_ERR => Then::LeavePort,
        abi::EVENT_PORT_ACTIVE | abi::EVENT_LID_CHANGE | abi::EVENT_GID_CHANGE => Then::LookAtPort,
        abi::EVENT_PKEY_CHANGE => Then::Ignore(
            "all use the first partition; whoever is out of it finds out by its requests",
        ),
        abi::EVENT_SM_CHANGE | abi::EVENT_CLIENT_REREGISTER => {
            Then::Ignore("nothing is registered with the subnet manager")
        }
        abi::EVENT_COMM_EST => Then::Ignore("what came by a queue pair says so, too"),
        abi::EVENT_SQ_DRAINED | abi::EVENT_SRQ_LIMIT_REACHED | abi::EVENT_PATH_MIG => {
            Then::Ignore("nobody asked for it")
        }
        abi::EVENT_QP_LAST_WQE_REACHED => Then::LetGo,
        _ => Then::Ignore("newer than this driver, and about nothing that it uses"),
    }
}

impl Core {
    /// Reads and handles all events of the devices.
    pub(super) fn hear_devices(&mut self) {
        for lane in 0..self.rails.len() {
            while let Some(happened) = self.rails[lane].own.context.next_event() {
                self.handle_happened(lane, happened);
            }
        }
    }

    pub(super) fn handle_happened(&mut self, lane: usize, Happened { kind, about }: Happened) {
        self.counters.device_events.add(1);
        let port = u32::from(self.rails[lane].own.port);
        match (then(kind), about) {
            (Then::LeaveDevice(why), _) => self.break_all(lane, why),
            // A datagram queue pair has no peer. Datagrams lost with it are sent again, by other devices if there are some, until
            // the peer counts as unreachable.
            (Then::LeaveLane(why), Subject::Pair(qpn)) => {
                if let Some(&peer) = self.rails[lane].by_qpn.get(&qpn) {
                    self.note_broken(To { peer, lane }, io::Error::other(why));
                }
            }
            (Then::LetGo, Subject::Pair(qpn)) => self.handle_last(lane, qpn),
            // The port may be up again by the time this event is read.
            (Then::LeavePort, Subject::Port(number))
                if number == port && self.port_is_down(lane) =>
            {
                self.leave_port(lane);
            }
            (Then::LookAtPort, Subject::Port(number)) if number == port => self.look_at_port(lane),
            // About another port of the device, or a port that is up again, or of no consequence.
            _ => {}
        }
    }

    /// Marks a device as failed. Queue pairs of lanes that were left before are retried, since their completions may be lost.
    pub(super) fn break_all(&mut self, lane: usize, why: &'static str) {
        self.rails[lane].failed.get_or_insert(why);
        for peer in (0..).take(self.links.len()) {
            let to = To { peer, lane };
            self.note_broken(to, io::Error::other(why));
            let way = self.link(peer).and_then(|link| link.ways.get(lane));
            if way.is_some_and(|way| way.doomed) {
                self.dying.insert(to);
            }
        }
        if lane == FIRST {
            self.break_parcels(why);
        }
    }

    /// Leaves the lanes of a port that is down where another lane works. The first lane is left only when its requests fail:
    /// counters, atomics and lists can use no other lane, and would be lost with a port that is down for a moment.
    fn leave_port(&mut self, lane: usize) {
        if lane == FIRST {
            return;
        }
        let up: Vec<bool> = (0..self.rails.len())
            .map(|lane| !self.port_is_down(lane))
            .collect();
        for peer in (0..).take(self.links.len()) {
            let link = self.links[index(peer)].as_deref();
            let others = link.is_some_and(|link| {
                let mut ways = link.ways.iter().zip(&up);
                ways.any(|(way, up)| *up && way.works())
            });
            if others {
                let why = "this rank's port is down (IBV_EVENT_PORT_ERR): see its cable and switch";
                let why = io::Error::new(io::ErrorKind::NetworkDown, why);
                self.note_broken(To { peer, lane }, why);
            }
        }
    }

    /// Reads a port again, for connections that are made from now on.
    fn look_at_port(&mut self, lane: usize) {
        self.rails[lane].own.look_again();
        let own = &self.rails[lane].own;
        let far = &mut self.ports[lane];
        (far.gid, far.lid, far.mtu) = (own.gid, own.lid, own.mtu);
        self.moved |= !self.ports[FIRST].is_at(&self.peers[index(self.me)].first());
    }

    /// Records where a peer's first port is now.
    pub(super) fn hear_of_port(&mut self, peer: u32, now: &Far) {
        let Some(known) = self.peers.get_mut(index(peer)) else {
            return;
        };
        if !now.is_at(&known.first()) {
            (known.gid, known.lid, known.mtu) = (now.gid, now.lid, now.mtu);
        }
    }
}

impl Own {
    /// Reads the port's state and address. Values that the device does not give now stay as they were.
    fn look_again(&mut self) {
        let state = self.context.port(self.port);
        if let Some(state) = state.ok().filter(|state| state.active) {
            (self.lid, self.mtu) = (state.lid, state.mtu);
        }
        let gid = self.context.gid(self.port, self.gid_index);
        if let Some(gid) = gid.ok().filter(|gid| *gid != [0; 16]) {
            self.gid = gid;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{About, Then, about, then};

    #[test]
    fn what_ends_more_than_one_lane_is_what_all_share() {
        let ends: Vec<i32> = (KINDS)
            .filter(|kind| matches!(then(*kind), Then::LeaveDevice(_)))
            .collect();
        // A completion queue, the device, and the shared receive queue.
        assert_eq!(ends, [0, 8, 14]);
        assert!(ends.iter().all(|kind| about(*kind) == About::Other));
    }

    #[test]
    fn what_ends_one_lane_says_which_queue_pair_it_is_of() {
        let lanes: Vec<i32> = (KINDS)
            .filter(|kind| matches!(then(*kind), Then::LeaveLane(_)))
            .collect();
        assert_eq!(lanes, [1, 2, 3, 7]);
        assert!(lanes.iter().all(|kind| about(*kind) == About::Pair));
    }

    #[test]
    fn what_is_of_a_port_says_which() {
        let of_ports: Vec<i32> = (KINDS)
            .filter(|kind| matches!(then(*kind), Then::LeavePort | Then::LookAtPort))
            .collect();
        assert_eq!(of_ports, [9, 10, 11, 18]);
        assert!(of_ports.iter().all(|kind| about(*kind) == About::Port));
        assert_eq!(then(10), Then::LeavePort);
    }

    #[test]
    fn every_end_names_its_event_and_nothing_is_ignored_without_a_reason() {
        for kind in KINDS {
            match then(kind) {
                Then::LeaveDevice(why) | Then::LeaveLane(why) => {
                    assert!(why.contains("IBV_EVENT_"), "{kind}: {why}");
                }
                Then::Ignore(why) => assert!(!why.is_empty(), "{kind}"),
                Then::LeavePort | Then::LookAtPort | Then::LetGo => {}
            }
        }
    }

    /// All kinds of events, and some that do not exist.
    const KINDS: std::ops::Range<i32> = -1..64;
}
