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

use mode::Mode;
use options::{HELP, Options, Precision, shown};
use output::Receivers;
use report::Figures;
use wave::{Fenced, Halo, Halos, Posted, Problem, Real, Solver, TwoSided};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let Some((options, problem)) = asked::asked(&world, prepare(&world), HELP)? else {
        return Ok(());
    };
    if !agree::agreed(&world, |node| fits(&world, node, &options)).await? {
        return Ok(());
    }
    run(&world, &options, problem).await
}

fn prepare(world: &Comm) -> Result<Option<(Options, Problem)>, String> {
    let Some(options) = Options::parse(env::args().skip(1), world.size())? else {
        return Ok(None);
    };
    let problem = options.problem(world.rank())?;
    Ok(Some((options, problem)))
}

/// Checks that this machine can run the problem.
fn fits(world: &Comm, node: &Comm, options: &Options) -> Result<(), String> {
    let what = format!("a box of {} cells", shown(options.global));
    let bytes = options.bytes(node.size(), world.rank() == 0);
    memory::check(&what, bytes, node.size())?;
    if world.rank() == 0 {
        check_files(options)?;
    }
    Ok(())
}

/// Checks the outputs on the rank that writes them, because its machine is the one that matters.
fn check_files(options: &Options) -> Result<(), String> {
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

async fn run(world: &Comm, options: &Options, problem: Problem) -> Result<()> {
    if world.rank() == 0 {
        report::print_head(options, &problem, world.size());
    }
    for &mode in &options.modes {
        match options.precision {
            Precision::Single => run_mode::<f32>(world, options, problem, mode).await?,
            Precision::Double => run_mode::<f64>(world, options, problem, mode).await?,
        }
    }
    Ok(())
}

async fn run_mode<T: Real>(
    world: &Comm,
    options: &Options,
    problem: Problem,
    mode: Mode,
) -> Result<()> {
    let layers = mode.layers(options.needed_only);
    let checks = [true, false].into_iter();
    for check in checks.filter(|&check| options.check || !check) {
        let job = Job {
            world,
            options,
            problem,
            mode,
            check,
        };
        let domain = &problem.domain;
        match mode {
            Mode::TwoSided | Mode::TwoSidedSplit => {
                let halos = TwoSided::halos(world, domain, &layers, check)?;
                job.run::<T, _>(halos).await?;
            }
            Mode::Fence => {
                let halos = Fenced::halos(world, domain, &layers, check).await?;
                job.run::<T, _>(halos).await?;
            }
            Mode::Pscw | Mode::PscwSplit | Mode::PscwNeeded => {
                let halos = Posted::halos(world, domain, &layers, check).await?;
                job.run::<T, _>(halos).await?;
            }
        }
    }
    Ok(())
}

/// The work that is done with one mode.
struct Job<'a> {
    world: &'a Comm,
    options: &'a Options,
    problem: Problem,
    mode: Mode,
    /// Compare with one rank, instead of measuring.
    check: bool,
}

impl Job<'_> {
    async fn run<T: Real, H: Halo<T>>(self, halos: Halos<H>) -> Result<()> {
        if self.check {
            self.compare(halos).await
        } else {
            self.time(halos).await
        }
    }

    async fn compare<T: Real, H: Halo<T>>(self, halos: Halos<H>) -> Result<()> {
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

    async fn time<T: Real, H: Halo<T>>(self, mut halos: Halos<H>) -> Result<()> {
        let Self {
            world,
            options,
            problem,
            mode,
            ..
        } = self;
        let bar = report::bar(options, world.rank(), mode);
        let mut receivers = Receivers::new(&problem);
        let mut laps = Vec::with_capacity(options.steps);
        let mut solver = Solver::<T>::new(problem);
        world.barrier().await?;
        let after = |solver: &Solver<T>, lap| {
            laps.push(lap);
            receivers.record(solver);
            bar.inc(1);
        };
        solver
            .run(&mut halos, mode.schedule(), options.steps, after)
            .await?;
        halos.close().await?;
        bar.finish_and_clear();
        let figures = Figures::gather(world, &laps, output::peak(&solver)).await?;
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
