//! Ranks over the software library, which is made to refuse additional calls.

mod away;
mod backoff;
mod dead;
mod names;
mod quiet;
mod room;
mod stuck;

use std::{
    env, fs, io,
    os::fd::IntoRawFd,
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::fs::MemfdFlags;

use super::{Portals, PortalsConfig, PreparedPortals};
use crate::driver::{
    CommandFailure, CommandToken, DownCause, Driver, DriverCommand, PayloadView, PostResult, Sink,
    WorldRank,
};

const FAMILIES: [&str; 2] = ["sandia42", "portails4"];

/// Prepares a rank. Each rank is a process to the others, and loads its library, which stays loaded.
pub(super) fn prepare(family: &str, config: PortalsConfig) -> PreparedPortals {
    let test = env::current_exe().expect("the test's own name");
    let name = format!("libportals_{family}.so");
    let mut places = test.ancestors().skip(1).take(2).map(|dir| dir.join(&name));
    let library = places.find(|place| place.exists());
    let library = library.expect("cargo puts the library beside the test");
    let copy = rustix::fs::memfd_create("portals-library", MemfdFlags::CLOEXEC).expect("memory");
    let mut copy = fs::File::from(copy);
    let mut library = fs::File::open(library).expect("the library");
    io::copy(&mut library, &mut copy).expect("memory");
    let path = PathBuf::from(format!("/proc/self/fd/{}", copy.into_raw_fd()));
    let config = PortalsConfig {
        library: Some(path),
        ..config
    };
    Portals::prepare(config).expect("an interface")
}

/// Ranks that one thread drives in turns, and what their sinks received.
struct World {
    ranks: Vec<(Portals, Heard)>,
    end: Instant,
}

#[derive(Default)]
struct Heard {
    /// Sender and first bytes of each message.
    messages: Vec<(u32, u64)>,
    ended: Vec<(u64, Result<Option<u64>, CommandFailure>)>,
    triggered: u32,
    reached: Vec<u64>,
    down: Vec<(u32, DownCause)>,
}

impl World {
    /// Returns a world with two slabs, each for two long messages, and sixteen events.
    fn new(family: &str, ranks: usize) -> Self {
        Self::by_rails(family, ranks, &[])
    }

    fn by_rails(family: &str, ranks: usize, interfaces: &[u32]) -> Self {
        let interfaces = interfaces.iter().copied().map(Into::into);
        let config = PortalsConfig {
            interfaces: interfaces.collect(),
            events: 16,
            slabs: 2,
            slab_len: 2 * super::config::MESSAGE_MAX,
            ..PortalsConfig::default()
        };
        Self::of(family, ranks, &config)
    }

    fn of(family: &str, ranks: usize, config: &PortalsConfig) -> Self {
        let prepared: Vec<_> = (0..ranks)
            .map(|_| prepare(family, config.clone()))
            .collect();
        let addresses: Vec<_> = prepared.iter().map(PreparedPortals::address).collect();
        let connect = |one: PreparedPortals| one.connect(addresses.clone()).expect("peers");
        let ranks = prepared.into_iter().map(connect);
        Self {
            ranks: ranks.map(|rank| (rank, Heard::default())).collect(),
            end: now() + PATIENCE,
        }
    }

    fn rank(&mut self, rank: usize) -> &mut Portals {
        &mut self.ranks[rank].0
    }

    fn heard(&mut self, rank: usize) -> &mut Heard {
        &mut self.ranks[rank].1
    }

    fn turn(&mut self, rank: usize) {
        let (driver, heard) = &mut self.ranks[rank];
        if driver.progress(64, heard).events == 0 {
            std::thread::yield_now();
        }
        assert!(now() < self.end, "nothing happens");
    }

    /// Lets all ranks make turns until a condition holds.
    fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        while !done(self) {
            (0..self.ranks.len()).for_each(|rank| self.turn(rank));
        }
    }

    /// Sends a message. Returns true if there was room.
    fn sends(&mut self, from: usize, to: u32, number: u64, len: usize) -> bool {
        let command = DriverCommand::Message {
            to: WorldRank(to),
            header: &number.to_le_bytes(),
            body: &vec![0; len],
        };
        matches!(self.rank(from).post(command), PostResult::Posted)
    }
}

impl Sink for Heard {
    fn message(&mut self, from: WorldRank, header: &[u8], _: PayloadView<'_>) {
        let number = header.first_chunk().copied().map(u64::from_le_bytes);
        self.messages.push((from.0, number.expect("a number")));
    }

    fn complete(&mut self, token: CommandToken) {
        self.ended.push((token.0, Ok(None)));
    }

    fn fetched(&mut self, token: CommandToken, old: u64) {
        self.ended.push((token.0, Ok(Some(old))));
    }

    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        self.ended.push((token.0, Err(why)));
    }

    fn reached(&mut self, token: CommandToken) {
        self.reached.push(token.0);
    }

    fn triggered(&mut self, _: CommandToken) {
        self.triggered += 1;
    }

    fn peer_down(&mut self, peer: WorldRank, how: DownCause) {
        self.down.push((peer.0, how));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a hang must end in a sentence; nothing is measured"
)]
fn now() -> Instant {
    Instant::now()
}

const PATIENCE: Duration = Duration::from_secs(120);
