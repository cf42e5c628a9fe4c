//! State of a rank, and steps of a turn.

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    sync::Arc,
};

use super::{
    abi::WC_FLUSHED,
    address::Address,
    datagrams::Datagrams,
    link::Link,
    lists::Tasks,
    named_regions::Names,
    onesided::Op,
    outbox::Outbox,
    datagram_messages::Talks,
    rail::Rail,
    multirail::Striped,
    regions::Exports,
    registrations::Registrations,
    connection_cache::Scarce,
    slab::Slab,
    deferred_datagrams::Unheard,
    lane::{Far, PSN_MAX, To},
};
use crate::{
    connect::{Action, Local, Message},
    counters::Counters,
    driver::{Caps, Command, Down, Failure, Sink, Token},
    lanes::{LaneSet, Speeds},
    offload::{Lists, Told, Watches, is_own},
    random::Random,
    timer::Timer,
};

/// State of a rank.
#[derive(Debug)]
pub(super) struct Core {
    // Fields are dropped in this order: queue pairs first, then the objects that they use.
    pub(super) links: Vec<Option<Box<Link>>>,
    pub(super) datagrams: Datagrams,
    /// Datagram queue pairs of the devices after the first.
    pub(super) detours: Vec<Datagrams>,
    /// Devices of this rank.
    pub(super) rails: Vec<Rail>,
    /// Device whose arrivals are delivered first in the next turn.
    pub(super) first_heard: usize,
    pub(super) speeds: Speeds,
    pub(super) outbox: Outbox,
    pub(super) exports: Exports,
    pub(super) names: Names,
    pub(super) registrations: Registrations,
    pub(super) ops: Slab<Op>,
    /// State of completed commands that went by several lanes. The next ones reuse its memory.
    #[expect(clippy::vec_box, reason = "boxes are what is spared")]
    pub(super) spare_stripes: Vec<Box<Striped>>,
    pub(super) me: u32,
    pub(super) caps: Caps,
    pub(super) counters: Arc<Counters>,
    pub(super) peers: Vec<Address>,
    /// Ports of each peer after its first one, as its address gave them.
    pub(super) peer_ports: Vec<Box<[Far]>>,
    /// Ports of this rank's devices, as they are now.
    pub(super) ports: Vec<Far>,
    /// True once the first port was not where this rank's address says. Peers may know either place.
    pub(super) moved: bool,
    pub(super) watches: Watches,
    pub(super) lists: Lists,
    pub(super) tasks: Tasks,
    pub(super) news: VecDeque<News>,
    /// Peers with work that can go on when there is room.
    pub(super) stirred: BTreeSet<u32>,
    /// Peers whose connections wait for an answer.
    pub(super) dialling: BTreeSet<u32>,
    /// Connection cache, if not all peers may be connected at a time.
    pub(super) scarce: Option<Scarce>,
    /// Lanes that have failed and must be left, and lanes whose queue pairs must be destroyed.
    pub(super) broken: BTreeSet<To>,
    pub(super) dying: BTreeSet<To>,
    /// Lanes whose queue pairs may hold receives, while their devices have time to say that they hold none.
    pub(super) holding: BTreeSet<To>,
    pub(super) actions: Vec<Action>,
    pub(super) talks: Talks,
    /// Datagrams that wait for earlier arrivals from their senders.
    pub(super) unheard: Unheard,
    /// Connection messages that found no room.
    pub(super) unsaid: VecDeque<(u32, Message)>,
    pub(super) local: Local,
    pub(super) random: Random,
    pub(super) sleep: Sleep,
    /// True if a command was refused for lack of room, and the caller was not notified to retry yet.
    pub(super) refused: bool,
    /// Ending of this rank, set when the driver is dropped.
    pub(super) closing: Option<Down>,
    pub(super) scratch: Vec<u8>,
}

/// State of a sleeping thread, and the timer that wakes it besides the devices.
#[derive(Debug)]
pub(super) struct Sleep {
    pub(super) timer: Timer,
    /// True if `arm` allowed a thread to sleep, and no turn was made since.
    pub(super) slept: bool,
    /// Turns since the asynchronous events of the devices were last read.
    pub(super) deaf: u32,
}

