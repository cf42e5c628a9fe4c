//! The table of settings: name, range, meaning and field of each variable.

use std::{path::PathBuf, time::Duration};

use ripstop_fabric::{
    provider::parsing::{auto_or, one_of, or_auto, within},
    registry::FabricSelection,
};

use super::{
    Settings,
    choices::{name_of, named},
    event_filter::EventFilter,
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
    "RIPSTOP_START_WITH",
    "RIPSTOP_TEST_LAUNCHER",
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
                " where it fits; otherwise, and by default, the cheapest"
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
        "the driver that carries the messages between ranks; with shm+, shared memory within nodes and a network between \
         nodes; auto: shared memory within nodes, and between nodes the fastest network that all ranks offer",
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
        "what drives the reactor: an agent thread as well, block_on alone, or a tokio task",
        named,
        name_of
    ),
    row!(
        log: "RIPSTOP_LOG",
        EventFilter::RANGE,
        "the least important events that are printed to the standard error; if unset, warnings are printed while the rank \
         starts. A program that has set a subscriber of the `tracing` crate before gets all events instead",
        EventFilter::parse,
        EventFilter::text
    ),
    row!(
        collectives: "RIPSTOP_COLLECTIVES",
        "offload | lists | messages | host",
        "what starts the next step of a collective: task lists of the adapter, if it has them, for long collectives \
         (offload) or for all (lists); progress turns (messages); or only a poll of its future (host), for comparison. \
         The same on all ranks",
        named,
        name_of
    ),
    row!(
        eager_max: "RIPSTOP_EAGER_MAX",
        "auto | 0..=8192 bytes",
        "the longest message that is sent eagerly, without waiting for the receiver's request",
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
        "with shm+ and a network, what copies long messages within a node: the adapter, while ranks compute (on), the \
         receiver's processor (off), or the cheaper of the two (auto). The same on all ranks",
        |value| or_auto(value, named),
        |on| auto_or(on, name_of)
    ),
    row!(
        shm_ranks: "RIPSTOP_SHM_RANKS",
        "auto | 1..=30000 ranks",
        "with shm+ and a network, or RIPSTOP_FABRIC=auto, how many consecutive ranks share memory, so that one machine can \
         stand for several nodes; auto: all ranks of a node. The same on all ranks",
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
        "how many bytes of unexpected messages a rank stores, for all peers together; the same on all ranks",
        |value| within(64 << 10..=16 << 30, value),
        usize::to_string
    ),
    row!(
        unexpected_messages: "RIPSTOP_UNEXPECTED_MESSAGES",
        "16..=1073741824 messages",
        "how many unexpected messages a rank stores, for all peers together; the same on all ranks",
        |value| within(16..=1 << 30, value),
        usize::to_string
    ),
    row!(
        detect: "RIPSTOP_DETECT_MS",
        "10..=600000 milliseconds",
        "how long a peer with outstanding operations may be silent before it is pinged, if neither the system nor the \
         fabric detects failures; after twice this time it is considered failed. If set, an adapter also retransmits for \
         this time, at least two seconds, and a peer that does not answer a connection request for this time, at least 30 \
         seconds, is considered failed",
        |value| within(10..=600_000, value).map(Duration::from_millis),
        |time: &Duration| time.as_millis().to_string()
    ),
    row!(
        boot: "RIPSTOP_BOOT",
        "auto | pmi1 | pmix | singleton",
        "how a rank learns its number and its job",
        |value| one_of("auto | pmi1 | pmix | singleton", value),
        String::clone
    ),
    row!(
        boot_timeout: "RIPSTOP_BOOT_TIMEOUT",
        "1..=86400 seconds",
        "how long a rank waits for each answer of the launcher, and for the other ranks of its node to attach to the \
         node's board",
        |value| within(1..=86_400, value).map(Duration::from_secs),
        |time: &Duration| time.as_secs().to_string()
    ),
    row!(
        view: "RIPSTOP_VIEW",
        "on | off",
        "whether a rank publishes what it waits for, at most ten times a second; if not, `ripstop stuck` and the reports of \
         `ripstop run` say nothing about it",
        named,
        name_of
    ),
    row!(
        stuck_after: "RIPSTOP_STUCK_AFTER",
        "0..=31536000 seconds",
        "how long no operation may begin or end until `ripstop run` prints which rank waits for what; 0: never. The job goes on",
        |value| within(0..=31_536_000, value).map(Duration::from_secs),
        |time: &Duration| time.as_secs().to_string()
    ),
    row!(
        trace: "RIPSTOP_TRACE",
        "none | the start of a file name",
        "where each rank records when its operations began, were awaited and ended: in the file of this name, a point and the \
         number of the rank. `ripstop trace` reads these files",
        path,
        path_text
    ),
    row!(
        profile: "RIPSTOP_PROFILE",
        "none | 1 | a file name",
        "whether `ripstop run` prints at the end at which lines ranks waited, and for which ranks. It also writes everything to \
         the file of this name, as JSON, CSV or a picture if the name ends in .json, .csv or .svg. With other launchers or on \
         several hosts, set RIPSTOP_TRACE, and call `ripstop profile`",
        path,
        path_text
    ),
    row!(
        metrics: "RIPSTOP_METRICS",
        "none | a directory",
        "where the lowest rank of each node writes what the ranks of the node do, in a file \
         `ripstop-JOB-RANK-NUMBER.prom` that the textfile collector of Prometheus' node_exporter reads. The rank removes the \
         file when it leaves the job",
        path,
        path_text
    ),
    row!(
        metrics_period: "RIPSTOP_METRICS_PERIOD",
        "1..=3600 seconds",
        "the time after which that file is written anew",
        |value| within(1..=3_600, value).map(Duration::from_secs),
        |time: &Duration| time.as_secs().to_string()
    ),
    row!(
        metrics_by_rank: "RIPSTOP_METRICS_BY_RANK",
        "on | off",
        "whether the metrics in that file are those of each rank, with the label `rank`, and not those of all ranks of the \
         node together",
        named,
        name_of
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

/// Reads a path, or `none` for no path.
#[expect(clippy::unnecessary_wraps, reason = "as the other readers of values")]
fn path(value: &str) -> Option<PathBuf> {
    Some(PathBuf::from(if value == "none" { "" } else { value }))
}

#[expect(clippy::ptr_arg, reason = "as the other writers of values")]
fn path_text(path: &PathBuf) -> String {
    if path.as_os_str().is_empty() {
        "none".to_owned()
    } else {
        path.display().to_string()
    }
}
