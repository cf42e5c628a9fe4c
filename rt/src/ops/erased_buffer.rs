//! A buffer of any type, stored in place by the operation that owns it.
#![expect(unsafe_code, reason = "stores values of any type in untyped room")]

use std::{
    mem::{self, MaybeUninit},
    ptr::NonNull,
};

use crate::{
    buffer::{RecvBuf, SendBuf, Wire},
    offload::CollectiveProgram,
};

/// Size of the room for a buffer value, in words. A larger or more aligned value is boxed, and the box is stored.
const WORDS: usize = 10;

/// Size of the room, in bytes.
pub(super) const ROOM_LEN: usize = size_of::<InlineStorage>();

/// Owns a value whose type is known only to the code that stored it.
///
/// `table` is `Some` exactly while `room` holds an initialized value of the type that `table` was made for. The room is
/// a separate allocation, made once and reused, so a `&mut` to the operation makes no claim about the buffer's bytes.
pub(crate) struct ErasedBuffer {
    room: Option<NonNull<InlineStorage>>,
    table: Option<&'static BufferVtable>,
    /// True if the room to receive into may be uninitialized.
    bare: bool,
}

type InlineStorage = MaybeUninit<[u64; WORDS]>;

/// The bytes of a short message whose receive keeps its own buffer elsewhere.
pub(crate) type PlacedBytes = InlineStorage;

struct BufferVtable {
    drop: unsafe fn(*mut u8),
    grow: Option<unsafe fn(*mut u8, usize) -> Option<BufferArea>>,
}

// SAFETY: `hold` accepts only `Send` values.
unsafe impl Send for ErasedBuffer {}

/// The bytes of a buffer that an operation reads or fills.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferArea {
    pub(crate) start: NonNull<u8>,
    /// Length in bytes.
    pub(crate) len: usize,
}

// SAFETY: the handle is only an address. Only the engine accesses the memory, and it keeps the buffer alive meanwhile.
unsafe impl Send for BufferArea {}

impl BufferArea {
    pub(crate) const NONE: Self = Self {
        start: NonNull::dangling(),
        len: 0,
    };
}

impl ErasedBuffer {
    pub(super) const fn empty() -> Self {
        Self {
            room: None,
            table: None,
            bare: false,
        }
    }

    /// Stores the buffer, and returns the address of its elements *after* the move.
    pub(super) fn hold_send<B: SendBuf>(&mut self, buf: B) -> BufferArea {
        let value = self.hold(
            buf,
            const {
                &BufferVtable {
                    drop: drop_value::<B>,
                    grow: None,
                }
            },
        );
        // SAFETY: `hold` returned the address of the live value it stored.
        let elems = unsafe { value.as_ref() }.elems();
        BufferArea {
            start: NonNull::from(elems).cast(),
            len: size_of_val(elems),
        }
    }

    /// Stores the buffer, and returns the address of the room to receive into *after* the move.
    #[inline(always)]
    pub(super) fn hold_recv<B: RecvBuf>(&mut self, buf: B) -> BufferArea {
        let mut value = self.hold(
            buf,
            const {
                &BufferVtable {
                    drop: drop_value::<B>,
                    grow: None,
                }
            },
        );
        // SAFETY: `hold` returned the address of the live value it stored, and no other code has it.
        let buf = unsafe { value.as_mut() };
        self.bare = !has_values(buf);
        // SAFETY: the engine copies whole messages of the element's type to the buffer, which are initialized.
        let spare = unsafe { buf.spare() };
        BufferArea {
            len: size_of_val(spare),
            start: NonNull::from(spare).cast(),
        }
    }

    /// Stores the two buffers of a program, and returns their addresses *after* the move.
    pub(super) fn hold_pair<I: SendBuf, O: RecvBuf>(
        &mut self,
        ProgramBuffers { input, output }: ProgramBuffers<I, O>,
    ) -> [BufferArea; 2] {
        let table = const {
            &BufferVtable {
                drop: drop_value::<(I, O)>,
                grow: None,
            }
        };
        let mut pair = self.hold((input, output), table);
        // SAFETY: `hold` returned the address of the live value it stored, and no other code has it.
        let (input, output) = unsafe { pair.as_mut() };
        self.bare = !has_values(output);
        areas_of(input, output)
    }

    /// Makes the room itself the place for messages of at most [`ROOM_LEN`] bytes, whose receives keep their own buffers
    /// elsewhere.
    pub(super) fn hold_place(&mut self) -> BufferArea {
        debug_assert!(self.table.is_none(), "an operation owns one buffer");
        let table = const {
            &BufferVtable {
                drop: drop_value::<PlacedBytes>,
                grow: None,
            }
        };
        (self.table, self.bare) = (Some(table), true);
        let room = *self.room.get_or_insert_with(make_room);
        BufferArea {
            start: room.cast(),
            len: ROOM_LEN,
        }
    }

