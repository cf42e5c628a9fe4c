//! Packets between machines as UDP datagrams, which a conversation with each peer puts in order.
//!
//! The node id is the IPv4 address. A process has sixteen ports, one for each rail and kind of interface.

use std::{
    io::IoSlice,
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
    sync::Arc,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sockopt,
    },
    time::{ClockId, clock_gettime},
};

use super::{
    InterfaceLocation, PacketMedium,
    conversation::{HEADER_LEN, UdpConversations},
    faults::{DatagramFaults, FaultyNetwork},
};
use crate::{event::PhysicalId, interface::SoftPacket, packet::BODY_LEN};

/// The UDP end of an interface.
#[derive(Debug)]
pub(super) struct UdpMedium {
    socket: Arc<OwnedFd>,
    rail: u32,
    kind: u32,
    conversations: UdpConversations,
    weather: FaultyNetwork,
    datagram: Vec<u8>,
}

impl UdpMedium {
    /// Binds the port of an address.
    ///
    /// # Errors
    /// `EADDRINUSE` if the port is taken, `EINVAL` for a process id that has no port, or another error of the system.
    pub(super) fn open(
        place: &InterfaceLocation,
        address: PhysicalId,
        host: Ipv4Addr,
        faults: DatagramFaults,
        now: u64,
    ) -> Result<Self, Errno> {
        let InterfaceLocation { rail, kind, .. } = *place;
        let port = port(rail, kind, address.pid).ok_or(Errno::INVAL)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrV4::new(host, port))?;
        // Request as much as the system allows. Datagrams that do not fit are resent.
        let _best_effort = sockopt::set_socket_recv_buffer_size(&socket, BUFFER_LEN);
        Ok(Self {
            socket: Arc::new(socket),
            rail,
            kind,
            conversations: UdpConversations::new(epoch(), now),
            weather: FaultyNetwork::new(faults),
            datagram: vec![0; HEADER_LEN + BODY_LEN + PAYLOAD_MAX],
        })
    }

    /// Returns the address that owns this port, if it can be the peer of this interface.
    fn sender(&self, from: SocketAddrV4) -> Option<PhysicalId> {
        let index = u32::from(from.port().checked_sub(PORT_MIN)?);
        let address = PhysicalId {
            nid: u32::from(*from.ip()),
            pid: index / PORTS,
        };
        (port(self.rail, self.kind, address.pid) == Some(from.port())).then_some(address)
    }
}

impl PacketMedium for UdpMedium {
    fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    fn full(&self) -> Vec<Arc<OwnedFd>> {
        Vec::new()
    }

    fn flush(&mut self, now: u64) {
        let Self {
            socket,
            rail,
            kind,
            conversations,
            weather,
            ..
        } = self;
        conversations.handle_time(now);
        let fair = weather.is_faultless();
        conversations.transmit(now, |to, parts| {
            if fair {
                post(socket, *rail, *kind, to, parts);
            } else {
                weather.push(now, to, parts.concat());
            }
        });
        while let Some((to, datagram)) = weather.pop(now) {
            post(socket, *rail, *kind, to, [&datagram, &[], &[]]);
        }
    }

    fn drain_socket(&mut self) {}

