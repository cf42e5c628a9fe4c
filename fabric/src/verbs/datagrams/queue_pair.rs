//! A queue pair for datagrams: connection messages and datagram messages. Datagrams may be lost, and are then sent again by their
//! users.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    sync::Arc,
};

use super::super::{
    abi::{IbvWc, WC_SUCCESS},
    connect_wire,
    objects::{
        DatagramBytes, MrAccess, PortRoute, VerbsAh, VerbsCq, VerbsMr, VerbsPd, VerbsQp, WorkOp,
        WorkRequest,
    },
};
use crate::{driver::WorldRank, lanes::RAILS_MAX, memory::MemoryRegion};

/// A queue pair for datagrams, and the routes to peers.
#[derive(Debug)]
pub(in super::super) struct DatagramQp {
    pub(in super::super) qp: VerbsQp,
    mr: VerbsMr,
    memory: MemoryRegion,
    ways: BTreeMap<WorldRank, (PortRoute, VerbsAh)>,
    /// Address handles of former routes, which datagrams in flight may still use.
    left: Vec<VerbsAh>,
    /// Bytes of the longest datagram, and of a buffer that it arrives in.
    longest: usize,
    buffer_len: usize,
    /// Number of datagrams sent so far. Datagrams that the device does not copy lie behind the receive buffers.
    sent: usize,
    /// Datagrams not known to have left, and those of them that no completion will report.
    in_flight: u32,
    unsignaled: u32,
    /// True while closing: each datagram asks for a completion.
    pub(in super::super) ends: bool,
    /// Receive buffers that the device refused or gave back.
    missing: Vec<u64>,
    /// Port, key and first packet number that the queue pair was opened with.
    opened: (u8, u32, u32),
    /// True after the device gave up the queue pair, as it may if something is sent while the port is down. All requests come
    /// back.
    broken: bool,
    /// True once a send has completed with an error; from then on unsignaled sends complete too.
    flushes: bool,
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct DatagramDestination {
    pub(in super::super) peer: WorldRank,
    pub(in super::super) route: PortRoute,
    pub(in super::super) qpn: u32,
    pub(in super::super) qkey: u32,
}

impl DatagramQp {
    /// Makes the queue pair, for connection messages and for datagrams of up to `longest` bytes.
    pub(in super::super) fn new(
        pd: &Arc<VerbsPd>,
        queues: [&Arc<VerbsCq>; 2],
        longest: usize,
    ) -> io::Result<Self> {
        let longest = longest.max(WORD_MAX);
        let buffer_len = (ADDRESS_LEN + longest).next_multiple_of(64);
        let len = RECEIVES as usize * buffer_len + SENDS as usize * longest;
        let memory = MemoryRegion::anonymous(len)?;
        let mr = VerbsMr::new(pd, memory.range(), MrAccess::Write)?;
        let qp = VerbsQp::datagrams(pd, queues, SENDS, RECEIVES)?;
        let ways = BTreeMap::new();
        Ok(Self {
            qp,
            mr,
            memory,
            ways,
            left: Vec::new(),
            longest,
            buffer_len,
            sent: 0,
            in_flight: 0,
            unsignaled: 0,
            ends: false,
            missing: Vec::new(),
            opened: (0, 0, 0),
            broken: false,
            flushes: false,
        })
    }

    /// Opens the queue pair, and posts all its buffers.
    pub(in super::super) fn open(&mut self, port: u8, qkey: u32, psn: u32) -> io::Result<()> {
        self.opened = (port, qkey, psn);
        self.qp.open_datagrams(port, qkey, psn)?;
        (0..RECEIVES).try_for_each(|nth| self.offer(u64::from(nth)))
    }

    /// Makes all requests come back. Without this, a device may go on to receive after a failed send.
    fn give_up(&mut self) {
        if !std::mem::replace(&mut self.broken, true) {
            self.qp.abandon();
        }
    }

    /// Opens a broken queue pair again when all requests have come back, so that no completion is taken for that of a newer
    /// request. Datagrams sent meanwhile are lost, which the protocol allows.
    fn open_again(&mut self) {
        // Datagrams that left well before the device gave up may never be reported.
        let untold = if self.flushes { 0 } else { self.unsignaled };
        let all_back = self.in_flight <= untold && self.missing.len() == RECEIVES as usize;
        if !self.broken || !all_back {
            return;
        }
        let (port, qkey, psn) = self.opened;
        let reset = self.qp.forget_all();
        if reset
            .and_then(|()| self.qp.open_datagrams(port, qkey, psn))
            .is_ok()
        {
            (self.in_flight, self.unsignaled) = (0, 0);
            (self.broken, self.flushes) = (false, false);
            self.give_all();
        }
    }

    pub(in super::super) const fn has_room(&self) -> bool {
        self.in_flight < SENDS
    }

    /// Pretends that the queue is full and the device reports nothing.
    #[cfg(test)]
    pub(in super::super) const fn hang(&mut self) {
        self.in_flight = u32::MAX / 2;
    }

