//! The time at which ranks are connected. Every rank of a job makes the same choice.

/// Time at which the queue pairs of a job are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectPolicy {
    /// The pair connects with its first message.
    #[default]
    OnDemand,
    /// All pairs connect when the job starts, so that no message waits.
    AllToAll,
    /// A pair connects when it exchanges much data, and its short messages go as datagrams before that. If a rank has as many
    /// queue pairs as it may have, the pair that was used least recently gives up its own.
    Hybrid,
}

/// Properties of a job that the choice depends on. They must be the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobShape {
    /// Number of ranks.
    pub ranks: u32,
    /// Greatest number of ranks on a node.
    pub ranks_per_node: u32,
    /// Queue pairs of a connection on one adapter.
    pub lanes: u32,
    /// Queue pairs that a node's adapter can have, such as 131 072 of a `ConnectX-6` or 65 536 of some others.
    pub queue_pairs_max: u32,
    /// Connections that a rank has buffers for, however many queue pairs there are.
    pub connections_max: u32,
    /// True if short messages go as datagrams while a pair has no queue pairs.
    pub datagrams: bool,
    /// Communication pattern of the application.
    pub pattern: CommPattern,
}

/// Ranks of a job that communicate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommPattern {
    /// The application has not said.
    #[default]
    Unknown,
    /// Each rank communicates with few others.
    Sparse {
        /// Greatest number of peers of a rank.
        peers: u32,
    },
    /// Each rank communicates with all others.
    Dense,
}

impl ConnectPolicy {
    /// Returns the connection policy for a job.
    ///
    /// If short messages need no connection, pairs connect when they exchange much data, whatever the job: `ripstop sim ft` and
    /// `seven-point` show that no other policy finishes sooner.
    ///
    /// If short messages need connections, it pays to connect all pairs at the start if most pairs communicate. If the pattern is
    /// unknown, all pairs connect at the start of jobs in which that is quick and leaves half of the adapter's queue pairs free.
    #[must_use]
    pub fn choose(job: &JobShape) -> Self {
        let others = job.ranks.saturating_sub(1);
        if job.datagrams {
            return Self::Hybrid;
        }
        match job.pattern {
            CommPattern::Sparse { peers } if job.fits(peers.min(others), 1) => Self::OnDemand,
            CommPattern::Dense if job.fits(others, 1) => Self::AllToAll,
            CommPattern::Unknown if job.fits(others, 2) && job.ranks <= UNASKED_MAX => {
                Self::AllToAll
            }
            CommPattern::Unknown if job.fits(others, 1) => Self::OnDemand,
            _ => Self::Hybrid,
        }
    }

    /// Like [`choose`](Self::choose), for drivers that send short messages as datagrams only in two cases: not all pairs can be
    /// connected, or few pairs communicate, so that they would mostly wait for connections.
    ///
    /// The driver for verbs uses this unless a policy is configured. Hosts answer datagrams, while adapters answer what goes by
    /// connections. So datagrams reach only a rank whose runtime makes turns, and they slow down long exchanges of messages.
    #[must_use]
    pub fn choose_connecting(job: &JobShape) -> Self {
        let is_sparse = matches!(job.pattern, CommPattern::Sparse { .. });
        Self::choose(&JobShape {
            datagrams: job.datagrams && is_sparse,
            ..*job
        })
    }

    /// Returns true if short messages go as datagrams to peers without a connection.
    #[must_use]
    pub const fn has_datagram_messages(self) -> bool {
        matches!(self, Self::Hybrid)
    }
}

impl JobShape {
    /// Returns true if there are `times` as many queue pairs as connections to `peers` peers take.
    fn fits(&self, peers: u32, times: u64) -> bool {
        if peers > self.connections_max {
            return false;
        }
        let of_rank = u64::from(peers) * u64::from(self.lanes);
        // The product of three numbers of 32 bits may need more than 64.
        let needed = of_rank.saturating_mul(u64::from(self.ranks_per_node) * times);
        needed <= u64::from(self.queue_pairs_max)
    }

    /// Returns the connections that each rank of a node may have at a time, at least two: to a peer that asks and one that is
    /// asked.
    #[must_use]
    pub fn connections_max(&self) -> u32 {
        let sharers = self.ranks_per_node.max(1).saturating_mul(self.lanes.max(1));
        let share = self.queue_pairs_max / sharers;
        share.min(self.connections_max).max(2)
    }
}

