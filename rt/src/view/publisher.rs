//! Writes the view of a rank.

use std::{
    collections::BTreeMap,
    io, mem,
    os::fd::{AsFd, OwnedFd},
};

use bytemuck::bytes_of;
use ripstop_fabric::memory::MemoryRegion;
use rustix::{io::pwrite, thread::gettid};

use super::{
    FlightRecorder, PERIOD, RankPhase, RankSnapshot,
    layout::{AWAKE, PULSE_AT, SLOTS_AT, VIEW_LEN, VIEW_NAME, ViewHead, ViewPulse, encode},
};
use crate::{
    boot::Boot,
    clock::{ClockTime, machine_nanos},
};

/// The rank's own end of its view. A rank that cannot write has no view, and is otherwise as every rank.
#[derive(Debug)]
pub(crate) struct ViewPublisher {
    memory: MemoryRegion,
    head: ViewHead,
    /// Number of the last snapshot.
    number: u64,
    /// Time of the last snapshot.
    last: ClockTime,
    /// True until the rank has published what it waits for.
    is_new: bool,
    /// True while the last snapshot describes the rank.
    is_current: bool,
    /// Phase of the last snapshot.
    phase: RankPhase,
    /// Thread of the application that slept in the runtime last, or that joined the job.
    thread: u32,
    /// True if a thread of the application has slept in the runtime since the agent last wanted to publish.
    has_application_slept: bool,
    /// Time before which the agent publishes nothing.
    agent_from: ClockTime,
    /// True while a thread of the application is known to sleep although the agent has published the snapshot.
    is_parked: bool,
    last_shape: Box<LastShape>,
}

/// What the last snapshot has shown.
#[derive(Debug, Default)]
struct LastShape {
    /// Operations, and since when they have been in flight.
    known: BTreeMap<u64, u64>,
    /// Receives posted, messages arrived and operations ended.
    counts: [u64; 3],
    phase: RankPhase,
    /// Time since which this has not changed.
    quiet_since: u64,
}

impl LastShape {
    /// Takes over what a new snapshot shows, and completes the snapshot with the times since when it has been so.
    fn change(&mut self, snapshot: &mut RankSnapshot) {
        for wait in &mut snapshot.waits {
            wait.since = self.known.get(&wait.id).copied().unwrap_or(snapshot.taken);
        }
        let known = snapshot.waits.iter().map(|wait| (wait.id, wait.since));
        let known: BTreeMap<u64, u64> = known.collect();
        let counts = [snapshot.posted, snapshot.arrived, snapshot.ended];
        let is_same = (&known, counts, snapshot.phase) == (&self.known, self.counts, self.phase);
        snapshot.quiet_since = if is_same {
            self.quiet_since
        } else {
            snapshot.taken
        };
        *self = Self {
            known,
            counts,
            phase: snapshot.phase,
            quiet_since: snapshot.quiet_since,
        };
    }
}

impl ViewPublisher {
    /// Makes the view of a rank that is a process. Ranks that are threads have none, because readers look for processes.
    pub(crate) fn of_process(boot: &Boot) -> Option<Self> {
        if boot.found == "threads" {
            return None;
        }
        Self::named(VIEW_NAME, boot)
    }

    /// Makes the view of a rank that is a thread, for readers in its process. It has another name, so others do not find it.
    pub(crate) fn of_thread(boot: &Boot) -> Option<Self> {
        Self::named("ripstop-thread-view", boot)
    }

    fn named(name: &str, boot: &Boot) -> Option<Self> {
        let memory = MemoryRegion::create(name, VIEW_LEN, false).ok()?;
        let head = ViewHead::new(boot.rank, boot.size, 0);
        Some(Self::new(memory, head))
    }

    /// Returns the memory, which is readable also after the rank has ended.
    pub(crate) fn memory(&self) -> io::Result<OwnedFd> {
        self.memory.as_fd().try_clone_to_owned()
    }

