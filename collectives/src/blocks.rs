//! A stream of the blocks of an all-to-all, in the order in which they land.

use std::{
    fmt,
    future::poll_fn,
    iter,
    ops::Range,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use ripstop_rt::{
    OpError, Result,
    buffer::SendBuf,
    internal::offload::{CollectiveProgram, CommRank, ProgramBuffer, StepAction},
};

use crate::op::{CollectiveOp, NewVec, ReturnBuffers};

/// Completes an all-to-all with a new vector, whose blocks can be had [one by one](CollectiveOp::blocks).
#[derive(Clone, Debug)]
pub struct ByBlocks {
    /// `None` if the call was refused.
    pub(crate) source: Option<BlockSource>,
}

/// Where the blocks of the ranks are in the result.
#[derive(Clone, Debug)]
pub(crate) enum BlockSource {
    /// The result is this rank's own block, of this many bytes.
    Alone(usize),
    /// This rank's program says it.
    Program(usize, Arc<CollectiveProgram>),
}

/// The future of an all-to-all whose result is a new vector.
pub type AllToAllOp<S> = CollectiveOp<S, Vec<<S as SendBuf>::Elem>, ByBlocks>;

/// The rank that a block came from, and its elements.
pub type Block<S> = (usize, Vec<<S as SendBuf>::Elem>);

/// The blocks of an all-to-all, each with the rank that it came from, as they land. Made by [`CollectiveOp::blocks`].
///
/// Each rank's block comes once, this rank's own block too. No block comes after an error. Dropping the stream detaches the
/// collective, which still completes.
#[must_use = "a stream does nothing until it is polled"]
pub struct Blocks<S: SendBuf> {
    op: AllToAllOp<S>,
    layout: MissingBlocks,
    /// The whole result, once the collective has completed.
    whole: Option<Vec<S::Elem>>,
    ended: bool,
}

/// The blocks that have not come yet, as byte ranges of the result, by rank.
struct MissingBlocks {
    missing: Vec<Option<Range<usize>>>,
    /// True if each message is one rank's block.
    direct: bool,
}

impl<S: SendBuf> AllToAllOp<S> {
    /// Turns the future into a stream of blocks, so that work on one block can begin while others travel.
    ///
    /// Algorithms that pack the blocks of several ranks into one message give all blocks at the end. Name `pairwise` or `xor`
    /// if short blocks are wanted early.
    ///
    /// An adapter that runs task lists counts blocks one by one only if that was requested when the lists began, which is
    /// before this method is called. The first call from each line of the program requests it. Later calls from the line
    /// request it if the blocks of any of its calls were asked for. So if one line calls `all_to_all` for many callers, and
    /// most of them want no blocks, the first caller that wants blocks may get them at the end, and all later calls as they
    /// land. With more than 64 other ranks (or half of what the adapter's lists hold, if that is less), some blocks share a
    /// counter and come together.
    ///
    /// ```
    /// # use ripstop_collectives::Collectives;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let rows = vec![world.rank() as f64; 3 * 100]; // 100 elements for each rank
    /// let mut blocks = world.all_to_all(rows).blocks();
    /// let mut sum = 0.0;
    /// while let Some(block) = blocks.next().await {
    ///     let (from, block) = block?; // in the order in which they land
    ///     assert!(block.iter().all(|element| *element == from as f64));
    ///     sum += block[0];
    /// }
    /// assert_eq!(sum, 3.0);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    pub fn blocks(mut self) -> Blocks<S> {
        self.run.record_block_events();
        let source = self.home.as_ref().and_then(|home| home.source.as_ref());
        let layout = match source {
            None => MissingBlocks::none(),
            Some(BlockSource::Alone(bytes)) => MissingBlocks::alone(*bytes),
            Some(BlockSource::Program(rank, program)) => MissingBlocks::of(*rank, program),
        };
        Blocks {
            op: self,
            layout,
            whole: None,
            ended: false,
        }
    }
}

