//! The exchange of ghosts: the traits of a way of communicating, and its parts.

mod lanes;
mod single_rank;
mod two_sided;
mod window;

use ripstop::Result;

use self::lanes::{GhostLane, LaneEnd};
pub(crate) use self::{
    single_rank::SingleRankExchange,
    two_sided::TwoSidedExchange,
    window::{FenceExchange, PscwExchange},
};
use super::{clock::AwpStopwatch, field::AwpField, real::WaveReal};

/// The ghosts of some components, exchanged again and again: those of the velocities, or those of the stresses.
///
/// One exchange is two values, as with windows: one opens this rank to its neighbors, and within it another accesses the
/// neighbors.
pub(crate) trait GhostExchange<T: WaveReal> {
    type Open<'a>: OpenExchange<T>
    where
        Self: 'a;

    /// Lets the neighbors send from now on. Ghosts in use are not overwritten before [`OpenExchange::finish`].
    ///
    /// # Errors
    /// Returns the errors of the messages or the window.
    fn open(&mut self) -> Result<Self::Open<'_>>;

    /// Frees the resources when all ranks have called this. Collective.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open).
    async fn close(self) -> Result<()>;
}

/// An exchange that has been opened.
pub(crate) trait OpenExchange<T: WaveReal> {
    type Outgoing<'o>: GhostSender<T>
    where
        Self: 'o;

    /// Waits until this rank may send.
    ///
    /// # Errors
    /// Returns the errors of [`GhostExchange::open`].
    async fn start(&mut self, watch: &mut AwpStopwatch) -> Result<Self::Outgoing<'_>>;

    /// Waits for the data of the neighbors, and copies it to the ghosts.
    ///
    /// # Errors
    /// Returns the errors of [`GhostExchange::open`]; the ghosts are undefined then.
    async fn finish(self, fields: &mut [AwpField<T>], watch: &mut AwpStopwatch) -> Result<()>;
}

/// The sending side of an exchange.
pub(crate) trait GhostSender<T: WaveReal> {
    /// Sends the layers of a component that the neighbors need. They have their final values.
    fn send(&mut self, component: usize, field: &AwpField<T>);

    /// Ends the sending of all components, and waits until their buffers are free.
    ///
    /// # Errors
    /// Returns the errors of [`GhostExchange::open`].
    async fn complete(self, watch: &mut AwpStopwatch) -> Result<()>;
}

/// Both exchanges of a time step.
#[derive(Debug)]
pub(crate) struct StepExchanges<H> {
    pub(crate) velocity: H,
    pub(crate) stress: H,
}

impl<H> StepExchanges<H> {
    /// Frees both. Collective.
    ///
    /// # Errors
    /// Returns the errors of [`GhostExchange::open`].
    pub(crate) async fn close<T: WaveReal>(self) -> Result<()>
    where
        H: GhostExchange<T>,
    {
        self.velocity.close().await?;
        self.stress.close().await
    }
}
