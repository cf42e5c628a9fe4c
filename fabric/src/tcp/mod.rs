//! Messages and one-sided operations between the ranks of several nodes over TCP.
//!
//! A [`Tcp`] is a rank. It has one connection to each peer that it talks to. The first command for a peer opens it, or the
//! caller's word that it waits for the peer or will need it. Bytes of one connection are frames (`frame`), and a peer is a peer
//! only after a handshake (`handshake`).
//!
//! A peer passes these states, in this order; the middle ones may be skipped:
//!
//! | state | what there is | owner of the socket |
//! |---|---|---|
//! | unknown | its address | |
//! | reached for | attempts at its endpoints, or a pause between them (`reach`) | `sockets`, as an attempt |
//! | answered | connections of the peer to which this rank has agreed (`admission`) | `sockets`, as an arrival |
//! | connected | a connection, with the frame that is arriving (`connection`) | `sockets`, by the name in the connection |
//! | down | how it ended | |
//!
//! - `sockets` owns all descriptors, and registers each once with epoll. The rest of the driver names sockets; a name of a
//!   closed socket finds nothing.
//! - `peer` owns the queue of what a peer's socket had no room for, and the one-sided commands that the peer will answer.
//!   Both outlive the way from "unknown" to "connected", so commands can be posted before there is a connection.
//! - `core` owns the rest, and makes the turns. What the sink is to be told waits in one list, so the report of a peer that is
//!   down comes after the peer's last message and after the failures of its commands.
//! - `staging` sends short commands of one turn together. `hot` says which sockets are read without asking for events first,
//!   and `landing` reads bytes straight to where they belong. `placing` asks the sink where the body of a long message belongs.
//! - `silence` looks for hosts that hear nothing any more, and `lost_peer` says in errors where a lost peer was, why it was lost
//!   and what to do.
//! - `shortage` says which errors are this host's own, and sends again what the kernel had no memory for.
//! - `checksum` says what frames look like, and `congestion` how fast a connection may send.
//! - `exports` knows the memory that peers may access. The target of a put, a get or an atomic performs it in its own turns,
//!   after it has checked the key. A connection's commands are answered in order, so answers need no numbers.
//! - `farewell` is the end: what was posted is sent, and a goodbye after it. A connection that ends without a goodbye is a
//!   failure. `unmet_goodbyes` tells the peers to which there is no connection, and `given_up` those that this rank considers
//!   failed although they may be alive.
//!
//! Only the receiver's turns take bytes out of a socket, and only the sender's turns send what its socket had no room for.

mod address;
mod admission;
mod checksum;
mod config;
mod congestion;
mod connection;
mod core;
mod exports;
mod farewell;
mod frame;
mod given_up;
mod handshake;
mod hot;
#[cfg(test)]
mod injected_errors;
mod interfaces;
mod landing;
mod lost_peer;
mod one_sided;
mod peer;
mod placing;
mod prepare;
mod provider;
mod reach;
#[cfg(test)]
mod reach_tests;
mod receive;
mod send_queue;
mod shortage;
mod silence;
mod socket_calls;
mod sockets;
mod staging;
#[cfg(test)]
mod tests;
mod unmet_goodbyes;

use std::{io, time::Duration};

use self::core::{TcpCore, TcpEvent};
pub use self::{
    config::{ListenAddress, TcpConfig},
    prepare::PreparedTcp,
    provider::TcpProvider,
};
use crate::{
    driver::{
        ArmResult, Caps, ConnectAhead, DownCause, DownEvidence, Driver, DriverAbilities,
        DriverCommand, EventCounters, FailureWatch, LocalRange, PostResult, Sink, TurnProgress,
        WakeSource, WorldRank,
    },
    lacks_abilities,
    memory::{MemoryRegion, RemoteRegion},
};

/// One rank of a job, connected to the others by TCP.
#[derive(Debug)]
pub struct Tcp {
    /// `None` only while it is dropped.
    core: Option<Box<TcpCore>>,
    caps: Caps,
    linger: Duration,
}

impl Tcp {
    /// Opens an endpoint, which connects to its peers when their addresses are known.
    ///
    /// # Errors
    /// The system's error about an address to listen at.
    pub fn prepare(config: TcpConfig) -> io::Result<PreparedTcp> {
        PreparedTcp::open(config, None)
    }

    fn new(core: TcpCore, caps: Caps, linger: Duration) -> Self {
        Self {
            core: Some(Box::new(core)),
            caps,
            linger,
        }
    }

    fn core(&mut self) -> &mut TcpCore {
        self.core.as_mut().expect(ONLY_DROP)
    }

