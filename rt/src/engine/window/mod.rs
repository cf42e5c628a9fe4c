//! Ends of windows on this rank: its memory, and what it knows of each neighbor (a rank that uses the window together with it).
//!
//! Each pair of neighbors keeps two counts per direction: how often one has opened its memory to the other (*posted*), and how
//! often the other has completed an access (*completed*). The counts only grow and are never reset. So repeating or delaying
//! a notification does no harm, and the order in which the two ranks arrive does not matter:
//!
//! | | proceeds when | then notifies |
//! |---|---|---|
//! | T.post(O) | immediately | O: `posted` (= T's count of exposures opened) |
//! | O.start(T) | `posted` > own count of accesses begun | no rank |
//! | O.complete(T) | no operation of O on T is in flight | T: `completed` (= O's count of accesses begun) |
//! | T.wait(O) | `completed` ≥ own count of exposures opened | no rank |
//!
//! Before anything else an end sends a neighbor a greeting ([`WindowHelloHeader`](crate::proto::wire::WindowHelloHeader)) with
//! the length of its memory and the key to it. The engine that receives a greeting answers with its own, without help from its
//! application, so a pair of neighbors needs one message each way. Ranks that are not neighbors take no memory here.

mod access_guard;
mod calls;
mod counter_pairs;
mod epoch_counters;
mod fence;
mod fence_word;
mod handlers;
mod locks;
mod mapped_end;
mod number;
mod ops;
mod pieces;
mod poll;
mod published;
mod sent_update;
#[cfg(test)]
mod tests;
mod update_lock;
mod update_queue;
mod wide_element;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
    sync::{Arc, atomic::AtomicU32},
    task::Waker,
};

use ripstop_fabric::{memory::RemoteRegion, offload::RemoteCounter};

pub use self::number::Combine;
pub(super) use self::published::AwaitedEpoch;
use self::{
    access_guard::WindowAccessGuard,
    counter_pairs::{CounterWatches, PeerCounter, RemoteCounterPair, WindowCounterPool},
    fence::WindowFences,
    locks::WindowLockState,
    ops::StashedOp,
    pieces::WindowPieces,
    update_queue::UpdateQueue,
};
pub(crate) use self::{
    calls::WindowProgress,
    counter_pairs::WakeReason,
    epoch_counters::{EpochCounters, NotifyResult},
    fence::{AwaitedFenceCounter, FenceMethod, FencePoll, FenceResult},
    fence_word::{differing_fences, fence_name},
    locks::WindowLockKind,
    mapped_end::MappedEnd,
    number::{BulkUpdate, NumberType},
    ops::{TargetRanges, WindowOpKind},
    pieces::{WindowExtent, WindowMemory},
    update_lock::{UpdateGuard, UpdateLock},
    wide_element::WideElement,
};
use super::{EngineCommons, OneSidedCommand};
use crate::{
    buffer::TypeSig,
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    proto::wire::{CounterKeysHeader, HeaderBase, WindowCountHeader, WireKind},
    trace::WindowCall,
};

/// A window of the job, named by its communicator and the number of the collective that created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WindowId {
    /// Context of the communicator.
    pub(crate) context: u32,
    /// Number of the collective that created the window.
    pub(crate) sequence: u32,
}

impl WindowId {
    pub(crate) const fn new(context: u32, sequence: u32) -> Self {
        Self { context, sequence }
    }
}

/// All windows of a runtime. Allocates nothing before the first window, because most simulated ranks have none.
#[derive(Default)]
pub(super) struct LazyWindowTable(Option<Box<WindowTable>>);

/// State that exists from the first window on.
#[derive(Default)]
pub(super) struct WindowTable {
    ends: BTreeMap<WindowId, WindowEndState>,
    pool: WindowCounterPool,
    watching: CounterWatches,
    /// Updates and answers that wait for room, by world rank.
    lines: BTreeMap<WorldRank, UpdateQueue>,
    /// Listener places handed out so far.
    listened: u64,
    /// True once all ranks count as failed because nothing drives this runtime, although they may be up.
    is_undriven: bool,
}

/// Place of a future among the listeners of a window, taken when the future first waits.
#[derive(Debug, Default)]
pub(crate) struct WindowWaiterSlot(Option<u64>);

struct WindowEndState {
    /// Ranks that may use the window. A copy, because the window may outlive the rest of its communicator.
    group: RankGroup,
    sig: TypeSig,
    pieces: WindowPieces,
    /// True if the ranks of the node map the memory, and the key is for that alone.
    on_node: bool,
    /// Key to the only piece of memory; zeroed if pieces are attached and detached.
    key: RemoteRegion,
    /// Neighbors by world rank.
    peer_ends: BTreeMap<WorldRank, PeerEndState>,
    /// Futures that wait for any change of this window.
    listeners: BTreeMap<u64, WaitingWindowCall>,
    fences: Option<WindowFences>,
    /// True while an epoch of fences may be open, in which this rank may store to the memory of all members.
    in_fence_epoch: bool,
    access_guard: WindowAccessGuard,
    /// Lock of this end's numbers, if other ranks may map them. Without it, each number is updated by an atomic instruction.
    update_lock: Option<UpdateLock>,
    /// Rank that this rank has waited for in vain while it had that lock, or `NOBODY`.
    held_up_by: AtomicU32,
    /// True once the application has dropped its handle.
    closed: bool,
}

