//! Elements of an array of any number of dimensions, packed before sending and unpacked after receiving.

use std::{fmt, ops::Range, slice};

use super::{Layout, Wire};

/// Elements of a larger array: blocks at a regular distance, groups of those at a regular distance, and so on.
///
/// [`Layout::subarray`] makes one of a face, a column or a block of an array. [`Layout::repeated`] and
/// [`repeated`](Self::repeated) compose one by hand. What can be joined is joined: a contiguous face is one block, and
/// packing it is one `memcpy`.
#[derive(Clone, PartialEq, Eq)]
pub struct NestedLayout {
    /// Index of the first element.
    offset: usize,
    /// Contiguous elements at the start of each repetition. 0 if the layout is empty.
    block: usize,
    /// Repetitions of the block, the outermost first. Each has a count of at least 2.
    levels: Vec<LayoutLevel>,
    /// Number of elements, or `usize::MAX` if there are more.
    len: usize,
    /// Length of the shortest array that has all elements, or `usize::MAX` if that is longer.
    end: usize,
    /// True if an element may be named twice.
    overlaps: bool,
}

/// Most elements that are copied together between single places and packed memory that is no slice.
const PIECE: usize = 64;

/// A repetition: `count` times what is inside, `stride` elements apart.
#[derive(Clone, Copy, PartialEq, Eq)]
struct LayoutLevel {
    stride: usize,
    count: usize,
}

/// The elements that are packed in one go: `count` elements, `stride` apart.
#[derive(Clone, Copy)]
struct LayoutRow {
    stride: usize,
    count: usize,
}

impl LayoutRow {
    /// Returns room for elements that are copied together, if the row has single elements.
    fn piece<T: Wire>(self) -> Vec<T> {
        let single = self.stride > 1;
        vec![T::zeroed(); if single { PIECE.min(self.count) } else { 0 }]
    }

    /// Returns the indices from the first element, which is at `start`, to the last one.
    const fn span(self, start: usize) -> Range<usize> {
        start..start + (self.count - 1) * self.stride + 1
    }
}

impl Layout {
    /// Returns the elements of a row-major array of `shape` whose index in each dimension is in the range of that dimension.
    ///
    /// The shape is that of the whole array, with its ghosts. Elements are packed in row-major order: the last index varies
    /// fastest.
    ///
    /// ```
    /// # use ripstop_rt::buffer::Layout;
    /// let shape = [10, 6, 8]; // z, y, x
    /// let array: Vec<usize> = (0..10 * 6 * 8).collect();
    /// let column = Layout::subarray(&shape, &[3..4, 0..6, 2..3]);
    /// let mut packed = Vec::new();
    /// column.pack(&array, &mut packed);
    /// assert_eq!(packed, [146, 154, 162, 170, 178, 186]);
    /// // One layer at the low end of y, without the ghosts of z and x.
    /// assert_eq!(Layout::subarray(&shape, &[1..9, 1..2, 1..7]).len(), 8 * 6);
    /// ```
    ///
    /// # Panics
    /// Panics if `ranges` has another length than `shape`, if a range ends before it starts or after the array, or if the
    /// array has more than `usize::MAX` elements.
    #[must_use]
    #[track_caller]
    pub fn subarray(shape: &[usize], ranges: &[Range<usize>]) -> NestedLayout {
        assert_eq!(
            shape.len(),
            ranges.len(),
            "`ranges` needs one range for each dimension of `shape` {shape:?}"
        );
        let (mut offset, mut stride) = (0_usize, 1_usize);
        let mut levels = Vec::with_capacity(shape.len());
        for (dim, (&len, range)) in shape.iter().zip(ranges).enumerate().rev() {
            assert!(
                range.start <= range.end && range.end <= len,
                "`ranges` has {range:?} in dimension {dim}, and the array has the indices 0..{len} there"
            );
            let count = range.len();
            levels.push(LayoutLevel { stride, count });
            // Saturates only where a range is empty, and then the offset has no meaning.
            offset = range.start.saturating_mul(stride).saturating_add(offset);
            stride = stride.checked_mul(len.max(1)).unwrap_or_else(|| {
                panic!("an array of `shape` {shape:?} has more than usize::MAX elements")
            });
        }
        levels.reverse();
        NestedLayout::new(offset, 1, levels)
    }

    /// Returns this layout `count` times, `stride` elements apart; see [`NestedLayout::repeated`].
    ///
    /// ```
    /// # use ripstop_rt::buffer::Layout;
    /// // The first two columns of each 3 × 4 matrix in a row of two matrices.
    /// let columns = Layout { offset: 0, block: 2, stride: 4, count: 3 };
    /// assert_eq!(columns.repeated(12, 2), Layout { count: 6, ..columns }.into());
    /// assert_eq!(columns.repeated(16, 2).ranges(), [0..2, 4..6, 8..10, 16..18, 20..22, 24..26]);
    /// ```
    #[must_use]
    pub fn repeated(self, stride: usize, count: usize) -> NestedLayout {
        NestedLayout::from(self).repeated(stride, count)
    }
}

