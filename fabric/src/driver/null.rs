//! A driver that reaches no rank, in place of one that was closed or could not be connected.

use std::io;

use super::{
    AbilitySummary, ArmResult, Caps, CommandFailure, CommandToken, DownCause, DownEvidence, Driver,
    DriverAbilities, DriverCommand, EventCounters, FailureWatch, ListLimits, LocalRange,
    PostResult, Sink, TaskLists, TurnProgress, WakeSource, WorldRank,
};
use crate::{
    lacks_abilities,
    memory::{MemoryRegion, RemoteRegion},
    offload::TriggeredTask,
};

/// A driver without peers. It drops messages and fails all other commands.
///
/// It reports each peer as failed once, and keeps the capabilities of the driver that it replaces.
#[derive(Debug)]
pub struct NullDriver {
    caps: Caps,
    abilities: AbilitySummary,
    kind: io::ErrorKind,
    why: String,
    /// Peers whose failure was not reported yet.
    unreported: Vec<WorldRank>,
    failed: Vec<(CommandToken, CommandFailure)>,
}

impl NullDriver {
    /// Returns a driver in place of `closed`, which has reported all its peers. `why` is the error of everything that needs
    /// memory.
    #[must_use]
    pub fn in_place_of(closed: &mut dyn Driver, why: &io::Error) -> Self {
        let abilities = AbilitySummary {
            counters: closed.event_counters().is_some(),
            lists: closed.task_lists().map(|lists| lists.list_limits()),
            tags: None,
            connects: false,
        };
        Self::new(closed.caps().clone(), abilities, why)
    }

    /// Returns a driver in place of one that was promised and does not come, because of `why`.
    #[must_use]
    pub fn new(caps: Caps, abilities: AbilitySummary, why: &io::Error) -> Self {
        Self {
            caps,
            abilities,
            kind: why.kind(),
            why: why.to_string(),
            unreported: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Adds peers that will be reported as failed. Until then, messages for them find no room.
    #[must_use]
    pub fn reporting(mut self, peers: impl Iterator<Item = WorldRank>) -> Self {
        self.unreported.extend(peers);
        self
    }

    fn error(&self) -> io::Error {
        io::Error::new(self.kind, self.why.clone())
    }
}

impl Driver for NullDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        let failed = match command {
            DriverCommand::Message { to, .. } if self.unreported.contains(&to) => {
                return PostResult::Full(command);
            }
            DriverCommand::Put { token, .. }
            | DriverCommand::Get { token, .. }
            | DriverCommand::Atomic { token, .. } => Some((token, CommandFailure::PeerDown)),
            _ => None,
        };
        self.failed.extend(failed);
        PostResult::Posted
    }

    fn progress(&mut self, _budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        let events = self.unreported.len() + self.failed.len();
        for peer in self.unreported.drain(..) {
            sink.peer_down(peer, DownCause::Failed);
        }
        for (token, why) in self.failed.drain(..) {
            sink.failed(token, why);
        }
        TurnProgress {
            events: u32::try_from(events).unwrap_or(u32::MAX),
        }
    }

    fn arm(&mut self) -> ArmResult {
        if self.unreported.is_empty() && self.failed.is_empty() {
            ArmResult::Ready
        } else {
            ArmResult::Busy
        }
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        Vec::new()
    }

    fn allocate(&mut self, _len: usize) -> io::Result<MemoryRegion> {
        Err(self.error())
    }

    fn expose(&mut self, _range: LocalRange) -> Option<RemoteRegion> {
        None
    }

    fn expect(&mut self, _awaited: &mut dyn FnMut() -> Vec<WorldRank>) {}

    fn give_up(&mut self, peer: WorldRank, how: Option<DownCause>) -> DownCause {
        self.unreported.retain(|one| *one != peer);
        how.unwrap_or(DownCause::Failed)
    }
}

impl DriverAbilities for NullDriver {
    fn event_counters(&mut self) -> Option<&mut dyn EventCounters> {
        if self.abilities.counters {
            Some(self)
        } else {
            None
        }
    }

    fn task_lists(&mut self) -> Option<&mut dyn TaskLists> {
        if self.abilities.lists.is_some() {
            Some(self)
        } else {
            None
        }
    }

    fn failure_watch(&mut self) -> Option<&mut dyn FailureWatch> {
        Some(self)
    }

    // Without peers there is nothing to match, to map or to connect to, and no command that must be checked.
    lacks_abilities! {
        tag_matching, named_slots, peer_turns, mapped_memory, node_memory, peer_paths, connect_ahead, guarded_memory,
    }
}

impl EventCounters for NullDriver {
    fn allocate_counters(&mut self, _len: usize) -> io::Result<MemoryRegion> {
        Err(self.error())
    }
}

impl TaskLists for NullDriver {
    fn list_limits(&self) -> ListLimits {
        self.abilities.lists.unwrap_or_default()
    }

    fn post_list(&mut self, _tasks: &[TriggeredTask], token: CommandToken) -> bool {
        self.failed.push((token, CommandFailure::PeerDown));
        true
    }

    fn cancel_lists(&mut self, token: CommandToken) {
        self.failed.push((token, CommandFailure::Cancelled));
    }

    fn forget_lists(&mut self, _token: CommandToken) -> bool {
        true
    }

    fn give_name(&mut self, _name: u64, _region: &MemoryRegion) {}

    fn take_back_name(&mut self, _name: u64) {}
}

impl FailureWatch for NullDriver {
    fn knows_peers(&mut self) -> bool {
        true
    }

    fn answers(&mut self, _peer: WorldRank) -> u64 {
        0
    }

    fn evidence(&mut self, _peer: WorldRank) -> DownEvidence {
        DownEvidence::Reported(self.why.clone())
    }
}
