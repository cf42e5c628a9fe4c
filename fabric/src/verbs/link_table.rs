//! The links to all peers, and which of them have work: what all components of a rank share.

use std::{collections::BTreeSet, io};

use super::{
    core::index,
    host_counters::CounterId,
    lane::{PSN_MAX, PeerLane},
    link::VerbsLink,
    wire::VerbsControlWord,
};
use crate::{
    driver::{DownCause, WorldRank},
    random::SeededRandom,
};

/// The links to all peers. A link is made on first use.
#[derive(Debug)]
pub(super) struct LinkTable {
    links: Vec<Option<Box<VerbsLink>>>,
    /// Source of first packet numbers.
    random: SeededRandom,
    /// Peers with work that can go on when there is room.
    dirty_peers: BTreeSet<WorldRank>,
    /// Lanes that have failed and must be left.
    broken: BTreeSet<PeerLane>,
    /// Peers that must be marked as failed, because a command needs them by the first lane.
    lost: BTreeSet<WorldRank>,
}

impl LinkTable {
    pub(super) fn new(ranks: u32, seed: u64) -> Self {
        Self {
            links: (0..ranks).map(|_| None).collect(),
            random: SeededRandom::new(seed),
            dirty_peers: BTreeSet::new(),
            broken: BTreeSet::new(),
            lost: BTreeSet::new(),
        }
    }

    /// Returns the ranks of the job.
    pub(super) fn ranks(&self) -> impl Iterator<Item = WorldRank> + use<> {
        (0..).map(WorldRank).take(self.links.len())
    }

    pub(super) fn get(&self, peer: WorldRank) -> Option<&VerbsLink> {
        self.links.get(index(peer))?.as_deref()
    }

    pub(super) fn get_mut(&mut self, peer: WorldRank) -> Option<&mut VerbsLink> {
        self.links.get_mut(index(peer))?.as_deref_mut()
    }

    /// Returns true if a lane has the queue pair with this number.
    pub(super) fn has_queue_pair(&self, to: PeerLane, number: u32) -> bool {
        let lane = self.get(to.peer).and_then(|link| link.lanes.get(to.lane));
        let qp = lane.and_then(|lane| lane.qp.as_ref());
        qp.is_some_and(|qp| qp.number() == number)
    }

    /// Returns the link to a peer, and makes it on first use.
    pub(super) fn get_or_new(&mut self, peer: WorldRank) -> &mut VerbsLink {
        let Self { links, random, .. } = self;
        links[index(peer)].get_or_insert_with(|| {
            let psn = u32::try_from(random.bits() & u64::from(PSN_MAX)).unwrap_or(0);
            Box::new(VerbsLink::new(peer, psn))
        })
    }

    /// Returns the links that were made, with their peers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (WorldRank, &VerbsLink)> {
        let all = (0..).map(WorldRank).zip(&self.links);
        all.filter_map(|(peer, link)| Some((peer, link.as_deref()?)))
    }

    /// Returns the number of requests that a peer's adapter has acknowledged.
    pub(super) fn answers(&self, peer: WorldRank) -> u64 {
        self.get(peer).map_or(0, |link| link.answers)
    }

    /// Returns why a peer failed, if it did, as far as this rank knows.
    pub(super) fn why_down(&self, peer: WorldRank) -> Option<String> {
        let link = self.get(peer)?;
        let failed = link.down == Some(DownCause::Failed);
        let why = link.broken.as_ref().filter(|_| failed)?;
        Some(why.to_string())
    }

    /// Notes that a peer has work that can go on when there is room.
    pub(super) fn mark_dirty(&mut self, peer: WorldRank) {
        self.dirty_peers.insert(peer);
    }

    pub(super) fn is_dirty(&self, peer: WorldRank) -> bool {
        self.dirty_peers.contains(&peer)
    }

    /// Notes that nothing of a peer is left that can go on when there is room.
    pub(super) fn mark_clean(&mut self, peer: WorldRank) {
        self.dirty_peers.remove(&peer);
    }

    /// Returns the peers with work, and forgets them.
    pub(super) fn take_dirty(&mut self) -> BTreeSet<WorldRank> {
        std::mem::take(&mut self.dirty_peers)
    }

    /// Marks a lane as broken: a request failed or could not be posted.
    pub(super) fn note_broken(&mut self, to: PeerLane, why: io::Error) {
        if let Some(link) = self.get_mut(to.peer)
            && let Some(lane) = link.lanes.get_mut(to.lane)
            && lane.qp.is_some()
            && !lane.broken
            && !lane.retired
        {
            lane.broken = true;
            link.broken.get_or_insert(why);
            self.broken.insert(to);
        }
    }

    /// Makes the next turn leave the lanes that broke before there was a connection.
    pub(super) fn note_broken_lanes(&mut self, peer: WorldRank) {
        let Some(link) = self.get(peer) else {
            return;
        };
        let lanes = link.lanes.iter().enumerate();
        let left = lanes.filter(|(_, lane)| lane.broken && !lane.retired && lane.qp.is_some());
        let left: Vec<_> = left.map(|(lane, _)| PeerLane { peer, lane }).collect();
        self.broken.extend(left);
    }

    /// Makes the next turn try again to leave a lane.
    pub(super) fn leave_later(&mut self, to: PeerLane) {
        self.broken.insert(to);
    }

    pub(super) fn has_broken(&self) -> bool {
        !self.broken.is_empty()
    }

    /// Returns the lanes that must be left, and forgets them.
    pub(super) fn take_broken(&mut self) -> BTreeSet<PeerLane> {
        std::mem::take(&mut self.broken)
    }

    /// Notes that a peer must be marked as failed: a command needs it by the first lane.
    pub(super) fn note_lost(&mut self, peer: WorldRank) {
        self.lost.insert(peer);
    }

    pub(super) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Forgets that a peer must be marked as failed, because the connection has ended that the command needed.
    pub(super) fn forget_lost(&mut self, peer: WorldRank) {
        self.lost.remove(&peer);
    }

    /// Returns the peers that must be marked as failed, and forgets them.
    pub(super) fn take_lost(&mut self) -> BTreeSet<WorldRank> {
        std::mem::take(&mut self.lost)
    }

    /// Queues a control word, which is sent as soon as there is room.
    pub(super) fn queue_control(&mut self, peer: WorldRank, word: VerbsControlWord) {
        let link = self.get_or_new(peer);
        if link.down.is_none() && !link.control_queue.contains(&word) {
            // Words in front may wait for credits, and so may the peer's, so giving back credits comes first.
            if matches!(word, VerbsControlWord::Credit) {
                link.control_queue.push_front(word);
            } else {
                link.control_queue.push_back(word);
            }
            self.mark_dirty(peer);
        }
    }

    /// Queues a control word that asks a peer to add `by` to one of its counters. A put can only ask for 1. Returns false if
    /// there is no room.
    pub(super) fn queue_count(&mut self, peer: WorldRank, tally: CounterId, by: u64) -> bool {
        let kept = self.get_or_new(peer).keep_count(tally, by);
        if kept {
            self.mark_dirty(peer);
        }
        kept
    }

    /// Reports the release of regions that no command in flight touches any more.
    pub(super) fn report_released(&mut self, peer: WorldRank) {
        while let Some(name) = self
            .get_mut(peer)
            .and_then(|link| link.releases.poll_over())
        {
            self.queue_control(peer, VerbsControlWord::RegionReleased(name));
        }
    }
}
