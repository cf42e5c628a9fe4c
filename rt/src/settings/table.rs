//! The table of settings: name, range, meaning and field of each variable.

use std::time::Duration;

use ripstop_fabric::{
    provider::parsing::{auto_or, one_of, or_auto, within},
    registry::FabricSelection,
};

use super::{
    Settings,
    choices::{name_of, named},
};

/// A setting of the runtime. Drivers bring their own.
pub(super) struct SettingSpec {
    pub(super) name: &'static str,
    pub(super) range: fn() -> &'static str,
    pub(super) meaning: &'static str,
    pub(super) set: fn(&mut Settings, &str) -> Option<()>,
    pub(super) get: fn(&Settings) -> String,
}

/// Variables that are not settings: the launcher sets them for its ranks, or tests use them. Drivers have others.
pub(super) const OTHERS: &[&str] = &[
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
    ($field:ident: $name:literal, $range:expr, $meaning:literal, $read:expr, $print:expr) => {
        SettingSpec {
            name: $name,
            range: || $range,
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
        SettingSpec {
            name: $name,
            range: || concat!("auto | ", $names),
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

pub(super) const TABLE: &[SettingSpec] = &[
    row!(
        fabric: "RIPSTOP_FABRIC",
        FabricSelection::range(),
        "the driver that carries what ranks say to each other; with shm+, shared memory within nodes and a network between",
        FabricSelection::named,
        |fabric: &FabricSelection| fabric.name().to_owned()
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
        "with shm+ and a network, whether the adapter copies long messages within a node, which it does while ranks \
         compute, or the receiver's processor; else what costs less. The same on all ranks",
        |value| or_auto(value, named),
        |on| auto_or(on, name_of)
    ),
    row!(
        shm_ranks: "RIPSTOP_SHM_RANKS",
        "auto | 1..=30000 ranks",
        "with shm+ and a network, how many ranks in a row share memory, the others being reached as on other nodes: \
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
         nor the fabric tells of its death; after twice as long it counts as failed. If it is set, an adapter that sends \
         again does so for as long, and for two seconds at least; a rank that is to be connected and answers nothing is lost \
         after that, and after 30 seconds at least",
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
