//! The networks: what their drivers say, and the ports of adapters.

use ripstop::settings::Settings;
use ripstop_fabric::{
    provider::ProviderReach,
    registry::{FabricSelection, PROVIDERS},
};

use crate::{doctor::finding::CheckFinding, system_files::SystemFiles};

/// What is known about networks.
#[derive(Debug)]
pub(in crate::doctor) struct NetworkFacts {
    drivers: Vec<DriverAnswer>,
    /// The driver that the settings select; none if the ranks choose.
    selected: Option<&'static str>,
    ports: Vec<AdapterPort>,
}

/// What a driver's check says about this machine.
#[derive(Clone, Debug)]
pub(in crate::doctor) struct DriverAnswer {
    pub(in crate::doctor) name: &'static str,
    pub(in crate::doctor) reach: ProviderReach,
    pub(in crate::doctor) found: Result<String, String>,
}

/// A port of an InfiniBand or RoCE adapter.
#[derive(Debug)]
struct AdapterPort {
    /// Device and number, such as `mlx5_0/1`.
    name: String,
    state: String,
    rate: String,
    link_layer: String,
}

/// Returns what each driver's check says. Loads the drivers' libraries.
pub(in crate::doctor) fn driver_answers(settings: &Settings) -> Vec<DriverAnswer> {
    let answer = |provider: &&'static dyn ripstop_fabric::provider::Provider| DriverAnswer {
        name: provider.name(),
        reach: provider.reach(),
        found: provider.check(&settings.driver_values),
    };
    PROVIDERS.iter().map(answer).collect()
}

impl NetworkFacts {
    pub(in crate::doctor) fn observe(
        files: &dyn SystemFiles,
        drivers: &[DriverAnswer],
        fabric: FabricSelection,
    ) -> Self {
        Self {
            drivers: drivers.to_vec(),
            selected: (!fabric.is_auto()).then(|| fabric.provider().name()),
            ports: ports(files),
        }
    }

    pub(in crate::doctor) fn findings(&self) -> Vec<CheckFinding> {
        let networks = self.drivers.iter();
        let networks = networks.filter(|driver| driver.reach == ProviderReach::Job);
        let judged = networks.map(|driver| match driver.name {
            name if self.selected == Some(name) && driver.found.is_err() => unusable(driver),
            "tcp" => tcp(&driver.found),
            name => self.adapter(name, &driver.found),
        });
        judged.chain([self.ports_finding()]).collect()
    }

    /// Judges a network that needs an adapter: it is a fault only if the adapter is there.
    fn adapter(&self, name: &str, found: &Result<String, String>) -> CheckFinding {
        let check = format!("network.{name}");
        match found {
            Ok(found) => CheckFinding::ok(&check, found),
            Err(why) if name == "verbs" && !self.ports.is_empty() => CheckFinding::warn(
                &check,
                format!("this machine has {}, and {why}", self.port_names()),
                "jobs on several nodes then use a slower network, as all ranks choose one that each of them offers",
                "install the adapter's user library (rdma-core: libibverbs1 and ibverbs-providers), and give a container the \
                 devices under /dev/infiniband",
            ),
            Err(why) => CheckFinding::skip(&check, why),
        }
    }

    fn ports_finding(&self) -> CheckFinding {
        const CHECK: &str = "network.ports";
        if self.ports.is_empty() {
            return CheckFinding::skip(CHECK, "there is no InfiniBand or RoCE adapter");
        }
        let is_down = |port: &&AdapterPort| !port.state.contains("ACTIVE");
        let down = self.ports.iter().filter(is_down);
        let down: Vec<&AdapterPort> = down.collect();
        let Some(worst) = down.first() else {
            let text =
                |port: &AdapterPort| format!("{} {} {}", port.name, port.link_layer, port.rate);
            let all: Vec<String> = self.ports.iter().map(text).collect();
            return CheckFinding::ok(CHECK, all.join(", "));
        };
        let seen = format!(
            "{} of {} ports are not active: {} is in state {}",
            down.len(),
            self.ports.len(),
            worst.name,
            worst.state
        );
        let why = "a port that is not active carries nothing, and Ripstop uses the others";
        if down.len() < self.ports.len() {
            return CheckFinding::note(CHECK, seen, why, "plug the cable in, if it should be used");
        }
        CheckFinding::warn(
            CHECK,
            seen,
            "no port carries messages, so jobs on several nodes use a slower network",
            "see `ibstat`: the cable, the switch, or for InfiniBand the subnet manager is missing",
        )
    }

    fn port_names(&self) -> String {
        let names: Vec<&str> = self.ports.iter().map(|port| port.name.as_str()).collect();
        names.join(", ")
    }
}

/// Judges a network that jobs must use, and cannot.
fn unusable(driver: &DriverAnswer) -> CheckFinding {
    CheckFinding::fail(
        &format!("network.{}", driver.name),
        driver.found.as_ref().err().map_or("", String::as_str),
        "RIPSTOP_FABRIC selects this network, so a program of Ripstop ends with this error when it starts",
        "do what the error says, or unset RIPSTOP_FABRIC, so that the ranks choose a network that all of them have",
    )
}

fn tcp(found: &Result<String, String>) -> CheckFinding {
    const CHECK: &str = "network.tcp";
    match found {
        Ok(found) if found.contains(LOOPBACK_ONLY) => CheckFinding::note(
            CHECK,
            found,
            "jobs on several nodes need an address that the other nodes reach",
            "jobs on this machine alone need nothing; for others, give the container a network, or name an interface in \
             RIPSTOP_TCP_IFACE",
        ),
        Ok(found) => CheckFinding::ok(CHECK, found).varying(),
        Err(why) => CheckFinding::warn(
            CHECK,
            why,
            "jobs on several nodes need an address that the other nodes reach",
            if why.contains("RIPSTOP_TCP_IFACE") {
                "name an interface that is up in RIPSTOP_TCP_IFACE, or unset it"
            } else {
                "jobs on this machine alone need nothing; for others, set an interface up, or give the container a network"
            },
        ),
    }
}

