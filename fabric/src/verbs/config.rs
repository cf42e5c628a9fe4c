//! Configuration of the verbs driver.

use std::{sync::Arc, time::Duration};

use crate::{
    connect::{CommPattern, ConnectPolicy},
    counters::DriverStats,
    driver::WorldRank,
};

/// Settings to open a [`Verbs`](super::Verbs) with.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// Rank of this process in the job.
    pub rank: WorldRank,
    /// Number of ranks in the job.
    pub ranks: u32,
    /// Index of this rank among the ranks of its node, which take turns among the ports.
    pub place: u32,
    /// Device, like `mlx5_0`, or `mlx5_0:2` with its port. If `None`, the ranks of a node take turns among the active ports of
    /// one network, which is InfiniBand if there is any.
    ///
    /// Up to four devices may be named, with commas between them, like `mlx5_0,mlx5_1`. The second device of a rank reaches the
    /// second device of another, and so on. The messages of two ranks go by one of them; long puts and gets are split over all.
    /// `mlx5_0*2,mlx5_1` says that the first is twice as fast. A device of less than a quarter of the greatest weight is used
    /// only when the others have failed.
    pub device: Option<String>,
    /// Index of the port's address (GID): one for all devices, or one for each named device, in their order. If empty, each
    /// device uses its address of RoCE v2, over IPv4 if possible, or the first address of InfiniBand.
    pub gid_index: Vec<u8>,
    /// Time at which ranks are connected. If `None`, the size of the job and its pattern decide.
    pub scheme: Option<ConnectPolicy>,
    /// Ranks that communicate, used if `scheme` is `None`. Must be the same on all ranks.
    pub pattern: CommPattern,
    /// Greatest number of ranks on a node. They share its adapter.
    pub ranks_per_node: u32,
    /// Peers that may be connected at a time, at least two. If `None`, the device's queue pairs are divided among the ranks of
    /// the node.
    pub connections_max: Option<u32>,
    /// Bytes of the application's memory that may be registered at a time, counted for each device. Memory from
    /// [`Driver::allocate`](crate::driver::Driver::allocate) does not count. Transfers beyond it go as messages, or wait.
    pub pinned_max: u64,
    /// Time for which a device resends an unacknowledged packet before the peer counts as failed. Devices only know powers of
    /// two, so the actual time is between half of this and all of it.
    pub patience: Duration,
    /// Time that a closing driver waits for posted commands to leave. After that a background thread goes on with them.
    pub linger: Duration,
    /// Counters that the driver updates.
    pub counters: Arc<DriverStats>,
}

impl VerbsConfig {
    /// Returns the defaults: a port that is active, two seconds for an answer, and two seconds to close.
    #[must_use]
    pub fn new(rank: WorldRank, ranks: u32) -> Self {
        Self {
            rank,
            ranks,
            place: rank.0,
            device: None,
            gid_index: Vec::new(),
            scheme: Some(ConnectPolicy::OnDemand),
            pattern: CommPattern::Unknown,
            ranks_per_node: ranks,
            connections_max: None,
            pinned_max: PINNED_MAX,
            patience: PATIENCE,
            linger: LINGER,
            counters: Arc::default(),
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(2);

/// Equal to the default time that devices resend for, so that closing toward a host without turns takes no longer than toward a
/// node that has failed. Only the peer's host acknowledges datagram messages, and a finished rank whose goodbye is lost counts as
/// failed. So only an acknowledgment or the peer's own goodbye ends the wait sooner. The oldest datagram message is sent nine
/// times in this time.
const LINGER: Duration = PATIENCE;

/// Limit of pinned memory, which is more than most ranks have. In practice the system's limit of locked memory applies, unless
/// the user sets another one here.
const PINNED_MAX: u64 = 16 << 30;

#[cfg(test)]
mod tests {
    use super::VerbsConfig;
    use crate::{
        connect::{ConnectConfig, ConnectLimits, DatagramMessages, RankIncarnation},
        driver::WorldRank,
    };

    #[test]
    fn the_oldest_datagram_of_a_rank_that_closes_leaves_nine_times() {
        let linger = VerbsConfig::new(WorldRank(0), 2).linger.as_nanos() * 1000;
        for seed in 0..100 {
            let end = RankIncarnation {
                rank: WorldRank(0),
                incarnation: 1,
            };
            let limits = ConnectLimits::default();
            let local = ConnectConfig { end, limits, seed };
            let mut datagrams = DatagramMessages::default();
            datagrams.push([0; 8].into());
            let (mut now, mut left) = (0, 0);
            while u128::from(now) < linger {
                assert!(
                    datagrams.handle_time(&local, now) && datagrams.next(&local, now).is_some()
                );
                left += 1;
                now = datagrams.next_timeout().unwrap();
            }
            assert!(left >= 9, "{left} times");
        }
    }
}
