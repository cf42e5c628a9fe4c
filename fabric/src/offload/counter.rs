//! A counter: three words of a region that its owner's driver allocated.
//!
//! * The first word is the count, without the part in the third.
//! * The second is the least threshold that the owner waits for, inverted so that 0 means none. A rank that adds sees from it
//!   whether to wake the owner.
//! * The third has the counts of the owner's processor, for itself or because a peer asked for it, where an adapter counts for
//!   peers. It is separate because the atomics of adapter and processor are not atomic with respect to each other.
//!
//! The owner stores its threshold and then reads the count. A rank that adds does so and then reads the threshold. All of this is
//! sequentially consistent, so one of the two sees the other.

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
    memory::{MemoryRegion, RemoteRegion, prefetch_line},
};

/// Counters of this rank, in memory of their own, all 0 at first. They are freed with the last clone of this and of its
/// [`LocalCounter`]s. A key that outlives them leads to nothing, whatever is allocated later.
#[derive(Clone, Debug)]
pub struct LocalCounters {
    region: MemoryRegion,
    key: RemoteCounters,
}

/// A counter of this rank.
#[derive(Clone)]
pub struct LocalCounter {
    region: MemoryRegion,
    offset: usize,
    /// True if the owner makes a fence in every process before it sleeps.
    fenced: bool,
}

/// Key to another rank's [`LocalCounters`], as 40 bytes that travel in messages. As with a [`RemoteRegion`], holding one proves
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct RemoteCounters(RemoteRegion);

/// Key to a counter of another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct RemoteCounter(RemoteRegion);

impl LocalCounters {
    /// Makes `count` counters in memory of `driver`. They take a mapping, and a descriptor where peers map them, so counters that
    /// end together should be made together.
    ///
    /// # Errors
    /// `Unsupported` if the driver has no [`EventCounters`](crate::driver::EventCounters), `InvalidInput` for no counters or too
    /// many, and otherwise the system's error when there is no memory.
    pub fn new(driver: &mut dyn Driver, count: usize) -> io::Result<Self> {
        Self::make(driver, count, |driver, len| driver.allocate(len))
    }

    /// Makes counters for tasks to wait for and to add to.
    ///
    /// Where an adapter counts by itself, or peers ask the owner to count, [`LocalCounter::value`] may be out of date. It is
    /// updated when a watch of the counter is reported, and when the owner arms or makes a turn, so the owner should watch the
    /// counter instead of reading it. Adding n to such a counter may take n steps.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new).
    pub fn for_tasks(driver: &mut dyn Driver, count: usize) -> io::Result<Self> {
        Self::make(driver, count, |driver, len| match driver.event_counters() {
            Some(counters) => counters.allocate_counters(len),
            None => driver.allocate(len),
        })
    }

    fn make(
        driver: &mut dyn Driver,
        count: usize,
        allocate: impl FnOnce(&mut dyn Driver, usize) -> io::Result<MemoryRegion>,
    ) -> io::Result<Self> {
        if driver.event_counters().is_none() {
            return Err(no_counters(driver.caps().name));
        }
        let len = count.checked_mul(COUNTER_LEN).filter(|len| *len > 0);
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

    /// Returns the number of counters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.key.len()
    }

    /// Returns true if there are no counters, which never happens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns one of the counters.
    ///
    /// # Panics
    /// There are at most `nth` counters.
    #[must_use]
    pub fn at(&self, nth: usize) -> LocalCounter {
        assert!(nth < self.len(), "counter {nth} of {}", self.len());
        LocalCounter::in_region(self.region.clone(), nth * COUNTER_LEN)
    }

    /// Returns the region of the counters, which may be given a name.
    #[must_use]
    pub const fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Returns the key to the counters, for peers.
    #[must_use]
    pub const fn remote(&self) -> RemoteCounters {
        self.key
    }
}

impl LocalCounter {
    /// Returns the count so far. Data of the puts that it counts is visible.
    #[inline]
    #[must_use]
    pub fn value(&self) -> u64 {
        CounterWord::load(self.count()).wrapping_add(CounterWord::load(self.own()))
    }

    /// Makes the counter whose words start at `offset`.
    ///
    /// # Panics
    /// The words are not inside the region, or not aligned.
    pub(crate) fn in_region(region: MemoryRegion, offset: usize) -> Self {
        let _ = (region.atomic_u64(offset), region.atomic_u64(offset + OWN));
        Self {
            region,
            offset,
            fenced: false,
        }
    }

    /// Sets whether the owner makes a fence in every process between storing its threshold and reading the count, before it
    /// sleeps or while it does.
    pub(crate) fn fenced_by_owner(self, fenced: bool) -> Self {
        Self { fenced, ..self }
    }

