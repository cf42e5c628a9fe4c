//! The table of settings: name, range, meaning and field of each variable.

use std::{ops::RangeInclusive, str::FromStr, time::Duration};

use ripstop_fabric::{connect::Pattern, lanes::RAILS_MAX, portals::Interface};

use super::{
    Settings,
    choices::{name_of, named},
};

/// A setting.
pub(super) struct Spec {
    pub(super) name: &'static str,
    pub(super) range: &'static str,
    pub(super) meaning: &'static str,
    pub(super) set: fn(&mut Settings, &str) -> Option<()>,
    pub(super) get: fn(&Settings) -> String,
}

/// Variables that are not settings: set by the launcher for its ranks, used by tests, or read by the software Portals.
pub(super) const OTHERS: &[&str] = &[
    "RIPSTOP_PORTALS_CORE",
    "RIPSTOP_PORTALS_CUT",
    "RIPSTOP_PORTALS_FAULTS",
    "RIPSTOP_PORTALS_FLOW",
    "RIPSTOP_PORTALS_HABITS",
    "RIPSTOP_PORTALS_HOST",
    "RIPSTOP_PORTALS_LIMITS",
    "RIPSTOP_PORTALS_MODE",
    "RIPSTOP_PORTALS_NETWORK",
    "RIPSTOP_PORTALS_NID",
    "RIPSTOP_PORTALS_RATE",
    "RIPSTOP_PORTALS_REUSE",
    "RIPSTOP_PORTALS_TRANSPORT",
    "RIPSTOP_VERBS_REQUIRED",
    "RIPSTOP_LAUNCHER",
    "RIPSTOP_PROGRAM",
    "RIPSTOP_TEST_LIMIT_S",
    "RIPSTOP_TEST_RANK",
    "RIPSTOP_TEST_RANKS",
    "RIPSTOP_TEST_SIM",
    "RIPSTOP_SIM_SEED",
    "RIPSTOP_SIM_SEEDS",
];

/// Makes the row of a field: how its value is parsed, and how it is printed.
macro_rules! row {
    ($field:ident: $name:literal, $range:literal, $meaning:literal, $read:expr, $print:expr) => {
        Spec {
            name: $name,
            range: $range,
            meaning: $meaning,
            set: |settings, value| {
                settings.$field = $read(value)?;
                Some(())
            },
            get: |settings| $print(&settings.$field),
        }
    };
}

/// Makes the row of a collective. The names are those of the crate `ripstop-collectives`, where a test compares them.
macro_rules! algorithm {
    ($name:literal, $collective:literal, $names:literal) => {
        Spec {
            name: $name,
            range: concat!("auto | ", $names),
            meaning: concat!(
                "the algorithm of ",
                $collective,
                " where it fits; else, and by default, the cheapest"
            ),
            set: |settings, value| settings.name_algorithm($collective, $names, value),
            get: |settings| settings.algorithm($collective).unwrap_or("auto").to_owned(),
        }
    };
}

