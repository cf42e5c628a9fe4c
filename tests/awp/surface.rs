//! The ends of the box: the free surface and the sponge.

use ripstop::{Comm, Result};

use super::{
    space,
    wave::{
        AwpDim, AwpDomain, ExchangedLayers, GHOSTS, RockModel, RockProperties, SingleRankExchange,
        StepSchedule, WaveProblem, WaveSolver,
        stencil::{U, V, W, XX, XZ, YY, YZ, ZZ},
    },
};

/// A column, periodic except at its top and bottom.
const CELLS: [usize; 3] = [4, 4, 80];
const TOP: usize = CELLS[2] - 1;

/// Start and width of the pulse, in cells.
const START: f64 = 40.0;
const WIDTH: f64 = 4.0;

/// Height of the pulse, in m/s.
const HEIGHT: f64 = 1.0;

/// Sets up a P wave that rises.
fn rising(free_surface: bool, sponge: usize) -> WaveSolver<f64> {
    let mut problem = WaveProblem {
        free_surface,
        sponge,
        ..space(CELLS, 0.5)
    };
    problem.domain.periodic = [true, true, false];
    let mut solver = WaveSolver::new(problem);
    let RockProperties { vp, vs, density } = RockProperties::GRANITE;
    let bell = |z: f64| HEIGHT * (-((z - START) / WIDTH).powi(2)).exp();
    let half_step = vp * problem.dt / problem.spacing / 2.0;
    for [x, y, z] in cells() {
        let at = [x, y, z].map(|i| i + GHOSTS);
        // The velocities are those of half a step earlier.
        solver.velocity[W].set(at, bell(float(z) + 0.5 + half_step));
        let stress = -density * vp * bell(float(z));
        solver.stress[ZZ].set(at, stress);
        let beside = 1.0 - 2.0 * (vs / vp).powi(2);
        solver.stress[XX].set(at, stress * beside);
        solver.stress[YY].set(at, stress * beside);
    }
    solver
}

#[ripstop::test(ranks = 1)]
async fn a_pulse_doubles_at_the_surface_and_returns_as_tension(_: Comm) -> Result<()> {
    let mut solver = rising(true, 0);
    let distance = float(TOP) + 0.5 - START;
    let (mut at_surface, mut ratio): (Vec<f64>, f64) = (Vec::new(), 0.0);
    let steps = steps_for(&solver, 2.0 * distance);
    let record = |solver: &WaveSolver<f64>| {
        at_surface.push(column(solver, W, TOP));
        let images = solver.stress[ZZ].get([2, 2, TOP + 1 + GHOSTS]) + stress(solver, ZZ, TOP);
        ratio = ratio.max(images.abs());
        for shear in [XZ, YZ] {
            ratio = ratio.max(stress(solver, shear, TOP).abs());
        }
    };
    run(&mut solver, steps, record).await?;
    assert!(ratio == 0.0, "there is traction at the surface: {ratio:e}");
    let peak = at_surface.iter().copied().fold(0.0, f64::max);
    assert!(
        (peak / HEIGHT - 2.0).abs() < 0.02,
        "the surface moves with {peak} m/s"
    );
    // At its start, going down, it still moves the rock upwards, and pulls where it pushed.
    let velocity = extreme((0..TOP).map(|z| column(&solver, W, z)));
    let stress = extreme((0..TOP).map(|z| stress(&solver, ZZ, z)));
    let pressure = RockProperties::GRANITE.density * RockProperties::GRANITE.vp * HEIGHT;
    assert!((velocity.1 / HEIGHT - 1.0).abs() < 0.03, "{velocity:?}");
    assert!((stress.1 / pressure - 1.0).abs() < 0.03, "{stress:?}");
    assert!(
        (float(velocity.0) + 0.5 - START).abs() < 1.5,
        "{velocity:?}"
    );
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn a_sponge_takes_most_of_a_pulse(_: Comm) -> Result<()> {
    let mut solver = rising(false, 20);
    let steps = steps_for(&solver, 2.0 * (float(TOP) - START));
    run(&mut solver, steps, |_| ()).await?;
    let (_, left) = extreme((0..TOP).map(|z| column(&solver, W, z)));
    assert!(left.abs() < 0.1 * HEIGHT, "{left}");
    assert!(left != 0.0, "a pulse that never was");
    Ok(())
}

/// Waves of all directions and lengths at the surface: the values must stay bounded.
#[ripstop::test(ranks = 1)]
async fn a_stirred_box_with_a_free_surface_stays_as_calm_as_it_was(_: Comm) -> Result<()> {
    let model = RockModel::Uniform(RockProperties::GRANITE);
    let domain = AwpDomain::part([6, 7, 8], [1; 3], [true, true, false], 0);
    let problem = WaveProblem {
        domain: domain.expect("cells enough for one rank"),
        free_surface: true,
        model,
        ..space([6, 7, 8], 0.9)
    };
    let mut solver = WaveSolver::<f64>::new(problem).perturbed(9);
    let before = largest(&solver);
    run(&mut solver, 1000, |_| ()).await?;
    let after = largest(&solver);
    assert!(after < 3.0 * before, "{before} m/s became {after} m/s");
    Ok(())
}

async fn run(
    solver: &mut WaveSolver<f64>,
    steps: usize,
    mut record: impl FnMut(&WaveSolver<f64>),
) -> Result<()> {
    let mut halos = SingleRankExchange::halos(&solver.problem.domain, &ExchangedLayers::NEEDED);
    let after = |solver: &WaveSolver<f64>, _| record(solver);
    solver
        .run(&mut halos, StepSchedule::Plain, steps, after)
        .await
}

/// Returns the steps in which a P wave crosses `cells` cells.
fn steps_for(solver: &WaveSolver<f64>, cells: f64) -> usize {
    let WaveProblem { dt, spacing, .. } = solver.problem;
    let seconds = cells * spacing / RockProperties::GRANITE.vp;
    (0..)
        .find(|&steps| float(steps) * dt >= seconds)
        .unwrap_or(0)
}

fn column(solver: &WaveSolver<f64>, component: usize, z: usize) -> f64 {
    solver.velocity[component].get([GHOSTS, GHOSTS, z + GHOSTS])
}

fn stress(solver: &WaveSolver<f64>, component: usize, z: usize) -> f64 {
    solver.stress[component].get([GHOSTS, GHOSTS, z + GHOSTS])
}

/// Returns the value of largest size, and its position.
fn extreme(values: impl Iterator<Item = f64>) -> (usize, f64) {
    let larger = |a: &(usize, f64), b: &(usize, f64)| a.1.abs().total_cmp(&b.1.abs());
    values.enumerate().max_by(larger).unwrap_or_default()
}

fn largest(solver: &WaveSolver<f64>) -> f64 {
    let own = solver.problem.domain.own();
    let values = [U, V, W].map(|i| solver.velocity[i].block(own)).concat();
    values.iter().map(|value| value.abs()).fold(0.0, f64::max)
}

fn cells() -> impl Iterator<Item = [usize; 3]> {
    let [xs, ys, zs] = [AwpDim::X, AwpDim::Y, AwpDim::Z].map(|dim| CELLS[dim]);
    (0..xs).flat_map(move |x| (0..ys).flat_map(move |y| (0..zs).map(move |z| [x, y, z])))
}

fn float(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}
