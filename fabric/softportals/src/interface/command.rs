//! Operations that start immediately or when a counter reaches a threshold.

use super::{CtId, INCREMENT, MdId, SoftInterface};
use crate::{
    atomic::{AtomicDatatype, AtomicOperator},
    counter::SoftCtValue,
    error::SoftError,
    event::{PhysicalId, SoftPeer},
    memory::AppMemory,
    packet::SwapOperand,
};

/// A command for the interface.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum NiCommand {
    /// Writes local memory to the target.
    Put(MdOffset, RequestTarget, AckRequest),
    /// Reads the target's memory.
    Get(MdOffset, RequestTarget),
    /// Combines the target's memory with local memory.
    Atomic(
        MdOffset,
        RequestTarget,
        AckRequest,
        AtomicOperator,
        AtomicDatatype,
    ),
    /// Like `Atomic`, and returns the previous value: into the first local memory, from the second.
    FetchAtomic(
        MdOffset,
        MdOffset,
        RequestTarget,
        AtomicOperator,
        AtomicDatatype,
    ),
    /// Replaces the target's memory with local memory if the operand allows it, and returns the previous value.
    Swap(
        MdOffset,
        MdOffset,
        RequestTarget,
        AtomicOperator,
        AtomicDatatype,
        SwapOperand,
    ),
    /// Adds to a counter.
    CtInc(CtId, SoftCtValue),
    /// Sets a counter.
    CtSet(CtId, SoftCtValue),
}

/// A part of a descriptor's memory, as long as the operation.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct MdOffset {
    /// The descriptor.
    pub md: MdId,
    /// Offset in the descriptor's memory.
    pub offset: u64,
}

/// Target side of an operation, and the values that travel with it.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct RequestTarget {
    /// The target.
    pub peer: SoftPeer,
    /// Portal table entry at the target.
    pub pt_index: u32,
    /// Match bits compared with the target's entries.
    pub match_bits: u64,
    /// Offset in the target entry's memory.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Pointer returned in the initiator's events.
    pub user_ptr: u64,
    /// Out-of-band data for the target's events.
    pub hdr_data: u64,
}

/// Acknowledgment that the initiator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AckRequest {
    /// No acknowledgment.
    No,
    /// An ACK event and a count.
    Full,
    /// Only a count.
    Count,
    /// Only a count, with no details except that the operation ended.
    Completed,
}

/// A counter and the threshold for its successes and failures together.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct CtThreshold {
    /// The counter.
    pub ct: CtId,
    /// Smallest sum that triggers the operation.
    pub threshold: u64,
}

impl<M: AppMemory> SoftInterface<M> {
    /// Starts an operation immediately.
    ///
    /// # Errors
    /// `ArgInvalid`, which names the wrong argument.
    pub fn start(&mut self, command: NiCommand) -> Result<(), SoftError> {
        self.check(&command)?;
        self.execute(command);
        self.run_triggered();
        Ok(())
    }

    /// Starts an operation once the counter reaches the threshold.
    ///
    /// The operation uses the memory contents of that moment. Operations of one counter start in the order of their thresholds;
    /// operations with equal thresholds start in the order of these calls. O(log n) in the operations that wait.
    ///
    /// # Errors
    /// `ArgInvalid`, which names the wrong argument; `NoSpace` if too many operations wait for the counter.
    pub fn start_when(
        &mut self,
        trigger: CtThreshold,
        command: NiCommand,
    ) -> Result<(), SoftError> {
        self.check(&command)?;
        let most = self.config.limits.max_triggered_ops as usize;
        let counter = self.counters.get_mut(trigger.ct.0);
        let counter = counter.ok_or(SoftError::ArgInvalid("trig_ct_handle"))?;
        let due = counter.count.sum() >= trigger.threshold;
        if !due && counter.waiting() >= most {
            return Err(SoftError::NoSpace);
        }
        counter.post(trigger.threshold, command);
        if due {
            self.changed(trigger.ct);
            self.run_triggered();
        }
        Ok(())
    }

    /// Starts the operations that are due on the counters that changed, which may change further counters.
    pub(super) fn run_triggered(&mut self) {
        while let Some(ct) = self.moved.pop_front() {
            while let Some(command) = self.counters.get_mut(ct).and_then(|ct| ct.fire()) {
                self.execute(command);
            }
        }
    }

    fn execute(&mut self, command: NiCommand) {
        match command {
            NiCommand::CtInc(ct, by) => self.count(Some(ct), by),
            NiCommand::CtSet(ct, to) => {
                if let Ok(counter) = self.counter(ct) {
                    counter.count = to;
                    self.changed(ct);
                }
            }
            // A descriptor or counter may have been freed since the command was posted. Then there is nothing to send and no
            // queue to notify.
            _ if self.check(&command).is_ok() => self.initiate(command),
            _ => {}
        }
    }

