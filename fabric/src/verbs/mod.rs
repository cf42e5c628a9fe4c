//! The driver for InfiniBand and RoCE, on top of libibverbs, which is loaded at run time.
//!
//! [`Verbs::prepare`] opens the devices and gives this rank's address. When the bootstrap has brought the addresses of all ranks,
//! [`PreparedVerbs::connect`] makes the driver. Two ranks connect when one has something for the other, or at the start if the
//! connection policy says so. A connection is one reliable queue pair on each side, or one for each device if there are several.
//!
//! `VerbsCore` is the state of one rank. It owns components with private state, and does what concerns several of them:
//! connections, turns and the end. A call of a component goes by a view (`OneSidedCommands`, `DatagramExchange`, `SendFlow`) that
//! lists what the component uses of the rank. A component calls nothing of `VerbsCore`: it answers with values, or leaves marks
//! in the `LinkTable` that `VerbsCore` reads after the call, or in the turn.
//!
//! Modules, by task:
//!
//! * Start: `device` (which ports exist), `config`, `provider` (settings), `open_device` (from a device to its queues),
//!   `prepare`, `address`, `address_extension` (more ports, and queue pairs made at the start), `parallel_setup` (threads that
//!   make queue pairs).
//! * Connections: `connections` (performs the actions of [`connect`](crate::connect)), `connect_wire` (wire form of their
//!   messages), `datagrams` (connection messages, and short messages with `ConnectPolicy::Hybrid`), `prewired` (all ranks
//!   connected at the start), `connection_cache` (fewer queue pairs than peers), `link_table` (the links to all peers), `link`
//!   (state of one peer), `lane` (state of one lane).
//! * Messages: `messages`, `send_flow` (posts messages and control words), `inbox` (one shared receive queue, with credits for
//!   each peer so that no sender finds it empty), `outbox` (requests in flight), `wire` (formats).
//! * One-sided commands: `onesided` (the table of commands, and what advances them), `rma_op` (content of a command), `backlog`
//!   and `wait_queues` (commands that wait), `regions` (keys are checked before the device sees them), `region_release` (when a
//!   region is no longer used), `named_regions` (regions addressed by name), `registrations` (memory of the application).
//! * Counters and task lists: `host_counters` (counters that this rank's processor adds to), `lists` (tasks that turns begin),
//!   `chain` (requests posted together).
//! * Several devices: `rail` (one device), `multirail` (which lane carries what, and failures of lanes), `replay_log` (messages
//!   that may have to be sent again).
//! * Events and the end: `async_events` (events of devices), `srq_drain` (receives held by a retired queue pair), `diagnose`
//!   (reasons of failures), `close`.
//! * Base: `core` (state of a rank), `turn` (one pass of progress), `objects` (owned objects of the library), `library`, `abi`
//!   (the header of the library), `layout` (tests `abi`), `slab`.

mod abi;
mod address;
mod address_extension;
mod async_events;
mod backlog;
mod chain;
mod close;
mod config;
mod connect_wire;
mod connection_cache;
mod connections;
mod core;
mod datagrams;
mod device;
mod diagnose;
mod host_counters;
mod inbox;
mod lane;
#[cfg(test)]
mod layout;
mod library;
mod link;
mod link_table;
mod lists;
mod messages;
mod multirail;
mod named_regions;
mod objects;
mod onesided;
mod open_device;
mod outbox;
mod parallel_setup;
mod prepare;
mod prewired;
mod provider;
mod rail;
mod region_release;
mod regions;
mod registrations;
mod replay_log;
mod rma_op;
mod send_flow;
mod slab;
mod srq_drain;
#[cfg(test)]
mod tests;
mod turn;
mod wait_queues;
mod wire;

use std::{io, time::Duration};

pub use self::{
    config::VerbsConfig, device::DevicePort, prepare::PreparedVerbs, provider::VerbsProvider,
};
use self::{core::VerbsCore, rail::VerbsRail};
use crate::{
    driver::{
        ArmResult, Caps, CommandToken, ConnectAhead, DownCause, DownEvidence, Driver,
        DriverAbilities, DriverCommand, EventCounters, FailureWatch, ListLimits, LocalRange,
        PostResult, Sink, TaskLists, TurnProgress, WakeSource, WorldRank,
    },
    lacks_abilities,
    memory::{MemoryRegion, RemoteRegion},
    offload::{TASKS_MAX, TriggeredTask},
    timer::RetryTimer,
};

/// The driver of one rank on devices that support verbs.
///
/// Dropping the driver waits for posted commands to leave, for up to [`VerbsConfig::linger`]. If some are left then, a background
/// thread goes on with them for a few more seconds.
#[derive(Debug)]
pub struct Verbs {
    /// `None` only during `drop`.
    core: Option<Box<VerbsCore>>,
    linger: Duration,
}

fn wait_on(rails: &[VerbsRail], timer: &RetryTimer) -> Vec<WakeSource> {
    let rails = rails.iter().flat_map(VerbsRail::wait_on);
    rails.chain([WakeSource::Fd(timer.wait_on())]).collect()
}

/// Limits of the task lists, which the driver runs in its turns.
const LISTS: ListLimits = ListLimits {
    triggered_max: TASKS_MAX,
    combine_max: 0,
};

