//! How packets get from one process to another: in order, each once, or the peer is lost.
//!
//! `local` is memory shared by two processes of a machine. `udp` is datagrams between machines, over which `conversation`
//! makes order out of what `faults` and networks do. A [`Port`] is an interface's way to all others over one of them, no faster
//! than its rail is said to be.

mod conversation;
mod cut;
mod faults;
mod local;
mod ring;
mod shared;
mod udp;

use std::{fmt, net::Ipv4Addr, os::fd::OwnedFd, sync::Arc};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
    time::{ClockId, clock_gettime},
};

pub(crate) use self::udp::PID_MAX;
use self::{cut::Cut, local::Local, udp::Udp};
pub use self::{faults::Faults, local::Reservation};
use crate::{
    event::Address,
    interface::{Link, Packet},
    packet::BODY_LEN,
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

/// What packets travel over.
#[derive(Clone, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct Wires {
    /// Shared memory, or what else.
    pub medium: Medium,
    /// Bytes per second that leave an interface at most.
    pub rate: Option<u64>,
    /// Bytes that leave an interface before it is cut off, as if somebody had pulled its cable.
    pub cut_after: Option<u64>,
}

/// What carries packets.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Medium {
    /// Memory that processes of one machine share.
    #[default]
    Shared,
    /// Datagrams between machines.
    Udp {
        /// The own address there.
        host: Ipv4Addr,
        /// What is to go wrong.
        faults: Faults,
    },
}

impl Wires {
    /// Payload bytes of a packet.
    #[must_use]
    pub const fn packet_max(&self) -> usize {
        match self.medium {
            Medium::Shared => ring::PACKET_LEN_MAX - BODY_LEN,
            Medium::Udp { .. } => udp::PAYLOAD_MAX,
        }
    }
}

/// A medium's end. Times are in nanoseconds of [`now`].
trait Wire: fmt::Debug + Send {
    /// What is readable when somebody has to [`attend`](Self::attend) or [`receive`](Self::receive).
    fn socket(&self) -> Arc<OwnedFd>;
    /// What will be writable when a peer that was full has room.
    fn full(&self) -> Vec<Arc<OwnedFd>>;
    /// Does what is due by now.
    fn flush(&mut self, now: u64);
    /// The socket was readable: takes from it what is no packet.
    fn attend(&mut self);
    /// Takes the next packet, if one is there, and says whose it is.
    fn receive(&mut self, now: u64, into: &mut Vec<u8>) -> Option<Address>;
    /// Asks that the socket be readable when a packet comes. True when one has come.
    fn arm(&mut self) -> bool;
    /// Somebody will look in a moment: no need to be told.
    fn disarm(&mut self);
    /// Finds out whether `peer` is there.
    fn probe(&mut self, now: u64, peer: Address);
    /// A peer that was found to be gone.
    fn next_lost(&mut self) -> Option<Address>;
    /// When to [`flush`](Self::flush) again, whatever happens until then.
    fn deadline(&self) -> Option<u64>;
    /// Whether something was sent that may have to be sent again.
    fn owes(&self) -> bool;
    /// See [`Link`].
    fn has_room(&mut self, peer: Address) -> bool;
    /// See [`Link`].
    fn send(&mut self, now: u64, peer: Address, packet: Packet<'_>);
}

/// An interface's way to all others.
#[derive(Debug)]
pub struct Port {
    wire: Box<dyn Wire>,
    rate: Option<Rate>,
    cut: Option<Doom>,
    /// Lost, but what was under way to them has not been failed yet: they get nothing that would be failed with it.
    mourned: Vec<Address>,
    now: u64,
}

/// What a rail can carry.
#[derive(Debug)]
struct Rate {
    bytes_per_second: u64,
    /// When all that was sent would be out.
    free_at: u64,
    /// Somebody was told to wait.
    waited: bool,
}

/// When an interface is cut off, and what it sleeps on from then on.
#[derive(Debug)]
struct Doom {
    bytes_left: u64,
    silence: OwnedFd,
}

impl Port {
    /// Takes an address, and listens there.
    ///
    /// # Errors
    /// `EADDRINUSE` when the address is taken, or what else the system said.
    pub fn open(place: Place, address: Address, wires: &Wires) -> Result<Self, Errno> {
        let wire: Box<dyn Wire> = match &wires.medium {
            Medium::Shared => Box::new(Local::open(place, address)?),
            Medium::Udp { host, faults } => {
                Box::new(Udp::open(&place, address, *host, faults.clone(), now())?)
            }
        };
        let rate = wires.rate.map(|bytes_per_second| Rate {
            bytes_per_second: bytes_per_second.max(1),
            free_at: 0,
            waited: false,
        });
        let cut = wires.cut_after.map(|bytes_left| {
            let silence = eventfd(0, EventfdFlags::CLOEXEC)?;
            Ok(Doom {
                bytes_left,
                silence,
            })
        });
        Ok(Self {
            wire,
            rate,
            cut: cut.transpose()?,
            mourned: Vec::new(),
            now: now(),
        })
    }

