//! The jobs, and the figures that are compared.

/// One kind of job, and how it is started.
pub(super) struct PortalsJobKind {
    pub(super) name: &'static str,
    /// Name of the baseline that is measured; `None` measures Ripstop's own driver.
    pub(super) baseline: Option<&'static str>,
    pub(super) settings: &'static [(&'static str, &'static str)],
    pub(super) args: &'static [&'static str],
    pub(super) ranks: u32,
}

/// A figure of the lines of a kind, or its quotient with that of another kind, and its target.
pub(super) struct PortalsRatio {
    pub(super) group: &'static str,
    pub(super) what: &'static str,
    /// A field of each line.
    pub(super) figure: &'static str,
    pub(super) of: &'static str,
    pub(super) to: Option<&'static str>,
    pub(super) asked: PortalsTarget,
}

#[derive(Clone, Copy)]
pub(super) enum PortalsTarget {
    AtMost(f64),
    AtLeast(f64),
    /// No target; the figure is only shown.
    Nothing,
}

const COPY: (&str, &str) = ("RIPSTOP_EAGER_MAX", "8192");
const NO_COPY: (&str, &str) = ("RIPSTOP_EAGER_MAX", "0");
const GET: (&str, &str) = ("RIPSTOP_RENDEZVOUS", "get");
/// Bytes per second of each rail, few enough that the processors that copy for four rails are not the limit.
const RATE: (&str, &str) = ("RIPSTOP_PORTALS_RATE", "150000000");
const TWO_RAILS: (&str, &str) = ("RIPSTOP_PORTALS_IFACES", "0,1");
const THREE_RAILS: (&str, &str) = ("RIPSTOP_PORTALS_IFACES", "0,1,2");
const FOUR_RAILS: (&str, &str) = ("RIPSTOP_PORTALS_IFACES", "0,1,2,3");
/// The adapter matches tags of messages from one byte on, to find the length from which that gains.
const TAGS: (&str, &str) = ("RIPSTOP_PORTALS_TAGS", "1");
const NO_TAGS: (&str, &str) = ("RIPSTOP_PORTALS_TAGS", "off");
const GENERIC: (&str, &str) = ("RIPSTOP_PORTALS_MODE", "generic");

const LISTS: (&str, &str) = ("RIPSTOP_COLLECTIVES", "lists");
/// The least memory that the driver accepts: two slabs, of two of the longest messages each, and eight events.
const TWO_SLABS: (&str, &str) = ("RIPSTOP_PORTALS_SLABS", "2x131328");
const EIGHT_EVENTS: (&str, &str) = ("RIPSTOP_PORTALS_EVENTS", "8");
/// Adapters use the second processor alone, and ranks the first one.
pub(super) const CORE: (&str, &str) = ("RIPSTOP_PORTALS_CORE", "1");
const LIMITS: &str = "RIPSTOP_PORTALS_LIMITS";

const LATENCY: &[&str] = &["latency", "--size", "8,64,512,4096", "--iters", "2000"];
const BANDWIDTH: &[&str] = &[
    "bandwidth",
    "--size",
    "1K,2K,4K,7K,16K,32K",
    "--iters",
    "60",
];
const PLACED: &[&str] = &["bandwidth", "--size", TAGGED, "--iters", "60"];
const PLACED_LATE: &[&str] = &["latency", "--size", TAGGED, "--iters", "2000"];
const TAGGED: &str = "512,1K,2K,4K,8K,16K,32K";
const SHORT: &[&str] = &["latency", "--size", "8,4096", "--iters", "2000"];
const EIGHT_K: &[&str] = &["latency", "--size", "7K", "--iters", "1500"];
const SINGLE: &[&str] = &[
    "--how", "single", "--min", "8", "--max", "8", "--around", "0",
];
const STREAM: &[&str] = &[
    "--how", "stream", "--min", "4K", "--max", "64K", "--around", "0",
];
const LONG: &[&str] = &[
    "netpipe", "--what", "put", "--how", "single", "--min", "16M", "--max", "256M", "--around",
    "0", "--iters", "1",
];
const ONE_WAY: [&str; 11] = held_to_a_rate("stream");
const BOTH_WAYS: [&str; 11] = held_to_a_rate("both");
const CROWD: &[&str] = &[
    "matching",
    "--depth",
    "0,16,256,4096",
    "--kind",
    "posted",
    "--iters",
    "300",
];

