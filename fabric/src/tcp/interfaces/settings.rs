//! Settings that say where a rank listens.

use super::{InterfaceSelection, PortRange};
use crate::provider::{
    DriverSetting,
    parsing::{auto_or, or_auto},
};

/// Interfaces of a rank.
pub(in crate::tcp) static IFACE: DriverSetting = DriverSetting {
    name: "RIPSTOP_TCP_IFACE",
    range: "auto | names and subnets, like eth0 or ib0,10.1.0.0/16 | ^ and what to leave out, like ^docker0,172.17.0.0/16",
    meaning: "the network interfaces of a rank, in order of preference; by default, those that lead to other hosts, the fastest \
              first",
    default: "auto",
    accepts: |value| InterfaceSelection::parse(value).map(|selection| selection.to_string()),
};

/// Ports of a rank.
pub(in crate::tcp) static PORTS: DriverSetting = DriverSetting {
    name: "RIPSTOP_TCP_PORTS",
    range: "auto | a range, like 5000-5999",
    meaning: "the ports on which ranks listen, for firewalls that let only some pass; each rank needs one for each of its \
              addresses",
    default: "auto",
    accepts: |value| port_range(value).map(|range| auto_or(&range, PortRange::to_string)),
};

/// Parses a value of [`PORTS`].
#[expect(clippy::option_option, reason = "no value, `auto`, or a value")]
pub(in crate::tcp) fn port_range(value: &str) -> Option<Option<PortRange>> {
    or_auto(value, PortRange::parse)
}

#[cfg(test)]
mod tests {
    use super::{IFACE, PORTS};

    #[test]
    fn settings_accept_what_their_ranges_say() {
        for (setting, good, bad) in [
            (
                &IFACE,
                ["auto", "ib0,10.1.0.0/16", "^docker0,172.17.0.0/16"],
                "",
            ),
            (&PORTS, ["auto", "5000-5999", "7-7"], "5999-5000"),
        ] {
            for value in good.iter().chain([&setting.default]) {
                assert_eq!((setting.accepts)(value).as_deref(), Some(*value));
            }
            assert_eq!((setting.accepts)(bad), None, "{bad}");
        }
    }
}
