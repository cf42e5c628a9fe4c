//! Transport of packets between processes: in order and exactly once, or the peer is reported lost.
//!
//! - `local`: memory shared by two processes of one machine.
//! - `udp`: datagrams between machines. `conversation` restores order over the faults of the network, or those that `faults`
//!   injects.
//! - `cut_medium`: an interface that was disconnected on purpose.
//!
//! A [`PacketPort`] connects an interface to all others over one of these, at most at the configured rate of its rail.

mod conversation;
mod cut_medium;
mod faults;
mod local;
mod mapped_words;
mod ring;
mod udp;

use std::{fmt, net::Ipv4Addr, os::fd::OwnedFd, sync::Arc};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
    time::{ClockId, clock_gettime},
};

pub(crate) use self::udp::PID_MAX;
use self::{cut_medium::CutMedium, local::LocalMedium, udp::UdpMedium};
pub use self::{faults::DatagramFaults, local::PidReservation};
use crate::{
    event::PhysicalId,
    interface::{PacketLink, SoftPacket},
    packet::BODY_LEN,
};

/// Location of an interface, apart from its address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct InterfaceLocation {
    /// Name of the network. Networks with different names do not see each other.
    pub network: String,
    /// Rail number.
    pub rail: u32,
    /// Index among the interfaces that share a process id.
    pub kind: u32,
}

/// Transport of packets, and its limits.
#[derive(Clone, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct SoftTransportConfig {
    /// Medium that carries packets.
    pub medium: MediumKind,
    /// Maximum bytes per second sent by an interface.
    pub rate: Option<u64>,
    /// Bytes sent by an interface before it is disconnected, as if its cable had been pulled.
    pub cut_after: Option<u64>,
}

/// Media that carry packets.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum MediumKind {
    /// Memory shared by processes of one machine.
    #[default]
    Shared,
    /// Datagrams between machines.
    Udp {
        /// IPv4 address of this node.
        host: Ipv4Addr,
        /// Faults to inject.
        faults: DatagramFaults,
    },
}

impl SoftTransportConfig {
    /// Returns the largest payload of a packet in bytes.
    #[must_use]
    pub const fn packet_max(&self) -> usize {
        match self.medium {
            MediumKind::Shared => ring::PACKET_LEN_MAX - BODY_LEN,
            MediumKind::Udp { .. } => udp::PAYLOAD_MAX,
        }
    }
}

/// One end of a medium. Times are in nanoseconds of [`now`].
trait PacketMedium: fmt::Debug + Send {
    /// Returns a descriptor that is readable when [`drain_socket`](Self::drain_socket) or [`receive`](Self::receive) must be
    /// called.
    fn socket(&self) -> Arc<OwnedFd>;
    /// Returns descriptors that become writable when peers that were full have room.
    fn full(&self) -> Vec<Arc<OwnedFd>>;
    /// Does the work that is due by now.
    fn flush(&mut self, now: u64);
    /// Takes everything except packets from the readable socket.
    fn drain_socket(&mut self);
    /// Takes the next packet if there is one, and returns its sender.
    fn receive(&mut self, now: u64, into: &mut Vec<u8>) -> Option<PhysicalId>;
    /// Requests that the socket become readable when a packet arrives. Returns true if one is there already.
    fn arm(&mut self) -> bool;
    /// Withdraws [`arm`](Self::arm): the caller will poll.
    fn disarm(&mut self);
    /// Checks that `peer` is alive.
    fn probe(&mut self, now: u64, peer: PhysicalId);
    /// Returns the next peer that was found to be dead.
    fn next_lost(&mut self) -> Option<PhysicalId>;
    /// Returns the latest time of the next [`flush`](Self::flush).
    fn deadline(&self) -> Option<u64>;
    /// Returns true if sent data may have to be resent.
    fn owes(&self) -> bool;
    /// See [`PacketLink`].
    fn has_room(&mut self, peer: PhysicalId) -> bool;
    /// See [`PacketLink`].
    fn send(&mut self, now: u64, peer: PhysicalId, packet: SoftPacket<'_>);
}

/// Connection of an interface to all others.
#[derive(Debug)]
pub struct PacketPort {
    wire: Box<dyn PacketMedium>,
    rate: Option<RailRateLimit>,
    cut: Option<PlannedCut>,
    /// Lost peers whose operations have not been failed yet. Nothing is sent to them, because it would fail along with those
    /// operations.
    marked_lost: Vec<PhysicalId>,
    now: u64,
}

/// Rate limit of a rail.
#[derive(Debug)]
struct RailRateLimit {
    bytes_per_second: u64,
    /// Time at which all sent bytes have left, at this rate.
    free_at: u64,
    /// True if the last check for room was refused because of the rate.
    waited: bool,
}

/// Planned disconnection of an interface, and the descriptor it sleeps on afterwards.
#[derive(Debug)]
struct PlannedCut {
    bytes_left: u64,
    silence: OwnedFd,
}

impl PacketPort {
    /// Takes an address and listens there.
    ///
    /// # Errors
    /// `EADDRINUSE` if the address is taken, or another error of the system.
    pub fn open(
        place: InterfaceLocation,
        address: PhysicalId,
        wires: &SoftTransportConfig,
    ) -> Result<Self, Errno> {
        let wire: Box<dyn PacketMedium> = match &wires.medium {
            MediumKind::Shared => Box::new(LocalMedium::open(place, address)?),
            MediumKind::Udp { host, faults } => Box::new(UdpMedium::open(
                &place,
                address,
                *host,
                faults.clone(),
                now(),
            )?),
        };
        let rate = wires.rate.map(|bytes_per_second| RailRateLimit {
            bytes_per_second: bytes_per_second.max(1),
            free_at: 0,
            waited: false,
        });
        let cut = wires.cut_after.map(|bytes_left| {
            let silence = eventfd(0, EventfdFlags::CLOEXEC)?;
            Ok(PlannedCut {
                bytes_left,
                silence,
            })
        });
        Ok(Self {
            wire,
            rate,
            cut: cut.transpose()?,
            marked_lost: Vec::new(),
            now: now(),
        })
    }

