//! Words about connections, which travel as datagrams: they may be lost, and what they say is said again.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    sync::Arc,
};

use super::{
    abi::{Completion, WC_SUCCESS},
    greeting,
    objects::{Access, Ah, Cq, Mr, Pd, Qp, Route, What, Work},
    rail::RAILS_MAX,
};
use crate::memory::Region;

/// A queue pair for datagrams, and the ways to peers.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) qp: Qp,
    mr: Mr,
    memory: Region,
    ways: BTreeMap<u32, Ah>,
    /// Sent, and not known to have left.
    under_way: u32,
    unsignaled: u32,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Destination {
    pub(super) peer: u32,
    pub(super) route: Route,
    pub(super) qpn: u32,
    pub(super) qkey: u32,
}

impl Datagrams {
    pub(super) fn new(pd: &Arc<Pd>, queues: [&Arc<Cq>; 2]) -> io::Result<Self> {
        let memory = Region::anonymous(RECEIVES as usize * BUFFER_LEN)?;
        let mr = Mr::new(pd, memory.range(), Access::Write)?;
        let qp = Qp::datagrams(pd, queues, SENDS, RECEIVES)?;
        let ways = BTreeMap::new();
        Ok(Self {
            qp,
            mr,
            memory,
            ways,
            under_way: 0,
            unsignaled: 0,
        })
    }

    /// Opens the queue pair with all its buffers.
    pub(super) fn open(&self, port: u8, qkey: u32, psn: u32) -> io::Result<()> {
        self.qp.open_datagrams(port, qkey, psn)?;
        (0..RECEIVES).try_for_each(|nth| self.give(u64::from(nth)))
    }

    pub(super) const fn has_room(&self) -> bool {
        self.under_way < SENDS
    }

    /// Sends bytes, or loses them.
    pub(super) fn send(&mut self, pd: &Arc<Pd>, to: &Destination, bytes: &[u8]) -> io::Result<()> {
        if !self.has_room() || bytes.len() > DATA_MAX {
            return Ok(());
        }
        let way = match self.ways.entry(to.peer) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Ah::new(pd, &to.route)?),
        };
        let signaled = self.unsignaled + 1 >= SIGNAL_EVERY;
        let (qpn, qkey) = (to.qpn, to.qkey);
        let what = What::Datagram {
            bytes,
            way,
            qpn,
            qkey,
        };
        self.qp.post(&[Work {
            id: 0,
            what,
            signaled,
            solicited: true,
        }])?;
        self.under_way += 1;
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        Ok(())
    }

    /// What was sent has left.
    pub(super) fn handle_sent(&mut self) {
        self.under_way = self.under_way.saturating_sub(SIGNAL_EVERY);
    }

    /// What came, without the sender's address before it.
    pub(super) fn take(&self, came: &Completion) -> Vec<u8> {
        let len = (came.byte_len as usize)
            .min(BUFFER_LEN)
            .saturating_sub(ADDRESS_LEN);
        let mut bytes = vec![0; if came.status == WC_SUCCESS { len } else { 0 }];
        self.memory
            .read(self.at(came.wr_id) + ADDRESS_LEN, &mut bytes);
        bytes
    }

    /// Gives a buffer to the device again.
    pub(super) fn give(&self, id: u64) -> io::Result<()> {
        self.qp.receive(id, self.mr.piece(self.at(id), BUFFER_LEN))
    }

    fn at(&self, id: u64) -> usize {
        usize::try_from(id).unwrap_or(usize::MAX) % RECEIVES as usize * BUFFER_LEN
    }
}

/// Datagrams that may come between two turns, before some are lost.
pub(super) const RECEIVES: u32 = 256;
/// Datagrams that may be on their way out.
pub(super) const SENDS: u32 = 64;
const SIGNAL_EVERY: u32 = 16;

/// The device puts the sender's address before what came.
const ADDRESS_LEN: usize = 40;
/// The longest word with lanes and their ports.
const DATA_MAX: usize = greeting::len_max(RAILS_MAX);
const BUFFER_LEN: usize = 192;
const _: () = assert!(ADDRESS_LEN + DATA_MAX <= BUFFER_LEN, "no word is cut");
