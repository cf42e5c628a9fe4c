//! A rank before it knows its peers: the devices are open, and its address is ready.

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    sync::Arc,
};

use super::{
    LISTS, Verbs,
    address::VerbsAddress,
    address_extension::AddressExtension,
    config::VerbsConfig,
    connection_cache::ConnectionCache,
    core::{VerbsCore, VerbsSleep, index},
    datagrams::{DATAGRAM_MAX, DatagramQp, VerbsDatagrams},
    device::DevicePort,
    inbox::{BODY_MAX, HEADER_MAX},
    lane::{FIRST, RemotePort},
    link_table::LinkTable,
    lists::VerbsTasks,
    named_regions::NamedRegions,
    objects::{DeviceLimits, VerbsCq},
    onesided::CommandTable,
    open_device::{OpenedDevice, QueueCapacity, ReadyDevice, least},
    outbox::VerbsOutbox,
    prewired::PrewiredQps,
    rail::{VerbsRail, speeds},
    regions::VerbsExports,
    registrations::AppRegistrations,
    wait_on,
    wire::HEAD,
};
use crate::{
    connect::{self, ConnectPolicy, JobShape},
    driver::{self, AbilitySummary, Caps, Driver, DriverCost, WakeSource},
    offload::{TASKS_MAX, TaskScheduler, ThresholdWatches},
    random::fill_unguessable,
    timer::RetryTimer,
    timer::picoseconds,
};

/// A rank that peers can find, and that does not know its peers yet.
#[derive(Debug)]
pub struct PreparedVerbs {
    config: VerbsConfig,
    left_out: Vec<DevicePort>,
    rails: Vec<VerbsRail>,
    /// Completion queue of the requests of each device.
    sends: Vec<Arc<VerbsCq>>,
    caps: Caps,
    address: VerbsAddress,
    ports: Vec<RemotePort>,
    prewired: Option<PrewiredQps>,
    exports: VerbsExports,
    datagrams: DatagramQp,
    alt_datagrams: Vec<DatagramQp>,
    capacity: QueueCapacity,
    job: JobShape,
    scheme: ConnectPolicy,
    sleep: VerbsSleep,
}

impl Verbs {
    /// Opens the devices, and makes the address by which peers find this rank.
    ///
    /// # Errors
    /// Something is missing, and the text says what to do: no libibverbs, no device, a port that is down, no permission, a limit
    /// of locked memory that is too low (with the figure), or a rank outside the job.
    pub fn prepare(config: VerbsConfig) -> io::Result<PreparedVerbs> {
        PreparedVerbs::new(config)
    }
}

impl driver::PreparedEndpoint for PreparedVerbs {
    fn address(&self) -> Vec<u8> {
        Self::address(self)
    }

    fn link_kind(&self) -> &'static str {
        if self.address.ethernet {
            "RoCE"
        } else {
            "InfiniBand"
        }
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn wait_on(&self) -> Vec<WakeSource> {
        wait_on(&self.rails, &self.sleep.timer)
    }

    fn abilities(&self) -> AbilitySummary {
        AbilitySummary {
            counters: self.caps.atomics,
            lists: self.caps.atomics.then_some(LISTS),
            tags: None,
            connects: !self.scheme.has_datagram_messages(),
        }
    }

    fn connect(self: Box<Self>, addresses: &[Vec<u8>]) -> io::Result<Box<dyn Driver>> {
        Ok(Box::new(Self::connect(*self, addresses.to_vec())?))
    }
}

