//! Translation of tasks to operations of the adapter.

use bytemuck::Zeroable;

use super::{
    super::{
        calls::{self, AddressRange, Ct, Me, PortalsCallError},
        match_bits,
        match_entries::RawEntry,
        multirail::LaneAvailability,
        peer::PortalsPeerState,
        rma_calls::RemoteTarget,
        transport::PortalsTransport,
    },
    PortalsTaskLists,
    landings::LandingTarget,
    piece_max, quiet,
    trigger_slots::TaskFallback,
};
use crate::{
    driver::{CommandToken, LocalRange, WorldRank},
    memory::{MemoryRegion, RemoteRegion},
    offload::{
        LocalCounter, PairKey, PutLanding, PutTarget, RemoteCounter, TaskAction, TypedOperator,
    },
};

/// Operations of the adapter for a task.
#[derive(Debug)]
pub(super) enum TriggeredPlan {
    Put {
        from: AddressRange,
        remote: RemoteTarget,
        /// Count at the peer after the data has arrived.
        count: Option<RemoteTarget>,
        done: Option<Ct>,
    },
    /// Atomics on consecutive pieces.
    Combine {
        pieces: Vec<(AddressRange, RemoteTarget)>,
        how: TypedOperator,
        done: Option<Ct>,
    },
    Count(RemoteTarget),
    /// Adds to a counter of this rank.
    Add(Ct, u64),
    /// Notifies the host that the task is due.
    Task {
        done: Option<Ct>,
    },
}

impl TriggeredPlan {
    /// Returns the increments of the trigger slot's counter between the start and the completion of the task's operation.
    pub(super) const fn completion_count(&self) -> u64 {
        match self {
            Self::Combine { pieces, .. } => pieces.len() as u64,
            Self::Put { .. } | Self::Count(_) => 1,
            Self::Add(..) => 0,
            // The notification of the host, and the host's own increment.
            Self::Task { .. } => 2,
        }
    }

    /// Returns the increments until nothing adds to the counter any more.
    pub(super) const fn final_count(&self) -> u64 {
        match self {
            Self::Put { count: Some(_), .. } => 2,
            _ => self.completion_count(),
        }
    }
}

impl PortalsTaskLists {
    /// Returns the operations of a task, and the data for its failure.
    pub(super) fn plan(
        &mut self,
        transport: &PortalsTransport,
        action: &TaskAction,
        token: CommandToken,
    ) -> Result<(TriggeredPlan, TaskFallback), PortalsCallError> {
        let done = match action {
            TaskAction::Put { done, .. }
            | TaskAction::Copy { done, .. }
            | TaskAction::Combine { done, .. } => done.as_ref(),
            TaskAction::PublishLanding { .. } | TaskAction::Count { .. } => None,
        };
        let done = done.map(|done| self.cell_of(transport, done)).transpose()?;
        let native = match action {
            TaskAction::Put {
                to, from, target, ..
            } => plan_put(transport, *to, *from, target, done),
            TaskAction::PublishLanding {
                to,
                landing,
                count,
                pair: Some(pair),
                ..
            } => self.plan_offer(transport, *to, landing, *pair, *count, token)?,
            TaskAction::PublishLanding { .. } => None,
            TaskAction::Count { to, counter, by } => self.plan_count(transport, *to, *counter, *by),
            TaskAction::Copy { from, into, .. } => self.plan_copy(transport, *from, *into, done),
            TaskAction::Combine {
                from, into, how, ..
            } => self.plan_combine(transport, *from, *into, *how, done),
        };
        // Impossible actions are passed to the host, too, where they fail when they are due.
        Ok(native.unwrap_or_else(|| {
            (
                TriggeredPlan::Task { done },
                TaskFallback::Task(action.clone()),
            )
        }))
    }

    fn cell_of(
        &mut self,
        transport: &PortalsTransport,
        counter: &LocalCounter,
    ) -> Result<Ct, PortalsCallError> {
        let spot = transport.resources.exports.counter_id(counter);
        let spot = spot.ok_or_else(|| {
            PortalsCallError::Permanent(
                "a task adds to a counter that is not of `LocalCounters::for_tasks`".to_owned(),
            )
        })?;
        self.task_counter(transport, spot)
    }

