//! The snippets of the book: every one is compiled and run as a test.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a snippet shows what it got"
)]

mod arrays;
mod beside_mpi4py;
mod collectives;
mod entry;
mod failures;
mod how_to;
mod messages;
mod one_sided;
mod operations;
mod reference;
mod simulation;
mod testing;
mod tutorial;
#[cfg(all(feature = "ndarray", feature = "num-complex", feature = "serde"))]
mod types;
mod writing_a_driver;
