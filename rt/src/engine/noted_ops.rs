//! What the engine notes in the flight ring of the rank's view (rt/src/view/flight): operations that do not end at their call.

use super::{Engine, EngineCommons, commons::op_recorders::OpRecorders};
use crate::{
    clock::machine_nanos,
    ops::{MessageStatus, OpInfo, OpSlot, OpState},
    proto::wire::OpId,
    view::{FlightEvent, FlightKind, FlightNote, FlightRecorder},
};

impl Engine {
    /// Notes operations from now on.
    pub(crate) fn start_flight(&mut self, recorder: FlightRecorder) {
        self.core.p2p.common.recorders.set_flight(recorder);
    }

    /// Notes that this rank is about to sleep.
    pub(crate) fn note_sleep(&mut self) {
        if let Some(flight) = self.core.p2p.common.recorders.flight() {
            flight.note_sleep(machine_nanos());
        }
    }
}

impl EngineCommons {
    /// Counts events that a turn has handled.
    #[inline]
    pub(super) fn note_events(&mut self, events: u32) {
        if events > 0
            && let Some(flight) = self.recorders.flight()
        {
            flight.count_events(events);
        }
    }

    /// Notes that an operation has begun, or that a future begins to wait for a receive.
    #[inline]
    pub(super) fn note_begin(&mut self, op: OpId) {
        if let Some(flight) = self.recorders.flight()
            && let Some(slot) = self.ops.get(op)
            && let Some(kind) = kind_of(&slot.state, &slot.info)
        {
            let note = note_of(FlightEvent::Begun, kind, &slot.info, slot.area.len);
            flight.note(note, slot.info.at);
        }
    }

    /// Notes that a future begins to wait for an operation. A receive is noted as begun only now; other operations were noted at
    /// their call.
    #[inline]
    pub(super) fn note_wait(&mut self, op: OpId) {
        if self.recorders.flight().is_none() {
            return;
        }
        let slot = self.ops.live(op);
        let begins = matches!(
            slot.state,
            OpState::Posted(_)
                | OpState::Landing(_)
                | OpState::AwaitsPacking(_)
                | OpState::Following { .. }
        );
        if begins && slot.waker.is_none() {
            self.note_begin(op);
        }
    }
}

impl OpRecorders {
    /// Notes that an operation ends, which is not complete yet: with what it has received or sent, or in an error.
    #[inline]
    pub(super) fn note_end(&mut self, slot: &OpSlot, outcome: Option<&MessageStatus>) {
        let Some(flight) = self.flight() else {
            return;
        };
        let is_at_once = match slot.state {
            OpState::Posted(_)
            | OpState::Expected
            | OpState::Landing(_)
            | OpState::AwaitsPacking(_)
            | OpState::Following { .. } => true,
            // A receive that was not posted is queued, too. Only its failures come here, and the ends of probes and of receives
            // that read a message in place.
            OpState::Queued => slot.info.probe || slot.reads_in_place() || outcome.is_none(),
            _ => false,
        };
        if is_at_once && slot.waker.is_none() {
            return; // no future has waited for it
        }
        let Some(kind) = kind_of(&slot.state, &slot.info) else {
            return;
        };
        let event = match outcome {
            Some(_) => FlightEvent::Ended,
            None => FlightEvent::Failed,
        };
        let mut note = note_of(event, kind, &slot.info, slot.area.len);
        if let Some(landed) = outcome
            && matches!(kind, FlightKind::Recv | FlightKind::Probe)
        {
            (note.peer, note.tag) = (Some(landed.source.0), Some(landed.tag));
            note.bytes = landed.bytes;
        }
        flight.note(note, slot.info.at);
    }
}

fn note_of(event: FlightEvent, kind: FlightKind, info: &OpInfo, bytes: usize) -> FlightNote {
    FlightNote {
        event,
        kind,
        peer: info.peer.map(|rank| rank.0),
        tag: info.tag,
        comm: info.ctx & !1,
        bytes,
    }
}

/// Returns the kind of an operation; `None` if it is complete, a part of a collective, or a message by which the runtime makes
/// communicators and windows.
fn kind_of(state: &OpState, info: &OpInfo) -> Option<FlightKind> {
    let is_of_application = info.ctx.is_multiple_of(2);
    match state {
        OpState::Running => Some(FlightKind::Collective),
        OpState::Remote { .. } => Some(FlightKind::Access),
        OpState::Free | OpState::Done(_) | OpState::Failed | OpState::Lost => None,
        _ if !is_of_application => None,
        _ if info.probe => Some(FlightKind::Probe),
        state if state.is_sending() => Some(FlightKind::Send),
        _ => Some(FlightKind::Recv),
    }
}
