//! Atomic updates of elements that do not lie next to each other.

use std::ops::Range;

use super::{
    Element, RemoteOp, WindowEnd, WindowTarget,
    remote::{UPDATED_AT_A_TIME, in_words, mapped_to_update},
};
use crate::{
    buffer::{self, RecvBuf, SendBuf},
    engine::Combine,
    error::{OpError, Result},
};

impl<T: Element> WindowEnd<T> {
    /// Combines each element of `buf` with one of these ranges of a target's elements, one block after the other.
    #[track_caller]
    pub fn accumulate_blocks<B: SendBuf<Elem = T>>(
        &self,
        target: &WindowTarget,
        blocks: &[Range<usize>],
        buf: B,
        combine: Combine,
    ) -> RemoteOp<B> {
        const OP: &str = "accumulate";
        let elems = buf.elems();
        let ranges = self.update_ranges(OP, target, blocks, elems.len(), combine);
        let ranges = match self.usable(OP, target, &buf, ranges) {
            Ok(ranges) => ranges,
            Err(error) => return RemoteOp::failed(OpError { error, buf }),
        };
        if let Some(mapped_end) = mapped_to_update::<T>(target) {
            let (region, start) = (&mapped_end.region, mapped_end.start);
            let mut left = offsets::<T>(&ranges).zip(elems).peekable();
            while left.peek().is_some() {
                let _held = self.begin_update(mapped_end.update_lock.as_ref(), elems.len());
                for (offset, &elem) in left.by_ref().take(UPDATED_AT_A_TIME) {
                    T::update(region, start + offset, combine, elem);
                }
            }
            return RemoteOp::done(buf);
        }
        let kind = T::element_type().update(combine, false);
        self.write(OP, target, kind, in_words(&ranges), buf)
    }

    /// Like [`accumulate_blocks`](Self::accumulate_blocks), and stores the old values of the target's elements in `buf`.
    #[track_caller]
    pub fn get_accumulate_blocks<B: RecvBuf<Elem = T>>(
        &self,
        target: &WindowTarget,
        blocks: &[Range<usize>],
        mut buf: B,
        combine: Combine,
    ) -> RemoteOp<B> {
        const OP: &str = "get_accumulate";
        let ranges = self
            .whole(OP, target, &mut buf)
            .and_then(|len| self.update_ranges(OP, target, blocks, len, combine));
        let ranges = match self.usable(OP, target, &buf, ranges) {
            Ok(ranges) => ranges,
            Err(error) => return RemoteOp::failed(OpError { error, buf }),
        };
        if let Some(mapped_end) = mapped_to_update::<T>(target) {
            // The methods of the buffer are code of the application, which may wait or panic, so none is called under the lock.
            let elems = buf.elems();
            let (region, start) = (&mapped_end.region, mapped_end.start);
            let mut old = Vec::with_capacity(elems.len());
            let mut left = offsets::<T>(&ranges).zip(elems).peekable();
            while left.peek().is_some() {
                let _held = self.begin_update(mapped_end.update_lock.as_ref(), elems.len());
                let part = left.by_ref().take(UPDATED_AT_A_TIME);
                old.extend(
                    part.map(|(offset, &elem)| T::update(region, start + offset, combine, elem)),
                );
            }
            buffer::overwrite(&mut buf, &old);
            return RemoteOp::done(buf);
        }
        let kind = T::element_type().update(combine, true);
        self.fetch(OP, target, kind, in_words(&ranges), buf)
    }

    /// Returns the byte ranges of blocks that hold `len` elements together.
    fn update_ranges(
        &self,
        op: &'static str,
        target: &WindowTarget,
        blocks: &[Range<usize>],
        len: usize,
        combine: Combine,
    ) -> Result<Vec<Range<usize>>> {
        self.check_combine(op, target, combine)?;
        self.blocks(op, target, blocks, len)
    }
}

/// Returns the byte offsets of the elements in these byte ranges.
fn offsets<T>(ranges: &[Range<usize>]) -> impl Iterator<Item = usize> {
    let elems = |range: &Range<usize>| range.clone().step_by(size_of::<T>());
    ranges.iter().flat_map(elems)
}
