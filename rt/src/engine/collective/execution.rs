//! How a collective runs on this rank: chosen here, from plain data.
//!
//! A call first says what it asks for ([`ExecutionRequest`]), because its buffers depend on that. The engine then chooses, with
//! what it knows of the driver and the moment ([`CollectiveExecution::choose`]).

use super::BorrowedCall;
use crate::{engine::EngineCommons, settings::Executor};

/// Most ranks of a communicator whose programs check collective slots. Each turn reads one cache line per rank.
pub(super) const SLOT_RANKS_MAX: usize = 16;

/// How a collective is to run, as far as its call can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecutionRequest {
    /// By task lists if the driver runs them, otherwise by messages.
    TaskLists,
    Messages,
    /// By messages, and steps begin only when the future is polled.
    Polled,
}

/// How a collective runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectiveExecution {
    /// The call of an only rank copies between its buffers, and nothing is left to do.
    AtCall,
    /// The call sends everything by collective slots, and the [future](super::single_round) takes what comes.
    SingleRound,
    /// The thread that makes a turn begins the next steps: a waiting thread of the application, or the agent.
    Messages,
    /// The future begins the next steps when it is [polled](super::polled_baseline).
    Polled,
    /// The driver carries out [task lists](super::offloaded).
    TaskLists,
}

/// What the choice depends on, besides the request and the moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExecutionFacts {
    /// True if the program is a copy on an only rank.
    pub(crate) is_copy: bool,
    /// True if each message of the program fits into a collective slot and waits for no other one, and the future can still
    /// take it from there.
    pub(crate) is_single_round: bool,
    pub(crate) ranks: usize,
    /// True if the driver has collective slots.
    pub(crate) has_slots: bool,
    /// True if the driver runs task lists.
    pub(crate) has_lists: bool,
}

impl ExecutionRequest {
    /// Returns what a call asks for.
    ///
    /// `is_short` is true if handing the program to an adapter takes longer than running it. `may_be_late` is true if the
    /// collective may begin after later ones, which lists cannot. `is_all_near` returns true if this process can reach the memory
    /// of all members directly.
    #[inline(always)]
    pub(crate) fn of(
        executor: Executor,
        is_short: bool,
        may_be_late: bool,
        is_all_near: impl FnOnce() -> bool,
    ) -> Self {
        match executor {
            Executor::Host => Self::Polled,
            Executor::Lists if !may_be_late => Self::TaskLists,
            Executor::Offload if !is_short && !may_be_late && !is_all_near() => Self::TaskLists,
            Executor::Lists | Executor::Offload | Executor::Messages => Self::Messages,
        }
    }
}

impl CollectiveExecution {
    /// Returns how a collective runs. `is_usual` returns true if nothing unusual is known about the call, its ranks and its
    /// communicator; it is asked only where that matters.
    #[inline(always)]
    pub(crate) fn choose(
        request: ExecutionRequest,
        facts: ExecutionFacts,
        is_usual: impl FnOnce() -> bool,
    ) -> Self {
        match request {
            ExecutionRequest::TaskLists if facts.has_lists => Self::TaskLists,
            ExecutionRequest::Polled => Self::Polled,
            ExecutionRequest::TaskLists | ExecutionRequest::Messages => {
                let short_way = if facts.is_copy {
                    Self::AtCall
                } else if facts.is_single_round && facts.may_use_slots() {
                    Self::SingleRound
                } else {
                    return Self::Messages;
                };
                if is_usual() {
                    short_way
                } else {
                    Self::Messages
                }
            }
        }
    }

    /// Returns how the copy of an only rank runs.
    #[inline(always)]
    pub(crate) fn of_copy(is_usual: bool) -> Self {
        let facts = ExecutionFacts {
            is_copy: true,
            is_single_round: false,
            ranks: 1,
            has_slots: false,
            has_lists: false,
        };
        Self::choose(ExecutionRequest::Messages, facts, || is_usual)
    }

    /// Returns true if messages of the program may lie in collective slots.
    pub(super) fn uses_slots(self, facts: ExecutionFacts) -> bool {
        self != Self::TaskLists && facts.may_use_slots()
    }
}

impl ExecutionFacts {
    fn may_use_slots(self) -> bool {
        self.has_slots && self.ranks <= SLOT_RANKS_MAX
    }
}

