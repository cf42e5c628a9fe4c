//! Hosts: which one has its turn, how long a turn takes, and which hosts know each other.

use std::{collections::BTreeMap, os::fd::OwnedFd, sync::Arc, time::Duration};

use super::{
    exports::SimExports,
    heap::{NEVER, SimEvent, SimTime},
    link::{PacketInbox, SimLink},
    packets::{PacketPayload, SimCompletion, SimPacket},
    slab::index,
    stats::HostCounts,
    tasks::SimTaskLists,
    world::{SimWorld, ps},
};
use crate::{driver::DownCause, offload::ThresholdWatches};

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
    pub(super) state: HostState,
    /// True while the application computes, until `free_at`.
    computing: bool,
    /// True if a sender that was refused has room now.
    pub(super) has_room_again: bool,
    /// True while the host sleeps on an armed driver, if no executor advances the world.
    pub(super) armed: bool,
    pub(super) rung: bool,
    pub(super) inbox: PacketInbox,
    /// Puts, gets and atomics whose completion was not delivered yet.
    pub(super) commands: u32,
    pub(super) exports: Option<Box<SimExports>>,
    /// Counters that the host waits for.
    pub(super) watches: Option<Box<ThresholdWatches>>,
    /// Task lists of the adapter.
    pub(super) lists: Option<Box<SimTaskLists>>,
    pub(super) bell: Option<Arc<OwnedFd>>,
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
    pub(super) fn new() -> Self {
        Self {
            free_at: 0,
            agent_free_at: 0,
            due: NEVER,
            ticket: 0,
            state: HostState::Unborn,
            computing: false,
            has_room_again: false,
            armed: false,
            rung: false,
            inbox: PacketInbox::new(),
            commands: 0,
            exports: None,
            watches: None,
            lists: None,
            bell: None,
            links: BTreeMap::new(),
            counts: HostCounts::default(),
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        matches!(self.state, HostState::Open | HostState::Unborn)
    }
}

impl SimWorld {
    /// Returns the time on a host: within its turn, or when it could begin one.
    pub(super) fn local(&self, rank: u32) -> SimTime {
        match &self.running {
            Some(running) if running.rank == rank => running.local,
            _ => self.now.max(self.hosts[index(rank)].free_at),
        }
    }

    /// Keeps a host busy for `time`. Returns when it is free again.
    pub(super) fn spend(&mut self, rank: u32, time: SimTime) -> SimTime {
        let done = self.local(rank).saturating_add(time);
        match &mut self.running {
            Some(running) if running.rank == rank => running.local = done,
            _ => self.hosts[index(rank)].free_at = done,
        }
        self.publish_clock(done);
        done
    }

    /// Has a host check for work, because something arrived for it.
    pub(super) fn notify(&mut self, rank: u32) {
        if self.free_running {
            return self.ring(rank);
        }
        let costs = &self.model.host;
        let host = &mut self.hosts[index(rank)];
        let asleep = self.now >= host.free_at;
        if !asleep && host.computing && costs.interrupts && !costs.agent {
            host.free_at += ps(costs.wake_ns);
            self.heap.push(host.free_at, SimEvent::Resume(rank));
        }
        // An agent sleeps whenever it has nothing to do, even where a waiting application would poll all the time.
        let agent_sleeps =
            !asleep && host.computing && costs.agent && self.now >= host.agent_free_at;
        let wake = if asleep && !costs.polls || agent_sleeps {
            costs.wake_ns
        } else {
            0
        };
        self.look_at(rank, self.now + ps(costs.detect_ns + wake));
    }

    /// Schedules a check for work at this time, unless an earlier one is scheduled.
    fn look_at(&mut self, rank: u32, at: SimTime) {
        let host = &mut self.hosts[index(rank)];
        if at < host.due {
            host.due = at;
            host.ticket = host.ticket.wrapping_add(1);
            let ticket = host.ticket;
            self.heap.push(at, SimEvent::HostCheck { rank, ticket });
        }
    }

