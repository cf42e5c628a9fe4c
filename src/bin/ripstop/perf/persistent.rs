//! Collectives that are planned once and run again and again.

use ripstop::{
    Cart, Comm, Neighborhood, Result,
    collectives::persistent::{BarrierPlan, ExchangePlan, InPlacePlan},
    prelude::*,
};

use super::{
    collective_calls::CollectiveName,
    overlap_activity::{ActivityTimes, OverlapActivity, beside},
};

/// A persistent plan, by the buffers that it has.
pub(super) enum PersistentPlan {
    Barrier(BarrierPlan),
    InPlace(InPlacePlan<f64>),
    Exchange(ExchangePlan<f64>),
}

impl PersistentPlan {
    /// Plans this collective, with blocks of `block` elements. `ring` is for neighborhood collectives.
    pub(super) async fn new(
        world: &Comm,
        ring: Option<&Cart>,
        name: CollectiveName,
        block: usize,
    ) -> Result<Self> {
        let counts = &vec![block; world.size()];
        let ring = || ring.expect("it is made for these");
        let two = &[block; 2];
        Ok(match name {
            CollectiveName::Barrier => Self::Barrier(world.barrier_plan().await?),
            CollectiveName::Bcast => Self::InPlace(world.bcast_plan(0, block).await?),
            CollectiveName::AllReduce => Self::InPlace(world.all_reduce_plan(block, Max).await?),
            CollectiveName::Scan => Self::InPlace(world.scan_plan(block, Max).await?),
            CollectiveName::Gather => Self::Exchange(world.gather_plan(0, block).await?),
            CollectiveName::Scatter => Self::Exchange(world.scatter_plan(0, block).await?),
            CollectiveName::AllGather => Self::Exchange(world.all_gather_plan(block).await?),
            CollectiveName::AllToAll => Self::Exchange(world.all_to_all_plan(block).await?),
            CollectiveName::Reduce => Self::Exchange(world.reduce_plan(0, block, Max).await?),
            CollectiveName::ReduceScatterBlock => {
                Self::Exchange(world.reduce_scatter_block_plan(block, Max).await?)
            }
            CollectiveName::ReduceScatter => {
                Self::Exchange(world.reduce_scatter_plan(counts, Max).await?)
            }
            CollectiveName::Exscan => Self::Exchange(world.exscan_plan(block, Max).await?),
            CollectiveName::GatherV => Self::Exchange(world.gather_v_plan(0, counts).await?),
            CollectiveName::ScatterV => Self::Exchange(world.scatter_v_plan(0, counts).await?),
            CollectiveName::AllGatherV => Self::Exchange(world.all_gather_v_plan(counts).await?),
            CollectiveName::AllToAllV => {
                Self::Exchange(world.all_to_all_v_plan(counts, counts).await?)
            }
            CollectiveName::NeighborAllGather => {
                Self::Exchange(ring().neighbor_all_gather_plan(block).await?)
            }
            CollectiveName::NeighborAllToAll => {
                Self::Exchange(ring().neighbor_all_to_all_plan(block).await?)
            }
            CollectiveName::NeighborAllToAllV => {
                Self::Exchange(ring().neighbor_all_to_all_v_plan(two, two).await?)
            }
            CollectiveName::NeighborAllGatherV => {
                Self::Exchange(ring().neighbor_all_gather_v_plan(block, two).await?)
            }
            CollectiveName::GatherRagged
            | CollectiveName::ScatterRagged
            | CollectiveName::AllGatherRagged
            | CollectiveName::AllToAllRagged => {
                unreachable!("refused where the command line is read")
            }
        })
    }

    /// Runs the plan `times` times: begins each run, does something else, and awaits it. Returns what became of the last run.
    pub(super) async fn repeat(
        &mut self,
        times: u64,
        meanwhile: OverlapActivity,
    ) -> Result<ActivityTimes> {
        let mut passed = ActivityTimes::default();
        macro_rules! run {
            ($plan:expr) => {
                for _ in 0..times {
                    let end;
                    (passed, end) = beside!(meanwhile, $plan.run());
                    end?;
                }
            };
        }
        match self {
            Self::Barrier(plan) => run!(plan),
            Self::InPlace(plan) => run!(plan),
            Self::Exchange(plan) => run!(plan),
        }
        Ok(passed)
    }
}
