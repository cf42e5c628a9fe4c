//! Operations on a target's memory: loads and stores if this process maps it, otherwise operations of the engine.

use std::{ops::Range, panic::Location};

use super::{Element, RemoteOp, WindowEnd, WindowTarget, fetching::Fetching};
use crate::{
    buffer::{self, RecvBuf, SendBuf, Wire},
    engine::{BulkUpdate, Combine, EngineCommons, MappedEnd, TargetRanges, WindowOpKind},
    error::{Error, ErrorKind, OpError, Result},
    ops::OpInfo,
};

impl<T: Wire> WindowEnd<T> {
    /// Writes `buf` to a target, starting at element `at`.
    #[inline]
    #[track_caller]
    pub fn put<B: SendBuf<Elem = T>>(
        &self,
        target: &WindowTarget,
        at: usize,
        buf: B,
    ) -> RemoteOp<B> {
        let elems = buf.elems();
        let range = match self.usable(
            "put",
            target,
            &buf,
            self.range("put", target, at, elems.len()),
        ) {
            Ok(range) => range,
            Err(error) => return RemoteOp::failed(OpError { error, buf }),
        };
        let copied_here = target.mapped().filter(|_| !self.hands_over(range.len()));
        if let Some(MappedEnd { region, start, .. }) = copied_here {
            let watched = self.copy(range.len(), || {
                region.write(start + range.start, bytemuck::cast_slice(elems));
            });
            return RemoteOp::copied(buf, watched);
        }
        self.write(
            "put",
            target,
            WindowOpKind::Put,
            TargetRanges::From(range.start as u64),
            buf,
        )
    }

    /// Fills `buf` from a target, starting at element `at`.
    #[inline]
    #[track_caller]
    pub fn get<B: RecvBuf<Elem = T>>(
        &self,
        target: &WindowTarget,
        at: usize,
        mut buf: B,
    ) -> RemoteOp<B> {
        let range = self.range("get", target, at, buffer::room(&mut buf));
        let range = match self.usable("get", target, &buf, range) {
            Ok(range) => range,
            Err(error) => return RemoteOp::failed(OpError { error, buf }),
        };
        let copied_here = target.mapped().filter(|_| !self.hands_over(range.len()));
        if let Some(MappedEnd { region, start, .. }) = copied_here {
            let watched = self.copy(range.len(), || {
                let part = region.payload(start + range.start, range.len());
                buffer::fill(&mut buf, [part]);
            });
            return RemoteOp::copied(buf, watched);
        }
        self.fetch(
            "get",
            target,
            WindowOpKind::Get,
            TargetRanges::From(range.start as u64),
            buf,
        )
    }

    /// Writes `buf`, one block after the other, to these ranges of a target's elements.
    #[track_caller]
    pub fn put_blocks<B: SendBuf<Elem = T>>(
        &self,
        target: &WindowTarget,
        blocks: &[Range<usize>],
        buf: B,
    ) -> RemoteOp<B> {
        let elems = buf.elems();
        let ranges = match self.usable(
            "put",
            target,
            &buf,
            self.blocks("put", target, blocks, elems.len()),
        ) {
            Ok(ranges) => ranges,
            Err(error) => return RemoteOp::failed(OpError { error, buf }),
        };
        let Some(MappedEnd { region, start, .. }) = target.mapped() else {
            return self.write("put", target, WindowOpKind::Put, in_words(&ranges), buf);
        };
        let mut bytes: &[u8] = bytemuck::cast_slice(elems);
        for range in ranges {
            let (block, rest) = bytes.split_at(range.len());
            region.write(start + range.start, block);
            bytes = rest;
        }
        RemoteOp::done(buf)
    }

    /// Fills `buf`, one block after the other, from these ranges of a target's elements.
    #[track_caller]
    pub fn get_blocks<B: RecvBuf<Elem = T>>(
        &self,
        target: &WindowTarget,
        blocks: &[Range<usize>],
        mut buf: B,
    ) -> RemoteOp<B> {
        let ranges = self.blocks("get", target, blocks, buffer::room(&mut buf));
        let ranges = match self.usable("get", target, &buf, ranges) {
            Ok(ranges) => ranges,
            Err(error) => return RemoteOp::failed(OpError { error, buf }),
        };
        let Some(MappedEnd { region, start, .. }) = target.mapped() else {
            return self.fetch("get", target, WindowOpKind::Get, in_words(&ranges), buf);
        };
        let parts = ranges.iter();
        let parts = parts.map(|range| region.payload(start + range.start, range.len()));
        buffer::fill(&mut buf, parts);
        RemoteOp::done(buf)
    }

