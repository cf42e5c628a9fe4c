//! The blocks of one transpose, and their transfer.

use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use num_complex::Complex;
use ripstop::{Comm, Result, buffer::RegBuf};

use super::{
    exchange::{self, TransposeMode},
    real::{self, FftReal},
};

/// The two ends of a transpose, and the direction in which blocks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransposeEnd {
    /// The layout that is nearer to x.
    XSide,
    /// The layout that is nearer to z.
    ZSide,
}

/// A piece of a field, as blocks for and from every rank of a row or a column.
///
/// Blocks in flight are owned by the collective, and not accessible here.
pub(super) struct PencilSlot<T: FftReal> {
    x_side: EndBlocks<T>,
    z_side: EndBlocks<T>,
    /// This rank's own block does not travel: both ends are the same memory.
    own: Vec<Complex<T>>,
    me: usize,
    way: PencilSlotState<T>,
}

/// The blocks that are exchanged with other ranks, in the order of the ranks.
struct EndBlocks<T: FftReal> {
    /// Numbers, not pairs, of each block; zero for this rank's own.
    counts: Vec<usize>,
    /// `None` while in flight, and if there are no other ranks.
    blocks: Option<RegBuf<T>>,
}

enum PencilSlotState<T: FftReal> {
    Idle,
    /// The exchange in flight, and the end that it started from.
    InFlight(TransposeEnd, TransposeFuture<T>),
    Failed(ripstop::Error),
}

/// The sent blocks, and the blocks received into.
type TransposeFuture<T> = Pin<Box<dyn Future<Output = Result<(RegBuf<T>, RegBuf<T>)>>>>;

impl<T: FftReal> PencilSlot<T> {
    /// Makes a slot with blocks of `counts` complex numbers at both ends.
    ///
    /// # Errors
    /// There is no memory.
    pub(super) fn new(comm: &Comm, x_side: &[usize], z_side: &[usize]) -> Result<Self> {
        let me = comm.rank();
        debug_assert_eq!(x_side[me], z_side[me], "both ends of one block");
        Ok(Self {
            x_side: EndBlocks::new(comm, x_side)?,
            z_side: EndBlocks::new(comm, z_side)?,
            own: vec![Complex::default(); x_side[me]],
            me,
            way: PencilSlotState::Idle,
        })
    }

    /// Returns the blocks at an end, in the order of the ranks.
    pub(super) fn blocks(&self, end: TransposeEnd) -> Vec<&[Complex<T>]> {
        let side = match end {
            TransposeEnd::XSide => &self.x_side,
            TransposeEnd::ZSide => &self.z_side,
        };
        let mut rest = real::as_complex(side.blocks.as_deref().unwrap_or_default());
        let mut blocks = Vec::with_capacity(side.counts.len());
        for (rank, count) in side.counts.iter().enumerate() {
            let (block, after) = rest.split_at(count / 2);
            blocks.push(if rank == self.me { &self.own } else { block });
            rest = after;
        }
        blocks
    }

    /// Returns the blocks at an end, in the order of the ranks, for writing.
    pub(super) fn blocks_mut(&mut self, end: TransposeEnd) -> Vec<&mut [Complex<T>]> {
        let side = match end {
            TransposeEnd::XSide => &mut self.x_side,
            TransposeEnd::ZSide => &mut self.z_side,
        };
        let mut rest = real::as_complex_mut(side.blocks.as_deref_mut().unwrap_or_default());
        let mut own = &mut self.own[..];
        let mut blocks = Vec::with_capacity(side.counts.len());
        for (rank, count) in side.counts.iter().enumerate() {
            let (block, after) = rest.split_at_mut(count / 2);
            blocks.push(if rank == self.me {
                mem::take(&mut own)
            } else {
                block
            });
            rest = after;
        }
        blocks
    }

    /// Sends the blocks at one end to the other.
    pub(super) fn start(
        &mut self,
        comm: &Comm,
        mode: TransposeMode,
        from: TransposeEnd,
        poison: bool,
    ) {
        let (to, from_side) = match from {
            TransposeEnd::XSide => (&mut self.z_side, &mut self.x_side),
            TransposeEnd::ZSide => (&mut self.x_side, &mut self.z_side),
        };
        let Some((outgoing, mut incoming)) = from_side.blocks.take().zip(to.blocks.take()) else {
            return; // there are no other ranks
        };
        if poison {
            incoming.fill(T::NAN);
        }
        let send = exchange::RankBlocks {
            buf: outgoing,
            counts: &from_side.counts,
        };
        let recv = exchange::RankBlocks {
            buf: incoming,
            counts: &to.counts,
        };
        self.way = PencilSlotState::InFlight(from, exchange::start(comm, mode, send, recv));
    }

    /// Polls the exchange, which lets the runtime make progress.
    pub(super) fn test(&mut self) {
        if let PencilSlotState::InFlight(from, flight) = &mut self.way {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(landed) = flight.as_mut().poll(&mut context) {
                let from = *from;
                self.land(from, landed);
            }
        }
    }

    /// Waits until the blocks are at the other end.
    ///
    /// # Errors
    /// A rank failed or finished; the blocks are lost.
    pub(super) async fn finish(&mut self) -> Result<()> {
        if let PencilSlotState::InFlight(from, flight) = &mut self.way {
            let from = *from;
            let landed = flight.await;
            self.land(from, landed);
        }
        match mem::replace(&mut self.way, PencilSlotState::Idle) {
            PencilSlotState::Failed(error) => Err(error),
            _ => Ok(()),
        }
    }

    fn land(&mut self, from: TransposeEnd, landed: Result<(RegBuf<T>, RegBuf<T>)>) {
        let (sent, received) = match landed {
            Ok((sent, received)) => (Some(sent), Some(received)),
            Err(error) => {
                self.way = PencilSlotState::Failed(error);
                return;
            }
        };
        (self.x_side.blocks, self.z_side.blocks) = match from {
            TransposeEnd::XSide => (sent, received),
            TransposeEnd::ZSide => (received, sent),
        };
        self.way = PencilSlotState::Idle;
    }
}

impl<T: FftReal> EndBlocks<T> {
    fn new(comm: &Comm, blocks: &[usize]) -> Result<Self> {
        let others =
            |(rank, block): (usize, &usize)| if rank == comm.rank() { 0 } else { 2 * block };
        let counts: Vec<usize> = blocks.iter().enumerate().map(others).collect();
        let blocks = match counts.iter().sum() {
            0 => None,
            len => Some(comm.alloc(len)?),
        };
        Ok(Self { counts, blocks })
    }
}

impl<T: FftReal> fmt::Debug for PencilSlot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.way {
            PencilSlotState::Idle => "home",
            PencilSlotState::InFlight(..) => "flying",
            PencilSlotState::Failed(_) => "failed",
        };
        f.debug_struct("PencilSlot")
            .field("x_side", &self.x_side.counts)
            .field("z_side", &self.z_side.counts)
            .field("way", &way)
            .finish()
    }
}
