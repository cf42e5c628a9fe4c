//! Drivers: they move bytes between the ranks of a job and know no tags' meaning.
//!
//! A driver is anything that implements [`driver::Driver`]: seven methods that answer in values. It knows no futures, no
//! executor, no matching and no communicators, and can be used without the runtime. [`loopback`] is the one to read first;
//! [`offload`] is what a driver counts and does by itself; [`hook`] wraps any other to trace, count or break it; [`shm`] carries
//! messages between the processes of one node; [`verbs`] is for InfiniBand and RoCE adapters, [`portals`] for BXI and others
//! with a Portals 4 library; [`nearfar`] joins one of these with shared memory inside of each node; [`lanes`] is what drivers of
//! several adapters share; [`sim`] simulates a cluster in one process; [`tags`] is what adapters that match messages compare.

pub mod c_library;
pub mod connect;
pub mod counters;
pub mod driver;
pub mod hook;
pub mod lanes;
pub mod late;
pub mod loopback;
pub mod memory;
pub mod nearfar;
pub mod offload;
pub mod portals;
pub mod random;
pub mod shm;
pub mod sim;
pub mod tags;
mod timer;
pub mod verbs;
