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
        CtEvent, Process, Profile,
        convert::{self, Kind, unpack},
    },
    Port, answer, count_of, object,
};
use crate::{
    error::Error,
    event::Peer,
    interface::{Command, CtId, Local, MdId, Remote, Trigger},
    packet::Operand,
};

/// A part of a descriptor.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, clippy::exhaustive_structs, reason = "C's arguments")]
pub struct From<H> {
    pub md: H,
    pub offset: u64,
}

/// Target side of an operation, and the values that travel with it.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, clippy::exhaustive_structs, reason = "C's arguments")]
pub struct To {
    pub process: Process,
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
pub enum Operation<H, S> {
    Put(From<H>, To, S),
    Get(From<H>, To),
    Atomic(From<H>, To, S, [S; 2]),
    FetchAtomic(From<H>, From<H>, To, [S; 2]),
    Swap(From<H>, From<H>, To, *const c_void, [S; 2]),
    CtInc(H, CtEvent),
    CtSet(H, CtEvent),
}

/// Starts an operation immediately, or when a counter reaches a threshold.
pub unsafe fn start<P: Profile>(
    operation: Operation<P::Handle, P::Small>,
    when: Option<(P::Handle, u64)>,
) -> i32 {
    let started = || {
        // SAFETY: the caller's promise.
        let (ni, nic, command) = unsafe { command::<P>(operation) }?;
        let Some((ct, threshold)) = when else {
            return nic.call(|interface| interface.start(command));
        };
        match object::<P>(Kind::Ct, ct, "trig_ct_handle")? {
            (of, _, id) if of == ni => {
                let trigger = Trigger {
                    ct: CtId(id),
                    threshold,
                };
                nic.call(|interface| interface.start_when(trigger, command))
            }
            _ => Err(Error::ArgInvalid("trig_ct_handle")),
        }
    };
    answer::<P>(started())
}

unsafe fn command<P: Profile>(
    operation: Operation<P::Handle, P::Small>,
) -> Result<(u32, Port, Command), Error> {
    let numbers = P::NUMBERS;
    let atom = |[operator, datatype]: [P::Small; 2]| {
        let operator = numbers.parse_operator(operator.into())?;
        Ok((operator, numbers.parse_datatype(datatype.into())?))
    };
    let first = match operation {
        Operation::Put(from, ..) | Operation::Get(from, _) | Operation::Atomic(from, ..) => {
            object::<P>(Kind::Md, from.md, "md_handle")?
        }
        Operation::FetchAtomic(get, ..) | Operation::Swap(get, ..) => {
            object::<P>(Kind::Md, get.md, "get_md_handle")?
        }
        Operation::CtInc(ct, _) | Operation::CtSet(ct, _) => {
            object::<P>(Kind::Ct, ct, "ct_handle")?
        }
    };
    let (ni, nic, _) = &first;
    let local = |from: From<P::Handle>| local::<P>(from, *ni);
    let remote = |to: To| remote(&to, nic);
    let command = match operation {
        Operation::Put(from, to, ack) => {
            Command::Put(local(from)?, remote(to), numbers.parse_ack(ack.into())?)
        }
        Operation::Get(from, to) => Command::Get(local(from)?, remote(to)),
        Operation::Atomic(from, to, ack, kind) => {
            let ack = numbers.parse_ack(ack.into())?;
            let (operator, datatype) = atom(kind)?;
            Command::Atomic(local(from)?, remote(to), ack, operator, datatype)
        }
        Operation::FetchAtomic(get, put, to, kind) => {
            let (operator, datatype) = atom(kind)?;
            Command::FetchAtomic(local(get)?, local(put)?, remote(to), operator, datatype)
        }
        Operation::Swap(get, put, to, operand, kind) => {
            let (operator, datatype) = atom(kind)?;
            let len = if operator.takes_operand() {
                datatype.size()
            } else {
                0
            };
            // SAFETY: the caller's operand is as long as the datatype.
            let operand = unsafe { operand_of(operand.cast(), len) }?;
            Command::Swap(
                local(get)?,
                local(put)?,
                remote(to),
                operator,
                datatype,
                operand,
            )
        }
        Operation::CtInc(_, by) => Command::CtInc(CtId(first.2), count_of(by)),
        Operation::CtSet(_, to) => Command::CtSet(CtId(first.2), count_of(to)),
    };
    Ok((first.0, first.1, command))
}

fn local<P: Profile>(from: From<P::Handle>, ni: u32) -> Result<Local, Error> {
    match unpack(Kind::Md, P::bits(from.md)) {
        Some((of, id)) if of == ni => Ok(Local {
            md: MdId(id),
            offset: from.offset,
        }),
        _ => Err(Error::ArgInvalid("md_handle")),
    }
}

fn remote(to: &To, nic: &Port) -> Remote {
    let peer = if nic.call(|interface| interface.config().logical) {
        Peer::Rank(to.process.rank_or_nid)
    } else {
        Peer::At(convert::address(to.process))
    };
    Remote {
        peer,
        pt_index: to.pt_index,
        match_bits: to.match_bits,
        offset: to.offset,
        length: to.length,
        user_ptr: to.user_ptr.expose_provenance() as u64,
        hdr_data: to.hdr_data,
    }
}

unsafe fn operand_of(operand: *const u8, len: usize) -> Result<Operand, Error> {
    let mut bytes = Operand::default();
    if len > 0 && operand.is_null() {
        return Err(Error::ArgInvalid("operand"));
    }
    for (at, byte) in bytes.iter_mut().take(len).enumerate() {
        // SAFETY: inside the caller's operand.
        let place = unsafe { operand.add(at) };
        // SAFETY: as above.
        *byte = unsafe { place.read() };
    }
    Ok(bytes)
}
