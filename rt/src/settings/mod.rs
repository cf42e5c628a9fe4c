//! All settings in one typed table: read from the environment, overridden by the builder, printed by `ripstop info`.

mod choices;
mod event_filter;
mod nearest;
mod table;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use ripstop_fabric::{
    provider::{DriverSetting, DriverValues},
    registry::{self, FabricSelection},
};

pub use self::{
    choices::{Executor, ProgressMode, ReactorChoice, Rendezvous},
    event_filter::EventFilter,
};
use self::{
    nearest::nearest,
    table::{OTHERS, SettingSpec, TABLE},
};
use crate::{
    engine::UnexpectedLimits,
    error::{Error, ErrorKind, Result},
};

/// The values of all settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// `RIPSTOP_FABRIC`.
    pub fabric: FabricSelection,
    /// Settings of the drivers.
    pub driver_values: DriverValues,
    /// `RIPSTOP_REACTOR`.
    pub reactor: ReactorChoice,
    /// `RIPSTOP_PROGRESS`.
    pub progress: ProgressMode,
    /// `RIPSTOP_EAGER_MAX`, in bytes; `None` decides by cost.
    pub eager_max: Option<usize>,
    /// `RIPSTOP_RENDEZVOUS`.
    pub rendezvous: Rendezvous,
    /// `RIPSTOP_SINGLE_COPY`.
    pub single_copy: bool,
    /// `RIPSTOP_SHM_RANKS`; `None` means all ranks of a node.
    pub shm_ranks: Option<u32>,
    /// `RIPSTOP_LOOPBACK`; `None` decides by cost.
    pub loopback: Option<bool>,
    /// `RIPSTOP_SPIN_US_MAX`; `None` decides by measurement.
    pub spin_max: Option<Duration>,
    /// `RIPSTOP_UNEXPECTED_BYTES`.
    pub unexpected_bytes: usize,
    /// `RIPSTOP_UNEXPECTED_MESSAGES`.
    pub unexpected_messages: usize,
    /// `RIPSTOP_DETECT_MS`.
    pub detect: Duration,
    /// `RIPSTOP_BOOT`; empty means discovery.
    pub boot: String,
    /// `RIPSTOP_BOOT_TIMEOUT`.
    pub boot_timeout: Duration,
    /// `RIPSTOP_VIEW`.
    pub view: bool,
    /// `RIPSTOP_STUCK_AFTER`; zero means never.
    pub stuck_after: Duration,
    /// `RIPSTOP_TRACE`; empty means no trace.
    pub trace: PathBuf,
    /// `RIPSTOP_PROFILE`; empty means no profile.
    pub profile: PathBuf,
    /// `RIPSTOP_METRICS`; empty means no metrics.
    pub metrics: PathBuf,
    /// `RIPSTOP_METRICS_PERIOD`.
    pub metrics_period: Duration,
    /// `RIPSTOP_METRICS_BY_RANK`.
    pub metrics_by_rank: bool,
    /// `RIPSTOP_LOG`.
    pub log: EventFilter,
    /// `RIPSTOP_COLLECTIVES`.
    pub collectives: Executor,
    /// `RIPSTOP_BARRIER`, `RIPSTOP_BCAST` and so on: the selected algorithms, by collective.
    algorithms: BTreeMap<&'static str, String>,
    sources: BTreeMap<&'static str, SettingSource>,
}

/// Origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingSource {
    /// The default.
    Default,
    /// An environment variable.
    Environment,
    /// The runtime's builder.
    Builder,
}

/// A row of the printed table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Row {
    /// Name of the variable.
    pub name: &'static str,
    /// Present value.
    pub value: String,
    /// Origin of the value.
    pub source: SettingSource,
    /// Allowed values.
    pub range: &'static str,
    /// Meaning of the setting.
    pub meaning: &'static str,
}

impl Settings {
    /// Returns the default settings.
    #[must_use]
    pub fn new() -> Self {
        Self {
            fabric: FabricSelection::default(),
            driver_values: DriverValues::default(),
            reactor: ReactorChoice::Auto,
            progress: ProgressMode::Thread,
            eager_max: None,
            rendezvous: Rendezvous::Auto,
            single_copy: true,
            shm_ranks: None,
            loopback: None,
            spin_max: None,
            unexpected_bytes: 64 << 20,
            unexpected_messages: 65_536,
            detect: Duration::from_secs(5),
            boot: "auto".to_owned(),
            boot_timeout: Duration::from_secs(60),
            view: true,
            stuck_after: Duration::from_secs(300),
            trace: PathBuf::new(),
            profile: PathBuf::new(),
            metrics: PathBuf::new(),
            metrics_period: Duration::from_secs(15),
            metrics_by_rank: false,
            log: EventFilter::warnings(),
            collectives: Executor::Offload,
            algorithms: BTreeMap::new(),
            sources: BTreeMap::new(),
        }
    }

