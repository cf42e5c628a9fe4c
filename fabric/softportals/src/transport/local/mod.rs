//! Packets between processes of one machine, through memory that both map.
//!
//! Every interface has a socket with an abstract name. The name vanishes with the process, so nothing is left behind, and
//! connecting to a dead peer is refused. The first packet to a peer creates a ring, which is passed to the peer through that
//! socket. The kernel names the user of the sending process, and rings of other users are refused. From then on the socket only
//! wakes a sleeping peer.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
        sockopt,
    },
};

use super::{
    InterfaceLocation, PacketMedium,
    mapped_words::MappedWords,
    ring::{PACKET_LEN_MAX, PacketConsumer, PacketProducer, PacketRingError, RING_WORDS},
};
use crate::{event::PhysicalId, interface::SoftPacket};

/// Ownership of a process id on a rail of this machine. Dropping it releases the id.
#[derive(Debug)]
pub struct PidReservation {
    _socket: OwnedFd,
}

/// The shared-memory end of an interface.
#[derive(Debug)]
pub(super) struct LocalMedium {
    place: InterfaceLocation,
    address: PhysicalId,
    uid: u32,
    socket: Arc<OwnedFd>,
    peers: BTreeMap<PhysicalId, LocalConnection>,
    /// Peers that have not received this process's ring yet, because their socket was full.
    full: BTreeSet<PhysicalId>,
    incoming: Vec<LocalInRing>,
    /// Index of the ring read last; rings are served round-robin.
    turn: usize,
    /// Dead peers whose earlier packets have not all been taken yet.
    leaving: Vec<DyingPeer>,
    /// Dead peers not yet reported. Packets of successors are not taken before the report.
    lost: Vec<PhysicalId>,
}

#[derive(Debug)]
struct DyingPeer {
    peer: PhysicalId,
    /// True if nothing was ever sent to the peer. Packets from that address may then come from a process that started only later.
    unmet: bool,
}

/// Connection to one peer.
#[derive(Debug)]
struct LocalConnection {
    socket: Arc<OwnedFd>,
    outgoing: Option<LocalOutRing>,
}

#[derive(Debug)]
struct LocalOutRing {
    ring: PacketProducer,
    /// File of the ring, until the peer has received it.
    file: Option<OwnedFd>,
}

#[derive(Debug)]
struct LocalInRing {
    from: PhysicalId,
    ring: PacketConsumer,
}

impl PidReservation {
    /// Reserves `pid` for this process.
    ///
    /// # Errors
    /// `EADDRINUSE` if another process has it, or another error of the system.
    pub fn take(place: &InterfaceLocation, pid: u32) -> Result<Self, Errno> {
        let socket = datagrams()?;
        let name = format!("{}/pid/{pid}", place.rail_name());
        rustix::net::bind(&socket, &abstract_name(&name)?)?;
        Ok(Self { _socket: socket })
    }
}

