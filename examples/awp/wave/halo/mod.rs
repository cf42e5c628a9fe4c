//! The exchange of ghosts: the traits of a way of communicating, and its parts.

mod single_rank;
mod lanes;
mod two_sided;
mod window;

use ripstop::Result;

use self::lanes::{End, Lane};
pub(crate) use self::{
    single_rank::Alone,
    two_sided::TwoSided,
    window::{Fenced, Posted},
};
use super::{clock::Stopwatch, field::Field, real::Real};

/// The ghosts of some components, exchanged again and again: those of the velocities, or those of the stresses.
///
/// One exchange is two values, as with windows: one opens this rank to its neighbors, and within it another accesses the
/// neighbors.
pub(crate) trait Halo<T: Real> {
    type Open<'a>: Open<T>
    where
        Self: 'a;

    /// Lets the neighbors send from now on. Ghosts in use are not overwritten before [`Open::finish`].
    ///
    /// # Errors
    /// Those of the messages or the window.
    fn open(&mut self) -> Result<Self::Open<'_>>;

    /// Frees the resources when all ranks have called this. Collective.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    async fn close(self) -> Result<()>;
}

/// An exchange that has been opened.
pub(crate) trait Open<T: Real> {
    type Outgoing<'o>: Outgoing<T>
    where
        Self: 'o;

    /// Waits until this rank may send.
    ///
    /// # Errors
    /// Those of [`Halo::open`].
    async fn start(&mut self, watch: &mut Stopwatch) -> Result<Self::Outgoing<'_>>;

    /// Waits for the data of the neighbors, and copies it to the ghosts.
    ///
    /// # Errors
    /// Those of [`Halo::open`]; the ghosts are undefined then.
    async fn finish(self, fields: &mut [Field<T>], watch: &mut Stopwatch) -> Result<()>;
}

/// The sending side of an exchange.
pub(crate) trait Outgoing<T: Real> {
    /// Sends the layers of a component that the neighbors need. They have their final values.
    fn send(&mut self, component: usize, field: &Field<T>);

    /// Ends the sending of all components, and waits until their buffers are free.
    ///
    /// # Errors
    /// Those of [`Halo::open`].
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
    /// Those of [`Halo::open`].
    pub(crate) async fn close<T: Real>(self) -> Result<()>
    where
        H: Halo<T>,
    {
        self.velocity.close().await?;
        self.stress.close().await
    }
}
