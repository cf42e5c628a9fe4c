//! Compares with the same box on one rank, bit by bit.

use std::fmt;

use ripstop::{Comm, Result};

use super::{
    AwpDomain, AwpField, ExchangedLayers, GHOSTS, GhostExchange, SingleRankExchange, StepExchanges,
    StepSchedule, WaveProblem, WaveReal, WaveSolver,
};

/// The first cell that differs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AwpDeviation {
    quantity: &'static str,
    cell: [usize; 3],
    got: f64,
    expected: f64,
}

/// Runs `steps` from a random start with poisoned ghosts, and compares every quantity in every cell with a computation of the
/// whole box on rank 0. Only rank 0 gets the result. Collective.
///
/// # Errors
/// Returns the errors of the messages.
pub(crate) async fn check<T: WaveReal, H: GhostExchange<T>>(
    comm: &Comm,
    problem: WaveProblem,
    mut halos: StepExchanges<H>,
    schedule: StepSchedule,
    steps: usize,
) -> Result<Option<AwpDeviation>> {
    let mut solver = WaveSolver::<T>::new(problem).perturbed(SEED).poisoned();
    solver.run(&mut halos, schedule, steps, |_, _| ()).await?;
    halos.close().await?;
    if comm.rank() > 0 {
        for field in solver.fields() {
            comm.send(0, TAG, field.block(problem.domain.own())).await?;
        }
        return Ok(None);
    }
    let alone = alone(problem, steps).await?;
    let mut first = None;
    for rank in 0..comm.size() {
        let part = problem.domain.of(rank);
        for ((quantity, expected), mine) in QUANTITIES
            .into_iter()
            .zip(alone.fields())
            .zip(solver.fields())
        {
            let block = if rank == 0 {
                mine.block(problem.domain.own())
            } else {
                comm.recv(rank, TAG).await?.0
            };
            let deviation = compare(quantity, expected, &part, &block);
            first = first.or(deviation);
        }
    }
    Ok(first)
}

/// Computes the whole box.
async fn alone<T: WaveReal>(problem: WaveProblem, steps: usize) -> Result<WaveSolver<T>> {
    let problem = problem.whole();
    let mut halos = SingleRankExchange::halos(&problem.domain, &ExchangedLayers::FULL);
    let mut solver = WaveSolver::new(problem).perturbed(SEED);
    let schedule = StepSchedule::Plain;
    solver.run(&mut halos, schedule, steps, |_, _| ()).await?;
    Ok(solver)
}

/// Returns the first position where this part of a field of the whole box differs from `block`.
fn compare<T: WaveReal>(
    quantity: &'static str,
    whole: &AwpField<T>,
    part: &AwpDomain,
    block: &[T],
) -> Option<AwpDeviation> {
    let region = part.in_whole();
    let expected = whole.block(region);
    assert_eq!(block.len(), expected.len(), "{quantity} of {part:?}");
    let mut pairs = block.iter().zip(&expected);
    let at = pairs.position(|(got, &expected)| !got.same_bits(expected))?;
    Some(AwpDeviation {
        quantity,
        cell: region.cell(at).map(|index| index - GHOSTS),
        got: block[at].wide(),
        expected: expected[at].wide(),
    })
}

impl fmt::Display for AwpDeviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            quantity,
            cell: [x, y, z],
            got,
            expected,
        } = self;
        write!(
            f,
            "{quantity} in cell ({x}, {y}, {z}) is {got:e}, and {expected:e} when one rank computes it alone"
        )
    }
}

const QUANTITIES: [&str; 9] = ["u", "v", "w", "xx", "yy", "zz", "xy", "xz", "yz"];

const TAG: u32 = 1000;
const SEED: u64 = 5;
