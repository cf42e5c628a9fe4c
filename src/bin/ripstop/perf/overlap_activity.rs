//! What a rank does between the start of a collective and awaiting it.

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use ripstop::{
    buffer::{RecvBuf, SendBuf, Wire},
    collectives::{CollectiveOp, RaggedOp, ReductionOp, op::ReturnBuffers, persistent::PlanOp},
};

use super::{absence::RankAbsence, clock, collective::lossy};

/// Activity of a rank while a call is in flight.
#[derive(Clone, Copy, Debug)]
pub(super) enum OverlapActivity {
    Nothing,
    /// Computes, in parts with a test between each two.
    Rounds {
        rounds: u64,
        tests: u64,
    },
    /// Leaves its core to other ranks.
    Sleep(Duration),
    /// Stays away, and checks on return whether the call has completed.
    Away(RankAbsence),
}

/// Events during the call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ActivityTimes {
    /// Nanoseconds of the computation. The nanoseconds of a sleep are stored too, but not reported.
    pub(super) computed: u64,
    /// Nanoseconds of the tests.
    pub(super) testing: u64,
    /// True if the call had completed when the rank returned from its absence.
    pub(super) completed: bool,
    /// Time of that return.
    pub(super) returned_at: u64,
}

/// A call that has begun.
pub(super) trait InFlightCall: Future + Unpin {
    /// Returns true if awaiting the future would not wait.
    fn has_completed(&self) -> bool;
}

impl<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>> InFlightCall for CollectiveOp<I, O, H> {
    fn has_completed(&self) -> bool {
        self.is_done()
    }
}

impl<I: SendBuf, O: RecvBuf, H: ReturnBuffers<I, O>, A: Wire> InFlightCall
    for ReductionOp<I, O, H, A>
{
    fn has_completed(&self) -> bool {
        self.is_done()
    }
}

impl<T: Wire, K> InFlightCall for PlanOp<'_, T, K> {
    fn has_completed(&self) -> bool {
        self.is_done()
    }
}

impl<D: Send + 'static, F: Send + 'static> InFlightCall for RaggedOp<D, F> {
    fn has_completed(&self) -> bool {
        self.is_done()
    }
}

/// Begins a call, does something else, and awaits the call; evaluates to both results. This is a macro, because a function
/// would have to move the call, and a short call takes little more time than that.
macro_rules! beside {
    ($meanwhile:expr, $op:expr) => {{
        let mut op = $op;
        let mut passed = ActivityTimes::default();
        let end = match $meanwhile {
            OverlapActivity::Nothing => None,
            meanwhile => meanwhile.run_beside(&mut op, &mut passed).await,
        };
        let end = match end {
            Some(end) => end,
            None => (&mut op).await,
        };
        (passed, end)
    }};
}
pub(super) use beside;

impl OverlapActivity {
    /// Passes the time beside a call. Returns the call's result if a test has completed it.
    pub(super) async fn run_beside<O: InFlightCall>(
        self,
        op: &mut O,
        passed: &mut ActivityTimes,
    ) -> Option<O::Output> {
        match self {
            Self::Nothing => {}
            Self::Sleep(_) => passed.computed = self.alone(),
            Self::Away(away) => {
                away.stay_away();
                passed.completed = op.has_completed();
                passed.returned_at = clock::now();
            }
            Self::Rounds { rounds, tests } => return passed.in_parts(rounds, tests, op).await,
        }
        None
    }

    /// Returns the nanoseconds that this takes alone.
    pub(super) fn alone(self) -> u64 {
        let start = clock::now();
        match self {
            Self::Nothing => {}
            Self::Rounds { rounds, .. } => work(rounds),
            Self::Sleep(time) => clock::sleep(time),
            Self::Away(away) => away.stay_away(),
        }
        clock::now() - start
    }
}

impl ActivityTimes {
    /// Computes, and tests between each two parts until the call has completed. Returns its result if a test has completed it.
    async fn in_parts<O: InFlightCall>(
        &mut self,
        rounds: u64,
        tests: u64,
        op: &mut O,
    ) -> Option<O::Output> {
        let mut end = None;
        let mut begun = clock::now();
        for nth in 0..=tests {
            work(part(rounds, tests, nth));
            let computed = clock::now();
            self.computed += computed - begun;
            begun = computed;
            if nth < tests && end.is_none() {
                end = test(op).await;
                begun = clock::now();
                self.testing += begun - computed;
            }
        }
        end
    }
}

