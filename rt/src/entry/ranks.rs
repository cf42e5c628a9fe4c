//! Runs the ranks of a test, as threads of its process or as separate processes.

use std::{
    any::Any,
    cell::Cell,
    collections::BTreeMap,
    env,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use super::{
    failure::RankFailure,
    process::{self, TestCall},
    rank_registry::RankRegistry,
};
use crate::{
    boot::{
        self,
        inquest::{ENDED_BY_PEER, Inquest, InquestFinding, RankEnd},
        report::{FailureReport, FailureReporter},
    },
    runtime::{Builder, Runtime},
    view::{look::JobLook, report::StuckReport},
};

/// Environment variable that says how ranks of tests run by default: `threads`, or `processes`, for fabrics that allow only one
/// rank in a process.
const VARIABLE: &str = "RIPSTOP_TEST_RANKS";

/// Environment variable with the default time limit of tests in seconds, for slow machines.
const LIMIT: &str = "RIPSTOP_TEST_LIMIT_S";

/// Time after which a test counts as hanging, unless `RIPSTOP_TEST_LIMIT_S` changes it.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The ranks that one call of a test runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct TestRanks<'a> {
    pub(super) call: TestCall<'a>,
    pub(super) size: u32,
    /// Time after which the ranks count as hanging.
    pub(super) limit: Duration,
}

/// Runs `rank` with each rank's number and a builder for its runtime, and passes on the first panic.
///
/// Ranks are threads unless `RIPSTOP_TEST_RANKS=processes`. Then the test binary starts itself once for each rank, with only
/// this test, and runs the test up to this call. So everything that ranks share must be created inside `rank`, and earlier calls
/// must not depend on chance.
///
/// # Panics
/// Panics if a rank panics, or does not end within 120 s or the time limit in `RIPSTOP_TEST_LIMIT_S`.
#[track_caller]
pub fn run_ranks<F>(size: u32, rank: F)
where
    F: Fn(u32, Builder) + Send + Sync + 'static,
{
    let number = CALLS.replace(CALLS.get() + 1);
    if let Some(place) = process::this_test_rank() {
        if place.call == number {
            let (number, builder) = (place.rank, place.join());
            rank(number, builder);
            process::leave();
        }
        return;
    }
    let thread = thread::current();
    let ranks = TestRanks {
        call: TestCall {
            test: thread.name().unwrap_or_default(),
            number,
        },
        size,
        limit: limit(),
    };
    if are_processes() {
        process::run(ranks);
    } else {
        let rank = Arc::new(rank);
        ranks.run_threads(move |number, builder| rank(number, builder));
    }
}

