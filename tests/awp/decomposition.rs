//! However the box is split, and however the ghosts come: the bits of one rank.

use ripstop::{Comm, Result};

use super::{
    earth,
    wave::{self, Domain, Kind, Layers, Model, Problem, Real, Schedule, TwoSided},
};

/// Boxes with all edges different; the second does not divide evenly by anything.
const BOXES: [[usize; 3]; 2] = [[8, 10, 12], [7, 11, 13]];

const STEPS: usize = 7;

#[ripstop::test(ranks = 2)]
async fn two_ranks_give_the_bits_of_one_whatever_dimension_is_split(world: Comm) -> Result<()> {
    same_bits(&world, &[[2, 1, 1], [1, 2, 1], [1, 1, 2]]).await
}

#[ripstop::test(ranks = 3)]
async fn a_rank_between_two_others_gives_the_bits_of_one(world: Comm) -> Result<()> {
    same_bits(&world, &[[3, 1, 1], [1, 3, 1], [1, 1, 3]]).await
}

async fn same_bits(world: &Comm, grids: &[[usize; 3]]) -> Result<()> {
    for &grid in grids {
        for global in BOXES {
            for periodic in [[false; 3], [true, false, false], [true; 3]] {
                let domain = Domain::part(global, grid, periodic, world.rank()).expect("a part");
                let earth = earth(domain, Model::Layered, Kind::DoubleCouple);
                for schedule in [Schedule::Plain, Schedule::Split] {
                    for layers in [Layers::FULL, Layers::NEEDED] {
                        two_sided::<f32>(world, earth, schedule, &layers).await?;
                    }
                }
            }
        }
    }
    Ok(())
}

async fn two_sided<T: Real>(
    world: &Comm,
    problem: Problem,
    schedule: Schedule,
    layers: &Layers,
) -> Result<()> {
    let mut halos = TwoSided::<T>::halos(world, &problem.domain, layers, true)?;
    let how = (&mut halos, schedule);
    if let Some(deviation) = wave::check(world, problem, how, STEPS).await? {
        panic!("{problem:?}, {schedule:?}, {layers:?}: {deviation}");
    }
    Ok(())
}
