//! Memory that a driver may access at any time: [`MemoryRegion`], and the key to a peer's memory, [`RemoteRegion`].

mod available;
mod long_copy;
mod region;
mod remote;
mod wide_word;
mod words;

pub(crate) use available::room as available;
pub use region::{MemoryRegion, WeakRegion};
pub(crate) use region::{prefetch_for_read, prefetch_line};
pub use remote::RemoteRegion;
pub use words::{RegionWord, RegionWords};
