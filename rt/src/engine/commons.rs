//! What all parts of the engine use: the operations, the queues of the peers, the commands for the driver, and what is collected
//! for the time after the lock.

use std::task::Waker;

use super::{
    OneSidedCommand, ProgramJob, exposed_keys::ExposedKeys, groups::GroupTable, peer::EnginePeers,
};
use crate::{
    clock::ClockTime,
    ops::{ErasedBuffer, OpTable},
    proto::path::PathTables,
    reactor::Timers,
};

/// The state of an engine that all its parts borrow.
pub(crate) struct EngineCommons {
    pub(crate) ops: OpTable,
    pub(super) peers: EnginePeers,
    pub(super) paths: PathTables,
    /// One-sided commands that are not posted yet.
    pub(super) commands: Vec<OneSidedCommand>,
    pub(super) exposed: ExposedKeys,
    /// Sends of this rank whose offer has no answer yet. While there are any, both ends are busy, so that no message is shared.
    pub(super) offers: usize,
    pub(super) groups: GroupTable,
    pub(super) timers: Timers,
    /// True if the driver does not detect failed peers, so that the engine pings the peers it waits for.
    pub(super) watches: bool,
    /// True if collectives may use the driver's collective slots.
    pub(super) has_slots: bool,
    /// True if an operation began to wait since the driver was last notified which peers are waited for.
    pub(super) awaited_peers_changed: bool,
    /// True if a communicator was revoked, so that each send must check its own.
    pub(super) revokes: bool,
    /// True while a closing runtime still completes the programs that are in flight or promised. No other program may begin.
    pub(super) leaving: bool,
    /// Collectives that have their place in the order and have not begun yet.
    pub(crate) promised: usize,
    /// True once this rank receives no more.
    pub(super) closing: bool,
    /// True once the driver is released.
    pub(super) ended: bool,
    /// Malformed or stale messages that were dropped.
    pub(crate) refused: u64,
    pub(crate) wakers: Vec<Waker>,
    pub(crate) garbage: Vec<ErasedBuffer>,
    /// Jobs to run with no lock held. Each is then [reported](super::Engine::complete_job) to the engine.
    pub(crate) jobs: Vec<ProgramJob>,
    pub(super) now: ClockTime,
    /// One-sided commands in flight at the driver.
    pub(super) commands_in_flight: usize,
}
