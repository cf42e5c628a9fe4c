//! All drivers, and how a job selects among them.

use std::{fmt, sync::LazyLock};

use crate::{
    loopback::LoopbackProvider,
    portals::PortalsProvider,
    provider::{DriverSetting, Provider, ProviderReach},
    shm::ShmProvider,
    tcp::TcpProvider,
    verbs::VerbsProvider,
};

/// One provider for each driver. The first one connects ranks within nodes, alone or in combination with a network.
pub static PROVIDERS: &[&dyn Provider] = &[
    &ShmProvider,
    &LoopbackProvider,
    &PortalsProvider,
    &VerbsProvider,
    &TcpProvider,
];

/// Returns the settings of all drivers, each once.
pub fn driver_settings() -> impl Iterator<Item = &'static DriverSetting> {
    SETTINGS.iter().copied()
}

/// Returns variables whose names begin like settings of drivers, but which are no settings.
pub fn other_variables() -> impl Iterator<Item = &'static str> {
    let all = PROVIDERS.iter();
    all.flat_map(|provider| provider.other_variables().iter().copied())
}

/// Returns the prefixes of the names of threads that drivers and their libraries start.
pub fn thread_prefixes() -> impl Iterator<Item = &'static str> {
    let all = PROVIDERS.iter();
    all.flat_map(|provider| provider.thread_prefixes().iter().copied())
}

static SETTINGS: LazyLock<Vec<&'static DriverSetting>> = LazyLock::new(|| {
    let mut all: Vec<&DriverSetting> = Vec::new();
    for setting in PROVIDERS.iter().flat_map(|provider| provider.settings()) {
        if !all.iter().any(|known| known.name == setting.name) {
            all.push(setting);
        }
    }
    all
});

/// The value of `RIPSTOP_FABRIC`: `auto`, a driver, or shared memory within nodes and a driver between them.
///
/// For `auto`, the ranks of a job on several nodes choose the network together, as [`offers`](crate::offers) says.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct FabricSelection {
    /// Position in [`PROVIDERS`], or `None` for `auto`.
    provider: Option<usize>,
    within_node: bool,
}

impl FabricSelection {
    /// Returns the selection of this name, or `None` if there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let found = SELECTIONS.iter().find(|(known, _)| known == name);
        found.map(|(_, selection)| *selection)
    }

    /// Returns the name of this selection, like `shm+verbs`.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = SELECTIONS.iter().find(|(_, known)| *known == self);
        found.map_or("auto", |(name, _)| name)
    }

    /// Returns the names of all selections, with ` | ` between them.
    #[must_use]
    pub fn range() -> &'static str {
        static RANGE: LazyLock<String> = LazyLock::new(|| {
            let names: Vec<_> = SELECTIONS.iter().map(|(name, _)| name.as_str()).collect();
            names.join(" | ")
        });
        &RANGE
    }

    /// Returns the names of the selections that reach all nodes and share memory within them.
    pub fn combined() -> impl Iterator<Item = &'static str> {
        let combined = SELECTIONS.iter().filter(|(_, known)| known.within_node);
        combined.map(|(name, _)| name.as_str())
    }

    /// Returns the networks among which `auto` chooses, in the order of preference: the shortest latency first.
    #[must_use]
    pub fn networks() -> Vec<&'static dyn Provider> {
        let networks = PROVIDERS
            .iter()
            .filter(|one| one.reach() == ProviderReach::Job);
        let mut timed: Vec<_> = networks
            .filter_map(|one| Some((one.auto_latency_ns()?, *one)))
            .collect();
        timed.sort_by_key(|(latency, _)| *latency);
        timed.into_iter().map(|(_, network)| network).collect()
    }

    /// Returns the selection of shared memory within nodes and this network between them, if jobs can select it.
    #[must_use]
    pub fn combined_with(network: &dyn Provider) -> Option<Self> {
        let combined = SELECTIONS.iter().filter(|(_, known)| known.within_node);
        let mut selections = combined.map(|(_, selection)| *selection);
        selections.find(|selection| selection.provider().name() == network.name())
    }

    /// Returns true for `auto`: shared memory if all ranks share a node, otherwise shared memory within nodes and one of the
    /// [networks](Self::networks) between them.
    #[must_use]
    pub const fn is_auto(self) -> bool {
        self.provider.is_none()
    }

    /// Returns the provider of the selected driver. It is the network's one if there is also shared memory, and the one of shared
    /// memory for `auto`.
    #[must_use]
    pub fn provider(self) -> &'static dyn Provider {
        PROVIDERS[self.provider.unwrap_or(0)]
    }

    /// Returns true if ranks of a node share memory beside the driver of the [provider](Self::provider).
    #[must_use]
    pub const fn is_combined(self) -> bool {
        self.within_node
    }

    /// Returns true for `auto` and for shared memory alone: a job on one node then communicates through shared memory only.
    #[must_use]
    pub fn is_shared_memory(self) -> bool {
        self.provider.is_none_or(|at| at == 0)
    }
}

