//! The exchange of faces with the neighbors.

use ripstop::{Cart, Halo, HaloInFlight, Result};

use super::{
    clock::{HeatSpan, HeatStopwatch},
    domain::{BoxSide, SIDES},
    field::HeatField,
};

/// The ghosts of a field: those of the neighbors, or none where one rank has the whole box.
#[derive(Debug, Default)]
pub(crate) struct HeatExchange {
    halo: Option<Halo<f64>>,
    /// The sides with neighbors.
    pub(super) sides: Vec<BoxSide>,
    poison: bool,
}

impl HeatExchange {
    /// Makes an exchange with the neighbors in `cart`, for boxes of `cells`. Collective.
    ///
    /// # Errors
    /// A rank failed.
    pub(crate) async fn new(cart: &Cart, cells: [usize; 3]) -> Result<Self> {
        let has_neighbor = |side: &BoxSide| {
            let (low, high) = cart.shift(side.dim, 1);
            (if side.high { high } else { low }).is_some()
        };
        Ok(Self {
            halo: Some(Halo::new(cart, &cells.map(|cells| cells + 2), 1).await?),
            sides: SIDES.into_iter().filter(has_neighbor).collect(),
            poison: false,
        })
    }

    /// Makes an exchange without neighbors.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Fills ghosts with NaN before every exchange, so that a missing value shows in every result that depends on it.
    pub(crate) fn poisoned(self) -> Self {
        Self {
            poison: true,
            ..self
        }
    }

    /// Starts the exchange of the layers of `field`; [`finish`] ends it.
    pub(super) fn start(&mut self, field: &mut HeatField) -> Option<HaloInFlight<'_, f64>> {
        if self.poison {
            self.sides.iter().for_each(|side| field.poison(*side));
        }
        Some(self.halo.as_mut()?.start(&field.values))
    }
}

/// Waits for an exchange, and fills the ghosts.
///
/// # Errors
/// A neighbor failed or finished.
pub(super) async fn finish(
    exchange: Option<HaloInFlight<'_, f64>>,
    field: &mut HeatField,
    watch: &mut HeatStopwatch,
) -> Result<()> {
    if let Some(mut exchange) = exchange {
        watch.waiting(exchange.wait()).await?;
        exchange.finish(&mut field.values).await?;
    }
    watch.count(HeatSpan::Pack);
    Ok(())
}
