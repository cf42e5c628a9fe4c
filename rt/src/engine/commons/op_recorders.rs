//! What records the operations of this rank: its trace, and the flight ring of its view.

use crate::{
    trace::TraceRecorder,
    view::{FlightRecorder, RecordedTotals},
};

/// Recorders of operations. A simulated rank has none, and takes no memory for them.
#[derive(Default)]
pub(in crate::engine) struct OpRecorders(Option<Box<BoxedRecorders>>);

#[derive(Default)]
struct BoxedRecorders {
    /// Records all operations, if the rank was started with `RIPSTOP_TRACE`.
    trace: Option<TraceRecorder>,
    /// Records operations that wait, if the rank has a view.
    flight: Option<FlightRecorder>,
}

impl OpRecorders {
    pub(in crate::engine) fn set_trace(&mut self, recorder: TraceRecorder) {
        self.0.get_or_insert_default().trace = Some(recorder);
    }

    pub(in crate::engine) fn set_flight(&mut self, recorder: FlightRecorder) {
        self.0.get_or_insert_default().flight = Some(recorder);
    }

    pub(in crate::engine) fn take_trace(&mut self) -> Option<TraceRecorder> {
        self.0.as_mut()?.trace.take()
    }

    pub(in crate::engine) fn has_trace(&self) -> bool {
        self.0.as_ref().is_some_and(|all| all.trace.is_some())
    }

    #[inline]
    pub(in crate::engine) fn trace(&mut self) -> Option<&mut TraceRecorder> {
        self.0.as_mut()?.trace.as_mut()
    }

    #[inline]
    pub(in crate::engine) fn flight(&mut self) -> Option<&mut FlightRecorder> {
        self.0.as_mut()?.flight.as_mut()
    }

    /// Returns what the operations that were traced so far have moved and waited for; `None` without a trace.
    pub(in crate::engine) fn traced_totals(&self) -> Option<RecordedTotals> {
        Some(self.0.as_ref()?.trace.as_ref()?.totals())
    }

    /// Returns the number of events that this rank has noted in its flight ring; `None` without one.
    pub(in crate::engine) fn noted_events(&self) -> Option<u64> {
        Some(self.0.as_ref()?.flight.as_ref()?.events())
    }
}
