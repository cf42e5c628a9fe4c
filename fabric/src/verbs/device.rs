//! The ports of this machine, and which of them a rank uses. Reads the kernel's tables, without the library.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::lanes::RAILS_MAX;

/// The ports that a rank opens.
#[derive(Debug)]
pub(super) struct PortChoice {
    /// Ports, with their weights.
    pub(super) ports: Vec<(DevicePort, u32)>,
    /// Ports that are down, if none was named.
    pub(super) left_out: Vec<DevicePort>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DevicePort {
    /// Name of the device in the kernel, like `mlx5_0`.
    pub device: String,
    /// Number of the port on its device, from 1.
    pub port: u8,
    /// True if the port is active.
    pub active: bool,
    /// True if the link is Ethernet (RoCE), where peers are addressed by GID, rather than InfiniBand.
    pub ethernet: bool,
    /// Network of an InfiniBand port, as its subnet manager names it.
    subnet: String,
}

impl DevicePort {
    /// Returns all ports of this machine, in the order of their names.
    ///
    /// # Errors
    /// There are none. The text says what to check.
    pub fn all() -> io::Result<Vec<Self>> {
        Self::all_in(Path::new(DEVICES))
    }

    fn all_in(devices: &Path) -> io::Result<Vec<Self>> {
        let mut all: Vec<Self> = entries(devices)
            .into_iter()
            .flat_map(|device| ports_of(&devices.join(&device), &device))
            .collect();
        all.sort_unstable_by(|a, b| (&a.device, a.port).cmp(&(&b.device, b.port)));
        if all.is_empty() {
            return Err(no_device(
                "no RDMA device was found: see `ls /sys/class/infiniband`, load the module of the adapter (or rdma_rxe \
                 for tests), or choose another fabric",
            ));
        }
        Ok(all)
    }

    /// Returns the ports that a configuration names. Without names, the ranks of a node take turns among the active ports, and
    /// this rank gets the one for `place`.
    ///
    /// # Errors
    /// A name or a weight is wrong, or no port is active.
    pub(super) fn choose(names: Option<&str>, place: u32) -> io::Result<PortChoice> {
        let all = Self::all()?;
        let ports = Self::choose_all(&all, names, place)?;
        let left_out = names.map_or_else(|| Self::left_out(&all, &ports[0].0), |_| Vec::new());
        Ok(PortChoice { ports, left_out })
    }

    /// Returns the ports that would be used beside `chosen`, or instead of it, if they were not down.
    fn left_out(all: &[Self], chosen: &Self) -> Vec<Self> {
        let down = all.iter().filter(|port| !port.active);
        down.filter(|port| !port.ethernet || chosen.ethernet)
            .cloned()
            .collect()
    }

    /// Advice about a port that is down.
    pub(super) const DOWN: &str = "check with `ibv_devinfo` that its cable, switch and subnet manager, or the interface \
                                   on Ethernet, are up, or name other ports with RIPSTOP_VERBS_DEVICE; without that \
                                   variable, ports that are down are left out";

    fn choose_all(all: &[Self], names: Option<&str>, place: u32) -> io::Result<Vec<(Self, u32)>> {
        let Some(names) = names else {
            return Ok(vec![(Self::choose_from(all.to_vec(), None, place)?, 1)]);
        };
        let wrong = |why: &str| {
            let why = format!("InfiniBand verbs: the devices {names}: {why}");
            io::Error::new(io::ErrorKind::InvalidInput, why)
        };
        let mut chosen: Vec<(Self, u32)> = Vec::new();
        for name in names.split(',') {
            let (name, weight) = name.split_once('*').unwrap_or((name, "1"));
            let weight = weight.parse().ok().filter(|n| (1..=WEIGHT_MAX).contains(n));
            let weight = weight.ok_or_else(|| {
                wrong(&format!(
                    "a weight is a number from 1 to {WEIGHT_MAX}, like {name}*2"
                ))
            })?;
            let port = Self::choose_from(all.to_vec(), Some(name), place)?;
            if chosen.iter().any(|(other, _)| *other == port) {
                return Err(wrong(&format!("name {port} once")));
            }
            chosen.push((port, weight));
        }
        if chosen.len() > RAILS_MAX {
            return Err(wrong(&format!("name {RAILS_MAX} or fewer")));
        }
        Ok(chosen)
    }

