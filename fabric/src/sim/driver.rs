//! A rank's driver: implements the contract of [`driver`](crate::driver) on top of the world.

use std::{
    io,
    sync::{Arc, Weak},
};

use super::{
    Cluster, ClusterConfig, Model, Transport,
    onesided::SimOpKind,
    packets::{PacketPayload, SimCompletion, SimFailure, SimPacket},
    slab::index,
    world::SimWorld,
};
use crate::{
    driver::{
        AccessPolicy, ArmResult, Caps, CommandFailure, CommandToken, DownCause, Driver,
        DriverAbilities, DriverCommand, DriverCost, EventCounters, GuardedMemory, ListLimits,
        LocalRange, PayloadView, PostResult, Sink, TaskLists, TurnProgress, WakeSource, WorldRank,
    },
    lacks_abilities,
    memory::{MemoryRegion, RemoteRegion},
    offload::TriggeredTask,
};

/// Driver of one rank of a [`Cluster`].
#[derive(Debug)]
pub struct SimDriver {
    cluster: Cluster,
    rank: u32,
    caps: Arc<Caps>,
    lists: ListLimits,
}

impl SimDriver {
    pub(super) fn open(cluster: Cluster, rank: u32) -> Self {
        let (caps, lists) = {
            let mut world = cluster.lock();
            world.hosts.open(rank);
            (Arc::clone(&world.caps), world.lists)
        };
        Self {
            cluster,
            rank,
            caps,
            lists,
        }
    }

    /// Closes the driver, and notifies the peers that this rank has failed.
    pub fn fail(self) {
        self.cluster.lock().close(self.rank, DownCause::Failed);
    }
}

impl Driver for SimDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a> {
        let mut world = self.cluster.lock();
        let taken = match command {
            DriverCommand::Message { to, header, body } => {
                check_length("header", header.len(), HEADER_MAX);
                check_length("body", body.len(), BODY_MAX);
                world.send(self.rank, to.0, header, body)
            }
            DriverCommand::Put {
                to,
                from,
                into,
                count,
                token,
            } => world.command(self.rank, to.0, SimOpKind::Put(from, count), into, token),
            DriverCommand::Get {
                to,
                from,
                into,
                token,
            } => world.command(self.rank, to.0, SimOpKind::Get(into), from, token),
            DriverCommand::Atomic { to, at, op, token } => {
                world.command(self.rank, to.0, SimOpKind::Atomic(op), at, token)
            }
            DriverCommand::Count { to, counter, by } => {
                world.send_count(self.rank, to.0, counter, by);
                true
            }
            DriverCommand::Watch {
                counter,
                threshold,
                token,
            } => {
                world.watch(self.rank, counter, threshold, token);
                true
            }
            DriverCommand::Unwatch { token } => {
                world.hosts[self.rank].unwatch(token);
                true
            }
            DriverCommand::Withdraw { key } => {
                world.hosts[self.rank].withdraw(key);
                true
            }
        };
        world.wake_all_armed();
        if taken {
            PostResult::Posted
        } else {
            PostResult::Full(command)
        }
    }

    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress {
        let mut taken = {
            let mut world = self.cluster.lock();
            let mut taken = std::mem::take(&mut world.taken);
            world.hosts.disarm(self.rank);
            world.take(self.rank, budget, &mut taken);
            if taken.is_empty() && world.hosts.is_free_running() && world.run_event() {
                world.taken = taken;
                world.wake_all_armed();
                return TurnProgress { events: 1 };
            }
            world.wake_all_armed();
            taken
        };
        // The world is not locked here, because a sink may call back into the cluster to wake ranks.
        taken.iter().for_each(|packet| hand_over(packet, sink));
        let events = u32::try_from(taken.len()).unwrap_or(u32::MAX);
        let mut world = self.cluster.lock();
        taken
            .drain(..)
            .for_each(|packet| world.packets.recycle(packet.bytes));
        world.taken = taken;
        TurnProgress { events }
    }

    fn arm(&mut self) -> ArmResult {
        let SimWorld { hosts, heap, .. } = &mut *self.cluster.lock();
        hosts.arm(self.rank, heap)
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        vec![self.cluster.lock().hosts.wait_on(self.rank)]
    }

    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        let mut world = self.cluster.lock();
        let vacant = world.lengths_only || len as u64 >= world.hash_from;
        world.hosts[self.rank].allocate(len, vacant)
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        let one_sided = self.caps.one_sided;
        one_sided.then(|| self.cluster.lock().hosts[self.rank].expose(self.rank, range))
    }

    /// Does nothing: connections of the simulated network are made when they are used.
    fn expect(&mut self, _awaited: &mut dyn FnMut() -> Vec<WorldRank>) {}

    /// Ends nothing here: the simulated adapters end the commands to a rank that is down.
    fn give_up(&mut self, _peer: WorldRank, how: Option<DownCause>) -> DownCause {
        how.unwrap_or(DownCause::Failed)
    }
}

