//! The trace of a rank: when each operation that the application started began, was awaited, and ended.
//!
//! With `RIPSTOP_TRACE=FILE`, each rank writes the file `FILE.RANK`, which `ripstop trace` reads. Without it, nothing is
//! recorded, and operations do not look for a recorder. They look at one flag of the engine, which also says that a communicator
//! was revoked. Only operations that wait, and collectives of several ranks, look at that flag for the recorder alone.
//!
//! - [`format`](mod@format): the bytes of the file, written by the rank and read by `ripstop trace`, which takes nothing for
//!   granted.
//! - `records`: the records of the file as bytes, which are written together in blocks.
//! - `recorder`: what the engine reports, as records in a buffer. The rank writes the buffer when it is full, when it is about to
//!   sleep, and when it leaves its job. So a killed rank leaves all but its last records.
//! - `reported_op`: the same as events of the `tracing` crate, for programs that subscribe to them. If any subscriber of the
//!   process, such as the layer for spans, sets no limit to the level, each operation takes memory for its event, wanted or not:
//!   only the subscriber knows, and it is not asked under the lock of the engine.
//! - `window_calls`: epochs of windows, and waits for them.
//! - [`spans`]: spans of the application, which the crate `ripstop-tracing` reports, in the same file.
//!
//! Each record holds one operation, and is written when the operation ends. Nothing goes over the network: a message's two ends
//! are joined by `ripstop trace`, which counts the messages from one rank to another.

mod file;
pub mod format;
mod recorder;
mod records;
mod reported_op;
pub mod spans;
mod window_calls;

pub(crate) use format::TracedKind;
pub(crate) use recorder::{TraceRecorder, TracedCollective};
pub(crate) use reported_op::ReportedOp;
pub(crate) use window_calls::{PairedEpoch, WindowCall};