    fn choose_from(all: Vec<Self>, name: Option<&str>, place: u32) -> io::Result<Self> {
        let names = all.iter().map(|port| {
            let down = if port.active { "" } else { " (down)" };
            format!("{port}{down}")
        });
        let names: Vec<String> = names.collect();
        if let Some(name) = name {
            let found = all
                .into_iter()
                .find(|port| port.to_string() == name || (port.device == name && port.active));
            return found.ok_or_else(|| {
                let (there, hint) = (names.join(", "), Self::DOWN);
                no_device(&format!(
                    "no port {name} is up (the ports are {there}): {hint}"
                ))
            });
        }
        let mut up = Self::of_one_network(all);
        if up.is_empty() {
            return Err(no_device(&format!(
                "none of the ports is up: {}",
                names.join(", ")
            )));
        }
        let position = usize::try_from(place).unwrap_or(0) % up.len();
        Ok(up.swap_remove(position))
    }

    /// Returns the active ports that can reach each other, as far as the tables tell. InfiniBand comes first, because Ethernet
    /// beside it serves other purposes.
    fn of_one_network(all: Vec<Self>) -> Vec<Self> {
        let mut up: Vec<Self> = all.into_iter().filter(|port| port.active).collect();
        let first = up.iter().find(|port| !port.ethernet).or_else(|| up.first());
        if let Some(Self {
            ethernet, subnet, ..
        }) = first.cloned()
        {
            up.retain(|port| port.ethernet == ethernet && port.subnet == subnet);
        }
        up
    }

    /// Returns the index of the address to use. That is 0 on InfiniBand. On Ethernet it is the first one of RoCE v2 over IPv4, or
    /// otherwise the first one of RoCE v2.
    pub(super) fn gid_index(&self) -> io::Result<u8> {
        self.gid_index_in(Path::new(DEVICES))
    }

    fn gid_index_in(&self, devices: &Path) -> io::Result<u8> {
        if !self.ethernet {
            return Ok(0);
        }
        let port = devices
            .join(&self.device)
            .join("ports")
            .join(self.port.to_string());
        let kinds = port.join("gid_attrs/types");
        let best = entries(&kinds)
            .into_iter()
            .filter_map(|index| index.parse::<u8>().ok())
            .filter(|index| {
                read(&kinds.join(index.to_string())).is_some_and(|kind| kind == ROCE_V2)
            })
            .min_by_key(|index| {
                let gid = read(&port.join("gids").join(index.to_string())).unwrap_or_default();
                (!gid.starts_with(IPV4_MAPPED), *index)
            });
        best.ok_or_else(|| {
            no_device(&format!(
                "{self} has no address of RoCE v2: give its interface an IP address"
            ))
        })
    }
}

impl std::fmt::Display for DevicePort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.device, self.port)
    }
}

fn ports_of(device: &Path, name: &str) -> Vec<DevicePort> {
    let ports = device.join("ports");
    let all = entries(&ports).into_iter().filter_map(|port| {
        let of = |file: &str| read(&ports.join(&port).join(file)).unwrap_or_default();
        let ethernet = of("link_layer") == "Ethernet";
        let subnet = of("gids/0").get(..SUBNET_LEN).map(str::to_owned);
        Some(DevicePort {
            device: name.to_owned(),
            port: port.parse().ok()?,
            active: of("state").contains("ACTIVE"),
            ethernet,
            subnet: subnet.filter(|_| !ethernet).unwrap_or_default(),
        })
    });
    all.collect()
}

