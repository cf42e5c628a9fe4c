//! Turns of hosts: which one runs, when, and for how long.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{
    super::{
        heap::{EventHeap, NEVER, SimEvent, SimTime},
        slab::index,
        world::ps,
    },
    RunningTurn, SimHosts,
};

impl SimHosts {
    /// Returns the turn in progress.
    pub(in crate::sim) const fn running(&self) -> Option<&RunningTurn> {
        self.running.as_ref()
    }

    pub(in crate::sim) fn clock(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.clock)
    }

    pub(in crate::sim) fn publish_clock(&self, at: SimTime) {
        self.clock.store(at / 1000, Relaxed);
    }

    /// Returns the time on a host: within its turn, or when it could begin one.
    pub(in crate::sim) fn local(&self, rank: u32, now: SimTime) -> SimTime {
        match &self.running {
            Some(running) if running.rank == rank => running.local,
            _ => now.max(self.hosts[index(rank)].free_at),
        }
    }

    /// Keeps a host busy for `time`. Returns when it is free again.
    pub(in crate::sim) fn spend(&mut self, rank: u32, time: SimTime, now: SimTime) -> SimTime {
        let done = self.local(rank, now).saturating_add(time);
        match &mut self.running {
            Some(running) if running.rank == rank => running.local = done,
            _ => self.hosts[index(rank)].free_at = done,
        }
        self.publish_clock(done);
        done
    }

    /// Has a host check for work, because something arrived for it.
    pub(in crate::sim) fn notify(&mut self, rank: u32, heap: &mut EventHeap) {
        if let Some(bells) = &mut self.bells {
            return bells.ring(rank);
        }
        let (costs, now) = (&self.model.host, heap.now());
        let host = &mut self.hosts[index(rank)];
        let asleep = now >= host.free_at;
        if !asleep && host.computing && costs.interrupts && !costs.agent {
            host.free_at += ps(costs.wake_ns);
            heap.push(host.free_at, SimEvent::Resume(rank));
        }
        // An agent sleeps whenever it has nothing to do, even where a waiting application would poll all the time.
        let agent_sleeps = !asleep && host.computing && costs.agent && now >= host.agent_free_at;
        let wake = if asleep && !costs.polls || agent_sleeps {
            costs.wake_ns
        } else {
            0
        };
        host.look_at(rank, now + ps(costs.detect_ns + wake), heap);
    }

    /// Makes a turn at a scheduled check, or reschedules it if the host is busy.
    pub(in crate::sim) fn run_check(&mut self, rank: u32, ticket: u32, heap: &mut EventHeap) {
        let (agent, now) = (self.model.host.agent, heap.now());
        let host = &mut self.hosts[index(rank)];
        if ticket != host.ticket || !host.is_open() {
            return;
        }
        let for_agent = agent && host.computing && now < host.free_at;
        let free_at = if for_agent {
            host.agent_free_at
        } else {
            host.free_at
        };
        if now < free_at {
            host.due = NEVER;
            return host.look_at(rank, free_at, heap);
        }
        self.start_turn(rank, for_agent, now);
    }

    /// Makes a turn after a computation, unless the host was stopped meanwhile.
    pub(in crate::sim) fn resume(&mut self, rank: u32, now: SimTime) {
        let host = &self.hosts[index(rank)];
        if host.computing && now == host.free_at && host.is_open() {
            self.start_turn(rank, false, now);
        }
    }

    fn start_turn(&mut self, rank: u32, computing: bool, now: SimTime) {
        let host = &mut self.hosts[index(rank)];
        host.computing = computing;
        host.due = NEVER;
        host.ticket = host.ticket.wrapping_add(1);
        host.counts.turns += 1;
        self.running = Some(RunningTurn {
            rank,
            computing,
            start: now,
            local: now,
            work: 0,
            woken: false,
        });
    }

    pub(in crate::sim) fn end_turn(
        &mut self,
        rank: u32,
        deadline: Option<u64>,
        heap: &mut EventHeap,
    ) {
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
                heap.push(host.free_at, SimEvent::Resume(rank));
            }
        } else {
            host.free_at = end;
        }
        // Tasks cannot be polled while the application computes.
        let woken = turn.woken && !turn.computing;
        let again = woken || host.has_room_again || !host.inbox.is_empty();
        if turn.work > 0 {
            self.begin_work(rank, turn.work, heap);
        }
        let deadline = deadline.map_or(NEVER, ps);
        let next = if again { end } else { deadline.max(end) };
        if next < NEVER {
            self.hosts[index(rank)].look_at(rank, next, heap);
        }
    }

    pub(in crate::sim) fn wake(&mut self, rank: u32, heap: &mut EventHeap) {
        let host = &mut self.hosts[index(rank)];
        match &mut self.running {
            Some(running) if running.rank == rank => running.woken = true,
            _ if host.computing => {} // it gets its turn after the computation
            running => {
                let at = running
                    .as_ref()
                    .map_or_else(|| heap.now(), |running| running.local);
                host.look_at(rank, at.max(host.free_at), heap);
            }
        }
    }

    pub(in crate::sim) fn compute(&mut self, rank: u32, time: Duration, heap: &mut EventHeap) {
        let time = duration_ps(time).max(TURN_MIN);
        match &mut self.running {
            Some(running) if running.rank == rank => running.work += time,
            _ => self.begin_work(rank, time, heap),
        }
    }

    fn begin_work(&mut self, rank: u32, work: SimTime, heap: &mut EventHeap) {
        let start = self.local(rank, heap.now());
        let end = self.detours.end(rank, start, work);
        let host = &mut self.hosts[index(rank)];
        host.computing = true;
        host.free_at = end;
        host.agent_free_at = host.agent_free_at.max(start);
        heap.push(host.free_at, SimEvent::Resume(rank));
    }

    pub(in crate::sim) fn pause(&mut self, rank: u32, time: Duration, heap: &mut EventHeap) {
        let end = self.spend(rank, duration_ps(time), heap.now());
        let host = &mut self.hosts[index(rank)];
        host.agent_free_at = host.agent_free_at.max(end);
        if host.computing {
            heap.push(end, SimEvent::Resume(rank));
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