/// Most ranks that are all connected if the pattern is unknown.
const UNASKED_MAX: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::{CommPattern, ConnectPolicy, JobShape};

    const JOB: JobShape = JobShape {
        ranks: 512,
        ranks_per_node: 16,
        lanes: 1,
        queue_pairs_max: 65_536,
        connections_max: u32::MAX,
        datagrams: false,
        pattern: CommPattern::Unknown,
    };

    #[test]
    fn a_job_that_says_nothing_is_connected_at_once_while_that_is_cheap() {
        let choose = |ranks, lanes| {
            let job = JobShape {
                ranks,
                lanes,
                ..JOB
            };
            ConnectPolicy::choose(&job)
        };
        assert_eq!(choose(1, 1), ConnectPolicy::AllToAll);
        assert_eq!(choose(1024, 1), ConnectPolicy::AllToAll);
        assert_eq!(choose(1025, 1), ConnectPolicy::OnDemand);
        // 16 * 1023 * 4 queue pairs are nearly all that there are.
        assert_eq!(choose(1024, 4), ConnectPolicy::OnDemand);
        assert_eq!(choose(16_384, 1), ConnectPolicy::Hybrid);
        assert_eq!(choose(u32::MAX, u32::MAX), ConnectPolicy::Hybrid);
    }

    #[test]
    fn a_declared_pattern_decides_the_connection_policy() {
        let choose = |ranks, pattern| {
            let job = JobShape {
                ranks,
                pattern,
                ..JOB
            };
            ConnectPolicy::choose(&job)
        };
        let few = CommPattern::Sparse { peers: 6 };
        assert_eq!(choose(512, few), ConnectPolicy::OnDemand);
        assert_eq!(choose(16_384, few), ConnectPolicy::OnDemand);
        assert_eq!(
            choose(16_384, CommPattern::Sparse { peers: 8000 }),
            ConnectPolicy::Hybrid
        );
        assert_eq!(choose(4096, CommPattern::Dense), ConnectPolicy::AllToAll);
        assert_eq!(choose(4098, CommPattern::Dense), ConnectPolicy::Hybrid);
    }

    #[test]
    fn where_short_messages_wait_for_nothing_no_pair_is_connected_before_it_says_much() {
        for pattern in [
            CommPattern::Unknown,
            CommPattern::Dense,
            CommPattern::Sparse { peers: 6 },
        ] {
            let job = JobShape {
                datagrams: true,
                pattern,
                ..JOB
            };
            assert_eq!(ConnectPolicy::choose(&job), ConnectPolicy::Hybrid);
        }
    }

    #[test]
    fn a_job_that_prefers_connections_uses_datagrams_for_sparse_patterns_and_too_many_peers() {
        let choose = |ranks, pattern| {
            let job = JobShape {
                ranks,
                pattern,
                datagrams: true,
                ..JOB
            };
            ConnectPolicy::choose_connecting(&job)
        };
        assert_eq!(choose(512, CommPattern::Unknown), ConnectPolicy::AllToAll);
        assert_eq!(
            choose(512, CommPattern::Sparse { peers: 6 }),
            ConnectPolicy::Hybrid
        );
        assert_eq!(choose(512, CommPattern::Dense), ConnectPolicy::AllToAll);
        assert_eq!(choose(16_384, CommPattern::Unknown), ConnectPolicy::Hybrid);
    }

    #[test]
    fn a_rank_has_no_more_connections_than_its_buffers_serve() {
        let few = JobShape {
            connections_max: 500,
            ..JOB
        };
        assert_eq!(few.connections_max(), 500);
        assert_eq!(ConnectPolicy::choose(&few), ConnectPolicy::Hybrid);
        let enough = JobShape { ranks: 501, ..few };
        assert_eq!(ConnectPolicy::choose(&enough), ConnectPolicy::AllToAll);
        let none = JobShape {
            connections_max: 0,
            ..JOB
        };
        assert_eq!(none.connections_max(), 2);
    }

    #[test]
    fn the_ranks_of_a_node_share_its_queue_pairs() {
        assert_eq!(JOB.connections_max(), 4096);
        assert_eq!(JobShape { lanes: 4, ..JOB }.connections_max(), 1024);
        assert_eq!(
            JobShape {
                queue_pairs_max: 3,
                ..JOB
            }
            .connections_max(),
            2
        );
        assert_eq!(
            JobShape {
                ranks_per_node: 0,
                lanes: 0,
                ..JOB
            }
            .connections_max(),
            65_536
        );
    }
}
