//! Configuration of a rank's endpoint.

use std::{net::IpAddr, sync::Arc, time::Duration};

use super::{
    address::SpeedClass,
    frame::{BODY_MAX, HEADER_MAX},
};
use crate::{
    counters::DriverStats,
    driver::{Caps, DriverCost, ExitRecord},
};

/// Parameters of [`Tcp::prepare`](super::Tcp::prepare).
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "made by the caller")]
pub struct TcpConfig {
    /// Rank of this process.
    pub rank: u32,
    /// Addresses to listen at, in order of preference; at most four.
    pub listen: Vec<ListenAddress>,
    /// Time for attempts to connect to a peer. In this time, the peer also has to make a turn, because a rank that makes none
    /// cannot be told from another service at its address. If the peer says that its own connection is on its way, it has up to
    /// twice this time.
    pub patience: Duration,
    /// Time after which a host is considered gone that acknowledges neither data nor probes. A peer that is stopped, or does
    /// not read, is not gone: its host acknowledges. A host that only sends is gone, because it does not hear this one. 4 s is
    /// the least, and the end of a host is noticed up to a second later. While a peer that does not read has no room, the kernel
    /// asks its host ever more rarely, up to once in two minutes, and the end is noticed so much later.
    pub silence: Duration,
    /// Time that closing may take while peers have not accepted what was posted for them. After that, a thread goes on.
    pub linger: Duration,
    /// Congestion control of connections. `None` takes the system's, but never BBR within a subnet if there is another.
    pub congestion: Option<String>,
    /// True if frames have checksums, which is the same for all ranks.
    pub checksum: bool,
    /// Record of how ranks ended.
    pub ends: Option<Arc<dyn ExitRecord>>,
    /// Counters that the driver updates.
    pub counters: Arc<DriverStats>,
}

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    pub(super) ip: IpAddr,
    /// Bits of the address that all hosts of its subnet share.
    pub(super) prefix: u8,
    pub(super) speed: SpeedClass,
}

impl ListenAddress {
    /// Names an address of which nothing else is known.
    #[must_use]
    pub const fn new(ip: IpAddr) -> Self {
        Self {
            ip,
            prefix: if ip.is_ipv4() { 32 } else { 128 },
            speed: SpeedClass::of(None),
        }
    }
}

impl TcpConfig {
    /// Returns the configuration of a rank that listens at one address.
    #[must_use]
    pub fn new(rank: u32, ip: IpAddr) -> Self {
        Self {
            rank,
            listen: vec![ListenAddress::new(ip)],
            patience: Duration::from_secs(60),
            silence: Duration::from_secs(30),
            linger: Duration::from_secs(10),
            congestion: None,
            checksum: false,
            ends: None,
            counters: Arc::default(),
        }
    }
}

/// Returns what the driver can do. The costs are guesses of what a fast network of a cluster takes, and were not measured.
pub(super) fn caps() -> Caps {
    Caps {
        name: "tcp",
        inline_max: INLINE_MAX,
        header_max: HEADER_MAX,
        body_max: BODY_MAX,
        ordered: true,
        reliable: true,
        detects_death: true,
        shares_memory: false,
        one_sided: true,
        atomics: true,
        by_processor: false,
        any_memory: Ok(()),
        pins_exposed: true,
        lanes: 1,
        cost: DriverCost {
            send_ns: 1500.0,
            recv_ns: 1500.0,
            latency_ns: 5000.0,
            copy_ns_per_kib: 50.0,
            message_ns_per_kib: 300.0,
            get_ns: 12_000.0,
            get_ns_per_kib: 300.0,
            put_ns: 12_000.0,
            put_ns_per_kib: 300.0,
            expose_ns: 500.0,
        },
    }
}

/// Messages up to this length cost as much as the shortest.
const INLINE_MAX: usize = 256;
