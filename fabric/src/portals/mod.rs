//! Portals 4 driver: ranks that reach each other through BXI adapters, or through a library that emulates them in software.
//!
//! ```text
//!   Portals     the driver: commands in, events to the sink            this file, state, words, onesided
//!   Outbox ..   pure: order, resending, memory of messages             outbox, pool, slabs, peer, exports
//!   Ni          an interface: calls with the structures of a family    calls, event, queues
//!   Library     dlopen, symbols; which of five families it is          library, profile
//! ```
//!
//! **Messages** of all peers arrive in a few large slabs; no entry is appended per message. The adapter acknowledges a message
//! once it is in a slab, so each message is sent once. If the receiver has no room, its adapter refuses all messages
//! (`PTL_PT_DISABLED`) until the receiver has handled the earlier ones. A refused sender waits until it is notified, and resends
//! from the refused message on (`outbox`); other senders are not affected.
//!
//! **Tags.** If the adapter matches tags ([`PortalsConfig::tags`]), it may find memory lent to a message, and puts the body
//! there; other messages go to slabs (`lent`). The adapter only places bytes. The runtime still decides which receive a message
//! belongs to.
//!
//! **Memory** is addressed by the match bits of its region (`exports`). Commands are puts, gets and atomics of the adapter. The
//! target's processor takes no part, not even in counting (`onesided`).
//!
//! **Rails.** Messages of two ranks use one interface, and other pairs use others; long puts and gets are split over all
//! interfaces. When an interface fails, its traffic moves to the others (`rails`).
//!
//! **Baselines.** With [`PortalsConfig::compat`], messages are laid out as by pscom or MPC (`compat`), so that their costs can be
//! counted and timed.
//!
//! **Queues.** There are four, so that no important event is lost: arrivals are bounded by flow control, completions by the
//! number of started operations, hints about the board may be lost, and task lists have their own queue (`queues`).

mod address;
mod arrivals;
mod calls;
mod compat;
mod config;
mod connect;
mod match_entries;
mod event;
mod exports;
mod shutdown;
mod struct_buffer;
mod posted_recvs;
mod library;
mod task_lists;
mod rma_calls;
mod backoff;
mod onesided;
mod outbox;
mod peer;
mod send_pool;
mod prepare;
mod profile;
mod provider;
mod event_queues;
mod multirail;
mod eager_slabs;
mod driver_state;
mod stats;
#[cfg(test)]
mod tests;
mod triggers;
#[cfg(test)]
mod injected_refusals;
mod wakeups;
mod control_words;

use std::io;

pub use self::{
    compat::{Compat, Pscom, PscomVariable},
    config::{Interface, PortalsConfig},
    prepare::Prepared,
    provider::PortalsProvider,
    driver_state::Portals,
    stats::PortalsCounters,
};
use self::{
    onesided::Deed,
    send_pool::HEADER_MAX,
    event_queues::{Queues, Which},
};
use crate::{
    driver::{
        Armed, Caps, Command, Down, Driver, DriverAbilities, EventCounters, Evidence, FailureWatch,
        ListLimits, LocalRange, Offer, Peer, Post, Progress, Sink, TagMatching, TaskLists, Token,
        WaitOn,
    },
    lacks_abilities,
    memory::{Region, RemoteRegion},
    offload::Task,
    tags::Tag,
    timer::Timer,
};

impl Portals {
    /// Opens the library, and an interface that peers can reach.
    ///
    /// # Errors
    /// `NotFound` if there is no library; `Unsupported` if the library is of another family or has too little room;
    /// `InvalidInput` for a wrong field of `config`; otherwise the error of the library.
    pub fn prepare(config: PortalsConfig) -> io::Result<Prepared> {
        Prepared::open(&config)
    }
}

