//! Connecting all ranks at the start, without requests.
//!
//! Each rank makes a queue pair for each other one before it knows any of them, and lists them in its address
//! (`address_extension`). When it knows the addresses of the others, it connects each queue pair to the one that was made for it
//! there, and greets (`prewired` of `connect`). If one of two ranks has made none, they connect by datagrams.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use super::{
    address::VerbsAddress,
    address_extension::AddressExtension,
    connect_wire::LaneEnds,
    core::{VerbsCore, index},
    lane::{RemotePort, psns},
    objects::{VerbsCq, VerbsQp},
    parallel_setup::{self, NumberingLock},
    rail::VerbsRail,
    srq_drain::HeldReceives,
};
use crate::{
    connect::{ConnectEvent, ConnectState, PeerConnection, QpRanges, place},
    driver::{ADDRESS_MAX, WorldRank},
    lanes::{LaneFences, LaneSet, pair},
};

/// A queue pair for each other rank, on each device.
#[derive(Debug)]
pub(super) struct PrewiredQps {
    pub(super) extension: AddressExtension,
    /// Queue pairs of each device, in the order of their numbers. `None` once taken.
    lanes: Vec<Vec<Option<VerbsQp>>>,
}

/// A peer that has made queue pairs, too, and this rank's queue pairs for it.
struct PrewiredPeer {
    peer: WorldRank,
    qps: Vec<VerbsQp>,
    /// First packet number of the first lane.
    psn: u32,
    ends: LaneEnds,
}

impl PrewiredQps {
    /// Returns the number of other ranks, if there are some and `sends` requests in flight are enough. This rank greets each
    /// peer once, and some a second time. The second greeting does not wait for room.
    pub(super) fn others(ranks: u32, sends: u32) -> Option<u32> {
        let others = ranks.saturating_sub(1);
        (1..=sends / 2).contains(&others).then_some(others)
    }

    /// Makes queue pairs for `others` ranks. Returns `None` if there are not enough, or if their numbers are so scattered that
    /// the address would be too long. Ranks then connect as if this had not been tried.
    pub(super) fn new(
        rails: &[VerbsRail],
        sends: &[Arc<VerbsCq>],
        ports: &[RemotePort],
        others: u32,
    ) -> Option<Self> {
        let made = rails.iter().zip(sends);
        let made: Vec<Vec<VerbsQp>> = made
            .map(|(rail, sends)| make(rail, sends, others))
            .collect::<io::Result<_>>()
            .ok()?;
        let numbers = made
            .iter()
            .map(|lane| QpRanges::new(lane.iter().map(VerbsQp::number).collect()));
        let extension = AddressExtension {
            ports: ports[1..].to_vec(),
            numbers: numbers.collect(),
        };
        let lanes = made
            .into_iter()
            .map(|lane| lane.into_iter().map(Some).collect())
            .collect();
        let fits = VerbsAddress::len(Some(&extension)) <= ADDRESS_MAX;
        fits.then_some(Self { extension, lanes })
    }

    /// Takes the queue pairs for a peer.
    fn take(&mut self, me: WorldRank, peer: WorldRank) -> Vec<VerbsQp> {
        let Some(place) = place(me, peer) else {
            return Vec::new();
        };
        let lanes = self.lanes.iter_mut();
        lanes
            .map_while(|lane| lane.get_mut(place as usize)?.take())
            .collect()
    }
}

/// Makes `count` queue pairs on one device.
fn make(rail: &VerbsRail, sends: &Arc<VerbsCq>, count: u32) -> io::Result<Vec<VerbsQp>> {
    let _turn = NumberingLock::take(&rail.device.name);
    let full = AtomicBool::new(false);
    let made = parallel_setup::each(&vec![(); count as usize], |()| {
        if full.load(Relaxed) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let made = rail.pair(sends);
        full.fetch_or(made.is_err(), Relaxed);
        made
    });
    let mut made: Vec<VerbsQp> = made.into_iter().collect::<io::Result<_>>()?;
    made.sort_unstable_by_key(VerbsQp::number);
    Ok(made)
}

impl VerbsCore {
    /// Connects to all peers.
    pub(super) fn connect_all(
        &mut self,
        mesh: Option<PrewiredQps>,
        extension: &[Option<AddressExtension>],
    ) {
        if let Some(mesh) = mesh {
            self.bind_prewired(mesh, extension);
        }
        for peer in self.links.ranks() {
            if peer != self.me {
                self.connect(peer);
            }
        }
    }

