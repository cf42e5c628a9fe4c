//! Owned ranges of a buffer.
#![expect(
    unsafe_code,
    reason = "lends a range of room that may be uninitialised"
)]

use std::{
    mem::MaybeUninit,
    ops::{Bound, Range, RangeBounds},
};

use super::{RecvBuf, Registered, SendBuf};

/// A range of a buffer's elements. An operation on it owns the whole buffer. Made by
/// [`BufExt::part`](super::BufExt::part).
///
/// A `Part` proves that the range was inside the elements. So receiving into it initializes no new element, and the
/// rest of the buffer is unchanged.
#[derive(Clone, Debug)]
pub struct Part<B> {
    buf: B,
    range: Range<usize>,
}

impl<B: SendBuf> Part<B> {
    #[track_caller]
    pub(super) fn new(buf: B, range: impl RangeBounds<usize>) -> Self {
        super::expect_usable(&buf);
        let range = resolve(&range, buf.elems().len());
        Self { buf, range }
    }

    /// Returns the range, in elements of the whole buffer.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the whole buffer.
    #[must_use]
    pub fn into_inner(self) -> B {
        self.buf
    }
}

impl<B: SendBuf> SendBuf for Part<B> {
    type Elem = B::Elem;

    fn elems(&self) -> &[B::Elem] {
        &self.buf.elems()[self.range.clone()]
    }

    fn fault(&self) -> Option<&'static str> {
        self.buf.fault()
    }

    fn registered(&self) -> Option<Registered<'_>> {
        self.buf.registered()
    }
}

// SAFETY: always the same range of a buffer that keeps this promise.
unsafe impl<B: RecvBuf> RecvBuf for Part<B> {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<B::Elem>] {
        // SAFETY: the caller's promise about this part is the one that the inner buffer needs.
        let whole = unsafe { self.buf.spare() };
        &mut whole[self.range.clone()]
    }

    /// Does not call the inner buffer: its elements are already initialized, and its length does not change.
    unsafe fn set_filled(&mut self, _: usize) {}
}

#[track_caller]
fn resolve(range: &impl RangeBounds<usize>, len: usize) -> Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(&at) => Some(at),
        Bound::Excluded(&at) => at.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&at) => at.checked_add(1),
        Bound::Excluded(&at) => Some(at),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => start..end,
        _ => panic!(
            "part({:?}, {:?}) of a buffer of {len} elements: the range must lie inside them",
            range.start_bound(),
            range.end_bound()
        ),
    }
}
