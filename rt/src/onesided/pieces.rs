//! Windows to which memory is attached, and from which it is detached, by each rank for itself.

use std::panic::Location;

use super::{Port, memory_of, met, own_memory};
use crate::{
    buffer::{RegBuf, Wire},
    comm::Comm,
    engine::Extent,
    error::{Error, Result, called_at},
};

/// Elements that were attached to a window.
///
/// Holding one proves nothing: they may have been detached, and numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    first: usize,
    len: usize,
}

impl Piece {
    /// The number that an element of it has in the window, for operations of others. It means nothing to other windows, and at
    /// other ranks.
    ///
    /// # Panics
    /// When there are fewer than `nth` elements.
    #[must_use]
    pub fn at(self, nth: usize) -> usize {
        assert!(nth <= self.len, "element {nth} of a piece of {}", self.len);
        self.first + nth
    }

    /// Elements.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

impl<T: Wire> Port<T> {
    /// Makes a window without elements, to which each rank attaches its own. Collective.
    ///
    /// # Errors
    /// No memory; a member failed.
    #[track_caller]
    pub fn growing(comm: &Comm) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let (id, agreement) = (comm.next_window(), comm.agreement());
        let comm = comm.clone();
        called_at(Location::caller(), async move {
            let nothing = comm
                .shared()
                .with(|engine| RegBuf::for_window(engine.driver(), 0));
            let (nothing, agreement) = own_memory("dynamic", agreement, nothing, &comm)?;
            let port = Self::open(comm, id, nothing, Extent::Growing(T::SIG));
            met("dynamic", agreement).await?;
            Ok(port)
        })
    }

    /// Attaches a buffer. Not collective.
    ///
    /// # Errors
    /// A window that does not grow; more than a million pieces so far, or one that is longer than 2³⁶ elements.
    pub fn attach(&mut self, buf: RegBuf<T>) -> Result<Piece> {
        let (nth, len) = (self.attached, buf.size());
        if self.pieces.is_none() {
            return Err(self.refusal("attach", NOT_DYNAMIC.to_owned()));
        }
        if nth == PIECES_MAX || len > SPAN {
            let sentence = format!(
                "`buf` has {len} elements and is piece {nth} of this window: at most {SPAN}, and {PIECES_MAX} pieces"
            );
            return Err(self.refusal("attach", sentence));
        }
        let first = nth * SPAN;
        let Some(at) = byte_of::<T>(first + len).and_then(|_end| byte_of::<T>(first)) else {
            let sentence = format!(
                "`buf` is piece {nth} of this window, and elements of {} bytes do not leave room for so many",
                size_of::<T>()
            );
            return Err(self.refusal("attach", sentence));
        };
        let memory = memory_of(&buf);
        let (id, shared) = (self.id, self.comm.shared());
        shared.with(|engine| engine.set_piece(id, at, Some(memory)));
        self.attached += 1;
        self.pieces.get_or_insert_default().insert(first, buf);
        Ok(Piece { first, len })
    }

    /// Detaches it. Whoever still accesses it gets an error. Not collective.
    ///
    /// # Errors
    /// An epoch is open; a piece that is not attached here.
    pub fn detach(&mut self, piece: Piece) -> Result<RegBuf<T>> {
        self.check_closed("detach")?;
        let buf = self
            .pieces
            .as_mut()
            .and_then(|pieces| pieces.remove(&piece.first));
        let buf = buf.ok_or_else(|| self.stray("detach", piece))?;
        let (id, shared) = (self.id, self.comm.shared());
        let at = byte_of::<T>(piece.first).unwrap_or_default();
        shared.with(|engine| engine.set_piece(id, at, None));
        Ok(buf)
    }

    /// Elements that are attached here.
    ///
    /// # Errors
    /// As [`detach`](Self::detach).
    pub fn piece_mut(&mut self, piece: Piece) -> Result<&mut [T]> {
        self.check_closed("piece_mut")?;
        if !self.has(piece) {
            return Err(self.stray("piece_mut", piece));
        }
        let pieces = self.pieces.get_or_insert_default();
        Ok(pieces
            .get_mut(&piece.first)
            .map_or(&mut [], |buf| &mut **buf))
    }

    fn has(&self, piece: Piece) -> bool {
        let mut pieces = self.pieces.iter();
        pieces.any(|pieces| pieces.contains_key(&piece.first))
    }

    fn stray(&self, op: &'static str, piece: Piece) -> Error {
        let sentence = format!("`piece` is {piece:?}, which is not attached to this window here");
        self.refusal(op, sentence)
    }
}

fn byte_of<T>(elem: usize) -> Option<u64> {
    elem.checked_mul(size_of::<T>()).map(|byte| byte as u64)
}

const NOT_DYNAMIC: &str =
    "this window's memory is what it was made with: make one with `Window::dynamic` to attach more";

/// Elements from the first of one piece to the first of the next.
const SPAN: usize = 1 << 36;
/// Pieces that a rank may attach to a window in its life.
const PIECES_MAX: usize = 1 << 20;
