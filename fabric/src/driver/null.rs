//! A driver that reaches no rank, in place of one that was closed or could not be connected.

use std::io;

use super::{
    AbilitySummary, Armed, Caps, Command, Down, Driver, DriverAbilities, EventCounters, Evidence,
    Failure, FailureWatch, ListLimits, LocalRange, Peer, Post, Progress, Sink, TaskLists, Token,
    WaitOn,
};
use crate::{
    lacks_abilities,
    memory::{Region, RemoteRegion},
    offload::Task,
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
    unreported: Vec<Peer>,
    failed: Vec<(Token, Failure)>,
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
    pub fn reporting(mut self, peers: impl Iterator<Item = Peer>) -> Self {
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

    fn post<'a>(&mut self, command: Command<'a>) -> Post<'a> {
        let failed = match command {
            Command::Message { to, .. } if self.unreported.contains(&to) => {
                return Post::Full(command);
            }
            Command::Put { token, .. }
            | Command::Get { token, .. }
            | Command::Atomic { token, .. } => Some((token, Failure::PeerDown)),
            _ => None,
        };
        self.failed.extend(failed);
        Post::Posted
    }

    fn progress(&mut self, _budget: u32, sink: &mut dyn Sink) -> Progress {
        let events = self.unreported.len() + self.failed.len();
        for peer in self.unreported.drain(..) {
            sink.peer_down(peer, Down::Failed);
        }
        for (token, why) in self.failed.drain(..) {
            sink.failed(token, why);
        }
        Progress {
            events: u32::try_from(events).unwrap_or(u32::MAX),
        }
    }

    fn arm(&mut self) -> Armed {
        if self.unreported.is_empty() && self.failed.is_empty() {
            Armed::Ready
        } else {
            Armed::Busy
        }
    }

    fn wait_on(&self) -> Vec<WaitOn> {
        Vec::new()
    }

    fn allocate(&mut self, _len: usize) -> io::Result<Region> {
        Err(self.error())
    }

    fn expose(&mut self, _range: LocalRange) -> Option<RemoteRegion> {
        None
    }

    fn expect(&mut self, _awaited: &mut dyn FnMut() -> Vec<Peer>) {}

    fn give_up(&mut self, peer: Peer, how: Option<Down>) -> Down {
        self.unreported.retain(|one| *one != peer);
        how.unwrap_or(Down::Failed)
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
        tag_matching, named_slots, mapped_memory, peer_paths, connect_ahead, guarded_memory,
    }
}

impl EventCounters for NullDriver {
    fn allocate_counters(&mut self, _len: usize) -> io::Result<Region> {
        Err(self.error())
    }
}

impl TaskLists for NullDriver {
    fn list_limits(&self) -> ListLimits {
        self.abilities.lists.unwrap_or_default()
    }

    fn post_list(&mut self, _tasks: &[Task], token: Token) -> bool {
        self.failed.push((token, Failure::PeerDown));
        true
    }

    fn cancel_lists(&mut self, token: Token) {
        self.failed.push((token, Failure::Cancelled));
    }

    fn forget_lists(&mut self, _token: Token) -> bool {
        true
    }

    fn give_name(&mut self, _name: u64, _region: &Region) {}

    fn take_back_name(&mut self, _name: u64) {}
}

impl FailureWatch for NullDriver {
    fn knows_peers(&mut self) -> bool {
        true
    }

    fn answers(&mut self, _peer: Peer) -> u64 {
        0
    }

    fn evidence(&mut self, _peer: Peer) -> Evidence {
        Evidence::Reported(self.why.clone())
    }
}
