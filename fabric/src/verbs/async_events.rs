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
    core::{VerbsCore, index},
    lane::{FIRST, PeerLane},
    rail::RailDevice,
};

/// An event, and its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceEvent {
    pub(super) kind: i32,
    pub(super) subject: EventSubject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventSubject {
    /// The queue pair of this number.
    Pair(u32),
    /// The port of this number.
    Port(u32),
    /// The device, or a queue that all connections by it share.
    Other,
}

/// Kind of subject that an event carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventSubjectKind {
    Pair,
    Port,
    Other,
}

/// Reaction to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventReaction {
    /// Leave the device, for this reason.
    LeaveDevice(&'static str),
    /// Leave the lane of the queue pair, for this reason.
    LeaveLane(&'static str),
    /// Leave the port, if it is still down.
    LeavePort,
    /// Read the port's address, which may have changed.
    ReadPort,
    /// Note that a retired queue pair holds no receives any more.
    ReceivesDrained,
    /// Do nothing, for this reason.
    Ignore(&'static str),
}

/// Returns the kind of subject of an event. Other kinds carry nothing that could be read.
pub(super) const fn subject_kind(kind: i32) -> EventSubjectKind {
    match kind {
        abi::EVENT_QP_FATAL
        | abi::EVENT_QP_REQ_ERR
        | abi::EVENT_QP_ACCESS_ERR
        | abi::EVENT_COMM_EST
        | abi::EVENT_SQ_DRAINED
        | abi::EVENT_PATH_MIG
        | abi::EVENT_PATH_MIG_ERR
        | abi::EVENT_QP_LAST_WQE_REACHED => EventSubjectKind::Pair,
        abi::EVENT_PORT_ACTIVE
        | abi::EVENT_PORT_ERR
        | abi::EVENT_LID_CHANGE
        | abi::EVENT_PKEY_CHANGE
        | abi::EVENT_SM_CHANGE
        | abi::EVENT_CLIENT_REREGISTER
        | abi::EVENT_GID_CHANGE => EventSubjectKind::Port,
        _ => EventSubjectKind::Other,
    }
}

const fn then(kind: i32) -> EventReaction {
    match kind {
        abi::EVENT_DEVICE_FATAL => EventReaction::LeaveDevice(
            "the device failed (IBV_EVENT_DEVICE_FATAL): see the kernel's log",
        ),
        abi::EVENT_CQ_ERR => EventReaction::LeaveDevice(
            "a completion queue of the device failed or overran (IBV_EVENT_CQ_ERR)",
        ),
        abi::EVENT_SRQ_ERR => EventReaction::LeaveDevice(
            "the device's shared receive queue failed (IBV_EVENT_SRQ_ERR): the device can receive no messages",
        ),
        abi::EVENT_QP_FATAL => {
            EventReaction::LeaveLane("the device disabled a queue pair (IBV_EVENT_QP_FATAL)")
        }
        abi::EVENT_QP_REQ_ERR => EventReaction::LeaveLane(
            "the peer sent a request that its queue pair may not send (IBV_EVENT_QP_REQ_ERR)",
        ),
        abi::EVENT_QP_ACCESS_ERR => EventReaction::LeaveLane(
            "the peer accessed memory that it may not access (IBV_EVENT_QP_ACCESS_ERR)",
        ),
        abi::EVENT_PATH_MIG_ERR => {
            EventReaction::LeaveLane("a queue pair found no other path (IBV_EVENT_PATH_MIG_ERR)")
        }
        abi::EVENT_PORT_ERR => EventReaction::LeavePort,
        abi::EVENT_PORT_ACTIVE | abi::EVENT_LID_CHANGE | abi::EVENT_GID_CHANGE => {
            EventReaction::ReadPort
        }
        abi::EVENT_PKEY_CHANGE => EventReaction::Ignore(
            "all ranks use the first partition; requests of a rank outside of it fail",
        ),
        abi::EVENT_SM_CHANGE | abi::EVENT_CLIENT_REREGISTER => {
            EventReaction::Ignore("nothing is registered with the subnet manager")
        }
        abi::EVENT_COMM_EST => {
            EventReaction::Ignore("the first message on the queue pair says the same")
        }
        abi::EVENT_SQ_DRAINED | abi::EVENT_SRQ_LIMIT_REACHED | abi::EVENT_PATH_MIG => {
            EventReaction::Ignore("the driver did not request this event")
        }
        abi::EVENT_QP_LAST_WQE_REACHED => EventReaction::ReceivesDrained,
        _ => {
            EventReaction::Ignore("newer than this driver, and about objects that it does not use")
        }
    }
}

impl VerbsCore {
    /// Reads and handles all events of the devices.
    pub(super) fn handle_device_events(&mut self) {
        for lane in 0..self.rails.len() {
            while let Some(happened) = self.rails[lane].device.context.next_event() {
                self.handle_device_event(lane, happened);
            }
        }
    }

    pub(super) fn handle_device_event(
        &mut self,
        lane: usize,
        DeviceEvent { kind, subject }: DeviceEvent,
    ) {
        self.counters.device_events.add(1);
        let port = u32::from(self.rails[lane].device.port);
        match (then(kind), subject) {
            (EventReaction::LeaveDevice(why), _) => self.fail_device(lane, why),
            // A datagram queue pair has no peer. Datagrams lost with it are sent again, by other devices if there are some, until
            // the peer counts as unreachable.
            (EventReaction::LeaveLane(why), EventSubject::Pair(qpn)) => {
                if let Some(&peer) = self.rails[lane].by_qpn.get(&qpn) {
                    self.links
                        .note_broken(PeerLane { peer, lane }, io::Error::other(why));
                }
            }
            (EventReaction::ReceivesDrained, EventSubject::Pair(qpn)) => {
                self.handle_last_wqe(lane, qpn)
            }
            // The port may be up again by the time this event is read.
            (EventReaction::LeavePort, EventSubject::Port(number))
                if number == port && self.rails[lane].port_is_down() =>
            {
                self.leave_port(lane);
            }
            (EventReaction::ReadPort, EventSubject::Port(number)) if number == port => {
                self.look_at_port(lane)
            }
            // The event is about another port of the device, or a port that is up again, or has no consequence.
            _ => {}
        }
    }

    /// Marks a device as failed. Queue pairs of lanes that were left before are retried, since their completions may be lost.
    pub(super) fn fail_device(&mut self, lane: usize, why: &'static str) {
        self.rails[lane].failed.get_or_insert(why);
        for peer in self.links.ranks() {
            let to = PeerLane { peer, lane };
            self.links.note_broken(to, io::Error::other(why));
            let found = self
                .links
                .get_mut(peer)
                .and_then(|link| link.lanes.get(lane));
            if found.is_some_and(|found| found.retired) {
                self.to_destroy.insert(to);
            }
        }
        if lane == FIRST {
            for peer in self.datagrams.fail_first() {
                self.fail(peer, io::Error::other(why));
            }
        }
    }

    /// Leaves the lanes of a port that is down where another lane works. The first lane is left only when its requests fail:
    /// counters, atomics and lists can use no other lane, and would be lost with a port that is down for a moment.
    fn leave_port(&mut self, lane: usize) {
        if lane == FIRST {
            return;
        }
        let up: Vec<bool> = self.rails.iter().map(|rail| !rail.port_is_down()).collect();
        for peer in self.links.ranks() {
            let link = self.links.get(peer);
            let others = link.is_some_and(|link| {
                let mut lanes = link.lanes.iter().zip(&up);
                lanes.any(|(lane, up)| *up && lane.works())
            });
            if others {
                let why = "this rank's port is down (IBV_EVENT_PORT_ERR): see its cable and switch";
                let why = io::Error::new(io::ErrorKind::NetworkDown, why);
                self.links.note_broken(PeerLane { peer, lane }, why);
            }
        }
    }

    /// Reads a port again, for connections that are made from now on.
    fn look_at_port(&mut self, lane: usize) {
        self.rails[lane].device.look_again();
        let own = &self.rails[lane].device;
        let remote = &mut self.ports[lane];
        (remote.gid, remote.lid, remote.mtu) = (own.gid, own.lid, own.mtu);
        self.moved |= !self.ports[FIRST].is_at(&self.peers[index(self.me)].first());
    }
}

impl RailDevice {
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
    use super::{EventReaction, EventSubjectKind, subject_kind, then};

    #[test]
    fn what_ends_more_than_one_lane_is_what_all_share() {
        let ends: Vec<i32> = (KINDS)
            .filter(|kind| matches!(then(*kind), EventReaction::LeaveDevice(_)))
            .collect();
        // A completion queue, the device, and the shared receive queue.
        assert_eq!(ends, [0, 8, 14]);
        assert!(
            ends.iter()
                .all(|kind| subject_kind(*kind) == EventSubjectKind::Other)
        );
    }

    #[test]
    fn what_ends_one_lane_says_which_queue_pair_it_is_of() {
        let lanes: Vec<i32> = (KINDS)
            .filter(|kind| matches!(then(*kind), EventReaction::LeaveLane(_)))
            .collect();
        assert_eq!(lanes, [1, 2, 3, 7]);
        assert!(
            lanes
                .iter()
                .all(|kind| subject_kind(*kind) == EventSubjectKind::Pair)
        );
    }

    #[test]
    fn what_is_of_a_port_says_which() {
        let of_ports: Vec<i32> = (KINDS)
            .filter(|kind| {
                matches!(
                    then(*kind),
                    EventReaction::LeavePort | EventReaction::ReadPort
                )
            })
            .collect();
        assert_eq!(of_ports, [9, 10, 11, 18]);
        assert!(
            of_ports
                .iter()
                .all(|kind| subject_kind(*kind) == EventSubjectKind::Port)
        );
        assert_eq!(then(10), EventReaction::LeavePort);
    }

    #[test]
    fn every_end_names_its_event_and_nothing_is_ignored_without_a_reason() {
        for kind in KINDS {
            match then(kind) {
                EventReaction::LeaveDevice(why) | EventReaction::LeaveLane(why) => {
                    assert!(why.contains("IBV_EVENT_"), "{kind}: {why}");
                }
                EventReaction::Ignore(why) => assert!(!why.is_empty(), "{kind}"),
                EventReaction::LeavePort
                | EventReaction::ReadPort
                | EventReaction::ReceivesDrained => {}
            }
        }
    }

    /// All kinds of events, and some that do not exist.
    const KINDS: std::ops::Range<i32> = -1..64;
}
