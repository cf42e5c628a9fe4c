//! State of a rank, and steps of a turn.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use super::{
    abi::WC_FLUSHED,
    address::VerbsAddress,
    connection_cache::ConnectionCache,
    datagrams::{DatagramExchange, VerbsDatagrams},
    lane::{PeerLane, RemotePort},
    link_table::LinkTable,
    lists::VerbsTasks,
    named_regions::NamedRegions,
    onesided::{CommandOwner, CommandStart, CommandTable, OneSidedCommands},
    outbox::VerbsOutbox,
    rail::VerbsRail,
    regions::VerbsExports,
    registrations::AppRegistrations,
    rma_op::{VerbsRmaOp, cell_of},
    send_flow::SendFlow,
};
use crate::{
    connect::{ConnectAction, ConnectConfig},
    counters::DriverStats,
    driver::{Caps, CommandFailure, CommandToken, DownCause, DriverCommand, Sink, WorldRank},
    lanes::LaneSet,
    offload::{ListEvent, TaskScheduler, ThresholdWatches, is_scheduler_token},
    timer::RetryTimer,
};

/// State of a rank.
#[derive(Debug)]
pub(super) struct VerbsCore {
    // Fields are dropped in this order: queue pairs first, then the objects that they use.
    pub(super) links: LinkTable,
    pub(super) datagrams: VerbsDatagrams,
    /// Devices of this rank.
    pub(super) rails: Vec<VerbsRail>,
    /// Device whose arrivals are delivered first in the next turn.
    pub(super) first_rail: usize,
    pub(super) outbox: VerbsOutbox,
    pub(super) exports: VerbsExports,
    pub(super) names: NamedRegions,
    pub(super) registrations: AppRegistrations,
    pub(super) commands: CommandTable,
    pub(super) me: WorldRank,
    pub(super) caps: Caps,
    pub(super) counters: Arc<DriverStats>,
    pub(super) peers: Vec<VerbsAddress>,
    /// Ports of each peer after its first one, as its address gave them.
    pub(super) peer_ports: Vec<Box<[RemotePort]>>,
    /// Ports of this rank's devices, as they are now.
    pub(super) ports: Vec<RemotePort>,
    /// True once the first port was not where this rank's address says. Peers may know either place.
    pub(super) moved: bool,
    pub(super) watches: ThresholdWatches,
    pub(super) lists: TaskScheduler,
    pub(super) tasks: VerbsTasks,
    pub(super) completions: VecDeque<VerbsCompletion>,
    /// Peers whose connections wait for an answer.
    pub(super) connecting: BTreeSet<WorldRank>,
    /// Connection cache, if not all peers may be connected at a time.
    pub(super) connection_cache: Option<ConnectionCache>,
    /// Lanes whose queue pairs must be destroyed.
    pub(super) to_destroy: BTreeSet<PeerLane>,
    /// Lanes whose queue pairs may hold receives, while their devices have time to say that they hold none.
    pub(super) draining_receives: BTreeSet<PeerLane>,
    pub(super) actions: Vec<ConnectAction>,
    pub(super) local: ConnectConfig,
    pub(super) sleep: VerbsSleep,
    /// True if a command was refused for lack of room, and the caller was not notified to retry yet.
    pub(super) refused: bool,
    /// Ending of this rank, set when the driver is dropped.
    pub(super) closing: Option<DownCause>,
}

/// State of a sleeping thread, and the timer that wakes it besides the devices.
#[derive(Debug)]
pub(super) struct VerbsSleep {
    pub(super) timer: RetryTimer,
    /// True if `arm` allowed a thread to sleep, and no turn was made since.
    pub(super) slept: bool,
    /// Turns since the asynchronous events of the devices were last read.
    pub(super) turns_since_events_read: u32,
}

impl VerbsSleep {
    /// Ends the sleep of a thread, by its alarm.
    pub(super) fn wake(&mut self) {
        let now = self.timer.now();
        let set = self.timer.set(Some(now));
        debug_assert!(set.is_ok(), "an alarm that exists can be set");
    }
}

/// An event that waits to be delivered to the sink.
#[derive(Debug)]
pub(super) enum VerbsCompletion {
    Complete(CommandToken),
    Fetched(CommandToken, u64),
    Failed(CommandToken, CommandFailure),
    Down(WorldRank, DownCause),
}

impl VerbsCore {
    /// Executes a command that needs no room.
    pub(super) fn take(&mut self, command: &DriverCommand<'_>) {
        match command {
            DriverCommand::Unwatch { token } => self.watches.remove(*token),
            DriverCommand::Withdraw { key } => self.registrations.withdraw(*key, &mut self.exports),
            other => unreachable!("{other:?} needs room"),
        }
    }

