//! State of a runtime for each peer, created at the first contact.

use std::collections::VecDeque;

use bytemuck::Pod;
use ripstop_fabric::{driver::DownCause, random::SeededRandom};

use super::{down_ranks::DownRanks, rank_map::SparseRankMap};
use crate::{
    clock::ClockTime,
    group::WorldRank,
    proto::{
        channel::{Credits, ReliableChannel},
        header_quota::{BlockedQueue, HeaderQuota, HeaderRoom, PeerQuota, QuotaGrants},
        wire::OpId,
    },
    reactor::{TimerId, Timers},
    view::PublishedPeer,
};

/// Length of the longest header (an offer), in bytes.
const FRAME: usize = 112;

/// Entries for which a queue keeps memory when tables shrink.
const QUEUE_KEPT: usize = 64;

/// A message without a body that waits for room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ControlFrame {
    bytes: [u8; FRAME],
    len: u8,
}

/// One peer in contact.
pub(crate) struct EnginePeer {
    /// Headers without bodies, in order. They overtake envelopes and need no credits.
    pub(crate) control: VecDeque<ControlFrame>,
    /// Sends whose envelopes wait for room or credits, in order.
    pub(crate) sends: BlockedQueue<OpId>,
    /// Sends whose bytes go out in fragments.
    pub(crate) fragments: VecDeque<OpId>,
    pub(crate) credits: Credits,
    /// Messages that the driver took for this peer, modulo 2³².
    pub(crate) posted: u32,
    /// Limit of the messages that may be sent to the peer.
    pub(crate) header_quota: HeaderQuota,
    /// Limit of the messages that the peer may send.
    pub(crate) quota_granted: PeerQuota,
    /// Channel that keeps order and resends, on drivers that lose or reorder messages.
    pub(crate) channel: Option<Box<ReliableChannel>>,
    /// True while the peer is in the list of peers to flush.
    to_flush: bool,
    /// True while the peer is in the list of peers whose channel's clock may have to be set.
    clock_dirty: bool,
    /// Time at which the channel will be checked, which may be too early.
    due: Option<(ClockTime, TimerId)>,
}

/// What a peer must be told of the room that its messages have left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoomDue {
    /// True if it lacks many credits.
    pub(crate) credits: bool,
    /// True if its limit of messages should be raised.
    pub(crate) quota: bool,
}

/// Room for unexpected messages, for all peers together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnexpectedLimits {
    pub(crate) bytes: usize,
    pub(crate) messages: usize,
}

/// All peers of a job, by world rank.
///
/// Nothing here is as long as the world, and a turn costs only what is due in it. Channels that wait are in an ordered set of
/// deadlines, and peers with nothing to flush are in no list.
pub(crate) struct EnginePeers {
    list: SparseRankMap<EnginePeer>,
    /// Peers that are down, including those that were never in contact.
    down_ranks: DownRanks,
    size: u32,
    /// Seed of the channels' random choices.
    seed: u64,
    /// Peers with messages or commands that wait for room.
    to_flush: Vec<WorldRank>,
    /// True if a peer was marked since the last flush.
    marked_since_flush: bool,
    /// True if a peer was marked since the driver was armed.
    marked_since_arm: bool,
    unexpected_bytes: usize,
    /// Messages that each peer may send from the start.
    pub(crate) first: u32,
    grants: QuotaGrants,
    pub(crate) reliable: bool,
    /// Peers whose channels have sent or received something since their clocks were set.
    clock_dirty: Vec<WorldRank>,
    /// Deadlines of channels, none of which is too late. `None` until a channel has one.
    due: Option<Box<Timers>>,
}

impl EnginePeers {
    pub(crate) fn new(size: u32, store: UnexpectedLimits, reliable: bool, seed: u64) -> Self {
        let room = HeaderRoom {
            headers: store.messages,
            peers: size,
        };
        Self {
            list: SparseRankMap::new(),
            down_ranks: DownRanks::default(),
            size,
            seed,
            to_flush: Vec::new(),
            marked_since_flush: false,
            marked_since_arm: false,
            unexpected_bytes: store.bytes,
            first: room.first(),
            grants: QuotaGrants::new(room),
            reliable,
            clock_dirty: Vec::new(),
            due: None,
        }
    }

    /// Returns the peer, created at the first contact.
    #[inline(always)]
    pub(crate) fn peer_mut(&mut self, rank: WorldRank) -> &mut EnginePeer {
        let place = match self.list.find(rank) {
            Some(place) => place,
            None => self.meet(rank),
        };
        self.list.at(place)
    }

