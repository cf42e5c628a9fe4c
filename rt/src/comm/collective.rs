//! Simple collectives over messages, used internally to make communicators and windows.
//!
//! [Background futures](crate::executor::BackgroundFuture) drive them. The collectives for users are in the crate
//! `ripstop-collectives`.

use super::{AgreementPlace, CollectiveCall, Comm, RecvOp, ReduceOp, SendOp, Source, Tag};
use crate::{
    buffer::{RecvBuf, SendBuf, Wire},
    error::{Error, ErrorKind, OpError, Result, called_at},
    executor::proceed,
    group::CommRank,
};

impl AgreementPlace {
    /// Waits until every rank has called this with the same `word`. Dissemination barrier (Hensgen, Finkel, Manber
    /// 1988).
    pub(crate) async fn barrier(self, word: u8) -> Result<()> {
        self.first_barrier(word).await
    }

    /// Like [`barrier`](Self::barrier), before another barrier in the same position.
    pub(crate) async fn first_barrier(&self, word: u8) -> Result<()> {
        let met = async {
            let met = self.comm.meet_with(self.call, word).await;
            self.comm.described(self.call, met).await
        };
        called_at(self.call.at, met).await
    }

    /// Makes the [`barrier`](Self::barrier) fail on all ranks, because this rank cannot do what they agreed on.
    ///
    /// This does not wait: ranks that will never call `barrier` may wait for what this rank does next.
    pub(crate) fn fail_barrier(self) {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let mut distance = 1;
        while distance < size {
            drop(
                self.comm
                    .send_for(self.call, (rank + distance) % size, [GAVE_UP]),
            );
            distance *= 2;
        }
    }
}

impl Comm {
    async fn meet_with(&self, call: CollectiveCall, word: u8) -> Result<()> {
        proceed().await;
        let (rank, size) = (self.rank(), self.size());
        let world = |rank| {
            self.group()
                .world_of(CommRank(rank))
                .map_or(0, |world| world.0 as usize)
        };
        let (mut distance, mut said) = (1, word);
        let (mut failed, mut lost) = (None, None);
        while distance < size {
            let mut is_seen_here = false;
            let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
            let sent = self.send_for(call, to, [said]);
            let heard = self.recv_for(call, from, [0_u8; 1]).await;
            let error = |why| self.error("barrier", why, None, None);
            let why = match heard {
                Ok(([heard], _)) if heard == word => None,
                Ok(([GAVE_UP], _)) => Some(error(ErrorKind::Aborted { rank: world(from) })),
                Ok(([heard], _)) => {
                    is_seen_here = heard != APART;
                    let (rank, other) = (world(rank), world(from));
                    let calls = None;
                    Some(error(ErrorKind::Mismatch { rank, other, calls }))
                }
                Err(error) => Some(self.as_mismatch(call, as_op("barrier", error))),
            };
            let gone = sent.await.err().map(|error| as_op("barrier", error));
            // Pass the failure on: every rank that receives this word fails too.
            if let Some(why) = why.as_ref().or(gone.as_ref()) {
                // The next rank may have passed the same word as this one, so it is not said to differ.
                said = match why.kind {
                    ErrorKind::Mismatch { .. } if !is_seen_here => APART,
                    _ => GAVE_UP,
                };
            }
            // The error of a word that arrived takes precedence over the error of a send, because a rank that gives up
            // may be gone before it receives this rank's word.
            (failed, lost) = (failed.or(why), lost.or(gone));
            distance *= 2;
        }
        failed.or(lost).map_or(Ok(()), Err)
    }

    /// Broadcasts `root`'s elements to all ranks, along a binomial tree.
    pub(super) async fn bcast_with<B: RecvBuf>(
        &self,
        call: CollectiveCall,
        root: usize,
        mut buf: B,
    ) -> Result<B, OpError<B>> {
        if let Err(error) = self.peer("bcast", "root", root) {
            return Err(OpError { error, buf });
        }
        let size = self.size();
        let place = (self.rank() + size - root) % size;
        let at = |place: usize| (place + root) % size;
        // The lowest set bit of a place is its distance to its parent. The root has none within the size.
        let mut bit = 1;
        while bit < size && place & bit == 0 {
            bit *= 2;
        }
        if bit < size {
            buf = self
                .recv_whole(call, at(place - bit), buf)
                .await
                .map_err(|error| renamed("bcast", error))?;
        }
        while bit > 1 {
            bit /= 2;
            if place + bit < size {
                buf = self
                    .send_for(call, at(place + bit), buf)
                    .await
                    .map_err(|error| renamed("bcast", error))?;
            }
        }
        Ok(buf)
    }

