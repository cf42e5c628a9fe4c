//! How a driver is opened, and what it can then do.

use std::{io, sync::Arc, time::Duration};

use super::{
    cma, ring,
    segment::{CHUNK_LEN, Shape},
};
use crate::{
    counters::Counters,
    driver::{Caps, Cost},
};

/// How peers wake a rank that sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wake {
    /// Through a futex word on the board: for those who can sleep on a futex and on descriptors at once.
    Futex,
    /// Through a pipe.
    Fd,
}

/// How to open a [`Shm`](super::Shm).
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Which rank of the node this is.
    pub rank: u32,
    /// How peers wake it.
    pub wake: Wake,
    /// Whether `process_vm_*` may be used. Where the system forbids it, it is not used either way.
    pub single_copy: bool,
    /// Where the driver counts.
    pub counters: Arc<Counters>,
    /// Slots of the ring of each peer in contact, 128 bytes each: a power of two, 2 to 65 536.
    pub ring_slots: u32,
    /// Chunks of 8 KiB that this rank's longer bodies travel in, shared by all peers, 1 to 65 536. They are made as they are
    /// needed.
    pub chunks: u32,
    /// How long a rank may take to come to the board from when it was sent something or
    /// [awaited](crate::driver::Driver::expect) first; then it counts as failed. For descriptors that a rank in another namespace
    /// has to hand over, this one waits as long, at most 20 seconds.
    pub patience: Duration,
}

impl ShmConfig {
    /// The defaults: a futex, `process_vm_*` if the system allows, 16 KiB for each direction between a pair, 2 MiB for chunks, a
    /// minute for those who have not come.
    #[must_use]
    pub fn new(rank: u32) -> Self {
        let counters = Arc::default();
        Self {
            rank,
            wake: Wake::Futex,
            single_copy: true,
            counters,
            ring_slots: 128,
            chunks: 256,
            patience: Duration::from_secs(60),
        }
    }
}

/// Whether a configuration can be opened on a board.
pub(super) fn check(config: &ShmConfig, shape: Shape) -> io::Result<()> {
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

/// What the driver can do here.
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
        one_sided: true,
        atomics: true,
        by_processor: true,
        counters: true,
        names: false,
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
        tag_matching: None,
        triggered_max: 0,
        combine_max: 0,
        lanes: 1,
        cost: COST,
    }
}

/// From `benches/shm_pingpong`, and for get and put from `ripstop perf latency` at 8 to 64 KiB, on a two-core virtual machine
/// (Sapphire Rapids); ratios matter more than figures.
const COST: Cost = Cost {
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