impl BorrowedCall<'_> {
    /// Returns what the choice depends on. `is_single_round` is false once the future cannot take messages from slots any more.
    #[inline(always)]
    pub(super) fn execution_facts(
        &self,
        common: &EngineCommons,
        is_single_round: bool,
    ) -> ExecutionFacts {
        ExecutionFacts {
            is_copy: false,
            is_single_round,
            ranks: self.group.len(),
            has_slots: common.has_slots,
            has_lists: common.has_lists,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CollectiveExecution, ExecutionFacts, ExecutionRequest, SLOT_RANKS_MAX};
    use crate::settings::Executor::{self, Host, Lists, Messages, Offload};

    /// A collective on a machine. [`LONG`] is one of several rounds between ranks of different nodes.
    #[derive(Clone, Copy, Debug)]
    struct Case {
        executor: Executor,
        is_short: bool,
        may_be_late: bool,
        is_all_near: bool,
        is_usual: bool,
        facts: ExecutionFacts,
    }

    const LONG: Case = Case {
        executor: Offload,
        is_short: false,
        may_be_late: false,
        is_all_near: false,
        is_usual: true,
        facts: ExecutionFacts {
            is_copy: false,
            is_single_round: false,
            ranks: 4,
            has_slots: true,
            has_lists: true,
        },
    };

    /// One of a single round between ranks of one node.
    const SHORT: Case = Case {
        is_short: true,
        is_all_near: true,
        facts: ExecutionFacts {
            is_single_round: true,
            has_lists: false,
            ..LONG.facts
        },
        ..LONG
    };

    impl Case {
        const fn by(self, executor: Executor) -> Self {
            Self { executor, ..self }
        }

        const fn unusual(self) -> Self {
            Self {
                is_usual: false,
                ..self
            }
        }

        const fn late(self) -> Self {
            Self {
                may_be_late: true,
                ..self
            }
        }

        const fn with(self, facts: ExecutionFacts) -> Self {
            Self { facts, ..self }
        }

        fn execution(self) -> CollectiveExecution {
            let request =
                ExecutionRequest::of(self.executor, self.is_short, self.may_be_late, || {
                    self.is_all_near
                });
            CollectiveExecution::choose(request, self.facts, || self.is_usual)
        }
    }

    #[test]
    fn each_collective_runs_in_the_way_that_suits_it() {
        let (long, short) = (LONG.facts, SHORT.facts);
        let no_lists = LONG.with(ExecutionFacts {
            has_lists: false,
            ..long
        });
        let many = SHORT.with(ExecutionFacts {
            ranks: SLOT_RANKS_MAX + 1,
            ..short
        });
        let no_slots = SHORT.with(ExecutionFacts {
            has_slots: false,
            ..short
        });
        let by_adapter = SHORT.with(ExecutionFacts {
            has_lists: true,
            ..short
        });
        let copy = SHORT.with(ExecutionFacts {
            is_copy: true,
            ranks: 1,
            ..short
        });
        let near = Case {
            is_all_near: true,
            ..LONG
        };
        let brief = Case {
            is_short: true,
            ..LONG
        };
        for (case, wanted) in [
            (LONG, CollectiveExecution::TaskLists),
            (LONG.by(Messages), CollectiveExecution::Messages),
            (LONG.by(Host), CollectiveExecution::Polled),
            (LONG.unusual(), CollectiveExecution::TaskLists),
            (LONG.late(), CollectiveExecution::Messages),
            (LONG.late().by(Lists), CollectiveExecution::Messages),
            (near, CollectiveExecution::Messages),
            (near.by(Lists), CollectiveExecution::TaskLists),
            (brief, CollectiveExecution::Messages),
            (brief.by(Lists), CollectiveExecution::TaskLists),
            (no_lists, CollectiveExecution::Messages),
            (no_lists.by(Lists), CollectiveExecution::Messages),
            (SHORT, CollectiveExecution::SingleRound),
            (SHORT.by(Lists), CollectiveExecution::SingleRound),
            (SHORT.by(Messages), CollectiveExecution::SingleRound),
            (SHORT.by(Host), CollectiveExecution::Polled),
            (SHORT.late(), CollectiveExecution::SingleRound),
            (SHORT.unusual(), CollectiveExecution::Messages),
            (many, CollectiveExecution::Messages),
            (no_slots, CollectiveExecution::Messages),
            (by_adapter, CollectiveExecution::SingleRound),
            (by_adapter.by(Lists), CollectiveExecution::TaskLists),
            (copy, CollectiveExecution::AtCall),
        ] {
            assert_eq!(case.execution(), wanted, "{case:?}");
        }
        assert_eq!(
            CollectiveExecution::of_copy(true),
            CollectiveExecution::AtCall
        );
        assert_eq!(
            CollectiveExecution::of_copy(false),
            CollectiveExecution::Messages
        );
    }

    #[test]
    fn messages_lie_in_slots_unless_a_list_counts_them() {
        for execution in [
            CollectiveExecution::SingleRound,
            CollectiveExecution::Messages,
            CollectiveExecution::Polled,
        ] {
            assert!(execution.uses_slots(SHORT.facts), "{execution:?}");
        }
        assert!(!CollectiveExecution::TaskLists.uses_slots(SHORT.facts));
        let many = ExecutionFacts {
            ranks: SLOT_RANKS_MAX + 1,
            ..SHORT.facts
        };
        assert!(!CollectiveExecution::Messages.uses_slots(many));
    }
}
