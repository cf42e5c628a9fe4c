//! Simple collectives over messages: they move on when they are polled.

use super::{Comm, ReduceOp, Source, Tag};
use crate::{
    buffer::RecvBuf,
    error::{Error, OpError, Result},
};

/// Collectives of one communicator must be called in the same order by all its ranks, in whatever order they are awaited;
/// several may be in flight.
impl Comm {
    /// Waits until every rank has called it. ⌈log₂ size⌉ rounds of one short message each (dissemination; Hensgen, Finkel,
    /// Manber 1988).
    ///
    /// # Errors
    /// A member failed or finished.
    pub fn barrier(&self) -> impl Future<Output = Result<()>> + Send {
        let tag = self.next_collective();
        self.barrier_with(tag)
    }

    async fn barrier_with(&self, tag: u32) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let mut distance = 1;
        while distance < size {
            let sent = self.send_on(
                self.id() + 1,
                (rank + distance) % size,
                tag,
                [0_u8; 1],
                false,
            );
            let from = Source::Rank((rank + size - distance) % size);
            self.recv_on(self.id() + 1, from, Tag::Is(tag), [0_u8; 1])
                .await
                .map_err(|error| as_op("barrier", error))?;
            sent.await.map_err(|error| as_op("barrier", error))?;
            distance *= 2;
        }
        Ok(())
    }

    /// Sends `root`'s elements to everybody, along a binomial tree. All buffers have room for as many elements as `root`'s
    /// holds.
    ///
    /// # Errors
    /// `root` out of range, a member failed or finished, a buffer that is too short. The buffer comes back.
    pub fn bcast<B: RecvBuf>(
        &self,
        root: usize,
        buf: B,
    ) -> impl Future<Output = Result<B, OpError<B>>> + Send {
        let tag = self.next_collective();
        self.bcast_with(tag, root, buf)
    }

    pub(super) async fn bcast_with<B: RecvBuf>(
        &self,
        tag: u32,
        root: usize,
        mut buf: B,
    ) -> Result<B, OpError<B>> {
        if let Err(error) = self.peer("bcast", "root", root) {
            return Err(OpError { error, buf });
        }
        let size = self.size();
        let place = (self.rank() + size - root) % size;
        let at = |place: usize| (place + root) % size;
        // The lowest set bit of a place is its distance to its parent; the root's is beyond the size.
        let mut bit = 1;
        while bit < size && place & bit == 0 {
            bit *= 2;
        }
        if bit < size {
            let parent = Source::Rank(at(place - bit));
            (buf, _) = self
                .recv_on(self.id() + 1, parent, Tag::Is(tag), buf)
                .await
                .map_err(|error| renamed("bcast", error))?;
        }
        while bit > 1 {
            bit /= 2;
            if place + bit < size {
                buf = self
                    .send_on(self.id() + 1, at(place + bit), tag, buf, false)
                    .await
                    .map_err(|error| renamed("bcast", error))?;
            }
        }
        Ok(buf)
    }

    /// Combines the elements of all ranks, element by element and in the order of the ranks, and gives everybody the result
    /// in place: a binomial tree to rank 0 and back. The bits of the result are the same on all ranks.
    ///
    /// # Errors
    /// A member failed or finished, buffers of different lengths. The buffer comes back.
    pub fn all_reduce<B: RecvBuf>(
        &self,
        buf: B,
        op: impl ReduceOp<B::Elem>,
    ) -> impl Future<Output = Result<B, OpError<B>>> + Send {
        let tag = self.next_collective();
        self.all_reduce_with(tag, buf, op)
    }

    pub(super) async fn all_reduce_with<B: RecvBuf>(
        &self,
        tag: u32,
        buf: B,
        op: impl ReduceOp<B::Elem>,
    ) -> Result<B, OpError<B>> {
        match self.reduce_to_first(tag, buf.elems().to_vec(), op).await {
            Ok(mine) => self.spread_from_first(tag, buf, mine).await,
            Err(error) => Err(OpError { error, buf }),
        }
    }

    /// The partial result of this rank's subtree, on its way to rank 0.
    async fn reduce_to_first<T: crate::buffer::Wire>(
        &self,
        tag: u32,
        mut mine: Vec<T>,
        op: impl ReduceOp<T>,
    ) -> Result<Vec<T>> {
        let (rank, size) = (self.rank(), self.size());
        let mut bit = 1;
        while bit < size {
            if rank & bit != 0 {
                let sent = self.send_on(self.id() + 1, rank - bit, tag, mine, false);
                return sent.await.map_err(|error| as_op("all_reduce", error));
            }
            if rank + bit < size {
                let theirs = vec![T::zeroed(); mine.len()];
                let from = Source::Rank(rank + bit);
                let (theirs, status) = self
                    .recv_on(self.id() + 1, from, Tag::Is(tag), theirs)
                    .await
                    .map_err(|error| as_op("all_reduce", error))?;
                if status.len != mine.len() {
                    let sentence = format!(
                        "`buf` has {} elements here and {} on rank {}",
                        mine.len(),
                        status.len,
                        rank + bit
                    );
                    return Err(Error::argument("all_reduce", sentence));
                }
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
        tag: u32,
        mut buf: B,
        result: Vec<B::Elem>,
    ) -> Result<B, OpError<B>> {
        if self.rank() == 0 {
            crate::buffer::overwrite(&mut buf, &result);
        }
        self.bcast_with(tag, 0, buf)
            .await
            .map_err(|error| renamed("all_reduce", error))
    }
}

fn renamed<B>(op: &'static str, error: OpError<B>) -> OpError<B> {
    OpError {
        error: error.error.renamed(op),
        buf: error.buf,
    }
}

fn as_op<B>(op: &'static str, error: OpError<B>) -> Error {
    renamed(op, error).error
}