    fn plan_offer(
        &mut self,
        transport: &PortalsTransport,
        to: WorldRank,
        landing: &PutLanding,
        pair: PairKey,
        count: RemoteCounter,
        token: CommandToken,
    ) -> Result<Option<(TriggeredPlan, TaskFallback)>, PortalsCallError> {
        let len = landing.into.len;
        let memory = if len == 0 {
            Some(0)
        } else {
            transport.resources.exports.address_of(landing.into)
        };
        let ends = landing.count.words_key().and_then(|key| {
            Some((
                self.own_spot(transport, key)?,
                self.own_task_counter(transport, key)?,
            ))
        });
        let (Some(remote), Some(start), Some((spot, ct)), Some(match_bits), true) = (
            transport.remote_count(to, count),
            memory,
            ends,
            match_bits::data(pair, landing.word, len).map(|bits| transport.address.own_bits(bits)),
            transport.is_up(to) && len <= transport.resources.ni.limits.max_msg_size,
        ) else {
            return Ok(None);
        };
        let place = LandingTarget {
            memory: AddressRange { start, len },
            match_bits,
            from: to.0,
        };
        self.post_landing(transport, &place, spot.serial, ct, token)?;
        Ok(Some((
            TriggeredPlan::Count(remote),
            TaskFallback::Count(to.0, remote),
        )))
    }

    fn plan_count(
        &mut self,
        transport: &PortalsTransport,
        to: WorldRank,
        counter: RemoteCounter,
        by: u64,
    ) -> Option<(TriggeredPlan, TaskFallback)> {
        let own = counter.words_key().filter(|_| to.0 == transport.me);
        if let Some(ct) = own.and_then(|key| self.own_task_counter(transport, key)) {
            return Some((TriggeredPlan::Add(ct, by), TaskFallback::Nothing));
        }
        let remote = transport.remote_count(to, counter)?;
        (by == 1 && transport.is_up(to)).then_some((
            TriggeredPlan::Count(remote),
            TaskFallback::Count(to.0, remote),
        ))
    }

    fn plan_copy(
        &mut self,
        transport: &PortalsTransport,
        from: LocalRange,
        into: LocalRange,
        done: Option<Ct>,
    ) -> Option<(TriggeredPlan, TaskFallback)> {
        let most = transport.resources.ni.limits.max_msg_size;
        let fits = from.len() == into.len() && from.len() as u64 <= most;
        let plan = TriggeredPlan::Put {
            from: AddressRange::exposed(from),
            remote: self.own_memory(transport, into).filter(|_| fits)?,
            count: None,
            done,
        };
        Some((plan, TaskFallback::Put(transport.me, None)))
    }

    /// Plans the combination of a block of integers: as many atomics on this rank's own memory as it takes.
    fn plan_combine(
        &mut self,
        transport: &PortalsTransport,
        from: LocalRange,
        into: LocalRange,
        how: TypedOperator,
        done: Option<Ct>,
    ) -> Option<(TriggeredPlan, TaskFallback)> {
        let whole = from.len().is_multiple_of(how.integer.bytes());
        let fits =
            whole && from.len() == into.len() && from.len() <= self.list_limits().combine_max;
        let remote = self.own_memory(transport, into).filter(|_| fits)?;
        let most = piece_max(&transport.resources.ni).max(1);
        let piece = |at: usize| {
            let offset = remote.offset + at as u64;
            let len = most.min(from.len() - at);
            let from = AddressRange::exposed(from.slice(at, len));
            (from, RemoteTarget { offset, ..remote })
        };
        let pieces = (0..from.len()).step_by(most).map(piece).collect();
        let plan = TriggeredPlan::Combine { pieces, how, done };
        Some((plan, TaskFallback::Put(transport.me, None)))
    }

    /// Returns memory of this rank as its own lists reach it. Returns `None` if the library has no entry for that, or if this
    /// rank no longer reaches itself.
    fn own_memory(
        &mut self,
        transport: &PortalsTransport,
        range: LocalRange,
    ) -> Option<RemoteTarget> {
        if !transport.is_by_first(transport.me) {
            return None;
        }
        if self.own.is_none() {
            self.own = open_own_memory(transport).ok();
        }
        self.own.map(|_| RemoteTarget {
            process: transport.address.process,
            pt: transport.address.tables.wakes,
            match_bits: match_bits::OWN,
            offset: AddressRange::exposed(range).start,
        })
    }

