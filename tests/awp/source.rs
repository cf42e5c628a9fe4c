//! A point source: symmetric where it must be, and as fast as its rock.

use ripstop::{Comm, Result};

use super::{
    space,
    wave::{
        ExchangedLayers, GHOSTS, SingleRankExchange, SourceMechanism, StepSchedule, WaveProblem,
        WaveSolver, WaveSource,
        stencil::{U, V, W, XX, YY, ZZ},
    },
};

/// Odd, so that the box, which wraps around, is the same on all sides of the middle.
const EDGE: usize = 17;
const MIDDLE: usize = EDGE / 2;

#[ripstop::test(ranks = 1)]
async fn an_explosion_looks_the_same_from_all_48_sides(_: Comm) -> Result<()> {
    let solver = explosion([EDGE; 3], 60, |_| ()).await?;
    let size = |at: [usize; 3]| pressure(&solver, at).abs();
    let largest = all().map(size).fold(0.0, f64::max);
    assert!(largest > 0.0);
    for at in all().filter(|at| at.iter().all(|&i| i >= MIDDLE)) {
        let expected = pressure(&solver, at);
        for seen in seen_from_all_sides(at) {
            let difference = (pressure(&solver, seen) - expected).abs();
            assert!(
                difference < 1e-12 * largest,
                "{at:?}, {seen:?}: {difference:e}"
            );
        }
    }
    Ok(())
}

/// u lies half a cell below the pressure, v and w half a cell above.
#[ripstop::test(ranks = 1)]
async fn the_rock_moves_away_alike_in_all_dimensions(_: Comm) -> Result<()> {
    let solver = explosion([EDGE; 3], 60, |_| ()).await?;
    let of = |component: usize, at: [usize; 3]| {
        solver.velocity[component].get(at.map(|i| i % EDGE + GHOSTS))
    };
    let largest = all().map(|at| of(V, at).abs()).fold(0.0, f64::max);
    for [x, y, z] in all() {
        // The same place, except for the order of the dimensions.
        let u = of(U, [x + 1, y, z]);
        let (v, w) = (of(V, [y, x, z]), of(W, [z, y, x]));
        let worst = (u - v).abs().max((w - v).abs());
        assert!(
            worst < 1e-12 * largest,
            "{:?}: {u:e}, {v:e}, {w:e}",
            [x, y, z]
        );
    }
    Ok(())
}

/// The pressure of an explosion is the derivative of its rate: it passes zero when the peak arrives.
#[ripstop::test(ranks = 1)]
async fn the_pressure_arrives_with_the_speed_of_p_waves(_: Comm) -> Result<()> {
    let (near, far) = (6, 14);
    let (mut at_near, mut at_far) = (Vec::new(), Vec::new());
    let record = |solver: &WaveSolver<f64>| {
        let [x, y, z] = solver.problem.domain.global.map(|cells| cells / 2);
        at_near.push(pressure(solver, [x + near, y, z]));
        at_far.push(pressure(solver, [x, y + far, z]));
    };
    let solver = explosion([33; 3], 66, record).await?;
    let WaveProblem {
        dt,
        source,
        spacing,
        model,
        ..
    } = solver.problem;
    let middle = source.map_or(0.0, |source| source.middle_s());
    for (cells, pressures) in [(6.0, at_near), (14.0, at_far)] {
        let arrival = passage(&pressures) * dt;
        let expected = middle + cells * spacing / model.vp_max();
        let off = (arrival - expected) / dt;
        assert!(off.abs() < 0.3, "{cells} cells away: {off} steps off");
    }
    Ok(())
}

/// Returns the steps until the values pass zero, between their extremes of both signs.
fn passage(values: &[f64]) -> f64 {
    let extreme = |sign: f64| {
        let signed = values.iter().map(|value| value * sign).enumerate();
        signed
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map_or(0, |(i, _)| i)
    };
    let (first, last) = (
        extreme(1.0).min(extreme(-1.0)),
        extreme(1.0).max(extreme(-1.0)),
    );
    let crossing = (first..last).find(|&i| values[i] * values[i + 1] <= 0.0);
    let at = crossing.expect("values of both signs");
    // The first value is the one after one step.
    float(at + 1) + values[at] / (values[at] - values[at + 1])
}

/// Fields that would take most of the time.
#[ripstop::test(ranks = 1)]
async fn ahead_of_a_wave_there_are_no_subnormal_values(_: Comm) -> Result<()> {
    let mut problem = space([40, 5, 5], 0.9);
    problem.source = Some(WaveSource {
        kind: SourceMechanism::Explosion,
        cell: [20, 2, 2],
        width_s: 5.0 * problem.dt,
    });
    let mut solver = WaveSolver::<f32>::new(problem);
    let mut halos = SingleRankExchange::halos(&problem.domain, &ExchangedLayers::NEEDED);
    let mut seen = 0;
    let after = |solver: &WaveSolver<f32>, _| {
        for field in solver.fields() {
            let values = field.block(problem.domain.own());
            seen += values.iter().filter(|value| value.is_subnormal()).count();
        }
    };
    solver
        .run(&mut halos, StepSchedule::Plain, 12, after)
        .await?;
    assert_eq!(seen, 0);
    let far = solver.stress[XX].get([2, 4, 4]);
    assert!(far.abs() > 0.0, "the wave has come through the box");
    Ok(())
}

async fn explosion(
    cells: [usize; 3],
    steps: usize,
    mut record: impl FnMut(&WaveSolver<f64>),
) -> Result<WaveSolver<f64>> {
    let mut problem = space(cells, 0.9);
    problem.source = Some(WaveSource {
        kind: SourceMechanism::Explosion,
        cell: cells.map(|cells| cells / 2),
        width_s: 5.0 * problem.dt,
    });
    let mut solver = WaveSolver::new(problem);
    let mut halos = SingleRankExchange::halos(&problem.domain, &ExchangedLayers::NEEDED);
    let after = |solver: &WaveSolver<f64>, _| record(solver);
    solver
        .run(&mut halos, StepSchedule::Plain, steps, after)
        .await?;
    Ok(solver)
}

fn pressure(solver: &WaveSolver<f64>, at: [usize; 3]) -> f64 {
    let at = at.map(|i| i + GHOSTS);
    -[XX, YY, ZZ]
        .map(|i| solver.stress[i].get(at))
        .iter()
        .sum::<f64>()
        / 3.0
}

fn all() -> impl Iterator<Item = [usize; 3]> {
    (0..EDGE.pow(3)).map(|i| [i / EDGE / EDGE, i / EDGE % EDGE, i % EDGE])
}

/// Six orders of the dimensions, each with eight choices of sides.
fn seen_from_all_sides(at: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    orders.into_iter().flat_map(move |order| {
        (0..8).map(move |sides: usize| {
            [0, 1, 2].map(|dim| {
                let i = at[order[dim]];
                if sides >> dim & 1 == 1 {
                    2 * MIDDLE - i
                } else {
                    i
                }
            })
        })
    })
}

fn float(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap_or(u32::MAX))
}
