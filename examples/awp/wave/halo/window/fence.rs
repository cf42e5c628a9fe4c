//! Windows with fences: all ranks wait for all, before and after an exchange.

use ripstop::{Comm, Result, Window, rma::Fence};

use super::{GhostWindow, IncomingLane, OutgoingLane, PutLaneSender, unpack};
use crate::wave::{
    clock::AwpStopwatch,
    domain::AwpDomain,
    field::AwpField,
    halo::{GhostExchange, OpenExchange, StepExchanges},
    real::WaveReal,
    stencil::ExchangedLayers,
};

/// An exchange between two fences.
#[derive(Debug)]
pub(crate) struct FenceExchange<T: WaveReal>(GhostWindow<T>);

impl<T: WaveReal> FenceExchange<T> {
    /// Like [`TwoSidedExchange::halos`](crate::wave::TwoSidedExchange::halos). Collective.
    ///
    /// # Errors
    /// There is no memory, or a rank failed.
    pub(crate) async fn halos(
        comm: &Comm,
        domain: &AwpDomain,
        layers: &ExchangedLayers,
        poison: bool,
    ) -> Result<StepExchanges<Self>> {
        Ok(StepExchanges {
            velocity: Self(GhostWindow::new(comm, domain, &layers.velocity, poison).await?),
            stress: Self(GhostWindow::new(comm, domain, &layers.stress, poison).await?),
        })
    }
}

impl<T: WaveReal> GhostExchange<T> for FenceExchange<T> {
    type Open<'a> = OpenFenceExchange<'a, T>;

    fn open(&mut self) -> Result<OpenFenceExchange<'_, T>> {
        self.0.spoil();
        let GhostWindow {
            window,
            incoming,
            outgoing,
            ..
        } = &mut self.0;
        Ok(OpenFenceExchange {
            window,
            incoming,
            outgoing,
        })
    }

    async fn close(self) -> Result<()> {
        self.0.window.free().await
    }
}

/// The opened exchange, from the first fence on.
#[derive(Debug)]
pub(crate) struct OpenFenceExchange<'a, T: WaveReal> {
    window: &'a mut Window<T>,
    incoming: &'a [IncomingLane],
    outgoing: &'a mut [OutgoingLane<T>],
}

impl<T: WaveReal> OpenExchange<T> for OpenFenceExchange<'_, T> {
    type Outgoing<'o>
        = PutLaneSender<'o, T, Fence<'o, T>>
    where
        Self: 'o;

    async fn start(
        &mut self,
        watch: &mut AwpStopwatch,
    ) -> Result<PutLaneSender<'_, T, Fence<'_, T>>> {
        Ok(PutLaneSender {
            epoch: watch.waiting(self.window.fence()).await?,
            outgoing: self.outgoing,
        })
    }

    async fn finish(self, fields: &mut [AwpField<T>], _: &mut AwpStopwatch) -> Result<()> {
        unpack(self.incoming, self.window.local(), fields);
        Ok(())
    }
}
