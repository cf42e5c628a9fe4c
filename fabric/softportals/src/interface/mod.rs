//! One network interface as a state machine: commands and packets in, packets and events out.
//!
//! [`SoftInterface`] knows no thread, no clock and no transport. Its owner calls
//! - the commands of the application: `*_alloc`, `append`, [`SoftInterface::start`] and others;
//! - [`SoftInterface::handle`] for each packet that arrived, in the order of its sender;
//! - [`SoftInterface::transmit`] when packets can leave.
//!
//! All of them post events to queues and add to counters, where the application finds them.
#![forbid(unsafe_code)]

mod admission;
mod command;
mod entry;
mod family;
mod initiator;
mod lanes;
mod table;
mod target;
mod transmit;
mod unexpected;

use std::collections::VecDeque;

pub use self::{
    command::{AckRequest, CtThreshold, MdOffset, NiCommand, RequestTarget},
    entry::{InitiatorFilter, SoftListEntry},
    family::LibraryFamily,
    table::SearchMode,
    transmit::{PacketLink, SoftPacket},
};
use self::{entry::LinkedEntry, initiator::InitiatorOp, lanes::SoftLanes, table::PortalTableEntry};
use crate::{
    counter::{SoftCounter, SoftCtValue},
    error::SoftError,
    event::{DequeuedEvent, EventQueue, PhysicalId, SoftPeer},
    habits::LibraryHabits,
    limits::{ATOMIC_MAX, NiLimits},
    memory::{AppMemory, SoftRegion},
    options::MdOptions,
    slab::{GenerationalId, SoftSlab},
};

/// Fixed properties of an interface.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "built by the code that makes an interface"
)]
pub struct NiConfig {
    /// True if match bits and sources select the entry of a message; otherwise the first entry takes the message.
    pub matching: bool,
    /// True if peers are named by rank.
    pub logical: bool,
    /// Address of this process.
    pub address: PhysicalId,
    /// User id that this process acts for.
    pub uid: u32,
    /// Limits of the interface.
    pub limits: NiLimits,
    /// Payload bytes of a packet, at least 2048 (the size of an atomic).
    pub packet_max: usize,
    /// Bytes up to which data travels in the first packet. A longer message starts with a packet that is only a header; `None`
    /// fills every first packet.
    pub inline_max: Option<usize>,
    /// True if flow control refuses a message whose event would find no place in the queue. If false, a full queue drops events,
    /// which violates the specification.
    pub counts_events: bool,
    /// Library family whose behavior the interface follows.
    pub family: LibraryFamily,
    /// Optional behavior of other libraries and adapters.
    pub habits: LibraryHabits,
}

/// A network interface over memory `M`.
#[derive(Debug)]
pub struct SoftInterface<M> {
    config: NiConfig,
    memory: M,
    map: Vec<PhysicalId>,
    /// This process's index in `map`.
    rank: Option<u32>,
    queues: SoftSlab<EventQueue>,
    counters: SoftSlab<SoftCounter>,
    descriptors: SoftSlab<BoundDescriptor>,
    entries: SoftSlab<LinkedEntry>,
    table: Vec<Option<PortalTableEntry>>,
    operations: SoftSlab<InitiatorOp>,
    lanes: SoftLanes,
    /// Counters that changed, whose triggered operations may be due.
    moved: VecDeque<GenerationalId>,
    unexpected: u32,
    status: StatusRegisters,
    news: NiChanges,
    packet: Vec<u8>,
}

/// Kinds of changes that waiting threads must be notified of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "what there is to wait for")]
pub struct NiChanges {
    /// An event was queued.
    pub event: bool,
    /// A counter moved.
    pub count: bool,
    /// A message completed or an object was freed, possibly without an event or a count.
    pub end: bool,
}

/// The status registers of the specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the specification's registers")]
pub struct StatusRegisters {
    /// Messages that matched no entry.
    pub drops: u64,
    /// Messages whose user id the matching entry does not admit.
    pub permission_violations: u64,
    /// Messages whose operation the matching entry does not admit.
    pub operation_violations: u64,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)+) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub GenerationalId);)+
    };
}

ids! {
    /// Names an event queue.
    EqId;
    /// Names a counter.
    CtId;
    /// Names a memory descriptor.
    MdId;
    /// Names a list entry.
    EntryId;
}

/// Memory descriptor: local memory that operations start from.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct MemoryDescriptor {
    /// The memory.
    pub region: SoftRegion,
    /// Options of the descriptor.
    pub options: MdOptions,
    /// Queue that receives the descriptor's events.
    pub eq: Option<EqId>,
    /// Counter of the descriptor.
    pub ct: Option<CtId>,
}

#[derive(Debug)]
struct BoundDescriptor {
    md: MemoryDescriptor,
    /// Operations in flight that may still access the memory.
    users: u32,
}

