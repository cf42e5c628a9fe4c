//! Offers the Portals driver to jobs, with its settings.

use std::{io, sync::Arc};

use super::{Interface, Portals, PortalsConfig, PortalsCounters, library::PortalsLibrary};
use crate::{
    lanes::RAILS_MAX,
    provider::{
        DriverSetting, DriverValues, OpenRequest, OpenedDriver, Provider, ProviderReach,
        parsing::{one_of, or_auto, text, within},
    },
};

/// Prepares a [`Portals`].
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "has no fields")]
pub struct PortalsProvider;

impl Provider for PortalsProvider {
    fn name(&self) -> &'static str {
        "portals"
    }

    fn summary(&self) -> &'static str {
        "BXI, or any other network with a Portals 4 library"
    }

    fn reach(&self) -> ProviderReach {
        ProviderReach::Job
    }

    fn auto_latency_ns(&self) -> Option<u32> {
        Some(2_000)
    }

    fn settings(&self) -> &'static [&'static DriverSetting] {
        SETTINGS
    }

    /// The software Portals reads these.
    fn other_variables(&self) -> &'static [&'static str] {
        &[
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
        ]
    }

    fn thread_prefixes(&self) -> &'static [&'static str] {
        &["portals-"]
    }

    fn check(&self, values: &DriverValues) -> Result<String, String> {
        let config = config(values).map_err(|why| why.to_string())?;
        let library = PortalsLibrary::open(config.library.as_deref(), config.family.as_deref())
            .map_err(|why| why.to_string())?;
        Ok(format!(
            "a library with the binary interface {}, whose interfaces were not opened",
            library.profile.name
        ))
    }

    fn open(&self, request: OpenRequest<'_>) -> io::Result<OpenedDriver> {
        Portals::prepare(Self::config(&request)?).map(OpenedDriver::prepared)
    }
}

impl PortalsProvider {
    /// Returns the configuration with which [`open`](Provider::open) prepares the driver. For benchmarks that open it themselves.
    ///
    /// # Errors
    /// The same as those of [`open`](Provider::open) for settings.
    #[doc(hidden)]
    pub fn config(request: &OpenRequest<'_>) -> io::Result<PortalsConfig> {
        Ok(PortalsConfig {
            ends: request.ends(),
            counters: Arc::new(PortalsCounters::of(&request.counters)),
            ..config(request.values)?
        })
    }
}

/// Returns the configuration that the settings ask for.
fn config(values: &DriverValues) -> io::Result<PortalsConfig> {
    let named = |setting| {
        let value = values.get(setting);
        (!value.is_empty() && value != "auto").then(|| value.to_owned())
    };
    let (slabs, slab_len) = values.read(&SLABS, slabs);
    Ok(PortalsConfig {
        events: values.read(&EVENTS, events),
        slabs,
        slab_len,
        library: named(&LIBRARY).map(Into::into),
        family: named(&FAMILY),
        interfaces: values.read(&INTERFACES, interfaces),
        tags: match values.get(&TAGS) {
            "on" => Some(PortalsConfig::TAGS_LEAST),
            least => least.parse().ok(),
        },
        ..PortalsConfig::default()
    })
}

const SETTINGS: &[&DriverSetting] = &[&LIBRARY, &FAMILY, &INTERFACES, &TAGS, &EVENTS, &SLABS];

static LIBRARY: DriverSetting = DriverSetting {
    name: "RIPSTOP_PORTALS_LIBRARY",
    range: "a file",
    meaning: "the file of the Portals 4 library; by default libportals.so.4, where the loader finds it",
    default: "",
    accepts: text,
};

static FAMILY: DriverSetting = DriverSetting {
    name: "RIPSTOP_PORTALS_ABI",
    range: FAMILIES,
    meaning: "the family of Portals libraries whose binary interface that library has",
    default: "auto",
    accepts: |value| one_of(FAMILIES, value),
};

const FAMILIES: &str = "auto | sandia42 | sandia43 | portails4 | bxi2 | bxi3";

