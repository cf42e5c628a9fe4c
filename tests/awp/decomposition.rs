//! The bits of one rank, for every split of the box and every way to exchange ghosts.

use ripstop::{Comm, Result};

use super::{
    earth,
    given::given,
    mode::AwpMode,
    wave::{
        self, AwpDomain, ExchangedLayers, FenceExchange, PscwExchange, RockModel, SourceMechanism,
        TwoSidedExchange, WaveProblem, WaveReal,
    },
};

/// Boxes with all edges different, the second divisible by none of the numbers of ranks; the dimensions that wrap around; and
/// the source.
const CASES: [([usize; 3], [bool; 3], SourceMechanism); 3] = [
    ([8, 6, 10], [false; 3], SourceMechanism::DoubleCouple),
    ([7, 11, 9], [true, false, false], SourceMechanism::Explosion),
    ([6, 7, 8], [true; 3], SourceMechanism::Explosion),
];

/// Steps: enough for a wrong ghost to travel, and for windows to be used again.
const STEPS: usize = 4;

#[ripstop::test(ranks = 1)]
async fn messages_and_puts_to_oneself_give_the_bits_of_copies(world: Comm) -> Result<()> {
    same_bits::<f32>(&world, &[[1, 1, 1]]).await
}

#[ripstop::test(ranks = 2)]
async fn two_ranks_give_the_bits_of_one_whatever_dimension_is_split(world: Comm) -> Result<()> {
    same_bits::<f32>(&world, &[[2, 1, 1], [1, 2, 1], [1, 1, 2]]).await
}

#[ripstop::test(ranks = 3)]
async fn a_rank_between_two_others_gives_the_bits_of_one(world: Comm) -> Result<()> {
    same_bits::<f64>(&world, &[[3, 1, 1], [1, 3, 1], [1, 1, 3]]).await
}

#[ripstop::test(ranks = 4)]
async fn four_ranks_give_the_bits_of_one_on_every_grid(world: Comm) -> Result<()> {
    same_bits::<f32>(&world, &[[2, 2, 1], [1, 2, 2], [2, 1, 2]]).await
}

#[ripstop::test(ranks = 8)]
async fn eight_ranks_give_the_bits_of_one(world: Comm) -> Result<()> {
    same_bits::<f64>(&world, &[[2, 2, 2]]).await
}

#[ripstop::test(ranks = 4, process)]
async fn ranks_as_processes_give_the_bits_of_one(world: Comm) -> Result<()> {
    same_bits::<f32>(&world, &[[2, 1, 2]]).await
}

/// Every mode, on boxes of which one wraps around only in x.
async fn same_bits<T: WaveReal>(world: &Comm, grids: &[[usize; 3]]) -> Result<()> {
    let cases = usize::try_from(given("CASES", u64::MAX)).expect("64 bits");
    for &grid in grids {
        for (global, periodic, kind) in CASES.into_iter().take(cases) {
            let domain =
                AwpDomain::part(global, grid, periodic, world.rank()).expect("large enough");
            let problem = earth(domain, RockModel::Layered, kind);
            for mode in AwpMode::ALL {
                check::<T>(world, problem, mode, mode.layers(false)).await?;
            }
            check::<T>(world, problem, AwpMode::TwoSided, ExchangedLayers::NEEDED).await?;
        }
    }
    Ok(())
}

async fn check<T: WaveReal>(
    world: &Comm,
    problem: WaveProblem,
    mode: AwpMode,
    layers: ExchangedLayers,
) -> Result<()> {
    let (domain, schedule) = (&problem.domain, mode.schedule());
    let deviation = match mode {
        AwpMode::TwoSided | AwpMode::TwoSidedSplit => {
            let halos = TwoSidedExchange::<T>::halos(world, domain, &layers, true)?;
            wave::check(world, problem, halos, schedule, STEPS).await?
        }
        AwpMode::Fence => {
            let halos = FenceExchange::<T>::halos(world, domain, &layers, true).await?;
            wave::check(world, problem, halos, schedule, STEPS).await?
        }
        AwpMode::Pscw | AwpMode::PscwSplit | AwpMode::PscwNeeded => {
            let halos = PscwExchange::<T>::halos(world, domain, &layers, true).await?;
            wave::check(world, problem, halos, schedule, STEPS).await?
        }
    };
    if let Some(deviation) = deviation {
        panic!("{problem:?}, {mode:?}, {layers:?}: {deviation}");
    }
    Ok(())
}
