//! Reads models from TOML, including the presets.

use std::ops::RangeInclusive;

use toml::{Table, Value};

use super::{BYTE_PS, Model, Noise, TIME_NS, Topology};
use crate::sim::config::ConfigError;

/// The machines known by name, with the files that describe them.
const PRESETS: [(&str, &str); 10] = [
    ("ideal", include_str!("../presets/ideal.toml")),
    ("seastar", include_str!("../presets/seastar.toml")),
    ("bxi", include_str!("../presets/bxi.toml")),
    ("sdr", include_str!("../presets/sdr.toml")),
    ("qdr", include_str!("../presets/qdr.toml")),
    ("hdr", include_str!("../presets/hdr.toml")),
    ("shm", include_str!("../presets/shm.toml")),
    ("ethernet", include_str!("../presets/ethernet.toml")),
    ("ethernet-25", include_str!("../presets/ethernet-25.toml")),
    ("ethernet-100", include_str!("../presets/ethernet-100.toml")),
];

impl Model {
    /// Returns a machine known by name: `ideal`, `seastar`, `bxi`, `sdr`, `qdr`, `hdr`, `shm`, `ethernet` (10 Gb/s),
    /// `ethernet-25` or `ethernet-100`. `bxi-2` to `bxi-4` have 2 to 4 rails.
    ///
    /// # Errors
    /// Lists the names if there is no such machine.
    pub fn preset(name: &str) -> Result<Self, ConfigError> {
        let (family, rails) = match name {
            "bxi-2" => ("bxi", 2),
            "bxi-3" => ("bxi", 3),
            "bxi-4" => ("bxi", 4),
            _ => (name, 1),
        };
        let Some((_, text)) = PRESETS.iter().find(|(known, _)| *known == family) else {
            let known: Vec<&str> = PRESETS.iter().map(|(known, _)| *known).collect();
            let why = format!(
                "{name:?} is not a preset: the presets are {}, and bxi-2 to bxi-4",
                known.join(", ")
            );
            return Err(ConfigError::new("preset", why));
        };
        let mut model = Self::from_toml(text)?;
        name.clone_into(&mut model.name);
        model.nic.rails = rails;
        Ok(model)
    }