impl<M: AppMemory> SoftInterface<M> {
    /// Returns an interface on which nothing is set up.
    ///
    /// # Panics
    /// Panics if an atomic does not fit into a packet.
    pub fn new(config: NiConfig, memory: M) -> Self {
        assert!(
            config.packet_max as u64 >= ATOMIC_MAX,
            "packets of {} bytes do not hold an atomic",
            config.packet_max
        );
        let portals = config.limits.max_pt_index as usize + 1;
        Self {
            config,
            memory,
            map: Vec::new(),
            rank: None,
            queues: SoftSlab::with_generations(GENERATIONS),
            counters: SoftSlab::with_generations(GENERATIONS),
            descriptors: SoftSlab::with_generations(GENERATIONS),
            entries: SoftSlab::with_generations(GENERATIONS),
            table: (0..portals).map(|_| None).collect(),
            operations: SoftSlab::new(),
            lanes: SoftLanes::default(),
            moved: VecDeque::new(),
            unexpected: 0,
            status: StatusRegisters::default(),
            news: NiChanges::default(),
            packet: Vec::new(),
        }
    }

    /// Returns the configuration.
    pub const fn config(&self) -> &NiConfig {
        &self.config
    }

    /// Returns the memory that the interface works on.
    pub const fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Returns the status registers.
    pub const fn status(&self) -> StatusRegisters {
        self.status
    }

    /// Returns the changes since the last call.
    pub fn take_changes(&mut self) -> NiChanges {
        std::mem::take(&mut self.news)
    }

    /// Sets the address of each rank. Without a map, a logical interface reaches no peer.
    ///
    /// # Errors
    /// `Ignored` if the map is already set; `ArgInvalid` on a physical interface, or if this process's address is not in the map.
    pub fn set_map(&mut self, map: &[PhysicalId]) -> Result<(), SoftError> {
        if !self.config.logical {
            return Err(SoftError::ArgInvalid("ni: a physical interface has no map"));
        }
        if !self.map.is_empty() {
            return Err(SoftError::Ignored);
        }
        let rank = map.iter().position(|one| *one == self.config.address);
        let rank = rank.and_then(|rank| u32::try_from(rank).ok());
        if rank.is_none() {
            return Err(SoftError::ArgInvalid("map: this process is not in it"));
        }
        self.map = map.to_vec();
        self.rank = rank;
        Ok(())
    }

    /// Returns the address of each rank; empty before [`Self::set_map`].
    pub fn map(&self) -> &[PhysicalId] {
        &self.map
    }

    /// Returns the name of this process for its peers: its rank, or its address if it has none.
    pub const fn id(&self) -> SoftPeer {
        match self.rank {
            Some(rank) => SoftPeer::Rank(rank),
            None => SoftPeer::At(self.config.address),
        }
    }

    /// Allocates a queue for `count` events.
    ///
    /// # Errors
    /// `NoSpace` beyond the limits.
    pub fn eq_alloc(&mut self, count: u64) -> Result<EqId, SoftError> {
        let limits = &self.config.limits;
        let full = self.queues.len() >= limits.max_eqs as usize || count > limits.max_eq_size;
        let count = usize::try_from(count).map_err(|_| SoftError::NoSpace)?;
        if full {
            return Err(SoftError::NoSpace);
        }
        Ok(EqId(self.queues.insert(EventQueue::new(count.max(1)))))
    }

    /// Frees a queue and drops the events in it.
    ///
    /// # Errors
    /// `ArgInvalid` if the queue does not exist.
    pub fn eq_free(&mut self, eq: EqId) -> Result<(), SoftError> {
        self.news.end = true;
        let freed = self.queues.remove(eq.0);
        freed.map(drop).ok_or(SoftError::ArgInvalid("eq"))
    }

    /// Takes the next event from a queue.
    ///
    /// # Errors
    /// `EqEmpty` if the queue is empty; `ArgInvalid` if the queue does not exist.
    pub fn eq_get(&mut self, eq: EqId) -> Result<DequeuedEvent, SoftError> {
        let queue = self.queues.get_mut(eq.0);
        queue.ok_or(SoftError::ArgInvalid("eq"))?.take()
    }

    /// Returns true if any queue holds an event.
    pub fn has_events(&self) -> bool {
        self.queues.iter().any(|(_, queue)| !queue.is_empty())
    }

    /// Allocates a counter with the value zero.
    ///
    /// # Errors
    /// `NoSpace` beyond the limits.
    pub fn ct_alloc(&mut self) -> Result<CtId, SoftError> {
        if self.counters.len() >= self.config.limits.max_cts as usize {
            return Err(SoftError::NoSpace);
        }
        Ok(CtId(self.counters.insert(SoftCounter::default())))
    }

    /// Frees a counter and drops the operations that wait for it.
    ///
    /// # Errors
    /// `ArgInvalid` if the counter does not exist.
    pub fn ct_free(&mut self, ct: CtId) -> Result<(), SoftError> {
        self.news.end = true;
        let freed = self.counters.remove(ct.0);
        freed.map(drop).ok_or(SoftError::ArgInvalid("ct"))
    }