impl fmt::Debug for FabricSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// All selections with their names, in the order in which they are listed for users.
static SELECTIONS: LazyLock<Vec<(String, FabricSelection)>> = LazyLock::new(|| {
    let select = |provider, within_node| FabricSelection {
        provider,
        within_node,
    };
    let shared = PROVIDERS[0].name();
    let numbered = || PROVIDERS.iter().enumerate();
    let alone = numbered().map(|(at, one)| (one.name().to_owned(), select(Some(at), false)));
    let networks = numbered().filter(|(_, one)| one.reach() == ProviderReach::Job);
    let combined =
        networks.map(|(at, one)| (format!("{shared}+{}", one.name()), select(Some(at), true)));
    let auto = ("auto".to_owned(), FabricSelection::default());
    [auto].into_iter().chain(alone).chain(combined).collect()
});

#[cfg(test)]
mod tests {
    use super::{FabricSelection, PROVIDERS, ProviderReach, driver_settings, other_variables};

    #[test]
    fn a_selection_is_auto_a_driver_or_shared_memory_and_a_network() {
        let range = FabricSelection::range();
        for name in range.split(" | ") {
            let selection = FabricSelection::named(name).expect(name);
            assert_eq!(selection.name(), name);
            assert_eq!(selection.is_combined(), name.contains('+'));
            assert!(name == "auto" || name.ends_with(selection.provider().name()));
        }
        for name in [
            "auto",
            "shm",
            "verbs",
            "tcp",
            "shm+verbs",
            "shm+portals",
            "shm+tcp",
        ] {
            assert!(range.split(" | ").any(|known| known == name), "{range}");
        }
        for name in [
            "",
            "udp",
            "shm+",
            "+verbs",
            "shm+shm",
            "shm+auto",
            "shm+loopback",
            "verbs+shm",
            "shm+verbs+portals",
            "Verbs",
        ] {
            assert!(FabricSelection::named(name).is_none(), "{name}");
        }
    }

    #[test]
    fn only_shared_memory_is_shared_memory() {
        let is = |name| FabricSelection::named(name).unwrap().is_shared_memory();
        assert!(is("auto") && is("shm") && FabricSelection::default().is_shared_memory());
        assert!(!is("shm+verbs") && !is("verbs") && !is("loopback"));
        assert_eq!(PROVIDERS[0].reach(), ProviderReach::Node);
    }

    #[test]
    fn auto_prefers_adapters_to_tcp_and_takes_no_driver_of_one_node() {
        let networks = FabricSelection::networks();
        let names: Vec<_> = networks.iter().map(|one| one.name()).collect();
        assert_eq!(names, ["verbs", "portals", "tcp"]);
        for network in networks {
            let both = FabricSelection::combined_with(network).unwrap();
            assert_eq!(both.name(), format!("shm+{}", network.name()));
            assert!(both.is_combined() && !both.is_auto());
        }
        assert!(FabricSelection::combined_with(PROVIDERS[0]).is_none());
        assert!(FabricSelection::default().is_auto());
        assert!(!FabricSelection::named("shm").unwrap().is_auto());
    }

    #[test]
    fn every_default_is_accepted_by_its_setting_and_stays_as_it_is() {
        for setting in driver_settings() {
            let text = (setting.accepts)(setting.default);
            assert_eq!(text.as_deref(), Some(setting.default), "{}", setting.name);
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = PROVIDERS.iter().map(|one| one.name()).collect();
        names.extend(driver_settings().map(|one| one.name));
        names.extend(other_variables());
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for provider in PROVIDERS {
            for setting in provider.settings() {
                let known = driver_settings().find(|known| known.name == setting.name);
                assert!(
                    std::ptr::eq(known.unwrap(), *setting),
                    "{} is defined twice",
                    setting.name
                );
            }
        }
    }
}