/// An event that waits to be delivered to the sink.
#[derive(Debug)]
pub(super) enum News {
    Complete(Token),
    Fetched(Token, u64),
    Failed(Token, Failure),
    Down(u32, Down),
}

impl Core {
    /// Executes a command that needs no room.
    pub(super) fn take(&mut self, command: &Command<'_>) {
        match command {
            Command::Unwatch { token } => self.watches.remove(*token),
            Command::Withdraw { key } => self.registrations.withdraw(*key, &mut self.exports),
            other => unreachable!("{other:?} needs room"),
        }
    }

    pub(super) fn link(&mut self, peer: u32) -> Option<&mut Link> {
        self.links.get_mut(index(peer))?.as_deref_mut()
    }

    /// Returns the number of requests that a peer's adapter has acknowledged.
    pub(super) fn answers(&self, peer: u32) -> u64 {
        let link = self.links.get(index(peer)).and_then(Option::as_deref);
        link.map_or(0, |link| link.answers)
    }

    /// Returns the link to a peer, and makes it on first use.
    pub(super) fn link_or_new(&mut self, peer: u32) -> &mut Link {
        let psn = u32::try_from(self.random.bits() & u64::from(PSN_MAX)).unwrap_or(0);
        self.links[index(peer)].get_or_insert_with(|| Box::new(Link::new(peer, psn)))
    }

    /// Marks a peer as down: commands for it end, and the sink is notified once.
    pub(super) fn part(&mut self, peer: u32, how: Down) {
        if self.link_or_new(peer).gone.is_some() {
            return;
        }
        // Take counts first: once notified that the peer is down, the application reads the counters.
        self.rails.iter_mut().for_each(|rail| rail.inbox.take_all());
        self.take_counts();
        // Taking counts may have reported the same peer already.
        let link = self.link_or_new(peer);
        if link.gone.is_some() {
            return;
        }
        link.gone = Some(how);
        link.open = false;
        let before = link.dial.state();
        link.waiting.clear();
        link.words.clear();
        (link.left, link.untold) = (LaneSet::EMPTY, LaneSet::EMPTY);
        link.forgetting.clear();
        let mut over: Vec<u32> = link.parked.take();
        over.extend(link.asking.take());
        over.extend(link.naming.take());
        self.dialling.remove(&peer);
        self.note_state(peer, before);
        self.doom(peer);
        self.drop_parcels(peer);
        self.free_kept(peer);
        for op in over {
            self.abandon(op, Failure::PeerDown);
        }
        self.give_up_stripes(peer);
        self.exports.lost(peer);
        self.names.lost(peer);
        self.news.push_back(News::Down(peer, how));
    }

    /// Gives up the queue pairs of a peer.
    pub(super) fn doom(&mut self, peer: u32) {
        let Some(link) = self.link(peer) else { return };
        (link.open, link.draining, link.drained) = (false, false, false);
        for lane in 0..link.ways.len() {
            self.doom_way(To { peer, lane });
        }
    }

    /// Gives up the queue pair of a lane: its requests are flushed, and it is destroyed when they have completed.
    pub(super) fn doom_way(&mut self, to: To) {
        let Some(link) = self.link(to.peer) else {
            return;
        };
        let way = &mut link.ways[to.lane];
        if let Some(qp) = &way.qp {
            way.doomed = true;
            qp.abandon();
            self.bury(to);
        }
    }

    /// Destroys a doomed queue pair once nothing of it is in flight, except requests that could not be posted, which end with it.
    /// Its arrivals are delivered first, if the peer is still up, and the receives that it holds must come back (`held`). If the
    /// device has failed, requests in flight are not waited for: they end with the queue pair, which then touches no memory.
    pub(super) fn bury(&mut self, to: To) {
        let Self {
            links,
            outbox,
            rails,
            ..
        } = self;
        let Some(link) = links[index(to.peer)].as_deref_mut() else {
            return;
        };
        let Some(way) = link.ways.get(to.lane).filter(|way| way.doomed) else {
            return;
        };
        let rail = &mut rails[to.lane];
        let is_over = way.used == way.quiet + outbox.requests_of(&way.stranded);
        if !is_over && rail.failed.is_none() {
            return;
        }
        let Some(qp) = &way.qp else { return };
        // A chain that still gathers is posted first, so that it ends as well.
        if !way.chain.is_empty() || link.is_connected() && rail.inbox.has_from(qp.number()) {
            self.dying.insert(to);
            return;
        }
        if !self.holds_receives(to) && self.take_down(to) {
            self.handle_closed(to);
        }
    }

