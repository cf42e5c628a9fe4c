//! Futures that proceed in the background, even if the application polls no task.
//!
//! A background future is the waker of whatever it waits for. The thread that wakes it also polls it, in the middle of
//! the turn that woke it. So it needs no executor, and proceeds in every progress mode. It runs only code of this
//! library.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt, mem,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker, ready},
    thread,
};

use super::{poll_proceed, without_turns};
use crate::shared::contain_panic;

/// A future that starts when it is made, and proceeds in the background.
///
/// Dropping it does not stop it; its result is then dropped as soon as it is available.
#[must_use = "await it, or drop it to let it continue in the background"]
pub struct BackgroundFuture<T: Send + 'static> {
    state: Arc<BackgroundState<T>>,
}

struct BackgroundState<T>(Mutex<BackgroundStage<T>>);

enum BackgroundStage<T> {
    InFlight {
        /// The rest of the work; `None` while a thread polls it.
        rest: Option<RemainingFuture<T>>,
        /// True if the future was woken and no thread has polled it since.
        woken: bool,
        reader: ResultReader,
    },
    /// The result. A panic is passed to the task that awaits it.
    Over(thread::Result<T>),
    Taken,
}

enum ResultReader {
    /// No task has awaited the background future yet.
    None,
    Waits(Waker),
    /// The handle was dropped, so the result will be dropped.
    Gone,
}

type RemainingFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Work that remains after a poll, without the lock, because wakers and results may run application code.
enum PollFollowUp<T> {
    Nothing,
    Wake(Waker),
    Drop(thread::Result<T>),
}

impl<T: Send + 'static> BackgroundFuture<T> {
    /// Starts a background future. Whatever it waits for keeps it alive from now on.
    pub fn new(rest: impl Future<Output = T> + Send + 'static) -> Self {
        let state = Arc::new(BackgroundState(Mutex::new(BackgroundStage::InFlight {
            rest: Some(Box::pin(rest)),
            woken: false,
            reader: ResultReader::None,
        })));
        state.wake_by_ref();
        Self { state }
    }

    /// Returns true if awaiting the future would not wait.
    #[must_use]
    pub fn is_done(&self) -> bool {
        !matches!(*self.state.lock(), BackgroundStage::InFlight { .. })
    }
}

impl<T: Send + 'static> Drop for BackgroundFuture<T> {
    fn drop(&mut self) {
        let mut stage = self.state.lock();
        let left = match &mut *stage {
            BackgroundStage::InFlight { reader, .. } => {
                Err(mem::replace(reader, ResultReader::Gone))
            }
            over => Ok(mem::replace(over, BackgroundStage::Taken)),
        };
        drop(stage);
        drop(left); // without the lock, because this may drop a task or a communicator
    }
}

impl<T: Send + 'static> Future for BackgroundFuture<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        ready!(poll_proceed(cx));
        let mut stage = ready!(self.state.poll_over(cx.waker()));
        let taken = mem::replace(&mut *stage, BackgroundStage::Taken);
        drop(stage);
        match taken {
            BackgroundStage::Over(outcome) => {
                Poll::Ready(outcome.unwrap_or_else(|panic| resume_unwind(panic)))
            }
            _ => panic!("an operation was polled after it had completed"),
        }
    }
}

impl<T> BackgroundState<T> {
    fn poll_over(&self, waker: &Waker) -> Poll<MutexGuard<'_, BackgroundStage<T>>> {
        let next = ResultReader::Waits(waker.clone());
        let mut stage = self.lock();
        let BackgroundStage::InFlight { reader, .. } = &mut *stage else {
            drop(next);
            return Poll::Ready(stage);
        };
        let before = mem::replace(reader, next);
        drop(stage);
        drop(before); // without the lock, because this may drop a task
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, BackgroundStage<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> Wake for BackgroundState<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.lock().wake();
        let course = Arc::clone(self);
        run(course);
    }
}

/// A background future of any type.
trait ErasedBackground {
    fn resume(self: Arc<Self>);
}