/// Tests once, like `MPI_Test`: polls the future with the waker of this task. If it is not complete, the task is ready again
/// immediately, and continues after the executor has run other ready tasks and the runtime has made a turn.
async fn test<O: Future + Unpin>(op: &mut O) -> Option<O::Output> {
    let mut is_polled = false;
    poll_fn(|cx| {
        if is_polled {
            return Poll::Ready(None);
        }
        is_polled = true;
        match Pin::new(&mut *op).poll(cx) {
            Poll::Ready(end) => Poll::Ready(Some(end)),
            Poll::Pending => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

/// Returns the rounds of the part before test `nth`, or after the last test. Parts differ by at most one round.
const fn part(rounds: u64, tests: u64, nth: u64) -> u64 {
    let parts = tests + 1;
    rounds / parts + (nth < rounds % parts) as u64
}

/// Computes for a number of rounds.
fn work(rounds: u64) {
    let mut x = 1.0_f64;
    for _ in 0..rounds {
        x = std::hint::black_box(x * 1.000_001 + 1e-9);
    }
    std::hint::black_box(x);
}

/// Returns the rounds of a computation that takes `micros_wanted`.
pub(super) fn calibrate_rounds(micros_wanted: f64) -> u64 {
    let trial = OverlapActivity::Rounds {
        rounds: TRIAL,
        tests: 0,
    };
    let took = (0..5).map(|_| trial.alone()).min().unwrap_or(1).max(1);
    let rounds = micros_wanted * 1e3 / lossy(took) * lossy(TRIAL);
    // The result is never negative, and far below 2^53.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count that is made of positive times"
    )]
    let rounds = rounds as u64;
    rounds.max(1)
}

const TRIAL: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        task::{Context, Poll, Wake, Waker},
    };

    use super::{ActivityTimes, InFlightCall, OverlapActivity, part};

    #[test]
    fn tests_for_completion_do_not_shorten_the_computation() {
        for (rounds, tests) in [(0, 0), (1, 0), (7, 10), (1_000_999, 1000), (12, 3)] {
            let parts: Vec<u64> = (0..=tests).map(|nth| part(rounds, tests, nth)).collect();
            assert_eq!(parts.iter().sum::<u64>(), rounds, "{parts:?}");
            assert!(parts[0] - parts[parts.len() - 1] <= 1, "{parts:?}");
        }
    }

    /// Ready after a number of polls.
    struct Steps {
        left: u32,
        waker: Waker,
        polls: Arc<AtomicU32>,
    }

    impl Future for Steps {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            assert!(cx.waker().will_wake(&self.waker), "the waker of its task");
            self.polls.fetch_add(1, Ordering::Relaxed);
            match self.left.checked_sub(1) {
                Some(left) => {
                    self.left = left;
                    Poll::Pending
                }
                None => Poll::Ready(()),
            }
        }
    }

    impl InFlightCall for Steps {
        fn has_completed(&self) -> bool {
            self.left == 0
        }
    }

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the polls of the call, how often its task yielded, and whether the call has completed with the computation.
    fn tested(left: u32, tests: u64) -> (u32, u32, bool) {
        let (polls, woken) = (Arc::<AtomicU32>::default(), Arc::<Woken>::default());
        let waker = Waker::from(Arc::clone(&woken));
        let op = Steps {
            left,
            waker: waker.clone(),
            polls: Arc::clone(&polls),
        };
        let rounds = 100;
        let meanwhile = OverlapActivity::Rounds { rounds, tests };
        let mut both = pin!(async { beside!(meanwhile, op) });
        let mut cx = Context::from_waker(&waker);
        let mut yields = 0;
        loop {
            let polled = both.as_mut().poll(&mut cx);
            let wakes = woken.0.load(Ordering::Relaxed);
            if polled.is_ready() || wakes == yields {
                return (polls.load(Ordering::Relaxed), yields, polled.is_ready());
            }
            yields = wakes;
        }
    }

    #[test]
    fn each_test_polls_once_and_yields_until_the_call_is_over() {
        // One poll after the computation awaits the call; all others are tests.
        assert_eq!(tested(0, 0), (1, 0, true));
        assert_eq!(tested(9, 0), (1, 0, false));
        assert_eq!(tested(9, 3), (4, 3, false));
        assert_eq!(tested(3, 3), (4, 3, true));
        assert_eq!(tested(2, 3), (3, 2, true));
        assert_eq!(tested(0, 1000), (1, 0, true));
    }
}