impl PreparedVerbs {
    fn new(config: VerbsConfig) -> io::Result<Self> {
        if config.rank.0 >= config.ranks {
            let why = format!(
                "rank {} in a job of {}: ranks go from 0",
                config.rank, config.ranks
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let chosen = DevicePort::choose(config.device.as_deref(), config.place)?;
        let (named, left_out) = (chosen.ports, chosen.left_out);
        let on_one_device = most_alike(named.iter().map(|(port, _)| port.device.as_str()));
        let opened = OpenedDevice::all(named, &config)?;
        let limits: Vec<_> = opened.iter().map(|one| one.limits).collect();
        let rooms = QueueCapacity::new(&limits, config.ranks);
        let devices = opened.into_iter().map(|one| one.device(rooms));
        let devices: Vec<ReadyDevice> = devices.collect::<io::Result<_>>()?;
        let job = job(&config, on_one_device, &limits, rooms);
        let scheme = config
            .scheme
            .unwrap_or_else(|| ConnectPolicy::choose_connecting(&job));
        let longest = if scheme.has_datagram_messages() {
            DATAGRAM_MAX
        } else {
            0
        };
        let first = &devices[FIRST];
        let mut datagrams = DatagramQp::new(&first.own.pd, first.queues.each_ref(), longest)?;
        let qkey = secret()?;
        datagrams.open(first.own.port, qkey, qkey >> 8)?;
        let detour = |one: &ReadyDevice| {
            let mut words = DatagramQp::new(&one.own.pd, one.queues.each_ref(), 0)?;
            words.open(one.own.port, qkey, qkey >> 8)?;
            Ok(words)
        };
        let detours = devices.iter().skip(1).map(detour);
        let detours = detours.collect::<io::Result<_>>()?;
        let pds = devices.iter().map(|one| Arc::clone(&one.own.pd));
        let exports = VerbsExports::new(pds.collect(), config.rank)?;
        let caps = caps(&devices, datagrams.qp.inline_max());
        let (rails, sends) = rails(devices, rooms)?;
        let words = std::iter::once(&datagrams).chain(&detours);
        let ports = ports(&rails, &exports, words);
        let address = VerbsAddress::new(&ports[FIRST], qkey, exports.shown(), longest > 0);
        let scarce = ConnectionCache::of(&job, config.connections_max).is_some();
        let at_once = scheme == ConnectPolicy::AllToAll && !scarce;
        let others = PrewiredQps::others(config.ranks, rooms.sends).filter(|_| at_once);
        let mesh = others.and_then(|others| PrewiredQps::new(&rails, &sends, &ports, others));
        Ok(Self {
            config,
            left_out,
            rails,
            sends,
            caps,
            address,
            ports,
            prewired: mesh,
            exports,
            datagrams,
            alt_datagrams: detours,
            capacity: rooms,
            job,
            scheme,
            sleep: VerbsSleep {
                timer: RetryTimer::new()?,
                slept: false,
                turns_since_events_read: 0,
            },
        })
    }

    /// Returns the ports that are down, and so not among those that the ranks of a node take turns at. Empty if ports were named.
    #[must_use]
    pub fn left_out(&self) -> &[DevicePort] {
        &self.left_out
    }

    /// Returns where peers find this rank, for the bootstrap to carry. It is 48 bytes long, and longer with several devices or if
    /// all ranks are connected at the start.
    #[must_use]
    pub fn address(&self) -> Vec<u8> {
        let closed = AddressExtension::ports_only(&self.ports);
        let open = self.prewired.as_ref().map(|mesh| &mesh.extension);
        self.address.encode(open.or(closed.as_ref()))
    }

    /// Makes the driver from the addresses of all ranks, in the order of the ranks. Peers are connected when there is something
    /// to send, or now if the policy connects all of them at the start.
    ///
    /// # Errors
    /// An address is malformed (the text names its rank), or memory cannot be registered.
    pub fn connect(self, peers: Vec<Vec<u8>>) -> io::Result<Verbs> {
        let (peers, extension) = self.parse(&peers)?;
        let Self {
            config,
            rails,
            sends,
            caps,
            ports,
            prewired,
            exports,
            datagrams,
            alt_datagrams,
            capacity,
            job,
            scheme,
            sleep,
            ..
        } = self;
        let pd_of = |rail: &VerbsRail| Arc::clone(&rail.device.pd);
        let pds: Vec<_> = rails.iter().map(pd_of).collect();
        let queues: Vec<_> = pds.iter().zip(&sends).collect();
        let outbox = VerbsOutbox::new(&queues, capacity.sends, &config)?;
        let local = local(&config, &self.address);
        let mut core = Box::new(VerbsCore {
            links: LinkTable::new(config.ranks, local.seed),
            datagrams: VerbsDatagrams::new(datagrams, alt_datagrams, scheme),
            commands: CommandTable::new(speeds(&rails)),
            rails,
            first_rail: FIRST,
            outbox,
            exports,
            names: NamedRegions::default(),
            registrations: AppRegistrations::new(pds, &config),
            me: config.rank,
            caps,
            counters: config.counters,
            peers,
            peer_ports: ports_behind(&extension),
            ports,
            watches: ThresholdWatches::new(),
            lists: TaskScheduler::new(TASKS_MAX),
            tasks: VerbsTasks::default(),
            completions: VecDeque::new(),
            connecting: BTreeSet::new(),
            connection_cache: ConnectionCache::of(&job, config.connections_max),
            to_destroy: BTreeSet::new(),
            draining_receives: BTreeSet::new(),
            actions: Vec::new(),
            local,
            sleep,
            moved: false,
            refused: false,
            closing: None,
        });
        if scheme == ConnectPolicy::AllToAll {
            core.connect_all(prewired, &extension);
        }
        Ok(Verbs {
            core: Some(core),
            linger: config.linger,
        })
    }

    fn parse(
        &self,
        peers: &[Vec<u8>],
    ) -> io::Result<(Vec<VerbsAddress>, Vec<Option<AddressExtension>>)> {
        let wrong = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let ranks = self.config.ranks;
        if peers.len() != ranks as usize {
            return wrong(format!(
                "peers: {} addresses for {ranks} ranks",
                peers.len()
            ));
        }
        let parsed = peers
            .iter()
            .enumerate()
            .map(|(rank, bytes)| VerbsAddress::parse(rank, bytes, ranks));
        let parsed: (Vec<VerbsAddress>, Vec<_>) = parsed.collect::<io::Result<_>>()?;
        if parsed.0[index(self.config.rank)] != self.address {
            return wrong(format!(
                "peers: the address of rank {} is not its own",
                self.config.rank
            ));
        }
        for (rank, peer) in parsed.0.iter().enumerate() {
            self.address.check_kind(rank, peer)?;
        }
        Ok(parsed)
    }

    /// Returns the bytes that one packet carries.
    #[must_use]
    pub fn mtu(&self) -> usize {
        128 << self.rails[FIRST].device.mtu
    }
}

/// Returns the devices in use, and the completion queues of their requests.
fn rails(
    devices: Vec<ReadyDevice>,
    rooms: QueueCapacity,
) -> io::Result<(Vec<VerbsRail>, Vec<Arc<VerbsCq>>)> {
    let rail = |one: ReadyDevice| {
        let [sends, arrivals] = one.queues;
        Ok((VerbsRail::new(one.own, &arrivals, rooms.receives)?, sends))
    };
    devices.into_iter().map(rail).collect()
}

/// Returns the ports of the devices, as peers find them.
fn ports<'a>(
    rails: &[VerbsRail],
    exports: &VerbsExports,
    words: impl Iterator<Item = &'a DatagramQp>,
) -> Vec<RemotePort> {
    let all = rails.iter().zip(exports.shown_by()).zip(words);
    all.map(|((rail, table), words)| rail.port(table, words.qp.number()))
        .collect()
}

/// Returns the properties of the job that the policy is chosen by. They must be the same on all ranks.
fn job(
    config: &VerbsConfig,
    on_one_device: u32,
    limits: &[DeviceLimits],
    rooms: QueueCapacity,
) -> JobShape {
    // On each port, one that reaches the rank itself, and one for datagrams.
    let own = config.ranks_per_node.saturating_mul(2 * on_one_device);
    let queue_pairs = least(limits.iter().map(|one| one.qp_max));
    JobShape {
        ranks: config.ranks,
        ranks_per_node: config.ranks_per_node,
        lanes: on_one_device,
        queue_pairs_max: queue_pairs.saturating_sub(own),
        connections_max: rooms.connections_max(),
        datagrams: true,
        pattern: config.pattern,
    }
}

/// Returns how often the most frequent name occurs.
fn most_alike<'a>(names: impl Iterator<Item = &'a str> + Clone) -> u32 {
    let often = |name| names.clone().filter(|other| *other == name).count();
    let most = names.clone().map(often).max();
    u32::try_from(most.unwrap_or(1)).unwrap_or(1)
}

