//! The output of rank 0.
#![expect(clippy::print_stdout, reason = "this is what the program prints")]

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};
use ripstop::{Collectives, Comm, Max, Result};

use crate::{
    mode::AwpMode,
    options::{AwpOptions, AwpPrecision, format_size},
    wave::{AwpStepTimes, WaveProblem},
};

/// The figures of a run, each the largest of any rank: the rank that waits longest is rarely the one that computes longest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AwpFigures {
    median_us: f64,
    mean_us: f64,
    velocity_us: f64,
    comm_us: f64,
    wait_us: f64,
    /// The largest velocity at the end.
    peak: f64,
}

impl AwpFigures {
    /// Computes the figures from the laps of all ranks, without the first few. Collective.
    ///
    /// # Errors
    /// Returns the errors of the reduction.
    pub(crate) async fn gather(world: &Comm, laps: &[AwpStepTimes], peak: f64) -> Result<Self> {
        let laps = laps
            .get(WARM_UP..)
            .filter(|laps| !laps.is_empty())
            .unwrap_or(laps);
        let mean =
            |of: fn(&AwpStepTimes) -> f64| laps.iter().map(of).sum::<f64>() / laps.len() as f64;
        let mut wholes: Vec<f64> = laps.iter().map(|lap| lap.iter().sum()).collect();
        wholes.sort_by(f64::total_cmp);
        let median = wholes.get(wholes.len() / 2).copied().unwrap_or_default();
        // A maximum ignores NaN, which is the worst value of all.
        let peak = if peak.is_nan() { f64::INFINITY } else { peak };
        let mine = [
            median,
            mean(|lap| lap.iter().sum()),
            mean(|&[velocity, ..]| velocity),
            mean(|&[.., pack, wait]| pack + wait),
            mean(|&[.., wait]| wait),
            peak,
        ];
        let [median_us, mean_us, velocity_us, comm_us, wait_us, peak] =
            world.all_reduce(mine, Max).await?;
        Ok(Self {
            median_us,
            mean_us,
            velocity_us,
            comm_us,
            wait_us,
            peak,
        })
    }

    /// # Errors
    /// A sentence, if the waves have grown without end.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        if self.peak.is_finite() {
            Ok(())
        } else {
            Err(
                "a velocity is infinite or not a number: the computation is worth nothing"
                    .to_owned(),
            )
        }
    }

    /// Returns the longest wait of any rank, as a share of a step.
    fn exposed(&self) -> f64 {
        self.wait_us / self.mean_us
    }
}

/// Prints the first line.
pub(crate) fn print_head(options: &AwpOptions, problem: &WaveProblem, ranks: usize) {
    if options.json {
        return;
    }
    let (cells, grid) = (format_size(options.global), format_size(options.grid));
    println!(
        "awp: {cells} cells on {ranks} ranks in a grid of {grid}, {} steps of {:.2} ms; the source is \
         strongest after {:.2} s",
        options.steps,
        problem.dt * 1e3,
        problem.source.map_or(0.0, |source| source.middle_s())
    );
}

/// Prints the line after a comparison without a difference.
pub(crate) fn print_checked(options: &AwpOptions, mode: AwpMode, steps: usize) {
    if !options.json {
        println!(
            "{:<15} {steps} steps with poisoned ghosts: the same bits as on one rank",
            mode.name()
        );
    }
}

/// Prints the lines after a timed run.
pub(crate) fn print(options: &AwpOptions, ranks: usize, mode: AwpMode, figures: &AwpFigures) {
    let AwpFigures {
        median_us,
        mean_us,
        velocity_us,
        comm_us,
        wait_us,
        peak,
    } = figures;
    let (mode, exposed) = (mode.name(), figures.exposed());
    let AwpOptions {
        grid,
        global,
        steps,
        check,
        ..
    } = options;
    let cells: f64 = global.iter().map(|&edge| edge as f64).product();
    let mcells_per_s = cells / median_us;
    if !options.json {
        let percent = 100.0 * exposed;
        println!(
            "{mode:<15} {median_us:.0} µs per step (median), {mcells_per_s:.1} Mcells/s, {percent:.1} % waiting for \
             neighbors; the fastest rock moves at {peak:.2e} m/s"
        );
        return;
    }
    let precision = match options.precision {
        AwpPrecision::Single => "f32",
        AwpPrecision::Double => "f64",
    };
    let needed = options.needed_only;
    println!(
        "{{\"program\":\"awp\",\"peer\":\"ripstop\",\"mode\":\"{mode}\",\"needed_only\":{needed},\
         \"precision\":\"{precision}\",\"ranks\":{ranks},\"grid\":{grid:?},\"global\":{global:?},\"steps\":{steps},\
         \"median_us\":{median_us:.2},\"mean_us\":{mean_us:.2},\"velocity_us\":{velocity_us:.2},\
         \"comm_us\":{comm_us:.2},\"wait_us\":{wait_us:.2},\
         \"exposed\":{exposed:.4},\"mcells_per_s\":{mcells_per_s:.2},\"peak\":{peak:.3e},\"checked\":{check}}}"
    );
}

/// Returns a progress bar on rank 0's terminal; nothing elsewhere.
pub(crate) fn bar(options: &AwpOptions, rank: usize, mode: AwpMode) -> ProgressBar {
    if rank > 0 || options.json || !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let steps = u64::try_from(options.steps).unwrap_or(u64::MAX);
    let style = ProgressStyle::with_template("{prefix:<15} {wide_bar} {pos}/{len} steps {eta}");
    ProgressBar::new(steps)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_prefix(mode.name())
}

/// Steps that are not counted, in which memory is touched for the first time.
const WARM_UP: usize = 5;
