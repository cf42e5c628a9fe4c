//! How ghosts get their values: what a way of communicating has to offer, and what is exchanged.

mod alone;
mod lanes;
mod two_sided;

use ripstop::Result;

use self::lanes::{End, Lane};
pub(crate) use self::{alone::Alone, two_sided::TwoSided};
use super::{clock::Stopwatch, field::Field, real::Real};

/// The ghosts of some components, exchanged again and again: those of the velocities, or those of the stresses.
pub(crate) trait Halo<T: Real> {
    /// One exchange.
    type Epoch<'a>: Epoch<T>
    where
        Self: 'a;

    /// From here on the neighbours may send. Ghosts that are in use are safe until [`Epoch::finish`].
    ///
    /// # Errors
    /// Those of the messages.
    fn open(&mut self) -> Result<Self::Epoch<'_>>;
}

/// An exchange that has been opened: [`start`](Self::start), [`send`](Self::send) every component once, [`finish`](Self::finish).
pub(crate) trait Epoch<T: Real> {
    /// Returns when this rank may send.
    ///
    /// # Errors
    /// Those of the messages.
    async fn start(&mut self, watch: &mut Stopwatch) -> Result<()>;

    /// Sends the layers of a component that the neighbours need; they have their final values.
    ///
    /// # Errors
    /// Those of the messages.
    fn send(&mut self, component: usize, field: &Field<T>) -> Result<()>;

    /// Waits for what the neighbours send, and puts it into the ghosts.
    ///
    /// # Errors
    /// Those of the messages; the ghosts are of no use then.
    async fn finish(self, fields: &mut [Field<T>], watch: &mut Stopwatch) -> Result<()>;
}

/// Both exchanges of a time step.
#[derive(Debug)]
pub(crate) struct Halos<H> {
    pub(crate) velocity: H,
    pub(crate) stress: H,
}