    fn receive(&mut self, now: u64, into: &mut Vec<u8>) -> Option<PhysicalId> {
        loop {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            let received = rustix::net::recvfrom(&*self.socket, &mut self.datagram[..], flags);
            let (len, from) = match received {
                Ok((len, _, from)) => (len, from),
                Err(Errno::INTR) => continue,
                Err(_) => return None,
            };
            let from = from.and_then(|from| SocketAddrV4::try_from(from).ok());
            let from = from.and_then(|from| self.sender(from));
            // Ignore datagrams from other programs, and those too long to be from this library.
            let (Some(from), Some(frame)) = (from, self.datagram.get(..len)) else {
                continue;
            };
            let has_room = !self.weather.exhausts();
            if let Some(packet) = self.conversations.handle(now, from, frame, has_room) {
                into.clear();
                into.extend_from_slice(packet);
                return Some(from);
            }
        }
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn probe(&mut self, now: u64, peer: PhysicalId) {
        self.conversations.probe(now, peer);
    }

    fn next_lost(&mut self) -> Option<PhysicalId> {
        self.conversations.next_lost()
    }

    fn deadline(&self) -> Option<u64> {
        let due = [self.conversations.deadline(), self.weather.deadline()];
        due.into_iter().flatten().min()
    }

    fn owes(&self) -> bool {
        self.conversations.owes()
    }

    fn has_room(&mut self, peer: PhysicalId) -> bool {
        self.conversations.has_room(peer)
    }

    fn send(&mut self, now: u64, peer: PhysicalId, packet: SoftPacket<'_>) {
        let bytes = [packet.head, packet.payload].concat();
        self.conversations.send(now, peer, bytes);
    }
}

/// Sends a datagram. If the system refuses it, it counts as lost.
fn post(socket: &OwnedFd, rail: u32, kind: u32, to: PhysicalId, parts: [&[u8]; 3]) {
    let Some(port) = port(rail, kind, to.pid) else {
        return;
    };
    let to = SocketAddrV4::new(Ipv4Addr::from(to.nid), port);
    let parts = parts.map(IoSlice::new);
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let mut nothing = SendAncillaryBuffer::default();
    let _sent = rustix::net::sendmsg_addr(socket, &to, &parts, &mut nothing, flags);
}

fn port(rail: u32, kind: u32, pid: u32) -> Option<u16> {
    let index = pid.checked_mul(PORTS)? + rail * KINDS + kind;
    let port = u32::from(PORT_MIN) + index;
    (pid <= PID_MAX).then(|| u16::try_from(port).ok())?
}

/// Returns the first conversation number, in nanoseconds since 1970, to differ from those of earlier processes with this address.
fn epoch() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Bytes of data in a packet: more than the 2048 of an atomic, and an eighth of the 64 KiB window that any receiver has.
pub(super) const PAYLOAD_MAX: usize = 8 << 10;
/// Largest process id that has ports.
pub(crate) const PID_MAX: u32 = 1023;

/// First port. All ports lie below the range that systems assign automatically.
const PORT_MIN: u16 = 10_240;
const KINDS: u32 = 4;
/// Ports of a process.
const PORTS: u32 = 16;
/// Requested receive buffer, for the time in which a receiver does not poll.
const BUFFER_LEN: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::{
        DatagramFaults, InterfaceLocation, Ipv4Addr, PID_MAX, PacketMedium, PhysicalId, SoftPacket,
        UdpMedium, port,
    };

    fn open(kind: u32, pid: u32) -> UdpMedium {
        let place = InterfaceLocation {
            network: String::new(),
            rail: 3,
            kind,
        };
        let host = Ipv4Addr::LOCALHOST;
        let nid = u32::from(host);
        UdpMedium::open(
            &place,
            PhysicalId { nid, pid },
            host,
            DatagramFaults::default(),
            0,
        )
        .expect("a free port")
    }

    #[test]
    fn every_process_has_ports_of_its_own() {
        assert_eq!(port(0, 0, 0), Some(10_240));
        assert_eq!(port(3, 3, PID_MAX), Some(26_623));
        assert_eq!(port(0, 0, PID_MAX + 1), None);
    }

    #[test]
    fn a_packet_travels_and_strangers_are_not_heard() {
        let (mut a, mut b, mut stranger) = (open(1, 901), open(1, 902), open(2, 901));
        let there = PhysicalId {
            nid: u32::from(Ipv4Addr::LOCALHOST),
            pid: 902,
        };
        let packet = SoftPacket {
            head: b"head",
            payload: b"data",
        };
        a.send(0, there, packet);
        a.flush(0);
        let mut seen = Vec::new();
        let from = b.receive(0, &mut seen).map(|from| from.pid);
        assert_eq!((from, &seen[..]), (Some(901), &b"headdata"[..]));
        super::post(&stranger.socket, 3, 1, there, [b"RSPT", &[1; 40], &[]]);
        assert_eq!(b.receive(0, &mut seen), None);
        stranger.send(0, there, packet);
        stranger.flush(0);
        assert_eq!(b.receive(0, &mut seen), None, "of another kind");
    }
}
