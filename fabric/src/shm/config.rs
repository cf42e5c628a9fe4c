//! How a driver is opened, and what it can do then.

use std::{io, sync::Arc, time::Duration};

use super::{
    cma, ring,
    segment::{CHUNK_LEN, SegmentShape},
};
use crate::{
    counters::DriverStats,
    driver::{Caps, DriverCost},
};

/// Means by which peers wake a rank that sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WakeMethod {
    /// Through a futex word on the board. For ranks that can sleep on a futex and on descriptors together.
    Futex,
    /// Through a pipe.
    Fd,
}

/// Configuration of a [`Shm`](super::Shm).
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// This rank's number on the node.
    pub rank: u32,
    /// Means by which peers wake this rank.
    pub wake: WakeMethod,
    /// True if `process_vm_*` may be used. It is not used where the system forbids it.
    pub single_copy: bool,
    /// Counters that the driver updates.
    pub counters: Arc<DriverStats>,
    /// Slots of the ring of each connected peer, 128 bytes each. A power of two, 2 to 65 536.
    pub ring_slots: u32,
    /// Chunks of 8 KiB for the longer bodies that this rank sends, shared by all peers, 1 to 65 536. Their memory is made when it
    /// is needed.
    pub chunks: u32,
    /// Time that a rank may take to appear on the board, after which it counts as failed. The time starts when something is first
    /// sent to it or first [awaited](crate::driver::Driver::expect) from it.
    ///
    /// Also the time, at most 20 seconds, that this rank waits for descriptors which a rank in another namespace must hand over.
    pub patience: Duration,
}

impl ShmConfig {
    /// Returns the defaults: wake by futex, `process_vm_*` if the system allows it, 16 KiB of ring for each direction between a
    /// pair, 2 MiB of chunks, and one minute of patience.
    #[must_use]
    pub fn new(rank: u32) -> Self {
        let counters = Arc::default();
        Self {
            rank,
            wake: WakeMethod::Futex,
            single_copy: true,
            counters,
            ring_slots: 128,
            chunks: 256,
            patience: Duration::from_secs(60),
        }
    }
}

/// Checks that a configuration can be opened on a board.
pub(super) fn check(config: &ShmConfig, shape: SegmentShape) -> io::Result<()> {
    let ShmConfig {
        rank,
        ring_slots,
        chunks,
        ..
    } = config;
    let why = if *rank >= shape.size {
        format!(
            "rank {rank} on a board of {}: ranks go from 0 to {}",
            shape.size,
            shape.size - 1
        )
    } else if !shape.is_sane() || *ring_slots < 2 {
        format!(
            "{ring_slots} ring slots and {chunks} chunks: slots are a power of two, 2 to 65536, chunks 1 to 65536"
        )
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

/// Returns what the driver can do on this node.
pub(super) fn caps(single_copy: bool, is_split: bool) -> Caps {
    let forbidden = |why: &str| Err(why.to_owned());
    Caps {
        name: "shm",
        inline_max: ring::ROOM,
        header_max: ring::HEADER_MAX,
        body_max: CHUNK_LEN,
        ordered: true,
        reliable: true,
        detects_death: true,
        shares_memory: true,
        one_sided: true,
        atomics: true,
        by_processor: true,
        any_memory: if !single_copy {
            forbidden("process_vm_readv is switched off by the configuration")
        } else if is_split {
            forbidden(
                "the ranks are in user or PID namespaces of their own, without /proc, or not dumpable: start them in one \
                 container",
            )
        } else {
            cma::probe()
        },
        pins_exposed: false,
        lanes: 1,
        cost: COST,
    }
}

/// Measured by `benches/shm_pingpong`, and for get and put by `ripstop perf latency` at 8 to 64 KiB, on a two-core virtual
/// machine (Sapphire Rapids). Ratios matter more than absolute values.
const COST: DriverCost = DriverCost {
    send_ns: 15.0,
    recv_ns: 15.0,
    latency_ns: 120.0,
    copy_ns_per_kib: 20.0,
    message_ns_per_kib: 140.0,
    get_ns: 900.0,
    get_ns_per_kib: 45.0,
    put_ns: 900.0,
    put_ns_per_kib: 45.0,
    expose_ns: 50.0,
};
