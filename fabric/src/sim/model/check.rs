//! Checks that a model is valid.

use super::{BYTE_PS, LOSS_PPB_MAX, Model, Noise, RAILS, TIME_NS, Topology};
use crate::sim::config::ConfigError;

impl Model {
    /// Checks that the model is valid for this many ranks.
    pub(in crate::sim) fn check(&self, ranks: u32) -> Result<(), ConfigError> {
        let (host, nic) = (&self.host, &self.nic);
        need(RAILS.contains(&nic.rails), "nic.rails", || {
            format!("{} is out of range: give 1 to 8", nic.rails)
        })?;
        for (field, limit) in [
            ("nic.queue", nic.queue),
            ("nic.queue_bytes", nic.queue_bytes),
            ("nic.commands", nic.commands),
            ("node.ranks", self.node.ranks),
        ] {
            need(limit > 0, field, || {
                "0 is too small: give at least 1".to_owned()
            })?;
        }
        need(
            nic.connect_alone_ns <= nic.connect_ns,
            "nic.connect_alone_ns",
            || {
                let (alone, all) = (nic.connect_alone_ns, nic.connect_ns);
                format!(
                    "{alone} is too large: give at most {all}, the whole time of a queue pair (nic.connect_ns)"
                )
            },
        )?;
        for (field, time) in self.times() {
            need(TIME_NS.contains(&time), field, || {
                format!("{time} is too large: give at most {}", TIME_NS.end())
            })?;
        }
        for (field, cost) in [
            ("host.copy_byte_ps", host.copy_byte_ps),
            ("nic.byte_ps", nic.byte_ps),
            ("network.link_byte_ps", self.network.link_byte_ps),
            ("node.byte_ps", self.node.byte_ps),
        ] {
            need(BYTE_PS.contains(&cost), field, || {
                format!("{cost} is too large: give at most {}", BYTE_PS.end())
            })?;
        }
        if let Noise::Fixed {
            every_ns,
            detour_ns,
        } = host.noise
        {
            need(detour_ns < every_ns, "host.noise.detour_ns", || {
                format!(
                    "a detour of {detour_ns} ns every {every_ns} ns leaves the host no time to work: give less than {every_ns}"
                )
            })?;
        }
        if let Noise::Exponential { every_ns, .. } = host.noise {
            need(every_ns > 0, "host.noise.every_ns", || {
                "detours every 0 ns leave the host no time to work: give at least 1".to_owned()
            })?;
        }
        self.check_losses()?;
        self.network.topology.check(ranks.div_ceil(self.node.ranks))
    }
}

impl Model {
    fn check_losses(&self) -> Result<(), ConfigError> {
        let network = &self.network;
        need(network.loss_ppb <= LOSS_PPB_MAX, "network.loss_ppb", || {
            format!(
                "a loss of {} segments in a billion is too large: give at most {LOSS_PPB_MAX}, which is one of ten",
                network.loss_ppb
            )
        })?;
        let cut = network.loss_ppb == 0 || network.segment > 0;
        need(cut, "network.segment", || {
            "segments of 0 bytes cannot be lost, and network.loss_ppb says that some are: give a length, for example 1448"
                .to_owned()
        })
    }

    /// Returns the times that are added up to the time of an event, with their names.
    const fn times(&self) -> [(&'static str, u64); 15] {
        [
            ("host.send_ns", self.host.send_ns),
            ("host.recv_ns", self.host.recv_ns),
            ("host.detect_ns", self.host.detect_ns),
            ("host.wake_ns", self.host.wake_ns),
            ("nic.command_ns", self.nic.command_ns),
            ("nic.gap_ns", self.nic.gap_ns),
            ("nic.match_ns", self.nic.match_ns),
            ("nic.connect_ns", self.nic.connect_ns),
            ("nic.datagram_ns", self.nic.datagram_ns),
            ("network.latency_ns", self.network.latency_ns),
            ("network.hop_ns", self.network.hop_ns),
            ("network.failure_ns", self.network.failure_ns),
            ("network.timeout_ns", self.network.timeout_ns),
            ("node.latency_ns", self.node.latency_ns),
            ("node.gap_ns", self.node.gap_ns),
        ]
    }
}

impl Topology {
    fn check(self, nodes: u32) -> Result<(), ConfigError> {
        match self {
            Self::Crossbar => Ok(()),
            Self::FatTree { arity } => need(arity > 1, "network.topology.arity", || {
                format!("{arity} is too small: give at least 2")
            }),
            Self::Torus { size } => {
                let places: u64 = size
                    .into_iter()
                    .fold(1, |places, size| places.saturating_mul(u64::from(size)));
                let fits = size == [0; 3] || u64::from(nodes) <= places && places <= PLACES_MAX;
                need(fits, "network.topology.size", || {
                    format!(
                        "{size:?} has {places} places for {nodes} nodes: give at least as many places as nodes, and at \
                         most {PLACES_MAX}"
                    )
                })
            }
            Self::Dragonfly {
                routers,
                nodes: each,
            } => {
                let here = u64::from(routers) * u64::from(each);
                need(here > 0, "network.topology.routers", || {
                    "0 routers, or routers with 0 nodes: give at least 1 of both".to_owned()
                })?;
                let groups = u64::from(nodes).div_ceil(here);
                let inside = u64::from(routers).saturating_mul(u64::from(routers));
                let links = groups.saturating_mul(groups.saturating_add(inside));
                need(links <= PLACES_MAX, "network.topology.routers", || {
                    format!(
                        "{groups} groups of {routers} routers have {links} links, but at most {PLACES_MAX} are possible: \
                         use larger groups"
                    )
                })
            }
        }
    }
}

fn need(holds: bool, field: &str, why: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if holds {
        Ok(())
    } else {
        Err(ConfigError::new(field, why()))
    }
}

/// Most places of a torus, and most links of a dragonfly. A link takes eight bytes, and a place of a torus has six
/// links.
const PLACES_MAX: u64 = 1 << 24;
