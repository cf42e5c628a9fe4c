//! Offers the TCP driver to jobs, with its settings.

use std::{io, sync::Arc, time::Duration};

use super::{
    ListenAddress, PreparedTcp, TcpConfig,
    checksum::{CHECKSUM, is_on},
    congestion::{CONGESTION, algorithm},
    interfaces::{
        ChosenAddress, IFACE, InterfaceSelection, LoopbackUse, NetworkInterface, PORTS, port_range,
    },
};
use crate::provider::{
    DriverEndpoint, DriverSetting, DriverValues, OpenRequest, OpenedDriver, Provider, ProviderReach,
};

/// Prepares a [`Tcp`](super::Tcp).
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "has no fields")]
pub struct TcpProvider;

impl Provider for TcpProvider {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn summary(&self) -> &'static str {
        "any network with TCP"
    }

    fn reach(&self) -> ProviderReach {
        ProviderReach::Job
    }

    fn auto_latency_ns(&self) -> Option<u32> {
        Some(15_000)
    }

    fn settings(&self) -> &'static [&'static DriverSetting] {
        SETTINGS
    }

    fn thread_prefixes(&self) -> &'static [&'static str] {
        &["tcp-"]
    }

    fn check(&self, values: &DriverValues) -> Result<String, String> {
        let selection = values.read(&IFACE, InterfaceSelection::parse);
        let interfaces = interfaces()?;
        if let Ok(chosen) = selection.choose(&interfaces, LoopbackUse::Never) {
            return Ok(described(&chosen));
        }
        let chosen = selection.choose(&interfaces, LoopbackUse::IfNothingElse)?;
        let chosen = described(&chosen);
        Ok(format!(
            "{chosen}, which reaches only ranks of this machine"
        ))
    }

    fn open(&self, request: OpenRequest<'_>) -> io::Result<OpenedDriver> {
        let place = &request.place;
        let loopback = if place.ranks_per_node == place.size {
            LoopbackUse::IfNothingElse
        } else {
            LoopbackUse::Never
        };
        let selection = request.values.read(&IFACE, InterfaceSelection::parse);
        let chosen = interfaces().and_then(|all| selection.choose(&all, loopback));
        let chosen = chosen.map_err(|why| io::Error::new(io::ErrorKind::AddrNotAvailable, why))?;
        let listen = chosen.iter().map(|one| ListenAddress {
            ip: one.address.ip,
            prefix: one.address.prefix,
            speed: one.speed,
        });
        let config = TcpConfig {
            rank: place.rank.0,
            listen: listen.collect(),
            patience: request.patience,
            silence: request
                .detect
                .map_or(SILENCE, |detect| (2 * detect).max(SILENCE_LEAST)),
            linger: LINGER,
            checksum: request.values.read(&CHECKSUM, is_on),
            congestion: request.values.read(&CONGESTION, algorithm),
            ends: request.ends(),
            counters: Arc::clone(&request.counters),
        };
        let ports = request.values.read(&PORTS, port_range);
        let mut notices = vec![format!("TCP listens on {}", described(&chosen))];
        notices.extend(short_queue(place.size));
        Ok(OpenedDriver {
            endpoint: DriverEndpoint::Prepared(Box::new(PreparedTcp::open(config, ports)?)),
            notices,
        })
    }
}

const SETTINGS: &[&DriverSetting] = &[&IFACE, &PORTS, &CONGESTION, &CHECKSUM];

fn interfaces() -> Result<Vec<NetworkInterface>, String> {
    NetworkInterface::all()
        .map_err(|why| format!("the network interfaces of this host cannot be listed ({why})"))
}

/// Returns a notice if the kernel keeps fewer connections for a listener than may come at once.
fn short_queue(ranks: u32) -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/net/core/somaxconn").ok()?;
    queue_notice(text.trim().parse().ok()?, ranks)
}

fn queue_notice(queue: u32, ranks: u32) -> Option<String> {
    (queue < ranks).then(|| {
        format!(
            "{ranks} ranks may connect to one at once, and this host keeps {queue} connections that wait: connecting may take \
             seconds; raise net.core.somaxconn"
        )
    })
}

fn described(chosen: &[ChosenAddress]) -> String {
    let each: Vec<_> = chosen.iter().map(ChosenAddress::to_string).collect();
    each.join(", ")
}

/// Time after which a silent host is considered gone, unless the user has set one.
const SILENCE: Duration = Duration::from_secs(30);

/// Shorter limits declare peers dead whose packets were lost a few times in a row.
const SILENCE_LEAST: Duration = Duration::from_secs(5);

/// Time for peers that take what was sent last later than the rank ends.
const LINGER: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::queue_notice;

    #[test]
    fn a_listener_for_fewer_connections_than_ranks_is_noticed() {
        assert_eq!(queue_notice(128, 128), None);
        let notice = queue_notice(128, 129).unwrap();
        assert!(notice.contains("129 ranks") && notice.contains("net.core.somaxconn"));
    }
}
