//! Loom models of wake-ups of threads and tasks, in every relevant interleaving: `cargo xtask loom`.
//!
//! A lost wake-up leaves a thread asleep forever, which loom reports as a deadlock. A model with `should_panic` leaves
//! out the step in its name, and shows that the model before it can fail.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use loom::{
    sync::{
        Mutex,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
};

use super::{
    parker::{Parker, SeatDoorbell},
    task::{self, RuntimeTask, TaskQueue},
};
use crate::sync;

impl SeatDoorbell for sync::Thread {
    fn ring(&self) {
        self.unpark();
    }
}

/// A thread in `block_on` waits for two wake-ups. Each announces one increment of a count that nothing else orders.
fn waits_for_two_wake_ups(
    rest: impl Fn(&Parker<sync::Thread>, &sync::Thread) + Sync + Send + 'static,
) {
    sync::explore(move || {
        let bell = sync::Thread::stand_in();
        let parker = Arc::new(Parker::new(bell.clone()));
        assert!(parker.take(), "woken from the start");
        let count = Arc::new(AtomicUsize::new(0));
        let wakers = [(); 2].map(|()| {
            let (count, waker) = (Arc::clone(&count), Waker::from(Arc::clone(&parker)));
            thread::spawn(move || {
                count.fetch_add(1, Relaxed);
                waker.wake();
            })
        });
        while count.load(Relaxed) < 2 {
            while !parker.take() {
                rest(&parker, &bell);
            }
        }
        for waker in wakers {
            waker.join().unwrap();
        }
    });
}

#[test]
fn a_thread_that_sits_down_is_woken() {
    waits_for_two_wake_ups(|parker, bell| parker.sit(|| bell.wait()));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_thread_that_does_not_say_where_it_sleeps_is_not_woken() {
    waits_for_two_wake_ups(|parker, bell| {
        if !parker.is_woken() {
            bell.wait();
        }
    });
}

#[test]
fn a_thread_that_parks_is_woken() {
    waits_for_two_wake_ups(|parker, _| parker.park());
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_thread_that_parks_without_saying_so_is_not_woken() {
    waits_for_two_wake_ups(|parker, _| {
        if !parker.is_woken() {
            sync::park();
        }
    });
}

#[test]
fn a_thread_is_woken_wherever_it_waits() {
    sync::explore(|| {
        let bell = sync::Thread::stand_in();
        let parker = Arc::new(Parker::new(bell.clone()));
        parker.take();
        let waker = Waker::from(Arc::clone(&parker));
        let ringing = bell.clone();
        let waking = thread::spawn(move || {
            ringing.ring(); // another event ends the sleep in the seat
            waker.wake();
        });
        while !parker.take() {
            parker.sit(|| bell.wait());
            parker.park();
        }
        waking.join().unwrap();
    });
}

/// A run queue, and a doorbell for the thread that serves it.
struct Tasks {
    ready: Mutex<VecDeque<Arc<RuntimeTask<Self>>>>,
    bell: sync::Thread,
}

impl Tasks {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            ready: Mutex::default(),
            bell: sync::Thread::stand_in(),
        })
    }

    fn next(&self) -> Option<Arc<RuntimeTask<Self>>> {
        self.ready.lock().unwrap().pop_front()
    }

    /// Runs ready tasks until `end` is set.
    fn serve(&self, end: &AtomicBool) {
        while !end.load(SeqCst) {
            match self.next() {
                Some(task) => task.run(),
                None => self.bell.wait(),
            }
        }
    }
}

impl TaskQueue for Tasks {
    fn schedule(&self, task: Arc<RuntimeTask<Self>>) {
        self.ready.lock().unwrap().push_back(task);
        self.bell.unpark();
    }
}

/// A future that is ready when `count` is 2.
struct Counting {
    tasks: Arc<Tasks>,
    count: Arc<AtomicUsize>,
    end: Arc<AtomicBool>,
    polled: AtomicBool,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Future for Counting {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        assert!(!self.polled.swap(true, SeqCst), "polled twice at a time");
        self.waker
            .lock()
            .unwrap()
            .get_or_insert_with(|| cx.waker().clone());
        let done = self.count.load(Relaxed) == 2;
        self.polled.store(false, SeqCst);
        if !done {
            return Poll::Pending;
        }
        self.end.store(true, SeqCst);
        self.tasks.bell.unpark();
        Poll::Ready(())
    }
}

struct Counted {
    tasks: Arc<Tasks>,
    count: Arc<AtomicUsize>,
    end: Arc<AtomicBool>,
    waker: Waker,
}

/// Returns a task that has been polled once.
fn counting() -> Counted {
    let tasks = Tasks::new();
    let (count, end) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let slot = Arc::new(Mutex::default());
    let future = Counting {
        tasks: Arc::clone(&tasks),
        count: Arc::clone(&count),
        end: Arc::clone(&end),
        polled: AtomicBool::new(false),
        waker: Arc::clone(&slot),
    };
    task::start(&tasks, future);
    tasks.next().unwrap().run();
    let waker = slot.lock().unwrap().take().unwrap();
    Counted {
        tasks,
        count,
        end,
        waker,
    }
}

#[test]
fn a_task_is_polled_after_every_wake_up() {
    sync::explore(|| {
        let Counted {
            tasks,
            count,
            end,
            waker,
        } = counting();
        let wakers = [(); 2].map(|()| {
            let (count, waker) = (Arc::clone(&count), waker.clone());
            thread::spawn(move || {
                count.fetch_add(1, Relaxed);
                waker.wake();
            })
        });
        tasks.serve(&end);
        for waker in wakers {
            waker.join().unwrap();
        }
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_task_that_is_woken_too_early_is_not_polled_again() {
    sync::explore(|| {
        let Counted {
            tasks,
            count,
            end,
            waker,
        } = counting();
        let waking = thread::spawn(move || {
            waker.wake();
            count.fetch_add(2, Relaxed);
        });
        tasks.serve(&end);
        waking.join().unwrap();
    });
}

#[test]
fn a_task_is_polled_by_one_thread_at_a_time() {
    sync::explore(|| {
        let Counted {
            tasks,
            count,
            end,
            waker,
        } = counting();
        let waking = thread::spawn(move || {
            for _ in 0..2 {
                count.fetch_add(1, Relaxed);
                waker.wake_by_ref();
            }
        });
        let helping = {
            let tasks = Arc::clone(&tasks);
            thread::spawn(move || {
                if let Some(task) = tasks.next() {
                    task.run();
                }
            })
        };
        tasks.serve(&end);
        waking.join().unwrap();
        helping.join().unwrap();
    });
}