    /// Returns the defaults, overridden by the environment.
    ///
    /// # Errors
    /// A `RIPSTOP_*` variable does not exist or has a bad value. The error names it, with the allowed values.
    pub fn from_environment() -> Result<Self> {
        Self::from_variables(std::env::vars_os().filter_map(|(name, value)| {
            Some((
                name.into_string().ok()?,
                value.to_string_lossy().into_owned(),
            ))
        }))
    }

    /// Like [`from_environment`](Self::from_environment), with the given variables.
    ///
    /// # Errors
    /// The call fails as [`from_environment`](Self::from_environment) does.
    pub fn from_variables(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        let mut settings = Self::new();
        for (name, value) in variables {
            if name.starts_with("RIPSTOP_") && !others().any(|other| other == name) {
                settings.put(&name, &value, SettingSource::Environment)?;
            }
        }
        Ok(settings)
    }

    /// Sets a setting by its name, on behalf of the builder.
    ///
    /// # Errors
    /// There is no such variable, or the value is bad. The error lists what is allowed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        self.put(name, value, SettingSource::Builder)
    }

    fn put(&mut self, name: &str, value: &str, source: SettingSource) -> Result<()> {
        let error = |sentence| Error::new("settings", ErrorKind::Setup(sentence));
        let Some(entry) = entries().find(|entry| entry.name() == name) else {
            return Err(error(unknown(name)));
        };
        let accepted = match entry {
            SettingEntry::Runtime(spec) => (spec.set)(self, value),
            SettingEntry::Driver(setting) => self.driver_values.set(setting, value),
        };
        accepted.ok_or_else(|| {
            error(format!(
                "{name}={value} is out of range: it may be {} ({})",
                entry.range(),
                entry.meaning()
            ))
        })?;
        self.sources.insert(entry.name(), source);
        Ok(())
    }

    /// Returns the algorithm selected for a collective, if any.
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

    /// Returns the size of the store for unexpected messages.
    pub(crate) fn store(&self) -> UnexpectedLimits {
        UnexpectedLimits {
            bytes: self.unexpected_bytes,
            messages: self.unexpected_messages,
        }
    }

    /// Returns true if this variable was set.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.sources.contains_key(name)
    }

    pub(crate) fn detect_ns(&self) -> u64 {
        u64::try_from(self.detect.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns all rows of the table.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let row = |entry: SettingEntry| Row {
            name: entry.name(),
            value: match entry {
                SettingEntry::Runtime(spec) => (spec.get)(self),
                SettingEntry::Driver(setting) => self.driver_values.get(setting).to_owned(),
            },
            source: self
                .sources
                .get(entry.name())
                .copied()
                .unwrap_or(SettingSource::Default),
            range: entry.range(),
            meaning: entry.meaning(),
        };
        entries().map(row).collect()
    }
}

/// A setting of the runtime or of drivers.
#[derive(Clone, Copy)]
enum SettingEntry {
    Runtime(&'static SettingSpec),
    Driver(&'static DriverSetting),
}

impl SettingEntry {
    const fn name(self) -> &'static str {
        match self {
            Self::Runtime(spec) => spec.name,
            Self::Driver(setting) => setting.name,
        }
    }

    fn range(self) -> &'static str {
        match self {
            Self::Runtime(spec) => (spec.range)(),
            Self::Driver(setting) => setting.range,
        }
    }

    const fn meaning(self) -> &'static str {
        match self {
            Self::Runtime(spec) => spec.meaning,
            Self::Driver(setting) => setting.meaning,
        }
    }
}

/// Returns all settings: the selection of drivers comes first, then their settings, then those of the runtime.
fn entries() -> impl Iterator<Item = SettingEntry> {
    let (fabric, others) = TABLE.split_at(1);
    let drivers = registry::driver_settings().map(SettingEntry::Driver);
    let fabric = fabric.iter().map(SettingEntry::Runtime);
    fabric
        .chain(drivers)
        .chain(others.iter().map(SettingEntry::Runtime))
}

/// Returns variables that begin like settings and are none.
fn others() -> impl Iterator<Item = &'static str> {
    registry::other_variables().chain(OTHERS.iter().copied())
}