    /// Lends the datagrams what they use.
    pub(super) fn datagrams(&mut self) -> DatagramExchange<'_> {
        DatagramExchange {
            datagrams: &mut self.datagrams,
            links: &mut self.links,
            peers: &mut self.peers,
            rails: &self.rails,
            peer_ports: &self.peer_ports,
            ports: &self.ports,
            counters: &self.counters,
            local: &self.local,
            timer: &self.sleep.timer,
            me: self.me,
            moved: self.moved,
        }
    }

    /// Lends the flow of messages what it uses.
    #[inline]
    pub(super) fn sends(&mut self) -> SendFlow<'_> {
        SendFlow {
            links: &mut self.links,
            outbox: &mut self.outbox,
            peers: &self.peers,
            counters: &self.counters,
        }
    }

    /// Lends the one-sided commands what they use.
    #[inline]
    pub(super) fn commands(&mut self) -> OneSidedCommands<'_> {
        OneSidedCommands {
            commands: &mut self.commands,
            links: &mut self.links,
            outbox: &mut self.outbox,
            exports: &mut self.exports,
            registrations: &mut self.registrations,
            tasks: &mut self.tasks,
            completions: &mut self.completions,
            rails: &self.rails,
            peers: &self.peers,
            counters: &self.counters,
        }
    }

    /// Begins a command about a peer's memory. Returns false if there was no room.
    pub(super) fn post_rma(&mut self, command: &DriverCommand<'_>) -> bool {
        let (to, owner, rma) = match *command {
            DriverCommand::Put {
                to,
                from,
                into,
                count,
                token,
            } => {
                let owner = CommandOwner::Caller(token);
                match cell_of(count) {
                    Ok(count) => (to, owner, VerbsRmaOp::Put { from, into, count }),
                    Err(why) => {
                        let failed = VerbsCompletion::Failed(token, why);
                        self.completions.push_back(failed);
                        return true;
                    }
                }
            }
            DriverCommand::Get {
                to,
                from,
                into,
                token,
            } => (
                to,
                CommandOwner::Caller(token),
                VerbsRmaOp::Get { from, into },
            ),
            DriverCommand::Atomic { to, at, op, token } => {
                let known = None;
                (
                    to,
                    CommandOwner::Caller(token),
                    VerbsRmaOp::Atomic { at, op, known },
                )
            }
            DriverCommand::Count { to, counter, by }
                if to == self.me && self.count_by_key(counter, by) =>
            {
                return true;
            }
            DriverCommand::Count { to, counter, by } => match VerbsRmaOp::count(counter, by) {
                Some(rma) => (to, CommandOwner::Unowned, rma),
                None => return true,
            },
            ref other => unreachable!("{other:?} is not about a peer's memory"),
        };
        self.begin(to, owner, rma)
    }

    /// Begins a command, and connects to its peer if it must. Returns false if there was no room.
    pub(super) fn begin(&mut self, peer: WorldRank, owner: CommandOwner, rma: VerbsRmaOp) -> bool {
        assert!(
            index(peer) < self.peers.len(),
            "rank {peer} in a job of {}",
            self.peers.len()
        );
        let start = self.commands().begin(peer, owner, rma);
        self.fail_lost_peers();
        match start {
            CommandStart::Refused => {
                self.refused = true;
                return false;
            }
            CommandStart::Failed => {}
            CommandStart::Begun => {
                self.touch(peer);
                // The command waits by now. It fails here if the peer cannot be connected to.
                if !self.links.get_or_new(peer).open {
                    self.ensure_connected(peer);
                }
                if self.links.is_dirty(peer) {
                    self.flush(peer);
                }
            }
        }
        true
    }

    /// Marks a peer as down: commands for it end, and the sink is notified once.
    pub(super) fn report_peer_down(&mut self, peer: WorldRank, how: DownCause) {
        if self.links.get_or_new(peer).down.is_some() {
            return;
        }
        // Take counts first: once notified that the peer is down, the application reads the counters.
        self.rails.iter_mut().for_each(|rail| rail.inbox.take_all());
        self.take_counts();
        // Taking counts may have reported the same peer already.
        let link = self.links.get_or_new(peer);
        if link.down.is_some() {
            return;
        }
        link.down = Some(how);
        link.open = false;
        let before = link.connection.state();
        link.message_queue.clear();
        link.control_queue.clear();
        (link.left, link.unreported) = (LaneSet::EMPTY, LaneSet::EMPTY);
        link.releases.clear();
        let mut over: Vec<u32> = link.backlog.take();
        over.extend(link.asking.take());
        over.extend(link.naming.take());
        self.connecting.remove(&peer);
        self.note_state(peer, before);
        self.retire_qps(peer);
        self.datagrams().drop_messages(peer);
        self.sends().clear_replay(peer);
        for op in over {
            self.commands().fail_command(op, CommandFailure::PeerDown);
        }
        self.commands().give_up_stripes(peer);
        self.exports.handle_peer_down(peer);
        self.names.lost(peer);
        self.completions.push_back(VerbsCompletion::Down(peer, how));
    }

    /// Retires the queue pairs of a peer.
    pub(super) fn retire_qps(&mut self, peer: WorldRank) {
        let Some(link) = self.links.get_mut(peer) else {
            return;
        };
        (link.open, link.draining, link.drained) = (false, false, false);
        for lane in 0..link.lanes.len() {
            self.retire_lane(PeerLane { peer, lane });
        }
    }

    /// Retires the queue pair of a lane: its requests are flushed, and it is destroyed when they have completed.
    pub(super) fn retire_lane(&mut self, to: PeerLane) {
        let Some(link) = self.links.get_mut(to.peer) else {
            return;
        };
        let lane = &mut link.lanes[to.lane];
        if let Some(qp) = &lane.qp {
            lane.retired = true;
            qp.abandon();
            self.destroy_if_drained(to);
        }
    }

    /// Destroys a retired queue pair once nothing of it is in flight, except requests that could not be posted, which end with
    /// it. Its arrivals are delivered first, if the peer is still up, and the receives that it holds must come back
    /// (`srq_drain`). If the device has failed, requests in flight are not waited for: they end with the queue pair, which then
    /// touches no memory.
    pub(super) fn destroy_if_drained(&mut self, to: PeerLane) {
        let Self {
            links,
            outbox,
            rails,
            ..
        } = self;
        let Some(link) = links.get_mut(to.peer) else {
            return;
        };
        let Some(lane) = link.lanes.get(to.lane).filter(|lane| lane.retired) else {
            return;
        };
        let rail = &mut rails[to.lane];
        let is_over = lane.used == lane.quiet + outbox.requests_of(&lane.stranded);
        if !is_over && rail.failed.is_none() {
            return;
        }
        let Some(qp) = &lane.qp else { return };
        // A chain that still gathers is posted first, so that it ends as well.
        if !lane.chain.is_empty() || link.is_connected() && rail.inbox.has_from(qp.number()) {
            self.to_destroy.insert(to);
            return;
        }
        if !self.holds_receives(to) && self.destroy_qp(to) {
            self.handle_closed(to);
        }
    }

    /// Destroys a queue pair, and ends its requests in flight. Returns false if the device did not destroy it.
    pub(super) fn destroy_qp(&mut self, to: PeerLane) -> bool {
        let Self {
            links,
            outbox,
            rails,
            connection_cache: cache,
            ..
        } = self;
        let link = links.get_mut(to.peer);
        let Some(lane) = link.and_then(|link| link.lanes.get_mut(to.lane)) else {
            return true;
        };
        let Some(qp) = lane.qp.take() else {
            return true;
        };
        // On some adapters, completions that were not polled are lost with the queue pair, and so are their buffers.
        rails[to.lane].inbox.take_all();
        let qpn = qp.number();
        if let Err(why) = qp.destroy() {
            (lane.stuck, lane.retired) = (true, false);
            rails[to.lane].by_qpn.remove(&qpn);
            self.fail_and_notify(
                to.peer,
                &format!("{why}: the device may still use the queue pair"),
            );
            return false;
        }
        let quiet = std::mem::take(&mut lane.quiet);
        lane.used -= quiet;
        lane.retired = false;
        lane.stranded.clear();
        let rail = &mut rails[to.lane];
        rail.by_qpn.remove(&qpn);
        rail.inbox.forget(qpn);
        rail.inbox.release();
        if let Some(cache) = cache {
            cache.handle_qp_destroyed();
        }
        outbox.subtract(to.lane, quiet);
        outbox.forget(to.lane, qpn);
        for id in outbox.flights_of(to) {
            self.end_flights(u64::from(id), WC_FLUSHED);
        }
        true
    }

    /// Retries the destruction of queue pairs that had to wait.
    pub(super) fn destroy_drained_qps(&mut self) {
        for to in std::mem::take(&mut self.to_destroy) {
            self.destroy_if_drained(to);
        }
    }

    /// Delivers events to the sink. Returns how many.
    pub(super) fn drain_completions(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        let mut events = 0;
        while let Some(token) = self.watches.pop_reached() {
            if !is_scheduler_token(token) {
                self.counters.list_words.add(1);
                sink.reached(token);
                events += 1;
            }
        }
        while let Some(told) = self.lists.poll_event() {
            match told {
                ListEvent::Triggered(token) => {
                    self.counters.list_words.add(1);
                    sink.triggered(token);
                }
                ListEvent::Failed(token, why) => sink.failed(token, why),
            }
            events += 1;
        }
        while events < budget
            && let Some(news) = self.completions.pop_front()
        {
            news.hand_to(sink);
            events += 1;
        }
        events
    }
}

impl VerbsCompletion {
    fn hand_to(self, sink: &mut dyn Sink) {
        match self {
            Self::Complete(token) => sink.complete(token),
            Self::Fetched(token, old) => sink.fetched(token, old),
            Self::Failed(token, why) => sink.failed(token, why),
            Self::Down(peer, how) => sink.peer_down(peer, how),
        }
    }
}

pub(super) fn index(rank: WorldRank) -> usize {
    usize::try_from(rank.0).unwrap_or(usize::MAX)
}