pub(super) const TABLE: &[Spec] = &[
    row!(
        fabric: "RIPSTOP_FABRIC",
        "auto | shm | portals | verbs | shm+portals | shm+verbs",
        "the driver that carries what ranks say to each other; with shm+, shared memory within nodes and a network between",
        named,
        name_of
    ),
    row!(
        portals_library: "RIPSTOP_PORTALS_LIBRARY",
        "a file",
        "the Portals 4 library; else libportals.so.4, where the loader finds it",
        text,
        String::clone
    ),
    row!(
        portals_abi: "RIPSTOP_PORTALS_ABI",
        "auto | sandia42 | sandia43 | portails4 | bxi2 | bxi3",
        "whose binary interface that library has",
        |value| one_of("auto | sandia42 | sandia43 | portails4 | bxi2 | bxi3", value),
        String::clone
    ),
    row!(
        portals_ifaces: "RIPSTOP_PORTALS_IFACES",
        "auto | interfaces, like 0,1,2,3, or with weights, like 0:2,1:1",
        "the network interfaces of a rank: messages of two ranks go by one of them, long transfers in pieces by all",
        |value| or_auto(value, interfaces).map(Option::unwrap_or_default),
        |all: &Vec<Interface>| auto_or(&(!all.is_empty()).then_some(all), |all| join(all))
    ),
    row!(
        portals_compat: "RIPSTOP_PORTALS_COMPAT",
        "off | pscom | mpc",
        "messages over Portals laid out as somebody else does, to compare with; the same on all ranks",
        |value| one_of("off | pscom | mpc", value),
        String::clone
    ),
    row!(
        portals_tags: "RIPSTOP_PORTALS_TAGS",
        "auto | on | off | bytes",
        "whether the Portals adapter puts messages into the buffers that wait for them, and from which length on",
        |value| one_of("auto | on | off", value)
            .or_else(|| value.parse::<usize>().ok().filter(|least| *least > 0).map(|least| least.to_string())),
        String::clone
    ),
    row!(
        portals_events: "RIPSTOP_PORTALS_EVENTS",
        "8..=1048576 events",
        "over Portals, how many events a queue holds: what is under way and what has come and was not looked at",
        |value| within(8..=1 << 20, value),
        u32::to_string
    ),
    row!(
        portals_slabs: "RIPSTOP_PORTALS_SLABS",
        "slabs x bytes, like 4x1048576; 2 to 1024 of 131328 to 16777216",
        "over Portals, what messages of all peers come into: who finds no room waits",
        slabs,
        |(count, len): &(usize, usize)| format!("{count}x{len}")
    ),
    row!(
        verbs_device: "RIPSTOP_VERBS_DEVICE",
        "devices, or device:port, like mlx5_0,mlx5_1 or with weights, like mlx5_0*2,mlx5_1",
        "the adapters of a rank: messages of two ranks go by one of them, long transfers in pieces by all; else ranks take turns",
        text,
        String::clone
    ),
    row!(
        verbs_gid_index: "RIPSTOP_VERBS_GID_INDEX",
        "auto | 0..=255, or one for each adapter, like 3,1",
        "which address of their ports the adapters use, by its number; else each its own of RoCE v2 over IPv4 where it has one",
        |value| or_auto(value, gid_indices).map(Option::unwrap_or_default),
        |all: &Vec<u8>| auto_or(&(!all.is_empty()).then_some(all), |all| {
            all.iter().map(u8::to_string).collect::<Vec<_>>().join(",")
        })
    ),
    row!(
        connect: "RIPSTOP_CONNECT",
        "auto | on-demand | all-to-all | hybrid",
        "when ranks are connected on a network that has connections: with their first message, or all at the start",
        |value| one_of("auto | on-demand | all-to-all | hybrid", value),
        String::clone
    ),
    row!(
        pattern: "RIPSTOP_PATTERN",
        "unknown | dense | stencil:1..=1048576 peers",
        "with whom a rank speaks: with all others, or with so many; where ranks are connected as RIPSTOP_CONNECT=auto has it. \
         The same on all ranks",
        pattern,
        pattern_name
    ),
    row!(
        verbs_connections: "RIPSTOP_VERBS_CONNECTIONS",
        "auto | 2..=1048576 peers",
        "peers that a rank is connected to at a time; of more, those that were silent longest give way",
        |value| or_auto(value, |value| within(2..=1 << 20, value)),
        |peers| auto_or(peers, usize::to_string)
    ),
    row!(
        verbs_pinned: "RIPSTOP_VERBS_PINNED",
        "65536..=1099511627776 bytes",
        "memory of the application that an adapter may hold at a time; what does not fit goes in messages, or waits",
        |value| within(65_536..=1 << 40, value),
        usize::to_string
    ),
    row!(
        reactor: "RIPSTOP_REACTOR",
        "auto | uring | epoll",
        "how the reactor sleeps",
        named,
        name_of
    ),
    row!(
        progress: "RIPSTOP_PROGRESS",
        "thread | inline | tokio",
        "who drives the reactor: an agent thread too, block_on alone, or a tokio task",
        named,
        name_of
    ),
    row!(
        collectives: "RIPSTOP_COLLECTIVES",
        "offload | lists | messages | host",
        "who begins the next step of a collective: adapters by task lists, where they can, of those that are long \
         enough or of all; whoever makes turns; or only a poll of its future, for comparison. The same on all ranks",
        named,
        name_of
    ),
    row!(
        eager_max: "RIPSTOP_EAGER_MAX",
        "auto | 0..=8192 bytes",
        "the longest message that is sent before it is asked for",
        |value| or_auto(value, |value| within(0..=8192, value)),
        |bytes| auto_or(bytes, usize::to_string)
    ),
    row!(
        rendezvous: "RIPSTOP_RENDEZVOUS",
        "auto | get | put | fragments",
        "how the bytes of longer messages travel",
        named,
        name_of
    ),
    row!(
        single_copy: "RIPSTOP_SINGLE_COPY",
        "on | off",
        "whether process_vm_readv and process_vm_writev may be used between ranks of a node",
        named,
        name_of
    ),
    row!(
        loopback: "RIPSTOP_LOOPBACK",
        "auto | on | off",
        "with shm+portals and shm+verbs, whether the adapter copies long messages within a node, which it does while ranks \
         compute, or the receiver's processor; else what costs less. The same on all ranks",
        |value| or_auto(value, named),
        |on| auto_or(on, name_of)
    ),
    row!(
        shm_ranks: "RIPSTOP_SHM_RANKS",
        "auto | 1..=30000 ranks",
        "with shm+portals and shm+verbs, how many ranks in a row share memory, the others being reached as on other nodes: \
         to try several nodes on one machine; else all of a node. The same on all ranks",
        |value| or_auto(value, |value| within(1..=30_000, value)),
        |ranks| auto_or(ranks, u32::to_string)
    ),
    row!(
        spin_max: "RIPSTOP_SPIN_US_MAX",
        "auto | 0..=10000 microseconds",
        "how long a wait may spin before it sleeps, when its peer runs on another processor",
        |value| or_auto(value, |value| within(0..=10_000, value).map(Duration::from_micros)),
        |spin| auto_or(spin, |spin: &Duration| spin.as_micros().to_string())
    ),
    row!(
        unexpected_bytes: "RIPSTOP_UNEXPECTED_BYTES",
        "65536..=17179869184 bytes",
        "how much a rank stores of messages that nobody has asked for yet, all peers together; the same on all ranks",
        |value| within(64 << 10..=16 << 30, value),
        usize::to_string
    ),
    row!(
        unexpected_messages: "RIPSTOP_UNEXPECTED_MESSAGES",
        "16..=1073741824 messages",
        "how many messages a rank stores that nobody has asked for yet, all peers together; the same on all ranks",
        |value| within(16..=1 << 30, value),
        usize::to_string
    ),
    row!(
        detect: "RIPSTOP_DETECT_MS",
        "10..=600000 milliseconds",
        "how long a rank that is waited for may be silent before it is asked whether it is there, where neither the system \
         nor the fabric tells of its death; after twice as long it counts as failed. If it is set, an InfiniBand adapter sends \
         again for as long, and for two seconds at least; a rank that is to be connected and answers nothing is lost after \
         that, and after 30 seconds at least",
        |value| within(10..=600_000, value).map(Duration::from_millis),
        |time: &Duration| time.as_millis().to_string()
    ),
    row!(
        boot: "RIPSTOP_BOOT",
        "auto | pmi1 | pmix | singleton",
        "how a rank learns who it is",
        |value| one_of("auto | pmi1 | pmix | singleton", value),
        String::clone
    ),
    row!(
        boot_timeout: "RIPSTOP_BOOT_TIMEOUT",
        "1..=86400 seconds",
        "how long a rank waits for each answer of the launcher, and for a rank that has not come to its node's board",
        |value| within(1..=86_400, value).map(Duration::from_secs),
        |time: &Duration| time.as_secs().to_string()
    ),
    algorithm!(
        "RIPSTOP_BARRIER",
        "barrier",
        "dissemination | binomial | kary[:arity] | flat | leaders"
    ),
    algorithm!(
        "RIPSTOP_BCAST",
        "bcast",
        "binomial | kary[:arity] | chain[:segments] | scatter_ring | leaders"
    ),
    algorithm!("RIPSTOP_GATHER", "gather", "binomial | linear[:window]"),
    algorithm!("RIPSTOP_SCATTER", "scatter", "binomial | linear[:window]"),
    algorithm!(
        "RIPSTOP_ALLGATHER",
        "all_gather",
        "ring | recursive_doubling | bruck"
    ),
    algorithm!(
        "RIPSTOP_ALLTOALL",
        "all_to_all",
        "pairwise[:window] | xor[:window] | bruck | leaders"
    ),
    algorithm!("RIPSTOP_REDUCE", "reduce", "binomial | rabenseifner"),
    algorithm!(
        "RIPSTOP_ALLREDUCE",
        "all_reduce",
        "recursive_doubling | rabenseifner | ring | reduce_bcast | flat | leaders_doubling | leaders_rabenseifner"
    ),
    algorithm!(
        "RIPSTOP_REDUCE_SCATTER",
        "reduce_scatter",
        "recursive_halving | pairwise[:window] | ring | reduce_and_scatter"
    ),
];

