//! Operations on neighbors' memory that this process cannot load and store itself.
//!
//! Puts and gets are driver commands if there is a key to the memory. Everything else is sent as updates
//! ([`UpdateHeader`](crate::proto::wire::UpdateHeader)), which the target's engine carries out and answers without help from its
//! application.

use ripstop_fabric::driver::{CommandFailure, DownCause};

use super::{
    WindowId, WindowPart,
    number::{Combine, NumberType},
    update_queue::UpdateFragment,
    wide_element::WideElement,
};
use crate::{
    buffer::{RecvBuf, SendBuf, TypeSig},
    engine::OneSidedCommand,
    error::ErrorKind,
    group::WorldRank,
    ops::{MessageStatus, OpInfo, OpState, OpTicket},
    proto::wire::OpId,
    trace::TracedKind,
};

/// An operation that cannot start yet, because the target's greeting or lock is missing.
#[derive(Debug)]
pub(super) struct StashedOp {
    pub(super) op: OpId,
    kind: WindowOpKind,
    ranges: TargetRanges,
}

/// Effect of an operation on the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowOpKind {
    Put,
    Get,
    /// Combines every number with the one in the buffer. Fetches the old numbers if `fetch` is set.
    Update {
        number: NumberType,
        combine: Combine,
        fetch: bool,
    },
    /// Compares and swaps one number. The buffer holds the expected and the new value, and receives the old one.
    CompareSwap {
        number: NumberType,
    },
    /// Like `Update`, for elements of more than 64 bits.
    UpdateWide {
        element: WideElement,
        combine: Combine,
        fetch: bool,
    },
    /// Like `CompareSwap`, for an element of more than 64 bits.
    CompareSwapWide {
        element: WideElement,
    },
}

impl WindowOpKind {
    /// Returns the number of values in the buffer for each element of the target.
    pub(super) const fn operands(self) -> u64 {
        match self {
            Self::CompareSwap { .. } | Self::CompareSwapWide { .. } => 2,
            Self::Put | Self::Get | Self::Update { .. } | Self::UpdateWide { .. } => 1,
        }
    }

    /// Returns the bytes of one update, which has whole elements.
    fn piece(self) -> u64 {
        let elem = match self {
            Self::Put | Self::Get => 1,
            Self::Update { number, .. } | Self::CompareSwap { number } => number.len(),
            Self::UpdateWide { element, .. } | Self::CompareSwapWide { element } => element.len(),
        };
        PIECE - PIECE % elem as u64
    }
}

/// Position in the target's memory, in bytes. The total length is that of the buffer.
#[derive(Clone, Debug)]
pub(crate) enum TargetRanges {
    From(u64),
    Blocks(Box<[(u64, u64)]>),
}

impl TargetRanges {
    fn blocks(self, len: u64) -> Box<[(u64, u64)]> {
        match self {
            Self::From(at) => Box::new([(at, len)]),
            Self::Blocks(blocks) => blocks,
        }
    }
}

