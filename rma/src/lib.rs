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
//! | [`Locked`] | [`PassiveWindow::lock`] | we may access these ranks' memory, which they never have to say a word about |
//! | [`SelfLock`] | [`PassiveWindow::lock_self`] | nobody else may access our memory |
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
//! Between two neighbours there are two numbers in each direction: how often the one has posted to the other, and how many
//! accesses of the other are complete: 32 bytes for each, with what it takes to wake who waits. Where neighbours map them each
//! has a cache line of its own, because who waits for the one must not take the other from who is about to write it. They only
//! grow; no flag is ever reset, so nothing can overtake anything. For ranks that are no neighbours nothing is kept, and
//! neighbours need not be named before they are used.
//!
//! # Order and atomicity (after MPI-4, chapter 12)
//!
//! - Puts and gets of one epoch are not ordered among each other, also not to the same place; overlapping ones may tear.
//!   Each is complete at its target when the epoch is: when `wait` returns there, or the fence.
//! - [`accumulate`](Access::accumulate) and its relatives are atomic for each element, towards each other and towards
//!   [`SharedView`], not towards puts and gets; they are not ordered either.
//! - [`flush`](Locked::flush) waits until what was started before is complete at the target; a get or a fetch is when its
//!   future is ready.
//! - An operation's future is ready when its buffer is free again, and for a get when it is filled. That says nothing about
//!   the target, except for a get.
//!
//! # Failure
//!
//! An epoch ends also when a neighbour dies in it, with [`PeerFailed`](ripstop_rt::ErrorKind::PeerFailed), and only after all
//! the others have completed: then the memory is the owner's again, with whatever the dead one had written. A fence fails on all
//! ranks when one fails, finishes without coming to it, or comes to a fence of the other kind; as others may still be in its
//! epoch then, the memory does not come back. Freeing a window
//! that others still use gives them [`NoWindow`](ripstop_rt::ErrorKind::NoWindow).
//!
//! # What does not compile
//!
//! Memory that is exposed:
//! ```compile_fail,E0499
//! async fn touch(window: &mut ripstop_rma::Window<f64>) -> ripstop_rt::Result<()> {
//!     let exposure = window.post(&[1])?;
//!     window.local_mut()[0] = 1.0;
//!     exposure.wait().await?;
//!     Ok(())
//! }
//! ```
//! Two exposures of one window:
//! ```compile_fail,E0499
//! async fn twice(window: &mut ripstop_rma::Window<f64>) -> ripstop_rt::Result<()> {
//!     let exposure = window.post(&[1])?;
//!     window.post(&[2])?;
//!     exposure.wait().await?;
//!     Ok(())
//! }
//! ```
//! An access after its end:
//! ```compile_fail,E0382
//! async fn after(window: &ripstop_rma::Window<f64>) -> ripstop_rt::Result<()> {
//!     let access = window.start(&[1]).await?;
//!     access.complete().await?;
//!     access.put(1, 0, vec![1.0]).await?;
//!     Ok(())
//! }
//! ```
//! Another element type:
//! ```compile_fail,E0271
//! async fn bytes(access: ripstop_rma::Access<'_, f64>) -> ripstop_rt::Result<()> {
//!     access.put(1, 0, vec![1_u8]).await?;
//!     Ok(())
//! }
//! ```
//! A slice of memory that others may access at any time:
//! ```compile_fail,E0599
//! fn slice(window: &mut ripstop_rma::PassiveWindow<f64>) {
//!     window.local_mut()[0] = 1.0;
//! }
//! ```
#![forbid(unsafe_code)]

mod access;
mod exposure;
mod fence;
mod limit;
mod operations;
mod passive;
mod window;

pub use ripstop_rt::onesided::{Combine, Element, Fetching, Overlap, Piece, RemoteOp};

pub use self::{
    access::{Access, Start},
    exposure::{Exposure, Wait},
    fence::Fence,
    passive::{Locked, PassiveWindow, SelfLock, SharedView},
    window::Window,
};
