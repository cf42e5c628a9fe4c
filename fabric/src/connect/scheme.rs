//! When ranks are connected: a choice that every rank of a job makes alike.

/// When the queue pairs of a job are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheme {
    /// Those of a pair with its first message.
    #[default]
    OnDemand,
    /// All of them when the job starts, so that no message waits for any.
    AllToAll,
    /// Those of a pair that says much: what is short goes without, as datagrams, until they are there. When a rank has as many
    /// as it may have, the pair that was silent longest gives its own up.
    Hybrid,
}

/// What the choice depends on. It must be the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// All ranks.
    pub ranks: u32,
    /// The most ranks of a node.
    pub ranks_per_node: u32,
    /// Queue pairs of a connection on one adapter.
    pub lanes: u32,
    /// Queue pairs that a node's adapter can have: 131 072 of a `ConnectX-6`, 65 536 of some others.
    pub queue_pairs_max: u32,
    /// Connections that a rank has room for, whatever queue pairs there are: each takes buffers, too.
    pub connections_max: u32,
    /// What is short goes as datagrams while a pair has no queue pairs.
    pub datagrams: bool,
    /// What the application says about itself.
    pub pattern: Pattern,
}

/// With whom the ranks of a job speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pattern {
    /// Nobody said.
    #[default]
    Unknown,
    /// Each with at most so many others.
    Sparse {
        /// The most peers of a rank.
        peers: u32,
    },
    /// Each with all others.
    Dense,
}

impl Scheme {
    /// The scheme for a job, as spec P10 has it.
    ///
    /// Where short messages wait for nothing, pairs are connected when they say much, whatever the job: `ripstop sim ft` and
    /// `seven-point` show that no other scheme is over sooner.
    ///
    /// Where they have to wait, all at once pays where most pairs speak; where nobody said so, it is taken for jobs in which it
    /// is over soon and leaves half of the adapter to others.
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

    /// As [`choose`](Self::choose), for those who send short messages as datagrams only where not all pairs can be connected, and
    /// where few speak, so that connecting is most of what they wait for.
    ///
    /// So does the driver for verbs by itself: hosts answer datagrams, where adapters answer what goes by connections, so they
    /// reach only a rank whose runtime has its turns, and messages that go on for long are slower by them.
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
    /// Whether `times` as many queue pairs as connections with so many peers take are there.
    fn fits(&self, peers: u32, times: u64) -> bool {
        if peers > self.connections_max {
            return false;
        }
        let of_rank = u64::from(peers) * u64::from(self.lanes);
        // Three numbers of 32 bits are more than 64 hold.
        let needed = of_rank.saturating_mul(u64::from(self.ranks_per_node) * times);
        needed <= u64::from(self.queue_pairs_max)
    }

    /// Connections that each rank of a node may have at a time, at least two: one that asks and one that is asked.
    #[must_use]
    pub fn connections_max(&self) -> u32 {
        let sharers = self.ranks_per_node.max(1).saturating_mul(self.lanes.max(1));
        let share = self.queue_pairs_max / sharers;
        share.min(self.connections_max).max(2)
    }
}

/// The most ranks that are all connected when nobody asked for it.
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