    /// Gives up what [`hold_place`](Self::hold_place) has stored. The bytes need no drop.
    #[inline(always)]
    pub(super) fn leave_place(&mut self) {
        self.table = None;
    }

    /// Makes the operation use memory that is held elsewhere.
    pub(super) fn borrow(&mut self, area: BufferArea, bare: bool) -> BufferArea {
        self.bare = bare;
        area
    }

    /// Holds a value that is not a buffer, to be dropped together with buffers.
    pub(crate) fn of<V: Send + 'static>(value: V) -> Self {
        let mut held = Self::empty();
        held.hold(
            value,
            const {
                &BufferVtable {
                    drop: drop_value::<V>,
                    grow: None,
                }
            },
        );
        held
    }

    /// Stores an empty vector, whose size the message will decide.
    pub(super) fn hold_growing<T: Wire>(&mut self, buf: Vec<T>) -> BufferArea {
        self.hold(
            buf,
            const {
                &BufferVtable {
                    drop: drop_value::<Vec<T>>,
                    grow: Some(grow::<T>),
                }
            },
        );
        BufferArea::NONE
    }

    /// Makes room for `bytes` bytes, or returns `None` if there is not enough memory. Call only after
    /// [`hold_growing`](Self::hold_growing).
    pub(super) fn grow(&mut self, bytes: usize) -> Option<BufferArea> {
        let grow = self.table?.grow?;
        // SAFETY: `room` holds the vector that `grow` was made for.
        unsafe { grow(self.room?.as_ptr().cast(), bytes) }
    }

    /// Returns true if the room may be uninitialized, so that a peer must not leave parts of it as they are.
    pub(super) fn is_bare(&self) -> bool {
        self.bare || self.grows()
    }

    /// Returns true if the message decides the size of the buffer.
    pub(super) fn grows(&self) -> bool {
        self.table.is_some_and(|table| table.grow.is_some())
    }

    /// Moves the value out, if there is one, so that the caller can drop it later.
    pub(super) fn take_erased(&mut self) -> Option<Self> {
        self.table
            .is_some()
            .then(|| mem::replace(self, Self::empty()))
    }

    #[inline(always)]
    fn hold<B: Send + 'static>(&mut self, buf: B, table: &'static BufferVtable) -> NonNull<B> {
        assert!(self.table.is_none(), "an operation owns one buffer");
        (self.table, self.bare) = (Some(table), false);
        let room = *self.room.get_or_insert_with(make_room);
        if fits::<B>() {
            // SAFETY: `fits` says that size and alignment suffice.
            unsafe { room.cast::<B>().write(buf) };
            room.cast()
        } else {
            let boxed = NonNull::from(Box::leak(Box::new(buf)));
            // SAFETY: a pointer fits, and is aligned like a word.
            unsafe { room.cast::<NonNull<B>>().write(boxed) };
            boxed
        }
    }

    /// Returns the buffer.
    ///
    /// # Safety
    /// `B` is the type that was stored, and no code accesses the area any more.
    #[inline(always)]
    pub(super) unsafe fn take<B: Send + 'static>(&mut self) -> B {
        assert!(self.table.take().is_some(), "a buffer is taken once");
        let room = self.room.expect("room for what `table` describes");
        if fits::<B>() {
            // SAFETY: the caller promises that a `B` is stored there. Clearing `table` made this object forget it.
            unsafe { room.cast::<B>().read() }
        } else {
            // SAFETY: as above, in a box.
            let boxed = unsafe { room.cast::<NonNull<B>>().read() };
            // SAFETY: the pointer came from `Box::leak`, and this call owns the box again.
            *unsafe { Box::from_raw(boxed.as_ptr()) }
        }
    }
}

/// The two buffers of a program: one that it reads, and one that it reads and fills. All the room of the second is
/// initialized, or the program initializes it before anything reads it.
pub(crate) struct ProgramBuffers<I, O> {
    input: I,
    output: O,
}

impl<I: SendBuf, O: RecvBuf> ProgramBuffers<I, O> {
    /// Zeroes the output if it is uninitialized, unless the program [fills](CollectiveProgram::fills_output) it and this rank
    /// handles each message itself. In the case of `by_lists`, peers put into it and count the puts without this rank.
    pub(crate) fn new(
        input: I,
        mut output: O,
        program: &CollectiveProgram,
        by_lists: bool,
    ) -> Self {
        if by_lists || !program.fills_output() {
            blank(&mut output);
        }
        Self { input, output }
    }

    /// Returns the present addresses of the buffers.
    pub(crate) fn areas(&mut self) -> [BufferArea; 2] {
        areas_of(&self.input, &mut self.output)
    }

    /// Returns the buffers. The program has filled `bytes` bytes of the output.
    pub(crate) fn into_filled(self, bytes: usize) -> (I, O) {
        let Self { input, mut output } = self;
        let len = bytes.checked_div(size_of::<O::Elem>()).unwrap_or(0);
        // SAFETY: the room of a completed program is initialized: it has its old values, zeros, or the program's
        // results.
        unsafe { output.set_filled(len) };
        (input, output)
    }
}

