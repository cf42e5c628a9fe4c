//! Spawned tasks.

use std::{
    fmt,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::{Arc, Weak, atomic::Ordering},
    task::{Context, Poll, Wake, Waker, ready},
    thread,
};

use super::{drives, poll_proceed};
use crate::{
    shared::{RuntimeShared, contain_panic},
    sync::{AtomicBool, AtomicU8, Mutex, lock},
};

/// A future that runs on the threads that drive the runtime.
pub(crate) struct RuntimeTask<Q = RuntimeShared> {
    queue: Weak<Q>,
    /// Scheduling state: one of the constants below.
    state: AtomicU8,
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
}

/// Queue of the tasks that are ready to run.
pub(crate) trait TaskQueue: Sized {
    fn schedule(&self, task: Arc<RuntimeTask<Self>>);
}

/// The task waits for a wake-up.
const IDLE: u8 = 0;
/// The task is in the run queue.
const QUEUED: u8 = 1;
/// The task is being polled.
const RUNNING: u8 = 2;
/// The task is being polled, and was woken meanwhile.
const AGAIN: u8 = 3;

/// The result of a spawned task, as a future. Dropping it lets the task run on in the background.
///
/// # Panics
/// Awaiting it panics if the task panicked, with the same payload, or if the runtime ended before the task did.
#[must_use = "await it, or drop it to let the task continue in the background"]
pub struct JoinHandle<T> {
    report: Arc<TaskReport<T>>,
    task: Weak<RuntimeTask>,
    runtime: Weak<RuntimeShared>,
}

/// The end of a task that was [aborted](JoinHandle::abort), as a future. Dropping it changes nothing.
///
/// Output: `Some` with the task's result if the task had completed before, otherwise `None`.
///
/// # Panics
/// Awaiting it panics if the task panicked, with the same payload.
pub struct AbortedTask<T> {
    handle: JoinHandle<T>,
}

/// What a task and its handle share.
struct TaskReport<T> {
    outcome: Mutex<TaskOutcome<T>>,
    /// True once the handle asked for the end of the task.
    aborted: AtomicBool,
}

struct TaskOutcome<T> {
    value: Option<thread::Result<T>>,
    waker: Option<Waker>,
    /// True once the task has ended, with a value or without.
    over: bool,
}

/// Creates a task that is ready to run.
pub(crate) fn spawn<F>(shared: &Arc<RuntimeShared>, future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let report = Arc::new(TaskReport {
        outcome: Mutex::new(TaskOutcome {
            value: None,
            waker: None,
            over: false,
        }),
        aborted: AtomicBool::new(false),
    });
    let reporting = OutcomeFuture {
        future: Box::pin(future),
        end: TaskEnd(Arc::clone(&report)),
    };
    JoinHandle {
        report,
        task: start(shared, reporting),
        runtime: Arc::downgrade(shared),
    }
}

pub(super) fn start<Q: TaskQueue + Send + Sync + 'static>(
    queue: &Arc<Q>,
    future: impl Future<Output = ()> + Send + 'static,
) -> Weak<RuntimeTask<Q>> {
    let task = Arc::new(RuntimeTask {
        queue: Arc::downgrade(queue),
        state: AtomicU8::new(QUEUED),
        future: Mutex::new(Some(Box::pin(future))),
    });
    let weak = Arc::downgrade(&task);
    queue.schedule(task);
    weak
}

impl<Q: TaskQueue + Send + Sync + 'static> RuntimeTask<Q> {
    /// Polls the task once, and queues it again if it was woken meanwhile.
    pub(crate) fn run(self: Arc<Self>) {
        // The state changes by a swap, not a store, here and elsewhere: the swap must synchronize with the writes before every
        // wake-up so far.
        self.state.swap(RUNNING, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self));
        let mut future = lock(&self.future);
        let done = future.as_mut().is_none_or(|future| {
            future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready()
        });
        let over = future.take_if(|_| done);
        drop(future);
        if done {
            return contain_panic(|| drop(over));
        }
        if self
            .state
            .compare_exchange(RUNNING, IDLE, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            self.state.swap(QUEUED, Ordering::SeqCst);
            self.enqueue();
        }
    }

    /// Drops the future of a task that will never run again.
    pub(crate) fn abandon(&self) {
        let future = lock(&self.future).take();
        contain_panic(|| drop(future));
    }

    fn enqueue(self: &Arc<Self>) {
        if let Some(queue) = self.queue.upgrade() {
            queue.schedule(Arc::clone(self));
        }
    }
}

