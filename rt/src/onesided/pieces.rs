//! Dynamic windows: each rank attaches memory to them, and detaches it, independently.

use std::{collections::BTreeMap, panic::Location};

use super::{WindowEnd, memory_of, own_memory};
use crate::{
    buffer::{RegBuf, Wire},
    comm::Comm,
    engine::WindowExtent,
    error::{Error, Result},
};

/// A handle of elements that were attached to a window.
///
/// The elements may have been detached since. This rank refuses a piece that was detached, permanently. The element
/// numbers of a detached piece are reused only when all other numbers were used. Only then can an operation of another
/// rank with stale numbers reach a new piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    first: usize,
    len: usize,
    /// Index of this piece among all pieces that this rank ever attached.
    nth: u64,
}

impl Piece {
    /// Returns the number of an element in the window, for operations of other ranks. The number is valid only for this
    /// window and for this rank's end.
    ///
    /// # Panics
    /// Panics if the piece has fewer than `nth` elements.
    #[must_use]
    pub fn at(self, nth: usize) -> usize {
        assert!(nth <= self.len, "element {nth} of a piece of {}", self.len);
        self.first + nth
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns true if the piece has no elements.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

impl<T: Wire> WindowEnd<T> {
    /// Makes a window without elements, to which each rank attaches its own. Collective.
    ///
    /// # Errors
    /// There is no memory, or a member failed.
    #[track_caller]
    pub fn growing(comm: &Comm) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let id = comm.next_window();
        let agreement = comm.agreement("dynamic", Some(id.sequence));
        let nothing = comm
            .shared()
            .with(|engine| RegBuf::for_window(engine.driver(), 0));
        let owned = own_memory("dynamic", agreement, nothing, comm);
        let opened = owned.map(|(nothing, agreement)| {
            let window_end = Self::open(comm.clone(), id, nothing, WindowExtent::Growing(T::SIG));
            (window_end, agreement)
        });
        Self::made("dynamic", opened, Location::caller())
    }

    /// Attaches a buffer. Not collective.
    ///
    /// # Errors
    /// The window is not dynamic, or the attached pieces leave no gap for the element numbers of this piece.
    pub fn attach(&mut self, buf: RegBuf<T>) -> Result<Piece> {
        let len = buf.size();
        let Some(pieces) = &mut self.pieces else {
            return Err(self.refusal("attach", NOT_DYNAMIC.to_owned()));
        };
        let Some(first) = pieces.place(len, size_of::<T>()) else {
            let (size, others) = (size_of::<T>(), pieces.attached.len());
            let sentence = format!(
                "`buf` has {len} elements of {size} bytes, which do not fit beside the {others} pieces of this window \
                 into 2^63 bytes of addresses: detach some first"
            );
            return Err(self.refusal("attach", sentence));
        };
        let nth = pieces.count;
        pieces.count += 1;
        let memory = memory_of(&buf);
        pieces.attached.insert(first, AttachedPiece { nth, buf });
        let (id, shared) = (self.id, self.comm.shared());
        let at = byte_of::<T>(first);
        shared.with(|engine| engine.core.windows().set_piece(id, at, Some(memory)));
        Ok(Piece { first, len, nth })
    }

    /// Detaches a piece. Operations of other ranks that still access it fail. Not collective.
    ///
    /// # Errors
    /// An epoch is open, or the piece is not attached here.
    pub fn detach(&mut self, piece: Piece) -> Result<RegBuf<T>> {
        self.check_closed("detach")?;
        if !self.has(piece) {
            return Err(self.stray("detach", piece));
        }
        let pieces = self.pieces.get_or_insert_default();
        let attached = pieces.attached.remove(&piece.first);
        let Some(AttachedPiece { buf, .. }) = attached else {
            return Err(self.stray("detach", piece));
        };
        let (id, shared) = (self.id, self.comm.shared());
        let at = byte_of::<T>(piece.first);
        shared.with(|engine| engine.core.windows().set_piece(id, at, None));
        Ok(buf)
    }

    /// Returns the elements of an attached piece.
    ///
    /// # Errors
    /// The call fails as [`detach`](Self::detach) does.
    pub fn piece_mut(&mut self, piece: Piece) -> Result<&mut [T]> {
        self.check_closed("piece_mut")?;
        if !self.has(piece) {
            return Err(self.stray("piece_mut", piece));
        }
        let pieces = self.pieces.get_or_insert_default();
        let attached = pieces.attached.get_mut(&piece.first);
        Ok(attached.map_or(&mut [], |attached| &mut *attached.buf))
    }

    fn has(&self, piece: Piece) -> bool {
        let pieces = self.pieces.as_ref();
        let attached = pieces.and_then(|pieces| pieces.attached.get(&piece.first));
        attached.is_some_and(|attached| attached.nth == piece.nth)
    }

    fn stray(&self, op: &'static str, piece: Piece) -> Error {
        let sentence = format!("`piece` is {piece:?}, which is not attached to this window here");
        self.refusal(op, sentence)
    }
}

/// Returns the byte offset of an element that has a place.
fn byte_of<T>(elem: usize) -> u64 {
    (elem * size_of::<T>()) as u64
}

const NOT_DYNAMIC: &str =
    "this window has fixed memory: make a window with `Window::dynamic` to attach memory";

/// The memory that is attached to a window at this rank.
///
/// Each element has a number; those of a piece are consecutive. Numbers are given out upwards, with a gap behind each
/// piece, to the end of the address range, and then again from 0 in free places. So numbers of a detached piece are not
/// reused before 2⁶³ bytes of addresses were used. With short pieces that takes 2⁴³ attaches, which is a hundred days
/// at a million per second.
pub(super) struct LocalPieces<T: Wire> {
    /// Attached pieces, by the number of their first element.
    attached: BTreeMap<usize, AttachedPiece<T>>,
    /// Number for the first element of the next piece, if there is room.
    next: usize,
    /// Number of pieces that were ever attached.
    count: u64,
}

struct AttachedPiece<T: Wire> {
    nth: u64,
    buf: RegBuf<T>,
}

impl<T: Wire> Default for LocalPieces<T> {
    fn default() -> Self {
        Self {
            attached: BTreeMap::new(),
            next: 0,
            count: 0,
        }
    }
}

impl<T: Wire> LocalPieces<T> {
    /// Returns the attached buffers.
    pub(super) fn bufs(&self) -> impl Iterator<Item = &RegBuf<T>> {
        self.attached.values().map(|attached| &attached.buf)
    }