    /// Connects to all peers that have made queue pairs for this rank, too. Peers that cannot be connected so are asked by
    /// datagrams.
    pub(super) fn bind_prewired(
        &mut self,
        mut mesh: PrewiredQps,
        extension: &[Option<AddressExtension>],
    ) {
        let mut meetings = Vec::new();
        for (peer, extension) in self.links.ranks().zip(extension) {
            if let Some(extension) = extension
                && extension.has_queue_pairs()
                && peer != self.me
                && let Some(meeting) = self.meeting(peer, extension, &mut mesh)
            {
                meetings.push(meeting);
            }
        }
        drop(mesh);
        let (me, rails) = (self.me, &self.rails);
        let joined = parallel_setup::each(&meetings, |meeting| meeting.join(me, rails));
        let mut silent = Vec::new();
        for (meeting, joined) in meetings.into_iter().zip(joined) {
            let peer = meeting.peer;
            if joined.is_err() {
                let reserved = self.rails.iter_mut().take(meeting.qps.len());
                reserved.for_each(|rail| rail.inbox.release());
            } else if self.install(meeting).is_err() {
                silent.push(peer);
            }
        }
        // This comes last: if nothing is left for another connection, as many as there are now count as the maximum.
        silent.into_iter().for_each(|peer| self.start_over(peer));
    }

    /// Reserves buffers for a peer. Whether this succeeds or not, the peer knows of this rank's queue pairs, and the link says
    /// so.
    fn meeting(
        &mut self,
        peer: WorldRank,
        extension: &AddressExtension,
        mesh: &mut PrewiredQps,
    ) -> Option<PrewiredPeer> {
        let (mine, theirs) = (self.peers[index(self.me)], self.peers[index(peer)]);
        self.links.get_or_new(peer).connection = PeerConnection::unbound(peer, theirs.incarnation);
        let ends = extension.ends(peer, self.me, &theirs, theirs.psn(&mine))?;
        let mut qps = mesh.take(self.me, peer);
        qps.truncate(ends.iter().count());
        for lane in 0..qps.len() {
            if self.rails[lane].inbox.reserve().is_err() {
                let reserved = &mut self.rails[..lane];
                reserved.iter_mut().for_each(|rail| rail.inbox.release());
                return None;
            }
        }
        Some(PrewiredPeer {
            peer,
            qps,
            psn: mine.psn(&theirs),
            ends,
        })
    }

    /// Adopts connected queue pairs, by which the peer's packets may already come, and greets the peer.
    fn install(&mut self, meeting: PrewiredPeer) -> io::Result<()> {
        let PrewiredPeer {
            peer,
            qps,
            psn,
            ends,
        } = meeting;
        let (me, now) = (self.me, self.sleep.timer.now());
        for (rail, qp) in self.rails.iter_mut().zip(&qps) {
            rail.by_qpn.insert(qp.number(), peer);
        }
        let incarnation = self.peers[index(peer)].incarnation;
        let link = self.links.get_or_new(peer);
        link.set_lanes(qps.into_iter().map(Some).collect(), psn);
        let lanes = link.lanes.iter_mut();
        lanes.for_each(|lane| lane.held_receives = HeldReceives::Some);
        link.connection = PeerConnection::bound(peer, incarnation);
        link.made_at = now;
        link.set_ends(me, peer, &ends);
        self.note_state(peer, ConnectState::Idle);
        self.sends().greet(peer)
    }

    /// Notes that the peer's device has acknowledged a request.
    pub(super) fn handle_greeting_ack(&mut self, peer: WorldRank) {
        let bound = self
            .links
            .get_mut(peer)
            .is_some_and(|link| link.connection.state() == ConnectState::Bound);
        if bound {
            self.handle_connect_event(peer, ConnectEvent::GreetingAcked, None);
        }
    }

    /// Asks the peer by datagrams as if nothing had been made: it has not connected its queue pairs, and may not have begun.
    pub(super) fn start_over(&mut self, peer: WorldRank) {
        self.links.get_or_new(peer).broken = None; // it is no reason for later failures
        self.handle_connect_event(peer, ConnectEvent::Broken, None);
    }
}

impl PrewiredPeer {
    /// Connects the queue pairs. The lane of greetings comes last, because a peer that was greeted may use all lanes.
    fn join(&self, me: WorldRank, rails: &[VerbsRail]) -> io::Result<()> {
        let lanes = u32::try_from(self.qps.len()).unwrap_or(1);
        let home = LaneFences::new(LaneSet::first(lanes)).home(pair(me.0, self.peer.0));
        let home = home.map_or(0, |lane| lane as usize);
        let all: Vec<_> = self.ends.iter().zip(psns(self.psn)).collect();
        let order = (0..self.qps.len()).filter(|lane| *lane != home);
        order.chain([home]).try_for_each(|lane| {
            let ((end, remote), psn) = all[lane];
            rails[lane].device.join(&self.qps[lane], psn, end, &remote)
        })
    }
}
