//! The fabric of InfiniBand and RoCE: libibverbs, loaded when it is asked for.
//!
//! [`Verbs::prepare`] opens a device and gives an address; when the bootstrap has brought those of all ranks,
//! [`Prepared::connect`] makes the driver of them. Two ranks are connected when one has something for the other: they agree
//! over datagrams (`dial`, after [`connect`](crate::connect)) on a reliable queue pair each, or on one for each device
//! (`rail`) of theirs, all in one `greeting`; where all are connected at the start, each makes its queue pairs beforehand,
//! by a `pool` of threads, and the address has the `doors` that lead to them (`mesh`). Words go also by other devices than
//! the first (`detours`). Messages (`messages`) land in one shared queue of buffers (`inbox`), by credits, so that no
//! sender ever finds none; with `Scheme::Hybrid`, short ones to peers without a connection go as
//! `parcels`. Puts, gets, atomics and counts (`onesided`) are done by the devices, and what finds no room there is `parked`;
//! `regions` sees to it that a wrong key never gets that far, `forgetting` waits before it says that a region is used no more,
//! `names` has keys that nobody was told, and `registrations` the application's own memory; what a rank `counts` for itself is
//! none of their business, and where tasks wait for a counter, its owner counts for peers, too. Turns begin the tasks of
//! `lists`, in a `chain` for each peer. `rails` has what goes by which of several devices, and goes on when one fails; a `way`
//! is one lane to a peer, and the `trail` has the messages that may have to go again. `scarce` says who gives way where there
//! are fewer queue pairs than peers. What devices tell of themselves is in `happened`, and what they `held` of the shared
//! receives. A turn is in `turn`, what a rank has is in `core`, and the end is in `close`. `objects` owns what the library
//! makes, `abi` is the library's header.

mod abi;
mod address;
mod chain;
mod close;
mod config;
mod core;
mod counts;
mod datagrams;
mod detours;
mod device;
mod dial;
mod doors;
mod forgetting;
mod greeting;
mod happened;
mod held;
mod inbox;
#[cfg(test)]
mod layout;
mod library;
mod link;
mod lists;
mod mesh;
mod messages;
mod names;
mod objects;
mod onesided;
mod opened;
mod outbox;
mod parcels;
mod parked;
mod pool;
mod posting;
mod prepare;
mod rail;
mod rails;
mod regions;
mod registrations;
mod scarce;
mod slab;
#[cfg(test)]
mod tests;
mod trail;
mod turn;
mod unheard;
mod waits;
mod way;
mod why;
mod wire;
mod wish;

use std::{io, time::Duration};

pub use self::{config::VerbsConfig, device::Port, prepare::Prepared};
use self::{core::Core, rail::Rail};
use crate::{
    driver::{Armed, Caps, Command, Down, Driver, LocalRange, Peer, Post, Progress, Sink, WaitOn},
    memory::{Region, RemoteRegion},
    timer::Timer,
};

/// A rank on a device that speaks verbs.
///
/// Dropping it waits for what was posted to leave, for as long as [`VerbsConfig::linger`] says; after that a thread goes on
/// with it for some more seconds.
#[derive(Debug)]
pub struct Verbs {
    /// `None` only while it is dropped.
    core: Option<Box<Core>>,
    linger: Duration,
}

fn wait_on(rails: &[Rail], timer: &Timer) -> Vec<WaitOn> {
    let rails = rails.iter().flat_map(Rail::wait_on);
    rails.chain([WaitOn::Fd(timer.wait_on())]).collect()
}

/// Pages stay where they are while adapters may reach them.
const PINS_EXPOSED: bool = true;

impl Driver for Verbs {
    fn caps(&self) -> &Caps {
        &self.core_ref().caps
    }

    fn post<'a>(&mut self, command: Command<'a>) -> Post<'a> {
        let core = self.core();
        let room = match &command {
            Command::Message { to, header, body } => core.send(to.0, header, body),
            Command::Watch {
                counter,
                threshold,
                token,
            } => {
                core.watch(counter, *threshold, *token);
                true
            }
            Command::List { tasks, token } => core.post_list(tasks, *token),
            Command::Forget { token } => !core.tasks.touch(*token),
            Command::Unwatch { .. }
            | Command::Cancel { .. }
            | Command::Name { .. }
            | Command::Unname { .. }
            | Command::Withdraw { .. } => {
                core.take(&command);
                true
            }
            Command::Put { .. }
            | Command::Get { .. }
            | Command::Atomic { .. }
            | Command::Count { .. } => core.move_bytes(&command),
        };
        if matches!(command, Command::Count { .. } | Command::List { .. }) {
            core.listen_to_sends();
        }
        core.keep_alarm();
        if room {
            Post::Posted
        } else {
            Post::Full(command)
        }
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> Progress {
        Progress {
            events: self.core().turn(budget, sink),
        }
    }

    fn arm(&mut self) -> Armed {
        self.core().arm()
    }

    fn wait_on(&self) -> Vec<WaitOn> {
        let core = self.core_ref();
        wait_on(&core.rails, &core.sleep.timer)
    }

    fn allocate(&mut self, len: usize) -> io::Result<Region> {
        self.core().allocate(len, false)
    }

    fn allocate_counters(&mut self, len: usize) -> io::Result<Region> {
        self.core().allocate(len, true)
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        let core = self.core();
        let key = core.exports.key_to(range);
        key.or_else(|| core.registrations.expose(range, &mut core.exports))
    }

    fn answers(&self, peer: Peer) -> u64 {
        self.core_ref().answers(peer.0)
    }

    fn why_down(&self, peer: Peer) -> Option<String> {
        self.core_ref().why_down(peer.0)
    }

    fn connect_many(&mut self, peers: &[Peer]) -> bool {
        let core = self.core();
        if core.talks.on {
            return false; // short messages wait for no connection, and who moves more asks for one
        }
        peers.iter().for_each(|peer| core.connect(peer.0));
        true
    }

    fn pins_exposed(&self) -> bool {
        PINS_EXPOSED
    }

    fn give_up(&mut self, Peer(rank): Peer, how: Option<Down>) -> Down {
        let how = how.unwrap_or(Down::Failed);
        self.core().part(rank, how);
        how
    }
}

impl Verbs {
    fn core(&mut self) -> &mut Core {
        let Some(core) = &mut self.core else {
            unreachable!("{ONLY_DROP}")
        };
        core
    }

    fn core_ref(&self) -> &Core {
        let Some(core) = &self.core else {
            unreachable!("{ONLY_DROP}")
        };
        core
    }
}

impl Drop for Verbs {
    fn drop(&mut self) {
        let Some(mut core) = self.core.take() else {
            return;
        };
        let panics = std::thread::panicking();
        core.begin_close(if panics { Down::Failed } else { Down::Finished });
        if core.finish(self.linger / 2) {
            return;
        }
        // The other half is for the last words.
        core.forgo_names();
        if core.finish(self.linger / 2) {
            return;
        }
        if !core.let_go() {
            return; // all goes here and now, and the kernel ends with the devices what they would not
        }
        // A peer that has not answered yet may be in this very thread.
        let rest = std::thread::Builder::new().name("verbs-close".to_owned());
        let _without_a_thread_it_is_lost = rest.spawn(move || core.finish(LINGER_MAX));
    }
}

const ONLY_DROP: &str = "only `drop` takes it";

/// For a peer that answers late.
const LINGER_MAX: Duration = Duration::from_secs(10);
