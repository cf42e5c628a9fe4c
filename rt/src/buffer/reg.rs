//! Buffers in registered memory.
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

use ripstop_fabric::memory::Region;

use super::{RecvBuf, SendBuf, Wire};

/// `len` elements in memory that the fabric can reach without a copy.
///
/// Holding one proves that nobody else touches its range: peers get a key to it only while an operation owns the buffer,
/// and parts of one region never overlap. That is why it gives out `&mut [T]` although the memory is shared.
///
/// It may be split into parts that several operations use at once, and joined again.
pub struct RegBuf<T: Wire> {
    lease: Arc<Lease>,
    /// Bytes into the region, aligned for `T`.
    offset: usize,
    /// Elements.
    len: usize,
    elems: PhantomData<T>,
}

/// A region, given back when the last part of it is gone.
struct Lease {
    region: Region,
    give_back: Option<GiveBack>,
}

type GiveBack = Box<dyn FnOnce(Region) + Send + Sync>;

impl<T: Wire> RegBuf<T> {
    /// The first `len` elements of a region, as they are.
    ///
    /// # Safety
    /// Until this buffer and everything split from it are gone, nobody else reads or writes that range, neither through a
    /// clone of the region nor in another process, except for an operation that owns a buffer in it.
    ///
    /// # Panics
    /// When the region is shorter than that, or does not start at a multiple of the element's alignment.
    #[must_use]
    pub unsafe fn over(region: Region, len: usize) -> Self {
        Self::leased(
            Lease {
                region,
                give_back: None,
            },
            len,
        )
    }

    /// As [`over`](Self::over), and hands the region on when the last part of the buffer is dropped.
    ///
    /// # Safety
    /// As [`over`](Self::over), until `give_back` is called.
    ///
    /// # Panics
    /// As [`over`](Self::over).
    #[must_use]
    pub unsafe fn over_returning(
        region: Region,
        len: usize,
        give_back: impl FnOnce(Region) + Send + Sync + 'static,
    ) -> Self {
        Self::leased(
            Lease {
                region,
                give_back: Some(Box::new(give_back)),
            },
            len,
        )
    }

    fn leased(lease: Lease, len: usize) -> Self {
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

    /// Makes every element zero, which is a value of every `Wire` type.
    pub fn zero(&mut self) {
        self.fill(T::zeroed());
    }

    /// The region that it lies in, and the byte at which it starts there.
    pub(crate) fn place(&self) -> (&Region, usize) {
        (&self.lease.region, self.offset)
    }

    /// Has the region never given back: others may write to this buffer's part of it for ever.
    pub(crate) fn keep_for_ever(&self) {
        std::mem::forget(Arc::clone(&self.lease));
    }

    /// All of it, and leaves a buffer of nothing.
    pub(crate) fn take(&mut self) -> Self {
        let all = self.view(0..self.len);
        self.len = 0;
        all
    }

    /// Elements, without looking at them.
    pub(crate) fn size(&self) -> usize {
        self.len
    }

    /// The elements before `at`, and the others.
    ///
    /// # Panics
    /// When there are fewer than `at`.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "split_at({at}) of {} elements", self.len);
        (self.view(0..at), self.view(at..self.len))
    }

    /// Parts of these lengths, one after the other; together they must be the whole buffer.
    ///
    /// # Panics
    /// When they are longer or shorter than the buffer.
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

    /// The buffer that ends where `other` begins, and `other`, as one again.
    ///
    /// # Errors
    /// Both, when `other` does not begin where this one ends.
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

    /// Every caller consumes `self`, and takes ranges that do not overlap.
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

/// The memory that a buffer lies in. Only the runtime can look into it: with the region in hand, safe code could write to
/// what the buffer lends as a slice.
#[derive(Clone, Copy)]
pub struct Registered<'a>(&'a Region);

impl<'a> Registered<'a> {
    /// The region, and at how many bytes into it a slice of the buffer starts; `None` when it is not in there, which a
    /// buffer of the user's own making could claim.
    ///
    /// # Safety
    /// The region is used for nothing but an operation that owns the buffer, and for nothing but the slice.
    #[must_use]
    pub unsafe fn locate(self, start: NonNull<u8>, bytes: usize) -> Option<(&'a Region, usize)> {
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
        // SAFETY: mapped as long as the lease lives, aligned, initialised (mapped memory is, and any bits are a `T`), and
        // nobody writes it while we are borrowed, by the promise made to `over`.
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }
}

impl<T: Wire> DerefMut for RegBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; parts do not overlap, so the range is ours alone.
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

// SAFETY: always the same memory.
unsafe impl<T: Wire> RecvBuf for RegBuf<T> {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<T>] {
        // SAFETY: the caller leaves no element without a value.
        unsafe { super::as_spare(self) }
    }

    unsafe fn set_filled(&mut self, _: usize) {}
}

impl Drop for Lease {
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
