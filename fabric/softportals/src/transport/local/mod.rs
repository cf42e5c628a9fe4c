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
mod tests;
