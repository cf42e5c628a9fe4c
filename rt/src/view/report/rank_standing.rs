//! What a rank does, as two looks at it show.

use std::collections::BTreeSet;

use super::{
    super::{PublishedSleep, RankPhase, WaitKind, layout::RankView},
    ObservedRank, ProcessState,
};

/// What a rank does, as far as its view and its process show.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RankStanding {
    /// It sleeps in the runtime, and awaits operations.
    Waiting,
    /// It sleeps in the runtime, and awaits no operation.
    Idle,
    /// It awaits a sleep of the runtime, and no operation. `is_again` is true if that is another sleep than before.
    Sleeping {
        sleep: PublishedSleep,
        is_again: bool,
    },
    /// It sleeps, but not in the runtime.
    Elsewhere {
        sleeps_in: String,
    },
    /// It uses a processor, and does not call the runtime.
    Computing {
        percent: u32,
    },
    InKernel {
        function: String,
    },
    Stopped,
    Starting,
    Left,
    Dead {
        how: String,
        ago: Option<u64>,
    },
    /// Its operations begin and end.
    Moving,
    Unreadable,
}

/// Share of a processor from which on a rank computes. It is low, because a rank may share its processor with many others.
pub(super) const COMPUTES_PERCENT: u32 = 2;

/// Share of a processor from which on a rank that has slept in the runtime for a moment computes nevertheless. A debug build that
/// does nothing but sleep for 50 µs again and again takes more than half of a processor.
const MOSTLY_COMPUTES_PERCENT: u32 = 90;

impl RankStanding {
    /// Returns what two looks at a rank show.
    pub(super) fn of(rank: &ObservedRank) -> Self {
        let Ok(view) = &rank.view else {
            return match &rank.process {
                ProcessState::Ended { how, ago } => Self::Dead {
                    how: how.clone(),
                    ago: *ago,
                },
                ProcessState::Stopped => Self::Stopped,
                _ => Self::Unreadable,
            };
        };
        let is_left = view.snapshot.phase == RankPhase::Left;
        let (percent, sleeps_in, is_running) = match &rank.process {
            _ if is_left => return Self::Left,
            ProcessState::Ended { how, ago } => {
                return Self::Dead {
                    how: how.clone(),
                    ago: *ago,
                };
            }
            ProcessState::Stopped => return Self::Stopped,
            ProcessState::InKernel { function } => {
                return Self::InKernel {
                    function: function.clone(),
                };
            }
            ProcessState::Alive {
                percent,
                sleeps_in,
                is_running,
            } => (*percent, sleeps_in, *is_running),
        };
        if view.snapshot.phase == RankPhase::Starting {
            return Self::Starting;
        }
        if rank
            .before
            .as_ref()
            .is_some_and(|before| has_moved(before, view))
        {
            return Self::Moving;
        }
        let is_outside = is_outside(rank.before.as_ref(), view, percent);
        match view.snapshot.waits.iter().any(|wait| wait.is_awaited) {
            _ if is_outside && (is_running || percent >= COMPUTES_PERCENT) => {
                Self::Computing { percent }
            }
            _ if is_outside => Self::Elsewhere {
                sleeps_in: sleeps_in.clone(),
            },
            true => Self::Waiting,
            false => Self::idle(rank.before.as_ref(), view),
        }
    }
}

impl RankStanding {
    /// Returns what a rank does that awaits no operation.
    fn idle(before: Option<&RankView>, view: &RankView) -> Self {
        let Some(sleep) = &view.snapshot.sleep else {
            return Self::Idle;
        };
        let earlier = before.and_then(|before| before.snapshot.sleep.as_ref());
        Self::Sleeping {
            sleep: sleep.clone(),
            is_again: earlier.is_some_and(|earlier| earlier.number != sleep.number),
        }
    }
}

/// Returns true if a rank does not sleep in the runtime. What wakes it for a moment, such as a question of a rank that waits for
/// it or the end of a short sleep, does not count, unless the rank hardly sleeps.
fn is_outside(before: Option<&RankView>, view: &RankView, percent: u32) -> bool {
    let is_elsewhere = view.snapshot.phase == RankPhase::Elsewhere;
    let before = match before {
        Some(before) if !view.is_current => before,
        _ => return is_elsewhere || !view.is_current,
    };
    if before.is_current && percent < COMPUTES_PERCENT {
        return before.snapshot.phase == RankPhase::Elsewhere;
    }
    // The share is that of all threads, so it says nothing of a rank of which one thread awaits an operation.
    let awaits = view.snapshot.waits.iter().any(|wait| wait.is_awaited);
    let has_slept_since = before.snapshot.number != view.snapshot.number
        && (awaits || view.snapshot.sleep.is_some() || percent < MOSTLY_COMPUTES_PERCENT);
    is_elsewhere || !has_slept_since
}

/// Returns true if an operation has begun or ended between two looks.
fn has_moved(before: &RankView, after: &RankView) -> bool {
    let shape = |view: &RankView| {
        let snapshot = &view.snapshot;
        let waits: BTreeSet<(u64, WaitKind)> = snapshot
            .waits
            .iter()
            .map(|wait| (wait.id, wait.kind))
            .collect();
        let next: Vec<u32> = snapshot.comms.iter().map(|comm| comm.next).collect();
        (
            snapshot.posted,
            snapshot.ended,
            snapshot.arrived,
            snapshot.phase == RankPhase::Starting,
            waits,
            next,
            // It is written meanwhile, too.
            view.flight.records.last().map(|record| record.number),
        )
    };
    shape(before) != shape(after)
}

/// Returns true if a rank that waits has slept in both looks, and nothing in it can end its operations.
pub(super) fn is_asleep_in_both(rank: &ObservedRank) -> bool {
    let (Ok(view), Some(before)) = (&rank.view, &rank.before) else {
        return false;
    };
    let is_idle = match &rank.process {
        ProcessState::Alive { percent, .. } => *percent < COMPUTES_PERCENT,
        _ => false,
    };
    let is_whole = view.snapshot.is_passive && !view.snapshot.is_truncated;
    is_idle && is_whole && before.is_current && view.is_current
}
