//! What an update that came by message does to memory of this rank.

use ripstop_fabric::memory::MemoryRegion;

use super::{
    number::{BulkUpdate, Combine, NumberType},
    update_lock::UpdateGuard,
    wide_element::WideElement,
};

use crate::proto::wire::REFUSED;

/// An update of memory of this rank that came by message.
pub(super) struct SentUpdate<'e> {
    pub(super) region: &'e MemoryRegion,
    /// Offset in the region, in bytes.
    pub(super) at: usize,
    /// Length of the memory in bytes.
    pub(super) len: usize,
    pub(super) sent: Vec<u8>,
}

impl SentUpdate<'_> {
    pub(super) fn put(self) -> Result<Vec<u8>, u64> {
        if self.sent.len() != self.len {
            return Err(REFUSED);
        }
        self.region.write(self.at, &self.sent);
        Ok(Vec::new())
    }

    pub(super) fn get(self) -> Vec<u8> {
        let mut old = vec![0; self.len];
        self.region.read(self.at, &mut old);
        old
    }

    /// Refuses an update that does not have one operand for each element of `size` bytes.
    pub(super) fn check(&self, size: usize, is_allowed: bool) -> Result<(), u64> {
        let fits = self.sent.len() == self.len
            && self.len.is_multiple_of(size)
            && self.at.is_multiple_of(size);
        (fits && is_allowed).then_some(()).ok_or(REFUSED)
    }

    /// Refuses a compare-and-swap that does not have two operands for one element of `size` bytes.
    pub(super) fn check_swap(&self, size: usize) -> Result<(), u64> {
        let fits = self.sent.len() == 2 * size && self.len == size && self.at.is_multiple_of(size);
        fits.then_some(()).ok_or(REFUSED)
    }

    /// Combines numbers. Returns their old bytes if `fetch` is set, and otherwise nothing.
    pub(super) fn combine(
        self,
        number: NumberType,
        combine: Combine,
        fetch: bool,
        held: Option<&UpdateGuard<'_>>,
    ) -> Vec<u8> {
        if held.is_some() {
            let mut old = fetch.then(|| vec![0; self.len]);
            number.update_many(BulkUpdate {
                region: self.region,
                offset: self.at,
                combine,
                operands: &self.sent,
                old: old.as_deref_mut(),
            });
            return old.unwrap_or_default();
        }
        let mut old = self.sent;
        let offsets = (self.at..).step_by(number.len());
        for (at, bytes) in offsets.zip(old.chunks_exact_mut(number.len())) {
            let was = number.update(self.region, at, combine, number.bits(bytes));
            number.write(was, bytes);
        }
        if fetch { old } else { Vec::new() }
    }

    /// Combines elements of 128 bits, and returns their old bytes.
    pub(super) fn combine_wide(self, element: WideElement, combine: Combine) -> Vec<u8> {
        let offsets = (self.at..).step_by(element.len());
        let mut old = self.sent;
        for (at, bytes) in offsets.zip(old.chunks_exact_mut(element.len())) {
            let was = element.update(self.region, at, combine, element.bits(bytes));
            element.write(was, bytes);
        }
        old
    }

    pub(super) fn swap(self, number: NumberType) -> Vec<u8> {
        let (expected, new) = self.sent.split_at(number.len());
        let [expected, new] = [expected, new].map(|bytes| number.bits(bytes));
        let mut old = vec![0; number.len()];
        number.write(
            number.compare_swap(self.region, self.at, expected, new),
            &mut old,
        );
        old
    }

    pub(super) fn swap_wide(self, element: WideElement) -> Vec<u8> {
        let (expected, new) = self.sent.split_at(element.len());
        let [expected, new] = [expected, new].map(|bytes| element.bits(bytes));
        let mut old = vec![0; element.len()];
        element.write(
            element.compare_swap(self.region, self.at, expected, new),
            &mut old,
        );
        old
    }
}
