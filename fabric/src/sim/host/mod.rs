//! Hosts: which one has its turn (`turns`), how each sleeps, and which hosts know each other.

mod turns;

use std::{
    collections::BTreeMap,
    ops::{Index, IndexMut},
    sync::{Arc, atomic::AtomicU64},
};

use super::{
    ClusterConfig, Model, SimDriver,
    bells::SimBells,
    exports::SimExports,
    heap::{EventHeap, NEVER, SimEvent, SimTime},
    link::{LinkLimits, PacketInbox, RoomGrant, SimLink},
    model::NoiseDetours,
    named_regions::ParkedCommand,
    network::RankPair,
    slab::index,
    stats::HostCounts,
    tasks::SimTaskLists,
    world::ps,
};
use crate::{
    driver::{ArmResult, DownCause, WakeSource},
    offload::ThresholdWatches,
};

/// All hosts, by rank. A method that plans an event takes the heap of events.
#[derive(Debug)]
pub(super) struct SimHosts {
    hosts: Vec<SimHost>,
    model: Arc<Model>,
    detours: NoiseDetours,
    /// The host whose turn it is.
    running: Option<RunningTurn>,
    /// Time in nanoseconds: of the host that runs now or, between turns, of the last event.
    clock: Arc<AtomicU64>,
    /// How ranks sleep, if no executor advances the cluster.
    bells: Option<Box<SimBells>>,
    /// True if some rank has closed or was killed, or was given up by another one. Until then no rank knows that a peer is down.
    departed: bool,
}

/// A rank's processor, and what the simulator keeps for the rank.
#[derive(Debug)]
pub(super) struct SimHost {
    /// Time from which the application can make its next turn.
    free_at: SimTime,
    /// Time from which the progress agent can make its next turn.
    agent_free_at: SimTime,
    /// Time of the next check for work.
    due: SimTime,
    ticket: u32,
    state: HostState,
    /// True while the application computes, until `free_at`.
    computing: bool,
    /// True if a sender that was refused has room now.
    pub(super) has_room_again: bool,
    pub(super) inbox: PacketInbox,
    /// Puts, gets and atomics whose completion was not delivered yet.
    pub(super) commands: u32,
    pub(super) exports: Option<Box<SimExports>>,
    /// Counters that the host waits for.
    pub(super) watches: Option<Box<ThresholdWatches>>,
    /// Task lists of the adapter.
    pub(super) lists: Option<Box<SimTaskLists>>,
    /// Peers that the host has exchanged packets with.
    pub(super) links: BTreeMap<u32, SimLink>,
    pub(super) counts: HostCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostState {
    /// The driver was not made yet.
    Unborn,
    Open,
    /// The driver was dropped.
    Closed(DownCause),
    Killed,
}

/// A turn in progress.
#[derive(Debug)]
pub(super) struct RunningTurn {
    pub(super) rank: u32,
    pub(super) computing: bool,
    start: SimTime,
    local: SimTime,
    /// Time that the application will compute after the turn.
    work: SimTime,
    woken: bool,
}

impl SimHost {
    fn new() -> Self {
        Self {
            free_at: 0,
            agent_free_at: 0,
            due: NEVER,
            ticket: 0,
            state: HostState::Unborn,
            computing: false,
            has_room_again: false,
            inbox: PacketInbox::new(),
            commands: 0,
            exports: None,
            watches: None,
            lists: None,
            links: BTreeMap::new(),
            counts: HostCounts::default(),
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        matches!(self.state, HostState::Open | HostState::Unborn)
    }

    /// Returns how the rank has closed, if it has.
    pub(super) const fn closing(&self) -> Option<DownCause> {
        match self.state {
            HostState::Closed(how) => Some(how),
            HostState::Unborn | HostState::Open | HostState::Killed => None,
        }
    }

    /// Schedules a check for work at this time, unless an earlier one is scheduled.
    fn look_at(&mut self, rank: u32, at: SimTime, heap: &mut EventHeap) {
        if at < self.due {
            self.due = at;
            self.ticket = self.ticket.wrapping_add(1);
            let ticket = self.ticket;
            heap.push(at, SimEvent::HostCheck { rank, ticket });
        }
    }
}

impl SimHosts {
    pub(super) fn new(config: &ClusterConfig, model: Arc<Model>) -> Self {
        let bells = config.free_running;
        Self {
            hosts: (0..config.ranks).map(|_| SimHost::new()).collect(),
            detours: NoiseDetours::new(model.host.noise, config.seed, config.ranks),
            running: None,
            clock: Arc::default(),
            bells: bells.then(|| Box::new(SimBells::new(config.ranks))),
            departed: false,
            model,
        }
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.hosts.len()).unwrap_or(u32::MAX)
    }

    /// Checks that there is a host of this rank.
    ///
    /// # Panics
    /// Panics if there is none.
    pub(super) fn check_rank(&self, rank: u32) {
        let ranks = self.hosts.len();
        assert!(index(rank) < ranks, "rank {rank} on a cluster of {ranks}");
    }

    /// Returns how many bytes the hosts and their drivers take.
    pub(super) fn footprint(&self) -> usize {
        let each = size_of::<SimHost>() + size_of::<SimDriver>();
        let of_hosts: usize = self.hosts.iter().map(SimHost::footprint).sum();
        self.hosts.capacity() * each
            + of_hosts
            + self.detours.footprint()
            + self.bells.as_ref().map_or(0, |bells| bells.footprint())
    }
}

/// Sleeps of a program that advances the cluster itself.
impl SimHosts {
    /// Returns true if no executor advances the cluster.
    pub(super) const fn is_free_running(&self) -> bool {
        self.bells.is_some()
    }

