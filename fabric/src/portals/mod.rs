//! Portals 4 driver: ranks that reach each other through BXI adapters, or through a library that emulates them in software.
//!
//! ```text
//!   Portals             the driver: commands in, events to the sink            this file, driver_state, arrivals, shutdown
//!   PortalsTaskLists    triggered operations, counters and names               task_lists
//!   PortalsCommands     puts, gets, atomics and counts in flight               onesided, multirail
//!   PostedRecvTable     receives that the adapter matches                      posted_recvs
//!   PortalsTransport    peers, lanes, messages and control words, room         transport, room, multirail
//!   PortalsOutbox ..    pure: order, resending, memory of messages             outbox, send_pool, eager_slabs, peer, exports
//!   PortalsNi           an interface: calls with the structures of a family    calls, event, event_queues
//!   PortalsLibrary      dlopen, symbols; which of five families it is          library, profile
//! ```
//!
//! Task lists use commands and the transport, and commands and posted receives use the transport. What concerns all of them, such
//! as the loss of a peer, is the driver's. A part that finds a peer dead only suspects it, and the driver reports the peer once
//! all arrivals are handled.
//!
//! **Messages** of all peers arrive in a few large slabs; no entry is appended per message. The adapter acknowledges a message
//! once it is in a slab, so each message is sent once. If the receiver has no room, its adapter refuses all messages
//! (`PTL_PT_DISABLED`) until the receiver has handled the earlier ones. A refused sender waits until it is notified, and resends
//! from the refused message on (`outbox`); other senders are not affected.
//!
//! **Tags.** If the adapter matches tags ([`PortalsConfig::tags`]), it may find memory lent to a message, and puts the body
//! there; other messages go to slabs (`posted_recvs`). The adapter only places bytes. The runtime still decides which receive a
//! message belongs to.
//!
//! **Memory** is addressed by the match bits of its region (`exports`). Commands are puts, gets and atomics of the adapter. The
//! target's processor takes no part, not even in counting (`onesided`).
//!
//! **Rails.** Messages of two ranks use one interface, and other pairs use others; long puts and gets are split over all
//! interfaces. When an interface fails, its traffic moves to the others (`multirail`).
//!
//! **Guests.** Benchmarks lay messages out as other libraries do, in a portal table entry of their own on the driver's interface
//! (`guest`).
//!
//! **Queues.** There are four, so that no important event is lost: arrivals are bounded by flow control, completions by the
//! number of started operations, hints about the board may be lost, and task lists have their own queue (`event_queues`).

mod address;
mod arrivals;
mod backoff;
mod calls;
mod completion;
mod config;
mod connect;
mod driver_state;
mod eager_slabs;
mod event;
mod event_queues;
mod exports;
mod guest;
#[cfg(test)]
mod injected_refusals;
mod library;
mod match_bits;
mod match_entries;
mod multirail;
mod onesided;
mod outbox;
mod peer;
mod posted_recvs;
mod prepare;
mod profile;
mod provider;
mod rma_calls;
mod room;
mod send_pool;
mod shutdown;
mod stats;
mod struct_buffer;
mod task_lists;
#[cfg(test)]
mod tests;
mod transport;
mod triggers;
mod wakeups;

use std::io;

pub use self::{
    config::{Interface, PortalsConfig},
    driver_state::Portals,
    guest::{GuestAddress, GuestCall, GuestEvent, GuestPort, GuestPutEnd, PreparedGuest},
    prepare::PreparedPortals,
    provider::PortalsProvider,
    stats::PortalsCounters,
};
use self::{
    event_queues::{EventQueueKind, PortalsQueues},
    onesided::PortalsRmaOp,
    send_pool::HEADER_MAX,
    task_lists::CtWatch,
};
use crate::{
    driver::{
        ArmResult, Caps, CommandToken, DownCause, DownEvidence, Driver, DriverAbilities,
        DriverCommand, EventCounters, FailureWatch, ListLimits, LocalRange, PostResult, Sink,
        TagBuffer, TagMatching, TaskLists, TurnProgress, WakeSource, WorldRank,
    },
    lacks_abilities,
    memory::{MemoryRegion, RemoteRegion},
    offload::{LocalCounter, TriggeredTask},
    tags::MatchTag,
    timer::RetryTimer,
};

