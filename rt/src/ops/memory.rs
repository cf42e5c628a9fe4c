//! The memory of a program in flight: its caller's two buffers and scratch, and what steps do there.
//!
//! A program's messages are operations whose areas lie in here, and its long copies and its reductions are [`Work`] that is
//! done with no lock held. The engine keeps the buffers in place until all of them are over, and never has two steps under way
//! of which one writes what the other touches.
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
    driver::{LocalRange, Payload},
    offload::Combination,
};

use super::Area;
use crate::{
    buffer::{self, Wire},
    comm::ReduceOp,
    offload::{Action, Buffer, Elem, Lens, Side, Span},
};

/// The three pieces of memory, and the scratch itself.
pub(crate) struct Memory {
    view: View,
    /// Keeps the scratch where it is. Initialised, with what programs before left there.
    words: Vec<u128>,
}

/// Where the three pieces are. Followed only while their owner keeps them.
#[derive(Clone, Copy)]
struct View {
    input: Area,
    output: Area,
    scratch: Area,
}

/// Scratch of a program that is over is kept for the next one up to this many bytes: fresh memory costs a fault per page,
/// which is longer than a message of a page takes.
const SCRATCH_MAX: usize = 2 << 20;

/// Alignment that scratch has in any case.
const ALIGN: usize = align_of::<u128>();

/// What a program's reductions do: a [`ReduceOp`] whose element type only its maker knows.
pub struct Reducer {
    op: Box<dyn Combine>,
    elem: Elem,
    built_in: bool,
    combination: Option<Combination>,
}

/// A copy or a reduction to be done with no lock held.
pub(crate) struct Work {
    view: View,
    action: Action,
    /// It is the only one: reductions of a program follow each other.
    pub(crate) reducer: Option<Reducer>,
}

/// What a panic of the application's left behind.
pub(crate) type Panic = Box<dyn Any + Send>;

trait Combine: Send {
    /// Combines elements in rows of `bytes` bytes.
    ///
    /// # Safety
    /// Both rows are initialised and aligned for the element type, consist of whole elements and do not overlap; nobody writes
    /// the one, or touches the other, meanwhile.
    unsafe fn combine(&self, from: NonNull<u8>, into: NonNull<u8>, bytes: usize, side: Side);
}

struct Typed<T, O> {
    op: O,
    elem: PhantomData<fn(T) -> T>,
}

impl Memory {
    /// The areas of two held buffers, and [scratch](Self::scratch) in `words`, for elements of this alignment; not longer than
    /// the program says, so its spans are inside.
    #[inline]
    pub(crate) fn new(
        [input, output]: [Area; 2],
        (lens, align): (Lens, usize),
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
        let part = |area: Area, len| Area { len, ..area };
        let scratch = Area {
            // SAFETY: inside the words, as just checked, or one past their end.
            start: unsafe { start.add(skipped) },
            len: lens.scratch,
        };
        let view = View {
            input: part(input, lens.input),
            output: part(output, lens.output),
            scratch,
        };
        Self { view, words }
    }

    /// Scratch of so many bytes, and room to align them: `words` if they are enough, else new ones. `None` without memory for
    /// them.
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

    /// Whether there is any scratch.
    pub(crate) const fn has_scratch(&self) -> bool {
        !self.words.is_empty()
    }

    /// What is left of the scratch when nothing of the program is under way any more.
    #[inline]
    pub(crate) fn take_scratch(&mut self) -> Vec<u128> {
        self.view.scratch = Area::NONE;
        let words = mem::take(&mut self.words);
        if size_of_val(words.as_slice()) <= SCRATCH_MAX {
            words
        } else {
            Vec::new()
        }
    }

    /// The bytes of a contiguous span.
    #[inline]
    pub(crate) fn area(&self, span: &Span) -> Area {
        assert!(span.is_contiguous(), "{span:?} has several runs");
        Area {
            start: self.view.at(span.buffer, span.start, span.len),
            len: span.len,
        }
    }

