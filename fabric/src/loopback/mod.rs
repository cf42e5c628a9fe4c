//! The tutorial driver: the ranks of one process, connected by queues.
//!
//! Read it from the top, together with the contract in [`driver`](crate::driver), then `mailbox.rs` and `provider.rs`, which
//! offers it to jobs. A rank is a [`LoopbackDriver`]. Everything that it will receive is in its mailbox, including its own
//! completions. A put is performed when it is posted, because the target's memory is in the same process.

mod mailbox;
mod provider;

use std::{io, sync::Arc};

use self::mailbox::{LoopbackEvent, LoopbackMailbox};
pub use self::provider::LoopbackProvider;
use crate::{
    driver::{
        ArmResult, Caps, CommandFailure, DownCause, Driver, DriverAbilities, DriverCommand,
        DriverCost, EventCounters, LocalRange, PostResult, Sink, TurnProgress, WakeSource,
        WorldRank,
    },
    lacks_abilities,
    memory::{MemoryRegion, RemoteRegion, WeakRegion},
    offload::{COUNTER_LEN, LocalCounter, RemoteCounter, ThresholdWatches},
};

/// One rank of a world made by [`world`].
#[derive(Debug)]
pub struct LoopbackDriver {
    me: WorldRank,
    world: Arc<[LoopbackMailbox]>,
    watches: ThresholdWatches,
    caps: Caps,
}

/// Creates a world of `ranks` ranks, which can reach each other and no other ranks. Each may be moved to its own thread.
///
/// # Panics
/// Panics if the process has no file descriptors left, because each rank has one to sleep on.
#[must_use]
pub fn world(ranks: u32) -> Vec<LoopbackDriver> {
    let world: Arc<[LoopbackMailbox]> = (0..ranks).map(|_| LoopbackMailbox::new()).collect();
    (0..ranks)
        .map(|rank| LoopbackDriver {
            me: WorldRank(rank),
            world: Arc::clone(&world),
            watches: ThresholdWatches::new(),
            caps: caps(),
        })
        .collect()
}

impl Driver for LoopbackDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        let room = match &command {
            DriverCommand::Message { to, header, body } => self.send(*to, header, body),
            DriverCommand::Count { to, counter, by } => {
                self.count(*to, *counter, *by);
                true
            }
            DriverCommand::Watch {
                counter,
                threshold,
                token,
            } => {
                self.watches.add(counter, *threshold, *token);
                true
            }
            DriverCommand::Unwatch { token } => {
                self.watches.remove(*token);
                true
            }
            DriverCommand::Withdraw { .. } => true,
            DriverCommand::Put { token, .. }
            | DriverCommand::Get { token, .. }
            | DriverCommand::Atomic { token, .. } => self.mailbox(self.me).push(self.me, || {
                self.one_sided(&command)
                    .unwrap_or_else(|why| LoopbackEvent::Failed(*token, why))
            }),
        };
        if room {
            PostResult::Posted
        } else {
            PostResult::Full(command)
        }
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        self.mailbox(self.me).disarm();
        let mut events = 0;
        while let Some(token) = self.watches.pop_reached() {
            sink.reached(token);
            events += 1;
        }
        // The sink is never called with the mailbox locked, so that other ranks can post meanwhile.
        while events < budget
            && let Some(event) = self.mailbox(self.me).pop()
        {
            event.hand_to(sink);
            events += 1;
        }
        if events > 0 {
            self.wake_refused();
        }
        TurnProgress { events }
    }

    fn arm(&mut self) -> ArmResult {
        // Arm first: a count that arrives after the check then finds the mailbox armed.
        if self.mailbox(self.me).arm() && !self.watches.is_reached() {
            ArmResult::Ready
        } else {
            ArmResult::Busy
        }
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        vec![WakeSource::Fd(self.mailbox(self.me).bell())]
    }

    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        let region = MemoryRegion::create("ripstop-loopback", len, true)?;
        let mut state = self.mailbox(self.me).lock();
        state.regions.retain(|_, region| region.upgrade().is_some());
        let name = state.region_next;
        state.region_next += 1;
        state.regions.insert(name, region.downgrade());
        Ok(region)
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        let state = self.mailbox(self.me).lock();
        state
            .regions
            .iter()
            .find_map(|(name, region)| key_to(self.me, *name, &region.upgrade()?, range))
    }

    /// Does nothing: all ranks are here from the start.
    fn expect(&mut self, _awaited: &mut dyn FnMut() -> Vec<WorldRank>) {}

    /// Ends nothing, because no command stays in flight: each is performed when it is posted.
    fn give_up(&mut self, _peer: WorldRank, how: Option<DownCause>) -> DownCause {
        how.unwrap_or(DownCause::Failed)
    }
}

impl DriverAbilities for LoopbackDriver {
    fn event_counters(&mut self) -> Option<&mut dyn EventCounters> {
        Some(self)
    }

    lacks_abilities! {
        task_lists, tag_matching, named_slots, peer_turns, mapped_memory, node_memory, peer_paths, connect_ahead,
        failure_watch, guarded_memory,
    }
}

impl EventCounters for LoopbackDriver {
    fn allocate_counters(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.allocate(len)
    }
}

impl LoopbackDriver {
    /// Posts a message. Returns false if there was no room.
    fn send(&self, to: WorldRank, header: &[u8], body: &[u8]) -> bool {
        check_length("header", header.len(), HEADER_MAX);
        check_length("body", body.len(), BODY_MAX);
        self.mailbox(to).push(self.me, || LoopbackEvent::Message {
            from: self.me,
            header: header.into(),
            body: body.into(),
        })
    }

