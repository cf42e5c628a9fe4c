//! Windows with post, start, complete and wait: neighbors wait only for neighbors, and only for the data that they need.

use ripstop::{
    Comm, Result,
    rma::{Access, Exposure},
};

use super::{GhostWindow, IncomingLane, OutgoingLane, PutLaneSender, unpack};
use crate::wave::{
    clock::AwpStopwatch,
    domain::AwpDomain,
    field::AwpField,
    halo::{GhostExchange, OpenExchange, StepExchanges},
    real::WaveReal,
    stencil::{ExchangedLayers, GhostWidths},
};

/// An exchange between neighbors.
#[derive(Debug)]
pub(crate) struct PscwExchange<T: WaveReal> {
    shared: GhostWindow<T>,
    /// Ranks that put into this rank's window; each once.
    origins: Vec<usize>,
    /// Ranks into whose windows this rank puts; each once.
    targets: Vec<usize>,
}

impl<T: WaveReal> PscwExchange<T> {
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
            velocity: Self::new(comm, domain, &layers.velocity, poison).await?,
            stress: Self::new(comm, domain, &layers.stress, poison).await?,
        })
    }

    async fn new(
        comm: &Comm,
        domain: &AwpDomain,
        ghosts: &[GhostWidths],
        poison: bool,
    ) -> Result<Self> {
        let shared = GhostWindow::new(comm, domain, ghosts, poison).await?;
        let origins = shared.incoming.iter().map(|place| place.from.peer);
        let targets = shared.outgoing.iter().map(|put| put.to.peer);
        Ok(Self {
            origins: each_once(origins),
            targets: each_once(targets),
            shared,
        })
    }
}

fn each_once(ranks: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut ranks: Vec<usize> = ranks.collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

impl<T: WaveReal> GhostExchange<T> for PscwExchange<T> {
    type Open<'a> = OpenPscwExchange<'a, T>;

    fn open(&mut self) -> Result<OpenPscwExchange<'_, T>> {
        self.shared.spoil();
        Ok(OpenPscwExchange {
            exposure: self.shared.window.post(&self.origins)?,
            incoming: &self.shared.incoming,
            outgoing: &mut self.shared.outgoing,
            targets: &self.targets,
        })
    }

    async fn close(self) -> Result<()> {
        self.shared.window.free().await
    }
}

/// The exchange while it is open to the neighbors.
#[derive(Debug)]
pub(crate) struct OpenPscwExchange<'a, T: WaveReal> {
    exposure: Exposure<'a, T>,
    incoming: &'a [IncomingLane],
    outgoing: &'a mut [OutgoingLane<T>],
    targets: &'a [usize],
}

impl<T: WaveReal> OpenExchange<T> for OpenPscwExchange<'_, T> {
    type Outgoing<'o>
        = PutLaneSender<'o, T, Access<'o, T>>
    where
        Self: 'o;

    async fn start(
        &mut self,
        watch: &mut AwpStopwatch,
    ) -> Result<PutLaneSender<'_, T, Access<'_, T>>> {
        Ok(PutLaneSender {
            epoch: watch.waiting(self.exposure.start(self.targets)).await?,
            outgoing: self.outgoing,
        })
    }

    async fn finish(self, fields: &mut [AwpField<T>], watch: &mut AwpStopwatch) -> Result<()> {
        let memory = watch.waiting(self.exposure.wait()).await?;
        unpack(self.incoming, memory, fields);
        Ok(())
    }
}
