//! Attributes and derives of Ripstop: `#[ripstop::main]`, `#[ripstop::test]`, `#[ripstop::sim]` and `#[derive(Wire)]`.
//!
//! The expansions use paths under `::ripstop::__private`. Inside the runtime crate, where `ripstop` does not exist,
//! each macro takes `crate = "path"`, the path of a module that contains `__private`.

use proc_macro::TokenStream;
use syn::{DeriveInput, ItemFn, parse_macro_input};

mod entry;
mod options;
mod wire;

/// Turns an `async fn main(world: Comm)` into a program.
///
/// Every rank runs it, with the communicator of all ranks. It may return `()` or a `Result`. An error is printed with
/// its causes, and the rank then exits with a code other than 0.
///
/// With `#[ripstop::main(tokio)]`, and the cargo feature `tokio` of `ripstop`, everything runs inside a tokio runtime:
/// its tasks, timers and sockets work, and the rank waits as fast as without it.
///
/// ```ignore
/// use ripstop::prelude::*;
///
/// #[ripstop::main]
/// async fn main(world: Comm) -> Result<()> {
///     world.barrier().await
/// }
/// ```
#[proc_macro_attribute]
pub fn main(options: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    finish(
        options::MainOptions::parse(options.into())
            .and_then(|options| entry::main(&options, &function)),
    )
}

/// Turns an `async fn name(world: Comm)` into a test, run by several ranks under plain `cargo test`.
///
/// It may return `()` or a `Result`. The test fails if any rank panics or returns an error. Options:
///
/// - `ranks = 4`: number of ranks; required, at least 1.
/// - `process`: each rank is a separate process. Without it, each rank is a thread.
/// - `timeout = 30`: number of seconds after which the test fails.
/// - `tokio`: everything runs inside a tokio runtime, as with `#[ripstop::main(tokio)]`.
///
/// ```ignore
/// use ripstop::prelude::*;
///
/// #[ripstop::test(ranks = 4)]
/// async fn all_ranks_meet(world: Comm) -> Result<()> {
///     assert_eq!(world.size(), 4);
///     world.barrier().await
/// }
/// ```
#[proc_macro_attribute]
pub fn test(options: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    finish(
        options::TestOptions::parse(options.into())
            .and_then(|options| entry::test(&options, &function)),
    )
}

/// Turns an `async fn name(world: Comm)` into a test, run by any number of simulated ranks in virtual time, from a
/// seed.
///
/// It may return `()` or a `Result`. The test fails if any rank panics or returns an error, or if ranks wait for each
/// other forever. Then it prints the command that repeats the run. Options:
///
/// - `ranks = 64`: number of ranks; required, at least 1.
/// - `seed = 7`: seed of all random decisions; by default a number derived from the test's name.
/// - `fabric = "bxi"`: a preset of the simulator; `"ideal"` by default.
/// - `faults = "drop=0.3,kill=3@2ms"`: faults to inject; none by default.
/// - `datagrams`: lost packets reach the runtime. Without it, the simulated NIC recovers them, which takes longer.
///
/// `RIPSTOP_SIM_SEED=n` runs the test with that seed. `RIPSTOP_SIM_SEEDS=n` also runs it with `n` fresh seeds.
///
/// ```ignore
/// use ripstop::prelude::*;
///
/// #[ripstop::sim(ranks = 512, fabric = "bxi", faults = "drop=0.01")]
/// async fn all_ranks_meet(world: Comm) -> Result<()> {
///     world.barrier().await
/// }
/// ```
#[proc_macro_attribute]
pub fn sim(options: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    finish(
        options::SimOptions::parse(options.into())
            .and_then(|options| entry::sim(&options, &function)),
    )
}

/// Allows values of a struct to be sent in messages.
///
/// The struct must be `#[repr(C)]` or `#[repr(transparent)]`, and `Copy`, with at least one field, no generic
/// parameters and no padding, and all its fields must be `Wire`. Otherwise a compile error names what is missing. The
/// derive also implements `bytemuck::Pod` and `bytemuck::Zeroable`, so do not derive those as well.
///
/// ```ignore
/// #[derive(Clone, Copy, Debug, Wire)]
/// #[repr(C)]
/// struct Particle {
///     position: [f64; 3],
///     id: u64,
/// }
/// ```
#[proc_macro_derive(Wire, attributes(wire))]
pub fn derive_wire(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as DeriveInput);
    let derived = wire::derive(&item);
    derived
        .unwrap_or_else(|error| wire::refuse(&item, &error))
        .into()
}

fn finish(expansion: syn::Result<proc_macro2::TokenStream>) -> TokenStream {
    expansion
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}