    /// Combines the elements of all ranks in rank order: up a binomial tree to rank 0, and back down to all ranks.
    pub(super) async fn all_reduce_with<B: RecvBuf>(
        &self,
        call: CollectiveCall,
        buf: B,
        op: impl ReduceOp<B::Elem>,
    ) -> Result<B, OpError<B>> {
        proceed().await;
        match self.reduce_to_first(call, buf.elems().to_vec(), op).await {
            Ok(mine) => self.spread_from_first(call, buf, mine).await,
            Err(error) => Err(OpError { error, buf }),
        }
    }

    /// Computes the partial result of this rank's subtree, and sends it toward rank 0. On rank 0 it is the result.
    async fn reduce_to_first<T: Wire>(
        &self,
        call: CollectiveCall,
        mut mine: Vec<T>,
        op: impl ReduceOp<T>,
    ) -> Result<Vec<T>> {
        let (rank, size) = (self.rank(), self.size());
        let mut bit = 1;
        while bit < size {
            if rank & bit != 0 {
                let sent = self.send_for(call, rank - bit, mine);
                return sent.await.map_err(|error| as_op("all_reduce", error));
            }
            if rank + bit < size {
                let theirs = vec![T::zeroed(); mine.len()];
                let theirs = self
                    .recv_whole(call, rank + bit, theirs)
                    .await
                    .map_err(|error| as_op("all_reduce", error))?;
                for (mine, theirs) in mine.iter_mut().zip(theirs) {
                    *mine = op.combine(*mine, theirs);
                }
            }
            bit *= 2;
        }
        Ok(mine)
    }

    async fn spread_from_first<B: RecvBuf>(
        &self,
        call: CollectiveCall,
        mut buf: B,
        result: Vec<B::Elem>,
    ) -> Result<B, OpError<B>> {
        if self.rank() == 0 {
            crate::buffer::overwrite(&mut buf, &result);
        }
        self.bcast_with(call, 0, buf)
            .await
            .map_err(|error| renamed("all_reduce", error))
    }

    /// Sends a message of a collective.
    pub(super) fn send_for<B: SendBuf>(
        &self,
        call: CollectiveCall,
        to: usize,
        buf: B,
    ) -> SendOp<B> {
        match self.send_info::<B::Elem>(self.id() + 1, to, call.tag, false) {
            Ok(info) => self.start_send(&info, call.at, buf, |bytes| {
                self.shared().send_at_once(&info, bytes)
            }),
            Err(error) => SendOp::failed(OpError { error, buf }),
        }
    }

    /// Receives like [`recv_for`](Self::recv_for), but only a message as long as the buffer. Another length means that
    /// the sender called another collective.
    pub(super) async fn recv_whole<B: RecvBuf>(
        &self,
        call: CollectiveCall,
        from: usize,
        buf: B,
    ) -> Result<B, OpError<B>> {
        let len = buf.elems().len();
        match self.recv_for(call, from, buf).await {
            Ok((buf, status)) if status.len == len => Ok(buf),
            Ok((buf, _)) => Err(OpError {
                error: self.apart(from),
                buf,
            }),
            Err(failed) => Err(OpError {
                error: match failed.error.kind {
                    ErrorKind::TypeMismatch { .. } | ErrorKind::Truncated { .. } => {
                        self.apart(from)
                    }
                    _ => failed.error,
                },
                buf: failed.buf,
            }),
        }
    }

    /// Returns the error for this rank and `other` calling different collectives.
    fn apart(&self, other: usize) -> Error {
        let (rank, calls) = (self.rank(), None);
        self.error_here("collective", ErrorKind::Mismatch { rank, other, calls })
    }

    /// Receives a message of a collective from one rank.
    pub(super) fn recv_for<B: RecvBuf>(
        &self,
        call: CollectiveCall,
        from: usize,
        buf: B,
    ) -> RecvOp<B> {
        let (from, tag) = (Source::Rank(from), Tag::Is(call.tag));
        match self.recv_info::<B::Elem>(self.id() + 1, from, tag) {
            Ok(info) => self.start_recv(&info, call.at, buf),
            Err(error) => RecvOp::failed(OpError { error, buf }),
        }
    }
}

fn renamed<B>(op: &'static str, error: OpError<B>) -> OpError<B> {
    OpError {
        error: error.error.renamed(op),
        buf: error.buf,
    }
}

/// Reserved words of [`AgreementPlace::barrier`], which no caller passes. `APART`: two ranks passed different words. `GAVE_UP`:
/// a rank will not take part.
const APART: u8 = u8::MAX;
const GAVE_UP: u8 = u8::MAX - 1;

fn as_op<B>(op: &'static str, error: OpError<B>) -> Error {
    renamed(op, error).error
}