impl WindowPart<'_> {
    /// Starts an operation that reads `buf`.
    pub(in crate::engine) fn write_window<B: SendBuf>(
        &mut self,
        info: OpInfo,
        kind: WindowOpKind,
        ranges: TargetRanges,
        buf: B,
    ) -> OpTicket<B> {
        let ticket = self.common.ops.hold_put(info, buf);
        self.start_remote(
            &info,
            StashedOp {
                op: ticket.op,
                kind,
                ranges,
            },
        );
        ticket
    }

    /// Starts an operation that fills `buf`, and may read it first.
    pub(in crate::engine) fn fetch_window<B: RecvBuf>(
        &mut self,
        info: OpInfo,
        kind: WindowOpKind,
        ranges: TargetRanges,
        buf: B,
    ) -> OpTicket<B> {
        let ticket = self.common.ops.hold_get(info, buf);
        self.start_remote(
            &info,
            StashedOp {
                op: ticket.op,
                kind,
                ranges,
            },
        );
        ticket
    }

    fn start_remote(&mut self, info: &OpInfo, stashed: StashedOp) {
        self.common.trace_op(TracedKind::Remote, stashed.op);
        let (id, rank) = (window_of(info), info.peer.unwrap_or(WorldRank(0)));
        let down = self.common.peers.down(rank);
        // A runtime that is closing waits for operations that began earlier, and refuses new ones.
        let why = match (self.common.closing || self.common.ended, down) {
            (true, _) => Some(ErrorKind::Closed),
            (_, Some(down)) => Some(ErrorKind::of_down(rank, down)),
            _ => None,
        };
        let Some(peer_end) = self.windows.peer_end(id, rank) else {
            return self.common.complete_op(stashed.op, Err(ErrorKind::Closed));
        };
        peer_end.counters.operation_begins();
        if let Some(why) = why {
            return self.remote_over(stashed.op, Err(why));
        }
        if peer_end.freed {
            return self.remote_over(
                stashed.op,
                Err(ErrorKind::NoWindow {
                    window: id.sequence,
                }),
            );
        }
        if peer_end.may_launch() {
            return self.launch(id, rank, stashed);
        }
        peer_end.stash.push(stashed);
        if !peer_end.greeted {
            self.common
                .commands
                .push(OneSidedCommand::Greet { id, rank });
        }
    }

    /// Launches the operations that waited for a greeting or for a lock, if they may start now.
    pub(super) fn unstash(&mut self, id: WindowId, rank: WorldRank) {
        let peer_end = self
            .windows
            .peer_end(id, rank)
            .filter(|peer_end| peer_end.may_launch());
        let stash = peer_end.map(|peer_end| std::mem::take(&mut peer_end.stash));
        for stashed in stash.into_iter().flatten() {
            self.launch(id, rank, stashed);
        }
    }

    /// Hands an operation to the driver, or to the target's engine.
    fn launch(&mut self, id: WindowId, rank: WorldRank, stashed: StashedOp) {
        let StashedOp { op, kind, ranges } = stashed;
        let len = self.common.ops.live(op).area.len as u64;
        let blocks = ranges.blocks(len / kind.operands());
        let Some(end) = self.windows.ends.get_mut(&id) else {
            return;
        };
        let peer_end = end.peer_ends.get(&rank);
        let Some(peer_memory) = peer_end.and_then(|peer_end| peer_end.memory.as_ref()) else {
            return;
        };
        if peer_memory.sig != end.sig.0 {
            let (sent, expected) = (TypeSig(peer_memory.sig), end.sig);
            return self.remote_over(op, Err(ErrorKind::TypeMismatch { sent, expected }));
        }
        let (has, key) = (peer_memory.len, peer_memory.key);
        let outside = |&&(at, len): &&(u64, u64)| at.checked_add(len).is_none_or(|end| end > has);
        if let Some(&(at, len)) = blocks.iter().find(outside) {
            let why = ErrorKind::InvalidArgument(format!(
                "{len} bytes at byte {at}: rank {rank} of the world has {has} in window {}",
                id.sequence
            ));
            return self.remote_over(op, Err(why));
        }
        let commands = matches!(kind, WindowOpKind::Put | WindowOpKind::Get) && key.len >= has;
        let mut parts = Vec::new();
        let mut from = 0;
        for &(at, len) in &blocks {
            let piece = if commands { len.max(1) } else { kind.piece() };
            for offset in (0..len).step_by(usize::try_from(piece).unwrap_or(usize::MAX)) {
                let len = piece.min(len - offset);
                parts.push(UpdateFragment {
                    op,
                    id,
                    kind,
                    at: at + offset,
                    from: from + offset,
                    len,
                });
            }
            from += len;
        }
        let Ok(left) = u32::try_from(parts.len()) else {
            let why = ErrorKind::InvalidArgument(format!("{} pieces: at most 2^32", parts.len()));
            return self.remote_over(op, Err(why));
        };
        if left == 0 {
            return self.remote_over(op, Ok(()));
        }
        self.common.ops.live(op).state = OpState::Remote {
            left,
            by_message: !commands,
        };
        for part in parts {
            if !commands {
                self.queue_part(rank, part);
            } else if let Some(key) = key.slice(part.at, part.len) {
                let at = usize::try_from(part.from).unwrap_or(usize::MAX);
                self.common.commands.push(match kind {
                    WindowOpKind::Put => OneSidedCommand::Put { op, key, at },
                    _ => OneSidedCommand::Get { op, key, at },
                });
            }
        }
    }

    /// Completes one part of an operation. The buffer stays in use until all parts are complete.
    pub(in crate::engine) fn remote_part_over(&mut self, op: OpId, outcome: Result<(), ErrorKind>) {
        let Some(slot) = self.common.ops.get(op) else {
            return;
        };
        let OpState::Remote { left, by_message } = slot.state else {
            return;
        };
        if let Err(why) = outcome {
            slot.blame(why);
        }
        if left > 1 {
            slot.state = OpState::Remote {
                left: left - 1,
                by_message,
            };
            return;
        }
        let why = slot.take_why();
        self.remote_over(op, why.map_or(Ok(()), Err));
    }

    /// Completes an operation on a window.
    pub(in crate::engine) fn remote_over(&mut self, op: OpId, outcome: Result<(), ErrorKind>) {
        let slot = self.common.ops.live(op);
        let (info, bytes) = (slot.info, slot.area.len);
        let (id, rank) = (window_of(&info), info.peer.unwrap_or(WorldRank(0)));
        let landed = MessageStatus {
            source: rank,
            ..MessageStatus::sent(bytes)
        };
        self.common.complete_op(op, outcome.map(|()| landed));
        let peer_end = self.windows.peer_end(id, rank);
        if peer_end.is_some_and(|peer_end| peer_end.counters.operation_ends()) {
            self.end_access(id, rank);
            self.release_lock(id, rank);
            self.wake_window(id);
        }
    }

    /// Completes a part of an operation that the driver has failed.
    pub(in crate::engine) fn remote_failed(
        &mut self,
        op: OpId,
        target: WorldRank,
        why: CommandFailure,
    ) {
        let down = self.common.peers.down(target);
        let kind = match (why, down) {
            (_, Some(down)) => ErrorKind::of_down(target, down),
            (CommandFailure::PeerDown, None) => ErrorKind::of_down(target, DownCause::Failed),
            (CommandFailure::Transport(error), None) => ErrorKind::Transport(error.into()),
            // The range was inside the memory that the target announced, so the target must have freed its end since.
            _ => ErrorKind::NoWindow {
                window: self.common.ops.live(op).info.tag.unwrap_or_default(),
            },
        };
        self.remote_part_over(op, Err(kind));
    }

    /// Fails the updates sent to a target that is down. They can complete now, because the driver does not use their buffers.
    pub(super) fn lose_updates(&mut self, rank: WorldRank, why: DownCause) {
        self.windows.lines.remove(&rank);
        let lost = self.common.ops.select(|slot| {
            slot.info.peer == Some(rank)
                && matches!(
                    slot.state,
                    OpState::Remote {
                        by_message: true,
                        ..
                    }
                )
        });
        for op in lost {
            let _earlier = self.common.ops.live(op).take_why();
            self.remote_over(op, Err(ErrorKind::of_down(rank, why)));
        }
    }
}

fn window_of(info: &OpInfo) -> WindowId {
    WindowId {
        context: info.ctx,
        sequence: info.tag.unwrap_or_default(),
    }
}

/// Most bytes of one update. Every driver can send this amount in one message.
const PIECE: u64 = 2048;
