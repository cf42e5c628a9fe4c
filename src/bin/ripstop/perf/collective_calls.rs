//! The collectives by their names, and calls of them.

use std::mem::take;

use clap::ValueEnum;
use ripstop::{Cart, Comm, Neighborhood, Result, prelude::*};

use super::{
    overlap_activity::{ActivityTimes, OverlapActivity, beside},
    persistent::PersistentPlan,
};

/// The collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum CollectiveName {
    Barrier,
    Bcast,
    Gather,
    Scatter,
    AllGather,
    AllToAll,
    Reduce,
    AllReduce,
    ReduceScatterBlock,
    Scan,
    Exscan,
    /// With counts, which are all the same
    GatherV,
    /// With counts, which are all the same
    ScatterV,
    /// With counts, which are all the same
    AllGatherV,
    /// With counts, which are all the same
    AllToAllV,
    /// With counts, which are all the same
    ReduceScatter,
    /// On a ring of all ranks
    NeighborAllGather,
    /// On a ring of all ranks
    NeighborAllToAll,
    /// On a ring of all ranks, with counts, which are all the same
    NeighborAllGatherV,
    /// On a ring of all ranks, with counts, which are all the same
    NeighborAllToAllV,
    /// Vectors of any lengths, which the ranks exchange first; all ranks but the root make a new vector for each call
    GatherRagged,
    /// Vectors of any lengths, which the ranks learn first; the root copies its vectors for each call
    ScatterRagged,
    /// Vectors of any lengths, which the ranks exchange first
    AllGatherRagged,
    /// Vectors of any lengths, which the ranks exchange first
    AllToAllRagged,
}

impl CollectiveName {
    /// Returns the name on the command line.
    pub(super) fn text(self) -> String {
        let value = self.to_possible_value().expect("no variant is hidden");
        value.get_name().to_owned()
    }

    /// Returns true if the collective can be planned once and run again and again.
    pub(super) const fn has_plan(self) -> bool {
        !self.is_ragged()
    }

    const fn is_ragged(self) -> bool {
        matches!(
            self,
            Self::GatherRagged | Self::ScatterRagged | Self::AllGatherRagged | Self::AllToAllRagged
        )
    }

    const fn is_of_neighbors(self) -> bool {
        matches!(
            self,
            Self::NeighborAllGather
                | Self::NeighborAllToAll
                | Self::NeighborAllGatherV
                | Self::NeighborAllToAllV
        )
    }

    /// Returns the elements to send and to receive.
    const fn lens(self, block: usize, ranks: usize) -> (usize, usize) {
        let many = block * ranks;
        match self {
            Self::Barrier | Self::AllToAllRagged | Self::ScatterRagged => (0, 0),
            Self::Bcast | Self::AllReduce | Self::Scan => (0, block),
            Self::Gather | Self::GatherV | Self::AllGather | Self::AllGatherV => (block, many),
            Self::Scatter | Self::ScatterV => (many, block),
            Self::ReduceScatter | Self::ReduceScatterBlock => (many, block),
            Self::AllToAll | Self::AllToAllV => (many, many),
            Self::NeighborAllGather | Self::NeighborAllGatherV => (block, 2 * block),
            Self::NeighborAllToAll | Self::NeighborAllToAllV => (2 * block, 2 * block),
            Self::Reduce | Self::Exscan => (block, block),
            Self::GatherRagged | Self::AllGatherRagged => (block, 0),
        }
    }
}

/// One collective with its buffers.
pub(super) struct CollectiveCalls<'a> {
    world: &'a Comm,
    /// All ranks on a ring, for neighborhood collectives only, because making it connects ranks.
    ring: Option<Cart>,
    name: CollectiveName,
    /// The length of the block of each rank.
    counts: Vec<usize>,
    send: Vec<f64>,
    recv: Vec<f64>,
    /// A vector for each rank, for collectives that take such.
    rows: Vec<Vec<f64>>,
    block: usize,
    /// The plan that runs instead of calls.
    planned: Option<PersistentPlan>,
}

impl<'a> CollectiveCalls<'a> {
    pub(super) async fn new(world: &'a Comm, name: CollectiveName, block: usize) -> Result<Self> {
        let ranks = world.size();
        let (send, recv) = name.lens(block, ranks);
        let ring = if name.is_of_neighbors() {
            Some(world.cart(&[ranks], &[true]).await?)
        } else {
            None
        };
        let rows = match name {
            CollectiveName::AllToAllRagged => vec![vec![1.0; block]; ranks],
            CollectiveName::ScatterRagged if world.rank() == 0 => vec![vec![1.0; block]; ranks],
            _ => Vec::new(),
        };
        Ok(Self {
            world,
            ring,
            name,
            counts: vec![block; ranks],
            send: vec![1.0; send],
            recv: vec![1.0; recv],
            rows,
            block,
            planned: None,
        })
    }

    /// Plans the collective; later calls run the plan.
    pub(super) async fn plan(&mut self) -> Result<()> {
        let ring = self.ring.as_ref();
        self.planned = Some(PersistentPlan::new(self.world, ring, self.name, self.block).await?);
        Ok(())
    }

    /// Begins a call, does something else, and awaits the call.
    pub(super) async fn call(&mut self, meanwhile: OverlapActivity) -> Result<ActivityTimes> {
        self.repeat(1, meanwhile).await
    }

