//! Which addresses a rank advertises.

use std::{cmp::Reverse, fmt, net::IpAddr};

use super::{
    InterfaceAddress, InterfaceSelection, NetworkInterface, listed, selection::InterfaceMatch,
};
use crate::tcp::address::{ENDPOINTS_MAX, SpeedClass};

/// An address on which a rank listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tcp) struct ChosenAddress {
    pub(in crate::tcp) interface: String,
    pub(in crate::tcp) address: InterfaceAddress,
    pub(in crate::tcp) speed: SpeedClass,
}

/// Whether a rank may choose the loopback interface by itself, if the host has no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum LoopbackUse {
    /// All ranks are in one network namespace, as in tests.
    IfNothingElse,
    /// Some ranks are elsewhere, and cannot be reached by it.
    Never,
}

impl InterfaceSelection {
    /// Returns the addresses to advertise, in order of preference: at least one, and at most [`ENDPOINTS_MAX`].
    ///
    /// # Errors
    /// There is none. The text says why, and lists the interfaces of the host.
    pub(in crate::tcp) fn choose(
        &self,
        interfaces: &[NetworkInterface],
        loopback: LoopbackUse,
    ) -> Result<Vec<ChosenAddress>, String> {
        let mut chosen = match self {
            Self::Only(list) => named(list, interfaces)?,
            Self::Auto => fitting(interfaces, &[], loopback),
            Self::Except(list) => fitting(interfaces, list, loopback),
        };
        if chosen.is_empty() {
            return Err(self.nothing_left(interfaces, loopback));
        }
        chosen.truncate(ENDPOINTS_MAX);
        Ok(chosen)
    }

    fn nothing_left(&self, interfaces: &[NetworkInterface], loopback: LoopbackUse) -> String {
        let why = match self {
            Self::Except(_) => format!("RIPSTOP_TCP_IFACE={self} leaves no interface for TCP"),
            _ => "no interface for TCP is up and has an address".to_owned(),
        };
        let why_not_loopback = match loopback {
            LoopbackUse::Never => "; lo reaches no other host",
            LoopbackUse::IfNothingElse => "",
        };
        format!("{why}: {}{why_not_loopback}", listed(interfaces))
    }
}

/// Returns the addresses that the user named, in that order.
fn named(
    list: &[InterfaceMatch],
    interfaces: &[NetworkInterface],
) -> Result<Vec<ChosenAddress>, String> {
    let mut chosen: Vec<ChosenAddress> = Vec::new();
    for part in list {
        let mut found = candidates(interfaces, |name, address| part.matches(name, address));
        if found.is_empty() {
            return Err(not_found(part, interfaces));
        }
        found.sort_by_key(Candidate::order);
        for candidate in found {
            let address = candidate.chosen();
            if !chosen.contains(&address) {
                chosen.push(address);
            }
        }
    }
    Ok(chosen)
}

/// Returns why a part of the user's list names nothing.
fn not_found(part: &InterfaceMatch, interfaces: &[NetworkInterface]) -> String {
    let meant = |interface: &&NetworkInterface| match part {
        InterfaceMatch::Name(name) => interface.name == *name,
        InterfaceMatch::Subnet(_) => {
            let mut addresses = interface.addresses.iter();
            addresses.any(|address| part.matches(&interface.name, *address))
        }
    };
    let why = match interfaces.iter().find(meant) {
        Some(interface) if !interface.up => format!("{} is down", interface.name),
        Some(interface) => format!("{} has no address that other hosts can use", interface.name),
        None => format!("nothing here matches {part}"),
    };
    format!(
        "RIPSTOP_TCP_IFACE names {part}, but {why}: {}",
        listed(interfaces)
    )
}

/// Returns the addresses that a rank chooses by itself.
fn fitting(
    interfaces: &[NetworkInterface],
    excluded: &[InterfaceMatch],
    loopback: LoopbackUse,
) -> Vec<ChosenAddress> {
    let mut all = candidates(interfaces, |name, address| {
        !excluded.iter().any(|part| part.matches(name, address))
    });
    all.sort_by_key(Candidate::order);
    let worst = if all.iter().any(|one| one.doubt == Doubt::None) {
        Doubt::None
    } else if loopback == LoopbackUse::IfNothingElse
        && all.iter().all(|one| one.doubt == Doubt::Loopback)
    {
        Doubt::Loopback
    } else {
        Doubt::LinkLocal
    };
    let left = all.iter().filter(|candidate| candidate.doubt <= worst);
    left.map(Candidate::chosen).collect()
}

