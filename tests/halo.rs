//! The halo example at small sizes: the bits of one rank and the exact decay, on many grids.

#[path = "../examples/halo/heat/mod.rs"]
mod heat;
#[path = "../examples/halo/options.rs"]
mod options;

use ripstop::{Comm, Result};

use heat::{HaloMode, HeatDomain, HeatExchange, HeatSolver};
use options::{HELP, HaloOptions};

/// Boxes with all edges different; the second is divisible by none of the numbers of ranks.
const BOXES: [[usize; 3]; 2] = [[8, 12, 16], [11, 13, 17]];

/// Steps: enough for both directions of the sweep, and for a wrong ghost to travel.
const STEPS: usize = 9;

#[ripstop::test(ranks = 1)]
async fn one_rank_decays_as_the_sine_mode_does(world: Comm) -> Result<()> {
    decays_exactly(&world, [1, 1, 1]).await
}

#[ripstop::test(ranks = 4)]
async fn four_ranks_decay_as_the_sine_mode_does(world: Comm) -> Result<()> {
    decays_exactly(&world, [1, 2, 2]).await
}

#[ripstop::test(ranks = 2)]
async fn two_ranks_give_the_bits_of_one_whatever_dimension_is_split(world: Comm) -> Result<()> {
    same_bits_as_one_rank(&world, &[[2, 1, 1], [1, 2, 1], [1, 1, 2]]).await
}

#[ripstop::test(ranks = 3)]
async fn a_rank_between_two_others_gives_the_bits_of_one(world: Comm) -> Result<()> {
    same_bits_as_one_rank(&world, &[[3, 1, 1], [1, 3, 1], [1, 1, 3]]).await
}

#[ripstop::test(ranks = 4)]
async fn four_ranks_give_the_bits_of_one_on_every_grid(world: Comm) -> Result<()> {
    same_bits_as_one_rank(&world, &[[4, 1, 1], [2, 2, 1], [1, 2, 2], [2, 1, 2]]).await
}

#[ripstop::test(ranks = 8)]
async fn eight_ranks_give_the_bits_of_one(world: Comm) -> Result<()> {
    same_bits_as_one_rank(&world, &[[2, 2, 2]]).await
}

#[ripstop::test(ranks = 4, process)]
async fn ranks_as_processes_give_the_bits_of_one(world: Comm) -> Result<()> {
    same_bits_as_one_rank(&world, &[[2, 2, 1]]).await
}

/// Faces of 32 KiB, which go by rendezvous.
#[ripstop::test(ranks = 2, process)]
async fn faces_that_are_too_long_to_be_sent_at_once_give_the_bits_of_one(
    world: Comm,
) -> Result<()> {
    let cart = world.cart(&[1, 2, 1], &[false; 3]).await?;
    let domain = part([64, 8, 64], [1, 2, 1], world.rank());
    let difference = heat::check(&cart, domain, HaloMode::Overlap, 4).await?;
    assert!(
        difference.is_none(),
        "{}",
        difference.map_or_else(String::new, |difference| difference.to_string())
    );
    Ok(())
}

#[test]
fn a_box_with_fewer_than_two_cells_for_a_rank_is_refused_by_name() {
    let error = HeatDomain::part([8, 5, 8], [1, 3, 1], 0).unwrap_err();
    assert!(
        error.contains("5 cells in y") && error.contains("at least 6"),
        "{error}"
    );
}

/// `None` asks for help.
fn parse(line: &str) -> std::result::Result<Option<HaloOptions>, String> {
    HaloOptions::parse(line.split_whitespace().map(str::to_owned), 2)
}

