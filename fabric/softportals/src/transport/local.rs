//! Packets between the processes of one machine, as datagrams of the kernel.
//!
//! Every interface has a socket under an abstract name, which ends with the process: nothing is left behind, and a peer that is
//! gone refuses. Each sender has a socket per peer, so that a peer that does not read stops nobody else. The kernel says whose
//! process a datagram is from; those of other users are not read.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    sync::Arc,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
    },
};

use crate::{
    event::Address,
    interface::{Link, Packet},
};

/// Where an interface is, apart from its address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct Place {
    /// Networks with different names do not see each other.
    pub network: String,
    /// The rail.
    pub rail: u32,
    /// Which of the interfaces that share a process id.
    pub kind: u32,
}

/// The right to a process id on a rail of this machine, as long as it lives.
#[derive(Debug)]
pub struct Reservation {
    _socket: OwnedFd,
}

/// An interface's way to all others.
#[derive(Debug)]
pub struct Port {
    place: Place,
    address: Address,
    uid: u32,
    socket: Arc<OwnedFd>,
    peers: BTreeMap<Address, Way>,
    /// Those of whose packets the kernel did not take one.
    full: BTreeSet<Address>,
    lost: Vec<Address>,
    packet: Vec<u8>,
}

/// The way to one peer.
#[derive(Debug)]
struct Way {
    socket: Arc<OwnedFd>,
    /// What the kernel did not take.
    waiting: Option<Vec<u8>>,
}

impl Reservation {
    /// Takes `pid` for this process.
    ///
    /// # Errors
    /// `EADDRINUSE` when another process has it, or what else the system said.
    pub fn take(place: &Place, pid: u32) -> Result<Self, Errno> {
        let socket = datagrams()?;
        let name = format!("{}/pid/{pid}", place.rail_name());
        rustix::net::bind(&socket, &abstract_name(&name)?)?;
        Ok(Self { _socket: socket })
    }
}

impl Port {
    /// Takes an address, and listens there. Packets are at most `packet_max` bytes long.
    ///
    /// # Errors
    /// `EADDRINUSE` when the address is taken, or what else the system said.
    pub fn open(place: Place, address: Address, packet_max: usize) -> Result<Self, Errno> {
        let socket = datagrams()?;
        sockopt::set_socket_passcred(&socket, true)?;
        rustix::net::bind(&socket, &abstract_name(&place.name(address))?)?;
        Ok(Self {
            place,
            address,
            uid: rustix::process::geteuid().as_raw(),
            socket: Arc::new(socket),
            peers: BTreeMap::new(),
            full: BTreeSet::new(),
            lost: Vec::new(),
            packet: vec![0; PREFIX_LEN + packet_max],
        })
    }

    /// What is readable when a packet is there.
    #[must_use]
    pub fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// What will be writable when a peer that was full has room.
    pub fn full(&self) -> impl Iterator<Item = Arc<OwnedFd>> {
        let ways = self.full.iter().filter_map(|peer| self.peers.get(peer));
        ways.map(|way| Arc::clone(&way.socket))
    }

    /// Sends what the kernel did not take before, where it takes it now.
    pub fn flush(&mut self) {
        let full: Vec<Address> = self.full.iter().copied().collect();
        for peer in full {
            self.has_room(peer);
        }
    }

    /// The next packet and its sender, if one is there.
    ///
    /// # Errors
    /// What the system said.
    pub fn receive(&mut self) -> Result<Option<(Address, &[u8])>, Errno> {
        loop {
            let Some(len) = self.receive_any()? else {
                return Ok(None);
            };
            // Somebody else's, or nonsense: as if it had not come.
            let sender = len.and_then(|len| sender(self.packet.get(..len)?));
            if let (Some(sender), Some(len)) = (sender, len) {
                return Ok(Some((sender, &self.packet[PREFIX_LEN..len])));
            }
        }
    }

    /// Says nothing to `peer`, to learn whether it is there.
    pub fn probe(&mut self, peer: Address) {
        if self.has_room(peer) {
            self.post(peer, &[IoSlice::new(&[])]);
        }
    }

    /// A peer that was found to be gone.
    pub fn next_lost(&mut self) -> Option<Address> {
        self.lost.pop()
    }

    /// The outer `None` when nothing is there, the inner one when what was there is not for us.
    fn receive_any(&mut self) -> Result<Option<Option<usize>>, Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut self.packet)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let received = match rustix::net::recvmsg(&*self.socket, &mut parts, &mut control, flags) {
            Ok(received) => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(why) => return Err(why),
        };
        let mut messages = control.drain();
        let is_ours = messages.any(|message| match message {
            RecvAncillaryMessage::ScmCredentials(who) => who.uid.as_raw() == self.uid,
            _ => false,
        });
        Ok(Some(is_ours.then_some(received)))
    }

    fn way(&mut self, peer: Address) -> Result<&mut Way, Errno> {
        if !self.peers.contains_key(&peer) {
            let socket = datagrams()?;
            rustix::net::connect(&socket, &abstract_name(&self.place.name(peer))?)?;
            let way = Way {
                socket: Arc::new(socket),
                waiting: None,
            };
            self.peers.insert(peer, way);
        }
        self.peers.get_mut(&peer).ok_or(Errno::NOTCONN)
    }

    /// Sends a datagram, or keeps it until the kernel takes it.
    fn post(&mut self, peer: Address, parts: &[IoSlice<'_>]) {
        let Some(way) = self.peers.get_mut(&peer) else {
            return;
        };
        let sent = way.send(parts);
        if sent == Err(Errno::AGAIN) {
            let packet = parts.iter().flat_map(|part| part.iter());
            way.waiting = Some(packet.copied().collect());
            self.full.insert(peer);
        } else if sent.is_err() {
            self.lose(peer);
        }
    }

    fn lose(&mut self, peer: Address) {
        self.peers.remove(&peer);
        self.full.remove(&peer);
        self.lost.push(peer);
    }
}