    /// Makes a turn at a scheduled check, or reschedules it if the host is busy.
    pub(super) fn run_host_check(&mut self, rank: u32, ticket: u32) {
        let agent = self.model.host.agent;
        let host = &mut self.hosts[index(rank)];
        if ticket != host.ticket || !host.is_open() {
            return;
        }
        let for_agent = agent && host.computing && self.now < host.free_at;
        let free_at = if for_agent {
            host.agent_free_at
        } else {
            host.free_at
        };
        if self.now < free_at {
            host.due = NEVER;
            return self.look_at(rank, free_at);
        }
        self.start_turn(rank, for_agent);
    }

    /// Makes a turn after a computation, unless the host was stopped meanwhile.
    pub(super) fn resume(&mut self, rank: u32) {
        let host = &self.hosts[index(rank)];
        if host.computing && self.now == host.free_at && host.is_open() {
            self.start_turn(rank, false);
        }
    }

    fn start_turn(&mut self, rank: u32, computing: bool) {
        let host = &mut self.hosts[index(rank)];
        host.computing = computing;
        host.due = NEVER;
        host.ticket = host.ticket.wrapping_add(1);
        host.counts.turns += 1;
        self.running = Some(RunningTurn {
            rank,
            computing,
            start: self.now,
            local: self.now,
            work: 0,
            woken: false,
        });
    }

    pub(super) fn end_turn(&mut self, rank: u32, deadline: Option<u64>) {
        let turn = self.running.take().filter(|turn| turn.rank == rank);
        let turn = turn.unwrap_or_else(|| panic!("it is not the turn of rank {rank}"));
        let took = (turn.local - turn.start).max(TURN_MIN);
        let end = self.detours.end(rank, turn.start, took);
        let host = &mut self.hosts[index(rank)];
        if !host.is_open() {
            return;
        }
        if turn.computing {
            host.agent_free_at = end;
            if self.model.host.steals {
                // The application's next turn begins at the new time only; see `resume`.
                host.free_at += end - turn.start + ps(self.model.host.wake_ns);
                self.heap.push(host.free_at, SimEvent::Resume(rank));
            }
        } else {
            host.free_at = end;
        }
        // Tasks cannot be polled while the application computes.
        let woken = turn.woken && !turn.computing;
        let again = woken || host.has_room_again || !host.inbox.is_empty();
        if turn.work > 0 {
            self.begin_work(rank, turn.work);
        }
        let deadline = deadline.map_or(NEVER, ps);
        let next = if again { end } else { deadline.max(end) };
        if next < NEVER {
            self.look_at(rank, next);
        }
    }

    pub(super) fn wake(&mut self, rank: u32) {
        match &mut self.running {
            Some(running) if running.rank == rank => running.woken = true,
            _ if self.hosts[index(rank)].computing => {} // it gets its turn after the computation
            running => {
                let at = running.as_ref().map_or(self.now, |running| running.local);
                self.look_at(rank, at.max(self.hosts[index(rank)].free_at));
            }
        }
    }

    pub(super) fn compute(&mut self, rank: u32, time: Duration) {
        let time = duration_ps(time).max(TURN_MIN);
        match &mut self.running {
            Some(running) if running.rank == rank => running.work += time,
            _ => self.begin_work(rank, time),
        }
    }

    fn begin_work(&mut self, rank: u32, work: SimTime) {
        let start = self.local(rank);
        let end = self.detours.end(rank, start, work);
        let host = &mut self.hosts[index(rank)];
        host.computing = true;
        host.free_at = end;
        host.agent_free_at = host.agent_free_at.max(start);
        self.heap.push(host.free_at, SimEvent::Resume(rank));
    }

    pub(super) fn pause(&mut self, rank: u32, time: Duration) {
        let end = self.spend(rank, duration_ps(time));
        let host = &mut self.hosts[index(rank)];
        host.agent_free_at = host.agent_free_at.max(end);
        if host.computing {
            self.heap.push(end, SimEvent::Resume(rank));
        }
    }

