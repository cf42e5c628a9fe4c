//! One network interface, as a state machine: commands and packets in, packets and events out.
//!
//! It knows no thread, no clock and no transport. Whoever has it calls
//! - the commands of the application: `*_alloc`, `append`, [`Interface::start`]..;
//! - [`Interface::handle`] for each packet that came, in the order of its sender;
//! - [`Interface::transmit`] when packets can leave.
//!
//! All of them leave events in queues, and counts in counters, where the application finds them.
#![forbid(unsafe_code)]

mod admit;
mod command;
mod entry;
mod family;
mod initiator;
mod table;
mod target;
mod transmit;
mod unexpected;

use std::collections::{BTreeMap, VecDeque};

pub use self::{
    command::{Ack, Command, Local, Remote, Trigger},
    entry::{Entry, Source},
    family::Family,
    table::SearchMode,
    transmit::{Link, Packet},
};
use self::{entry::Linked, initiator::Operation, table::Portal, transmit::Lane};
use crate::{
    counter::{Count, Counter},
    error::Error,
    event::{Address, EventQueue, Peer, Taken},
    habits::Habits,
    limits::{ATOMIC_MAX, Limits},
    memory::{Memory, Region},
    options::MdOptions,
    slab::{Id, Slab},
};

/// What an interface is, once and for all.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "built by whoever makes an interface"
)]
pub struct Config {
    /// Match bits and sources decide who takes a message; else the first entry does.
    pub matching: bool,
    /// Peers are named by rank.
    pub logical: bool,
    /// Who this is.
    pub address: Address,
    /// The user that it acts for.
    pub uid: u32,
    /// What it has room for.
    pub limits: Limits,
    /// Payload bytes of a packet, at least an atomic's 2048.
    pub packet_max: usize,
    /// Longer messages start with a packet that is only a header; `None` lets every first packet be full.
    pub inline_max: Option<usize>,
    /// Flow control lets no message in whose event would find no place; else a full queue loses some, against the specification.
    pub counts_events: bool,
    /// Whose ways it has.
    pub family: Family,
    /// What else it has of others' ways.
    pub habits: Habits,
}

/// A network interface over memory `M`.
#[derive(Debug)]
pub struct Interface<M> {
    config: Config,
    memory: M,
    map: Vec<Address>,
    /// The own place in it.
    rank: Option<u32>,
    queues: Slab<EventQueue>,
    counters: Slab<Counter>,
    descriptors: Slab<Descriptor>,
    entries: Slab<Linked>,
    table: Vec<Option<Portal>>,
    operations: Slab<Operation>,
    lanes: BTreeMap<Address, Lane>,
    /// Peers whose lanes have something to send, in turn.
    ready: VecDeque<Address>,
    /// Counters that moved, whose operations may have to go.
    moved: VecDeque<Id>,
    unexpected: u32,
    status: Status,
    news: News,
    packet: Vec<u8>,
}

/// What those who wait have to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "what there is to wait for")]
pub struct News {
    /// An event was queued.
    pub event: bool,
    /// A counter moved.
    pub count: bool,
    /// A message is done, or something was freed: an end that neither an event nor a count need tell of.
    pub end: bool,
}

/// The status registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the specification's registers")]
pub struct Status {
    /// Messages that no entry took.
    pub drops: u64,
    /// Messages of users that their entry was not for.
    pub permission_violations: u64,
    /// Messages whose entry does not take their operation.
    pub operation_violations: u64,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)+) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub Id);)+
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

/// Memory that operations start from.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct Md {
    /// The memory.
    pub region: Region,
    /// How it behaves.
    pub options: MdOptions,
    /// Where its events go.
    pub eq: Option<EqId>,
    /// What counts for it.
    pub ct: Option<CtId>,
}

#[derive(Debug)]
struct Descriptor {
    md: Md,
    /// Operations that may still touch its memory.
    users: u32,
}