impl Portals {
    /// Opens the library, and an interface that peers can reach.
    ///
    /// # Errors
    /// `NotFound` if there is no library; `Unsupported` if the library is of another family or has too little room;
    /// `InvalidInput` for a wrong field of `config`; otherwise the error of the library.
    pub fn prepare(config: PortalsConfig) -> io::Result<PreparedPortals> {
        PreparedPortals::open(&config)
    }
}

impl Driver for Portals {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        let room = match command {
            DriverCommand::Message { to, header, body } => {
                check_length("header", header.len(), HEADER_MAX);
                check_length("body", body.len(), self.caps.body_max);
                self.transport.send(to.0, None, [header, body])
            }
            DriverCommand::Put {
                to,
                from,
                into,
                count,
                token,
            } => {
                let cell = count.map(|count| count.words_key());
                let op = match cell {
                    Some(None) => None,
                    cell => Some(PortalsRmaOp::Put(from, into, cell.flatten())),
                };
                self.commands.command(&mut self.transport, to.0, op, token)
            }
            DriverCommand::Get {
                to,
                from,
                into,
                token,
            } => self.commands.command(
                &mut self.transport,
                to.0,
                Some(PortalsRmaOp::Get(into, from)),
                token,
            ),
            DriverCommand::Atomic { to, at, op, token } => self.commands.command(
                &mut self.transport,
                to.0,
                Some(PortalsRmaOp::Atomic(op, at)),
                token,
            ),
            DriverCommand::Count { to, counter, by } => {
                self.lists
                    .count(&mut self.commands, &mut self.transport, to.0, counter, by)
            }
            DriverCommand::Watch {
                counter,
                threshold,
                token,
            } => {
                self.watch(counter, threshold, token);
                true
            }
            DriverCommand::Unwatch { token } => {
                self.watches.remove(token);
                self.lists.unwatch(token);
                true
            }
            DriverCommand::Withdraw { .. } => true,
        };
        if room {
            PostResult::Posted
        } else {
            PostResult::Full(command)
        }
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        self.transport.resources.queues.disarm();
        self.transport.resources.ni.sync_atomics();
        self.transport.room.backoff.begin_turn(|| self.alarm.now());
        let _else_it_rings_once_more = self.alarm.set(None);
        self.transport.give_kept_slabs();
        let mut turn = EventBudget { budget, events: 0 };
        // Completions come first, because they return credits and slots that the later steps use.
        self.poll_completions(&mut turn, sink);
        self.poll_task_lists(&mut turn, sink);
        self.poll_hints(&mut turn);
        self.poll_arrivals(&mut turn, sink);
        if let Some(lent) = &mut self.posted_recvs {
            lent.retry_withdrawals(&mut self.transport);
        }
        self.commands.continue_stripes(&mut self.transport);
        self.close_lanes();
        self.drain_completions(&mut turn, sink);
        self.transport.transmit();
        self.reset_backoff();
        if turn.events > 0 {
            self.count_interrupts();
        }
        TurnProgress {
            events: turn.events,
        }
    }

    fn arm(&mut self) -> ArmResult {
        self.lists.show_counts(&self.transport);
        self.transport.resources.ni.sync_atomics();
        let sleeps =
            !self.has_pending_work() && self.set_alarm() && self.transport.resources.queues.arm();
        // Atomics since the last call have not posted events, so fetch their results before looking at the counters.
        self.transport.resources.ni.sync_atomics();
        if sleeps && !self.watches.is_reached() {
            ArmResult::Ready
        } else {
            ArmResult::Busy
        }
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        wait_on(&self.transport.resources.queues, &self.alarm)
    }

    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.transport.resources.exports.allocate(len)
    }

    fn expect(&mut self, _awaited: &mut dyn FnMut() -> Vec<WorldRank>) {}

    fn give_up(&mut self, WorldRank(rank): WorldRank, how: Option<DownCause>) -> DownCause {
        let said = || {
            self.end_records
                .as_ref()
                .map(|ends| ends.how_ended(WorldRank(rank)))
        };
        let how = how.or_else(said).unwrap_or(DownCause::Failed);
        self.report_peer_down(rank, how);
        how
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        let owner = self
            .transport
            .peer(self.transport.me)
            .owner(self.transport.me);
        let key = self.transport.resources.exports.expose(owner, range);
        (self.caps.any_memory.is_ok() || !exports::is_plain(&key)).then_some(key)
    }
}

