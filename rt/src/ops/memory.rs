//! The memory of a program in flight: the caller's two buffers and the scratch, and the work that steps do there.
//!
//! The messages of a program are operations whose areas lie in this memory. Its long copies and its reductions are
//! [`StepWork`], done without a lock. The engine keeps the buffers in place until all of them have completed. It never runs
//! two steps at the same time if one writes memory that the other accesses.
#![expect(
    unsafe_code,
    reason = "works on parts of buffers that the engine keeps in place"
)]

use std::{
    any::Any,
    fmt,
    marker::PhantomData,
    mem::{self, MaybeUninit},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    slice,
};

use ripstop_fabric::{
    driver::{LocalRange, PayloadView},
    offload::TypedOperator,
};

use super::BufferArea;
use crate::{
    buffer::{self, Wire},
    comm::ReduceOp,
    offload::{BufferLens, BufferSpan, ElemLayout, OperandSide, ProgramBuffer, StepAction},
};

/// The three areas of memory, and the scratch itself.
pub(crate) struct RunMemory {
    view: ProgramAreas,
    /// Keeps the scratch alive and in place. All words are initialized, and may contain data of earlier programs.
    words: Vec<u128>,
}

/// Addresses of the three areas. Accessed only while their owner keeps them alive.
#[derive(Clone, Copy)]
struct ProgramAreas {
    input: BufferArea,
    output: BufferArea,
    scratch: BufferArea,
}

/// Scratch of a completed program is kept for the next one up to this many bytes. Fresh memory costs a page fault per
/// page, which takes longer than a message of a page.
const SCRATCH_MAX: usize = 2 << 20;

/// Alignment that scratch always has.
const ALIGN: usize = align_of::<u128>();

/// Reduction of a program: a [`ReduceOp`] whose element type is known only to the code that made it.
pub struct ErasedReducer {
    op: Box<dyn ErasedCombine>,
    elem: ElemLayout,
    built_in: bool,
    combination: Option<TypedOperator>,
}

/// A copy or a reduction that is done without a lock.
pub(crate) struct StepWork {
    view: ProgramAreas,
    action: StepAction,
    /// Reducer, for a reduction. A program has only one, because its reductions run one after the other.
    pub(crate) reducer: Option<ErasedReducer>,
}

/// Payload of a panic in application code.
pub(crate) type PanicPayload = Box<dyn Any + Send>;

trait ErasedCombine: Send {
    /// Combines elements in rows of `bytes` bytes.
    ///
    /// # Safety
    /// Both rows are initialized and aligned for the element type, consist of whole elements, and do not overlap.
    /// Meanwhile, no other code writes `from` or accesses `into`.
    unsafe fn combine(&self, from: NonNull<u8>, into: NonNull<u8>, bytes: usize, side: OperandSide);
}

struct TypedReducer<T, O> {
    op: O,
    elem: PhantomData<fn(T) -> T>,
}

impl RunMemory {
    /// Creates the memory from the areas of two held buffers and from [scratch](Self::scratch) in `words`, for elements
    /// of this alignment. The areas get the lengths that the program states, so all its spans are inside.
    #[inline]
    pub(crate) fn new(
        [input, output]: [BufferArea; 2],
        lens: BufferLens,
        align: usize,
        mut words: Vec<u128>,
    ) -> Self {
        let start = NonNull::from(words.as_mut_slice()).cast::<u8>();
        let skipped = if align > ALIGN && lens.scratch > 0 {
            start.align_offset(align)
        } else {
            0
        };
        assert!(
            lens.input <= input.len
                && lens.output <= output.len
                && skipped.saturating_add(lens.scratch) <= size_of_val(words.as_slice()),
            "buffers of {} and {} bytes, and {} words, for {lens:?} aligned to {align}",
            input.len,
            output.len,
            words.len()
        );
        let part = |area: BufferArea, len| BufferArea { len, ..area };
        let scratch = BufferArea {
            // SAFETY: the place is inside the words, as just checked, or one past their end.
            start: unsafe { start.add(skipped) },
            len: lens.scratch,
        };
        let view = ProgramAreas {
            input: part(input, lens.input),
            output: part(output, lens.output),
            scratch,
        };
        Self { view, words }
    }

