//! Every setting: one typed table, read from the environment, overridden by the builder, printed by `ripstop info`.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    engine::Store,
    error::{Error, ErrorKind, Result},
};

/// Which driver carries what ranks say to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FabricChoice {
    /// Shared memory, as long as all ranks are on one node.
    #[default]
    Auto,
    /// Shared memory.
    Shm,
    /// BXI, or whatever else has a Portals 4 library.
    Portals,
    /// InfiniBand or RoCE.
    Verbs,
}

/// How the reactor sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReactorChoice {
    /// `uring` if the kernel has what it takes, else `epoll`.
    #[default]
    Auto,
    /// One `io_uring_enter`; an error where that is missing or forbidden.
    Uring,
    /// One `epoll_wait`.
    Epoll,
}

/// Who drives the reactor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProgressMode {
    /// `block_on` while it waits, and an agent thread while the application computes.
    #[default]
    Thread,
    /// `block_on` alone: nothing moves while the application computes.
    Inline,
    /// A task that the application spawns on tokio.
    Tokio,
}

/// Who carries collectives on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Executor {
    /// Adapters, where they run task lists by themselves and a collective is long enough; else as by messages.
    #[default]
    Offload,
    /// Adapters, also of the shortest ones; elsewhere as by messages.
    Lists,
    /// Whoever makes turns: an application that waits, or the agent while it computes.
    Messages,
    /// Nobody but the polls of their futures: the baseline to compare with.
    Host,
}

/// How the bytes of an offered message travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rendezvous {
    /// By what works: get, else put, else fragments.
    #[default]
    Auto,
    /// The receiver reads the sender's memory.
    Get,
    /// The sender writes the receiver's memory.
    Put,
    /// In messages, copied twice.
    Fragments,
}

/// The values.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// `RIPSTOP_FABRIC`.
    pub fabric: FabricChoice,
    /// `RIPSTOP_PORTALS_LIBRARY`; empty is the loader's.
    pub portals_library: String,
    /// `RIPSTOP_PORTALS_ABI`.
    pub portals_abi: String,
    /// `RIPSTOP_VERBS_DEVICE`; empty is any.
    pub verbs_device: String,
    /// `RIPSTOP_REACTOR`.
    pub reactor: ReactorChoice,
    /// `RIPSTOP_PROGRESS`.
    pub progress: ProgressMode,
    /// `RIPSTOP_EAGER_MAX`, bytes; `None` is by cost.
    pub eager_max: Option<usize>,
    /// `RIPSTOP_RENDEZVOUS`.
    pub rendezvous: Rendezvous,
    /// `RIPSTOP_SINGLE_COPY`.
    pub single_copy: bool,
    /// `RIPSTOP_SPIN_US_MAX`; `None` is by measurement.
    pub spin_max: Option<Duration>,
    /// `RIPSTOP_UNEXPECTED_BYTES`.
    pub unexpected_bytes: usize,
    /// `RIPSTOP_UNEXPECTED_MESSAGES`.
    pub unexpected_messages: usize,
    /// `RIPSTOP_DETECT_MS`.
    pub detect: Duration,
    /// `RIPSTOP_BOOT`; empty is by discovery.
    pub boot: String,
    /// `RIPSTOP_BOOT_TIMEOUT`.
    pub boot_timeout: Duration,
    /// `RIPSTOP_COLLECTIVES`.
    pub collectives: Executor,
    /// `RIPSTOP_BARRIER`, `RIPSTOP_BCAST` and so on: the algorithms that are named, by their collective.
    algorithms: BTreeMap<&'static str, String>,
    sources: BTreeMap<&'static str, Source>,
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Nobody said anything.
    Default,
    /// A variable of the environment.
    Environment,
    /// The runtime's builder.
    Builder,
}

/// A row of the table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Row {
    /// The variable.
    pub name: &'static str,
    /// Its value now.
    pub value: String,
    /// Where that came from.
    pub source: Source,
    /// What it may be.
    pub range: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

struct Spec {
    name: &'static str,
    range: &'static str,
    meaning: &'static str,
    set: fn(&mut Settings, &str) -> Option<()>,
    get: fn(&Settings) -> String,
}

/// What the launcher sets for its ranks, what says how tests run, and what the software Portals reads by itself; not settings.
const OTHERS: &[&str] = &[
    "RIPSTOP_PORTALS_FAULTS",
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
    "RIPSTOP_TEST_RANK",
    "RIPSTOP_TEST_SIM",
    "RIPSTOP_SIM_SEED",
    "RIPSTOP_SIM_SEEDS",
];

