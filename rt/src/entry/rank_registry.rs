//! The views of ranks that are threads, for a report when they hang.

use std::{
    os::fd::OwnedFd,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::thread::gettid;

use crate::{
    boot::Boot,
    view::{
        ProcessStat, RankPhase, ViewPublisher,
        layout::{RankView, ViewHead},
        look::{JobLook, LookedRank},
    },
};

/// The views of the ranks of one test, as far as the ranks have made their runtimes.
#[derive(Clone, Debug, Default)]
pub(crate) struct RankRegistry {
    ranks: Arc<Mutex<Vec<RegisteredRank>>>,
}

#[derive(Debug)]
struct RegisteredRank {
    rank: u32,
    view: OwnedFd,
    /// The thread that has made the runtime.
    thread: i32,
}

impl RankRegistry {
    /// Makes the view of a rank, and records it. The calling thread counts as the rank's. A rank without a view is otherwise as
    /// every rank.
    pub(crate) fn register(&self, boot: &Boot) -> Option<ViewPublisher> {
        let view = ViewPublisher::of_thread(boot)?;
        self.ranks().push(RegisteredRank {
            rank: boot.rank,
            view: view.memory().ok()?,
            thread: gettid().as_raw_nonzero().get(),
        });
        Some(view)
    }

    /// Looks at all ranks of a job.
    pub(super) fn look(&self, name: &str, size: u32) -> JobLook {
        let registered = self.ranks();
        let look = |rank| {
            // A rank may have had several runtimes, one after the other.
            let mut ranks = registered.iter();
            let last = ranks.rfind(|registered| registered.rank == rank);
            LookedRank {
                head: ViewHead::new(rank, size, 0),
                pid: process::id(),
                view: match last {
                    Some(last) => RankView::read(&last.view).map_err(|why| why.to_string()),
                    None => Ok(RankView::resting(rank, size, RankPhase::Starting)),
                },
                stat: match last {
                    Some(last) => ProcessStat::of_thread(last.thread),
                    None => ProcessStat::of(process::id()),
                },
                sleeps_in: String::new(),
                ended: None,
            }
        };
        JobLook::of_ranks(name.to_owned(), size, (0..size).map(look).collect())
    }

    fn ranks(&self) -> MutexGuard<'_, Vec<RegisteredRank>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