impl DriverAbilities for SimDriver {
    fn event_counters(&mut self) -> Option<&mut dyn EventCounters> {
        if self.caps.reliable { Some(self) } else { None }
    }

    fn task_lists(&mut self) -> Option<&mut dyn TaskLists> {
        if self.lists.triggered_max > 0 {
            Some(self)
        } else {
            None
        }
    }

    fn guarded_memory(&mut self) -> Option<&mut dyn GuardedMemory> {
        Some(self)
    }

    lacks_abilities! {
        tag_matching, named_slots, peer_turns, mapped_memory, node_memory, peer_paths, connect_ahead, failure_watch,
    }
}

impl EventCounters for SimDriver {
    fn allocate_counters(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.allocate(len)
    }
}

impl TaskLists for SimDriver {
    fn list_limits(&self) -> ListLimits {
        self.lists
    }

    fn post_list(&mut self, tasks: &[TriggeredTask], token: CommandToken) -> bool {
        let mut world = self.cluster.lock();
        let taken = world.post_list(self.rank, tasks, token);
        world.wake_all_armed();
        taken
    }

    fn cancel_lists(&mut self, token: CommandToken) {
        let mut world = self.cluster.lock();
        world.cancel(self.rank, token);
        world.wake_all_armed();
    }

    /// Has nothing to release: the simulated adapter keeps nothing of lists that have begun.
    fn forget_lists(&mut self, _token: CommandToken) -> bool {
        true
    }

    fn give_name(&mut self, name: u64, region: &MemoryRegion) {
        let mut world = self.cluster.lock();
        world.name(self.rank, name, region);
        world.wake_all_armed();
    }

    fn take_back_name(&mut self, name: u64) {
        let mut world = self.cluster.lock();
        world.hosts[self.rank].unname(name);
        world.wake_all_armed();
    }
}

impl GuardedMemory for SimDriver {
    fn guard(&mut self, key: RemoteRegion, keeper: Weak<dyn AccessPolicy>) {
        self.cluster.lock().hosts[self.rank].guard(key, keeper);
    }
}

impl Drop for SimDriver {
    fn drop(&mut self) {
        let how = if std::thread::panicking() {
            DownCause::Failed
        } else {
            DownCause::Finished
        };
        let mut world = self.cluster.lock();
        world.close(self.rank, how);
        world.wake_all_armed();
    }
}

impl SimWorld {
    pub(super) fn cost_inside(&self) -> Option<DriverCost> {
        let ranks = self.hosts.len();
        let local = self.model.node.ranks;
        (1 < local && local < ranks).then(|| cost(&self.model, true))
    }

    /// Wakes all sleeping ranks while there are events, if no executor advances the world: one of them must run the events.
    fn wake_all_armed(&mut self) {
        if !self.heap.is_empty() {
            self.hosts.wake_all_armed();
        }
    }
}