    /// Arms the driver of a rank. Events that are planned keep a rank awake if no executor runs them.
    pub(super) fn arm(&mut self, rank: u32, heap: &EventHeap) -> ArmResult {
        let runs_events = self.is_free_running() && !heap.is_empty();
        let host = &self.hosts[index(rank)];
        if runs_events || host.has_room_again || !host.inbox.is_empty() {
            return ArmResult::Busy;
        }
        if let Some(bells) = &mut self.bells {
            bells.arm(rank);
        }
        ArmResult::Ready
    }

    pub(super) fn disarm(&mut self, rank: u32) {
        self.hosts[index(rank)].has_room_again = false;
        if let Some(bells) = &mut self.bells {
            bells.disarm(rank);
        }
    }

    /// Returns what a rank sleeps on.
    pub(super) fn wait_on(&mut self, rank: u32) -> WakeSource {
        match &mut self.bells {
            Some(bells) => bells.wait_on(rank),
            None => WakeSource::Virtual,
        }
    }

    /// Wakes all ranks that sleep on an armed driver.
    pub(super) fn wake_all_armed(&mut self) {
        if let Some(bells) = &mut self.bells {
            bells.ring_all();
        }
    }
}

/// What hosts know of each other.
impl SimHosts {
    /// Returns the sender's side of a pair. The first use adds the pair to both hosts.
    pub(super) fn link(&mut self, from: u32, to: u32) -> &mut SimLink {
        if !self.hosts[index(from)].links.contains_key(&to) {
            self.hosts[index(to)].links.entry(from).or_default();
        }
        self.hosts[index(from)].links.entry(to).or_default()
    }

    /// Takes room for a message of `len` bytes.
    pub(super) fn take_room(&mut self, from: u32, to: u32, len: usize) -> RoomGrant {
        let limits = self.link_limits();
        self.link(from, to).take_room(len, limits)
    }

    /// Releases the room of a message of `len` bytes that is not in flight any more.
    pub(super) fn give_room(&mut self, pair: RankPair, len: usize, heap: &mut EventHeap) {
        let RankPair { from, to } = pair;
        let limits = self.link_limits();
        let Some(link) = self.hosts[index(from)].links.get_mut(&to) else {
            return;
        };
        if link.give_room(len, limits) {
            let at = self.local(to, heap.now()) + ps(self.model.network.latency_ns);
            let (rank, peer) = (from, to);
            heap.push(at, SimEvent::Room { rank, peer });
        }
    }

    /// Handles the notification that a rank has room again for messages to a peer.
    pub(super) fn make_room(&mut self, rank: u32, peer: u32, heap: &mut EventHeap) {
        let host = &mut self.hosts[index(rank)];
        if let Some(link) = host.links.get_mut(&peer) {
            link.keep_promise();
        }
        host.has_room_again = true;
        self.notify(rank, heap);
    }

    fn link_limits(&self) -> LinkLimits {
        LinkLimits {
            count_max: self.model.nic.queue,
            bytes_max: self.model.nic.queue_bytes,
        }
    }

    /// Returns true if a rank was notified that a peer is down.
    pub(super) fn knows_down(&self, observer: u32, peer: u32) -> bool {
        self.departed && {
            let link = self.hosts[index(observer)].links.get(&peer);
            link.is_some_and(|link| link.down)
        }
    }

    /// Records that a rank is notified that a peer is down. Returns false if it was notified before.
    pub(super) fn note_down(&mut self, observer: u32, peer: u32) -> bool {
        self.departed = true;
        let link = self.hosts[index(observer)].links.entry(peer);
        !std::mem::replace(&mut link.or_default().down, true)
    }

    /// Returns true if some rank has closed or was killed, or was given up by another one.
    pub(super) const fn any_departed(&self) -> bool {
        self.departed
    }

    pub(super) fn open(&mut self, rank: u32) {
        self.check_rank(rank);
        let host = &mut self.hosts[index(rank)];
        assert!(
            host.state == HostState::Unborn,
            "the driver of rank {rank} was made before"
        );
        host.state = HostState::Open;
    }

    /// Ends a rank, and releases what is kept for it. Returns the commands of peers that have waited for a name there.
    pub(super) fn end(&mut self, rank: u32, state: HostState) -> Vec<ParkedCommand> {
        self.departed = true;
        if let Some(bells) = &mut self.bells {
            bells.release(rank);
        }
        let host = &mut self.hosts[index(rank)];
        host.state = state;
        let parked = host.take_parked();
        host.exports = None;
        host.watches = None;
        host.lists = None;
        parked
    }

    pub(super) fn is_alive(&self, rank: u32) -> bool {
        let host = self.hosts.get(index(rank));
        host.is_some_and(SimHost::is_open)
    }

    pub(super) fn is_killed(&self, rank: u32) -> bool {
        self.hosts[index(rank)].state == HostState::Killed
    }
}

impl Index<u32> for SimHosts {
    type Output = SimHost;

    fn index(&self, rank: u32) -> &SimHost {
        &self.hosts[index(rank)]
    }
}

impl IndexMut<u32> for SimHosts {
    fn index_mut(&mut self, rank: u32) -> &mut SimHost {
        &mut self.hosts[index(rank)]
    }
}
