//! Puts, gets and atomics, performed without the target's processor.
//!
//! Between nodes the adapters perform them alone. Within a node the origin's processor copies, at its host's cost. Exception: the
//! put of a task goes through the adapter even if the target is on the same node.
//!
//! - A put writes when its last byte reaches the target, and completes when the answer is back.
//! - A get reads when its request reaches the target, and completes when the last byte is back.
//! - The bytes are copied between the two ranges in this process at that moment.
//!
//! An operation touches the origin's memory only while it is in the [`SimOpTable`](super::op_table::SimOpTable). It touches the
//! target's memory only if the target is open and neither end was notified that the other is down. Both are checked right before
//! the access, so no memory is touched after its owner was notified that it is free. An operation leaves the table when its end
//! is reported, when its origin closes, and when either end is given up.

use super::{
    exports::GrantedMemory,
    heap::{OpKey, SimEvent},
    named_regions::ParkedCommand,
    packets::{PacketPayload, SimCompletion, SimFailure, SimPacket},
    tasks::{ResolvedPut, SimStartedTask},
    world::{SimWorld, ps},
};
use crate::{
    driver::{AtomicOp, CommandToken, LocalRange},
    memory::RemoteRegion,
    offload::{PutLanding, RemoteCounter},
};

/// A command in flight.
#[derive(Debug)]
pub(super) struct SimOp {
    pub(super) origin: u32,
    pub(super) target: u32,
    kind: SimOpKind,
    key: RemoteRegion,
    token: CommandToken,
    /// Length in bytes of each chunk except the last.
    chunk: u64,
    unsent: u32,
    unlanded: u32,
    /// The target's answer.
    outcome: Option<SimCompletion>,
    /// The task that this operation belongs to. Its end is not reported to the host.
    pub(super) task: Option<Box<SimStartedTask>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum SimOpKind {
    Put(LocalRange, Option<RemoteCounter>),
    /// A put of bytes that the command itself contains.
    PutInline(PutLanding, RemoteCounter),
    Get(LocalRange),
    Atomic(AtomicOp),
}

impl SimOpKind {
    /// Returns how many bytes of the target's memory it accesses.
    const fn len(self) -> usize {
        match self {
            Self::Put(local, _) | Self::Get(local) => local.len(),
            Self::PutInline(..) => size_of::<PutLanding>(),
            Self::Atomic(_) => size_of::<u64>(),
        }
    }

    /// Returns the origin's memory.
    const fn local(self) -> Option<LocalRange> {
        match self {
            Self::Put(local, _) | Self::Get(local) => Some(local),
            Self::PutInline(..) | Self::Atomic(_) => None,
        }
    }

    /// Returns how many bytes travel in chunks.
    const fn bulk(self) -> u64 {
        match self {
            Self::Put(local, _) | Self::Get(local) => local.len() as u64,
            Self::PutInline(..) => size_of::<PutLanding>() as u64,
            Self::Atomic(_) => 0,
        }
    }

    /// Returns the counter to increment when the bytes are there.
    const fn counts(self) -> Option<RemoteCounter> {
        match self {
            Self::Put(_, count) => count,
            Self::PutInline(_, count) => Some(count),
            Self::Get(_) | Self::Atomic(_) => None,
        }
    }
}

impl SimWorld {
    /// Posts a command of a host. Returns false if there was no room.
    pub(super) fn command(
        &mut self,
        origin: u32,
        target: u32,
        kind: SimOpKind,
        key: RemoteRegion,
        token: CommandToken,
    ) -> bool {
        self.hosts.check_rank(target);
        let host = &mut self.hosts[origin];
        if !host.is_open() {
            return true; // A killed rank's commands are lost.
        }
        if host.commands >= self.model.nic.commands {
            return false;
        }
        host.commands += 1;
        host.counts.bytes_sent += kind.bulk();
        self.stats.bytes += kind.bulk();
        // Within a node the origin's processor copies, and the bytes pass through the node's memory.
        let (calls, copies) = if self.network.is_inside(origin, target) {
            let node = &self.model.node;
            (node.access_ns, kind.bulk() * node.byte_ps)
        } else {
            (0, 0)
        };
        let posted = self
            .hosts
            .spend(origin, ps(self.model.host.send_ns + calls), self.heap.now());
        self.hosts.spend(origin, copies, self.heap.now());
        let refusal = if self.hosts.link(origin, target).down {
            Some(SimFailure::PeerDown)
        } else {
            (!is_plausible(key, target, kind)).then_some(SimFailure::BadRange)
        };
        match refusal {
            Some(why) => self.put_completion(target, origin, SimCompletion::Failed(token, why)),
            None => {
                let op = self
                    .ops
                    .insert(SimOp::new(origin, target, kind, key, token));
                let at = posted + ps(self.model.nic.command_ns);
                match kind {
                    SimOpKind::Put(..) | SimOpKind::PutInline(..) => self.stream_out(op, at),
                    SimOpKind::Get(_) | SimOpKind::Atomic(_) => {
                        self.dispatch(
                            at,
                            SimPacket::new(origin, target, PacketPayload::Request(op), Vec::new()),
                        );
                    }
                }
            }
        }
        true
    }

