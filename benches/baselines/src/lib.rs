//! Baselines for Ripstop's Portals driver: messages as other libraries lay them out, over the same library and at the same cost
//! for a byte.
//!
//! - [`PscomDriver`] lays messages out as pscom4portals. It has buffers for each peer, each a list entry that takes one message,
//!   and no flow control: a message that finds no entry is dropped, and its sender puts it again immediately.
//! - [`MpcDriver`] lays messages out as MPC. It has blocks that all peers share, like the slabs of Ripstop's driver, but smaller
//!   and more of them. A job that runs out of blocks fails.
//!
//! All ranks of a job use the same layout. Everything but messages is left to Ripstop's driver.

mod arrivals;
mod buffers;
mod mpc;
mod prepare;
mod provider;
mod pscom;
mod sinks;
mod variables;

pub use self::{
    mpc::MpcDriver,
    prepare::{BaselineLayout, PreparedBaseline},
    provider::{BaselineProvider, MPC, PSCOM},
    pscom::PscomDriver,
    variables::{PscomLayout, PscomVariable},
};