    /// Returns scratch of at least `bytes` bytes plus room for alignment: `words` if they suffice, otherwise new
    /// memory. Returns `None` if there is not enough memory.
    #[inline]
    pub(crate) fn scratch(words: Vec<u128>, bytes: usize, align: usize) -> Option<Vec<u128>> {
        let room = match bytes {
            0 => 0,
            _ => bytes.checked_add(align.saturating_sub(ALIGN))?,
        };
        let needed = room.div_ceil(size_of::<u128>());
        if words.len() < needed {
            return buffer::zeros(needed);
        }
        Some(words)
    }

    /// Returns true if there is any scratch.
    pub(crate) const fn has_scratch(&self) -> bool {
        !self.words.is_empty()
    }

    /// Returns the scratch for reuse. Call only when no step of the program is in flight any more.
    #[inline]
    pub(crate) fn take_scratch(&mut self) -> Vec<u128> {
        self.view.scratch = BufferArea::NONE;
        let words = mem::take(&mut self.words);
        if size_of_val(words.as_slice()) <= SCRATCH_MAX {
            words
        } else {
            Vec::new()
        }
    }

    /// Returns the area of a contiguous span.
    #[inline]
    pub(crate) fn area(&self, span: &BufferSpan) -> BufferArea {
        assert!(span.is_contiguous(), "{span:?} has several runs");
        BufferArea {
            start: self.view.at(span.buffer, span.start, span.len),
            len: span.len,
        }
    }