    pub(in super::super) const fn longest(&self) -> usize {
        self.longest
    }

    /// Returns true if every datagram that asks for a completion has left.
    pub(in super::super) const fn have_left(&self) -> bool {
        self.in_flight == self.unsignaled || self.broken
    }

    /// Sends bytes, or drops them if there is no room.
    pub(in super::super) fn send(
        &mut self,
        pd: &Arc<VerbsPd>,
        to: &DatagramDestination,
        bytes: &[u8],
    ) -> io::Result<()> {
        if !self.has_room() || bytes.len() > self.longest || self.broken {
            return Ok(());
        }
        let bytes = if bytes.len() <= self.qp.inline_max() {
            DatagramBytes::Inline(bytes)
        } else {
            // At most this many are in flight, and they leave in order, so this place is free.
            let buffers = RECEIVES as usize * self.buffer_len;
            let at = buffers + self.sent % SENDS as usize * self.longest;
            self.memory.write(at, bytes);
            DatagramBytes::From(self.mr.piece(at, bytes.len()))
        };
        let known = self.ways.get(&to.peer);
        if known.is_some_and(|(route, _)| *route != to.route) {
            self.leave_way(to.peer);
        }
        let (_, way) = match self.ways.entry(to.peer) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert((to.route, VerbsAh::new(pd, &to.route)?)),
        };
        let covers = self.unsignaled + 1;
        let signaled = covers >= SIGNAL_EVERY || self.ends;
        let (qpn, qkey) = (to.qpn, to.qkey);
        let what = WorkOp::Datagram {
            bytes,
            way,
            qpn,
            qkey,
        };
        self.qp.post(&[WorkRequest {
            id: u64::from(covers),
            op: what,
            signaled,
            solicited: true,
        }])?;
        self.sent += 1;
        self.in_flight += 1;
        self.unsignaled = if signaled { 0 } else { covers };
        Ok(())
    }

    /// Forgets the route to a peer, because it has changed.
    fn leave_way(&mut self, peer: WorldRank) {
        if self.in_flight == 0 {
            self.left.clear();
        }
        let left = self.ways.remove(&peer);
        self.left.extend(left.map(|(_, way)| way));
    }

    /// Handles a completion. A success covers the datagrams before it that asked for none; after a failure each has its own.
    pub(in super::super) fn handle_sent(&mut self, over: &IbvWc) {
        let covers = u32::try_from(over.wr_id).unwrap_or(u32::MAX);
        let covers = if self.flushes { 1 } else { covers };
        self.in_flight = self.in_flight.saturating_sub(covers);
        if over.status != WC_SUCCESS {
            self.flushes = true;
            self.give_up();
        }
        self.open_again();
    }

    /// Returns an arrived datagram without the sender's address before it, and posts its buffer again. Returns nothing if the
    /// device gave the buffer back.
    pub(in super::super) fn take(&mut self, completion: &IbvWc) -> Vec<u8> {
        if completion.status != WC_SUCCESS {
            self.missing.push(completion.wr_id);
            self.give_up();
            self.open_again();
            return Vec::new();
        }
        let bytes = self.read(completion);
        self.missing.push(completion.wr_id);
        self.give_all();
        bytes
    }

    fn read(&self, completion: &IbvWc) -> Vec<u8> {
        let len = (completion.byte_len as usize)
            .min(self.buffer_len)
            .saturating_sub(ADDRESS_LEN);
        let mut bytes = vec![0; len];
        self.memory
            .read(self.at(completion.wr_id) + ADDRESS_LEN, &mut bytes);
        bytes
    }

    /// Posts missing buffers again. If the device refuses one, it is offered with the next; until then one more datagram may be
    /// lost, which the protocol allows. A broken queue pair gets none, as it would give them back immediately.
    fn give_all(&mut self) {
        while !self.broken
            && let Some(id) = self.missing.pop()
        {
            if self.offer(id).is_err() {
                return self.missing.push(id);
            }
        }
        self.open_again();
    }

    fn offer(&self, id: u64) -> io::Result<()> {
        self.qp
            .receive(id, self.mr.piece(self.at(id), self.buffer_len))
    }

    fn at(&self, id: u64) -> usize {
        usize::try_from(id).unwrap_or(usize::MAX) % RECEIVES as usize * self.buffer_len
    }
}

/// Datagrams that may arrive between two turns before some are lost.
pub(in super::super) const RECEIVES: u32 = 256;
/// Datagrams that may be in flight.
pub(in super::super) const SENDS: u32 = 64;
const SIGNAL_EVERY: u32 = 16;

/// Bytes of the sender's address, which the device puts before the datagram.
const ADDRESS_LEN: usize = 40;
/// Bytes of the longest connection message, with lanes and their ports.
const WORD_MAX: usize = connect_wire::len_max(RAILS_MAX) + connect_wire::PORT_LEN;
