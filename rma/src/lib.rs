//! One-sided windows with epochs as values.
//!
//! A [`Window`] is memory of every rank of a communicator that other ranks may write and read without any call of its owner.
//! *Epochs* determine which ranks may do that, and when. An epoch is a value: the value lives while the epoch is open, and the
//! accesses that the epoch allows are its methods. So a put outside of an epoch is not an error at run time; it does not
//! compile.
//!
//! | value | made by | means |
//! |---|---|---|
//! | [`Exposure`] | [`Window::post`] | only the named origins may access this rank's memory, until [`wait`](Exposure::wait) |
//! | [`Access`] | [`Window::start`] | the named targets have posted; put and get, until [`complete`](Access::complete) |
//! | [`Fence`] | [`Window::fence`] | every rank may access the memory of every rank, until the next fence |
//! | [`Locked`] | [`PassiveWindow::lock_shared`] | this rank may access these ranks' memory, without any call on their side |
//! | [`SelfLock`] | [`PassiveWindow::lock_self`] | no other rank may access this rank's memory |
//!
//! # Memory and its owner
//!
//! The window owns its memory and lends it as `&mut [T]` between epochs only. `post` borrows the window, so the memory cannot
//! be touched while the exposure lives. If the exposure is leaked instead of waited for, the borrow ends but the epoch does
//! not: [`Window::local_mut`] panics, and [`Window::resume`] returns the exposure. Operations own their buffers and give them
//! back. Dropping any of these futures or values at any time leaks memory at worst.
//!
//! # State per neighbor
//!
//! Two ranks that use a window together keep two numbers in each direction: how often one has posted to the other, and how many
//! accesses of the other are complete. Each takes 32 bytes, with what is needed to wake a waiting rank. If the ranks map these
//! numbers, each has a cache line of its own, so that a rank that waits for one does not take the line from a rank that is
//! about to write the other. The numbers only grow and no flag is ever reset, so a late or repeated update does no harm.
//! Nothing is kept for ranks that do not use the window together, and neighbors need not be named before their first use.
//!
//! # Order and atomicity (after MPI-4, chapter 12)
//!
//! - Puts and gets of one epoch are not ordered with each other, even at the same place; overlapping ones may tear. Each is
//!   complete at its target when the epoch is: when `wait` returns there, or the fence.
//! - [`accumulate`](Access::accumulate) and similar operations are atomic for each element, with respect to each other and to
//!   [`SharedView`], but not to puts and gets. They are not ordered either.
//! - [`flush`](Locked::flush) waits until earlier operations are complete at the target; a get or a fetch is complete when its
//!   future is ready.
//! - The future of an operation is ready when its buffer is free again, and for a get when the buffer is filled. The future of a
//!   put does not say that the target has the data.
//!
//! # Failure
//!
//! An epoch also ends when a neighbor dies in it: with [`PeerFailed`](ripstop_rt::ErrorKind::PeerFailed), and only after all
//! other neighbors have completed. Then the memory is the owner's again, with whatever the dead rank had written. A fence fails
//! on all ranks if one rank fails, finishes without calling it, or calls a fence of the other kind. Other ranks may still be in
//! the epoch of that fence then, so the memory does not come back. If a rank frees a window that others still use, they get
//! [`NoWindow`](ripstop_rt::ErrorKind::NoWindow).
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
//! A lock of a window that is not passive:
//! ```compile_fail,E0599
//! async fn lock(window: &ripstop_rma::Window<f64>) -> ripstop_rt::Result<()> {
//!     window.lock_shared(1).await?;
//!     Ok(())
//! }
//! ```
#![forbid(unsafe_code)]

mod access;
mod exposure;
mod fence;
mod operations;
mod passive;
mod time_limit;
mod window;

pub use ripstop_rt::internal::onesided::{
    Combine, Element, Fetching, NoOp, NodeView, NodeWindow, Overlap, Piece, RemoteOp, Replace,
};

pub use self::{
    access::{Access, Start},
    exposure::{Exposure, Wait},
    fence::Fence,
    passive::{Locked, PassiveWindow, SelfLock, SharedView},
    window::Window,
};
