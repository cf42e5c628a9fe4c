//! One rank, which is its own neighbor in dimensions that wrap around: copies, and no messages.

use ripstop::Result;

use super::{GhostExchange, GhostLane, GhostSender, OpenExchange, StepExchanges, lanes::lanes};
use crate::wave::{
    clock::AwpStopwatch,
    domain::AwpDomain,
    field::AwpField,
    real::WaveReal,
    stencil::{ExchangedLayers, GhostWidths},
};

/// The exchange of a box that is not split.
#[derive(Debug)]
pub(crate) struct SingleRankExchange<T> {
    lanes: Vec<GhostLane>,
    packed: Vec<T>,
}

impl<T: WaveReal> SingleRankExchange<T> {
    /// Makes the exchange of a domain that is the whole box.
    pub(crate) fn halos(domain: &AwpDomain, layers: &ExchangedLayers) -> StepExchanges<Self> {
        let of = |ghosts: &[GhostWidths]| Self {
            lanes: lanes(domain, ghosts),
            packed: Vec::new(),
        };
        StepExchanges {
            velocity: of(&layers.velocity),
            stress: of(&layers.stress),
        }
    }
}

impl<T: WaveReal> GhostExchange<T> for SingleRankExchange<T> {
    type Open<'a> = &'a mut Self;

    fn open(&mut self) -> Result<&mut Self> {
        Ok(self)
    }
    async fn close(self) -> Result<()> {
        Ok(())
    }
}

impl<T: WaveReal> OpenExchange<T> for &mut SingleRankExchange<T> {
    type Outgoing<'o>
        = NoSender
    where
        Self: 'o;

    async fn start(&mut self, _: &mut AwpStopwatch) -> Result<NoSender> {
        Ok(NoSender)
    }

    async fn finish(self, fields: &mut [AwpField<T>], _: &mut AwpStopwatch) -> Result<()> {
        for lane in &self.lanes {
            let (Some(from), Some(to)) = (lane.from, lane.to) else {
                continue;
            };
            let field = &mut fields[lane.component];
            self.packed.resize(to.region.len(), T::default());
            field.pack(to.region, &mut self.packed);
            field.unpack(from.region, &self.packed);
        }
        Ok(())
    }
}

/// The sending side of a rank without neighbors.
#[derive(Debug)]
pub(crate) struct NoSender;

impl<T: WaveReal> GhostSender<T> for NoSender {
    fn send(&mut self, _: usize, _: &AwpField<T>) {}

    async fn complete(self, _: &mut AwpStopwatch) -> Result<()> {
        Ok(())
    }
}