fn put_text(text: &mut String, value: &str) -> Option<()> {
    value.clone_into(text);
    Some(())
}

/// The row of a collective. The names are those of the crate of collectives, where a test compares them.
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

const TABLE: &[Spec] = &[
    Spec {
        name: "RIPSTOP_FABRIC",
        range: "auto | shm | portals | verbs",
        meaning: "the driver that carries what ranks say to each other",
        set: |settings, value| {
            settings.fabric = match value {
                "auto" => FabricChoice::Auto,
                "shm" => FabricChoice::Shm,
                "portals" => FabricChoice::Portals,
                "verbs" => FabricChoice::Verbs,
                _ => return None,
            };
            Some(())
        },
        get: |settings| {
            let name = match settings.fabric {
                FabricChoice::Auto => "auto",
                FabricChoice::Shm => "shm",
                FabricChoice::Portals => "portals",
                FabricChoice::Verbs => "verbs",
            };
            name.to_owned()
        },
    },
    Spec {
        name: "RIPSTOP_PORTALS_LIBRARY",
        range: "a file",
        meaning: "the Portals 4 library; else libportals.so.4, where the loader finds it",
        set: |settings, value| put_text(&mut settings.portals_library, value),
        get: |settings| settings.portals_library.clone(),
    },
    Spec {
        name: "RIPSTOP_PORTALS_ABI",
        range: "auto | sandia42 | sandia43 | portails4 | bxi2 | bxi3",
        meaning: "whose binary interface that library has",
        set: |settings, value| {
            ["auto", "sandia42", "sandia43", "portails4", "bxi2", "bxi3"]
                .contains(&value)
                .then(|| value.clone_into(&mut settings.portals_abi))
        },
        get: |settings| settings.portals_abi.clone(),
    },
    Spec {
        name: "RIPSTOP_VERBS_DEVICE",
        range: "a device, or device:port",
        meaning: "the adapter, like mlx5_0:1; else ranks take turns among those that are up",
        set: |settings, value| put_text(&mut settings.verbs_device, value),
        get: |settings| settings.verbs_device.clone(),
    },
    Spec {
        name: "RIPSTOP_REACTOR",
        range: "auto | uring | epoll",
        meaning: "how the reactor sleeps",
        set: |settings, value| {
            settings.reactor = match value {
                "auto" => ReactorChoice::Auto,
                "uring" => ReactorChoice::Uring,
                "epoll" => ReactorChoice::Epoll,
                _ => return None,
            };
            Some(())
        },
        get: |settings| format!("{:?}", settings.reactor).to_lowercase(),
    },
    Spec {
        name: "RIPSTOP_PROGRESS",
        range: "thread | inline | tokio",
        meaning: "who drives the reactor: an agent thread too, block_on alone, or a tokio task",
        set: |settings, value| {
            settings.progress = match value {
                "thread" => ProgressMode::Thread,
                "inline" => ProgressMode::Inline,
                "tokio" => ProgressMode::Tokio,
                _ => return None,
            };
            Some(())
        },
        get: |settings| format!("{:?}", settings.progress).to_lowercase(),
    },
    Spec {
        name: "RIPSTOP_COLLECTIVES",
        range: "offload | lists | messages | host",
        meaning: "who begins the next step of a collective: adapters by task lists, where they can, of those that are long \
                  enough or of all; whoever makes turns; or only a poll of its future, for comparison. The same on all ranks",
        set: |settings, value| {
            settings.collectives = match value {
                "offload" => Executor::Offload,
                "lists" => Executor::Lists,
                "messages" => Executor::Messages,
                "host" => Executor::Host,
                _ => return None,
            };
            Some(())
        },
        get: |settings| format!("{:?}", settings.collectives).to_lowercase(),
    },
    Spec {
        name: "RIPSTOP_EAGER_MAX",
        range: "auto | 0..=8192 bytes",
        meaning: "the longest message that is sent before it is asked for",
        set: |settings, value| {
            settings.eager_max = or_auto(value, |value| {
                value.parse().ok().filter(|&bytes| bytes <= 8192)
            })?;
            Some(())
        },
        get: |settings| {
            settings
                .eager_max
                .map_or_else(|| "auto".to_owned(), |bytes| bytes.to_string())
        },
    },
    Spec {
        name: "RIPSTOP_RENDEZVOUS",
        range: "auto | get | put | fragments",
        meaning: "how the bytes of longer messages travel",
        set: |settings, value| {
            settings.rendezvous = match value {
                "auto" => Rendezvous::Auto,
                "get" => Rendezvous::Get,
                "put" => Rendezvous::Put,
                "fragments" => Rendezvous::Fragments,
                _ => return None,
            };
            Some(())
        },
        get: |settings| format!("{:?}", settings.rendezvous).to_lowercase(),
    },
    Spec {
        name: "RIPSTOP_SINGLE_COPY",
        range: "on | off",
        meaning: "whether process_vm_readv and process_vm_writev may be used between ranks of a node",
        set: |settings, value| {
            settings.single_copy = match value {
                "on" => true,
                "off" => false,
                _ => return None,
            };
            Some(())
        },
        get: |settings| if settings.single_copy { "on" } else { "off" }.to_owned(),
    },
    Spec {
        name: "RIPSTOP_SPIN_US_MAX",
        range: "auto | 0..=10000 microseconds",
        meaning: "how long a wait may spin before it sleeps, when its peer runs on another processor",
        set: |settings, value| {
            settings.spin_max = or_auto(value, |value| {
                value
                    .parse()
                    .ok()
                    .filter(|&us| us <= 10_000)
                    .map(Duration::from_micros)
            })?;
            Some(())
        },
        get: |settings| {
            settings
                .spin_max
                .map_or_else(|| "auto".to_owned(), |spin| spin.as_micros().to_string())
        },
    },
    Spec {
        name: "RIPSTOP_UNEXPECTED_BYTES",
        range: "65536..=17179869184 bytes",
        meaning: "how much a rank stores of messages that nobody has asked for yet, all peers together; the same on all ranks",
        set: |settings, value| {
            settings.unexpected_bytes = value
                .parse()
                .ok()
                .filter(|bytes| (64 << 10..=16 << 30).contains(bytes))?;
            Some(())
        },
        get: |settings| settings.unexpected_bytes.to_string(),
    },
    Spec {
        name: "RIPSTOP_UNEXPECTED_MESSAGES",
        range: "16..=1073741824 messages",
        meaning: "how many messages a rank stores that nobody has asked for yet, all peers together; the same on all ranks",
        set: |settings, value| {
            settings.unexpected_messages = value
                .parse()
                .ok()
                .filter(|messages| (16..=1 << 30).contains(messages))?;
            Some(())
        },
        get: |settings| settings.unexpected_messages.to_string(),
    },
    Spec {
        name: "RIPSTOP_DETECT_MS",
        range: "10..=600000 milliseconds",
        meaning: "how long a rank that is waited for may be silent before it is asked whether it is there, where the fabric does \
                  not tell of deaths; after twice as long it counts as failed",
        set: |settings, value| {
            settings.detect = value
                .parse()
                .ok()
                .filter(|ms| (10..=600_000).contains(ms))
                .map(Duration::from_millis)?;
            Some(())
        },
        get: |settings| settings.detect.as_millis().to_string(),
    },
    Spec {
        name: "RIPSTOP_BOOT",
        range: "auto | pmi1 | singleton",
        meaning: "how a rank learns who it is",
        set: |settings, value| {
            settings.boot = ["auto", "pmi1", "singleton"]
                .contains(&value)
                .then(|| value.to_owned())?;
            Some(())
        },
        get: |settings| settings.boot.clone(),
    },
    Spec {
        name: "RIPSTOP_BOOT_TIMEOUT",
        range: "1..=86400 seconds",
        meaning: "how long a rank waits for each answer of the launcher",
        set: |settings, value| {
            settings.boot_timeout = value
                .parse()
                .ok()
                .filter(|s| (1..=86_400).contains(s))
                .map(Duration::from_secs)?;
            Some(())
        },
        get: |settings| settings.boot_timeout.as_secs().to_string(),
    },
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

impl Settings {
    /// What holds when nobody says anything.
    #[must_use]
    pub fn new() -> Self {
        Self {
            fabric: FabricChoice::Auto,
            portals_library: String::new(),
            portals_abi: "auto".to_owned(),
            verbs_device: String::new(),
            reactor: ReactorChoice::Auto,
            progress: ProgressMode::Thread,
            eager_max: None,
            rendezvous: Rendezvous::Auto,
            single_copy: true,
            spin_max: None,
            unexpected_bytes: 64 << 20,
            unexpected_messages: 65_536,
            detect: Duration::from_millis(500),
            boot: "auto".to_owned(),
            boot_timeout: Duration::from_secs(60),
            collectives: Executor::Offload,
            algorithms: BTreeMap::new(),
            sources: BTreeMap::new(),
        }
    }

    /// The defaults, and what the environment says.
    ///
    /// # Errors
    /// A `RIPSTOP_*` variable that does not exist or has a bad value: named, with what it may be.
    pub fn from_environment() -> Result<Self> {
        Self::from_variables(std::env::vars_os().filter_map(|(name, value)| {
            Some((
                name.into_string().ok()?,
                value.to_string_lossy().into_owned(),
            ))
        }))
    }

    /// As [`from_environment`](Self::from_environment), from any list of variables.
    ///
    /// # Errors
    /// As there.
    pub fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut settings = Self::new();
        for (name, value) in variables {
            if name.starts_with("RIPSTOP_") && !OTHERS.contains(&name.as_str()) {
                settings.put(&name, &value, Source::Environment)?;
            }
        }
        Ok(settings)
    }

    /// Sets one by its name, as the builder.
    ///
    /// # Errors
    /// No such variable, or a bad value: with what there is, or what it may be.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        self.put(name, value, Source::Builder)
    }

    fn put(&mut self, name: &str, value: &str, source: Source) -> Result<()> {
        let error = |sentence| Error::new("settings", ErrorKind::Setup(sentence));
        let Some(spec) = TABLE.iter().find(|spec| spec.name == name) else {
            let names: Vec<_> = TABLE.iter().map(|spec| spec.name).collect();
            return Err(error(format!(
                "{name} is not a setting of Ripstop; there are {}. Unset it, or correct its name",
                names.join(", ")
            )));
        };
        (spec.set)(self, value).ok_or_else(|| {
            error(format!(
                "{name}={value} is out of range: it may be {} ({})",
                spec.range, spec.meaning
            ))
        })?;
        self.sources.insert(spec.name, source);
        Ok(())
    }

    /// The algorithm that is named for a collective, if one is.
    #[must_use]
    pub fn algorithm(&self, collective: &str) -> Option<&str> {
        self.algorithms.get(collective).map(String::as_str)
    }

    fn name_algorithm(&mut self, collective: &'static str, names: &str, value: &str) -> Option<()> {
        if value == "auto" {
            self.algorithms.remove(collective);
            return Some(());
        }
        let (name, parameter) = value
            .split_once(':')
            .map_or((value, None), |(name, parameter)| (name, Some(parameter)));
        let fits = |known: &str| match (known.split_once("[:"), parameter) {
            (None, None) => known == name,
            (Some((known, _)), None) => known == name,
            (Some((known, _)), Some(number)) => {
                known == name && number.parse().is_ok_and(|number: usize| number > 0)
            }
            (None, Some(_)) => false,
        };
        names.split(" | ").any(fits).then_some(())?;
        self.algorithms.insert(collective, value.to_owned());
        Some(())
    }

    /// How much there may be of messages that nobody has asked for yet.
    pub(crate) fn store(&self) -> Store {
        Store {
            bytes: self.unexpected_bytes,
            messages: self.unexpected_messages,
        }
    }

    pub(crate) fn detect_ns(&self) -> u64 {
        u64::try_from(self.detect.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The whole table.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let row = |spec: &Spec| Row {
            name: spec.name,
            value: (spec.get)(self),
            source: self
                .sources
                .get(spec.name)
                .copied()
                .unwrap_or(Source::Default),
            range: spec.range,
            meaning: spec.meaning,
        };
        TABLE.iter().map(row).collect()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(clippy::option_option, reason = "no value, `auto`, or a value")]
fn or_auto<T>(value: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    if value == "auto" {
        Some(None)
    } else {
        parse(value).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: &str) -> Result<Settings> {
        Settings::from_variables([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn every_default_is_inside_its_own_range() {
        let settings = Settings::new();
        for row in settings.rows() {
            assert!(
                one(row.name, &row.value).is_ok(),
                "{} = {}",
                row.name,
                row.value
            );
        }
    }

    #[test]
    fn a_bad_value_is_an_error_that_names_variable_value_and_range() {
        let error = one("RIPSTOP_REACTOR", "kqueue").unwrap_err().to_string();
        assert!(
            error.contains("RIPSTOP_REACTOR=kqueue") && error.contains("auto | uring | epoll"),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_variable_is_an_error_that_names_it() {
        let error = one("RIPSTOP_REAKTOR", "epoll").unwrap_err().to_string();
        assert!(error.contains("RIPSTOP_REAKTOR"), "{error}");
    }

    #[test]
    fn other_variables_are_not_ours() {
        assert_eq!(one("PATH", "/bin").unwrap(), Settings::new());
    }
}