impl NestedLayout {
    /// Returns the normal form: no empty or single repetitions, and as few levels as possible.
    fn new(offset: usize, mut block: usize, levels: Vec<LayoutLevel>) -> Self {
        if block == 0 || levels.iter().any(|level| level.count == 0) {
            return Self::nothing();
        }
        // From the innermost level outwards; `kept` is in that order.
        let mut kept: Vec<LayoutLevel> = Vec::new();
        for level in levels.into_iter().rev().filter(|level| level.count > 1) {
            if let Some(inner) = kept.last_mut() {
                if inner.stride.checked_mul(inner.count) == Some(level.stride)
                    && let Some(count) = inner.count.checked_mul(level.count)
                {
                    inner.count = count;
                    continue;
                }
            } else if level.stride == block
                && let Some(joined) = block.checked_mul(level.count)
            {
                block = joined;
                continue;
            }
            kept.push(level);
        }
        kept.reverse();
        let len = kept
            .iter()
            .fold(block, |len, level| len.saturating_mul(level.count));
        let (extent, overlaps) = extent(block, &kept);
        Self {
            offset,
            block,
            levels: kept,
            len,
            end: offset.saturating_add(extent),
            overlaps,
        }
    }

    /// Returns the layout without elements.
    pub(crate) fn nothing() -> Self {
        Self {
            offset: 0,
            block: 0,
            levels: Vec::new(),
            len: 0,
            end: 0,
            overlaps: false,
        }
    }

    /// Returns this layout `count` times, `stride` elements apart: all elements of the first repetition come first.
    ///
    /// ```
    /// # use ripstop_rt::buffer::Layout;
    /// // The columns 1 and 2 of a matrix of 3 rows and 4 columns, one after the other.
    /// let column = Layout { offset: 1, block: 1, stride: 4, count: 3 };
    /// let mut packed = Vec::new();
    /// column.repeated(1, 2).pack(&[0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23], &mut packed);
    /// assert_eq!(packed, [1, 11, 21, 2, 12, 22]);
    /// ```
    #[must_use]
    pub fn repeated(self, stride: usize, count: usize) -> Self {
        let mut levels = vec![LayoutLevel { stride, count }];
        levels.extend(self.levels);
        Self::new(self.offset, self.block, levels)
    }

    /// Returns the number of elements, or `usize::MAX` if there are more.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the layout has no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the length of the shortest array that has all elements, or `usize::MAX` if no array is that long. It is 0 for
    /// an empty layout.
    #[must_use]
    pub const fn end(&self) -> usize {
        self.end
    }

    /// Returns true if an element may be in the layout twice, because a stride is less than the extent of what it repeats.
    ///
    /// ```
    /// # use ripstop_rt::buffer::Layout;
    /// let row = Layout::subarray(&[4, 5], &[0..1, 0..5]);
    /// assert!(row.clone().repeated(4, 2).overlaps());
    /// assert!(!row.repeated(5, 2).overlaps());
    /// ```
    #[must_use]
    pub const fn overlaps(&self) -> bool {
        self.overlaps
    }

    /// Returns the indices of each block, in order, for calls that take ranges.
    ///
    /// ```
    /// # use ripstop_rt::buffer::Layout;
    /// let corner = Layout::subarray(&[4, 5], &[0..2, 3..5]);
    /// assert_eq!(corner.ranges(), [3..5, 8..10]);
    /// ```
    ///
    /// # Panics
    /// Panics if no array is as long as [`end`](Self::end).
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<usize>> {
        assert!(self.end < usize::MAX, "ranges: {self:?} leaves every array");
        let mut ranges = Vec::new();
        if !self.is_empty() {
            visit_level(&self.levels, self.offset, &mut |at| {
                ranges.push(at..at + self.block);
            });
        }
        ranges
    }

    /// Appends the elements of the layout in `from` to `packed`, in order.
    ///
    /// ```
    /// # use ripstop_rt::buffer::Layout;
    /// let mut packed = Vec::new();
    /// Layout::subarray(&[2, 3], &[0..2, 1..2]).pack(&[0, 1, 2, 3, 4, 5], &mut packed);
    /// assert_eq!(packed, [1, 4]);
    /// ```
    ///
    /// # Panics
    /// Panics if the layout leaves `from`, or if an element may be in it twice: the stride of each repetition must be at
    /// least the extent of those with shorter strides.
    #[track_caller]
    pub fn pack<T: Copy>(&self, from: &[T], packed: &mut Vec<T>) {
        self.check("pack", "from", from.len());
        packed.reserve(self.len);
        let row = self.row();
        if row.stride == 1 {
            self.for_each_row(|at| packed.extend_from_slice(&from[at..][..row.count]));
        } else {
            self.for_each_row(|at| {
                packed.extend(from[row.span(at)].iter().step_by(row.stride));
            });
        }
    }