static INTERFACES: DriverSetting = DriverSetting {
    name: "RIPSTOP_PORTALS_IFACES",
    range: "auto | interfaces, like 0,1,2,3, or with weights, like 0:2,1:1",
    meaning: "the network interfaces of a rank: messages between two ranks use one of them, long transfers are split over \
              all",
    default: "auto",
    accepts: |value| interfaces(value).map(|all| interfaces_text(&all)),
};

static TAGS: DriverSetting = DriverSetting {
    name: "RIPSTOP_PORTALS_TAGS",
    range: "auto | on | off | bytes",
    meaning: "whether the Portals adapter matches messages and puts them into the posted buffers, and from which length \
              in bytes",
    default: "auto",
    accepts: |value| {
        one_of("auto | on | off", value)
            .or_else(|| within(1..=usize::MAX, value).map(|least| least.to_string()))
    },
};

static EVENTS: DriverSetting = DriverSetting {
    name: "RIPSTOP_PORTALS_EVENTS",
    range: "8..=1048576 events",
    meaning: "over Portals, how many events a queue holds: those of operations in flight, and those of arrived messages \
              that wait to be handled",
    default: "4096",
    accepts: |value| events(value).map(|events| events.to_string()),
};

static SLABS: DriverSetting = DriverSetting {
    name: "RIPSTOP_PORTALS_SLABS",
    range: "slabs x bytes, like 4x1048576; 2 to 1024 of 131328 to 16777216",
    meaning: "over Portals, the buffers that receive messages from all peers: a sender waits while they are full",
    default: "4x1048576",
    accepts: |value| slabs(value).map(|(count, len)| format!("{count}x{len}")),
};

fn events(value: &str) -> Option<u32> {
    within(8..=1 << 20, value)
}

fn slabs(value: &str) -> Option<(usize, usize)> {
    let (count, len) = value.split_once('x')?;
    Some((within(2..=1024, count)?, within(131_328..=16 << 20, len)?))
}

/// Parses one to four interfaces, each different, or none for `auto`.
fn interfaces(value: &str) -> Option<Vec<Interface>> {
    or_auto(value, |value| {
        let all: Vec<_> = value.split(',').map(interface).collect::<Option<_>>()?;
        let once = |at: usize| all[..at].iter().all(|one| one.number != all[at].number);
        (all.len() <= RAILS_MAX && (0..all.len()).all(once)).then_some(all)
    })
    .map(Option::unwrap_or_default)
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

fn interfaces_text(all: &[Interface]) -> String {
    if all.is_empty() {
        return "auto".to_owned();
    }
    let plain = all.iter().all(|one| one.weight == 1);
    let say = |one: &Interface| match one.weight {
        _ if plain => one.number.to_string(),
        weight => format!("{}:{weight}", one.number),
    };
    all.iter().map(say).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::{DriverSetting, EVENTS, INTERFACES, SLABS, TAGS};

    #[track_caller]
    fn accepts(setting: &DriverSetting, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!((setting.accepts)(text).as_deref(), Some(*text));
        }
        for text in bad {
            assert_eq!((setting.accepts)(text), None, "{text}");
        }
    }

    #[test]
    fn room_for_messages_has_a_least_and_is_printed_as_it_is_read() {
        let good = ["2x131328", "4x1048576", "1024x16777216"];
        let bad = [
            "1x1048576",
            "2x131327",
            "2",
            "x",
            "2x131328x1",
            "1025x131328",
        ];
        accepts(&SLABS, &good, &bad);
        accepts(&EVENTS, &["8", "1048576"], &["7", "1048577", ""]);
    }

    #[test]
    fn interfaces_may_have_weights_and_are_printed_as_they_are_read() {
        let good = ["auto", "0,1", "3,1,0,2", "0:2,1:1", "1:1000,0:1"];
        let bad = ["0:0", "0:1001", "0:", ":1", "0,0:2", "0:1:1", "0,1,2,3,4"];
        accepts(&INTERFACES, &good, &bad);
    }

    #[test]
    fn tags_have_a_least_length_or_are_on_or_off() {
        accepts(
            &TAGS,
            &["auto", "on", "off", "1", "8192"],
            &["0", "-1", "", "yes"],
        );
    }
}
