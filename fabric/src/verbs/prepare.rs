//! A rank before it knows its peers: the device is open, and its address can be told.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs::File,
    io::{self, Read},
    sync::Arc,
    time::Duration,
};

use super::{
    Verbs,
    address::Address,
    core::{Core, Own, Sleep, index},
    datagrams::{self, Datagrams},
    device::Port,
    inbox::{BODY_MAX, HEADER_MAX, Inbox, WINDOW},
    lists::Tasks,
    names::Names,
    objects::{Channel, Context, Cq, Limits, Pd, PortState},
    outbox::Outbox,
    regions::Exports,
    registrations::Registrations,
    scarce::Scarce,
    slab::Slab,
    wire::HEAD,
};
use crate::{
    connect::{self, Job, Pattern, Scheme},
    counters::Counters,
    driver::{self, Caps, Cost, Driver},
    offload::{Lists, TASKS_MAX, Watches},
    random::Random,
};

/// How to open a [`Verbs`].
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// Which rank of the job this is.
    pub rank: u32,
    /// How many ranks the job has.
    pub ranks: u32,
    /// The device, like `mlx5_0` or `mlx5_0:2` with its port; without one, ranks take turns among the ports that are up.
    pub device: Option<String>,
    /// The index of the port's address; without one, that of RoCE v2 over IPv4, or the only one of InfiniBand.
    pub gid_index: Option<u8>,
    /// When ranks are connected; `None` is by the size of the job.
    pub scheme: Option<Scheme>,
    /// The most ranks of a node, which share its adapter.
    pub ranks_per_node: u32,
    /// Peers that may be connected to at a time, at least two; `None` is by what the device has for each rank of the node.
    pub connections_max: Option<u32>,
    /// Bytes of the application's memory that may be registered at a time, besides what [`Driver::allocate`] gave. What does not
    /// fit goes in messages, or waits.
    pub pinned_max: u64,
    /// How long a closing driver waits for what it posted to leave before it lets a thread go on with that.
    pub linger: Duration,
    /// Where the driver counts.
    pub counters: Arc<Counters>,
}

impl VerbsConfig {
    /// The defaults: a port that is up, and two seconds to leave.
    #[must_use]
    pub fn new(rank: u32, ranks: u32) -> Self {
        Self {
            rank,
            ranks,
            device: None,
            gid_index: None,
            scheme: Some(Scheme::OnDemand),
            ranks_per_node: ranks,
            connections_max: None,
            pinned_max: PINNED_MAX,
            linger: Duration::from_secs(2),
            counters: Arc::default(),
        }
    }
}

/// A rank that can be found, and does not know its peers yet.
#[derive(Debug)]
pub struct Prepared {
    config: VerbsConfig,
    own: Own,
    address: Address,
    state: PortState,
    limits: Limits,
    exports: Exports,
    datagrams: Datagrams,
    queues: [Arc<Cq>; 2],
    rooms: Rooms,
}

/// How many completions and receives there may be.
#[derive(Clone, Copy, Debug)]
struct Rooms {
    sends: u32,
    receives: u32,
}

impl Verbs {
    /// Opens a device, and makes what peers find this rank by.
    ///
    /// # Errors
    /// What is missing and what to do: no libibverbs, no device, a port that is down, no permission, a limit of locked
    /// memory that is too low (with the figure), or a rank that is none.
    pub fn prepare(config: VerbsConfig) -> io::Result<Prepared> {
        Prepared::new(config)
    }
}

impl driver::Prepared for Prepared {
    fn address(&self) -> Vec<u8> {
        Self::address(self)
    }

    fn connect(self: Box<Self>, addresses: &[Vec<u8>]) -> io::Result<Box<dyn Driver>> {
        Ok(Box::new(Self::connect(*self, addresses.to_vec())?))
    }
}