    /// Copies the elements of the layout in `from` to `packed`, in order.
    ///
    /// ```
    /// # use ripstop_rt::buffer::Layout;
    /// let mut packed = [0; 2];
    /// Layout::subarray(&[2, 3], &[0..2, 1..2]).pack_into(&[0, 1, 2, 3, 4, 5], &mut packed);
    /// assert_eq!(packed, [1, 4]);
    /// ```
    ///
    /// # Panics
    /// Panics if [`pack`](Self::pack) does, or if the length of `packed` is not [`len`](Self::len).
    #[track_caller]
    pub fn pack_into<T: Copy>(&self, from: &[T], packed: &mut [T]) {
        self.check("pack_into", "from", from.len());
        assert_eq!(
            packed.len(),
            self.len,
            "pack_into: `packed` must be as long as the layout"
        );
        let row = self.row();
        let mut lines = packed.chunks_exact_mut(row.count.max(1));
        if row.stride == 1 {
            self.for_each_row(|at| {
                let Some(line) = lines.next() else { return };
                line.copy_from_slice(&from[at..][..line.len()]);
            });
        } else {
            self.for_each_row(|at| {
                let Some(line) = lines.next() else { return };
                let elems = from[row.span(at)].iter().step_by(row.stride);
                line.iter_mut()
                    .zip(elems)
                    .for_each(|(to, elem)| *to = *elem);
            });
        }
    }

    /// Writes packed elements back to where [`pack`](Self::pack) takes them from.
    ///
    /// If `packed` is shorter than [`len`](Self::len), it fills the first elements of the layout and leaves the others
    /// unchanged. Elements beyond `len` are ignored.
    ///
    /// ```
    /// # use ripstop_rt::buffer::Layout;
    /// let mut matrix = [0; 6];
    /// Layout::subarray(&[2, 3], &[0..2, 1..2]).unpack(&[7, 8], &mut matrix);
    /// assert_eq!(matrix, [0, 7, 0, 0, 8, 0]);
    /// ```
    ///
    /// # Panics
    /// Panics if the layout leaves `into`, or if an element may be in it twice, as with [`pack`](Self::pack).
    #[track_caller]
    pub fn unpack<T: Copy>(&self, packed: &[T], into: &mut [T]) {
        self.check("unpack", "into", into.len());
        self.spread(packed, into, |slots, elems| slots.copy_from_slice(elems));
    }

    /// Gives the elements of the layout in `from` to `put`, in order, some at a time. Call `check` first.
    pub(crate) fn visit_packed<T: Wire>(&self, from: &[T], mut put: impl FnMut(&[T])) {
        let row = self.row();
        let mut piece = row.piece();
        self.for_each_row(|at| {
            if row.stride == 1 {
                return put(&from[at..][..row.count]);
            }
            let mut elems = from[row.span(at)].iter().step_by(row.stride);
            for start in (0..row.count).step_by(PIECE) {
                let some = &mut piece[..PIECE.min(row.count - start)];
                some.iter_mut()
                    .zip(&mut elems)
                    .for_each(|(to, elem)| *to = *elem);
                put(some);
            }
        });
    }

    /// Writes packed elements to their places in `into`. `fill` copies those that begin at an index, from memory that cannot be
    /// borrowed as a slice. Call `check` first.
    pub(crate) fn fill<T: Wire>(
        &self,
        into: &mut [T],
        packed: Range<usize>,
        fill: impl Fn(usize, &mut [T]),
    ) {
        let row = self.row();
        let mut piece = row.piece();
        let mut done = packed.start;
        while done < packed.end {
            let within = done % row.count;
            let at = self.row_start(done / row.count) + within * row.stride;
            let count = (row.count - within).min(packed.end - done);
            if row.stride == 1 {
                fill(done, &mut into[at..][..count]);
            } else {
                let mut slots = into[at..].iter_mut().step_by(row.stride);
                for start in (0..count).step_by(PIECE) {
                    let some = &mut piece[..PIECE.min(count - start)];
                    fill(done + start, some);
                    some.iter()
                        .zip(&mut slots)
                        .for_each(|(elem, slot)| *slot = *elem);
                }
            }
            done += count;
        }
    }