    /// Reads a machine from a TOML file with the tables `host`, `nic`, `network`, `node` and `pmi`, which have the fields of this
    /// type's parts.
    ///
    /// `base` names the preset for all fields that are missing (`ideal` by default).
    ///
    /// ```
    /// use ripstop_fabric::sim::Model;
    ///
    /// let model = Model::from_toml("base = 'bxi-4'\nnetwork.topology = { kind = 'torus', size = [4, 4, 4] }\nnode.ranks = 8")?;
    /// assert_eq!((model.nic.rails, model.node.ranks), (4, 8));
    /// # Ok::<(), ripstop_fabric::sim::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// Names the field that is unknown, of the wrong type or out of range, and its valid values.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let table = text
            .parse()
            .map_err(|why: toml::de::Error| ConfigError::new("TOML", why.to_string()))?;
        let mut fields = ModelFields::new("", table);
        let mut model = match fields.word("base")? {
            Some(base) => Self::preset(&base)?,
            None => Self::default(),
        };
        if let Some(name) = fields.word("name")? {
            model.name = name;
        }
        model.read_host(fields.table("host")?)?;
        model.read_nic(fields.table("nic")?)?;
        model.read_network(fields.table("network")?)?;
        model.read_node(fields.table("node")?)?;
        let mut pmi = fields.table("pmi")?;
        pmi.time("service_ns", &mut model.pmi.service_ns)?;
        pmi.end()?;
        fields.end()?;
        Ok(model)
    }

    fn read_host(&mut self, mut fields: ModelFields) -> Result<(), ConfigError> {
        let host = &mut self.host;
        fields.time("send_ns", &mut host.send_ns)?;
        fields.time("recv_ns", &mut host.recv_ns)?;
        fields.time("detect_ns", &mut host.detect_ns)?;
        fields.time("wake_ns", &mut host.wake_ns)?;
        fields.flag("polls", &mut host.polls)?;
        fields.flag("interrupts", &mut host.interrupts)?;
        fields.flag("agent", &mut host.agent)?;
        fields.flag("steals", &mut host.steals)?;
        fields.number("copy_byte_ps", &mut host.copy_byte_ps, BYTE_PS)?;
        if let Some(noise) = fields.choice("noise")? {
            host.noise = read_noise(noise)?;
        }
        fields.end()
    }

    fn read_nic(&mut self, mut fields: ModelFields) -> Result<(), ConfigError> {
        let nic = &mut self.nic;
        fields.small("rails", &mut nic.rails, super::RAILS)?;
        fields.time("command_ns", &mut nic.command_ns)?;
        fields.time("gap_ns", &mut nic.gap_ns)?;
        fields.number("byte_ps", &mut nic.byte_ps, BYTE_PS)?;
        fields.time("match_ns", &mut nic.match_ns)?;
        fields.time("triggered_ns", &mut nic.triggered_ns)?;
        fields.time("connect_ns", &mut nic.connect_ns)?;
        fields.time("connect_alone_ns", &mut nic.connect_alone_ns)?;
        fields.time("datagram_ns", &mut nic.datagram_ns)?;
        fields.small("datagram", &mut nic.datagram, 0..=1 << 16)?;
        fields.small("queue", &mut nic.queue, 1..=1 << 20)?;
        fields.small("queue_bytes", &mut nic.queue_bytes, 1..=1 << 30)?;
        fields.small("triggered", &mut nic.triggered, 0..=1 << 20)?;
        fields.small("combine", &mut nic.combine, 0..=1 << 20)?;
        fields.small("commands", &mut nic.commands, 1..=1 << 20)?;
        fields.end()
    }

    fn read_network(&mut self, mut fields: ModelFields) -> Result<(), ConfigError> {
        let network = &mut self.network;
        if let Some(topology) = fields.choice("topology")? {
            network.topology = read_topology(topology)?;
        }
        fields.time("latency_ns", &mut network.latency_ns)?;
        fields.time("hop_ns", &mut network.hop_ns)?;
        fields.number("link_byte_ps", &mut network.link_byte_ps, BYTE_PS)?;
        fields.time("failure_ns", &mut network.failure_ns)?;
        fields.small("loss_ppb", &mut network.loss_ppb, 0..=super::LOSS_PPB_MAX)?;
        fields.small("segment", &mut network.segment, 1..=1 << 20)?;
        fields.time("timeout_ns", &mut network.timeout_ns)?;
        fields.end()
    }

    fn read_node(&mut self, mut fields: ModelFields) -> Result<(), ConfigError> {
        let node = &mut self.node;
        fields.small("ranks", &mut node.ranks, 1..=u32::MAX)?;
        fields.time("latency_ns", &mut node.latency_ns)?;
        fields.time("gap_ns", &mut node.gap_ns)?;
        fields.number("byte_ps", &mut node.byte_ps, BYTE_PS)?;
        fields.time("access_ns", &mut node.access_ns)?;
        fields.end()
    }
}

fn read_noise(mut fields: ModelFields) -> Result<Noise, ConfigError> {
    let kind = fields.kind(&["none", "fixed", "exponential"])?;
    let (mut every_ns, mut detour_ns) = (0, 0);
    if kind != "none" {
        fields.needed("every_ns", &mut every_ns, TIME_NS)?;
        fields.needed("detour_ns", &mut detour_ns, TIME_NS)?;
    }
    fields.end()?;
    Ok(match kind {
        "fixed" => Noise::Fixed {
            every_ns,
            detour_ns,
        },
        "exponential" => Noise::Exponential {
            every_ns,
            detour_ns,
        },
        _ => Noise::None,
    })
}

fn read_topology(mut fields: ModelFields) -> Result<Topology, ConfigError> {
    let kind = fields.kind(&["crossbar", "fat-tree", "torus", "dragonfly"])?;
    let topology = match kind {
        "fat-tree" => {
            let mut arity = 0;
            fields.needed("arity", &mut arity, 2..=1024)?;
            let arity = narrow(arity);
            Topology::FatTree { arity }
        }
        "torus" => Topology::Torus {
            size: fields.three("size")?,
        },
        "dragonfly" => {
            let (mut routers, mut nodes) = (0, 0);
            fields.needed("routers", &mut routers, 1..=1024)?;
            fields.needed("nodes", &mut nodes, 1..=1024)?;
            let (routers, nodes) = (narrow(routers), narrow(nodes));
            Topology::Dragonfly { routers, nodes }
        }
        _ => Topology::Crossbar,
    };
    fields.end()?;
    Ok(topology)
}