impl Driver for Verbs {
    fn caps(&self) -> &Caps {
        &self.core_ref().caps
    }

    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        let core = self.core();
        let room = match &command {
            DriverCommand::Message { to, header, body } => core.send(*to, header, body),
            DriverCommand::Watch {
                counter,
                threshold,
                token,
            } => {
                core.watch(counter, *threshold, *token);
                true
            }
            DriverCommand::Unwatch { .. } | DriverCommand::Withdraw { .. } => {
                core.take(&command);
                true
            }
            DriverCommand::Put { .. }
            | DriverCommand::Get { .. }
            | DriverCommand::Atomic { .. }
            | DriverCommand::Count { .. } => core.post_rma(&command),
        };
        if matches!(command, DriverCommand::Count { .. }) {
            core.arm_for_sends();
        }
        core.keep_alarm();
        if room {
            PostResult::Posted
        } else {
            PostResult::Full(command)
        }
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        TurnProgress {
            events: self.core().turn(budget, sink),
        }
    }

    fn arm(&mut self) -> ArmResult {
        self.core().arm()
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        let core = self.core_ref();
        wait_on(&core.rails, &core.sleep.timer)
    }

    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.core().allocate(len, false)
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        let core = self.core();
        let key = core.exports.key_to(range);
        key.or_else(|| core.registrations.expose(range, &mut core.exports))
    }

    fn expect(&mut self, _awaited: &mut dyn FnMut() -> Vec<WorldRank>) {}

    fn give_up(&mut self, rank: WorldRank, how: Option<DownCause>) -> DownCause {
        let how = how.unwrap_or(DownCause::Failed);
        self.core().report_peer_down(rank, how);
        how
    }
}

impl DriverAbilities for Verbs {
    fn event_counters(&mut self) -> Option<&mut dyn EventCounters> {
        if self.core_ref().caps.atomics {
            Some(self)
        } else {
            None
        }
    }

    fn task_lists(&mut self) -> Option<&mut dyn TaskLists> {
        if self.core_ref().caps.atomics {
            Some(self)
        } else {
            None
        }
    }

    fn connect_ahead(&mut self) -> Option<&mut dyn ConnectAhead> {
        if self.core_ref().datagrams.carry_messages() {
            None // short messages need no connection, and longer transfers ask for one
        } else {
            Some(self)
        }
    }

    fn failure_watch(&mut self) -> Option<&mut dyn FailureWatch> {
        Some(self)
    }

    lacks_abilities! {
        tag_matching, named_slots, peer_turns, mapped_memory, node_memory, peer_paths, guarded_memory,
    }
}

impl EventCounters for Verbs {
    fn allocate_counters(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.core().allocate(len, true)
    }
}

impl TaskLists for Verbs {
    fn list_limits(&self) -> ListLimits {
        LISTS
    }

    fn post_list(&mut self, tasks: &[TriggeredTask], token: CommandToken) -> bool {
        let core = self.core();
        let taken = core.post_list(tasks, token);
        core.arm_for_sends();
        core.keep_alarm();
        taken
    }

    fn cancel_lists(&mut self, token: CommandToken) {
        let core = self.core();
        core.cancel_lists(token);
        core.keep_alarm();
    }

    fn forget_lists(&mut self, token: CommandToken) -> bool {
        let core = self.core();
        core.keep_alarm();
        !core.tasks.touch(token)
    }

    fn give_name(&mut self, name: u64, region: &MemoryRegion) {
        let core = self.core();
        core.name(name, region);
        core.keep_alarm();
    }

    fn take_back_name(&mut self, name: u64) {
        let core = self.core();
        core.unname(name);
        core.keep_alarm();
    }
}

impl ConnectAhead for Verbs {
    fn connect_many(&mut self, peers: &[WorldRank]) {
        let core = self.core();
        peers.iter().for_each(|peer| core.connect(*peer));
    }
}

impl FailureWatch for Verbs {
    fn knows_peers(&mut self) -> bool {
        true
    }

    fn answers(&mut self, peer: WorldRank) -> u64 {
        self.core_ref().links.answers(peer)
    }

    fn evidence(&mut self, peer: WorldRank) -> DownEvidence {
        let why = self.core_ref().links.why_down(peer);
        why.map_or(DownEvidence::Unreachable, DownEvidence::Reported)
    }
}

impl Verbs {
    fn core(&mut self) -> &mut VerbsCore {
        let Some(core) = &mut self.core else {
            unreachable!("{ONLY_DROP}")
        };
        core
    }

    fn core_ref(&self) -> &VerbsCore {
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
        core.begin_close(if panics {
            DownCause::Failed
        } else {
            DownCause::Finished
        });
        if core.finish(self.linger / 2) {
            return;
        }
        // Names may never be given, so the second half of the time is for the goodbyes only.
        core.commands().cancel_name_waits();
        if core.finish(self.linger / 2) {
            return;
        }
        if !core.release_memory() {
            return; // dropping `core` here closes the devices, which ends the requests that still touch memory
        }
        // Continue in another thread: a peer that has not answered yet may be a rank that runs in this thread.
        let rest = std::thread::Builder::new().name("verbs-close".to_owned());
        let _without_a_thread_it_is_lost = rest.spawn(move || core.finish(LINGER_MAX));
    }
}

const ONLY_DROP: &str = "only `drop` takes it";

/// Time that the background thread has for peers that answer late.
const LINGER_MAX: Duration = Duration::from_secs(10);
