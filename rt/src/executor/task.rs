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
    sync::{AtomicU8, Mutex, lock},
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
    outcome: Arc<Mutex<TaskOutcome<T>>>,
    runtime: Weak<RuntimeShared>,
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
    let outcome = Arc::new(Mutex::new(TaskOutcome {
        value: None,
        waker: None,
        over: false,
    }));
    let report = OutcomeFuture {
        outcome: Arc::clone(&outcome),
        future: Box::pin(future),
    };
    start(shared, report);
    JoinHandle {
        outcome,
        runtime: Arc::downgrade(shared),
    }
}

pub(super) fn start<Q: TaskQueue + Send + Sync + 'static>(
    queue: &Arc<Q>,
    future: impl Future<Output = ()> + Send + 'static,
) {
    queue.schedule(Arc::new(RuntimeTask {
        queue: Arc::downgrade(queue),
        state: AtomicU8::new(QUEUED),
        future: Mutex::new(Some(Box::pin(future))),
    }));
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
    outcome: Arc<Mutex<TaskOutcome<F::Output>>>,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for OutcomeFuture<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = panic::catch_unwind(AssertUnwindSafe(|| self.future.as_mut().poll(cx)));
        let value = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(panic) => Err(panic),
        };
        lock(&self.outcome).value = Some(value);
        Poll::Ready(())
    }
}

/// Notifies the task that awaits the outcome, also if this task is dropped with its runtime.
impl<F: Future> Drop for OutcomeFuture<F> {
    fn drop(&mut self) {
        let mut outcome = lock(&self.outcome);
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
}

impl<T> JoinHandle<T> {
    fn poll_outcome(&self, cx: &Context<'_>) -> Poll<T> {
        let waker = cx.waker().clone();
        let mut outcome = lock(&self.outcome);
        match outcome.value.take() {
            Some(Ok(value)) => Poll::Ready(value),
            Some(Err(panic)) => panic::resume_unwind(panic),
            None if outcome.over => panic!("the runtime ended before the task did"),
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
