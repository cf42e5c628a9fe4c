//! The chunks of long messages in cells, at their sender.

use super::{super::pool::Pool, CELLS, CHUNKS_MAX};

/// Which cells were given chunks that have not come back.
#[derive(Debug)]
pub(super) struct Lent {
    /// By cell. Nothing until the first long message.
    by_cell: Vec<List>,
    /// Bits of cells that have chunks, and how many all of them have.
    cells: u64,
    count: usize,
}

/// The chunks of a message, and its number.
#[derive(Clone, Debug, Default)]
struct List {
    number: u32,
    chunks: Vec<u32>,
}

impl Lent {
    pub(super) const fn new() -> Self {
        Self {
            by_cell: Vec::new(),
            cells: 0,
            count: 0,
        }
    }

    /// How many chunks.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Lends the chunks of the pool's last message to the one of this number in a cell, which was free: what it had comes back.
    pub(super) fn lend(&mut self, cell: usize, number: u32, pool: &mut Pool) -> &[u32] {
        if self.by_cell.is_empty() {
            self.by_cell = vec![List::default(); CELLS];
        }
        self.give(self.cells & 1 << cell, |chunk| pool.give_from_cell(chunk));
        let list = &mut self.by_cell[cell];
        list.number = number;
        pool.lend_last(&mut list.chunks);
        self.cells |= 1 << cell;
        self.count += list.chunks.len();
        &list.chunks
    }

    /// Gives chunks back, but those of messages that, by cell and number, lie there still.
    pub(super) fn give_unless(&mut self, lies: impl Fn(usize, u32) -> bool, give: impl FnMut(u32)) {
        let mut free = self.cells;
        for cell in cells_of(self.cells) {
            if lies(cell, self.by_cell[cell].number) {
                free &= !(1 << cell);
            }
        }
        self.give(free, give);
    }

    fn give(&mut self, cells: u64, mut give: impl FnMut(u32)) {
        self.cells &= !cells;
        for cell in cells_of(cells) {
            let chunks = &mut self.by_cell[cell].chunks;
            self.count -= chunks.len();
            chunks.drain(..).for_each(&mut give);
        }
    }
}

fn cells_of(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let cell = (bits != 0).then(|| bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(cell)
    })
}

/// Bytes of what is kept of a cell's chunks, at the most.
pub(in super::super) const LIST_LEN: usize = size_of::<List>() + CHUNKS_MAX * size_of::<u32>();