    /// The bytes of a contiguous span, to be sent.
    pub(crate) fn bytes(&self, span: &Span) -> &[u8] {
        let Area { start, len } = self.area(span);
        // SAFETY: inside a buffer or the scratch, all of which are initialised from the start; nothing that is under way writes
        // there, and nothing else begins while this is borrowed.
        unsafe { slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Copies the pieces of a message to a contiguous span, or says no when they are not of one length.
    pub(crate) fn fill(&self, span: &Span, pieces: &[Payload<'_>]) -> bool {
        let Area { start, len } = self.area(span);
        let whole = match pieces {
            [piece] => piece.len(),
            _ => pieces.iter().map(|piece| piece.len()).sum(),
        };
        if whole != len {
            return false;
        }
        // SAFETY: inside a buffer or the scratch, and nothing else that is under way touches it; any bytes will do there.
        let mut into =
            unsafe { slice::from_raw_parts_mut(start.as_ptr().cast::<MaybeUninit<u8>>(), len) };
        for piece in pieces {
            let (here, behind) = into.split_at_mut(piece.len());
            piece.copy_to(here);
            into = behind;
        }
        true
    }

    /// Input, output and scratch, for the driver. They must stay until its tasks are over.
    pub(crate) fn ranges(&self) -> [LocalRange; 3] {
        let View {
            input,
            output,
            scratch,
        } = self.view;
        // SAFETY: the engine keeps the buffers and the scratch in place until the program is over, and programs are made of
        // plans in which no step writes what another one touches at the same time.
        [input, output, scratch].map(|area| unsafe { LocalRange::new(area.start, area.len) })
    }

    /// Copies at once.
    pub(crate) fn copy(&self, from: &Span, into: &Span) {
        self.view.copy(from, into);
    }

    /// Reduces at once, which a built-in operation does without a panic.
    pub(crate) fn reduce(&self, reducer: &Reducer, from: &Span, into: &Span, side: Side) {
        self.view.reduce(reducer, from, into, side);
    }

    /// What is to be done for a copy or a reduction.
    pub(crate) fn work(&self, action: &Action, reducer: Option<Reducer>) -> Work {
        Work {
            view: self.view,
            action: *action,
            reducer,
        }
    }
}

impl View {
    /// Where `len` bytes from `start` on are.
    #[inline]
    fn at(&self, buffer: Buffer, start: usize, len: usize) -> NonNull<u8> {
        let area = match buffer {
            Buffer::Input => self.input,
            Buffer::Output => self.output,
            Buffer::Scratch => self.scratch,
        };
        assert!(
            start <= area.len && len <= area.len - start,
            "{start}+{len} of {} bytes of {buffer:?}",
            area.len
        );
        // SAFETY: inside the area, as just checked, or one past its end.
        unsafe { area.start.add(start) }
    }

    fn copy(&self, from: &Span, into: &Span) {
        for (at, to, len) in from.pieces(*into) {
            let (at, to) = (self.at(from.buffer, at, len), self.at(into.buffer, to, len));
            // SAFETY: `at` has checked both rows; the spans do not overlap, and nobody else writes the one or touches the other.
            unsafe { at.copy_to_nonoverlapping(to, len) };
        }
    }

    #[inline]
    fn reduce(&self, reducer: &Reducer, from: &Span, into: &Span, side: Side) {
        let reduce = |(at, to, len)| {
            let (at, to) = (self.at(from.buffer, at, len), self.at(into.buffer, to, len));
            // SAFETY: inside initialised memory; the program's spans are of whole elements and do not overlap, its buffers are
            // aligned for the element (`RunCall::wrong` looks, and scratch is made so), and no other step is in the way.
            unsafe { reducer.op.combine(at, to, len, side) };
        };
        // Short ones nearly always are, and to look for rows takes longer than they do.
        if from.is_contiguous() && into.is_contiguous() && from.len > 0 {
            return reduce((from.start, into.start, from.len));
        }
        from.pieces(*into).for_each(reduce);
    }
}

impl Work {
    /// Does it. The reducer stays in it, to be given back.
    ///
    /// # Errors
    /// The reduction panicked: with what.
    pub(crate) fn run(&self) -> Result<(), Panic> {
        match (&self.action, &self.reducer) {
            (Action::Copy { from, into }, _) => self.view.copy(from, into),
            (Action::Reduce { from, into, side }, Some(reducer)) => {
                // What is half done is seen by nobody: the program fails.
                return catch_unwind(AssertUnwindSafe(|| {
                    self.view.reduce(reducer, from, into, *side);
                }));
            }
            (other, _) => unreachable!("{other:?} is no work"),
        }
        Ok(())
    }
}

impl Reducer {
    /// What `op` does with two elements, for rows of them.
    pub fn new<T: Wire>(op: impl ReduceOp<T>) -> Self {
        Self {
            built_in: is_built_in(&op),
            combination: combination_of(&op),
            op: Box::new(Typed {
                op,
                elem: PhantomData::<fn(T) -> T>,
            }),
            elem: Elem {
                size: size_of::<T>(),
                align: align_of::<T>(),
            },
        }
    }

    /// Whether it is code of this library, which may run under the engine's lock.
    pub(crate) fn is_built_in(&self) -> bool {
        self.built_in
    }

    /// What it is to an adapter, if adapters have such.
    pub(crate) const fn combination(&self) -> Option<Combination> {
        self.combination
    }

    /// Whether it is for elements of this size and alignment.
    pub(crate) fn fits(&self, elem: Elem) -> bool {
        self.elem == elem
    }
}

const fn is_built_in<T, O: ReduceOp<T>>(_: &O) -> bool {
    O::BUILT_IN.get()
}

const fn combination_of<T, O: ReduceOp<T>>(_: &O) -> Option<Combination> {
    O::BUILT_IN.combination()
}

impl<T: Wire, O: ReduceOp<T>> Combine for Typed<T, O> {
    unsafe fn combine(&self, from: NonNull<u8>, into: NonNull<u8>, bytes: usize, side: Side) {
        let len = bytes / size_of::<T>();
        // SAFETY: the caller's promise; any bytes are a `T`.
        let from = unsafe { slice::from_raw_parts(from.cast::<T>().as_ptr(), len) };
        // SAFETY: as above, and nobody else touches it.
        let into = unsafe { slice::from_raw_parts_mut(into.cast::<T>().as_ptr(), len) };
        let pairs = into.iter_mut().zip(from);
        match side {
            Side::Left => pairs.for_each(|(into, from)| *into = self.op.combine(*from, *into)),
            Side::Right => pairs.for_each(|(into, from)| *into = self.op.combine(*into, *from)),
        }
    }
}

impl fmt::Debug for Reducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reducer of elements of {} bytes", self.elem.size)
    }
}