impl DriverAbilities for Portals {
    fn event_counters(&mut self) -> Option<&mut dyn EventCounters> {
        Some(self)
    }

    fn task_lists(&mut self) -> Option<&mut dyn TaskLists> {
        if self.abilities.lists.is_some() {
            Some(self)
        } else {
            None
        }
    }

    fn tag_matching(&mut self) -> Option<&mut dyn TagMatching> {
        if self.posted_recvs.is_some() {
            Some(self)
        } else {
            None
        }
    }

    fn failure_watch(&mut self) -> Option<&mut dyn FailureWatch> {
        Some(self)
    }

    lacks_abilities! {
        named_slots, peer_turns, mapped_memory, node_memory, peer_paths, connect_ahead, guarded_memory,
    }
}

impl EventCounters for Portals {
    fn allocate_counters(&mut self, len: usize) -> io::Result<MemoryRegion> {
        if self.abilities.lists.is_none() {
            return self.allocate(len);
        }
        self.transport.resources.exports.allocate_counters(len)
    }
}

impl TaskLists for Portals {
    fn list_limits(&self) -> ListLimits {
        self.lists.list_limits()
    }

    fn post_list(&mut self, tasks: &[TriggeredTask], token: CommandToken) -> bool {
        self.lists
            .queue_list(&mut self.commands, &mut self.transport, tasks, token)
    }

    fn cancel_lists(&mut self, token: CommandToken) {
        self.lists.cancel(&self.transport, token);
    }

    fn forget_lists(&mut self, token: CommandToken) -> bool {
        self.lists.forget_offers(&self.transport, token)
    }

    fn give_name(&mut self, name: u64, region: &MemoryRegion) {
        self.lists.name(&self.transport, name, region);
    }

    fn take_back_name(&mut self, name: u64) {
        self.lists.unname(&self.transport, name);
    }
}

impl TagMatching for Portals {
    fn shortest_body(&mut self) -> usize {
        self.abilities.tags.unwrap_or(usize::MAX)
    }

    fn post_tagged<'a>(&mut self, tag: MatchTag, message: DriverCommand<'a>) -> PostResult<'a> {
        match message {
            DriverCommand::Message { to, header, body } if self.posted_recvs.is_some() => {
                check_length("header", header.len(), HEADER_MAX);
                check_length("body", body.len(), self.caps.body_max);
                if self.transport.send(to.0, Some(tag), [header, body]) {
                    PostResult::Posted
                } else {
                    PostResult::Full(message)
                }
            }
            _ => self.post(message),
        }
    }

    fn offer(&mut self, from: WorldRank, offer: TagBuffer) -> bool {
        let lent = self.posted_recvs.as_mut();
        lent.is_some_and(|lent| lent.post(&self.transport, from.0, offer))
    }

    fn take_back(&mut self, token: CommandToken) -> bool {
        let lent = self.posted_recvs.as_mut();
        lent.is_none_or(|lent| lent.withdraw(&self.transport, token))
    }
}

