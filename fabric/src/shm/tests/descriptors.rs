//! Tests of processes that have run out of descriptors.

use std::{fs::File, iter};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{
    BOARD, Board, Driver, Ear, Shm, ShmConfig, WakeMethod, is_readable, message, other_process,
    posted,
};
use crate::driver::{ArmResult, PostResult, WakeSource};

const RINGS: &str = "shm::tests::descriptors::a_process_that_rings_without_descriptors";

#[test]
fn a_process_without_free_descriptors_wakes_its_peers() {
    let board = Board::create(2).unwrap();
    let ended = other_process(RINGS, &board).wait().unwrap();
    assert!(ended.success());
}

#[test]
fn a_process_that_rings_without_descriptors() {
    let Ok(address) = std::env::var(BOARD) else {
        return;
    };
    let board = Board::attach(&address).unwrap();
    let open = |rank| {
        let config = ShmConfig {
            wake: WakeMethod::Fd,
            ..ShmConfig::new(rank)
        };
        Shm::open(&board, config).unwrap()
    };
    let (mut a, mut b, mut ear) = (open(0), open(1), Ear::default());
    // Each rank maps the other, and neither sleeps.
    for _ in 0..2 {
        while let PostResult::Full(_) = a.post(message(1, b"first", &[1])) {
            let _ = b.progress(64, &mut ear);
        }
        while b.progress(64, &mut ear).events > 0 || a.progress(64, &mut ear).events > 0 {}
    }
    while b.arm() == ArmResult::Busy {
        let _ = b.progress(64, &mut ear);
    }
    let WakeSource::Fd(pipe) = b.wait_on().remove(0) else {
        panic!("a futex")
    };
    let all = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(256),
        ..all
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let used: Vec<File> = iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(!is_readable(&pipe));
    posted(&mut a, message(1, b"second", &[2]));
    assert!(is_readable(&pipe), "it was woken");
    drop(used);
}