    /// Returns a descriptor that is readable when packets or notices about peers have arrived.
    #[must_use]
    pub fn socket(&self) -> Arc<OwnedFd> {
        self.wire.socket()
    }

    /// Returns descriptors that become writable when peers that were full have room.
    #[must_use]
    pub fn full(&self) -> Vec<Arc<OwnedFd>> {
        self.wire.full()
    }

    /// Reads the clock.
    pub fn tick(&mut self) {
        self.now = now();
    }

    /// Sends and repeats what is due.
    pub fn flush(&mut self) {
        self.wire.flush(self.now);
    }

    /// Takes everything except packets from the readable socket.
    pub fn drain_socket(&mut self) {
        self.wire.drain_socket();
    }

    /// Takes the next packet if there is one, and returns its sender.
    pub fn receive(&mut self, into: &mut Vec<u8>) -> Option<PhysicalId> {
        self.wire.receive(self.now, into)
    }

    /// Requests that the socket become readable when a packet arrives. Returns true if one is there already.
    pub fn arm(&mut self) -> bool {
        self.wire.arm()
    }

    /// Withdraws [`Self::arm`]: the caller will poll.
    pub fn disarm(&mut self) {
        self.wire.disarm();
    }

    /// Checks that `peer` is alive.
    pub fn probe(&mut self, peer: PhysicalId) {
        self.wire.probe(self.now, peer);
    }

    /// Returns the next peer that was found to be dead.
    pub fn next_lost(&mut self) -> Option<PhysicalId> {
        self.wire.next_lost()
    }

    /// Stops sending to a lost peer or its successor until [`Self::forget`].
    pub fn mark_lost(&mut self, peer: PhysicalId) {
        self.marked_lost.push(peer);
    }

    /// Allows sending again, once all operations to a lost peer have been failed.
    pub fn forget(&mut self, peer: PhysicalId) {
        // A peer may have been lost twice, so only one entry is removed.
        if let Some(at) = self.marked_lost.iter().position(|one| *one == peer) {
            self.marked_lost.swap_remove(at);
        }
    }

    /// Returns the latest time of the next [`Self::flush`], in nanoseconds of [`Self::now`].
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        let rate = self.rate.as_ref().filter(|rate| rate.waited);
        // Wake while half of the burst is still leaving, so that the rail does not idle until its agent is awake.
        let rate = rate.map(|rate| rate.free_at.saturating_sub(BURST_NS / 2));
        let due = [self.wire.deadline(), rate];
        due.into_iter().flatten().min()
    }

    /// Returns true if sent data would be missing if this process ended now, because it may have to be resent.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.wire.owes()
    }

    /// Counts bytes toward the planned disconnection, and disconnects the interface when it is due.
    fn age(&mut self, bytes: u64) {
        let is_over = |doom: &mut PlannedCut| {
            doom.bytes_left = doom.bytes_left.saturating_sub(bytes);
            doom.bytes_left == 0
        };
        if let Some(doom) = self.cut.take_if(is_over) {
            self.wire = Box::new(CutMedium::new(doom.silence));
        }
    }

    /// Returns the time of the last [`Self::tick`], in nanoseconds of a monotonic clock.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }
}

impl PacketLink for PacketPort {
    fn has_room(&mut self, peer: PhysicalId) -> bool {
        if let Some(rate) = &mut self.rate {
            rate.waited = rate.free_at > self.now + BURST_NS;
            if rate.waited {
                return false;
            }
        }
        !self.marked_lost.contains(&peer) && self.wire.has_room(peer)
    }

    fn send(&mut self, peer: PhysicalId, packet: SoftPacket<'_>) {
        let bytes = (packet.head.len() + packet.payload.len()) as u64;
        self.age(bytes);
        if let Some(rate) = &mut self.rate {
            let lasts = bytes.saturating_mul(1_000_000_000) / rate.bytes_per_second;
            rate.free_at = rate.free_at.max(self.now) + lasts;
        }
        self.wire.send(self.now, peer, packet);
    }
}

/// Returns the nanoseconds of a monotonic clock.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Burst that a rate-limited rail sends immediately. Short messages need not wait for the clock, and a thread that wakes late by
/// this much does not reduce the rate.
const BURST_NS: u64 = 200_000;

#[cfg(test)]
mod tests {
    use super::{InterfaceLocation, PacketLink, PacketPort, PhysicalId, SoftTransportConfig};

    #[test]
    fn a_lost_peer_gets_nothing_until_it_is_forgotten_as_often_as_it_was_lost() {
        let place = InterfaceLocation {
            network: format!("test-mourned-{}", std::process::id()),
            rail: 0,
            kind: 0,
        };
        let open = |pid| {
            let address = PhysicalId { nid: 1, pid };
            let port = PacketPort::open(place.clone(), address, &SoftTransportConfig::default());
            (port.expect("a free address"), address)
        };
        let ((mut port, _), (_peer, there)) = (open(1), open(2));
        assert!(port.has_room(there));
        port.mark_lost(there);
        port.mark_lost(there);
        port.forget(there);
        assert!(!port.has_room(there));
        port.forget(there);
        assert!(port.has_room(there));
    }
}
