//! Offers the driver for InfiniBand and RoCE to jobs, with its settings.

use std::{io, sync::Arc};

use super::{DevicePort, Verbs, VerbsConfig, library::VerbsLibrary};
use crate::{
    connect::settings::{CONNECT, PATTERN, pattern, scheme},
    lanes::RAILS_MAX,
    provider::{
        DriverEndpoint, DriverSetting, DriverValues, OpenRequest, OpenedDriver, Provider,
        ProviderReach,
        parsing::{auto_or, or_auto, text, within},
    },
};

/// Prepares a [`Verbs`].
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "has no fields")]
pub struct VerbsProvider;

impl Provider for VerbsProvider {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn summary(&self) -> &'static str {
        "InfiniBand or RoCE"
    }

    fn reach(&self) -> ProviderReach {
        ProviderReach::Job
    }

    fn auto_latency_ns(&self) -> Option<u32> {
        Some(1_500)
    }

    fn settings(&self) -> &'static [&'static DriverSetting] {
        SETTINGS
    }

    /// Tests of the driver read this one: they fail where there is no device, and are not left out.
    fn other_variables(&self) -> &'static [&'static str] {
        &["RIPSTOP_VERBS_REQUIRED"]
    }

    fn thread_prefixes(&self) -> &'static [&'static str] {
        &["verbs-"]
    }

    fn check(&self, values: &DriverValues) -> Result<String, String> {
        VerbsLibrary::open().map_err(|why| why.to_string())?;
        let chosen =
            DevicePort::choose(device(values).as_deref(), 0).map_err(|why| why.to_string())?;
        let used: Vec<_> = chosen
            .ports
            .iter()
            .map(|(port, _)| described(port))
            .collect();
        let down: Vec<_> = chosen.left_out.iter().map(DevicePort::to_string).collect();
        Ok(match down.len() {
            0 => used.join(", "),
            _ => format!(
                "{}; left out, because they are down: {}",
                used.join(", "),
                down.join(", ")
            ),
        })
    }

    fn open(&self, request: OpenRequest<'_>) -> io::Result<OpenedDriver> {
        let prepared = Verbs::prepare(config(&request))?;
        let notice = |port: &DevicePort| {
            format!(
                "port {port} is down and left out: see `ibv_devinfo`, or name other ports with RIPSTOP_VERBS_DEVICE"
            )
        };
        Ok(OpenedDriver {
            notices: prepared.left_out().iter().map(notice).collect(),
            endpoint: DriverEndpoint::Prepared(Box::new(prepared)),
        })
    }
}

/// Returns the configuration that the settings and the place of the rank ask for.
fn config(request: &OpenRequest<'_>) -> VerbsConfig {
    let (place, values) = (&request.place, request.values);
    let mut config = VerbsConfig::new(place.rank, place.size);
    config.place = place.on_node();
    config.ranks_per_node = place.ranks_per_node;
    config.device = device(values);
    config.gid_index = values.read(&GID_INDEX, gid_indices);
    config.scheme = values.read(&CONNECT, scheme);
    config.pattern = values.read(&PATTERN, pattern);
    config.connections_max = values.read(&CONNECTIONS, connections);
    config.pinned_max = values.read(&PINNED, pinned);
    // The time for which the adapter retransmits is not the time for which a host may be silent, unless that was configured.
    if let Some(detect) = request.detect {
        config.patience = config.patience.max(detect);
    }
    config.counters = Arc::clone(&request.counters);
    config
}

fn device(values: &DriverValues) -> Option<String> {
    let device = values.get(&DEVICE);
    (!device.is_empty()).then(|| device.to_owned())
}

fn described(port: &DevicePort) -> String {
    let link = if port.ethernet { "RoCE" } else { "InfiniBand" };
    format!("port {port} ({link})")
}

