//! Network interfaces: what the host has, which of them a rank listens on, and where a peer is dialed first.
//!
//! The system is asked once, by [`NetworkInterface::all`]. Everything else is pure: [`InterfaceSelection::choose`] decides which
//! addresses a rank advertises, and [`dial_order()`] in which order those of a peer are tried. No host name is ever resolved.

mod choice;
mod dial_order;
mod netlink;
mod port_range;
mod selection;
mod settings;
mod system;

use std::{fmt, net::IpAddr};

pub(super) use self::{
    choice::{ChosenAddress, LoopbackUse},
    dial_order::dial_order,
    port_range::PortRange,
    selection::InterfaceSelection,
    settings::{IFACE, PORTS, port_range},
};

/// A network interface of this host, in the network namespace of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NetworkInterface {
    pub(super) name: String,
    /// True if the interface is switched on and has a link.
    pub(super) up: bool,
    pub(super) loopback: bool,
    /// The kernel's name for the kind of a virtual interface, such as `veth` or `bridge`. It is empty for adapters.
    pub(super) kind: String,
    /// Speed in Mb/s, if the adapter tells it.
    pub(super) speed: Option<u32>,
    /// True if a default route leads through the interface.
    pub(super) default_route: bool,
    pub(super) addresses: Vec<InterfaceAddress>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterfaceAddress {
    pub(super) ip: IpAddr,
    /// Bits of the address that all hosts of its subnet share.
    pub(super) prefix: u8,
}

impl InterfaceAddress {
    /// Returns true if the other address is in the subnet of this one.
    pub(super) fn has_in_subnet(self, other: IpAddr) -> bool {
        match (self.ip, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differing = u32::from(own) ^ u32::from(other);
                differing.leading_zeros() >= u32::from(self.prefix)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differing = u128::from(own) ^ u128::from(other);
                differing.leading_zeros() >= u32::from(self.prefix)
            }
            _ => false,
        }
    }

    /// Returns true if peers can use the address: link-local addresses of IPv6 mean nothing without an interface's number.
    fn is_usable(self) -> bool {
        match self.ip {
            IpAddr::V4(ip) => !ip.is_unspecified(),
            IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_unicast_link_local(),
        }
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl fmt::Display for NetworkInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = (!self.up).then(|| "down".to_owned());
        let addresses = self.addresses.iter().map(InterfaceAddress::to_string);
        let facts: Vec<String> = state.into_iter().chain(addresses).collect();
        match facts.len() {
            0 => write!(f, "{} (without an address)", self.name),
            _ => write!(f, "{} ({})", self.name, facts.join(", ")),
        }
    }
}

/// Returns the interfaces as a list for errors.
fn listed(interfaces: &[NetworkInterface]) -> String {
    if interfaces.is_empty() {
        return "this host has no network interface".to_owned();
    }
    let all: Vec<String> = interfaces.iter().map(NetworkInterface::to_string).collect();
    format!("this host has {}", all.join(", "))
}

/// Example interfaces for tests.
#[cfg(test)]
mod examples {
    use super::{InterfaceAddress, NetworkInterface};

    pub(super) fn address(text: &str) -> InterfaceAddress {
        let (ip, prefix) = text.split_once('/').unwrap();
        InterfaceAddress {
            ip: ip.parse().unwrap(),
            prefix: prefix.parse().unwrap(),
        }
    }

    /// Returns an adapter that is up.
    pub(super) fn adapter(name: &str, addresses: &[&str]) -> NetworkInterface {
        NetworkInterface {
            name: name.to_owned(),
            up: true,
            addresses: addresses.iter().map(|text| address(text)).collect(),
            ..NetworkInterface::default()
        }
    }

    pub(super) fn virtual_one(name: &str, kind: &str, addresses: &[&str]) -> NetworkInterface {
        NetworkInterface {
            kind: kind.to_owned(),
            ..adapter(name, addresses)
        }
    }

    pub(super) fn loopback() -> NetworkInterface {
        NetworkInterface {
            loopback: true,
            ..adapter("lo", &["127.0.0.1/8", "::1/128"])
        }
    }

    pub(super) fn routed(interface: NetworkInterface) -> NetworkInterface {
        NetworkInterface {
            default_route: true,
            ..interface
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        examples::{adapter, address, loopback},
        listed,
    };

    #[test]
    fn a_subnet_has_the_addresses_that_begin_like_it() {
        for (own, other, inside) in [
            ("10.1.2.3/24", "10.1.2.255", true),
            ("10.1.2.3/24", "10.1.3.3", false),
            ("10.1.2.3/23", "10.1.3.3", true),
            ("10.1.2.3/32", "10.1.2.3", true),
            ("10.1.2.3/32", "10.1.2.2", false),
            ("10.1.2.3/0", "200.0.0.1", true),
            ("fd00::1/64", "fd00::ffff:1", true),
            ("fd00::1/64", "fd00:0:0:1::1", false),
            ("fd00::1/128", "fd00::1", true),
            ("0.0.0.1/0", "::1", false),
            ("::1/0", "10.1.2.3", false),
        ] {
            let other_ip = other.parse().unwrap();
            assert_eq!(
                address(own).has_in_subnet(other_ip),
                inside,
                "{own} {other}"
            );
        }
    }

    #[test]
    fn errors_list_what_there_is() {
        let mut off = adapter("ib0", &[]);
        off.up = false;
        let all = [
            adapter("eth0", &["10.0.0.1/24"]),
            off,
            loopback(),
            adapter("eth1", &[]),
        ];
        assert_eq!(
            listed(&all),
            "this host has eth0 (10.0.0.1/24), ib0 (down), lo (127.0.0.1/8, ::1/128), eth1 (without an address)"
        );
        assert_eq!(listed(&[]), "this host has no network interface");
    }
}