fn text(value: &str) -> Option<String> {
    Some(value.to_owned())
}

/// Parses one to four interfaces, each different.
fn interfaces(value: &str) -> Option<Vec<Interface>> {
    let all: Vec<_> = value.split(',').map(interface).collect::<Option<_>>()?;
    let once = |at: usize| all[..at].iter().all(|one| one.number != all[at].number);
    (all.len() <= 4 && (0..all.len()).all(once)).then_some(all)
}

/// Parses a number with an optional weight.
fn interface(text: &str) -> Option<Interface> {
    let text = text.trim();
    let (number, weight) = text.split_once(':').unwrap_or((text, "1"));
    Some(Interface {
        number: number.parse().ok()?,
        weight: within(1..=Interface::WEIGHT_MAX, weight)?,
    })
}

fn join(all: &[Interface]) -> String {
    let plain = all.iter().all(|one| one.weight == 1);
    let say = |one: &Interface| match one.weight {
        _ if plain => one.number.to_string(),
        weight => format!("{}:{weight}", one.number),
    };
    all.iter().map(say).collect::<Vec<_>>().join(",")
}

fn gid_indices(value: &str) -> Option<Vec<u8>> {
    let all = value.split(',').map(|one| within(0..=u8::MAX, one.trim()));
    let all: Vec<u8> = all.collect::<Option<_>>()?;
    (all.len() <= RAILS_MAX).then_some(all)
}

