//! How ghosts get their values: what a way of communicating has to offer, and what is exchanged.

mod alone;
mod lanes;
mod two_sided;
mod window;

use ripstop::Result;

use self::lanes::{End, Lane};
pub(crate) use self::{
    alone::Alone,
    two_sided::TwoSided,
    window::{Fenced, Posted},
};
use super::{clock::Stopwatch, field::Field, real::Real};

/// The ghosts of some components, exchanged again and again: those of the velocities, or those of the stresses.
///
/// One exchange is two values, as with windows: what is open to the neighbours, and within it the access to theirs.
pub(crate) trait Halo<T: Real> {
    type Open<'a>: Open<T>
    where
        Self: 'a;

    /// From here on the neighbours may send. Ghosts that are in use are safe until [`Open::finish`].
    ///
    /// # Errors
    /// Those of the messages or the window.
    fn open(&mut self) -> Result<Self::Open<'_>>;

    /// Frees what it has, when all ranks have come here. Collective.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    async fn close(self) -> Result<()>;
}

/// An exchange that has been opened.
pub(crate) trait Open<T: Real> {
    type Outgoing<'o>: Outgoing<T>
    where
        Self: 'o;

    /// Returns when this rank may send.
    ///
    /// # Errors
    /// As [`Halo::open`].
    async fn start(&mut self, watch: &mut Stopwatch) -> Result<Self::Outgoing<'_>>;

    /// Waits for what the neighbours send, and puts it into the ghosts.
    ///
    /// # Errors
    /// As [`Halo::open`]; the ghosts are of no use then.
    async fn finish(self, fields: &mut [Field<T>], watch: &mut Stopwatch) -> Result<()>;
}

/// What goes to the neighbours.
pub(crate) trait Outgoing<T: Real> {
    /// Sends the layers of a component that the neighbours need; they have their final values.
    fn send(&mut self, component: usize, field: &Field<T>);

    /// Says that all components were sent, and waits until their buffers are free.
    ///
    /// # Errors
    /// As [`Halo::open`].
    async fn complete(self, watch: &mut Stopwatch) -> Result<()>;
}

/// Both exchanges of a time step.
#[derive(Debug)]
pub(crate) struct Halos<H> {
    pub(crate) velocity: H,
    pub(crate) stress: H,
}

impl<H> Halos<H> {
    /// Frees both. Collective.
    ///
    /// # Errors
    /// As [`Halo::open`].
    pub(crate) async fn close<T: Real>(self) -> Result<()>
    where
        H: Halo<T>,
    {
        self.velocity.close().await?;
        self.stress.close().await
    }
}