const SETTINGS: &[&DriverSetting] = &[
    &DEVICE,
    &GID_INDEX,
    &CONNECT,
    &PATTERN,
    &CONNECTIONS,
    &PINNED,
];

static DEVICE: DriverSetting = DriverSetting {
    name: "RIPSTOP_VERBS_DEVICE",
    range: "devices, or device:port, like mlx5_0,mlx5_1 or with weights, like mlx5_0*2,mlx5_1",
    meaning: "the adapters of a rank: messages between two ranks use one of them, long transfers are split over all; by \
              default, the ranks of a node take turns among the adapters",
    default: "",
    accepts: text,
};

static GID_INDEX: DriverSetting = DriverSetting {
    name: "RIPSTOP_VERBS_GID_INDEX",
    range: "auto | 0..=255, or one for each adapter, like 3,1",
    meaning: "the number of the port address (GID) that the adapters use; by default, each adapter uses its RoCE v2 \
              address over IPv4, if it has one",
    default: "auto",
    accepts: |value| gid_indices(value).map(|all| gid_indices_text(&all)),
};

static CONNECTIONS: DriverSetting = DriverSetting {
    name: "RIPSTOP_VERBS_CONNECTIONS",
    range: "auto | 2..=1048576 peers",
    meaning: "how many peers a rank is connected to at a time; for another peer, the least recently used connection is \
              evicted",
    default: "auto",
    accepts: |value| connections(value).map(|max| auto_or(&max, u32::to_string)),
};

static PINNED: DriverSetting = DriverSetting {
    name: "RIPSTOP_VERBS_PINNED",
    range: "65536..=1099511627776 bytes",
    meaning: "how much memory of the application an adapter may keep registered at a time; transfers that do not fit are \
              sent as messages, or wait",
    default: "17179869184",
    accepts: |value| pinned(value).map(|bytes| bytes.to_string()),
};

/// Parses one to four indices, or none for `auto`.
fn gid_indices(value: &str) -> Option<Vec<u8>> {
    or_auto(value, |value| {
        let all = value.split(',').map(|one| within(0..=u8::MAX, one.trim()));
        let all: Vec<u8> = all.collect::<Option<_>>()?;
        (all.len() <= RAILS_MAX).then_some(all)
    })
    .map(Option::unwrap_or_default)
}

fn gid_indices_text(all: &[u8]) -> String {
    auto_or(&(!all.is_empty()).then_some(all), |all| {
        all.iter().map(u8::to_string).collect::<Vec<_>>().join(",")
    })
}

#[expect(clippy::option_option, reason = "no value, `auto`, or a value")]
fn connections(value: &str) -> Option<Option<u32>> {
    or_auto(value, |value| within(2..=1 << 20, value))
}

fn pinned(value: &str) -> Option<u64> {
    within(65_536..=1 << 40, value)
}

#[cfg(test)]
mod tests {
    use super::{GID_INDEX, PINNED, VerbsConfig, gid_indices, pinned};
    use crate::driver::WorldRank;

    #[test]
    fn the_address_of_a_port_is_named_by_its_number() {
        assert_eq!(gid_indices("auto").unwrap(), []);
        assert_eq!(gid_indices("0").unwrap(), [0]);
        assert_eq!(gid_indices("255").unwrap(), [255]);
        assert_eq!(gid_indices("3,1,0,3").unwrap(), [3, 1, 0, 3]);
        for text in ["256", "-1", "", "x", "1,", "1,256", "1,auto", "1,2,3,4,5"] {
            assert!(gid_indices(text).is_none(), "{text}");
        }
        for text in ["auto", "0", "3,1"] {
            assert_eq!((GID_INDEX.accepts)(text).as_deref(), Some(text));
        }
    }

    #[test]
    fn the_default_of_pinned_memory_is_the_drivers_own() {
        let default = VerbsConfig::new(WorldRank(0), 1).pinned_max;
        assert_eq!(pinned(PINNED.default), Some(default));
    }
}
