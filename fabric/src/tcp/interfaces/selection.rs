//! Which interfaces the user allows.

use std::{fmt, net::IpAddr};

use super::InterfaceAddress;

/// The value of `RIPSTOP_TCP_IFACE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum InterfaceSelection {
    /// The rank chooses.
    Auto,
    /// Only these, in this order.
    Only(Vec<InterfaceMatch>),
    /// The rank chooses among the others.
    Except(Vec<InterfaceMatch>),
}

/// Part of a selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum InterfaceMatch {
    /// All addresses of the interface with exactly this name.
    Name(String),
    /// The addresses in this subnet.
    Subnet(InterfaceAddress),
}

impl InterfaceSelection {
    /// Parses `auto`, or a list of names and subnets like `ib0,10.1.0.0/16`. A `^` before the list excludes what it names.
    pub(in crate::tcp) fn parse(text: &str) -> Option<Self> {
        if text == "auto" {
            return Some(Self::Auto);
        }
        let (list, wrap): (_, fn(Vec<InterfaceMatch>) -> Self) = match text.strip_prefix('^') {
            Some(list) => (list, Self::Except),
            None => (text, Self::Only),
        };
        let parts = list.split(',');
        let parts: Option<_> = parts
            .map(|part| InterfaceMatch::parse(part.trim()))
            .collect();
        parts.map(wrap)
    }
}

impl InterfaceMatch {
    fn parse(text: &str) -> Option<Self> {
        match text.split_once('/') {
            Some((ip, prefix)) => {
                let ip: IpAddr = ip.parse().ok()?;
                let bits = if ip.is_ipv4() { 32 } else { 128 };
                let digits = prefix.bytes().all(|byte| byte.is_ascii_digit());
                let prefix = prefix.parse().ok()?;
                let subnet = InterfaceAddress { ip, prefix };
                (digits && prefix <= bits).then_some(Self::Subnet(subnet))
            }
            None => is_name(text).then(|| Self::Name(text.to_owned())),
        }
    }

    /// Returns true if this address of this interface is meant.
    pub(super) fn matches(&self, name: &str, address: InterfaceAddress) -> bool {
        match self {
            Self::Name(exact) => exact == name,
            Self::Subnet(subnet) => subnet.has_in_subnet(address.ip),
        }
    }
}

/// Returns true if the kernel accepts such a name for an interface. Other names are typing errors.
fn is_name(text: &str) -> bool {
    let fits = (1..=NAME_LEN_MAX).contains(&text.len());
    let odd = |letter: char| letter.is_whitespace() || ['^', ':'].contains(&letter);
    fits && !text.contains(odd) && ![".", "..", "auto"].contains(&text)
}

impl fmt::Display for InterfaceMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Subnet(subnet) => subnet.fmt(f),
        }
    }
}

impl fmt::Display for InterfaceSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, list) = match self {
            Self::Auto => return f.write_str("auto"),
            Self::Only(list) => ("", list),
            Self::Except(list) => ("^", list),
        };
        let list: Vec<String> = list.iter().map(InterfaceMatch::to_string).collect();
        write!(f, "{sign}{}", list.join(","))
    }
}

/// The longest name that the kernel gives an interface.
const NAME_LEN_MAX: usize = 15;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{InterfaceMatch, InterfaceSelection};
    use crate::tcp::interfaces::examples::address;

    #[test]
    fn selections_are_lists_of_names_and_subnets() {
        for text in [
            "auto",
            "eth0",
            "ib0,eth0",
            "^docker0",
            "^lo,172.17.0.0/16",
            "fd00::/8",
            "br-0a1b2c,eth0.17",
        ] {
            let selection = InterfaceSelection::parse(text).unwrap();
            assert_eq!(selection.to_string(), text);
        }
        let spaced = InterfaceSelection::parse("ib0, 10.0.0.0/8").unwrap();
        assert_eq!(spaced.to_string(), "ib0,10.0.0.0/8");
        for text in [
            "",
            "^",
            ",",
            "eth0,",
            "a,^b",
            "^a,^b",
            "eth 0",
            "0123456789abcdef",
            "10.0.0.0/33",
            "10.0.0/8",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "fd00::/129",
            "fd00::1",
            "..",
            "auto,eth0",
            "^auto",
            "x/8",
        ] {
            assert_eq!(InterfaceSelection::parse(text), None, "{text}");
        }
    }

    #[test]
    fn names_match_exactly_and_subnets_by_their_bits() {
        let name = InterfaceMatch::parse("eth1").unwrap();
        assert!(name.matches("eth1", address("10.0.0.1/8")));
        assert!(!name.matches("eth10", address("10.0.0.1/8")));
        let subnet = InterfaceMatch::parse("10.1.0.0/16").unwrap();
        assert!(subnet.matches("any", address("10.1.2.3/32")));
        assert!(!subnet.matches("any", address("10.2.2.3/8")));
    }

    proptest! {
        #[test]
        fn a_selection_that_is_parsed_is_printed_and_parsed_again(text in "[\\^a-f0-9.:/, ]{0,30}|\\PC{0,20}") {
            if let Some(selection) = InterfaceSelection::parse(&text) {
                let printed = selection.to_string();
                prop_assert_eq!(InterfaceSelection::parse(&printed), Some(selection));
            }
        }
    }
}
