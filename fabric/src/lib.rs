//! Drivers, which move bytes between the ranks of a job without interpreting tags.
//!
//! A driver is anything that implements [`driver::Driver`], with nine methods, none of which blocks or is async, and
//! [`driver::DriverAbilities`], which says what else it can do. A driver knows no futures, no executor, no communicators and no
//! collectives, and can be used without the runtime.
//!
//! - [`loopback`]: the tutorial driver; read it first.
//! - [`shm`]: messages between the processes of one node.
//! - [`verbs`]: InfiniBand and RoCE adapters.
//! - [`portals`]: BXI and other adapters with a Portals 4 library.
//! - [`tcp`]: any network with TCP.
//! - [`sim`]: a simulated cluster in one process.
//! - [`hierarchical`]: shared memory inside each node and a network between nodes, as one driver.
//! - [`deferred`]: a network's driver that can be used before its peers are known.
//! - [`hook`]: wraps any other driver to trace, count or break its traffic.
//! - [`provider`]: the contract by which drivers offer themselves to jobs, with their settings; [`registry`] lists them.
//! - [`offers`]: what each rank of a job can do, and the network that all ranks choose by it.
//! - [`connect`], [`lanes`], [`offload`], [`tags`]: connections, several adapters, counters and task lists, and match bits, as
//!   shared by drivers.

// Shared memory, sleeping and io_uring are those of Linux, and headers and counters fill words of 64 bits.
#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    target_endian = "little"
)))]
compile_error!(
    "Ripstop runs on Linux with 64-bit little-endian processors: it is tested on x86_64, and compiles for aarch64. For other \
     systems there is no driver and no reactor; build on a Linux machine or in a container of one"
);

pub mod c_library;
pub mod connect;
pub mod counters;
mod crc;
pub mod deferred;
pub mod driver;
pub mod hierarchical;
pub mod hook;
pub mod lanes;
pub mod loopback;
pub mod memory;
pub mod offers;
pub mod offload;
pub mod portals;
pub mod provider;
pub mod random;
pub mod registry;
pub mod shm;
pub mod sim;
pub mod tags;
pub mod tcp;
mod timer;
pub mod verbs;