/// Returns the error for a name that is not a setting.
fn unknown(name: &str) -> String {
    let names = entries().map(SettingEntry::name);
    match nearest(name, names.chain(others())) {
        Some(meant) => format!(
            "{name} is not a setting of Ripstop: did you mean {meant}? `ripstop info --settings` lists all; correct its name, or \
             unset it"
        ),
        None => format!(
            "{name} is not a setting of Ripstop, and no setting has a similar name: `ripstop info --settings` lists all; correct \
             its name, or unset it"
        ),
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::{choices::NamedChoice, *};

    fn one(name: &str, value: &str) -> Result<Settings> {
        Settings::from_variables([(name.to_owned(), value.to_owned())])
    }

    fn printed(settings: &Settings, name: &str) -> String {
        let mut rows = settings.rows().into_iter();
        rows.find(|row| row.name == name).unwrap().value
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
    fn a_setting_of_a_driver_is_printed_as_it_is_read_and_a_bad_value_is_named() {
        for (name, text) in [
            ("RIPSTOP_PORTALS_SLABS", "2x131328"),
            ("RIPSTOP_PORTALS_IFACES", "0:2,1:1"),
            ("RIPSTOP_VERBS_GID_INDEX", "3,1"),
            ("RIPSTOP_PATTERN", "stencil:6"),
        ] {
            let settings = one(name, text).unwrap();
            assert_eq!(printed(&settings, name), text);
            assert_ne!(settings, Settings::new());
        }
        let why = one("RIPSTOP_PATTERN", "sparse").unwrap_err().to_string();
        assert!(
            why.contains("RIPSTOP_PATTERN=sparse") && why.contains("dense"),
            "{why}"
        );
    }

    #[test]
    fn a_fabric_that_does_not_exist_is_refused_with_those_that_do() {
        for name in ["ethernet", "shm+shm", "verbs+shm", ""] {
            let why = one("RIPSTOP_FABRIC", name).unwrap_err().to_string();
            for known in [
                "auto",
                "shm",
                "verbs",
                "portals",
                "shm+verbs",
                "shm+portals",
            ] {
                assert!(why.contains(&format!(" {known} ")), "{why}");
            }
        }
        let settings = one("RIPSTOP_FABRIC", "shm+verbs").unwrap();
        assert_eq!(printed(&settings, "RIPSTOP_FABRIC"), "shm+verbs");
    }

    #[test]
    fn every_choice_may_be_what_its_row_says() {
        fn of<T: NamedChoice>(name: &str) {
            let names: Vec<_> = T::ALL.iter().map(|(name, _)| *name).collect();
            let spec = TABLE.iter().find(|spec| spec.name == name).unwrap();
            assert_eq!((spec.range)(), names.join(" | "), "{name}");
        }
        of::<ReactorChoice>("RIPSTOP_REACTOR");
        of::<ProgressMode>("RIPSTOP_PROGRESS");
        of::<Executor>("RIPSTOP_COLLECTIVES");
        of::<Rendezvous>("RIPSTOP_RENDEZVOUS");
        of::<bool>("RIPSTOP_SINGLE_COPY");
    }

    #[test]
    fn an_unknown_variable_is_an_error_that_names_it() {
        let error = one("RIPSTOP_REAKTOR", "epoll").unwrap_err().to_string();
        assert!(error.contains("RIPSTOP_REAKTOR"), "{error}");
        let error = one("RIPSTOP_FOO", "1").unwrap_err().to_string();
        assert!(
            error.contains("RIPSTOP_FOO") && error.contains("`ripstop info --settings` lists all"),
            "{error}"
        );
    }

    #[test]
    fn a_name_that_is_nearly_one_is_answered_with_that_one() {
        for (typed, meant) in [
            ("RIPSTOP_PROGRES", "RIPSTOP_PROGRESS"),
            ("RIPSTOP_REAKTOR", "RIPSTOP_REACTOR"),
            ("RIPSTOP_ALL_REDUCE", "RIPSTOP_ALLREDUCE"),
            ("RIPSTOP_FARBIC", "RIPSTOP_FABRIC"),
            ("RIPSTOP_DETECT", "RIPSTOP_DETECT_MS"),
        ] {
            let error = one(typed, "1").unwrap_err().to_string();
            let question = format!("did you mean {meant}?");
            assert!(error.contains(&question), "{error}");
        }
    }

    #[test]
    fn what_the_software_portals_reads_may_be_said() {
        let file = "../fabric/softportals/src/abi/settings.rs";
        let text = std::fs::read_to_string(file).unwrap();
        let names = text.split('"');
        let mut names: Vec<_> = names.filter(|name| name.starts_with("RIPSTOP_")).collect();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() >= 10, "there were more in {file}");
        for name in names {
            assert!(one(name, "x").is_ok(), "{name}");
        }
    }

    #[test]
    fn other_variables_are_not_ours() {
        assert_eq!(one("PATH", "/bin").unwrap(), Settings::new());
    }
}
