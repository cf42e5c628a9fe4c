//! The problem that is computed.

use super::{domain::Domain, medium::Model, source::Source};

/// A box of rock, its ends, and the source in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) domain: Domain,
    pub(crate) model: Model,
    /// Edge of a cell, in m.
    pub(crate) spacing: f64,
    /// Length of a time step, in s.
    pub(crate) dt: f64,
    /// Cells that absorb waves, at each end that is neither periodic nor free.
    pub(crate) sponge: usize,
    /// True if the top is a free surface, unless z is periodic. Beyond the other ends everything is zero, which reflects.
    pub(crate) free_surface: bool,
    pub(crate) source: Option<Source>,
}

impl Problem {
    /// Returns the same problem on one rank.
    pub(crate) fn whole(self) -> Self {
        Self {
            domain: self.domain.whole(),
            ..self
        }
    }
}

/// Returns the longest stable time step, in s: 6 h / (7 √3 vp).
pub(crate) fn dt_max(model: &Model, spacing: f64) -> f64 {
    6.0 * spacing / (7.0 * 3.0_f64.sqrt() * model.vp_max())
}
