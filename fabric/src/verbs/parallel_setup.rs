//! Parallel work at the start, which devices do for several threads at a time, and the order in which ranks make queue pairs.

use std::{
    fs::File,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use rustix::{
    event::{Timespec, poll},
    fs::{FlockOperation, flock},
    io::Errno,
    thread::{CpuSet, sched_setaffinity},
};

/// Applies `work` to all items, by a few threads where that pays. Returns the results in the order of `all`.
pub(super) fn each<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = all.len() / EACH;
    if threads <= 1 {
        return all.iter().map(work).collect();
    }
    let (next, done) = (
        AtomicUsize::new(0),
        Mutex::new(Vec::with_capacity(all.len())),
    );
    let share = || {
        loop {
            let nth = next.fetch_add(1, Relaxed);
            let Some(one) = all.get(nth) else { break };
            let result = work(one);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((nth, result));
        }
    };
    thread::scope(|scope| {
        // A thread of its own changes the affinity, so that the calling thread stays where it is bound.
        let lead = || {
            use_all_processors();
            let processors = thread::available_parallelism().map_or(1, usize::from);
            for _ in 1..threads.min(processors).min(THREADS_MAX) {
                // With fewer threads it only takes longer.
                let _may_not_be = thread::Builder::new().spawn_scoped(scope, share);
            }
            share();
        };
        if thread::Builder::new().spawn_scoped(scope, lead).is_err() {
            share();
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(nth, _)| *nth);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Lets this thread run on all processors. A rank that is bound to one would wait for its device there; at the start, the others
/// are not in use yet. The kernel leaves out those that this job may not have.
fn use_all_processors() {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    // If that is forbidden, the threads share the rank's processors.
    let _may_not = sched_setaffinity(None, &all);
}

/// Lock under which a rank makes queue pairs. The ranks of a node make theirs on a device one after the other, so that the
/// numbers have no gaps. A rank that has waited for long goes on anyway, because gaps only take more bytes.
#[derive(Debug)]
pub(super) struct NumberingLock {
    _locked: Option<File>,
}

impl NumberingLock {
    pub(super) fn take(device: &str) -> Self {
        // Lock the device's own folder: it exists, all ranks of the node see the same one, and the lock of a process that dies is
        // released.
        let folder = Path::new("/sys/class/infiniband").join(device);
        Self::take_in(&folder, NAPS_MAX)
    }

    fn take_in(folder: &Path, tries: u32) -> Self {
        let Ok(file) = File::open(folder) else {
            return Self { _locked: None };
        };
        for _ in 0..tries {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    return Self {
                        _locked: Some(file),
                    };
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => nap(),
                Err(_) => break,
            }
        }
        Self { _locked: None }
    }
}

fn nap() {
    let moment = Timespec {
        tv_sec: 0,
        tv_nsec: NAP_NS,
    };
    let _over = poll(&mut [], Some(&moment));
}

/// Queue pairs for one thread. Making this many takes about as long as making a thread, at 30 to 100 µs each on an adapter.
const EACH: usize = 16;
/// Most threads: adapters serve no more at a time.
const THREADS_MAX: usize = 8;

const NAP_NS: i64 = 500_000;
/// 5 s: about the time that the ranks of a large node need one after the other.
const NAPS_MAX: u32 = 10_000;

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Mutex, thread};

    use super::{EACH, NumberingLock, each};

    #[test]
    fn all_is_done_once_and_comes_back_in_order() {
        for count in [0, 1, EACH - 1, 2 * EACH, 40 * EACH] {
            let all: Vec<usize> = (0..count).collect();
            let threads = Mutex::new(BTreeSet::new());
            let doubled = each(&all, |one| {
                let name = format!("{:?}", thread::current().id());
                threads.lock().unwrap().insert(name);
                2 * one
            });
            assert_eq!(doubled, (0..count).map(|one| 2 * one).collect::<Vec<_>>());
            let me = format!("{:?}", thread::current().id());
            let here = threads.lock().unwrap().contains(&me);
            assert_eq!(here, (1..2 * EACH).contains(&count), "{count}");
        }
    }

    #[test]
    fn one_rank_holds_the_numbering_lock_and_a_rank_that_waited_long_goes_on() {
        let folder = std::env::temp_dir().join(format!("ripstop-turn-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let first = NumberingLock::take_in(&folder, 1);
        assert!(first._locked.is_some());
        assert!(NumberingLock::take_in(&folder, 2)._locked.is_none());
        drop(first);
        assert!(NumberingLock::take_in(&folder, 1)._locked.is_some());
        std::fs::remove_dir(&folder).unwrap();
        assert!(NumberingLock::take_in(&folder, 1)._locked.is_none());
    }
}