fn ports(files: &dyn SystemFiles) -> Vec<AdapterPort> {
    let mut ports = Vec::new();
    for device in files.names(ADAPTERS) {
        for number in files.names(&format!("{ADAPTERS}/{device}/ports")) {
            let text = |what: &str| {
                let path = format!("{ADAPTERS}/{device}/ports/{number}/{what}");
                files.text(&path).unwrap_or_else(|| "unknown".to_owned())
            };
            ports.push(AdapterPort {
                name: format!("{device}/{number}"),
                state: text("state"),
                rate: text("rate"),
                link_layer: text("link_layer"),
            });
        }
    }
    ports
}

const ADAPTERS: &str = "/sys/class/infiniband";

/// Words of the TCP driver's answer if it has only the loopback interface.
const LOOPBACK_ONLY: &str = "reaches only ranks of this machine";

#[cfg(test)]
mod tests {
    use ripstop::settings::Settings;
    use ripstop_fabric::{provider::ProviderReach, registry::FabricSelection};

    use super::{DriverAnswer, LOOPBACK_ONLY, NetworkFacts, driver_answers};
    use crate::{
        doctor::finding::CheckState::{Fail, Note, Ok as Fine, Skip, Warn},
        system_files::{MachineFiles, SystemFiles, made_up::MadeUpFiles},
    };

    fn answer(name: &'static str, found: Result<&str, &str>) -> DriverAnswer {
        DriverAnswer {
            name,
            reach: ProviderReach::Job,
            found: found.map(str::to_owned).map_err(str::to_owned),
        }
    }

    #[test]
    fn a_network_is_at_fault_only_if_its_adapter_is_here() {
        let state = "/sys/class/infiniband/mlx5_0/ports/1/state";
        let second = "/sys/class/infiniband/mlx5_1/ports/1/state";
        let no_library = Err("libibverbs.so.1 does not load");
        for (files, found, expected) in [
            (vec![], no_library, [Skip, Skip]),
            (vec![(state, "4: ACTIVE")], no_library, [Warn, Fine]),
            (vec![(state, "4: ACTIVE")], Ok("mlx5_0"), [Fine, Fine]),
            (
                vec![(state, "1: DOWN")],
                Err("no active port"),
                [Warn, Warn],
            ),
            (
                vec![(state, "4: ACTIVE"), (second, "1: DOWN")],
                Ok("mlx5_0"),
                [Fine, Note],
            ),
        ] {
            let files = MadeUpFiles::new(&files);
            let facts = NetworkFacts::observe(
                &files,
                &[answer("verbs", found)],
                FabricSelection::default(),
            );
            let findings = facts.findings();
            let states: Vec<_> = findings.iter().map(|finding| finding.state).collect();
            assert_eq!(states, expected, "{files:?} {findings:?}");
        }
    }

    #[test]
    fn tcp_needs_an_address_for_other_nodes_only() {
        let alone = format!("lo (127.0.0.1/8), which {LOOPBACK_ONLY}");
        for (found, expected) in [
            (Ok("eth0 (10.0.0.1/24)"), Fine),
            (Ok(&*alone), Note),
            (Err("RIPSTOP_TCP_IFACE names no interface"), Warn),
        ] {
            let files = MadeUpFiles::default();
            let answers = [answer("tcp", found)];
            let facts = NetworkFacts::observe(&files, &answers, FabricSelection::default());
            assert_eq!(facts.findings()[0].state, expected, "{found:?}");
        }
    }

    #[test]
    fn a_network_that_was_selected_and_cannot_run_is_a_failure() {
        let mut settings = Settings::new();
        settings.set("RIPSTOP_FABRIC", "shm+portals").unwrap();
        let answers = [
            answer("portals", Err("no library")),
            answer("verbs", Err("no device")),
        ];
        let files = MadeUpFiles::default();
        let findings = NetworkFacts::observe(&files, &answers, settings.fabric).findings();
        let states: Vec<_> = findings.iter().map(|finding| finding.state).collect();
        assert_eq!(states, [Fail, Skip, Skip]);
    }

    #[test]
    fn the_drivers_say_the_words_that_the_checks_look_for() {
        let mut settings = Settings::new();
        // Everything but the loopback interface is left out.
        let names = MachineFiles.names("/sys/class/net").into_iter();
        let others: Vec<String> = names.filter(|name| name != "lo").collect();
        let others = format!("^{},nothing0", others.join(","));
        settings.set("RIPSTOP_TCP_IFACE", &others).unwrap();
        let answers = driver_answers(&settings);
        let found = |name: &str| {
            let mut all = answers.iter();
            all.find(|answer| answer.name == name)
                .unwrap()
                .found
                .clone()
        };
        let tcp = found("tcp").unwrap();
        assert!(tcp.contains(LOOPBACK_ONLY), "{tcp}");
        let shm = found("shm").unwrap();
        assert!(
            shm.contains("copied once") || shm.contains("copied twice"),
            "{shm}"
        );
        assert!(answers.iter().any(|answer| answer.name == "verbs"));

        settings.set("RIPSTOP_TCP_IFACE", "nothing0").unwrap();
        let answers = driver_answers(&settings);
        let tcp = answers.iter().find(|answer| answer.name == "tcp").unwrap();
        let why = tcp.found.as_ref().unwrap_err();
        assert!(why.contains("RIPSTOP_TCP_IFACE"), "{why}");
    }
}
