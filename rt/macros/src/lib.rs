//! Attributes and derives of Ripstop: `#[ripstop::main]`, `#[ripstop::test]`, `#[ripstop::sim]` and `#[derive(Wire)]`.
//!
//! What they expand to names `::ripstop::__private`. Inside the runtime itself, where there is no `ripstop`, each takes
//! `crate = "path"`, the path of a module that has `__private` in it.

use proc_macro::TokenStream;
use syn::{DeriveInput, ItemFn, parse_macro_input};

mod entry;
mod options;
mod wire;

/// Makes a program of an `async fn main(world: Comm)`.
///
/// Every rank runs it, with the communicator of all ranks. It may return `()` or a `Result`: an error is printed with its
/// causes, and ends the rank with an exit code other than 0.
///
/// With `#[ripstop::main(tokio)]`, and the cargo feature `tokio` of `ripstop`, all of it is inside of a tokio runtime: its tasks,
/// timers and sockets work, and the rank waits as fast as without it.
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
        options::Main::parse(options.into()).and_then(|options| entry::main(&options, &function)),
    )
}

/// Makes a test of an `async fn name(world: Comm)`, run by several ranks under plain `cargo test`.
///
/// It may return `()` or a `Result`. The test fails when any rank panics or returns an error. Options:
///
/// - `ranks = 4`: how many; always given, at least 1.
/// - `process`: each rank is a process of its own. Without it, each is a thread.
/// - `timeout = 30`: the seconds after which the test fails.
/// - `tokio`: all of it is inside of a tokio runtime, as with `#[ripstop::main(tokio)]`.
///
/// ```ignore
/// use ripstop::prelude::*;
///
/// #[ripstop::test(ranks = 4)]
/// async fn everybody_meets(world: Comm) -> Result<()> {
///     assert_eq!(world.size(), 4);
///     world.barrier().await
/// }
/// ```
#[proc_macro_attribute]
pub fn test(options: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    finish(
        options::Test::parse(options.into()).and_then(|options| entry::test(&options, &function)),
    )
}

/// Makes a test of an `async fn name(world: Comm)`, run by any number of simulated ranks in virtual time, from a seed.
///
/// It may return `()` or a `Result`. The test fails when any rank panics or returns an error, and when ranks wait for each other
/// for ever; then it prints the line that repeats it. Options:
///
/// - `ranks = 64`: how many; always given, at least 1.
/// - `seed = 7`: where all chance comes from; by default a number made of the test's name.
/// - `fabric = "bxi"`: a preset of the simulator; `"ideal"` by default.
/// - `faults = "drop=0.3,kill=3@2ms"`: what goes wrong; nothing by default.
/// - `datagrams`: losses reach the runtime. Without it the simulated NIC hides them, and only takes longer.
///
/// `RIPSTOP_SIM_SEED=n` runs it with that seed, `RIPSTOP_SIM_SEEDS=n` with so many fresh seeds as well.
///
/// ```ignore
/// use ripstop::prelude::*;
///
/// #[ripstop::sim(ranks = 512, fabric = "bxi", faults = "drop=0.01")]
/// async fn everybody_meets(world: Comm) -> Result<()> {
///     world.barrier().await
/// }
/// ```
#[proc_macro_attribute]
pub fn sim(options: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    finish(options::Sim::parse(options.into()).and_then(|options| entry::sim(&options, &function)))
}

/// Lets values of a struct travel in messages.
///
/// The struct is `#[repr(C)]` or `#[repr(transparent)]`, is `Copy`, has at least one field, no generic parameters and no
/// padding, and all its fields are `Wire`; what is missing is a compile error that says so. The derive also implements
/// `bytemuck::Pod` and `bytemuck::Zeroable`, so do not derive those as well.
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