fn areas_of<I: SendBuf, O: RecvBuf>(input: &I, output: &mut O) -> [BufferArea; 2] {
    let elems = input.elems();
    // SAFETY: the engine writes whole elements to the buffer, which are initialized.
    let spare = unsafe { output.spare() };
    let input = BufferArea {
        start: NonNull::from(elems).cast(),
        len: size_of_val(elems),
    };
    let output = BufferArea {
        len: size_of_val(spare),
        start: NonNull::from(spare).cast(),
    };
    [input, output]
}

impl Drop for ErasedBuffer {
    fn drop(&mut self) {
        let Some(room) = self.room.take() else { return };
        if let Some(table) = self.table.take() {
            // SAFETY: `room` holds a value of the type that `table` was made for, and this drops it once.
            unsafe { (table.drop)(room.as_ptr().cast()) };
        }
        // SAFETY: the pointer came from `Box::leak`, and no code accesses an area of the value any more.
        drop(unsafe { Box::from_raw(room.as_ptr()) });
    }
}

/// Zeroes room that is not initialized.
pub(super) fn blank<B: RecvBuf>(buf: &mut B) {
    if !has_values(buf) {
        // SAFETY: only zeros are written to the buffer here, which are a valid value of every `Wire` type.
        let spare = unsafe { buf.spare() };
        spare.fill_with(|| MaybeUninit::new(bytemuck::Zeroable::zeroed()));
    }
}

/// Returns true if all the room of a buffer is initialized.
fn has_values<B: RecvBuf>(buf: &mut B) -> bool {
    let (elems, len) = (NonNull::from(buf.elems()).cast::<u8>(), buf.elems().len());
    // SAFETY: no data is written to the buffer here.
    let spare = unsafe { buf.spare() };
    spare.len() <= len && NonNull::from(spare).cast() == elems
}

#[cold]
fn make_room() -> NonNull<InlineStorage> {
    NonNull::from(Box::leak(Box::new(InlineStorage::uninit())))
}

const fn fits<B>() -> bool {
    size_of::<B>() <= size_of::<[u64; WORDS]>() && align_of::<B>() <= align_of::<u64>()
}

/// # Safety
/// `room` holds a `B` in the way in which `hold` stores it, and the caller does not use it afterwards.
unsafe fn drop_value<B>(room: *mut u8) {
    if fits::<B>() {
        // SAFETY: the caller's promise.
        unsafe { room.cast::<B>().drop_in_place() };
    } else {
        // SAFETY: the caller's promise: a pointer from `Box::leak`.
        let boxed = unsafe { room.cast::<*mut B>().read() };
        // SAFETY: this code owns the value again.
        drop(unsafe { Box::from_raw(boxed) });
    }
}

/// # Safety
/// `room` holds a `Vec<T>` in place.
unsafe fn grow<T>(room: *mut u8, bytes: usize) -> Option<BufferArea> {
    // SAFETY: the caller's promise; the engine has exclusive use of a held buffer.
    let vec = unsafe { &mut *room.cast::<Vec<T>>() };
    let len = bytes.checked_div(size_of::<T>()).unwrap_or(0);
    vec.try_reserve_exact(len).ok()?;
    let spare = vec.spare_capacity_mut().get_mut(..len)?;
    Some(BufferArea {
        len: size_of_val(spare),
        start: NonNull::from(spare).cast(),
    })
}

#[cfg(test)]
mod tests {
    use super::{ErasedBuffer, ProgramBuffers};
    use crate::offload::{CommRank, Plan, ProgramBuffer, StepAction};

    #[test]
    fn output_has_values_where_peers_put_and_count_by_themselves() {
        let recv = StepAction::Recv {
            from: CommRank(1),
            into: ProgramBuffer::Output.span(0, 9),
        };
        let mut plan = Plan::new(0, 2);
        plan.push(recv, &[]);
        let program = plan.program::<u8>(0, 9).unwrap();
        for by_lists in [false, true] {
            let mut output = vec![3_u8; 9];
            output.clear();
            let pair = ProgramBuffers::new([0; 0], output, &program, by_lists);
            let left = if by_lists { 0 } else { 3 };
            assert_eq!(pair.into_filled(9).1, [left; 9]);
        }
    }

    #[test]
    fn room_is_bare_where_there_may_be_no_values() {
        let is_bare = |hold: &dyn Fn(&mut ErasedBuffer)| {
            let mut held = ErasedBuffer::empty();
            hold(&mut held);
            held.is_bare()
        };
        assert!(is_bare(
            &|held| _ = held.hold_recv(Vec::<u8>::with_capacity(9))
        ));
        assert!(is_bare(&|held| _ = held.hold_growing(Vec::<u8>::new())));
        assert!(!is_bare(&|held| _ = held.hold_recv(vec![1_u8; 9])));
        assert!(!is_bare(&|held| _ = held.hold_recv([0_u16; 3])));
    }
}
