//! Buffers in registered memory: [`RegBuf`].
#![expect(
    unsafe_code,
    reason = "gives out slices of mapped memory that the buffer owns a range of"
)]

use std::{
    fmt,
    marker::PhantomData,
    mem::MaybeUninit,
    ops::{Deref, DerefMut, Range},
    ptr::NonNull,
    slice,
    sync::Arc,
};

use ripstop_fabric::memory::MemoryRegion;

use super::{RecvBuf, SendBuf, Wire};

/// A buffer of elements in memory that the network can reach without a copy.
///
/// A `RegBuf` proves that no other code accesses its range. Peers get a key to it only while an operation owns the
/// buffer, and parts of one region never overlap. So it can give out `&mut [T]` although the memory is shared.
///
/// A buffer may be split into parts that several operations use at the same time, and joined again.
pub struct RegBuf<T: Wire> {
    lease: Arc<RegionLease>,
    /// Offset in the region, in bytes, aligned for `T`.
    offset: usize,
    /// Length, in elements.
    len: usize,
    elems: PhantomData<T>,
}

/// A region, returned to its owner when the last part of it is dropped.
struct RegionLease {
    region: MemoryRegion,
    give_back: Option<RegionReturnFn>,
}

type RegionReturnFn = Box<dyn FnOnce(MemoryRegion) + Send + Sync>;

impl<T: Wire> RegBuf<T> {
    /// Returns a buffer over the first `len` elements of a region, with their present values.
    ///
    /// # Safety
    /// Until this buffer and all parts split from it are dropped, no other code reads or writes that range, neither
    /// through a clone of the region nor in another process. The only exception is an operation that owns a buffer in
    /// it.
    ///
    /// # Panics
    /// Panics if the region is shorter, or does not start at a multiple of the element's alignment.
    #[must_use]
    pub unsafe fn over(region: MemoryRegion, len: usize) -> Self {
        Self::leased(
            RegionLease {
                region,
                give_back: None,
            },
            len,
        )
    }

    /// Like [`over`](Self::over), and calls `give_back` with the region when the last part of the buffer is dropped.
    ///
    /// # Safety
    /// The promise of [`over`](Self::over), until `give_back` is called.
    ///
    /// # Panics
    /// Panics if [`over`](Self::over) would.
    #[must_use]
    pub unsafe fn over_returning(
        region: MemoryRegion,
        len: usize,
        give_back: impl FnOnce(MemoryRegion) + Send + Sync + 'static,
    ) -> Self {
        Self::leased(
            RegionLease {
                region,
                give_back: Some(Box::new(give_back)),
            },
            len,
        )
    }

    fn leased(lease: RegionLease, len: usize) -> Self {
        let bytes = len
            .checked_mul(size_of::<T>())
            .expect("a length in bytes below usize::MAX");
        let start = lease.region.at(0, bytes);
        assert!(
            start.cast::<T>().is_aligned(),
            "a region at {start:?} for elements aligned to {}",
            align_of::<T>()
        );
        Self {
            lease: Arc::new(lease),
            offset: 0,
            len,
            elems: PhantomData,
        }
    }

    /// Sets every element to zero, which is a valid value of every `Wire` type.
    pub fn zero(&mut self) {
        self.fill(T::zeroed());
    }

    /// Returns the region that contains the buffer, and the buffer's byte offset in the region.
    pub(crate) fn place(&self) -> (&MemoryRegion, usize) {
        (&self.lease.region, self.offset)
    }

    /// Leaks the region, because other ranks may write to this buffer's part of it forever.
    pub(crate) fn keep_for_ever(&self) {
        std::mem::forget(Arc::clone(&self.lease));
    }

    /// Returns the whole buffer, and leaves an empty one in its place.
    pub(crate) fn take(&mut self) -> Self {
        let all = self.view(0..self.len);
        self.len = 0;
        all
    }

    /// Returns the length in elements, without borrowing the elements.
    pub(crate) fn size(&self) -> usize {
        self.len
    }