impl Driver for Portals {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: Command<'a>) -> Post<'a> {
        let room = match command {
            Command::Message { to, header, body } => {
                check_length("header", header.len(), HEADER_MAX);
                check_length("body", body.len(), self.caps.body_max);
                self.send(to.0, None, [header, body])
            }
            Command::Put {
                to,
                from,
                into,
                count,
                token,
            } => {
                let cell = count.map(|count| count.cell());
                let deed = match cell {
                    Some(None) => None,
                    cell => Some(Deed::Put(from, into, cell.flatten())),
                };
                self.command(to.0, deed, token)
            }
            Command::Get {
                to,
                from,
                into,
                token,
            } => self.command(to.0, Some(Deed::Get(into, from)), token),
            Command::Atomic { to, at, op, token } => {
                self.command(to.0, Some(Deed::Atomic(op, at)), token)
            }
            Command::Count { to, counter, by } => self.count(to.0, counter, by),
            Command::Watch {
                counter,
                threshold,
                token,
            } => {
                self.watch(counter, threshold, token);
                true
            }
            Command::Unwatch { token } => {
                self.watches.remove(token);
                self.lists.unwatch(token);
                true
            }
            Command::Withdraw { .. } => true,
        };
        if room {
            Post::Posted
        } else {
            Post::Full(command)
        }
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> Progress {
        self.ground.queues.disarm();
        self.ground.ni.see_atomics();
        self.naps.begin_turn(|| self.alarm.now());
        let _else_it_rings_once_more = self.alarm.set(None);
        self.give_kept_slabs();
        self.give_missing_buffers();
        let mut turn = Turn { budget, events: 0 };
        // Completions come first, because they return credits and slots that the later steps use.
        self.take_ends(&mut turn, sink);
        self.take_lists(&mut turn, sink);
        self.take_hints(&mut turn);
        self.take_arrivals(&mut turn, sink);
        self.ask_again();
        self.feed_stripes();
        self.close_lanes();
        self.tell(&mut turn, sink);
        self.transmit();
        self.end_naps();
        if turn.events > 0 {
            self.count_interrupts();
        }
        Progress {
            events: turn.events,
        }
    }

    fn arm(&mut self) -> Armed {
        self.show_counts();
        self.ground.ni.see_atomics();
        let sleeps = !self.has_news() && self.set_alarm() && self.ground.queues.arm();
        // Atomics since the last call have not posted events, so fetch their results before looking at the counters.
        self.ground.ni.see_atomics();
        if sleeps && !self.watches.is_reached() {
            Armed::Ready
        } else {
            Armed::Busy
        }
    }

    fn wait_on(&self) -> Vec<WaitOn> {
        wait_on(&self.ground.queues, &self.alarm)
    }

    fn allocate(&mut self, len: usize) -> io::Result<Region> {
        self.ground.exports.allocate(len)
    }

    fn expect(&mut self, _awaited: &mut dyn FnMut() -> Vec<Peer>) {}

    fn give_up(&mut self, Peer(rank): Peer, how: Option<Down>) -> Down {
        let said = || self.said.as_ref().map(|ends| ends.how_ended(rank));
        let how = how.or_else(said).unwrap_or(Down::Failed);
        self.lose(rank, how);
        how
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        let owner = self.peer(self.me).owner(self.me);
        let key = self.ground.exports.expose(owner, range);
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
        if self.lent.is_some() {
            Some(self)
        } else {
            None
        }
    }

    fn failure_watch(&mut self) -> Option<&mut dyn FailureWatch> {
        Some(self)
    }

    lacks_abilities! {
        named_slots, mapped_memory, peer_paths, connect_ahead, guarded_memory,
    }
}

impl EventCounters for Portals {
    fn allocate_counters(&mut self, len: usize) -> io::Result<Region> {
        if self.abilities.lists.is_none() {
            return self.allocate(len);
        }
        self.ground.exports.allocate_counters(len)
    }
}

impl TaskLists for Portals {
    fn list_limits(&self) -> ListLimits {
        self.abilities.lists.unwrap_or_default()
    }

    fn post_list(&mut self, tasks: &[Task], token: Token) -> bool {
        self.queue_list(tasks, token)
    }

    fn cancel_lists(&mut self, token: Token) {
        self.cancel(token);
    }

