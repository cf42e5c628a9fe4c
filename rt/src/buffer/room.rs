//! The room of buffers: how much there is, and writing to it.
#![expect(unsafe_code, reason = "writes to room that may be uninitialized")]

use std::{mem::MaybeUninit, slice};

use ripstop_fabric::driver::PayloadView;

use super::{RecvBuf, Wire};

/// Returns the number of elements that fit into a buffer.
pub fn room<B: RecvBuf>(buf: &mut B) -> usize {
    // SAFETY: nothing is written to the vector here.
    unsafe { buf.spare() }.len()
}

/// Returns a vector of zeros, whose pages cost nothing until they are touched. Returns `None` if there is not enough
/// memory.
#[must_use]
pub fn zeros<T: Wire>(len: usize) -> Option<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(len).ok()
}

/// Copies a message to the start of a buffer's room, as its receive does. The message is whole elements. Returns their number,
/// which is 0 for elements without a size.
///
/// # Panics
/// Panics if there is less room.
#[inline(always)]
pub(crate) fn receive<B: RecvBuf>(buf: &mut B, message: PayloadView<'_>) -> usize {
    // SAFETY: only initialized elements are written below, because any bytes are a valid element.
    let room = unsafe { buf.spare() };
    if message.len() == size_of::<B::Elem>()
        && let [first, ..] = room
    {
        // One element is the usual message of a channel, and its length is known at compile time.
        copy_to_room(slice::from_mut(first), message);
        let len = usize::from(size_of::<B::Elem>() > 0);
        // SAFETY: this element was just written, and within the room.
        unsafe { buf.set_filled(len) };
        return len;
    }
    copy_to_room(room, message);
    let len = message.len().checked_div(size_of::<B::Elem>()).unwrap_or(0);
    // SAFETY: these elements were just written, and within the room.
    unsafe { buf.set_filled(len) };
    len
}

/// Fills a buffer with the bytes of `parts`, one after the other. Each part is whole elements.
///
/// # Panics
/// Panics if the length of all parts together is not exactly the room.
pub(crate) fn fill<'a, B: RecvBuf>(buf: &mut B, parts: impl IntoIterator<Item = PayloadView<'a>>) {
    // SAFETY: only initialized elements are written below, because any bytes are a valid element.
    let room = unsafe { buf.spare() };
    let len = room.len();
    let mut rest = room;
    for part in parts {
        let elems = part.len().checked_div(size_of::<B::Elem>()).unwrap_or(0);
        let (into, behind) = rest.split_at_mut(elems);
        copy_to_room(into, part);
        rest = behind;
    }
    assert_eq!(size_of_val(rest), 0, "a get that fills its buffer");
    // SAFETY: the elements were just written, as nothing is left of the room.
    unsafe { buf.set_filled(len) };
}

/// Copies all bytes of `payload` to the start of a room.
///
/// # Panics
/// Panics if there is less room.
#[inline(always)]
fn copy_to_room<T: Wire>(room: &mut [MaybeUninit<T>], payload: PayloadView<'_>) {
    let (start, bytes) = (
        room.as_mut_ptr().cast::<MaybeUninit<u8>>(),
        size_of_val(room),
    );
    // SAFETY: the same memory as bytes, borrowed for the same time.
    let room = unsafe { slice::from_raw_parts_mut(start, bytes) };
    payload.copy_to(&mut room[..payload.len()]);
}

/// Writes the first `bytes` bytes of `elems` to the start of a buffer's room, as a receive would. Returns false, and writes
/// nothing, if one of both is shorter. The bytes are whole elements of both types.
#[inline(always)]
pub(crate) fn overwrite_bytes<T: Wire, B: RecvBuf>(buf: &mut B, elems: &[T], bytes: usize) -> bool {
    // SAFETY: only initialized elements are written below, because any bytes are a valid element.
    let room = unsafe { buf.spare() };
    let len = bytes / size_of::<B::Elem>();
    if size_of_val(elems) < bytes
        || size_of_val(room) < bytes
        || len * size_of::<B::Elem>() != bytes
    {
        return false;
    }
    let (from, into) = (elems.as_ptr().cast::<u8>(), room.as_mut_ptr().cast::<u8>());
    // SAFETY: both are at least that long, and the room is borrowed exclusively, so they do not overlap.
    unsafe { into.copy_from_nonoverlapping(from, bytes) };
    // SAFETY: these elements were just written, and within the room.
    unsafe { buf.set_filled(len) };
    true
}

/// Writes `elems` to the start of a buffer's room, as a receive would.
///
/// # Panics
/// Panics if there is less room.
pub fn overwrite<B: RecvBuf>(buf: &mut B, elems: &[B::Elem]) {
    // SAFETY: only initialized elements are written below.
    let room = unsafe { buf.spare() };
    assert!(
        elems.len() <= room.len(),
        "{} elements for a buffer with room for {}",
        elems.len(),
        room.len()
    );
    for (place, elem) in room.iter_mut().zip(elems) {
        place.write(*elem);
    }
    // SAFETY: the elements were just written, and within the room.
    unsafe { buf.set_filled(elems.len()) };
}