impl Link for Port {
    fn has_room(&mut self, peer: Address) -> bool {
        // Nobody is there, or too many descriptors are open: either way this peer cannot be reached.
        let Ok(way) = self.way(peer) else {
            self.lose(peer);
            return false;
        };
        let Some(waiting) = way.waiting.take() else {
            return true;
        };
        self.full.remove(&peer);
        self.post(peer, &[IoSlice::new(&waiting)]);
        self.peers
            .get(&peer)
            .is_some_and(|way| way.waiting.is_none())
    }

    fn send(&mut self, peer: Address, packet: Packet<'_>) {
        let prefix = prefix(self.address);
        let parts = [&prefix[..], packet.head, packet.payload].map(IoSlice::new);
        self.post(peer, &parts);
    }
}

impl Way {
    fn send(&self, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            let mut nothing = SendAncillaryBuffer::default();
            match rustix::net::sendmsg(&*self.socket, parts, &mut nothing, flags) {
                Err(Errno::INTR) => {}
                // Memory for datagrams comes back as readers read.
                Err(Errno::NOBUFS) => return Err(Errno::AGAIN),
                other => return other,
            }
        }
    }
}

impl Place {
    fn rail_name(&self) -> String {
        format!("ripstop-portals/{}/{}", self.network, self.rail)
    }

    fn name(&self, address: Address) -> String {
        let Address { nid, pid } = address;
        format!("{}/{}/{nid}/{pid}", self.rail_name(), self.kind)
    }
}

fn datagrams() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

fn abstract_name(name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

fn prefix(address: Address) -> [u8; PREFIX_LEN] {
    let mut prefix = [0; PREFIX_LEN];
    prefix[..8].copy_from_slice(&MAGIC);
    prefix[8..12].copy_from_slice(&address.nid.to_le_bytes());
    prefix[12..].copy_from_slice(&address.pid.to_le_bytes());
    prefix
}

fn sender(packet: &[u8]) -> Option<Address> {
    let (prefix, _) = packet.split_first_chunk::<PREFIX_LEN>()?;
    let word = |at: usize| prefix[at..].first_chunk().copied().map(u32::from_le_bytes);
    let address = Address {
        nid: word(8)?,
        pid: word(12)?,
    };
    prefix.starts_with(&MAGIC).then_some(address)
}

/// The last byte is the version of what follows.
const MAGIC: [u8; 8] = *b"RIPSTPL\x01";
const PREFIX_LEN: usize = 16;

#[cfg(test)]
mod tests {
    use super::{Address, Errno, Link, Packet, Place, Port, Reservation};

    fn place(test: &str) -> Place {
        Place {
            network: format!("test-{test}-{}", std::process::id()),
            rail: 0,
            kind: 0,
        }
    }

    fn port(place: &Place, pid: u32) -> Port {
        Port::open(place.clone(), Address { nid: 1, pid }, 64).expect("a free address")
    }

    fn packet(payload: &[u8]) -> Packet<'_> {
        Packet {
            head: b"head",
            payload,
        }
    }

    #[test]
    fn packets_arrive_in_order_with_their_sender() {
        let place = place("order");
        let (mut a, mut b) = (port(&place, 1), port(&place, 2));
        for byte in 0..5 {
            assert!(a.has_room(b.address));
            a.send(b.address, packet(&[byte]));
        }
        for byte in 0..5 {
            let (from, bytes) = b.receive().expect("works").expect("a packet");
            assert_eq!(
                (from, bytes),
                (a.address, &[b'h', b'e', b'a', b'd', byte][..])
            );
        }
        assert_eq!(b.receive(), Ok(None));
    }

    #[test]
    fn a_peer_that_does_not_read_is_full_and_loses_nothing() {
        let place = place("full");
        let (mut a, mut b) = (port(&place, 1), port(&place, 2));
        let mut sent = 0_u32;
        while a.has_room(b.address) {
            a.send(b.address, packet(&sent.to_le_bytes()));
            sent += 1;
        }
        assert_eq!(a.full().count(), 1);
        for number in 0..sent {
            let (_, bytes) = b.receive().expect("works").expect("a packet");
            assert_eq!(bytes[4..], number.to_le_bytes());
            assert!(a.has_room(b.address));
        }
        assert_eq!(a.next_lost(), None);
    }

    #[test]
    fn an_address_is_taken_once_and_free_after_its_end() {
        let place = place("taken");
        let first = (port(&place, 1), Reservation::take(&place, 1).expect("free"));
        let again = Port::open(place.clone(), first.0.address, 64);
        assert_eq!(again.err(), Some(Errno::ADDRINUSE));
        assert_eq!(Reservation::take(&place, 1).err(), Some(Errno::ADDRINUSE));
        drop(first);
        port(&place, 1);
        Reservation::take(&place, 1).expect("free again");
    }

    #[test]
    fn who_is_not_there_or_no_longer_is_lost() {
        let place = place("lost");
        let mut a = port(&place, 1);
        let b = port(&place, 2);
        let (gone, never) = (b.address, Address { nid: 1, pid: 3 });
        assert!(a.has_room(gone));
        drop(b);
        a.probe(gone);
        assert_eq!(a.next_lost(), Some(gone));
        assert!(!a.has_room(never));
        assert_eq!(a.next_lost(), Some(never));
    }
}