    #[track_caller]
    pub(super) fn write<B: SendBuf>(
        &self,
        op: &'static str,
        target: &WindowTarget,
        kind: WindowOpKind,
        ranges: TargetRanges,
        buf: B,
    ) -> RemoteOp<B> {
        let info = self.op_info(target);
        let (shared, len) = (self.comm.shared(), size_of_val(buf.elems()));
        let ticket = shared.with(|engine| engine.write_window(info, kind, ranges, buf));
        let watched = self.wake_agent(len);
        RemoteOp::in_flight(op, &self.comm, ticket, EngineCommons::take_send, watched)
    }

    #[track_caller]
    pub(super) fn fetch<B: RecvBuf>(
        &self,
        op: &'static str,
        target: &WindowTarget,
        kind: WindowOpKind,
        ranges: TargetRanges,
        mut buf: B,
    ) -> RemoteOp<B> {
        let info = self.op_info(target);
        let (shared, len) = (
            self.comm.shared(),
            buffer::room(&mut buf) * size_of::<B::Elem>(),
        );
        let ticket = shared.with(|engine| engine.fetch_window(info, kind, ranges, buf));
        let watched = self.wake_agent(len);
        RemoteOp::in_flight(op, &self.comm, ticket, EngineCommons::take_recv, watched)
    }

    /// Returns the byte range of `len` elements from `at` on.
    #[inline]
    fn range(
        &self,
        op: &'static str,
        target: &WindowTarget,
        at: usize,
        len: usize,
    ) -> Result<Range<usize>> {
        let has = target.elements(size_of::<T>());
        // What `has` elements take fits into an address space, so neither product overflows.
        if at <= has && len <= has - at {
            let start = at * size_of::<T>();
            return Ok(start..start + len * size_of::<T>());
        }
        Err(self.outside(op, target, at, len))
    }

    /// Returns `ranges`, or an error if the buffer has a fault.
    #[inline]
    pub(super) fn usable<B: SendBuf, R>(
        &self,
        op: &'static str,
        target: &WindowTarget,
        buf: &B,
        ranges: Result<R>,
    ) -> Result<R> {
        match buf.fault() {
            None => ranges,
            Some(fault) => Err(self.error(op, ErrorKind::unusable_buffer(fault), target.world)),
        }
    }

    #[cold]
    fn outside(&self, op: &'static str, target: &WindowTarget, at: usize, len: usize) -> Error {
        let has = target.elements(size_of::<T>());
        let sentence = format!(
            "`at` is {at} and `buf` has {len} elements: rank {} has elements 0..{has} in window {}",
            target.rank, self.id.sequence
        );
        self.error(op, ErrorKind::InvalidArgument(sentence), target.world)
    }

    pub(super) fn blocks(
        &self,
        op: &'static str,
        target: &WindowTarget,
        blocks: &[Range<usize>],
        len: usize,
    ) -> Result<Vec<Range<usize>>> {
        let sum = blocks
            .iter()
            .try_fold(0_usize, |sum, block| sum.checked_add(block.len()));
        if sum != Some(len) {
            let sentence = format!(
                "`blocks` hold {} elements and `buf` has {len}: they must agree",
                sum.unwrap_or(usize::MAX)
            );
            return Err(self.error(op, ErrorKind::InvalidArgument(sentence), target.world));
        }
        blocks
            .iter()
            .map(|block| self.range(op, target, block.start, block.len()))
            .collect()
    }

    #[track_caller]
    fn op_info(&self, target: &WindowTarget) -> OpInfo {
        OpInfo {
            ctx: self.id.context,
            peer: Some(target.world),
            tag: Some(self.id.sequence),
            sig: T::SIG.0,
            elem: size_of::<T>(),
            synchronous: false,
            probe: false,
            at: Location::caller(),
        }
    }
}

