//! Borrowed memory that somebody else may write at any moment.
#![expect(
    unsafe_code,
    reason = "raw ranges of shared memory are read and written here, and only here"
)]

use std::{fmt, marker::PhantomData, mem::MaybeUninit, ptr::NonNull};

/// The bytes of a message, lent for the length of one call.
///
/// They may lie in memory that the sending process can still write, so they are never a `&[u8]`: copy them, then look.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    start: NonNull<u8>,
    len: usize,
    lent: PhantomData<&'a [u8]>,
}

impl<'a> Payload<'a> {
    /// Bytes that nobody else can write.
    #[must_use]
    pub fn from_slice(bytes: &'a [u8]) -> Self {
        Self {
            start: NonNull::from(bytes).cast(),
            len: bytes.len(),
            lent: PhantomData,
        }
    }

    /// Bytes in shared memory.
    ///
    /// # Safety
    /// `start..start + len` is mapped and readable for `'a`.
    #[must_use]
    pub const unsafe fn from_raw(start: NonNull<u8>, len: usize) -> Self {
        Self {
            start,
            len,
            lent: PhantomData,
        }
    }

    /// Bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Whether it begins there, so that there is nothing to copy.
    #[must_use]
    pub fn is_at(self, start: NonNull<u8>) -> bool {
        self.start == start
    }

    /// The first `len` bytes.
    ///
    /// # Panics
    /// When the payload is shorter than that.
    #[must_use]
    pub const fn first(self, len: usize) -> Self {
        assert!(len <= self.len, "a part that is longer than the whole");
        Self { len, ..self }
    }

    /// Copies the first `into.len()` bytes.
    ///
    /// # Panics
    /// When the payload is shorter than that.
    #[inline(always)]
    pub fn copy_to(self, into: &mut [MaybeUninit<u8>]) {
        assert!(
            into.len() <= self.len,
            "{} bytes asked of a payload of {}",
            into.len(),
            self.len
        );
        // Lengths known when this is compiled take an instruction or two: those of short messages and of their headers.
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
        // SAFETY: the source is mapped for 'a and at least as long as `into`, which is ours alone. A writer in another
        // process can tear the bytes but not the copy.
        unsafe {
            self.start
                .as_ptr()
                .cast::<MaybeUninit<u8>>()
                .copy_to_nonoverlapping(into.as_mut_ptr(), into.len())
        };
    }

    /// As [`copy_to`](Self::copy_to), over bytes that have values already.
    ///
    /// # Panics
    /// When the payload is shorter than that.
    pub fn copy_into(self, into: &mut [u8]) {
        assert!(
            into.len() <= self.len,
            "{} bytes asked of a payload of {}",
            into.len(),
            self.len
        );
        // SAFETY: as in `copy_to`; the bytes written are initialised, so `into` stays so.
        unsafe {
            self.start
                .as_ptr()
                .copy_to_nonoverlapping(into.as_mut_ptr(), into.len())
        };
    }

    /// Copies all bytes to the heap.
    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        self.copy_to(&mut bytes.spare_capacity_mut()[..self.len]);
        // SAFETY: `copy_to` initialised the first `len` bytes.
        unsafe { bytes.set_len(self.len) };
        bytes
    }
}

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.len)
    }
}

/// A range of this process's memory that a one-sided command reads or writes.
///
/// Holding one proves that its maker promised to keep the memory alive and otherwise untouched until the command's
/// completion. It does not prove that the memory is initialised.
#[derive(Clone, Copy, Debug)]
pub struct LocalRange {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `LocalRange` is an address; whoever dereferences it relies on the promise made to `new`, which names no thread.
unsafe impl Send for LocalRange {}

impl LocalRange {
    /// A range that a driver may read (put) or write (get).
    ///
    /// # Safety
    /// From now until the command that uses it is complete or failed, the memory stays valid, and nobody else writes it (for
    /// a put) or touches it (for a get).
    #[must_use]
    pub const unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len }
    }

    /// Copies the first bytes out. For what a command has read or written, so that they have values.
    ///
    /// # Panics
    /// When the range is shorter than that.
    pub(crate) fn read(self, into: &mut [u8]) {
        assert!(
            into.len() <= self.len,
            "{} bytes asked of a range of {}",
            into.len(),
            self.len
        );
        let from = self.start.as_ptr();
        // SAFETY: the maker keeps the range valid until the command is complete, and `into` is ours alone.
        unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }

    /// The bytes that a command has written, or that were there before.
    pub(crate) fn lend(&self) -> Payload<'_> {
        Payload {
            start: self.start,
            len: self.len,
            lent: PhantomData,
        }
    }

    /// Writes the first bytes of what a command is to change.
    ///
    /// # Panics
    /// When the range is shorter than that.
    pub(crate) fn write(self, from: &[u8]) {
        assert!(
            from.len() <= self.len,
            "{} bytes for a range of {}",
            from.len(),
            self.len
        );
        let into = self.start.as_ptr();
        // SAFETY: the maker keeps the range valid, and leaves it to us, until the command is complete; `from` is no part of it.
        unsafe { into.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// The first byte.
    #[must_use]
    pub const fn start(self) -> NonNull<u8> {
        self.start
    }

    /// Bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Copies all bytes to where another command's range is, in this process. The two may overlap.
    ///
    /// # Panics
    /// When they are not of the same length.
    pub(crate) fn copy_to(self, into: Self) {
        assert_eq!(self.len, into.len, "a copy between ranges of two lengths");
        // SAFETY: the makers of both promised that they may be read and written until their commands are complete, and only such
        // commands call this. The bytes need not be initialised: they are moved, not looked at.
        unsafe { self.start.as_ptr().copy_to(into.start.as_ptr(), self.len) };
    }

    /// The part from `offset` on, `len` bytes long.
    ///
    /// # Panics
    /// When that is not inside the range.
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