    /// Returns the number for the first of `len` elements of `size` bytes.
    fn place(&mut self, len: usize, size: usize) -> Option<usize> {
        let taken = |from: usize| {
            let mut at_or_after = self.attached.range(from..);
            let after = at_or_after.next().map(|(&first, _)| first);
            let before = self.attached.range(..from).next_back();
            let before = before.map(|(&first, attached)| (first, attached.buf.size()));
            (before, after)
        };
        let (first, next) = find_place(self.next, len, size, taken)?;
        self.next = next;
        Some(first)
    }
}

/// Finds numbers for `len` elements of `size` bytes, from `next` on or otherwise from 0 on. Returns the first number,
/// and where to search for the next piece.
///
/// `around` returns the last piece before a number, with its length, and the first piece from that number on.
fn find_place(
    next: usize,
    len: usize,
    size: usize,
    around: impl Fn(usize) -> (Option<(usize, usize)>, Option<usize>),
) -> Option<(usize, usize)> {
    let size = size.max(1);
    let (gap, limit) = (GAP.div_ceil(size), ADDRESSES / size);
    let span = len.checked_add(gap).filter(|span| *span <= limit)?;
    // Move past the piece before it, and past all pieces in the way.
    let fit = |mut from: usize| {
        if let (Some((first, len)), _) = around(from) {
            from = from.max(first.saturating_add(len).saturating_add(gap));
        }
        loop {
            let end = from.checked_add(span).filter(|end| *end <= limit)?;
            match around(from) {
                (_, Some(after)) if after < end => {
                    let (last, _) = around(after.saturating_add(1));
                    let (first, len) = last?;
                    from = first.saturating_add(len).saturating_add(gap);
                }
                _ => return Some((from, end)),
            }
        }
    };
    fit(next).or_else(|| fit(0))
}

/// Size of the address range of a window at a rank, in bytes.
const ADDRESSES: usize = 1 << 63;

/// Minimum distance between two pieces, in bytes, so that an access behind a piece does not reach the next one.
const GAP: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{ADDRESSES, GAP, find_place};

