//! Seismic waves in a box that is split over the ranks: velocity and stress on a staggered grid, of fourth order in space and
//! second order in time, as in AWP-ODC.
//!
//! `ρ ∂v/∂t = ∇·σ` and `∂σ/∂t = λ (∇·v) 1 + μ (∇v + ∇vᵀ)`. The quantities of a cell lie half a cell apart:
//!
//! | u | v | w | xx, yy, zz | xy | xz | yz |
//! |---|---|---|---|---|---|---|
//! | (−½,0,0) | (0,½,0) | (0,0,½) | (0,0,0) | (−½,½,0) | (−½,0,½) | (0,½,½) |
//!
//! and the velocities half a time step before the stresses.

mod boundary;
mod check;
mod clock;
mod domain;
mod field;
mod halo;
mod kernel;
mod medium;
mod problem;
mod real;
mod simd;
mod source;
pub(crate) mod stencil;

use ripstop::{Result, fabric::random::SeededRandom};

use self::{
    boundary::{FreeSurface, SpongeLayer},
    clock::{AwpStopwatch, WaveSpan},
    halo::{GhostSender, OpenExchange},
    medium::ElasticMedium,
    stencil::{StressGroup, U, V, W},
};
pub(crate) use self::{
    check::check,
    clock::AwpStepTimes,
    domain::{AwpDim, AwpDomain, CellBox, GHOSTS},
    field::AwpField,
    halo::{
        FenceExchange, GhostExchange, PscwExchange, SingleRankExchange, StepExchanges,
        TwoSidedExchange,
    },
    medium::{RockModel, RockProperties},
    problem::{WaveProblem, dt_max},
    real::WaveReal,
    source::{SourceMechanism, WaveSource},
    stencil::ExchangedLayers,
};

/// The order of the work in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepSchedule {
    /// All cells, then the exchange.
    Plain,
    /// The cells that a neighbor needs, component after component; then the other cells, while the messages travel.
    Split,
}

/// This rank's part of the box.
#[derive(Debug)]
pub(crate) struct WaveSolver<T> {
    pub(crate) problem: WaveProblem,
    /// Half a step before the stresses.
    pub(crate) velocity: [AwpField<T>; 3],
    pub(crate) stress: [AwpField<T>; 6],
    medium: ElasticMedium<T>,
    sponge: Option<SpongeLayer<T>>,
    surface: Option<FreeSurface>,
    own: CellBox,
    slabs: Vec<CellBox>,
    interior: CellBox,
    /// If set, ghosts are NaN until they are received.
    poison: bool,
    steps: usize,
}

impl<T: WaveReal> WaveSolver<T> {
    /// Makes a box at rest.
    pub(crate) fn new(problem: WaveProblem) -> Self {
        let WaveProblem {
            domain,
            model,
            sponge,
            free_surface,
            ..
        } = problem;
        let (slabs, interior) = domain.split();
        Self {
            problem,
            velocity: [(); 3].map(|()| AwpField::new(&domain)),
            stress: [(); 6].map(|()| AwpField::new(&domain)),
            medium: ElasticMedium::new(&domain, model, problem.dt / problem.spacing),
            sponge: (sponge > 0).then(|| SpongeLayer::new(&domain, sponge, free_surface)),
            surface: FreeSurface::over(&domain).filter(|_| free_surface),
            own: domain.own(),
            slabs,
            interior,
            poison: false,
            steps: 0,
        }
    }

    /// Fills ghosts with NaN before every exchange, so that a missing value shows in every result that depends on it.
    pub(crate) fn poisoned(self) -> Self {
        Self {
            poison: true,
            ..self
        }
    }

    /// Gives every cell of every quantity a random value, in proportions like those of waves. It depends only on the cell's
    /// place in the whole box.
    pub(crate) fn perturbed(mut self, seed: u64) -> Self {
        let WaveProblem { domain, model, .. } = self.problem;
        let (own, [_, ys, zs]) = (domain.in_whole(), domain.global);
        let sizes = [1.0; 3].into_iter().chain([model.impedance(); 6]);
        let fields = self.velocity.iter_mut().chain(&mut self.stress);
        for ((field, size), quantity) in fields.zip(sizes).zip(0..) {
            let values = (0..own.len()).map(|index| {
                let [x, y, z] = own.cell(index).map(|at| at - GHOSTS);
                let place = ((x * ys + y) * zs + z) as u64;
                let mut random = SeededRandom::new(seed ^ (place * 16 + quantity));
                T::of(size * (random.within(0..1 << 20) as f64 / f64::from(1 << 20) - 0.5))
            });
            field.unpack(domain.own(), &values.collect::<Vec<T>>());
        }
        self
    }

    /// Advances by `steps`, and calls `after` with the time of each.
    ///
    /// # Errors
    /// Returns the errors of the exchange; the fields are undefined afterwards.
    pub(crate) async fn run<H: GhostExchange<T>>(
        &mut self,
        halos: &mut StepExchanges<H>,
        schedule: StepSchedule,
        steps: usize,
        mut after: impl FnMut(&Self, AwpStepTimes),
    ) -> Result<()> {
        let StepExchanges { velocity, stress } = halos;
        self.exchange_stress(stress.open()?).await?;
        if steps == 0 {
            return Ok(());
        }
        let (mut to_velocity, mut to_stress) = (velocity.open()?, stress.open()?);
        for left in (0..steps).rev() {
            let mut watch = AwpStopwatch::start();
            self.advance_velocity(to_velocity, schedule, &mut watch)
                .await?;
            watch.count(WaveSpan::Velocity);
            // The neighbors are behind by at most half a step, so a rank that opens here never makes them wait.
            let next_velocity = (left > 0).then(|| velocity.open()).transpose()?;
            self.advance_stress(to_stress, schedule, &mut watch).await?;
            let next_stress = (left > 0).then(|| stress.open()).transpose()?;
            self.steps += 1;
            watch.count(WaveSpan::Stress);
            after(self, watch.spans_us());
            let Some(next) = next_velocity.zip(next_stress) else {
                break;
            };
            (to_velocity, to_stress) = next;
        }
        Ok(())
    }