/// A future that waits for a window.
struct WaitingWindowCall {
    waker: Waker,
    /// The call that it is, or a part of; `None` for the introduction of neighbors.
    call: Option<WindowCall>,
}

impl WindowWaiterSlot {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) const fn is_taken(&self) -> bool {
        self.0.is_some()
    }
}

/// State of one neighbor, as far as this rank knows it.
#[derive(Default)]
struct PeerEndState {
    greeted: bool,
    memory: Option<PeerEndMemory>,
    /// True once the neighbor has freed its end.
    freed: bool,
    /// The neighbor's count of posts when it freed its end. Needed because counter additions and messages arrive in no fixed
    /// order.
    last_posted: u64,
    last_completed: u64,
    /// Counts shared with application threads that do not go through the engine.
    counters: Arc<EpochCounters>,
    /// Keys to the neighbor's counters that this rank adds to.
    remote_pair: Option<RemoteCounterPair>,
    /// The neighbor's counters to which this rank adds in turn when it comes to a fence.
    fence_counters: Option<[PeerCounter; 2]>,
    /// True if the neighbor waits for this rank in fences, so it must be notified when this rank's end is freed.
    fenced: bool,
    /// True once the neighbor was notified that this rank waits for it in a fence.
    asked_to_fence: bool,
    /// Fences that the neighbor had passed when it freed its end.
    last_fence: Option<u64>,
    /// True if this rank's current access ends as soon as none of its operations is in flight.
    completing: bool,
    /// True if this rank's last access ended while the neighbor was down, so the neighbor was never notified.
    completion_unsent: bool,
    /// Futures that wait for the neighbor to post.
    starts_waiting: u32,
    /// Operations that wait for the neighbor's greeting, or for the lock.
    stash: Vec<StashedOp>,
    /// State of this rank's lock of the neighbor's memory.
    lock: WindowLockState,
    /// Lock requests sent to the neighbor. An answer with a lower number belongs to a request that was taken back, and is
    /// ignored.
    our_lock_request: u64,
    /// Number of the neighbor's latest lock request to this rank.
    their_lock_request: u64,
}

/// A neighbor's memory.
#[derive(Clone, Debug)]
pub(crate) struct PeerEndMemory {
    pub(crate) sig: u64,
    /// Length in bytes.
    pub(crate) len: u64,
    key: RemoteRegion,
    pub(crate) mapped: Option<MappedEnd>,
}

impl LazyWindowTable {
    /// Returns true if there was never a window.
    #[inline]
    fn is_unused(&self) -> bool {
        self.0.is_none()
    }

    /// Returns true if a future waits for a change of any window.
    pub(super) fn has_waiting_futures(&self) -> bool {
        let mut all = self.0.iter().flat_map(|all| all.ends.values());
        all.any(|end| !end.listeners.is_empty())
    }

    /// Returns true if an epoch or a lock is held under which this rank can store to the mapped memory of a rank that is up.
    pub(super) fn may_store(&self, me: WorldRank, is_up: impl Fn(WorldRank) -> bool) -> bool {
        let mut held = self.ends.values().filter(|end| !end.closed);
        held.any(|end| {
            end.peer_ends.iter().any(|(rank, peer_end)| {
                let is_mapped = peer_end
                    .memory
                    .as_ref()
                    .is_some_and(|peer_memory| peer_memory.mapped.is_some());
                let is_inside = peer_end.counters.is_accessing() || peer_end.counters.is_inside();
                is_mapped
                    && (end.in_fence_epoch || is_inside)
                    && *rank != me
                    && !peer_end.freed
                    && is_up(*rank)
            })
        })
    }

    /// Lets no further access begin, including accesses that threads begin without the engine.
    pub(super) fn end_counters(&self) {
        let peer_ends = self.ends.values().flat_map(|end| end.peer_ends.values());
        peer_ends.for_each(|peer_end| peer_end.counters.set_ended());
    }

    /// Returns the ranks for which a fence, an access, a lock or an operation waits. If one of them stays silent, that waits
    /// forever.
    pub(super) fn waited_for(&self) -> BTreeSet<WorldRank> {
        let ends = self.0.iter().flat_map(|all| all.ends.values());
        let in_fences = ends
            .clone()
            .filter_map(|end| end.fences.as_ref()?.awaited());
        let peer_ends = ends.flat_map(|end| &end.peer_ends);
        let waited = peer_ends
            .filter(|(_, peer_end)| {
                !peer_end.counters.is_completed()
                    || peer_end.starts_waiting > 0
                    || !peer_end.stash.is_empty()
                    || peer_end.lock == WindowLockState::Waiting
                    || peer_end.is_unanswered()
            })
            .map(|(&rank, _)| rank);
        waited.chain(in_fences).collect()
    }