    /// Starts to send chunks: one at a time per rail, so that the rail that is free first takes the next chunk.
    fn stream_out(&mut self, key: OpKey, at: u64) {
        let Some(op) = self.ops.get(key) else { return };
        let by_processor = op.task.is_none() && self.network.is_inside(op.origin, op.target);
        let streams = if by_processor {
            1
        } else {
            self.network.rails().min(op.unsent)
        };
        for rail in 0..streams {
            let rail = u8::try_from(rail).unwrap_or(u8::MAX);
            self.heap.push(at, SimEvent::Stream { op: key, rail });
        }
    }

    /// Sends the next chunk, because a rail is free for it.
    pub(super) fn stream(&mut self, key: OpKey, rail: u8) {
        let Some(op) = self.ops.get(key).filter(|op| op.unsent > 0) else {
            return;
        };
        let (from, to) = match op.kind {
            SimOpKind::Get(_) => (op.target, op.origin),
            SimOpKind::Put(..) | SimOpKind::PutInline(..) | SimOpKind::Atomic(_) => {
                (op.origin, op.target)
            }
        };
        let left = op.kind.bulk() - op.chunk * u64::from(op.chunks() - op.unsent);
        let len = left.min(op.chunk);
        if self.hosts.is_killed(from) {
            return; // the end is reported together with the failure
        }
        let op = &mut self.ops[key];
        op.unsent -= 1;
        let more = op.unsent > 0;
        let chunk = SimPacket::new(from, to, PacketPayload::Chunk { op: key, len }, Vec::new());
        let slot = self.packets.insert(chunk);
        let next = self.send_packet(slot, u32::from(rail));
        if more {
            self.heap.push(next, SimEvent::Stream { op: key, rail });
        }
    }

    /// Handles a request that has reached the target's adapter.
    pub(super) fn serve(&mut self, key: OpKey) {
        let Some(op) = self.ops.get(key) else { return };
        let kind = op.kind;
        match self.act(key) {
            Some(Ok(_)) if matches!(kind, SimOpKind::Get(_)) => {
                self.stream_out(key, self.heap.now() + ps(self.model.nic.command_ns));
            }
            Some(outcome) => self.answer(key, outcome),
            None => {}
        }
    }

    /// Handles a chunk that has arrived.
    pub(super) fn land(&mut self, key: OpKey) {
        if self.ops.get(key).is_none() {
            return;
        }
        let op = &mut self.ops[key];
        op.unlanded = op.unlanded.saturating_sub(1);
        if op.unlanded > 0 {
            return;
        }
        if matches!(op.kind, SimOpKind::Get(_)) {
            let done = SimCompletion::Complete(op.token);
            return self.finish(key, done);
        }
        if let Some(outcome) = self.act(key) {
            self.answer(key, outcome);
        }
    }

    /// Completes an operation whose answer is back at the origin.
    pub(super) fn conclude(&mut self, key: OpKey) {
        if let Some(outcome) = self.ops.get(key).and_then(|op| op.outcome) {
            self.finish(key, outcome);
        }
    }