    /// Creates the state of a peer at the first contact, and returns its place.
    #[cold]
    #[inline(never)]
    fn meet(&mut self, rank: WorldRank) -> usize {
        let ordered = self.reliable || self.down_ranks.get(rank).is_some();
        let channel = (!ordered).then(|| {
            let seed = SeededRandom::new(self.seed ^ u64::from(rank.0) << 32).bits();
            Box::new(ReliableChannel::new(seed))
        });
        let credits = Credits::new(self.unexpected_bytes, self.size as usize);
        let peer = EnginePeer::new(credits, self.first, channel);
        self.list.insert(rank, peer)
    }

    /// Returns the number of ranks of the job.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Returns the number of peers in contact.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the bytes of memory used for the peers in contact.
    pub(crate) fn bytes(&self) -> usize {
        let channel = if self.reliable {
            0
        } else {
            size_of::<ReliableChannel>()
        };
        self.list.bytes() + self.list.len() * channel
    }

    /// Returns the world ranks of the peers in contact.
    pub(crate) fn met(&self) -> impl Iterator<Item = WorldRank> {
        self.list.ranks()
    }

    /// Returns how many messages were exchanged with each peer in contact.
    pub(in crate::engine) fn exchanged(&self) -> impl Iterator<Item = PublishedPeer> {
        self.list.ranks().filter_map(|rank| {
            let peer = self.list.get(rank)?;
            Some(PublishedPeer {
                rank: rank.0,
                sent: peer.header_quota.used(),
                received: peer.quota_granted.arrived(),
            })
        })
    }

    /// Returns how a peer went down, or `None` if it is not known to be down.
    #[inline]
    pub(crate) fn down(&self, rank: WorldRank) -> Option<DownCause> {
        self.down_ranks.get(rank)
    }

    /// Returns the number of peers that are down.
    pub(crate) fn downs(&self) -> usize {
        self.down_ranks.len()
    }

    /// Marks a peer as down and drops what is queued for it. Returns false if that was known.
    pub(crate) fn fall(&mut self, rank: WorldRank, why: DownCause) -> bool {
        let new = self.down_ranks.insert(rank, why);
        if let Some(peer) = self.list.get_mut(rank).filter(|_| new) {
            peer.control.clear();
            peer.sends.clear();
            peer.fragments.clear();
            peer.channel = None;
            self.grants.forget(rank, &mut peer.quota_granted);
        }
        new
    }

    /// Returns the limit of a peer, and the room that it shares with the others.
    pub(in crate::engine) fn granting(
        &mut self,
        rank: WorldRank,
    ) -> (&mut QuotaGrants, &mut PeerQuota) {
        self.peer_mut(rank);
        let peer = self.list.get_mut(rank).expect("in contact");
        (&mut self.grants, &mut peer.quota_granted)
    }

    #[cfg(test)]
    pub(in crate::engine) fn stored(&self) -> usize {
        let peers = self.list.ranks().filter_map(|rank| self.list.get(rank));
        peers.map(|peer| peer.quota_granted.stored()).sum()
    }

    /// Returns the room that all peers share.
    #[inline]
    pub(in crate::engine) fn grants(&mut self) -> &mut QuotaGrants {
        &mut self.grants
    }

    /// Frees the memory of queues that were long. O(peers in contact).
    #[cold]
    pub(in crate::engine) fn shrink(&mut self) {
        let ranks: Vec<WorldRank> = self.list.ranks().collect();
        for rank in ranks {
            if let Some(peer) = self.list.get_mut(rank) {
                peer.control.shrink_to(QUEUE_KEPT);
                peer.sends.shrink_to(QUEUE_KEPT);
                peer.fragments.shrink_to(QUEUE_KEPT);
            }
        }
        self.to_flush.shrink_to(QUEUE_KEPT);
        self.clock_dirty.shrink_to(QUEUE_KEPT);
    }

    /// Marks a peer with a message or command that waits for room.
    pub(crate) fn mark_to_flush(&mut self, rank: WorldRank) {
        let peer = self.peer_mut(rank);
        let first = !std::mem::replace(&mut peer.to_flush, true);
        if first {
            self.to_flush.push(rank);
            self.marked_since_arm = true;
        }
        self.marked_since_flush = true;
    }

    /// Takes the marked peers, to flush them. Peers that still wait afterwards are given to [`requeue`](Self::requeue).
    pub(crate) fn take_to_flush(&mut self) -> Vec<WorldRank> {
        self.marked_since_flush = false;
        std::mem::take(&mut self.to_flush)
    }

