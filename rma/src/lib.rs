//! One-sided windows with epochs as values.
//!
//! A [`Window`] is memory of every rank of a communicator that others may write and read without a word from its owner. Who
//! may do that, and when, is said by *epochs*, and an epoch is a value: it is there while it is open, and the calls that an
//! epoch allows are its methods. A put outside of an epoch is not an error at run time, it does not compile.
//!
//! | value | made by | means |
//! |---|---|---|
//! | [`Exposure`] | [`Window::post`] | these origins may access our memory; we may not, until [`wait`](Exposure::wait) |
//! | [`Access`] | [`Window::start`] | these targets have posted; put and get, until [`complete`](Access::complete) |
//! | [`Fence`] | [`Window::fence`] | everybody may access everybody's memory, until the next fence |
//!
//! # Who owns memory
//!
//! The window owns its memory and lends it as `&mut [T]` between epochs only. `post` borrows the window, so the memory
//! cannot be touched while the exposure lives; if the exposure is leaked instead of waited for, [`Window::local_mut`] panics,
//! because forgetting a value ends the borrow and not the epoch ([`Window::resume`] gives it back). Operations own their
//! buffers and give them back. Dropping any of these futures or values at any time leaks at the most.
//!
//! # What is kept
//!
//! Between two neighbours there are two numbers in each direction, 16 bytes: how often the one has posted to the other, and
//! how many accesses of the other are complete. They only grow; no flag is ever reset, so nothing can overtake anything. For
//! ranks that are no neighbours nothing is kept, and neighbours need not be named before they are used.
//!
//! # Order and atomicity (after MPI-4, chapter 12)
//!
//! - Puts and gets of one epoch are not ordered among each other, also not to the same place; overlapping ones may tear.
//!   Each is complete at its target when the epoch is: when `wait` returns there, or the fence.
//! - An operation's future is ready when its buffer is free again, and for a get when it is filled. That says nothing about
//!   the target, except for a get.
//!
//! # Failure
//!
//! An epoch ends also when a neighbour dies in it, with [`PeerFailed`](ripstop_rt::ErrorKind::PeerFailed), and only after all
//! the others have completed: then the memory is the owner's again, with whatever the dead one had written. Freeing a window
//! that others still use gives them [`NoWindow`](ripstop_rt::ErrorKind::NoWindow).
#![forbid(unsafe_code)]

mod access;
mod exposure;
mod fence;
mod operations;
mod window;

pub use ripstop_rt::onesided::RemoteOp;

pub use self::{
    access::{Access, Start},
    exposure::Exposure,
    fence::Fence,
    window::Window,
};