    /// Accesses the target's memory for an operation. Returns `None` if there is no answer yet: from a killed target, or for a
    /// name not given.
    fn act(&mut self, key: OpKey) -> Option<Result<SimCompletion, SimFailure>> {
        let op = self.ops.get(key)?;
        let (origin, target, token) = (op.origin, op.target, op.token);
        if self.hosts.is_killed(target) {
            return None;
        }
        if !self.hosts[target].is_open() {
            self.announce_close(target, origin);
            return Some(Err(SimFailure::PeerDown));
        }
        if self.hosts.knows_down(target, origin) {
            return Some(Err(SimFailure::PeerDown));
        }
        let op = &self.ops[key];
        let counter = op.kind.counts().and_then(RemoteCounter::name);
        let names = [op.key.name(), counter].into_iter().flatten();
        let host = &mut self.hosts[target];
        if names.into_iter().any(|name| !host.has_named(name)) {
            host.park(ParkedCommand::Op(key));
            return None;
        }
        Some(self.act_at([origin, target], key, token))
    }

    fn act_at(
        &mut self,
        [origin, target]: [u32; 2],
        key: OpKey,
        token: CommandToken,
    ) -> Result<SimCompletion, SimFailure> {
        let (op, host) = (&self.ops[key], &self.hosts[target]);
        let kind = op.kind;
        let counter = kind.counts().map(|key| host.counter(target, key));
        let counter = counter.transpose()?;
        let place = host.granted_memory(target, op.key, kind.len())?;
        assert!(
            host.permits(origin, op.key),
            "rank {origin} accesses memory of rank {target} that is not open to it, at {} ns: {kind:?}",
            self.heap.now() / 1000
        );
        let done = self.move_bytes(origin, kind, token, &place)?;
        if let Some(counter) = counter {
            self.count(target, &counter, 1);
        }
        Ok(done)
    }

    /// Copies the bytes of a command, and mixes them into the digest.
    ///
    /// The bytes of a long command are hashed but not copied, if both ranges were allocated here. Other memory might be left
    /// uninitialized.
    fn move_bytes(
        &mut self,
        origin: u32,
        kind: SimOpKind,
        token: CommandToken,
        place: &GrantedMemory,
    ) -> Result<SimCompletion, SimFailure> {
        let hashed = kind.bulk() >= self.hash_from;
        if let (true, Some(local), GrantedMemory::Region(region, offset)) =
            (hashed, kind.local(), place)
            && self.hosts[origin].has_allocated(origin, local)
        {
            match kind {
                _ if self.lengths_only => {}
                SimOpKind::Get(_) => self
                    .digest
                    .mix_pieces(local.len(), |at, piece| region.read(offset + at, piece)),
                _ => self.digest.mix_range(local),
            }
            return Ok(SimCompletion::Complete(token));
        }
        let done = perform(kind, token, place)?;
        if let Some(local) = kind.local() {
            self.digest.mix_range(local);
        }
        Ok(done)
    }

    /// Returns true if a copy within a rank's memory is so long that only its length is simulated.
    pub(super) fn has_length_only(&self, rank: u32, from: LocalRange, into: LocalRange) -> bool {
        let host = &self.hosts[rank];
        self.lengths_only
            && from.len() as u64 >= self.hash_from
            && [from, into]
                .iter()
                .all(|range| host.has_allocated(rank, *range))
    }

    /// Resumes an operation that was parked at its target.
    pub(super) fn resume_op(&mut self, key: OpKey) {
        match self.ops.get(key).map(|op| op.kind) {
            Some(SimOpKind::Get(_)) => self.serve(key),
            Some(_) => {
                if let Some(outcome) = self.act(key) {
                    self.answer(key, outcome);
                }
            }
            None => {}
        }
    }

    fn answer(&mut self, key: OpKey, outcome: Result<SimCompletion, SimFailure>) {
        let op = &mut self.ops[key];
        op.outcome = Some(outcome.unwrap_or_else(|why| SimCompletion::Failed(op.token, why)));
        let answer = SimPacket::new(op.target, op.origin, PacketPayload::Answer(key), Vec::new());
        self.dispatch(self.heap.now(), answer);
    }

    /// Removes an operation that has ended, and reports that to its origin.
    fn finish(&mut self, key: OpKey, notice: SimCompletion) {
        let op = self.ops.remove(key);
        match (op.task, notice) {
            (None, notice) => self.put_completion(op.target, op.origin, notice),
            (Some(task), SimCompletion::Failed(_, why)) => {
                self.task_over(op.origin, *task, Err(why))
            }
            (Some(task), _) => self.task_over(op.origin, *task, Ok(())),
        }
    }