    /// Takes a message. Returns false if there is no room.
    fn send(&mut self, WorldRank(to): WorldRank, header: &[u8], body: &[u8]) -> bool {
        check_length("header", header.len(), frame::HEADER_MAX);
        check_length("body", body.len(), frame::BODY_MAX);
        let core = self.core();
        if to == core.me {
            let room = core.events.len() < one_sided::EVENTS_MAX;
            if room {
                let message = TcpEvent::Message(header.into(), body.into());
                core.events.push_back(message);
            }
            return room;
        }
        // A message to a peer that is down is dropped.
        core.peers[to as usize].ended.is_some() || core.send(to, header, body)
    }
}

impl Driver for Tcp {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        let room = match &command {
            DriverCommand::Message { to, header, body } => {
                let room = self.send(*to, header, body);
                self.core().counters.messages_sent.add(u64::from(room));
                room
            }
            DriverCommand::Put { .. }
            | DriverCommand::Get { .. }
            | DriverCommand::Atomic { .. } => self.core().post_one_sided(&command),
            DriverCommand::Count { to, counter, by } => self.core().count(to.0, *counter, *by),
            DriverCommand::Watch {
                counter,
                threshold,
                token,
            } => {
                self.core().watches.add(counter, *threshold, *token);
                true
            }
            DriverCommand::Unwatch { token } => {
                self.core().watches.remove(*token);
                true
            }
            DriverCommand::Withdraw { key } => {
                self.core().withdraw(*key);
                true
            }
        };
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
        let core = self.core.as_ref().expect(ONLY_DROP);
        vec![WakeSource::Fd(core.wait_on())]
    }

    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.core().exports.allocate(len)
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        self.core().exports.expose(range)
    }

    /// Connects to the awaited peers, because only a connection shows that its peer has ended.
    fn expect(&mut self, awaited: &mut dyn FnMut() -> Vec<WorldRank>) {
        let core = self.core();
        if core.has_strangers() {
            for WorldRank(rank) in awaited() {
                core.reach(rank);
            }
        }
    }

    fn give_up(&mut self, WorldRank(rank): WorldRank, how: Option<DownCause>) -> DownCause {
        let core = self.core();
        if let Some(ended) = core.peers[rank as usize].ended {
            return ended;
        }
        let how = how.unwrap_or_else(|| core.how_ended(rank));
        let place = core.peers[rank as usize].place(rank);
        let text = format!("{place} was given up");
        match how {
            DownCause::Finished => core.lose(rank, how, text),
            DownCause::Failed => core.give_up(rank, None, text),
        }
        how
    }
}

impl DriverAbilities for Tcp {
    fn event_counters(&mut self) -> Option<&mut dyn EventCounters> {
        Some(self)
    }

    fn connect_ahead(&mut self) -> Option<&mut dyn ConnectAhead> {
        Some(self)
    }

    fn failure_watch(&mut self) -> Option<&mut dyn FailureWatch> {
        Some(self)
    }

    lacks_abilities! {
        task_lists, tag_matching, named_slots, peer_turns, mapped_memory, node_memory, peer_paths, guarded_memory,
    }
}

impl EventCounters for Tcp {
    fn allocate_counters(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.allocate(len)
    }
}

impl ConnectAhead for Tcp {
    fn connect_many(&mut self, peers: &[WorldRank]) {
        for WorldRank(rank) in peers {
            self.core().reach(*rank);
        }
    }
}

impl FailureWatch for Tcp {
    fn knows_peers(&mut self) -> bool {
        true
    }

    fn answers(&mut self, _peer: WorldRank) -> u64 {
        0
    }

    fn evidence(&mut self, WorldRank(rank): WorldRank) -> DownEvidence {
        let peer = &self.core().peers[rank as usize];
        let seen = peer.evidence.clone();
        seen.map_or(DownEvidence::Unreachable, DownEvidence::Reported)
    }
}

impl Drop for Tcp {
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
        if core.finish(self.linger) {
            return;
        }
        // Continue in another thread: a peer that has not answered yet may be a rank of this one.
        let rest = std::thread::Builder::new().name("tcp-close".to_owned());
        let _without_a_thread_it_is_lost = rest.spawn(move || core.finish(LINGER_MAX));
    }
}

fn check_length(what: &str, len: usize, max: usize) {
    assert!(
        len <= max,
        "a message {what} of {len} bytes; the longest is {max}: ask `Caps`"
    );
}

const ONLY_DROP: &str = "only `drop` takes it";

/// Time that the background thread has for peers that answer late.
const LINGER_MAX: Duration = Duration::from_secs(10);
