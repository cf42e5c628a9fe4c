//! The runtime of Ripstop: reactor, operations, protocols and communicators.

pub mod boot;
pub mod buffer;
mod clock;
mod comm;
mod contexts;
mod engine;
mod entry;
mod error;
mod event_log;
mod evidence;
mod executor;
mod fabrics;
mod foreign_types;
mod group;
mod heap;
#[doc(hidden)]
pub mod internal;
mod last_calls;
mod lock;
mod metrics;
mod offload;
mod onesided;
mod ops;
mod proto;
mod reactor;
mod runtime;
mod runtime_handle;
mod scope;
mod settings;
mod shared;
pub mod sim;
mod sync;
mod threads;
mod topology;
mod trace;
mod view;

/// Returns a text about what io_uring can do on this machine, or the reason why it does not work.
///
/// # Errors
/// This is not an error of the program: the reactor then sleeps with epoll.
pub fn io_uring() -> std::result::Result<String, UringRefusal> {
    let caps = reactor::probe().uring?;
    let futex = if caps.futex { "with" } else { "without" };
    Ok(format!("works, {futex} waiting on futex words"))
}

/// Items that the macros expand to. Not for users.
#[doc(hidden)]
pub mod __private {
    pub use bytemuck;

    pub use crate::__on_tokio as on_tokio;
    #[cfg(feature = "tokio")]
    pub use crate::entry::run_on_tokio;
    pub use crate::{
        buffer::{TypeSig, Wire},
        comm::Comm,
        entry::{
            PlainOutcome, RankFailure, RankOutcome, ReportedOutcome, SimTest, TestConfig, run_main,
            run_ranks, run_sim, run_test,
        },
    };
}

/// Expansion of a rank's function under `#[ripstop::main(tokio)]`.
#[cfg(feature = "tokio")]
#[doc(hidden)]
#[macro_export]
macro_rules! __on_tokio {
    ($world:expr, $rank:expr) => {
        $crate::__private::run_on_tokio($world, $rank)
    };
}

#[cfg(not(feature = "tokio"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __on_tokio {
    ($world:expr, $rank:expr) => {{
        ::core::compile_error!(
            "the option `tokio` needs the cargo feature of that name: `cargo add ripstop --features tokio`"
        );
        ($rank)($world)
    }};
}

#[cfg(feature = "serde")]
pub use self::foreign_types::{EncodedByte, RecvValueOp};
pub use self::{
    boot::inquest::ENDED_BY_PEER,
    comm::{
        BitAnd, BitOr, BitXor, Cart, Channel, ChannelRecv, Comm, Commutative, Failures, Halo,
        HaloInFlight, Located, LogicalAnd, LogicalOr, LogicalXor, Matched, Max, MaxLoc, Messages,
        Min, MinLoc, PackedCopy, PackedMessage, Product, RecvOp, RecvPackedOp, ReduceOp,
        SendCopyOp, SendOp, SendRecvOp, Source, Status, Sum, Tag, UnpackOp,
    },
    engine::{Footprint, Pool},
    error::{Error, ErrorKind, ErrorReport, OpError, Result},
    evidence::FailureEvidence,
    executor::{AbortedTask, JoinHandle},
    reactor::UringRefusal,
    runtime::{Builder, Runtime},
    runtime_handle::RuntimeHandle,
    scope::{Pending, Scope},
    settings::{
        EventFilter, Executor, ProgressMode, ReactorChoice, Rendezvous, Row, SettingSource,
        Settings,
    },
    shared::Choices,
    view::OperationInFlight,
};
pub use ripstop_fabric::driver::DriverCost;