    /// Starts the put of a task, which leaves its adapter at `at`.
    pub(super) fn start_task_put(
        &mut self,
        at: u64,
        pair: (u32, u32),
        put: ResolvedPut,
        task: SimStartedTask,
    ) {
        let (origin, target) = pair;
        let kind = put.kind;
        let bytes = kind.bulk();
        self.hosts[origin].counts.bytes_sent += bytes;
        self.stats.bytes += bytes;
        if self.hosts.link(origin, target).down {
            return self.task_over(origin, task, Err(SimFailure::PeerDown));
        }
        if !is_plausible(put.into, target, kind) {
            return self.task_over(origin, task, Err(SimFailure::BadRange));
        }
        let mut op = SimOp::new(origin, target, kind, put.into, CommandToken(0));
        op.task = Some(Box::new(task));
        let op = self.ops.insert(op);
        self.stream_out(op, at);
    }

    /// Fails the operations between two ranks of which one is down, so that their memory is not touched any more.
    pub(super) fn fail_between(&mut self, one: u32, other: u32) {
        for key in self.ops.between(one, other) {
            // A failed task takes operations of other tasks of its token with it, so check whether each still exists.
            if let Some(op) = self.ops.get(key) {
                let failed = SimCompletion::Failed(op.token, SimFailure::PeerDown);
                self.finish(key, failed);
            }
        }
    }
}

impl SimOp {
    fn new(
        origin: u32,
        target: u32,
        kind: SimOpKind,
        key: RemoteRegion,
        token: CommandToken,
    ) -> Self {
        let chunk = chunk_len(kind.bulk());
        let mut op = Self {
            origin,
            target,
            kind,
            key,
            token,
            chunk,
            unsent: 0,
            unlanded: 0,
            outcome: None,
            task: None,
        };
        op.unsent = op.chunks();
        op.unlanded = op.chunks();
        op
    }

    /// Returns the number of chunks. It is at least 1, because even an empty operation must arrive.
    fn chunks(&self) -> u32 {
        let chunks = self.kind.bulk().div_ceil(self.chunk).max(1);
        u32::try_from(chunks).unwrap_or(u32::MAX)
    }
}

/// Returns true if a key looks valid to the origin's adapter, which cannot ask the target.
fn is_plausible(key: RemoteRegion, target: u32, kind: SimOpKind) -> bool {
    let end = key.base.checked_add(key.len);
    key.owner == target && key.len == kind.len() as u64 && end.is_some()
}

fn perform(
    kind: SimOpKind,
    token: CommandToken,
    place: &GrantedMemory,
) -> Result<SimCompletion, SimFailure> {
    match (kind, place) {
        (SimOpKind::Put(local, _), GrantedMemory::Region(region, offset)) => {
            region.copy_in(*offset, local)
        }
        (SimOpKind::Put(local, _), GrantedMemory::Plain(range)) => local.copy_to(*range),
        (SimOpKind::PutInline(landing, _), GrantedMemory::Region(region, offset)) => {
            region.write(*offset, bytemuck::bytes_of(&landing));
        }
        (SimOpKind::Get(local), GrantedMemory::Region(region, offset)) => {
            region.copy_out(*offset, local)
        }
        (SimOpKind::Get(local), GrantedMemory::Plain(range)) => range.copy_to(local),
        (SimOpKind::Atomic(op), GrantedMemory::Region(region, offset))
            if offset.is_multiple_of(size_of::<u64>()) =>
        {
            return Ok(SimCompletion::Fetched(
                token,
                op.apply(region.atomic_u64(*offset)),
            ));
        }
        (SimOpKind::Atomic(_) | SimOpKind::PutInline(..), _) => return Err(SimFailure::BadRange),
    }
    Ok(SimCompletion::Complete(token))
}

/// Returns the length of a chunk. Long transfers are cut so that they share links with others, into at most 256 chunks.
const fn chunk_len(bulk: u64) -> u64 {
    let of_long = bulk.div_ceil(CHUNKS_MAX);
    if of_long > CHUNK_LEN {
        of_long
    } else {
        CHUNK_LEN
    }
}

const CHUNK_LEN: u64 = 64 << 10;
const CHUNKS_MAX: u64 = 256;
