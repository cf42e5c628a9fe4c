//! Puts, gets and atomics.
#![expect(unsafe_code, reason = "calls C functions")]

use super::{
    calls::{Md, PortalsNi, PortalsResult},
    event::PortalsProcess,
    profile::OperatorNumbers,
    struct_buffer::StructBuffer,
};
use crate::{
    driver::AtomicOp,
    offload::{CombineOperator, IntegerType},
};

/// Local side of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct MdSpan {
    pub(super) md: Md,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// User pointer that is returned in the event.
    pub(super) user: u64,
}

/// Remote side of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemoteTarget {
    pub(super) process: PortalsProcess,
    pub(super) pt: u32,
    pub(super) match_bits: u64,
    pub(super) offset: u64,
}

impl PortalsNi {
    /// Starts a put. With `acknowledge`, the completion event returns `user`; otherwise there is no event.
    pub(super) fn put(
        &self,
        span: MdSpan,
        remote: RemoteTarget,
        header: u64,
        acknowledge: bool,
    ) -> PortalsResult<()> {
        let ack = if acknowledge {
            self.profile().options.ack_req
        } else {
            0
        };
        // SAFETY: the function takes numbers only; memory was named to the descriptor.
        self.call("PtlPut", || unsafe {
            (self.library.symbols.put)(
                span.md.0,
                span.offset,
                span.len,
                ack,
                remote.process.bits(),
                remote.pt,
                remote.match_bits,
                remote.offset,
                span.user,
                header,
            )
        })
    }

    pub(super) fn get(&self, span: MdSpan, remote: RemoteTarget) -> PortalsResult<()> {
        // SAFETY: the function takes numbers only; memory was named to the descriptor.
        self.call("PtlGet", || unsafe {
            (self.library.symbols.get)(
                span.md.0,
                span.offset,
                span.len,
                remote.process.bits(),
                remote.pt,
                remote.match_bits,
                remote.offset,
                span.user,
            )
        })
    }

    /// Starts a 64-bit atomic. The operand is read at offset `operand` of the descriptor, and the previous value is written to
    /// `span`.
    pub(super) fn atomic(
        &self,
        span: MdSpan,
        operand: u64,
        remote: RemoteTarget,
        op: AtomicOp,
    ) -> PortalsResult<()> {
        let operators = &self.profile().operators;
        let symbols = &self.library.symbols;
        let (md, len, user) = (span.md.0, span.len, span.user);
        let (process, pt, bits) = (remote.process.bits(), remote.pt, remote.match_bits);
        let fetching = operators.of(op);
        if let Some(operator) = fetching {
            // SAFETY: the function takes numbers only; memory was named to the descriptor.
            return self.call("PtlFetchAtomic", || unsafe {
                (symbols.fetch_atomic)(
                    md,
                    span.offset,
                    md,
                    operand,
                    len,
                    process,
                    pt,
                    bits,
                    remote.offset,
                    user,
                    0,
                    operator,
                    operators.integer(IntegerType::U64),
                )
            });
        }
        let (operator, expected) = match op {
            AtomicOp::CompareSwap { expected, .. } => (operators.cswap, expected),
            _ => (operators.swap, 0),
        };
        let mut compared = StructBuffer::default();
        compared.put(0, 8, expected);
        // SAFETY: the function takes numbers, and an operand that is long enough.
        self.call("PtlSwap", || unsafe {
            (symbols.swap)(
                md,
                span.offset,
                md,
                operand,
                len,
                process,
                pt,
                bits,
                remote.offset,
                user,
                0,
                compared.read(),
                operator,
                operators.integer(IntegerType::U64),
            )
        })
    }
}

impl OperatorNumbers {
    /// Returns the operator of atomics that always write and take one operand.
    const fn of(&self, op: AtomicOp) -> Option<u32> {
        Some(match op {
            AtomicOp::Add(_) | AtomicOp::Fetch => self.sum,
            AtomicOp::And(_) => self.band,
            AtomicOp::Or(_) => self.bor,
            AtomicOp::Xor(_) => self.bxor,
            AtomicOp::Max(_) => self.max,
            AtomicOp::Min(_) => self.min,
            AtomicOp::Swap(_) | AtomicOp::CompareSwap { .. } => return None,
        })
    }

    pub(super) const fn operator(&self, operator: CombineOperator) -> u32 {
        match operator {
            CombineOperator::Sum => self.sum,
            CombineOperator::Min => self.min,
            CombineOperator::Max => self.max,
            CombineOperator::And => self.band,
            CombineOperator::Or => self.bor,
            CombineOperator::Xor => self.bxor,
        }
    }

    pub(super) const fn integer(&self, integer: IntegerType) -> u32 {
        self.integers[integer as usize]
    }
}