impl<T: Send + 'static> ErasedBackground for BackgroundState<T> {
    /// Polls the background future, without the lock. Only one thread does so at a time. If a thread wakes it meanwhile, even the
    /// same thread, it only sets a flag.
    fn resume(self: Arc<Self>) {
        loop {
            let taken = self.lock().take_up();
            let Some(mut rest) = taken else { return };
            let waker = Waker::from(Arc::clone(&self));
            let mut cx = Context::from_waker(&waker);
            let poll = || without_turns(|| rest.as_mut().poll(&mut cx));
            let polled = catch_unwind(AssertUnwindSafe(poll));
            let (over, after) = self.lock().lay_down(rest, polled);
            contain_panic(|| drop(over));
            match after {
                PollFollowUp::Nothing => {}
                PollFollowUp::Wake(reader) => contain_panic(|| reader.wake()),
                PollFollowUp::Drop(outcome) => contain_panic(|| drop(outcome)),
            }
        }
    }
}

thread_local! {
    /// Background futures woken while this thread polls another one; `None` while it polls none.
    static LATER: RefCell<Option<VecDeque<Arc<dyn ErasedBackground>>>> = const { RefCell::new(None) };
}

/// Polls a background future on this thread: immediately, or after the background future that this thread is already polling.
/// Otherwise a chain of thousands of background futures that complete each other would need as many stack frames.
fn run(course: Arc<dyn ErasedBackground>) {
    let first = LATER.try_with(|later| match &mut *later.borrow_mut() {
        Some(later) => {
            later.push_back(Arc::clone(&course));
            false
        }
        none => {
            *none = Some(VecDeque::new());
            true
        }
    });
    match first {
        Ok(false) => return,
        Ok(true) => {}
        Err(_) => return course.resume(), // the thread is ending, so it cannot keep the background future for later
    }
    let mut next = Some(course);
    while let Some(course) = next {
        course.resume();
        next = take_later();
    }
}

/// Returns the next background future that was woken meanwhile. If there is none, records that this thread polls no background
/// future any more.
fn take_later() -> Option<Arc<dyn ErasedBackground>> {
    let taken = LATER.try_with(|later| {
        let mut later = later.borrow_mut();
        let next = later.as_mut().and_then(VecDeque::pop_front);
        if next.is_none() {
            *later = None;
        }
        next
    });
    taken.ok().flatten()
}

impl<T> BackgroundStage<T> {
    fn wake(&mut self) {
        if let Self::InFlight { woken, .. } = self {
            *woken = true;
        }
    }

    /// Takes the rest of the work, if the background future was woken and no other thread polls it.
    fn take_up(&mut self) -> Option<RemainingFuture<T>> {
        match self {
            Self::InFlight { rest, woken, .. } if *woken => {
                let rest = rest.take()?;
                *woken = false;
                Some(rest)
            }
            _ => None,
        }
    }

    /// Puts the rest of the work back after a poll. Returns the future if the background future has ended, and what remains to be
    /// done.
    fn lay_down(
        &mut self,
        left: RemainingFuture<T>,
        polled: thread::Result<Poll<T>>,
    ) -> (Option<RemainingFuture<T>>, PollFollowUp<T>) {
        let Self::InFlight { rest, reader, .. } = self else {
            return (Some(left), PollFollowUp::Nothing);
        };
        let outcome = match polled {
            Ok(Poll::Pending) => {
                *rest = Some(left);
                return (None, PollFollowUp::Nothing);
            }
            Ok(Poll::Ready(outcome)) => Ok(outcome),
            Err(panic) => Err(panic),
        };
        let reader = mem::replace(reader, ResultReader::None);
        if matches!(reader, ResultReader::Gone) {
            *self = Self::Taken;
            return (Some(left), PollFollowUp::Drop(outcome));
        }
        *self = Self::Over(outcome);
        let after = match reader {
            ResultReader::Waits(waker) => PollFollowUp::Wake(waker),
            _ => PollFollowUp::Nothing,
        };
        (Some(left), after)
    }
}