fn hand_over(packet: &SimPacket, sink: &mut dyn Sink) {
    let from = WorldRank(packet.from);
    match packet.payload {
        PacketPayload::Message { header, .. } => {
            let (header, body) = packet.bytes.split_at(usize::from(header));
            sink.message(from, header, PayloadView::from_slice(body));
        }
        PacketPayload::Completion(SimCompletion::Complete(token)) => sink.complete(token),
        PacketPayload::Completion(SimCompletion::Fetched(token, old)) => sink.fetched(token, old),
        PacketPayload::Completion(SimCompletion::Failed(token, why)) => {
            sink.failed(token, why.into())
        }
        PacketPayload::Completion(SimCompletion::Reached(token)) => sink.reached(token),
        PacketPayload::Completion(SimCompletion::Triggered(token)) => sink.triggered(token),
        PacketPayload::Completion(SimCompletion::Broken(token, why)) => {
            sink.failed(token, why.into())
        }
        PacketPayload::Completion(SimCompletion::Down(how)) => sink.peer_down(from, how),
        PacketPayload::Chunk { .. }
        | PacketPayload::Request(_)
        | PacketPayload::Answer(_)
        | PacketPayload::Count(_)
        | PacketPayload::Closing(_) => {
            unreachable!("{:?} is the adapter's and not for an inbox", packet.payload)
        }
    }
}

impl From<SimFailure> for CommandFailure {
    fn from(why: SimFailure) -> Self {
        match why {
            SimFailure::PeerDown => Self::PeerDown,
            SimFailure::BadRange => Self::BadRange,
            SimFailure::Unmatched => Self::Unmatched,
            SimFailure::Cancelled => Self::Cancelled,
        }
    }
}

fn check_length(what: &str, len: usize, max: usize) {
    assert!(
        len <= max,
        "a message {what} of {len} bytes; the longest is {max}: ask `Caps`"
    );
}

/// Returns what the drivers of a cluster can do.
pub(super) fn caps(config: &ClusterConfig) -> Caps {
    let reliable = config.transport == Transport::Reliable;
    Caps {
        name: "sim",
        inline_max: INLINE_MAX,
        header_max: HEADER_MAX,
        body_max: BODY_MAX,
        ordered: reliable,
        reliable,
        detects_death: !config.faults.silences(),
        shares_memory: false,
        one_sided: reliable,
        atomics: reliable,
        by_processor: false,
        any_memory: if reliable {
            Ok(())
        } else {
            Err("a datagram adapter reaches no memory".to_owned())
        },
        pins_exposed: false,
        lanes: 1,
        cost: cost(&config.model, config.ranks <= config.model.node.ranks),
    }
}

/// Returns the limits of the adapters' task lists. Without room for tasks there are none.
pub(super) fn lists(config: &ClusterConfig) -> ListLimits {
    let reliable = config.transport == Transport::Reliable;
    ListLimits {
        triggered_max: if reliable {
            config.model.nic.tasks()
        } else {
            0
        },
        combine_max: index(config.model.nic.combine),
    }
}

/// Returns the model's costs for the choice of protocols: between nodes, unless there is only one node.
fn cost(model: &Model, one_node: bool) -> DriverCost {
    let ns = |ns: u64| ns as f64;
    let per_kib = |ps: u64| ps as f64 * 1.024;
    let (host, nic, network, node) = (&model.host, &model.nic, &model.network, &model.node);
    let (distance, access, byte_ps, rails) = if one_node {
        (node.latency_ns, node.access_ns, node.byte_ps, 1)
    } else {
        let byte_ps = nic.byte_ps.max(network.link_byte_ps);
        let distance = network.latency_ns + network.hop_ns + nic.match_ns;
        (distance, 0, byte_ps, nic.rails)
    };
    let latency = nic.command_ns + distance + host.detect_ns;
    let one_sided_ns = ns(host.send_ns + access + 2 * latency + host.recv_ns);
    let bulk_ns_per_kib = per_kib(byte_ps) / f64::from(rails);
    DriverCost {
        send_ns: ns(host.send_ns),
        recv_ns: ns(host.recv_ns),
        latency_ns: ns(latency),
        copy_ns_per_kib: per_kib(host.copy_byte_ps),
        message_ns_per_kib: per_kib(byte_ps + 2 * host.copy_byte_ps),
        get_ns: one_sided_ns,
        get_ns_per_kib: bulk_ns_per_kib,
        put_ns: one_sided_ns,
        put_ns_per_kib: bulk_ns_per_kib,
        expose_ns: 0.0,
    }
}

/// Most bytes of header and body that an adapter takes with the command itself.
const INLINE_MAX: usize = 64;
const HEADER_MAX: usize = 128;
const BODY_MAX: usize = 64 << 10;