impl<M: Memory> Interface<M> {
    /// An interface on which nothing is set up.
    ///
    /// # Panics
    /// When an atomic does not fit into a packet.
    pub fn new(config: Config, memory: M) -> Self {
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
            queues: Slab::with_generations(GENERATIONS),
            counters: Slab::with_generations(GENERATIONS),
            descriptors: Slab::with_generations(GENERATIONS),
            entries: Slab::with_generations(GENERATIONS),
            table: (0..portals).map(|_| None).collect(),
            operations: Slab::new(),
            lanes: BTreeMap::new(),
            ready: VecDeque::new(),
            moved: VecDeque::new(),
            unexpected: 0,
            status: Status::default(),
            news: News::default(),
            packet: Vec::new(),
        }
    }

    /// What it is.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The memory it works on.
    pub const fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// What went wrong here for others.
    pub const fn status(&self) -> Status {
        self.status
    }

    /// What happened since the last call.
    pub fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// Says who has which rank. Without it a logical interface reaches nobody.
    ///
    /// # Errors
    /// `Ignored` when it was said before, `ArgInvalid` on a physical interface or when the own address is not in the map.
    pub fn set_map(&mut self, map: &[Address]) -> Result<(), Error> {
        if !self.config.logical {
            return Err(Error::ArgInvalid("ni: a physical interface has no map"));
        }
        if !self.map.is_empty() {
            return Err(Error::Ignored);
        }
        let rank = map.iter().position(|one| *one == self.config.address);
        let rank = rank.and_then(|rank| u32::try_from(rank).ok());
        if rank.is_none() {
            return Err(Error::ArgInvalid("map: this process is not in it"));
        }
        self.map = map.to_vec();
        self.rank = rank;
        Ok(())
    }

    /// Who has which rank; empty before [`Self::set_map`].
    pub fn map(&self) -> &[Address] {
        &self.map
    }

    /// What others call this process: its rank, or its address if it has none.
    pub const fn id(&self) -> Peer {
        match self.rank {
            Some(rank) => Peer::Rank(rank),
            None => Peer::At(self.config.address),
        }
    }

    /// A queue for `count` events.
    ///
    /// # Errors
    /// `NoSpace` beyond the limits.
    pub fn eq_alloc(&mut self, count: u64) -> Result<EqId, Error> {
        let limits = &self.config.limits;
        let full = self.queues.len() >= limits.max_eqs as usize || count > limits.max_eq_size;
        let count = usize::try_from(count).map_err(|_| Error::NoSpace)?;
        if full {
            return Err(Error::NoSpace);
        }
        Ok(EqId(self.queues.insert(EventQueue::new(count.max(1)))))
    }

    /// Ends a queue with what is in it.
    ///
    /// # Errors
    /// `ArgInvalid` when it is not there.
    pub fn eq_free(&mut self, eq: EqId) -> Result<(), Error> {
        self.news.end = true;
        let freed = self.queues.remove(eq.0);
        freed.map(drop).ok_or(Error::ArgInvalid("eq"))
    }

    /// The next event.
    ///
    /// # Errors
    /// `EqEmpty` when there is none, `ArgInvalid` when the queue is not there.
    pub fn eq_get(&mut self, eq: EqId) -> Result<Taken, Error> {
        let queue = self.queues.get_mut(eq.0);
        queue.ok_or(Error::ArgInvalid("eq"))?.take()
    }

    /// Whether an event waits in one of the queues.
    pub fn has_events(&self) -> bool {
        self.queues.iter().any(|(_, queue)| !queue.is_empty())
    }

    /// A counter at zero.
    ///
    /// # Errors
    /// `NoSpace` beyond the limits.
    pub fn ct_alloc(&mut self) -> Result<CtId, Error> {
        if self.counters.len() >= self.config.limits.max_cts as usize {
            return Err(Error::NoSpace);
        }
        Ok(CtId(self.counters.insert(Counter::default())))
    }

    /// Ends a counter, and what waits for it.
    ///
    /// # Errors
    /// `ArgInvalid` when it is not there.
    pub fn ct_free(&mut self, ct: CtId) -> Result<(), Error> {
        self.news.end = true;
        let freed = self.counters.remove(ct.0);
        freed.map(drop).ok_or(Error::ArgInvalid("ct"))
    }

    /// What it has counted.
    ///
    /// # Errors
    /// `ArgInvalid` when it is not there.
    pub fn ct_get(&self, ct: CtId) -> Result<Count, Error> {
        let counter = self.counters.get(ct.0);
        counter.map(|ct| ct.count).ok_or(Error::ArgInvalid("ct"))
    }

    /// Sets it.
    ///
    /// # Errors
    /// `ArgInvalid` when it is not there.
    pub fn ct_set(&mut self, ct: CtId, count: Count) -> Result<(), Error> {
        self.counter(ct)?.count = count;
        self.changed(ct);
        self.run_triggered();
        Ok(())
    }

    /// Adds to its successes or to its failures.
    ///
    /// # Errors
    /// `ArgInvalid` when it is not there, or both are to grow.
    pub fn ct_inc(&mut self, ct: CtId, by: Count) -> Result<(), Error> {
        let counter = self.counter(ct)?;
        if !by.is_increment() {
            return Err(INCREMENT);
        }
        counter.add(by);
        self.changed(ct);
        self.run_triggered();
        Ok(())
    }

    /// Forgets the operations that wait for it.
    ///
    /// # Errors
    /// `ArgInvalid` when it is not there.
    pub fn ct_cancel_triggered(&mut self, ct: CtId) -> Result<(), Error> {
        self.counter(ct)?.cancel();
        Ok(())
    }

    /// Makes memory known that operations start from.
    ///
    /// # Errors
    /// `NoSpace` beyond the limits; `ArgInvalid` with too many segments, or a queue or counter that is not there.
    pub fn md_bind(&mut self, md: Md) -> Result<MdId, Error> {
        self.check_region(&md.region)?;
        if md.eq.is_some_and(|eq| self.queues.get(eq.0).is_none()) {
            return Err(Error::ArgInvalid("md.eq_handle"));
        }
        if md.ct.is_some_and(|ct| self.counters.get(ct.0).is_none()) {
            return Err(Error::ArgInvalid("md.ct_handle"));
        }
        if self.descriptors.len() >= self.config.limits.max_mds as usize {
            return Err(Error::NoSpace);
        }
        let md = Md {
            region: md.region.trusted(),
            ..md
        };
        Ok(MdId(self.descriptors.insert(Descriptor { md, users: 0 })))
    }

    /// Forgets a descriptor.
    ///
    /// # Errors
    /// `InUse` while an operation that names it is under way, until its answer has come if it asked for one; `ArgInvalid` when it
    /// is not there.
    pub fn md_release(&mut self, md: MdId) -> Result<(), Error> {
        let descriptor = self.descriptors.get(md.0).ok_or(Error::ArgInvalid("md"))?;
        if descriptor.users > 0 {
            return Err(Error::InUse);
        }
        self.descriptors.remove(md.0);
        Ok(())
    }

    fn check_region(&self, region: &Region) -> Result<(), Error> {
        let most = self.config.limits.max_iovecs as usize;
        if region.segments().is_some_and(|segments| segments > most) {
            return Err(Error::ArgInvalid("length: more segments than max_iovecs"));
        }
        Ok(())
    }

    fn counter(&mut self, ct: CtId) -> Result<&mut Counter, Error> {
        self.counters.get_mut(ct.0).ok_or(Error::ArgInvalid("ct"))
    }

    fn changed(&mut self, ct: CtId) {
        self.news.count = true;
        let waits = self.counters.get(ct.0).is_some_and(|ct| ct.waiting() > 0);
        if waits && !self.moved.contains(&ct.0) {
            self.moved.push_back(ct.0);
        }
    }

    /// Counts for a descriptor or an entry. What it names may be gone: then nothing is counted.
    fn count(&mut self, ct: Option<CtId>, by: Count) {
        let Some(ct) = ct else { return };
        if let Some(counter) = self.counters.get_mut(ct.0) {
            counter.add(by);
            self.changed(ct);
        }
    }

    fn post(&mut self, eq: Option<EqId>, event: crate::event::Event) {
        let Some(queue) = eq.and_then(|eq| self.queues.get_mut(eq.0)) else {
            return;
        };
        queue.push(event);
        self.news.event = true;
    }
}

/// Why an increment is none.
const INCREMENT: Error = Error::ArgInvalid("increment: successes and failures at once");

/// Of what the application names: its handles may have 32 bits in all, and 8 of them are left for this.
pub(crate) const GENERATIONS: u32 = 0xff;
