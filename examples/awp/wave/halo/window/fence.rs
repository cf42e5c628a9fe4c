//! Windows with fences: all ranks wait for all, before and after an exchange.

use ripstop::{Comm, Fence, Result, Window};

use super::{Place, Put, Puts, Shared, unpack};
use crate::wave::{
    clock::Stopwatch,
    domain::Domain,
    field::Field,
    halo::{Halo, Halos, Open},
    real::Real,
    stencil::Layers,
};

/// An exchange between two fences.
#[derive(Debug)]
pub(crate) struct Fenced<T: Real>(Shared<T>);

impl<T: Real> Fenced<T> {
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
            velocity: Self(Shared::new(comm, domain, &layers.velocity, poison).await?),
            stress: Self(Shared::new(comm, domain, &layers.stress, poison).await?),
        })
    }
}

impl<T: Real> Halo<T> for Fenced<T> {
    type Open<'a> = FenceOpen<'a, T>;

    fn open(&mut self) -> Result<FenceOpen<'_, T>> {
        self.0.spoil();
        let Shared {
            window,
            incoming,
            outgoing,
            ..
        } = &mut self.0;
        Ok(FenceOpen {
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
pub(crate) struct FenceOpen<'a, T: Real> {
    window: &'a mut Window<T>,
    incoming: &'a [Place],
    outgoing: &'a mut [Put<T>],
}

impl<T: Real> Open<T> for FenceOpen<'_, T> {
    type Outgoing<'o>
        = Puts<'o, T, Fence<'o, T>>
    where
        Self: 'o;

    async fn start(&mut self, watch: &mut Stopwatch) -> Result<Puts<'_, T, Fence<'_, T>>> {
        Ok(Puts {
            epoch: watch.waiting(self.window.fence()).await?,
            outgoing: self.outgoing,
        })
    }

    async fn finish(self, fields: &mut [Field<T>], _: &mut Stopwatch) -> Result<()> {
        unpack(self.incoming, self.window.local(), fields);
        Ok(())
    }
}