    /// Adds to a counter of a peer that this process maps. Returns true if the owner must be woken, which a
    /// [`DriverCommand::Count`](crate::driver::DriverCommand::Count) of 0 does.
    #[inline]
    #[must_use]
    pub fn add(&self, by: u64) -> bool {
        add(self.count(), self.wake_at(), by)
    }

    /// Adds 1 like [`add`](Self::add), for the only process that ever adds to this counter. It stores the sum with no atomic
    /// addition, so it need not wait until the word is in its cache.
    #[inline]
    #[must_use]
    pub fn add_one(&self) -> bool {
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
    pub fn prefetch(&self) {
        prefetch_line(self.region.at(self.offset, COUNTER_LEN).as_ptr());
    }

    /// Adds by the owner's processor, under the lock of its driver. An owner that watches the counter must ask again [to be
    /// woken](Self::set_wake_threshold).
    pub(crate) fn add_own(&self, by: u64) {
        let after = self.own().own().wrapping_add(by);
        CounterWord::store(self.own(), after);
    }

    /// Makes ranks that reach `threshold` from now on wake the owner. The owner must check itself whether it is reached already.
    pub(crate) fn set_wake_threshold(&self, threshold: u64) {
        let left = match threshold {
            NEVER_REACHED => NEVER_REACHED,
            least => least.saturating_sub(self.own().own()),
        };
        CounterWord::store(self.wake_at(), !left);
    }

    /// Returns the place of the counter, by which its watches are found.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.region.start().addr().get(), self.offset)
    }

    /// Returns true if both are the same counter.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
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

impl fmt::Debug for LocalCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalCounter({} at {})", self.value(), self.offset)
    }
}

/// A word of a counter: an atomic, or a model of one. Operations are sequentially consistent unless they say otherwise.
pub(crate) trait CounterWord {
    fn load(&self) -> u64;
    fn store(&self, value: u64);
    /// Adds, and returns the value before.
    fn fetch_add(&self, by: u64) -> u64;
    /// Reads a word that only this thread writes.
    fn own(&self) -> u64;
    /// Stores a value. Everything written before is visible to a thread that reads it.
    fn publish(&self, value: u64);
}

impl CounterWord for AtomicU64 {
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
pub(crate) fn add<W: CounterWord>(count: &W, wake_at: &W, by: u64) -> bool {
    let after = count.fetch_add(by).wrapping_add(by);
    after >= !wake_at.load()
}

/// Adds 1, and returns true if the owner must be woken. `order` is a fence, or leaves that to the owner.
#[inline]
pub(crate) fn step<W: CounterWord>(count: &W, wake_at: &W, order: impl FnOnce()) -> bool {
    let after = count.own().wrapping_add(1);
    count.publish(after);
    order();
    after >= !wake_at.load()
}

impl RemoteCounters {
    /// Returns the number of counters behind this key.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(usize::MAX) / COUNTER_LEN
    }

    /// Returns true if this is a key to no counters. Keys from [`LocalCounters`] never are.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the key to one of the counters, or `None` if there are at most `nth`.
    #[must_use]
    pub fn at(&self, nth: usize) -> Option<RemoteCounter> {
        let offset = nth.checked_mul(COUNTER_LEN)?;
        self.0
            .slice(offset as u64, COUNTER_LEN as u64)
            .map(RemoteCounter)
    }
}

impl RemoteCounter {
    /// Makes the key to counter `nth` in a region that its owner has given this name, or will.
    #[must_use]
    pub const fn named(owner: u32, name: u64, nth: u64) -> Self {
        let base = nth.saturating_mul(COUNTER_LEN as u64);
        Self(RemoteRegion::named(owner, name, base, COUNTER_LEN as u64))
    }

    pub(crate) fn name(self) -> Option<u64> {
        self.0.name()
    }

    /// Returns the key to the counter's words, if it can be one to a counter.
    pub(crate) fn words_key(self) -> Option<RemoteRegion> {
        let Self(key) = self;
        let aligned = key.base.is_multiple_of(size_of::<u64>() as u64);
        (aligned && key.len == COUNTER_LEN as u64).then_some(key)
    }
}

fn no_counters(driver: &str) -> io::Error {
    let why = format!("the driver `{driver}` has no counters: use messages");
    io::Error::new(io::ErrorKind::Unsupported, why)
}

/// A threshold that is never reached.
pub(super) const NEVER_REACHED: u64 = u64::MAX;

/// Bytes of a counter: half a cache line.
pub(crate) const COUNTER_LEN: usize = 32;
const WAKE_AT: usize = 8;
const OWN: usize = 16;