    /// A model: attached pieces by first element, with their lengths.
    #[derive(Default)]
    struct Model {
        attached: BTreeMap<usize, usize>,
        next: usize,
        size: usize,
    }

    impl Model {
        fn attach(&mut self, len: usize) -> Option<usize> {
            let around = |from: usize| {
                let before = self.attached.range(..from).next_back();
                let after = self.attached.range(from..).next();
                (
                    before.map(|(a, b)| (*a, *b)),
                    after.map(|(first, _)| *first),
                )
            };
            let (first, next) = find_place(self.next, len, self.size, around)?;
            self.next = next;
            self.attached.insert(first, len);
            let gap = GAP / self.size;
            let mut all = self.attached.iter().peekable();
            while let Some((first, len)) = all.next() {
                let end = first + len + gap;
                assert!(end <= ADDRESSES / self.size, "{first}");
                assert!(all.peek().is_none_or(|(next, _)| **next >= end), "{first}");
            }
            Some(first)
        }
    }

    #[test]
    fn numbers_of_elements_go_up_to_the_end_before_any_is_used_again() {
        let mut model = Model {
            size: 8,
            ..Model::default()
        };
        let stays = model.attach(1000).unwrap();
        let mut before = stays;
        for _ in 0..1000 {
            let first = model.attach(5).unwrap();
            assert!(first > before);
            model.attached.remove(&first);
            before = first;
        }
        // Near the end: a piece that does not fit there starts again from 0, past pieces that are still attached.
        model.next = ADDRESSES / 8 - GAP;
        let anew = model.attach(GAP).unwrap();
        assert_eq!((stays, anew), (0, 1000 + GAP / 8));
    }

    #[test]
    fn pieces_of_any_lengths_never_come_near_each_other_and_fill_all_there_is() {
        let seed = 0x5eed_u64;
        let mut random = seed;
        let mut below = |most: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) as usize % most
        };
        for size in [1, 8, 4096] {
            let mut model = Model {
                size,
                ..Model::default()
            };
            let big = ADDRESSES / size / 16;
            let mut refused = 0;
            for _ in 0..2000 {
                let len = if below(3) == 0 {
                    below(1000)
                } else {
                    big / (1 + below(4))
                };
                refused += usize::from(model.attach(len).is_none());
                if below(2) == 0 {
                    let nth = below(model.attached.len().max(1));
                    let gone = model.attached.keys().nth(nth).copied();
                    gone.map(|gone| model.attached.remove(&gone));
                }
            }
            assert!(
                refused > 0,
                "seed {seed}: elements of {size} bytes never used up all there is"
            );
            model.attached.clear();
            assert!(
                model
                    .attach(ADDRESSES / size - GAP.div_ceil(size))
                    .is_some()
            );
            assert!(model.attach(0).is_none());
        }
    }

    #[test]
    fn what_is_longer_than_all_addresses_finds_no_place() {
        let nothing = |_| (None, None);
        assert_eq!(find_place(0, usize::MAX, 8, nothing), None);
        assert_eq!(find_place(0, ADDRESSES / 8, 8, nothing), None);
        assert_eq!(find_place(0, 1, ADDRESSES, nothing), None);
        assert!(find_place(0, 0, 0, nothing).is_some());
    }
}
