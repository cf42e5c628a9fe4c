//! A 3-D Fourier transform on a grid of ranks, with its transposes hidden behind the computation.
//!
//!     ripstop run -n 4 --example p3dfft -- --n 128 --vars 4
//!     ripstop run -n 4 --example p3dfft -- --help

#[path = "../common/agree.rs"]
mod agree;
#[path = "../common/asked.rs"]
mod asked;
mod fft;
#[path = "../common/files.rs"]
mod files;
#[path = "../common/memory.rs"]
mod memory;
mod options;
mod picture;
#[path = "../common/png.rs"]
mod png;
mod report;

use std::{env, error::Error};

use num_complex::Complex;
use ripstop::{Collectives, Comm, Max};

use fft::{
    FftReal, FftSetup, PencilFft, PencilGrid, TransposeMode,
    check::{EPSILONS_MAX, round_trip},
    samples::{SineField, noise},
};
use options::{FftOptions, FftPrecision, HELP};
use report::FftFigures;

type FftResult<T, E = Box<dyn Error>> = Result<T, E>;

#[ripstop::main]
async fn main(world: Comm) -> FftResult<()> {
    let Some((options, grid)) = asked::asked(&world, prepare(&world), HELP)? else {
        return Ok(());
    };
    if !agree::agreed(&world, |node| fits(&world, node, &options)).await? {
        return Ok(());
    }
    match options.precision {
        FftPrecision::Single => run::<f32>(&world, &options, &grid).await,
        FftPrecision::Double => run::<f64>(&world, &options, &grid).await,
    }
}

fn prepare(world: &Comm) -> FftResult<Option<(FftOptions, PencilGrid)>, String> {
    let Some(options) = FftOptions::parse(env::args().skip(1), world.size())? else {
        return Ok(None);
    };
    let grid = PencilGrid::new(options.points, options.grid, world.rank(), options.chunks)?;
    Ok(Some((options, grid)))
}

/// Checks that this machine can run the problem.
fn fits(world: &Comm, node: &Comm, options: &FftOptions) -> FftResult<(), String> {
    let [x, y, z] = options.points;
    let what = format!("--n {x}x{y}x{z} --vars {}", options.vars);
    let bytes = options.bytes(world.size()).saturating_mul(node.size());
    memory::check(&what, bytes, node.size())?;
    // The machine of the rank that writes is the one that matters.
    if world.rank() == 0
        && let Some(file) = &options.png
    {
        files::check("--png", file)?;
    }
    Ok(())
}

async fn run<T: FftReal>(world: &Comm, options: &FftOptions, grid: &PencilGrid) -> FftResult<()> {
    if world.rank() == 0 {
        report::print_head(options, world.size());
    }
    for &mode in &options.modes {
        // A rank that waits at once has nothing to compute meanwhile, so smaller pieces would gain nothing.
        let chunks = if mode == TransposeMode::Blocking {
            1
        } else {
            grid.chunks
        };
        let grid = PencilGrid {
            chunks,
            ..grid.clone()
        };
        let setup = FftSetup {
            grid,
            vars: options.vars,
            mode,
            tests: options.tests,
            poison: false,
        };
        if options.check {
            check::<T>(world, options, &setup).await?;
        }
        time::<T>(world, options, setup).await?;
    }
    match &options.png {
        Some(file) => picture::draw(world, grid, file).await,
        None => Ok(()),
    }
}

async fn check<T: FftReal>(world: &Comm, options: &FftOptions, setup: &FftSetup) -> FftResult<()> {
    let errors = fft::check::check::<T>(world, setup, true).await?;
    if let Some(complaint) = errors.complaint() {
        return Err(complaint.into());
    }
    if world.rank() == 0 {
        report::print_checked(options, setup.mode, &errors);
    }
    Ok(())
}

async fn time<T: FftReal>(world: &Comm, options: &FftOptions, setup: FftSetup) -> FftResult<()> {
    let (grid, mode) = (setup.grid.clone(), setup.mode);
    let points = T::of(grid.points.iter().product::<usize>() as f64);
    let start = |var| {
        SineField::of(&grid, var).map_or_else(|| noise(&grid, var), |sine| sine.field::<T>(&grid))
    };
    let mut fields: Vec<Vec<T>> = (0..options.vars).map(start).collect();
    let mut spectra = vec![vec![Complex::default(); grid.spectrum_len()]; options.vars];
    let mut transform = PencilFft::new(world, setup).await?;
    let bar = report::bar(options, world.rank(), mode);
    let mut laps = Vec::with_capacity(options.iters);
    let mut error = 0.0;
    for round in 0..WARM_UP + options.iters {
        world.barrier().await?;
        let there = transform.forward(&fields, &mut spectra).await?;
        let back = transform.backward(&spectra, &mut fields).await?;
        fields
            .iter_mut()
            .flatten()
            .for_each(|value| *value = *value / points);
        if round == 0 {
            let before: Vec<Vec<T>> = (0..options.vars).map(start).collect();
            error = round_trip(&before, &fields);
        }
        if round >= WARM_UP {
            laps.push([there, back]);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let [error] = world.all_reduce([error], Max).await?;
    let figures = FftFigures::gather(world, &laps, error).await?;
    if error > EPSILONS_MAX {
        return Err(format!(
            "there and back changes a field by {error:.1} ε, but rounding explains at most {EPSILONS_MAX}"
        )
        .into());
    }
    if world.rank() == 0 {
        report::print(options, world.size(), &grid, mode, &figures);
    }
    Ok(())
}

/// Rounds that are not counted, in which memory is touched for the first time and connections are made.
const WARM_UP: usize = 2;
