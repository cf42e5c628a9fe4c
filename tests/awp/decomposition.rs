//! The bits of one rank, for every split of the box and every way to exchange ghosts.

use ripstop::{Comm, Result};

use super::{
    earth,
    given::given,
    mode::Mode,
    wave::{self, Domain, Fenced, Kind, Layers, Model, Posted, Problem, Real, TwoSided},
};

/// Boxes with all edges different, the second divisible by none of the numbers of ranks; the dimensions that wrap around; and
/// the source.
const CASES: [([usize; 3], [bool; 3], Kind); 3] = [
    ([8, 6, 10], [false; 3], Kind::DoubleCouple),
    ([7, 11, 9], [true, false, false], Kind::Explosion),
    ([6, 7, 8], [true; 3], Kind::Explosion),
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
async fn same_bits<T: Real>(world: &Comm, grids: &[[usize; 3]]) -> Result<()> {
    let cases = usize::try_from(given("CASES", u64::MAX)).expect("64 bits");
    for &grid in grids {
        for (global, periodic, kind) in CASES.into_iter().take(cases) {
            let domain = Domain::part(global, grid, periodic, world.rank()).expect("large enough");
            let problem = earth(domain, Model::Layered, kind);
            for mode in Mode::ALL {
                check::<T>(world, problem, mode, mode.layers(false)).await?;
            }
            check::<T>(world, problem, Mode::TwoSided, Layers::NEEDED).await?;
        }
    }
    Ok(())
}

async fn check<T: Real>(world: &Comm, problem: Problem, mode: Mode, layers: Layers) -> Result<()> {
    let (domain, schedule) = (&problem.domain, mode.schedule());
    let deviation = match mode {
        Mode::TwoSided | Mode::TwoSidedSplit => {
            let halos = TwoSided::<T>::halos(world, domain, &layers, true)?;
            wave::check(world, problem, halos, schedule, STEPS).await?
        }
        Mode::Fence => {
            let halos = Fenced::<T>::halos(world, domain, &layers, true).await?;
            wave::check(world, problem, halos, schedule, STEPS).await?
        }
        Mode::Pscw | Mode::PscwSplit | Mode::PscwNeeded => {
            let halos = Posted::<T>::halos(world, domain, &layers, true).await?;
            wave::check(world, problem, halos, schedule, STEPS).await?
        }
    };
    if let Some(deviation) = deviation {
        panic!("{problem:?}, {mode:?}, {layers:?}: {deviation}");
    }
    Ok(())
}