    /// Returns the recorder of the view's flight ring. A view has one.
    pub(crate) fn flight_recorder(&self) -> FlightRecorder {
        FlightRecorder::new(self.memory.clone())
    }

    fn new(memory: MemoryRegion, head: ViewHead) -> Self {
        let mut view = Self {
            memory,
            head,
            number: 0,
            last: ClockTime::default(),
            is_new: true,
            is_current: false,
            phase: RankPhase::Starting,
            thread: this_thread(),
            has_application_slept: false,
            agent_from: ClockTime::default(),
            is_parked: false,
            last_shape: Box::default(),
        };
        view.write_snapshot(RankSnapshot::default());
        view.write_head();
        view
    }

    /// Records that the rank has met the others of its node, and the number that they have in common.
    pub(crate) fn joined(mut self, job: u64) -> Self {
        self.head.job = job;
        self.write_head();
        // A rank that never sleeps says nothing more.
        self.write_snapshot(RankSnapshot {
            phase: RankPhase::Elsewhere,
            has_all_peers: true, // there are none yet
            ..RankSnapshot::default()
        });
        self.mark_awake(false);
        self
    }

    pub(crate) fn last(&self) -> ClockTime {
        self.last
    }

    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Writes what the rank waits for. `is_parked` is true if a thread of the application sleeps, which may be another one than
    /// the one that writes.
    pub(crate) fn write(&mut self, snapshot: RankSnapshot, is_parked: bool, now: ClockTime) {
        self.last = now;
        // The agent sleeps on after the rank has left.
        if self.phase == RankPhase::Left {
            return;
        }
        self.is_new = false;
        self.is_parked = is_parked;
        self.write_snapshot(snapshot);
    }

    /// Records that the calling thread of the application is about to sleep in the runtime, or has just slept there.
    pub(crate) fn note_sleeper(&mut self) {
        self.thread = this_thread();
    }

    /// Returns the time until which the agent is to wait before it publishes, because a thread of the application has slept in
    /// the runtime less than a period ago. A rank whose sleeps are short is not elsewhere when the agent sleeps between them.
    pub(crate) fn defers_agent(&mut self, now: ClockTime) -> Option<ClockTime> {
        if mem::take(&mut self.has_application_slept) && !self.is_new {
            self.agent_from = now + PERIOD;
        }
        (now < self.agent_from).then_some(self.agent_from)
    }

    /// Records that a thread of the application sleeps while the agent sits, or no longer does.
    pub(crate) fn set_parked(&mut self, is_parked: bool) {
        let matters = self.is_current && self.phase == RankPhase::Elsewhere;
        if matters && self.is_parked != is_parked {
            self.is_parked = is_parked;
            self.write_pulse(self.number);
        }
    }

    /// Records that the last snapshot does not describe the rank any more. Whether a thread of the application sleeps is not
    /// known until the next one. A question of another rank may have woken the agent, so the last answer stands meanwhile.
    /// `is_application` is true if a thread of the application has slept.
    pub(crate) fn mark_awake(&mut self, is_application: bool) {
        self.has_application_slept |= is_application;
        if self.is_current && self.phase != RankPhase::Left {
            self.is_current = false;
            self.write_pulse(AWAKE);
        }
    }

    /// Writes that the rank has left its job.
    pub(crate) fn leave(&mut self) {
        let phase = RankPhase::Left;
        self.write_snapshot(RankSnapshot {
            phase,
            ..RankSnapshot::default()
        });
    }

    fn write_snapshot(&mut self, mut snapshot: RankSnapshot) {
        self.number += 1;
        snapshot.number = self.number;
        snapshot.taken = machine_nanos();
        snapshot.thread = self.thread;
        self.last_shape.change(&mut snapshot);
        let slot = SLOTS_AT[usize::from(self.number.is_multiple_of(2))];
        self.put(&encode(&snapshot), slot);
        self.is_current = true;
        self.phase = snapshot.phase;
        self.write_pulse(self.number);
    }

