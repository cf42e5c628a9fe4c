//! Loom models of the seat, its waiting threads and the agent, in every relevant interleaving: `cargo xtask loom`.
//!
//! A thread that is never woken is a deadlock, which loom reports. A model with `should_panic` leaves out the step in
//! its name, and shows that the model before it can fail.

use std::{mem, sync::Arc, task::Waker};

use loom::{sync::Mutex, thread};

use super::{agent::ProgressAgent, seat::SeatLock, sleep_watch::SleepWatch};
use crate::{executor::Parker, sync};

type Seat = SeatLock<sync::Thread>;

/// Returns a parker for a thread that never sleeps in the seat.
fn parker() -> Arc<Parker<sync::Thread>> {
    let parker = Arc::new(Parker::new(sync::Thread::stand_in()));
    parker.take();
    parker
}

/// Takes the seat for a moment, as soon as it is free.
fn sit_once(seat: &Seat) {
    let parker = parker();
    while seat.take().is_none() {
        seat.wait(&parker, || true);
    }
}

#[test]
fn threads_that_wait_for_the_seat_get_it_one_after_the_other() {
    sync::explore(|| {
        let seat = Arc::new(Seat::new());
        let sitting = seat.take().unwrap();
        let waiting = [(); 2].map(|()| {
            let seat = Arc::clone(&seat);
            thread::spawn(move || sit_once(&seat))
        });
        drop(sitting);
        for thread in waiting {
            thread.join().unwrap();
        }
    });
}

/// Two threads wait for the seat. One of them is woken meanwhile and goes on to compute; it calls `first` before that.
fn one_of_two_goes_to_compute(first: impl Fn(&Seat) + Copy + Send + Sync + 'static) {
    sync::explore(move || {
        let seat = Arc::new(Seat::new());
        let sitting = seat.take().unwrap();
        let waker = Arc::new(Mutex::new(None));
        let computing = {
            let (seat, waker) = (Arc::clone(&seat), Arc::clone(&waker));
            thread::spawn(move || {
                let parker = parker();
                *waker.lock().unwrap() = Some(Waker::from(Arc::clone(&parker)));
                while !parker.take() {
                    if seat.take().is_some() {
                        return;
                    }
                    seat.wait(&parker, || true);
                }
                first(&seat);
            })
        };
        let waiting = {
            let seat = Arc::clone(&seat);
            thread::spawn(move || sit_once(&seat))
        };
        let waker = waker.lock().unwrap().take();
        waker.inspect(Waker::wake_by_ref);
        drop(sitting);
        computing.join().unwrap();
        waiting.join().unwrap();
    });
}

