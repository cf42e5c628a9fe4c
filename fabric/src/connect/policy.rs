//! The time at which ranks are connected. Every rank of a job makes the same choice.

/// Time at which the queue pairs of a job are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheme {
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
pub struct Job {
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
    pub pattern: Pattern,
}

/// Which ranks of a job communicate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pattern {
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

impl Scheme {
    /// Returns the scheme for a job.
    ///
    /// If short messages need no connection, pairs connect when they exchange much data, whatever the job: `ripstop sim ft` and
    /// `seven-point` show that no other scheme finishes sooner.
    ///
    /// If they need one, connecting all pairs at the start pays if most pairs communicate. If the pattern is unknown, that is
    /// done for jobs in which it is quick and leaves half of the adapter to others.
    #[must_use]
    pub fn choose(job: &Job) -> Self {
        let others = job.ranks.saturating_sub(1);
        if job.datagrams {
            return Self::Hybrid;
        }
        match job.pattern {
            Pattern::Sparse { peers } if job.fits(peers.min(others), 1) => Self::OnDemand,
            Pattern::Dense if job.fits(others, 1) => Self::AllToAll,
            Pattern::Unknown if job.fits(others, 2) && job.ranks <= UNASKED_MAX => Self::AllToAll,
            Pattern::Unknown if job.fits(others, 1) => Self::OnDemand,
            _ => Self::Hybrid,
        }
    }

    /// Like [`choose`](Self::choose), for drivers that send short messages as datagrams only in two cases: not all pairs can be
    /// connected, or few pairs communicate, so that they would mostly wait for connections.
    ///
    /// The driver for verbs uses this unless it is told a scheme. Hosts answer datagrams, while adapters answer what goes by
    /// connections. So datagrams reach only a rank whose runtime makes turns, and they slow down long exchanges of messages.
    #[must_use]
    pub fn choose_connecting(job: &Job) -> Self {
        let is_sparse = matches!(job.pattern, Pattern::Sparse { .. });
        Self::choose(&Job {
            datagrams: job.datagrams && is_sparse,
            ..*job
        })
    }
}

impl Job {
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
    use super::{Job, Pattern, Scheme};

    const JOB: Job = Job {
        ranks: 512,
        ranks_per_node: 16,
        lanes: 1,
        queue_pairs_max: 65_536,
        connections_max: u32::MAX,
        datagrams: false,
        pattern: Pattern::Unknown,
    };

    #[test]
    fn a_job_that_says_nothing_is_connected_at_once_while_that_is_cheap() {
        let choose = |ranks, lanes| {
            let job = Job {
                ranks,
                lanes,
                ..JOB
            };
            Scheme::choose(&job)
        };
        assert_eq!(choose(1, 1), Scheme::AllToAll);
        assert_eq!(choose(1024, 1), Scheme::AllToAll);
        assert_eq!(choose(1025, 1), Scheme::OnDemand);
        // 16 * 1023 * 4 queue pairs are nearly all that there are.
        assert_eq!(choose(1024, 4), Scheme::OnDemand);
        assert_eq!(choose(16_384, 1), Scheme::Hybrid);
        assert_eq!(choose(u32::MAX, u32::MAX), Scheme::Hybrid);
    }

    #[test]
    fn who_says_with_whom_it_speaks_gets_no_more_and_no_less() {
        let choose = |ranks, pattern| {
            let job = Job {
                ranks,
                pattern,
                ..JOB
            };
            Scheme::choose(&job)
        };
        let few = Pattern::Sparse { peers: 6 };
        assert_eq!(choose(512, few), Scheme::OnDemand);
        assert_eq!(choose(16_384, few), Scheme::OnDemand);
        assert_eq!(
            choose(16_384, Pattern::Sparse { peers: 8000 }),
            Scheme::Hybrid
        );
        assert_eq!(choose(4096, Pattern::Dense), Scheme::AllToAll);
        assert_eq!(choose(4098, Pattern::Dense), Scheme::Hybrid);
    }

    #[test]
    fn where_short_messages_wait_for_nothing_no_pair_is_connected_before_it_says_much() {
        for pattern in [
            Pattern::Unknown,
            Pattern::Dense,
            Pattern::Sparse { peers: 6 },
        ] {
            let job = Job {
                datagrams: true,
                pattern,
                ..JOB
            };
            assert_eq!(Scheme::choose(&job), Scheme::Hybrid);
        }
    }

    #[test]
    fn who_prefers_connections_takes_datagrams_where_few_speak_or_not_all_can_be_connected() {
        let choose = |ranks, pattern| {
            let job = Job {
                ranks,
                pattern,
                datagrams: true,
                ..JOB
            };
            Scheme::choose_connecting(&job)
        };
        assert_eq!(choose(512, Pattern::Unknown), Scheme::AllToAll);
        assert_eq!(choose(512, Pattern::Sparse { peers: 6 }), Scheme::Hybrid);
        assert_eq!(choose(512, Pattern::Dense), Scheme::AllToAll);
        assert_eq!(choose(16_384, Pattern::Unknown), Scheme::Hybrid);
    }

    #[test]
    fn who_has_too_few_buffers_is_connected_to_no_more_than_they_serve() {
        let few = Job {
            connections_max: 500,
            ..JOB
        };
        assert_eq!(few.connections_max(), 500);
        assert_eq!(Scheme::choose(&few), Scheme::Hybrid);
        let enough = Job { ranks: 501, ..few };
        assert_eq!(Scheme::choose(&enough), Scheme::AllToAll);
        let none = Job {
            connections_max: 0,
            ..JOB
        };
        assert_eq!(none.connections_max(), 2);
    }

    #[test]
    fn the_ranks_of_a_node_share_its_queue_pairs() {
        assert_eq!(JOB.connections_max(), 4096);
        assert_eq!(Job { lanes: 4, ..JOB }.connections_max(), 1024);
        assert_eq!(
            Job {
                queue_pairs_max: 3,
                ..JOB
            }
            .connections_max(),
            2
        );
        assert_eq!(
            Job {
                ranks_per_node: 0,
                lanes: 0,
                ..JOB
            }
            .connections_max(),
            65_536
        );
    }
}
