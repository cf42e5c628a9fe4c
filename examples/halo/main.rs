//! A 3-D heat equation on a grid of ranks, with the exchange of faces hidden behind the computation.
//!
//!     ripstop run -n 4 --example halo
//!     ripstop run -n 4 --example halo -- --help

#[path = "../common/agree.rs"]
mod agree;
#[path = "../common/asked.rs"]
mod asked;
mod heat;
#[path = "../common/memory.rs"]
mod memory;
mod options;
mod report;

use std::{env, error::Error};

use ripstop::{Cart, Collectives, Comm};

use heat::{HaloMode, HeatDomain, HeatExchange, HeatSolver};
use options::{HELP, HaloOptions, format_size};
use report::HaloFigures;

type HaloResult<T, E = Box<dyn Error>> = Result<T, E>;

#[ripstop::main]
async fn main(world: Comm) -> HaloResult<()> {
    let Some((options, domain)) = asked::asked(&world, prepare(&world), HELP)? else {
        return Ok(());
    };
    let fits = |node: &Comm| {
        let what = format!("a box of {} cells", format_size(options.global));
        let bytes = options.bytes(node.size(), world.rank() == 0);
        memory::check(&what, bytes, node.size())
    };
    if !agree::agreed(&world, fits).await? {
        return Ok(());
    }
    run(&world, &options, domain).await
}

fn prepare(world: &Comm) -> HaloResult<Option<(HaloOptions, HeatDomain)>, String> {
    let Some(options) = HaloOptions::parse(env::args().skip(1), world.size())? else {
        return Ok(None);
    };
    let domain = HeatDomain::part(options.global, options.grid, world.rank())?;
    Ok(Some((options, domain)))
}

async fn run(world: &Comm, options: &HaloOptions, domain: HeatDomain) -> HaloResult<()> {
    let cart = world.cart(&options.grid, &[false; 3]).await?;
    if cart.rank() == 0 {
        report::print_head(options, cart.size());
    }
    let mut blocking = None;
    for &mode in &options.modes {
        if options.check {
            compare(&cart, options, domain, mode).await?;
        }
        let figures = time(&cart, options, domain, mode).await?;
        match (mode, &blocking) {
            (HaloMode::Blocking, _) => blocking = Some(figures),
            (HaloMode::Overlap, Some(blocking)) if cart.rank() == 0 => {
                report::print_gain(options, blocking, &figures);
            }
            (HaloMode::Overlap, _) => {}
        }
    }
    Ok(())
}

async fn compare(
    cart: &Cart,
    options: &HaloOptions,
    domain: HeatDomain,
    mode: HaloMode,
) -> HaloResult<()> {
    let steps = options.steps.min(CHECKED_STEPS_MAX);
    if let Some(difference) = heat::check(cart, domain, mode, steps).await? {
        return Err(format!("after {steps} steps {difference}").into());
    }
    if cart.rank() == 0 {
        report::print_checked(options, mode, steps);
    }
    Ok(())
}

async fn time(
    cart: &Cart,
    options: &HaloOptions,
    domain: HeatDomain,
    mode: HaloMode,
) -> HaloResult<HaloFigures> {
    let exchange = HeatExchange::new(cart, domain.cells).await?;
    let mut heat = HeatSolver::new(domain, mode, exchange).await?;
    let warm = options.steps / 10 + 5;
    let bar = report::bar(options, cart.rank(), mode, warm + options.steps);
    let mut laps = Vec::with_capacity(options.steps);
    cart.barrier().await?;
    for step in 0..warm + options.steps {
        let lap = heat.step().await?;
        if step >= warm {
            laps.push(lap);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let (error, tolerance) = heat.error();
    let figures = HaloFigures::gather(cart, &laps, error, tolerance).await?;
    if cart.rank() > 0 {
        return Ok(figures);
    }
    report::print(options, cart.size(), mode, &figures);
    if !figures.error_is_small() {
        let (error, tolerance) = (figures.error(), figures.tolerance);
        return Err(format!(
            "the error {error:e} is larger than rounding explains ({tolerance:e})"
        )
        .into());
    }
    Ok(figures)
}

/// Steps of a check: enough for every cell to be affected by every neighbor of its rank, and for both directions of the sweep.
const CHECKED_STEPS_MAX: usize = 20;
