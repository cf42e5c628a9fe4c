//! Operations that have ended, as events of the `tracing` crate.

use std::{panic::Location, sync::Arc, task::Waker};

use tracing::level_filters::LevelFilter;

use super::format::{ANY, TraceRecord, TracedKind, TracedOp};
use crate::engine::LibraryEvent;

/// An operation that has ended, with what its record says.
pub(crate) struct ReportedOp {
    rank: u32,
    record: TraceRecord,
    name: String,
    at: &'static Location<'static>,
}

impl ReportedOp {
    /// Returns a waker that emits the event, if a subscriber may want events of this level. It is not asked here, because the
    /// engine is locked.
    pub(super) fn waker(
        rank: u32,
        record: &TraceRecord,
        name: impl FnOnce() -> String,
        at: &'static Location<'static>,
    ) -> Option<Waker> {
        let level = match TracedKind::of(record.op) {
            Some(TracedKind::Collective | TracedKind::WindowWait | TracedKind::Epoch) => {
                LevelFilter::DEBUG
            }
            _ => LevelFilter::TRACE,
        };
        (level <= LevelFilter::current()).then(|| {
            let op = Self {
                rank,
                record: *record,
                name: name(),
                at,
            };
            Waker::from(Arc::new(LibraryEvent::Ended(op)))
        })
    }

    /// Emits the event: collectives, epochs and waits for windows at the level DEBUG, other operations at the level TRACE.
    pub(crate) fn emit(&self) {
        let (rank, bytes, comm) = (self.rank, self.record.bytes, self.record.comm);
        let (name, at) = (
            &*self.name,
            format_args!("{}:{}", self.at.file(), self.at.line()),
        );
        let awaited = Some(self.record.awaited).filter(|time| *time > 0);
        let waited_ns = awaited.map_or(0, |from| {
            let from = from.max(self.record.begin);
            self.record.end.saturating_sub(from)
        });
        let failed = self.record.flags & TracedOp::FAILED != 0;
        let given = |number: u32| (number != ANY).then_some(number);
        let (peer, tag) = (given(self.record.peer), given(self.record.tag));
        match TracedKind::of(self.record.op) {
            Some(TracedKind::Collective) => {
                tracing::debug!(
                    target: "ripstop::collective", rank, comm, number = tag, bytes, %at, waited_ns, failed, "{name}"
                );
            }
            Some(TracedKind::WindowWait | TracedKind::Epoch) => {
                let ns = self.record.end.saturating_sub(self.record.begin);
                tracing::debug!(target: "ripstop::window", rank, peer, comm, window = tag, %at, waited_ns, ns, "{name}");
            }
            Some(TracedKind::Phase) => {
                let number = self.record.number;
                tracing::trace!(target: "ripstop::collective", rank, peer, comm, number, bytes, %at, "{name}");
            }
            Some(TracedKind::Remote) => {
                tracing::trace!(target: "ripstop::window", rank, peer, bytes, %at, waited_ns, failed, "{name}");
            }
            _ => {
                tracing::trace!(target: "ripstop::op", rank, peer, comm, tag, bytes, %at, waited_ns, failed, "{name}");
            }
        }
    }
}
