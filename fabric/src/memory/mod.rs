//! Memory that a driver may access at any time: [`Region`], and the key to a peer's memory, [`RemoteRegion`].

mod available;
mod region;
mod remote;

pub(crate) use available::room as available;
pub use region::{Region, WeakRegion};
pub(crate) use region::{Words, prefetch_for_read, prefetch_line};
pub use remote::RemoteRegion;