/// Atomic updates of numbers.
impl<T: Element> WindowEnd<T> {
    /// Combines each element of `buf` with the target's elements, starting at element `at`.
    #[track_caller]
    pub fn accumulate<B: SendBuf<Elem = T>>(
        &self,
        target: &WindowTarget,
        at: usize,
        buf: B,
        combine: Combine,
    ) -> RemoteOp<B> {
        let elems = buf.elems();
        let range = self.updates("accumulate", target, at, elems.len(), combine);
        let range = match self.usable("accumulate", target, &buf, range) {
            Ok(range) => range,
            Err(error) => return RemoteOp::failed(OpError { error, buf }),
        };
        if let Some(mapped_end) = mapped_to_update::<T>(target) {
            self.update_mapped(mapped_end, range.start, combine, elems, None);
            return RemoteOp::done(buf);
        }
        self.write(
            "accumulate",
            target,
            T::element_type().update(combine, false),
            TargetRanges::From(range.start as u64),
            buf,
        )
    }

    /// Like [`accumulate`](Self::accumulate), and stores the old values of the target's elements in `buf`.
    #[track_caller]
    pub fn get_accumulate<B: RecvBuf<Elem = T>>(
        &self,
        target: &WindowTarget,
        at: usize,
        mut buf: B,
        combine: Combine,
    ) -> RemoteOp<B> {
        let range = self
            .whole("get_accumulate", target, &mut buf)
            .and_then(|len| self.updates("get_accumulate", target, at, len, combine));
        let range = match self.usable("get_accumulate", target, &buf, range) {
            Ok(range) => range,
            Err(error) => return RemoteOp::failed(OpError { error, buf }),
        };
        if let Some(mapped_end) = mapped_to_update::<T>(target) {
            let elems = buf.elems();
            if size_of_val(elems) != range.len() {
                let error = self.changed_length("get_accumulate", target, elems.len());
                return RemoteOp::failed(OpError { error, buf });
            }
            let mut old = elems.to_vec();
            self.update_mapped(mapped_end, range.start, combine, elems, Some(&mut old));
            buffer::overwrite(&mut buf, &old);
            return RemoteOp::done(buf);
        }
        self.fetch(
            "get_accumulate",
            target,
            T::element_type().update(combine, true),
            TargetRanges::From(range.start as u64),
            buf,
        )
    }

    /// Combines one element, and returns its old value.
    #[inline]
    #[track_caller]
    pub fn fetch_op(
        &self,
        target: &WindowTarget,
        at: usize,
        value: T,
        combine: Combine,
    ) -> Fetching<T> {
        if let Some(mapped_end) = mapped_to_update::<T>(target) {
            let range = match self.updates("fetch_op", target, at, 1, combine) {
                Ok(range) => range,
                Err(error) => return Fetching::failed(error),
            };
            let old = if mapped_end.is_updated_singly() {
                T::update(
                    &mapped_end.region,
                    mapped_end.start + range.start,
                    combine,
                    value,
                )
            } else {
                self.update_mapped_number(mapped_end, range.start, combine, value)
            };
            return Fetching::done(old);
        }
        Fetching::one(self.get_accumulate(target, at, [value], combine))
    }

    /// Writes `new` if the element equals `expected` bit by bit. Returns the old value.
    #[inline]
    #[track_caller]
    pub fn compare_exchange(
        &self,
        target: &WindowTarget,
        at: usize,
        expected: T,
        new: T,
    ) -> Fetching<T> {
        let range = match self.updates("compare_exchange", target, at, 1, Combine::Keep) {
            Ok(range) => range,
            Err(error) => return Fetching::failed(error),
        };
        if let Some(MappedEnd {
            region,
            start,
            update_lock,
        }) = mapped_to_update::<T>(target)
        {
            let _held = self.begin_update(update_lock.as_ref(), 1);
            return Fetching::done(T::compare_swap(region, start + range.start, expected, new));
        }
        let kind = T::element_type().compare_swap();
        let ranges = TargetRanges::From(range.start as u64);
        Fetching::two(self.fetch("compare_exchange", target, kind, ranges, [expected, new]))
    }

