//! Compares with the same box on one rank, bit by bit.

use std::fmt;

use ripstop::{Cart, Result};

use super::{HaloMode, HeatDomain, HeatExchange, HeatSolver};

/// The first cell that differs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeatDeviation {
    cell: [usize; 3],
    got: f64,
    expected: f64,
}

/// Runs `steps` with poisoned ghosts, and compares every cell with a computation of the whole box on rank 0. Only rank 0 gets
/// the result. Collective.
///
/// # Errors
/// Returns the errors of the messages.
pub(crate) async fn check(
    cart: &Cart,
    domain: HeatDomain,
    mode: HaloMode,
    steps: usize,
) -> Result<Option<HeatDeviation>> {
    let exchange = HeatExchange::new(cart, domain.cells).await?.poisoned();
    let heat = run(domain, mode, exchange, steps).await?;
    if cart.rank() > 0 {
        cart.send(0, TAG, heat.block()).await?;
        return Ok(None);
    }
    let alone = run(
        HeatDomain::whole(domain.global),
        HaloMode::Blocking,
        HeatExchange::none(),
        steps,
    )
    .await?;
    let mut first = None;
    for rank in 0..cart.size() {
        let part = domain.of(rank);
        let block = if rank == 0 {
            heat.block()
        } else {
            cart.recv(rank, TAG).await?.0
        };
        first = first.or_else(|| alone.compare(part, &block));
    }
    Ok(first)
}

async fn run(
    domain: HeatDomain,
    mode: HaloMode,
    exchange: HeatExchange,
    steps: usize,
) -> Result<HeatSolver> {
    let mut heat = HeatSolver::new(domain, mode, exchange).await?;
    for _ in 0..steps {
        heat.step().await?;
    }
    Ok(heat)
}

impl HeatSolver {
    /// Returns the own cells, z, y, x.
    fn block(&self) -> Vec<f64> {
        let planes = 1..=self.domain.cells[0];
        planes
            .flat_map(|z| self.u.rows(z))
            .flatten()
            .copied()
            .collect()
    }

    /// Returns the first position where this part of the whole box differs from `block`.
    fn compare(&self, part: HeatDomain, block: &[f64]) -> Option<HeatDeviation> {
        let [planes, rows, columns] = part.cells;
        let mut lines = block.chunks_exact(columns);
        for z in part.before[0]..part.before[0] + planes {
            for (y, row) in (0..)
                .zip(self.u.rows(z + 1))
                .skip(part.before[1])
                .take(rows)
            {
                let line = lines.next().unwrap_or_default();
                let expected = &row[part.before[2]..][..columns];
                let differs = |(got, expected): (&f64, &f64)| got.to_bits() != expected.to_bits();
                if let Some(x) = line.iter().zip(expected).position(differs) {
                    let cell = [z, y, part.before[2] + x];
                    return Some(HeatDeviation {
                        cell,
                        got: line[x],
                        expected: expected[x],
                    });
                }
                assert_eq!(
                    line.len(),
                    columns,
                    "a block of {} elements for {:?} cells",
                    block.len(),
                    part.cells
                );
            }
        }
        None
    }
}

impl fmt::Display for HeatDeviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cell: [z, y, x],
            got,
            expected,
        } = self;
        write!(
            f,
            "cell ({x}, {y}, {z}) is {got:e}, and {expected:e} when one rank computes it alone"
        )
    }
}

const TAG: u32 = 20;
