//! Borrowed memory that another process or an adapter may write at any moment.
#![expect(
    unsafe_code,
    reason = "raw ranges of shared memory are read and written here, and only here"
)]

use std::{fmt, marker::PhantomData, mem::MaybeUninit, ptr::NonNull, sync::atomic::AtomicU64};

/// Bytes of a message, lent for the duration of one call.
///
/// The sending process may still be able to write them, so they are never a `&[u8]`: copy them first, then check the copy.
#[derive(Clone, Copy)]
pub struct PayloadView<'a> {
    start: NonNull<u8>,
    len: usize,
    lent: PhantomData<&'a [u8]>,
}

impl<'a> PayloadView<'a> {
    /// Wraps bytes that nothing else can write.
    #[must_use]
    pub fn from_slice(bytes: &'a [u8]) -> Self {
        Self {
            start: NonNull::from(bytes).cast(),
            len: bytes.len(),
            lent: PhantomData,
        }
    }

    /// Wraps bytes in shared memory.
    ///
    /// # Safety
    /// `start..start + len` must be mapped and readable for `'a`.
    #[must_use]
    pub const unsafe fn from_raw(start: NonNull<u8>, len: usize) -> Self {
        Self {
            start,
            len,
            lent: PhantomData,
        }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns true if the payload has no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns true if the payload begins at `start`, so that there is nothing to copy.
    #[must_use]
    pub fn is_at(self, start: NonNull<u8>) -> bool {
        self.start == start
    }

    /// Returns the first `len` bytes.
    ///
    /// # Panics
    /// Panics if the payload is shorter than that.
    #[must_use]
    pub const fn first(self, len: usize) -> Self {
        assert!(len <= self.len, "a part that is longer than the whole");
        Self { len, ..self }
    }

    /// Copies the first `into.len()` bytes.
    ///
    /// # Panics
    /// Panics if the payload is shorter than that.
    #[inline(always)]
    pub fn copy_to(self, into: &mut [MaybeUninit<u8>]) {
        assert!(
            into.len() <= self.len,
            "{} bytes asked of a payload of {}",
            into.len(),
            self.len
        );
        // The lengths of short messages and of their headers. A length known at compile time takes one or two instructions.
        if let Ok(word) = <&mut [MaybeUninit<u8>; 8]>::try_from(&mut *into) {
            // SAFETY: as below.
            *word = unsafe { self.start.cast().read() };
            return;
        }
        if let Ok(header) = <&mut [MaybeUninit<u8>; 24]>::try_from(&mut *into) {
            // SAFETY: as below.
            *header = unsafe { self.start.cast().read() };
            return;
        }
        // SAFETY: the source is mapped for 'a and at least as long as `into`, which only this call holds. A writer in another
        // process can tear the bytes but not the copy.
        unsafe {
            self.start
                .as_ptr()
                .cast::<MaybeUninit<u8>>()
                .copy_to_nonoverlapping(into.as_mut_ptr(), into.len())
        };
    }

    /// Copies the first `into.len()` bytes, like [`copy_to`](Self::copy_to), over initialized bytes.
    ///
    /// # Panics
    /// Panics if the payload is shorter than that.
    pub fn copy_into(self, into: &mut [u8]) {
        assert!(
            into.len() <= self.len,
            "{} bytes asked of a payload of {}",
            into.len(),
            self.len
        );
        // SAFETY: as in `copy_to`; the bytes written are initialized, so `into` stays initialized.
        unsafe {
            self.start
                .as_ptr()
                .copy_to_nonoverlapping(into.as_mut_ptr(), into.len())
        };
    }

    /// Copies all bytes into a new vector.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        self.append_to(&mut bytes);
        bytes
    }

    /// Copies all bytes to the end of a vector.
    pub fn append_to(self, bytes: &mut Vec<u8>) {
        bytes.reserve(self.len);
        self.copy_to(&mut bytes.spare_capacity_mut()[..self.len]);
        let len = bytes.len() + self.len;
        // SAFETY: `copy_to` has initialized the bytes behind those that were there.
        unsafe { bytes.set_len(len) };
    }
}