    pub(super) fn open(&mut self, rank: u32) {
        let ranks = self.hosts.len();
        let host = self.hosts.get_mut(index(rank));
        let host = host.unwrap_or_else(|| panic!("rank {rank} on a cluster of {ranks}"));
        assert!(
            host.state == HostState::Unborn,
            "the driver of rank {rank} was made before"
        );
        host.state = HostState::Open;
    }

    /// Closes a rank, because its driver was dropped.
    pub(super) fn close(&mut self, rank: u32, how: DownCause) {
        if self.hosts[index(rank)].is_open() {
            self.release_rank(rank, HostState::Closed(how));
            let peers: Vec<u32> = self.hosts[index(rank)].links.keys().copied().collect();
            for peer in peers {
                self.announce_close(rank, peer);
            }
            if how == DownCause::Failed {
                self.plan_announcement(rank);
            }
        }
    }

    pub(super) fn kill(&mut self, rank: u32) {
        if self.hosts[index(rank)].is_open() {
            self.release_rank(rank, HostState::Killed);
            self.plan_announcement(rank);
        }
    }

    pub(super) fn is_alive(&self, rank: u32) -> bool {
        self.hosts.get(index(rank)).is_some_and(SimHost::is_open)
    }

    /// Releases everything of a rank that ends: later arrivals are dropped, and its memory is not touched any more.
    fn release_rank(&mut self, rank: u32, life: HostState) {
        self.departed = true;
        let mut left = Vec::new();
        self.take(rank, u32::MAX, &mut left);
        left.into_iter()
            .for_each(|packet| self.packets.recycle(packet.bytes));
        self.ops.remove_origin(rank);
        let host = &mut self.hosts[index(rank)];
        host.state = life;
        host.bell = None;
        let parked = host.take_parked();
        host.exports = None;
        host.watches = None;
        host.lists = None;
        self.release(rank, parked);
    }

    /// Notifies a peer once that a rank has closed, after all messages to that peer. A killed rank notifies no peer. Returns
    /// true if the peer had not been notified before.
    pub(super) fn announce_close(&mut self, rank: u32, peer: u32) -> bool {
        let HostState::Closed(how) = self.hosts[index(rank)].state else {
            return false;
        };
        let at = self.local(rank) + ps(self.model.nic.command_ns);
        let link = self.link(rank, peer);
        let is_new = rank != peer && !std::mem::replace(&mut link.close_announced, true);
        if is_new {
            self.dispatch(
                at,
                SimPacket::new(rank, peer, PacketPayload::Closing(how), Vec::new()),
            );
        }
        is_new
    }

    fn plan_announcement(&mut self, rank: u32) {
        let at = self.local(rank) + ps(self.model.network.failure_ns);
        self.heap.push(at, SimEvent::FailureNotice(rank));
    }

    pub(super) fn announce_failure(&mut self, rank: u32) {
        for observer in 0..u32::try_from(self.hosts.len()).unwrap_or(u32::MAX) {
            self.report_peer_down(observer, rank, DownCause::Failed);
        }
    }

    pub(super) fn knows_down(&self, observer: u32, peer: u32) -> bool {
        let link = self.hosts[index(observer)].links.get(&peer);
        link.is_some_and(|link| link.down)
    }

    /// Notifies a rank that a peer is down, unless it knows that already.
    ///
    /// All operations between the two end before the notice, because the rank may then free memory that the peer, which may be
    /// alive, was reading.
    pub(super) fn report_peer_down(&mut self, observer: u32, peer: u32, how: DownCause) {
        if !self.hosts[index(observer)].is_open() {
            return;
        }
        let links = &mut self.hosts[index(observer)].links;
        if !std::mem::replace(&mut links.entry(peer).or_default().down, true) {
            self.departed = true;
            self.fail_between(observer, peer);
            self.put_completion(peer, observer, SimCompletion::Down(how));
        }
    }
}

fn duration_ps(time: Duration) -> SimTime {
    ps(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)).min(DURATION_MAX)
}

/// Shortest turn, so that time passes even for a program that only polls.
const TURN_MIN: SimTime = 1000;
/// Longest duration, 26 days. It can be added to any time that a simulation reaches.
const DURATION_MAX: SimTime = 1 << 61;
