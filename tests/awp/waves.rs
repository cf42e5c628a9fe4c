//! Plane waves, which the scheme carries exactly, except for a small, known error of their speed.

use std::f64::consts::PI;

use ripstop::{Comm, Result};

use super::{
    space,
    wave::{
        AwpField, ExchangedLayers, GHOSTS, RockProperties, SingleRankExchange, StepSchedule,
        WaveProblem, WaveReal, WaveSolver,
        stencil::{U, V, W, XX, XY, XZ, YY, YZ, ZZ},
    },
};

/// A wave along `axis` that moves the rock along `moves`: equal for P, different for S.
#[derive(Clone, Copy, Debug)]
struct Wave {
    axis: usize,
    moves: usize,
    /// Wave number, in 1/m.
    k: f64,
    /// Frequency, in 1/s.
    omega: f64,
}

const NINE: [(usize, usize); 9] = [
    (0, 0),
    (0, 1),
    (0, 2),
    (1, 0),
    (1, 1),
    (1, 2),
    (2, 0),
    (2, 1),
    (2, 2),
];

impl Wave {
    /// Returns the longest wave that fits into a box without ends, with the frequency that `sine` of half a step's phase gives.
    fn new(problem: &WaveProblem, axis: usize, moves: usize, dispersion: Dispersion) -> Self {
        let length = float(problem.domain.global[axis]) * problem.spacing;
        let k = 2.0 * PI / length;
        let rock = RockProperties::GRANITE;
        let speed = if axis == moves { rock.vp } else { rock.vs };
        let omega = dispersion(problem, k, speed);
        Self {
            axis,
            moves,
            k,
            omega,
        }
    }

    /// Returns the value of a cell of `quantity`, of the nine, at the ends of step `step`; stresses over ρ vp.
    fn value(&self, problem: &WaveProblem, quantity: usize, cell: [usize; 3], step: f64) -> f64 {
        let is_velocity = quantity < 3;
        let t = (if is_velocity { step - 0.5 } else { step }) * problem.dt;
        let x = (float(cell[self.axis]) + PLACES[quantity][self.axis]) * problem.spacing;
        self.size(quantity) * (self.k * x - self.omega * t).cos()
    }

    /// Returns the largest value of a quantity, stresses over ρ vp.
    fn size(&self, quantity: usize) -> f64 {
        let RockProperties { vp, vs, .. } = RockProperties::GRANITE;
        let Self { axis, moves, .. } = *self;
        let shear = match axis + moves {
            1 => XY,
            2 => XZ,
            _ => YZ,
        };
        if quantity < 3 {
            return f64::from(u8::from(quantity == moves));
        }
        match quantity - 3 {
            normal if axis == moves && normal == axis => -1.0,
            XX | YY | ZZ if axis == moves => -(1.0 - 2.0 * (vs / vp).powi(2)),
            other if axis != moves && other == shear => -vs / vp,
            _ => 0.0,
        }
    }

    fn start<T: WaveReal>(&self, solver: &mut WaveSolver<T>) {
        let problem = solver.problem;
        for quantity in 0..9 {
            for cell in cells(problem.domain.cells) {
                let value = self.value(&problem, quantity, cell, 0.0) * scale(quantity);
                field_mut(solver, quantity).set(cell.map(|at| at + GHOSTS), T::of(value));
            }
        }
    }

    /// Returns the largest difference of any quantity in any cell.
    fn error<T: WaveReal>(&self, solver: &WaveSolver<T>, step: usize) -> f64 {
        let problem = &solver.problem;
        let quantities = solver.fields().zip(0..);
        let errors = quantities.flat_map(|(field, quantity)| {
            cells(problem.domain.cells).map(move |cell| {
                let got = field.get(cell.map(|at| at + GHOSTS)).wide() / scale(quantity);
                (got - self.value(problem, quantity, cell, float(step))).abs()
            })
        });
        errors.fold(
            0.0,
            |worst, error| if error <= worst { worst } else { error },
        )
    }
}

#[ripstop::test(ranks = 1)]
async fn nine_plane_waves_are_carried_to_the_last_digits(_: Comm) -> Result<()> {
    carries_all::<f64>(1e-12, 200).await
}

#[ripstop::test(ranks = 1)]
async fn nine_plane_waves_are_carried_in_single_precision(_: Comm) -> Result<()> {
    carries_all::<f32>(1e-5, 60).await
}

async fn carries_all<T: WaveReal>(tolerance: f64, steps: usize) -> Result<()> {
    let problem = space([8, 9, 10], 0.9);
    for (axis, moves) in NINE {
        let wave = Wave::new(&problem, axis, moves, discrete);
        let error = carry::<T>(problem, wave, steps).await?;
        assert!(error < tolerance, "{wave:?}: {error:e} after {steps} steps");
    }
    Ok(())
}

/// Returns the error after `steps`, with the fewest ghosts; all other ghosts are NaN.
async fn carry<T: WaveReal>(problem: WaveProblem, wave: Wave, steps: usize) -> Result<f64> {
    let mut solver = WaveSolver::<T>::new(problem).poisoned();
    wave.start(&mut solver);
    let mut halos = SingleRankExchange::halos(&problem.domain, &ExchangedLayers::NEEDED);
    let schedule = StepSchedule::Split;
    solver.run(&mut halos, schedule, steps, |_, _| ()).await?;
    Ok(wave.error(&solver, steps))
}