/// A table whose fields are taken out one by one. Fields left at the end are unknown.
struct ModelFields {
    path: String,
    table: Table,
    known: Vec<&'static str>,
}

impl ModelFields {
    fn new(path: &str, table: Table) -> Self {
        Self {
            path: path.to_owned(),
            table,
            known: Vec::new(),
        }
    }

    fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.table.remove(name)
    }

    fn wrong(&self, name: &str, why: impl Into<String>) -> ConfigError {
        ConfigError::new(format!("{}{name}", self.path), why)
    }

    fn time(&mut self, name: &'static str, into: &mut u64) -> Result<(), ConfigError> {
        self.number(name, into, TIME_NS)
    }

    fn number(
        &mut self,
        name: &'static str,
        into: &mut u64,
        range: RangeInclusive<u64>,
    ) -> Result<(), ConfigError> {
        let Some(value) = self.take(name) else {
            return Ok(());
        };
        let number = value
            .as_integer()
            .and_then(|number| u64::try_from(number).ok());
        match number.filter(|number| range.contains(number)) {
            Some(number) => *into = number,
            None => {
                let allowed = format!("a whole number from {} to {}", range.start(), range.end());
                return Err(self.wrong(name, format!("{} is not {allowed}", shown(&value))));
            }
        }
        Ok(())
    }

    fn needed(
        &mut self,
        name: &'static str,
        into: &mut u64,
        range: RangeInclusive<u64>,
    ) -> Result<(), ConfigError> {
        if !self.table.contains_key(name) {
            return Err(self.wrong(name, "is missing"));
        }
        self.number(name, into, range)
    }

    fn small(
        &mut self,
        name: &'static str,
        into: &mut u32,
        range: RangeInclusive<u32>,
    ) -> Result<(), ConfigError> {
        let mut number = u64::from(*into);
        self.number(
            name,
            &mut number,
            u64::from(*range.start())..=u64::from(*range.end()),
        )?;
        *into = narrow(number);
        Ok(())
    }

    fn flag(&mut self, name: &'static str, into: &mut bool) -> Result<(), ConfigError> {
        if let Some(value) = self.take(name) {
            let wrong = || self.wrong(name, format!("{} is not true or false", shown(&value)));
            *into = value.as_bool().ok_or_else(wrong)?;
        }
        Ok(())
    }

    fn word(&mut self, name: &'static str) -> Result<Option<String>, ConfigError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(word)) => Ok(Some(word)),
            Some(value) => Err(self.wrong(name, format!("{} is not a string", shown(&value)))),
        }
    }

    fn three(&mut self, name: &'static str) -> Result<[u32; 3], ConfigError> {
        let Some(value) = self.take(name) else {
            return Ok([0; 3]);
        };
        let sizes = value.as_array().into_iter().flatten();
        let sizes: Vec<u32> = sizes
            .filter_map(|size| u32::try_from(size.as_integer()?).ok())
            .collect();
        let three = <[u32; 3]>::try_from(sizes).ok();
        let sane =
            three.filter(|three| value.as_array().is_some_and(|all| all.len() == three.len()));
        sane.ok_or_else(|| {
            self.wrong(
                name,
                format!("{} is not three whole numbers", shown(&value)),
            )
        })
    }

    /// Takes a table, which is empty if it is missing.
    fn table(&mut self, name: &'static str) -> Result<Self, ConfigError> {
        Ok(self
            .choice(name)?
            .unwrap_or_else(|| self.inner(name, Table::new())))
    }

    fn choice(&mut self, name: &'static str) -> Result<Option<Self>, ConfigError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Table(table)) => Ok(Some(self.inner(name, table))),
            Some(value) => Err(self.wrong(name, format!("{} is not a table", shown(&value)))),
        }
    }

    fn inner(&self, name: &str, table: Table) -> Self {
        Self::new(&format!("{}{name}.", self.path), table)
    }

    fn kind(&mut self, kinds: &[&'static str]) -> Result<&'static str, ConfigError> {
        let kind = self.word("kind")?.unwrap_or_default();
        let known = kinds.iter().find(|known| **known == kind);
        known.copied().ok_or_else(|| {
            self.wrong(
                "kind",
                format!("{kind:?} is not one of {}", kinds.join(", ")),
            )
        })
    }

    fn end(self) -> Result<(), ConfigError> {
        match self.table.keys().next() {
            None => Ok(()),
            Some(name) => Err(self.wrong(
                name,
                format!("is not a field: the fields are {}", self.known.join(", ")),
            )),
        }
    }
}

/// Returns a value as errors show it.
fn shown(value: &Value) -> String {
    match value {
        Value::String(word) => format!("{word:?}"),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(flag) => flag.to_string(),
        other => format!("this {}", other.type_str()),
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Model, PRESETS};
    use crate::sim::{Cluster, ClusterConfig, Noise, Topology};

    #[test]
    fn every_preset_is_read_and_makes_a_cluster() {
        let names = PRESETS.iter().map(|(name, _)| *name);
        for name in names.chain(["bxi-2", "bxi-3", "bxi-4"]) {
            let model = Model::preset(name).unwrap();
            assert_eq!(model.name, name);
            let config = ClusterConfig {
                model,
                ..ClusterConfig::new(100)
            };
            Cluster::new(config).unwrap();
        }
        assert_eq!(Model::preset("bxi-3").unwrap().nic.rails, 3);
        assert_eq!(Model::preset("ideal").unwrap(), Model::default());
    }

    #[test]
    fn each_constant_of_a_preset_names_its_source() {
        for (name, text) in PRESETS {
            let bare = text.lines().find(|line| {
                line.contains('=') && !line.contains('#') && !line.starts_with("name")
            });
            assert_eq!(bare, None, "preset {name}");
        }
    }

    #[test]
    fn a_file_changes_what_it_names_and_nothing_else() {
        let text = "base = 'qdr'\nname = 'mine'\n[host]\nagent = true\n\
                    noise = { kind = 'fixed', every_ns = 1000, detour_ns = 10 }\n\
                    [network]\ntopology = { kind = 'dragonfly', routers = 4, nodes = 2 }\n[nic]\nrails = 8";
        let (model, qdr) = (
            Model::from_toml(text).unwrap(),
            Model::preset("qdr").unwrap(),
        );
        let (every_ns, detour_ns) = (1000, 10);
        assert_eq!(
            model.host.noise,
            Noise::Fixed {
                every_ns,
                detour_ns
            }
        );
        let (routers, nodes) = (4, 2);
        assert_eq!(
            model.network.topology,
            Topology::Dragonfly { routers, nodes }
        );
        assert!(model.host.agent && model.nic.rails == 8 && model.name == "mine");
        assert_eq!(
            (model.node, model.host.send_ns),
            (qdr.node, qdr.host.send_ns)
        );
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (text, field, word) in [
            ("base = 'myrinet'", "preset", "seastar, bxi"),
            ("[host]\nsend_us = 3", "host.send_us", "send_ns, recv_ns"),
            ("[hosts]", "hosts", "host, nic"),
            ("[nic]\nrails = 9", "nic.rails", "from 1 to 8"),
            ("[nic]\nrails = 'two'", "nic.rails", "whole number"),
            ("[nic]\ngap_ns = -1", "nic.gap_ns", "from 0"),
            ("[nic]\ngap_ns = 1.5", "nic.gap_ns", "whole number"),
            ("nic = 3", "nic", "table"),
            (
                "network.loss_ppb = 100000001",
                "network.loss_ppb",
                "to 100000000",
            ),
            ("network.segment = 0", "network.segment", "from 1"),
            ("[host]\npolls = 1", "host.polls", "true or false"),
            (
                "[host]\nnoise = { kind = 'loud' }",
                "host.noise.kind",
                "exponential",
            ),
            (
                "[host]\nnoise = { kind = 'fixed', every_ns = 1 }",
                "host.noise.detour_ns",
                "missing",
            ),
            (
                "[network]\ntopology = { kind = 'torus', size = [1, 2] }",
                "network.topology.size",
                "three",
            ),
            (
                "[network]\ntopology = { kind = 'torus', size = [1, 2, 'x'] }",
                "network.topology.size",
                "three",
            ),
            (
                "[network]\ntopology = { kind = 'fat-tree', arity = 1 }",
                "network.topology.arity",
                "from 2",
            ),
            ("[network]\ntopology = 'torus'", "network.topology", "table"),
            ("name = [", "TOML", ""),
        ] {
            let error = Model::from_toml(text).unwrap_err();
            assert_eq!(error.field(), field, "{text}: {error}");
            assert!(error.to_string().contains(word), "{text}: {error}");
        }
    }
}