    /// Returns the value of a counter.
    ///
    /// # Errors
    /// `ArgInvalid` if the counter does not exist.
    pub fn ct_get(&self, ct: CtId) -> Result<SoftCtValue, SoftError> {
        let counter = self.counters.get(ct.0);
        counter
            .map(|ct| ct.count)
            .ok_or(SoftError::ArgInvalid("ct"))
    }

    /// Sets the value of a counter.
    ///
    /// # Errors
    /// `ArgInvalid` if the counter does not exist.
    pub fn ct_set(&mut self, ct: CtId, count: SoftCtValue) -> Result<(), SoftError> {
        self.counter(ct)?.count = count;
        self.changed(ct);
        self.run_triggered();
        Ok(())
    }

    /// Adds to the successes or to the failures of a counter.
    ///
    /// # Errors
    /// `ArgInvalid` if the counter does not exist, or if `by` increments both.
    pub fn ct_inc(&mut self, ct: CtId, by: SoftCtValue) -> Result<(), SoftError> {
        let counter = self.counter(ct)?;
        if !by.is_increment() {
            return Err(INCREMENT);
        }
        counter.add(by);
        self.changed(ct);
        self.run_triggered();
        Ok(())
    }

    /// Drops the operations that wait for a counter.
    ///
    /// # Errors
    /// `ArgInvalid` if the counter does not exist.
    pub fn ct_cancel_triggered(&mut self, ct: CtId) -> Result<(), SoftError> {
        self.counter(ct)?.cancel();
        Ok(())
    }

    /// Binds a memory descriptor.
    ///
    /// # Errors
    /// `NoSpace` beyond the limits; `ArgInvalid` with too many segments, or with a queue or counter that does not exist.
    pub fn md_bind(&mut self, md: MemoryDescriptor) -> Result<MdId, SoftError> {
        self.check_region(&md.region)?;
        if md.eq.is_some_and(|eq| self.queues.get(eq.0).is_none()) {
            return Err(SoftError::ArgInvalid("md.eq_handle"));
        }
        if md.ct.is_some_and(|ct| self.counters.get(ct.0).is_none()) {
            return Err(SoftError::ArgInvalid("md.ct_handle"));
        }
        if self.descriptors.len() >= self.config.limits.max_mds as usize {
            return Err(SoftError::NoSpace);
        }
        let md = MemoryDescriptor {
            region: md.region.trusted(),
            ..md
        };
        Ok(MdId(
            self.descriptors.insert(BoundDescriptor { md, users: 0 }),
        ))
    }

    /// Releases a memory descriptor.
    ///
    /// # Errors
    /// `InUse` while an operation that names the descriptor is in flight, including its answer if it asked for one; `ArgInvalid`
    /// if the descriptor does not exist.
    pub fn md_release(&mut self, md: MdId) -> Result<(), SoftError> {
        let descriptor = self
            .descriptors
            .get(md.0)
            .ok_or(SoftError::ArgInvalid("md"))?;
        if descriptor.users > 0 {
            return Err(SoftError::InUse);
        }
        self.descriptors.remove(md.0);
        Ok(())
    }

    fn check_region(&self, region: &SoftRegion) -> Result<(), SoftError> {
        let most = self.config.limits.max_iovecs as usize;
        if region.segments().is_some_and(|segments| segments > most) {
            return Err(SoftError::ArgInvalid(
                "length: more segments than max_iovecs",
            ));
        }
        Ok(())
    }

    fn counter(&mut self, ct: CtId) -> Result<&mut SoftCounter, SoftError> {
        self.counters
            .get_mut(ct.0)
            .ok_or(SoftError::ArgInvalid("ct"))
    }

    fn changed(&mut self, ct: CtId) {
        self.news.count = true;
        let waits = self.counters.get(ct.0).is_some_and(|ct| ct.waiting() > 0);
        if waits && !self.moved.contains(&ct.0) {
            self.moved.push_back(ct.0);
        }
    }

    /// Adds to the counter of a descriptor or an entry. Does nothing if the counter was freed meanwhile.
    fn count(&mut self, ct: Option<CtId>, by: SoftCtValue) {
        let Some(ct) = ct else { return };
        if let Some(counter) = self.counters.get_mut(ct.0) {
            counter.add(by);
            self.changed(ct);
        }
    }

    fn post(&mut self, eq: Option<EqId>, event: crate::event::FullEvent) {
        let Some(queue) = eq.and_then(|eq| self.queues.get_mut(eq.0)) else {
            return;
        };
        queue.push(event);
        self.news.event = true;
    }
}

/// Error for an increment of successes and failures at once.
const INCREMENT: SoftError = SoftError::ArgInvalid("increment: successes and failures at once");

/// Bound on the generations of handles that the application holds: a handle has 32 bits, of which 8 are left for the generation.
pub(crate) const GENERATIONS: u32 = 0xff;
