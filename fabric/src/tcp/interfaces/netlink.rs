//! What the kernel says about interfaces, addresses and routes, as messages of its routing socket.
//!
//! The messages are in the host's byte order. They come from the kernel, and are nevertheless read with bounds checked.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use super::{InterfaceAddress, NetworkInterface};

/// A message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NetlinkMessage<'a> {
    pub(super) kind: u16,
    /// True if something changed while the list was made, so that it may lack parts.
    pub(super) interrupted: bool,
    /// Number of the question that is answered.
    pub(super) sequence: u32,
    body: &'a [u8],
}

/// The interfaces that messages have described so far.
#[derive(Debug, Default)]
pub(super) struct InterfaceTable(BTreeMap<u32, NetworkInterface>);

/// Returns a question for a whole list.
pub(super) fn question(kind: u16, sequence: u32) -> Vec<u8> {
    // The family is unspecified, which means all. The other fields are zero.
    let body = [0; LINK_HEAD_LEN];
    let len = u32::try_from(HEAD_LEN + body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::from(len.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((REQUEST | DUMP).to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

/// Returns the messages that arrived together.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<'_>> {
    std::iter::from_fn(move || {
        let len = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let whole = bytes.get(..len)?;
        let message = NetlinkMessage {
            kind: u16_at(whole, 4)?,
            interrupted: u16_at(whole, 6)? & INTERRUPTED != 0,
            sequence: u32_at(whole, 8)?,
            body: whole.get(HEAD_LEN..)?,
        };
        bytes = after(bytes, len);
        Some(message)
    })
}

impl NetlinkMessage<'_> {
    /// Returns the error that the message tells, as the system numbers errors.
    pub(super) fn error(&self) -> Option<i32> {
        let code = self.body.first_chunk().copied().map(i32::from_ne_bytes);
        (self.kind == ERROR).then(|| code.unwrap_or_default().saturating_neg())
    }
}

impl InterfaceTable {
    /// Adds what a message says. Addresses and routes count only for interfaces that were described before.
    pub(super) fn add(&mut self, message: &NetlinkMessage<'_>) {
        let body = message.body;
        let _described = match message.kind {
            NEW_LINK => self.add_link(body),
            NEW_ADDRESS => self.add_address(body),
            NEW_ROUTE => self.add_route(body),
            _ => None,
        };
    }

    /// Returns the interfaces in the kernel's order.
    pub(super) fn into_interfaces(self) -> Vec<NetworkInterface> {
        self.0.into_values().collect()
    }

    fn add_link(&mut self, body: &[u8]) -> Option<()> {
        let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
        let mut interface = NetworkInterface {
            up: flags & (UP | RUNNING) == UP | RUNNING,
            loopback: flags & LOOPBACK != 0,
            ..NetworkInterface::default()
        };
        for (kind, value) in attributes(body.get(LINK_HEAD_LEN..)?) {
            match kind {
                LINK_NAME => interface.name = text(value),
                LINK_INFO => {
                    let mut facts = attributes(value);
                    let kind = facts.find(|(kind, _)| *kind == INFO_KIND);
                    interface.kind = kind.map(|(_, value)| text(value)).unwrap_or_default();
                }
                _ => {}
            }
        }
        self.0.insert(index, interface);
        Some(())
    }

    fn add_address(&mut self, body: &[u8]) -> Option<()> {
        let (prefix, index) = (*body.get(1)?, u32_at(body, 4)?);
        let mut flags = u32::from(*body.get(2)?);
        let (mut local, mut far) = (None, None);
        for (kind, value) in attributes(body.get(ADDRESS_HEAD_LEN..)?) {
            match kind {
                ADDRESS => far = ip(value),
                LOCAL => local = ip(value),
                FLAGS => flags = u32_at(value, 0).unwrap_or(flags),
                _ => {}
            }
        }
        // On a line between two hosts, the other attribute is the address of the far end.
        let ip = local.or(far)?;
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        let interface = self.0.get_mut(&index)?;
        if flags & NOT_TO_BE_USED == 0 && prefix <= bits {
            interface.addresses.push(InterfaceAddress { ip, prefix });
        }
        Some(())
    }

    fn add_route(&mut self, body: &[u8]) -> Option<()> {
        let (target_bits, table, kind) = (*body.get(1)?, *body.get(4)?, *body.get(7)?);
        if (target_bits, table, kind) != (0, MAIN_TABLE, UNICAST) {
            return None;
        }
        for (kind, value) in attributes(body.get(ROUTE_HEAD_LEN..)?) {
            match kind {
                OUT_INTERFACE => self.route_through(u32_at(value, 0)),
                SEVERAL_HOPS => hops(value).for_each(|index| self.route_through(Some(index))),
                _ => {}
            }
        }
        Some(())
    }

    fn route_through(&mut self, index: Option<u32>) {
        if let Some(interface) = index.and_then(|index| self.0.get_mut(&index)) {
            interface.default_route = true;
        }
    }
}

/// Returns the attributes that follow the fixed part of a message: their kinds and values.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let attribute = (u16_at(bytes, 2)? & ATTRIBUTE_KIND, bytes.get(4..len)?);
        bytes = after(bytes, len);
        Some(attribute)
    })
}