impl Prepared {
    fn new(config: VerbsConfig) -> io::Result<Self> {
        if config.rank >= config.ranks {
            let why = format!(
                "rank {} in a job of {}: ranks go from 0",
                config.rank, config.ranks
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let port = Port::choose(config.device.as_deref(), config.rank)?;
        let gid_index = config.gid_index.map_or_else(|| port.gid_index(), Ok)?;
        let context = Context::open(&port.device)?;
        let (limits, state) = (context.limits()?, context.port(port.port)?);
        if !state.active {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                format!("port {port} is down"),
            ));
        }
        let gid = context.gid(port.port, gid_index);
        let gid = gid.ok().filter(|gid| !port.ethernet || *gid != [0; 16]);
        let gid = gid.ok_or_else(|| {
            let why = format!(
                "gid_index: port {port} has no address number {gid_index}: `ibv_devinfo -v` shows those it has"
            );
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
        let pd = Pd::new(&context)?;
        let channel = Channel::new(&context)?;
        let rooms = Rooms::new(&limits, config.ranks);
        let queues = [
            Cq::new(&channel, rooms.sends + datagrams::SENDS)?,
            Cq::new(&channel, rooms.receives + datagrams::RECEIVES)?,
        ];
        let datagrams = Datagrams::new(&pd, [&queues[0], &queues[1]])?;
        let qkey = secret()?;
        datagrams.open(port.port, qkey, qkey >> 8)?;
        let exports = Exports::new(&pd, config.rank)?;
        let address = Address {
            gid,
            lid: state.lid,
            mtu: state.mtu,
            qpn: datagrams.qp.number(),
            qkey,
            incarnation: 1,
            table: exports.shown(),
        };
        let own = Own {
            context,
            pd,
            channel,
            port: port.port,
            gid_index,
            ethernet: port.ethernet,
            reads_max: limits.reads_max,
            timeout: TIMEOUT,
            inline_max: datagrams.qp.inline_max(),
            piece_max: (state.message_max as usize).clamp(1 << 16, PIECE_MAX),
        };
        Ok(Self {
            config,
            own,
            address,
            state,
            limits,
            exports,
            datagrams,
            queues,
            rooms,
        })
    }

    /// Where peers find this rank: at most 48 bytes, for the bootstrap to carry.
    #[must_use]
    pub fn address(&self) -> Vec<u8> {
        self.address.encode()
    }

    /// The driver, once the addresses of all ranks are known, in the order of the ranks. Nobody is connected to before there is
    /// something to say.
    ///
    /// # Errors
    /// An address that is none, with its rank; or memory that cannot be registered.
    pub fn connect(self, peers: Vec<Vec<u8>>) -> io::Result<Verbs> {
        let peers = self.parse(&peers)?;
        let job = self.job();
        let scheme = self.config.scheme.unwrap_or_else(|| Scheme::choose(&job));
        let Self {
            config,
            own,
            limits,
            exports,
            datagrams,
            queues,
            rooms,
            ..
        } = self;
        let [sends, receives] = queues;
        let inbox = Inbox::new(&own.pd, &receives, rooms.receives)?;
        let outbox = Outbox::new(&own.pd, &sends, rooms.sends, &config)?;
        let sleep = Sleep::new(&own)?;
        let registrations = Registrations::new(&own.pd, &config);
        let seed = u64::from(self.address.qkey) << 32 | u64::from(config.rank);
        let incarnation = self.address.incarnation;
        let end = connect::End {
            rank: config.rank,
            incarnation,
        };
        let core = Core {
            links: std::iter::repeat_with(|| None)
                .take(index(config.ranks))
                .collect(),
            datagrams,
            inbox,
            outbox,
            exports,
            names: Names::default(),
            registrations,
            ops: Slab::new(),
            me: config.rank,
            caps: caps(&limits, own.inline_max),
            counters: config.counters,
            peers,
            own,
            by_qpn: BTreeMap::new(),
            watches: Watches::new(),
            lists: Lists::new(TASKS_MAX),
            tasks: Tasks::default(),
            news: VecDeque::new(),
            stirred: BTreeSet::new(),
            dialling: BTreeSet::new(),
            scarce: Scarce::of(&job, config.connections_max),
            broken: BTreeSet::new(),
            actions: Vec::new(),
            unsaid: VecDeque::new(),
            local: connect::Local {
                end,
                limits: connect::Limits::default(),
                seed,
            },
            random: Random::new(seed),
            sleep,
            refused: false,
            closing: None,
            scratch: Vec::new(),
        };
        let mut core = Box::new(core);
        if scheme == Scheme::AllToAll {
            core.connect_all();
        }
        Ok(Verbs {
            core: Some(core),
            linger: config.linger,
        })
    }

    /// What all ranks choose a scheme by, alike.
    fn job(&self) -> Job {
        let VerbsConfig {
            ranks,
            ranks_per_node,
            ..
        } = self.config;
        Job {
            ranks,
            ranks_per_node,
            lanes: 1,
            queue_pairs_max: self.limits.qp_max,
            datagrams: false,
            pattern: Pattern::Unknown,
        }
    }

    fn parse(&self, peers: &[Vec<u8>]) -> io::Result<Vec<Address>> {
        let wrong = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        let ranks = self.config.ranks;
        if peers.len() != index(ranks) {
            return wrong(format!(
                "peers: {} addresses for {ranks} ranks",
                peers.len()
            ));
        }
        let parsed = peers
            .iter()
            .enumerate()
            .map(|(rank, bytes)| Address::parse(rank, bytes));
        let parsed: Vec<Address> = parsed.collect::<io::Result<_>>()?;
        if parsed[index(self.config.rank)] != self.address {
            return wrong(format!(
                "peers: the address of rank {} is not its own",
                self.config.rank
            ));
        }
        Ok(parsed)
    }

    /// The bytes that one packet carries.
    #[must_use]
    pub fn mtu(&self) -> usize {
        128 << self.state.mtu
    }
}

impl Rooms {
    /// A window for every rank, as far as the device has room.
    fn new(limits: &Limits, ranks: u32) -> Self {
        let most = limits
            .cqe_max
            .saturating_sub(datagrams::RECEIVES)
            .min(limits.srq_wr_max);
        let receives = ranks.saturating_mul(WINDOW).min(most) / WINDOW * WINDOW;
        let sends = SENDS
            .min(limits.cqe_max.saturating_sub(datagrams::SENDS))
            .min(limits.qp_wr_max);
        Self { sends, receives }
    }
}

fn caps(limits: &Limits, inline_max: usize) -> Caps {
    Caps {
        name: "verbs",
        inline_max: inline_max - HEAD,
        header_max: HEADER_MAX,
        body_max: BODY_MAX,
        ordered: true,
        reliable: true,
        detects_death: false,
        one_sided: true,
        atomics: limits.atomics,
        by_processor: false,
        counters: limits.atomics,
        names: true,
        any_memory: Ok(()),
        tag_matching: false,
        triggered_max: if limits.atomics { TASKS_MAX } else { 0 },
        combine_max: 0,
        lanes: 1,
        cost: COST,
    }
}

/// Something that nobody else knows: who sends datagrams without it is not heard.
fn secret() -> io::Result<u32> {
    let mut bytes = [0; 4];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    // The highest bit would mean that the kernel is to fill in another one.
    Ok(u32::from_ne_bytes(bytes) & 0x7fff_ffff)
}

/// More than most ranks have: the system's own limit of locked memory is the one that counts, until somebody sets another.
const PINNED_MAX: u64 = 16 << 30;
/// Requests under way to all peers together.
const SENDS: u32 = 4096;
/// Bytes of one request: what comes behind it waits for so long.
const PIECE_MAX: usize = 8 << 20;
/// 4.096 µs · 2¹⁶ = 0.27 s until a packet is sent again; after seven times, two seconds, the peer counts as gone.
const TIMEOUT: u8 = 16;

/// Typical of an adapter of 100 Gbit/s; not measured, because software devices say nothing about real ones.
const COST: Cost = Cost {
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
