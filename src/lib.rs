//! Ripstop: an async networking runtime for HPC, in which a scientific code awaits its communication.
//!
//! ```no_run
//! use ripstop::{Comm, Result};
//!
//! #[ripstop::main]
//! async fn main(world: Comm) -> Result<()> {
//!     let (rank, size) = (world.rank(), world.size());
//!     let inbox = world.recv::<f64>((rank + size - 1) % size, 7);
//!     world.send((rank + 1) % size, 7, vec![rank as f64; 1024]).await?;
//!     let (from_the_left, _) = inbox.await?;
//!     assert_eq!(from_the_left[0] as usize, (rank + size - 1) % size);
//!     Ok(())
//! }
//! ```
//!
//! Run it with `ripstop run -n 4 PROGRAM`, under `mpiexec.hydra` or `srun --mpi=pmi2`, or alone as one rank.
//!
//! | to | see |
//! |---|---|
//! | send and receive | [`Comm`] |
//! | combine, gather or transpose over all ranks | [`Collectives`], [`Neighborhood`] |
//! | arrange ranks in a grid and exchange ghosts | [`Cart`], [`Halo`] |
//! | send parts of arrays, and types of your own | [`Layout`](buffer::Layout), [`Wire`] |
//! | read and write the memory of other ranks | [`Window`], [`NodeWindow`] |
//! | handle errors | [`ErrorKind`], [`ErrorReport`], [`OpError`] |
//! | go on when a rank dies | [`Comm::revoke`], [`Comm::agree`], [`Comm::shrink`] |
//! | test with ranks, and with simulated ones | [`macro@test`], [`macro@sim`] |
//! | count messages, list operations in flight, change settings | [`RuntimeHandle`], [`Builder`], [`settings`] |
//!
//! No cargo feature is on by default. `tokio` runs a program inside of tokio. `half`, `nalgebra`, `ndarray`, `num-complex` and
//! `serde` send types of these crates. `cli` is for the command `ripstop` alone, and `examples`, `proptest` and `spans`
//! are for examples and tests of the repository.

/// Algorithms of collectives: plans as data, what they cost and how they are chosen, and the futures of collectives.
pub use ripstop_collectives as collectives;
pub use ripstop_collectives::{
    Collectives, Graph, Neighborhood, Reduction, ReproducibleSum, Tuned, Tuning,
};
/// The drivers, for programs that need only the transports, or that trace and break them in tests.
pub use ripstop_fabric as fabric;
/// One-sided access to the memory of other ranks: windows, their epochs, and atomic updates.
pub use ripstop_rma as rma;
pub use ripstop_rma::{NodeWindow, Window};
/// The trait of types that may travel, and the macro that derives it.
pub use ripstop_rt::buffer::Wire;
pub use ripstop_rt::{
    AbortedTask, BitAnd, BitOr, BitXor, Builder, Cart, Channel, ChannelRecv, Comm, Commutative,
    ENDED_BY_PEER, Error, ErrorKind, ErrorReport, FailureEvidence, Failures, Halo, HaloInFlight,
    JoinHandle, Located, LogicalAnd, LogicalOr, LogicalXor, Matched, Max, MaxLoc, Messages, Min,
    MinLoc, OpError, OperationInFlight, PackedCopy, PackedMessage, Pending, Product, RecvOp,
    RecvPackedOp, ReduceOp, Result, Runtime, RuntimeHandle, Scope, SendCopyOp, SendOp, SendRecvOp,
    Source, Status, Sum, Tag, UnpackOp, boot, buffer, sim,
};
#[cfg(feature = "serde")]
pub use ripstop_rt::{EncodedByte, RecvValueOp};
pub use ripstop_rt_macros::{Wire, main, sim, test};

/// The settings of a runtime, what it chose because of them, and what it takes of memory.
pub mod settings {
    pub use ripstop_rt::{
        Choices, EventFilter, Footprint, Pool, ProgressMode, ReactorChoice, Rendezvous, Row,
        SettingSource, Settings,
    };
}

/// The names that most programs use: `use ripstop::prelude::*;`.
pub mod prelude {
    pub use crate::{
        Cart, Collectives, Comm, Commutative, Error, ErrorKind, Graph, Halo, Located, Max, MaxLoc,
        Min, MinLoc, Neighborhood, OpError, Product, ReproducibleSum, Result, Runtime, Source,
        Status, Sum, Tag, Window, Wire,
        buffer::{BufExt, Layout},
    };
}

/// The targets of macro expansions. Not for users.
#[doc(hidden)]
pub use ripstop_rt::__private;

/// The programs of the README are compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