const EVERY_LENGTH: &[&str] = &["latency", "--size", ONE_TO_256, "--iters", "60"];
/// Stands for all lengths from 1 to 256.
pub(super) const ONE_TO_256: &str = "1..256";
const HALF: [&[&str]; 2] = [&half("single"), &half("stream")];
const GIB: [&[&str]; 3] = [&gib("1G"), &gib("2G"), &gib("4G")];
const FLOOD: &[&str] = &["flood", "--size", "8,8K", "--seconds", "1"];
const HIDDEN: &[&str] = &hidden("256K,1M");
const QUEUED: &[&str] = &hidden("256K");

/// One rank computes, and the other ranks sleep.
const fn hidden(sizes: &'static str) -> [&'static str; 9] {
    [
        "collective",
        "all_to_all",
        "--overlap",
        "--computing",
        "1",
        "--size",
        sizes,
        "--iters",
        "20",
    ]
}

const fn held_to_a_rate(how: &'static str) -> [&'static str; 11] {
    [
        "netpipe", "--what", "put", "--around", "0", "--min", "64K", "--max", "1M", "--how", how,
    ]
}

const fn half(how: &'static str) -> [&'static str; 9] {
    [
        "netpipe", "--what", "tag", "--around", "0", "--max", "1M", "--how", how,
    ]
}

const fn gib(size: &'static str) -> [&'static str; 15] {
    [
        "netpipe", "--what", "tag", "--how", "single", "--around", "0", "--iters", "1", "--warmup",
        "0", "--min", size, "--max", size,
    ]
}

macro_rules! kinds {
    ($($name:literal: $($baseline:ident)? [$($setting:expr),*] $args:expr $(, $ranks:literal)?;)+) => {
        &[$(PortalsJobKind {
            name: $name,
            baseline: baseline!($($baseline)?),
            settings: &[$($setting),*],
            args: $args,
            ranks: ranks!($($ranks)?),
        },)+]
    };
}

macro_rules! baseline {
    () => {
        None
    };
    ($baseline:ident) => {
        Some(stringify!($baseline))
    };
}

macro_rules! ranks {
    () => {
        2
    };
    ($ranks:literal) => {
        $ranks
    };
}

pub(super) const KINDS: &[PortalsJobKind] = kinds! {
    "latency": [] LATENCY;
    "latency-pscom": pscom [] LATENCY;
    "latency-mpc": mpc [] LATENCY;
    "latency-generic": [GENERIC] LATENCY;
    "bandwidth": [] BANDWIDTH;
    "bandwidth-pscom": pscom [] BANDWIDTH;
    "bandwidth-mpc": mpc [] BANDWIDTH;
    "tags": [TAGS] PLACED;
    "no-tags": [NO_TAGS] PLACED;
    "tags-late": [TAGS] PLACED_LATE;
    "no-tags-late": [NO_TAGS] PLACED_LATE;
    "slab-copy": [COPY] EIGHT_K;
    "slab-zero": [NO_COPY, GET] EIGHT_K;
    "entry-copy": pscom [COPY] EIGHT_K;
    "entry-zero": pscom [NO_COPY, GET] EIGHT_K;
    "single-tag": [] &["netpipe", "--what", "tag"];
    "single-put": [] &["netpipe", "--what", "put"];
    "single-get": [] &["netpipe", "--what", "get"];
    "stream-put": [] &["netpipe", "--what", "put"];
    "stream-get": [] &["netpipe", "--what", "get"];
    "one-way": [RATE] &ONE_WAY;
    "both-ways": [RATE] &BOTH_WAYS;
    "matching": [] CROWD;
    "one-rail": [RATE] LONG;
    "two-rails": [RATE, TWO_RAILS] LONG;
    "three-rails": [RATE, THREE_RAILS] LONG;
    "four-rails": [RATE, FOUR_RAILS] LONG;
    "short": [] SHORT;
    "short-rails": [FOUR_RAILS] SHORT;
    "lengths": [] EVERY_LENGTH;
    "lengths-generic": [GENERIC] EVERY_LENGTH;
    "half": [] HALF[0];
    "half-generic": [GENERIC] HALF[0];
    "half-stream": [] HALF[1];
    "half-stream-generic": [GENERIC] HALF[1];
    "gib-1": [] GIB[0];
    "gib-2": [] GIB[1];
    "gib-4": [] GIB[2];
    "gib-4-two-rails": [TWO_RAILS] GIB[2];
    "flood": [] FLOOD, 65;
    "flood-little": [TWO_SLABS, EIGHT_EVENTS] FLOOD, 65;
    "overlap-2": [LISTS, CORE] HIDDEN, 2;
    "overlap-4": [LISTS, CORE] HIDDEN, 4;
    "queue-8": [LISTS, CORE, (LIMITS, "max_triggered_ops=8")] QUEUED, 8;
    "queue-16": [LISTS, CORE, (LIMITS, "max_triggered_ops=16")] QUEUED, 8;
    "queue-32": [LISTS, CORE, (LIMITS, "max_triggered_ops=32")] QUEUED, 8;
    "queue-64": [LISTS, CORE, (LIMITS, "max_triggered_ops=64")] QUEUED, 8;
    "queue-256": [LISTS, CORE, (LIMITS, "max_triggered_ops=256")] QUEUED, 8;
    "queue-1024": [LISTS, CORE, (LIMITS, "max_triggered_ops=1024")] QUEUED, 8;
};

