//! A counter: three words of a region that its owner's driver allocated.
//!
//! The first word is what was counted, but for what the owner's processor has counted, itself or because a peer told it to,
//! where an adapter counts for peers: that is in the third, because the atomics of the two know nothing of each other. The
//! second, inverted so that 0 is nobody, is the least that the owner waits for, so that who adds knows whether to wake it: the
//! owner stores its threshold and then looks at the count, who adds adds and then looks at the threshold, all of it sequentially
//! consistent, so one of the two sees the other.

use std::{
    fmt, io,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, Release, SeqCst},
        compiler_fence, fence,
    },
};

use bytemuck::{Pod, Zeroable};

use crate::{
    driver::Driver,
    memory::{Region, RemoteRegion, prefetch_line},
};

/// Counters of this rank, in memory of their own, all 0 at first. They are gone with the last clone of this and of its
/// [`Counter`]s; a key that outlives them names nothing, whatever is allocated later.
#[derive(Clone, Debug)]
pub struct Counters {
    region: Region,
    key: RemoteCounters,
}

/// A counter of this rank.
#[derive(Clone)]
pub struct Counter {
    region: Region,
    offset: usize,
    /// The owner makes a fence in every process before it sleeps.
    fenced: bool,
}

/// The key to another rank's [`Counters`], as 40 bytes that travel in messages. As with a [`RemoteRegion`], holding one proves
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct RemoteCounters(RemoteRegion);

/// The key to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct RemoteCounter(RemoteRegion);

impl Counters {
    /// So many counters in memory of `driver`: a mapping, and where peers map it a descriptor too, so make those together that
    /// end together.
    ///
    /// # Errors
    /// `Unsupported` where [`Caps::counters`](crate::driver::Caps::counters) says no, `InvalidInput` for none or too many, else
    /// what the system said when there was no memory.
    pub fn new(driver: &mut dyn Driver, count: usize) -> io::Result<Self> {
        Self::make(driver, count, |driver, len| driver.allocate(len))
    }

    /// The same, for tasks to wait for and to add to. Where an adapter counts by itself, or peers tell the owner to count,
    /// [`Counter::value`] is what it was when a watch was last told of the counter, or its owner armed or made a turn last; so
    /// the owner watches instead of looking. To add much to one may take as many steps.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn for_tasks(driver: &mut dyn Driver, count: usize) -> io::Result<Self> {
        Self::make(driver, count, |driver, len| driver.allocate_counters(len))
    }

    fn make(
        driver: &mut dyn Driver,
        count: usize,
        allocate: impl FnOnce(&mut dyn Driver, usize) -> io::Result<Region>,
    ) -> io::Result<Self> {
        if !driver.caps().counters {
            return Err(no_counters(driver.caps().name));
        }
        let len = count.checked_mul(CELL_LEN).filter(|len| *len > 0);
        let len = len.ok_or_else(|| {
            let why = format!(
                "{count} counters: ask for at least one, and for no more than fit into memory"
            );
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
        let region = allocate(driver, len)?;
        let key = driver.expose(region.range().slice(0, len));
        let key = key.ok_or_else(|| no_counters(driver.caps().name))?;
        Ok(Self {
            region,
            key: RemoteCounters(key),
        })
    }

    /// How many they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.key.len()
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them.
    ///
    /// # Panics
    /// When there are no more than `nth`.
    #[must_use]
    pub fn at(&self, nth: usize) -> Counter {
        assert!(nth < self.len(), "counter {nth} of {}", self.len());
        Counter::in_region(self.region.clone(), nth * CELL_LEN)
    }

    /// What they lie in, to be given a name.
    #[must_use]
    pub const fn region(&self) -> &Region {
        &self.region
    }

    /// The key to them, for peers.
    #[must_use]
    pub const fn remote(&self) -> RemoteCounters {
        self.key
    }
}

impl Counter {
    /// What was counted so far. Data of puts that this counts is there.
    #[inline]
    #[must_use]
    pub fn value(&self) -> u64 {
        Word::load(self.count()).wrapping_add(Word::load(self.own()))
    }

    /// The counter whose words start at `offset`.
    ///
    /// # Panics
    /// When they are not inside the region, or not aligned.
    pub(crate) fn in_region(region: Region, offset: usize) -> Self {
        let _ = (region.atomic_u64(offset), region.atomic_u64(offset + OWN));
        Self {
            region,
            offset,
            fenced: false,
        }
    }

    /// The same, of an owner that makes a fence in every process between its threshold and its look at the count, before it
    /// sleeps or while it does.
    pub(crate) fn fenced_by_owner(self, fenced: bool) -> Self {
        Self { fenced, ..self }
    }

    /// Adds, where the counter is a peer's that this process maps ([`Driver::reach_counter`]). Whether the owner is to be woken:
    /// a [`Command::Count`](crate::driver::Command::Count) of 0 does.
    #[inline]
    #[must_use]
    pub fn add(&self, by: u64) -> bool {
        add(self.count(), self.wake_at(), by)
    }

    /// As [`add`](Self::add) of 1, by the only one who ever adds to this counter, and one step at a time: it need not wait until
    /// the word is in its cache.
    #[inline]
    #[must_use]
    pub fn step(&self) -> bool {
        step(self.count(), self.wake_at(), || {
            if self.fenced {
                compiler_fence(SeqCst);
            } else {
                fence(SeqCst);
            }
        })
    }

    /// Asks for the counter's cache line, ahead of an addition to it.
    #[inline]
    pub fn expect(&self) {
        prefetch_line(self.region.at(self.offset, CELL_LEN).as_ptr());
    }

    /// Adds, by the owner's processor and under the lock of its driver. Who watches the counter asks anew [to be
    /// woken](Self::wake_from).
    pub(crate) fn add_own(&self, by: u64) {
        let after = self.own().own().wrapping_add(by);
        Word::store(self.own(), after);
    }

    /// Has whoever reaches `threshold` from now on wake the owner, which must look itself whether it is reached already.
    pub(crate) fn wake_from(&self, threshold: u64) {
        let left = match threshold {
            NOBODY => NOBODY,
            least => least.saturating_sub(self.own().own()),
        };
        Word::store(self.wake_at(), !left);
    }

    /// Where it is: to find what waits for it.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.region.start().addr().get(), self.offset)
    }

    /// Whether both are the same counter.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.place() == other.place()
    }

    #[inline]
    fn count(&self) -> &AtomicU64 {
        self.region.atomic_u64(self.offset)
    }

    fn wake_at(&self) -> &AtomicU64 {
        self.region.atomic_u64(self.offset + WAKE_AT)
    }

    #[inline]
    fn own(&self) -> &AtomicU64 {
        self.region.atomic_u64(self.offset + OWN)
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counter({} at {})", self.value(), self.offset)
    }
}

