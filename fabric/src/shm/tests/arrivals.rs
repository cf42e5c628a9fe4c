//! Tests with ranks that end, or never open, before they have a driver.

use std::{sync::atomic::Ordering::AcqRel, time::Duration};

use rustix::process::{Signal, set_parent_process_death_signal};

use super::{
    BOARD, Board, DownCause, Driver, Ear, Heard, PeerState, PostResult, Shm, ShmConfig, WakeMethod,
    WorldRank, hear, message, other_process, posted, sleep,
};
use crate::driver::{ArmResult, WakeSource};

const COMES: &str = "shm::tests::arrivals::a_process_that_comes_and_opens_nothing";
const OPENS: &str = "shm::tests::arrivals::a_process_that_opens";

/// Opens a rank that sleeps on descriptors, and waits `patience` for ranks that have not arrived.
fn open(board: &Board, rank: u32, patience: Duration) -> Shm {
    let config = ShmConfig {
        wake: WakeMethod::Fd,
        patience,
        ..ShmConfig::new(rank)
    };
    Shm::open(board, config).unwrap()
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_process_killed_between_its_arrival_and_its_driver_is_noticed() {
    for wanted in [false, true] {
        let board = Board::create(3).unwrap();
        let mut a = open(&board, 0, LONG);
        let mut other = other_process(COMES, &board);
        while board.process_of(1).is_none() {
            std::thread::yield_now();
        }
        // The rank after the one that arrives: its neighbor on the board that is open.
        let _neighbor = open(&board, 2, LONG);
        assert_eq!(board.state_of(1), PeerState::Absent);
        if wanted {
            assert!(matches!(a.post(message(1, b"", b"x")), PostResult::Full(_)));
        }
        let mut ear = Ear::default();
        while a.progress(64, &mut ear).events > 0 || a.arm() == ArmResult::Busy {}
        other.kill().unwrap();
        while ear.0.is_empty() {
            sleep(&mut a, &mut ear);
        }
        other.wait().unwrap();
        assert_eq!(ear.0, [Heard::Down(1, DownCause::Failed)]);
        posted(&mut a, message(1, b"", b"too late"));
    }
}

#[test]
fn a_process_that_died_before_any_rank_watched_it_is_noticed() {
    let board = Board::create(2).unwrap();
    let mut other = other_process(COMES, &board);
    while board.process_of(1).is_none() {
        std::thread::yield_now();
    }
    other.kill().unwrap();
    other.wait().unwrap();
    let mut a = open(&board, 0, LONG);
    assert!(matches!(a.post(message(1, b"", b"x")), PostResult::Full(_)));
    assert_eq!(hear(&mut a), [Heard::Down(1, DownCause::Failed)]);
}

#[test]
fn a_process_that_comes_and_opens_nothing() {
    let Ok(address) = std::env::var(BOARD) else {
        return;
    };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let board = Board::attach(&address).unwrap();
    assert!(board.arrive(1) && !board.arrive(1));
    loop {
        std::thread::park();
    }
}

#[test]
fn a_rank_that_fails_before_it_has_a_driver_wakes_waiting_ranks() {
    let board = Board::create(2).unwrap();
    let mut a = open(&board, 0, LONG);
    assert!(board.arrive(1));
    assert!(matches!(a.post(message(1, b"", b"x")), PostResult::Full(_)));
    let mut ear = Ear::default();
    while a.progress(64, &mut ear).events > 0 || a.arm() == ArmResult::Busy {}
    let WakeSource::Fd(bell) = &a.wait_on()[0] else {
        panic!("a futex")
    };
    assert!(!super::is_readable(bell));
    board.fail(1);
    assert!(super::is_readable(bell));
    assert_eq!(hear(&mut a), [Heard::Down(1, DownCause::Failed)]);
    let refused = Shm::open(&board, ShmConfig::new(1)).unwrap_err();
    assert!(refused.to_string().contains("failed"), "{refused}");
    board.fail(0);
    assert!(!board.leave(0, false), "it had failed before");
}

#[test]
fn a_rank_that_is_wanted_and_never_comes_has_failed_when_it_is_late() {
    let board = Board::create(3).unwrap();
    let mut a = open(&board, 0, Duration::from_millis(20));
    let mut ear = Ear::default();
    assert!(matches!(a.post(message(1, b"", b"x")), PostResult::Full(_)));
    while ear.0.is_empty() {
        sleep(&mut a, &mut ear);
    }
    assert_eq!(ear.0, [Heard::Down(1, DownCause::Failed)]);
    posted(&mut a, message(1, b"", b"too late"));
    assert_eq!(board.state_of(2), PeerState::Absent, "no rank wanted it");
    assert!(!board.arrive(1) && board.arrive(2));
}

#[test]
fn a_rank_that_is_awaited_and_never_comes_has_failed_when_it_is_late_and_others_are_not_asked_for()
{
    let board = Board::create(4).unwrap();
    let (mut a, _c) = (
        open(&board, 0, Duration::from_millis(20)),
        open(&board, 2, LONG),
    );
    let mut ear = Ear::default();
    while a.progress(64, &mut ear).events > 0 || a.arm() == ArmResult::Busy {}
    a.expect(&mut || vec![WorldRank(1), WorldRank(2)]);
    while ear.0.is_empty() {
        sleep(&mut a, &mut ear);
    }
    assert_eq!(ear.0, [Heard::Down(1, DownCause::Failed)]);
    assert_eq!(board.state_of(3), PeerState::Absent, "no rank wanted it");
    let _d = open(&board, 3, LONG);
    while a.progress(64, &mut ear).events > 0 || a.arm() == ArmResult::Busy {}
    a.expect(&mut || panic!("all have come, or never will"));
}

#[test]
fn a_rank_that_comes_late_but_in_time_is_waited_for_no_longer() {
    let board = Board::create(2).unwrap();
    let mut a = open(&board, 0, Duration::from_millis(20));
    assert!(matches!(a.post(message(1, b"", b"x")), PostResult::Full(_)));
    assert!(board.arrive(1), "and opens much later");
    let alarm = a.death_watch.wait_on();
    let guard = rustix::time::Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    let mut fds = [rustix::event::PollFd::new(
        &alarm,
        rustix::event::PollFlags::IN,
    )];
    assert_eq!(a.arm(), ArmResult::Busy, "it came");
    assert_eq!(rustix::event::poll(&mut fds, Some(&guard)), Ok(1));
    a.unchecked = u32::MAX / 2;
    assert_eq!(hear(&mut a), []);
    assert_eq!(board.state_of(1), PeerState::Absent);
    let _b = open(&board, 1, LONG);
    posted(&mut a, message(1, b"", b"x"));
}

#[test]
fn a_rank_whose_process_ends_before_it_has_told_that_it_left_is_heard_of() {
    for took_word in [false, true] {
        hear_of_a_leaving_rank(took_word);
    }
}

fn hear_of_a_leaving_rank(took_word: bool) {
    let board = Board::create(3).unwrap();
    let mut other = other_process(OPENS, &board);
    let (mut first, mut second) = (open(&board, 0, LONG), open(&board, 2, LONG));
    while board.state_of(1) == PeerState::Absent {
        std::thread::yield_now();
    }
    let mut ear = Ear::default();
    for shm in [&mut first, &mut second] {
        while shm.progress(64, &mut ear).events > 0 || shm.arm() == ArmResult::Busy {}
    }
    assert_eq!(ear.0, []);
    // The first step of closing. The rank is killed before it notifies the others, or while it does.
    assert!(board.leave(1, false));
    if took_word {
        board.bell(2).get().swap(0, AcqRel);
    }
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(hear(&mut first), [Heard::Down(1, DownCause::Finished)]);
    let WakeSource::Fd(bell) = &second.wait_on()[0] else {
        panic!("a futex")
    };
    assert!(super::is_readable(bell), "told by the one that watched it");
    assert_eq!(hear(&mut second), [Heard::Down(1, DownCause::Finished)]);
}

#[test]
fn a_process_that_opens() {
    let Ok(address) = std::env::var(BOARD) else {
        return;
    };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let _shm = open(&Board::attach(&address).unwrap(), 1, LONG);
    loop {
        std::thread::park();
    }
}