impl FailureWatch for Portals {
    fn knows_peers(&mut self) -> bool {
        true
    }

    fn answers(&mut self, peer: WorldRank) -> u64 {
        self.transport.peer(peer.0).answers
    }

    fn evidence(&mut self, _peer: WorldRank) -> DownEvidence {
        DownEvidence::Unreachable
    }
}

/// Budget and count of one turn of progress.
struct EventBudget {
    budget: u32,
    events: u32,
}

impl EventBudget {
    const fn goes_on(&self) -> bool {
        self.events < self.budget
    }
}

impl Portals {
    /// Requests a notification when a counter reaches a threshold.
    fn watch(&mut self, counter: &LocalCounter, threshold: u64, token: CommandToken) {
        match self.transport.resources.exports.counter_id(counter) {
            Some(counter) => {
                let watch = CtWatch {
                    token,
                    counter,
                    threshold,
                };
                self.lists.watch(&mut self.transport, watch);
            }
            None => self.watches.add(counter, threshold, token),
        }
    }

    fn poll_completions(&mut self, turn: &mut EventBudget, sink: &mut dyn Sink) {
        self.drain_completions(turn, sink);
        while turn.goes_on()
            && let Some(got) = self.transport.next(EventQueueKind::Completions)
        {
            self.handle_completion(got);
            let before = turn.events;
            self.drain_completions(turn, sink);
            turn.events = turn.events.max(before + 1);
        }
    }

    fn poll_hints(&mut self, turn: &mut EventBudget) {
        while turn.goes_on()
            && let Some(got) = self.transport.next(EventQueueKind::Board)
        {
            self.handle_hint(got);
            turn.events += 1;
        }
    }

    fn poll_arrivals(&mut self, turn: &mut EventBudget, sink: &mut dyn Sink) {
        while turn.goes_on() {
            // Without the queues in hand, an empty result proves nothing: the helper thread may hold an event, and may return at
            // any moment.
            let is_all =
                !self.transport.is_waited_for() || self.transport.resources.queues.recall_helper();
            let Some(got) = self.transport.next(EventQueueKind::Arrivals) else {
                if self.transport.is_waited_for()
                    && self.transport.resources.queues.poll_all_rails()
                {
                    continue;
                }
                if is_all {
                    self.transport.resume_senders();
                    self.confirm_suspects();
                }
                return;
            };
            self.handle_arrival(got, sink);
            turn.events += 1;
        }
    }

    fn poll_task_lists(&mut self, turn: &mut EventBudget, sink: &mut dyn Sink) {
        while turn.goes_on()
            && let Some(got) = self.transport.next(EventQueueKind::Lists)
        {
            self.lists
                .handle_list_event(&mut self.commands, &mut self.transport, got);
            turn.events += 1;
        }
        self.lists
            .progress_lists(&mut self.commands, &mut self.transport);
        self.commands.retry_commands(&mut self.transport);
        self.drain_completions(turn, sink);
    }

    fn drain_completions(&mut self, turn: &mut EventBudget, sink: &mut dyn Sink) {
        while let Some(token) = self.watches.pop_reached() {
            sink.reached(token);
            turn.events += 1;
        }
        while turn.goes_on()
            && let Some(told) = self.transport.completions.pop_front()
        {
            if let Some(told) = self.lists.take_own_completions(&self.transport, told) {
                told.deliver_to(sink);
                turn.events += 1;
            }
        }
    }
}

fn wait_on(queues: &PortalsQueues, alarm: &RetryTimer) -> Vec<WakeSource> {
    let mut all = queues.wait_on();
    all.push(WakeSource::Fd(alarm.wait_on()));
    all
}

fn check_length(what: &str, len: usize, max: usize) {
    assert!(
        len <= max,
        "a message {what} of {len} bytes; the longest is {max}: ask `Caps`"
    );
}