    /// Updates numbers of a mapped end from byte `at` on, and stores the old values in `old`.
    fn update_mapped(
        &self,
        mapped_end: &MappedEnd,
        at: usize,
        combine: Combine,
        operands: &[T],
        mut old: Option<&mut [T]>,
    ) {
        let number = T::element_type().number();
        for (nth, operands) in operands.chunks(UPDATED_AT_A_TIME).enumerate() {
            let begun = nth * UPDATED_AT_A_TIME;
            let offset = mapped_end.start + at + begun * size_of::<T>();
            let mut old = old
                .as_deref_mut()
                .map(|old| &mut old[begun..begun + operands.len()]);
            let held = self.begin_update(mapped_end.update_lock.as_ref(), operands.len());
            if let Some(number) = number.filter(|_| held.is_some()) {
                number.update_many(BulkUpdate {
                    region: &mapped_end.region,
                    offset,
                    combine,
                    operands: bytemuck::cast_slice(operands),
                    old: old.map(bytemuck::cast_slice_mut),
                });
                continue;
            }
            let offsets = (offset..).step_by(size_of::<T>());
            for (nth, (offset, &operand)) in offsets.zip(operands).enumerate() {
                let was = T::update(&mapped_end.region, offset, combine, operand);
                if let Some(old) = &mut old {
                    old[nth] = was;
                }
            }
        }
    }

    /// Updates one number of a mapped end, in the cases that need more than an atomic instruction.
    #[cold]
    fn update_mapped_number(
        &self,
        mapped_end: &MappedEnd,
        at: usize,
        combine: Combine,
        value: T,
    ) -> T {
        let _held = self.begin_update(mapped_end.update_lock.as_ref(), 1);
        T::update(&mapped_end.region, mapped_end.start + at, combine, value)
    }

    /// Returns the length of a buffer that is both sent and received into, and so must be full.
    #[inline]
    pub(super) fn whole<B: RecvBuf<Elem = T>>(
        &self,
        op: &'static str,
        target: &WindowTarget,
        buf: &mut B,
    ) -> Result<usize> {
        let (len, room) = (buf.elems().len(), buffer::room(buf));
        if len == room {
            return Ok(len);
        }
        let sentence =
            format!("`buf` has {len} elements, and room for {room}: fill it with operands");
        Err(self.error(op, ErrorKind::InvalidArgument(sentence), target.world))
    }

    /// Returns the error for a buffer that had another length when its range was checked.
    #[cold]
    fn changed_length(&self, op: &'static str, target: &WindowTarget, len: usize) -> Error {
        let sentence = format!(
            "`buf` has {len} elements, and had another number of them at first: its length must not change"
        );
        self.error(op, ErrorKind::InvalidArgument(sentence), target.world)
    }

    fn updates(
        &self,
        op: &'static str,
        target: &WindowTarget,
        at: usize,
        len: usize,
        combine: Combine,
    ) -> Result<Range<usize>> {
        self.check_combine(op, target, combine)?;
        self.range(op, target, at, len)
    }

    /// Checks that elements of this type can be combined by this operator.
    #[inline]
    pub(super) fn check_combine(
        &self,
        op: &'static str,
        target: &WindowTarget,
        combine: Combine,
    ) -> Result<()> {
        if T::element_type().allows(combine) {
            return Ok(());
        }
        Err(self.wrong_combine(op, target, combine))
    }

    #[cold]
    fn wrong_combine(&self, op: &'static str, target: &WindowTarget, combine: Combine) -> Error {
        let scope = match combine {
            Combine::And | Combine::Or | Combine::Xor => "is for integers only",
            Combine::MinLoc | Combine::MaxLoc => "is for elements of type `Located` only",
            _ => "is for numbers: combine a `Located` by `MinLoc`, `MaxLoc`, `Replace` or `NoOp`",
        };
        let sentence = format!("`combine` is {combine:?}, which {scope}");
        self.error(op, ErrorKind::InvalidArgument(sentence), target.world)
    }
}

/// The most elements that are updated while the other ranks wait for the lock of a window's numbers.
pub(super) const UPDATED_AT_A_TIME: usize = 8192;

/// Returns the memory of a target, if this process may update elements in it itself.
///
/// The target names the start of its memory. A faulty one may name a start that is not aligned to the elements. Atomic
/// instructions cannot update these, so their updates go to the target's engine.
#[inline]
pub(super) fn mapped_to_update<T: Element>(target: &WindowTarget) -> Option<&MappedEnd> {
    target.mapped().filter(|mapped_end| {
        T::element_type().is_in_place() && mapped_end.start.is_multiple_of(size_of::<T>())
    })
}

pub(super) fn in_words(ranges: &[Range<usize>]) -> TargetRanges {
    let words = ranges
        .iter()
        .map(|range| (range.start as u64, range.len() as u64));
    TargetRanges::Blocks(words.collect())
}