#[test]
fn the_needed_layers_are_those_of_the_specification() {
    let (none, low, high) = ([0, 0], [2, 1], [1, 2]);
    let ExchangedLayers { velocity, stress } = ExchangedLayers::NEEDED;
    assert_eq!(velocity[U], [high, high, high]);
    assert_eq!(velocity[V], [low, low, high]);
    assert_eq!(velocity[W], [low, high, low]);
    assert_eq!(stress[XX], [low, none, none]);
    assert_eq!(stress[YY], [none, high, none]);
    assert_eq!(stress[ZZ], [none, none, high]);
    assert_eq!(stress[XY], [high, low, none]);
    assert_eq!(stress[XZ], [high, none, low]);
    assert_eq!(stress[YZ], [none, low, low]);
}

#[ripstop::test(ranks = 1)]
async fn every_needed_layer_is_needed(_: Comm) -> Result<()> {
    assert!(!spoils(ExchangedLayers::NEEDED).await?);
    let mut entries = 0;
    for place in 0..9 * 3 * 2 {
        let mut layers = ExchangedLayers::NEEDED;
        let (component, dim, side) = (place / 6, place / 2 % 3, place % 2);
        let ghosts = layers.velocity.iter_mut().chain(&mut layers.stress);
        let Some(count) = ghosts.skip(component).map(|of| &mut of[dim][side]).next() else {
            continue;
        };
        if *count > 0 {
            *count -= 1;
            entries += 1;
            assert!(spoils(layers).await?, "without one of {place}");
        }
    }
    assert_eq!(entries, 36);
    Ok(())
}

/// Returns true if a ghost that was not exchanged is read.
async fn spoils(layers: ExchangedLayers) -> Result<bool> {
    let problem = space([4, 5, 6], 0.9);
    let mut solver = WaveSolver::<f64>::new(problem).perturbed(1).poisoned();
    let mut halos = SingleRankExchange::halos(&problem.domain, &layers);
    let schedule = StepSchedule::Plain;
    solver.run(&mut halos, schedule, 2, |_, _| ()).await?;
    let own = problem.domain.own();
    let spoilt = solver
        .fields()
        .any(|field| field.block(own).iter().any(|value| value.is_nan()));
    Ok(spoilt)
}

/// The error is taken against waves in rock without cells, with steps so short that they do not matter.
#[ripstop::test(ranks = 1)]
async fn the_error_falls_with_the_fourth_power_of_the_cell(_: Comm) -> Result<()> {
    let mut errors = Vec::new();
    for (cells, courant, steps) in [(8, 0.4, 20), (16, 0.2, 80), (32, 0.1, 320)] {
        let mut problem = space([cells, 4, 4], courant);
        // The box keeps its length.
        problem.spacing *= 8.0 / float(cells);
        problem.dt *= 8.0 / float(cells);
        let wave = Wave::new(&problem, 0, 0, |_, k, speed| k * speed);
        errors.push(carry::<f64>(problem, wave, steps).await?);
    }
    assert!(
        orders(&errors).all(|order| (3.8..4.2).contains(&order)),
        "{errors:?}"
    );
    Ok(())
}

/// The error is taken against waves in the same cells, with steps of length zero.
#[ripstop::test(ranks = 1)]
async fn the_error_falls_with_the_square_of_the_time_step(_: Comm) -> Result<()> {
    let mut errors = Vec::new();
    for (courant, steps) in [(0.8, 10), (0.4, 20), (0.2, 40)] {
        let problem = space([4, 8, 4], courant);
        let wave = Wave::new(&problem, 1, 2, |problem, k, speed| {
            2.0 * speed / problem.spacing * reach(problem, k)
        });
        errors.push(carry::<f64>(problem, wave, steps).await?);
    }
    assert!(
        orders(&errors).all(|order| (1.9..2.1).contains(&order)),
        "{errors:?}"
    );
    Ok(())
}

/// Returns the orders of convergence: log₂ of the ratio of each error to the next, for half the step.
fn orders(errors: &[f64]) -> impl Iterator<Item = f64> {
    errors.windows(2).map(|pair| (pair[0] / pair[1]).log2())
}

/// Computes the frequency from the wave number and the speed in rock.
type Dispersion = fn(&WaveProblem, f64, f64) -> f64;

/// Returns the frequency in the scheme.
fn discrete(problem: &WaveProblem, k: f64, speed: f64) -> f64 {
    let WaveProblem { dt, spacing, .. } = *problem;
    2.0 / dt * (speed * dt / spacing * reach(problem, k)).asin()
}

/// Half of the difference of a wave whose values lie between −1 and 1.
fn reach(problem: &WaveProblem, k: f64) -> f64 {
    let half = k * problem.spacing / 2.0;
    9.0 / 8.0 * half.sin() - (3.0 * half).sin() / 24.0
}

/// The unit of a field: m/s, or the pressure that belongs to it.
fn scale(quantity: usize) -> f64 {
    let RockProperties { vp, density, .. } = RockProperties::GRANITE;
    if quantity < 3 { 1.0 } else { density * vp }
}

fn field_mut<T: WaveReal>(solver: &mut WaveSolver<T>, quantity: usize) -> &mut AwpField<T> {
    match quantity.checked_sub(3) {
        None => &mut solver.velocity[quantity],
        Some(stress) => &mut solver.stress[stress],
    }
}

fn cells([xs, ys, zs]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..xs).flat_map(move |x| (0..ys).flat_map(move |y| (0..zs).map(move |z| [x, y, z])))
}

fn float(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}

/// Positions of the quantities in a cell.
const PLACES: [[f64; 3]; 9] = [
    [-0.5, 0.0, 0.0],
    [0.0, 0.5, 0.0],
    [0.0, 0.0, 0.5],
    [0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0],
    [-0.5, 0.5, 0.0],
    [-0.5, 0.0, 0.5],
    [0.0, 0.5, 0.5],
];