#[test]
fn all_arguments_are_understood_and_in_the_help() {
    let line = "--global 16x10x12 --grid 2x1x1 --steps 7 --mode overlap --check --json";
    let options = parse(line)
        .expect("good arguments")
        .expect("no help was asked for");
    let expected = HaloOptions {
        global: [12, 10, 16],
        grid: [1, 1, 2],
        n: None,
        steps: 7,
        modes: vec![HaloMode::Overlap],
        check: true,
        json: true,
    };
    assert_eq!(options, expected);
    let (rank, whole) = (10 * 12 * 14, 18 * 12 * 14);
    assert_eq!(options.bytes(1, true), 2 * 8 * (rank + whole));
    assert_eq!(options.bytes(3, false), 2 * 8 * 3 * rank);
    let names = line
        .split_whitespace()
        .filter(|word| word.starts_with("--"));
    names.for_each(|name| assert!(HELP.contains(name), "{name} is not in the help"));
    let checks = |line| parse(line).expect("good arguments").expect("no help").check;
    assert!(checks("--n 999 --check") && !checks("--n 8 --no-check"));
    assert!(checks("--no-check --check") && !checks("--check --no-check"));
    assert_eq!(parse("--n 8 --help"), Ok(None));
}

#[test]
fn a_bad_argument_is_named_and_what_to_do_is_said() {
    for (line, named) in [
        ("--n 1", "--n 1: give a whole number of at least 2"),
        ("--n 9999999999999999999", "take fewer cells"),
        ("--n 99999", "take fewer cells"),
        (
            "--steps 0",
            "--steps 0: give a whole number from 1 to 10000000",
        ),
        ("--steps 18446744073709551615", "from 1 to 10000000"),
        ("--grid 2x2x1", "take for example 1x1x2"),
    ] {
        let error = parse(line).expect_err("refused");
        assert!(error.contains(named), "{line}: {error}");
    }
}

#[test]
fn parts_are_at_most_one_cell_apart_and_fill_the_box() {
    let (global, grid) = ([7, 11, 9], [3, 2, 4]);
    let parts = (0..24).map(|rank| part(global, grid, rank).cells);
    let sizes: Vec<usize> = parts
        .inspect(|cells| assert!((0..3).all(|dim| cells[dim] - global[dim] / grid[dim] < 2)))
        .map(|cells| cells.iter().product())
        .collect();
    assert_eq!(sizes.iter().sum::<usize>(), 7 * 11 * 9);
}

/// More ranks than most machines have cores, and neighbors that run ahead by a step.
#[ripstop::test(ranks = 6, process)]
async fn six_processes_decay_as_the_sine_mode_does(world: Comm) -> Result<()> {
    decays_exactly(&world, [1, 2, 3]).await
}

async fn decays_exactly(world: &Comm, grid: [usize; 3]) -> Result<()> {
    let cart = world.cart(&grid, &[false; 3]).await?;
    for (global, mode) in cases() {
        let domain = part(global, grid, world.rank());
        let exchange = HeatExchange::new(&cart, domain.cells).await?;
        let mut heat = HeatSolver::new(domain, mode, exchange).await?;
        for _ in 0..50 {
            let lap @ [computing, packing, waiting] = heat.step().await?;
            assert!(
                computing > 0.0 && packing >= 0.0 && waiting >= 0.0,
                "{lap:?}"
            );
        }
        let (error, tolerance) = heat.error();
        assert!(
            error <= tolerance,
            "{global:?} on {grid:?}, {mode:?}: error {error:e}, allowed {tolerance:e}"
        );
    }
    Ok(())
}

async fn same_bits_as_one_rank(world: &Comm, grids: &[[usize; 3]]) -> Result<()> {
    for grid in grids {
        let cart = world.cart(grid, &[false; 3]).await?;
        for (global, mode) in cases() {
            let domain = part(global, *grid, world.rank());
            if let Some(difference) = heat::check(&cart, domain, mode, STEPS).await? {
                panic!("{global:?} on {grid:?}, {mode:?}: {difference}");
            }
        }
    }
    Ok(())
}

fn cases() -> impl Iterator<Item = ([usize; 3], HaloMode)> {
    BOXES
        .into_iter()
        .flat_map(|cells| [(cells, HaloMode::Blocking), (cells, HaloMode::Overlap)])
}

fn part(global: [usize; 3], grid: [usize; 3], rank: usize) -> HeatDomain {
    HeatDomain::part(global, grid, rank).expect("boxes large enough for their grids")
}
