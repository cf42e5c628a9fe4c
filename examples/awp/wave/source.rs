//! The source of the waves.

use std::f64::consts::PI;

use super::{
    domain::CellBox,
    field::AwpField,
    problem::WaveProblem,
    real::WaveReal,
    stencil::{XX, XZ, YY, ZZ},
};

/// A point that releases stress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WaveSource {
    pub(crate) kind: SourceMechanism,
    /// The source's cell in the whole box.
    pub(crate) cell: [usize; 3],
    /// Duration of the release in s: the width of a bell curve, whose middle is [`DELAY`] widths after the start.
    pub(crate) width_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceMechanism {
    /// Releases equally in all directions.
    Explosion,
    /// A vertical fault across x whose sides slip up and down; in the plane of x and z it gives four lobes, in turn pushed and
    /// pulled.
    DoubleCouple,
}

impl WaveSource {
    /// Subtracts the release of the step after `steps` from a stress, if the source is in the region.
    pub(super) fn release<T: WaveReal>(
        &self,
        component: usize,
        field: &mut AwpField<T>,
        problem: &WaveProblem,
        region: CellBox,
        steps: usize,
    ) {
        let cell = problem.domain.local(self.cell);
        let Some(cell) = cell.filter(|&cell| region.contains(cell)) else {
            return;
        };
        if self.kind.components().contains(&component) {
            let t = (steps as f64 + 0.5) * problem.dt;
            let amount = problem.dt / problem.spacing.powi(3) * self.rate(t);
            field.set(cell, field.get(cell) - T::of(amount));
        }
    }

    /// Returns the moment rate at time `t`, in N m/s.
    fn rate(&self, t: f64) -> f64 {
        let at = t / self.width_s - DELAY;
        MOMENT / (self.width_s * PI.sqrt()) * (-at * at).exp()
    }

    /// Returns the time at which half of the moment is released, in s.
    pub(crate) fn middle_s(&self) -> f64 {
        DELAY * self.width_s
    }
}

impl SourceMechanism {
    /// Returns the stresses that are released.
    fn components(self) -> &'static [usize] {
        match self {
            Self::Explosion => &[XX, YY, ZZ],
            Self::DoubleCouple => &[XZ],
        }
    }
}

/// Widths from the start to the middle, so that the bell begins at 10⁻⁷ of its height.
const DELAY: f64 = 4.0;

/// Moment in N m: an earthquake of magnitude 4.
const MOMENT: f64 = 1e15;