    /// What is readable when packets are there, or something about peers.
    #[must_use]
    pub fn socket(&self) -> Arc<OwnedFd> {
        self.wire.socket()
    }

    /// What will be writable when a peer that was full has room.
    #[must_use]
    pub fn full(&self) -> Vec<Arc<OwnedFd>> {
        self.wire.full()
    }

    /// Looks at the clock.
    pub fn tick(&mut self) {
        self.now = now();
    }

    /// Sends what is due.
    pub fn flush(&mut self) {
        self.wire.flush(self.now);
    }

    /// The socket was readable.
    pub fn attend(&mut self) {
        self.wire.attend();
    }

    /// Takes the next packet, if one is there, and says whose it is.
    pub fn receive(&mut self, into: &mut Vec<u8>) -> Option<Address> {
        self.wire.receive(self.now, into)
    }

    /// Asks that the socket be readable when a packet comes. True when one has come.
    pub fn arm(&mut self) -> bool {
        self.wire.arm()
    }

    /// Somebody will look in a moment: no need to be told.
    pub fn disarm(&mut self) {
        self.wire.disarm();
    }

    /// Finds out whether `peer` is there.
    pub fn probe(&mut self, peer: Address) {
        self.wire.probe(self.now, peer);
    }

    /// A peer that was found to be gone.
    pub fn next_lost(&mut self) -> Option<Address> {
        self.wire.next_lost()
    }

    /// A lost peer, or its successor, gets nothing until [`Self::forget`].
    pub fn mourn(&mut self, peer: Address) {
        self.mourned.push(peer);
    }

    /// What was under way to a lost peer has been failed.
    pub fn forget(&mut self, peer: Address) {
        // It may have been found to be gone twice.
        if let Some(at) = self.mourned.iter().position(|one| *one == peer) {
            self.mourned.swap_remove(at);
        }
    }

    /// When [`Self::flush`] has something to do, whatever happens until then, in nanoseconds of [`Self::now`].
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        let rate = self.rate.as_ref().filter(|rate| rate.waited);
        // While half of what may leave at once is still on its way: the rail does not idle until its agent is awake.
        let rate = rate.map(|rate| rate.free_at.saturating_sub(BURST_NS / 2));
        let due = [self.wire.deadline(), rate];
        due.into_iter().flatten().min()
    }

    /// Whether something was sent that nobody would repeat if this ended now.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.wire.owes()
    }

    /// So many bytes leave: at the end of its life they, and all others, are gone.
    fn age(&mut self, bytes: u64) {
        let is_over = |doom: &mut Doom| {
            doom.bytes_left = doom.bytes_left.saturating_sub(bytes);
            doom.bytes_left == 0
        };
        if let Some(doom) = self.cut.take_if(is_over) {
            self.wire = Box::new(Cut::new(doom.silence));
        }
    }

    /// When it looked at the clock last, in nanoseconds of a clock that only goes forward.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }
}

impl Link for Port {
    fn has_room(&mut self, peer: Address) -> bool {
        if let Some(rate) = &mut self.rate {
            rate.waited = rate.free_at > self.now + BURST_NS;
            if rate.waited {
                return false;
            }
        }
        !self.mourned.contains(&peer) && self.wire.has_room(peer)
    }

    fn send(&mut self, peer: Address, packet: Packet<'_>) {
        let bytes = (packet.head.len() + packet.payload.len()) as u64;
        self.age(bytes);
        if let Some(rate) = &mut self.rate {
            let lasts = bytes.saturating_mul(1_000_000_000) / rate.bytes_per_second;
            rate.free_at = rate.free_at.max(self.now) + lasts;
        }
        self.wire.send(self.now, peer, packet);
    }
}

/// Nanoseconds of a clock that only goes forward.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// What leaves at once from a rail with a rate: short messages do not wait for the clock, and a sleeper that is late by this much
/// does not make the rail slower.
const BURST_NS: u64 = 200_000;

#[cfg(test)]
mod tests {
    use super::{Address, Link, Place, Port, Wires};

    #[test]
    fn a_lost_peer_gets_nothing_until_it_is_forgotten_as_often_as_it_was_lost() {
        let place = Place {
            network: format!("test-mourned-{}", std::process::id()),
            rail: 0,
            kind: 0,
        };
        let open = |pid| {
            let address = Address { nid: 1, pid };
            let port = Port::open(place.clone(), address, &Wires::default());
            (port.expect("a free address"), address)
        };
        let ((mut port, _), (_peer, there)) = (open(1), open(2));
        assert!(port.has_room(there));
        port.mourn(there);
        port.mourn(there);
        port.forget(there);
        assert!(!port.has_room(there));
        port.forget(there);
        assert!(port.has_room(there));
    }
}