fn entries(folder: &Path) -> Vec<String> {
    let all = fs::read_dir(folder).into_iter().flatten();
    all.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

fn read(file: &PathBuf) -> Option<String> {
    // Reading an empty entry of a table fails.
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

fn no_device(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("InfiniBand verbs: {why}"))
}

/// Greatest weight of a device.
const WEIGHT_MAX: u32 = 1000;

const DEVICES: &str = "/sys/class/infiniband";
/// Length of the first half of an address, as the kernel prints it.
const SUBNET_LEN: usize = 19;
const ROCE_V2: &str = "RoCE v2";
const IPV4_MAPPED: &str = "0000:0000:0000:0000:0000:ffff:";

#[cfg(test)]
mod tests {
    use super::{DevicePort, Path, fs};

    fn port(device: &str, active: bool) -> DevicePort {
        DevicePort {
            device: device.to_owned(),
            port: 1,
            active,
            ethernet: true,
            subnet: String::new(),
        }
    }

    fn infiniband(device: &str, subnet: &str) -> DevicePort {
        DevicePort {
            ethernet: false,
            subnet: subnet.to_owned(),
            ..port(device, true)
        }
    }

    #[test]
    fn ranks_of_a_node_take_turns_among_ports_of_one_network_only() {
        let off = DevicePort {
            active: false,
            ..infiniband("f", "y")
        };
        let all = [
            port("a", true),
            infiniband("b", "x"),
            infiniband("c", "y"),
            port("d", true),
            infiniband("e", "x"),
            off,
        ];
        let of = |place| {
            DevicePort::choose_from(all.to_vec(), None, place)
                .unwrap()
                .device
        };
        assert_eq!([0, 1, 2, 3].map(of), ["b", "e", "b", "e"]);
        let named = DevicePort::choose_from(all.to_vec(), Some("c"), 0);
        assert_eq!(named.unwrap().device, "c");
    }

    #[test]
    fn the_network_of_a_port_is_the_first_half_of_its_address() {
        let root = std::env::temp_dir().join(format!("ripstop-ports-{}", std::process::id()));
        for (device, link) in [("x", "InfiniBand"), ("y", "Ethernet")] {
            let port = root.join(device).join("ports/1");
            fs::create_dir_all(port.join("gids")).unwrap();
            fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
            fs::write(port.join("link_layer"), link).unwrap();
            let gid = "fe80:0000:0000:0007:0002:c903:0000:1492\n";
            fs::write(port.join("gids/0"), gid).unwrap();
        }
        let all = DevicePort::all_in(&root).unwrap();
        fs::remove_dir_all(&root).unwrap();
        let networks = [infiniband("x", "fe80:0000:0000:0007"), port("y", true)];
        assert_eq!(all, networks);
    }

    #[test]
    fn ranks_of_a_node_take_turns_among_the_ports_that_are_up() {
        let all = [port("a", true), port("b", false), port("c", true)];
        let of = |place| {
            DevicePort::choose_from(all.to_vec(), None, place)
                .unwrap()
                .device
        };
        assert_eq!([of(0), of(1), of(2)], ["a", "c", "a"]);
    }

    #[test]
    fn without_a_named_device_the_ports_that_are_down_and_preferred_are_reported() {
        let down = |port: DevicePort| DevicePort {
            active: false,
            ..port
        };
        let left_out = |all: &[DevicePort]| {
            let chosen = DevicePort::choose_all(all, None, 1).unwrap();
            let left_out = DevicePort::left_out(all, &chosen[0].0);
            left_out.into_iter().map(|port| port.device).collect()
        };
        let of = |all: &[DevicePort]| -> String { left_out(all) };
        let (a, b) = (port("a", true), infiniband("b", "x"));
        assert_eq!(of(&[a.clone(), b.clone()]), "");
        assert_eq!(of(&[a.clone(), port("c", false)]), "c");
        assert_eq!(of(&[a, down(b.clone())]), "b");
        assert_eq!(
            of(&[port("c", false), b]),
            "",
            "Ethernet is for other purposes"
        );
    }

    #[test]
    fn a_name_that_is_none_or_down_is_an_error_with_those_there_are() {
        let all = [port("a", true), port("b", false)];
        let of = |name| DevicePort::choose_from(all.to_vec(), Some(name), 0);
        assert_eq!(of("a").unwrap().device, "a");
        assert_eq!(
            of("b:1").unwrap().device,
            "b",
            "named outright, it is taken"
        );
        for name in ["b", "x", "a:2", ""] {
            let why = of(name).unwrap_err().to_string();
            assert!(why.contains("a:1, b:1 (down)"), "{why}");
            assert!(why.contains("RIPSTOP_VERBS_DEVICE"), "{why}");
        }
        assert!(DevicePort::choose_from(vec![port("b", false)], None, 0).is_err());
    }

    #[test]
    fn several_devices_are_named_in_their_order_with_what_they_are_worth() {
        let all = ["a", "b", "c", "d", "e"].map(|name| port(name, true));
        let of = |names| DevicePort::choose_all(&all, names, 1);
        let names = |chosen: Vec<(DevicePort, u32)>| {
            let all = chosen
                .iter()
                .map(|(port, weight)| (port.to_string(), *weight));
            all.collect::<Vec<_>>()
        };
        let chosen = names(of(Some("c:1*2,a")).unwrap());
        assert_eq!(chosen, [("c:1".to_owned(), 2), ("a:1".to_owned(), 1)]);
        assert_eq!(names(of(None).unwrap()), [("b:1".to_owned(), 1)]);
        for wrong in ["a,a:1", "a*0", "a*1001", "a*", "a*x", "a,b,c,d,e"] {
            let why = of(Some(wrong)).unwrap_err().to_string();
            assert!(why.contains(wrong), "{why}");
        }
        for wrong in ["a,", "x,a", ""] {
            let why = of(Some(wrong)).unwrap_err().to_string();
            assert!(why.contains("a:1, b:1"), "{why}");
        }
    }

    #[test]
    fn the_address_of_a_port_is_that_of_roce_v2_over_ipv4() {
        let root = std::env::temp_dir().join(format!("ripstop-gids-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let local = "fe80:0000:0000:0000:0077:00ff:fe00:0000";
        let ipv4 = "0000:0000:0000:0000:0000:ffff:0a4d:0001";
        let of_x = [
            ("IB/RoCE v1", local),
            ("RoCE v2", local),
            ("IB/RoCE v1", ipv4),
            ("RoCE v2", ipv4),
        ];
        let of_y = [("IB/RoCE v1", ipv4), ("RoCE v2", ipv4), ("RoCE v2", local)];
        let of_z = [("IB/RoCE v1", local), ("IB/RoCE v1", ipv4)];
        for (device, table) in [("x", &of_x[..]), ("y", &of_y), ("z", &of_z)] {
            write(&format!("{device}/ports/1/state"), "4: ACTIVE\n");
            write(&format!("{device}/ports/1/link_layer"), "Ethernet\n");
            for (index, (kind, gid)) in table.iter().enumerate() {
                write(&format!("{device}/ports/1/gids/{index}"), gid);
                write(&format!("{device}/ports/1/gid_attrs/types/{index}"), kind);
            }
        }
        let all = DevicePort::all_in(&root).unwrap();
        let index: Vec<_> = all.iter().map(|port| port.gid_index_in(&root)).collect();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(all, ["x", "y", "z"].map(|device| port(device, true)));
        // Each port has its own table.
        let [Ok(3), Ok(1), Err(why)] = &index[..] else {
            panic!("{index:?}");
        };
        assert!(
            why.to_string().contains("z:1 has no address of RoCE v2"),
            "{why}"
        );
        assert!(
            DevicePort::all_in(Path::new("/nowhere"))
                .unwrap_err()
                .to_string()
                .contains("RDMA device")
        );
    }
}