fn slabs(value: &str) -> Option<(usize, usize)> {
    let (count, len) = value.split_once('x')?;
    Some((within(2..=1024, count)?, within(131_328..=16 << 20, len)?))
}

fn pattern(value: &str) -> Option<Pattern> {
    let peers = |peers| within(1..=1 << 20, peers).map(|peers| Pattern::Sparse { peers });
    match value {
        "unknown" => Some(Pattern::Unknown),
        "dense" => Some(Pattern::Dense),
        sparse => sparse.strip_prefix("stencil:").and_then(peers),
    }
}

fn pattern_name(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Dense => "dense".to_owned(),
        Pattern::Sparse { peers } => format!("stencil:{peers}"),
        _ => "unknown".to_owned(),
    }
}

fn one_of(words: &str, value: &str) -> Option<String> {
    words
        .split(" | ")
        .any(|word| word == value)
        .then(|| value.to_owned())
}

fn within<T: FromStr + PartialOrd>(range: RangeInclusive<T>, value: &str) -> Option<T> {
    value.parse().ok().filter(|number| range.contains(number))
}

#[expect(clippy::option_option, reason = "no value, `auto`, or a value")]
fn or_auto<T>(value: &str, read: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    if value == "auto" {
        Some(None)
    } else {
        read(value).map(Some)
    }
}

fn auto_or<T>(value: &Option<T>, print: impl Fn(&T) -> String) -> String {
    value.as_ref().map_or_else(|| "auto".to_owned(), print)
}