    fn check(&self, command: &NiCommand) -> Result<(), SoftError> {
        let limits = &self.config.limits;
        match *command {
            NiCommand::Put(local, remote, _) | NiCommand::Get(local, remote) => {
                self.check_local(local, remote.length, "md_handle")?;
                self.check_remote(&remote, limits.max_msg_size)
            }
            NiCommand::Atomic(local, remote, _, operator, datatype) => {
                self.check_local(local, remote.length, "md_handle")?;
                self.check_remote(&remote, limits.max_atomic_size)?;
                check_combining(operator, datatype, remote.length)
            }
            NiCommand::FetchAtomic(get, put, remote, operator, datatype) => {
                self.check_fetch(get, put, &remote)?;
                check_combining(operator, datatype, remote.length)
            }
            NiCommand::Swap(get, put, remote, operator, datatype, _) => {
                self.check_fetch(get, put, &remote)?;
                check_swap(operator, datatype, remote.length)
            }
            NiCommand::CtInc(ct, by) => {
                self.ct_get(ct)?;
                by.is_increment().then_some(()).ok_or(INCREMENT)
            }
            NiCommand::CtSet(ct, _) => self.ct_get(ct).map(drop),
        }
    }

    fn check_fetch(
        &self,
        get: MdOffset,
        put: MdOffset,
        remote: &RequestTarget,
    ) -> Result<(), SoftError> {
        self.check_local(get, remote.length, "get_md_handle")?;
        self.check_local(put, remote.length, "put_md_handle")?;
        self.check_remote(remote, self.config.limits.max_fetch_atomic_size)
    }

    fn check_local(
        &self,
        local: MdOffset,
        length: u64,
        name: &'static str,
    ) -> Result<(), SoftError> {
        let descriptor = self.descriptors.get(local.md.0);
        let region = &descriptor.ok_or(SoftError::ArgInvalid(name))?.md.region;
        if region.holds(local.offset, length) {
            Ok(())
        } else {
            Err(SoftError::ArgInvalid(
                "local_offset, length: not inside the descriptor",
            ))
        }
    }

    fn check_remote(&self, remote: &RequestTarget, length_max: u64) -> Result<(), SoftError> {
        if remote.length > length_max {
            return Err(SoftError::ArgInvalid(
                "length: more than the interface's limits allow",
            ));
        }
        if remote.pt_index > self.config.limits.max_pt_index {
            return Err(SoftError::ArgInvalid("pt_index"));
        }
        self.resolve(remote.peer).map(drop)
    }

    pub(super) fn resolve(&self, peer: SoftPeer) -> Result<PhysicalId, SoftError> {
        match peer {
            SoftPeer::Rank(rank) if self.config.logical => {
                let address = self.map.get(rank as usize).copied();
                address.ok_or(SoftError::ArgInvalid(
                    "target_id: a rank that is not in the map",
                ))
            }
            SoftPeer::At(address) if !self.config.logical => Ok(address),
            SoftPeer::Rank(_) => Err(SoftError::ArgInvalid(
                "target_id: a rank on a physical interface",
            )),
            SoftPeer::At(_) => Err(SoftError::ArgInvalid(
                "target_id: an address on a logical interface",
            )),
        }
    }
}

fn check_combining(
    operator: AtomicOperator,
    datatype: AtomicDatatype,
    length: u64,
) -> Result<(), SoftError> {
    if operator.swaps() || !operator.takes(datatype) {
        return Err(SoftError::ArgInvalid(
            "operation: not for this call or datatype",
        ));
    }
    check_whole(datatype, length)
}

fn check_swap(
    operator: AtomicOperator,
    datatype: AtomicDatatype,
    length: u64,
) -> Result<(), SoftError> {
    if !operator.swaps() || !operator.takes(datatype) {
        return Err(SoftError::ArgInvalid(
            "operation: not for this call or datatype",
        ));
    }
    if operator.takes_operand() && length > datatype.size() as u64 {
        return Err(SoftError::ArgInvalid("length: more than one element"));
    }
    check_whole(datatype, length)
}

fn check_whole(datatype: AtomicDatatype, length: u64) -> Result<(), SoftError> {
    if length.is_multiple_of(datatype.size() as u64) {
        Ok(())
    } else {
        Err(SoftError::ArgInvalid(
            "length: not a multiple of the datatype's",
        ))
    }
}
