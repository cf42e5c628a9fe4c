//! The output of rank 0.
#![expect(clippy::print_stdout, reason = "this is what the program prints")]

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressStyle};
use ripstop::{Collectives, Comm, Max, Result, Sum};

use crate::{
    WARM_UP,
    fft::{
        PencilGrid, TransposeMode,
        check::FftErrors,
        clock::{FftPhase, PHASES, PhaseTimes},
    },
    options::{FftOptions, FftPrecision},
};

/// The figures of a run, each the median of all times there and back.
#[derive(Clone, Debug)]
pub(crate) struct FftFigures {
    /// Time there and back, of the slowest rank.
    whole_us: f64,
    /// The shortest time there and back.
    min_us: f64,
    /// Time of each phase there and back, averaged over all ranks.
    phases_us: PhaseTimes,
    /// Error after there and back, in ε.
    error: f64,
}

impl FftFigures {
    /// Computes the figures from the laps of all ranks, there and back. Collective.
    ///
    /// # Errors
    /// Returns the errors of the reduction.
    pub(crate) async fn gather(world: &Comm, laps: &[[PhaseTimes; 2]], error: f64) -> Result<Self> {
        let wholes: Vec<f64> = laps.iter().map(|lap| lap.iter().flatten().sum()).collect();
        let mut wholes = world.all_reduce(wholes, Max).await?;
        let of_phase = |phase: &FftPhase| {
            let phase = *phase as usize;
            let laps = laps.iter().map(|[there, back]| there[phase] + back[phase]);
            median(&mut laps.collect::<Vec<_>>())
        };
        let mine: Vec<f64> = PHASES.iter().map(of_phase).collect();
        let sums = world.all_reduce(mine, Sum).await?;
        let mut phases_us = PhaseTimes::default();
        phases_us
            .iter_mut()
            .zip(sums)
            .for_each(|(phase, sum)| *phase = sum / world.size() as f64);
        Ok(Self {
            whole_us: median(&mut wholes),
            min_us: wholes.first().copied().unwrap_or_default(),
            phases_us,
            error,
        })
    }

    /// Returns the share of the time that is spent waiting.
    fn exposed(&self) -> f64 {
        self.phases_us[FftPhase::Wait as usize] / self.whole_us
    }

    /// Returns 2.5 N log₂ N for each variable, each way: the usual count of operations, not the actual one.
    fn gflops(&self, options: &FftOptions) -> f64 {
        let volume = options.volume() as f64;
        let each = 2.5 * volume * volume.log2();
        2.0 * options.vars as f64 * each / self.whole_us * 1e-3
    }
}

/// Returns the median, and sorts the values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Prints the first line.
pub(crate) fn print_head(options: &FftOptions, ranks: usize) {
    if !options.json {
        let ([x, y, z], [m1, m2]) = (options.points, options.grid);
        println!(
            "p3dfft: {} of {x}x{y}x{z} points, {}, on {ranks} ranks in a grid of {m1}x{m2}, {} times there and back",
            counted(options.vars, "variable"),
            precision(options),
            options.iters
        );
    }
}

/// Prints the line after a check without an error.
pub(crate) fn print_checked(options: &FftOptions, mode: TransposeMode, errors: &FftErrors) {
    if !options.json {
        println!(
            "{:<9} the bits of one rank, with poisoned buffers; {}",
            name(mode),
            errors.summary()
        );
    }
}

/// Prints the lines after a timed run.
pub(crate) fn print(
    options: &FftOptions,
    ranks: usize,
    grid: &PencilGrid,
    mode: TransposeMode,
    figures: &FftFigures,
) {
    let (exposed, gflops) = (figures.exposed(), figures.gflops(options));
    let FftFigures {
        whole_us,
        min_us,
        phases_us: [x, y, z, start, wait],
        error,
    } = figures;
    if !options.json {
        let [whole, x, y, z, start, wait] = [whole_us, x, y, z, start, wait].map(|us| us * 1e-3);
        println!(
            "{:<9} {whole:.2} ms there and back, {gflops:.1} GFLOP/s; x {x:.2}, y {y:.2}, z {z:.2}, starting {start:.2}, \
             waiting {wait:.2} ms ({:.1} % exposed)",
            name(mode),
            100.0 * exposed
        );
        return;
    }
    let ([nx, ny, nz], chunks) = (options.points, grid.chunks);
    let n = if nx == ny && ny == nz {
        format!("\"n\":{nx},")
    } else {
        String::new()
    };
    let FftOptions {
        points,
        grid,
        vars,
        iters,
        check,
        ..
    } = options;
    println!(
        "{{\"program\":\"p3dfft\",\"peer\":\"ripstop\",\"mode\":\"{}\",{n}\"points\":{points:?},\"ranks\":{ranks},\
         \"grid\":{grid:?},\"vars\":{vars},\"chunks\":{chunks},\"precision\":\"{}\",\"median_us\":{whole_us:.1},\
         \"min_us\":{min_us:.1},\"x_us\":{x:.1},\"y_us\":{y:.1},\"z_us\":{z:.1},\"start_us\":{start:.1},\
         \"wait_us\":{wait:.1},\"exposed\":{exposed:.4},\"gflops\":{gflops:.3},\"error_epsilons\":{error:.2},\
         \"iters\":{iters},\"checked\":{check}}}",
        name(mode),
        precision(options)
    );
}

/// Returns a progress bar on rank 0's terminal; nothing elsewhere.
pub(crate) fn bar(options: &FftOptions, rank: usize, mode: TransposeMode) -> ProgressBar {
    if rank > 0 || options.json || !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let rounds = u64::try_from(WARM_UP + options.iters).unwrap_or(u64::MAX);
    let style = ProgressStyle::with_template("{prefix:<9} {wide_bar} {pos}/{len} times {eta}");
    ProgressBar::new(rounds)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_prefix(name(mode))
}

fn name(mode: TransposeMode) -> &'static str {
    match mode {
        TransposeMode::Blocking => "blocking",
        TransposeMode::Host => "host",
        TransposeMode::Offload => "offload",
    }
}

fn precision(options: &FftOptions) -> &'static str {
    match options.precision {
        FftPrecision::Single => "f32",
        FftPrecision::Double => "f64",
    }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 {
        format!("1 {what}")
    } else {
        format!("{count} {what}s")
    }
}
