//! Collectives that are planned once and run again and again.

use ripstop::{
    Cart, Comm, Neighborhood, Result,
    collectives::persistent::{BarrierPlan, ExchangePlan, InPlacePlan},
    prelude::*,
};

use super::{
    collective_calls::Name,
    overlap_activity::{Meanwhile, Passed, beside},
};

/// A persistent plan, by the buffers that it has.
pub(super) enum Planned {
    Barrier(BarrierPlan),
    InPlace(InPlacePlan<f64>),
    Exchange(ExchangePlan<f64>),
}

impl Planned {
    /// Plans this collective, with blocks of `block` elements. `ring` is for neighborhood collectives.
    pub(super) async fn new(
        world: &Comm,
        ring: Option<&Cart>,
        name: Name,
        block: usize,
    ) -> Result<Self> {
        let counts = &vec![block; world.size()];
        let ring = || ring.expect("it is made for these");
        let two = &[block; 2];
        Ok(match name {
            Name::Barrier => Self::Barrier(world.barrier_plan().await?),
            Name::Bcast => Self::InPlace(world.bcast_plan(0, block).await?),
            Name::AllReduce => Self::InPlace(world.all_reduce_plan(block, Max).await?),
            Name::Scan => Self::InPlace(world.scan_plan(block, Max).await?),
            Name::Gather => Self::Exchange(world.gather_plan(0, block).await?),
            Name::Scatter => Self::Exchange(world.scatter_plan(0, block).await?),
            Name::AllGather => Self::Exchange(world.all_gather_plan(block).await?),
            Name::AllToAll => Self::Exchange(world.all_to_all_plan(block).await?),
            Name::Reduce => Self::Exchange(world.reduce_plan(0, block, Max).await?),
            Name::ReduceScatterBlock => {
                Self::Exchange(world.reduce_scatter_block_plan(block, Max).await?)
            }
            Name::ReduceScatter => Self::Exchange(world.reduce_scatter_plan(counts, Max).await?),
            Name::Exscan => Self::Exchange(world.exscan_plan(block, Max).await?),
            Name::GatherV => Self::Exchange(world.gather_v_plan(0, counts).await?),
            Name::ScatterV => Self::Exchange(world.scatter_v_plan(0, counts).await?),
            Name::AllGatherV => Self::Exchange(world.all_gather_v_plan(counts).await?),
            Name::AllToAllV => Self::Exchange(world.all_to_all_v_plan(counts, counts).await?),
            Name::NeighborAllGather => {
                Self::Exchange(ring().neighbor_all_gather_plan(block).await?)
            }
            Name::NeighborAllToAll => Self::Exchange(ring().neighbor_all_to_all_plan(block).await?),
            Name::NeighborAllToAllV => {
                Self::Exchange(ring().neighbor_all_to_all_v_plan(two, two).await?)
            }
            Name::NeighborAllGatherV => {
                Self::Exchange(ring().neighbor_all_gather_v_plan(block, two).await?)
            }
            Name::GatherRagged
            | Name::ScatterRagged
            | Name::AllGatherRagged
            | Name::AllToAllRagged => unreachable!("refused where the command line is read"),
        })
    }

    /// Runs the plan `times` times: begins each run, does something else, and awaits it. Returns what became of the last run.
    pub(super) async fn repeat(&mut self, times: u64, meanwhile: Meanwhile) -> Result<Passed> {
        let mut passed = Passed::default();
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