    /// Puts the peers that found no room back into the list.
    pub(crate) fn requeue(&mut self, mut stuck: Vec<WorldRank>) {
        stuck.append(&mut self.to_flush);
        self.to_flush = stuck;
        // A peer that was marked while it was flushed, and then sent everything, is no work.
        self.marked_since_flush &= self.any_to_flush();
    }

    pub(crate) fn unmark_to_flush(&mut self, rank: WorldRank) {
        self.peer_mut(rank).to_flush = false;
    }

    pub(crate) fn any_to_flush(&self) -> bool {
        !self.to_flush.is_empty()
    }

    /// Returns the peers with messages or commands that wait for room.
    pub(crate) fn to_flush(&self) -> impl Iterator<Item = WorldRank> {
        self.to_flush.iter().copied()
    }

    /// Returns true if a message or command may wait for room, and the driver was not armed for that.
    #[inline]
    pub(crate) fn needs_arming(&self) -> bool {
        self.marked_since_arm && self.any_to_flush()
    }

    /// Records that the driver is armed for everything that waits.
    pub(crate) fn set_armed(&mut self) {
        self.marked_since_arm = false;
    }

    /// Returns true if there is something to do before a sleep.
    pub(crate) fn has_new_work(&self) -> bool {
        self.marked_since_flush || !self.clock_dirty.is_empty()
    }

    /// Queues a message without a body.
    pub(crate) fn control<H: Pod>(&mut self, rank: WorldRank, header: &H) {
        self.peer_mut(rank)
            .control
            .push_back(ControlFrame::new(header));
        self.mark_to_flush(rank);
    }
}

/// Clocks of channels.
impl EnginePeers {
    /// Notes that a peer's channel has sent or received something. Its clock is set at the end of the turn.
    pub(crate) fn mark_clock_dirty(&mut self, rank: WorldRank) {
        if let Some(peer) = self.list.get_mut(rank)
            && !std::mem::replace(&mut peer.clock_dirty, true)
        {
            self.clock_dirty.push(rank);
        }
    }

    /// Marks the peers whose channels must resend.
    pub(crate) fn mark_due(&mut self, now: ClockTime) {
        while let Some(key) = self.due.as_mut().and_then(|due| due.pop_expired(now)) {
            let rank = WorldRank(u32::try_from(key).expect("keys here are ranks"));
            let peer = self.peer_mut(rank);
            peer.due = None;
            match peer.timeout() {
                Some(due) if due <= now => self.mark_to_flush(rank),
                Some(due) => self.look_at(rank, due),
                None => {}
            }
        }
    }

    /// Sets the clocks of the channels that were used.
    pub(crate) fn set_clocks(&mut self, now: ClockTime) {
        while let Some(rank) = self.clock_dirty.pop() {
            let peer = self.peer_mut(rank);
            peer.clock_dirty = false;
            if let Some(channel) = &mut peer.channel {
                channel.set_clock(now.nanos());
            }
            if let Some(due) = peer.timeout() {
                self.look_at(rank, due);
            }
        }
    }

    /// Schedules a check of a peer's channel. An earlier one stays: it is corrected when its time comes, so acknowledgments cost
    /// nothing here.
    fn look_at(&mut self, rank: WorldRank, due: ClockTime) {
        let Some(peer) = self.list.get_mut(rank) else {
            return;
        };
        if peer.due.is_none_or(|(known, _)| due < known) {
            let timers = self.due.get_or_insert_default();
            let timer = timers.insert(due, u64::from(rank.0));
            if let Some((_, later)) = peer.due.replace((due, timer)) {
                timers.cancel(later);
            }
        }
    }

    /// Returns the peers that may lack something that was sent. Some are returned twice.
    pub(crate) fn unacked(&self) -> impl Iterator<Item = WorldRank> {
        let unacked = |rank: &WorldRank| {
            let channel = self.list.get(*rank).and_then(|peer| peer.channel.as_ref());
            channel.is_some_and(|channel| channel.unacked_len() > 0)
        };
        let keys = self.due.iter().flat_map(|due| due.keys());
        let waiting = keys.filter_map(|key| u32::try_from(key).ok().map(WorldRank));
        waiting
            .chain(self.clock_dirty.iter().copied())
            .filter(unacked)
    }

    /// Returns the time at which a channel must be checked.
    pub(crate) fn deadline(&self) -> Option<ClockTime> {
        self.due.as_ref()?.next()
    }
}

