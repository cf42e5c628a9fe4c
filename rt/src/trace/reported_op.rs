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
        let level = if record.op == TracedKind::Collective as u8 {
            LevelFilter::DEBUG
        } else {
            LevelFilter::TRACE
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

    /// Emits the event: collectives at the level DEBUG, other operations at the level TRACE.
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
        if self.record.op == TracedKind::Collective as u8 {
            let number = self.record.tag;
            tracing::debug!(target: "ripstop::collective", rank, comm, number, bytes, %at, waited_ns, failed, "{name}");
            return;
        }
        let given = |number: u32| (number != ANY).then_some(number);
        let (peer, tag) = (given(self.record.peer), given(self.record.tag));
        if self.record.op == TracedKind::Remote as u8 {
            tracing::trace!(target: "ripstop::window", rank, peer, bytes, %at, waited_ns, failed, "{name}");
        } else {
            tracing::trace!(target: "ripstop::op", rank, peer, comm, tag, bytes, %at, waited_ns, failed, "{name}");
        }
    }
}