    /// Returns all quantities: the velocities, then the stresses.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &AwpField<T>> {
        self.velocity.iter().chain(&self.stress)
    }

    async fn advance_velocity(
        &mut self,
        mut open: impl OpenExchange<T>,
        schedule: StepSchedule,
        watch: &mut AwpStopwatch,
    ) -> Result<()> {
        self.spoil(|solver| &mut solver.velocity);
        watch.count(WaveSpan::Velocity);
        let mut outgoing = open.start(watch).await?;
        watch.count(WaveSpan::Pack);
        if schedule == StepSchedule::Split {
            for component in [U, V, W] {
                for slab in 0..self.slabs.len() {
                    self.update_velocity(&[component], self.slabs[slab]);
                }
                watch.count(WaveSpan::Velocity);
                outgoing.send(component, &self.velocity[component]);
                watch.count(WaveSpan::Pack);
            }
            self.update_velocity(&[U, V, W], self.interior);
            watch.count(WaveSpan::Velocity);
        } else {
            self.update_velocity(&[U, V, W], self.own);
            watch.count(WaveSpan::Velocity);
            for component in [U, V, W] {
                outgoing.send(component, &self.velocity[component]);
            }
        }
        outgoing.complete(watch).await?;
        open.finish(&mut self.velocity, watch).await?;
        watch.count(WaveSpan::Pack);
        if let Some(surface) = self.surface {
            surface.continue_velocities(&mut self.velocity, &self.medium, self.own);
        }
        Ok(())
    }

    async fn advance_stress(
        &mut self,
        mut open: impl OpenExchange<T>,
        schedule: StepSchedule,
        watch: &mut AwpStopwatch,
    ) -> Result<()> {
        self.spoil(|solver| &mut solver.stress);
        watch.count(WaveSpan::Stress);
        let mut outgoing = open.start(watch).await?;
        watch.count(WaveSpan::Pack);
        if schedule == StepSchedule::Split {
            for group in StressGroup::ALL {
                for slab in 0..self.slabs.len() {
                    self.update_stress(&[group], self.slabs[slab]);
                }
                watch.count(WaveSpan::Stress);
                for &component in group.components() {
                    outgoing.send(component, &self.stress[component]);
                }
                watch.count(WaveSpan::Pack);
            }
            self.update_stress(&StressGroup::ALL, self.interior);
            watch.count(WaveSpan::Stress);
        } else {
            self.update_stress(&StressGroup::ALL, self.own);
            watch.count(WaveSpan::Stress);
            for (component, field) in self.stress.iter().enumerate() {
                outgoing.send(component, field);
            }
        }
        outgoing.complete(watch).await?;
        open.finish(&mut self.stress, watch).await?;
        watch.count(WaveSpan::Pack);
        self.mirror_stresses();
        Ok(())
    }

    /// Returns the ghosts of the current stresses.
    async fn exchange_stress(&mut self, mut open: impl OpenExchange<T>) -> Result<()> {
        let watch = &mut AwpStopwatch::start();
        self.spoil(|solver| &mut solver.stress);
        let mut outgoing = open.start(watch).await?;
        for (component, field) in self.stress.iter().enumerate() {
            outgoing.send(component, field);
        }
        outgoing.complete(watch).await?;
        open.finish(&mut self.stress, watch).await?;
        self.mirror_stresses();
        Ok(())
    }

    fn update_velocity(&mut self, components: &[usize], region: CellBox) {
        let (velocity, factors) = (&mut self.velocity, &self.medium.velocity);
        kernel::velocities(components, velocity, &self.stress, factors, region);
        if let Some(sponge) = &self.sponge {
            for &component in components {
                sponge.damp(&mut velocity[component], region);
            }
        }
    }

    fn update_stress(&mut self, groups: &[StressGroup], region: CellBox) {
        kernel::stresses(
            groups,
            &mut self.stress,
            &self.velocity,
            &self.medium,
            region,
        );
        for &component in groups.iter().flat_map(|group| group.components()) {
            let field = &mut self.stress[component];
            if let Some(source) = &self.problem.source {
                source.release(component, field, &self.problem, region, self.steps);
            }
            if let Some(sponge) = &self.sponge {
                sponge.damp(field, region);
            }
            if let Some(surface) = self.surface {
                surface.hold_at_zero(component, field, region);
            }
        }
    }

    fn mirror_stresses(&mut self) {
        if let Some(surface) = self.surface {
            surface.mirror_stresses(&mut self.stress, self.own);
        }
    }

    /// Poisons the ghosts that a neighbor sends.
    fn spoil<const N: usize>(&mut self, fields: impl Fn(&mut Self) -> &mut [AwpField<T>; N]) {
        if !self.poison {
            return;
        }
        let domain = self.problem.domain;
        for ghosts in domain.ghosts() {
            for field in fields(self) {
                field.fill(ghosts, T::NAN);
            }
        }
    }
}