    /// Returns the bytes of a contiguous span, to be sent.
    pub(crate) fn bytes(&self, span: &BufferSpan) -> &[u8] {
        let BufferArea { start, len } = self.area(span);
        // SAFETY: the range is inside a buffer or the scratch, all of which are initialized from the start. No step in flight
        // writes there, and no other step begins while this is borrowed.
        unsafe { slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Copies the pieces of a message to a contiguous span. Returns false if the lengths differ.
    pub(crate) fn fill(&self, span: &BufferSpan, pieces: &[PayloadView<'_>]) -> bool {
        let BufferArea { start, len } = self.area(span);
        let whole = match pieces {
            [piece] => piece.len(),
            _ => pieces.iter().map(|piece| piece.len()).sum(),
        };
        if whole != len {
            return false;
        }
        // SAFETY: the range is inside a buffer or the scratch, and no other step in flight accesses it. Any bytes are valid
        // there.
        let mut into =
            unsafe { slice::from_raw_parts_mut(start.as_ptr().cast::<MaybeUninit<u8>>(), len) };
        match pieces {
            _ if len == 0 => {}
            [piece] => piece.copy_to(into),
            _ => {
                for piece in pieces {
                    let (here, behind) = into.split_at_mut(piece.len());
                    piece.copy_to(here);
                    into = behind;
                }
            }
        }
        true
    }

    /// Returns the ranges of input, output and scratch for the driver. They must stay in place until the driver's tasks
    /// have completed.
    pub(crate) fn ranges(&self) -> [LocalRange; 3] {
        let ProgramAreas {
            input,
            output,
            scratch,
        } = self.view;
        // SAFETY: the engine keeps the buffers and the scratch in place until the program has completed, and programs
        // are made of plans in which no step writes memory that another one accesses at the same time.
        [input, output, scratch].map(|area| unsafe { LocalRange::new(area.start, area.len) })
    }

    /// Copies immediately.
    pub(crate) fn copy(&self, from: &BufferSpan, into: &BufferSpan) {
        self.view.copy(from, into);
    }

    /// Reduces immediately. The operation must be built-in, because these do not panic.
    pub(crate) fn reduce(
        &self,
        reducer: &ErasedReducer,
        from: &BufferSpan,
        into: &BufferSpan,
        side: OperandSide,
    ) {
        self.view.reduce(reducer, from, into, side);
    }

    /// Returns the work for a copy or a reduction.
    pub(crate) fn work(&self, action: &StepAction, reducer: Option<ErasedReducer>) -> StepWork {
        StepWork {
            view: self.view,
            action: *action,
            reducer,
        }
    }
}

impl ProgramAreas {
    /// Returns the address of `len` bytes from `start` on.
    #[inline]
    fn at(&self, buffer: ProgramBuffer, start: usize, len: usize) -> NonNull<u8> {
        let area = match buffer {
            ProgramBuffer::Input => self.input,
            ProgramBuffer::Output => self.output,
            ProgramBuffer::Scratch => self.scratch,
        };
        assert!(
            start <= area.len && len <= area.len - start,
            "{start}+{len} of {} bytes of {buffer:?}",
            area.len
        );
        // SAFETY: the place is inside the area, as just checked, or one past its end.
        unsafe { area.start.add(start) }
    }

    fn copy(&self, from: &BufferSpan, into: &BufferSpan) {
        for (at, to, len) in from.pieces(*into) {
            let (at, to) = (self.at(from.buffer, at, len), self.at(into.buffer, to, len));
            // SAFETY: `at` has checked both rows. The spans do not overlap, and no other code writes the source or
            // accesses the destination.
            unsafe { at.copy_to_nonoverlapping(to, len) };
        }
    }

    #[inline]
    fn reduce(
        &self,
        reducer: &ErasedReducer,
        from: &BufferSpan,
        into: &BufferSpan,
        side: OperandSide,
    ) {
        let reduce = |(at, to, len)| {
            let (at, to) = (self.at(from.buffer, at, len), self.at(into.buffer, to, len));
            // SAFETY: the range is inside initialized memory. The program's spans consist of whole elements and do not
            // overlap. Its buffers are aligned for the element (`BorrowedCall::misfit` checks this, and scratch is made
            // so), and no other step accesses them.
            unsafe { reducer.op.combine(at, to, len, side) };
        };
        // Short spans nearly always are contiguous, and iterating over rows takes longer than reducing them.
        if from.is_contiguous() && into.is_contiguous() && from.len > 0 {
            return reduce((from.start, into.start, from.len));
        }
        from.pieces(*into).for_each(reduce);
    }
}

impl StepWork {
    /// Does the work. The reducer stays inside, so that it can be returned.
    ///
    /// # Errors
    /// Returns the payload if the reduction panicked.
    pub(crate) fn run(&self) -> Result<(), PanicPayload> {
        match (&self.action, &self.reducer) {
            (StepAction::Copy { from, into }, _) => self.view.copy(from, into),
            (StepAction::Reduce { from, into, side }, Some(reducer)) => {
                // No code sees the half-done result, because the program fails.
                return catch_unwind(AssertUnwindSafe(|| {
                    self.view.reduce(reducer, from, into, *side);
                }));
            }
            (other, _) => unreachable!("{other:?} is no work"),
        }
        Ok(())
    }
}

impl ErasedReducer {
    /// Creates the reducer that applies `op` to rows of elements.
    pub fn new<T: Wire>(op: impl ReduceOp<T>) -> Self {
        Self {
            built_in: is_built_in(&op),
            combination: combination_of(&op),
            op: Box::new(TypedReducer {
                op,
                elem: PhantomData::<fn(T) -> T>,
            }),
            elem: ElemLayout {
                size: size_of::<T>(),
                align: align_of::<T>(),
            },
        }
    }

    /// Returns true if the reduction is code of this library, which may run under the engine's lock.
    pub(crate) fn is_built_in(&self) -> bool {
        self.built_in
    }

    /// Returns the matching operation of adapters, if there is one.
    pub(crate) const fn combination(&self) -> Option<TypedOperator> {
        self.combination
    }

    /// Returns true if the reducer is for elements of this size and alignment.
    pub(crate) fn fits(&self, elem: ElemLayout) -> bool {
        self.elem == elem
    }
}

const fn is_built_in<T, O: ReduceOp<T>>(_: &O) -> bool {
    O::BUILT_IN.get()
}

const fn combination_of<T, O: ReduceOp<T>>(_: &O) -> Option<TypedOperator> {
    O::BUILT_IN.combination()
}

impl<T: Wire, O: ReduceOp<T>> ErasedCombine for TypedReducer<T, O> {
    unsafe fn combine(
        &self,
        from: NonNull<u8>,
        into: NonNull<u8>,
        bytes: usize,
        side: OperandSide,
    ) {
        let len = bytes / size_of::<T>();
        // SAFETY: the caller's promise; any bytes are a `T`.
        let from = unsafe { slice::from_raw_parts(from.cast::<T>().as_ptr(), len) };
        // SAFETY: as above, and no other code accesses it.
        let into = unsafe { slice::from_raw_parts_mut(into.cast::<T>().as_ptr(), len) };
        let pairs = into.iter_mut().zip(from);
        match side {
            OperandSide::Left => {
                pairs.for_each(|(into, from)| *into = self.op.combine(*from, *into))
            }
            OperandSide::Right => {
                pairs.for_each(|(into, from)| *into = self.op.combine(*into, *from))
            }
        }
    }
}

impl fmt::Debug for ErasedReducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reducer of elements of {} bytes", self.elem.size)
    }
}
