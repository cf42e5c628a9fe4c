//! The heat equation on a box that is split over the ranks.
//!
//! `u' = u + α (Σ of the six neighbors − 6 u)`, zero on the boundary, started as a sine mode, whose decay is known exactly.
//! Triples are in the order z, y, x, from the slowest to the fastest dimension.

mod check;
mod clock;
mod domain;
mod exchange;
mod field;
mod simd;
mod sine;
mod stencil;

use std::ops::RangeInclusive;

use ripstop::{HaloInFlight, Result};

pub(crate) use self::{check::check, clock::HeatLap, domain::HeatDomain, exchange::HeatExchange};
use self::{
    clock::{HeatSpan, HeatStopwatch},
    domain::{HeatDim, SIDES},
    field::HeatField,
};

/// The order of the work in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HaloMode {
    /// Exchange the faces of `u`, then update all cells.
    Blocking,
    /// Update the cells that a neighbor needs, send them, update the others meanwhile, and only then wait. Look now and then
    /// whether the messages have come: without a free processor, nothing else moves them in the meantime.
    Overlap,
}

/// This rank's part of the box, at two moments.
#[derive(Debug)]
pub(crate) struct HeatSolver {
    domain: HeatDomain,
    mode: HaloMode,
    u: HeatField,
    v: HeatField,
    exchange: HeatExchange,
    steps: usize,
}

impl HeatSolver {
    /// Makes the start: the sine mode, and the ghosts of `u` if `mode` needs them.
    ///
    /// # Errors
    /// Returns the errors of the exchange.
    pub(crate) async fn new(
        domain: HeatDomain,
        mode: HaloMode,
        exchange: HeatExchange,
    ) -> Result<Self> {
        let (u, v) = (HeatField::new(domain.cells), HeatField::new(domain.cells));
        let mut heat = Self {
            domain,
            mode,
            u,
            v,
            exchange,
            steps: 0,
        };
        sine::start(&heat.domain, &mut heat.u);
        if mode == HaloMode::Overlap {
            heat.exchange_u(&mut HeatStopwatch::start()).await?;
        }
        Ok(heat)
    }

    /// Makes one step. It allocates nothing here.
    ///
    /// # Errors
    /// Returns the errors of the exchange; the fields are undefined afterwards.
    pub(crate) async fn step(&mut self) -> Result<HeatLap> {
        let mut watch = HeatStopwatch::start();
        match self.mode {
            HaloMode::Blocking => self.step_blocking(&mut watch).await?,
            HaloMode::Overlap => self.step_overlap(&mut watch).await?,
        }
        std::mem::swap(&mut self.u, &mut self.v);
        self.steps += 1;
        Ok(watch.spans_us())
    }

    async fn step_blocking(&mut self, watch: &mut HeatStopwatch) -> Result<()> {
        self.exchange_u(watch).await?;
        sweep(
            &self.u,
            &mut self.v,
            1..=self.domain.cells[HeatDim::Z],
            self.steps,
            || (),
        );
        watch.count(HeatSpan::Compute);
        Ok(())
    }

    /// The ghosts of `u` have come; those of `v` arrive while the interior is computed.
    async fn step_overlap(&mut self, watch: &mut HeatStopwatch) -> Result<()> {
        for &side in &self.exchange.sides {
            stencil::update_face(&self.u, &mut self.v, side);
        }
        watch.count(HeatSpan::Compute);
        let (below, above) = (SIDES[0], SIDES[1]);
        let has = |side| usize::from(self.exchange.sides.contains(&side));
        let planes = 1 + has(below)..=self.domain.cells[HeatDim::Z] - has(above);
        let exchange = self.exchange.start(&mut self.v);
        watch.count(HeatSpan::Pack);
        let mut has_come = false;
        let look = || has_come = has_come || exchange.as_ref().is_none_or(HaloInFlight::is_done);
        sweep(&self.u, &mut self.v, planes, self.steps, look);
        watch.count(HeatSpan::Compute);
        exchange::finish(exchange, &mut self.v, watch).await
    }

    async fn exchange_u(&mut self, watch: &mut HeatStopwatch) -> Result<()> {
        let exchange = self.exchange.start(&mut self.u);
        exchange::finish(exchange, &mut self.u, watch).await
    }

    /// Returns the largest difference of this rank's cells from the exact decay, and how large rounding alone may make it.
    pub(crate) fn error(&self) -> (f64, f64) {
        (
            sine::error(&self.domain, &self.u, self.steps),
            sine::tolerance(&self.domain, self.steps),
        )
    }
}

/// Updates these planes of `v`, every other step downwards, because the planes touched last are still in the cache. Calls
/// `look` a few times meanwhile.
fn sweep(
    u: &HeatField,
    v: &mut HeatField,
    planes: RangeInclusive<usize>,
    steps: usize,
    mut look: impl FnMut(),
) {
    let update = |(nth, z): (usize, usize)| {
        stencil::update_plane(u, v, z);
        if nth % PLANES_PER_LOOK == PLANES_PER_LOOK - 1 {
            look();
        }
    };
    if steps.is_multiple_of(2) {
        planes.enumerate().for_each(update);
    } else {
        planes.rev().enumerate().for_each(update);
    }
}

/// Planes between two looks at the messages. A look takes a fraction of a microsecond, and a plane of 64 x 64 cells three.
const PLANES_PER_LOOK: usize = 4;