/// Returns the interfaces of a route with several next hops.
fn hops(mut bytes: &[u8]) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let index = u32_at(bytes.get(..len)?, 4)?;
        bytes = after(bytes, len);
        Some(index)
    })
}

/// Returns what follows a part of this length. Parts begin at multiples of four bytes.
fn after(bytes: &[u8], len: usize) -> &[u8] {
    bytes.get(len.next_multiple_of(4)..).unwrap_or_default()
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(*bytes.first_chunk()?).into()),
        16 => Some(Ipv6Addr::from(*bytes.first_chunk()?).into()),
        _ => None,
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..)?.first_chunk().copied();
    field.map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..)?.first_chunk().copied();
    field.map(u32::from_ne_bytes)
}

/// Asks for all interfaces.
pub(super) const GET_LINKS: u16 = 18;
/// Asks for all addresses.
pub(super) const GET_ADDRESSES: u16 = 22;
/// Asks for all routes.
pub(super) const GET_ROUTES: u16 = 26;
/// Ends a list.
pub(super) const DONE: u16 = 3;
const ERROR: u16 = 2;
const NEW_LINK: u16 = 16;
const NEW_ADDRESS: u16 = 20;
const NEW_ROUTE: u16 = 24;

// Flags of messages.
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const INTERRUPTED: u16 = 0x10;

// Lengths of the fixed parts of messages.
const HEAD_LEN: usize = 16;
const LINK_HEAD_LEN: usize = 16;
const ADDRESS_HEAD_LEN: usize = 8;
const ROUTE_HEAD_LEN: usize = 12;

/// The kind of an attribute, without the bits that tell how its value is written.
const ATTRIBUTE_KIND: u16 = 0x3fff;

// Interfaces.
const LINK_NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
const UP: u32 = 1;
const LOOPBACK: u32 = 8;
const RUNNING: u32 = 0x40;

// Addresses.
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const FLAGS: u16 = 8;
/// Flags of addresses that are temporary, in use elsewhere, about to go, or not yet checked.
const NOT_TO_BE_USED: u32 = 0x01 | 0x08 | 0x20 | 0x40;