/// An address that may be chosen.
struct Candidate<'a> {
    interface: &'a NetworkInterface,
    address: InterfaceAddress,
    doubt: Doubt,
}

/// Why an address probably leads to no other host. Greater values are worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Doubt {
    None,
    /// One end of a pair, or a bridge, through which no default route leads.
    Inside,
    /// Made for containers, virtual machines or tunnels. Such addresses are often the same on many hosts.
    Containers,
    /// Given to itself by a host without a configuration.
    LinkLocal,
    Loopback,
}

/// Returns the usable addresses of interfaces that are up, as far as they are allowed.
fn candidates(
    interfaces: &[NetworkInterface],
    allowed: impl Fn(&str, InterfaceAddress) -> bool,
) -> Vec<Candidate<'_>> {
    let up = interfaces.iter().filter(|interface| interface.up);
    let all = up.flat_map(|interface| {
        let addresses = interface.addresses.iter().copied();
        addresses.map(move |address| Candidate {
            interface,
            address,
            doubt: Doubt::of(interface, address),
        })
    });
    all.filter(|one| one.address.is_usable() && allowed(&one.interface.name, one.address))
        .collect()
}

impl Candidate<'_> {
    /// Returns a key that sorts better addresses first.
    fn order(&self) -> impl Ord + use<> {
        (
            self.doubt,
            Reverse(SpeedClass::of(self.interface.speed)),
            Reverse(self.interface.default_route),
            self.address.ip.is_ipv6(),
            self.interface.name.clone(),
        )
    }

    fn chosen(&self) -> ChosenAddress {
        ChosenAddress {
            interface: self.interface.name.clone(),
            address: self.address,
            speed: SpeedClass::of(self.interface.speed),
        }
    }
}

impl Doubt {
    fn of(interface: &NetworkInterface, address: InterfaceAddress) -> Self {
        if interface.loopback || address.ip.is_loopback() {
            Self::Loopback
        } else if matches!(address.ip, IpAddr::V4(ip) if ip.is_link_local()) {
            Self::LinkLocal
        } else if is_for_containers(interface) {
            Self::Containers
        } else if ["veth", "bridge"].contains(&interface.kind.as_str()) && !interface.default_route
        {
            Self::Inside
        } else {
            Self::None
        }
    }
}

fn is_for_containers(interface: &NetworkInterface) -> bool {
    let is_named = |word: &&str| {
        let rest = interface.name.strip_prefix(*word);
        // `tun0` is meant, and `tungsten` is not.
        rest.is_some_and(|rest| !rest.starts_with(|letter: char| letter.is_ascii_alphabetic()))
    };
    CONTAINER_KINDS.contains(&interface.kind.as_str()) || CONTAINER_NAMES.iter().any(is_named)
}

impl fmt::Display for ChosenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.interface, self.address)
    }
}

/// Kinds of interfaces that connect containers or make tunnels.
const CONTAINER_KINDS: &[&str] = &[
    "dummy",
    "geneve",
    "gre",
    "gretap",
    "ifb",
    "ip6gre",
    "ip6gretap",
    "ip6tnl",
    "ipip",
    "sit",
    "tun",
    "vti",
    "vti6",
    "vxlan",
    "wireguard",
];

