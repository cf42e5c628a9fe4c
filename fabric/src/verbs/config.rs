//! What a rank opens its devices with.

use std::{sync::Arc, time::Duration};

use crate::{
    connect::{Pattern, Scheme},
    counters::Counters,
};

/// How to open a [`Verbs`](super::Verbs).
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// Which rank of the job this is.
    pub rank: u32,
    /// How many ranks the job has.
    pub ranks: u32,
    /// Which of its node's ranks this is: they take turns among ports.
    pub place: u32,
    /// The device, like `mlx5_0` or `mlx5_0:2` with its port; without one, ranks of a node take turns among the ports of one
    /// network that are up: of InfiniBand, where there is any.
    ///
    /// Up to four with commas between them, `mlx5_0,mlx5_1`: the second of a rank reaches the second of another, and so on.
    /// Messages of two ranks go by one of them, long puts and gets in pieces by all. `mlx5_0*2,mlx5_1` says that the first is
    /// twice as fast; one of less than a quarter of the greatest weight is left aside until the others have failed.
    pub device: Option<String>,
    /// The index of the port's address: one for all devices, or one for each that is named, in their order. Without one, each
    /// takes that of RoCE v2 over IPv4 among its own, or the only one of InfiniBand.
    pub gid_index: Vec<u8>,
    /// When ranks are connected; `None` is by the size of the job and its pattern.
    pub scheme: Option<Scheme>,
    /// With whom ranks speak, where `scheme` is `None`. The same on all ranks.
    pub pattern: Pattern,
    /// The most ranks of a node, which share its adapter.
    pub ranks_per_node: u32,
    /// Peers that may be connected to at a time, at least two; `None` is by what the device has for each rank of the node.
    pub connections_max: Option<u32>,
    /// Bytes of the application's memory that may be registered at a time, counted for each device, besides what
    /// [`Driver::allocate`](crate::driver::Driver::allocate) gave. What does not fit goes in messages, or waits.
    pub pinned_max: u64,
    /// How long a device sends again what is not answered, before the peer counts as gone: at least half of it, as devices know
    /// powers of two only.
    pub patience: Duration,
    /// How long a closing driver waits for what it posted to leave before it lets a thread go on with that.
    pub linger: Duration,
    /// Where the driver counts.
    pub counters: Arc<Counters>,
}

impl VerbsConfig {
    /// The defaults: a port that is up, two seconds for an answer and two to leave.
    #[must_use]
    pub fn new(rank: u32, ranks: u32) -> Self {
        Self {
            rank,
            ranks,
            place: rank,
            device: None,
            gid_index: Vec::new(),
            scheme: Some(Scheme::OnDemand),
            pattern: Pattern::Unknown,
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

/// As long as devices send again unless told to be more patient: to close towards a host that takes no turns costs no more than
/// towards a node that is gone. Only the peer's host answers parcels, and without the last word a rank that has finished counts
/// as failed, so nothing but an answer or the peer's own goodbye ends the wait sooner. The oldest parcel leaves nine times.
const LINGER: Duration = PATIENCE;

/// More than most ranks have: the system's own limit of locked memory is the one that counts, until somebody sets another.
const PINNED_MAX: u64 = 16 << 30;

#[cfg(test)]
mod tests {
    use super::VerbsConfig;
    use crate::connect::{End, Limits, Local, Parcels};

    #[test]
    fn the_oldest_parcel_of_a_rank_that_closes_leaves_nine_times() {
        let linger = VerbsConfig::new(0, 2).linger.as_nanos() * 1000;
        for seed in 0..100 {
            let end = End {
                rank: 0,
                incarnation: 1,
            };
            let limits = Limits::default();
            let local = Local { end, limits, seed };
            let mut parcels = Parcels::default();
            parcels.push([0; 8].into());
            let (mut now, mut left) = (0, 0);
            while u128::from(now) < linger {
                assert!(parcels.handle_time(&local, now) && parcels.next(&local, now).is_some());
                left += 1;
                now = parcels.next_timeout().unwrap();
            }
            assert!(left >= 9, "{left} times");
        }
    }
}