    fn peer_end(&mut self, id: WindowId, rank: WorldRank) -> Option<&mut PeerEndState> {
        let end = self.0.as_mut()?.ends.get_mut(&id)?;
        Some(end.peer_end(rank))
    }
}

impl Deref for LazyWindowTable {
    type Target = WindowTable;

    fn deref(&self) -> &WindowTable {
        static NONE: WindowTable = WindowTable {
            listened: 0,
            is_undriven: false,
            ends: BTreeMap::new(),
            pool: WindowCounterPool::EMPTY,
            watching: CounterWatches::EMPTY,
            lines: BTreeMap::new(),
        };
        self.0.as_deref().unwrap_or(&NONE)
    }
}

/// Allocates the state at the first mutable access.
impl DerefMut for LazyWindowTable {
    fn deref_mut(&mut self) -> &mut WindowTable {
        self.0.get_or_insert_default()
    }
}

/// The windows of a runtime, with all that they use of the rest of the engine.
pub(crate) struct WindowPart<'a> {
    pub(super) windows: &'a mut LazyWindowTable,
    pub(super) common: &'a mut EngineCommons,
}

impl WindowEndState {
    /// Returns the entry of a neighbor, creating it if there is none.
    fn peer_end(&mut self, rank: WorldRank) -> &mut PeerEndState {
        let Self {
            peer_ends,
            access_guard,
            ..
        } = self;
        peer_ends.entry(rank).or_insert_with(|| {
            let peer_end = PeerEndState::default();
            access_guard.add_neighbor(rank, &peer_end.counters);
            peer_end
        })
    }
}

impl PeerEndState {
    /// Returns true if this end has greeted the neighbor and the neighbor has not answered.
    fn is_unanswered(&self) -> bool {
        self.greeted && self.memory.is_none() && !self.freed
    }

    /// Returns true if the neighbor has freed its end and all its posts have been counted.
    fn posts_no_more(&self) -> bool {
        self.freed && self.counters.posted() >= self.last_posted
    }

    /// Returns true if the neighbor has freed its end and all its completions have been counted.
    fn completes_no_more(&self) -> bool {
        self.freed && self.counters.completed() >= self.last_completed
    }

    /// Returns true if operations on the neighbor's memory need not wait for its greeting or for a lock.
    fn may_launch(&self) -> bool {
        let may_enter = !matches!(
            self.lock,
            WindowLockState::Waiting | WindowLockState::Passing
        );
        self.memory.is_some() && may_enter
    }
}

/// Begins accesses to all of these neighbors, or to none. Returns true if they have begun.
pub(crate) fn begin_accesses<'a>(
    all_counters: impl Iterator<Item = &'a EpochCounters> + Clone,
) -> bool {
    let begun = all_counters
        .clone()
        .take_while(|counters| counters.begin())
        .count();
    let all = all_counters.clone().nth(begun).is_none();
    if !all {
        all_counters.take(begun).for_each(EpochCounters::unbegin);
    }
    all
}

impl WindowId {
    fn keys_header(self, kind: WireKind, [first, second]: [RemoteCounter; 2]) -> CounterKeysHeader {
        let base = HeaderBase::new(kind);
        CounterKeysHeader {
            base,
            ctx: self.context,
            tag: self.sequence,
            first,
            second,
        }
    }

    fn count_header(self, kind: WireKind, what: u32, count: u64) -> WindowCountHeader {
        let base = HeaderBase::new(kind);
        WindowCountHeader {
            base,
            ctx: self.context,
            tag: self.sequence,
            event: what,
            zero: 0,
            count,
        }
    }
}

impl WindowPart<'_> {
    /// Begins an access to each of `targets` once all of them have posted. Returns `None` until then.
    pub(crate) fn start_window(
        &mut self,
        id: WindowId,
        targets: &[WorldRank],
    ) -> Option<Result<(), (WorldRank, ErrorKind)>> {
        loop {
            for &target in targets {
                match self.may_start(id, target) {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(why) => return Some(Err((target, why))),
                }
            }
            let all_counters: Vec<_> = targets
                .iter()
                .map(|&target| self.epoch_counters(id, target))
                .collect();
            if begin_accesses(all_counters.iter().map(AsRef::as_ref)) {
                return Some(Ok(()));
            }
            // Another thread began an access between the two steps, so check again.
        }
    }

    /// Returns the counts shared with a neighbor.
    pub(crate) fn epoch_counters(&mut self, id: WindowId, rank: WorldRank) -> Arc<EpochCounters> {
        let peer_end = self.windows.peer_end(id, rank);
        peer_end
            .map(|peer_end| Arc::clone(&peer_end.counters))
            .unwrap_or_default()
    }
}
