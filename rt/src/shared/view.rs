//! When a thread writes this rank's view and trace: before it sleeps, at most once in a [`PERIOD`].

use super::{RuntimeShared, lock, self_deadlock::SleeperKind};
use crate::{
    clock::ClockTime,
    engine::Engine,
    view::{
        PERIOD, RankFlight, RankPhase, ViewPublisher,
        layout::{RankView, ViewHead},
    },
};

impl RuntimeShared {
    /// Publishes what this rank waits for, and writes its trace, now that a thread is about to sleep. Returns when to do so
    /// instead, if the last time was a short while ago.
    pub(super) fn publish(&self, engine: &mut Engine, sleeper: SleeperKind) -> Option<ClockTime> {
        let Some(view) = &self.backend.as_deref()?.view else {
            return engine.flush_trace_in_time(|| self.clock.now());
        };
        let mut view = lock(view);
        if matches!(sleeper, SleeperKind::Application) {
            view.note_sleeper();
        }
        let now = self.clock.now();
        let next = view.last() + PERIOD;
        if now < next && !view.is_new() {
            return Some(next);
        }
        if matches!(sleeper, SleeperKind::Agent)
            && let Some(later) = view.defers_agent(now)
        {
            let trace = engine.flush_trace_in_time(|| now);
            return Some(trace.map_or(later, |at| at.min(later)));
        }
        let mut snapshot = engine.core.published();
        snapshot.phase = match sleeper {
            SleeperKind::Agent => RankPhase::Elsewhere,
            _ => RankPhase::Waiting,
        };
        // A task on tokio says nothing about the threads of the application. The snapshot of an agent counts only while one of
        // these threads parks.
        snapshot.is_passive &= matches!(sleeper, SleeperKind::Application | SleeperKind::Agent);
        engine.flush_trace();
        engine.note_sleep();
        // A thread that parks later sees this snapshot.
        view.write(snapshot, self.seat.has_waiting(), now);
        None
    }

    /// Publishes what this rank waits for, now that a future of the application sleeps, unless that was done within the last
    /// [`PERIOD`] before `began`. A thread that spins through short sleeps never comes to [`publish`](Self::publish).
    pub(crate) fn publish_sleep(&self, engine: &mut Engine, began: ClockTime) {
        let place = self.backend.as_deref();
        let Some(view) = place.and_then(|place| place.view.as_ref()) else {
            return;
        };
        let mut view = lock(view);
        if began < view.last() + PERIOD && !view.is_new() {
            return;
        }
        let mut snapshot = engine.core.published();
        snapshot.phase = RankPhase::Waiting;
        snapshot.is_passive = false; // a timer runs
        engine.note_sleep();
        view.note_sleeper();
        view.write(snapshot, self.seat.has_waiting(), self.clock.now());
        // This thread does not sleep yet, and perhaps it never does.
        view.mark_awake(true);
    }

    /// Returns a simulated rank as a view shows it, when nothing can happen any more. The rank does not know the time.
    pub(crate) fn simulated_view(&self) -> RankView {
        let mut snapshot = self.with(|engine| engine.core.published());
        snapshot.phase = RankPhase::Waiting;
        RankView {
            head: ViewHead::new(self.place.rank.0, self.place.size, 0),
            is_current: true,
            snapshot,
            flight: RankFlight::default(),
        }
    }

    /// Records that the last snapshot describes this rank no longer, because a thread has slept and may have something to do.
    pub(super) fn mark_awake(&self, sleeper: SleeperKind) {
        let is_application = matches!(sleeper, SleeperKind::Application);
        self.change_view(|view| view.mark_awake(is_application));
    }

    /// Records whether threads of the application sleep, perhaps while the agent sits, and that this thread does or did.
    pub(super) fn mark_parked(&self) {
        self.change_view(|view| {
            view.note_sleeper();
            view.set_parked(self.seat.has_waiting());
        });
    }

    /// Ends the trace of this rank, if it records one. Returns a sentence if records are missing.
    pub(crate) fn end_trace(&self) -> Option<String> {
        self.with(Engine::take_trace)?.finish()
    }

    /// Publishes that this rank leaves its job.
    pub(crate) fn publish_end(&self) {
        self.change_view(ViewPublisher::leave);
    }

    fn change_view(&self, change: impl FnOnce(&mut ViewPublisher)) {
        let view = self
            .backend
            .as_deref()
            .and_then(|place| place.view.as_ref());
        if let Some(view) = view {
            change(&mut lock(view));
        }
    }
}