impl<T: Send + 'static> fmt::Debug for BackgroundFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackgroundFuture").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::{
        future::{pending, poll_fn},
        panic::{AssertUnwindSafe, catch_unwind},
        pin::pin,
        sync::{
            Arc, Mutex,
            atomic::{AtomicU32, Ordering},
            mpsc,
        },
        task::{Context, Poll, Wake, Waker},
        thread,
    };

    use super::BackgroundFuture;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn poll<T: Send + 'static>(course: BackgroundFuture<T>) -> Poll<T> {
        pin!(course).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn what_is_woken_in_the_middle_of_a_poll_is_polled_again() {
        let mut left = 3;
        let course = BackgroundFuture::new(poll_fn(move |cx| {
            if left == 0 {
                return Poll::Ready(7);
            }
            left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        assert!(course.is_done());
        assert_eq!(poll(course), Poll::Ready(7));
    }

    /// Only the last task that awaits it is woken, and no task that awaited it before.
    #[test]
    fn it_goes_on_on_the_thread_that_wakes_it_and_wakes_the_task_that_awaits_it_last() {
        let (waker, wakers) = mpsc::channel();
        let here = thread::current().id();
        let course = BackgroundFuture::new(poll_fn(move |cx| {
            if thread::current().id() != here {
                return Poll::Ready(7);
            }
            waker.send(cx.waker().clone()).unwrap();
            Poll::Pending
        }));
        let counts = [(); 2].map(|()| Arc::new(Count::default()));
        let mut course = pin!(course);
        for count in &counts {
            let waker = Waker::from(Arc::clone(count));
            let polled = course.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        let waker = wakers.recv().unwrap();
        thread::spawn(|| waker.wake()).join().unwrap();
        assert_eq!(counts.map(|count| count.0.load(Ordering::SeqCst)), [0, 1]);
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(course.poll(&mut cx), Poll::Ready(7));
    }

    #[test]
    fn a_panic_on_its_way_goes_to_the_task_that_awaits_it() {
        let course = BackgroundFuture::new(async { panic!("the test's") });
        assert!(course.is_done());
        let polled = || poll::<()>(course);
        let panic = catch_unwind(AssertUnwindSafe(polled)).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"the test's"));
    }

    #[test]
    fn what_is_dropped_before_its_end_is_dropped_with_its_last_waker() {
        let kept = Arc::new(());
        let held = Arc::clone(&kept);
        drop(BackgroundFuture::new(async move {
            let _held = held;
            pending::<()>().await;
        }));
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    /// Returns a background future that waits until [`open`] is called, and its waker.
    fn gated<T: Send + 'static>(value: T) -> (BackgroundFuture<T>, Waker) {
        let (waker, wakers) = mpsc::channel();
        let mut value = Some(value);
        let mut first = true;
        let course = BackgroundFuture::new(poll_fn(move |cx| {
            if std::mem::take(&mut first) {
                waker.send(cx.waker().clone()).unwrap();
                return Poll::Pending;
            }
            value.take().map_or(Poll::Pending, Poll::Ready)
        }));
        (course, wakers.recv().unwrap())
    }

    #[test]
    fn the_result_that_no_task_takes_is_dropped_at_once_whenever_the_handle_goes() {
        for early in [true, false] {
            let kept = Arc::new(());
            let (course, waker) = gated(Arc::clone(&kept));
            let course = if early {
                drop(course);
                None
            } else {
                Some(course)
            };
            waker.wake_by_ref();
            drop(course);
            // The waker still exists.
            assert_eq!(Arc::strong_count(&kept), 1);
            drop(waker);
        }
    }

    #[test]
    fn a_long_chain_of_courses_that_wake_each_other_needs_no_stack() {
        let mut next: Option<Waker> = None;
        let mut all = Vec::new();
        for _ in 0..100_000 {
            let told = next.take();
            let (waker, wakers) = mpsc::channel();
            let mut first = true;
            all.push(BackgroundFuture::new(poll_fn(move |cx| {
                if std::mem::take(&mut first) {
                    waker.send(cx.waker().clone()).unwrap();
                    return Poll::Pending;
                }
                told.iter().for_each(Waker::wake_by_ref);
                Poll::Ready(())
            })));
            next = wakers.recv().ok();
        }
        next.take().expect("the last").wake();
        assert!(all.iter().all(BackgroundFuture::is_done));
    }

    #[test]
    fn threads_that_wake_one_course_poll_it_one_at_a_time() {
        let polls = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&polls);
        let (waker, wakers) = mpsc::channel();
        let mut first = true;
        let course = BackgroundFuture::new(poll_fn(move |cx| {
            if std::mem::take(&mut first) {
                waker.send(cx.waker().clone()).unwrap();
            }
            let mut polls = counted.try_lock().expect("no other thread polls it");
            *polls += 1;
            if *polls > 1000 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        }));
        let waker = wakers.recv().unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| waker.wake_by_ref()));
            }
        });
        while !course.is_done() {
            waker.wake_by_ref();
        }
        assert!(poll(course).is_ready());
    }
}