impl<S: SendBuf> Blocks<S> {
    /// Returns the next block, as `StreamExt::next` of other crates would.
    ///
    /// # Errors
    /// Returns the errors of the collective.
    pub async fn next(&mut self) -> Option<Result<Block<S>>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Polls for a block that has landed, or for the end of the collective.
    fn poll_landed(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Block<S>>>> {
        while let Some((CommRank(rank), block)) = ready!(self.op.run.poll_block_event(cx)) {
            if self.layout.has_come(rank) {
                return Poll::Ready(Ok(Some((rank, block))));
            }
        }
        let outcome = ready!(Pin::new(&mut self.op).poll(cx));
        self.ended = true;
        self.whole = Some(outcome?);
        Poll::Ready(Ok(None))
    }

    /// Returns a block that was not reported before the end.
    fn next_of_whole(&mut self) -> Option<Block<S>> {
        let whole = self.whole.as_ref()?;
        let (rank, range) = self.layout.take_next()?;
        let elem = size_of::<S::Elem>();
        Some((rank, whole[range.start / elem..range.end / elem].to_vec()))
    }
}

impl<S: SendBuf> Stream for Blocks<S> {
    type Item = Result<Block<S>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if !self.ended
            && let Some(block) = ready!(self.poll_landed(cx)).transpose()
        {
            return Poll::Ready(Some(block));
        }
        Poll::Ready(self.next_of_whole().map(Ok))
    }
}

// No field is pinned.
impl<S: SendBuf> Unpin for Blocks<S> {}

impl MissingBlocks {
    const fn none() -> Self {
        Self {
            missing: Vec::new(),
            direct: false,
        }
    }

    /// Returns the layout of a result of this many bytes, which is one block.
    fn alone(bytes: usize) -> Self {
        let missing = iter::once(Some(0..bytes)).collect();
        let direct = false;
        Self { missing, direct }
    }

    fn of(rank: usize, program: &CollectiveProgram) -> Self {
        let (size, whole) = (program.ranks(), program.lens().output);
        let even = |rank: usize| Some(rank * (whole / size)..(rank + 1) * (whole / size));
        Self::direct(rank, program).unwrap_or_else(|| Self {
            missing: (0..size).map(even).collect(),
            direct: false,
        })
    }

    /// Returns the layout of a program in which each rank's block is one message that lands in its final place.
    fn direct(rank: usize, program: &CollectiveProgram) -> Option<Self> {
        let mut missing = vec![None; program.ranks()];
        missing[rank] = Some(0..0);
        for action in program.actions() {
            let (from, into) = match *action {
                StepAction::Recv { from, into } => (from.0, into),
                StepAction::Copy { into, .. } => (rank, into),
                _ => continue,
            };
            let is_first = missing[from].is_none() || from == rank;
            if into.len > 0 && into.buffer != ProgramBuffer::Output || !is_first {
                return None;
            }
            missing[from] = Some(into.start..into.start + into.len);
        }
        let direct = missing.iter().all(Option::is_some);
        direct.then_some(Self { missing, direct })
    }

    /// Returns true if this message of the rank is its block.
    fn has_come(&mut self, rank: usize) -> bool {
        self.direct && self.missing[rank].take().is_some()
    }

    fn take_next(&mut self) -> Option<(usize, Range<usize>)> {
        let rank = self.missing.iter().position(Option::is_some)?;
        Some((rank, self.missing[rank].take()?))
    }
}

impl<I, O> ReturnBuffers<I, O> for ByBlocks {
    type Done = O;
    type Failure = OpError<I>;

    fn done(self, input: I, output: O) -> O {
        NewVec.done(input, output)
    }

    fn failed(self, failure: OpError<(I, O)>) -> OpError<I> {
        NewVec.failed(failure)
    }
}

impl<S: SendBuf> fmt::Debug for Blocks<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.layout.missing.iter().flatten().count();
        f.debug_struct("Blocks").field("left", &left).finish()
    }
}