// Routes.
const MAIN_TABLE: u8 = 254;
const UNICAST: u8 = 1;
const OUT_INTERFACE: u16 = 4;
const SEVERAL_HOPS: u16 = 9;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        ADDRESS, DONE, ERROR, FLAGS, INTERRUPTED, InterfaceTable, LINK_INFO, LINK_NAME, LOCAL,
        NEW_ADDRESS, NEW_LINK, NEW_ROUTE, NetworkInterface, OUT_INTERFACE, SEVERAL_HOPS, messages,
    };
    use crate::tcp::interfaces::examples::address;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, flags: u16, head: &[u8], attributes: &[Vec<u8>]) -> Vec<u8> {
        let body = [head, &attributes.concat()].concat();
        let len = u32::try_from(16 + body.len()).unwrap();
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
        bytes.extend(7_u32.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes
    }

    fn link(index: u32, flags: u32, name: &str, kind: &str) -> Vec<u8> {
        let head = [[0; 4], index.to_ne_bytes(), flags.to_ne_bytes(), [0; 4]].concat();
        let name = attribute(LINK_NAME, &[name.as_bytes(), &[0]].concat());
        let info = attribute(LINK_INFO | 0x8000, &attribute(1, kind.as_bytes()));
        message(NEW_LINK, 0, &head, &[attribute(99, &[1; 5]), name, info])
    }

    fn new_address(index: u32, prefix: u8, flags: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
        let head = [[2, prefix, flags, 0], index.to_ne_bytes()].concat();
        message(NEW_ADDRESS, 0, &head, attributes)
    }

    fn route(bits: u8, table: u8, attribute: Vec<u8>) -> Vec<u8> {
        let head = [2, bits, 0, 0, table, 0, 0, 1, 0, 0, 0, 0];
        message(NEW_ROUTE, 0, &head, &[attribute])
    }

    fn table(all: &[Vec<u8>]) -> Vec<NetworkInterface> {
        let mut table = InterfaceTable::default();
        for message in messages(&all.concat()) {
            table.add(&message);
        }
        table.into_interfaces()
    }

    #[test]
    fn interfaces_have_what_the_kernel_says_about_them() {
        let found = table(&[
            link(1, 0x49, "lo", ""),
            link(4, 0x41, "eth0", "veth"),
            link(5, 0x01, "eth1", "bond"),
            new_address(
                4,
                24,
                0,
                &[
                    attribute(ADDRESS, &[10, 0, 0, 1]),
                    attribute(LOCAL, &[10, 0, 0, 2]),
                ],
            ),
            new_address(
                5,
                64,
                0x20,
                &[attribute(ADDRESS, &[0xfd; 16]), attribute(FLAGS, &[0; 4])],
            ),
            new_address(
                5,
                64,
                0,
                &[
                    attribute(ADDRESS, &[0xfc; 16]),
                    attribute(FLAGS, &0x40_u32.to_ne_bytes()),
                ],
            ),
            new_address(5, 33, 0, &[attribute(LOCAL, &[10, 0, 0, 3])]),
            new_address(9, 24, 0, &[attribute(LOCAL, &[10, 0, 0, 4])]),
            route(0, 254, attribute(OUT_INTERFACE, &4_u32.to_ne_bytes())),
            route(8, 254, attribute(OUT_INTERFACE, &5_u32.to_ne_bytes())),
            route(0, 100, attribute(OUT_INTERFACE, &5_u32.to_ne_bytes())),
            message(DONE, 0, &[], &[]),
        ]);
        let [lo, pair, bond] = &found[..] else {
            panic!("{found:?}");
        };
        assert!(lo.up && lo.loopback && lo.name == "lo" && lo.kind.is_empty());
        assert!(pair.up && !pair.loopback && pair.default_route && pair.kind == "veth");
        assert_eq!(pair.addresses, [address("10.0.0.2/24")]);
        assert!(!bond.up && !bond.default_route && bond.kind == "bond");
        let only = "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd/64";
        assert_eq!(bond.addresses, [address(only)]);
    }

    #[test]
    fn a_route_may_lead_through_several_interfaces() {
        let hop = |index: u32| [[8, 0, 0, 0], index.to_ne_bytes()].concat();
        let found = table(&[
            link(4, 0x41, "eth0", ""),
            link(5, 0x41, "eth1", ""),
            route(
                0,
                254,
                attribute(SEVERAL_HOPS, &[hop(4), hop(5), hop(6)].concat()),
            ),
        ]);
        assert!(
            found.iter().all(|interface| interface.default_route),
            "{found:?}"
        );
    }

    #[test]
    fn errors_and_interruptions_are_told() {
        let bytes = [
            message(ERROR, 0, &(-13_i32).to_ne_bytes(), &[]),
            message(NEW_LINK, INTERRUPTED, &[0; 16], &[]),
        ]
        .concat();
        let all: Vec<_> = messages(&bytes).collect();
        assert_eq!((all[0].error(), all[0].interrupted), (Some(13), false));
        assert_eq!((all[1].error(), all[1].interrupted), (None, true));
        assert!(all.iter().all(|message| message.sequence == 7));
    }

    proptest! {
        #[test]
        fn cut_and_damaged_messages_do_no_harm(
            random in prop::collection::vec(any::<u8>(), 0..200),
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut good = [
                link(4, 0x41, "eth0", "veth"),
                new_address(4, 24, 0, &[attribute(LOCAL, &[10, 0, 0, 2])]),
                route(0, 254, attribute(OUT_INTERFACE, &4_u32.to_ne_bytes())),
            ];
            let _all = table(&good);
            for (at, to) in edits {
                let message = &mut good[at.index(3)];
                let at = at.index(message.len());
                message[at] = to;
            }
            let damaged = good.concat();
            for bytes in [random, damaged[..cut.index(damaged.len() + 1)].to_vec()] {
                let found = table(&[bytes]);
                prop_assert!(found.len() <= 200 / 32 + 3);
            }
        }
    }
}