impl<Q: TaskQueue + Send + Sync + 'static> Wake for RuntimeTask<Q> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Writes the state even if it does not change. A wake-up that only reads could become visible before the event
        // that it reports.
        let next = |state| {
            Some(match state {
                IDLE => QUEUED,
                RUNNING => AGAIN,
                same => same,
            })
        };
        if self
            .state
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
            == Ok(IDLE)
        {
            self.enqueue();
        }
    }
}

/// The task's future, which stores its outcome, or its panic, in the handle.
struct OutcomeFuture<F: Future> {
    /// Dropped before `end`, so that what it owns is gone when the handle completes.
    future: Pin<Box<F>>,
    end: TaskEnd<F::Output>,
}

/// Notifies the task that awaits the outcome when it is dropped, also if this task is dropped with its runtime.
struct TaskEnd<T>(Arc<TaskReport<T>>);

impl<F: Future> Future for OutcomeFuture<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.end.0.aborted.load(Ordering::SeqCst) {
            return Poll::Ready(()); // The caller then drops the task's future.
        }
        let polled = panic::catch_unwind(AssertUnwindSafe(|| self.future.as_mut().poll(cx)));
        let value = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(panic) => Err(panic),
        };
        lock(&self.end.0.outcome).value = Some(value);
        Poll::Ready(())
    }
}

impl<T> Drop for TaskEnd<T> {
    fn drop(&mut self) {
        let mut outcome = lock(&self.0.outcome);
        outcome.over = true;
        let waker = outcome.waker.take();
        drop(outcome);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.poll_over(cx)
            .map(|value| value.expect("the runtime ended before the task did"))
    }
}

impl<T> Future for AbortedTask<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.handle.poll_over(cx)
    }
}

impl<T> JoinHandle<T> {
    /// Ends the task: a thread of the runtime drops the task's future, instead of polling it again. What the future owns is
    /// dropped with it, so receives in flight are canceled, and sends go on in the background.
    ///
    /// The call does not wait. The future that it returns completes when the task's future is dropped, or the task had
    /// completed before. A task that computes without an `await` goes on to its next one.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let requests = world.messages::<u8>(ripstop_rt::Source::Any, 7);
    /// let server = world.spawn(async move {
    ///     let mut requests = requests;
    ///     while requests.recv().await.is_ok() {}
    /// });
    /// // ... and when no more requests are due:
    /// assert_eq!(server.abort().await, None);
    /// # });
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    pub fn abort(self) -> AbortedTask<T> {
        self.report.aborted.store(true, Ordering::SeqCst);
        if let Some(task) = self.task.upgrade() {
            task.wake();
        }
        AbortedTask { handle: self }
    }

    /// Completes with the task's result, or with `None` if the task ended without one.
    fn poll_over(&self, cx: &Context<'_>) -> Poll<Option<T>> {
        ready!(poll_proceed(cx));
        let polled = self.poll_outcome(cx);
        if polled.is_pending()
            && let Some(shared) = self.runtime.upgrade().filter(|shared| !drives(shared))
            && shared.run_tasks_foreign(cx.waker())
        {
            return self.poll_outcome(cx);
        }
        polled
    }

    fn poll_outcome(&self, cx: &Context<'_>) -> Poll<Option<T>> {
        let waker = cx.waker().clone();
        let mut outcome = lock(&self.report.outcome);
        match outcome.value.take() {
            Some(Ok(value)) => Poll::Ready(Some(value)),
            Some(Err(panic)) => panic::resume_unwind(panic),
            None if outcome.over => Poll::Ready(None),
            None => {
                // This may be the waker of another task, and the last handle of that task.
                let before = outcome.waker.replace(waker);
                drop(outcome);
                contain_panic(|| drop(before));
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JoinHandle")
    }
}

impl<T> fmt::Debug for AbortedTask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AbortedTask")
    }
}