fn caps(devices: &[ReadyDevice], inline_max: usize) -> Caps {
    let atomics = devices.iter().all(|one| one.limits.atomics);
    Caps {
        name: "verbs",
        inline_max: inline_max - HEAD,
        header_max: HEADER_MAX,
        body_max: BODY_MAX,
        ordered: true,
        reliable: true,
        detects_death: false,
        shares_memory: false,
        one_sided: true,
        atomics,
        by_processor: false,
        any_memory: Ok(()),
        pins_exposed: true, // so that pages do not move while adapters may reach them
        lanes: u32::try_from(devices.len()).unwrap_or(1),
        cost: COST,
    }
}

/// Returns for each rank the ports after its first.
fn ports_behind(extension: &[Option<AddressExtension>]) -> Vec<Box<[RemotePort]>> {
    let behind = |extension: &Option<AddressExtension>| {
        extension
            .iter()
            .flat_map(|all| &all.ports)
            .copied()
            .collect()
    };
    extension.iter().map(behind).collect()
}

/// Returns the values that all connections of this rank share.
fn local(config: &VerbsConfig, address: &VerbsAddress) -> connect::ConnectConfig {
    let (rank, incarnation) = (config.rank, address.incarnation);
    let patience = picoseconds(config.patience);
    connect::ConnectConfig {
        end: connect::RankIncarnation { rank, incarnation },
        limits: connect::ConnectLimits::default().patient(patience),
        seed: u64::from(address.qkey) << 32 | u64::from(rank.0),
    }
}

/// Returns a random key. Datagrams without it are not accepted, and other processes do not know it.
fn secret() -> io::Result<u32> {
    let mut bytes = [0; 4];
    fill_unguessable(&mut bytes)?;
    // With the highest bit, the kernel would fill in another key.
    Ok(u32::from_ne_bytes(bytes) & 0x7fff_ffff)
}

/// Costs of a typical adapter of 100 Gbit/s. They are not measured, because software devices say nothing about real ones.
const COST: DriverCost = DriverCost {
    send_ns: 200.0,
    recv_ns: 200.0,
    latency_ns: 1000.0,
    copy_ns_per_kib: 50.0,
    message_ns_per_kib: 180.0,
    get_ns: 2500.0,
    get_ns_per_kib: 85.0,
    put_ns: 1500.0,
    put_ns_per_kib: 85.0,
    expose_ns: 1000.0,
};

#[cfg(test)]
mod tests {
    use super::most_alike;

    #[test]
    fn a_connection_takes_as_many_queue_pairs_of_a_device_as_ports_of_it_were_named() {
        for (names, most) in [
            (&["mlx5_0"][..], 1),
            (&["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"], 1),
            (&["mlx5_0", "mlx5_1", "mlx5_0"], 2),
        ] {
            assert_eq!(most_alike(names.iter().copied()), most);
        }
    }
}
