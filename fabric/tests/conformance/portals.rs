//! Worlds on the software Portals, through the same library files that programs load.
//!
//! A library is one process to others, so ranks that are threads of this one need a copy each. A copy can be used again when its
//! rank is gone.

use std::{
    env, fs, io,
    os::fd::IntoRawFd,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use ripstop_fabric::{
    driver::{Armed, Caps, Command, Driver, LocalRange, Post, Progress, Sink, WaitOn},
    memory::{Region, RemoteRegion},
    portals::{Portals, PortalsConfig, PortalsCounters, Prepared},
};
use rustix::fs::MemfdFlags;

use crate::{messages::message, world::World};

pub(crate) fn sandia42_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "sandia42", |config| config)
}

pub(crate) fn portails4_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "portails4", |config| config)
}

/// Two slabs of two messages, and sixteen events.
pub(crate) fn small_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "sandia42", little_room)
}

pub(crate) fn helped_world(ranks: u32) -> Vec<Box<dyn Driver>> {
    world(ranks, "portails4", |config| PortalsConfig {
        helper: true,
        ..config
    })
}

pub(crate) fn little_room(config: PortalsConfig) -> PortalsConfig {
    PortalsConfig {
        events: 16,
        slabs: 2,
        slab_len: 2 * 65_664,
        ..config
    }
}

fn world(
    ranks: u32,
    family: &'static str,
    change: impl Fn(PortalsConfig) -> PortalsConfig,
) -> Vec<Box<dyn Driver>> {
    let prepared: Vec<(Copy, Prepared)> = (0..ranks)
        .map(|_| {
            let copy = Copy::hire(family);
            let config = PortalsConfig {
                library: Some(copy.path()),
                ..PortalsConfig::default()
            };
            let prepared = Portals::prepare(change(config)).unwrap();
            (copy, prepared)
        })
        .collect();
    let addresses: Vec<_> = prepared.iter().map(|(_, one)| one.address()).collect();
    let connect = |(copy, prepared): (Copy, Prepared)| {
        let driver = prepared.connect(addresses.clone()).unwrap();
        Box::new(Hired {
            driver,
            _copy: Return(Some(copy)),
        }) as Box<dyn Driver>
    };
    prepared.into_iter().map(connect).collect()
}

#[test]
fn a_flood_into_little_room_arrives_whole_and_appends_next_to_nothing() {
    const SENDERS: usize = 16;
    const COUNT: u64 = 200;
    let counters = Arc::<PortalsCounters>::default();
    let first = Mutex::new(Some(Arc::clone(&counters)));
    let drivers = world(SENDERS as u32 + 1, "sandia42", |config| {
        let counters = first.lock().unwrap().take().unwrap_or_default();
        PortalsConfig {
            counters,
            ..little_room(config)
        }
    });
    let mut world = World::from_drivers(drivers);
    let before = counters.entries.get();
    for number in 0..COUNT {
        for from in 1..=SENDERS {
            let sent = message(from, number, 8, 40);
            world.send(from, 0, &sent.header, &sent.body);
        }
    }
    let all = usize::try_from(COUNT).unwrap() * SENDERS;
    world.hears(0, all);
    for from in 1..=SENDERS {
        let sent = (0..COUNT).map(|number| message(from, number, 8, 40));
        assert!(world[0].heard.from(from).cloned().eq(sent), "rank {from}");
    }
    assert!(counters.enabled.get() > 0, "there was room enough for all");
    let appended = counters.entries.get() - before;
    assert!(100 * appended <= all as u64, "{appended} entries");
}

/// The file of a library. Cargo puts it beside the tests of the packages that ask for it.
pub(crate) fn library(family: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let name = format!("libportals_{family}.so");
    let mut places = test.ancestors().skip(1).take(2).map(|dir| dir.join(&name));
    let found = places.find(|place| place.exists());
    found.unwrap_or_else(|| panic!("{name} is not beside {}", test.display()))
}

/// A copy of a library, for one rank at a time.
#[derive(Debug)]
struct Copy {
    family: &'static str,
    /// Never closed: the copy stays loaded.
    fd: i32,
}

static IDLE: Mutex<Vec<Copy>> = Mutex::new(Vec::new());

impl Copy {
    fn hire(family: &'static str) -> Self {
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

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd).into()
    }
}

/// A driver, and what it runs on.
#[derive(Debug)]
struct Hired {
    driver: Portals,
    _copy: Return,
}

/// Gives the copy back, after the driver is gone.
#[derive(Debug)]
struct Return(Option<Copy>);

impl Drop for Return {
    fn drop(&mut self) {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        idle.extend(self.0.take());
    }
}

impl Driver for Hired {
    fn caps(&self) -> &Caps {
        self.driver.caps()
    }

    fn post<'a>(&mut self, command: Command<'a>) -> Post<'a> {
        self.driver.post(command)
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> Progress {
        self.driver.progress(budget, sink)
    }

    fn arm(&mut self) -> Armed {
        self.driver.arm()
    }

    fn wait_on(&self) -> Vec<WaitOn> {
        self.driver.wait_on()
    }

    fn allocate(&mut self, len: usize) -> io::Result<Region> {
        self.driver.allocate(len)
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        self.driver.expose(range)
    }
}
