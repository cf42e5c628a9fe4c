//! Congestion control of connections.
//!
//! BBR paces what it sends, which costs a third to a half of the bandwidth between hosts of one network, and within a host. It is
//! the default of some systems because it is good on the Internet. So where it is the default, connections within a subnet use
//! CUBIC or Reno, unless the user has named an algorithm.

use std::{net::IpAddr, os::fd::OwnedFd};

use rustix::net::sockopt;

use super::{address::TcpEndpoint, interfaces::InterfaceAddress};
use crate::provider::{
    DriverSetting,
    parsing::{auto_or, or_auto},
};

/// Congestion control of a rank.
pub(super) static CONGESTION: DriverSetting = DriverSetting {
    name: "RIPSTOP_TCP_CONGESTION",
    range: "auto | an algorithm of the system, like cubic",
    meaning: "the congestion control of connections; by default the system's, but never BBR within a subnet if there is another",
    default: "auto",
    accepts: |value| algorithm(value).map(|name| auto_or(&name, String::clone)),
};

/// Parses a value of [`CONGESTION`].
#[expect(clippy::option_option, reason = "no value, `auto`, or a value")]
pub(super) fn algorithm(value: &str) -> Option<Option<String>> {
    or_auto(value, |name| {
        let letter = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_name = !name.is_empty() && name.len() <= NAME_MAX && name.chars().all(letter);
        is_name.then(|| name.to_owned())
    })
}

/// Chooses the congestion control of connections.
#[derive(Debug, Default)]
pub(super) struct CongestionRule {
    /// The algorithm that the user has named.
    named: Option<String>,
    subnets: Vec<InterfaceAddress>,
}

impl CongestionRule {
    /// Makes the rule of a rank with these endpoints.
    pub(super) fn new(named: Option<String>, own: &[TcpEndpoint]) -> Self {
        let subnet = |own: &TcpEndpoint| InterfaceAddress {
            ip: own.ip,
            prefix: own.prefix,
        };
        Self {
            named,
            subnets: own.iter().map(subnet).collect(),
        }
    }

    /// Sets the congestion control of a connection to this address. A system that refuses keeps its own.
    pub(super) fn apply(&self, socket: &OwnedFd, peer: IpAddr) {
        let default = sockopt::tcp_congestion(socket).unwrap_or_default();
        for name in self.candidates(&default, peer) {
            if sockopt::set_tcp_congestion(socket, name).is_ok() {
                return;
            }
        }
    }

    /// Sets the congestion control of connections that will arrive from these addresses, if it is the same for all.
    ///
    /// A connection that began with BBR is paced forever, so it is better to have it begin with another.
    pub(super) fn apply_to_listener(
        &self,
        listener: &OwnedFd,
        peers: impl IntoIterator<Item = IpAddr>,
    ) {
        let default = sockopt::tcp_congestion(listener).unwrap_or_default();
        let mut peers = peers.into_iter().peekable();
        if let Some(first) = peers.peek().copied()
            && peers.all(|peer| !self.candidates(&default, peer).is_empty())
        {
            self.apply(listener, first);
        }
    }

    /// Sets the congestion control of a connection, which may have arrived before its listener had it.
    pub(super) fn apply_to_connection(&self, socket: &OwnedFd) {
        let peer = rustix::net::getpeername(socket).ok().flatten();
        if let Some(peer) = peer.and_then(|peer| std::net::SocketAddr::try_from(peer).ok()) {
            self.apply(socket, peer.ip());
        }
    }

    /// Returns the algorithms to try, the best first.
    fn candidates(&self, default: &str, peer: IpAddr) -> Vec<&str> {
        let near =
            || peer.is_loopback() || self.subnets.iter().any(|subnet| subnet.has_in_subnet(peer));
        match &self.named {
            Some(name) => vec![name],
            None if default.starts_with("bbr") && near() => vec!["cubic", "reno"],
            None => Vec::new(),
        }
    }
}

/// Longest name of an algorithm in Linux.
const NAME_MAX: usize = 15;

#[cfg(test)]
mod tests {
    use super::{CongestionRule, algorithm};
    use crate::tcp::{
        address::{SpeedClass, TcpEndpoint},
        socket_calls::connect,
    };

    fn rule(named: Option<&str>) -> CongestionRule {
        let own = TcpEndpoint {
            ip: "10.1.2.3".parse().unwrap(),
            prefix: 16,
            speed: SpeedClass::of(None),
            port: 4711,
        };
        CongestionRule::new(named.map(str::to_owned), &[own])
    }

    #[test]
    fn bbr_is_replaced_within_a_subnet_only() {
        let rule = rule(None);
        for near in ["10.1.9.9", "127.0.0.1", "::1"] {
            let peer = near.parse().unwrap();
            assert_eq!(rule.candidates("bbr", peer), ["cubic", "reno"], "{near}");
            assert!(rule.candidates("cubic", peer).is_empty(), "{near}");
            assert!(rule.candidates("dctcp", peer).is_empty(), "{near}");
        }
        for far in ["10.2.0.1", "192.0.2.1", "2001:db8::1"] {
            let peer = far.parse().unwrap();
            assert!(rule.candidates("bbr", peer).is_empty(), "{far}");
        }
    }

    #[test]
    fn a_named_algorithm_is_the_only_candidate() {
        let rule = rule(Some("reno"));
        for (default, peer) in [("bbr", "10.1.9.9"), ("cubic", "192.0.2.1")] {
            assert_eq!(rule.candidates(default, peer.parse().unwrap()), ["reno"]);
        }
    }

    /// Reno is built into every Linux, so every user may choose it.
    #[test]
    fn sockets_get_the_named_algorithm_and_keep_theirs_if_there_is_no_such_one() {
        let to = "127.0.0.1:9".parse().unwrap();
        let named = rule(Some("reno"));
        let socket = connect(to, |socket| named.apply(socket, to.ip())).unwrap();
        let set = rustix::net::sockopt::tcp_congestion(&socket).unwrap();
        assert_eq!(set, "reno");
        rule(Some("no-such")).apply(&socket, to.ip());
        let kept = rustix::net::sockopt::tcp_congestion(&socket).unwrap();
        assert_eq!(kept, "reno");
    }

    #[test]
    fn names_are_words_of_the_kernel() {
        assert_eq!(algorithm("auto"), Some(None));
        assert_eq!(algorithm("cubic"), Some(Some("cubic".to_owned())));
        for wrong in ["", "a b", "cubic,reno", "longer-than-the-kernels"] {
            assert_eq!(algorithm(wrong), None, "{wrong:?}");
        }
    }
}