impl LocalMedium {
    pub(super) fn open(place: InterfaceLocation, address: PhysicalId) -> Result<Self, Errno> {
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
            incoming: Vec::new(),
            turn: 0,
            leaving: Vec::new(),
            lost: Vec::new(),
        })
    }

    fn way(&mut self, peer: PhysicalId) -> Result<&mut LocalConnection, Errno> {
        if !self.peers.contains_key(&peer) {
            let socket = datagrams()?;
            rustix::net::connect(&socket, &abstract_name(&self.place.name(peer))?)?;
            let way = LocalConnection {
                socket: Arc::new(socket),
                outgoing: None,
            };
            self.peers.insert(peer, way);
        }
        self.peers.get_mut(&peer).ok_or(Errno::NOTCONN)
    }

    /// Returns true if the peer has this process's ring. Creates the ring and passes it to the peer if necessary.
    fn is_open(&mut self, peer: PhysicalId) -> Result<bool, Errno> {
        let hello = prefix(self.address);
        let LocalConnection { socket, outgoing } = self.way(peer)?;
        let out = match outgoing {
            Some(out) => out,
            None => {
                let (words, file) = MappedWords::create(RING_WORDS)?;
                let ring = PacketProducer::new(words);
                let file = Some(file);
                outgoing.insert(LocalOutRing { ring, file })
            }
        };
        let Some(file) = &out.file else {
            return Ok(true);
        };
        match give(socket, &hello, Some(file)) {
            Ok(()) => {
                out.file = None;
                self.full.remove(&peer);
                Ok(true)
            }
            Err(Errno::AGAIN) => {
                self.full.insert(peer);
                Ok(false)
            }
            Err(gone) => Err(gone),
        }
    }

    /// Wakes a peer. A peer whose socket is full wakes anyway.
    fn ring_bell(&mut self, peer: PhysicalId) {
        let rung = self.way(peer).and_then(|way| give(&way.socket, &[], None));
        if rung.is_err_and(|why| why != Errno::AGAIN) {
            self.lose(peer);
        }
    }

    fn lose(&mut self, peer: PhysicalId) {
        let way = self.peers.remove(&peer);
        self.full.remove(&peer);
        if !self.is_losing(peer) {
            let out = way.and_then(|way| way.outgoing);
            let unmet = out.is_none_or(|out| out.file.is_some());
            self.leaving.push(DyingPeer { peer, unmet });
        }
    }

    /// Returns true if the peer is dead but [`PacketMedium::next_lost`] has not reported it yet.
    fn is_losing(&self, peer: PhysicalId) -> bool {
        self.leaving.iter().any(|one| one.peer == peer) || self.lost.contains(&peer)
    }

    /// Moves dead peers to the list to report if `is_over` returns true for them.
    fn let_go(&mut self, is_over: impl Fn(&mut Self, &DyingPeer) -> bool) {
        for one in std::mem::take(&mut self.leaving) {
            if is_over(self, &one) {
                self.lost.push(one.peer);
            } else {
                self.leaving.push(one);
            }
        }
    }

    fn has_packets_of(&self, peer: PhysicalId) -> bool {
        let mut rings = self.incoming.iter().filter(|one| one.from == peer);
        rings.any(|one| !one.ring.is_empty())
    }

    /// Takes one message from the socket. Returns false if there is none.
    fn take_hello(&mut self) -> Result<bool, Errno> {
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; PREFIX_LEN];
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match rustix::net::recvmsg(&*self.socket, &mut parts, &mut control, flags) {
            Ok(received) => received.bytes,
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => return Ok(true),
            Err(why) => return Err(why),
        };
        let (mut file, mut is_ours) = (None, false);
        for message in control.drain() {
            match message {
                RecvAncillaryMessage::ScmRights(mut files) => file = files.next(),
                RecvAncillaryMessage::ScmCredentials(credentials) => {
                    is_ours = credentials.uid.as_raw() == self.uid
                }
                _ => {}
            }
        }
        // Ignore messages of other users, and malformed ones.
        let sender = sender(&bytes).filter(|_| is_ours && received == PREFIX_LEN);
        if let (Some(from), Some(file)) = (sender, file)
            && let Ok(words) = MappedWords::open(file.as_fd(), RING_WORDS)
        {
            self.welcome(from, PacketConsumer::new(words));
        }
        Ok(true)
    }

    /// Accepts a peer's ring.
    ///
    /// A second ring from an address comes from a new process, or from a new interface of the old one, so operations to its
    /// predecessor are lost.
    fn welcome(&mut self, from: PhysicalId, ring: PacketConsumer) {
        let known = self.incoming.iter().position(|one| one.from == from);
        let incoming = LocalInRing { from, ring };
        match known {
            None => self.incoming.push(incoming),
            Some(at) => {
                self.incoming[at] = incoming;
                if self.peers.contains_key(&from) {
                    self.ring_bell(from);
                }
                self.let_go(|_, one| one.peer == from);
            }
        }
    }
}

impl PacketMedium for LocalMedium {
    fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    fn full(&self) -> Vec<Arc<OwnedFd>> {
        let ways = self.full.iter().filter_map(|peer| self.peers.get(peer));
        ways.map(|way| Arc::clone(&way.socket)).collect()
    }

    fn flush(&mut self, _now: u64) {
        if self.full.is_empty() {
            return;
        }
        for peer in std::mem::take(&mut self.full) {
            if self.is_open(peer).is_err() {
                self.lose(peer);
            }
        }
    }

    fn drain_socket(&mut self) {
        // An error of this process's socket is harmless: a persistent one returns with the next message.
        while self.take_hello() == Ok(true) {}
    }

    fn receive(&mut self, _now: u64, into: &mut Vec<u8>) -> Option<PhysicalId> {
        for _ in 0..self.incoming.len() {
            self.turn = (self.turn + 1) % self.incoming.len().max(1);
            let LocalInRing { from, ring } = self.incoming.get_mut(self.turn)?;
            let from = *from;
            if self.lost.contains(&from) {
                continue;
            }
            let taken = ring.pop(into, PACKET_LEN_MAX);
            if ring.owes_room() {
                self.ring_bell(from);
            }
            match taken {
                Ok(true) => return Some(from),
                Ok(false) => {}
                Err(PacketRingError) => {
                    self.incoming.remove(self.turn);
                    self.lose(from);
                }
            }
        }
        None
    }