/// First words of the names of such interfaces.
const CONTAINER_NAMES: &[&str] = &[
    "cni",
    "docker",
    "flannel",
    "kube",
    "lxcbr",
    "podman",
    "tailscale",
    "tap",
    "tun",
    "virbr",
    "wg",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ChosenAddress, ENDPOINTS_MAX, InterfaceSelection, LoopbackUse, NetworkInterface};
    use crate::tcp::interfaces::examples::{adapter, loopback, routed, virtual_one};

    fn fast(interface: NetworkInterface, speed: u32) -> NetworkInterface {
        NetworkInterface {
            speed: Some(speed),
            ..interface
        }
    }

    fn off(interface: NetworkInterface) -> NetworkInterface {
        NetworkInterface {
            up: false,
            ..interface
        }
    }

    fn docker() -> NetworkInterface {
        virtual_one("docker0", "bridge", &["172.17.0.1/16"])
    }

    fn choose(
        selection: &str,
        interfaces: &[NetworkInterface],
        loopback: LoopbackUse,
    ) -> Result<Vec<String>, String> {
        let selection = InterfaceSelection::parse(selection).unwrap();
        let chosen = selection.choose(interfaces, loopback)?;
        Ok(chosen.iter().map(ChosenAddress::to_string).collect())
    }

    fn auto(interfaces: &[NetworkInterface]) -> Vec<String> {
        choose("auto", interfaces, LoopbackUse::Never).unwrap()
    }

    #[test]
    fn a_rank_leaves_out_what_leads_to_no_other_host() {
        let host = [
            loopback(),
            docker(),
            virtual_one("br-77aa", "bridge", &["172.18.0.1/16"]),
            virtual_one("veth12", "veth", &["10.9.0.1/24"]),
            virtual_one("vpn", "wireguard", &["10.8.0.1/24"]),
            virtual_one("tailscale0", "tun", &["100.64.0.1/32"]),
            adapter("usb0", &["169.254.3.4/16"]),
            off(adapter("eth1", &["10.0.1.1/24"])),
            adapter("eth0", &["10.0.0.1/24", "fe80::1/64"]),
            adapter("tungsten", &["10.0.2.1/24"]),
        ];
        assert_eq!(
            auto(&host),
            ["eth0 (10.0.0.1/24)", "tungsten (10.0.2.1/24)"]
        );
    }

    #[test]
    fn a_default_route_makes_a_pair_or_a_bridge_a_way_out() {
        let container = [
            loopback(),
            routed(virtual_one("eth0", "veth", &["172.17.0.2/16"])),
        ];
        assert_eq!(auto(&container), ["eth0 (172.17.0.2/16)"]);
        let uplink = routed(virtual_one("br0", "bridge", &["10.0.0.1/24"]));
        assert_eq!(auto(&[docker(), uplink]), ["br0 (10.0.0.1/24)"]);
    }

    #[test]
    fn the_least_doubtful_is_first_if_all_are() {
        let host = [
            loopback(),
            adapter("usb0", &["169.254.3.4/16"]),
            docker(),
            virtual_one("host1", "veth", &["10.9.0.1/24"]),
        ];
        let doubtful = [
            "host1 (10.9.0.1/24)",
            "docker0 (172.17.0.1/16)",
            "usb0 (169.254.3.4/16)",
        ];
        assert_eq!(auto(&host), doubtful);
        let tests = choose("auto", &host, LoopbackUse::IfNothingElse);
        assert_eq!(tests.unwrap(), doubtful);
    }

    #[test]
    fn loopback_is_chosen_only_if_all_ranks_share_it_and_nothing_else_is_there() {
        let alone = [loopback(), adapter("eth0", &["fe80::1/64"])];
        let chosen = choose("auto", &alone, LoopbackUse::IfNothingElse).unwrap();
        assert_eq!(chosen, ["lo (127.0.0.1/8)", "lo (::1/128)"]);
        let why = choose("auto", &alone, LoopbackUse::Never).unwrap_err();
        assert!(
            why.contains("lo (127.0.0.1/8") && why.contains("no other host"),
            "{why}"
        );
        let chosen = choose("lo", &alone, LoopbackUse::Never).unwrap();
        assert_eq!(chosen, ["lo (127.0.0.1/8)", "lo (::1/128)"]);
    }

    #[test]
    fn speed_decides_before_routes_before_families_before_names() {
        let host = [
            adapter("b", &["fd00:b::1/64", "10.0.11.1/24"]),
            routed(fast(adapter("c", &["10.0.12.1/24"]), 1000)),
            fast(adapter("d", &["10.0.13.1/24"]), 100_000),
        ];
        let expected = [
            "d (10.0.13.1/24)",
            "c (10.0.12.1/24)",
            "b (10.0.11.1/24)",
            "b (fd00:b::1/64)",
        ];
        assert_eq!(auto(&host), expected);
        let host = [
            adapter("a", &["10.0.10.1/24"]),
            adapter("b", &["10.0.11.1/24"]),
            routed(adapter("z", &["fd00::1/64"])),
        ];
        let expected = ["z (fd00::1/64)", "a (10.0.10.1/24)", "b (10.0.11.1/24)"];
        assert_eq!(auto(&host), expected);
    }

    #[test]
    fn the_users_list_is_obeyed_in_its_order_and_without_doubts() {
        let host = [
            loopback(),
            docker(),
            fast(adapter("eth1", &["10.0.1.1/24"]), 100_000),
            adapter("eth10", &["10.0.10.1/24", "10.0.10.2/24"]),
        ];
        let choose = |selection| choose(selection, &host, LoopbackUse::Never);
        let chosen = choose("eth10,eth1").unwrap();
        let both = [
            "eth10 (10.0.10.1/24)",
            "eth10 (10.0.10.2/24)",
            "eth1 (10.0.1.1/24)",
        ];
        assert_eq!(chosen, both);
        assert_eq!(choose("eth1").unwrap(), ["eth1 (10.0.1.1/24)"]);
        assert_eq!(choose("docker0").unwrap(), ["docker0 (172.17.0.1/16)"]);
        assert_eq!(choose("10.0.10.2/32,eth10").unwrap().len(), 2);
        assert_eq!(choose("10.0.0.0/16").unwrap().len(), 3);
        assert_eq!(choose("^eth1").unwrap(), both[..2]);
        assert_eq!(choose("^eth1,10.0.10.1/32").unwrap(), both[1..2]);
        assert_eq!(choose("^eth7,eth10").unwrap(), both[2..]);
    }

    #[test]
    fn an_error_says_what_is_wrong_and_what_there_is() {
        let host = [
            off(adapter("eth1", &["10.0.1.1/24"])),
            adapter("ib0", &["fe80::1/64"]),
            adapter("eth0", &["10.0.0.1/24"]),
        ];
        for (selection, words) in [
            ("eth7", "nothing here matches eth7"),
            ("eth0,eth7", "nothing here matches eth7"),
            ("eth1", "eth1 is down"),
            ("10.0.1.0/24", "eth1 is down"),
            ("ib0", "ib0 has no address"),
            ("192.168.0.0/16", "nothing here matches 192.168.0.0/16"),
            ("^eth0", "RIPSTOP_TCP_IFACE=^eth0 leaves no interface"),
            ("^10.0.0.0/8", "leaves no interface"),
        ] {
            let why = choose(selection, &host, LoopbackUse::IfNothingElse).unwrap_err();
            assert!(why.contains(words), "{selection}: {why}");
            assert!(
                why.contains("eth1 (down, 10.0.1.1/24), ib0 (fe80::1/64), eth0"),
                "{why}"
            );
        }
        let why = choose("auto", &[], LoopbackUse::IfNothingElse).unwrap_err();
        assert!(why.contains("no network interface"), "{why}");
    }

    fn any_interface() -> impl Strategy<Value = NetworkInterface> {
        let addresses = prop::sample::subsequence(
            vec![
                "10.0.0.1/24",
                "169.254.0.1/16",
                "fe80::1/64",
                "fd00::1/64",
                "127.0.0.1/8",
                "172.17.0.1/16",
            ],
            0..=6,
        );
        let name = prop::sample::select(vec!["lo", "eth0", "docker0", "veth1", "ib0", "tun0"]);
        let kind = prop::sample::select(vec!["", "veth", "bridge", "tun"]);
        let speed = prop::option::of(1..200_000_u32);
        (name, kind, any::<[bool; 3]>(), speed, addresses).prop_map(
            |(name, kind, flags, speed, addresses)| {
                let [up, loopback, default_route] = flags;
                NetworkInterface {
                    up,
                    loopback,
                    speed,
                    default_route,
                    ..virtual_one(name, kind, &addresses)
                }
            },
        )
    }

    proptest! {
        #[test]
        fn whatever_the_host_has_the_choice_is_sound(
            host in prop::collection::vec(any_interface(), 0..6),
            selection in prop::sample::select(vec!["auto", "eth0", "^eth0", "10.0.0.0/8,ib0"]),
            shared in any::<bool>(),
        ) {
            let use_of_loopback = if shared { LoopbackUse::IfNothingElse } else { LoopbackUse::Never };
            let selection = InterfaceSelection::parse(selection).unwrap();
            if let Ok(chosen) = selection.choose(&host, use_of_loopback) {
                prop_assert!((1..=ENDPOINTS_MAX).contains(&chosen.len()));
                for one in chosen {
                    let there = host.iter().any(|interface| {
                        interface.up && interface.name == one.interface && interface.addresses.contains(&one.address)
                    });
                    prop_assert!(there && one.address.is_usable(), "{one:?}");
                    let explicit = matches!(selection, InterfaceSelection::Only(_));
                    prop_assert!(explicit || shared || !one.address.ip.is_loopback());
                }
            }
        }
    }
}
