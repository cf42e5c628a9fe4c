//! Operations that start immediately or when a counter reaches a threshold.
#![expect(
    unsafe_code,
    reason = "C callers give pointers to arguments and to places for results"
)]
#![expect(
    clippy::missing_safety_doc,
    reason = "the promise of all of them is at the head of the parent module"
)]

use std::ffi::c_void;

use super::{
    super::{
        FamilyAbi, PtlCtEvent, PtlProcess,
        convert::{self, PtlHandleKind, unpack},
    },
    ProcessNic, answer, count_of, object,
};
use crate::{
    error::SoftError,
    event::SoftPeer,
    interface::{CtId, CtThreshold, MdId, MdOffset, NiCommand, RequestTarget},
    packet::SwapOperand,
};

/// A part of a descriptor.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, clippy::exhaustive_structs, reason = "C's arguments")]
pub struct PtlMdOffset<H> {
    pub md: H,
    pub offset: u64,
}

/// Target side of an operation, and the values that travel with it.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, clippy::exhaustive_structs, reason = "C's arguments")]
pub struct PtlTarget {
    pub process: PtlProcess,
    pub pt_index: u32,
    pub match_bits: u64,
    pub offset: u64,
    pub length: u64,
    pub user_ptr: *mut c_void,
    pub hdr_data: u64,
}

/// An operation with C arguments.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, clippy::exhaustive_enums, reason = "C's arguments")]
pub enum PtlOperation<H, S> {
    Put(PtlMdOffset<H>, PtlTarget, S),
    Get(PtlMdOffset<H>, PtlTarget),
    Atomic(PtlMdOffset<H>, PtlTarget, S, [S; 2]),
    FetchAtomic(PtlMdOffset<H>, PtlMdOffset<H>, PtlTarget, [S; 2]),
    Swap(
        PtlMdOffset<H>,
        PtlMdOffset<H>,
        PtlTarget,
        *const c_void,
        [S; 2],
    ),
    CtInc(H, PtlCtEvent),
    CtSet(H, PtlCtEvent),
}

/// Starts an operation immediately, or when a counter reaches a threshold.
pub unsafe fn start<P: FamilyAbi>(
    operation: PtlOperation<P::Handle, P::Small>,
    when: Option<(P::Handle, u64)>,
) -> i32 {
    let started = || {
        // SAFETY: the caller's promise.
        let (ni, nic, command) = unsafe { command::<P>(operation) }?;
        let Some((ct, threshold)) = when else {
            return nic.call(|interface| interface.start(command));
        };
        match object::<P>(PtlHandleKind::Ct, ct, "trig_ct_handle")? {
            (of, _, id) if of == ni => {
                let trigger = CtThreshold {
                    ct: CtId(id),
                    threshold,
                };
                nic.call(|interface| interface.start_when(trigger, command))
            }
            _ => Err(SoftError::ArgInvalid("trig_ct_handle")),
        }
    };
    answer::<P>(started())
}

unsafe fn command<P: FamilyAbi>(
    operation: PtlOperation<P::Handle, P::Small>,
) -> Result<(u32, ProcessNic, NiCommand), SoftError> {
    let numbers = P::NUMBERS;
    let atom = |[operator, datatype]: [P::Small; 2]| {
        let operator = numbers.parse_operator(operator.into())?;
        Ok((operator, numbers.parse_datatype(datatype.into())?))
    };
    let first = match operation {
        PtlOperation::Put(from, ..)
        | PtlOperation::Get(from, _)
        | PtlOperation::Atomic(from, ..) => object::<P>(PtlHandleKind::Md, from.md, "md_handle")?,
        PtlOperation::FetchAtomic(get, ..) | PtlOperation::Swap(get, ..) => {
            object::<P>(PtlHandleKind::Md, get.md, "get_md_handle")?
        }
        PtlOperation::CtInc(ct, _) | PtlOperation::CtSet(ct, _) => {
            object::<P>(PtlHandleKind::Ct, ct, "ct_handle")?
        }
    };
    let (ni, nic, _) = &first;
    let local = |from: PtlMdOffset<P::Handle>| local::<P>(from, *ni);
    let remote = |to: PtlTarget| remote(&to, nic);
    let command = match operation {
        PtlOperation::Put(from, to, ack) => {
            NiCommand::Put(local(from)?, remote(to), numbers.parse_ack(ack.into())?)
        }
        PtlOperation::Get(from, to) => NiCommand::Get(local(from)?, remote(to)),
        PtlOperation::Atomic(from, to, ack, kind) => {
            let ack = numbers.parse_ack(ack.into())?;
            let (operator, datatype) = atom(kind)?;
            NiCommand::Atomic(local(from)?, remote(to), ack, operator, datatype)
        }
        PtlOperation::FetchAtomic(get, put, to, kind) => {
            let (operator, datatype) = atom(kind)?;
            NiCommand::FetchAtomic(local(get)?, local(put)?, remote(to), operator, datatype)
        }
        PtlOperation::Swap(get, put, to, operand, kind) => {
            let (operator, datatype) = atom(kind)?;
            let len = if operator.takes_operand() {
                datatype.size()
            } else {
                0
            };
            // SAFETY: the caller's operand is as long as the datatype.
            let operand = unsafe { operand_of(operand.cast(), len) }?;
            NiCommand::Swap(
                local(get)?,
                local(put)?,
                remote(to),
                operator,
                datatype,
                operand,
            )
        }
        PtlOperation::CtInc(_, by) => NiCommand::CtInc(CtId(first.2), count_of(by)),
        PtlOperation::CtSet(_, to) => NiCommand::CtSet(CtId(first.2), count_of(to)),
    };
    Ok((first.0, first.1, command))
}

fn local<P: FamilyAbi>(from: PtlMdOffset<P::Handle>, ni: u32) -> Result<MdOffset, SoftError> {
    match unpack(PtlHandleKind::Md, P::bits(from.md)) {
        Some((of, id)) if of == ni => Ok(MdOffset {
            md: MdId(id),
            offset: from.offset,
        }),
        _ => Err(SoftError::ArgInvalid("md_handle")),
    }
}

fn remote(to: &PtlTarget, nic: &ProcessNic) -> RequestTarget {
    let peer = if nic.call(|interface| interface.config().logical) {
        SoftPeer::Rank(to.process.rank_or_nid)
    } else {
        SoftPeer::At(convert::address(to.process))
    };
    RequestTarget {
        peer,
        pt_index: to.pt_index,
        match_bits: to.match_bits,
        offset: to.offset,
        length: to.length,
        user_ptr: to.user_ptr.expose_provenance() as u64,
        hdr_data: to.hdr_data,
    }
}

unsafe fn operand_of(operand: *const u8, len: usize) -> Result<SwapOperand, SoftError> {
    let mut bytes = SwapOperand::default();
    if len > 0 && operand.is_null() {
        return Err(SoftError::ArgInvalid("operand"));
    }
    for (at, byte) in bytes.iter_mut().take(len).enumerate() {
        // SAFETY: the place is inside the caller's operand.
        let place = unsafe { operand.add(at) };
        // SAFETY: as above.
        *byte = unsafe { place.read() };
    }
    Ok(bytes)
}