/// Bodies of messages that follow each other, of one length. They lie in one piece of memory, each at a multiple of a stride.
#[derive(Clone, Debug)]
pub struct PayloadRun<'a> {
    /// Memory of the bodies that were not returned yet.
    rest: PayloadView<'a>,
    /// Length of each body in bytes.
    len: usize,
    stride: usize,
}

impl<'a> PayloadRun<'a> {
    /// Cuts memory into bodies of `len` bytes, one at each multiple of `stride`.
    ///
    /// # Panics
    /// Panics if `stride` is 0, or if a body is longer than the stride.
    #[must_use]
    #[inline]
    pub const fn new(memory: PayloadView<'a>, len: usize, stride: usize) -> Self {
        assert!(0 < stride && len <= stride, "bodies that overlap");
        Self {
            rest: memory,
            len,
            stride,
        }
    }

    /// Returns the length of each body in bytes.
    #[must_use]
    #[inline]
    pub const fn body_len(&self) -> usize {
        self.len
    }

    /// Returns true if all bodies were returned.
    #[must_use]
    #[inline]
    pub const fn is_over(&self) -> bool {
        self.rest.len < self.stride
    }
}

impl<'a> Iterator for PayloadRun<'a> {
    type Item = PayloadView<'a>;

    #[inline]
    fn next(&mut self) -> Option<PayloadView<'a>> {
        if self.is_over() {
            return None;
        }
        let (start, lent) = (self.rest.start, self.rest.lent);
        self.rest.len -= self.stride;
        // SAFETY: the memory was at least one stride long, so the place is inside it or at its end.
        self.rest.start = unsafe { start.add(self.stride) };
        Some(PayloadView {
            start,
            len: self.len,
            lent,
        })
    }
}

impl fmt::Debug for PayloadView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PayloadView({} bytes)", self.len)
    }
}

