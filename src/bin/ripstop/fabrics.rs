//! `ripstop info --fabrics`: all drivers, whether each can run on this machine, and which ones jobs get by themselves.

use ripstop::settings::Settings;
use ripstop_fabric::{
    provider::{Provider, ProviderReach},
    registry::{FabricSelection, PROVIDERS},
};
use serde_json::{Value, json};

/// The drivers, each with what its check found.
pub(crate) struct FabricsReport {
    fabric: FabricSelection,
    drivers: Vec<CheckedDriver>,
}

type CheckedDriver = (&'static dyn Provider, Result<String, String>);

impl FabricsReport {
    /// Checks all drivers, which loads their libraries.
    pub(crate) fn of(settings: &Settings) -> Self {
        let check = |provider: &&'static dyn Provider| -> CheckedDriver {
            (*provider, provider.check(&settings.driver_values))
        };
        Self {
            fabric: settings.fabric,
            drivers: PROVIDERS.iter().map(check).collect(),
        }
    }

    /// Returns a list of all drivers, and what the settings select.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("Fabrics: {}\n", self.selected());
        for (provider, found) in &self.drivers {
            let found = match found {
                Ok(found) => format!("usable: {found}"),
                Err(why) => format!("not usable here: {why}"),
            };
            text += &format!(
                "{:<12} {}\n{:12} {found}\n",
                provider.name(),
                provider.summary(),
                ""
            );
        }
        text
    }

    /// Adds the list as a JSON array, and what the settings select.
    pub(crate) fn add_json(&self, facts: &mut serde_json::Map<String, Value>) {
        let row = |(provider, found): &CheckedDriver| {
            json!({
                "name": provider.name(),
                "summary": provider.summary(),
                "reaches": reach(provider.reach()),
                "auto_latency_ns": provider.auto_latency_ns(),
                "usable": found.is_ok(),
                "found": found.as_ref().ok(),
                "why_not": found.as_ref().err(),
            })
        };
        let rows = self.drivers.iter().map(row).collect();
        facts.insert("fabrics".to_owned(), Value::Array(rows));
        let [one, several] = self.fabrics_of_jobs();
        let selected = json!({
            "setting": self.fabric.name(),
            "on_one_node": one,
            "on_several_nodes": several,
        });
        facts.insert("fabric_selected".to_owned(), selected);
    }

    fn selected(&self) -> String {
        let (fabric, range) = (self.fabric, FabricSelection::range());
        let what = match self.fabrics_of_jobs() {
            [Some(one), Some(several)] if fabric.is_auto() => format!(
                "{one} for a job on one node and {several} for one on several nodes, if they all offer it"
            ),
            [Some(one), None] if fabric.is_auto() => {
                format!("{one} for a job on one node, and nothing for one on several nodes")
            }
            _ if fabric.is_combined() => format!(
                "shared memory within nodes, and between nodes {}",
                fabric.provider().summary()
            ),
            _ => fabric.provider().summary().to_owned(),
        };
        format!(
            "RIPSTOP_FABRIC={} selects {what}; it may be {range}",
            fabric.name()
        )
    }

    /// Returns the names of the fabrics that jobs on one node and on several nodes get, as far as this machine knows.
    fn fabrics_of_jobs(&self) -> [Option<&'static str>; 2] {
        if !self.fabric.is_auto() {
            let reaches_all = self.fabric.provider().reach() == ProviderReach::Job;
            let name = self.fabric.name();
            return [Some(name), reaches_all.then_some(name)];
        }
        let network = FabricSelection::networks()
            .into_iter()
            .find(|network| self.is_usable(network.name()));
        let several = network.and_then(FabricSelection::combined_with);
        let one = self.fabric.provider().name();
        [Some(one), several.map(FabricSelection::name)]
    }

    fn is_usable(&self, name: &str) -> bool {
        let mut drivers = self.drivers.iter();
        drivers.any(|(provider, found)| provider.name() == name && found.is_ok())
    }
}

fn reach(reach: ProviderReach) -> &'static str {
    match reach {
        ProviderReach::Rank => "rank",
        ProviderReach::Node => "node",
        _ => "job",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::{FabricsReport, PROVIDERS, Settings};

    fn json(settings: &Settings) -> Map<String, Value> {
        let mut facts = Map::new();
        FabricsReport::of(settings).add_json(&mut facts);
        facts
    }

    fn text(settings: &Settings) -> String {
        FabricsReport::of(settings).text()
    }

    #[test]
    fn every_driver_is_usable_or_says_why_not() {
        let mut settings = Settings::new();
        let nowhere = "/nowhere/libportals.so";
        settings.set("RIPSTOP_PORTALS_LIBRARY", nowhere).unwrap();
        let facts = json(&settings);
        let rows = facts["fabrics"].as_array().unwrap();
        assert_eq!(rows.len(), PROVIDERS.len());
        for row in rows {
            let usable = row["usable"].as_bool().unwrap();
            assert_eq!(usable, row["why_not"].is_null(), "{row}");
            assert_eq!(usable, row["found"].is_string(), "{row}");
        }
        let row = |name| rows.iter().find(|row| row["name"] == name).unwrap();
        let why = row("portals")["why_not"].as_str().unwrap();
        assert!(why.contains(nowhere), "{why}");
        assert_eq!(row("shm")["usable"], true);
        let shown = text(&settings);
        assert!(shown.contains("RIPSTOP_FABRIC=auto"), "{shown}");
        assert!(
            shown.contains(&format!("not usable here: {why}")),
            "{shown}"
        );
        settings.set("RIPSTOP_FABRIC", "shm+verbs").unwrap();
        let shown = text(&settings);
        let both = "shared memory within nodes, and between nodes InfiniBand";
        assert!(shown.contains(both), "{shown}");
    }

    #[test]
    fn what_jobs_get_by_themselves_is_the_best_that_is_usable_here() {
        let mut settings = Settings::new();
        settings.set("RIPSTOP_VERBS_DEVICE", "nothing0").unwrap();
        settings.set("RIPSTOP_PORTALS_LIBRARY", "/nowhere").unwrap();
        settings.set("RIPSTOP_TCP_IFACE", "lo").unwrap();
        let selected = |settings: &Settings| json(settings)["fabric_selected"].clone();
        let chosen = selected(&settings);
        assert_eq!(chosen["setting"], "auto");
        assert_eq!(chosen["on_one_node"], "shm");
        assert_eq!(chosen["on_several_nodes"], "shm+tcp");
        let shown = text(&settings);
        assert!(
            shown.contains("shm for a job on one node and shm+tcp for"),
            "{shown}"
        );
        settings.set("RIPSTOP_TCP_IFACE", "nothing0").unwrap();
        assert!(selected(&settings)["on_several_nodes"].is_null());
        let shown = text(&settings);
        assert!(
            shown.contains("nothing for one on several nodes"),
            "{shown}"
        );
        settings.set("RIPSTOP_FABRIC", "shm").unwrap();
        let chosen = selected(&settings);
        assert_eq!(chosen["on_one_node"], "shm");
        assert!(chosen["on_several_nodes"].is_null(), "{chosen}");
    }
}