macro_rules! ratios {
    ($($group:literal: $what:literal = $figure:literal of $of:literal $(/ $to:literal)?, $asked:expr;)+) => {
        &[$(PortalsRatio {
            group: $group,
            what: $what,
            figure: $figure,
            of: $of,
            to: other!($($to)?),
            asked: $asked,
        },)+]
    };
}

macro_rules! other {
    () => {
        None
    };
    ($to:literal) => {
        Some($to)
    };
}

pub(super) const RATIOS: &[PortalsRatio] = ratios! {
    "latency": "latency against pscom" = "median_us" of "latency" / "latency-pscom", PortalsTarget::AtMost(0.7);
    "latency": "latency against MPC" = "median_us" of "latency" / "latency-mpc", PortalsTarget::Nothing;
    "latency": "matched by the host against by the adapter"
        = "median_us" of "latency-generic" / "latency", PortalsTarget::Nothing;
    "bandwidth": "bandwidth against pscom" = "mb_per_s" of "bandwidth" / "bandwidth-pscom", PortalsTarget::AtLeast(1.3);
    "bandwidth": "bandwidth against MPC" = "mb_per_s" of "bandwidth" / "bandwidth-mpc", PortalsTarget::Nothing;
    "tags": "bandwidth with tags matched by the adapter" = "mb_per_s" of "tags" / "no-tags", PortalsTarget::Nothing;
    "tags": "latency with tags matched by the adapter" = "median_us" of "tags-late" / "no-tags-late", PortalsTarget::Nothing;
    "tags": "copies by the driver, tags by the adapter" = "copies_per_message" of "tags", PortalsTarget::Nothing;
    "tags": "copies by the driver, slabs" = "copies_per_message" of "no-tags", PortalsTarget::Nothing;
    "causes": "slab against an entry each, copied" = "median_us" of "slab-copy" / "entry-copy", PortalsTarget::Nothing;
    "causes": "slab against an entry each, not copied" = "median_us" of "slab-zero" / "entry-zero", PortalsTarget::Nothing;
    "causes": "not copied against copied, slab" = "median_us" of "slab-zero" / "slab-copy", PortalsTarget::Nothing;
    "causes": "not copied against copied, an entry each" = "median_us" of "entry-zero" / "entry-copy", PortalsTarget::Nothing;
    // A put is timed with its flush, a round trip like a get, but a message is timed one way. So no bound for a put one way
    // fits these.
    "netpipe": "get against put" = "median_us" of "single-get" / "single-put", PortalsTarget::Nothing;
    "netpipe": "message against put" = "median_us" of "single-tag" / "single-put", PortalsTarget::Nothing;
    "netpipe": "gets against puts, streaming" = "mb_per_s" of "stream-get" / "stream-put", PortalsTarget::AtLeast(0.9);
    "netpipe": "puts both ways against one way" = "mb_per_s" of "both-ways" / "one-way", PortalsTarget::AtLeast(1.95);
    "rails": "two rails against one" = "mb_per_s" of "two-rails" / "one-rail", PortalsTarget::AtLeast(1.9);
    "rails": "three rails against two" = "mb_per_s" of "three-rails" / "two-rails", PortalsTarget::AtLeast(1.45);
    "rails": "four rails against one" = "mb_per_s" of "four-rails" / "one-rail", PortalsTarget::AtLeast(3.8);
    "rails": "short messages with four rails against one" = "median_us" of "short-rails" / "short", PortalsTarget::AtMost(1.02);
    "matching": "message behind others against a put" = "median_us" of "matching" / "single-put", PortalsTarget::Nothing;
    "lengths": "matched by the host against by the adapter"
        = "median_us" of "lengths-generic" / "lengths", PortalsTarget::Nothing;
    "lengths": "interrupts with the acknowledgement, host"
        = "interrupts_per_message" of "lengths-generic", PortalsTarget::AtMost(3.0);
    "lengths": "interrupts with the acknowledgement, adapter" = "interrupts_per_message" of "lengths", PortalsTarget::AtMost(0.0);
    "half": "half of the bandwidth, adapter against host" = "half_bytes" of "half" / "half-generic", PortalsTarget::AtMost(0.5);
    "half": "the same, streaming" = "half_bytes" of "half-stream" / "half-stream-generic", PortalsTarget::AtMost(0.5);
    "half": "half of the bandwidth, streaming against one at a time"
        = "half_bytes" of "half-stream" / "half", PortalsTarget::AtMost(1.0);
    "half": "bandwidth, adapter against host" = "mb_per_s" of "half" / "half-generic", PortalsTarget::Nothing;
    "half": "bandwidth streaming, adapter against host"
        = "mb_per_s" of "half-stream" / "half-stream-generic", PortalsTarget::Nothing;
    "long": "2 GiB against 1 GiB" = "mb_per_s" of "gib-2" / "gib-1", PortalsTarget::AtLeast(0.99);
    "long": "4 GiB against 1 GiB" = "mb_per_s" of "gib-4" / "gib-1", PortalsTarget::AtLeast(0.99);
    "long": "entries of a message" = "entries_per_message" of "gib-4", PortalsTarget::AtMost(1.0);
    "long": "entries of a message by two rails" = "entries_per_message" of "gib-4-two-rails", PortalsTarget::AtMost(2.0);
    "flood": "little room against much" = "mb_per_s" of "flood-little" / "flood", PortalsTarget::AtLeast(0.5);
    "flood": "fairness with little room" = "fairness" of "flood-little", PortalsTarget::AtLeast(0.9);
    "flood": "fairness with much room" = "fairness" of "flood", PortalsTarget::Nothing;
    "overlap": "overlap of 2 ranks" = "osu_overlap" of "overlap-2", PortalsTarget::AtLeast(95.0);
    "overlap": "words to a host, 2 ranks" = "list_words" of "overlap-2", PortalsTarget::AtMost(2.0);
    "overlap": "overlap of 4 ranks" = "osu_overlap" of "overlap-4", PortalsTarget::AtLeast(95.0);
    "overlap": "words to a host, 4 ranks" = "list_words" of "overlap-4", PortalsTarget::AtMost(2.0);
    "overlap": "µs of other threads in a call, 4 ranks" = "agent_us" of "overlap-4", PortalsTarget::Nothing;
    "queue": "overlap with 8 entries against 1024" = "osu_overlap" of "queue-8" / "queue-1024", PortalsTarget::Nothing;
    "queue": "overlap with 16 entries against 1024" = "osu_overlap" of "queue-16" / "queue-1024", PortalsTarget::Nothing;
    "queue": "overlap with 32 entries against 1024" = "osu_overlap" of "queue-32" / "queue-1024", PortalsTarget::AtLeast(0.98);
    "queue": "overlap with 64 entries against 1024" = "osu_overlap" of "queue-64" / "queue-1024", PortalsTarget::AtLeast(0.98);
    "queue": "overlap with 256 entries against 1024" = "osu_overlap" of "queue-256" / "queue-1024", PortalsTarget::AtLeast(0.98);
    "queue": "words to a host with 8 entries" = "list_words" of "queue-8", PortalsTarget::Nothing;
    "queue": "words to a host with 32 entries" = "list_words" of "queue-32", PortalsTarget::Nothing;
    "queue": "words to a host with 1024 entries" = "list_words" of "queue-1024", PortalsTarget::Nothing;
};

impl PortalsJobKind {
    /// Returns the last arguments, which kinds with the same beginning of their names share.
    pub(super) fn tail(&self) -> &'static [&'static str] {
        match self.name.split('-').next() {
            Some("single") => SINGLE,
            Some("stream") => STREAM,
            _ => &[],
        }
    }
}
