//! Windows with post, start, complete and wait: neighbors wait only for neighbors, and only for the data that they need.

use ripstop::{Access, Comm, Exposure, Result};

use super::{Place, Put, Puts, Shared, unpack};
use crate::wave::{
    clock::Stopwatch,
    domain::Domain,
    field::Field,
    halo::{Halo, Halos, Open},
    real::Real,
    stencil::{Ghosts, Layers},
};

/// An exchange between neighbors.
#[derive(Debug)]
pub(crate) struct Posted<T: Real> {
    shared: Shared<T>,
    /// Ranks that put into this rank's window; each once.
    origins: Vec<usize>,
    /// Ranks into whose windows this rank puts; each once.
    targets: Vec<usize>,
}

impl<T: Real> Posted<T> {
    /// Like [`TwoSided::halos`](crate::wave::TwoSided::halos). Collective.
    ///
    /// # Errors
    /// There is no memory, or a rank failed.
    pub(crate) async fn halos(
        comm: &Comm,
        domain: &Domain,
        layers: &Layers,
        poison: bool,
    ) -> Result<Halos<Self>> {
        Ok(Halos {
            velocity: Self::new(comm, domain, &layers.velocity, poison).await?,
            stress: Self::new(comm, domain, &layers.stress, poison).await?,
        })
    }

    async fn new(comm: &Comm, domain: &Domain, ghosts: &[Ghosts], poison: bool) -> Result<Self> {
        let shared = Shared::new(comm, domain, ghosts, poison).await?;
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

impl<T: Real> Halo<T> for Posted<T> {
    type Open<'a> = PostOpen<'a, T>;

    fn open(&mut self) -> Result<PostOpen<'_, T>> {
        self.shared.spoil();
        Ok(PostOpen {
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
pub(crate) struct PostOpen<'a, T: Real> {
    exposure: Exposure<'a, T>,
    incoming: &'a [Place],
    outgoing: &'a mut [Put<T>],
    targets: &'a [usize],
}

impl<T: Real> Open<T> for PostOpen<'_, T> {
    type Outgoing<'o>
        = Puts<'o, T, Access<'o, T>>
    where
        Self: 'o;

    async fn start(&mut self, watch: &mut Stopwatch) -> Result<Puts<'_, T, Access<'_, T>>> {
        Ok(Puts {
            epoch: watch.waiting(self.exposure.start(self.targets)).await?,
            outgoing: self.outgoing,
        })
    }

    async fn finish(self, fields: &mut [Field<T>], watch: &mut Stopwatch) -> Result<()> {
        let memory = watch.waiting(self.exposure.wait()).await?;
        unpack(self.incoming, memory, fields);
        Ok(())
    }
}
