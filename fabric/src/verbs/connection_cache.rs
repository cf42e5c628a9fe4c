//! Connection cache, for a rank that may not have a queue pair for each peer. The least recently used connection is evicted, and
//! commands for its peer wait for the next one.
//!
//! If a device has nothing left for one more connection, the present number of connections becomes the maximum. Retired queue
//! pairs that are not destroyed yet (`srq_drain`) raise it again when they are.

use std::collections::BTreeSet;

use super::{
    connect_wire::LaneEnds, core::VerbsCore, lane::PeerLane, link::VerbsLink,
    wire::VerbsControlWord,
};
use crate::{
    connect::{
        ArbiterStep, ConnectEvent, ConnectKind, ConnectMessage, ConnectRequest, ConnectState,
        JobShape, QpArbiter,
    },
    driver::WorldRank,
};

/// State of the connection cache.
#[derive(Debug)]
pub(super) struct ConnectionCache {
    share: QpArbiter<Option<LaneEnds>>,
    max: u32,
    /// Upper bound of `max`.
    most: u32,
    /// Peers whose queue pairs were given up and not yet destroyed when the device had nothing left.
    going: BTreeSet<WorldRank>,
    /// Uses of connections so far.
    uses: u64,
    /// Time until which no connection is evicted for a waiting peer.
    next: Option<u64>,
}

impl ConnectionCache {
    /// Makes the cache of a rank that may be connected to `asked` peers at a time, or to as many as the device has queue pairs
    /// for, and to no more than it has buffers for. Returns `None` if it may be connected to all.
    pub(super) fn of(job: &JobShape, asked: Option<u32>) -> Option<Self> {
        let max = asked.map_or_else(
            || job.connections_max(),
            |asked| asked.min(job.connections_max).max(CONNECTIONS_MIN),
        );
        (max < job.ranks - 1).then(|| Self::new(max))
    }

    fn new(max: u32) -> Self {
        Self {
            share: QpArbiter::default(),
            max,
            most: max,
            going: BTreeSet::new(),
            uses: 0,
            next: None,
        }
    }

    pub(super) const fn next_eviction(&self) -> Option<u64> {
        self.next
    }

    /// Lowers the maximum to `left` connections, until the queue pairs of the peers in `going` are destroyed.
    fn lower(&mut self, left: u32, going: BTreeSet<WorldRank>) {
        self.max = self.max.min(left);
        self.going = going;
    }

    /// Raises the maximum by one for each peer whose queue pairs are all destroyed.
    fn raise(&mut self, is_going: impl Fn(WorldRank) -> bool) {
        let before = self.going.len();
        self.going.retain(|peer| is_going(*peer));
        let gone = u32::try_from(before - self.going.len()).unwrap_or(u32::MAX);
        self.max = self.max.saturating_add(gone).min(self.most);
    }

    /// Makes a connection the most recently used one.
    fn note_use(&mut self, peer: WorldRank, link: &mut VerbsLink) {
        self.uses += 1;
        let before = std::mem::replace(&mut link.used_at, self.uses);
        self.share.touch(peer.0, before, self.uses);
    }

    /// Notes that a queue pair was destroyed. The next turn finds out which peer that helps.
    pub(super) fn handle_qp_destroyed(&mut self) {
        if !self.going.is_empty() {
            self.next = Some(0);
        }
    }
}

impl VerbsCore {
    /// Handles that the device has nothing left for one more connection, since other ranks and programs use it, too. From now on
    /// there are at most as many connections as now, and as many more as queue pairs are about to be destroyed. Returns false if
    /// that is too few to go on with.
    pub(super) fn handle_exhausted(&mut self, peer: WorldRank) -> bool {
        let others = self
            .links
            .iter()
            .filter(|(other, link)| *other != self.me && link.down.is_none());
        let others: Vec<_> = others
            .map(|(other, link)| (other, link.used_at, link.connection.state()))
            .collect();
        let connected = others.iter().filter(|(other, _, state)| {
            *other != peer && !matches!(state, ConnectState::Idle | ConnectState::Failed)
        });
        let left = u32::try_from(connected.count()).unwrap_or(u32::MAX);
        let going = self.links.iter().filter(|(_, link)| link.is_going());
        let going: BTreeSet<WorldRank> = going.map(|(other, _)| other).collect();
        let coming = u32::try_from(going.len()).unwrap_or(u32::MAX);
        if left.saturating_add(coming) < CONNECTIONS_MIN {
            return false;
        }
        let cache = self.connection_cache.get_or_insert_with(|| {
            let mut cache = ConnectionCache::new(u32::MAX);
            for (other, used_at, state) in &others {
                cache
                    .share
                    .note(other.0, *used_at, ConnectState::Idle, *state);
            }
            cache
        });
        cache.lower(left, going);
        true
    }

