//! `ripstop info --fabrics`: all drivers, and whether each can run on this machine.

use ripstop::Settings;
use ripstop_fabric::{
    provider::{Provider, ProviderReach},
    registry::{FabricSelection, PROVIDERS},
};
use serde_json::{Value, json};

/// Returns a list of all drivers, and what the settings select.
pub(crate) fn text(settings: &Settings) -> String {
    let mut text = format!("Fabrics: {}\n", selected(settings));
    for provider in PROVIDERS {
        let found = match provider.check(&settings.driver_values) {
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

/// Returns the list as a JSON array.
pub(crate) fn json(settings: &Settings) -> Value {
    let row = |provider: &&dyn Provider| {
        let found = provider.check(&settings.driver_values);
        json!({
            "name": provider.name(),
            "summary": provider.summary(),
            "reaches": reach(provider.reach()),
            "usable": found.is_ok(),
            "found": found.as_ref().ok(),
            "why_not": found.as_ref().err(),
        })
    };
    Value::Array(PROVIDERS.iter().map(row).collect())
}

fn selected(settings: &Settings) -> String {
    let fabric = settings.fabric;
    let range = FabricSelection::range();
    let inside = if fabric.is_combined() {
        "shared memory within nodes, and between nodes "
    } else {
        ""
    };
    format!(
        "RIPSTOP_FABRIC={} selects {inside}{}; it may be {range}",
        fabric.name(),
        fabric.provider().summary()
    )
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
    use super::{PROVIDERS, Settings, json, text};

    #[test]
    fn every_driver_is_usable_or_says_why_not() {
        let mut settings = Settings::new();
        let nowhere = "/nowhere/libportals.so";
        settings.set("RIPSTOP_PORTALS_LIBRARY", nowhere).unwrap();
        let rows = json(&settings);
        let rows = rows.as_array().unwrap();
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
        let text = text(&settings);
        assert!(text.contains("RIPSTOP_FABRIC=auto"), "{text}");
        assert!(text.contains(&format!("not usable here: {why}")), "{text}");
        settings.set("RIPSTOP_FABRIC", "shm+verbs").unwrap();
        let text = super::text(&settings);
        let both = "shared memory within nodes, and between nodes InfiniBand";
        assert!(text.contains(both), "{text}");
    }
}