    fn write_pulse(&self, current: u64) {
        let parked = u64::from(self.is_parked);
        self.put(bytes_of(&ViewPulse { current, parked }), PULSE_AT);
    }

    fn write_head(&self) {
        self.put(bytes_of(&self.head), 0);
    }

    /// Writes without a report of failure: what cannot be written is missing, and the rank goes on without it.
    fn put(&self, bytes: &[u8], at: u64) {
        let _ = pwrite(&self.memory, bytes, at);
    }
}

fn this_thread() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::{super::layout::RankView, *};

    #[test]
    fn a_rank_that_only_looks_again_stays_quiet() {
        let mut shape = LastShape::default();
        let mut quiet_since = |taken, ended| {
            let mut snapshot = RankSnapshot {
                taken,
                ended,
                phase: RankPhase::Waiting,
                ..RankSnapshot::default()
            };
            shape.change(&mut snapshot);
            snapshot.quiet_since
        };
        assert_eq!((quiet_since(7, 1), quiet_since(8, 1)), (7, 7));
        assert_eq!((quiet_since(9, 2), quiet_since(10, 2)), (9, 9));
    }

    #[test]
    fn a_rank_that_has_left_stays_left_whatever_its_agent_writes() {
        let memory = MemoryRegion::create("ripstop-test-view", VIEW_LEN, false).unwrap();
        let mut view = ViewPublisher::new(memory, ViewHead::new(0, 1, 0)).joined(7);
        let elsewhere = || RankSnapshot {
            phase: RankPhase::Elsewhere,
            ..RankSnapshot::default()
        };
        let read = |view: &ViewPublisher| {
            let read = RankView::read(&view.memory).unwrap();
            (read.snapshot.phase, read.is_current)
        };
        view.write(elsewhere(), false, ClockTime::default());
        assert_eq!(read(&view), (RankPhase::Elsewhere, true));
        view.mark_awake(false);
        assert_eq!(read(&view), (RankPhase::Elsewhere, false));
        view.leave();
        view.write(elsewhere(), true, ClockTime::default());
        view.set_parked(true);
        view.mark_awake(false);
        assert_eq!(read(&view), (RankPhase::Left, true));
    }

    #[test]
    fn the_agent_waits_for_a_period_in_which_no_thread_of_the_application_sleeps() {
        let memory = MemoryRegion::create("ripstop-test-view", VIEW_LEN, false).unwrap();
        let mut view = ViewPublisher::new(memory, ViewHead::new(0, 1, 0)).joined(7);
        let waiting = || RankSnapshot {
            phase: RankPhase::Waiting,
            ..RankSnapshot::default()
        };
        view.write(waiting(), false, ClockTime::default());
        let now = ClockTime::default() + PERIOD;
        assert_eq!(view.defers_agent(now), None, "no sleep has ended");
        view.mark_awake(true);
        assert_eq!(view.defers_agent(now), Some(now + PERIOD));
        let last = ClockTime::default();
        assert_eq!(view.last(), last, "the application may publish meanwhile");
        assert_eq!(view.defers_agent(now + PERIOD), None, "it computes now");
    }

    #[test]
    fn a_view_names_the_thread_that_slept_last() {
        let memory = MemoryRegion::create("ripstop-test-view", VIEW_LEN, false).unwrap();
        let mut view = ViewPublisher::new(memory, ViewHead::new(0, 1, 0)).joined(7);
        let thread = |view: &ViewPublisher| RankView::read(&view.memory).unwrap().snapshot.thread;
        assert_eq!(thread(&view), this_thread());
        let other = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                view.note_sleeper();
                view.write(RankSnapshot::default(), false, ClockTime::default());
                this_thread()
            });
            sleeper.join().unwrap()
        });
        assert_ne!(other, this_thread());
        assert_eq!(thread(&view), other);
    }
}
