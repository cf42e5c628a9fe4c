//! What a rank has, and the steps that turns are made of.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    os::fd::OwnedFd,
    sync::Arc,
};

use super::{
    abi::WC_FLUSHED,
    address::Address,
    datagrams::Datagrams,
    inbox::Inbox,
    link::Link,
    lists::Tasks,
    names::Names,
    objects::{Channel, Context, Pd},
    onesided::Op,
    outbox::Outbox,
    regions::Exports,
    registrations::Registrations,
    scarce::Scarce,
    slab::Slab,
    timer::Timer,
};
use crate::{
    connect::{Action, Local, Message},
    counters::Counters,
    driver::{Caps, Command, Down, Failure, Sink, Token},
    offload::{Lists, Told, Watches, is_own},
    random::Random,
};

/// A rank.
#[derive(Debug)]
pub(super) struct Core {
    // Queue pairs go first, then what they work on.
    pub(super) links: Vec<Option<Box<Link>>>,
    pub(super) datagrams: Datagrams,
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) exports: Exports,
    pub(super) names: Names,
    pub(super) registrations: Registrations,
    pub(super) ops: Slab<Op>,
    pub(super) me: u32,
    pub(super) caps: Caps,
    pub(super) counters: Arc<Counters>,
    pub(super) peers: Vec<Address>,
    pub(super) own: Own,
    pub(super) by_qpn: BTreeMap<u32, u32>,
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
    pub(super) broken: BTreeSet<u32>,
    pub(super) actions: Vec<Action>,
    /// Words about connections that found no room.
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

/// The own port, and what is made on it.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) context: Arc<Context>,
    pub(super) pd: Arc<Pd>,
    pub(super) channel: Arc<Channel>,
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) ethernet: bool,
    pub(super) reads_max: u8,
    pub(super) timeout: u8,
    pub(super) inline_max: usize,
    /// Bytes of one request.
    pub(super) piece_max: usize,
}

/// What wakes a sleeper, and what of it is armed.
#[derive(Debug)]
pub(super) struct Sleep {
    pub(super) completions: Arc<OwnedFd>,
    pub(super) events: Arc<OwnedFd>,
    pub(super) timer: Timer,
    /// The queues that were asked for an event that did not come yet.
    pub(super) arrivals_armed: bool,
    pub(super) sends_armed: bool,
    /// Nobody made a turn since `arm` said that one may sleep.
    pub(super) slept: bool,
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
            Command::Withdraw { key } => self.registrations.withdraw(*key),
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
        let psn = u32::try_from(self.random.bits() & 0x00ff_ffff).unwrap_or(0);
        self.links[index(peer)].get_or_insert_with(|| Box::new(Link::new(peer, psn)))
    }

    /// A peer is gone: what was meant for it ends, and it is told of once.
    pub(super) fn part(&mut self, peer: u32, how: Down) {
        let link = self.link_or_new(peer);
        if link.gone.is_some() {
            return;
        }
        link.gone = Some(how);
        link.open = false;
        let before = link.dial.state();
        link.waiting.clear();
        link.words.clear();
        let mut over: Vec<u32> = link.parked.drain(..).collect();
        over.extend(link.asking.drain(..).map(|(_, op)| op));
        over.extend(link.naming.drain(..).map(|(_, op)| op));
        self.dialling.remove(&peer);
        self.note_state(peer, before);
        self.doom(peer);
        for op in over {
            self.abandon(op, Failure::PeerDown);
        }
        self.exports.lost(peer);
        self.names.lost(peer);
        if peer != self.me {
            self.news.push_back(News::Down(peer, how));
        }
    }

    /// The queue pair of a peer is of no use any more.
    pub(super) fn doom(&mut self, peer: u32) {
        if let Some(link) = self.link(peer) {
            link.open = false;
            link.doomed = true;
            if let Some(qp) = &link.qp {
                qp.abandon();
            }
            self.bury(peer);
        }
    }

    /// Takes a doomed queue pair down when nothing of it is under way but what could not be posted, and ends that.
    pub(super) fn bury(&mut self, peer: u32) {
        let Self { links, outbox, .. } = self;
        let Some(link) = links[index(peer)].as_deref_mut().filter(|link| link.doomed) else {
            return;
        };
        if link.used != link.quiet + outbox.requests_of(&link.stranded) {
            return;
        }
        let Some(qp) = link.qp.take() else { return };
        let quiet = std::mem::take(&mut link.quiet);
        link.used -= quiet;
        (link.doomed, link.draining) = (false, false);
        let stranded = std::mem::take(&mut link.stranded);
        let qpn = qp.number();
        drop(qp); // the device stops before this returns
        self.by_qpn.remove(&qpn);
        self.outbox.subtract(quiet);
        self.outbox.forget(qpn);
        self.inbox.release();
        for id in stranded {
            self.end_flights(id, WC_FLUSHED);
        }
    }

    /// Hands out what is over.
    pub(super) fn tell(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        let mut events = 0;
        while let Some(token) = self.watches.pop_reached() {
            if !is_own(token) {
                sink.reached(token);
                events += 1;
            }
        }
        while let Some(told) = self.lists.poll_told() {
            match told {
                Told::Triggered(token) => sink.triggered(token),
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
    pub(super) fn note_broken(&mut self, peer: u32, why: io::Error) {
        if let Some(link) = self.link(peer)
            && link.broken.is_none()
            && !link.doomed
        {
            link.broken = Some(why);
            self.broken.insert(peer);
        }
    }
}

impl Sleep {
    pub(super) fn new(own: &Own) -> io::Result<Self> {
        Ok(Self {
            completions: Arc::new(own.channel.fd()?),
            events: Arc::new(own.context.events()?),
            timer: Timer::new()?,
            arrivals_armed: false,
            sends_armed: false,
            slept: false,
        })
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