#[test]
fn a_thread_that_goes_to_compute_leaves_the_seat_to_another() {
    one_of_two_goes_to_compute(Seat::offer);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_thread_that_keeps_the_free_seat_to_itself_lets_another_wait_for_ever() {
    one_of_two_goes_to_compute(|_| {});
}

/// An application thread leaves the seat, another thread checks whether it is free, and the agent wants it.
fn agent_waits_for_the_seat(
    sleep: impl Fn(&ProgressAgent, &Seat) + Copy + Send + Sync + 'static,
    look: impl Fn(&ProgressAgent, &Seat) + Copy + Send + Sync + 'static,
) {
    sync::explore(move || {
        let (seat, agent) = (Arc::new(Seat::new()), Arc::new(ProgressAgent::new()));
        agent.begin();
        let sitting = seat.take().unwrap();
        let looking = {
            let (seat, agent) = (Arc::clone(&seat), Arc::clone(&agent));
            thread::spawn(move || look(&agent, &seat))
        };
        let application = {
            let (seat, agent) = (Arc::clone(&seat), Arc::clone(&agent));
            // The application thread owns the seat from here on.
            mem::forget(sitting);
            thread::spawn(move || {
                seat.leave();
                agent.wake_agent();
            })
        };
        while seat.take().is_none() {
            sleep(&agent, &seat);
        }
        application.join().unwrap();
        looking.join().unwrap();
    });
}

fn sleep_deep(agent: &ProgressAgent, seat: &Seat) {
    agent.sleep_deep(|| seat.is_taken());
}

#[test]
fn the_agent_is_roused_when_the_seat_is_left() {
    agent_waits_for_the_seat(sleep_deep, |_, _| {});
}

#[test]
#[should_panic(expected = "deadlock")]
fn an_agent_that_looks_before_it_falls_asleep_is_not_roused() {
    let look_first = |agent: &ProgressAgent, seat: &Seat| {
        let taken = seat.is_taken();
        agent.sleep_deep(|| taken);
    };
    agent_waits_for_the_seat(look_first, |_, _| {});
}

#[test]
fn a_thread_that_only_looks_for_the_seat_does_not_keep_the_agent_asleep() {
    agent_waits_for_the_seat(sleep_deep, |_, seat| {
        seat.is_taken();
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_thread_that_takes_the_seat_to_look_for_it_may_keep_the_agent_asleep() {
    agent_waits_for_the_seat(sleep_deep, |_, seat| drop(seat.take()));
}

/// An application thread makes one turn and computes, or calls `disturb`. The agent has seen `seen(..)` turns.
fn agent_leaves_after(
    disturb: fn(&mut SleepWatch) -> bool,
    seen: impl Fn(&SleepWatch) -> u64 + Copy + Send + Sync + 'static,
) {
    sync::explore(move || {
        let (watch, bell) = (
            Arc::new(Mutex::new(SleepWatch::default())),
            sync::Thread::stand_in(),
        );
        let agent = {
            let (watch, bell) = (Arc::clone(&watch), bell.clone());
            thread::spawn(move || {
                loop {
                    let mut watch = watch.lock().unwrap();
                    let seen = seen(&watch);
                    if !watch.let_agent_sit(seen) {
                        break;
                    }
                    drop(watch);
                    bell.wait();
                }
                watch.lock().unwrap().leave();
            })
        };
        let disturbed = disturb(&mut watch.lock().unwrap());
        if disturbed {
            bell.unpark();
        }
        agent.join().unwrap();
    });
}

#[test]
fn the_agent_leaves_the_seat_when_an_application_makes_a_turn() {
    agent_leaves_after(SleepWatch::count_turn, |_| 0);
}

#[test]
#[should_panic(expected = "deadlock")]
fn an_agent_that_counts_turns_when_it_sits_down_misses_one() {
    agent_leaves_after(SleepWatch::count_turn, |watch| watch.turns);
}

#[test]
fn the_agent_stays_out_of_the_seat_when_the_runtime_closes() {
    agent_leaves_after(SleepWatch::close, |watch| watch.turns);
}

/// A driver that rings if it is armed when a message arrives. A turn disarms it.
#[derive(Default)]
struct Driver {
    came: bool,
    armed: bool,
}

impl Driver {
    fn turn(&mut self) -> bool {
        self.armed = false;
        self.came
    }
}

/// One application thread sleeps until a message arrives. Another thread may make a turn and then computes.
fn a_message_comes_for_a_sleeper(
    may_turn: impl Fn(&SleepWatch) -> bool + Copy + Send + Sync + 'static,
) {
    sync::explore(move || {
        let engine = Arc::new(Mutex::new((SleepWatch::default(), false)));
        let driver = Arc::new(Mutex::new(Driver::default()));
        let bell = sync::Thread::stand_in();
        let peer = {
            let (driver, bell) = (Arc::clone(&driver), bell.clone());
            thread::spawn(move || {
                let mut driver = driver.lock().unwrap();
                driver.came = true;
                if driver.armed {
                    bell.unpark();
                }
            })
        };
        let computing = {
            let (engine, driver, bell) = (Arc::clone(&engine), Arc::clone(&driver), bell.clone());
            thread::spawn(move || {
                let mut engine = engine.lock().unwrap();
                if may_turn(&engine.0) && driver.lock().unwrap().turn() {
                    engine.1 = true;
                    bell.unpark(); // wakes the sleeper's future
                }
            })
        };
        loop {
            let mut engine = engine.lock().unwrap();
            engine.0.wake_up();
            let mut driver = driver.lock().unwrap();
            if engine.1 || driver.turn() {
                break;
            }
            driver.armed = true;
            engine.0.fall_asleep(None);
            drop((driver, engine));
            bell.wait();
        }
        peer.join().unwrap();
        computing.join().unwrap();
    });
}

#[test]
fn a_turn_is_left_to_the_thread_that_sleeps_on_an_armed_driver() {
    a_message_comes_for_a_sleeper(|watch| !watch.is_guarded());
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_turn_that_disarms_the_driver_of_a_sleeper_keeps_it_asleep() {
    a_message_comes_for_a_sleeper(|_| true);
}
