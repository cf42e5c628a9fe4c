//! Packets between the processes of one machine, through memory that both map.
//!
//! Every interface has a socket under an abstract name, which ends with the process: nothing is left behind, and a peer that is
//! gone refuses. Who sends to a peer for the first time makes a ring, and gives it to the peer through that socket; the kernel
//! says whose process it is from, and those of other users are not taken. From then on the socket is a bell for who sleeps.

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
    Place, Wire,
    ring::{Broken, Consumer, PACKET_LEN_MAX, Producer, RING_WORDS},
    shared::Shared,
};
use crate::{event::Address, interface::Packet};

/// The right to a process id on a rail of this machine, as long as it lives.
#[derive(Debug)]
pub struct Reservation {
    _socket: OwnedFd,
}

/// An end of shared memory.
#[derive(Debug)]
pub(super) struct Local {
    place: Place,
    address: Address,
    uid: u32,
    socket: Arc<OwnedFd>,
    peers: BTreeMap<Address, Way>,
    /// Those who have not got our ring yet, because the kernel did not take it.
    full: BTreeSet<Address>,
    incoming: Vec<Incoming>,
    /// Whose ring is next.
    turn: usize,
    /// Those who are gone, but what they had sent before has not been taken yet.
    leaving: Vec<Leaving>,
    /// Those who are gone: nothing is taken from successors before that is known.
    lost: Vec<Address>,
}

#[derive(Debug)]
struct Leaving {
    peer: Address,
    /// Nothing was sent there. What has come from there since may be from one who was not there yet.
    unmet: bool,
}

/// The way to one peer.
#[derive(Debug)]
struct Way {
    socket: Arc<OwnedFd>,
    outgoing: Option<Outgoing>,
}

#[derive(Debug)]
struct Outgoing {
    ring: Producer,
    /// What the peer has not got yet.
    file: Option<OwnedFd>,
}