    /// Splits the buffer into the elements before `at` and the rest.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let (mine, room) = world.alloc::<f64>(200)?.split_at(100); // one piece of registered memory
    /// let inbox = world.recv_into(other, 0, room);
    /// let mine = world.send(other, 0, mine).await?;
    /// let (theirs, _) = inbox.await?;
    /// assert_eq!(mine.join(theirs).expect("they are neighbors").len(), 200);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Panics
    /// Panics if there are fewer than `at` elements.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "split_at({at}) of {} elements", self.len);
        (self.view(0..at), self.view(at..self.len))
    }

    /// Splits the buffer into consecutive parts of these lengths, which must add up to the length of the buffer.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// let buffers = world.alloc::<f32>(60)?.split_into(&[10, 20, 30]);
    /// assert_eq!(buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [10, 20, 30]);
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if the lengths do not add up to the length of the buffer.
    #[must_use]
    pub fn split_into(self, lens: &[usize]) -> Vec<Self> {
        let sum = lens
            .iter()
            .try_fold(0usize, |sum, &len| sum.checked_add(len));
        assert!(
            sum == Some(self.len),
            "split_into({lens:?}) of {} elements: the lengths must add up",
            self.len
        );
        let mut at = 0;
        let parts = lens.iter().map(|&len| {
            at += len;
            self.view(at - len..at)
        });
        parts.collect()
    }

    /// Joins this buffer with `other`, which must begin where this one ends.
    ///
    /// # Errors
    /// Returns both buffers if `other` does not begin where this one ends.
    pub fn join(self, other: Self) -> Result<Self, (Self, Self)> {
        let adjacent =
            Arc::ptr_eq(&self.lease, &other.lease) && self.offset + self.bytes() == other.offset;
        if adjacent {
            Ok(Self {
                len: self.len + other.len,
                ..self
            })
        } else {
            Err((self, other))
        }
    }

    /// Returns a handle of a range. Every caller consumes or empties `self`, and takes ranges that do not overlap.
    fn view(&self, range: Range<usize>) -> Self {
        let offset = self.offset + range.start * size_of::<T>();
        Self {
            lease: Arc::clone(&self.lease),
            offset,
            len: range.len(),
            elems: PhantomData,
        }
    }

    fn start(&self) -> NonNull<T> {
        self.lease.region.at(self.offset, self.bytes()).cast()
    }

    fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

/// The registered memory of a buffer. Only the runtime can access it: with the region, safe code could write to memory
/// that the buffer lends as a slice.
#[derive(Clone, Copy)]
pub struct Registered<'a>(&'a MemoryRegion);

impl<'a> Registered<'a> {
    /// Returns the region, and the byte offset at which a slice of the buffer starts in it. Returns `None` if the slice
    /// is not inside the region, because a user's buffer type could claim a wrong one.
    ///
    /// # Safety
    /// The caller uses the region only for the slice, and only for an operation that owns the buffer.
    #[must_use]
    pub unsafe fn locate(
        self,
        start: NonNull<u8>,
        bytes: usize,
    ) -> Option<(&'a MemoryRegion, usize)> {
        let offset = start
            .addr()
            .get()
            .checked_sub(self.0.start().addr().get())?;
        let inside = offset <= self.0.len() && bytes <= self.0.len() - offset;
        inside.then_some((self.0, offset))
    }
}

impl<T: Wire> Deref for RegBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the memory is mapped as long as the lease lives, aligned, and initialized (mapped memory is, and any bits are a
        // valid `T`). By the promise made to `over`, no other code writes it while it is borrowed here.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }
}

impl<T: Wire> DerefMut for RegBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; parts do not overlap, so this part alone has this range.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }
}

impl<T: Wire> SendBuf for RegBuf<T> {
    type Elem = T;

    fn elems(&self) -> &[T] {
        self
    }

    fn registered(&self) -> Option<Registered<'_>> {
        Some(Registered(&self.lease.region))
    }
}

// SAFETY: `spare` always returns the same memory.
unsafe impl<T: Wire> RecvBuf for RegBuf<T> {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        // SAFETY: the caller leaves no element without a value.
        unsafe { super::as_spare(self) }
    }

    unsafe fn set_filled(&mut self, _: usize) {}
}

impl Drop for RegionLease {
    fn drop(&mut self) {
        if let Some(give_back) = self.give_back.take() {
            give_back(self.region.clone());
        }
    }
}

impl<T: Wire> fmt::Debug for RegBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RegBuf({} elements at byte {} of {:?})",
            self.len, self.offset, self.lease.region
        )
    }
}

impl fmt::Debug for Registered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registered({:?})", self.0)
    }
}
