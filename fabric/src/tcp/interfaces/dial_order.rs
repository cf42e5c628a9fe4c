//! Where a peer is dialed first.

use super::InterfaceAddress;
use crate::tcp::address::TcpEndpoint;

/// Returns the endpoints of a peer in the order in which a rank with these own endpoints tries them.
///
/// Endpoints in a subnet of this rank are first. An address that this rank has too leads to this host, which is right only for
/// a rank of the same host. Endpoints of a family that this rank does not have are last. Otherwise the peer's order counts.
pub(in crate::tcp) fn dial_order(own: &[TcpEndpoint], peer: &[TcpEndpoint]) -> Vec<TcpEndpoint> {
    let mut order = peer.to_vec();
    order.sort_by_key(|endpoint| place(own, *endpoint));
    order
}

fn place(own: &[TcpEndpoint], peer: TcpEndpoint) -> u8 {
    let near = |own: &TcpEndpoint| {
        let subnet = InterfaceAddress {
            ip: own.ip,
            prefix: own.prefix,
        };
        subnet.has_in_subnet(peer.ip)
    };
    let same_family = |own: &TcpEndpoint| own.ip.is_ipv4() == peer.ip.is_ipv4();
    if own.iter().any(|own| own.ip == peer.ip) {
        2
    } else if own.iter().any(near) {
        0
    } else if own.iter().any(same_family) {
        1
    } else {
        3
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{TcpEndpoint, dial_order};
    use crate::tcp::{address::SpeedClass, interfaces::examples::address};

    fn endpoints(texts: &[&str]) -> Vec<TcpEndpoint> {
        let one = |text: &&str| {
            let address = address(text);
            TcpEndpoint {
                ip: address.ip,
                prefix: address.prefix,
                speed: SpeedClass::of(None),
                port: 4711,
            }
        };
        texts.iter().map(one).collect()
    }

    fn order(own: &[&str], peer: &[&str]) -> Vec<String> {
        let order = dial_order(&endpoints(own), &endpoints(peer));
        order
            .iter()
            .map(|endpoint| format!("{}/{}", endpoint.ip, endpoint.prefix))
            .collect()
    }

    #[test]
    fn own_subnets_are_first_and_the_peers_order_counts_otherwise() {
        let own = ["10.0.0.1/24", "fd00::1/64"];
        let peer = ["10.0.7.2/24", "10.0.8.2/24", "fd00::2/64", "10.0.0.2/24"];
        let expected = ["fd00::2/64", "10.0.0.2/24", "10.0.7.2/24", "10.0.8.2/24"];
        assert_eq!(order(&own, &peer), expected);
    }

    #[test]
    fn an_address_that_every_host_has_is_tried_after_all_that_may_be_right() {
        let own = ["10.0.0.1/24", "172.17.0.1/16"];
        let peer = ["fd00::2/64", "172.17.0.1/16", "10.0.1.2/24"];
        let expected = ["10.0.1.2/24", "172.17.0.1/16", "fd00::2/64"];
        assert_eq!(order(&own, &peer), expected);
    }

    #[test]
    fn ranks_of_one_host_try_its_addresses_in_their_order() {
        let host = ["10.0.0.1/24", "fd00::1/64", "127.0.0.1/8"];
        assert_eq!(order(&host, &host), host);
    }

    proptest! {
        #[test]
        fn every_endpoint_is_tried_once(
            own in prop::sample::subsequence(vec!["10.0.0.1/24", "172.17.0.1/0", "fd00::1/64"], 0..=3),
            peer in prop::sample::subsequence(vec!["10.0.0.2/24", "172.17.0.1/16", "fd00::2/64", "::1/128"], 0..=4),
        ) {
            let mut tried = order(&own, &peer);
            tried.sort();
            let mut expected = peer;
            expected.sort_unstable();
            prop_assert_eq!(tried, expected);
        }
    }
}
