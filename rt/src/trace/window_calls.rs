//! Records what a rank does with its windows: which epochs are open, and when the application waits for one.

use std::{collections::BTreeMap, panic::Location, task::Waker};

use super::{
    format::{ACCESS_EPOCH, ANY, EXPOSURE_EPOCH, TraceRecord, TracedKind},
    recorder::{OpenOp, TraceRecorder},
    records::OP_RECORD,
};
use crate::{clock::machine_nanos, engine::WindowId, group::WorldRank};

/// A call of the application for a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowCall {
    pub(crate) op: &'static str,
    pub(crate) at: &'static Location<'static>,
}

/// Epochs that are open, and waits that have not ended.
#[derive(Default)]
pub(super) struct OpenWindowCalls {
    /// Waits, by the numbers of their futures among the listeners of windows.
    waits: BTreeMap<u64, OpenOp>,
    /// Epochs, by the rank whose memory they access, or `None` if they access all ranks.
    epochs: BTreeMap<(WindowId, Option<WorldRank>), OpenOp>,
    /// Exposures, by the rank that accesses them. A rank may access another one while it is exposed to that one.
    exposures: BTreeMap<(WindowId, WorldRank), OpenOp>,
}

/// An epoch of two ranks, which one begins by a post and the other by a start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairedEpoch {
    pub(crate) window: WindowId,
    pub(crate) other: WorldRank,
    /// Number of the epoch among those in which the same one of the two ranks posts. It is the same at both ranks.
    pub(crate) number: u64,
}

impl OpenWindowCalls {
    pub(super) fn into_ops(self) -> impl Iterator<Item = OpenOp> {
        let epochs = self.epochs.into_values();
        let waits = self.waits.into_values().chain(epochs);
        waits.chain(self.exposures.into_values())
    }
}

impl TraceRecorder {
    /// Records that a future waits for a window since `begin`. Does nothing if the wait is recorded already.
    pub(crate) fn window_wait_began(
        &mut self,
        listener: u64,
        id: WindowId,
        call: WindowCall,
        begin: u64,
    ) {
        if !self.window_calls.waits.contains_key(&listener) {
            let open = self.window_op(TracedKind::WindowWait, id, None, call, begin);
            self.window_calls.waits.insert(listener, open);
        }
    }

    /// Records that this future waits no more.
    #[must_use = "the waker reports the end"]
    pub(crate) fn window_wait_ended(&mut self, listener: u64) -> Option<Waker> {
        let open = self.window_calls.waits.remove(&listener)?;
        self.push_ended(open)
    }

    /// Records a wait that began at this time and has just ended.
    #[must_use = "the waker reports the end"]
    pub(crate) fn window_wait(
        &mut self,
        id: WindowId,
        call: WindowCall,
        begin: u64,
    ) -> Option<Waker> {
        let open = self.window_op(TracedKind::WindowWait, id, None, call, begin);
        self.push_ended(open)
    }

    /// Records that an epoch begins: for access to the memory of `rank`, or of all ranks if that is `None`.
    pub(crate) fn epoch_began(&mut self, id: WindowId, rank: Option<WorldRank>, call: WindowCall) {
        let open = self.window_op(TracedKind::Epoch, id, rank, call, machine_nanos());
        self.window_calls.epochs.insert((id, rank), open);
    }

    /// Records the end of an epoch that [`epoch_began`](Self::epoch_began) recorded. Does nothing if there is none.
    #[must_use = "the waker reports the end"]
    pub(crate) fn epoch_ended(&mut self, id: WindowId, rank: Option<WorldRank>) -> Option<Waker> {
        let open = self.window_calls.epochs.remove(&(id, rank))?;
        self.push_ended(open)
    }

    /// Records that this rank may access the memory of another rank, which has posted.
    pub(crate) fn access_began(&mut self, epoch: PairedEpoch, at: &'static Location<'static>) {
        let op = ACCESS_EPOCH;
        let open = self.paired_epoch(epoch, WindowCall { op, at });
        let key = (epoch.window, Some(epoch.other));
        self.window_calls.epochs.insert(key, open);
    }

    /// Records that this rank is about to post to another rank.
    pub(crate) fn exposure_began(&mut self, epoch: PairedEpoch, at: &'static Location<'static>) {
        let op = EXPOSURE_EPOCH;
        let open = self.paired_epoch(epoch, WindowCall { op, at });
        let key = (epoch.window, epoch.other);
        self.window_calls.exposures.insert(key, open);
    }

    /// Records the end of an exposure that [`exposure_began`](Self::exposure_began) recorded. Does nothing if there is none.
    #[must_use = "the waker reports the end"]
    pub(crate) fn exposure_ended(&mut self, id: WindowId, origin: WorldRank) -> Option<Waker> {
        let open = self.window_calls.exposures.remove(&(id, origin))?;
        self.push_ended(open)
    }

    fn paired_epoch(&mut self, epoch: PairedEpoch, call: WindowCall) -> OpenOp {
        let (kind, other) = (TracedKind::Epoch, Some(epoch.other));
        let mut open = self.window_op(kind, epoch.window, other, call, machine_nanos());
        open.record.number = epoch.number;
        open
    }

    fn window_op(
        &mut self,
        kind: TracedKind,
        id: WindowId,
        rank: Option<WorldRank>,
        call: WindowCall,
        begin: u64,
    ) -> OpenOp {
        let awaited = if kind == TracedKind::WindowWait {
            begin
        } else {
            0
        };
        let record = TraceRecord {
            kind: OP_RECORD,
            op: kind as u8,
            at: self.line(call.at),
            name: self.name(call.op),
            begin,
            awaited,
            peer: rank.map_or(ANY, |rank| rank.0),
            tag: id.sequence,
            comm: id.context & !1,
            ..TraceRecord::default()
        };
        OpenOp::without_op(record, call.at)
    }
}
