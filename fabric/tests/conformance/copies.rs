//! Copies of the software library, and drivers that run on them.
//!
//! A library is one process to its peers, so each rank that is a thread of this process needs its own copy. A copy can be reused
//! when its rank has ended.

use std::{
    env, fs, io,
    os::fd::IntoRawFd,
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use ripstop_fabric::{
    driver::{Driver, DriverAbilities},
    passes_abilities, passes_methods,
};
use rustix::fs::MemfdFlags;

/// Returns the file of a library. Cargo puts it next to the tests of packages that depend on it.
pub(crate) fn library(family: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let name = format!("libportals_{family}.so");
    let mut places = test.ancestors().skip(1).take(2).map(|dir| dir.join(&name));
    let found = places.find(|place| place.exists());
    found.unwrap_or_else(|| panic!("{name} is not beside {}", test.display()))
}

/// A copy of a library, for one rank at a time.
#[derive(Debug)]
pub(crate) struct Copy {
    family: &'static str,
    /// Never closed, because the copy stays loaded.
    fd: i32,
}

static IDLE: Mutex<Vec<Copy>> = Mutex::new(Vec::new());

impl Copy {
    pub(crate) fn hire(family: &'static str) -> Self {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = idle.iter().position(|copy| copy.family == family) {
            return idle.swap_remove(at);
        }
        drop(idle);
        let fd = rustix::fs::memfd_create("portals-library", MemfdFlags::CLOEXEC).unwrap();
        let mut file = fs::File::from(fd);
        let mut library = fs::File::open(library(family)).unwrap();
        io::copy(&mut library, &mut file).unwrap();
        Self {
            family,
            fd: file.into_raw_fd(),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd).into()
    }
}

/// A driver, and the library copy that it runs on.
#[derive(Debug)]
pub(crate) struct Hired<D> {
    pub(crate) driver: D,
    _copy: Return,
}

/// Returns the copy after the driver was dropped.
#[derive(Debug)]
struct Return(Option<Copy>);

impl Drop for Return {
    fn drop(&mut self) {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        idle.extend(self.0.take());
    }
}

impl<D> Hired<D> {
    pub(crate) fn new(driver: D, copy: Copy) -> Self {
        Self {
            driver,
            _copy: Return(Some(copy)),
        }
    }
}

impl<D: Driver> Driver for Hired<D> {
    passes_methods! { driver: caps, post, progress, arm, wait_on, allocate, expose, expect, give_up }
}

impl<D: Driver> DriverAbilities for Hired<D> {
    passes_abilities! {
        driver: event_counters, task_lists, tag_matching, named_slots, peer_turns, mapped_memory, node_memory, peer_paths,
        connect_ahead, failure_watch, guarded_memory,
    }
}
