//! What the library reports as events of the `tracing` crate.

use std::{
    fmt::{Debug, Write},
    sync::{Arc, Mutex, OnceLock},
};

use ripstop::{Comm, RuntimeHandle};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

use super::{TraceFolder, place, text_of};

/// The events of this process, each with its level and target, and then its fields.
#[derive(Clone, Default)]
pub(crate) struct RecordedEvents(Arc<EventList>);

#[derive(Default)]
struct EventList {
    lines: Mutex<Vec<(Level, String)>>,
    /// The runtime that is asked something at each event.
    runtime: OnceLock<RuntimeHandle>,
}

struct EventText(String);

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl<S: Subscriber> Layer<S> for RecordedEvents {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut text = EventText(metadata.target().to_owned());
        event.record(&mut text);
        self.0
            .lines
            .lock()
            .unwrap()
            .push((*metadata.level(), text.0));
        // This takes the lock of the engine, which would be a deadlock if the engine reported under its lock.
        if let Some(runtime) = self.0.runtime.get() {
            drop(runtime.waiting());
        }
    }
}

impl RecordedEvents {
    pub(crate) fn start() -> Self {
        let events = Self::default();
        tracing_subscriber::registry().with(events.clone()).init();
        events
    }

    pub(crate) fn ask(&self, world: &Comm) {
        assert!(self.0.runtime.set(world.runtime().clone()).is_ok());
    }

    /// Checks what the role `events` must have reported.
    pub(crate) fn check(&self) {
        let is_traced = std::env::var_os("RIPSTOP_TRACE").is_some();
        let lines = self.0.lines.lock().unwrap();
        let count = |level: Level, parts: &[&str]| {
            let fits = |line: &&(Level, String)| {
                line.0 == level && parts.iter().all(|part| line.1.contains(part))
            };
            lines.iter().filter(fits).count()
        };
        let joined = [
            "ripstop::boot",
            "message=this rank has joined its job",
            " size=2",
        ];
        assert_eq!(count(Level::INFO, &joined), 1, "{lines:?}");
        let revoked = ["ripstop::comm", "this communicator was revoked", " comm="];
        assert_eq!(count(Level::WARN, &revoked), 1, "{lines:?}");
        let traced = usize::from(is_traced);
        let at = format!(" at={} ", place("reported"));
        let received = [
            "ripstop::op",
            "message=recv",
            " peer=",
            " tag=7",
            " bytes=16",
            &at,
        ];
        assert_eq!(count(Level::TRACE, &received), traced, "{lines:?}");
        let sent = [
            "ripstop::op",
            "message=send",
            " tag=7",
            " bytes=16",
            " comm=",
        ];
        assert_eq!(count(Level::TRACE, &sent), traced, "{lines:?}");
        let met = ["ripstop::collective", "message=barrier", " waited_ns="];
        assert_eq!(count(Level::DEBUG, &met), traced, "{lines:?}");
    }
}

#[test]
fn operations_are_reported_with_a_trace_and_never_under_the_lock() {
    let folder = TraceFolder::new("events");
    folder.trace(2, "events");
}

#[test]
fn only_life_and_trouble_are_reported_without_a_trace() {
    let folder = TraceFolder::new("few-events");
    let output = folder.run_with(2, "events", &[]);
    assert!(output.status.success(), "{}", text_of(&output));
}