    /// Asks for a connection to a peer for which messages or commands wait.
    pub(super) fn request_connection(&mut self, peer: WorldRank) {
        let idle = self.links.get_or_new(peer).connection.state() == ConnectState::Idle;
        match &mut self.connection_cache {
            Some(cache) if idle => {
                cache.share.wait(peer.0);
                self.share_out();
            }
            _ => self.handle_connect_event(peer, ConnectEvent::Connect, None),
        }
    }

    /// Returns true if one more peer may be connected without evicting a connection.
    pub(super) fn has_spare(&self) -> bool {
        self.connection_cache
            .as_ref()
            .is_none_or(|cache| cache.share.has_room(cache.max))
    }

    /// Handles a peer's connection message. A request may have to wait for a queue pair.
    pub(super) fn handle_connect_message(
        &mut self,
        peer: WorldRank,
        message: ConnectMessage,
        lane: Option<LaneEnds>,
    ) {
        let idle = self.links.get_or_new(peer).connection.state() == ConnectState::Idle;
        if let Some(cache) = &mut self.connection_cache
            && idle
            && message.kind == ConnectKind::Request
            && !cache.share.has_room(cache.max)
        {
            let side = peer.0;
            cache.share.queue_request(ConnectRequest {
                side,
                message,
                lane,
            });
            return self.share_out();
        }
        self.handle_connect_event(peer, ConnectEvent::Message(message), lane);
    }

    /// Notes that a connection is used, so that it is not the least recently used one.
    #[inline]
    pub(super) fn touch(&mut self, peer: WorldRank) {
        if let Some(cache) = &mut self.connection_cache
            && let Some(link) = self.links.get_mut(peer)
        {
            cache.note_use(peer, link);
        }
    }

    /// Notes that a connection has changed its state, or that its peer is down.
    pub(super) fn note_state(&mut self, peer: WorldRank, before: ConnectState) {
        let Self {
            connection_cache: cache,
            links,
            ..
        } = self;
        let link = links.get(peer);
        if let (Some(cache), Some(link)) = (cache, link) {
            let gone = link.down.is_some();
            let after = if gone {
                ConnectState::Failed
            } else {
                link.connection.state()
            };
            cache.share.note(peer.0, link.used_at, before, after);
        }
    }

    /// Reacts to the new state of a connection: if messages or commands wait for the peer, they need another one.
    pub(super) fn settle_connection(&mut self, peer: WorldRank) {
        let wants = self.links.get_mut(peer).is_some_and(|link| {
            link.connection.state() == ConnectState::Idle
                && link.down.is_none()
                && link.has_queued()
        });
        if wants {
            self.request_connection(peer);
        } else if self.connection_cache.is_some() {
            self.share_out();
        }
    }

    /// Gives queue pairs to the peers that wait, as far as there are any.
    fn share_out(&mut self) {
        // The steps below may call this again, and then the outer call does what follows from them.
        if !self
            .connection_cache
            .as_mut()
            .is_some_and(|cache| cache.share.begin())
        {
            return;
        }
        let Self {
            connection_cache: cache,
            links,
            ..
        } = self;
        if let Some(cache) = cache {
            cache.raise(|peer| links.get(peer).is_some_and(VerbsLink::is_going));
        }
        while let Some(cache) = &mut self.connection_cache {
            cache.next = None;
            match cache.share.next(cache.max) {
                ArbiterStep::HandleRequest(caller) => {
                    self.handle_connect_event(
                        WorldRank(caller.side),
                        ConnectEvent::Message(caller.message),
                        caller.lane,
                    );
                }
                ArbiterStep::Connect(peer) => {
                    self.handle_connect_event(WorldRank(peer), ConnectEvent::Connect, None)
                }
                ArbiterStep::Evict(peer) if self.stays(WorldRank(peer)) => break,
                ArbiterStep::Evict(peer) => {
                    self.counters.evictions.add(1);
                    self.handle_connect_event(WorldRank(peer), ConnectEvent::Evict, None);
                }
                ArbiterStep::Idle => break,
            }
        }
        if let Some(cache) = &mut self.connection_cache {
            cache.share.end();
        }
    }

    /// Notes that a connection is complete, and keeps it for a while. Keeping it for longer than it took to make pays, and a peer
    /// that asks something through it has the answer by then.
    pub(super) fn protect_from_eviction(&mut self, peer: WorldRank) {
        self.touch(peer);
        let now = self.sleep.timer.now();
        let link = self.links.get_or_new(peer);
        let took = now.saturating_sub(link.made_at);
        link.stays_until = now + took.saturating_mul(STAY).min(STAY_MAX);
    }

    /// Returns true if a connection may not be evicted yet, and notes until when.
    fn stays(&mut self, peer: WorldRank) -> bool {
        let until = self.links.get_mut(peer).map_or(0, |link| link.stays_until);
        let stays = until > self.sleep.timer.now();
        if let Some(cache) = &mut self.connection_cache {
            cache.next = stays.then_some(until);
        }
        stays
    }

