//! Drives one future to completion on the caller's thread, for [`RuntimeHandle::block_on`](crate::RuntimeHandle::block_on).

use std::{
    cell::Cell,
    pin::pin,
    ptr,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
};

use super::{Parker, budget};
use crate::{
    comm::handle_cache,
    engine::Engine,
    reactor::{Cooldown, CooldownAction},
    shared::{RuntimeShared, SeatOutcome, TurnMakerGuard},
};

/// Polls the future whenever it is woken. Meanwhile runs tasks, makes turns, and sleeps when there is nothing to do.
pub(crate) fn block_on<F: Future>(shared: &Arc<RuntimeShared>, future: F) -> F::Output {
    let _driving = DrivingGuard::start(shared);
    let parker = Arc::new(Parker::new(shared.new_notifier()));
    let waker = Waker::from(Arc::clone(&parker));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let mut cooldown = Cooldown::new(shared.wake_cost());
    let mut waiting = None;
    loop {
        if parker.take() {
            waiting = None;
            shared.offer_seat();
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                shared.offer_seat();
                return output;
            }
            run_tasks(shared);
        }
        step(shared, &parker, &mut cooldown, &mut waiting);
        // The budget is not refilled before the first poll: a program may call this function in a loop, each time with a
        // future that is ready immediately.
        budget::refill();
    }
}

/// Makes turns until the closing engine has completed every send.
pub(crate) fn drain(shared: &Arc<RuntimeShared>) {
    let parker = Arc::new(Parker::new(shared.new_notifier()));
    let mut cooldown = Cooldown::new(shared.wake_cost());
    parker.take();
    while !shared.with(Engine::is_closed) {
        step(shared, &parker, &mut cooldown, &mut None);
    }
}

/// Makes one turn, and rests if the turn had no events. Counts this thread as waiting until it sleeps or runs tasks.
fn step<'a>(
    shared: &'a RuntimeShared,
    parker: &Arc<Parker>,
    cooldown: &mut Cooldown,
    waiting: &mut Option<TurnMakerGuard<'a>>,
) {
    waiting.get_or_insert_with(|| shared.drivers.waiting_thread());
    let Some(events) = shared.turn() else {
        *waiting = None;
        run_tasks(shared);
        return sleep(shared, parker);
    };
    if events > 0 || parker.is_woken() || shared.has_tasks() {
        shared.end_wait(cooldown);
        if shared.has_tasks() {
            *waiting = None;
            run_tasks(shared);
        }
        return;
    }
    match cooldown.after_empty(shared.is_crowded(), || shared.clock.now()) {
        CooldownAction::Spin => shared.pause(),
        CooldownAction::Yield => thread::yield_now(),
        CooldownAction::Park => {
            *waiting = None;
            sleep(shared, parker);
        }
    }
}

fn sleep(shared: &RuntimeShared, parker: &Arc<Parker>) {
    shared.publish_processor();
    shared.warn_of_tokio();
    if shared.sleep_in_seat(parker) == SeatOutcome::Taken {
        shared.park(parker);
    }
}

/// Runs the tasks that are ready now, but not those that become ready meanwhile. A task may yield forever while it waits for
/// something that only a turn brings.
pub(crate) fn run_tasks(shared: &RuntimeShared) {
    for _ in 0..shared.ready_tasks() {
        let Some(task) = shared.next_task() else {
            return;
        };
        shared.offer_seat();
        budget::refill();
        task.run();
    }
}

thread_local! {
    /// Runtime that this thread drives, [`STILL`], or null.
    static DRIVEN: Cell<*const RuntimeShared> = const { Cell::new(ptr::null()) };
}

/// Marks a thread that is in the middle of a turn, or in other work that must not make turns. Used in place of a runtime.
const STILL: *const RuntimeShared = ptr::without_provenance(1);

/// Returns true if the calling thread must not make turns of any runtime.
pub(crate) fn is_progress_paused() -> bool {
    DRIVEN.get() == STILL
}

/// Returns true if the calling thread is in `block_on` of this runtime.
#[inline]
pub(crate) fn drives(shared: &RuntimeShared) -> bool {
    ptr::eq(DRIVEN.get(), shared)
}

/// Runs `work` while this thread makes no turns, whatever `work` calls. In the middle of a turn, further turns would nest.
pub(crate) fn without_turns<T>(work: impl FnOnce() -> T) -> T {
    let _still = ProgressPause(DRIVEN.replace(STILL));
    work()
}

/// While it exists, this thread makes no turns. Its drop restores the runtime that the thread drove before.
struct ProgressPause(*const RuntimeShared);

impl Drop for ProgressPause {
    fn drop(&mut self) {
        DRIVEN.set(self.0);
    }
}

/// While it exists, this thread drives a runtime. Its drop restores the runtime that the thread drove before.
struct DrivingGuard<'a> {
    before: *const RuntimeShared,
    shared: &'a RuntimeShared,
    _counted: TurnMakerGuard<'a>,
}

impl<'a> DrivingGuard<'a> {
    fn start(shared: &'a RuntimeShared) -> Self {
        Self {
            before: DRIVEN.replace(shared),
            shared,
            _counted: shared.drivers.thread(),
        }
    }
}

impl Drop for DrivingGuard<'_> {
    fn drop(&mut self) {
        DRIVEN.set(self.before);
        self.shared.allow_spinning();
        handle_cache::clear_all();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::{cell::Cell, future::poll_fn, sync::Arc, task::Poll};

    use crate::Runtime;

    #[test]
    fn a_thread_counts_as_waiting_neither_in_its_future_nor_in_its_tasks() {
        let runtime = Runtime::builder().init().unwrap();
        let world = runtime.world();
        let shared = Arc::clone(world.shared());
        let waiting = move || shared.drivers.waiting_threads();
        let polls = Cell::new(0);
        let in_task = runtime.block_on(async {
            let task = runtime.spawn({
                let waiting = waiting.clone();
                async move { waiting() }
            });
            poll_fn(|context| {
                polls.set(polls.get() + 1);
                assert_eq!(waiting(), 0, "poll {}", polls.get());
                context.waker().wake_by_ref();
                if polls.get() < 3 {
                    Poll::Pending
                } else {
                    Poll::Ready(())
                }
            })
            .await;
            task.await
        });
        assert_eq!((in_task, waiting()), (0, 0));
    }
}