    /// Destroys a queue pair, and ends its requests in flight. Returns false if the device did not destroy it.
    pub(super) fn take_down(&mut self, to: To) -> bool {
        let Self {
            links,
            outbox,
            rails,
            scarce,
            ..
        } = self;
        let link = links[index(to.peer)].as_deref_mut();
        let Some(way) = link.and_then(|link| link.ways.get_mut(to.lane)) else {
            return true;
        };
        let Some(qp) = way.qp.take() else {
            return true;
        };
        // On some adapters, completions that were not polled are lost with the queue pair, and so are their buffers.
        rails[to.lane].inbox.take_all();
        let qpn = qp.number();
        if let Err(why) = qp.destroy() {
            (way.stuck, way.doomed) = (true, false);
            rails[to.lane].by_qpn.remove(&qpn);
            self.lose_for(to.peer, &format!("{why}: the device may go on with it"));
            return false;
        }
        let quiet = std::mem::take(&mut way.quiet);
        way.used -= quiet;
        way.doomed = false;
        way.stranded.clear();
        let rail = &mut rails[to.lane];
        rail.by_qpn.remove(&qpn);
        rail.inbox.forget(qpn);
        rail.inbox.release();
        if let Some(scarce) = scarce {
            scarce.handle_gone();
        }
        outbox.subtract(to.lane, quiet);
        outbox.forget(to.lane, qpn);
        for id in outbox.flights_of(to) {
            self.end_flights(u64::from(id), WC_FLUSHED);
        }
        true
    }

    /// Retries the destruction of queue pairs that had to wait.
    pub(super) fn bury_late(&mut self) {
        for to in std::mem::take(&mut self.dying) {
            self.bury(to);
        }
    }

    /// Delivers events to the sink. Returns how many.
    pub(super) fn tell(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        let mut events = 0;
        while let Some(token) = self.watches.pop_reached() {
            if !is_own(token) {
                self.counters.list_words.add(1);
                sink.reached(token);
                events += 1;
            }
        }
        while let Some(told) = self.lists.poll_told() {
            match told {
                Told::Triggered(token) => {
                    self.counters.list_words.add(1);
                    sink.triggered(token);
                }
                Told::Failed(token, why) => sink.failed(token, why),
            }
            events += 1;
        }
        while events < budget
            && let Some(news) = self.news.pop_front()
        {
            news.hand_to(sink);
            events += 1;
        }
        events
    }

    /// Notes that a peer has work that can go on when there is room.
    pub(super) fn stir(&mut self, peer: u32) {
        self.stirred.insert(peer);
    }

    /// Marks a lane as broken: a request failed or could not be posted.
    pub(super) fn note_broken(&mut self, to: To, why: io::Error) {
        if let Some(link) = self.link(to.peer)
            && let Some(way) = link.ways.get_mut(to.lane)
            && way.qp.is_some()
            && !way.broken
            && !way.doomed
        {
            way.broken = true;
            link.broken.get_or_insert(why);
            self.broken.insert(to);
        }
    }
}

impl News {
    fn hand_to(self, sink: &mut dyn Sink) {
        match self {
            Self::Complete(token) => sink.complete(token),
            Self::Fetched(token, old) => sink.fetched(token, old),
            Self::Failed(token, why) => sink.failed(token, why),
            Self::Down(peer, how) => sink.peer_down(crate::driver::Peer(peer), how),
        }
    }
}

pub(super) fn index(rank: u32) -> usize {
    usize::try_from(rank).unwrap_or(usize::MAX)
}