    /// Evicts a connection, if one is due.
    pub(super) fn evict_idle(&mut self) {
        let next = self
            .connection_cache
            .as_ref()
            .and_then(ConnectionCache::next_eviction);
        if next.is_some_and(|next| next <= self.sleep.timer.now()) {
            self.share_out();
        }
    }

    /// Stops posting to a peer until there is a new connection.
    pub(super) fn quiesce(&mut self, peer: WorldRank) {
        let link = self.links.get_or_new(peer);
        (link.open, link.draining) = (false, true);
        self.links.note_broken_lanes(peer);
        self.links.mark_dirty(peer);
        // A thread may sleep before the next turn, so check now.
        self.settle_drain(peer);
    }

    /// Reports a draining connection as quiet when nothing of it is in flight, and no failed lane is still to be fenced. Requests
    /// without a completion count as in flight until a later one completes, so one is posted if needed.
    pub(super) fn settle_drain(&mut self, peer: WorldRank) {
        let drains = |link: &&mut VerbsLink| link.draining && !link.drained && link.is_settled();
        let Some(link) = self.links.get_mut(peer).filter(drains) else {
            return;
        };
        if link.used() == 0 {
            link.drained = true;
            self.handle_connect_event(peer, ConnectEvent::Quiesced, None);
        } else if link.is_quiet() {
            self.sends().probe_home(peer);
        }
    }

    /// Ends a connection that was drained in good order, so nothing of it is in flight on either side. The peer has forgotten
    /// what it knew of this rank's memory. Answers that were not sent are given again.
    pub(super) fn forget_connection(&mut self, peer: WorldRank) {
        let link = self.links.get_or_new(peer);
        (link.open, link.draining, link.drained) = (false, false, false);
        // Control words about lanes may be in flight, but the peer needs none of them any more.
        for lane in 0..link.lanes.len() {
            if !self.destroy_qp(PeerLane { peer, lane }) {
                return;
            }
        }
        self.links.forget_lost(peer);
        self.exports.handle_peer_down(peer);
        self.names.forget_peer(peer);
        let words = std::mem::take(&mut self.links.get_or_new(peer).control_queue);
        for chunk in self.links.get_or_new(peer).replay_log.clear() {
            self.outbox.free_chunk(chunk);
        }
        self.commands().renew_stripes(peer);
        let link = self.links.get_or_new(peer);
        link.control_queue.clone_from(&words);
        link.renew();
        self.names
            .requeue_answers(peer, &words, &mut self.links, &self.exports);
    }
}

impl VerbsLink {
    /// Returns true if a queue pair was given up and is not destroyed yet.
    fn is_going(&self) -> bool {
        self.lanes.iter().any(|lane| lane.retired)
    }
}

impl VerbsControlWord {
    /// Returns true if a control word means anything on another connection.
    pub(super) const fn outlives(self) -> bool {
        matches!(
            self,
            Self::Wake | Self::ResolveName(_) | Self::Count { .. } | Self::Goodbye(_)
        )
    }
}

/// Fewest connections: one to a peer that asks, and one to a peer that is asked.
const CONNECTIONS_MIN: u32 = 2;

/// A connection is kept for this many times the time that it took to make, and for at most 0.1 s.
const STAY: u64 = 4;
const STAY_MAX: u64 = 100_000_000_000;

#[cfg(test)]
mod tests {
    use super::{ConnectionCache, JobShape};
    use crate::{connect::CommPattern, driver::WorldRank};

    #[test]
    fn a_rank_with_buffers_for_few_peers_is_connected_to_no_more() {
        let job = JobShape {
            ranks: 2000,
            ranks_per_node: 4,
            lanes: 1,
            queue_pairs_max: 1 << 17,
            connections_max: 1022,
            datagrams: false,
            pattern: CommPattern::Unknown,
        };
        let max = |job: &JobShape, asked| ConnectionCache::of(job, asked).map(|cache| cache.max);
        assert_eq!(max(&job, None), Some(1022));
        assert_eq!(max(&job, Some(5000)), Some(1022));
        assert_eq!(max(&job, Some(100)), Some(100));
        let few = JobShape { ranks: 1023, ..job };
        assert_eq!(max(&few, None), None);
    }

    #[test]
    fn what_was_still_to_go_when_there_was_nothing_left_makes_room_later() {
        let mut cache = ConnectionCache::new(5);
        cache.lower(2, [7, 8].map(WorldRank).into());
        cache.raise(|_| true);
        assert_eq!(cache.max, 2);
        cache.raise(|peer| peer == WorldRank(8));
        cache.raise(|peer| peer == WorldRank(8));
        assert_eq!(cache.max, 3, "once");
        // Nothing is left again, so another rank has taken what was destroyed before.
        cache.lower(3, [8, 9].map(WorldRank).into());
        cache.raise(|_| false);
        assert_eq!(cache.max, 5);
        cache.lower(5, [7].map(WorldRank).into());
        cache.raise(|_| false);
        assert_eq!(cache.max, 5, "nor more than was asked for");
    }
}