#[derive(Debug)]
struct Incoming {
    from: Address,
    ring: Consumer,
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

impl Local {
    pub(super) fn open(place: Place, address: Address) -> Result<Self, Errno> {
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

    fn way(&mut self, peer: Address) -> Result<&mut Way, Errno> {
        if !self.peers.contains_key(&peer) {
            let socket = datagrams()?;
            rustix::net::connect(&socket, &abstract_name(&self.place.name(peer))?)?;
            let way = Way {
                socket: Arc::new(socket),
                outgoing: None,
            };
            self.peers.insert(peer, way);
        }
        self.peers.get_mut(&peer).ok_or(Errno::NOTCONN)
    }

    /// Whether the peer has our ring, which is made and given to it if need be.
    fn is_open(&mut self, peer: Address) -> Result<bool, Errno> {
        let hello = prefix(self.address);
        let Way { socket, outgoing } = self.way(peer)?;
        let out = match outgoing {
            Some(out) => out,
            None => {
                let (words, file) = Shared::create(RING_WORDS)?;
                let ring = Producer::new(words);
                let file = Some(file);
                outgoing.insert(Outgoing { ring, file })
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

    /// Wakes a peer. One whose socket is full wakes without it.
    fn ring_bell(&mut self, peer: Address) {
        let rung = self.way(peer).and_then(|way| give(&way.socket, &[], None));
        if rung.is_err_and(|why| why != Errno::AGAIN) {
            self.lose(peer);
        }
    }

    fn lose(&mut self, peer: Address) {
        let way = self.peers.remove(&peer);
        self.full.remove(&peer);
        if !self.is_losing(peer) {
            let out = way.and_then(|way| way.outgoing);
            let unmet = out.is_none_or(|out| out.file.is_some());
            self.leaving.push(Leaving { peer, unmet });
        }
    }

    /// Whether [`Wire::next_lost`] is still to tell of it.
    fn is_losing(&self, peer: Address) -> bool {
        self.leaving.iter().any(|one| one.peer == peer) || self.lost.contains(&peer)
    }

    /// Those who are gone for good, when `is_over` says so of them.
    fn let_go(&mut self, is_over: impl Fn(&mut Self, &Leaving) -> bool) {
        for one in std::mem::take(&mut self.leaving) {
            if is_over(self, &one) {
                self.lost.push(one.peer);
            } else {
                self.leaving.push(one);
            }
        }
    }

    fn has_packets_of(&self, peer: Address) -> bool {
        let mut rings = self.incoming.iter().filter(|one| one.from == peer);
        rings.any(|one| !one.ring.is_empty())
    }

    /// Takes one message of the socket. False when none is there.
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
                RecvAncillaryMessage::ScmCredentials(who) => is_ours = who.uid.as_raw() == self.uid,
                _ => {}
            }
        }
        // Somebody else's, or nonsense: as if it had not come.
        let sender = sender(&bytes).filter(|_| is_ours && received == PREFIX_LEN);
        if let (Some(from), Some(file)) = (sender, file)
            && let Ok(words) = Shared::open(file.as_fd(), RING_WORDS)
        {
            self.welcome(from, Consumer::new(words));
        }
        Ok(true)
    }

    /// A peer with a new ring is a new process, or a new interface of the old one: what we had to its predecessor is lost.
    fn welcome(&mut self, from: Address, ring: Consumer) {
        let known = self.incoming.iter().position(|one| one.from == from);
        let incoming = Incoming { from, ring };
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

impl Wire for Local {
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

    fn attend(&mut self) {
        // An error of the own socket comes again with the next message, or it was none of ours.
        while self.take_hello() == Ok(true) {}
    }

    fn receive(&mut self, _now: u64, into: &mut Vec<u8>) -> Option<Address> {
        for _ in 0..self.incoming.len() {
            self.turn = (self.turn + 1) % self.incoming.len().max(1);
            let Incoming { from, ring } = self.incoming.get_mut(self.turn)?;
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
                Err(Broken) => {
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

    fn probe(&mut self, _now: u64, peer: Address) {
        self.ring_bell(peer);
    }

    fn next_lost(&mut self) -> Option<Address> {
        if !self.leaving.is_empty() {
            // It may have sent its first packets just before, or has come only now: those packets then wait for answers, which
            // would end with it.
            self.attend();
            self.let_go(|this, one| {
                !this.has_packets_of(one.peer) || one.unmet && this.way(one.peer).is_ok()
            });
        }
        self.lost.pop()
    }

    fn deadline(&self) -> Option<u64> {
        None
    }

    /// What is in a ring is the peer's.
    fn owes(&self) -> bool {
        false
    }

    fn has_room(&mut self, peer: Address) -> bool {
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
                // Before anything is written for nobody: a successor may be there.
                self.lose(peer);
                false
            }
            Ok(false) => false,
            // Nobody is there, or too many descriptors are open: either way this peer cannot be reached.
            Err(_) => {
                self.lose(peer);
                false
            }
        }
    }

    fn send(&mut self, _now: u64, peer: Address, packet: Packet<'_>) {
        let way = self.peers.get_mut(&peer);
        let Some(out) = way.and_then(|way| way.outgoing.as_mut()) else {
            return;
        };
        if out.ring.push([packet.head, packet.payload]) {
            self.ring_bell(peer);
        }
    }
}

impl Drop for Local {
    /// Whoever writes to us from now on learns that nobody is there.
    fn drop(&mut self) {
        // No ring comes behind those that are left here.
        let _shut = rustix::net::shutdown(&*self.socket, Shutdown::Read);
        self.attend();
        self.incoming.iter().for_each(|one| one.ring.leave());
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

/// Sends bytes, and a file if there is one.
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
            // Memory for datagrams comes back as readers read, and so do the files of all that are under way.
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

fn prefix(address: Address) -> [u8; PREFIX_LEN] {
    let mut prefix = [0; PREFIX_LEN];
    prefix[..8].copy_from_slice(&MAGIC);
    prefix[8..12].copy_from_slice(&address.nid.to_le_bytes());
    prefix[12..].copy_from_slice(&address.pid.to_le_bytes());
    prefix
}

fn sender(prefix: &[u8; PREFIX_LEN]) -> Option<Address> {
    let word = |at: usize| prefix[at..].first_chunk().copied().map(u32::from_le_bytes);
    let address = Address {
        nid: word(8)?,
        pid: word(12)?,
    };
    prefix.starts_with(&MAGIC).then_some(address)
}

/// The last byte is the version of what follows, and of the rings.
const MAGIC: [u8; 8] = *b"RIPSTPL\x02";
const PREFIX_LEN: usize = 16;

#[cfg(test)]
mod tests {
    use super::{Address, Errno, Local, Packet, Place, Reservation, Wire};

    fn place(test: &str) -> Place {
        Place {
            network: format!("test-{test}-{}", std::process::id()),
            rail: 0,
            kind: 0,
        }
    }

    fn port(place: &Place, pid: u32) -> Local {
        Local::open(place.clone(), Address { nid: 1, pid }).expect("a free address")
    }

    fn packet(payload: &[u8]) -> Packet<'_> {
        Packet {
            head: b"headhead",
            payload,
        }
    }

    fn receive(port: &mut Local) -> Option<(Address, Vec<u8>)> {
        let mut into = Vec::new();
        port.attend();
        port.receive(0, &mut into).map(|from| (from, into))
    }

    #[test]
    fn packets_arrive_in_order_with_their_sender() {
        let place = place("order");
        let (mut a, mut b) = (port(&place, 1), port(&place, 2));
        for byte in 0..5 {
            assert!(a.has_room(b.address));
            a.send(0, b.address, packet(&[byte]));
        }
        for byte in 0..5 {
            let (from, bytes) = receive(&mut b).expect("a packet");
            assert_eq!(from, a.address);
            assert_eq!(bytes, [b"headhead", &[byte][..]].concat());
        }
        assert_eq!(receive(&mut b), None);
    }

    #[test]
    fn what_a_peer_sent_before_it_ended_comes_before_its_end() {
        let place = place("end");
        let (mut a, mut b) = (port(&place, 1), port(&place, 2));
        let gone = b.address;
        for byte in 0..2 {
            assert!(b.has_room(a.address));
            b.send(0, a.address, packet(&[byte]));
        }
        assert!(a.has_room(gone));
        drop(b);
        a.probe(0, gone);
        for byte in 0..2 {
            assert_eq!(a.next_lost(), None);
            let (_, bytes) = receive(&mut a).expect("a packet");
            assert_eq!(bytes[8..], [byte]);
        }
        assert_eq!(a.next_lost(), Some(gone));
        assert_eq!(a.next_lost(), None);
    }

    #[test]
    fn a_peer_that_does_not_read_is_full_and_loses_nothing() {
        let place = place("full");
        let (mut a, mut b) = (port(&place, 1), port(&place, 2));
        let mut sent = 0_u32;
        while a.has_room(b.address) {
            a.send(0, b.address, packet(&sent.to_le_bytes()));
            sent += 1;
        }
        for number in 0..sent {
            let (_, bytes) = receive(&mut b).expect("a packet");
            assert_eq!(bytes[8..], number.to_le_bytes());
        }
        assert!(a.has_room(b.address));
        assert_eq!(a.next_lost(), None);
    }

    #[test]
    fn an_armed_port_is_rung_and_others_are_not() {
        let place = place("bell");
        let (mut a, mut b) = (port(&place, 1), port(&place, 2));
        assert!(a.has_room(b.address));
        a.send(0, b.address, packet(b"first"));
        assert!(receive(&mut b).is_some());
        a.send(0, b.address, packet(b"x"));
        assert_eq!(b.take_hello(), Ok(false), "nobody had asked");
        assert!(b.arm(), "something is there already");
        assert!(receive(&mut b).is_some() && !b.arm());
        a.send(0, b.address, packet(b"y"));
        a.send(0, b.address, packet(b"z"));
        assert_eq!((b.take_hello(), b.take_hello()), (Ok(true), Ok(false)));
    }

    #[test]
    fn an_address_is_taken_once_and_free_after_its_end() {
        let place = place("taken");
        let first = (port(&place, 1), Reservation::take(&place, 1).expect("free"));
        let again = Local::open(place.clone(), first.0.address);
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
        let mut b = port(&place, 2);
        let (gone, never) = (b.address, Address { nid: 1, pid: 3 });
        assert!(a.has_room(gone));
        a.send(0, gone, packet(b"taken"));
        assert!(receive(&mut b).is_some());
        drop(b);
        a.send(0, gone, packet(b"for nobody"));
        assert_eq!(a.next_lost(), Some(gone), "its end has armed the ring");
        assert!(!a.has_room(never));
        assert_eq!(a.next_lost(), Some(never));
    }

    #[test]
    fn who_has_left_is_lost_before_anything_is_written_for_it() {
        let place = place("left");
        let (mut a, mut b) = (port(&place, 1), port(&place, 2));
        let there = b.address;
        assert!(a.has_room(there));
        a.send(0, there, packet(b"taken"));
        assert!(receive(&mut b).is_some());
        drop(b);
        let mut b = port(&place, 2);
        assert!(!a.has_room(there), "nobody would read it");
        assert_eq!(a.next_lost(), Some(there));
        assert!(a.has_room(there));
        a.send(0, there, packet(b"new"));
        let (_, bytes) = receive(&mut b).expect("what was meant for it");
        assert_eq!(&bytes[8..], b"new");
        assert_eq!(a.next_lost(), None);
    }

    #[test]
    fn who_was_not_there_yet_is_lost_before_anything_of_its_is_taken() {
        let place = place("early");
        let mut a = port(&place, 1);
        let there = Address { nid: 1, pid: 2 };
        assert!(!a.has_room(there), "nobody is there");
        let mut b = port(&place, 2);
        assert!(b.has_room(a.address));
        b.send(0, a.address, packet(b"first"));
        assert_eq!(a.next_lost(), Some(there));
        assert!(receive(&mut a).is_some());
        assert!(a.has_room(there));
        assert_eq!(a.next_lost(), None);
    }

    #[test]
    fn what_one_sent_who_is_gone_is_taken_before_it_is_lost() {
        let place = place("late");
        let (mut a, mut b) = (port(&place, 1), port(&place, 2));
        let there = b.address;
        assert!(b.has_room(a.address));
        b.send(0, a.address, packet(b"last"));
        drop(b);
        assert!(!a.has_room(there), "nobody is there");
        assert_eq!(a.next_lost(), None);
        assert!(receive(&mut a).is_some());
        assert_eq!(a.next_lost(), Some(there));
    }

    #[test]
    fn who_ends_without_having_looked_at_a_ring_has_left_it() {
        let place = place("unread");
        let (mut a, b) = (port(&place, 1), port(&place, 2));
        let there = b.address;
        assert!(a.has_room(there));
        drop(b);
        assert!(!a.has_room(there));
        assert_eq!(a.next_lost(), Some(there));
    }

    #[test]
    fn a_successor_is_another_peer() {
        let place = place("again");
        let (mut a, mut b) = (port(&place, 1), port(&place, 2));
        let there = b.address;
        assert!(a.has_room(there) && b.has_room(a.address));
        b.send(0, a.address, packet(b"old"));
        assert!(receive(&mut a).is_some());
        drop(b);
        let mut b = port(&place, 2);
        assert!(b.has_room(a.address));
        b.send(0, a.address, packet(b"new"));
        assert_eq!(receive(&mut a), None, "not before that is known");
        assert!(!a.has_room(there), "it would be lost with the rest");
        assert_eq!(
            a.next_lost(),
            Some(there),
            "what was under way to the first is lost"
        );
        assert!(receive(&mut a).is_some());
        assert!(a.has_room(there));
        assert_eq!(a.next_lost(), None);
    }
}
