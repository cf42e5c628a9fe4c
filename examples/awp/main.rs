//! Seismic waves on a grid of ranks, with the exchange of ghosts hidden behind the computation.
//!
//!     ripstop run -n 4 --example awp -- --n 96 --steps 200
//!     ripstop run -n 4 --example awp -- --help

#[path = "../common/agree.rs"]
mod agree;
#[path = "../common/asked.rs"]
mod asked;
#[path = "../common/files.rs"]
mod files;
#[path = "../common/memory.rs"]
mod memory;
mod mode;
mod options;
mod output;
#[path = "../common/png.rs"]
mod png;
mod report;
mod wave;

use std::{env, error::Error};

use ripstop::{Collectives, Comm};

use mode::AwpMode;
use options::{AwpOptions, AwpPrecision, HELP, format_size};
use output::SurfaceReceivers;
use report::AwpFigures;
use wave::{
    FenceExchange, GhostExchange, PscwExchange, StepExchanges, TwoSidedExchange, WaveProblem,
    WaveReal, WaveSolver,
};

type AwpResult<T, E = Box<dyn Error>> = Result<T, E>;

#[ripstop::main]
async fn main(world: Comm) -> AwpResult<()> {
    let Some((options, problem)) = asked::asked(&world, prepare(&world), HELP)? else {
        return Ok(());
    };
    if !agree::agreed(&world, |node| fits(&world, node, &options)).await? {
        return Ok(());
    }
    run(&world, &options, problem).await
}

fn prepare(world: &Comm) -> AwpResult<Option<(AwpOptions, WaveProblem)>, String> {
    let Some(options) = AwpOptions::parse(env::args().skip(1), world.size())? else {
        return Ok(None);
    };
    let problem = options.problem(world.rank())?;
    Ok(Some((options, problem)))
}

/// Checks that this machine can run the problem.
fn fits(world: &Comm, node: &Comm, options: &AwpOptions) -> AwpResult<(), String> {
    let what = format!("a box of {} cells", format_size(options.global));
    let bytes = options.bytes(node.size(), world.rank() == 0);
    memory::check(&what, bytes, node.size())?;
    if world.rank() == 0 {
        check_files(options)?;
    }
    Ok(())
}

/// Checks the outputs on the rank that writes them, because its machine is the one that matters.
fn check_files(options: &AwpOptions) -> AwpResult<(), String> {
    let arguments = [
        ("--seismograms", &options.seismograms),
        ("--png", &options.png),
    ];
    for (argument, file) in arguments {
        if let Some(file) = file {
            files::check(argument, file)?;
        }
    }
    Ok(())
}

async fn run(world: &Comm, options: &AwpOptions, problem: WaveProblem) -> AwpResult<()> {
    if world.rank() == 0 {
        report::print_head(options, &problem, world.size());
    }
    for &mode in &options.modes {
        match options.precision {
            AwpPrecision::Single => run_mode::<f32>(world, options, problem, mode).await?,
            AwpPrecision::Double => run_mode::<f64>(world, options, problem, mode).await?,
        }
    }
    Ok(())
}

async fn run_mode<T: WaveReal>(
    world: &Comm,
    options: &AwpOptions,
    problem: WaveProblem,
    mode: AwpMode,
) -> AwpResult<()> {
    let layers = mode.layers(options.needed_only);
    let checks = [true, false].into_iter();
    for check in checks.filter(|&check| options.check || !check) {
        let job = AwpJob {
            world,
            options,
            problem,
            mode,
            check,
        };
        let domain = &problem.domain;
        match mode {
            AwpMode::TwoSided | AwpMode::TwoSidedSplit => {
                let halos = TwoSidedExchange::halos(world, domain, &layers, check)?;
                job.run::<T, _>(halos).await?;
            }
            AwpMode::Fence => {
                let halos = FenceExchange::halos(world, domain, &layers, check).await?;
                job.run::<T, _>(halos).await?;
            }
            AwpMode::Pscw | AwpMode::PscwSplit | AwpMode::PscwNeeded => {
                let halos = PscwExchange::halos(world, domain, &layers, check).await?;
                job.run::<T, _>(halos).await?;
            }
        }
    }
    Ok(())
}

/// The work that is done with one mode.
struct AwpJob<'a> {
    world: &'a Comm,
    options: &'a AwpOptions,
    problem: WaveProblem,
    mode: AwpMode,
    /// Compare with one rank, instead of measuring.
    check: bool,
}

impl AwpJob<'_> {
    async fn run<T: WaveReal, H: GhostExchange<T>>(self, halos: StepExchanges<H>) -> AwpResult<()> {
        if self.check {
            self.compare(halos).await
        } else {
            self.time(halos).await
        }
    }

    async fn compare<T: WaveReal, H: GhostExchange<T>>(
        self,
        halos: StepExchanges<H>,
    ) -> AwpResult<()> {
        let steps = self.options.steps.min(CHECKED_STEPS_MAX);
        let schedule = self.mode.schedule();
        let checked = wave::check::<T, H>(self.world, self.problem, halos, schedule, steps);
        if let Some(deviation) = checked.await? {
            return Err(format!("{}: after {steps} steps {deviation}", self.mode.name()).into());
        }
        if self.world.rank() == 0 {
            report::print_checked(self.options, self.mode, steps);
        }
        Ok(())
    }

    async fn time<T: WaveReal, H: GhostExchange<T>>(
        self,
        mut halos: StepExchanges<H>,
    ) -> AwpResult<()> {
        let Self {
            world,
            options,
            problem,
            mode,
            ..
        } = self;
        let bar = report::bar(options, world.rank(), mode);
        let mut receivers = SurfaceReceivers::new(&problem);
        let mut laps = Vec::with_capacity(options.steps);
        let mut solver = WaveSolver::<T>::new(problem);
        world.barrier().await?;
        let after = |solver: &WaveSolver<T>, lap| {
            laps.push(lap);
            receivers.record(solver);
            bar.inc(1);
        };
        solver
            .run(&mut halos, mode.schedule(), options.steps, after)
            .await?;
        halos.close().await?;
        bar.finish_and_clear();
        let figures = AwpFigures::gather(world, &laps, output::peak(&solver)).await?;
        if world.rank() == 0 {
            report::print(options, world.size(), mode, &figures);
        }
        figures.verdict()?;
        if let Some(path) = &options.seismograms {
            receivers.write(world, &problem, path).await?;
        }
        if let Some(path) = &options.png {
            output::draw(world, &solver, path).await?;
        }
        Ok(())
    }
}

/// Steps of a check: enough for every cell to be affected by every neighbor of its rank.
const CHECKED_STEPS_MAX: usize = 20;