/// A word of a counter: an atomic, or a model of one. Sequentially consistent, but for what says something else.
pub(crate) trait Word {
    fn load(&self) -> u64;
    fn store(&self, value: u64);
    /// Returns what it was before.
    fn fetch_add(&self, by: u64) -> u64;
    /// Of a word that only this thread writes.
    fn own(&self) -> u64;
    /// What was written before is there for whoever reads this.
    fn publish(&self, value: u64);
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        self.load(SeqCst)
    }
    fn store(&self, value: u64) {
        self.store(value, SeqCst);
    }
    #[inline]
    fn fetch_add(&self, by: u64) -> u64 {
        self.fetch_add(by, SeqCst)
    }
    #[inline]
    fn own(&self) -> u64 {
        self.load(Relaxed)
    }
    #[inline]
    fn publish(&self, value: u64) {
        self.store(value, Release);
    }
}

#[inline]
pub(crate) fn add<W: Word>(count: &W, wake_at: &W, by: u64) -> bool {
    let after = count.fetch_add(by).wrapping_add(by);
    after >= !wake_at.load()
}

/// `order` is a fence, or leaves that to the owner.
#[inline]
pub(crate) fn step<W: Word>(count: &W, wake_at: &W, order: impl FnOnce()) -> bool {
    let after = count.own().wrapping_add(1);
    count.publish(after);
    order();
    after >= !wake_at.load()
}

impl RemoteCounters {
    /// How many it is the key to.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(usize::MAX) / CELL_LEN
    }

    /// Whether it is the key to none: those that came from [`Counters`] never are.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key to one of them, or `None` when there are no more than `nth`.
    #[must_use]
    pub fn at(&self, nth: usize) -> Option<RemoteCounter> {
        let offset = nth.checked_mul(CELL_LEN)?;
        self.0
            .slice(offset as u64, CELL_LEN as u64)
            .map(RemoteCounter)
    }
}

impl RemoteCounter {
    /// The key to the counter `nth` of those in a region that its owner has given this name, or will.
    #[must_use]
    pub const fn named(owner: u32, name: u64, nth: u64) -> Self {
        let base = nth.saturating_mul(CELL_LEN as u64);
        Self(RemoteRegion::named(owner, name, base, CELL_LEN as u64))
    }

    pub(crate) fn name(self) -> Option<u64> {
        self.0.name()
    }

    /// The counter's words, if the key is about such.
    pub(crate) fn cell(self) -> Option<RemoteRegion> {
        let Self(key) = self;
        let aligned = key.base.is_multiple_of(size_of::<u64>() as u64);
        (aligned && key.len == CELL_LEN as u64).then_some(key)
    }
}

fn no_counters(driver: &str) -> io::Error {
    let why = format!("the driver `{driver}` has no counters: use messages");
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// A threshold that is never reached.
pub(super) const NOBODY: u64 = u64::MAX;

/// Bytes of a counter: half a cache line.
pub(crate) const CELL_LEN: usize = 32;
const WAKE_AT: usize = 8;
const OWN: usize = 16;