    fn one_sided(&self, command: &DriverCommand<'_>) -> Result<LoopbackEvent, CommandFailure> {
        match *command {
            DriverCommand::Put {
                to,
                from,
                into,
                count,
                token,
            } => {
                let (region, offset) = self.target(to, into, from.len())?;
                let counter = count.map(|key| self.counter(to, key)).transpose()?;
                region.copy_in(offset, from);
                if counter.is_some_and(|counter| counter.add(1)) {
                    self.mailbox(to).wake();
                }
                Ok(LoopbackEvent::Complete(token))
            }
            DriverCommand::Get {
                to,
                from,
                into,
                token,
            } => {
                let (region, offset) = self.target(to, from, into.len())?;
                region.copy_out(offset, into);
                Ok(LoopbackEvent::Complete(token))
            }
            DriverCommand::Atomic { to, at, op, token } => {
                let (region, offset) = self.target(to, at, size_of::<u64>())?;
                let aligned = offset.is_multiple_of(size_of::<u64>());
                aligned
                    .then(|| LoopbackEvent::Fetched(token, op.apply(region.atomic_u64(offset))))
                    .ok_or(CommandFailure::BadRange)
            }
            _ => unreachable!("{command:?} is not one-sided"),
        }
    }

    /// Adds to a counter, unless its owner has closed or freed it.
    fn count(&self, to: WorldRank, key: RemoteCounter, by: u64) {
        if self.counter(to, key).is_ok_and(|counter| counter.add(by)) {
            self.mailbox(to).wake();
        }
    }

    fn counter(&self, of: WorldRank, key: RemoteCounter) -> Result<LocalCounter, CommandFailure> {
        let cell = key.words_key().ok_or(CommandFailure::BadRange)?;
        let (region, offset) = self.target(of, cell, COUNTER_LEN)?;
        Ok(LocalCounter::in_region(region, offset))
    }

    /// Returns the region of which `key` grants `len` bytes, and the offset where they start.
    fn target(
        &self,
        to: WorldRank,
        key: RemoteRegion,
        len: usize,
    ) -> Result<(MemoryRegion, usize), CommandFailure> {
        let state = self.mailbox(to).lock();
        if state.closed {
            return Err(CommandFailure::PeerDown);
        }
        let region = state
            .regions
            .get(&key_name(key))
            .and_then(WeakRegion::upgrade)
            .ok_or(CommandFailure::BadRange)?;
        let [offset, granted, whole] =
            [key.base, key.len, key.whole].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let inside = offset <= region.len() && len <= region.len() - offset;
        let ours = key.kind == KIND && key.owner == to.0 && whole == region.len();
        if inside && ours && granted == len {
            Ok((region, offset))
        } else {
            Err(CommandFailure::BadRange)
        }
    }

    /// Wakes the ranks that found this rank's mailbox full.
    fn wake_refused(&self) {
        for peer in self.mailbox(self.me).take_refused() {
            self.mailbox(peer).wake_for_room();
        }
    }

    fn mailbox(&self, of: WorldRank) -> &LoopbackMailbox {
        let index = usize::try_from(of.0).unwrap_or(usize::MAX);
        self.world
            .get(index)
            .unwrap_or_else(|| panic!("rank {} in a world of {}", of.0, self.world.len()))
    }
}

impl Drop for LoopbackDriver {
    fn drop(&mut self) {
        let how = if std::thread::panicking() {
            DownCause::Failed
        } else {
            DownCause::Finished
        };
        self.mailbox(self.me).close();
        for peer in self.world.iter() {
            peer.deliver(LoopbackEvent::Down(self.me, how));
        }
    }
}

fn check_length(what: &str, len: usize, max: usize) {
    assert!(
        len <= max,
        "a message {what} of {len} bytes; the longest is {max}: ask `Caps`"
    );
}

/// Returns a key to `range`, if that is inside `region`.
fn key_to(
    owner: WorldRank,
    name: u64,
    region: &MemoryRegion,
    range: LocalRange,
) -> Option<RemoteRegion> {
    let offset = range
        .start()
        .addr()
        .get()
        .checked_sub(region.start().addr().get())?;
    let inside = offset <= region.len() && range.len() <= region.len() - offset;
    let [id, generation] = bytemuck::cast(name);
    let [whole, base, len] = [region.len(), offset, range.len()].map(|n| n as u64);
    inside.then_some(RemoteRegion {
        kind: KIND,
        owner: owner.0,
        id,
        generation,
        whole,
        base,
        len,
    })
}

fn key_name(key: RemoteRegion) -> u64 {
    bytemuck::cast([key.id, key.generation])
}

fn caps() -> Caps {
    Caps {
        name: "loopback",
        inline_max: INLINE_MAX,
        header_max: HEADER_MAX,
        body_max: BODY_MAX,
        ordered: true,
        reliable: true,
        detects_death: true,
        shares_memory: true,
        one_sided: true,
        atomics: true,
        by_processor: true,
        any_memory: Err("loopback reaches only memory that it allocated".to_owned()),
        pins_exposed: false,
        lanes: 1,
        cost: DriverCost {
            send_ns: 100.0,
            recv_ns: 100.0,
            latency_ns: 100.0,
            copy_ns_per_kib: 50.0,
            message_ns_per_kib: 100.0,
            get_ns: 100.0,
            get_ns_per_kib: 50.0,
            put_ns: 100.0,
            put_ns_per_kib: 50.0,
            expose_ns: 100.0,
        },
    }
}

/// [`RemoteRegion::kind`] of this driver's keys.
const KIND: u32 = 0x100b;

/// All messages here travel in a buffer. The limits are those of a typical fabric, so that protocols take their usual paths.
const INLINE_MAX: usize = 64;
const HEADER_MAX: usize = 128;
const BODY_MAX: usize = 64 << 10;