impl EnginePeer {
    fn new(credits: Credits, first: u32, channel: Option<Box<ReliableChannel>>) -> Self {
        Self {
            control: VecDeque::new(),
            sends: BlockedQueue::new(),
            fragments: VecDeque::new(),
            credits,
            posted: 0,
            header_quota: HeaderQuota::new(first),
            quota_granted: PeerQuota::new(first),
            channel,
            to_flush: false,
            clock_dirty: false,
            due: None,
        }
    }

    /// Takes the credits that came with a message. Returns false, and takes none, if they may let queued sends leave.
    #[inline(always)]
    pub(crate) fn take_credits(&mut self, credits: u16) -> bool {
        if !self.sends.is_empty() {
            return false;
        }
        if credits > 0 {
            self.credits.refund(credits);
        }
        true
    }

    /// Records that so many messages of the peer, each of so many bytes, have reached their receives. Returns what the peer must
    /// be told.
    #[inline(always)]
    pub(crate) fn note_left(&mut self, messages: u32, bytes: usize) -> RoomDue {
        let quota = self.quota_granted.leave(messages);
        let credits = self.credits.owe(messages, bytes);
        RoomDue { credits, quota }
    }

    fn timeout(&self) -> Option<ClockTime> {
        let channel = self.channel.as_ref()?;
        channel.next_timeout().map(ClockTime::from_nanos)
    }

    /// Returns true if something waits that cannot be sent before the peer has acknowledged something.
    pub(crate) fn waits_for_peer(&self) -> bool {
        self.channel
            .as_ref()
            .is_some_and(|channel| channel.is_full())
    }

    /// Returns true if nothing waits in front of a new envelope.
    pub(crate) fn is_clear(&self) -> bool {
        self.sends.is_empty() && self.control.is_empty()
    }
}

impl ControlFrame {
    pub(crate) fn new<H: Pod>(header: &H) -> Self {
        let from = bytemuck::bytes_of(header);
        let mut bytes = [0; FRAME];
        bytes[..from.len()].copy_from_slice(from);
        Self {
            bytes,
            len: u8::try_from(from.len()).expect("headers are short"),
        }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(reliable: bool) -> EnginePeers {
        let store = UnexpectedLimits {
            bytes: 1 << 20,
            messages: 1 << 16,
        };
        EnginePeers::new(16_384, store, reliable, 1)
    }

    #[test]
    fn a_peer_that_was_marked_while_it_was_flushed_leaves_no_work_behind() {
        let mut peers = peers(true);
        let rank = WorldRank(7);
        peers.mark_to_flush(rank);
        assert_eq!(peers.take_to_flush(), [rank]);
        peers.mark_to_flush(rank); // as a header for the peer does
        peers.unmark_to_flush(rank);
        peers.requeue(Vec::new());
        assert!(!peers.has_new_work() && !peers.any_to_flush());
        peers.mark_to_flush(rank);
        assert!(peers.has_new_work() && peers.any_to_flush());
    }

    #[test]
    fn peers_without_contact_cost_nothing_also_when_they_go() {
        let mut peers = peers(true);
        for rank in 0..16_384 {
            assert!(peers.fall(WorldRank(rank), DownCause::Finished));
            assert!(!peers.fall(WorldRank(rank), DownCause::Failed));
        }
        assert!((0..16_384).all(|rank| peers.list.get(WorldRank(rank)).is_none()));
        assert_eq!(
            (peers.downs(), peers.down(WorldRank(9))),
            (16_384, Some(DownCause::Finished))
        );
        assert!(size_of::<EnginePeers>() < 400);
    }

    #[test]
    fn only_channels_that_are_due_are_marked() {
        let mut peers = peers(false);
        for rank in 0..1_000 {
            let channel = peers
                .peer_mut(WorldRank(rank))
                .channel
                .as_mut()
                .expect("unreliable");
            channel.sent(&[1], &[]);
            peers.mark_clock_dirty(WorldRank(rank));
            peers.set_clocks(ClockTime::from_nanos(u64::from(rank) * 10_000_000));
        }
        assert!(!peers.has_new_work());
        assert_eq!(peers.unacked().count(), 1_000);
        let due = peers.deadline().expect("all wait");
        peers.mark_due(due);
        assert_eq!(peers.take_to_flush(), [WorldRank(0)]);
        // An acknowledgment costs nothing until the time comes.
        let channel = peers
            .peer_mut(WorldRank(1))
            .channel
            .as_mut()
            .expect("unreliable");
        channel.handle_ack(1, 0);
        peers.mark_due(ClockTime::from_nanos(20_000_000));
        assert_eq!(peers.take_to_flush(), []);
        peers.mark_due(ClockTime::from_nanos(u64::MAX));
        assert_eq!(peers.take_to_flush().len(), 998);
    }
}
