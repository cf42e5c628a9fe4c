//! The problem that is computed.

use super::{domain::AwpDomain, medium::RockModel, source::WaveSource};

/// A box of rock, its ends, and the source in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WaveProblem {
    pub(crate) domain: AwpDomain,
    pub(crate) model: RockModel,
    /// Edge of a cell, in m.
    pub(crate) spacing: f64,
    /// Length of a time step, in s.
    pub(crate) dt: f64,
    /// Cells that absorb waves, at each end that is neither periodic nor free.
    pub(crate) sponge: usize,
    /// True if the top is a free surface, unless z is periodic. Beyond the other ends everything is zero, which reflects.
    pub(crate) free_surface: bool,
    pub(crate) source: Option<WaveSource>,
}

impl WaveProblem {
    /// Returns the same problem on one rank.
    pub(crate) fn whole(self) -> Self {
        Self {
            domain: self.domain.whole(),
            ..self
        }
    }
}

/// Returns the longest stable time step, in s: 6 h / (7 √3 vp).
pub(crate) fn dt_max(model: &RockModel, spacing: f64) -> f64 {
    6.0 * spacing / (7.0 * 3.0_f64.sqrt() * model.vp_max())
}