thread_local! {
    /// Calls of `run_ranks` in this test. It is per thread, because each test has a thread of its own.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Returns true if `RIPSTOP_TEST_RANKS` asks for processes.
pub(super) fn are_processes() -> bool {
    match env::var(VARIABLE).as_deref() {
        Ok("processes") => true,
        Ok("threads" | "") | Err(_) => false,
        Ok(other) => panic!("{VARIABLE}={other}: set it to threads or processes, or unset it"),
    }
}

/// Returns the time limit in `RIPSTOP_TEST_LIMIT_S`, or the default.
pub(super) fn limit() -> Duration {
    let text = env::var(LIMIT).unwrap_or_default();
    limit_of(&text)
        .unwrap_or_else(|| panic!("{LIMIT}={text}: give a number of seconds, or unset it"))
}

fn limit_of(text: &str) -> Option<Duration> {
    if text.is_empty() {
        return Some(TIMEOUT);
    }
    let seconds = text.parse().ok().filter(|&seconds| seconds > 0)?;
    Some(Duration::from_secs(seconds))
}

/// Time that the other ranks have to end after a rank has failed and blamed one of them.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Number of a rank whose thread has ended, and its panic, if it panicked.
type ThreadExit = (u32, thread::Result<()>);

impl TestRanks<'_> {
    #[track_caller]
    pub(super) fn run_threads<F>(self, rank: F)
    where
        F: FnOnce(u32, Builder) + Clone + Send + 'static,
    {
        let (ended, ends) = mpsc::channel();
        let (reporting, reports) = mpsc::channel();
        let registry = RankRegistry::default();
        for boot in boot::threads(self.size) {
            let (number, ended, rank) = (boot.rank, ended.clone(), rank.clone());
            let registry = registry.clone();
            let reporter = FailureReporter::thread(number, reporting.clone());
            let body = move || {
                let builder = Runtime::builder().boot(boot);
                let builder = builder.reporter(Some(reporter)).registry(registry);
                let outcome = panic::catch_unwind(AssertUnwindSafe(|| rank(number, builder)));
                // Sending fails if another rank has failed and the test has ended, which does no harm.
                drop(ended.send((number, outcome)));
            };
            thread::Builder::new()
                .name(format!("rank {number}"))
                .spawn(body)
                .expect("a thread for a rank");
        }
        drop(ended);
        match self
            .wait(&ends, &reports, &registry)
            .map(|panic| panic.downcast::<RankFailure>())
        {
            None => {}
            Some(Ok(failure)) => panic!("{}", failure.sentence),
            Some(Err(panic)) => panic::resume_unwind(panic),
        }
    }

    /// Waits for all ranks. Returns the panic of the rank that failed first, if any failed.
    #[track_caller]
    fn wait(
        &self,
        ends: &Receiver<ThreadExit>,
        reports: &Receiver<(u32, FailureReport)>,
        registry: &RankRegistry,
    ) -> Option<Box<dyn Any + Send>> {
        let mut inquest = Inquest::new(self.size);
        let mut running: Vec<u32> = (0..self.size).collect();
        let (mut panics, mut seen) = (BTreeMap::new(), None);
        while !running.is_empty() {
            let limit = match inquest.finding() {
                InquestFinding::Nothing => self.limit,
                InquestFinding::Cause(_) => break,
                _ => PATIENCE,
            };
            let look = || registry.look(self.call.test, self.size);
            let (number, outcome) = match wait_looking(ends, limit, look) {
                Ok(end) => end,
                Err(looks) => {
                    seen = looks;
                    break;
                }
            };
            for (rank, report) in reports.try_iter() {
                let _ = inquest.handle_report(rank, report); // A report from a thread is always valid.
            }
            running.retain(|&rank| rank != number);
            inquest.end(number, end_of(&outcome));
            panics.extend(outcome.err().map(|panic| (number, panic)));
        }
        if inquest.finding() != InquestFinding::Nothing {
            let cause = inquest.likeliest();
            return panics
                .remove(&cause)
                .or_else(|| panics.pop_first().map(|(_, panic)| panic));
        }
        assert!(running.is_empty(), "{}", self.hang(&running, seen));
        None
    }

    /// Returns what to say of ranks that hang. `looks` are an earlier and a later one at them.
    pub(super) fn hang(&self, running: &[u32], looks: Option<Box<[JobLook; 2]>>) -> String {
        let sentence = format!(
            "{}: ranks {running:?} did not end within {} s",
            self.call.test,
            self.limit.as_secs()
        );
        match looks {
            Some(looks) => {
                let [before, after] = *looks;
                let report = StuckReport::of(&after.observed_after(&before), false);
                format!("{sentence}\n{}", report.text())
            }
            None => sentence,
        }
    }
}

/// Waits for the end of a rank, at most for `limit`. After that, returns a look at the ranks from halfway through and one from
/// now; or nothing if no rank can end any more.
pub(super) fn wait_looking<T>(
    ends: &Receiver<T>,
    limit: Duration,
    look: impl Fn() -> JobLook,
) -> Result<T, Option<Box<[JobLook; 2]>>> {
    match ends.recv_timeout(limit / 2) {
        Ok(end) => return Ok(end),
        Err(RecvTimeoutError::Disconnected) => return Err(None),
        Err(RecvTimeoutError::Timeout) => {}
    }
    let before = look();
    ends.recv_timeout(limit - limit / 2)
        .map_err(|_| Some(Box::new([before, look()])))
}

fn end_of(outcome: &thread::Result<()>) -> RankEnd {
    let Err(panic) = outcome else {
        return RankEnd::Well;
    };
    match panic.downcast_ref::<RankFailure>() {
        Some(failure) if failure.by_peer => RankEnd::Code(ENDED_BY_PEER),
        Some(_) => RankEnd::Code(1),
        None => RankEnd::Code(101),
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, TIMEOUT, limit_of};

    #[test]
    fn a_slow_machine_gives_tests_more_time() {
        assert_eq!(limit_of(""), Some(TIMEOUT));
        assert_eq!(limit_of("900"), Some(Duration::from_secs(900)));
        for wrong in ["0", "-1", "2.5", "long"] {
            assert_eq!(limit_of(wrong), None, "{wrong}");
        }
    }
}
