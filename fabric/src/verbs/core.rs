//! What a rank has, and the steps that turns are made of.

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
    names::Names,
    onesided::Op,
    outbox::Outbox,
    parcels::Talks,
    rail::Rail,
    rails::Striped,
    regions::Exports,
    registrations::Registrations,
    scarce::Scarce,
    slab::Slab,
    unheard::Unheard,
    way::{Far, PSN_MAX, To},
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

/// A rank.
#[derive(Debug)]
pub(super) struct Core {
    // Queue pairs go first, then what they work on.
    pub(super) links: Vec<Option<Box<Link>>>,
    pub(super) datagrams: Datagrams,
    /// Of devices behind the first.
    pub(super) detours: Vec<Datagrams>,
    /// Its devices.
    pub(super) rails: Vec<Rail>,
    /// The device whose arrivals are handed out first in the next turn.
    pub(super) first_heard: usize,
    pub(super) speeds: Speeds,
    pub(super) outbox: Outbox,
    pub(super) exports: Exports,
    pub(super) names: Names,
    pub(super) registrations: Registrations,
    pub(super) ops: Slab<Op>,
    /// Of commands by lanes that have ended: the next ones take their memory.
    #[expect(clippy::vec_box, reason = "boxes are what is spared")]
    pub(super) spare_stripes: Vec<Box<Striped>>,
    pub(super) me: u32,
    pub(super) caps: Caps,
    pub(super) counters: Arc<Counters>,
    pub(super) peers: Vec<Address>,
    /// Theirs behind the first, as they were when the job began.
    pub(super) peer_ports: Vec<Box<[Far]>>,
    /// Where this rank's devices are.
    pub(super) ports: Vec<Far>,
    /// The first of them is not where this rank's address says, or was not once: peers may know either.
    pub(super) moved: bool,
    pub(super) watches: Watches,
    pub(super) lists: Lists,
    pub(super) tasks: Tasks,
    pub(super) news: VecDeque<News>,
    /// Peers with something that can go on when there is room.
    pub(super) stirred: BTreeSet<u32>,
    /// Peers whose connections wait for an answer.
    pub(super) dialling: BTreeSet<u32>,
    /// Where not all peers may be connected to.
    pub(super) scarce: Option<Scarce>,
    /// Lanes that do not work any more, and those whose queue pairs are to go.
    pub(super) broken: BTreeSet<To>,
    pub(super) dying: BTreeSet<To>,
    /// Those that may hold receives, and whose devices have time to say that they do not.
    pub(super) holding: BTreeSet<To>,
    pub(super) actions: Vec<Action>,
    pub(super) talks: Talks,
    /// What waits for what came by connections before it, and words about those that found no room.
    pub(super) unheard: Unheard,
    pub(super) unsaid: VecDeque<(u32, Message)>,
    pub(super) local: Local,
    pub(super) random: Random,
    pub(super) sleep: Sleep,
    /// Somebody was told that there is no room.
    pub(super) refused: bool,
    /// The driver was dropped.
    pub(super) closing: Option<Down>,
    pub(super) scratch: Vec<u8>,
}

/// What wakes a sleeper beside the devices.
#[derive(Debug)]
pub(super) struct Sleep {
    pub(super) timer: Timer,
    /// Nobody made a turn since `arm` said that one may sleep.
    pub(super) slept: bool,
    /// Turns since somebody last asked what devices tell of themselves.
    pub(super) deaf: u32,
}

/// What the sink is to hear.
#[derive(Debug)]
pub(super) enum News {
    Complete(Token),
    Fetched(Token, u64),
    Failed(Token, Failure),
    Down(u32, Down),
}

impl Core {
    /// Commands that need no room.
    pub(super) fn take(&mut self, command: &Command<'_>) {
        match command {
            Command::Unwatch { token } => self.watches.remove(*token),
            Command::Cancel { token } => self.cancel_lists(*token),
            Command::Name { name, region } => self.name(*name, region),
            Command::Unname { name } => self.unname(*name),
            Command::Withdraw { key } => self.registrations.withdraw(*key, &mut self.exports),
            other => unreachable!("{other:?} needs room"),
        }
    }

    pub(super) fn link(&mut self, peer: u32) -> Option<&mut Link> {
        self.links.get_mut(index(peer))?.as_deref_mut()
    }

    /// How many requests a peer's adapter has acknowledged.
    pub(super) fn answers(&self, peer: u32) -> u64 {
        let link = self.links.get(index(peer)).and_then(Option::as_deref);
        link.map_or(0, |link| link.answers)
    }

    /// The link to a peer, made if it is the first time.
    pub(super) fn link_or_new(&mut self, peer: u32) -> &mut Link {
        let psn = u32::try_from(self.random.bits() & u64::from(PSN_MAX)).unwrap_or(0);
        self.links[index(peer)].get_or_insert_with(|| Box::new(Link::new(peer, psn)))
    }

    /// A peer is gone: what was meant for it ends, and it is told of once.
    pub(super) fn part(&mut self, peer: u32, how: Down) {
        if self.link_or_new(peer).gone.is_some() {
            return;
        }
        // Whoever hears that it is gone looks at what it has counted.
        self.rails.iter_mut().for_each(|rail| rail.inbox.take_all());
        self.take_counts();
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

    /// The queue pairs of a peer are of no use any more.
    pub(super) fn doom(&mut self, peer: u32) {
        let Some(link) = self.link(peer) else { return };
        (link.open, link.draining, link.drained) = (false, false, false);
        for lane in 0..link.ways.len() {
            self.doom_way(To { peer, lane });
        }
    }

    /// A queue pair is of no use any more.
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

    /// Takes a doomed queue pair down when nothing of it is under way but what could not be posted, and ends that. What came by
    /// it is handed out first, if the peer is still there, and the receives that it holds have to come back (`held`). Where the
    /// device has failed nobody waits for what is under way: it ends with the queue pair, which touches no memory from then on.
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
        // What still gathers is posted before, and so ends as well.
        if !way.chain.is_empty() || link.is_connected() && rail.inbox.has_from(qp.number()) {
            self.dying.insert(to);
            return;
        }
        if !self.holds_receives(to) && self.take_down(to) {
            self.handle_closed(to);
        }
    }

    /// Takes a queue pair down, and ends what of it is under way. Whether that worked.
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
        // Some adapters' completions that were not polled yet go with the queue pair, and the buffers in them.
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

    /// Goes on with what waited for arrivals.
    pub(super) fn bury_late(&mut self) {
        for to in std::mem::take(&mut self.dying) {
            self.bury(to);
        }
    }

    /// Hands out what is over.
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

    /// Notes that something of a peer's can go on when there is room.
    pub(super) fn stir(&mut self, peer: u32) {
        self.stirred.insert(peer);
    }

    /// A request could not be posted, or failed.
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
