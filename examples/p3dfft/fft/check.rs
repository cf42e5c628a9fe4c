//! Checks that this is a Fourier transform, and the same one on every grid of ranks.

use num_complex::Complex;
use ripstop::{Collectives, Comm, Max, Result, Sum};

use super::{
    FftSetup, PencilFft,
    exchange::TransposeMode,
    grid::PencilGrid,
    real::FftReal,
    samples::{SineField, noise},
};

/// The largest errors on all ranks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FftErrors {
    /// Error of a field of order 1 after there and back, in ε.
    pub(crate) round_trip: f64,
    /// Error of a coefficient of a sine, in ε·N; `None` if an edge is too short for a sine.
    pub(crate) spectrum: Option<f64>,
    /// Relative error of the energy, in ε.
    pub(crate) energy: f64,
    /// Number of ranks whose bits differ from those of one rank alone, if that was compared.
    pub(crate) differing: usize,
}

/// The most that rounding may do, in the units of [`FftErrors`].
pub(crate) const EPSILONS_MAX: f64 = 64.0;

impl FftErrors {
    /// The name of each comparison, and its error as a share of the bound.
    pub(crate) fn summary(&self) -> String {
        let Self {
            round_trip, energy, ..
        } = self;
        let spectrum = self
            .spectrum
            .map_or_else(String::new, |off| format!("{off:.1} ε in the spectrum, "));
        format!("off by {round_trip:.1} ε there and back, {spectrum}{energy:.1} ε in energy")
    }

    /// Returns a sentence about the first error that is too large.
    pub(crate) fn complaint(&self) -> Option<String> {
        let figures = [
            ("there and back, a field", self.round_trip),
            ("a coefficient of a sine", self.spectrum.unwrap_or(0.0)),
            ("the energy of the spectrum", self.energy),
        ];
        let wrong = figures.into_iter().find(|(_, error)| *error > EPSILONS_MAX);
        let wrong = wrong.map(|(what, error)| {
            format!("{what} is off by {error:.1} ε, but rounding explains at most {EPSILONS_MAX}")
        });
        let differing = (self.differing > 0).then(|| {
            format!(
                "{} ranks have other bits than one rank alone",
                self.differing
            )
        });
        wrong.or(differing)
    }
}

/// Transforms sines and noise there and back, with poisoned buffers. If `single_rank`, also compares the bits with those of one
/// rank that transforms everything. Collective.
///
/// # Errors
/// A rank failed, or there is no memory.
pub(crate) async fn check<T: FftReal>(
    world: &Comm,
    setup: &FftSetup,
    alone: bool,
) -> Result<FftErrors> {
    let setup = FftSetup {
        poison: true,
        ..setup.clone()
    };
    let (grid, vars) = (setup.grid.clone(), setup.vars);
    let mut transform = PencilFft::new(world, setup.clone()).await?;
    let mut errors = FftErrors::default();
    let sines: Vec<SineField> = (0..vars)
        .filter_map(|var| SineField::of(&grid, var))
        .collect();
    if sines.len() == vars {
        let fields: Vec<Vec<T>> = sines.iter().map(|sine| sine.field(&grid)).collect();
        let (spectra, again) = there_and_back(&mut transform, &grid, &fields).await?;
        errors.round_trip = worst(errors.round_trip, round_trip(&fields, &again));
        let off = sines.iter().zip(&spectra);
        let off = off.map(|(sine, spectrum)| off_of(&grid, *sine, spectrum));
        errors.spectrum = Some(off.fold(0.0, worst));
    }
    let fields: Vec<Vec<T>> = (0..vars).map(|var| noise(&grid, var)).collect();
    let (spectra, again) = there_and_back(&mut transform, &grid, &fields).await?;
    errors.round_trip = worst(errors.round_trip, round_trip(&fields, &again));
    errors.energy = energy(world, &grid, &fields, &spectra).await?;
    let differs = alone && differs_from_alone(world, &setup, &spectra, &again).await?;
    let spectrum = errors.spectrum.unwrap_or(0.0);
    let largest = [errors.round_trip, spectrum, errors.energy];
    let [round_trip, spectrum, energy] = world.all_reduce(largest, Max).await?;
    let [differing] = world.all_reduce([u64::from(differs)], Sum).await?;
    Ok(FftErrors {
        round_trip,
        spectrum: errors.spectrum.map(|_| spectrum),
        energy,
        differing: usize::try_from(differing).unwrap_or(usize::MAX),
    })
}

type Spectra<T> = Vec<Vec<Complex<T>>>;

async fn there_and_back<T: FftReal>(
    transform: &mut PencilFft<T>,
    grid: &PencilGrid,
    fields: &[Vec<T>],
) -> Result<(Spectra<T>, Vec<Vec<T>>)> {
    let nan = Complex::new(T::NAN, T::NAN);
    let mut spectra = vec![vec![nan; grid.spectrum_len()]; fields.len()];
    let mut again = vec![vec![T::NAN; grid.field_len()]; fields.len()];
    transform.forward(fields, &mut spectra).await?;
    transform.backward(&spectra, &mut again).await?;
    let points = T::of(grid.points.iter().product::<usize>() as f64);
    again
        .iter_mut()
        .flatten()
        .for_each(|value| *value = *value / points);
    Ok((spectra, again))
}

