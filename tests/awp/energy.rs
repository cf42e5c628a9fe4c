//! Energy: conserved without ends and sources, and bounded up to the largest stable time step.

use ripstop::{Comm, Result};

use super::{
    space,
    wave::{
        ExchangedLayers, RockProperties, SingleRankExchange, StepSchedule, WaveProblem, WaveSolver,
    },
};

#[ripstop::test(ranks = 1)]
async fn energy_is_kept_to_the_last_digits(_: Comm) -> Result<()> {
    let energies = energies(space([6, 7, 8], 0.99), 300).await?;
    let start = energies[0];
    let drift = |energy: &f64| (energy / start - 1.0).abs();
    let worst = energies.iter().map(drift).fold(0.0, f64::max);
    assert!(start > 0.0 && worst < 1e-12, "{worst:e}");
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn a_box_with_ends_keeps_its_energy_too(_: Comm) -> Result<()> {
    let mut problem = space([6, 7, 8], 0.99);
    problem.domain.periodic = [false; 3];
    let energies = energies(problem, 300).await?;
    let drift = (energies[299] / energies[0] - 1.0).abs();
    assert!(drift < 1e-12, "{drift:e}");
    Ok(())
}

#[ripstop::test(ranks = 1)]
async fn a_time_step_beyond_the_limit_explodes(_: Comm) -> Result<()> {
    let energies = energies(space([6, 6, 6], 1.02), 200).await?;
    let growth = energies[199].abs() / energies[0];
    assert!(growth > 1e20, "{growth:e}");
    Ok(())
}

/// Returns the energy around each step: of the stresses before it, and of the velocities before and after, multiplied.
async fn energies(problem: WaveProblem, steps: usize) -> Result<Vec<f64>> {
    let mut solver = WaveSolver::<f64>::new(problem).perturbed(3);
    let mut halos = SingleRankExchange::halos(&problem.domain, &ExchangedLayers::NEEDED);
    let mut energies = Vec::new();
    let mut before = blocks(&solver);
    let schedule = StepSchedule::Plain;
    let record = |solver: &WaveSolver<f64>, _| {
        let after = blocks(solver);
        energies.push(kinetic(&before, &after) + elastic(&before[3..]));
        before = after;
    };
    solver.run(&mut halos, schedule, steps, record).await?;
    Ok(energies)
}

/// Returns the own cells of all quantities.
fn blocks(solver: &WaveSolver<f64>) -> Vec<Vec<f64>> {
    let own = solver.problem.domain.own();
    solver.fields().map(|field| field.block(own)).collect()
}

fn kinetic(before: &[Vec<f64>], after: &[Vec<f64>]) -> f64 {
    let products = (0..3).map(|i| dot(&before[i], &after[i]));
    RockProperties::GRANITE.density / 2.0 * products.sum::<f64>()
}

/// Returns σ : S : σ / 2 in isotropic rock.
fn elastic(stress: &[Vec<f64>]) -> f64 {
    let (mu, lambda) = (
        RockProperties::GRANITE.mu(),
        RockProperties::GRANITE.lambda(),
    );
    let squares = |range: std::ops::Range<usize>| -> f64 {
        stress[range].iter().map(|field| dot(field, field)).sum()
    };
    let cells = 0..stress[0].len();
    let trace = |cell: usize| stress[0][cell] + stress[1][cell] + stress[2][cell];
    let traces: f64 = cells.map(|cell| trace(cell) * trace(cell)).sum();
    let volume = lambda / (2.0 * mu * (3.0 * lambda + 2.0 * mu)) * traces;
    (squares(0..3) / (2.0 * mu) - volume + squares(3..6) / mu) / 2.0
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