    fn forget_lists(&mut self, token: Token) -> bool {
        self.forget_offers(token)
    }

    fn give_name(&mut self, name: u64, region: &Region) {
        self.name(name, region);
    }

    fn take_back_name(&mut self, name: u64) {
        self.unname(name);
    }
}

impl TagMatching for Portals {
    fn shortest_body(&mut self) -> usize {
        self.abilities.tags.unwrap_or(usize::MAX)
    }

    fn post_tagged<'a>(&mut self, tag: Tag, message: Command<'a>) -> Post<'a> {
        match message {
            Command::Message { to, header, body } if self.lent.is_some() => {
                check_length("header", header.len(), HEADER_MAX);
                check_length("body", body.len(), self.caps.body_max);
                if self.send(to.0, Some(tag), [header, body]) {
                    Post::Posted
                } else {
                    Post::Full(message)
                }
            }
            _ => self.post(message),
        }
    }

    fn offer(&mut self, from: Peer, offer: Offer) -> bool {
        self.lend(from.0, offer)
    }

    fn take_back(&mut self, token: Token) -> bool {
        self.ask_back(token)
    }
}

impl FailureWatch for Portals {
    fn knows_peers(&mut self) -> bool {
        true
    }

    fn answers(&mut self, peer: Peer) -> u64 {
        self.peer(peer.0).answers
    }

    fn evidence(&mut self, _peer: Peer) -> Evidence {
        Evidence::Unreachable
    }
}

/// Budget and count of one turn of progress.
struct Turn {
    budget: u32,
    events: u32,
}

impl Turn {
    const fn goes_on(&self) -> bool {
        self.events < self.budget
    }
}

impl Portals {
    fn take_ends(&mut self, turn: &mut Turn, sink: &mut dyn Sink) {
        self.tell(turn, sink);
        while turn.goes_on()
            && let Some(got) = self.next(Which::Ends)
        {
            self.handle_end(got);
            let before = turn.events;
            self.tell(turn, sink);
            turn.events = turn.events.max(before + 1);
        }
    }

    fn take_hints(&mut self, turn: &mut Turn) {
        while turn.goes_on()
            && let Some(got) = self.next(Which::Board)
        {
            self.handle_hint(got);
            turn.events += 1;
        }
    }

    fn take_arrivals(&mut self, turn: &mut Turn, sink: &mut dyn Sink) {
        while turn.goes_on() {
            // Without the queues in hand, an empty result proves nothing: the helper thread may hold an event, and may return at
            // any moment.
            let is_all = !self.is_waited_for() || self.ground.queues.recall();
            let Some(got) = self.next(Which::Arrivals) else {
                if self.is_waited_for() && self.ground.queues.look_everywhere() {
                    continue;
                }
                if is_all {
                    self.let_in();
                    self.confirm_suspects();
                }
                return;
            };
            self.handle_arrival(got, sink);
            turn.events += 1;
        }
    }

    fn take_lists(&mut self, turn: &mut Turn, sink: &mut dyn Sink) {
        while turn.goes_on()
            && let Some(got) = self.next(Which::Lists)
        {
            self.handle_list_event(got);
            turn.events += 1;
        }
        self.tend_lists();
        self.try_again();
        self.tell(turn, sink);
    }

    fn tell(&mut self, turn: &mut Turn, sink: &mut dyn Sink) {
        while let Some(token) = self.watches.pop_reached() {
            sink.reached(token);
            turn.events += 1;
        }
        while turn.goes_on()
            && let Some(told) = self.told.pop_front()
        {
            if let Some(told) = self.keep_own(told) {
                told.hand_to(sink);
                turn.events += 1;
            }
        }
    }
}

fn wait_on(queues: &Queues, alarm: &Timer) -> Vec<WaitOn> {
    let mut all = queues.wait_on();
    all.push(WaitOn::Fd(alarm.wait_on()));
    all
}

fn check_length(what: &str, len: usize, max: usize) {
    assert!(
        len <= max,
        "a message {what} of {len} bytes; the longest is {max}: ask `Caps`"
    );
}