/// Returns the largest difference of fields that were transformed there and back, and divided. In ε.
pub(crate) fn round_trip<T: FftReal>(before: &[Vec<T>], after: &[Vec<T>]) -> f64 {
    let pairs = before.iter().flatten().zip(after.iter().flatten());
    let errors = pairs.map(|(before, after)| (after.wide() - before.wide()).abs() / T::EPSILON);
    errors.fold(0.0, worst)
}

/// Returns the largest error of a coefficient, in ε·N.
fn off_of<T: FftReal>(grid: &PencilGrid, sine: SineField, spectrum: &[Complex<T>]) -> f64 {
    let points = grid.points.iter().product::<usize>() as f64;
    let errors = modes(grid).zip(spectrum).map(|(k, found)| {
        let expected = sine.coefficient(grid, k);
        let error = Complex::new(found.re.wide() - expected.re, found.im.wide() - expected.im);
        error.norm() / (T::EPSILON * points)
    });
    errors.fold(0.0, worst)
}

/// Returns the error of Parseval's identity, in ε: the energy of a field is that of its spectrum, in which all but the real
/// modes stand for two.
async fn energy<T: FftReal>(
    world: &Comm,
    grid: &PencilGrid,
    fields: &[Vec<T>],
    spectra: &[Vec<Complex<T>>],
) -> Result<f64> {
    let points = grid.points.iter().product::<usize>() as f64;
    let twice = |kx: usize| kx > 0 && 2 * kx != grid.points[0];
    let mut worst_of_all = 0.0;
    for (field, spectrum) in fields.iter().zip(spectra) {
        let mut sums = [KahanSum::default(); 2];
        field
            .iter()
            .for_each(|value| sums[0].add(value.wide() * value.wide()));
        for ([kx, ..], value) in modes(grid).zip(spectrum) {
            let square = value.re.wide() * value.re.wide() + value.im.wide() * value.im.wide();
            sums[1].add(if twice(kx) { 2.0 * square } else { square });
        }
        let mine = sums.map(|sum| sum.sum);
        let [of_field, of_spectrum] = world.all_reduce(mine, Sum).await?;
        let off = (of_spectrum / points / of_field - 1.0).abs() / T::EPSILON;
        worst_of_all = worst(worst_of_all, off);
    }
    Ok(worst_of_all)
}

/// Returns true if one rank that has the whole box gets other bits in this rank's part of it.
async fn differs_from_alone<T: FftReal>(
    world: &Comm,
    setup: &FftSetup,
    spectra: &[Vec<Complex<T>>],
    again: &[Vec<T>],
) -> Result<bool> {
    let grid = &setup.grid;
    let whole = FftSetup {
        grid: grid.single_rank(),
        vars: 1,
        mode: TransposeMode::Blocking,
        tests: 0,
        poison: false,
    };
    let myself = world.split(world.rank(), 0).await?;
    let mut transform = PencilFft::new(&myself, whole.clone()).await?;
    let mut differs = false;
    for (var, (spectrum, field)) in spectra.iter().zip(again).enumerate() {
        let fields = [noise(&whole.grid, var)];
        let (all_modes, all_points) = there_and_back(&mut transform, &whole.grid, &fields).await?;
        let [nx, ny, nz] = grid.points;
        let modes_here = modes(grid).map(|[kx, ky, kz]| all_modes[0][(kx * ny + ky) * nz + kz]);
        let points_here = points(grid).map(|[x, y, z]| all_points[0][(z * ny + y) * nx + x]);
        differs |= !same_bits(
            spectrum.iter().flat_map(|c| [c.re, c.im]),
            modes_here.flat_map(|c| [c.re, c.im]),
        );
        differs |= !same_bits(field.iter().copied(), points_here);
    }
    Ok(differs)
}

fn same_bits<T: FftReal>(one: impl Iterator<Item = T>, other: impl Iterator<Item = T>) -> bool {
    let bits = |value: T| value.wide().to_bits();
    one.map(bits).eq(other.map(bits))
}

/// Returns kx, ky and kz of this rank's coefficients, in the order of memory.
pub(crate) fn modes(grid: &PencilGrid) -> impl Iterator<Item = [usize; 3]> + use<> {
    let (x, y, nz) = (grid.x(), grid.y_in_column(), grid.points[2]);
    x.flat_map(move |kx| {
        y.clone()
            .flat_map(move |ky| (0..nz).map(move |kz| [kx, ky, kz]))
    })
}

/// Returns x, y and z of this rank's points, in the order of memory.
fn points(grid: &PencilGrid) -> impl Iterator<Item = [usize; 3]> + use<> {
    let (z, y, nx) = (grid.z(), grid.y_in_row(), grid.points[0]);
    z.flat_map(move |z| y.clone().flat_map(move |y| (0..nx).map(move |x| [x, y, z])))
}

/// Returns the larger value; NaN counts as the worst of all.
fn worst(one: f64, other: f64) -> f64 {
    if one.is_nan() || other.is_nan() {
        f64::INFINITY
    } else {
        one.max(other)
    }
}

/// Returns a sum that does not lose small terms (Kahan 1965).
#[derive(Clone, Copy, Debug, Default)]
struct KahanSum {
    sum: f64,
    lost: f64,
}

impl KahanSum {
    fn add(&mut self, term: f64) {
        let term = term - self.lost;
        let sum = self.sum + term;
        self.lost = (sum - self.sum) - term;
        self.sum = sum;
    }
}