    fn arm(&mut self) -> bool {
        self.incoming.iter().for_each(|one| one.ring.arm());
        self.incoming.iter().any(|one| !one.ring.is_empty())
    }

    fn disarm(&mut self) {
        self.incoming.iter().for_each(|one| one.ring.disarm());
    }

    fn probe(&mut self, _now: u64, peer: PhysicalId) {
        self.ring_bell(peer);
    }

    fn next_lost(&mut self) -> Option<PhysicalId> {
        if !self.leaving.is_empty() {
            // The peer may have sent its first packets just before, or may have started only now. Reporting it lost would fail
            // the operations that such packets belong to.
            self.drain_socket();
            self.let_go(|this, one| {
                !this.has_packets_of(one.peer) || one.unmet && this.way(one.peer).is_ok()
            });
        }
        self.lost.pop()
    }

    fn deadline(&self) -> Option<u64> {
        None
    }

    /// Packets in a ring need no resending: the peer owns them.
    fn owes(&self) -> bool {
        false
    }

    fn has_room(&mut self, peer: PhysicalId) -> bool {
        if self.is_losing(peer) {
            return false;
        }
        match self.is_open(peer) {
            Ok(true) => {
                let way = self.peers.get_mut(&peer);
                let Some(out) = way.and_then(|way| way.outgoing.as_mut()) else {
                    return false;
                };
                if !out.ring.is_left() {
                    return out.ring.has_room(PACKET_LEN_MAX);
                }
                // Nothing is in flight to the dead peer yet, and a successor may already be there.
                self.lose(peer);
                false
            }
            Ok(false) => false,
            // The peer does not exist, or too many descriptors are open. Either way it cannot be reached.
            Err(_) => {
                self.lose(peer);
                false
            }
        }
    }

    fn send(&mut self, _now: u64, peer: PhysicalId, packet: SoftPacket<'_>) {
        let way = self.peers.get_mut(&peer);
        let Some(out) = way.and_then(|way| way.outgoing.as_mut()) else {
            return;
        };
        if out.ring.push([packet.head, packet.payload]) {
            self.ring_bell(peer);
        }
    }
}

impl Drop for LocalMedium {
    /// Marks all rings, so that later senders learn that this interface has ended.
    fn drop(&mut self) {
        // After the shutdown no further ring can arrive, so all rings get the mark.
        let _shut = rustix::net::shutdown(&*self.socket, Shutdown::Read);
        self.drain_socket();
        self.incoming.iter().for_each(|one| one.ring.leave());
    }
}

impl InterfaceLocation {
    fn rail_name(&self) -> String {
        format!("ripstop-portals/{}/{}", self.network, self.rail)
    }

    fn name(&self, address: PhysicalId) -> String {
        let PhysicalId { nid, pid } = address;
        format!("{}/{}/{nid}/{pid}", self.rail_name(), self.kind)
    }
}

/// Sends bytes, with a file if there is one.
fn give(socket: &OwnedFd, bytes: &[u8], file: Option<&OwnedFd>) -> Result<(), Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let files = file.map(|file| [file.as_fd()]);
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(files) = &files {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            // Both limits are temporary: readers free the memory of datagrams, and the files in flight.
            Err(Errno::NOBUFS | Errno::TOOMANYREFS) => return Err(Errno::AGAIN),
            Err(why) => return Err(why),
        }
    }
}

fn datagrams() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

fn abstract_name(name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

fn prefix(address: PhysicalId) -> [u8; PREFIX_LEN] {
    let mut prefix = [0; PREFIX_LEN];
    prefix[..8].copy_from_slice(&MAGIC);
    prefix[8..12].copy_from_slice(&address.nid.to_le_bytes());
    prefix[12..].copy_from_slice(&address.pid.to_le_bytes());
    prefix
}

fn sender(prefix: &[u8; PREFIX_LEN]) -> Option<PhysicalId> {
    let word = |at: usize| prefix[at..].first_chunk().copied().map(u32::from_le_bytes);
    let address = PhysicalId {
        nid: word(8)?,
        pid: word(12)?,
    };
    prefix.starts_with(&MAGIC).then_some(address)
}

/// The last byte is the version of the format that follows, and of the rings.
const MAGIC: [u8; 8] = *b"RIPSTPL\x02";
const PREFIX_LEN: usize = 16;

#[cfg(test)]
mod tests;
