//! The output of rank 0.
#![expect(clippy::print_stdout, reason = "this is what the program prints")]

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};
use ripstop::{Collectives, Comm, Max, Result};

use crate::{
    heat::{HaloMode, HeatLap},
    options::{HaloOptions, format_size},
};

/// The figures of a run, each the largest of any rank: the rank that waits longest is rarely the one that computes longest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HaloFigures {
    median_us: f64,
    comm_us: f64,
    wait_us: f64,
    p99_us: f64,
    min_us: f64,
    error: f64,
    /// The part of the error that rounding alone explains.
    pub(crate) tolerance: f64,
}

impl HaloFigures {
    /// Computes the figures from the samples of all ranks. Collective.
    ///
    /// # Errors
    /// Returns the errors of the reduction.
    pub(crate) async fn gather(
        world: &Comm,
        laps: &[HeatLap],
        error: f64,
        tolerance: f64,
    ) -> Result<Self> {
        let of = |percent: usize, field: fn(&HeatLap) -> f64| {
            let mut values: Vec<f64> = laps.iter().map(field).collect();
            values.sort_by(f64::total_cmp);
            let at = percent * values.len() / 100;
            values
                .get(at)
                .or_else(|| values.last())
                .map_or(0.0, |&value| value)
        };
        // A maximum ignores NaN, which is the worst error of all.
        let error = if error.is_nan() { f64::INFINITY } else { error };
        let whole = |lap: &HeatLap| lap.iter().sum();
        let mine = [
            of(50, whole),
            of(50, |&[.., pack, wait]| pack + wait),
            of(50, |&[.., wait]| wait),
            of(99, whole),
            of(0, whole),
            error,
        ];
        let [median_us, comm_us, wait_us, p99_us, min_us, error] =
            world.all_reduce(mine, Max).await?;
        Ok(Self {
            median_us,
            comm_us,
            wait_us,
            p99_us,
            min_us,
            error,
            tolerance,
        })
    }

    /// Returns true if the decay is exact except for rounding.
    pub(crate) fn error_is_small(&self) -> bool {
        self.error <= self.tolerance
    }

    /// Returns the largest difference from the exact decay.
    pub(crate) fn error(&self) -> f64 {
        self.error
    }

    /// Returns the longest wait of any rank, as a share of a step.
    fn exposed(&self) -> f64 {
        self.wait_us / self.median_us
    }
}

/// Prints the first line.
pub(crate) fn print_head(options: &HaloOptions, ranks: usize) {
    if !options.json {
        let (cells, grid) = (format_size(options.global), format_size(options.grid));
        println!(
            "halo: {cells} cells on {ranks} ranks in a grid of {grid}, {} steps",
            options.steps
        );
    }
}

/// Prints the line after a comparison without a difference.
pub(crate) fn print_checked(options: &HaloOptions, mode: HaloMode, steps: usize) {
    if !options.json {
        println!(
            "{:<9} {steps} steps with poisoned ghosts: the same bits as on one rank",
            name(mode)
        );
    }
}

/// Prints the lines after a timed run.
pub(crate) fn print(options: &HaloOptions, ranks: usize, mode: HaloMode, figures: &HaloFigures) {
    let HaloFigures {
        median_us,
        comm_us,
        wait_us,
        p99_us,
        min_us,
        error,
        ..
    } = figures;
    let (mode, exposed) = (name(mode), figures.exposed());
    if !options.json {
        let percent = 100.0 * exposed;
        println!(
            "{mode:<9} {median_us:.1} µs per step (median), {percent:.1} % of it waiting for messages; error {error:.2e}"
        );
        return;
    }
    let n = options.n.map_or(String::new(), |n| format!("\"n\":{n},"));
    let HaloOptions {
        grid,
        global,
        steps,
        check,
        ..
    } = options;
    println!(
        "{{\"program\":\"halo\",\"peer\":\"ripstop\",\"mode\":\"{mode}\",{n}\"ranks\":{ranks},\"grid\":{grid:?},\
         \"global\":{global:?},\"median_us\":{median_us:.2},\"comm_us\":{comm_us:.2},\"wait_us\":{wait_us:.2},\
         \"exposed\":{exposed:.4},\"p99_us\":{p99_us:.2},\"min_us\":{min_us:.2},\"error\":{error:.3e},\"steps\":{steps},\
         \"checked\":{check}}}"
    );
}

/// Prints what overlap gains, and what it would gain at best with a free processor for each rank: all of the wait.
pub(crate) fn print_gain(options: &HaloOptions, blocking: &HaloFigures, overlap: &HaloFigures) {
    let (gained, at_best) = (
        overlap.median_us / blocking.median_us,
        1.0 - blocking.exposed(),
    );
    if options.json {
        println!(
            "{{\"program\":\"halo\",\"peer\":\"ripstop\",\"mode\":\"gain\",\"overlap_to_blocking\":{gained:.4},\
             \"at_best\":{at_best:.4}}}"
        );
    } else {
        println!(
            "overlap takes {gained:.2} of blocking; with a free processor beside each rank, {at_best:.2} at best, where all of \
             the wait is hidden"
        );
    }
}

/// Returns a progress bar on rank 0's terminal; nothing elsewhere.
pub(crate) fn bar(options: &HaloOptions, rank: usize, mode: HaloMode, steps: usize) -> ProgressBar {
    if rank > 0 || options.json || !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let steps = u64::try_from(steps).unwrap_or(u64::MAX);
    let style = ProgressStyle::with_template("{prefix:<9} {wide_bar} {pos}/{len} steps {eta}");
    ProgressBar::new(steps)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_prefix(name(mode))
}

fn name(mode: HaloMode) -> &'static str {
    match mode {
        HaloMode::Blocking => "blocking",
        HaloMode::Overlap => "overlap",
    }
}