    /// Closes the path to this rank's own memory. Returns true if no operation accesses memory by that path any more.
    pub(in super::super) fn close_own_memory(&mut self, transport: &PortalsTransport) -> bool {
        let in_use = |own: &mut Me| {
            matches!(
                transport.resources.ni.unlink(*own),
                Err(PortalsCallError::InUse)
            )
        };
        self.own.take_if(|own| !in_use(own));
        self.own.is_none()
    }
}

impl PortalsTransport {
    /// Returns the location of a task counter at a peer.
    fn remote_count(&self, to: WorldRank, counter: RemoteCounter) -> Option<RemoteTarget> {
        let bits = match_bits::count(counter.words_key()?, self.peer(to.0).owner(to.0))?;
        self.remote_list_entry(to, bits)
    }

    fn remote_list_entry(&self, to: WorldRank, match_bits: u64) -> Option<RemoteTarget> {
        let address = self.peer(to.0).address;
        Some(RemoteTarget {
            process: address.process,
            pt: address.tables.lists,
            match_bits,
            offset: 0,
        })
    }

    fn is_by_first(&self, to: u32) -> bool {
        self.lane_of_lists(to) == LaneAvailability::Lane(0)
    }

    /// Returns the location of memory on the first rail, as lists need it.
    fn remote_by_first(&self, to: u32, key: RemoteRegion, len: usize) -> Option<RemoteTarget> {
        self.is_by_first(to)
            .then(|| self.remote_target(to, 0, key, 0, len).ok())?
    }

    fn is_up(&self, to: WorldRank) -> bool {
        self.peer(to.0).state == PortalsPeerState::Up && self.is_by_first(to.0)
    }
}

fn plan_put(
    transport: &PortalsTransport,
    to: WorldRank,
    from: LocalRange,
    target: &PutTarget,
    done: Option<Ct>,
) -> Option<(TriggeredPlan, TaskFallback)> {
    let (remote, count, presumed) = match target {
        PutTarget::Known { into, count } => {
            let remote = transport.remote_by_first(to.0, *into, from.len())?;
            let count = match count {
                Some(count) => Some(transport.remote_count(to, *count)?),
                None => None,
            };
            (remote, count, None)
        }
        PutTarget::FromLanding {
            region,
            offset,
            word,
            pair,
        } => {
            let bits = match_bits::data((*pair)?, *word, from.len() as u64)?;
            let remote =
                transport.remote_list_entry(to, transport.peer(to.0).address.own_bits(bits))?;
            presume(region, *offset, *word, from.len());
            (remote, None, Some((region.clone(), *offset)))
        }
    };
    let fits = from.len() as u64 <= transport.resources.ni.limits.max_msg_size;
    let plan = TriggeredPlan::Put {
        from: AddressRange::exposed(from),
        remote,
        count,
        done,
    };
    (fits && transport.is_up(to)).then_some((plan, TaskFallback::Put(to.0, presumed)))
}

/// Appends an entry over all memory for this rank alone.
///
/// The entry is not behind the table entry of exposed memory. That one changes after a rail to a peer has failed, and
/// operations of lists may have been passed to the adapter before.
fn open_own_memory(transport: &PortalsTransport) -> Result<Me, PortalsCallError> {
    let profile = transport.resources.ni.profile();
    let entry = RawEntry {
        memory: calls::span(None, profile),
        options: quiet(profile) | profile.options.me_op_put | profile.options.me_no_truncate,
        match_bits: match_bits::OWN,
        ignore_bits: 0,
        min_free: 0,
        ct: None,
        from: Some(transport.address.process),
        overflow: false,
    };
    transport.resources.counters.all.entries.add(1);
    transport
        .resources
        .ni
        .append_raw(transport.address.tables.wakes, &entry, 0)
}

/// Writes the expected contents of a published landing before it arrives. If the peer refuses the put, the contents are
/// [corrected](disown).
fn presume(region: &MemoryRegion, offset: usize, word: u64, len: usize) {
    let into = RemoteRegion {
        len: len as u64,
        ..Zeroable::zeroed()
    };
    let landing = PutLanding {
        into,
        word,
        count: Zeroable::zeroed(),
    };
    region.write(offset, bytemuck::bytes_of(&landing));
}

/// Marks a published landing as mismatching, because the peer has published another landing.
pub(super) fn disown(region: &MemoryRegion, offset: usize, word: u64) {
    presume(region, offset, !word, 0);
}