    /// Writes packed elements to their slots with `put`. Call `check` first.
    pub(super) fn spread<S, T: Copy>(
        &self,
        packed: &[T],
        into: &mut [S],
        put: impl Fn(&mut [S], &[T]),
    ) {
        let row = self.row();
        let mut lines = packed.chunks(row.count.max(1));
        if row.stride == 1 {
            self.for_each_row(|at| {
                let Some(line) = lines.next() else { return };
                put(&mut into[at..][..line.len()], line);
            });
        } else {
            self.for_each_row(|at| {
                let Some(line) = lines.next() else { return };
                let slots = into[row.span(at)].iter_mut().step_by(row.stride);
                slots
                    .zip(line)
                    .for_each(|(slot, elem)| put(slice::from_mut(slot), slice::from_ref(elem)));
            });
        }
    }

    /// Returns the elements of a row; single elements form rows too, because a call for each of them would take longer than the
    /// copy.
    fn row(&self) -> LayoutRow {
        match (&self.levels[..], self.block) {
            (&[.., LayoutLevel { stride, count }], 1) => LayoutRow { stride, count },
            (_, count) => LayoutRow { stride: 1, count },
        }
    }

    /// Returns the levels around the [`row`](Self::row), the outermost first.
    fn outer_levels(&self) -> &[LayoutLevel] {
        match (&self.levels[..], self.block) {
            ([outer @ .., _], 1) => outer,
            (levels, _) => levels,
        }
    }

    /// Returns the first index of a [`row`](Self::row).
    fn row_start(&self, mut nth: usize) -> usize {
        let mut start = self.offset;
        let mut levels = self.outer_levels();
        while let Some((level, outer)) = levels.split_last() {
            if outer.is_empty() {
                return start + nth * level.stride;
            }
            start += nth % level.count * level.stride;
            nth /= level.count;
            levels = outer;
        }
        start
    }

    /// Calls `visit` with the first index of each [`row`](Self::row), in order.
    fn for_each_row(&self, mut visit: impl FnMut(usize)) {
        if self.block == 0 {
            return;
        }
        let outer = self.outer_levels();
        let single = LayoutLevel {
            stride: 0,
            count: 1,
        };
        let (inner, outer) = outer.split_last().unwrap_or((&single, &[]));
        // The innermost loop calls `visit` in one place, so that it becomes part of the loop.
        visit_level(outer, self.offset, &mut |start| {
            for nth in 0..inner.count {
                visit(start + nth * inner.stride);
            }
        });
    }

    /// Panics if the layout does not fit an array of `len` elements, the argument `array` of `op`.
    #[track_caller]
    pub(crate) fn check(&self, op: &str, array: &str, len: usize) {
        assert!(
            !self.overlaps,
            "{op}: {self:?}: the blocks overlap; make each stride at least the extent of what it repeats"
        );
        assert!(
            self.end <= len,
            "{op}: {self:?} reaches to element {}, and leaves `{array}` of {len} elements",
            self.end - 1
        );
    }
}

impl From<Layout> for NestedLayout {
    fn from(layout: Layout) -> Self {
        let Layout {
            offset,
            block,
            stride,
            count,
        } = layout;
        Self::new(offset, block, vec![LayoutLevel { stride, count }])
    }
}

impl From<&Layout> for NestedLayout {
    fn from(layout: &Layout) -> Self {
        Self::from(*layout)
    }
}

impl From<&Self> for NestedLayout {
    fn from(layout: &Self) -> Self {
        layout.clone()
    }
}

impl fmt::Debug for NestedLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "layout of blocks of {} from element {}",
            self.block, self.offset
        )?;
        for LayoutLevel { stride, count } in self.levels.iter().rev() {
            write!(f, ", {count} times at a stride of {stride}")?;
        }
        Ok(())
    }
}

/// Calls `visit` with the start of each repetition, in order.
fn visit_level<F: FnMut(usize)>(levels: &[LayoutLevel], start: usize, visit: &mut F) {
    match levels {
        [] => visit(start),
        [LayoutLevel { stride, count }, inner @ ..] => {
            for nth in 0..*count {
                visit_level(inner, start + nth * stride, visit);
            }
        }
    }
}

/// Returns the distance from the first element to the end of the last one, and true if elements may be named twice: if
/// a stride is shorter than the extent of the repetitions with shorter strides.
fn extent(block: usize, levels: &[LayoutLevel]) -> (usize, bool) {
    let mut by_stride = levels.to_vec();
    by_stride.sort_unstable_by_key(|level| level.stride);
    by_stride
        .iter()
        .fold((block, false), |(extent, overlaps), level| {
            let more = level.stride.saturating_mul(level.count - 1);
            (
                extent.saturating_add(more),
                overlaps || level.stride < extent,
            )
        })
}