/// A range of this process's memory that a one-sided command reads or writes.
///
/// Holding one proves that its maker promised to keep the memory alive and otherwise untouched until the command completes. It
/// does not prove that the memory is initialized.
#[derive(Clone, Copy, Debug)]
pub struct LocalRange {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `LocalRange` is an address. Code that dereferences it relies on the promise made to `new`, which names no thread.
unsafe impl Send for LocalRange {}

impl LocalRange {
    /// Makes a range that a driver may read (for a put) or write (for a get).
    ///
    /// # Safety
    /// Until the command that uses the range has completed or failed, the memory must stay valid. No other code may write it (for
    /// a put) or touch it (for a get).
    #[must_use]
    pub const unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len }
    }

    /// Copies the first `into.len()` bytes out. A command must have read or written them, so that they are initialized.
    ///
    /// # Panics
    /// Panics if the range is shorter than that.
    pub(crate) fn read(self, into: &mut [u8]) {
        assert!(
            into.len() <= self.len,
            "{} bytes asked of a range of {}",
            into.len(),
            self.len
        );
        let from = self.start.as_ptr();
        // SAFETY: the maker keeps the range valid until the command is complete, and only this call holds `into`.
        unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }

    /// Lends the bytes of the range, which a command has written or which were there before.
    pub(crate) fn as_payload(&self) -> PayloadView<'_> {
        PayloadView {
            start: self.start,
            len: self.len,
            lent: PhantomData,
        }
    }

    /// Writes the first `from.len()` bytes of a range that a command may change.
    ///
    /// # Panics
    /// Panics if the range is shorter than that.
    pub(crate) fn write(self, from: &[u8]) {
        assert!(
            from.len() <= self.len,
            "{} bytes for a range of {}",
            from.len(),
            self.len
        );
        let into = self.start.as_ptr();
        // SAFETY: the maker keeps the range valid, and lets only this value write it, until the command is complete. `from`
        // does not overlap it.
        unsafe { into.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// Copies a payload of the same length to a range that a command may change.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    #[inline(always)]
    pub fn fill(self, payload: PayloadView<'_>) {
        assert_eq!(
            payload.len, self.len,
            "a payload for a range of another length"
        );
        let (from, into) = (payload.start.as_ptr(), self.start.as_ptr());
        if self.len == 8 {
            // The length of the shortest messages; if it is known at compile time, the copy takes two instructions.
            // SAFETY: as below.
            let word = unsafe { from.cast::<[MaybeUninit<u8>; 8]>().read() };
            // SAFETY: as below.
            return unsafe { into.cast::<[MaybeUninit<u8>; 8]>().write(word) };
        }
        // SAFETY: the payload is mapped, and the maker of the range keeps that valid and lets only this value write it, until the
        // command is complete. A writer in another process can tear the bytes but not the copy.
        unsafe { from.copy_to(into, self.len) };
    }

    /// Returns the range as a word, if it is eight bytes at a multiple of eight.
    pub(crate) fn as_atomic(&self) -> Option<&AtomicU64> {
        let is_word = self.len == size_of::<u64>() && self.start.cast::<u64>().is_aligned();
        // SAFETY: the word is aligned, and the maker of the range keeps it valid for commands to access.
        is_word.then(|| unsafe { AtomicU64::from_ptr(self.start.as_ptr().cast()) })
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub const fn start(self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns true if the range has no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Copies all bytes to another command's range in this process. The two may overlap.
    ///
    /// # Panics
    /// Panics if their lengths differ.
    pub(crate) fn copy_to(self, into: Self) {
        assert_eq!(self.len, into.len, "a copy between ranges of two lengths");
        // SAFETY: the makers of both promised that they may be read and written until their commands are complete, and only such
        // commands call this. The bytes need not be initialized, because they are only moved.
        unsafe { self.start.as_ptr().copy_to(into.start.as_ptr(), self.len) };
    }

    /// Returns the part of `len` bytes that starts at `offset`.
    ///
    /// # Panics
    /// Panics if that is not inside the range.
    #[must_use]
    pub fn slice(self, offset: usize, len: usize) -> Self {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "{offset}+{len} of {}",
            self.len
        );
        // SAFETY: `offset` is inside the range or one past its end.
        let start = unsafe { self.start.add(offset) };
        Self { start, len }
    }
}

#[cfg(test)]
mod tests {
    use super::{PayloadRun, PayloadView};

    #[test]
    fn a_run_has_a_body_at_each_multiple_of_its_stride() {
        let memory = [1, 2, 0, 3, 4, 0, 5, 6, 0];
        let mut run = PayloadRun::new(PayloadView::from_slice(&memory), 2, 3);
        assert_eq!(run.next().map(PayloadView::to_vec), Some(vec![1, 2]));
        let rest: Vec<_> = run.by_ref().map(PayloadView::to_vec).collect();
        assert_eq!(rest, [[3, 4], [5, 6]]);
        assert!(run.is_over() && run.next().is_none());
    }

    #[test]
    fn bodies_may_be_empty_and_memory_that_is_too_short_has_none() {
        let empty = PayloadRun::new(PayloadView::from_slice(&[7; 16]), 0, 8);
        assert!(empty.map(PayloadView::len).eq([0, 0]));
        assert!(PayloadRun::new(PayloadView::from_slice(&[7; 7]), 7, 8).is_over());
    }

    #[test]
    fn bytes_are_appended_behind_those_that_are_there() {
        let mut bytes = vec![1, 2];
        PayloadView::from_slice(&[3; 100]).append_to(&mut bytes);
        PayloadView::from_slice(&[]).append_to(&mut bytes);
        assert_eq!(bytes, [&[1, 2][..], &[3; 100]].concat());
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn a_body_is_not_longer_than_its_stride() {
        let _run = PayloadRun::new(PayloadView::from_slice(&[7; 16]), 9, 8);
    }
}