    /// Makes `times` calls one after the other, at least one, each like [`call`](Self::call). Returns what became of the last
    /// one.
    pub(super) async fn repeat(
        &mut self,
        times: u64,
        meanwhile: OverlapActivity,
    ) -> Result<ActivityTimes> {
        if let Some(planned) = &mut self.planned {
            return planned.repeat(times, meanwhile).await;
        }
        if !self.name.is_ragged() {
            return self.plain(times, meanwhile).await;
        }
        for _ in 1..times {
            self.ragged(meanwhile).await?;
        }
        self.ragged(meanwhile).await
    }

    /// Each collective has a loop of its own, as in an application. Looking up the collective for each call would take longer
    /// than a short call.
    async fn plain(&mut self, times: u64, meanwhile: OverlapActivity) -> Result<ActivityTimes> {
        let Self {
            world,
            block,
            ref ring,
            ref counts,
            ..
        } = *self;
        let (mut send, mut recv) = (take(&mut self.send), take(&mut self.recv));
        let (room, two) = (recv.len(), &[block; 2]);
        let ring = || ring.as_ref().expect("it is made for these");
        let mut passed = ActivityTimes::default();
        macro_rules! each {
            ($op:expr, |$end:ident| $keep:expr) => {
                for _ in 0..times {
                    let $end;
                    (passed, $end) = beside!(meanwhile, $op);
                    $keep;
                }
            };
        }
        macro_rules! both {
            ($op:expr) => {
                each!($op, |end| {
                    (send, recv) = end?;
                    // A vector is cut to what came, and on some ranks nothing comes.
                    recv.resize(room, 1.0);
                })
            };
        }
        macro_rules! one {
            ($op:expr) => {
                each!($op, |end| recv = end?)
            };
        }
        match self.name {
            CollectiveName::Barrier => each!(world.barrier(), |end| end?),
            CollectiveName::Bcast => one!(world.bcast(0, recv)),
            CollectiveName::AllReduce => one!(world.all_reduce(recv, Max)),
            CollectiveName::Scan => one!(world.scan(recv, Max)),
            CollectiveName::Gather => both!(world.gather_into(0, send, recv)),
            CollectiveName::Scatter => both!(world.scatter_into(0, send, recv, block)),
            CollectiveName::AllGather => both!(world.all_gather_into(send, recv)),
            CollectiveName::AllToAll => both!(world.all_to_all_into(send, recv)),
            CollectiveName::Reduce => both!(world.reduce_into(0, send, recv, Max)),
            CollectiveName::ReduceScatterBlock => {
                both!(world.reduce_scatter_block_into(send, recv, Max))
            }
            CollectiveName::ReduceScatter => {
                both!(world.reduce_scatter_into(send, recv, counts, Max))
            }
            CollectiveName::Exscan => both!(world.exscan_into(send, recv, Max)),
            CollectiveName::GatherV => both!(world.gather_v_into(0, send, recv, counts)),
            CollectiveName::ScatterV => both!(world.scatter_v_into(0, send, recv, counts)),
            CollectiveName::AllGatherV => both!(world.all_gather_v_into(send, recv, counts)),
            CollectiveName::AllToAllV => both!(world.all_to_all_v_into(send, counts, recv, counts)),
            CollectiveName::NeighborAllGather => both!(ring().neighbor_all_gather_into(send, recv)),
            CollectiveName::NeighborAllToAll => both!(ring().neighbor_all_to_all_into(send, recv)),
            CollectiveName::NeighborAllToAllV => {
                both!(ring().neighbor_all_to_all_v_into(send, two, recv, two))
            }
            CollectiveName::NeighborAllGatherV => {
                both!(ring().neighbor_all_gather_v_into(send, recv, two))
            }
            _ => unreachable!("ragged collectives have calls of their own"),
        }
        (self.send, self.recv) = (send, recv);
        Ok(passed)
    }

    /// Calls a collective of vectors of any lengths. The received vectors are sent next time; they have the same lengths.
    async fn ragged(&mut self, meanwhile: OverlapActivity) -> Result<ActivityTimes> {
        let Self { world, block, .. } = *self;
        let send = take(&mut self.send);
        Ok(match self.name {
            CollectiveName::AllToAllRagged => {
                let rows = take(&mut self.rows);
                let (passed, end) = beside!(meanwhile, world.all_to_all_ragged(rows));
                self.rows = end?;
                passed
            }
            CollectiveName::ScatterRagged => {
                // The call takes the vectors, so sending the same again needs a copy.
                let next = self.rows.clone();
                let rows = std::mem::replace(&mut self.rows, next);
                let (passed, end) = beside!(meanwhile, world.scatter_ragged(0, rows));
                end?;
                passed
            }
            CollectiveName::AllGatherRagged => {
                let (passed, end) = beside!(meanwhile, world.all_gather_ragged(send));
                self.send = end?.swap_remove(world.rank());
                passed
            }
            _ => {
                let (passed, end) = beside!(meanwhile, world.gather_ragged(0, send));
                let rows = end?;
                self.send = rows.map_or_else(|| vec![1.0; block], |mut rows| rows.swap_remove(0));
                passed
            }
        })
    }
}
